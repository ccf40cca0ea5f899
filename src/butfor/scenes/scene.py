"""What the player shows, as plain arrays: bodies, their poses in each state, and ghosts of other actions.

A `Scene` is made by `view.py`, written into a run folder or a page as JSON by `pack`, and drawn by
`butfor.reporting.player`. Poses are positions and quaternions [x, y, z, qw, qx, qy, qz], as in MuJoCo.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from butfor.runs.files import atomic_write
from butfor.runs.reading import read_object

Floats = NDArray[np.floating[Any]]
Flags = NDArray[np.bool_]
Role = Literal["agent", "object", "goal", "robot", "scenery"]
Form = Literal["mesh", "box", "sphere", "cylinder", "capsule", "ellipsoid"]

FORMAT_VERSION = 1
SCENE_FILE = "player.json"  # in a run folder
STEPS_16_BIT = 65535  # a vertex is stored as three 16-bit numbers within the box of its mesh


@dataclass(frozen=True)
class Body:
    """A rigid body; its colour follows from its role if it has none of its own."""

    name: str
    role: Role
    form: Form
    size: tuple[float, float, float]  # half sizes as in MuJoCo: a sphere's radius, a cylinder's radius and half height
    colour: str | None = None  # such as "#d55e00"
    vertices: Floats | None = None  # [V, 3], of a mesh
    faces: NDArray[np.integer[Any]] | None = None  # [F, 3]
    opacity: float = 1.0


@dataclass(frozen=True)
class Ghosts:
    """Where objects would be after other actions, in each of T states: M actions, held for 1 to K steps."""

    source: Literal["simulator", "model"]
    bodies: tuple[int, ...]  # the J bodies of the scene that have ghosts
    action: Floats  # [T, M, A]
    path: Floats  # [T, M, K, J, 7]: poses after 1 to K steps; NaN where the physics blew up
    agent: Floats | None = None  # [T, M, K, 3]: where the agent would be
    success: Flags | None = None  # [T, M]: whether the episode would have ended in success

    @property
    def hold(self) -> int:
        """The number of steps K that an action is held for."""
        return int(self.path.shape[2])

    def spread(self) -> Floats:
        """How far apart the ghosts of each object are [T, K, J]: the largest range of a coordinate of its position."""
        place = self.path[..., :3]
        width = np.fmax.reduce(place, axis=1) - np.fmin.reduce(place, axis=1)  # [T, K, J, 3]; they pass over NaN
        return np.asarray(width.max(axis=3))


@dataclass(frozen=True)
class SceneEpisode:
    """One episode of T steps in a scene."""

    title: str
    pose: Floats  # [T + 1, B, 7]
    action: Floats  # [T, A]
    scores: Mapping[str, Floats] = field(default_factory=dict)  # CAI [T] by entity, in nats
    labels: Mapping[str, Flags] = field(default_factory=dict)  # [T] by name, such as "exact" and "contact"
    moves: Mapping[tuple[int, int], Flags] | None = None  # [T], by two bodies: who moves whom, by the simulator
    edges: Mapping[tuple[str, str], Floats] = field(default_factory=dict)  # [T] by two entities: nats, by the model
    reached: Flags | None = None  # [T + 1]: whether the goal is reached in a state
    ghosts: Ghosts | None = None
    decided: int | None = None  # the step that decided the outcome
    decided_text: str = ""  # how it was found, or why there is none


@dataclass(frozen=True)
class Scene:
    """Bodies, and one or more episodes in which they move."""

    title: str
    dimensions: Literal[2, 3]
    bodies: tuple[Body, ...]
    episodes: tuple[SceneEpisode, ...]
    step_seconds: float = 0.04  # of a step, at normal speed
    action_names: tuple[str, ...] = ()  # of the A numbers of an action
    unit: str = "m"  # of positions
    notes: tuple[str, ...] = ()  # sentences below the player
    horizon: int = 1  # steps within which the source matters, in scores and edges of the model
    places: Mapping[str, int] = field(default_factory=dict)  # the body that is drawn for an entity of the edges


def pack(scene: Scene) -> dict[str, Any]:
    """Return a scene as an object for JSON, with its arrays in base64; the player's script reads it."""
    return {
        "schema": FORMAT_VERSION,
        "title": scene.title,
        "dimensions": scene.dimensions,
        "bodies": [_pack_body(body) for body in scene.bodies],
        "episodes": [_pack_episode(episode) for episode in scene.episodes],
        "step_seconds": scene.step_seconds,
        "action_names": list(scene.action_names),
        "unit": scene.unit,
        "notes": list(scene.notes),
        "horizon": scene.horizon,
        "places": dict(scene.places),
    }


