"""From scores to decisions: how well a score separates the states, where its threshold is put, and what that costs.

`evaluate` chooses the threshold with the best F1, which needs every label. The `decide_by_...` functions choose it so
that a promised share of false discoveries is kept, from states or actions that are known without labels of the states
to decide about.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, precision_recall_curve, roc_auc_score

from butfor.detection.detectors import OBJECT, only_seed
from butfor.influence import decisions
from butfor.influence.influence import Influence
from butfor.rollouts.episodes import Episodes

Array = NDArray[Any]
Rows = list[dict[str, Any]]
METRICS = ("auc", "ap", "f1")
RATES = (0.01, 0.05, 0.10)  # promised shares of false discoveries
SPLITS = 20  # random splits of the episodes into those to calibrate with and those to decide about
MOST_TRANSITIONS = 20_000  # transitions with random actions to calibrate with


def evaluate(score: Array, label: NDArray[np.bool_], share: float | None = None) -> dict[str, float]:
    """Measure how well a score separates influenced from free states.

    Args:
        score: one score per state [N].
        label: whether the action influences the object in that state [N].
        share: weight the states as if this share of them were influenced; average precision and F1 depend on it.

    Returns:
        `auc` (area under the ROC curve), `ap` (average precision), and the best `f1` with its `threshold`.
    """
    if label.all() or not label.any():
        raise ValueError(f"All {len(label)} states have the same label; evaluating a detector needs both kinds.")
    weight = None if share is None else np.where(label, share / label.mean(), (1 - share) / (1 - label.mean()))
    precision, recall, thresholds = precision_recall_curve(label, score, sample_weight=weight)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    best = int(np.argmax(f1[:-1]))  # the last point has no threshold
    return {
        "auc": float(roc_auc_score(label, score)),  # does not depend on the share
        "ap": float(average_precision_score(label, score, sample_weight=weight)),
        "f1": float(f1[best]),
        "threshold": float(thresholds[best]),
    }


def evaluate_seeds(scores: Array, episodes: Episodes, label: str = "exact", share: float | None = None) -> Rows:
    """`evaluate` for each seed's scores [S, N] of the real steps of some episodes."""
    truth = episodes.label[label][episodes.valid]
    return [evaluate(score, truth, share) for score in scores]


