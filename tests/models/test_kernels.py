"""The kernels for scoring against the same formulas in double precision."""

import pytest
import torch
from torch import Tensor

from butfor.influence.gaussian import KL_FORMS, KLForm, kl_to_mixture
from butfor.models.dynamics import GaussianDynamics, ModelConfig
from butfor.models.gpu import deterministic, has_kernels
from butfor.models.networks import Activation, make_generators

pytestmark = pytest.mark.skipif(not has_kernels("cuda"), reason="no CUDA GPU that the kernels run on")


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=make_generators([0])[0]).cuda()


@pytest.mark.parametrize("activation", [None, "relu", "tanh"])
@pytest.mark.parametrize("sizes", [(2, 1000, 29, 256), (1, 5, 256, 40), (3, 130, 64, 130)])
def test_a_layer_is_as_exact_as_single_precision(sizes: tuple[int, int, int, int], activation: str | None) -> None:
    from butfor.models.gpu.kernels import layer, split

    replicas, rows, inner, columns = sizes
    x, bias = draw(replicas, rows, inner), draw(replicas, 1, columns)
    weight = draw(replicas, inner, columns) / inner**0.5
    plain = {None: lambda value: value, "relu": torch.relu, "tanh": torch.tanh}[activation]
    expected = plain(torch.baddbmm(bias.double(), x.double(), weight.double()))
    error = (layer(x, split(weight), bias, activation).double() - expected).abs().max()
    assert error <= max(2 * float((plain(torch.baddbmm(bias, x, weight)) - expected).abs().max()), 2e-6)


def test_a_layer_passes_nan_on() -> None:
    from butfor.models.gpu.kernels import layer, split

    x = draw(1, 4, 8)
    x[0, 2, 3] = torch.nan
    found = layer(x, split(draw(1, 8, 16)), draw(1, 1, 16), "relu")
    assert found[0, 2].isnan().all()
    assert not found[0, [0, 1, 3]].isnan().any()


@pytest.mark.parametrize("form", KL_FORMS)
@pytest.mark.parametrize("shape", [(3, 5, 32, 3), (2, 1, 7, 1), (4, 33, 2), (2, 64, 5), (1, 200, 3)])
@pytest.mark.parametrize("apart", [1.0, 1e-3])
def test_divergences_are_those_of_the_formula(shape: tuple[int, ...], form: KLForm, apart: float) -> None:
    """Also where all actions have nearly the same effect, as far as single precision goes."""
    mean, variance = apart * draw(*shape), (apart * draw(*shape)).exp()
    expected = kl_to_mixture(mean.double(), variance.double(), form=form)  # double precision has no kernel
    with deterministic(True):
        plain = kl_to_mixture(mean, variance, form=form)
    found = kl_to_mixture(mean, variance, form=form)
    allowed = 2 * float((plain - expected).abs().max()) + 1e-7
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=allowed)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("shared", [False, True])
def test_predictions_are_those_without_kernels(activation: Activation, shared: bool) -> None:
    """`shared`: one set of actions for all states."""
    model = (
        GaussianDynamics(5, 2, 3, ModelConfig(width=64, activation=activation), make_generators([1, 2])).cuda().eval()
    )
    obs, actions = draw(2, 50, 5), draw(2, 1 if shared else 50, 16, 2)
    found = model.predictor()(obs, actions)
    with deterministic(True):
        expected = model.predictor()(obs, actions)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
