"""Data for learning offline with several objects: a noisy script that brings the goal's object to the goal.

python results/offline_data.py ENV OUT.npz [EPISODES]

ENV is `push-two`, `pucks` or `stack-two`. The scripts of `butfor collect` for the first two push one object into
another and hardly ever reach the goal; these push the goal's object itself. For `stack-two` it is the script of
`butfor collect`. A tenth of the actions is uniform, the others have noise.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from butfor.envs import make_vector_env
from butfor.envs.experts import push, scripted_action, stack
from butfor.envs.several.pucks import ACCELERATION, BODIES, DRAG, GOAL_RADIUS, RADIUS
from butfor.rollouts.play import collect

NOISE = 0.3
RANDOM = 0.1
TOGETHER = 50  # episodes played at once
SEED = 7_000


def push_second(observation: Any, desired_goal: Any) -> tuple[Any, Any]:
    """The script of FetchPush for the second cube of `push-two`."""
    state = np.asarray(observation, dtype=np.float64)
    seen = np.zeros((len(state), 25))
    seen[:, :3] = state[:, :3]
    seen[:, 3:6] = state[:, 25:28]
    seen[:, 6:9] = state[:, 25:28] - state[:, :3]
    return push(seen, desired_goal)


def push_third(observation: Any, desired_goal: Any) -> tuple[Any, Any]:
    """Go around the third puck of `pucks` to the side away from the goal, and push it gently."""
    bodies = np.asarray(observation, dtype=np.float64).reshape(-1, len(BODIES), 4)
    goal = np.asarray(desired_goal, dtype=np.float64)
    agent, puck = bodies[:, 0], bodies[:, 3]
    way = goal - puck[:, :2]
    distance = np.linalg.norm(way, axis=1, keepdims=True)
    line = way / np.maximum(distance, 1e-9)
    offset = agent[:, :2] - puck[:, :2]
    along = (offset * line).sum(1, keepdims=True)
    side = offset - along * line
    lateral = np.linalg.norm(side, axis=1, keepdims=True)
    ready = (along < -RADIUS) & (lateral < 0.5 * RADIUS)
    ahead = (along > -RADIUS) & (lateral < 3 * RADIUS)  # the puck is in the way to the place behind it
    behind = puck[:, :2] - 3 * RADIUS * line
    around = puck[:, :2] + 3.5 * RADIUS * side / np.maximum(lateral, 1e-9)
    target = np.where(ready, puck[:, :2] + line * distance, np.where(ahead, around, behind))
    speed = np.where(ready, np.clip(1.2 * distance, 0.3, 1.0), 2.0)
    wanted = np.clip(8 * (target - agent[:, :2]), -speed, speed)
    action = (wanted - agent[:, 2:]) * 0.5 + wanted * DRAG / ACCELERATION
    action = np.where(distance <= 0.5 * GOAL_RADIUS, -0.5 * agent[:, 2:], action)
    return action, np.ones(len(action), bool)


SCRIPTS = {"push-two": push_second, "pucks": push_third, "stack-two": stack}


def main(env_name: str, out: Path, episodes: int) -> None:
    """Play, save, and print how many reach the goal."""
    env = make_vector_env(env_name, TOGETHER)

    def policy(obs: Any, generator: np.random.Generator) -> Any:
        return scripted_action(SCRIPTS[env_name], obs, generator, NOISE, RANDOM)

    found = collect(env, policy, episodes, SEED)
    env.close()
    found.metadata |= {"env": env_name, "policy": Path(__file__).name, "seed": SEED}
    found.save(out)
    last = np.linalg.norm(found.achieved_goal[:, -1] - found.desired_goal[:, -1], axis=-1)
    reached = last <= (GOAL_RADIUS if env_name == "pucks" else 0.05)
    print(f"{len(found)} episodes; {reached.mean():.2f} of them reach the goal")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1000)
