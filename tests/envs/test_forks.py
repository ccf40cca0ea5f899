"""`fork` and `restore`: the same actions have the same outcomes, in environments of many kinds."""

import itertools
from collections import deque
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import wrappers
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

import butfor
from butfor.envs import env_id, fix_gymnasium_robotics

FOREIGN = ["FetchPickAndPlace-v4", "HandManipulateBlock-v1", "FrankaKitchen-v1", "PointMaze_UMaze-v3", "Ant-v5"]
ADROIT = ["AdroitHandDoor-v1", "AdroitHandHammer-v1", "AdroitHandPen-v1", "AdroitHandRelocate-v1"]  # edit their models
OURS = ["butfor/Slide-v0", "butfor/Pucks-v0", "butfor/FetchPush-v0", "butfor/FetchStackTwo-v0"]
pytestmark = pytest.mark.filterwarnings("ignore")  # of the packages of others


def make(id: str) -> Any:
    fix_gymnasium_robotics()
    return gymnasium.make(env_id(id))


def flat(value: Any) -> Any:
    """All numbers of nested dictionaries in one array."""
    return np.concatenate([flat(part) for part in value.values()]) if isinstance(value, dict) else np.ravel(value)


def play(env: Any, actions: Any) -> Any:
    """Observations, rewards and ends of these steps."""
    rows = []
    for action in actions:
        obs, reward, terminated, truncated, _ = env.step(action)
        rows.append(np.concatenate([flat(obs), *map(np.ravel, (reward, terminated, truncated))]))
    return np.array(rows, dtype=float)


def check_that_it_continues_as_before(env: Any, twin: Any) -> None:
    """After other steps, after a reset, and in a twin with another history; time limits included."""
    space = env.action_space
    low, high = np.clip([space.low, space.high], -2, 2)  # ClipAction takes any number
    actions = np.random.default_rng(0).uniform(low, high, (25, *space.shape)).astype(space.dtype)
    env.reset(seed=0)
    play(env, actions[:5])
    state = butfor.fork(env)
    expected = play(env, actions[5:15])
    play(env, actions[15:])
    butfor.restore(env, state)
    np.testing.assert_array_equal(play(env, actions[5:15]), expected)
    env.reset(seed=1)
    butfor.restore(env, state)
    np.testing.assert_array_equal(play(env, actions[5:15]), expected)
    twin.reset(seed=2)
    play(twin, actions[:3])
    butfor.restore(twin, state)
    np.testing.assert_array_equal(play(twin, actions[5:15]), expected)
    env.close()
    twin.close()


@pytest.mark.parametrize("id", [*FOREIGN, *ADROIT, *OURS])
def test_a_restored_environment_continues_as_before(id: str) -> None:
    check_that_it_continues_as_before(make(id), make(id))


WRAPPERS: dict[str, Any] = {
    "DelayObservation": lambda env: wrappers.DelayObservation(env, 3),
    "FrameStackObservation": lambda env: wrappers.FrameStackObservation(env, 4),
    "MaxAndSkipObservation": lambda env: wrappers.MaxAndSkipObservation(env, 2),
    "NormalizeObservation": wrappers.NormalizeObservation,
    "NormalizeReward": wrappers.NormalizeReward,
    "RecordEpisodeStatistics": wrappers.RecordEpisodeStatistics,
    "RepeatAction": lambda env: wrappers.RepeatAction(env, 2),
    "StickyAction": lambda env: wrappers.StickyAction(env, 0.5, (1, 3)),
    "TimeAwareObservation": wrappers.TimeAwareObservation,
    "ClipAction": wrappers.ClipAction,
    "RescaleAction": lambda env: wrappers.RescaleAction(env, np.float32(-2), np.float32(2)),
    "TransformObservation": lambda env: wrappers.TransformObservation(env, np.tanh, env.observation_space),
    "TransformReward": lambda env: wrappers.TransformReward(env, lambda reward: 2 * float(reward)),
    "Autoreset": wrappers.Autoreset,
    "several": lambda env: wrappers.FrameStackObservation(
        wrappers.DelayObservation(wrappers.NormalizeReward(wrappers.NormalizeObservation(env)), 2), 3
    ),
}


@pytest.mark.parametrize("wrapper", list(WRAPPERS))
@pytest.mark.parametrize("id", ["Ant-v5", "butfor/Pucks-v0"])
def test_what_wrappers_of_gymnasium_remember_is_saved(id: str, wrapper: str) -> None:
    env, twin = (WRAPPERS[wrapper](wrappers.FlattenObservation(make(id))) for _ in range(2))
    check_that_it_continues_as_before(env, twin)


@pytest.mark.parametrize("id", ["Ant-v5", "butfor/Pucks-v0"])
def test_stacked_observations_that_are_dictionaries_are_saved(id: str) -> None:
    env, twin = (wrappers.FrameStackObservation(make(id), 4) for _ in range(2))
    check_that_it_continues_as_before(env, twin)


