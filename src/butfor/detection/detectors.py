"""Who can tell when the action matters? Detectors with one signature, and how well their scores separate the states."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp
from sklearn.metrics import average_precision_score, precision_recall_curve, roc_auc_score

from butfor.influence.influence import Influence
from butfor.influence.scoring import score_entropy, score_states
from butfor.models.attention import AttentionModel
from butfor.models.networks import make_generators
from butfor.rollouts.episodes import Episodes

Scores = NDArray[np.float32]
Detector = Callable[[Episodes], Scores]
"""Every detector maps episodes to one score a real step, for each of its seeds: [S, N], larger for more influence."""

TITLES = {
    "cai": "CAI",
    "entropy": "Entropy",
    "attention": "Attention",
    "contact": "Contact",
    "moved": "The object moved",
}


def cai(influence: Influence, entity: str, members: int = 1) -> Detector:
    """CAI of each state; each replica of the model, or each ensemble of `members` in turn, is one seed."""

    def score(episodes: Episodes) -> Scores:
        obs = influence.model_obs(episodes.transitions()[0])
        generator = make_generators([influence.seed], obs.device)
        dims = [influence.dims(entity)]
        scores = score_states(influence.model, obs, influence.law, dims, influence.scoring, generator, members)
        return _numpy(scores[..., 0])

    return score


def conditional_entropy(influence: Influence, entity: str) -> Detector:
    """The entropy of the next state, from the same model as CAI."""

    def score(episodes: Episodes) -> Scores:
        obs = influence.model_obs(episodes.transitions()[0])
        generator = make_generators([influence.seed], obs.device)
        return _numpy(
            score_entropy(influence.model, obs, influence.law, influence.dims(entity), influence.scoring, generator)
        )

    return score


def attention(
    model: AttentionModel, device: torch.device | str, prepare: Callable[[torch.Tensor], torch.Tensor] = lambda x: x
) -> Detector:
    """How much the object's prediction attends to the action that was taken; `prepare` is done to its inputs first."""

    def score(episodes: Episodes) -> Scores:
        obs, action, _ = episodes.transitions()
        return _numpy(model.score(prepare(torch.from_numpy(np.concatenate([obs, action], 1)).to(device))))

    return score


def contact(episodes: Episodes) -> Scores:
    """Contact between agent and object during the step, as the world reports it."""
    if episodes.contact is None:
        raise ValueError(
            "These episodes have no contact information; collect them with contacts, or leave 'contact' out."
        )
    return episodes.contact[episodes.valid].astype(np.float32)[None]


def moved(episodes: Episodes) -> Scores:
    """How far the object (the achieved goal) moved during the step."""
    distance = np.linalg.norm(np.diff(episodes.achieved_goal, axis=1), axis=-1)
    distances: Scores = distance[episodes.valid].astype(np.float32)[None]
    return distances


def reference_cai(
    outcomes: NDArray[np.float64], noise: float, samples: int, generator: np.random.Generator
) -> NDArray[np.float64]:
    """CAI in nats from forked next states [n, M, d] of M actions that are seen through Gaussian noise: [n].

    The mean over actions k of log N(y; x_k, noise^2) - log mean_j N(y; x_j, noise^2) with y drawn around x_k. It is the
    truth for an estimator whose model was trained on targets with that same noise, and for no other.
    """
    if outcomes.ndim != 3 or not noise > 0 or samples < 1:
        raise ValueError(
            f"outcomes has shape {outcomes.shape}, noise is {noise} and samples {samples}; expected [n, M, d], a "
            "positive standard deviation and at least one sample."
        )
    total = np.zeros(len(outcomes))
    for _ in range(samples):
        seen = outcomes + noise * generator.standard_normal(outcomes.shape)  # y [n, M, d]
        squared = np.square((seen[:, :, None] - outcomes[:, None]) / noise).sum(-1)  # [n, M (drawn), M (mixture)]
        own = np.diagonal(squared, axis1=1, axis2=2)
        total += (np.log(squared.shape[2]) - 0.5 * own - logsumexp(-0.5 * squared, axis=2)).mean(1)
    return total / samples


def evaluate(score: NDArray[Any], label: NDArray[np.bool_], share: float | None = None) -> dict[str, float]:
    """Area under the ROC curve, average precision, and the best F1 with its threshold, of one score [N].

    With a `share` states are weighted as if that part of them were influenced: precision and F1 depend on it.
    """
    if label.all() or not label.any():
        raise ValueError(f"All {len(label)} states have the same label; detection needs both kinds.")
    weight = None if share is None else np.where(label, share / label.mean(), (1 - share) / (1 - label.mean()))
    precision, recall, thresholds = precision_recall_curve(label, score, sample_weight=weight)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    best = int(np.argmax(f1[:-1]))  # the last point has no threshold
    return {
        "auc": float(roc_auc_score(label, score)),  # no share changes it
        "ap": float(average_precision_score(label, score, sample_weight=weight)),
        "f1": float(f1[best]),
        "threshold": float(thresholds[best]),
    }


def summarize(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Mean and standard deviation over seeds of each metric."""
    values = {name: np.array([row[name] for row in rows]) for name in ("auc", "ap", "f1")}
    return {name: {"mean": float(value.mean()), "std": float(value.std())} for name, value in values.items()}


def _numpy(scores: torch.Tensor) -> Scores:
    array: Scores = scores.cpu().numpy()
    return array
