"""DDPG in one file, with causal action influence (CAI) as a bonus and for exploration.

    python examples/cleanrl_ddpg.py                                # butfor's slide environment
    python examples/cleanrl_ddpg.py --cai-bonus 0 --cai-active 0   # the same without influence
    python examples/cleanrl_ddpg.py --env-id Pendulum-v1 --cai-entity velocity=2

Read it from top to bottom and change it; the lines that use influence are marked "CAI".
"""

import copy
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
import tyro
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers.vector import FlattenObservation, RecordEpisodeStatistics
from torch import Tensor, nn

import butfor.envs  # noqa: F401  (registers butfor/Slide-v0)
from butfor import ModelConfig
from butfor.integrations.wrappers import VectorInfluenceWrapper


@dataclass
class Args:
    """Options of the command line."""

    env_id: str = "butfor/Slide-v0"
    """Gymnasium id of an environment with a flat Box of actions, and a Box or a dictionary of them as observations"""
    seed: int = 1
    total_timesteps: int = 60_000
    """steps, counted over all environments"""
    num_envs: int = 4
    learning_starts: int = 2_000
    """steps with random actions before the first update"""
    buffer_size: int = 200_000
    batch_size: int = 256
    learning_rate: float = 1e-3
    gamma: float = 0.97
    tau: float = 0.005
    """share by which the target networks move towards the networks in each update"""
    noise: float = 0.1
    """standard deviation of the noise on actions, in units of half the action range"""
    epsilon: float = 0.2
    """share of actions that are random or chosen for their influence, instead of the policy's"""
    updates_per_step: int = 2
    """gradient steps per step of all environments"""

    # CAI
    cai_entity: str = "object=observation:2"
    """the entity to influence: a name, and its columns in the observation or in a part of it"""
    cai_bonus: float = 0.2
    """lambda: the reward becomes r + lambda min(CAI, 2); 0 for no bonus"""
    cai_active: float = 0.5
    """of the actions that are not the policy's, the share chosen for their influence"""
    cai_learn_every: int = 2_000
    """steps between rounds of training of the influence model"""
    cai_batches: int = 200
    """batches in each round"""


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, outputs))


