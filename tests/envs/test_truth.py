import functools
import re
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from butfor.envs.experts import scripted_action
from butfor.envs.facts import BUILT_IN
from butfor.envs.fetch import FetchEnv, FetchVectorEnv
from butfor.envs.truth import Forker, exact_label
from butfor.envs.vector import Flags

Floats = npt.NDArray[np.float64]

TASKS = ("push", "pick-and-place", "fetch-slide", "rot-table")
all_tasks = pytest.mark.parametrize("task", TASKS)
ROUNDING = 1e-12  # in metres; what the solver's order of sums may leave


def make(task: str, count: int, **options: Any) -> FetchVectorEnv:
    return FetchVectorEnv(task, count, max_episode_steps=None, **options)


@functools.cache
def forker_of(task: str, slots: int = 256) -> Forker:
    """One forker for all tests, so that its slots have a history."""
    return Forker(task, slots)


@dataclass(frozen=True)
class Sample:
    """States of some steps, the actions taken there, whether a finger then touched, and the labels by forking all."""

    forker: Forker
    state: Floats
    action: npt.NDArray[np.float32]
    contact: Flags
    label: Flags
    effect: Floats


@functools.cache
def sample(task: str, policy: str, count: int, every: int) -> Sample:
    """Every so many steps of `count` episodes."""
    envs, generator = make(task, count, labels=("contact",)), np.random.default_rng(5)
    noise, share = {"random": (0.0, 1.0), "expert": (0.0, 0.0), "noisy-expert": (0.3, 0.3)}[policy]
    observation, _ = envs.reset(seed=700)
    states, actions, contacts = [], [], []
    for step in range(50):
        action, _ = scripted_action(BUILT_IN[task].expert, observation, generator, noise, share)
        before = envs.save_state()
        observation, _, _, _, infos = envs.step(action)
        if step % every == every // 2:
            states.append(before)
            actions.append(action)
            contacts.append(infos["contact"])
    state, taken = np.concatenate(states), np.concatenate(actions)
    label, effect = exact_label(forker_of(task), state, taken, shortcut=False)
    return Sample(forker_of(task), state, taken, np.concatenate(contacts), label, effect)


def samples() -> list[Sample]:
    """Random, expert and noisy-expert episodes of the environments."""
    return [
        sample("pick-and-place", "random", 40, 10),
        sample("pick-and-place", "expert", 6, 3),
        sample("pick-and-place", "noisy-expert", 16, 10),
        sample("push", "random", 24, 10),
        sample("push", "noisy-expert", 8, 10),
        sample("rot-table", "random", 24, 10),
        sample("rot-table", "noisy-expert", 8, 10),
    ]


@functools.cache
def still(task: str) -> Floats:
    """A state [S] in which the robot holds still above the table."""
    envs = make(task, 1)
    envs.reset(seed=0)
    for _ in range(3):
        envs.step(np.zeros((1, 4)))
    state: Floats = envs.save_state()[0]
    return state


def with_object(task: str, position: Any, velocity: Any = (0, 0, 0)) -> Floats:
    """The robot holding still and the object somewhere, upright [S]."""
    state, layout = still(task).copy(), forker_of(task).layout
    state[layout.object_pose] = [*position, 1, 0, 0, 0]
    state[layout.object_velocity] = [*velocity, 0, 0, 0]
    return state


def against(task: str, geom: str, direction: tuple[int, int, int]) -> Floats:
    """The object upright and just touching a geom of the robot on one side: found by halving its distance [S]."""
    forker = forker_of(task)
    mj = forker.physics.model.mj
    data, robot, thing = mujoco.MjData(mj), mj.geom(geom).id, mj.geom("object0").id
    near, far = 0.0, 1.0
    data.qpos[:] = still(task)[forker.layout.qpos]
    mujoco.mj_kinematics(mj, data)
    centre = data.geom_xpos[robot].copy()
    for _ in range(40):
        middle = (near + far) / 2
        data.joint("object0:joint").qpos = [*(centre + middle * np.array(direction)), 1, 0, 0, 0]
        mujoco.mj_kinematics(mj, data)
        if mujoco.mj_geomDistance(mj, data, robot, thing, 1.0, None) > 0:
            far = middle
        else:
            near = middle
    return with_object(task, centre + near * np.array(direction))


