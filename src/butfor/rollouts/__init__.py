"""Episodes: the data type that environments produce and everything else reads, and the functions that play them.

Read `episodes.py` first (arrays [episode, time, ...], and their file), then `play.py`, the only module that steps
environments. `swaps.py` makes transitions that never happened, `kept.py` notes where a run keeps its episodes.
"""

from butfor.rollouts.episodes import Episodes, EpisodeStream, concatenate
from butfor.rollouts.play import EnvError, Played, Policy, Stream, collect, episode_seed, play_again, random_policy

__all__ = [
    "EnvError",
    "EpisodeStream",
    "Episodes",
    "Played",
    "Policy",
    "Stream",
    "collect",
    "concatenate",
    "episode_seed",
    "play_again",
    "random_policy",
]
