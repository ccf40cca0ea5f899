"""The network behind `Influence.fit`: the given one, or the paper's smooth one, replaced by a steep one if it fails."""

import math
from collections.abc import Callable, Sequence

import torch

from butfor.influence.diagnosis import LITTLE
from butfor.influence.scoring import ScoreConfig, log_density, predict_moments, score_actions, split_inputs
from butfor.models.dynamics import STEEP, GaussianDynamics, ModelConfig, make_network
from butfor.models.fitting import FitConfig, Fitting
from butfor.models.networks import make_generators
from butfor.models.tables import Table, Units

CLEARLY = 3  # standard errors
LOW_SCORE = 0.1  # nats: lower scores are not taken for influence
FEWEST_ROWS, MOST_ROWS = 100, 2_000  # held-out rows on which promises are checked
OTHERS = 32  # actions beside the taken one
STILL = 1e-3  # largest deviation, in scaled units, of a column that does not vary; others have about 1


def fit_network(
    train: Table,
    held_out: Table,
    units: Units,
    config: ModelConfig | None,
    fitting: FitConfig,
    seeds: Sequence[int],
    progress: Callable[[Fitting], None] | None = None,
) -> GaussianDynamics:
    """Fit one replica per seed; without a `config`, choose between the smooth and the steep network.

    The steep one is fitted if, on held-out rows, the smooth one explains too little of an entity's change or promises
    influence that they do not show. It is kept if it makes these rows clearly more likely.
    """

    def fit(config: ModelConfig) -> GaussianDynamics:
        generators = make_generators(seeds)
        network = make_network(len(units.obs_center), train, config, generators)
        for run in Fitting(network, train, held_out, fitting, generators).run():
            if progress is not None:
                progress(run)
        return network

    if config is not None:
        return fit(config)
    smooth = fit(ModelConfig())
    missed = {*unexplained_columns(smooth, held_out, units.dims), *overpromised_columns(smooth, held_out, units.dims)}
    if not missed:
        return smooth
    steep = fit(STEEP)
    obs, taken = split_inputs(smooth, held_out[0])
    by_steep, by_smooth = (
        log_density(network, obs, taken[None, :, None], held_out[1], sorted(missed))[:, 0]
        for network in (steep, smooth)
    )
    gain = by_steep - by_smooth
    return steep if gain.mean() > CLEARLY * gain.std() / len(gain) ** 0.5 else smooth


def unexplained_columns(network: GaussianDynamics, table: Table, entities: Sequence[Sequence[int]]) -> list[int]:
    """The varying target columns of entities whose change the predicted mean explains too little."""
    target = table[1]
    mean, _ = predict_moments(network, *split_inputs(network, table[0]))
    errors = (mean - target).square()
    change = (target - target.mean(0)).square()
    varies = target.std(0, correction=0) > STILL
    found: set[int] = set()
    for entity in entities:
        columns = [column for column in entity if varies[column]]
        if errors[:, columns].sum() > (1 - LITTLE) * change[:, columns].sum():
            found |= set(columns)
    return sorted(found)


def overpromised_columns(network: GaussianDynamics, table: Table, entities: Sequence[Sequence[int]]) -> list[int]:
    """The target columns of entities whose lower scores mean nothing, for actions of the data.

    In the lower half of the states the mean score is at least LOW_SCORE, and the held-out gain is clearly below half of
    it.
    """
    if len(table[0]) < FEWEST_ROWS:
        return []
    generator = torch.Generator().manual_seed(0)
    rows = torch.randperm(len(table[0]), generator=generator)[:MOST_ROWS].to(table[0].device)
    obs, taken = split_inputs(network, table[0][rows])
    others = torch.randint(len(rows), (len(rows), OTHERS), generator=generator).to(rows.device)
    tried = torch.cat([taken[:, None], taken[others]], 1)[None]  # [1, N, 1 + OTHERS, A]
    scores = score_actions(network, obs, tried, entities, ScoreConfig().form, network.replicas)[0].mean(1)  # [N, J]
    found: list[int] = []
    for score, entity in zip(scores.T, entities, strict=True):
        likelihood = log_density(network, obs, tried, table[1][rows], entity)  # [N, 1 + OTHERS]
        lower = score.argsort()[: len(rows) // 2]
        gain = (likelihood[:, 0] - likelihood.logsumexp(1) + math.log(1 + OTHERS))[lower]
        error = gain.std() / len(gain) ** 0.5
        promised = score[lower].mean().item()
        if promised >= LOW_SCORE and gain.mean().item() + CLEARLY * error.item() < promised / 2:
            found += entity
    return found
