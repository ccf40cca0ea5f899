"""The network behind `Influence.fit`: the one that is named; or the paper's, and a steep one where that misses much."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from butfor.diagnosis import LITTLE
from butfor.dynamics import STEEP, GaussianDynamics, ModelConfig, Table
from butfor.fitting import FitConfig, Fitting
from butfor.networks import make_generators

CLEARLY = 3  # standard errors


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

    Without a `config` the smooth network of the paper is fitted, and where it explains too little of an entity's
    held-out change, the steep one, too; that is kept if its error there is clearly smaller.
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
    gained = (squared_errors(smooth, held_out) - squared_errors(steep, held_out))[:, missed].sum(1)
    return steep if gained.mean() > CLEARLY * gained.std() / len(gained) ** 0.5 else smooth


def missed_columns(network: GaussianDynamics, table: Table, entities: Sequence[Sequence[int]]) -> list[int]:
    """The target columns of those entities of whose change the predicted mean explains too little."""
    errors, change = squared_errors(network, table), (table[1] - table[1].mean(0)).square()
    too_little = [columns for columns in entities if errors[:, columns].sum() > (1 - LITTLE) * change[:, columns].sum()]
    return [column for columns in too_little for column in columns]


@torch.no_grad()
def squared_errors(network: GaussianDynamics, table: Table) -> Tensor:
    """Of the mean that the replicas predict together: [N, d]."""
    parts = zip(*(part.split(8192) for part in table), strict=True)
    means = [(network.predict_mean(x.expand(network.replicas, -1, -1)).mean(0) - y).square() for x, y in parts]
    return torch.cat(means)
