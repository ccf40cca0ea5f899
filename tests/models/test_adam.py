"""The written-out Adam against torch's."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from butfor.models.fitting import FitConfig, make_optimizer, set_rate
from butfor.models.gpu import adam_state, adam_step, can_compile, captured, compiled, tensors_of
from butfor.models.networks import MLP, make_generators


def trace(function: Callable[..., Any]) -> Callable[..., Any]:
    """Trace a function as one graph, without a compiler of code."""
    torch._dynamo.reset()  # else traces of other tests count as its own
    return torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=False)


def make_network(device: str = "cpu") -> MLP:
    """Two replicas."""
    return MLP([3, 8, 1], make_generators([1, 2]), layer_norm=True).to(device)


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
        exact = expected.dtype == torch.float64
        torch.testing.assert_close(ours, expected, rtol=1e-10 if exact else 1e-6, atol=0 if exact else 1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.9, 0.9), (0.0, 0.5)])
@torch.no_grad()
def test_steps_are_those_of_torch(
    betas: tuple[float, float], as_tensor: bool, traced: bool, dtype: torch.dtype
) -> None:
    network, other = make_network().to(dtype), make_network().to(dtype)
    rates: list[Any] = [torch.tensor(3e-3, dtype=dtype) if as_tensor else 3e-3 for _ in range(2)]
    optimizer, reference = (
        torch.optim.Adam(one.parameters(), lr=rate, betas=betas, foreach=False)
        for one, rate in zip((network, other), rates, strict=True)
    )
    step = trace(adam_step) if traced else adam_step
    for index in range(6):
        if index == 3 and as_tensor:
            for one in (optimizer, reference):
                set_rate(one, 1e-3)
        if index == 4:  # a state of torch is continued, in new tensors
            optimizer.load_state_dict(copy.deepcopy(reference.state_dict()))
            network.load_state_dict(other.state_dict())
        step(list(network.parameters()), draw_gradients(network, index), adam_state(optimizer))
        set_all(other, index)
        reference.step()
        assert_same(network, optimizer, other, reference)


def test_a_state_is_made_once_and_found_by_what_undoes_a_recording() -> None:
    network = make_network()
    optimizer = make_optimizer(network, FitConfig(betas=(0.5, 0.7)))
    state = adam_state(optimizer)
    again = adam_state(optimizer)
    made = [*state.first, *state.second, *state.steps]
    assert all(one is other for one, other in zip(made, [*again.first, *again.second, *again.steps], strict=True))
    assert {id(value) for value in made} == {id(value) for value in tensors_of([optimizer])}
    assert not any(value.any() for value in made)
    assert (state.rate, state.betas) == (3e-4, (0.5, 0.7))


@pytest.mark.skipif(not can_compile("cuda"), reason="no CUDA GPU with a compiler")
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("decay", [False, True])
@torch.no_grad()
def test_compiled_steps_on_a_gpu_are_those_of_torch(decay: bool, recorded: bool) -> None:
    network, other = make_network("cuda"), make_network("cuda")
    config = FitConfig(decay=decay)
    optimizer = make_optimizer(network, config)
    rate = make_optimizer(other, config).param_groups[0]["lr"]
    # the fused one rounds 1 - beta to single precision, which makes its steps wrong by up to 3e-5 of their size
    reference = torch.optim.Adam(other.parameters(), lr=rate, betas=config.betas, capturable=True, foreach=False)
    compiled_step = compiled(adam_step, "cuda")

    def take_step(factor: Tensor) -> Tensor:
        scaled = [factor * gradient for gradient in gradients]
        compiled_step(list(network.parameters()), scaled, adam_state(optimizer))
        return factor

    gradients = draw_gradients(network, 0)
    step = captured(take_step, [torch.ones((), device="cuda")], [network, optimizer]) if recorded else take_step
    for index in range(5):
        step(torch.tensor(1.0 + index, device="cuda"))
        for parameter, gradient in zip(other.parameters(), gradients, strict=True):
            parameter.grad = (1.0 + index) * gradient
        reference.step()
        assert_same(network, optimizer, other, reference)
