"""`fork` and `restore`: the same actions have the same outcomes, in environments of many kinds."""

from typing import Any

import gymnasium
import numpy as np
import pytest

import butfor
from butfor.envs import env_id, fix_gymnasium_robotics

FOREIGN = ["FetchPickAndPlace-v4", "HandManipulateBlock-v1", "FrankaKitchen-v1", "PointMaze_UMaze-v3", "Ant-v5"]
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
        rows.append([*flat(obs), reward, terminated, truncated])
    return np.array(rows, dtype=float)


@pytest.mark.parametrize("id", [*FOREIGN, *OURS])
def test_a_restored_environment_continues_as_before(id: str) -> None:
    """After other steps, after a reset, and in a twin with another history; time limits included."""
    env, twin = make(id), make(id)
    space = env.action_space
    actions = np.random.default_rng(0).uniform(space.low, space.high, (25, *space.shape)).astype(space.dtype)
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


@pytest.mark.parametrize("id", ["FetchPickAndPlace-v4", "Ant-v5"])
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
