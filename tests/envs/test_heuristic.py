import re
import subprocess
import sys
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from butfor.envs import heuristic
from butfor.envs.experts import pick_and_place, scripted_action
from butfor.envs.fetch import FetchVectorEnv
from butfor.envs.fetch_physics import TASKS, build
from butfor.envs.heuristic import heuristic_label, load_table, semi_axes

Floats = npt.NDArray[np.float64]
START, MOVEMENT = load_table()
# Above 0.43 the fingers are clear of the table; lower down they rub on it and get less far.
OVER_THE_TABLE = (START[:, 2] > 0.43) & (np.abs(START[:, 0] - 1.3) < 0.2) & (np.abs(START[:, 1] - 0.75) < 0.25)


def observations(grip: Any, thing: Any, fingers: Any = 0.0, finger_velocities: Any = 0.0, size: int = 25) -> Floats:
    """Observations [..., size] with everything else at noticeable values that must not matter."""
    observation = np.full((*np.broadcast_shapes(np.shape(grip)[:-1], np.shape(thing)[:-1]), size), 0.37)
    observation[..., 0:3], observation[..., 3:6] = grip, thing
    observation[..., 9:11], observation[..., 23:25] = fingers, finger_velocities
    return observation


def axes_by_hand(row: int, opening: float) -> Floats:
    """movement + finger half sizes + object half size + (0, opening, 0.02)."""
    x, y, z = MOVEMENT[row]
    return np.array([x + 0.0135 + 0.025, y + 0.007 + 0.025 + opening, z + 0.0385 + 0.025 + 0.02])


def test_typical_semi_axes() -> None:
    """Over the table one step goes 0.030 to 0.031 (0.035 near the limits), which makes (0.069, <= 0.117, 0.114)."""
    assert OVER_THE_TABLE.sum() > 50_000
    assert np.abs(np.median(MOVEMENT[OVER_THE_TABLE], axis=0) - 0.0305).max() < 0.001
    assert MOVEMENT[OVER_THE_TABLE].min() > 0.025
    assert MOVEMENT[OVER_THE_TABLE].max() < 0.036
    grip = START[OVER_THE_TABLE][::500]
    wide, narrow = (np.median(semi_axes(observations(grip, grip, fingers)), axis=0) for fingers in (0.05, 0.0))
    assert np.abs(wide - [0.069, 0.117, 0.114]).max() < 0.001
    assert np.abs(narrow - [0.069, 0.117 - 0.054 + 0.0407, 0.114]).max() < 0.001


def test_sizes_are_the_models() -> None:
    """The finger's box hangs down: its x is the environment's z."""
    model = build(TASKS["pick-and-place"], contacts=False).mj
    for side in "rl":
        assert model.geom(f"robot0:{side}_gripper_finger_link").size.tolist() == [0.0385, 0.007, 0.0135]
    assert model.geom("object0").size.tolist() == [0.025] * 3
    assert heuristic.FINGER_HALF_SIZE == (0.0135, 0.007, 0.0385)
    assert heuristic.OBJECT_HALF_SIZE == 0.025


@pytest.mark.parametrize("row", [0, 4321, 60_000])
def test_labels_around_the_ellipsoid(row: int) -> None:
    """Just within and beyond along each axis, and along the diagonal, where the squares add up to one."""
    axes, grip = axes_by_hand(row, 0.0407), START[row]
    assert np.allclose(semi_axes(observations(grip, grip)), axes, rtol=0, atol=1e-12)
    assert heuristic_label(observations(grip, grip))
    directions = np.concatenate([np.eye(3), -np.eye(3), np.array([[1, -1, 1], [-1, 1, 1]]) / 3**0.5])
    assert heuristic_label(observations(grip, grip + 0.999 * axes * directions)).all()
    assert not heuristic_label(observations(grip, grip + 1.001 * axes * directions)).any()


