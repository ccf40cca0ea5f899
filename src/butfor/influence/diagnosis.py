"""Can an entity's scores be trusted? Checks of the model on held-out transitions, each reported in a sentence."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import norm, rankdata
from scipy.stats import t as student

from butfor.influence.display import diagnosis_html, diagnosis_text, verdict

Float = NDArray[np.floating[Any]]

FEWEST = 500  # held-out transitions
SMALLEST_VARIANCE = 1e-8  # of a baseline, in scaled units, so that a column that never varies has a likelihood
WITHIN = (0.683, 0.954)  # a Gaussian's share within one and two standard deviations
LOWEST_WITHIN = (0.55, 0.88)  # below these, the variance is too small
OUTLIERS = 0.01  # share of the transitions that the likelihood may fail to describe
LEVELS = tuple(round(0.05 * step, 2) for step in range(1, 20))  # of the reliability curve's central intervals
GROUPS = 10  # of states by their score
BINS = 10  # of each action dimension
FALSE_ALARMS = 0.01  # largest chance that a right model is called overconfident, over all groups and the whole
REDRAWS = 1_999  # of the taken actions of all states, to see what chance would give
SHARPNESS = (1.0, 0.5, 0.25)  # factors of the log-likelihoods: a model that is too sure is also tried less sure
CHUNK = 256  # states that are redrawn at a time
TINY = 1e-12  # a variance: what never varies shows nothing
KEPT = 0.5  # share of the promised gain that must be found
SLACK = 0.05  # nats: a smaller shortfall does not matter
LITTLE = 0.5  # share of the variance of the change that the predicted mean explains
STEEPER = "try a steeper network: model=butfor.models.dynamics.STEEP, or `butfor score --network steep`"
MOVES = 0.05  # of the largest change of a column: a larger one counts as a move
FEW_MOVES = 0.03  # share of the transitions with a move, below which little can be learned from them
RARE = 0.03  # share of the states in which the action matters, below which little can be learned from them
MATTERS = 0.1  # nats: a score from which on the action matters
LOWEST_COVERAGE = 0.8  # share of the bins with at least a tenth of what uniform actions would put there


@dataclass(frozen=True)
class Finding:
    """One check: whether it passed, and a sentence with the numbers, what they mean and what to do."""

    fine: bool
    words: str
    size_only: bool = False  # it is about the size of the scores; if it fails, their order can still be right


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """Held-out checks of the model of one entity, which `words()` reports.

    `trusted` is about the order of the scores, which is all that ranking, priorities and decisions need.
    `size_trusted` is also about their size in nats.
    """

    transitions: int
    nll: float  # negative log-likelihood of the held-out change, in nats
    nll_constant: float  # the same for one Gaussian with the mean and variance of the change
    nll_still: float  # the same for one Gaussian around no change
    skill: float  # nats by which the model, mixed with OUTLIERS of that one Gaussian, is better than the Gaussian alone
    r_squared: float  # 1 - squared error / squared error of the mean change
    error_ratio: float  # squared error / squared error of "nothing changes"
    within: list[list[float]]  # for each dimension, share of the residuals within 1 and 2 predicted deviations
    reliability: dict[str, list[float]]  # levels of the central intervals, and the share of the residuals in them
    noise: float  # factor of the predicted variance with which the ranks below are computed: 1 unless it is too small
    rank: float  # mean share of other actions that make what happened less likely: 0.5 without influence
    rank_error: float  # its standard error
    weighted_rank: float  # the same with each state weighted by its score
    weighted_rank_error: float
    promised_rank: float  # the weighted rank that the model itself expects
    rise: float  # weighted rank minus rank: above 0 if the action helps more where scores are higher
    rise_error: float
    bounded_gain: float  # mean of log((1 + p(s'|s,a) / p(s'|s)) / 2), in nats: at least -log 2 in each state
    chance: float  # of as much evidence that the action helps, if it were one of the redrawn ones
    gain: float  # mean of log p(s'|s,a) - log p(s'|s), in nats: how much knowing the action helps
    gain_error: float  # its standard error
    promise: float  # mean of the gain that the model itself expects
    gain_by_score: dict[str, list[float]]  # score, promise, gain, rank, standard errors, in tenths by rising score
    coverage: list[float]  # share of the bins of each action dimension (discrete: of the actions) that are covered
    smallest_bin: list[float]  # share of the transitions in the emptiest bin
    findings: list[Finding]
    notes: list[str] = field(default_factory=list)  # worth knowing, but not problems

    @property
    def trusted(self) -> bool:
        """Whether the order of the scores can be trusted: all checks passed that are not about their size only."""
        return all(finding.fine or finding.size_only for finding in self.findings)

    @property
    def size_trusted(self) -> bool:
        """Whether the order of the scores and their size in nats can be trusted: all checks passed."""
        return all(finding.fine for finding in self.findings)

    def words(self) -> list[str]:
        """One or two sentences per check, then the notes; problems begin with "A problem:" or "A problem of size:"."""
        prefixes = {True: "A problem of size: ", False: "A problem: "}
        checks = [("" if one.fine else prefixes[one.size_only]) + one.words for one in self.findings]
        return [*checks, *self.notes]

    def __repr__(self) -> str:
        return diagnosis_text(self)

    def _repr_html_(self) -> str:
        return diagnosis_html(self)

    def plain(self) -> dict[str, Any]:
        """Everything as plain values for JSON."""
        judged = {"trusted": self.trusted, "size_trusted": self.size_trusted, "verdict": verdict(self)}
        return asdict(self) | judged | {"words": self.words()}


class Diagnoses(dict[str, Diagnosis]):
    """The diagnosis of each entity, printed as a verdict, a small table and the problems found."""

    def __repr__(self) -> str:
        return "\n".join(diagnosis_text(found, name) for name, found in self.items())

    def _repr_html_(self) -> str:
        return "".join(diagnosis_html(found, name) for name, found in self.items())


def check_marks(sampled: Any, groups: Any, rows: int) -> tuple[NDArray[np.bool_], NDArray[Any] | None]:
    """A user's marks of random actions (default: all) and of episodes, as arrays [N]."""
    drawn = np.ones(rows, dtype=bool) if sampled is None else np.asarray(sampled).astype(bool)
    if drawn.shape != (rows,):
        raise ValueError(f"sampled has shape {list(drawn.shape)}; expected [{rows}].")
    if sampled is not None and drawn.sum() < GROUPS:
        raise ValueError(
            f"sampled is true in {drawn.sum()} of {rows} rows; at least {GROUPS} are needed, better {FEWEST}."
        )
    episodes = None if groups is None else np.asarray(groups)
    if episodes is not None and episodes.shape != (rows,):
        raise ValueError(f"groups has shape {list(episodes.shape)}; expected [{rows}].")
    return drawn, episodes


