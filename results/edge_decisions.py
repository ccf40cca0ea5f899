"""How many decisions of `decide_graph` are false, against exact labels: python results/edge_decisions.py OUT.json

For each task one default model of pairs (seed 0, 15,000 transitions) decides at a false discovery rate of 5 % in 2,000
other states: whether the action matters for each object, and which entities move which, before the step with random
actions, with the action taken, and after the outcome. Edges with fewer than 0.3 % true labels count as well.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from butfor import Influence
from butfor.benchmarks.edges import LABEL, make_problem, play_task
from butfor.envs.several import make_world
from butfor.envs.several.edges import action_effects, removal_effects
from butfor.influence import GraphConfig
from butfor.runs.files import write_json
from butfor.runs.folder import versions

TRANSITIONS, STATES = 15_000, 2_000
RATE = 0.05
TRAIN, TEST = 0, 1_000  # seeds


def measure(task: str) -> dict[str, dict[str, float]]:
    """False share and recall of the decisions of each kind."""
    problem = make_problem(task, play_task(task, TRANSITIONS, TRAIN), test := play_task(task, STATES, TEST), TRAIN)
    model = GraphConfig(position_size=problem.position_size)
    influence = Influence.fit(
        problem.obs, problem.action, problem.next_obs, problem.entities, action_space=problem.action_space, model=model,
        seed=TRAIN, progress=False,
    )  # fmt: skip
    world = make_world(task)
    least = LABEL[task]
    moved = removal_effects(world, test["states"], test["action"]) > least
    acted = action_effects(world, test["states"], (1,))[0][:, 0] > least
    objects = [place for place, name in enumerate(world.entities) if name not in influence.model.driven]
    other = ~np.eye(len(world.entities), dtype=bool)
    given: dict[str, dict[str, Any]] = {
        "random actions": {},
        "action taken": {"action": test["action"]},
        "outcome": {"action": test["action"], "next_obs": test["next_obs"]},
    }
    found = {}
    for name, known in given.items():
        decided = np.asarray(influence.decide_graph(test["obs"], false_discovery_rate=RATE, **known).values)
        found[f"between entities, {name}"] = judge(decided[:, 1:][:, other], moved[:, other])
    found["action on objects"] = judge(decided[:, 0, objects], acted[:, objects])
    return found


def judge(decided: Any, label: Any) -> dict[str, float]:
    """Share of false decisions, share of the true labels that are found, and how many were decided."""
    right = int((decided & label).sum())
    return {"decided": int(decided.sum()), "false": 1 - right / max(1, decided.sum()), "found": right / label.sum()}


def main(out: Path) -> None:
    """Measure all tasks; print a table of Markdown."""
    found = {task: measure(task) for task in LABEL}
    write_json(out, {"rate": RATE, "versions": versions("cpu"), "tasks": found})
    print(f"| promised {RATE:.0%} | " + " | ".join(found) + " |\n|" + "---|" * (1 + len(found)))
    for kind in next(iter(found.values())):
        cells = [f"{rows[kind]['false']:.0%} of {rows[kind]['decided']:,}; {rows[kind]['found']:.0%} found"
                 for rows in found.values()]  # fmt: skip
        print(f"| {kind} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