class Total:
    """An object of an environment, as running means are."""

    def __init__(self) -> None:
        self.sum = np.zeros(1)
        self.parts: dict[str, list[int]] = {"steps": [0]}


class Remembers(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Its reward depends on everything that it remembers, and it changes that in place."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.total = Total()
        self.same = self.total
        self.add: Any = lambda x: np.add(self.total.sum, x, out=self.total.sum)
        self.by_name = {"first": Total(), "second": Total()}
        self.queue: deque[Any] = deque([np.zeros(1)], maxlen=3)
        self.generator = np.random.default_rng(0)
        self.old_generator = np.random.RandomState(0)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        if not hasattr(self, "first_reward"):  # made late
            self.first_reward = float(reward)
        self.add(self.generator.normal() + self.old_generator.normal())
        self.by_name["second"].sum += 1
        self.by_name["second"].parts["steps"][0] += 1
        self.queue.append(self.same.sum.copy())
        self.queue[0] += 1
        mine = self.total.sum.item() + self.by_name["second"].sum.item() + sum(one.item() for one in self.queue)
        steps = self.by_name["second"].parts["steps"][0]
        return obs, float(reward) + mine + steps + self.first_reward, terminated, truncated, info


def test_what_own_wrappers_remember_is_saved() -> None:
    check_that_it_continues_as_before(Remembers(make("Ant-v5")), Remembers(make("Ant-v5")))


def test_attributes_that_were_made_later_are_removed() -> None:
    env = Remembers(make("butfor/Pucks-v0"))
    env.reset(seed=0)
    state = butfor.fork(env)
    env.step(np.zeros(2, np.float32))
    assert hasattr(env, "first_reward")
    butfor.restore(env, state)
    assert not hasattr(env, "first_reward")


def test_an_object_that_others_hold_stays_the_same_object() -> None:
    env = Remembers(make("butfor/Pucks-v0"))
    env.reset(seed=0)
    held, state = env.total, butfor.fork(env)
    env.step(np.zeros(2, np.float32))
    assert held.sum != 0
    butfor.restore(env, state)
    assert env.total is env.same is held
    assert held.sum == 0


class Chosen(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One of its objects is the present one, and the objects know each other."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.totals: list[Any] = [Total(), Total()]
        self.totals[0].other, self.totals[1].other = self.totals[1], self.totals[0]
        self.present = self.totals[0]

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        self.present.sum += 1
        self.present = self.present.other
        return obs, float(self.totals[0].sum[0] + 100 * self.totals[1].sum[0]), *rest


def test_objects_that_know_each_other_are_saved() -> None:
    check_that_it_continues_as_before(Chosen(make("Ant-v5")), Chosen(make("Ant-v5")))


class Cycles(gymnasium.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: Any, order: Any) -> None:
        super().__init__(env)
        self.order = order


class Counts:
    def __init__(self) -> None:
        self.count = itertools.count()

    def next(self) -> int:
        return next(self.count)


UNSAVED = [itertools.cycle([1, 2]), (x for x in [1]), [iter([1])], Counts(), Counts().next, torch.nn.Linear(2, 2)]


@pytest.mark.parametrize("order", UNSAVED)
@pytest.mark.parametrize("id", ["Ant-v5", "butfor/Pucks-v0"])
def test_a_wrapper_that_remembers_what_cannot_be_saved_is_refused_by_name(id: str, order: Any) -> None:
    env = Cycles(make(id), order)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"Cycles\.order"):
        butfor.fork(env)


@pytest.mark.parametrize(
    "order", [np.tanh, len, str.upper, Total, itertools, (Total, len), {"f": print}, torch.float32]
)
def test_functions_classes_and_modules_are_not_refused(order: Any) -> None:
    check_that_it_continues_as_before(Cycles(make("Ant-v5"), order), Cycles(make("Ant-v5"), order))


class Views(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Its reward is read from a view of a view of MuJoCo's memory."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.height = env.unwrapped.data.qpos[1:][1:2]

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, float(self.height[0]), *rest


def test_views_of_the_simulation_stay_views() -> None:
    check_that_it_continues_as_before(Views(make("Ant-v5")), Views(make("Ant-v5")))


class OtherPhysics(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Each episode has another gravity, friction and mass."""

    def reset(self, **options: Any) -> Any:
        obs = super().reset(**options)
        model, rng = self.unwrapped.model, self.np_random  # type: ignore[attr-defined]
        model.opt.gravity[2] = rng.uniform(-12, -6)
        model.opt.density = rng.uniform(0, 10)
        model.geom_friction[:] = rng.uniform(0.5, 1.5, model.geom_friction.shape)
        model.body_mass[1:] *= rng.uniform(0.9, 1.1)
        return obs


def test_the_numbers_of_the_model_are_saved() -> None:
    check_that_it_continues_as_before(OtherPhysics(make("Ant-v5")), OtherPhysics(make("Ant-v5")))


@pytest.mark.parametrize("id", ["Ant-v5", "butfor/Pucks-v0", "AdroitHandDoor-v1"])
def test_environments_of_a_sync_vector_env_are_saved(id: str) -> None:
    env, twin = (SyncVectorEnv([lambda: wrappers.FrameStackObservation(make(id), 2)] * 2) for _ in range(2))
    check_that_it_continues_as_before(env, twin)


def test_a_sync_vector_env_of_another_size_is_refused() -> None:
    two, three = (SyncVectorEnv([lambda: make("butfor/Pucks-v0")] * number) for number in (2, 3))
    two.reset(seed=0)
    three.reset(seed=0)
    with pytest.raises(ValueError, match="another kind"):
        butfor.restore(three, butfor.fork(two))


def test_environments_in_other_processes_are_refused() -> None:
    env = AsyncVectorEnv([lambda: gymnasium.make("CartPole-v1")])
    with pytest.raises(TypeError, match="SyncVectorEnv"):
        butfor.fork(env)
    env.close()


class NoisyReward(gymnasium.Env[Any, Any]):
    """Uses its generator in its steps alone, where Gymnasium would make it without a seed."""

    def __init__(self) -> None:
        self.inner = make("butfor/Slide-v0")

    def reset(self, **options: Any) -> Any:
        return self.inner.reset()

    def step(self, action: Any) -> Any:
        obs, _, *rest = self.inner.step(action)
        return obs, self.np_random.normal(), *rest


def test_a_generator_that_is_first_used_after_the_fork_is_saved() -> None:
    env = NoisyReward()
    env.reset()
    state = butfor.fork(env)
    actions = np.zeros((3, 1), np.float32)
    expected = play(env, actions)
    butfor.restore(env, state)
    np.testing.assert_array_equal(play(env, actions), expected)


def test_sampled_actions_go_on_after_a_restore() -> None:
    env = make("Ant-v5")
    env.reset(seed=0)
    state = butfor.fork(env)
    first = env.action_space.sample()
    butfor.restore(env, state)
    assert (env.action_space.sample() != first).any()


@pytest.mark.parametrize("id", ["FetchPickAndPlace-v4", "Ant-v5", "AdroitHandDoor-v1"])
def test_versions_of_mujoco_that_cannot_copy_data_are_forked(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mujoco = pytest.importorskip("mujoco")
    monkeypatch.delattr(mujoco, "mj_copyData")
    test_a_restored_environment_continues_as_before(id)


def test_other_actions_show_what_would_have_happened() -> None:
    env = make("butfor/Pucks-v0")
    env.reset(seed=0)
    state = butfor.fork(env)
    right = play(env, np.ones((3, 2), np.float32))
    butfor.restore(env, state)
    left = play(env, -np.ones((3, 2), np.float32))
    assert (right[-1, :2] > left[-1, :2]).all()  # the agent


def test_the_time_limit_is_part_of_the_state() -> None:
    env = make("Ant-v5")
    env.reset(seed=0)
    actions = np.zeros((3, 8))
    state = butfor.fork(env)
    play(env, actions)
    assert env.get_wrapper_attr("_elapsed_steps") == 3
    butfor.restore(env, state)
    assert env.get_wrapper_attr("_elapsed_steps") == 0


def test_a_state_of_another_kind_is_refused() -> None:
    ant, maze = make("Ant-v5"), make("PointMaze_UMaze-v3")
    ant.reset(seed=0)
    maze.reset(seed=0)
    with pytest.raises(ValueError, match="another kind"):
        butfor.restore(maze, butfor.fork(ant))


def test_a_state_of_other_wrappers_is_refused() -> None:
    delayed, stacked = wrappers.DelayObservation(make("Ant-v5"), 2), wrappers.FrameStackObservation(make("Ant-v5"), 2)
    delayed.reset(seed=0)
    stacked.reset(seed=0)
    with pytest.raises(ValueError, match="another kind"):
        butfor.restore(stacked, butfor.fork(delayed))


def test_an_environment_without_mujoco_is_refused() -> None:
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=0)
    with pytest.raises(TypeError, match="CartPole"):
        butfor.fork(env)


class SavesItsOwnWay(gymnasium.Env[Any, Any]):
    """As environments of panda-gym do: their methods have the names of ours, and save another way."""

    _observation = None

    def save_state(self) -> int:
        return 1


def test_an_environment_of_another_package_with_methods_of_the_same_names_is_refused() -> None:
    env = SavesItsOwnWay()
    env._observation = None
    with pytest.raises(TypeError, match="SavesItsOwnWay"):
        butfor.fork(env)
