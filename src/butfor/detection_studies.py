"""Questions beside the main table of detection: noise, the number of actions, what helps, bias, and promised rates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import Tensor

from butfor import decisions, detect
from butfor.detection_data import Data
from butfor.dynamics import ModelConfig
from butfor.episodes import Episodes
from butfor.gaussian import KL_FORMS, KLForm
from butfor.influence import Influence
from butfor.networks import some_replicas
from butfor.rollout import Progress
from butfor.scoring import ScoreConfig

Array = NDArray[Any]
Seen = TypeVar("Seen", Array, Tensor)
Fit = Callable[..., Influence]
"""fit(name, model=..., train=..., validation=..., target_noise=...): an Influence with one replica a seed."""

ACTIONS = (8, 16, 32, 64)
RATES = (0.01, 0.05, 0.10)  # of false discoveries
SPLITS = 20  # into states to calibrate with and states to decide about
MOST_TRANSITIONS = 20_000  # to rank the taken action in


@dataclass(frozen=True)
class Case:
    """What a study works with."""

    data: Data
    train: Episodes
    validation: Episodes
    sets: dict[str, Episodes]
    """to be judged, by name; the first is the main one"""
    influence: Influence
    """the main model, one replica a seed"""
    fit: Fit
    model: ModelConfig
    noise_levels: Sequence[float]
    """in standard deviations of each dimension of the state"""
    target_noise: float
    """standard deviation, in the world's units, that makes the reference CAI finite"""
    extra_episodes: int
    """of each further policy whose states are decided about"""
    progress: Progress
    scores: Mapping[str, Array] = field(default_factory=dict)
    """the main model's CAI [S, N] of each set, where it is known already"""

    def cai(self, name: str, episodes: Episodes) -> Array:
        """The main model's CAI of a set, computed where it is not known."""
        known = self.scores.get(name)
        return detect.cai(self.influence, "object")(episodes) if known is None else known

    @property
    def test(self) -> Episodes:
        """The main set to be judged."""
        return next(iter(self.sets.values()))


# ------------------------------------------------------------------------------------------------------ noise


def study_noise(case: Case) -> dict[str, Any]:
    """Performance against noise on every dimension of the state: in training only, and in testing, too."""
    deviation = state_deviation(case.train)
    found: dict[str, Any] = {"levels": list(case.noise_levels)}
    for where in ("train_only", "train_and_test"):
        found[where] = {"auc": [], "ap": [], "f1": []}
    for place, level in enumerate(case.noise_levels):
        parts = (case.train, case.validation, case.test)
        noisy = [add_noise(part, level, deviation, np.random.default_rng((place, i))) for i, part in enumerate(parts)]
        model = case.influence
        if level:
            model = case.fit(f"CAI with {100 * level:g}% noise", train=noisy[0], validation=noisy[1])
        for where, episodes in (("train_only", case.test), ("train_and_test", noisy[2])):
            rows = evaluate(detect.cai(model, "object")(episodes), case.test)
            for metric, values in found[where].items():
                values.append([row[metric] for row in rows])
    return found


def state_deviation(episodes: Episodes) -> Array:
    """The standard deviation of each dimension over all states, velocities of the object taken in the world's frame."""
    deviation: Array = world_frame(episodes.observation[:, :-1][episodes.valid].astype(np.float64)).std(0)
    return deviation


def add_noise(episodes: Episodes, level: float, deviation: Array, generator: np.random.Generator) -> Episodes:
    """Episodes whose states are seen with noise, drawn once for each; what follows from other dimensions follows."""
    seen = world_frame(episodes.observation.astype(np.float64))
    seen = seen + level * deviation * generator.standard_normal(seen.shape)
    if _is_fetch(seen):
        seen[..., 6:9] = seen[..., 3:6] - seen[..., 0:3]
        seen[..., 14:17] -= seen[..., 20:23]
    noisy = episodes.take(np.arange(len(episodes)))
    noisy.observation = seen.astype(np.float32)
    return noisy


def _is_fetch(observation: Array | Tensor) -> bool:
    return bool(observation.shape[-1] >= 25)


def world_frame(seen: Seen) -> Seen:
    """A copy with the object's velocity in the world's frame; Fetch shows it relative to the gripper."""
    copied: Any = seen * 1  # of an array or a tensor
    if _is_fetch(copied):
        copied[..., 14:17] += copied[..., 20:23]
    return copied  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------------ how CAI is computed


def study_actions(case: Case) -> list[dict[str, Any]]:
    """CAI by the number of actions, how they are drawn, and how the KL to the mixture is clipped."""
    name = "random" if "random" in case.sets else next(iter(case.sets))  # the paper's choice: it is the harder set
    rows = []
    samplings: tuple[Literal["independent", "sobol"], ...] = ("independent", "sobol")
    forms: tuple[KLForm, ...] = ("mean", "mean_clip_product")
    for sampling in samplings:
        for form in forms:
            for actions in ACTIONS:
                scoring = ScoreConfig(actions, sampling, form=form)
                score = detect.cai(rescored(case.influence, scoring), "object")(case.sets[name])
                summary = detect.summarize(evaluate(score, case.sets[name]))
                rows.append({"actions": actions, "sampling": sampling, "form": form, "set": name, **summary})
                case.progress("actions", len(rows), 4 * len(ACTIONS), f"K = {actions}")
    return rows


