"""Questions beside the main table of detection: noise, the number of actions, what helps, ensembles, and bias."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import Tensor

from butfor.detection import detectors as detect
from butfor.detection.data import Data
from butfor.detection.settings import PAPER_SHARE
from butfor.influence.gaussian import KL_FORMS, KLForm
from butfor.influence.influence import Influence
from butfor.influence.scoring import ScoreConfig
from butfor.models.dynamics import ModelConfig
from butfor.models.networks import some_replicas
from butfor.reporting.pictures import episode_kinds
from butfor.rollouts.episodes import Episodes
from butfor.rollouts.play import Progress

Array = NDArray[Any]
Seen = TypeVar("Seen", Array, Tensor)
Fit = Callable[..., Influence]
"""fit(name, model=..., train=..., validation=..., target_noise=..., members=...): members replicas a seed, in turn."""

ACTIONS = (8, 16, 32, 64)
MEMBERS = 5  # networks of an ensemble
EXTREME = {"": 0.0, ", extreme actions": 0.75}  # share of the tried actions' numbers that are at a bound


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
    if is_fetch(seen):
        seen[..., 6:9] = seen[..., 3:6] - seen[..., 0:3]
        seen[..., 14:17] -= seen[..., 20:23]
    noisy = episodes.take(np.arange(len(episodes)))
    noisy.observation = seen.astype(np.float32)
    return noisy


def is_fetch(observation: Array | Tensor) -> bool:
    """Whether these are observations of a Fetch world, by their size."""
    return bool(observation.shape[-1] >= 25)


def world_frame(seen: Seen) -> Seen:
    """A copy with the object's velocity in the world's frame; Fetch shows it relative to the gripper."""
    copied: Any = seen * 1  # of an array or a tensor
    if is_fetch(copied):
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
    """What helps on the exact label: beta-NLL, no spectral norm, data of a random policy."""
    learned, held_out = random_episodes(case)
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
    return rows


def study_ensembles(case: Case) -> list[dict[str, Any]]:
    """One network and ensembles of five for each seed, by uniform and by extreme actions."""
    shares = PAPER_SHARE if case.data.world == "pick-and-place" else {}
    alone = judge_networks("One network", case.influence, 1, case.sets, shares)
    several = case.fit("CAI by five networks", members=MEMBERS)
    return alone + judge_networks("Five networks", several, MEMBERS, case.sets, shares)


def judge_networks(
    title: str, influence: Influence, members: int, sets: Mapping[str, Episodes], shares: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Every `members` networks as one, on every set and label; where a set has a share, also as if it were so."""
    rows = []
    for (addition, extreme), (name, episodes) in product(EXTREME.items(), sets.items()):
        model = rescored(influence, replace(influence.scoring, extreme=extreme))
        score = detect.cai(model, "object", members)(episodes)
        for label in sorted({"exact", "heuristic"} & set(episodes.label)):
            row = {"title": title + addition, "set": name, "label": label, "networks": members}
            row |= detect.summarize(evaluate(score, episodes, label))
            if name in shares:
                as_if = evaluate(score, episodes, label, shares[name])
                row["at_paper_share"] = {"share": shares[name]} | detect.summarize(as_if)
            rows.append(row)
    return rows


def random_episodes(case: Case) -> tuple[Episodes, Episodes]:
    """As many episodes of a random policy to learn from and to validate on as the case has."""
    random, first = case.data.episodes("random-train", len(case.train) + len(case.validation)), len(case.train)
    return random.take(np.arange(first)), random.take(np.arange(first, len(random)))


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


def kinds_of_episodes(episodes: Episodes, cai: Array) -> list[dict[str, Any]]:
    """CAI [S, N] by kind of episode and step, mean and deviation over seeds; nothing where contacts are not known."""
    if episodes.contact is None or "exact" not in episodes.label or not is_fetch(episodes.observation):
        return []
    untouched, brief, handled = (kind[:, None] & episodes.valid for kind in episode_kinds(episodes))
    contact, label = episodes.contact & episodes.valid, episodes.label["exact"] & episodes.valid
    around = contact.copy()
    around[:, :-1] |= contact[:, 1:]
    around[:, 1:] |= contact[:, :-1]
    steps = {
        "no contact": untouched,
        "manipulation": handled,
        "around a brief touch": brief & around,
        "the rest of these episodes": brief & ~around,
        "influenced, in contact": label & contact,
        "influenced, no contact": label & ~contact,
    }
    rows = []
    for title, chosen in steps.items():
        if chosen.any():
            means = np.asarray(cai, dtype=np.float64)[:, chosen[episodes.valid]].mean(1)
            row = {"title": title, "steps": int(chosen.sum()), "set": "test"}
            rows.append(row | {"cai": {"mean": float(means.mean()), "std": float(means.std())}})
    return rows


def _member_scores(influence: Influence, obs: Array) -> Array:
    scores: Array = influence._scores(obs, None, 1)[..., 0].cpu().numpy()
    return scores


def evaluate(
    scores: Array, episodes: Episodes, label: str = "exact", share: float | None = None
) -> list[dict[str, float]]:
    """AUC, average precision and best F1 of each seed's scores [S, N]."""
    truth = episodes.label[label][episodes.valid]
    return [detect.evaluate(score, truth, share) for score in scores]


def member(influence: Influence, seed: int) -> Influence:
    """One replica of a model by itself."""
    alone = some_replicas(influence.model, slice(seed, seed + 1)).eval()
    rest = (influence.law, influence.entities, influence.scale, influence.scoring, influence.seed)
    return Influence(alone, *rest, influence.obs_center, influence.obs_spread)