def summarize(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Mean and standard deviation over seeds of each metric."""
    values = {name: np.array([row[name] for row in rows]) for name in METRICS}
    return {name: {"mean": float(value.mean()), "std": float(value.std())} for name, value in values.items()}


def decide_by_free_states(scores: Array, episodes: Episodes, by_episode: bool) -> Rows:
    """Decide about half of the episodes by conformal p-values from the free states of the other half.

    CAI of the real steps [S, N] is given. `by_episode` counts the free states of one episode as one, since they are
    alike. Returns one row for each of `RATES`, as all `decide_by_...` functions do.
    """
    label = episodes.label["exact"][episodes.valid]
    groups = episodes.valid.nonzero()[0] if by_episode else np.arange(len(label))

    def call(seed: int, calibrating: Array, rate: float) -> Array | None:
        free = calibrating & ~label
        return _call_influenced(scores[seed, free], groups[free], scores[seed, ~calibrating], rate)

    method = "free states by episode" if by_episode else "free states"
    return _rows(method, call, _halves(episodes), label, len(scores))


def decide_by_other_agent(other_scores: Array, other: Episodes, scores: Array, episodes: Episodes) -> Rows:
    """Decide about all steps by the free states of another agent's episodes; scores [S, N] of both are given."""
    label = episodes.label["exact"][episodes.valid]
    free = ~other.label["exact"][other.valid]
    groups = other.valid.nonzero()[0][free]

    def call(seed: int, calibrating: Array, rate: float) -> Array | None:
        return _call_influenced(other_scores[seed, free], groups, scores[seed], rate)

    return _rows("free states of the validation set", call, [np.zeros(len(label), bool)], label, len(scores))


def decide_by_random_actions(influence: Influence, scores: Array, episodes: Episodes) -> Rows:
    """Decide about half of the episodes by a threshold from transitions of the other half with random actions.

    Once with transitions of one episode as alike, and once as if each were independent.
    """
    drawn = np.flatnonzero(episodes.sampled[episodes.valid])
    drawn = np.sort(np.random.default_rng(0).permutation(drawn)[:MOST_TRANSITIONS])
    transitions = [part[drawn] for part in episodes.transitions()]
    p_values = np.full(scores.shape, np.nan)
    for seed in range(len(scores)):
        calibrated = only_seed(influence, seed).calibrate(transitions=transitions)
        p_values[seed, drawn] = calibrated.calibration[OBJECT].p_values
    label = episodes.label["exact"][episodes.valid]
    rows = []
    for by_episode in (True, False):
        call = partial(_call_above, scores, p_values, episodes.valid.nonzero()[0] if by_episode else None)
        method = "random actions by episode" if by_episode else "random actions"
        rows += _rows(method, call, _halves(episodes), label, len(scores))
    return rows


def _call_above(
    scores: Array, p_values: Array, groups: Array | None, seed: int, calibrating: Array, rate: float
) -> Array:
    """Which of the other states have a score above the threshold of the calibrating ones; NaN: not known there."""
    known = calibrating & ~np.isnan(p_values[seed])
    threshold = None
    if known.any():
        episode = None if groups is None else groups[known]
        curve = decisions.false_discovery_curve(scores[seed, known], p_values[seed, known], episode)
        threshold = decisions.threshold_for(*curve, rate)
    called: Array = scores[seed, ~calibrating] >= (np.inf if threshold is None else threshold)
    return called


def _halves(episodes: Episodes) -> list[Array]:
    """For each split, which steps [N] belong to the half of the episodes to calibrate with."""
    episode = episodes.valid.nonzero()[0]
    generator = np.random.default_rng(0)
    return [(generator.permutation(len(episodes)) < len(episodes) // 2)[episode] for _ in range(SPLITS)]


def _call_influenced(free: Array, groups: Array, scores: Array, rate: float) -> Array | None:
    """Which states [N] have significant conformal p-values; None if too few free states are known to keep the rate."""
    if not len(free) or decisions.Calibration(free, None, groups).smallest > rate:
        return None
    return decisions.reject(decisions.conformal_p_values(free, scores, groups), rate)


def _outcome(called: Array | None, label: Array) -> tuple[float, float, float]:
    """Share of the called that are free, of the influenced that were called, and of all called; NaN for None."""
    if called is None:
        return np.nan, np.nan, np.nan
    wrong = float((called & ~label).sum() / max(called.sum(), 1))
    found = float((called & label).sum() / max(label.sum(), 1))
    return wrong, found, float(called.mean())


def _rows(
    method: str, call: Callable[[int, Array, float], Array | None], splits: list[Array], label: Array, seeds: int
) -> Rows:
    """A row for each of `RATES`: means over splits and seeds; `realised` is None if the rate cannot be promised.

    `call(seed, calibrating, rate)` decides about the steps that are not `calibrating` [N], which is one of `splits`.
    """
    rows = []
    for rate in RATES:
        outcomes = [[_outcome(call(seed, split, rate), label[~split]) for seed in range(seeds)] for split in splits]
        table = np.array(outcomes)  # [splits, seeds, 3]
        promised = not np.isnan(table).any()
        realised, found, called = table.mean((0, 1)).tolist() if promised else (None, 0.0, 0.0)
        spread = float(table[..., 0].mean(0).std()) if promised else 0.0
        row = {"method": method, "target": rate, "realised": realised, "realised_std": spread}
        rows.append(row | {"found": found, "rejected": called, "seeds": seeds})
    return rows