@settings(max_examples=12, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**31), task=st.sampled_from([*TASKS, "release"]))
def test_a_fork_does_what_the_environment_does(seed: int, task: str) -> None:
    """To the bit, in any slot, after any history, among other alternatives; and the environments are left alone."""
    generator = np.random.default_rng(seed)
    if task == "release":
        envs = make("rot-table", 4, timing="release")
        forker, task = Forker(envs, 7), "rot-table"
    else:
        envs, forker = make(task, 4, labels=("contact",) * (seed % 2)), forker_of(task, 7)
    observation, _ = envs.reset(seed=int(generator.integers(1000)))
    for _ in range(generator.integers(1, 40)):
        action, _ = scripted_action(BUILT_IN[task].expert, observation, generator, 0.3, 0.3)
        observation, *_ = envs.step(action)
    saved = envs.save_state()
    alternatives = generator.uniform(-1.2, 1.2, (4, 3, 4)).astype(
        np.float32
    )  # beyond 1: clipped, as in the environment
    after = forker.fork(saved, alternatives)
    assert after.shape == (4, 3, envs.layout.size)
    assert np.array_equal(envs.save_state(), saved)
    taken = generator.integers(3)
    envs.step(alternatives[:, taken])
    assert np.array_equal(after[:, taken], envs.save_state())
    assert np.array_equal(forker.fork(saved[::-1], alternatives[::-1, ::-1])[::-1, ::-1], after)


def test_the_same_actions_for_all_states_and_some_columns() -> None:
    forker, states = forker_of("push"), sample("push", "random", 24, 10).state[:3]
    actions = np.random.default_rng(0).uniform(-1, 1, (5, 4)).astype(np.float32)
    everything = forker.fork(states, np.broadcast_to(actions, (3, 5, 4)))
    assert np.array_equal(forker.fork(states, actions), everything)
    pose = forker.layout.object_pose
    assert np.array_equal(forker.fork(states, actions, pose), everything[..., pose])
    assert forker.fork(states[:0], actions).shape == (0, 5, forker.layout.size)
    assert exact_label(forker, states[:0])[0].shape == (0,)


@all_tasks
@pytest.mark.parametrize("shortcut", [True, False])
def test_what_the_robot_cannot_touch_does_not_depend_on_the_action(task: str, shortcut: bool) -> None:
    """The object far away on the table, falling free far from and near the robot."""
    height = still(task)[forker_of(task).layout.object_pose][2]
    far = with_object(task, (1.5, 0.98, height))
    falling = with_object(task, (1.5, 0.35, 0.9), (0, 0, -1.5))
    falling_near = with_object(task, (1.35, 0.6, 0.7), (0, 0, -1.0))
    states = np.stack([far, falling, falling_near])
    label, effect = exact_label(forker_of(task), states, shortcut=shortcut)
    assert not label.any()
    assert effect.max() < ROUNDING
    moved = forker_of(task).fork(states, np.zeros((1, 4)), forker_of(task).layout.object_pose)[1:, 0, 2]
    # It falls by v t + g t^2 / 2 in 0.04 s, but for MuJoCo's Euler steps, of 0.002 s, which add g t 0.001.
    assert states[1:, forker_of(task).layout.object_pose][:, 2] - moved == pytest.approx([0.0682, 0.0482], abs=2e-4)
    near = task != "fetch-slide"  # whose robot stands farther away
    assert forker_of(task).within_reach(states).tolist() == [False, False, near]


@all_tasks
@pytest.mark.parametrize("shortcut", [True, False])
def test_what_the_robot_touches_depends_on_the_action(task: str, shortcut: bool) -> None:
    """Any geom of the robot, though it be 0.9 m from the gripper: fingers, arm, head, base."""
    forker = forker_of(task)
    names = [forker.physics.model.mj.geom(geom).name for geom in forker.robot_geoms]
    assert len(names) == 17
    assert {"robot0:base_link", "robot0:elbow_flex_link", "robot0:l_gripper_finger_link"} <= set(names)
    states = np.stack([against(task, name, (1, 0, 0)) for name in names])
    distance = np.linalg.norm(
        states[:, forker.layout.object_pose][:, :3] - states[:, forker.layout.gripper][:, :3], axis=1
    )
    label, effect = exact_label(forker, states, shortcut=shortcut)
    assert label.all(), [name for name, positive in zip(names, label, strict=True) if not positive]
    assert distance.max() > 0.6
    moving = [names.index(f"robot0:{link}") for link in ("r_gripper_finger_link", "elbow_flex_link", "wrist_flex_link")]
    assert (effect[moving] > 1e-3).all()


