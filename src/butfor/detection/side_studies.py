"""Side studies of the detection experiment: noise, number of actions, what helps, ensembles, bias and decisions.

To add a study, write a function of an `Experiment`, add its name to `SideStudy` in `settings.py`, and add a line to
`STUDIES`. Its result must be JSON; it is written to `studies.json`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Literal

import numpy as np
from scipy.special import logsumexp
from scipy.stats import spearmanr

from butfor.detection import detectors, thresholds
from butfor.detection.data import ExperimentData
from butfor.detection.detectors import with_absolute_velocity, with_scoring
from butfor.detection.settings import PAPER_SHARES, DetectionConfig
from butfor.detection.thresholds import Array, Rows, evaluate_seeds, summarize
from butfor.envs.facts import BUILT_IN
from butfor.influence.gaussian import KL_FORMS, KLForm
from butfor.influence.influence import Influence
from butfor.influence.scoring import ScoreConfig
from butfor.rollouts.episodes import Episodes
from butfor.rollouts.play import Progress

ACTIONS = (8, 16, 32, 64)
MEMBERS = 5  # networks of an ensemble
EXTREME = {"": 0.0, ", extreme actions": 0.75}  # share of the tried actions' numbers that are at a bound
LEAST_RANDOM = 0.01  # share of random actions from which on a mixed policy's transitions calibrate decisions


@dataclass(frozen=True)
class Experiment:
    """What a side study works with."""

    config: DetectionConfig
    data: ExperimentData
    train: Episodes
    validation: Episodes
    sets: dict[str, Episodes]
    """labelled episodes to evaluate on: the main ones, "test", and others by name"""
    influence: Influence
    """the main model, one replica per seed"""
    fit: Callable[..., Influence]
    """fit(name, model=..., train=..., validation=..., target_noise=..., members=...): `members` replicas per seed"""
    progress: Progress
    scores: Mapping[str, Array] = field(default_factory=dict)
    """CAI of the main model [S, N] on sets where it is known already"""


def study_noise(experiment: Experiment) -> dict[str, Any]:
    """Performance with noise on every dimension of the state, in training only and in training and test."""
    env = experiment.config.env
    levels = experiment.config.noise_levels
    deviation = state_deviation(experiment.train, env)
    found: dict[str, Any] = {"levels": list(levels)}
    for where in ("train_only", "train_and_test"):
        found[where] = {"auc": [], "ap": [], "f1": []}
    for place, level in enumerate(levels):
        train, validation, test = (
            add_noise(part, env, level, deviation, np.random.default_rng((place, i)))
            for i, part in enumerate((experiment.train, experiment.validation, experiment.sets["test"]))
        )
        model = experiment.influence
        if level:
            model = experiment.fit(f"CAI with {100 * level:g}% noise", train=train, validation=validation)
        for where, episodes in (("train_only", experiment.sets["test"]), ("train_and_test", test)):
            rows = evaluate_seeds(detectors.score_cai(model, episodes), experiment.sets["test"])
            for metric, values in found[where].items():
                values.append([row[metric] for row in rows])
    return found


def state_deviation(episodes: Episodes, env: str) -> Array:
    """Standard deviation of each dimension over all states [D], with the object's velocity in the world frame."""
    states = episodes.observation[:, :-1][episodes.valid].astype(np.float64)
    deviation: Array = with_absolute_velocity(states, env).std(0)
    return deviation


def add_noise(episodes: Episodes, env: str, level: float, deviation: Array, generator: np.random.Generator) -> Episodes:
    """Episodes whose states have Gaussian noise; columns that follow from others follow from their noisy values."""
    facts = BUILT_IN[env]
    seen = with_absolute_velocity(episodes.observation.astype(np.float64), env)
    seen = seen + level * deviation * generator.standard_normal(seen.shape)
    if facts.object_offset:
        between = seen[..., list(facts.object_position)] - seen[..., list(facts.agent_position)]
        seen[..., list(facts.object_offset)] = between
    if facts.relative_velocity:
        seen[..., list(facts.object_velocity)] -= seen[..., list(facts.agent_velocity)]
    noisy = episodes.take(np.arange(len(episodes)))
    noisy.observation = seen.astype(np.float32)
    return noisy


