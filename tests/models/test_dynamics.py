"""The Gaussian network against formulas, replicas against single ones, and its predictions for many actions."""

import math
from typing import Any

import pytest
import torch
from support.small_networks import CONFIGS, SEEDS, network, normal
from torch.distributions import Normal

from butfor.models.dynamics import GaussianDynamics, ModelConfig
from butfor.models.fitting import FitConfig, make_optimizer, train_step
from butfor.models.networks import Linear, make_generators
from butfor.spaces.actions import ActionLaw

UNIT = ActionLaw((-1.0,), (1.0,))


def used_network(**config: Any) -> GaussianDynamics:
    """A network whose running statistics and power vectors are no longer those it began with."""
    model = network(**config).train()
    optimizer = make_optimizer(model, FitConfig(learning_rate=1e-2))
    for step in range(5):
        train_step(model.loss, optimizer, 2 * normal(3, 30, 5, seed=step) + 1, normal(3, 30, 2, seed=10 + step))
    return model.eval()


each_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


# --- the network ----------------------------------------------------------------------------------


@each_config
def test_replicas_in_a_batch_learn_what_each_learns_alone(config: dict[str, Any]) -> None:
    together = network(**config)
    optimizer = make_optimizer(together, FitConfig(learning_rate=1e-2))
    alone = [network((seed,), **config) for seed in SEEDS]
    optimizers = [make_optimizer(model, FitConfig(learning_rate=1e-2)) for model in alone]
    for step in range(6):
        inputs, target = 2 * normal(3, 20, 5, seed=step) - 1, normal(3, 20, 2, seed=50 + step)
        losses = train_step(together.loss, optimizer, inputs, target)
        for replica, (model, single) in enumerate(zip(alone, optimizers, strict=True)):
            part = slice(replica, replica + 1)
            loss = train_step(model.loss, single, inputs[part], target[part])
            torch.testing.assert_close(losses[part], loss, rtol=1e-9, atol=1e-9)
            for (name, value), other in zip(together.named_parameters(), model.parameters(), strict=True):
                torch.testing.assert_close(value.grad[part], other.grad, rtol=1e-7, atol=1e-9, msg=name)  # type: ignore[index]
            for name, kept in model.state_dict().items():  # weights, batch statistics and power vectors
                torch.testing.assert_close(together.state_dict()[name][part], kept, rtol=1e-7, atol=1e-9, msg=name)
    together.eval()
    inputs = normal(3, 7, 5, seed=99)
    for replica, model in enumerate(alone):
        mean, variance = model.eval()(inputs[replica : replica + 1])
        torch.testing.assert_close(together(inputs)[0][replica], mean[0], rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(together(inputs)[1][replica], variance[0], rtol=1e-7, atol=1e-9)


def test_replicas_agree_in_single_precision_too() -> None:
    inputs, target = normal(3, 20, 5, dtype=torch.float32), normal(3, 20, 2, seed=1, dtype=torch.float32)
    loss = network(dtype=torch.float32).train().loss(inputs, target)
    for replica, seed in enumerate(SEEDS):
        part = slice(replica, replica + 1)
        single = network((seed,), torch.float32).train().loss(inputs[part], target[part])
        torch.testing.assert_close(loss[part], single, rtol=1e-5, atol=1e-6)


def test_the_mean_head_is_never_spectrally_normalised() -> None:
    for config in CONFIGS.values():
        model = network(**config)
        assert not model.mean_head.spectral_norm
        expected = config.get("spectral_norm_variance", True)
        assert model.variance_head.spectral_norm == expected
        hidden = [layer.spectral_norm for layer in model.hidden if isinstance(layer, Linear)]
        assert hidden == [config.get("spectral_norm_hidden", True)] * config.get("layers", 2)
    # a mean head ten times as large gives ten times the mean; a variance head ten times as large gives the same
    model = network(target_scale=1.0).eval()
    inputs = normal(3, 4, 5)
    mean, variance = model(inputs)
    model.mean_head.weight.data *= 10
    model.variance_head.weight.data *= 10
    torch.testing.assert_close(model(inputs)[0], 10 * mean)
    torch.testing.assert_close(model(inputs)[1], variance)


@pytest.mark.parametrize("min_variance", [1e-8, 1e-6, 1e-2, 0.5])
def test_the_variance_begins_at_one(min_variance: float) -> None:
    model = network(min_variance=min_variance)
    model.variance_head.weight.data.zero_()
    model.variance_head.spectral_norm = False
    _, variance = model(normal(3, 50, 5))
    torch.testing.assert_close(variance, torch.ones_like(variance), rtol=1e-9, atol=1e-9)


def test_an_untrained_network_predicts_a_variance_of_about_one() -> None:
    model = GaussianDynamics(10, 4, 3, ModelConfig(layers=3, width=64), make_generators(range(5))).train()
    _, variance = model(normal(5, 500, 14, dtype=torch.float32))
    assert variance.mean().item() == pytest.approx(1, abs=0.2)
    assert variance.min() > 0.2
    assert variance.max() < 3


@pytest.mark.parametrize(("low", "high"), [(1e-8, 200.0), (1e-6, 5.0), (2.0, 10.0)])
def test_the_variance_stays_within_its_limits(low: float, high: float) -> None:
    model = network(dtype=torch.float32, min_variance=low, max_variance=high, spectral_norm_variance=False)
    for bias, expected in ((-1e4, low), (1e4, high)):
        model.variance_head.bias.data.fill_(bias)
        _, variance = model(normal(3, 20, 5, dtype=torch.float32))
        assert torch.equal(variance, torch.full_like(variance, expected))


@pytest.mark.parametrize(
    ("low", "high"), [(1e-8, 200.0), (1e-6, 5.0), (1e-8, 1.0), (1e-6, 0.1), (2.0, 10.0), (1.0, 5000.0)]
)
def test_the_variance_can_be_learned_whatever_its_limits(low: float, high: float) -> None:
    model = network(min_variance=low, max_variance=high).train()
    model.loss(normal(3, 50, 5), normal(3, 50, 2, seed=1)).sum().backward()
    gradient = model.variance_head.bias.grad
    assert gradient is not None
    assert gradient.abs().min() > 0


def test_the_loss_is_the_gaussian_likelihood_summed_over_dimensions() -> None:
    model, inputs, target = network(), normal(3, 9, 5), normal(3, 9, 2, seed=1)
    model.eval()
    mean, variance = model(inputs)
    expected = -Normal(mean, variance.sqrt()).log_prob(target).sum(-1).mean(-1)
    torch.testing.assert_close(model.loss(inputs, target), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_beta_weights_each_term_by_its_variance_as_a_constant(beta: float) -> None:
    model, inputs, target = network(beta=beta).eval(), normal(3, 9, 5), normal(3, 9, 2, seed=1)
    mean, variance = model(inputs)
    weight = variance**beta
    terms = -Normal(mean, variance.sqrt()).log_prob(target)
    loss = model.loss(inputs, target)
    torch.testing.assert_close(loss, (weight * terms).sum(-1).mean(-1), rtol=1e-12, atol=1e-12)
    of_mean, of_variance = torch.autograd.grad(loss.sum(), [model.mean_head.bias, model.variance_head.bias])
    # d/d mean = s^(2 beta) (mean - y) / s^2, and d/d raw goes through s^2 = softplus(raw + c) + min alone:
    # the weight is a constant. The derivative of softplus is the logistic function, here 1 - exp(-softplus)
    expected = (weight * (mean - target) / variance).mean(1, keepdim=True)
    torch.testing.assert_close(of_mean, expected, rtol=1e-9, atol=1e-12)
    slope = 1 - torch.exp(-(variance - model.config.min_variance))
    expected = (weight * 0.5 * (1 / variance - (mean - target) ** 2 / variance**2) * slope).mean(1, keepdim=True)
    torch.testing.assert_close(of_variance, expected, rtol=1e-6, atol=1e-9)


def test_predict_mean_is_the_mean() -> None:
    model, inputs = network().eval(), normal(3, 9, 5)
    assert torch.equal(model.predict_mean(inputs), model(inputs)[0])


@each_config
@pytest.mark.parametrize("replicas", [1, 3], ids=["shared", "own"])
@pytest.mark.parametrize("states", [1, 4], ids=["for all states", "for each state"])
def test_the_predictor_is_forward_on_the_joined_inputs(states: int, replicas: int, config: dict[str, Any]) -> None:
    model, obs, actions = used_network(**config), normal(3, 4, 3), normal(replicas, states, 6, 2, seed=1)
    mean, variance = model.predictor()(obs, actions)
    assert mean.shape == variance.shape == (3, 4, 6, 2)
    for action in range(6):
        joined = torch.cat([obs, actions[:, :, action].expand(3, 4, 2)], -1)
        expected = model(joined)
        torch.testing.assert_close(mean[:, :, action], expected[0], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(variance[:, :, action], expected[1], rtol=1e-9, atol=1e-9)


def test_the_predictor_works_with_one_replica_state_and_action() -> None:
    model, obs, actions = network((0,)).eval(), normal(1, 1, 3), normal(1, 1, 1, 2)
    mean, _ = model.predictor()(obs, actions)
    torch.testing.assert_close(mean[:, :, 0], model(torch.cat([obs, actions[:, 0]], -1))[0])


def test_the_prediction_for_no_states_is_empty() -> None:
    for actions in (normal(1, 1, 6, 2), normal(3, 0, 6, 2)):
        mean, variance = network().eval().predictor()(normal(3, 0, 3), actions)
        assert mean.shape == variance.shape == (3, 0, 6, 2)


def test_the_predictor_overwrites_neither_its_inputs_nor_an_earlier_prediction() -> None:
    predict, obs, actions = used_network().predictor(), normal(3, 4, 3), normal(1, 4, 6, 2, seed=1)
    before = obs.clone(), actions.clone()
    mean, variance = predict(obs, actions)
    kept = mean.clone(), variance.clone()
    predict(obs + 1, actions)
    assert torch.equal(obs, before[0])
    assert torch.equal(actions, before[1])
    assert torch.equal(mean, kept[0])
    assert torch.equal(variance, kept[1])


def test_the_predictor_refuses_training_mode_and_changes_nothing() -> None:
    model = used_network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    mean, _ = model.predictor()(normal(3, 4, 3), normal(1, 4, 6, 2))
    assert not mean.requires_grad
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    with pytest.raises(RuntimeError, match="eval"):
        model.train().predictor()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, "layers.*0"),
        ({"width": 0}, "width.*0"),
        ({"activation": "gelu"}, "activation.*'gelu'"),
        ({"min_variance": 0.0}, "min_variance"),
        ({"min_variance": 5.0, "max_variance": 5.0}, "max_variance"),
        ({"min_variance": math.nan}, "min_variance"),
        ({"target_scale": 0.0}, "target_scale.*0.0"),
        ({"target_scale": math.nan}, "target_scale.*nan"),
        ({"beta": -0.1}, "beta.*-0.1"),
        ({"beta": 1.5}, "beta.*1.5"),
    ],
)
def test_a_wrong_model_setting_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig(**change)


@pytest.mark.parametrize("name", ["batch_size", "max_epochs", "validate_every", "patience", "learning_rate"])
def test_a_wrong_fit_setting_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}.*0"):
        FitConfig(**{name: 0})  # type: ignore[arg-type]