@pytest.mark.parametrize("task", ["pick-and-place", "rot-table"])
def test_a_held_object_depends_on_the_action(task: str) -> None:
    """It goes with the gripper, whose target moves by up to 0.05 each way."""
    held = sample(task, "expert", *((6, 3) if task == "pick-and-place" else (4, 10)))
    height = held.state[:, held.forker.layout.object_pose][:, 2]
    fingers = held.state[:, held.forker.layout.observation][:, 9:11].max(axis=1)
    lifted = (height > 0.46) & (fingers < 0.03)
    assert lifted.sum() >= 5
    assert held.label[lifted].all()
    assert (held.effect[lifted] > 0.01).all()
    assert (held.effect[lifted] < 0.2).all()


def test_a_turning_table_is_not_the_action() -> None:
    """The object rides a centimetre or more in the step, whatever the robot does: negative."""
    envs = make("rot-table", 8)
    envs.reset(seed=3)
    for _ in range(12):
        envs.step(np.tile([0.0, 0.0, 1.0, 0.0], (8, 1)))
    states, pose = envs.save_state(), envs.layout.object_pose
    assert np.abs(forker_of("rot-table").fork(states, np.zeros((1, 4)), pose)[:, 0] - states[:, pose]).max() > 0.01
    label, effect = exact_label(forker_of("rot-table"), states, shortcut=False)
    assert not label.any()
    assert effect.max() < 1e-9


def test_labels_hardly_depend_on_the_tolerance() -> None:
    """The same for 1e-12 to 1e-5."""
    positives = 0
    for one in samples():
        assert np.array_equal(one.effect > 1e-12, one.effect > 1e-5)
        positives += one.label.sum()
        assert np.array_equal(one.effect > 1e-6, one.label)
    assert positives > 50


def test_corners_find_what_random_actions_find() -> None:
    """32 uniform actions find no positive that the corners miss, and the action taken adds none."""
    for one in (sample("pick-and-place", "random", 40, 10), sample("pick-and-place", "noisy-expert", 16, 10)):
        chosen = np.flatnonzero(one.forker.within_reach(one.state))[:40]
        corners, _ = exact_label(one.forker, one.state[chosen])
        draws = np.random.default_rng(0).uniform(-1, 1, (len(chosen), 32, 4))
        position = one.forker.fork(one.state[chosen], draws, one.forker.layout.object_pose)[..., :3]
        random = np.ptp(position, axis=1).max(axis=1) > 1e-6
        assert random.any()
        assert not (random & ~corners).any()
        assert np.array_equal(one.label[chosen], corners)


