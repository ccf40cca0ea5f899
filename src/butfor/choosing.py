"""The network behind `Influence.fit`: the one that is named; or the paper's, and a steep one where that misses much."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from butfor.diagnosis import LITTLE
from butfor.dynamics import STEEP, GaussianDynamics, ModelConfig, Table
from butfor.fitting import FitConfig, Fitting
from butfor.networks import make_generators

CLEARLY = 3  # standard errors
STILL = 1e-3  # largest spread, in scaled units, of a column that does not vary; one that does has about 1


def fit_network(
    train: Table,
    held_out: Table,
    obs_size: int,
    entities: Sequence[Sequence[int]],
    config: ModelConfig | None,
    fitting: FitConfig,
    seeds: Sequence[int],
    progress: Callable[[Fitting], None] | None = None,
) -> GaussianDynamics:
    """One replica a seed, fitted to inputs [N, D + A] and targets [N, d]; `entities` are sets of target columns.

    Without a `config` the smooth network of the paper is fitted, and where its mean explains too little of an entity's
    held-out change, the steep one, too; that is kept if what happened there is clearly more likely by it.
    """

    def fitted(config: ModelConfig) -> GaussianDynamics:
        generators = make_generators(seeds)
        inputs, targets = (part.shape[1] for part in train)
        network = GaussianDynamics(obs_size, inputs - obs_size, targets, config, generators).to(train[0].device)
        with torch.no_grad():  # a steady drift need not be learned
            network.mean_head.bias.copy_(train[1].mean(0))
        for run in Fitting(network, train, held_out, fitting, generators).run():
            if progress is not None:
                progress(run)
        return network

    smooth = fitted(config or ModelConfig())
    missed = [] if config else missed_columns(smooth, held_out, entities)
    if not missed:
        return smooth
    steep = fitted(STEEP)
    gained = log_likelihood(steep, held_out, missed) - log_likelihood(smooth, held_out, missed)
    return steep if gained.mean() > CLEARLY * gained.std() / len(gained) ** 0.5 else smooth


def missed_columns(network: GaussianDynamics, table: Table, entities: Sequence[Sequence[int]]) -> list[int]:
    """The target columns that vary, of those entities of whose change the predicted mean explains too little."""
    target = table[1]
    errors = (predict(network, table[0])[0].mean(0) - target).square()
    change = (target - target.mean(0)).square()
    varies = target.std(0, correction=0) > STILL
    missed: set[int] = set()
    for entity in entities:
        columns = [column for column in entity if varies[column]]
        if errors[:, columns].sum() > (1 - LITTLE) * change[:, columns].sum():
            missed |= set(columns)
    return sorted(missed)


def log_likelihood(network: GaussianDynamics, table: Table, columns: Sequence[int]) -> Tensor:
    """Of the changes of these columns, by the mean density of the replicas: [N]."""
    mean, variance = (part[..., list(columns)] for part in predict(network, table[0]))
    squared = (table[1][:, list(columns)] - mean).square() / variance
    by_replica = -0.5 * (squared + variance.log() + math.log(2 * math.pi)).sum(-1)  # [R, N]
    return by_replica.logsumexp(0) - math.log(network.replicas)


@torch.no_grad()
def predict(network: GaussianDynamics, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance by each replica, for shared inputs [N, D + A]: [R, N, d] each."""
    parts = [network(part.expand(network.replicas, -1, -1)) for part in inputs.split(8192)]
    mean, variance = (torch.cat(list(moment), 1) for moment in zip(*parts, strict=True))
    return mean, variance
