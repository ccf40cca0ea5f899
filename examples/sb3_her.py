"""SAC with hindsight replay of Stable-Baselines3 on a small environment, with or without influence.

    python examples/sb3_her.py                   # with influence: priority, bonus and active exploration
    python examples/sb3_her.py --no-influence    # plain Stable-Baselines3

A run takes about two minutes. The lines marked with * add influence to a script for Stable-Baselines3.
"""

import argparse
from typing import Any

import gymnasium
from stable_baselines3 import SAC
from stable_baselines3.her import HerReplayBuffer

import butfor.envs  # noqa: F401  registers the environment
from butfor import ModelConfig
from butfor.integrations.sb3 import ActiveExploration, InfluenceCallback, InfluenceReplayBuffer  # *
from butfor.training.exploration import ExploreConfig


class ActiveSAC(ActiveExploration, SAC):  # *
    """SAC that chooses some of its actions for their influence."""

    exploration = ExploreConfig(epsilon=0.2)


NETWORK = ModelConfig(layers=2, width=128)  # the environment is small


def make_agent(influence: bool, seed: int) -> tuple[SAC, Any]:
    """Make an agent, and the callback for its `learn`."""
    env = gymnasium.make("butfor/Slide-v0")  # the agent pushes a puck that has to slide to its goal
    settings: dict[str, Any] = {
        "buffer_size": 50_000,
        "learning_starts": 1_500,
        "train_freq": 30,
        "gradient_steps": 30,
        "learning_rate": 1e-3,
        "gamma": 0.95,
        "policy_kwargs": {"net_arch": [64, 64]},
        "seed": seed,
    }
    if not influence:
        return SAC("MultiInputPolicy", env, replay_buffer_class=HerReplayBuffer, **settings), None
    settings["replay_buffer_class"] = InfluenceReplayBuffer  # *
    settings["replay_buffer_kwargs"] = {"entities": "puck=observation:2"}  # *
    callback = InfluenceCallback(every=50, batches=500, network=NETWORK)  # *
    return ActiveSAC("MultiInputPolicy", env, **settings), callback  # *


def success(agent: SAC, episodes: int) -> float:
    """The share of episodes that end at their goal."""
    env, reached = gymnasium.make("butfor/Slide-v0"), 0
    for episode in range(episodes):
        obs, _ = env.reset(seed=1_000 + episode)
        finished = False
        while not finished:
            action, _ = agent.predict(obs, deterministic=True)
            obs, _, terminated, truncated, info = env.step(action)
            finished = terminated or truncated
        reached += info["is_success"]
    env.close()
    return reached / episodes


def main(steps: int = 12_000, influence: bool = True, seed: int = 0, evaluation: int = 100) -> tuple[float, Any]:
    """Train and evaluate an agent; return its success rate and the influence model."""
    agent, callback = make_agent(influence, seed)
    agent.learn(steps, callback=callback)  # *
    share = success(agent, evaluation)
    print(f"{'with' if influence else 'without'} influence: success {share:.2f} after {steps} steps")
    return share, callback and callback.influence


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12_000)
    parser.add_argument("--influence", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--seed", type=int, default=0)
    main(**vars(parser.parse_args()))
