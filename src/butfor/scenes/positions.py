"""Scenes of anyone's data: columns of the observation are drawn as positions, and a model predicts the ghosts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from butfor.influence.contact import ContactDynamics
from butfor.influence.graph.pairs import GraphDynamics
from butfor.influence.influence import Influence
from butfor.scenes.branches import flat_poses
from butfor.scenes.edges import edges_notes, predicted_edges
from butfor.scenes.scene import Body, Flags, Floats, Ghosts, Scene, SceneEpisode
from butfor.spaces.actions import ActionLaw

MOST_GHOSTS = 16
RADIUS = 0.03  # of a body, as a share of the size of the scene


@dataclass(frozen=True)
class StatesOfEpisode:
    """One episode of data: what `view_states` needs of it."""

    title: str
    observation: Floats  # [T + 1, D]
    action: NDArray[Any]  # [T, A], or integers [T]
    goal: Floats | None = None  # [T + 1, G]: a position in the units of the objects
    scores: Mapping[str, Floats] | None = None  # CAI [T] by entity; by default the model scores
    edges: Mapping[tuple[str, str], Floats] | None = None  # [T] by source and target; by default those of the model
    labels: Mapping[str, Flags] | None = None  # [T] by name
    reached: Flags | None = None  # [T + 1]


def view_states(
    title: str,
    episodes: Sequence[StatesOfEpisode],
    positions: Mapping[str, Sequence[int]] | None = None,
    agent: Sequence[int] | None = None,
    influence: Influence | None = None,
) -> Scene:
    """Draw columns of observations as positions, with ghosts that a model predicts one step ahead.

    Args:
        title: of the scene.
        episodes: at least one.
        positions: columns of each object's position, one to three; by default the first columns of each entity of
            `influence`.
        agent: columns of the agent's position; by default what the model found to touch the entities, if it did.
        influence: predicts the ghosts and scores the states.

    Raises:
        ValueError: there is neither `positions` nor `influence`, or a position has other than one to three columns.
    """
    places = _positions(positions, influence)
    size = {len(columns) for columns in places.values()}
    if len(size) > 1 or not size <= {1, 2, 3}:
        described = ", ".join(f"{name}={list(columns)}" for name, columns in places.items())
        raise ValueError(f"The positions are {described}; expected 1, 2 or 3 columns, the same number for each.")
    dimensions = size.pop()
    hand = list(agent) if agent is not None else _partner(influence, dimensions)
    has_goal = all(one.goal is not None and one.goal.shape[1] == dimensions for one in episodes)
    columns = ([hand] if hand else []) + list(places.values())
    extents = []
    for one in episodes:
        everything = np.concatenate([one.observation[:, group] for group in columns])
        extents.append(float(np.ptp(everything, axis=0).max()) or 1.0)
    radius = RADIUS * min(extents)
    ball = (radius, radius, radius)
    bodies = [Body("goal", "goal", "sphere", ball, opacity=0.6)] if has_goal else []
    bodies += [Body("agent", "agent", "sphere", ball)] if hand else []
    objects = _objects(influence, places)
    first = len(bodies)
    bodies += [Body(name, "object" if name in objects else "agent", "sphere", ball) for name in places]
    ghostly = tuple(first + place for place, name in enumerate(places) if name in objects)
    shown = []
    for one in episodes:
        parts = [one.goal] if has_goal and one.goal is not None else []
        parts += [one.observation[:, group] for group in columns]
        scores = one.scores
        if scores is None and influence is not None:
            scores = {name: np.asarray(value) for name, value in influence.score(one.observation[:-1]).items()}
        edges = predicted_edges(influence, one.observation[:-1], one.action) if one.edges is None else one.edges
        shown.append(
            SceneEpisode(
                title=one.title,
                pose=np.stack([flat_poses(part) for part in parts], axis=1),
                action=np.asarray(one.action, dtype=np.float64).reshape(len(one.action), -1),
                scores=scores or {},
                labels=one.labels or {},
                edges=edges,
                reached=one.reached,
                ghosts=None if influence is None else predict_ghosts(influence, one.observation[:-1], objects, ghostly),
            )
        )
    drawn = ", ".join(f"{name}: {', '.join(map(str, group))}" for name, group in places.items())
    note = f"Columns of the observation that are drawn as positions: {drawn}" + (
        f"; agent: {', '.join(map(str, hand))}." if hand else "."
    )
    taken = all(one.edges is None for one in episodes)
    notes = (*edges_notes(influence, shown, "for the actions taken" if taken else "the mean over random actions"), note)
    return Scene(
        title=title,
        dimensions=3 if dimensions == 3 else 2,
        bodies=tuple(bodies),
        episodes=tuple(shown),
        step_seconds=0.1,
        unit="",
        notes=notes,
        horizon=1 if influence is None else influence.horizon,
        places=_places_of_entities(influence, columns, bodies),
    )


def predict_ghosts(
    influence: Influence, obs: Floats, places: Mapping[str, Sequence[int]], bodies: tuple[int, ...]
) -> Ghosts | None:
    """Predict where objects are one step after other actions; None if the model predicts none of their positions."""
    tried = other_actions(influence.law)
    predicted = influence.predict(obs, np.broadcast_to(tried, (len(obs), *tried.shape)).copy())
    known = []
    paths = []
    for body, columns in zip(bodies, places.values(), strict=True):
        for name, entity in influence.entities.items():
            if set(columns) <= set(entity):
                mean = np.asarray(predicted[name][0], dtype=np.float64)  # [T, M, d]
                paths.append(flat_poses(mean[..., [list(entity).index(column) for column in columns]]))
                known.append(body)
                break
    if not known:
        return None
    action = np.broadcast_to(tried.reshape(len(tried), -1), (len(obs), len(tried), tried.size // len(tried)))
    return Ghosts("model", tuple(known), action.astype(np.float64), np.stack(paths, axis=2)[:, :, None])


def other_actions(law: ActionLaw, most: int = MOST_GHOSTS) -> NDArray[Any]:
    """Return other actions to try: [M] integers, or [M, A] of the corners of the box, or the ends of its axes.

    Of a box with too many of both, corners drawn at random, always the same.
    """
    if law.count:
        return np.unique(np.linspace(0, law.count - 1, min(law.count, most)).round().astype(np.int64))
    low, high = np.array(law.low), np.array(law.high)
    if len(low) == 1:
        return np.linspace(low, high, 9)
    if 2 ** len(low) <= most:
        return np.array(list(product(*zip(low, high, strict=True))))
    if 2 * len(low) > most:
        return np.where(np.random.default_rng(0).random((most, len(low))) < 0.5, low, high)
    ends = np.repeat((low + high)[None] / 2, 2 * len(low), axis=0)
    for column in range(len(low)):
        ends[2 * column, column], ends[2 * column + 1, column] = low[column], high[column]
    return ends


def _objects(influence: Influence | None, places: Mapping[str, Sequence[int]]) -> dict[str, Sequence[int]]:
    """What is drawn as an object: what the action does not drive, if the model tells, and everything otherwise."""
    if influence is None or not isinstance(influence.model, GraphDynamics):
        return dict(places)
    own = {column for name in influence.model.driven for column in influence.entities[name]}
    return {name: columns for name, columns in places.items() if not own & set(columns)} or dict(places)


def _places_of_entities(
    influence: Influence | None, columns: Sequence[Sequence[int]], bodies: Sequence[Body]
) -> dict[str, int]:
    """The place of the body that is drawn for each entity of a model: the last one whose columns are its own."""
    first = len(bodies) - len(columns)
    return {
        name: first + place
        for place, group in enumerate(columns)
        for name, own in ({} if influence is None else influence.entities).items()
        if set(group) <= set(own)
    }


def _positions(positions: Mapping[str, Sequence[int]] | None, influence: Influence | None) -> dict[str, Sequence[int]]:
    if positions is not None:
        return dict(positions)
    if influence is None:
        raise ValueError("Give positions={'cube': [3, 4, 5]}, the columns to draw, or an Influence with its entities.")
    if isinstance(influence.model, GraphDynamics):  # it knows how many of the first columns are positions
        size = min(3, influence.model.position)
    else:
        size = min(3, *(len(columns) for columns in influence.entities.values()), 3)
    return {name: columns[:size] for name, columns in influence.entities.items()}


def _partner(influence: Influence | None, dimensions: int) -> list[int]:
    """The columns of what touches the entities, if the model knows them."""
    if influence is None or not isinstance(influence.model, ContactDynamics):
        return []
    pairs = next(iter(influence.model.pairs.values()))
    return list(pairs[0].partner) if pairs and len(pairs[0].partner) == dimensions else []
