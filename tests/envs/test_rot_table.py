import warnings
from typing import Any

import gymnasium
import mujoco
import numpy as np
import numpy.typing as npt
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from butfor.envs.experts import pick_and_place, scripted_action
from butfor.envs.fetch import FetchEnv, FetchVectorEnv
from butfor.envs.fetch_physics import TASKS, build, draw_start
from butfor.envs.rot_table import TASK, RotTablePhysics, turn_in_step

CENTRE = np.array([1.37, 0.75])
STEPS = {"paper": (25, 5), "release": (20, 5)}
both_timings = pytest.mark.parametrize("timing", list(STEPS))


def make(num_envs: int, **options: Any) -> FetchVectorEnv:
    return FetchVectorEnv("rot-table", num_envs, **options)


def resting(count: int, steps: int, timing: str) -> tuple[Any, npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Environments whose robot holds still: them, their observations and their table angles [steps + 1, count, ...]."""
    envs = make(count, max_episode_steps=None, timing=timing)
    physics = envs.physics
    assert isinstance(physics, RotTablePhysics)
    observation, _ = envs.reset(seed=0)
    observations, angles = [observation["observation"]], [physics.field["qpos"][:, physics.hinge_qpos].copy()]
    for _ in range(steps):
        observations.append(envs.step(np.zeros((count, 4)))[0]["observation"])
        angles.append(physics.field["qpos"][:, physics.hinge_qpos].copy())
    return envs, np.array(observations), np.array(angles)


def contacts(envs: Any) -> set[tuple[str, str]]:
    """The pairs of bodies that touch in some environment now; a robot's link is "robot"."""
    model, pairs = envs.physics.model.mj, set()
    data = mujoco.MjData(model)
    for row in envs.physics.batch.state:
        mujoco.mj_setState(model, data, row, mujoco.mjtState.mjSTATE_INTEGRATION)
        mujoco.mj_forward(model, data)
        for contact in data.contact[: data.ncon]:
            bodies = [model.body(model.geom_bodyid[geom]).name for geom in (contact.geom1, contact.geom2)]
            one, other = sorted("robot" if name.startswith("robot0:") else name for name in bodies)
            pairs.add((one, other))
    return pairs


def test_geometry_mass_and_collision_bits() -> None:
    """The table of the paper's release: a cylinder of 0.38 x 0.2 at (1.37, 0.75, 0.21), 1 kg, on a damped hinge."""
    model = build(TASK, contacts=False).mj
    table = model.body("table0")
    assert table.pos.tolist() == [1.37, 0.75, 0.21]
    assert table.mass == pytest.approx(1.0)
    assert table.inertia.max() == pytest.approx(0.5 * 1.0 * 0.38**2)  # of a solid cylinder about its axis
    cylinder = model.geom(table.geomadr[0])
    assert cylinder.type == int(mujoco.mjtGeom.mjGEOM_CYLINDER)
    assert cylinder.size[:2].tolist() == [0.38, 0.2]
    hinge = model.joint("table0:hinge")
    assert hinge.type == int(mujoco.mjtJoint.mjJNT_HINGE)
    assert hinge.axis.tolist() == [0, 0, 1]
    assert hinge.damping == 6
    servo = model.actuator("table0:hinge")
    assert servo.id == model.nu - 1
    assert (servo.gainprm[0], servo.biasprm[1], servo.ctrllimited) == (300, -300, 0)
    bits = {"robot0:r_gripper_finger_link": 0b101, "robot0:base_link": 0b101, "object0": 0b011, "guard0": 0b100}
    for name, expected in bits.items():
        assert (model.geom(name).contype, model.geom(name).conaffinity) == (expected, expected)
    assert (cylinder.contype, cylinder.conaffinity) == (0b010, 0b010)
    assert (model.geom("floor0").contype, model.geom("floor0").conaffinity) == (1, 1)
    assert model.geom("guard0").rgba[3] == 0
    assert model.body("guard0").pos[2] == pytest.approx(0.41)
    assert model.body("object0").mass == 2
    assert model.geom("object0").size.tolist() == [0.025] * 3


@both_timings
def test_the_schedule(timing: str) -> None:
    """45 degrees in the moving steps, none in the pause, fastest in the middle, and the same in every period."""
    moving, pause = STEPS[timing]
    turns = turn_in_step(np.arange(2 * (moving + pause)), timing)
    assert turns[:moving].sum() == pytest.approx(np.pi / 4)
    assert (turns[:moving] > 0).all()
    assert not turns[moving : moving + pause].any()
    assert np.allclose(turns[: moving + pause], turns[moving + pause :])
    assert np.allclose(turns[:moving], turns[:moving][::-1])
    # The mean speed times the peak of half a sine, pi / 2, in the step around the middle.
    assert turns.max() == pytest.approx(np.pi / 4 / moving * np.pi / 2, rel=0.01)
    with pytest.raises(ValueError, match="'fast'"):
        turn_in_step(0, "fast")
    with pytest.raises(ValueError, match="'fast'"):
        make(1, timing="fast")


def test_the_papers_text_is_the_default() -> None:
    physics = make(1).physics
    assert isinstance(physics, RotTablePhysics)
    assert physics.timing == "paper"
    assert turn_in_step(24) > 0
    assert turn_in_step([25, 29]).tolist() == [0, 0]


@both_timings
def test_the_object_rides_with_the_table(timing: str) -> None:
    """45 degrees a period, slip under 1 degree a period, and no object falls or leaves its radius."""
    period = sum(STEPS[timing])
    _, observations, angles = resting(64, 2 * period, timing)
    for number in (1, 2):
        assert np.degrees(angles[number * period]) == pytest.approx(45 * number, abs=0.1)
    pause = angles[period - STEPS[timing][1] + 1 : period + 1]
    assert np.degrees(np.ptp(pause, axis=0)).max() < 0.2  # the servo settles
    offset = observations[..., 3:5] - CENTRE
    direction = np.unwrap(np.arctan2(offset[..., 1], offset[..., 0]), axis=0)
    slip = np.degrees((direction - direction[0]) - angles)
    assert np.abs(slip[period]).max() < 1
    assert np.abs(slip[2 * period] - slip[period]).max() < 1
    radius = np.linalg.norm(offset, axis=-1)
    assert np.abs(radius[period] - radius[0]).max() < 0.003
    assert radius.max() < 0.38
    assert np.abs(observations[..., 5] - 0.435).max() < 0.001


def test_observations_have_the_table_at_the_end() -> None:
    """Sine, cosine, velocity times 0.04, and the turn of the coming step."""
    envs, observations, angles = resting(2, 60, "paper")
    assert envs.single_observation_space["observation"].shape == (29,)
    assert np.allclose(observations[..., 25], np.sin(angles))
    assert np.allclose(observations[..., 26], np.cos(angles))
    assert np.allclose(observations[..., 28], turn_in_step(np.arange(61))[:, None])
    # The trapezoid rule on the velocities gives the turn of each step, and the coming turn tells it in advance.
    turned = np.diff(angles, axis=0)
    assert np.abs((observations[1:, :, 27] + observations[:-1, :, 27]) / 2 - turned).max() < np.radians(0.2)
    assert np.abs(observations[:-1, :, 28] - turned).max() < np.radians(0.4)
    envs.reset(seed=1)
    start = envs.save_state()[0, envs.layout.observation]
    assert start[25:29].tolist() == pytest.approx([0, 1, 0, float(turn_in_step(0))], abs=1e-6)


def test_a_turning_table_moves_nothing_but_what_lies_on_it() -> None:
    """The same state at a moment of the pause and at one of motion: the robot's next state is the same to the bit."""
    envs = make(2, max_episode_steps=None)
    envs.reset(seed=[4, 4])
    physics, layout = envs.physics, envs.layout
    assert isinstance(physics, RotTablePhysics)
    states = envs.save_state()
    assert np.array_equal(states[0], states[1])
    states[0, layout.time] += 12 * 0.04
    states[1, layout.time] += 27 * 0.04
    envs.restore_state(None, states)
    for action in np.random.default_rng(0).uniform(-0.3, 0.3, (3, 4)):
        envs.step(np.stack([action, action]))
    rows = envs.save_state()
    angle = layout.qpos.start + physics.hinge_qpos
    assert rows[0, angle] > 0.05
    assert abs(rows[1, angle]) < 1e-3
    robot = slice(layout.qpos.start, layout.qpos.start + 15)
    assert np.array_equal(rows[0, robot], rows[1, robot])
    assert np.array_equal(rows[0, layout.qvel][:15], rows[1, layout.qvel][:15])
    moved = np.linalg.norm(rows[:, layout.object_pose][:, :2] - states[:, layout.object_pose][:, :2], axis=1)
    assert moved[0] > 0.01
    assert moved[1] < 1e-3


def test_the_robot_meets_the_guard_and_never_the_table() -> None:
    """Pressed down over the table the fingers stop at its height, on the guard plane, which the object ignores."""
    envs = make(8, max_episode_steps=None)
    envs.reset(seed=0)
    generator, seen = np.random.default_rng(0), set()
    for _ in range(30):
        action = generator.uniform(-1, 1, (8, 4))
        action[:, 2] = -1
        observation, *_ = envs.step(action)
        seen |= contacts(envs)
    assert ("guard0", "robot") in seen
    assert ("object0", "table0") in seen
    assert not seen & {("robot", "table0"), ("guard0", "object0"), ("table0", "world"), ("guard0", "table0")}
    # The grip lies 0.0185 above the fingers' lower ends.
    assert observation["observation"][:, 2].min() > 0.41 + 0.0185 - 0.01


def test_the_guard_leaves_the_standing_robot_alone() -> None:
    """Before it touches anything, the robot does what it does in pick and place."""
    ours, other = make(2), FetchVectorEnv("pick-and-place", 2)
    assert np.allclose(ours.physics.model.gripper, [1.341, 0.749, 0.535], atol=0.001)
    observation, _ = ours.reset(seed=0)
    expected, _ = other.reset(seed=0)
    robot = [0, 1, 2, 9, 10, 20, 21, 22, 23, 24]
    for action in np.random.default_rng(0).uniform(-0.3, 1, (10, 2, 4)):
        assert np.abs(observation["observation"][:, robot] - expected["observation"][:, robot]).max() < 1e-9
        observation, expected = ours.step(action)[0], other.step(action)[0]
    assert np.abs(observation["observation"][:, :3] - ours.physics.model.gripper).max() > 0.05


def test_goals() -> None:
    """Nine in ten above the table, by up to 0.45; in x and y within 0.15 of the gripper; starts on the table."""
    model, generator = build(TASK, contacts=False), np.random.default_rng(0)
    places, goals = (np.array(part) for part in zip(*(draw_start(model, generator) for _ in range(2000)), strict=True))
    lift = goals[:, 2] - model.height
    assert abs((lift > 0).mean() - 0.9) < 4 * np.sqrt(0.9 * 0.1 / 2000)
    assert 0.44 < lift.max() <= 0.45
    assert lift.min() == 0
    assert abs(lift[lift > 0].mean() - 0.225) < 4 * 0.45 / np.sqrt(12 * 1800)
    assert model.height == pytest.approx(0.435, abs=0.001)
    assert np.abs(goals[:, :2] - model.gripper[:2]).max() <= 0.15
    assert np.linalg.norm(places - CENTRE, axis=1).max() + 0.025 * np.sqrt(2) < 0.38
    assert TASKS["pick-and-place"].air_share == 0.5


@settings(max_examples=5, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**31), timing=st.sampled_from(list(STEPS)))
def test_a_restored_state_steps_identically_anywhere(seed: int, timing: str) -> None:
    """The table's angle, set-point and clock are part of the state."""
    generator = np.random.default_rng(seed)
    source = make(2, max_episode_steps=None, timing=timing)
    target = make(3, max_episode_steps=None, timing=timing, labels=("contact",), threads=1)
    for envs in (source, target):
        observation, _ = envs.reset(seed=int(generator.integers(1000)))
        for _ in range(generator.integers(1, 40)):
            action, _ = scripted_action(pick_and_place, observation, generator, 0.3, 0.2)
            observation, *_ = envs.step(action)
    places = generator.permutation(3)[:2]
    target.restore_state(places, source.save_state())
    for _ in range(3):
        everyone = generator.uniform(-1, 1, (3, 4)).astype(np.float32)
        source.step(everyone[places])
        target.step(everyone)
        assert np.array_equal(target.save_state(places), source.save_state())


def test_registered_and_checked() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error")
        env = gymnasium.make("butfor/FetchRotTable-v0", timing="release")
        warnings.filterwarnings("ignore", message=".*Box (low|high|observation space).*infinity.*")
        check_env(env.unwrapped, skip_render_check=True)
    assert isinstance(env.unwrapped, FetchEnv)
    assert env.observation_space["observation"].shape == (29,)  # type: ignore[index]
    envs = gymnasium.make_vec("butfor/FetchRotTable-v0", 2)
    assert isinstance(envs.unwrapped, FetchVectorEnv)
    assert isinstance(envs.unwrapped.physics, RotTablePhysics)
    assert envs.unwrapped.max_episode_steps == 50
