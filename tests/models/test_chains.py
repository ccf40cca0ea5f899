"""The kernels of whole networks, and of what surrounds the transition model, against autograd and plain formulas."""

import copy
import math
from itertools import pairwise

import pytest
import torch
from support.kernels import DEVICE, ON_GPU, needs_triton
from torch import Tensor

from butfor.models.direct_gaussian import KernelGaussian
from butfor.models.dynamics import GaussianDynamics, ModelConfig
from butfor.models.gpu import has_kernels, matrix_precision
from butfor.models.networks import MLP, Activation, InputNorm, make_generators, tanh
from butfor.models.passes import AutogradPass, KernelPass, chain_of, make_pass
from butfor.training.agents.policy import Normalizer

pytestmark = needs_triton

# inputs, hidden layers, outputs: a width that is not a power of two, one hidden layer, more outputs than a tile has
SIZES = [(11, (32, 32, 32), 3), (5, (48, 48), 1), (40, (16,), 20), (3, (40, 40), 17)]


def make_network(inputs: int, hidden: tuple[int, ...], outputs: int, layer_norm: bool, activation: Activation) -> MLP:
    """A network of two replicas whose biases, gains and offsets are not those that it starts with."""
    function = {"relu": torch.relu, "tanh": tanh}[activation]
    network = MLP([inputs, *hidden, outputs], make_generators([0, 1]), layer_norm, function)
    (generator,) = make_generators([5])
    for parameter in network.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return network.to(DEVICE)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=make_generators([seed])[0]).to(DEVICE)


@pytest.mark.parametrize("rows", [70, 5])  # several programs, and fewer rows than one has
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_outputs_and_all_gradients_are_those_of_autograd(
    sizes: tuple[int, tuple[int, ...], int], layer_norm: bool, activation: Activation, rows: int
) -> None:
    network = make_network(*sizes, layer_norm, activation)
    inputs, slope = draw(2, rows, sizes[0]), draw(2, rows, sizes[2], seed=1)
    found = []
    for run in (AutogradPass(network), KernelPass(network)):
        outputs = run(inputs).clone()
        of_inputs = run.input_gradient(slope, 2).clone()
        run(inputs)
        found.append([outputs, of_inputs, *(one.clone() for one in run.gradients(slope))])
    for expected, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=2e-5 * float(expected.abs().max()) + 1e-6)


def test_nan_is_passed_on() -> None:
    run = KernelPass(make_network(3, (16, 16), 2, False, "relu"))
    inputs = draw(2, 40, 3)
    inputs[1, 7, 0] = torch.nan
    outputs = run(inputs)
    assert outputs[1, 7].isnan().all()
    assert int(outputs.isnan().sum()) == 2


def test_gradients_are_written_where_they_were_before() -> None:
    """A recorded graph and the kernel of Adam know these addresses."""
    network = make_network(3, (16, 16), 2, True, "relu")
    run = KernelPass(network)
    run(draw(2, 8, 3))
    before = [one.data_ptr() for one in run.gradients(draw(2, 8, 2))]
    run(draw(2, 8, 3, seed=3))
    assert [one.data_ptr() for one in run.gradients(draw(2, 8, 2, seed=4))] == before
    assert [one.grad.data_ptr() for one in network.parameters() if one.grad is not None] == before