def main(args: Args) -> float:
    """Train, and return the mean episode reward without bonus over the last tenth of training."""
    torch.manual_seed(args.seed)  # noqa: TID251  (a script of its own: nothing else draws from this stream)
    random = np.random.default_rng(args.seed)
    recent: list[tuple[int, float]] = []  # when each episode ended, and its reward
    influence: list[float] = []  # of the steps since the last report

    # Environments. The step after the end of an episode ignores the action and starts the next episode.
    envs = SyncVectorEnv([lambda: gym.make(args.env_id) for _ in range(args.num_envs)])
    envs = RecordEpisodeStatistics(envs)  # inside, so that it counts the reward without bonus
    # CAI: the wrapper learns in which states actions have influence, reports it in infos["cai"], and adds the bonus
    influence_envs = envs = VectorInfluenceWrapper(
        envs,
        entities=[args.cai_entity],
        bonus=args.cai_bonus,
        learn_every=args.cai_learn_every,
        batches=args.cai_batches,
        model=ModelConfig(layers=2, width=128),
        seed=args.seed,
    )
    if isinstance(envs.single_observation_space, gym.spaces.Dict):
        envs = FlattenObservation(envs)  # outside, so that entities are columns of the dictionary's parts

    low, high = envs.single_action_space.low, envs.single_action_space.high
    middle, half = (torch.as_tensor(part / 2, dtype=torch.float32) for part in (low + high, high - low))
    obs_size, action_size = envs.single_observation_space.shape[0], len(low)

    # Networks: the actor outputs an action in [-1, 1], the critic its value.
    actor, critic = mlp(obs_size, action_size), mlp(obs_size + action_size, 1)
    target_actor, target_critic = copy.deepcopy(actor), copy.deepcopy(critic)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=args.learning_rate)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=args.learning_rate)

    def act(policy: nn.Module, states: Tensor) -> Tensor:
        return middle + half * torch.tanh(policy(states))

    def value(function: nn.Module, states: Tensor, actions: Tensor) -> Tensor:
        return function(torch.cat([states, (actions - middle) / half], 1)).squeeze(1)

    # The replay buffer is a ring of arrays.
    size = args.buffer_size
    stored = {
        "obs": torch.zeros(size, obs_size),
        "action": torch.zeros(size, action_size),
        "reward": torch.zeros(size),
        "next_obs": torch.zeros(size, obs_size),
        "terminated": torch.zeros(size),
    }
    step = 0
    added = 0
    reported = 0

    obs, _ = envs.reset(seed=args.seed)
    finished = np.zeros(args.num_envs, dtype=bool)
    while step < args.total_timesteps:
        # Act: random at first, then the policy with noise, and sometimes another action.
        action = random.uniform(low, high, (args.num_envs, action_size))
        if step >= args.learning_starts:
            with torch.no_grad():
                own = act(actor, torch.as_tensor(obs, dtype=torch.float32)).numpy()
            own = np.clip(own + args.noise * (high - low) / 2 * random.standard_normal(own.shape), low, high)
            draw = random.random((args.num_envs, 1))
            action = np.where(draw < args.epsilon, action, own)
            # CAI: some exploratory actions are the most influential of many candidates
            active = draw < args.epsilon * args.cai_active
            if influence_envs.influence is not None and active.any():
                best, _ = influence_envs.best_action()
                action = np.where(active, best, action)
        action = action.astype(np.float32)

        next_obs, reward, terminated, truncated, infos = envs.step(action)  # reward includes the bonus
        influence += infos["cai"][infos["_cai"]].tolist()  # CAI: without the steps that start an episode
        if "episode" in infos:
            recent += [(step, float(total)) for total in infos["episode"]["r"][infos["_episode"]]]

        # Store transitions; a step that starts an episode is not one.
        real = ~finished
        rows = (added + torch.arange(real.sum())) % size
        for name, values in zip(stored, (obs, action, reward, next_obs, terminated), strict=True):
            stored[name][rows] = torch.as_tensor(values[real], dtype=torch.float32)
        added += len(rows)
        obs = next_obs
        finished = terminated | truncated
        step += args.num_envs

        # Learn.
        for _ in range(args.updates_per_step if step >= args.learning_starts else 0):
            index = torch.randint(min(added, size), (args.batch_size,))
            batch = {name: values[index] for name, values in stored.items()}
            with torch.no_grad():
                next_value = value(target_critic, batch["next_obs"], act(target_actor, batch["next_obs"]))
                target = batch["reward"] + args.gamma * (1 - batch["terminated"]) * next_value
            critic_loss = F.mse_loss(value(critic, batch["obs"], batch["action"]), target)
            critic_optimizer.zero_grad()
            critic_loss.backward()
            critic_optimizer.step()

            actor_loss = -value(critic, batch["obs"], act(actor, batch["obs"])).mean()
            actor_optimizer.zero_grad()
            actor_loss.backward()
            actor_optimizer.step()

            with torch.no_grad():
                for network, follower in ((actor, target_actor), (critic, target_critic)):
                    for new, old in zip(network.parameters(), follower.parameters(), strict=True):
                        old.lerp_(new, args.tau)

        if step - reported >= args.total_timesteps / 10:
            episodes = [total for when, total in recent if when >= reported]
            text = f"episode reward {np.mean(episodes):8.2f}" if episodes else "no episode ended"
            print(f"step {step:7d}  {text}  influence {np.mean(influence):.3f}")
            reported = step
            influence = []
    envs.close()
    late = [total for when, total in recent if when >= 0.9 * args.total_timesteps]
    return float(np.mean(late)) if late else float("nan")


if __name__ == "__main__":
    main(tyro.cli(Args))
