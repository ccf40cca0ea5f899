"""Who moves whom while trained agents act, by forks: python results/edge_use.py RUN ... [--episodes 30]

Every state of the agents' episodes is stepped again without each entity (`removal_effects`). Printed for each run, with
the mean and the 95 % interval over its seeds: the share of episodes in which the source moves the target by more than a
millimetre in some step, and the share of such steps. With `--out`, also written as JSON, by seed.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from butfor import load_policy
from butfor.analysis.statistics import mean_interval
from butfor.benchmarks.edges import LABEL
from butfor.envs import facts_of, make_vector_env
from butfor.envs.several import World, make_world, removal_effects
from butfor.runs.files import write_json
from butfor.runs.folder import versions
from butfor.runs.reading import read_object

EDGES = (("gripper", "object0"), ("gripper", "object1"), ("object0", "object1"))
START = 50_000  # of the seeds of the episodes


def effects_of(env: Any, world: World, policy: Any, steps: int) -> npt.NDArray[np.float64]:
    """Effects [T, E, source, target] in metres in the episodes of E environments that a policy plays without noise."""
    obs, _ = env.reset(seed=list(range(START, START + env.num_envs)))
    found = []
    for _ in range(steps):
        action = policy(obs)
        states = env.save_state()
        found.append(removal_effects(world, states, action))
        obs = env.step(action)[0]
    return np.stack(found)


def measure(run: Path, episodes: int) -> dict[str, list[float]]:
    """Shares of episodes and of steps with each edge, one number per seed."""
    summary = read_object(run / "summary.json")
    env_name = str(summary["env"])
    facts: Any = facts_of(env_name)
    world = make_world(env_name)
    names = world.entities
    env = make_vector_env(env_name, episodes)
    rows: dict[str, list[float]] = {}
    for seed in summary["seeds"]:
        moves = effects_of(env, world, load_policy(run, seed), facts.max_episode_steps) > LABEL[env_name]
        for source, target in EDGES:
            edge = moves[:, :, names.index(source), names.index(target)]  # [T, E]
            rows.setdefault(f"{source} -> {target}: episodes", []).append(float(edge.any(0).mean()))
            rows.setdefault(f"{source} -> {target}: steps", []).append(float(edge.mean()))
    env.close()
    return rows


def main(runs: list[Path], episodes: int, out: Path | None) -> None:
    """Print a table of Markdown."""
    print("| run | edge | mean | 95 % interval |\n|---|---|---|---|")
    everything = {}
    for run in runs:
        found = everything[run.name] = measure(run, episodes)
        for edge, values in found.items():
            low, high = mean_interval(np.array(values))
            print(f"| {run.name} | {edge} | {np.mean(values):.3f} | [{low:.3f}, {high:.3f}] |", flush=True)
    if out is not None:
        write_json(out, {"episodes": episodes, "commit": versions("cpu")["commit"], "runs": everything})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--episodes", type=int, default=30, help="of each seed")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    given = parser.parse_args()
    main(given.runs, given.episodes, given.out)
