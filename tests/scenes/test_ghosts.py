"""Ghosts by forks against the environment itself, and the step that decided."""

from typing import Any

import numpy as np
import pytest

from butfor.envs import make_vector_env
from butfor.envs.facts import BUILT_IN
from butfor.envs.several.pucks import RADIUS
from butfor.envs.truth import Forker, exact_label
from butfor.scenes.branches import FetchSimulator, FlatSimulator
from butfor.scenes.edges import simulated_moves
from butfor.scenes.ghosts import deciding_step, fork_ghosts, replay_recorded


class Counter:
    """A simulator whose state is a number that actions are added to; the goal is to have at least 5."""

    actions = np.array([[-1.0], [1.0]])
    action_names: tuple[str, ...] = ("up",)
    tolerance = 0.0
    bodies: Any = ()

    def states(self, saved: Any, obs: Any, goal: Any) -> Any:
        return obs

    def poses(self, states: Any) -> Any:
        return self.object_poses(states)

    def step(self, states: Any, actions: Any) -> Any:
        return states + actions

    def observe(self, states: Any) -> Any:
        return {"observation": states}

    def object_poses(self, states: Any) -> Any:
        return np.repeat(states[:, None], 7, axis=2)

    def agent_positions(self, states: Any) -> Any:
        return np.repeat(states, 3, axis=1)

    def reached(self, states: Any) -> Any:
        return states[:, 0] >= 5


def test_ghosts_hold_their_action_and_the_policy_goes_on() -> None:
    """From 0 with +1 in each of 6 steps the end is 6; holding -1 for 2 steps from any step makes it 2 (failure)."""
    states = np.arange(7.0)[:, None]
    ghosts = fork_ghosts(Counter(), states, (0,), hold=2, policy=replay_recorded(np.ones((6, 1))))
    assert ghosts.path.shape == (6, 2, 2, 1, 7)
    assert np.array_equal(ghosts.path[:, :, 0, 0, 0] - states[:-1], np.tile([-1.0, 1.0], (6, 1)))
    assert np.array_equal(ghosts.path[:, :, 1, 0, 0] - states[:-1], np.tile([-2.0, 2.0], (6, 1)))
    assert ghosts.success is not None
    assert not ghosts.success[:5, 0].any()  # 6 - 2 * 2
    assert not ghosts.success[5, 0]  # 5 - 1: the episode ends while the action is held
    assert ghosts.success[:, 1].all()
    assert np.array_equal(ghosts.spread()[..., 0], np.tile([2.0, 4.0], (6, 1)))


def test_without_a_policy_there_are_no_outcomes() -> None:
    assert fork_ghosts(Counter(), np.arange(4.0)[:, None], (0,), hold=1).success is None


@pytest.mark.parametrize("hold", [0, 10**9])
def test_hold_is_a_number_of_steps_that_can_be_shown(hold: int) -> None:
    with pytest.raises(ValueError, match=f"hold .* got {hold}"):
        fork_ghosts(Counter(), np.arange(4.0)[:, None], (0,), hold=hold)


@pytest.mark.parametrize(
    ("success", "reached", "step"),
    [
        ([[0, 0], [1, 0], [0, 0]], [0, 0, 0, 0], 1),  # a failure that step 1 could still have avoided
        ([[0, 0], [0, 0], [0, 0]], [0, 0, 0, 0], None),
        ([[1, 1], [0, 1], [1, 1]], [0, 0, 0, 1], 1),  # a success that step 1 could have lost
        ([[1, 1], [0, 1], [0, 0]], [0, 0, 1, 1], 1),  # from state 2 on the goal is only kept
        ([[0, 1], [1, 1], [0, 0]], [0, 1, 0, 1], 2),  # the goal was lost once more after state 1
        ([[0, 0], [0, 0], [0, 0]], [1, 1, 1, 1], None),
    ],
)
def test_deciding_step(success: Any, reached: Any, step: int | None) -> None:
    assert deciding_step(np.array(success, dtype=bool), np.array(reached, dtype=bool)) == step


@pytest.fixture(scope="module")
def pushed() -> tuple[Any, Any, Any]:
    """The first 12 states of an expert's episode, the actions, and the environment."""
    env: Any = make_vector_env("push", 1)
    obs, _ = env.reset(seed=[3])
    states, actions = [env.save_state()], []
    for _ in range(12):
        actions.append(np.clip(BUILT_IN["push"].expert(obs["observation"], obs["desired_goal"])[0], -1, 1))
        obs, *_ = env.step(actions[-1])
        states.append(env.save_state())
    return np.concatenate(states), np.concatenate(actions), env