class AtNoise(NamedTuple):
    """What a network says once its variance is multiplied by a factor, which `find_noise` finds."""

    noise: float
    log_likelihood: Float
    log_redrawn: Float
    promised_rank: Float


def diagnose_entity(
    target: Float,
    mean: Float,
    variance: Float,
    log_likelihood: Float,
    log_redrawn: Float,
    promise: Float,
    promised_rank: Float,
    score: Float,
    action: Float,
    discrete: bool = False,
    drawn: NDArray[np.bool_] | None = None,
    episodes: NDArray[Any] | None = None,
    doubt: str | None = None,
    extreme: float = 0.0,
    steep: bool = False,
    at_noise: AtNoise | None = None,
) -> Diagnosis:
    """Check one entity's model on N held-out transitions.

    `target` [N, d] is the scaled change, `mean` and `variance` [N, d] its prediction for the taken action.
    `log_likelihood` [N] is its log-density under the taken action, `log_redrawn` [N, K] under K others of the same law.
    p(s'|s) is the mean density over all of them, so the gain is at most log(K + 1), and 0 on average without influence.
    `promise` [N] and `promised_rank` [N] are the gain and the rank that the model itself expects
    (`scoring.promised_effect`).
    `score` [N] is the CAI, `action` [N, A] the taken action in [-1, 1], or one-hot if `discrete`. `drawn` [N] is where
    it was drawn from the law, which is where its effect is judged (default: everywhere); a `doubt` about that is
    reported. Rows of one of the `episodes` [N] are not independent; without these, each row is. Scores with an
    `extreme` share need extreme actions in the data. A `steep` network gets no advice to try one.

    A network may be far too certain and still know where the action matters: the order of its scores is then judged
    `at_noise`.
    """
    target, mean, variance, log_likelihood, log_redrawn, promise, promised_rank, score, action = (
        np.asarray(part, dtype=np.float64)
        for part in (target, mean, variance, log_likelihood, log_redrawn, promise, promised_rank, score, action)
    )
    if len(target) < GROUPS:
        raise ValueError(f"{len(target)} transitions are too few to diagnose a model; give at least {FEWEST}.")
    lost = np.flatnonzero(~np.isfinite(np.column_stack([log_likelihood, log_redrawn])).all(1))
    if len(lost):
        raise ValueError(
            f"{len(lost)} transition(s) have no finite likelihood, first row {lost[0]}: they are too far from what the "
            "model was fitted on. Remove such outliers."
        )
    squared_error = float(np.square(target - mean).sum())
    residual = np.abs(target - mean) / np.sqrt(variance)
    chosen = np.ones(len(target), dtype=bool) if drawn is None else drawn
    taken, others, expected = log_likelihood[chosen], log_redrawn[chosen], promised_rank[chosen]
    gains = taken - logsumexp(np.column_stack([taken, others]), axis=1) + math.log(1 + others.shape[1])
    if at_noise is not None:  # what follows about the order is judged with it
        taken, others, expected = (np.asarray(part, dtype=np.float64)[chosen] for part in at_noise[1:])
    ranks = (others < taken[:, None]).mean(1) + 0.5 * (others == taken[:, None]).mean(1)
    clusters = np.unique(np.arange(len(target)) if episodes is None else episodes, return_inverse=True)[1][chosen]
    groups = np.array_split(np.argsort(score[chosen], kind="stable"), GROUPS)
    weights = score[chosen] / score[chosen].mean() if score[chosen].any() else np.ones(len(ranks))
    weighted_rank = 0.5 + float((weights * (ranks - 0.5)).mean())
    shares = _shares_of_bins(action, discrete)
    found = Diagnosis(
        transitions=len(target),
        nll=float(-log_likelihood.mean()),
        nll_constant=_constant_nll(target, target.mean(0)),
        nll_still=_constant_nll(target, 0.0),
        skill=_skill(target, log_likelihood),
        r_squared=1 - _ratio(squared_error, float(np.square(target - target.mean(0)).sum())),
        error_ratio=_ratio(squared_error, float(np.square(target).sum())),
        within=[[float((column <= sigmas).mean()) for sigmas in (1, 2)] for column in residual.T],
        reliability={
            "levels": list(LEVELS),
            "realised": [float((residual <= norm.ppf((1 + level) / 2)).mean()) for level in LEVELS],
        },
        noise=1.0 if at_noise is None else at_noise.noise,
        rank=float(ranks.mean()),
        rank_error=_standard_error(ranks, clusters),
        weighted_rank=weighted_rank,
        weighted_rank_error=_weighted_error(weights, ranks - weighted_rank, clusters, others.shape[1]),
        promised_rank=0.5 + float((weights * (expected - 0.5)).mean()),
        rise=weighted_rank - float(ranks.mean()),
        rise_error=_weighted_error(weights - 1, ranks - ranks.mean(), clusters, others.shape[1]),
        bounded_gain=float(np.logaddexp(0, gains).mean() - math.log(2)),
        chance=chance_of_evidence(taken, others, weights),
        gain=float(gains.mean()),
        gain_error=_standard_error(gains, clusters),
        promise=float(promise[chosen].mean()),
        gain_by_score={
            "score": [float(score[chosen][group].mean()) for group in groups],
            "promise": [float(promise[chosen][group].mean()) for group in groups],
            "gain": [float(gains[group].mean()) for group in groups],
            "error": [_standard_error(gains[group], clusters[group]) for group in groups],
            "rank": [float(ranks[group].mean()) for group in groups],
            "rank_error": [_standard_error(ranks[group], clusters[group]) for group in groups],
        },
        coverage=[float((bins >= 0.1 / len(bins)).mean()) for bins in shares],
        smallest_bin=[float(bins.min()) for bins in shares],
        findings=[],
    )
    advice = "" if steep else STEEPER
    found.findings.extend([_check_size(found), _check_likelihood(found), _check_error(found, advice)])
    broken = find_broken_promises(gains, promise[chosen], groups, clusters)
    kept = ranks - 0.5 - KEPT * (expected - 0.5)  # at least 0 on average if the share that must be found is found
    kept_error = _weighted_error(weights, kept - (weights * kept).mean(), clusters, others.shape[1])
    deviations = _deviations(weights, clusters)
    confirmed = float((weights * kept).mean()) >= -deviations * kept_error
    found.findings.extend([_check_variance(found.within), _check_rank(found, advice)])
    found.findings.extend(
        [_check_order(found, confirmed, bool(broken), deviations), _check_promise(found, broken, advice)]
    )
    if doubt:
        why = "their effect may be that of the state. Mark the random ones with `sampled`, or collect some"
        found.findings.append(Finding(False, f"the actions do not look random ({doubt}), so {why}."))
    found.findings.append(_check_coverage(found, discrete))
    if extreme and not discrete:
        found.findings.append(_check_extremes(shares))
    found.notes.extend(_note_rare_moves(target) or _note_rare_influence(score))
    found.notes.extend(_note_influence_everywhere(found))
    found.notes.extend([] if broken else _note_size(found))
    return found


