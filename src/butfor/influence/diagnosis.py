"""Can an entity's influence scores be trusted? Held-out checks of the model behind them, each with a sentence."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp
from scipy.stats import norm

Float = NDArray[np.float64]

FEWEST = 500  # held-out transitions
SMALLEST_VARIANCE = 1e-8  # of a baseline, in scaled units, so that a column that never varies has a likelihood
WITHIN = (0.683, 0.954)  # a Gaussian's share within one and two standard deviations
LOWEST_WITHIN = (0.55, 0.88)  # below, the variance is too small
LEVELS = tuple(round(0.05 * step, 2) for step in range(1, 20))  # of the reliability curve's central intervals
GROUPS = 10  # of states by their score
BINS = 10  # of each action dimension
LOW_SCORE = 0.1  # nats: where half of the states have less, nobody takes these for influenced
LITTLE = 0.5  # of the variance of the change that the predicted mean explains
STEEPER = "try a steeper network: model=butfor.models.dynamics.STEEP, or `butfor score --network steep`"
LOWEST_COVERAGE = 0.8  # share of the bins that hold at least a tenth of what uniform actions would put there


@dataclass(frozen=True)
class Finding:
    """One check: whether it is fine, and a sentence with the number, what it means and what to do."""

    fine: bool
    words: str


@dataclass(frozen=True)
class Diagnosis:
    """Held-out checks of the model of one entity; `words()` says them, `trusted` is whether all are fine."""

    transitions: int
    nll: float
    """negative log-likelihood of the held-out change, in nats"""
    nll_constant: float
    """the same of one Gaussian with the mean and variance of the change"""
    nll_still: float
    """the same of one Gaussian around no change"""
    r_squared: float
    """1 - squared error / squared error of the mean change"""
    error_ratio: float
    """squared error / squared error of "nothing changes" """
    within: list[list[float]]
    """share of the residuals within one and within two predicted standard deviations, for each dimension"""
    reliability: dict[str, list[float]]
    """levels of the central intervals, and the share realised in them"""
    rank: float
    """mean share of other actions that make what happened less likely than the taken one: 0.5 without influence"""
    rank_error: float
    """its standard error"""
    gain: float
    """mean of log p(s'|s,a) - log p(s'|s), in nats: how much knowing the action helps"""
    gain_error: float
    """its standard error"""
    gain_by_score: dict[str, list[float]]
    """score, gain with its standard error and rank with its own, in ten groups of states by rising score"""
    coverage: list[float]
    """share of the bins of each action dimension (discrete: of the actions) that are covered"""
    smallest_bin: list[float]
    """share of the transitions in the emptiest bin"""
    findings: list[Finding]

    @property
    def trusted(self) -> bool:
        """Whether no finding is a problem."""
        return all(finding.fine for finding in self.findings)

    def words(self) -> list[str]:
        """One sentence or two a finding, problems marked."""
        return [finding.words if finding.fine else f"A problem: {finding.words}" for finding in self.findings]

    def plain(self) -> dict[str, Any]:
        """All of it for JSON."""
        return asdict(self) | {"words": self.words(), "trusted": self.trusted}


def diagnose(
    target: ArrayLike,
    mean: ArrayLike,
    variance: ArrayLike,
    log_likelihood: ArrayLike,
    log_redrawn: ArrayLike,
    score: ArrayLike,
    action: ArrayLike,
    discrete: bool = False,
    drawn: ArrayLike | None = None,
    doubt: str | None = None,
    extreme: float = 0.0,
    steep: bool = False,
) -> Diagnosis:
    """Checks one entity's model on N held-out transitions.

    `target` [N, d] is the scaled change, `mean` and `variance` [N, d] its prediction for the taken action,
    `log_likelihood` [N] the log-density of the change under the taken action and `log_redrawn` [N, K] under K others of
    the same law, `score` [N] the CAI, `action` [N, A] the action within [-1, 1], or one-hot if `discrete`.
    `drawn` [N] is true where the action was drawn from that law (default: everywhere); only there can it be judged what
    the action tells. A `doubt` about that is a finding. p(s'|s) is the mean density over the taken action and the K
    others, so that knowing the action seems to help by no more than log(K + 1) nats, and on average not at all where it
    has no influence. With an `extreme` share of actions at their bounds, the data must hold such actions.
    No steeper network is advised where it is `steep`.
    """
    change, middle, spread = (_table(*pair) for pair in (("target", target), ("mean", mean), ("variance", variance)))
    likelihood, others = _column("log_likelihood", log_likelihood), _table("log_redrawn", log_redrawn)
    scores, taken = _column("score", score), _table("action", action)
    rows = {len(array) for array in (change, middle, spread, likelihood, others, scores, taken)}
    if len(rows) > 1 or not change.shape == middle.shape == spread.shape:
        shapes = f"{list(change.shape)}, {list(middle.shape)} and {list(spread.shape)}"
        raise ValueError(f"target, mean and variance have shapes {shapes}; all arrays must have the same rows.")
    if len(change) < GROUPS:
        raise ValueError(f"{len(change)} transitions are too few to diagnose a model; give at least {FEWEST}.")
    if not (spread > 0).all():
        raise ValueError(f"variance holds {spread.min()}; expected positive numbers only.")
    nll_constant, nll_still = (_constant_nll(change, center) for center in (change.mean(0), 0.0))
    error = float(np.square(change - middle).sum())
    r_squared = 1 - _ratio(error, float(np.square(change - change.mean(0)).sum()))
    error_ratio = _ratio(error, float(np.square(change).sum()))
    standardised = np.abs(change - middle) / np.sqrt(spread)
    within = [[float((column <= sigmas).mean()) for sigmas in (1, 2)] for column in standardised.T]
    realised = [float((standardised <= norm.ppf((1 + level) / 2)).mean()) for level in LEVELS]
    nll = float(-likelihood.mean())
    random = np.ones(len(change), dtype=bool) if drawn is None else np.asarray(drawn, dtype=bool)
    likelihood, others, scores = likelihood[random], others[random], scores[random]
    gains = likelihood - logsumexp(np.column_stack([likelihood, others]), axis=1) + math.log(1 + others.shape[1])
    ranks = (others < likelihood[:, None]).mean(1) + 0.5 * (others == likelihood[:, None]).mean(1)
    groups = np.array_split(np.argsort(scores, kind="stable"), GROUPS)  # equal sizes, rising score
    by_score = {
        "score": [float(scores[group].mean()) for group in groups],
        "gain": [float(gains[group].mean()) for group in groups],
        "error": [_standard_error(gains[group]) for group in groups],
        "rank": [float(ranks[group].mean()) for group in groups],
        "rank_error": [_standard_error(ranks[group]) for group in groups],
    }
    rank, rank_error = float(ranks.mean()), _standard_error(ranks)
    shares = _shares_of_bins(taken, discrete)
    coverage = [float((bins >= 0.1 / len(bins)).mean()) for bins in shares]
    smallest = [float(bins.min()) for bins in shares]
    findings = [
        _size(len(change)),
        _likelihood(nll, nll_constant, nll_still),
        _error(r_squared, error_ratio, steep),
        _calibration(within),
        _rank(rank, rank_error, by_score, steep),
        _promise(by_score, steep),
        *([_doubt(doubt)] if doubt else []),
        _coverage(coverage, smallest, discrete),
        *([_extremes(shares)] if extreme and not discrete else []),
    ]
    return Diagnosis(
        transitions=len(change),
        nll=nll,
        nll_constant=nll_constant,
        nll_still=nll_still,
        r_squared=r_squared,
        error_ratio=error_ratio,
        within=within,
        reliability={"levels": list(LEVELS), "realised": realised},
        rank=rank,
        rank_error=rank_error,
        gain=float(gains.mean()),
        gain_error=_standard_error(gains),
        gain_by_score=by_score,
        coverage=coverage,
        smallest_bin=smallest,
        findings=findings,
    )


def _size(transitions: int) -> Finding:
    if transitions >= FEWEST:
        return Finding(True, f"{transitions:,} held-out transitions were used.")
    return Finding(False, f"only {transitions} held-out transitions were used; give at least {FEWEST}.")


def _likelihood(nll: float, constant: float, still: float) -> Finding:
    numbers = f"(negative log-likelihood {nll:.2f}; one Gaussian for all {constant:.2f}, around no change {still:.2f})"
    if nll < min(constant, still):
        return Finding(True, f"The model predicts held-out changes better than a guess without a model {numbers}.")
    advice = "it has not learned this entity: give it more data or a longer fit, and check the entity's columns"
    return Finding(
        False, f"the model predicts held-out changes no better than a guess without a model {numbers}; {advice}."
    )


def _error(r_squared: float, ratio: float, steep: bool) -> Finding:
    numbers = f"R² {r_squared:.2f}; its squared error is {ratio:.2f} of that of “nothing changes”"
    if r_squared > LITTLE and ratio < 1:
        return Finding(True, f"The predicted mean explains the change ({numbers}).")
    if r_squared > 0 and ratio < 1:
        why = "where chance moves the entity that is all there is" + ("" if steep else f", else {STEEPER}")
        return Finding(True, f"The predicted mean explains little of the change ({numbers}); {why}.")
    advice = "give it more data, or more in which the entity moves" + ("" if steep else f", or {STEEPER}")
    return Finding(False, f"the predicted mean explains nothing of the change ({numbers}); {advice}.")


def _doubt(doubt: str) -> Finding:
    advice = "what they seem to tell may be the doing of the state: say by `sampled` which were drawn at random"
    return Finding(False, f"the actions do not look random ({doubt}); {advice}, or collect some.")


def _calibration(within: Sequence[list[float]]) -> Finding:
    """The dimension with the least share within its predicted deviation speaks for all."""
    one, two = (min(share[place] for share in within) for place in (0, 1))
    numbers = f"{one:.0%} of the residuals lie within one and {two:.0%} within two predicted standard deviations"
    expected = f"a Gaussian has {WITHIN[0]:.0%} and {WITHIN[1]:.0%}"
    small = [share[0] < LOWEST_WITHIN[0] and share[1] < WITHIN[1] for share in within]  # not where outcomes are few
    if any(small) or two < LOWEST_WITHIN[1]:
        advice = "so influence is overstated: give it more data, average more members, or raise min_variance"
        return Finding(False, f"the predicted variance is too small ({numbers}; {expected}), {advice}.")
    wide = "; it is on the wide side, which hides small influence" if one > 0.9 else ""
    return Finding(True, f"The predicted variance is large enough ({numbers}; {expected}{wide}).")


def _rank(rank: float, error: float, by_score: dict[str, list[float]], steep: bool) -> Finding:
    """The rank knows nothing of how sure the model is, so a few gross errors do not drown what the action tells."""
    top, top_error = by_score["rank"][-1], by_score["rank_error"][-1]
    numbers = (
        f"the taken action makes what happened likelier than {rank:.1%} ± {error:.1%} of other actions do, and than "
        f"{top:.1%} ± {top_error:.1%} in the tenth of the states with the highest score; without influence 50%"
    )
    if rank > 0.5 + 2 * error or top > 0.5 + 3 * top_error:
        return Finding(True, f"Knowing the action helps to predict ({numbers}).")
    few = "there are too few of them in which it does (collect more there)"
    advice = f"either it never matters in these data, or {few}" + ("" if steep else f", or {STEEPER}")
    return Finding(False, f"knowing the action does not help to predict ({numbers}); {advice}.")


def _promise(by_score: dict[str, list[float]], steep: bool) -> Finding:
    """CAI is the gain that the model expects; the held-out gain is what it gets, at the top and in the lower half."""
    promised, found, error = (by_score[name][-1] for name in ("score", "gain", "error"))
    numbers = f"{promised:.2f} nats expected, {found:.2f} ± {error:.2f} found on held-out transitions"
    advice = "trust the order of the scores rather than their size"
    if promised >= 0.05 and found + 3 * error < promised / 2:
        advice += ", or give it more data or more members"
        return Finding(False, f"the model is too sure of itself where the score is highest ({numbers}); {advice}.")
    score, gain, errors = (np.array(by_score[name][: GROUPS // 2]) for name in ("score", "gain", "error"))
    low, kept, unsure = score.mean(), gain.mean(), np.sqrt(np.square(errors).sum()) / len(errors)
    if is_empty_promise(low, kept, unsure):
        advice += ", or give it more members" if steep else f", or {STEEPER}"
        where = f"{low:.2f} nats expected in the lower half of the states, {kept:.2f} ± {unsure:.2f} found"
        return Finding(False, f"the lower scores say nothing ({where} on held-out transitions); {advice}.")
    return Finding(True, f"Where the score is highest, the action tells as much as the score says ({numbers}).")


def is_empty_promise(low: float, kept: float, unsure: float) -> bool:
    """Whether the lower half of the states has scores of `low` nats and held-out transitions, `unsure`, show `kept`."""
    return low >= LOW_SCORE and kept + 3 * unsure < low / 2


def _coverage(coverage: Sequence[float], smallest: Sequence[float], discrete: bool) -> Finding:
    parts = "the actions" if discrete else f"the {BINS} parts of each action dimension"
    numbers = (
        f"at least {min(coverage):.0%} of {parts} are covered, the rarest by {min(smallest):.1%} of the transitions"
    )
    if min(coverage) >= LOWEST_COVERAGE:
        return Finding(True, f"All kinds of actions were tried: {numbers}.")
    worst = [place for place, share in enumerate(coverage) if share < LOWEST_COVERAGE]
    where = "" if discrete else f" (dimension(s) {worst})"
    advice = "mix random actions into the collection"
    return Finding(
        False, f"not all kinds of actions were tried{where}: {numbers}; {advice}, or the model guesses there."
    )


def _extremes(shares: Sequence[Float]) -> Finding:
    """Whether the data show what actions at either bound do, which scores by extreme actions ask about."""
    rare = [place for place, bins in enumerate(shares) if min(bins[0], bins[-1]) < 0.1 / len(bins)]
    if not rare:
        return Finding(True, "Extreme actions, by which the scores ask, are in the data.")
    return Finding(
        False,
        f"the scores ask about extreme actions, and the data hold hardly any in dimension(s) {rare}: the model guesses "
        "there; collect some, or score without them (extreme=0).",
    )


def _constant_nll(change: Float, center: Float | float) -> float:
    """1/2 sum over dimensions of log(2 pi e v), v the mean square around the centre: the best constant variance."""
    variance = np.maximum(np.square(change - center).mean(0), SMALLEST_VARIANCE)
    squared = np.square(change - center).mean(0) / variance
    return float(0.5 * (squared + np.log(2 * math.pi * variance)).sum())


def _ratio(part: float, whole: float) -> float:
    """A share of a sum of squares; where the whole is nothing, 0 if the part is too, else 1."""
    if whole > 0:
        return part / whole
    return float(part > 0)


def _standard_error(values: Float) -> float:
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.inf


def _shares_of_bins(action: Float, discrete: bool) -> list[Float]:
    """The share of the transitions in each of the equal bins of each dimension, or of each discrete action."""
    if discrete:
        return [action.mean(0)]
    edges = np.linspace(-1, 1, BINS + 1)
    return [np.histogram(np.clip(column, -1, 1), edges)[0] / len(action) for column in action.T]


def _table(name: str, values: ArrayLike) -> Float:
    return _checked(name, values, 2, "[N, d]")


def _column(name: str, values: ArrayLike) -> Float:
    return _checked(name, values, 1, "[N]")


def _checked(name: str, values: ArrayLike, dimensions: int, expected: str) -> Float:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != dimensions or 0 in array.shape[1:]:
        raise ValueError(f"{name} has shape {list(array.shape)}; expected {expected}.")
    if not np.isfinite(array).all():
        row = int((~np.isfinite(array)).nonzero()[0][0])
        raise ValueError(f"{name} holds NaN or infinity, first in row {row}; remove it.")
    return array