def test_fetch_branches_do_what_the_environment_does(pushed: tuple[Any, Any, Any]) -> None:
    """The branch from state 4 with an action held for 3 steps ends where the environment itself ends."""
    states, _, env = pushed
    simulator = FetchSimulator(env, BUILT_IN["push"])
    ghosts = fork_ghosts(simulator, states, (0,), hold=3)
    for number in (0, 5):
        env.restore_state(None, states[4:5])
        for _ in range(3):
            obs, *_ = env.step(simulator.actions[number][None])
        own = env.save_state()[0, simulator.layout.object_pose]
        assert np.array_equal(ghosts.path[4, number, 2, 0], own)
        assert ghosts.agent is not None
        assert np.array_equal(ghosts.agent[4, number, 2], obs["observation"][0, :3])


def test_the_fan_after_one_step_is_the_exact_label(pushed: tuple[Any, Any, Any]) -> None:
    states, _, env = pushed
    simulator = FetchSimulator(env, BUILT_IN["push"])
    _, effect = exact_label(Forker("push"), states[:-1], shortcut=False)
    assert np.array_equal(fork_ghosts(simulator, states, (0,), hold=1).spread()[:, 0, 0], effect)


def test_recorded_actions_repeat_the_outcome(pushed: tuple[Any, Any, Any]) -> None:
    """A branch that takes the recorded action ends in the recorded state."""
    states, actions, env = pushed
    simulator = FetchSimulator(env, BUILT_IN["push"])
    simulator.actions = actions[6:7]
    ghosts = fork_ghosts(simulator, states[6:], (0,), hold=1, policy=replay_recorded(actions[6:]))
    assert np.array_equal(ghosts.path[0, 0, 0, 0], states[7, simulator.layout.object_pose])
    assert ghosts.success is not None
    assert ghosts.success[0, 0] == simulator.reached(states[-1:])[0]


def test_slide_has_no_fan_out_of_reach() -> None:
    """An object that no action can reach in one step stays where it is; one beside the agent is hit by some."""
    states = np.array([[-4.0, 0, -2.0, 0, 2.5], [-2.23, 0, -2.0, 0, 2.5], [-2.23, 0, -2.0, 0, 2.5]])
    simulator = FlatSimulator(make_vector_env("slide", 1), BUILT_IN["slide"])
    spread = fork_ghosts(simulator, states, (0,), hold=1).spread()[:, 0, 0]
    assert spread[0] == 0
    assert spread[1] > 0


def test_pucks_branch_as_the_environment_does() -> None:
    env: Any = make_vector_env("pucks", 1)
    obs, _ = env.reset(seed=[5])
    simulator = FlatSimulator(env, BUILT_IN["pucks"])
    states = simulator.states(obs["observation"], obs["observation"], obs["desired_goal"])
    ghosts = fork_ghosts(simulator, np.concatenate([states, states]), (3, 4, 5), hold=4)
    for _ in range(4):
        obs, *_ = env.step(simulator.actions[7:8])
    places = obs["observation"][0].reshape(4, 4)[1:, :2]
    assert np.array_equal(ghosts.path[0, 7, 3, :, :2], places)


def test_who_moves_whom_is_found_by_removal() -> None:
    """The agent rests against the first puck and pushes it; nothing else is near."""
    simulator = FlatSimulator(make_vector_env("pucks", 1), BUILT_IN["pucks"])
    state = np.zeros((2, 16), dtype=np.float32)
    state[:, [4, 9, 13]] = 2 * RADIUS, 0.5, -0.5
    state[1, 4] = 0.5  # out of reach
    action = np.array([[1.0, 0.0], [1.0, 0.0]], dtype=np.float32)
    found = simulated_moves(BUILT_IN["pucks"], simulator.bodies, state, action)
    assert found is not None
    names = {(simulator.bodies[i].name, simulator.bodies[j].name): flags for (i, j), flags in found.items()}
    assert set(names) == {("agent", "first"), ("first", "agent")}
    assert names["agent", "first"].tolist() == [True, False]
    assert simulated_moves(BUILT_IN["slide"], (), state, action) is None