@pytest.mark.parametrize(("hidden", "takes"), [((16, 16), True), ((16, 32), False), ((513, 513), False)])
def test_networks_that_do_not_fit_are_left_to_others(hidden: tuple[int, ...], takes: bool) -> None:
    from butfor.models.gpu import chains

    network = make_network(3, hidden, 1, False, "relu")
    assert chains.fits(chain_of(network)) == takes
    assert not chains.fits(chain_of(copy.deepcopy(network).double()))
    if ON_GPU:
        assert isinstance(make_pass(network), KernelPass) == takes


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("spectral_norm", [(False, True), (True, True), (False, False)])  # of hidden layers, variance
def test_a_step_of_the_model_is_that_of_autograd(spectral_norm: tuple[bool, bool], beta: float) -> None:
    """The loss, all gradients, running statistics and singular vectors; some variances are at their upper limit."""
    hidden, variance = spectral_norm
    config = ModelConfig(
        layers=2, width=24, activation="tanh", spectral_norm_hidden=hidden, spectral_norm_variance=variance,
        max_variance=2.1, beta=beta,
    )  # fmt: skip
    model = GaussianDynamics(5, 2, 3, config, make_generators([1, 2])).to(DEVICE).train()
    model.variance_head.weight.data *= 3
    other = copy.deepcopy(model)
    direct = KernelGaussian(other)
    for seed in (0, 1):
        inputs, target = 3 * draw(2, 300, 7, seed=seed) + 1, draw(2, 300, 3, seed=seed + 5)
        model.zero_grad()
        loss = model.loss(inputs, target)
        loss.sum().backward()
        torch.testing.assert_close(direct(inputs, target), loss.detach(), rtol=1e-4, atol=1e-5)
        for (name, one), ours in zip(model.named_parameters(), other.parameters(), strict=True):
            assert one.grad is not None
            scale = float(one.grad.abs().max())
            torch.testing.assert_close(ours.grad, one.grad, rtol=1e-3, atol=3e-4 * scale, msg=f"gradient of {name}")
    for (name, expected), found in zip(model.named_buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("raw", [-40.0, -15.0, 0.0, 30.0])
def test_likelihoods_of_extreme_variances_are_exact(raw: float) -> None:
    """Against double precision, where softplus is nearly 0 and nearly linear."""
    from butfor.models.gpu import gaussian

    output = torch.cat([1e-3 * draw(1, 40, 2), torch.full((1, 40, 2), raw, device=DEVICE)], -1)
    target = 1e-3 * draw(1, 40, 2, seed=1)
    exact = output.double().requires_grad_(True)
    mean, rise = exact.split(2, -1)
    variance = torch.nn.functional.softplus(rise, threshold=100) + 1e-8
    terms = 0.5 * ((target - mean).square() / variance + variance.log() + math.log(2 * math.pi))
    expected = terms.sum(-1).mean(-1)
    expected.sum().backward()
    loss, gradient = gaussian.likelihood(output, target, 0.0, 1e-8, 200.0, 0.0)
    torch.testing.assert_close(loss.double(), expected.detach(), rtol=1e-5, atol=1e-5)
    assert exact.grad is not None
    torch.testing.assert_close(gradient.double(), exact.grad, rtol=1e-4, atol=1e-6)


def test_batches_are_normalised_as_by_the_model() -> None:
    from butfor.models.gpu import inputs
    from butfor.models.networks import EPSILON, MOMENTUM

    norm = InputNorm(6, 2, 4).to(DEVICE).train()
    other = copy.deepcopy(norm)
    for seed in (0, 1):
        x = 3 * draw(2, 45, 6, seed=seed) + 2
        x[..., 5] = 0.25  # an action that is never tried
        expected = norm(x)
        found = inputs.normalize(x, other.mean, other.variance, other.least, MOMENTUM, EPSILON)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    for one, ours in zip(norm.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(ours, one, rtol=1e-5, atol=1e-6)


def test_an_agents_inputs_are_observed_and_normalised() -> None:
    from butfor.models.gpu import inputs

    plain, other = Normalizer(7, 3, 1.5).to(DEVICE), Normalizer(7, 3, 1.5).to(DEVICE)
    for seed in (0, 1):
        now, then = 2 * draw(3, 40, 7, seed=seed) + 1, draw(3, 40, 7, seed=seed + 2)
        now[..., 0] = 3.0  # without any spread
        plain.update(now)
        sums, statistics = (other.total, other.square, other.count), (other.mean, other.deviation)
        found = inputs.observe(now, then, sums, statistics, other.clip)
        for ours, expected in zip(found, (plain(now), plain(then)), strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    for one, ours in zip(plain.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(ours, one, rtol=1e-6, atol=1e-6)


@pytest.mark.skipif(not ON_GPU, reason="no CUDA GPU that the kernels run on: the interpreter rounds nothing to TF32")
def test_products_are_rounded_only_where_torch_rounds_its_own() -> None:
    network = make_network(31, (256, 256, 256), 4, False, "tanh")
    inputs = draw(2, 200, 31)
    exact = copy.deepcopy(network).double()(inputs.double())
    errors = []
    for precision in ("highest", "high"):
        with matrix_precision(precision):
            errors.append(float((KernelPass(network)(inputs).double() - exact).abs().max()))
    assert errors[0] < 1e-5 < errors[1] < 1e-2
    assert has_kernels("cuda")


def test_wider_networks_have_fewer_rows_in_a_program() -> None:
    from butfor.models.gpu import chains

    tiles = [chains._tile(width) for width in (16, 100, 256, 512)]
    assert [tile["COLUMNS"] for tile in tiles] == [16, 128, 256, 512]
    assert all(tile["ROWS"] * tile["COLUMNS"] <= 16384 for tile in tiles)
    assert all(one["ROWS"] >= other["ROWS"] for one, other in pairwise(tiles))