def find_noise(target: Float, mean: Float, variance: Float, score: Float) -> float:
    """By how much the variance is too small where scores are high: a factor of at least 1.

    With it, the usual share of the residuals lies within one predicted standard deviation: [N, d], and scores [N].
    """
    squared = np.square(target - mean) / variance
    weights = np.repeat(score if score.any() else np.ones(len(score)), squared.shape[1])
    place = np.argsort(squared, axis=None)
    below = np.cumsum(weights[place])
    return max(1.0, float(squared.ravel()[place][np.searchsorted(below, WITHIN[0] * below[-1])]))


def _note_rare_moves(target: Float) -> list[str]:
    """A sentence where the entity rests nearly always [N, d]: most models do not learn what moves it."""
    moved = int((np.abs(target) > MOVES * np.abs(target).max(0)).any(1).sum())
    if not 0 < moved < FEW_MOVES * len(target):
        return []
    share = f"{moved / len(target):.1%} of the transitions ({moved:,} of {len(target):,})"
    return [
        f"The entity moves noticeably in only {share}. So few can hardly be learned from: states in which the action "
        "matters may have low scores. Collect more transitions in which the entity moves."
    ]


def _note_rare_influence(score: Float) -> list[str]:
    """A sentence where the action matters in hardly any state [N]: these are learned from few examples."""
    count = int((score >= MATTERS).sum())
    if count >= RARE * len(score):
        return []
    return [
        f"Only {count / len(score):.1%} of the states have a score of {MATTERS:g} nats or more. So few can hardly be "
        "learned from: others may be missed, and some of these may be wrong. Collect more in which the action matters."
    ]


