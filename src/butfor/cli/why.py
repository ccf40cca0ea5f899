"""`butfor why`: the steps and entities without which an event of an episode would not have happened."""

from pathlib import Path
from typing import Annotated

import tyro

from butfor.cli.console import live_progress

BARS = " ▁▂▃▄▅▆▇█"


def why(
    file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="EPISODES")],
    /,
    event: str = "success",
    episode: int = 0,
    alternatives: int = 16,
    window: int = 1,
    seed: int = 0,
) -> None:
    """Find the steps and entities without which an event of an episode would not have happened.

    Each action is replaced by random ones, and the rest of the episode is replayed. A step is necessary to the degree
    to which its alternatives prevent the event.

    Args:
        file: episode file of pucks or a Fetch environment, written by `butfor collect`
        event: success, or "NAME moved" with the name of an entity
        episode: number of the episode, from 0
        alternatives: random actions tried in each step
        window: number of consecutive actions that are replaced together
        seed: seed of the random actions
    """
    from butfor.detection.why import find_reasons
    from butfor.rollouts.episodes import Episodes

    episodes = Episodes.load(file)
    with live_progress() as progress:
        found = find_reasons(
            episodes, episode, event, alternatives, window, seed,
            lambda done: progress("forking", done, int(episodes.length[episode]), "steps"),
        )  # fmt: skip
    if found.happened is None:
        print(f"{event!r} did not happen in episode {episode}.")
        return
    print(f"{event!r} happened in step {found.happened} of episode {episode}.")
    shown = found.prevented[: found.happened + 1]
    print("Share of the alternatives that prevent it, step by step:")
    print("".join(BARS[round(share * (len(BARS) - 1))] for share in shown))
    needed = [(step, share) for step, share in enumerate(shown) if share >= 0.5]
    for step, share in needed:
        print(f"  step {step}: {share:.0%}")
    if not needed:
        print("No single step is necessary: replacing any one of them mostly leaves the event. Try a larger --window.")
    for name, is_needed in found.entities.items():
        print(f"Without {name}: {'it does not happen' if is_needed else 'it still happens'}.")
