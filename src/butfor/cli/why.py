"""`butfor why`: the steps and entities without which an event of an episode would not have happened."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import tyro

from butfor.cli.console import live_progress
from butfor.cli.options import File
from butfor.runs.reading import find_run

if TYPE_CHECKING:
    from butfor.detection.why import Reasons

BARS = " ▁▂▃▄▅▆▇█"


def why(
    what: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|EPISODES")],
    /,
    event: str = "success",
    episode: int = 0,
    alternatives: int = 16,
    window: int = 1,
    seed: int = 0,
    influence: File = None,
    far: float = 0.05,
) -> None:
    """Find the steps and entities without which an event of an episode would not have happened.

    Each action is replaced by random ones, and the rest of the episode is replayed: with the recorded actions, or by
    the policy of a run. A step is necessary to the degree to which its alternatives prevent the event.

    Args:
        what: episode file, or a training run, whose policy plays the episode and acts after each replaced action
        event: success, or "NAME moved" with the name of an entity
        episode: number of the episode, from 0
        alternatives: random actions tried in each step
        window: number of consecutive actions that are replaced together
        seed: seed of the random actions
        influence: saved Influence with a model of pairs, which is rolled out where the environment does not fork
        far: with --influence, the distance from its start at which an entity has moved, in the data's units
    """
    with live_progress() as progress:
        report = lambda done: progress("forking", done, done, "steps")  # noqa: E731
        found = _find(what, event, episode, alternatives, window, seed, influence, far, report)
    if found.happened is None:
        print(f"{event!r} did not happen in episode {episode}.")
        return
    print(f"{event!r} happened in step {found.happened} of episode {episode}.")
    shown = found.prevented[: found.happened + 1]
    unknown = int(np.isnan(shown).sum())
    print("Share of the alternatives that prevent it, step by step:")
    print("".join("?" if math.isnan(share) else BARS[round(share * (len(BARS) - 1))] for share in shown))
    if unknown:
        print(f"In {unknown} steps (?) the model does not foresee the event, so their share is not known.")
    needed = [(step, share) for step, share in enumerate(shown) if share >= 0.5]
    for step, share in needed:
        print(f"  step {step}: {share:.0%}")
    if not needed:
        print("No single step is necessary: replacing any one of them mostly leaves the event. Try a larger --window.")
    for name, is_needed in found.entities.items():
        print(f"Without {name}: {'it does not happen' if is_needed else 'it still happens'}.")


def _find(
    what: str, event: str, episode: int, alternatives: int, window: int, seed: int, model: Path | None, far: float,
    report: Callable[[int], None],
) -> "Reasons":  # fmt: skip
    """Find the reasons in an episode file or a run, by forks or by a model."""
    from butfor.detection.why import find_reasons, find_reasons_by_model, find_reasons_of_policy
    from butfor.rollouts.episodes import Episodes
    from butfor.rollouts.play import Stream, episode_seed

    if Path(what).suffix == ".npz":
        episodes = Episodes.load(Path(what))
        if model is None:
            return find_reasons(episodes, episode, event, alternatives, window, seed, report)
        from butfor.influence.influence import Influence

        return find_reasons_by_model(
            Influence.load(model), episodes, episode, event, alternatives, window, seed, far
        )  # fmt: skip
    if model is not None:
        raise ValueError(f"{what} is a run, whose environment is forked; --influence is for an episode file.")
    from butfor.training.agents.policy import load_policy

    policy = load_policy(find_run(what))
    start = episode_seed(policy.seed, Stream.EVALUATION, episode)
    return find_reasons_of_policy(policy.env, policy, start, event, alternatives, window, seed, report)