def _note_influence_everywhere(found: Diagnosis) -> list[str]:
    """A sentence where the action matters in all states, so that scores do not tell where it does."""
    score, rank, error = (found.gain_by_score[name][0] for name in ("score", "rank", "rank_error"))
    if score < MATTERS or rank < 0.5 + norm.isf(FALSE_ALARMS) * error:
        return []
    return [
        f"The action matters in all states, also in the tenth with the lowest scores ({score:.2f} nats, and it makes "
        f"what happened more likely than {rank:.0%} ± {error:.0%} of others do). The scores show how much, not where."
    ]


def _note_size(found: Diagnosis) -> list[str]:
    """A sentence where the highest scores show less than they promise, though not clearly too little."""
    promise, gain, error = (found.gain_by_score[name][-1] for name in ("promise", "gain", "error"))
    if gain + 2 * error >= promise:
        return []
    return [
        "Trust the order of the scores more than their size: where they are highest, knowing the action should be "
        f"worth {promise:.2f} nats, and {gain:.2f} ± {error:.2f} are found."
    ]


def _check_size(found: Diagnosis) -> Finding:
    if found.transitions >= FEWEST:
        return Finding(True, f"{found.transitions:,} held-out transitions were used.")
    return Finding(False, f"only {found.transitions} held-out transitions were used; give at least {FEWEST}.")


