"""Detectors: functions that score how much the action influences the object in each state.

To add a detector, write a function of `(models, episodes)` and add a line to `DETECTORS`.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from butfor.envs.facts import BUILT_IN
from butfor.influence.influence import Influence
from butfor.influence.scoring import ScoreConfig, score_entropy, score_states
from butfor.models.attention import AttentionModel
from butfor.models.networks import copy_replicas, make_generators
from butfor.rollouts.episodes import Episodes

Scores = NDArray[np.float32]
"""[S, N]: one score for each seed and real step, larger for more influence."""
OBJECT = "object"  # the entity whose influence is detected


@dataclass(frozen=True)
class Models:
    """The trained models that detectors may use; each replica is one seed."""

    influence: Influence
    attention: AttentionModel
    env: str
    """name of the environment that they were trained on"""


def cai(models: Models, episodes: Episodes) -> Scores:
    """Causal action influence of each state (the paper's equation 3)."""
    return score_cai(models.influence, episodes)


def conditional_entropy(models: Models, episodes: Episodes) -> Scores:
    """Entropy of the object's next state given the state, from the same model as CAI."""
    influence = models.influence
    obs = influence.model_obs(episodes.transitions()[0])
    generators = make_generators([influence.seed], obs.device)
    dims = influence.dims(OBJECT)
    entropy = score_entropy(influence.model, obs, influence.law, dims, influence.scoring, generators)
    scores: Scores = entropy.cpu().numpy()
    return scores


def attention(models: Models, episodes: Episodes) -> Scores:
    """Attention of the object's prediction to the action that was taken."""
    obs, action, _ = episodes.transitions()
    device = next(models.attention.parameters()).device
    inputs = torch.from_numpy(np.concatenate([obs, action], 1)).to(device)
    scores: Scores = models.attention.score(with_absolute_velocity(inputs, models.env)).cpu().numpy()
    return scores


def contact(models: Models, episodes: Episodes) -> Scores:
    """Contact between agent and object during the step, as reported by the environment."""
    if episodes.contact is None:
        raise ValueError("The detector 'contact' needs episodes with contacts; collect them with the label 'contact'.")
    return episodes.contact[episodes.valid].astype(np.float32)[None]


def moved(models: Models, episodes: Episodes) -> Scores:
    """Distance by which the object (the achieved goal) moved during the step."""
    distance = np.linalg.norm(np.diff(episodes.achieved_goal, axis=1), axis=-1)
    scores: Scores = distance[episodes.valid].astype(np.float32)[None]
    return scores


def distance(models: Models, episodes: Episodes) -> Scores:
    """Minus the distance between hand and object before the step; it needs the columns of both positions."""
    obs = episodes.transitions()[0]
    scores: Scores = -BUILT_IN[models.env].distance(obs).astype(np.float32)[None]
    return scores


Detector = Callable[[Models, Episodes], Scores]
DETECTORS: dict[str, tuple[str, Detector]] = {  # name -> title and function
    "cai": ("CAI", cai),
    "entropy": ("Entropy", conditional_entropy),
    "attention": ("Attention", attention),
    "contact": ("Contact", contact),
    "moved": ("The object moved", moved),
    "distance": ("Distance", distance),
}


def score_cai(influence: Influence, given: Episodes | NDArray[Any], members: int = 1) -> Scores:
    """CAI of each real step of episodes, or of states [N, D]; every `members` replicas are one seed's ensemble."""
    states = influence.model_obs(given.transitions()[0] if isinstance(given, Episodes) else given)
    generators = make_generators([influence.seed], states.device)
    dims = [influence.dims(OBJECT)]
    found = score_states(influence.model, states, influence.law, dims, influence.scoring, generators, members)
    scores: Scores = found[..., 0].cpu().numpy()
    return scores


def with_scoring(influence: Influence, scoring: ScoreConfig) -> Influence:
    """The same model with another way of estimating CAI."""
    other = copy.copy(influence)
    other.scoring = scoring
    return other


def only_seed(influence: Influence, seed: int) -> Influence:
    """One replica of a model as an Influence of its own."""
    other = copy.copy(influence)
    other.model = copy_replicas(influence.model, slice(seed, seed + 1)).eval()
    return other


def with_absolute_velocity(rows: Any, env: str) -> Any:
    """A copy of observations [..., D] with the object's velocity in the world frame, not relative to the agent's."""
    copied = rows * 1  # works for arrays and tensors
    facts = BUILT_IN[env]
    if facts.relative_velocity:
        copied[..., list(facts.object_velocity)] += copied[..., list(facts.agent_velocity)]
    return copied
