"""How well trees that are trained on labels find who moves whom, beside the detectors, which see no labels:

butfor benchmark influence --tasks push-two stack-two --states 30000 --only-data --out FOLDER
python results/influence_ceiling.py FOLDER

Gradient-boosted trees of each edge learn from the labelled states of the second and third file of a task, and are
judged on those of the first: before the outcome (state, action), and given the outcome (and next state).
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier

from butfor.benchmarks.edges import LABEL, LEAST_RATE, judge_edges
from butfor.envs import facts_of
from butfor.runs.reading import read_arrays


def main(folder: Path) -> None:
    """Print average precision of all edges together and of each."""
    for task in ("push-two", "stack-two"):
        tested, *learned = (read_arrays(folder / "labels" / f"{task}-{number:04d}.npz") for number in range(3))
        facts: Any = facts_of(task)
        places = [list(columns)[: len(facts.agent_position)] for columns in facts.entities.values()]
        truth = tested["effect"] > LABEL[task]
        label = np.concatenate([part["effect"] for part in learned]) > LABEL[task]
        for outcome in (False, True):
            inputs = np.concatenate([describe(part, places, outcome) for part in learned])
            shown = describe(tested, places, outcome)
            scores = np.zeros(truth.shape)
            for source, target in np.argwhere(label.mean(0) >= LEAST_RATE / 3):
                trees = HistGradientBoostingClassifier(
                    max_iter=300, learning_rate=0.05, l2_regularization=1.0, random_state=0
                )
                trees.fit(inputs, label[:, source, target])
                scores[:, source, target] = trees.predict_proba(shown)[:, 1]
            judged = judge_edges(scores, truth)
            edges = ", ".join(f"{source} -> {target} {ap:.3f}" for source, target, ap in judged["edges"])
            when = "given the outcome" if outcome else "before the outcome"
            print(f"{task}, {when}: AP {judged['ap']:.3f}, AUC {judged['auc']:.3f}; {edges}")


def describe(data: dict[str, Any], places: list[list[int]], outcome: bool) -> Any:
    """State, action and where entities are relative to each other; with the outcome also after the step: [N, F]."""
    tables = [data["obs"], data["next_obs"]] if outcome else [data["obs"]]
    parts = [*tables, data["action"]]
    for table in tables:
        for place, one in enumerate(places):
            for other in places[:place]:
                between = table[:, one] - table[:, other]
                parts += [between, np.abs(between), np.linalg.norm(between, axis=1, keepdims=True)]
    if outcome:
        parts.append(data["next_obs"] - data["obs"])
    return np.concatenate(parts, axis=1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