def study_actions(experiment: Experiment) -> Rows:
    """CAI by the number of actions, how they are drawn, and how the KL to the mixture is clipped."""
    name = "random" if "random" in experiment.sets else "test"  # the paper chose the harder set
    episodes = experiment.sets[name]
    samplings: tuple[Literal["independent", "sobol"], ...] = ("independent", "sobol")
    forms: tuple[KLForm, ...] = ("mean", "mean_clip_product")
    variants = list(product(samplings, forms, ACTIONS))
    rows = []
    for sampling, form, actions in variants:
        model = with_scoring(experiment.influence, ScoreConfig(actions, sampling, form=form))
        metrics = summarize(evaluate_seeds(detectors.score_cai(model, episodes), episodes))
        rows.append({"actions": actions, "sampling": sampling, "form": form, "set": name, **metrics})
        experiment.progress("actions", len(rows), len(variants), f"K = {actions}")
    return rows


def study_helps(experiment: Experiment) -> Rows:
    """What helps on the exact label: beta-NLL, no spectral norm, training data of a random policy."""
    fit = experiment.fit
    test = experiment.sets["test"]
    paper = experiment.config.model
    free = replace(paper, spectral_norm_hidden=False, spectral_norm_variance=False)
    size = len(experiment.train)
    random = experiment.data.episodes("random-train", size + len(experiment.validation))
    parts = {"train": random.take(np.arange(size)), "validation": random.take(np.arange(size, len(random)))}
    variants = {
        "As in the table": experiment.influence,
        "beta-NLL, 0.5": fit("CAI with beta-NLL", model=replace(paper, beta=0.5)),
        "No spectral norm": fit("CAI without spectral norm", model=free),
        "beta-NLL, no spectral norm": fit("CAI with neither", model=replace(free, beta=0.5)),
        "Trained on random episodes": fit("CAI on random episodes", **parts),
    }
    rows = []
    for title, model in variants.items():
        metrics = evaluate_seeds(detectors.score_cai(model, test), test)
        rows.append({"name": title.lower(), "title": title, **summarize(metrics)})
    return rows


def study_ensembles(experiment: Experiment) -> Rows:
    """One network and an ensemble of five for each seed, with uniform and with extreme actions."""
    shares = PAPER_SHARES.get(experiment.config.env, {})
    ensemble = experiment.fit("CAI by five networks", members=MEMBERS)
    rows = evaluate_networks("One network", experiment.influence, 1, experiment.sets, shares)
    return rows + evaluate_networks("Five networks", ensemble, MEMBERS, experiment.sets, shares)


def evaluate_networks(
    title: str, influence: Influence, members: int, sets: Mapping[str, Episodes], shares: Mapping[str, float]
) -> Rows:
    """Evaluate ensembles of `members` consecutive replicas: a row for each set, label and way of choosing actions.

    Sets in `shares` are also evaluated as if this share of their states were influenced.
    """
    rows = []
    for (addition, extreme), (name, episodes) in product(EXTREME.items(), sets.items()):
        model = with_scoring(influence, replace(influence.scoring, extreme=extreme))
        scores = detectors.score_cai(model, episodes, members)
        for label in sorted({"exact", "heuristic"} & set(episodes.label)):
            row = {"title": title + addition, "set": name, "label": label, "networks": members}
            row |= summarize(evaluate_seeds(scores, episodes, label))
            if name in shares:
                weighted = evaluate_seeds(scores, episodes, label, shares[name])
                row["at_paper_share"] = {"share": shares[name]} | summarize(weighted)
            rows.append(row)
    return rows