def _check_likelihood(found: Diagnosis) -> Finding:
    baselines = f"one Gaussian for all {found.nll_constant:.2f}, around no change {found.nll_still:.2f}"
    without = (
        f"with {OUTLIERS:.0%} of outliers it is {abs(found.skill):.2f} nats {'better' if found.skill > 0 else 'worse'}"
    )
    numbers = f"(negative log-likelihood {found.nll:.2f}; {baselines}; {without} than one Gaussian)"
    if found.skill > 0:
        return Finding(True, f"The model predicts held-out changes better than a constant guess {numbers}.", True)
    advice = "Give more data or a longer fit, and check the entity's columns"
    words = f"the model predicts held-out changes no better than a constant guess {numbers}. {advice}."
    return Finding(False, words, size_only=True)


def _check_error(found: Diagnosis, steeper: str) -> Finding:
    numbers = f"R² {found.r_squared:.2f}; its squared error is {found.error_ratio:.2f} of that of “nothing changes”"
    if found.r_squared > LITTLE and found.error_ratio < 1:
        return Finding(True, f"The predicted mean explains the change ({numbers}).", size_only=True)
    if found.r_squared > 0 and found.error_ratio < 1:
        why = "This is expected where chance moves the entity" + (f"; otherwise {steeper}" if steeper else "")
        return Finding(True, f"The predicted mean explains little of the change ({numbers}). {why}.", size_only=True)
    advice = "Give more data, or more in which the entity moves" + (f", or {steeper}" if steeper else "")
    return Finding(False, f"the predicted mean explains nothing of the change ({numbers}). {advice}.", size_only=True)


def _check_variance(within: Sequence[list[float]]) -> Finding:
    """The dimension with the smallest share within its predicted deviation decides."""
    one, two = (min(share[place] for share in within) for place in (0, 1))
    numbers = f"{one:.0%} of the residuals lie within one and {two:.0%} within two predicted standard deviations"
    expected = f"a Gaussian has {WITHIN[0]:.0%} and {WITHIN[1]:.0%}"
    # a small share within one deviation is normal where only few outcomes are possible: then all lie within two
    too_small = [share[0] < LOWEST_WITHIN[0] and share[1] < WITHIN[1] for share in within]
    if any(too_small) or two < LOWEST_WITHIN[1]:
        advice = "so influence is overestimated. Give more data, use more members, or raise min_variance"
        words = f"the predicted variance is too small ({numbers}; {expected}), {advice}."
        return Finding(False, words, size_only=True)
    wide = "; it is rather large, which hides small influence" if one > 0.9 else ""
    return Finding(True, f"The predicted variance is large enough ({numbers}; {expected}{wide}).", size_only=True)


