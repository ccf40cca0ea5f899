"""Detectors of influence between entities, for `butfor benchmark influence`.

A detector is a function from an `EdgeProblem` to scores [N, source, target], higher for more influence; scores on the
diagonal are ignored. To add one, write the function and name it in `DETECTORS`:

    def speed(problem: EdgeProblem) -> Floats:
        moved = np.abs(problem.test_next - problem.test_obs)
        return np.stack([np.stack([moved[:, columns].sum(1)] * len(problem.entities), 1)
                         for columns in problem.entities.values()], 2)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from butfor.influence import GraphConfig, Influence
from butfor.influence.scoring import log_density
from butfor.models.attention import AttentionConfig, AttentionModel
from butfor.models.dynamics import ModelConfig
from butfor.models.fitting import FitConfig, Fitting
from butfor.models.networks import make_generators
from butfor.models.tables import split_table

Floats = NDArray[np.float64]
PAIR_MEMBERS = 3  # of the model of pairs
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
    test_contact: NDArray[Any] | None = None  # [N, E, E], which entities touch each other, by the simulator
    counted: int | None = None  # so many first columns of an entity count in the labels; None: its position
    fitted: dict[str, Influence] = field(default_factory=dict)  # models that several detectors use

    def model(self, members: int = 1) -> Influence:
        """Gaussian networks, fitted once."""
        return self._fit_once(f"{members} networks", ModelConfig(), members)

    def pair_model(self) -> Influence:
        """The model of pairs, fitted once."""
        return self._fit_once("pairs", GraphConfig(position_size=self.position_size), PAIR_MEMBERS)

    def _fit_once(self, name: str, settings: ModelConfig | GraphConfig, members: int) -> Influence:
        if name not in self.fitted:
            self.fitted[name] = fit_network_to(self, self.obs, self.next_obs, settings, members)
        return self.fitted[name]


def fit_network_to(
    problem: EdgeProblem,
    obs: NDArray[Any],
    next_obs: NDArray[Any],
    model: ModelConfig | GraphConfig = ModelConfig(),
    members: int = 1,
) -> Influence:
    """Fit a model to the problem's transitions, with these states."""
    return Influence.fit(
        obs, problem.action, next_obs, problem.entities, action_space=problem.action_space, members=members,
        model=model, fitting=NETWORK, seed=problem.seed, progress=False,
    )  # fmt: skip


def _tensors(*arrays: NDArray[Any]) -> Any:
    return tuple(torch.from_numpy(np.asarray(array)) for array in arrays)


def pairs(problem: EdgeProblem) -> Floats:
    """The model of pairs: KL to the mixture with the source absent."""
    return _entities_of(problem.pair_model().graph(problem.test_obs, problem.test_action).values)


def effects(problem: EdgeProblem) -> Floats:
    """The model of pairs: the estimated size of the effect, given the outcome."""
    return _effects(problem, problem.test_next)


def expected(problem: EdgeProblem) -> Floats:
    """The model of pairs: the expected size of the effect, before the outcome."""
    return _effects(problem, None)


def _effects(problem: EdgeProblem, after: NDArray[Any] | None) -> Floats:
    step = (problem.test_obs, problem.test_action, after)
    found = problem.pair_model().effects(*step, columns=problem.counted)
    return np.nan_to_num(np.asarray(found.values, dtype=np.float64))


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


