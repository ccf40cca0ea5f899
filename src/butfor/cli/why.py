"""`butfor why`: the steps and entities without which an event of an episode would not have happened."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import tyro

from butfor.cli.console import live_progress
from butfor.cli.options import File, Flag, ImportModule
from butfor.runs.modules import module_imports
from butfor.runs.reading import find_run

if TYPE_CHECKING:
    from butfor.detection.why import Reasons, Shares

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
    far: Annotated[float | None, tyro.conf.arg(help_behavior_hint="(default: 0.05)")] = None,
    near: Annotated[float | None, tyro.conf.arg(help_behavior_hint="(default: 0.05)")] = None,
    entities: tuple[str, ...] = (),
    sufficient: Flag = False,
    import_module: ImportModule = False,
) -> None:
    """Find the steps and entities without which an event of an episode would not have happened.

    Each action is replaced by random ones, and the rest of the episode is replayed: with the recorded actions, or by
    the policy of a run. A step is necessary to the degree to which its alternatives prevent the event. States of
    built-in environments and of those that MuJoCo simulates are forked; for others give a model with --influence,
    which replays the recorded actions, also those of a run.

    Args:
        what: episode file, or a training run, whose policy plays the episode and acts after each replaced action
        event: success, or "NAME moved" with the name of an entity
        episode: number of the episode, from 0
        alternatives: random actions tried in each step
        window: number of consecutive actions that are replaced together
        seed: seed of the random actions
        influence: saved Influence with a model of pairs, which replays the episode where the environment does not fork
        far: with --influence, the distance from its start at which an entity has moved, in the data's units
        near: with --influence, the distance to the goal at which the episode is a success, in the data's units
        entities: in environments that are not built in, columns of positions by name, such as cube=3:6
        sufficient: also find the share of random histories in which each action is enough; takes twice as long
        import_module: import the module of the environment MODULE:ID, which runs its code
    """
    with live_progress() as progress:
        report = lambda done: progress("forking", done, done, "steps")  # noqa: E731
        ask = Question(event, episode, alternatives, window, seed, influence, far, near, entities, sufficient)
        with module_imports(import_module):
            found = _find(what, ask, report)
    if found.happened is None:
        print(f"{event!r} did not happen in episode {episode}.")
        return
    print(f"{event!r} happened in step {found.happened} of episode {episode}.")
    _show_steps(found.prevented[: found.happened + 1])
    if found.sufficient is not None and found.by_chance is not None:
        _show_sufficient(found.sufficient[: found.happened + 1], found.by_chance)
    for name, is_needed in found.entities.items():
        if is_needed is None:
            print(f"Without {name}: not known; the model's error is as large as what decides.")
        else:
            print(f"Without {name}: {'it does not happen' if is_needed else 'it still happens'}.")


@dataclass(frozen=True)
class Question:
    """The options of the command."""

    event: str
    episode: int
    alternatives: int
    window: int
    seed: int
    influence: Path | None
    far: float | None
    near: float | None
    entities: tuple[str, ...]
    sufficient: bool


def _show_steps(shares: "Shares") -> None:
    """Print how necessary each step was."""
    print("Share of the alternatives that prevent it, step by step:")
    print(_bars(shares))
    if unknown := int(np.isnan(shares).sum()):
        print(f"In {unknown} steps (?) the share is not known: the model's error is as large as what decides.")
    needed = [(step, share) for step, share in enumerate(shares) if share >= 0.5]
    for step, share in needed:
        print(f"  step {step}: {share:.0%}")
    if not needed:
        print("No single step is necessary: replacing any one of them mostly leaves the event. Try a larger --window.")


def _show_sufficient(shares: "Shares", by_chance: float) -> None:
    """Print how sufficient each step was."""
    print("Share of random histories in which it happens if the action of the step is kept:")
    print(_bars(shares))
    print("With random actions in all steps: " + ("not known." if math.isnan(by_chance) else f"{by_chance:.0%}."))


def _bars(shares: "Shares") -> str:
    """One character for each share; ? where it is not known."""
    return "".join("?" if math.isnan(share) else BARS[round(share * (len(BARS) - 1))] for share in shares)


def _find(what: str, ask: Question, report: Callable[[int], None]) -> "Reasons":
    """Find the reasons in an episode file or a run, by forks or by a model."""
    from butfor.detection.why import FAR, NEAR, find_reasons, find_reasons_by_model, find_reasons_of_policy
    from butfor.envs import make_vector_env
    from butfor.rollouts.episodes import Episodes
    from butfor.rollouts.play import Stream, episode_seed, play

    if ask.far is not None and ask.influence is None:
        raise ValueError(
            f"--far {ask.far:g} is only used with --influence FILE; with forks an entity has moved when it is {FAR:g} "
            "from its start. Leave --far out, or give --influence."
        )
    if ask.far is not None and ask.event == "success":
        raise ValueError(f"--far {ask.far:g} is not used with --event success; give --near, the distance to the goal.")
    if ask.near is not None and (ask.influence is None or ask.event != "success"):
        raise ValueError(
            f"--near {ask.near:g} is only used with --influence FILE and --event success; with forks the environment "
            "says what is a success. Leave --near out."
        )
    if ask.entities and ask.influence is not None:
        raise ValueError("--entities is not used with --influence: the model has entities of its own. Leave it out.")
    trials = (ask.event, ask.alternatives, ask.window, ask.seed)
    options: dict[str, Any] = {"entities": ask.entities, "sufficient": ask.sufficient}

    def by_model(file: Path, episodes: Episodes, number: int) -> "Reasons":
        from butfor.influence.influence import Influence

        far = FAR if ask.far is None else ask.far
        near = NEAR if ask.near is None else ask.near
        model = Influence.load(file)
        return find_reasons_by_model(model, episodes, number, *trials, far, near=near, sufficient=ask.sufficient)

    if Path(what).suffix == ".npz":
        episodes = Episodes.load(Path(what))
        if ask.influence is None:
            return find_reasons(episodes, ask.episode, *trials, report, **options)
        return by_model(ask.influence, episodes, ask.episode)
    from butfor.training.agents.policy import load_policy

    policy = load_policy(find_run(what))
    start = episode_seed(policy.seed, Stream.EVALUATION, ask.episode)
    if ask.influence is None:
        return find_reasons_of_policy(policy.env, policy, start, *trials, report, **options)
    env = make_vector_env(policy.env, 1)
    try:
        played = play([env], lambda group, time, obs: (policy(obs), np.zeros(1, dtype=np.bool_)), [start])
    finally:
        env.close()
    return by_model(ask.influence, played.episodes, 0)