def test_labels_without_sizes_are_the_same_with_fewer_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Effects are lower bounds then, and exact where there is none."""
    forked = []
    fork = Forker.fork

    def counted(self: Forker, states: Any, actions: Any, columns: Any = None) -> Any:
        forked.append(actions.shape[0] * actions.shape[1])
        return fork(self, states, actions, columns)

    monkeypatch.setattr(Forker, "fork", counted)
    for one in samples():
        label, effect = exact_label(one.forker, one.state, one.action, shortcut=False, sizes=False)
        assert np.array_equal(label, one.label)
        assert (effect <= one.effect).all()
        assert np.array_equal(effect[~label], one.effect[~label])
    one = sample("pick-and-place", "noisy-expert", 16, 10)
    forked.clear()
    exact_label(one.forker, one.state, one.action, shortcut=False, sizes=False)
    assert sum(forked) < 0.7 * 17 * len(one.state)


def test_the_shortcut_changes_nothing() -> None:
    """On random, expert and noisy-expert episodes; it skips most states of a random policy."""
    for one in samples():
        label, effect = exact_label(one.forker, one.state, one.action)
        assert np.array_equal(label, one.label)
        assert np.allclose(effect, one.effect, rtol=0, atol=ROUNDING)
    one = sample("pick-and-place", "random", 40, 10)
    assert 0.4 < np.mean(~one.forker.within_reach(one.state)) < 0.9


@all_tasks
def test_the_shortcut_on_constructed_states(task: str) -> None:
    """Objects at all places around the robot, moving, tumbling, sunk into the table, beside robots that move."""
    generator, forker = np.random.default_rng(8), forker_of(task)
    count = 16 if task == "pick-and-place" else 8
    states = sample(task, "noisy-expert", count, 10).state[:40].repeat(2, axis=0)
    low, high, _ = forker._boxes(states)
    layout, count = forker.layout, len(states)
    link = generator.integers(len(forker.robot_geoms), size=count)
    centre, half = (low + high)[np.arange(count), link] / 2, (high - low)[np.arange(count), link] / 2
    side = generator.choice([-1.0, 0.0, 1.0], (count, 3), p=[0.3, 0.4, 0.3])
    reach = generator.uniform(0.0, 0.2, (count, 1))
    orientation = generator.standard_normal((count, 4))
    states[:, layout.object_pose] = np.concatenate(
        [centre + side * (half + reach), orientation / np.linalg.norm(orientation, axis=1, keepdims=True)], axis=1
    )
    states[:, layout.object_velocity] = generator.standard_normal((count, 6)) * [0.5, 0.5, 0.5, 5, 5, 5]
    states[::2, layout.object_velocity] = 0
    label, _ = exact_label(forker, states, shortcut=False)
    near = forker.within_reach(states)
    assert not (label & ~near).any()
    assert 0.1 < label.mean() < 0.9


@all_tasks
def test_links_stay_within_the_slack(task: str) -> None:
    """No corner action takes a geom beyond its swept box by more than 0.9 of the slack; two thirds do happen."""
    forker, generator = forker_of(task), np.random.default_rng(2)
    envs = make(task, 24)
    envs.reset(seed=9)
    worst = np.zeros_like(forker._slack)
    for _ in range(8):
        for _ in range(4):
            envs.step(generator.choice([-1.0, 1.0], (24, 4)))
        states = envs.save_state()
        states[:, forker.layout.object_pose] = [1.0, 2.0, 5.0, 1, 0, 0, 0]  # out of the way
        low, high, lag = forker._boxes(states)
        assert lag.max() < 0.005
        after = forker.fork(states, generator.choice([-1.0, 1.0], (24, 2, 4)))
        after[..., forker.layout.qvel] = 0  # so that the boxes are those of the end of the step
        for alternative in range(2):
            end_low, end_high, _ = forker._boxes(after[:, alternative])
            beyond = np.maximum(low - end_low, end_high - high)[:, : len(worst)]
            worst = np.maximum(worst, beyond.max(axis=0))
    assert (worst < 0.9 * forker._slack).all()
    assert (worst > 0.55 * forker._slack).any()


@pytest.mark.parametrize("task", ["push", "pick-and-place"])
def test_unusual_states_are_never_skipped(task: str) -> None:
    """A tilted gripper, one that was kept apart from its qpos, an object deep inside the table."""
    forker = forker_of(task)
    layout, far = forker.layout, with_object(task, (1.5, 0.98, 0.425))
    tilted, apart = far.copy(), far.copy()
    half = 0.15 / 2  # radians, about the vertical
    turn = np.array([np.cos(half), 0, 0, np.sin(half)])
    mujoco.mju_mulQuat(tilted[layout.gripper][3:], turn, far[layout.gripper][3:])
    apart[layout.gripper.start] += 0.02
    deep = with_object(task, (1.4, 0.95, 0.25))
    assert forker.within_reach(np.stack([far, tilted, apart, deep])).tolist() == [False, True, True, True]


@all_tasks
def test_an_object_that_flies_towards_the_robot_is_never_skipped(task: str) -> None:
    """At 6 m/s it comes from 0.2 m away and hits the hand within the step."""
    grip = still(task)[forker_of(task).layout.observation][:3]
    state = with_object(task, grip + np.array([0, -0.2, 0.03]), (0, 6, 0))[None]
    assert exact_label(forker_of(task), state, shortcut=False)[0].all()
    assert exact_label(forker_of(task), state)[0].all()
    state[:, forker_of(task).layout.object_velocity] *= -1
    assert not exact_label(forker_of(task), state, shortcut=False)[0].any()


def test_contact_implies_a_positive_label() -> None:
    """A finger that pushes the object could have pushed otherwise; the converse fails."""
    contact = np.concatenate([one.contact for one in samples()])
    label = np.concatenate([one.label for one in samples()])
    assert contact.sum() > 20
    assert label[contact].all()
    assert label.sum() > contact.sum()


def test_shares_of_positive_labels() -> None:
    """A few per cent of a random policy's states; about nine in ten of the expert's."""
    episodes, generator = make("pick-and-place", 64), np.random.default_rng(1)
    episodes.reset(seed=1234)
    states, actions = [], []
    for step in range(50):
        action = generator.uniform(-1, 1, (64, 4)).astype(np.float32)
        if step % 5 == 2:
            states.append(episodes.save_state())
            actions.append(action)
        episodes.step(action)
    label, _ = exact_label(forker_of("pick-and-place"), np.concatenate(states), np.concatenate(actions))
    assert label.shape == (640,)
    assert 0.01 < label.mean() < 0.10
    assert 0.8 < sample("pick-and-place", "expert", 6, 3).label.mean() < 0.98


def test_a_blow_up_is_left_out(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its alternatives are NaN and its label False; the other states are unharmed."""
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to a file in the current folder
    one = sample("pick-and-place", "expert", 6, 3)
    states = one.state[-3:].copy()
    expected = one.forker.fork(states, one.forker.corners)
    states[1, one.forker.layout.qvel] = 1e11
    after = one.forker.fork(states, one.forker.corners)
    assert np.isnan(after[1]).all()
    assert np.array_equal(after[[0, 2]], expected[[0, 2]])
    label, effect = exact_label(one.forker, states, one.action[-3:], shortcut=False)
    assert np.isnan(effect[1])
    assert label.tolist() == [True, False, True]

    fork = one.forker.fork

    def failing_once(*arguments: Any) -> Floats:
        outcome = fork(*arguments)
        outcome[:, -1] = np.nan  # the action taken
        return outcome

    _, corners_alone = exact_label(one.forker, one.state[-3:])
    monkeypatch.setattr(one.forker, "fork", failing_once)
    assert np.array_equal(exact_label(one.forker, one.state[-3:], one.action[-3:])[1], corners_alone)


