"""Detectors of influence between entities, for `butfor benchmark influence`.

A detector is a function from an `EdgeProblem` to scores [N, source, target], higher for more influence; scores on the
diagonal are ignored. To add one, write the function and name it in `DETECTORS`:

    def speed(problem: EdgeProblem) -> Floats:
        moved = np.abs(problem.test_next - problem.test_obs)
        return np.stack([np.stack([moved[:, columns].sum(1)] * len(problem.entities), 1)
                         for columns in problem.entities.values()], 2)
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from butfor.influence import GraphConfig, Influence
from butfor.models.dynamics import ModelConfig
from butfor.models.fitting import FitConfig

Floats = NDArray[np.float64]
NETWORK = FitConfig(batch_size=500, learning_rate=8e-4, max_epochs=60, validate_every=10)


@dataclass(frozen=True)
class EdgeProblem:
    """Transitions to learn from, transitions whose edges are to be found, and what is known of the columns."""

    obs: NDArray[Any]  # [M, D]
    action: NDArray[Any]
    next_obs: NDArray[Any]
    test_obs: NDArray[Any]  # [N, D]
    test_action: NDArray[Any]
    test_next: NDArray[Any]
    entities: dict[str, list[int]]
    position_size: int  # so many first columns of an entity are its position
    action_space: Any
    seed: int
    fitted: dict[str, Influence] = field(default_factory=dict)  # models that several detectors use

    def model(self, members: int = 1, pairs: bool = False) -> Influence:
        """The model of pairs, or Gaussian networks; each is fitted once."""
        name = f"{members} {pairs}"
        if name not in self.fitted:
            self.fitted[name] = Influence.fit(
                self.obs, self.action, self.next_obs, self.entities, action_space=self.action_space, members=members,
                model=GraphConfig(position_size=self.position_size) if pairs else ModelConfig(), fitting=NETWORK,
                seed=self.seed, progress=False,
            )  # fmt: skip
        return self.fitted[name]


def pairs(problem: EdgeProblem) -> Floats:
    """The model of pairs: KL to the mixture with the source absent."""
    return _entities_of(problem.model(pairs=True).graph(problem.test_obs, problem.test_action).values)


def reference(problem: EdgeProblem) -> Floats:
    """CAI's form with a Gaussian network: KL to the mixture over other states of the source."""
    graph = problem.model().graph(problem.test_obs, problem.test_action, alternative="reference")
    return _entities_of(graph.values)


def nulling(problem: EdgeProblem) -> Floats:
    """A Gaussian network: KL to the mixture with the source at its mean."""
    return _entities_of(problem.model().graph(problem.test_obs, problem.test_action, alternative="absent").values)


def ensemble(problem: EdgeProblem) -> Floats:
    """`reference` with three networks, whose disagreement counts as noise."""
    graph = problem.model(members=3).graph(problem.test_obs, problem.test_action, alternative="reference")
    return _entities_of(graph.values)


def gradients(problem: EdgeProblem) -> Floats:
    """Input gradients of a Gaussian network: the norm of d mean_j / d s_i, in standard units."""
    influence = problem.model()
    model = influence.model
    obs = influence.model_obs(problem.test_obs).clone()
    action = influence.law.encode(torch.from_numpy(np.asarray(problem.test_action))).float()
    found = np.zeros((len(problem.test_obs), len(problem.entities), len(problem.entities)))
    inputs = torch.cat([obs, action.expand(model.replicas, -1, -1)], -1).requires_grad_(True)
    mean, _ = model(inputs)
    for target, name in enumerate(problem.entities):
        squared = torch.zeros_like(inputs)
        for dim in influence.dims(name):
            (slope,) = torch.autograd.grad(mean[..., dim].sum(), inputs, retain_graph=True)
            squared += slope.square()
        for source, columns in enumerate(problem.entities.values()):
            found[:, source, target] = squared[0][:, columns].sum(-1).sqrt().detach().numpy()
    return found


def distance(problem: EdgeProblem) -> Floats:
    """Minus the distance of source and target."""
    places = [problem.test_obs[:, columns[: problem.position_size]] for columns in problem.entities.values()]
    gaps = [[np.linalg.norm(one - other, axis=1) for other in places] for one in places]
    return -np.moveaxis(np.array(gaps, dtype=np.float64), 2, 0)


def moved(problem: EdgeProblem) -> Floats:
    """How far the target moved in the step, whatever the source."""
    count = len(problem.entities)
    change = problem.test_next - problem.test_obs
    ways = [
        np.linalg.norm(change[:, columns[: problem.position_size]], axis=1) for columns in problem.entities.values()
    ]
    return np.repeat(np.stack(ways, 1)[:, None], count, 1).astype(np.float64)


DETECTORS: dict[str, Callable[[EdgeProblem], Floats]] = {
    "pairs": pairs,
    "reference": reference,
    "nulling": nulling,
    "ensemble": ensemble,
    "gradients": gradients,
    "distance": distance,
    "moved": moved,
}


def _entities_of(values: Any) -> Floats:
    """The sources of a graph that are entities: [N, E, E]."""
    return np.nan_to_num(np.asarray(values, dtype=np.float64)[:, 1:])
