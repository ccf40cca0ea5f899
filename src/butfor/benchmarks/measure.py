"""Measure one unit of the benchmark: fit a model with default settings, score the labelled states, judge the scores.

`run.py` starts this module as a program, in a process of its own, so that the peak memory is that of one fit. The
request arrives as JSON on stdin; the last line on stdout is the result as JSON.
"""

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from butfor.detection.thresholds import evaluate
from butfor.influence.influence import Influence
from butfor.runs.folder import versions
from butfor.runs.reading import read_arrays

Array = NDArray[Any]
Bool = NDArray[np.bool_]
OBJECT = "object"
TRUSTWORTHY = 0.95  # the AUC from which on a fit deserves to be trusted


@dataclass(frozen=True)
class Request:
    """One unit: which files to read, and what the columns of their observations are."""

    train: str
    """transitions to fit on: obs, action, next_obs, episode"""
    test: str
    """labelled states of other episodes: obs, label, moved, contact where it is known; action, next_obs, sampled"""
    size: int
    """transitions to fit on, at most: whole episodes"""
    seed: int
    object: list[int]
    hand_position: list[int] | None
    object_position: list[int] | None
    moves_from: float | None
    """distance that counts as a movement, if the object also moves by itself"""


def measure(request: Request) -> dict[str, Any]:
    """Fit, score and judge one unit; return its results as plain values."""
    train = read_arrays(request.train)
    test = read_arrays(request.test)
    rows = choose_episodes(train["episode"], request.size, request.seed)
    obs, action, next_obs = (train[name][rows] for name in ("obs", "action", "next_obs"))
    before = memory("VmRSS")
    began, used = time.perf_counter(), time.process_time()
    influence = Influence.fit(obs, action, next_obs, entities={OBJECT: request.object}, seed=request.seed)
    fit_seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - used
    peak = memory("VmHWM")
    began = time.perf_counter()
    scores = {"cai": np.asarray(influence.score(test["obs"])[OBJECT], np.float64)} | other_detectors(request, test)
    score_seconds = time.perf_counter() - began
    label = test["label"].astype(bool)
    detectors = {name: evaluate(score, label) for name, score in scores.items()}
    return {
        "transitions": len(rows),
        "states": len(label),
        "base_rate": float(label.mean()),
        "detectors": detectors,
        "moving": None
        if request.moves_from is None
        else evaluate_some(scores, label, test["moved"] > request.moves_from),
        "disagreement": compare_decisions(scores, detectors, label) if "distance" in scores else None,
        "diagnosis": judge_diagnosis(influence, test, detectors["cai"]["auc"]),
        "fit_seconds": fit_seconds,
        "fit_cpu_seconds": cpu_seconds,  # of all cores; on cores that are shared it says more than the time passed
        "score_seconds": score_seconds,
        "peak_memory": peak,  # MiB of the whole process up to the end of the fit
        "memory_before": before,  # MiB before the fit: Python, torch and the data
        "commit": versions("cpu")["commit"],  # of the source that this process imported
    }


def choose_episodes(episode: Array, size: int, seed: int) -> Array:
    """Return the rows of randomly chosen whole episodes, at most `size` rows.

    The episodes of a smaller size are among those of a larger one.

    Args:
        episode: the number of each row's episode [N].
        size: how many rows are wanted.
        seed: chooses the episodes.
    """
    numbers, lengths = np.unique(episode, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(numbers))
    chosen = numbers[order[np.cumsum(lengths[order]) <= size]]
    if not len(chosen):
        raise ValueError(f"size is {size}; the first chosen episode has {lengths[order[0]]} transitions. Give more.")
    return np.flatnonzero(np.isin(episode, chosen))


def other_detectors(request: Request, test: Mapping[str, Array]) -> dict[str, Array]:
    """Return the scores [N] of what needs no model: minus the distance, whether the object moved, contact."""
    scores = {}
    if request.hand_position is not None and request.object_position is not None:
        hand, object_ = (test["obs"][:, columns] for columns in (request.hand_position, request.object_position))
        scores["distance"] = -np.linalg.norm(hand.astype(np.float64) - object_, axis=1)
    for name in ("moved", "contact"):
        if name in test:
            scores[name] = test[name].astype(np.float64)
    return scores


def evaluate_some(scores: Mapping[str, Array], label: Bool, chosen: Bool) -> dict[str, Any] | None:
    """Evaluate CAI and the distance on some of the states; None if all labels are the same there."""
    if len(np.unique(label[chosen])) < 2:
        return None
    compared = {name: evaluate(scores[name][chosen], label[chosen]) for name in ("cai", "distance") if name in scores}
    return {"share": float(chosen.mean()), "base_rate": float(label[chosen].mean()), "detectors": compared}


def compare_decisions(
    scores: Mapping[str, Array], detectors: Mapping[str, Mapping[str, float]], label: Bool
) -> dict[str, Any]:
    """Count the states where CAI and the distance decide differently, each at its best F1, and who is right there."""
    cai, distance = (scores[name] >= detectors[name]["threshold"] for name in ("cai", "distance"))
    differ = cai != distance
    return {
        "share": float(differ.mean()),
        "states": int(differ.sum()),
        "cai_right": int((cai == label)[differ].sum()),  # elsewhere the distance is right
    }


def judge_diagnosis(influence: Influence, test: Mapping[str, Array], auc: float) -> dict[str, Any]:
    """Diagnose the fit with the held-out transitions whose actions were random, and judge the answer by the AUC."""
    random = test["sampled"].astype(bool)
    try:
        obs, action, next_obs, episode = (test[name][random] for name in ("obs", "action", "next_obs", "episode"))
        found = influence.diagnose(obs, action, next_obs, groups=episode)[OBJECT]
        trusted, sized = found.trusted, found.size_trusted
        problems = [finding.words for finding in found.findings if not finding.fine]
    except ValueError as error:  # a model so poor that it cannot be diagnosed is not trusted
        trusted = sized = False
        problems = [str(error)]
    right = trusted == (auc >= TRUSTWORTHY)
    return {"trusted": trusted, "size_trusted": sized, "right": right, "problems": problems}


def memory(name: str) -> float:
    """Return a memory figure of this process in MiB: VmRSS (now) or VmHWM (its peak).

    `resource.getrusage` would not do: its peak includes that of the process that started this one.
    """
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    print(json.dumps(measure(Request(**json.load(sys.stdin)))))
