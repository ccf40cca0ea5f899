"""How well the score of a bonus for an edge tells who moves the second cube: python results/edge_score.py [--out FILE]

The model of touches that learns along with an agent (`--cai.source object0 --entities object1=25:28`) is trained on
transitions of stack-two, half of them with random actions, half with a noisy script, and scores other steps, which are
labelled by removal of each entity in the simulator. Printed: average precision and AUC of the score as a detector of
"the first cube moves the second", over all steps, and over steps in which either the first cube or the gripper, but
not both, moves the second: there chance is a precision of the share of the first.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from butfor.benchmarks.edges import LABEL, play_task
from butfor.envs.several import make_world, removal_effects
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


def main(batches: int, seeds: int, out: Path | None) -> None:
    """Print a table of Markdown."""
    tested = play_task(TASK, 10_000, SEED)
    effect = removal_effects(make_world(TASK), tested["states"], tested["action"]) > LABEL[TASK]
    by_cube, by_gripper = effect[:, 1, 2], effect[:, 0, 2]
    either = by_cube != by_gripper
    env = open_goal_env(TASK, ENTITY, CaiConfig().network.target_scale)
    env = add_partners(env, find_source(env, SOURCE), required=True, measure=False)
    print(f"{by_cube.sum()} steps by the first cube, {by_gripper.sum()} by the gripper, {either.sum()} by one of them")
    groups = {
        "both": by_cube & by_gripper,
        "cube": by_cube & ~by_gripper,
        "gripper": by_gripper & ~by_cube,
        "none": ~by_cube & ~by_gripper,
    }
    heads = ["seed", "AP", "AUC", "AP, one of them", "AUC, one of them", *(f"mean score, {name}" for name in groups)]
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    rows = []
    for seed in range(seeds):
        found = scores(play_task(TASK, 15_000, seed), tested, env, batches, seed)
        values = [
            float(measure(by_cube[chosen], found[chosen]))
            for chosen in (np.ones_like(either), either)
            for measure in (average_precision_score, roc_auc_score)
        ]
        values += [float(found[chosen].mean()) for chosen in groups.values()]
        rows.append(dict(zip(heads, [seed, *values], strict=True)))
        print(f"| {seed} | " + " | ".join(f"{value:.3f}" for value in values) + " |", flush=True)
    if out is not None:
        facts = {"batches": batches, "commit": versions("cpu")["commit"], "chance": float(by_cube[either].mean())}
        write_json(out, facts | {"rows": rows})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=3000, help="of the signal's training")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    given = parser.parse_args()
    main(given.batches, given.seeds, given.out)
