"""Collect the episodes of `butfor demo`: python tools/build_demo_data.py src/butfor/datasets/pick-and-place.npz

Random actions, a scripted expert with noise, and a policy that learned from the expert. A few minutes on one
core. The simulator's version is in the file, because trajectories differ between versions.
"""

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from butfor.detection.collect import CollectConfig, collect_file
from butfor.envs.facts import BUILT_IN
from butfor.models.networks import make_generators
from butfor.rollouts.episodes import Episodes, concatenate
from butfor.spaces.actions import ActionLaw
from butfor.training.agents.policy import AgentConfig, Policy, save_agent

ENV = "pick-and-place"
LABELS = ("exact", "contact")
PARTS = {"random": 120, "noisy-expert": 120, "learned": 100}  # episodes of each policy; 5.5 kB each
UPDATES = 500
BATCH = 256


def collect_demo(parts: dict[str, int] = PARTS) -> Episodes:
    """Play the episodes of all policies, one policy after the other, each with a seed of its own."""
    played: dict[str, Episodes] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed, (name, count) in enumerate(parts.items()):
            policy = name
            if name == "learned":
                policy = str(learn(played["noisy-expert"], Path(folder) / "agent"))
            config = CollectConfig(ENV, policy, count, LABELS, seed)
            played[name] = collect_file(config, Path(folder) / f"{name}.npz")
    episodes = concatenate(list(played.values()))
    bounds = {key: played["random"].metadata[key] for key in ("action_low", "action_high")}
    mixed = {"env": ENV, "labels": list(LABELS), "policy": "mixed"}
    episodes.metadata = {"config": mixed, "parts": parts, "mujoco": version("mujoco")} | bounds
    return episodes


def learn(episodes: Episodes, folder: Path) -> Path:
    """Fit a policy to what the expert would do in the states of these episodes, and write it as a trained agent.

    It learns in seconds on one core, where an agent that explores by itself takes hours.
    """
    seen = [part[:, :-1][episodes.valid] for part in (episodes.observation, episodes.desired_goal)]
    way = seen[1] - episodes.achieved_goal[:, :-1][episodes.valid]
    inputs = torch.from_numpy(np.concatenate([*seen, way], 1))
    target = torch.from_numpy(np.clip(BUILT_IN[ENV].expert(*seen)[0], -1, 1).astype(np.float32))
    config = AgentConfig()
    policy = Policy(inputs.shape[1], target.shape[1], config, make_generators([0]))
    policy.normalizer.update(inputs[None])
    optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, UPDATES)
    generator = torch.Generator().manual_seed(0)
    for _ in range(UPDATES):
        rows = torch.randint(len(inputs), (BATCH,), generator=generator)
        loss = (policy(inputs[None, rows])[0] - target[rows]).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    folder.mkdir()
    law = ActionLaw((-1.0,) * target.shape[1], (1.0,) * target.shape[1])
    sizes = [seen[0].shape[1], target.shape[1], seen[1].shape[1]]
    tensors = {f"policy.{name}": value for name, value in policy.state_dict().items()}
    save_agent(folder / "model.safetensors", tensors, config, law, sizes, ENV, [0], relative_goals=True)
    return folder


if __name__ == "__main__":
    found = collect_demo()
    found.save(sys.argv[1])
    print(found)