def test_candidates() -> None:
    """All 16 corners; 8 where nothing drives the fingers, and there the fourth number indeed does nothing."""
    corners = forker_of("pick-and-place").corners
    assert len({tuple(corner) for corner in corners.tolist()}) == 16
    assert set(corners.ravel().tolist()) == {-1.0, 1.0}
    pushing = forker_of("push")
    assert pushing.corners.shape == (8, 4)
    states = sample("push", "noisy-expert", 8, 10).state[:5]
    open_and_closed = np.stack([pushing.corners, pushing.corners]) + np.array([[[0, 0, 0, 1]], [[0, 0, 0, -1]]])
    first, second = (pushing.fork(states, actions) for actions in open_and_closed)
    assert np.array_equal(first, second)


def test_forkers_of_environments_and_names() -> None:
    assert getattr(Forker(make("rot-table", 1, timing="release"), 1).physics, "timing", None) == "release"
    assert getattr(Forker("rot-table", 1).physics, "timing", None) == "paper"
    assert Forker(FetchEnv(task="push"), 1).physics.model.task is Forker("push", 1).physics.model.task
    with pytest.raises(ValueError, match="'slide'"):
        Forker("slide")


def test_wrong_states_and_actions_are_refused() -> None:
    forker, states = forker_of("push"), np.stack([still("push")] * 3)
    for wrong in (states[0], states[:, :5], still("rot-table")[None]):
        with pytest.raises(ValueError, match=re.escape(str(wrong.shape))):
            forker.fork(wrong, forker.corners)
        with pytest.raises(ValueError, match=re.escape(str(wrong.shape))):
            exact_label(forker, wrong)
    unknown = states.copy()
    unknown[1, 7] = np.nan
    with pytest.raises(ValueError, match=r"\b1 values"):
        forker.fork(unknown, forker.corners)
    for shape in ((4,), (5, 3), (2, 5, 4), (1, 3, 5, 4)):
        with pytest.raises(ValueError, match=re.escape(str(shape))):
            forker.fork(states, np.zeros(shape))
    with pytest.raises(ValueError, match="NaN"):
        forker.fork(states, np.full((1, 4), np.nan))
    with pytest.raises(ValueError, match=r"\(2, 1, 4\)"):
        exact_label(forker, states, np.zeros((2, 4)))
