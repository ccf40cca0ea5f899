"""A small scene for the player: a cube that other actions would have put elsewhere."""

from typing import Any

import numpy as np

from butfor.scenes import Body, Ghosts, Scene, SceneEpisode

STEPS, OTHERS, HOLD = 50, 16, 5


def poses(*places: Any) -> Any:
    """Upright poses [T + 1, B, 7] of bodies at places [T + 1, 3]."""
    found = np.zeros((len(places[0]), len(places), 7))
    found[..., 3] = 1
    for body, place in enumerate(places):
        found[:, body, : place.shape[1]] = place
    return found


def small_scene(dimensions: Any = 3, ghosts: bool = True, title: str = "a cube", simulated: bool = True) -> Scene:
    """A cube that moves along x; from step 20 on, other actions would have put it up to 10 cm apart.

    By the simulator, if it was asked, the hand moves the cube from then on; by the model from step 24 on.
    """
    way = np.linspace(0, 0.3, STEPS + 1)[:, None] * np.array([[1.0, 0.2, 0.0]])
    goal = np.tile([0.3, 0.06, 0.0], (STEPS + 1, 1))
    hand = way + np.array([0, 0, 0.1])
    tetrahedron = np.array([[0, 0, 0], [0.05, 0, 0], [0, 0.05, 0], [0, 0, 0.05]])
    faces = np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])
    solid: Any = ("mesh", (0.05, 0.05, 0.05), "#335577", tetrahedron, faces)
    if dimensions == 2:
        solid = ("box", (0.03, 0.02, 0.02))
    bodies = (
        Body("hand", "robot" if dimensions == 3 else "agent", *solid),
        Body("cube", "object", "box", (0.025, 0.025, 0.025)),
        Body("goal", "goal", "sphere", (0.02, 0.0, 0.0)),
    )
    angle = np.linspace(0, 2 * np.pi, OTHERS, endpoint=False)
    turn = np.stack([np.cos(angle), np.sin(angle)], axis=-1)  # [M, 2]
    path = np.zeros((STEPS, OTHERS, HOLD, 1, 7))
    path[..., 3] = 1
    path[..., :3] = way[:-1, None, None, None]
    size = np.where(np.arange(STEPS) < 20, 0, 0.05)
    path[..., 0, :2] += size[:, None, None, None] * np.linspace(0.2, 1, HOLD)[None, None, :, None] * turn[None, :, None]
    success = np.ones((STEPS, OTHERS), dtype=bool)
    success[:31, 3] = False
    shown = Ghosts("simulator", (1,), np.tile(turn, (STEPS, 1, 1)), path, None, success) if ghosts else None
    episode = SceneEpisode(
        title="Episode 7",
        pose=poses(hand, way, goal),
        action=np.zeros((STEPS, 2)),
        scores={"cube": np.where(np.arange(STEPS) < 20, 0.0, 1.5)},
        labels={"contact": np.arange(STEPS) > 25, "exact": np.arange(STEPS) >= 20},
        moves={(0, 1): np.arange(STEPS) >= 20} if simulated else None,
        edges={
            ("arm", "cube"): np.where(np.arange(STEPS) < 24, 0.0, 0.4),
            ("cube", "arm"): np.full(STEPS, 0.02),
            ("cube", "wall"): np.full(STEPS, 0.5),
        },
        reached=np.arange(STEPS + 1) > 48,
        ghosts=shown,
        decided=30 if ghosts else None,
        decided_text="Found by hand.",
    )
    return Scene(
        title, dimensions, bodies, (episode,), action_names=("x", "y"), horizon=3, places={"arm": 0, "cube": 1}
    )