def attention(problem: EdgeProblem) -> Floats:
    """A small Transformer for each target, with a token for each entity: attention of the target to the source."""
    columns = problem.entities
    width = problem.obs.shape[1]
    actions = list(range(width, width + problem.action.shape[1]))
    influence = problem.model()
    table = influence.units.table(_tensors(problem.obs, problem.action, problem.next_obs), "cpu")
    seen = influence.units.table(_tensors(problem.test_obs, problem.test_action, problem.test_next), "cpu")[0]
    train, held_out = split_table(table, 0.1, problem.seed)
    found = np.zeros((len(seen), len(columns), len(columns)))
    for place, name in enumerate(columns):
        tokens = {("object" if other == name else other): list(own) for other, own in columns.items()}
        tokens["action"] = actions
        dims = influence.dims(name)
        generators = make_generators([problem.seed])
        model = AttentionModel(tokens, len(dims), AttentionConfig(), generators)
        learned, checked = ((inputs, target[:, dims]) for inputs, target in (train, held_out))
        for _ in Fitting(model, learned, checked, NETWORK, generators).run():
            pass  # to the end
        with torch.no_grad():
            shares = model.eval().attend(seen[None])[1][0]  # [N, tokens], in the order of the entities
        found[:, :, place] = shares[:, : len(columns)].numpy()
    return found


def conditional_information(problem: EdgeProblem) -> Floats:
    """Pointwise conditional mutual information: log p(s'_j | s, a) - log p(s'_j | s without the columns of i, a).

    Each is a Gaussian network, the second one fitted to states in which the columns of i are 0.
    """

    def density(columns: Sequence[int]) -> list[Any]:
        """log p(s'_j | s, a) of every entity from a network that does not see some columns."""
        hidden = [np.array(part, dtype=np.float32) for part in (problem.obs, problem.test_obs)]
        for part in hidden:
            part[:, list(columns)] = 0
        after = [hidden[0] + problem.next_obs - problem.obs, hidden[1] + problem.test_next - problem.test_obs]
        influence = fit_network_to(problem, hidden[0], after[0])
        taken = influence.law.encode(torch.from_numpy(np.asarray(problem.test_action))).float()
        target = influence.units.table(_tensors(hidden[1], problem.test_action, after[1]), "cpu")[1]
        states = influence.model_obs(hidden[1])
        return [
            log_density(influence.model, states, taken[None, :, None], target, influence.dims(name))[:, 0].numpy()
            for name in problem.entities
        ]

    whole = density([])
    found = np.zeros((len(problem.test_obs), len(problem.entities), len(problem.entities)))
    for source, columns in enumerate(problem.entities.values()):
        for target, without in enumerate(density(columns)):
            found[:, source, target] = whole[target] - without
    return found


def contact(problem: EdgeProblem) -> Floats:
    """Whether source and target touch each other before the step, by the simulator."""
    if problem.test_contact is None:
        raise ValueError("The detector 'contact' needs test data with contacts.")
    return problem.test_contact.astype(np.float64)


def moved(problem: EdgeProblem) -> Floats:
    """How far the target moved in the step, whatever the source."""
    count = len(problem.entities)
    change = problem.test_next - problem.test_obs
    ways = [
        np.linalg.norm(change[:, columns[: problem.position_size]], axis=1) for columns in problem.entities.values()
    ]
    return np.repeat(np.stack(ways, 1)[:, None], count, 1).astype(np.float64)


DETECTORS: dict[str, Callable[[EdgeProblem], Floats]] = {
    "effects": effects,
    "expected": expected,
    "pairs": pairs,
    "reference": reference,
    "nulling": nulling,
    "ensemble": ensemble,
    "gradients": gradients,
    "attention": attention,
    "information": conditional_information,
    "contact": contact,
    "distance": distance,
    "moved": moved,
}


def choose_detectors(names: Sequence[str]) -> dict[str, Callable[[EdgeProblem], Floats]]:
    """The detectors of these names; all without a name."""
    if unknown := [name for name in names if name not in DETECTORS]:
        raise ValueError(f"There is no detector {', '.join(unknown)}; the detectors are {', '.join(DETECTORS)}.")
    return {name: DETECTORS[name] for name in names or DETECTORS}


def _entities_of(values: Any) -> Floats:
    """The sources of a graph that are entities: [N, E, E]."""
    return np.nan_to_num(np.asarray(values, dtype=np.float64)[:, 1:])