def study_helps(case: Case) -> list[dict[str, Any]]:
    """What helps on the exact label: beta-NLL, no spectral norm, data of a random policy, an average of all seeds."""
    random = case.data.episodes("random-train", len(case.train) + len(case.validation))
    learned, held_out = (random.take(part) for part in np.split(np.arange(len(random)), [len(case.train)]))
    free = replace(case.model, spectral_norm_hidden=False, spectral_norm_variance=False)
    variants: dict[str, Callable[[], Influence]] = {
        "As in the table": lambda: case.influence,
        "beta-NLL, 0.5": lambda: case.fit("CAI with beta-NLL", model=replace(case.model, beta=0.5)),
        "No spectral norm": lambda: case.fit("CAI without spectral norm", model=free),
        "beta-NLL, no spectral norm": lambda: case.fit("CAI with neither", model=replace(free, beta=0.5)),
        "Trained on random episodes": lambda: case.fit("CAI on random episodes", train=learned, validation=held_out),
    }
    rows = []
    for title, make in variants.items():
        score = detect.cai(make(), "object")(case.test)
        rows.append({"name": title.lower(), "title": title, **detect.summarize(evaluate(score, case.test))})
        if len(rows) == 1:
            mean = evaluate(score.mean(0, keepdims=True), case.test)
            together = {"name": "ensemble", "title": f"Mean over the {len(score)} seeds", **detect.summarize(mean)}
    return [*rows, together]


def rescored(influence: Influence, scoring: ScoreConfig) -> Influence:
    """The same model with another estimator."""
    return Influence(
        influence.model, influence.law, influence.entities, influence.scale, scoring, influence.seed,
        influence.obs_center, influence.obs_spread,
    )  # fmt: skip


def study_reference(case: Case) -> list[dict[str, Any]]:
    """Bias and rank correlation against the CAI of forked states, by number of actions and form of the KL.

    Training targets get Gaussian noise, and so do the forked outcomes: without any, the true CAI is infinite. From M
    forks the reference is at most log M, and too low where it comes near that; with K actions an estimate is at most
    log K.
    """
    obs, outcome = case.data.forks(case.test)
    known = np.isfinite(outcome).all((1, 2))  # not where the physics blew up
    obs, outcome = obs[known], outcome[known]
    generator, noise = np.random.default_rng(0), case.target_noise
    blocks = np.array_split(np.arange(len(obs)), max(1, len(obs) // 20))
    truth = np.concatenate([detect.reference_cai(outcome[rows], noise, 4, generator) for rows in blocks])
    model = case.fit("CAI with noisy targets", target_noise=noise)
    rows = []
    for form in KL_FORMS:
        for actions in ACTIONS:
            scores = _member_scores(rescored(model, ScoreConfig(actions, form=form)), obs)  # [S, n]
            correlation = [float(spearmanr(s, truth).statistic) if np.ptp(s) else 0.0 for s in scores]
            rows.append(
                {
                    "actions": actions,
                    "form": form,
                    "bias": float((scores - truth).mean()),
                    "absolute_error": float(np.abs(scores - truth).mean()),
                    "rank_correlation": float(np.mean(correlation)),
                    "rank_correlation_std": float(np.std(correlation)),
                    "true_mean": float(truth.mean()),
                    "scatter": np.round(np.stack([truth, scores.mean(0)], 1), 4).tolist(),
                }
            )
            case.progress("reference", len(rows), len(KL_FORMS) * len(ACTIONS), form)
    return rows


def _member_scores(influence: Influence, obs: Array) -> Array:
    scores: Array = influence._member_scores(obs, None)[..., 0].cpu().numpy()
    return scores


def evaluate(scores: Array, episodes: Episodes, label: str = "exact") -> list[dict[str, float]]:
    """AUC, average precision and best F1 of each seed's scores [S, N]."""
    truth = episodes.label[label][episodes.valid]
    return [detect.evaluate(score, truth) for score in scores]


# -------------------------------------------------------------------------------------------------- decisions


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
        if drawn.all() or (_is_fetch(episodes.observation) and drawn.mean() > 0.01):
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


def member(influence: Influence, seed: int) -> Influence:
    """One replica of a model by itself."""
    alone = some_replicas(influence.model, slice(seed, seed + 1)).eval()
    rest = (influence.law, influence.entities, influence.scale, influence.scoring, influence.seed)
    return Influence(alone, *rest, influence.obs_center, influence.obs_spread)


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


STUDIES: dict[str, Callable[[Case], Any]] = {
    "actions": study_actions,
    "decisions": study_decisions,
    "helps": study_helps,
    "noise": study_noise,
    "reference": study_reference,
}
