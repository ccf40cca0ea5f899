"""How well the score of a bonus for an edge finds its edge: python results/edge_score.py [--out FILE]

The model of touches that learns along with an agent (`--cai.source object0 --entities object1=25:28`) is trained on
15,000 transitions of stack-two, half of them with random actions, half with a noisy script. It scores 10,000 other
steps, which are labelled by removal of each entity in the simulator. So does the model of pairs, fitted to the same
transitions. Printed: average precision and AUC of the score as a detector of "the first cube moves the second", AUC
among the steps in which the first cube or the gripper moves it, and the mean score of steps in which only the gripper
does, as a share of the mean score of those in which the first cube does.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from butfor.benchmarks.edge_detectors import PAIR_MEMBERS, fit_network_to
from butfor.benchmarks.edges import LABEL, make_problem, play_task
from butfor.envs.several import make_world, removal_effects
from butfor.influence import GraphConfig
from butfor.models.networks import make_generators, single_thread
from butfor.runs.files import write_json
from butfor.runs.folder import versions
from butfor.training.goal_env import GoalEnv, add_partners, find_source, open_goal_env
from butfor.training.replay import ReplayBuffer
from butfor.training.signals.cai import CaiConfig, CaiSignal
from butfor.training.signals.transitions import TransitionTable

TASK = "stack-two"
SOURCE = "object0"
ENTITY = ("object1=25:28",)
SEED = 77  # of the labelled steps
PAIRS = GraphConfig(position_size=3)


def fill(data: dict[str, Any], sizes: tuple[int, int, int]) -> ReplayBuffer:
    """A replay buffer of episodes of one step."""
    count = len(data["obs"])
    replay = ReplayBuffer(1, count, 1, sizes, "cpu")
    goal = np.zeros((1, count, 2, sizes[2]))
    replay.store(
        {
            "observation": np.stack([data["obs"], data["next_obs"]], 1)[None],
            "action": data["action"][None, :, None],
            "achieved_goal": goal,
            "desired_goal": goal,
            "sampled": np.ones((1, count, 1), bool),
            "length": np.ones((1, count), int),
            "terminated": np.zeros((1, count), bool),
        }
    )
    return replay


def scores(train: dict[str, Any], tested: dict[str, Any], env: GoalEnv, batches: int, seed: int) -> Any:
    """Train the signal of a source on some steps, and score others: [N]."""
    config = CaiConfig(model="touch", source=SOURCE, newest_from=10**9)

    def make(data: dict[str, Any]) -> CaiSignal:
        table = TransitionTable(fill(data, env.sizes), env.law, env.entities, env.scale, env.partners)
        return CaiSignal(config, table, make_generators([seed]))

    learned = make(train)
    with single_thread():
        learned.fit(batches, make_generators([seed]))
        judge = make(tested)
        judge.model.load_state_dict(learned.model.state_dict())
        judge.score(torch.arange(len(tested["obs"])), make_generators([seed]))
    return judge.replay.score[0, :, 0].numpy()


def judge_scores(found: Any, by_cube: Any, by_gripper: Any) -> dict[str, float]:
    """How well scores [N] find the steps in which the first cube moves the second."""
    only_gripper = by_gripper & ~by_cube
    pushed = by_cube | by_gripper
    return {
        "AP": float(average_precision_score(by_cube, found)),
        "AUC": float(roc_auc_score(by_cube, found)),
        "AUC against the gripper's pushes": float(roc_auc_score(by_cube[pushed], found[pushed])),
        "score of the gripper's pushes": float(found[only_gripper].mean() / found[by_cube].mean()),
    }


def main(batches: int, seeds: int, out: Path | None) -> None:
    """Print a table of Markdown."""
    tested = play_task(TASK, 10_000, SEED)
    effect = removal_effects(make_world(TASK), tested["states"], tested["action"]) > LABEL[TASK]
    by_cube, by_gripper = effect[:, 1, 2], effect[:, 0, 2]
    env = open_goal_env(TASK, ENTITY, CaiConfig().network.target_scale)
    env = add_partners(env, find_source(env, SOURCE), required=True, measure=False)
    print(f"Moved by the first cube: {by_cube.sum()}, by the gripper alone: {(by_gripper & ~by_cube).sum()}.")
    rows = []
    for seed in range(seeds):
        train = play_task(TASK, 15_000, seed)
        problem = make_problem(TASK, train, tested, seed)
        pairs = fit_network_to(problem, problem.obs, problem.next_obs, PAIRS, PAIR_MEMBERS)
        edge = (SOURCE, "object1")
        found = {
            "touches, along training": scores(train, tested, env, batches, seed),
            "pairs, before the outcome": pairs.effects(tested["obs"], tested["action"])[edge],
            "pairs, given the outcome": pairs.effects(tested["obs"], tested["action"], tested["next_obs"])[edge],
        }
        for name, values in found.items():
            judged = judge_scores(np.asarray(values), by_cube, by_gripper)
            if not rows:
                print("| score | seed | " + " | ".join(judged) + " |\n" + "|---" * (len(judged) + 2) + "|")
            rows.append({"score": name, "seed": seed} | judged)
            print(f"| {name} | {seed} | " + " | ".join(f"{value:.3f}" for value in judged.values()) + " |", flush=True)
    if out is not None:
        write_json(out, {"batches": batches, "commit": versions("cpu")["commit"], "rows": rows})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=3000, help="of the signal's training")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    given = parser.parse_args()
    main(given.batches, given.seeds, given.out)