def _check_rank(found: Diagnosis, steeper: str) -> Finding:
    """Ranks and bounded gains change little with how certain the model is: a few large errors do not hide an effect."""
    numbers = (
        f"the taken action makes what happened more likely than {found.rank:.1%} ± {found.rank_error:.1%} of other "
        f"actions do, and with states weighted by their score than {found.weighted_rank:.1%} ± "
        f"{found.weighted_rank_error:.1%}; without influence 50%; its bounded gain is {found.bounded_gain:.3f} nats; "
        f"with other actions instead all this is as large with a chance of {found.chance:.2g}"
    )
    if found.chance <= FALSE_ALARMS:
        return Finding(True, f"Knowing the action helps to predict ({numbers}).")
    advice = "Either it never matters in these data, or too few states are included in which it does (collect more)"
    advice += f"; or {steeper}" if steeper else ""
    return Finding(False, f"knowing the action does not help to predict ({numbers}). {advice}.")


def _check_order(found: Diagnosis, confirmed: bool, broken: bool, deviations: float) -> Finding:
    """Does the action help where scores are high, and more than elsewhere?

    Ranks are compared, which a variance that is too small hardly changes. Scores whose size held-out transitions do
    not contradict have the right order as well. If they do (`broken`), the order must be shown by itself.
    `confirmed` is false if the weighted rank clearly exceeds 1/2 by less than the share KEPT of what is expected.
    A rise is clear from so many `deviations` on.
    """
    numbers = (
        f"with states weighted by their score the taken action makes what happened more likely than "
        f"{found.weighted_rank:.1%} ± {found.weighted_rank_error:.1%} of other actions do, where the model expects "
        f"{found.promised_rank:.1%}; that is {abs(found.rise):.1%} ± {found.rise_error:.1%} "
        f"{'more' if found.rise >= 0 else 'less'} than over all states alike"
    )
    if found.noise > 1:
        numbers += f"; all this with {found.noise:.1f} times the predicted variance, as the residuals show"
    advice = "Do not rank states by these scores; give more data"
    border = deviations * found.rise_error
    if not confirmed:
        return Finding(False, f"scores are high where the action does not matter ({numbers}). {advice}.")
    if found.rise < -border:
        return Finding(False, f"the action helps less where scores are higher ({numbers}). {advice}.")
    if broken and found.rise <= border:
        words = f"the size of the scores is contradicted, and their order is not shown ({numbers}). {advice}."
        return Finding(False, words)
    shown = "The action helps more where scores are higher" if found.rise > border else "Nothing contradicts the order"
    return Finding(True, f"{shown} ({numbers}).")


