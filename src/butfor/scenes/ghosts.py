"""Ghosts of other actions, and the step that decided the outcome of an episode.

By forks of the simulator: from each state of the episode every other action is held for K steps, and then the policy
acts to the end. By a model: the mean of its prediction one step ahead.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from butfor.scenes.branches import Choose, Simulator
from butfor.scenes.scene import Flags, Floats, Ghosts

DEFAULT_HOLD = 5  # steps: 0.2 s of the Fetch robot, in which the fan can be seen
LONGEST_HOLD = 1_000  # steps: longer than the episodes that a page can show


def check_hold(hold: int) -> None:
    """Refuse a number of steps for which no action can be held."""
    if not 1 <= hold <= LONGEST_HOLD:
        raise ValueError(f"hold must be at least 1 step, and at most {LONGEST_HOLD:,}; got {hold}.")


def fork_ghosts(
    simulator: Simulator,
    states: Floats,
    bodies: tuple[int, ...],
    hold: int = DEFAULT_HOLD,
    policy: Choose | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Ghosts:
    """Fork every state of an episode, hold each other action, then let the policy act to the end of the episode.

    Args:
        simulator: steps saved states.
        states: the saved states [T + 1, S] of the episode.
        bodies: the bodies of the scene that are its objects.
        hold: steps K for which an action is held.
        policy: acts after the action was held; None for no outcomes.
        progress: called with the steps done and their number.

    Raises:
        ValueError: `hold` is less than 1.
    """
    check_hold(hold)
    steps = len(states) - 1
    tried = np.asarray(simulator.actions)
    count = len(tried)
    began = np.repeat(np.arange(steps), count)  # [T x M]: the step at which a branch leaves the episode
    held = np.tile(tried, (steps, 1))
    branches = states[began]
    poses, agents = [], []
    longest = max(hold, steps) if policy is not None else hold
    ends: Floats = branches.copy()  # the state of each branch at the end of the episode
    for ahead in range(longest):
        now = began + ahead
        alive = np.isfinite(branches).all(axis=1)  # the physics of the others blew up
        going = np.flatnonzero(alive & ((now < steps) | (ahead < hold)))
        action = held[going]
        if ahead >= hold and policy is not None:
            action = policy(simulator.observe(branches[going]), now[going])
        branches[going] = simulator.step(branches[going], action)
        if ahead < hold:
            poses.append(simulator.object_poses(branches).copy())
            agents.append(simulator.agent_positions(branches).copy())
        last = now == steps - 1
        ends[last] = branches[last]
        progress(ahead + 1, longest)
    objects = poses[0].shape[1]
    path = np.stack(poses, axis=1).reshape(steps, count, hold, objects, 7)
    agent = np.stack(agents, axis=1).reshape(steps, count, hold, 3)
    action = np.broadcast_to(tried, (steps, *tried.shape))
    success = None
    if policy is not None:
        blown = ~np.isfinite(ends).all(axis=1)
        ends[blown] = states[-1]  # nothing is known about them, so they count as unchanged
        success = simulator.reached(ends).reshape(steps, count)
    return Ghosts("simulator", bodies, action, path, agent, success)


def deciding_step(success: Flags, reached: Flags) -> int | None:
    """Find the last step at which another action would have changed whether the episode succeeds.

    Args:
        success: whether the episode would have succeeded [T, M] after each other action.
        reached: whether the goal was reached in each state [T + 1].

    Returns:
        The step, or None if no other action would have changed the outcome. Once the goal is reached for good, later
        steps only keep it, and are not counted.
    """
    succeeded = bool(reached[-1])
    changed = (success != succeeded).any(axis=1)  # [T]
    if succeeded:
        away = np.flatnonzero(~reached)
        changed[(int(away[-1]) + 1 if len(away) else 0) :] = False
    steps = np.flatnonzero(changed)
    return int(steps[-1]) if len(steps) else None


def replay_recorded(action: Floats) -> Choose:
    """Return a policy that repeats the recorded actions [T, A], for episodes whose policy is not known."""

    def choose(obs: object, time: NDArray[np.int64]) -> Floats:
        return action[np.minimum(time, len(action) - 1)]

    return choose


def explain_decision(acting: str, hold: int, decided: int | None, succeeded: bool) -> str:
    """Say how the step that decided was found; `acting` is who acts after another action, such as "the expert acts"."""
    how = f"Another action is held for {hold} step{'s' if hold > 1 else ''}, then {acting}."
    if decided is None:
        when = "Until the goal is reached for good, " if succeeded else ""
        return f"{how} {when}{'no' if when else 'No'} other action would have changed the outcome."
    end = "fails" if succeeded else "succeeds"
    return f"{how} This is the last step at which the episode then {end}."
