"""The scene of whatever a user wants to see: a run, an episode file, or a dataset of any format with a model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from butfor.datasets.formats import open_dataset
from butfor.datasets.recording import Recording
from butfor.envs import facts_of
from butfor.influence.influence import Influence
from butfor.rollouts.episodes import Episodes
from butfor.rollouts.play import Progress
from butfor.runs.arrays import open_arrays
from butfor.runs.digests import RESTORE
from butfor.runs.files import begins_as_npz
from butfor.runs.reading import is_run, read_run
from butfor.scenes.ghosts import DEFAULT_HOLD
from butfor.scenes.positions import StatesOfEpisode, view_states
from butfor.scenes.scene import Scene
from butfor.scenes.view import env_of, view_episodes, view_run
from butfor.spaces.entities import Entities, entity_columns

LONGEST = 300  # steps of an episode in a report


@dataclass(frozen=True)
class ViewOptions:
    """What is shown, and how."""

    episodes: tuple[int, ...] = (0,)
    """numbers of the episodes"""
    hold: int = DEFAULT_HOLD
    """steps for which another action is held, where the simulator is forked"""
    outcomes: bool = True
    """search the step that decided the outcome, where the simulator is forked"""
    seed: int | None = None
    """which seed of a training run acts; None: its first"""
    positions: Entities = ()
    """columns of the observation that are drawn as positions of objects, for data that cannot be forked"""
    agent: Entities = ()
    """columns of the agent's position, such as "hand=0:3", for data that cannot be forked"""


def view_anything(
    source: Path | str,
    options: ViewOptions,
    influence: Influence | Path | str | None = None,
    progress: Progress = lambda stage, done, total, text: None,
) -> Scene:
    """Make the scene of a run, of an episode file, or of a dataset.

    Args:
        source: a folder of a training or detection run, an episode file, or a dataset of a format that
            `butfor.datasets.open` reads.
        options: which episodes, and how they are shown.
        influence: scores the states, and predicts the ghosts of what cannot be forked; or its file. A run has its own.
        progress: called with the stage, how much of it is done, how much there is, and a word.

    Raises:
        FileNotFoundError: there is no such run or dataset.
        ValueError: there is no such episode, or it cannot be shown.
    """
    path = Path(source)
    if path.is_dir() and is_run(path):
        if influence is not None:
            raise ValueError(f"{path} is a run, which has a model of its own; give no other one.")
        if read_run(path)["kind"] == "training":
            return view_run(path, options.episodes, options.seed, options.hold, options.outcomes, progress)
        influence = Influence.load(path / "model.safetensors")
        path = path / "data" / "test.npz"
    if isinstance(influence, Path | str):
        influence = Influence.load(influence)
    own = _own_episodes(path)
    if own is not None and own.reset_seed is not None and not options.positions:
        try:
            return view_episodes(own, options.episodes, influence, options.hold, options.outcomes, progress)
        except ValueError:
            if influence is None or facts_of(env_of(own)) is not None:  # else the model predicts the ghosts
                raise
    recording = open_dataset(path if path.exists() else source).recording()
    sizes = recording.sizes
    positions = entity_columns(options.positions, sizes) if options.positions else None
    agent = next(iter(entity_columns(options.agent, sizes).values())) if options.agent else None
    if positions is None and influence is None:
        raise ValueError(
            f"{source} cannot be forked, so it needs --influence, a saved model that predicts the ghosts, or "
            "--positions, the columns to draw, such as cube=3:6."
        )
    episodes = [_episode(recording, number, own) for number in options.episodes]
    return view_states(Path(source).name, episodes, positions, agent, influence)


def _own_episodes(path: Path) -> Episodes | None:
    """The content of an episode file of `butfor collect`; None for anything else."""
    if not path.is_file() or path.suffix != ".npz" or not begins_as_npz(path):
        return None
    try:
        with open_arrays(path) as file:
            if not {"schema_version", "sampled", "achieved_goal"} <= set(file):
                return None
    except ValueError as error:
        raise ValueError(f"{path} cannot be read ({error}). {RESTORE}") from error
    return Episodes.load(path)


def _episode(recording: Recording, number: int, own: Episodes | None) -> StatesOfEpisode:
    """One episode of a dataset; goal, labels and scores are those of an episode file."""
    count = len(recording.length)
    if not 0 <= number < count:
        raise ValueError(f"There is no episode {number}; {recording.source} has the episodes 0 to {count - 1}.")
    states = np.flatnonzero(recording.episode == number)
    first = int(recording.length[:number].sum())
    length = int(recording.length[number])
    action = recording.action[first : first + length]
    observation = recording.observation[states]
    if own is None:
        return StatesOfEpisode(f"Episode {number}", observation, action)
    goal = own.desired_goal[number, : length + 1]
    labels = {name: value[number, :length] for name, value in own.labels().items()}
    return StatesOfEpisode(f"Episode {number}", observation, action, goal, labels=labels)


def scored_scene(
    influence: Influence,
    recording: Recording,
    scores: Mapping[str, NDArray[Any]],
    edges: Mapping[tuple[str, str], NDArray[Any]] | None = None,
) -> Scene:
    """Make the scene of a report on scores: of the episodes with steps, those with the most and the least influence.

    Args:
        influence: predicts the ghosts.
        recording: the data.
        scores: CAI [S] of every state, by entity; the first entity chooses the episodes.
        edges: influence [S] of every state by source and target, if it was computed; then the episode with the most
            influence between entities comes first.
    """
    score = next(iter(scores.values()))
    order = _by_mean(score, recording.length)
    chosen = {"Most influence": (order[-1], score)}
    if len(order) > 1:
        chosen["Least influence"] = (order[0], score)
    if edges:
        total = np.sum(list(edges.values()), axis=0)
        chosen = {"Most influence between entities": (_by_mean(total, recording.length)[-1], total)} | chosen
    episodes = [_stretch(recording, title, *found, scores, edges) for title, found in chosen.items()]
    return view_states(Path(recording.source).name, episodes, influence=influence)


def _first_states(length: NDArray[Any]) -> NDArray[Any]:
    """The place of the first state of each episode [E] among all states."""
    return np.asarray(np.cumsum(length + 1) - length - 1)


def _by_mean(values: NDArray[Any], length: NDArray[Any]) -> list[int]:
    """The episodes by rising mean over their states; one without a step has nothing to show."""
    means = np.add.reduceat(values, _first_states(length)) / (length + 1)
    with_steps = np.flatnonzero(length)
    order: list[int] = with_steps[np.argsort(means[with_steps], kind="stable")].tolist()
    return order


def _stretch(
    recording: Recording,
    title: str,
    number: int,
    telling: NDArray[Any],
    scores: Mapping[str, NDArray[Any]],
    edges: Mapping[tuple[str, str], NDArray[Any]] | None,
) -> StatesOfEpisode:
    """One episode; of a long one, the steps around its highest value of `telling` [S]."""
    whole = _episode(recording, number, None)
    begin = int(_first_states(recording.length)[number])
    steps = len(whole.action)
    highest = int(telling[begin : begin + steps].argmax())
    first = max(min(highest - LONGEST // 2, steps - LONGEST), 0)
    last = min(first + LONGEST, steps)
    part = f", steps {first} to {last}" if last - first < steps else ""
    own = slice(begin + first, begin + last)
    return StatesOfEpisode(
        title=f"{title}: episode {number}{part}",
        observation=whole.observation[first : last + 1],
        action=whole.action[first:last],
        scores={name: np.asarray(value)[own] for name, value in scores.items()},
        edges=None if edges is None else {name: value[own] for name, value in edges.items()},
    )