def test_the_nearest_start_counts() -> None:
    """Random grips, episodes of them, against a search through the whole table."""
    grip = np.random.default_rng(1).uniform([0.4, -0.1, 0.0], [1.6, 1.5, 1.1], (4, 5, 3))
    axes = semi_axes(observations(grip, grip, size=29))
    assert axes.shape == (4, 5, 3)
    for place in np.ndindex(4, 5):
        row = int(((START - grip[place]) ** 2).sum(axis=1).argmin())
        assert np.allclose(axes[place], axes_by_hand(row, 0.0407), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("fingers", "velocities", "opening"),
    [
        ([0.0, 0.0], [0.0, 0.0], 0.0407),
        ([0.01, 0.004], [0.0, 0.0], 0.0507),  # the wider finger
        ([0.004, 0.01], [0.0, 0.0], 0.0507),
        ([0.05, 0.05], [0.0, 0.0], 0.054),  # no more than this
        ([0.005, 0.0], [0.006, 0.0], 0.0517),  # velocities come multiplied by the time step
        ([0.01, 0.0], [-0.008, 0.001], 0.0427),  # each finger with its own velocity
        ([0.0, 0.0], [-0.05, -0.06], 0.0),  # and not below zero
    ],
)
def test_opening_extends_y(fingers: list[float], velocities: list[float], opening: float) -> None:
    axes, grip = axes_by_hand(0, opening), START[0]
    within, beyond = (
        observations(grip, grip + share * axes * [0, 1, 0], fingers, velocities) for share in (0.999, 1.001)
    )
    assert np.allclose(semi_axes(within), axes, rtol=0, atol=1e-12)
    assert heuristic_label(within)
    assert not heuristic_label(beyond)


def test_contact_overrides() -> None:
    """Contact makes a label positive and never negative; the shapes of episodes are kept."""
    thing = np.broadcast_to(START[0], (2, 3, 3)).copy()
    thing[:, 1:] += 0.3
    far = observations(START[0], thing)
    contact = np.array([[False, True, False], [True, False, False]])
    label = heuristic_label(far, contact)
    assert label.tolist() == [[True, True, False], [True, False, False]]
    assert label.dtype == np.bool_
    assert heuristic_label(far).tolist() == [[True, False, False]] * 2
    assert heuristic_label(far.astype(np.float32)[:0]).shape == (0, 3)
    assert heuristic_label(far[0, 1], True).shape == ()


def test_wrong_input_is_refused() -> None:
    good = observations(START[:4], START[:4])
    with pytest.raises(ValueError, match=r"\(4, 24\)"):
        heuristic_label(good[:, :24])
    with pytest.raises(ValueError, match=r"shape \(\)"):
        heuristic_label(1.0)
    bad = good.copy()
    bad[2, 0] = np.nan
    with pytest.raises(ValueError, match=r"\b1 values"):
        heuristic_label(bad)
    for contact in (np.zeros(3, dtype=bool), np.zeros(4), np.zeros((4, 1), dtype=bool)):
        with pytest.raises(ValueError, match=re.escape(f"shape {contact.shape}")):
            heuristic_label(good, contact)


def test_labels_in_the_environment() -> None:
    """At a reset the object is 0.1 away and 0.11 below, outside; lifted by the fingers it is inside."""
    envs, generator = FetchVectorEnv("pick-and-place", 8), np.random.default_rng(0)
    observation, _ = envs.reset(seed=0)
    assert not heuristic_label(observation["observation"]).any()
    lifted = 0
    for _ in range(30):
        action, _ = scripted_action(pick_and_place, observation, generator)
        observation, *_ = envs.step(action)
        held = observation["achieved_goal"][:, 2] > 0.47
        assert heuristic_label(observation["observation"])[held].all()
        lifted += held.sum()
    assert lifted > 20


def test_labels_need_no_mujoco() -> None:
    """The shipped table is all they need, and it is small."""
    assert len(resources.files("butfor.envs").joinpath("reach.npz").read_bytes()) < 1.5e6
    code = (
        "import sys; sys.modules['mujoco'] = sys.modules['gymnasium_robotics'] = None\n"
        "import numpy as np\n"
        "from butfor.envs.heuristic import heuristic_label\n"
        "print(heuristic_label(np.zeros((2, 25))).tolist())"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stdout == "[True, True]\n", ended.stderr
