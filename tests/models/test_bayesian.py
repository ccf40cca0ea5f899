"""The Bayesian network against torch.distributions, and the information gain against plain loops and derivatives."""

import copy
import dataclasses
from itertools import pairwise
from typing import Any

import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import softplus

import butfor.models.bayesian
from butfor.models.bayesian import BayesianNetwork, VimeConfig, draw_noise, gain_of_steps, information_gain, kl_between
from butfor.models.fitting import FitConfig, make_optimizer, train_step
from butfor.models.networks import make_generators

OBS, ACTION, TARGET = 4, 2, 3
SIZES = (OBS, ACTION, TARGET)
SMALL = VimeConfig(layers=2, width=5, samples=3, batch_size=8, group=4, steps=3, kl_weight=0.01)
ALL = torch.arange(TARGET)
METHODS = ("iterated", "second_order")


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=make_generators([seed])[0])


def network(seeds: list[int], config: VimeConfig = SMALL, spread: float = 0.3) -> BayesianNetwork:
    """In evaluation mode, with deviations that differ between weights and normalisation that does something."""
    model = BayesianNetwork(SIZES, config, make_generators(seeds)).eval()
    with torch.no_grad():
        for replica, seed in enumerate(seeds):
            model.rho[replica] += spread * normal(seed + 100, model.size)
            model.offset[replica] += normal(seed + 200, 1, TARGET)
            if model.norm is not None:
                model.norm.mean[replica] += 0.1 * normal(seed + 300, 1, OBS + ACTION)
                model.norm.variance[replica] += 0.5
    return model


def with_settings(**changes: Any) -> VimeConfig:
    return dataclasses.replace(SMALL, **changes)


