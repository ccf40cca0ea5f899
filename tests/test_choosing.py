"""Which network is fitted where none is named."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from butfor import Influence
from butfor.choosing import fit_network, missed_columns, squared_errors
from butfor.detect import evaluate
from butfor.dynamics import STEEP, GaussianDynamics, ModelConfig
from butfor.fitting import FitConfig, Fitting
from butfor.networks import make_generators

QUICK = FitConfig(batch_size=500, learning_rate=2e-3, max_epochs=60, validate_every=20)


def made_up(rows: int, seed: int, kinds: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs [N, 4] and one target a kind: a chessboard of +1 and -1, a plane, or chance alone."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(rows, 4, generator=generator) * 2 - 1
    chance = torch.randn(rows, 1, generator=generator)
    known = {"board": torch.sign(torch.sin(5 * x[:, :1]) * torch.sin(5 * x[:, 1:2])), "plane": x[:, :1] + x[:, 3:]}
    return x, torch.cat([known[kind] + 0.05 * chance if kind in known else chance for kind in kinds], 1)


def fit(
    kinds: list[str], config: ModelConfig | None = None, fitting: FitConfig = QUICK
) -> tuple[GaussianDynamics, list[ModelConfig]]:
    """The network for such targets, and the configurations that were fitted, in order."""
    tried: list[ModelConfig] = []

    def seen(run: Fitting) -> None:
        if run.epoch == 1:
            tried.append(run.module.config)  # type: ignore[arg-type]

    tables = made_up(2000, 0, kinds), made_up(500, 1, kinds)
    network = fit_network(*tables, 3, [[j] for j in range(len(kinds))], config, fitting, [0], seen)
    return network, tried


def test_what_the_smooth_network_misses_is_left_to_a_steep_one() -> None:
    network, tried = fit(["board"])
    assert tried == [ModelConfig(), STEEP]
    assert network.config == STEEP
    assert squared_errors(network, made_up(500, 2, ["board"])).mean() < 0.5


def test_what_is_explained_by_the_smooth_network_needs_no_other() -> None:
    network, tried = fit(["plane"])
    assert tried == [ModelConfig()]
    assert network.config == ModelConfig()
    assert not network.training


def test_where_nothing_can_be_explained_the_smooth_network_stays() -> None:
    network, tried = fit(["chance"], fitting=FitConfig(batch_size=500, learning_rate=2e-3, max_epochs=20))
    assert tried == [ModelConfig(), STEEP]
    assert network.config == ModelConfig()


@pytest.mark.parametrize("config", [ModelConfig(width=8), STEEP])
def test_a_named_network_is_the_only_one(config: ModelConfig) -> None:
    network, tried = fit(["chance"], config, FitConfig(batch_size=500, max_epochs=2))
    assert tried == [config]
    assert network.config == config


def test_missed_are_the_columns_of_entities_of_which_less_than_half_is_explained() -> None:
    config = ModelConfig(width=4, normalize_input=False)
    network = GaussianDynamics(1, 1, 3, config, make_generators([0, 1])).eval()
    with torch.no_grad():
        network.mean_head.weight.zero_()
        network.mean_head.bias.copy_(
            torch.tensor([[[1.0, 0.0, 0.0]], [[3.0, 0.0, 0.0]]])
        )  # 2 in the mean over replicas
    target = torch.tensor([[2.0, -1.0, 5.0], [2.0, 1.0, 5.0]])
    table = torch.zeros(2, 2), target
    assert torch.equal(squared_errors(network, table), torch.tensor([[0.0, 1.0, 25.0], [0.0, 1.0, 25.0]]))
    # column 0 never varies and is predicted exactly; 1 is predicted as its mean: R² = 0; 2 never varies and is missed
    assert missed_columns(network, table, [[0], [1], [2]]) == [1, 2]
    assert missed_columns(network, table, [[0]]) == []


def contact_world(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A point that pushes a disc out of its way, a second disc far from everything; where it can touch the first."""
    random = np.random.default_rng(seed)
    point, disc, other = random.uniform(-1, 1, (3, rows, 2))
    velocity = random.normal(0, 0.02, (2, rows, 2))
    action = random.uniform(-1, 1, (rows, 2))
    after = point + 0.2 * action
    apart = disc - after
    distance = np.linalg.norm(apart, axis=1, keepdims=True)
    push = np.where(distance < 0.35, (0.35 - distance) * apart / np.maximum(distance, 1e-6), 0)
    obs = np.hstack([point, disc, velocity[0], other, velocity[1]])
    moved = np.hstack(
        [after, disc + velocity[0] + push, 0.9 * velocity[0] + push, other + velocity[1], 0.9 * velocity[1]]
    )
    nearest = np.clip(disc, point - 0.2, point + 0.2)
    reachable = np.linalg.norm(disc - nearest, axis=1) < 0.35
    return obs, action, moved + random.normal(0, 0.01, obs.shape), reachable


def test_a_touch_that_changes_much_at_once_is_found_without_naming_a_network() -> None:
    obs, action, next_obs, _ = contact_world(6000, 11)
    entities, box = {"disc": [2, 3], "other": [6, 7]}, Box(-1.0, 1.0, (2,))
    fitting = FitConfig(batch_size=500, learning_rate=3e-3, max_epochs=60, validate_every=5)
    influence = Influence.fit(obs, action, next_obs, entities, action_space=box, fitting=fitting, seed=1)
    assert influence.model.config == STEEP
    new, _, _, reachable = contact_world(2000, 99)
    scores = influence.score(new)
    assert evaluate(np.asarray(scores["disc"]), reachable)["auc"] > 0.9
    assert scores["other"].mean() < 0.25 * scores["disc"][reachable].mean()
