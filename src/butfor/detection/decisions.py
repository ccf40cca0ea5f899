"""The study of decisions: the promised and the realised share of false discoveries, by every way to calibrate."""

from typing import Any

import numpy as np

from butfor.detection import detectors as detect
from butfor.detection.questions import Array, Case, is_fetch, member
from butfor.influence import decisions
from butfor.influence.influence import Influence
from butfor.rollouts.episodes import Episodes

RATES = (0.01, 0.05, 0.10)  # of false discoveries
SPLITS = 20  # into states to calibrate with and states to decide about
MOST_TRANSITIONS = 20_000  # to rank the taken action in


def study_decisions(case: Case) -> dict[str, Any]:
    """The promised and the realised share of false discoveries, on every set and by every way to calibrate."""
    sets = dict(case.sets)
    for policy in ("random", "noisy-expert", "expert"):
        if policy not in sets and case.extra_episodes:
            sets[policy] = case.data.episodes(policy, case.extra_episodes)
    other = case.validation if "exact" in case.validation.label else None
    rows: list[dict[str, Any]] = []
    for place, (name, episodes) in enumerate(sets.items()):
        case.progress("decisions", place, len(sets), name)
        scores = case.cai(name, episodes)
        for together in (True, False):
            rows += [row | {"set": name} for row in _by_free_states(scores, episodes, together)]
        if name == "test" and other is not None:
            foreign = detect.cai(case.influence, "object")(other)
            is_free = ~other.label["exact"][other.valid]
            groups = other.valid.nonzero()[0][is_free]
            found = _by_foreign_states(foreign[:, is_free], groups, scores, episodes)
            rows += [row | {"set": name} for row in found]
        # where the policy of slide is random depends on the state, unless it always is
        drawn = episodes.sampled[episodes.valid]
        if drawn.all() or (is_fetch(episodes.observation) and drawn.mean() > 0.01):
            rows += [row | {"set": name} for row in _by_random_actions(case.influence, scores, episodes)]
    case.progress("decisions", len(sets), len(sets), "done")
    return {"targets": list(RATES), "splits": SPLITS, "rows": rows}


def _halves(episodes: Episodes) -> list[Array]:
    """For each split, which states [N] belong to the episodes to calibrate with."""
    episode = episodes.valid.nonzero()[0]
    generator = np.random.default_rng(0)
    chosen = [generator.permutation(len(episodes)) < len(episodes) // 2 for _ in range(SPLITS)]
    return [half[episode] for half in chosen]


def _by_free_states(scores: Array, episodes: Episodes, together: bool) -> list[dict[str, Any]]:
    """Conformal p-values from the free states of one half of the episodes, decisions about the other half.

    `together`: those of one episode count as one.
    """
    label, episode = episodes.label["exact"][episodes.valid], episodes.valid.nonzero()[0]
    table = []
    for rate in RATES:
        results = []
        for calibrating in _halves(episodes):
            for score in scores:
                free, rest = calibrating & ~label, ~calibrating
                groups = episode[free] if together else np.arange(free.sum())
                results.append(_outcome(_called(score[free], groups, score[rest], rate), label[rest]))
        table.append(_row("free states by episode" if together else "free states", rate, results, len(scores)))
    return table


def _by_foreign_states(free: Array, groups: Array, scores: Array, episodes: Episodes) -> list[dict[str, Any]]:
    """The same with the free states of another agent's episodes: [S, n], and the episode of each [n]."""
    label = episodes.label["exact"][episodes.valid]
    table = []
    for rate in RATES:
        pairs = zip(free, scores, strict=True)
        called = [_called(known, groups, score, rate) for known, score in pairs]
        table.append(
            _row("free states of the validation set", rate, [_outcome(one, label) for one in called], len(scores))
        )
    return table


def _called(free: Array, groups: Array, scores: Array, rate: float) -> Array | None:
    """Which states [N] are called influenced by conformal p-values; None where too few free states are known."""
    if not len(free) or decisions.Calibration(free, None, groups).smallest > rate:
        return None
    return decisions.reject(decisions.conformal_p_values(free, scores, groups), rate)


def _by_random_actions(influence: Influence, scores: Array, episodes: Episodes) -> list[dict[str, Any]]:
    """A threshold from transitions with random actions of one half, decisions about all states of the other half."""
    label, drawn = episodes.label["exact"][episodes.valid], np.flatnonzero(episodes.sampled[episodes.valid])
    drawn = np.sort(np.random.default_rng(0).permutation(drawn)[:MOST_TRANSITIONS])
    transitions = [part[drawn] for part in episodes.transitions()]
    ranked = np.zeros(scores.shape)
    for seed in range(len(scores)):
        calibration = member(influence, seed).calibrate(transitions=transitions).calibration["object"]
        assert calibration.p_values is not None
        ranked[seed, drawn] = calibration.p_values
    is_drawn = np.isin(np.arange(len(label)), drawn)
    table = []
    for rate in RATES:
        results = []
        for calibrating in _halves(episodes):
            for score, p_values in zip(scores, ranked, strict=True):
                known, rest = calibrating & is_drawn, ~calibrating
                threshold = None
                if known.any():
                    curve = decisions.false_discovery_curve(score[known], p_values[known])
                    threshold = decisions.threshold_for(*curve, rate)
                called = np.zeros(rest.sum(), dtype=bool) if threshold is None else score[rest] >= threshold
                results.append(_outcome(called, label[rest]))
        table.append(_row("random actions", rate, results, len(scores)))
    return table


def _outcome(called: Array | None, label: Array) -> tuple[float, float, float]:
    """Share of the called that are free, share of the influenced that were called, share called; NaN if refused."""
    if called is None:
        return np.nan, np.nan, np.nan
    wrong = float((called & ~label).sum() / max(called.sum(), 1))
    return wrong, float((called & label).sum() / max(label.sum(), 1)), float(called.mean())


def _row(method: str, rate: float, results: list[tuple[float, float, float]], seeds: int) -> dict[str, Any]:
    """Means over splits and seeds; the spread is that over the seeds. None is realised where none can be promised."""
    table = np.array(results).reshape(-1, seeds, 3)
    realised, found, called = table.mean((0, 1)).tolist() if not np.isnan(table).any() else (None, 0.0, 0.0)
    spread = 0.0 if realised is None else float(table[..., 0].mean(0).std())
    return {"method": method, "target": rate, "realised": realised, "realised_std": spread, "found": found,
            "rejected": called, "seeds": seeds}  # fmt: skip