def _check_promise(found: Diagnosis, broken: Sequence[int], steeper: str) -> Finding:
    """CAI is the gain that the model expects: compare it with the held-out gain, in each tenth and over all."""
    groups = found.gain_by_score
    promise, gain, error = (groups[name][-1] for name in ("promise", "gain", "error"))
    whole = f"over all states {found.promise:.2f} nats expected, {found.gain:.2f} ± {found.gain_error:.2f} found"
    top = f"where the score is highest {promise:.2f} expected, {gain:.2f} ± {error:.2f} found"
    if not broken:
        words = f"Held-out transitions do not contradict the size of the scores ({whole}; {top})."
        return Finding(True, words, size_only=True)
    tenths = [place for place in broken if place < GROUPS]
    parts = [f"{len(tenths)} of {GROUPS} groups of states by score"] if tenths else []
    parts += ["all states together"] if len(broken) > len(tenths) else []
    listed = "; ".join(
        f"score {groups['score'][place]:.2f}: {groups['promise'][place]:.2f} expected, "
        f"{groups['gain'][place]:.2f} ± {groups['error'][place]:.2f} found"
        for place in tenths
    )
    advice = "Give more data or more members"
    if steeper and any(place < GROUPS // 2 for place in tenths):
        advice += f", or {steeper}"
    numbers = whole + (f"; {listed}" if listed else "")
    words = f"held-out transitions contradict the size of the scores in {' and in '.join(parts)} ({numbers}). {advice}."
    return Finding(False, words, size_only=True)


def chance_of_evidence(taken: Float, others: Float, weights: Float) -> float:
    """The chance that without influence the action would seem to help as much.

    From the log-likelihoods of the taken action [N] and of others [N, K], and the weights [N] of the states by score.
    Without influence the taken action is one of the K + 1 with equal chance, whatever happened before: a randomisation
    test, with REDRAWS draws for all states. Its statistic is the largest of several, each in its standard deviations:
    the rank, the weighted rank, which shows an effect in a few states, and bounded gains. A bounded gain also counts
    how much less likely other actions make what happened; a rank does not, and where actions hardly differ it is all
    noise. As the statistics are redrawn together, their number costs little.
    """
    tried = np.column_stack([taken, others])
    rows, count = tried.shape
    random = np.random.default_rng(0)
    sums = np.zeros((1 + REDRAWS, 2 + len(SHARPNESS)))  # first of the taken action
    variance = np.zeros(sums.shape[1])
    for first in range(0, rows, CHUNK):
        part = slice(first, first + CHUNK)
        seen = _evidence(tried[part], weights[part])  # [n, K + 1, statistics]
        seen -= seen.mean(1, keepdims=True)
        variance += seen.var(1).sum(0)
        drawn = random.integers(count, size=(REDRAWS, len(seen))) + count * np.arange(len(seen))
        sums[0] += seen[:, 0].sum(0)
        sums[1:] += np.stack([one.take(drawn).sum(1) for one in np.moveaxis(seen, 2, 0)], 1)
    found, *chance = (sums / np.sqrt(np.maximum(variance, TINY))).max(1)
    return (1 + int((np.array(chance) >= found - 1e-9).sum())) / (1 + REDRAWS)  # equal sums differ by rounding


def _evidence(tried: Float, weights: Float) -> Float:
    """What speaks for each action [N, M, statistics], given the log-likelihoods [N, M] of what happened."""
    rank = rankdata(tried, axis=1) / tried.shape[1]
    tempered = [sharpness * tried for sharpness in SHARPNESS]
    ratios = [one - logsumexp(one, axis=1, keepdims=True) + math.log(one.shape[1]) for one in tempered]
    return np.stack([rank, weights[:, None] * rank, *(np.logaddexp(0, ratio) for ratio in ratios)], -1)


def find_broken_promises(
    gains: Float, promise: Float, groups: Sequence[NDArray[np.intp]], clusters: NDArray[np.intp]
) -> list[int]:
    """Which groups of rows, or the whole (the last number), show clearly less than what was promised.

    The hypothesis about each is that the mean gain is at least KEPT * promise - SLACK. One-sided t-tests with the
    episodes as clusters, decided together by Holm's procedure: the chance of any false alarm is FALSE_ALARMS.
    """
    excess = gains - KEPT * promise + SLACK
    p_values = []
    for rows in [*groups, np.arange(len(excess))]:
        error = _standard_error(excess[rows], clusters[rows])
        mean = float(excess[rows].mean())
        freedom = len(np.unique(clusters[rows])) - 1
        if freedom and error > 0:
            p_values.append(float(student.cdf(mean / error, freedom)))
        else:  # nothing is known about a single episode, and everything where nothing varies
            p_values.append(float(not freedom or mean >= 0))
    order = np.argsort(p_values, kind="stable")
    allowed = FALSE_ALARMS / np.arange(len(order), 0, -1)
    rejected = np.minimum.accumulate(np.asarray(p_values)[order] <= allowed)
    return sorted(int(place) for place in order[rejected])


def _check_coverage(found: Diagnosis, discrete: bool) -> Finding:
    lowest = min(found.coverage)
    parts = "the actions" if discrete else f"the {BINS} parts of each action dimension"
    rarest = f"the rarest by {min(found.smallest_bin):.1%} of the transitions"
    numbers = f"at least {lowest:.0%} of {parts} are covered, {rarest}"
    if lowest >= LOWEST_COVERAGE:
        return Finding(True, f"All kinds of actions were tried: {numbers}.")
    worst = [place for place, share in enumerate(found.coverage) if share < LOWEST_COVERAGE]
    where = "" if discrete else f" (dimension(s) {worst})"
    advice = "The model guesses there; mix random actions into the collection"
    return Finding(False, f"not all kinds of actions were tried{where}: {numbers}. {advice}.")


def _check_extremes(shares: Sequence[Float]) -> Finding:
    """Scores with extreme actions need data that show what actions at either bound do."""
    rare = [place for place, bins in enumerate(shares) if min(bins[0], bins[-1]) < 0.1 / len(bins)]
    if not rare:
        return Finding(True, "The data contain extreme actions, which the scores use.")
    return Finding(
        False,
        f"the scores use extreme actions, but the data contain hardly any in dimension(s) {rare}, so the model guesses "
        "there. Collect some, or score without them (extreme=0).",
    )


def _constant_nll(change: Float, center: Float | float) -> float:
    """1/2 sum over dimensions of log(2 pi e v), v the mean square around the centre: the best constant variance."""
    mean_square = np.square(change - center).mean(0)
    variance = np.maximum(mean_square, SMALLEST_VARIANCE)
    return float(0.5 * (mean_square / variance + np.log(2 * math.pi * variance)).sum())


def _skill(change: Float, log_likelihood: Float) -> float:
    """Mean of log((1 - OUTLIERS) p / q + OUTLIERS), where q is one Gaussian for all: at least log OUTLIERS a row.

    Without the outliers, a single transition that a sharp prediction misses could cost more than all others gain.
    """
    deviation = np.sqrt(np.maximum(change.var(0), SMALLEST_VARIANCE))
    constant = norm.logpdf(change, change.mean(0), deviation).sum(1)
    better = np.logaddexp(math.log(1 - OUTLIERS) + log_likelihood - constant, math.log(OUTLIERS))
    return float(better.mean())


def _ratio(part: float, whole: float) -> float:
    """part / whole of sums of squares; if the whole is 0, then 0 if the part is too, else 1."""
    return part / whole if whole > 0 else float(part > 0)


def _standard_error(values: Float, clusters: NDArray[np.intp]) -> float:
    """Of the mean, if only values of different clusters are independent; of a single cluster, as if its values were."""
    labels = np.unique(clusters, return_inverse=True)[1]
    labels = labels if labels.any() else np.arange(len(values))
    totals = np.bincount(labels, weights=values - values.mean())
    count = len(totals)
    return math.sqrt(float(np.square(totals).sum()) * count / (count - 1)) / len(values) if count > 1 else math.inf


def _weighted_error(weights: Float, values: Float, clusters: NDArray[np.intp], count: int) -> float:
    """Of the mean of weights times centred ranks among `count` actions: at least that of random ranks."""
    return max(_standard_error(weights * values, clusters), _chance_error(weights, count))


def _deviations(weights: Float, clusters: NDArray[np.intp]) -> float:
    """How many standard errors of a weighted mean are exceeded by chance with probability FALSE_ALARMS.

    Student's t for the number of clusters that, with equal weights, would vary as much.
    """
    totals = np.bincount(clusters, weights=weights)
    alike = float(totals.sum() ** 2 / np.square(totals).sum())
    return float(student.isf(FALSE_ALARMS, max(alike - 1, 1)))


def _chance_error(weights: Float, count: int) -> float:
    """Standard deviation of the mean of weights times ranks among `count` random actions, without influence.

    A rank is then one of 0, 1/count, ..., 1 with equal chance, whatever happened before: its variance is
    (count + 2) / (12 count). Residuals around the mean of a few weighty episodes would look smaller.
    """
    return math.sqrt(float(np.square(weights).mean()) * (count + 2) / (12 * count) / len(weights))


def _shares_of_bins(action: Float, discrete: bool) -> list[Float]:
    """The share of the transitions in each of the equal bins of each dimension, or of each discrete action."""
    if discrete:
        return [action.mean(0)]
    edges = np.linspace(-1, 1, BINS + 1)
    return [np.histogram(np.clip(column, -1, 1), edges)[0] / len(action) for column in action.T]
