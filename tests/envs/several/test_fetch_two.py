"""The Fetch environments with two cubes: what an observation is made of, forks to the bit, labels at known states."""

from typing import Any

import numpy as np
import pytest

from butfor.envs import facts_of, make_vector_env
from butfor.envs.experts import scripted_action
from butfor.envs.several.edges import action_effects, moved_effects, removal_effects
from butfor.envs.several.fetch_two import ENTITIES
from butfor.envs.several.fetch_world import FetchWorld
from butfor.envs.truth import Forker, exact_label

TASKS = pytest.mark.parametrize("task", ["push-two", "stack-two"])


def play(task: str, count: int, steps: int, noise: float = 0.2) -> dict[str, Any]:
    """Saved states and actions [steps, count, ...] of the script, and the last rewards."""
    facts: Any = facts_of(task)
    env: Any = make_vector_env(task, count, threads=1)
    obs, _ = env.reset(seed=0)
    generator = np.random.default_rng(0)
    states, actions, seen = [], [], []
    for _ in range(steps):
        action, _ = scripted_action(facts.expert, obs, generator, noise, noise)
        states.append(env.save_state())
        actions.append(action)
        seen.append(obs["observation"])
        obs, reward, *_ = env.step(action)
    env.close()
    return {"states": np.array(states), "actions": np.array(actions), "obs": np.array(seen), "reward": reward}


@TASKS
def test_a_fork_steps_as_the_environment(task: str) -> None:
    played = play(task, 4, 30)
    world = FetchWorld(task, slots=16, threads=1)
    states, actions = played["states"], played["actions"]
    after = world.step(states[:-1].reshape(-1, states.shape[2]), actions[:-1].reshape(-1, 4))
    physics = world.layout.physics
    np.testing.assert_array_equal(after[:, physics], states[1:].reshape(after.shape)[:, physics])


@TASKS
def test_columns_are_of_one_entity_each(task: str) -> None:
    """Velocities go along with the change of the positions, and rotations are rotations."""
    facts: Any = facts_of(task)
    obs = play(task, 4, 20)["obs"]
    for columns in list(facts.entities.values())[1:]:
        place, velocity, rows = obs[..., columns[:3]], obs[..., columns[3:6]], obs[..., columns[6:12]]
        moved = place[2:] - place[1:-1]
        assert np.corrcoef(moved.ravel(), velocity[2:].ravel())[0, 1] > 0.8
        np.testing.assert_allclose(np.linalg.norm(rows[..., :3], axis=-1), 1, atol=1e-6)
        np.testing.assert_allclose((rows[..., :3] * rows[..., 3:]).sum(-1), 0, atol=1e-6)


def test_the_script_stacks() -> None:
    """All of 8 episodes without noise end with the first cube on top of the second."""
    played = play("stack-two", 8, 50, noise=0.0)
    assert (played["reward"] == 0).all()
    cubes = played["obs"][-1][:, [12, 27]]
    touching = FetchWorld("stack-two", slots=8, threads=1).contacts(played["states"][-1])
    assert touching[:, 1, 2].all()
    assert (touching == touching.mT).all()
    assert not touching[:, [0, 1, 2], [0, 1, 2]].any()
    np.testing.assert_allclose(cubes[:, 0] - cubes[:, 1], 0.05, atol=0.005)


def test_a_cube_is_pushed_with_a_cube_and_the_labels_say_so() -> None:
    """The gripper moves the first cube, the first one the second; at the start nothing moves anything."""
    played = play("push-two", 6, 40, noise=0.0)
    world = FetchWorld("push-two", threads=1)
    states, actions = played["states"], played["actions"]
    begin = removal_effects(world, states[1], actions[1])
    assert not (np.nan_to_num(begin) > world.tolerance).any()
    rows, taken = (part[15:].reshape(-1, part.shape[2]) for part in (states, actions))
    label = removal_effects(world, rows, taken) > world.tolerance
    gripper, first, second = range(3)
    assert label[:, gripper, first].mean() > 0.3
    assert label[:, first, second].mean() > 0.3
    # what the gripper moves only by the first cube stops without that cube, too
    chained = label[:, gripper, second] & ~label[:, second, gripper]
    assert (label[:, first, second] | ~chained).mean() > 0.9


def test_the_action_matters_for_the_second_cube_later_than_for_the_first() -> None:
    played = play("push-two", 4, 20, noise=0.0)
    world = FetchWorld("push-two", threads=1)
    states = played["states"][[6, 12, 18], 0]
    following = np.broadcast_to(played["actions"][-1:, :1, None], (3, 1, 4, 4))
    size, share = action_effects(world, states, (1, 5), following)
    assert (share[:, 1] >= share[:, 0]).all()
    assert (size[:, 1] >= size[:, 0]).all()
    assert share[:, :, ENTITIES.index("gripper")].all()


def test_a_source_that_is_elsewhere_does_not_push() -> None:
    played = play("push-two", 6, 40, noise=0.0)
    world = FetchWorld("push-two", threads=1)
    states, actions = played["states"], played["actions"]
    pushed = np.argwhere(removal_effects(world, states[30], actions[30])[:, 0, 1] > 1e-3)[:, 0]
    assert len(pushed)
    reference = states[0]
    share = moved_effects(world, states[30][pushed], actions[30][pushed], reference, draws=6)[:, 0, 1]
    assert np.nanmean(share) > 0.8


@TASKS
def test_the_exact_label_is_of_the_cube_that_the_goal_is_about(task: str) -> None:
    """Against the forks of `edges`, without its tolerance and without skipping states; on push-two also by a chain."""
    played = play(task, 6, 50)
    states, actions = played["states"][4::5], played["actions"][4::5]
    goal_cube = ENTITIES.index("object1" if task == "push-two" else "object0")
    rows = states.reshape(-1, states.shape[2])
    world = FetchWorld(task, threads=1)
    size = action_effects(world, rows)[0][:, 0]  # [n, E]
    env: Any = make_vector_env(task, 6, ["exact"], threads=1)
    env.reset(seed=0)
    label = []
    for state, action in zip(states, actions, strict=True):
        env.restore_state(None, state)
        label.append(env.step(action)[4]["label_exact"])
    env.close()
    np.testing.assert_array_equal(np.concatenate(label), size[:, goal_cube] > 1e-6)
    assert 0.1 < np.mean(label) < 0.9
    if task == "push-two":
        touched = removal_effects(world, rows, actions.reshape(-1, 4))[:, 0, goal_cube] > 1e-6
        assert (np.concatenate(label) & (size[:, 1] > 1e-3) & touched).any()  # the first cube pushes it


def test_a_state_out_of_reach_of_one_cube_alone_is_not_skipped() -> None:
    """The gripper may reach the first cube, which touches the second."""
    played = play("push-two", 8, 50, noise=0.0)
    rows = played["states"].reshape(-1, played["states"].shape[2])
    forker = Forker("push-two", threads=1)
    label, effect = exact_label(forker, rows[::7], shortcut=False)
    quick, _ = exact_label(forker, rows[::7])
    np.testing.assert_array_equal(quick, label)
    distance = np.linalg.norm(played["obs"][..., 25:28] - played["obs"][..., :3], axis=-1).ravel()[::7]
    assert (label & (distance > 0.07)).any()  # farther than a hand that touches it
    assert effect[~forker.within_reach(rows[::7])].max(initial=0.0) < 1e-12
