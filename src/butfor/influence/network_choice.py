"""The network behind `Influence.fit`: the one that is named; or the paper's, and a steep one where that does not do."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from butfor.influence.diagnosis import LITTLE, is_empty_promise
from butfor.influence.scoring import ScoreConfig, log_density, predict_moments, score_actions
from butfor.models.dynamics import STEEP, GaussianDynamics, ModelConfig, Table, begin_network
from butfor.models.fitting import FitConfig, Fitting
from butfor.models.networks import make_generators

CLEARLY = 3  # standard errors
FEWEST_ROWS, MOST_ROWS = 100, 2_000  # held out, on which promises are looked at
OTHERS = 32  # actions beside the taken one
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

    Without a `config` the smooth network of the paper is fitted. Where its mean explains too little of an entity's
    held-out change, or its scores promise influence where that shows none, so is the steep one; that is kept if what
    happened there is clearly more likely by it.
    """

    def fitted(config: ModelConfig) -> GaussianDynamics:
        generators = make_generators(seeds)
        network = begin_network(obs_size, train, config, generators)
        for run in Fitting(network, train, held_out, fitting, generators).run():
            if progress is not None:
                progress(run)
        return network

    smooth = fitted(config or ModelConfig())
    missed = (
        [] if config else sorted({*missed_columns(smooth, held_out, entities), *boasting(smooth, held_out, entities)})
    )
    if not missed:
        return smooth
    steep = fitted(STEEP)
    states, taken = split_inputs(smooth, held_out[0])
    after, before = (
        log_density(network, states, taken[None, :, None], held_out[1], missed)[:, 0] for network in (steep, smooth)
    )
    gained = after - before
    return steep if gained.mean() > CLEARLY * gained.std() / len(gained) ** 0.5 else smooth


def missed_columns(network: GaussianDynamics, table: Table, entities: Sequence[Sequence[int]]) -> list[int]:
    """The target columns that vary, of those entities of whose change the predicted mean explains too little."""
    target = table[1]
    errors = (predict_moments(network, *split_inputs(network, table[0]))[0] - target).square()
    change = (target - target.mean(0)).square()
    varies = target.std(0, correction=0) > STILL
    missed: set[int] = set()
    for entity in entities:
        columns = [column for column in entity if varies[column]]
        if errors[:, columns].sum() > (1 - LITTLE) * change[:, columns].sum():
            missed |= set(columns)
    return sorted(missed)


def boasting(network: GaussianDynamics, table: Table, entities: Sequence[Sequence[int]]) -> list[int]:
    """The target columns of entities whose lower scores say nothing: as in `diagnose`, by the actions of the data."""
    if len(table[0]) < FEWEST_ROWS:
        return []
    generator = torch.Generator().manual_seed(0)
    some = torch.randperm(len(table[0]), generator=generator)[:MOST_ROWS].to(table[0].device)
    states, taken = split_inputs(network, table[0][some])
    others = torch.randint(len(some), (len(some), OTHERS), generator=generator).to(some.device)
    tried = torch.cat([taken[:, None], taken[others]], 1)[None]  # [1, N, 1 + OTHERS, A]
    promised = score_actions(network, states, tried, entities, ScoreConfig().form, network.replicas)[0].mean(1)
    boasted: list[int] = []
    for score, entity in zip(promised.T, entities, strict=True):  # [N]
        likelihood = log_density(network, states, tried, table[1][some], entity)
        lower = score.argsort()[: len(some) // 2]
        gain = (likelihood[:, 0] - likelihood.logsumexp(1) + math.log(1 + OTHERS))[lower]
        unsure = gain.std() / len(gain) ** 0.5
        if is_empty_promise(score[lower].mean().item(), gain.mean().item(), unsure.item()):
            boasted += entity
    return boasted


def split_inputs(network: GaussianDynamics, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs [N, D + A] as states, shared by the replicas [R, N, D], and actions [N, A]."""
    states, taken = inputs.tensor_split([network.obs_size], 1)
    return states.expand(network.replicas, -1, -1), taken
