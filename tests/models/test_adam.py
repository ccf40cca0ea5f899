"""Adam and averages in one launch, against torch's."""

import copy
from typing import Any

import pytest
import torch
from support.kernels import DEVICE, ON_GPU, needs_triton
from torch import Tensor

from butfor.models.fitting import FitConfig, make_optimizer, set_rate
from butfor.models.gpu import captured, tensors_of
from butfor.models.networks import MLP, make_generators

pytestmark = needs_triton


def make_network() -> MLP:
    """Two replicas; some of its tensors need several programs."""
    return MLP([3, 40, 40, 1], make_generators([1, 2]), layer_norm=True).to(DEVICE)


def draw_gradients(network: MLP, seed: int) -> list[Tensor]:
    """Of sizes from 1e-5 to 1, so that Adam's epsilon and its first steps matter."""
    (generator,) = make_generators([seed])
    numbers = [torch.randn(parameter.shape, generator=generator) for parameter in network.parameters()]
    scaled = [value * 10.0 ** (-5 * torch.rand(value.shape, generator=generator)) for value in numbers]
    return [value.to(parameter) for value, parameter in zip(scaled, network.parameters(), strict=True)]


def set_all(network: MLP, seed: int) -> None:
    for parameter, gradient in zip(network.parameters(), draw_gradients(network, seed), strict=True):
        parameter.grad = gradient


def assert_same(network: MLP, optimizer: torch.optim.Adam, other: MLP, reference: torch.optim.Adam) -> None:
    """Weights, moments and step counts agree."""
    for ours, expected in zip(tensors_of([network, optimizer]), tensors_of([other, reference]), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.9, 0.9), (0.0, 0.5)])
def test_steps_are_those_of_torch(betas: tuple[float, float], as_tensor: bool) -> None:
    from butfor.models.gpu.adam import KernelAdam

    network, other = make_network(), make_network()
    rates: list[Any] = [torch.tensor(3e-3, device=DEVICE) if as_tensor else 3e-3 for _ in range(2)]
    optimizer = KernelAdam(network.parameters(), lr=rates[0], betas=betas, foreach=False, capturable=ON_GPU)
    reference = torch.optim.Adam(other.parameters(), lr=rates[1], betas=betas, foreach=False, capturable=ON_GPU)
    for index in range(6):
        if index == 3 and as_tensor:
            for one in (optimizer, reference):
                set_rate(one, 1e-3)
        if index == 4:  # a state of torch is continued, in new tensors
            optimizer.load_state_dict(copy.deepcopy(reference.state_dict()))
            network.load_state_dict(other.state_dict())
        set_all(network, index)  # new tensors at each step, as from autograd
        set_all(other, index)
        optimizer.step()
        reference.step()
        assert_same(network, optimizer, other, reference)


def test_gradients_that_stay_where_they_are_are_not_copied() -> None:
    from butfor.models.gpu.adam import KernelAdam

    network = make_network()
    optimizer = KernelAdam(network.parameters(), foreach=False, capturable=ON_GPU)
    set_all(network, 0)
    for _ in range(3):
        optimizer.step()
    assert all(kept is one.grad for kept, one in zip(optimizer.gradients, network.parameters(), strict=True))


def test_an_average_is_that_of_torch() -> None:
    from butfor.models.gpu.adam import Average

    targets, sources = ([value.to(DEVICE) for value in draw_gradients(make_network(), seed)] for seed in (0, 1))
    expected = [torch.lerp(one, other, 0.05) for one, other in zip(targets, sources, strict=True)]
    Average(targets, sources, 0.05)()
    for found, one in zip(targets, expected, strict=True):
        torch.testing.assert_close(found, one, rtol=1e-6, atol=1e-7)


@pytest.mark.skipif(not ON_GPU, reason="no CUDA GPU that the kernels run on")
@pytest.mark.parametrize("decay", [False, True])
def test_recorded_steps_are_those_of_torch(decay: bool) -> None:
    network, other = make_network(), make_network()
    config = FitConfig(decay=decay)
    optimizer = make_optimizer(network, config)
    assert type(optimizer).__name__ == "KernelAdam"
    rate = make_optimizer(other, config).param_groups[0]["lr"]
    # the fused one rounds 1 - beta to single precision, which makes its steps wrong by up to 3e-5 of their size
    reference = torch.optim.Adam(other.parameters(), lr=rate, betas=config.betas, capturable=True, foreach=False)
    gradients = draw_gradients(network, 0)

    def take_step(factor: Tensor) -> Tensor:
        for parameter, gradient in zip(network.parameters(), gradients, strict=True):
            parameter.grad = factor * gradient
        optimizer.step()
        return factor

    step = captured(take_step, [torch.ones((), device=DEVICE)], [network, optimizer])
    for index in range(5):
        step(torch.tensor(1.0 + index, device=DEVICE))
        for parameter, gradient in zip(other.parameters(), gradients, strict=True):
            parameter.grad = (1.0 + index) * gradient
        reference.step()
        assert_same(network, optimizer, other, reference)