def save_scene(path: Path | str, scene: Scene) -> None:
    """Write a scene as JSON; the file is complete or absent."""
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(pack(scene), separators=(",", ":")), encoding="utf-8")


def read_scene(path: Path | str) -> dict[str, Any]:
    """Return the packed scene that `save_scene` wrote.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file is not a scene of this version.
    """
    held = read_object(path)
    if not {"bodies", "episodes", "dimensions"} <= held.keys():
        raise ValueError(f"{path} is not a scene of the player; it contains {', '.join(held) or 'nothing'}.")
    return held


def _pack_body(body: Body) -> dict[str, Any]:
    packed: dict[str, Any] = {"name": body.name, "role": body.role, "form": body.form, "size": list(body.size)}
    packed["opacity"] = body.opacity
    if body.colour is not None:
        packed["colour"] = body.colour
    if body.vertices is not None and body.faces is not None:
        low = body.vertices.min(axis=0)
        width = np.maximum(body.vertices.max(axis=0) - low, 1e-9)
        packed["low"] = low.tolist()
        packed["width"] = width.tolist()
        packed["vertices"] = _pack_array(np.rint((body.vertices - low) / width * STEPS_16_BIT), "uint16")
        packed["faces"] = _pack_array(body.faces, "uint16" if len(body.vertices) <= STEPS_16_BIT else "uint32")
    return packed


def _pack_episode(episode: SceneEpisode) -> dict[str, Any]:
    packed: dict[str, Any] = {
        "title": episode.title,
        "steps": len(episode.action),
        "pose": _pack_array(episode.pose, "float32"),
        "action": _pack_array(episode.action, "float32"),
        "scores": {name: _pack_array(values, "float32") for name, values in episode.scores.items()},
        "labels": {name: _pack_array(values, "uint8") for name, values in episode.labels.items()},
        "moves": None if episode.moves is None else _pack_edges(episode.moves, "uint8"),
        "edges": _pack_edges(episode.edges, "float32"),
        "reached": None if episode.reached is None else _pack_array(episode.reached, "uint8"),
        "ghosts": None,
        "decided": episode.decided,
        "decided_text": episode.decided_text,
    }
    if (ghosts := episode.ghosts) is not None:
        packed["ghosts"] = {
            "source": ghosts.source,
            "bodies": list(ghosts.bodies),
            "action": _pack_array(ghosts.action, "float32"),
            "path": _pack_array(ghosts.path, "float32"),
            "agent": None if ghosts.agent is None else _pack_array(ghosts.agent, "float32"),
            "spread": _pack_array(ghosts.spread(), "float32"),
            "success": None if ghosts.success is None else _pack_array(ghosts.success, "uint8"),
        }
    return packed


def _pack_edges(edges: Mapping[tuple[Any, Any], NDArray[Any]], kind: str) -> list[dict[str, Any]]:
    return [
        {"source": source, "target": target, "values": _pack_array(values, kind)}
        for (source, target), values in edges.items()
    ]


def _pack_array(values: NDArray[Any], kind: str) -> dict[str, Any]:
    array = np.ascontiguousarray(values, dtype=np.dtype(kind).newbyteorder("<"))
    return {"kind": kind, "shape": list(array.shape), "data": base64.b64encode(array.tobytes()).decode("ascii")}