def groups(seeds: list[int], count: int, size: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs and targets of `count` groups of each seed; the last transitions of odd groups do not count."""
    x = torch.stack([normal(seed + 400, count, size, OBS + ACTION) for seed in seeds])
    target = torch.stack([normal(seed + 500, count, size, TARGET) for seed in seeds])
    valid = torch.ones(len(seeds), count, size, 1)
    valid[:, 1::2, -1] = 0
    return x, target, valid


def plain_forward(mean: Tensor, rho: Tensor, noise: Tensor, x: Tensor) -> Tensor:
    """One replica and one sample: mean, rho, noise [P], x [B, D + A] -> [B, d]."""
    weights, at = mean + softplus(rho) * noise, 0
    sizes = [OBS + ACTION, 5, 5, TARGET]
    for layer, (rows, columns) in enumerate(pairwise(sizes)):
        weight = weights[at : at + rows * columns].reshape(rows, columns)
        bias = weights[at + rows * columns : at + rows * columns + columns]
        x = x @ weight + bias
        at += rows * columns + columns
        if layer < 2:
            x = torch.relu(x)
    assert at == len(weights)
    return x


# --- the posterior --------------------------------------------------------------------------------


def test_kl_of_factorised_gaussians_is_that_of_torch() -> None:
    numbers = [normal(seed, 3, 50).double() for seed in range(4)]
    old, new = (numbers[0], numbers[1].exp()), (numbers[2], numbers[3].exp())
    expected = kl_divergence(Normal(*new), Normal(*old)).sum(-1)
    torch.testing.assert_close(kl_between(old, new), expected)
    assert not torch.allclose(kl_between(new, old), expected)  # which way round matters


def test_kl_is_exact_where_hardly_anything_changed() -> None:
    """In single precision, where the plain formula is mostly rounding."""
    mean, deviation = normal(0, 6000), 0.1 * normal(1, 6000).exp()
    new = mean + 1e-4 * normal(2, 6000), deviation * (1 + 1e-4 * normal(3, 6000))
    before, after = Normal(mean.double(), deviation.double()), Normal(new[0].double(), new[1].double())
    expected = kl_divergence(after, before).sum()
    torch.testing.assert_close(kl_between((mean, deviation), new).double(), expected, rtol=2e-3, atol=0)
    assert kl_between((mean, deviation), (mean, deviation)) == 0


def test_kl_to_the_prior() -> None:
    model = network([0, 1])
    expected = kl_divergence(Normal(*model.posterior()), Normal(0.0, SMALL.prior_sigma)).sum(-1)
    torch.testing.assert_close(model.kl(), expected)


def test_the_first_posterior() -> None:
    """Weights N(0, 0.2^2) in mean, biases 0, deviations those of the prior; each replica by its own stream."""
    config = VimeConfig(prior_sigma=0.07)
    model = BayesianNetwork((20, 9, 6), config, make_generators([3, 4]))
    assert model.size == 29 * 64 + 64 + 64 * 64 + 64 + 64 * 6 + 6
    torch.testing.assert_close(model.posterior()[1], torch.full((2, model.size), 0.07))
    pieces = model.mean.split(model.pieces, -1)
    for weight, bias in zip(pieces[::2], pieces[1::2], strict=True):
        assert not bias.any()
        assert weight.std().item() == pytest.approx(0.2, rel=0.1)
        assert not torch.equal(weight[0], weight[1])
    alone = BayesianNetwork((20, 9, 6), config, make_generators([4]))
    assert torch.equal(model.mean[1:], alone.mean)


# --- predictions and the loss ---------------------------------------------------------------------


def test_predictions_are_those_of_a_plain_network() -> None:
    model, noise, inputs = network([0, 1]), normal(7, 2, 3, network([0]).size), normal(8, 2, 6, OBS + ACTION)
    predicted = model(inputs, noise)
    assert predicted.shape == (2, 3, 6, TARGET)
    assert model.norm is not None
    for replica in range(2):
        spread = (model.norm.variance[replica] + 1e-5).sqrt()
        x = (inputs[replica] - model.norm.mean[replica]) / spread
        for sample in range(3):
            expected = plain_forward(model.mean[replica], model.rho[replica], noise[replica, sample], x)
            torch.testing.assert_close(predicted[replica, sample], expected + model.offset[replica])


@pytest.mark.parametrize("training", [True, False])
def test_the_loss_is_the_negative_elbo(training: bool) -> None:
    """Every sample is compared with the target of its own transition, with the deviation of the settings."""
    config = with_settings(likelihood_sigma=0.3, kl_weight=0.2, samples=8)  # as many samples as transitions
    model = network([0, 1], config).train(training)
    inputs, target, noise = normal(8, 2, 8, OBS + ACTION), normal(9, 2, 8, TARGET), normal(7, 2, 8, model.size)
    loss = copy.deepcopy(model).loss(inputs, target, noise)
    predicted = model(inputs, noise)
    for replica in range(2):
        terms = [
            -Normal(predicted[replica, sample, row], 0.3).log_prob(target[replica, row]).sum()
            for sample in range(8)
            for row in range(8)
        ]
        torch.testing.assert_close(loss[replica], torch.stack(terms).mean() + 0.2 * model.kl()[replica])


def test_without_normalisation_inputs_are_taken_as_they_are() -> None:
    model = network([0], with_settings(normalize_input=False)).train()
    inputs = normal(8, 1, 6, OBS + ACTION)
    assert model.normalized(inputs) is inputs


def test_replicas_are_each_replica_alone() -> None:
    model, alone = network([5, 6]), [network([5]), network([6])]
    inputs, target, noise = normal(8, 2, 6, OBS + ACTION), normal(9, 2, 6, TARGET), normal(7, 2, 3, model.size)
    loss = model.train().loss(inputs, target, noise)
    x, wanted, valid = groups([5, 6], 3)
    steps = normal(10, 2, SMALL.steps, 3, model.size)
    gain = information_gain(model, x, wanted, valid, steps, ALL)
    for replica, other in enumerate(alone):
        one = slice(replica, replica + 1)
        torch.testing.assert_close(other.train().loss(inputs[one], target[one], noise[one]), loss[one])
        assert other.norm is not None
        assert model.norm is not None
        torch.testing.assert_close(other.norm.mean[0], model.norm.mean[replica])
        found = information_gain(other, x[one], wanted[one], valid[one], steps[one], ALL)
        torch.testing.assert_close(found, gain[one])


# --- the information gain -------------------------------------------------------------------------


def plain_gain(model: BayesianNetwork, replica: int, x: Tensor, target: Tensor, noise: Tensor, dims: list[int]) -> Any:
    """One group by torch's own Adam and torch.distributions: x [n, D + A], target [n, d], noise [steps, S, P]."""
    config = model.config
    mean, deviation = model.posterior()
    old = Normal(mean[replica].detach(), deviation[replica].detach())
    new = [part[replica].detach().clone().requires_grad_() for part in (model.mean, model.rho)]
    optimizer = torch.optim.Adam(new, lr=config.learning_rate)
    for drawn in noise:
        objective = kl_divergence(Normal(new[0], softplus(new[1])), old).sum()
        for sample in drawn:
            predicted = plain_forward(new[0], new[1], sample, x) + model.offset[replica]
            likelihood = Normal(predicted[:, dims], config.likelihood_sigma).log_prob(target[:, dims])
            objective = objective - likelihood.sum() / len(drawn)
        optimizer.zero_grad()
        objective.backward()
        optimizer.step()
    return kl_divergence(Normal(new[0], softplus(new[1])), old).sum()


@pytest.mark.parametrize("dims", [[0, 1, 2], [2, 0]])
def test_the_iterated_gain_is_that_of_a_plain_loop(dims: list[int]) -> None:
    model = network([0, 1])
    x, target, valid = groups([0, 1], 3)
    noise = normal(7, 2, SMALL.steps, SMALL.samples, model.size)
    gain = information_gain(model, x, target, valid, noise, torch.tensor(dims))
    assert gain.shape == (2, 3)
    for replica in range(2):
        for group in range(3):
            rows = valid[replica, group, :, 0].bool()
            one = x[replica, group, rows], target[replica, group, rows]
            expected = plain_gain(model, replica, *one, noise[replica], dims)
            torch.testing.assert_close(gain[replica, group], expected, rtol=1e-3, atol=1e-5)


def test_the_second_order_gain_by_derivatives() -> None:
    """1/2 lambda^2 g' H^-1 g, with the Hessian of KL(new || old) at the old posterior by differentiation."""
    config = with_settings(method="second_order", step_size=0.3, largest=float("inf"))
    model = network([0], config)
    model.double()
    x, target, _ = (table.double() for table in groups([0], 1))
    noise = normal(7, 1, 1, config.samples, model.size).double()
    gain = information_gain(model, x, target, torch.ones(1, 1, 4, 1).double(), noise, ALL)
    old = torch.cat([model.mean[0], model.rho[0]]).detach()
    size = model.size

    def surprise(new: Tensor) -> Tensor:
        total = torch.zeros(()).double()
        for sample in noise[0, 0]:
            predicted = plain_forward(new[:size], new[size:], sample, x[0, 0]) + model.offset[0]
            total = total - Normal(predicted, config.likelihood_sigma).log_prob(target[0, 0]).sum()
        return total / config.samples

    def divergence(new: Tensor) -> Tensor:
        before = Normal(old[:size], softplus(old[size:]))
        return kl_divergence(Normal(new[:size], softplus(new[size:])), before).sum()

    gradient = torch.autograd.functional.jacobian(surprise, old)
    hessian = torch.autograd.functional.hessian(divergence, old)
    torch.testing.assert_close(hessian, torch.diag(hessian.diagonal()))
    expected = 0.5 * 0.3**2 * gradient @ torch.linalg.solve(hessian, gradient)
    torch.testing.assert_close(gain[0, 0], expected)


@pytest.mark.parametrize("method", METHODS)
def test_what_teaches_nothing_gains_nothing(method: Any) -> None:
    """Where the outcome is what all drawn networks predict no gradient is left: exactly zero."""
    model = network([0, 1], with_settings(method=method))
    model.offset.zero_()  # its rounding would be news
    x, _, valid = groups([0, 1], 3)
    noise = torch.zeros(2, SMALL.steps, SMALL.samples, model.size)
    weights = model.mean.detach()[:, None, None].expand(-1, 3, SMALL.samples, -1)  # those of zero noise
    predicted = model.apply_weights(weights.flatten(0, 1), x.flatten(0, 1))[:, 0].unflatten(0, (2, 3))
    assert not information_gain(model, x, predicted, valid, noise, ALL).any()
    predicted[0, 1, 0, 2] += 1
    gain = information_gain(model, x, predicted, valid, noise, ALL)
    assert gain.nonzero().tolist() == [[0, 1]]
    gain = information_gain(model, x, predicted, torch.zeros_like(valid), noise, ALL)
    assert not gain.any()  # nothing that counts was seen


@pytest.mark.parametrize("method", METHODS)
def test_gain_is_clipped(method: Any) -> None:
    model = network([0], with_settings(method=method, largest=0.01))
    x, target, valid = groups([0], 3)
    noise = normal(7, 1, SMALL.steps, SMALL.samples, model.size)
    assert (information_gain(model, x, 100 * target, valid, noise, ALL) == 0.01).all()


def trained(config: VimeConfig, batches: int) -> BayesianNetwork:
    """Has learned that the first target is twice the first action, and the others do not move."""
    model, generators = BayesianNetwork(SIZES, config, make_generators([0])), make_generators([1])
    optimizer = make_optimizer(model, FitConfig(learning_rate=config.learning_rate))
    for _ in range(batches):
        inputs = draw_noise(generators, config.batch_size, OBS + ACTION)
        noise = draw_noise(generators, config.samples, model.size)
        train_step(lambda x, y, noise=noise: model.loss(x, y, noise), optimizer, inputs, outcome(inputs))  # type: ignore
    return model.eval()


def outcome(inputs: Tensor) -> Tensor:
    moved = torch.zeros(*inputs.shape[:-1], TARGET)
    moved[..., 0] = 2 * inputs[..., OBS]
    return moved


@pytest.fixture(scope="module")
def learned() -> BayesianNetwork:
    return trained(VimeConfig(width=16, kl_weight=1e-3, learning_rate=0.01), 700)


@pytest.mark.parametrize("method", METHODS)
def test_a_surprise_teaches_more_than_the_familiar(learned: BayesianNetwork, method: Any) -> None:
    model = copy.deepcopy(learned)
    model.config = dataclasses.replace(model.config, method=method)
    inputs = normal(5, 1, 40, 10, OBS + ACTION)
    target = outcome(inputs)
    surprising = target.clone()
    surprising[0, 20:, :, 1] += 2.0  # something moves that never did
    valid = torch.ones(1, 40, 10, dtype=torch.bool)
    gains = [
        gain_of_steps(model, inputs, wanted, valid, make_generators([3]), range(TARGET))[0, :, 0]
        for wanted in (target, surprising)
    ]
    assert torch.equal(gains[0][:20], gains[1][:20])  # the same group has the same gain
    assert (gains[1][20:] > 2 * gains[0][20:]).all()
    assert gains[1][20:].min() > gains[0].max()


def test_both_gains_rank_alike_and_are_of_one_order(learned: BayesianNetwork) -> None:
    """From the familiar to outcomes several likelihood sigmas away."""
    inputs = normal(5, 1, 60, 10, OBS + ACTION)
    size = torch.linspace(0, 3, 60)[None, :, None, None]
    target = outcome(inputs) + size * normal(6, 1, 60, 10, TARGET)
    valid, gains = torch.ones(1, 60, 10, dtype=torch.bool), []
    for method in METHODS:
        model = copy.deepcopy(learned)
        model.config = dataclasses.replace(model.config, method=method)  # type: ignore[arg-type]
        gains.append(gain_of_steps(model, inputs, target, valid, make_generators([3]), range(TARGET))[0, :, 0])
    assert spearmanr(*gains).statistic > 0.8
    assert 0.1 < (gains[0] / gains[1]).median() < 10


# --- groups of steps ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_groups_stay_within_episodes_and_the_last_may_be_shorter(method: Any) -> None:
    config = with_settings(method=method)  # groups of 4
    model = network([0, 1], config)
    inputs, target = normal(8, 2, 3, 6, OBS + ACTION), normal(9, 2, 3, 6, TARGET)
    lengths = torch.tensor([[6, 3, 5], [4, 6, 1]])
    valid = torch.arange(6) < lengths[..., None]
    found = gain_of_steps(model, inputs, target, valid, make_generators([3, 4]), range(TARGET))
    noise = draw_noise(make_generators([3, 4]), config.steps if method == "iterated" else 1, 3, model.size)
    for replica in range(2):
        one = network([replica], config)
        for episode, length in enumerate(lengths[replica].tolist()):
            for start in (0, 4):
                rows = slice(start, min(start + 4, length))
                if start >= length:
                    assert not found[replica, episode, start:].any()
                    continue
                x = one.normalized(inputs[replica : replica + 1, episode, rows])
                wanted = target[replica : replica + 1, episode, rows]
                counts = torch.ones(1, 1, x.shape[1], 1)
                own = information_gain(one, x[:, None], wanted[:, None], counts, noise[replica : replica + 1], ALL)
                expected = own[0].expand(x.shape[1])
                torch.testing.assert_close(found[replica, episode, rows], expected, rtol=1e-4, atol=1e-5)
            assert not found[replica, episode, length:].any()


def test_parts_of_the_groups_at_a_time_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network([0, 1])
    inputs, target = normal(8, 2, 3, 10, OBS + ACTION), normal(9, 2, 3, 10, TARGET)
    valid = torch.ones(2, 3, 10, dtype=torch.bool)
    found = []
    for numbers in (1, 2 * SMALL.samples * model.size * 4, 2**19):  # groups in ones, fours, all nine
        monkeypatch.setitem(butfor.models.bayesian.AT_ONCE, "cpu", numbers)
        found.append(gain_of_steps(model, inputs, target, valid, make_generators([3, 4]), range(TARGET)))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_scoring_changes_nothing_to_the_bit(method: Any) -> None:
    config = with_settings(method=method)
    model = network([0, 1], config)
    before = copy.deepcopy(model.state_dict())
    inputs, target = normal(8, 2, 3, 6, OBS + ACTION), normal(9, 2, 3, 6, TARGET)
    with torch.no_grad():  # as a caller may have it
        gain = gain_of_steps(model, inputs, target, torch.ones(2, 3, 6, dtype=torch.bool), make_generators([3]), [0])
    assert (gain > 0).all()
    assert not gain.requires_grad
    assert not model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": 0}, "layers.*0"),
        ({"width": 0}, "width"),
        ({"samples": 0}, "samples"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 1}, "batch_size.*1"),
        ({"group": 0}, "group"),
        ({"steps": 0}, "steps"),
        ({"likelihood_sigma": 0.0}, "likelihood_sigma.*0.0"),
        ({"prior_sigma": -0.1}, "prior_sigma"),
        ({"learning_rate": float("nan")}, "learning_rate.*nan"),
        ({"step_size": 0.0}, "step_size"),
        ({"largest": 0.0}, "largest"),
        ({"kl_weight": -1.0}, "kl_weight.*-1.0"),
        ({"method": "exact"}, "method.*'exact'"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VimeConfig(**settings)


def test_batches_of_one_do_without_normalisation() -> None:
    assert VimeConfig(batch_size=1, normalize_input=False).batch_size == 1