def study_reference(experiment: Experiment) -> Rows:
    """Bias and rank correlation against the CAI of forked states, by number of actions and form of the KL.

    Training targets and forked outcomes get the same Gaussian noise: without any, the true CAI is infinite. From M
    forks the reference is at most log M, and too low where it comes near that. From K actions an estimate is at most
    log K.
    """
    noise = experiment.config.target_noise
    obs, outcome = experiment.data.forks(experiment.sets["test"])
    known = np.isfinite(outcome).all((1, 2))  # not where the physics became unstable
    obs = obs[known]
    outcome = outcome[known]
    generator = np.random.default_rng(0)
    blocks = np.array_split(np.arange(len(obs)), max(1, len(obs) // 20))
    truth = np.concatenate([reference_cai(outcome[rows], noise, 4, generator) for rows in blocks])
    model = experiment.fit("CAI with noisy targets", target_noise=noise)
    rows = []
    for form in KL_FORMS:
        for actions in ACTIONS:
            scores = detectors.score_cai(with_scoring(model, ScoreConfig(actions, form=form)), obs)  # [S, n]
            correlation = [float(spearmanr(score, truth).statistic) if np.ptp(score) else 0.0 for score in scores]
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
            experiment.progress("reference", len(rows), len(KL_FORMS) * len(ACTIONS), form)
    return rows


def reference_cai(outcomes: Array, noise: float, samples: int, generator: np.random.Generator) -> Array:
    """True CAI in nats [n] of states with known next states of M actions [n, M, d], observed with Gaussian noise.

    The mean over actions k of log N(y; x_k, noise^2) - log mean_j N(y; x_j, noise^2), with y drawn around x_k. It is
    the reference for a model that was trained on targets with the same noise.
    """
    total = np.zeros(len(outcomes))
    for _ in range(samples):
        seen = outcomes + noise * generator.standard_normal(outcomes.shape)  # y [n, M, d]
        squared = np.square((seen[:, :, None] - outcomes[:, None]) / noise).sum(-1)  # [n, M (drawn), M (mixture)]
        own = np.diagonal(squared, axis1=1, axis2=2)
        total += (np.log(squared.shape[2]) - 0.5 * own - logsumexp(-0.5 * squared, axis=2)).mean(1)
    return total / samples


def study_decisions(experiment: Experiment) -> dict[str, Any]:
    """Promised and realised share of false discoveries, on every set and for every way to calibrate."""
    sets = dict(experiment.sets)
    for policy in ("random", "noisy-expert", "expert"):
        if policy not in sets and experiment.config.extra_episodes:
            sets[policy] = experiment.data.episodes(policy, experiment.config.extra_episodes)
    validation = experiment.validation
    rows: list[dict[str, Any]] = []
    for place, (name, episodes) in enumerate(sets.items()):
        experiment.progress("decisions", place, len(sets), name)
        scores = experiment.scores.get(name)
        if scores is None:
            scores = detectors.score_cai(experiment.influence, episodes)
        found = thresholds.decide_by_free_states(scores, episodes, by_episode=True)
        found += thresholds.decide_by_free_states(scores, episodes, by_episode=False)
        if name == "test" and "exact" in validation.label:
            other_scores = detectors.score_cai(experiment.influence, validation)
            found += thresholds.decide_by_other_agent(other_scores, validation, scores, episodes)
        # Where it depends on the state whether the expert acts at random, its random actions do not calibrate.
        partly_random = BUILT_IN[experiment.config.env].partly_random_expert
        drawn = episodes.sampled[episodes.valid]
        if drawn.all() or (not partly_random and drawn.mean() > LEAST_RANDOM):
            found += thresholds.decide_by_random_actions(experiment.influence, scores, episodes)
        rows += [row | {"set": name} for row in found]
    experiment.progress("decisions", len(sets), len(sets), "done")
    return {"targets": list(thresholds.RATES), "splits": thresholds.SPLITS, "rows": rows}


STUDIES: dict[str, Callable[[Experiment], Any]] = {
    "actions": study_actions,
    "decisions": study_decisions,
    "ensembles": study_ensembles,
    "helps": study_helps,
    "noise": study_noise,
    "reference": study_reference,
}
