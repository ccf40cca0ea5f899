"""Passes without autograd against autograd."""

import pytest
import torch
from torch import nn

from butfor.models.networks import MLP, make_generators
from butfor.models.passes import AutogradPass, DirectPass, Pass, make_pass

REPLICAS, ROWS, INPUTS = 3, 20, 7


def make_network(outputs: int, layer_norm: bool, hidden: tuple[int, ...] = (40, 5, 12)) -> MLP:
    """A network whose biases, gains and offsets are not those that it starts with."""
    network = MLP([INPUTS, *hidden, outputs], make_generators(range(REPLICAS)), layer_norm).double()
    (generator,) = make_generators([5])
    for parameter in network.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return network


@pytest.mark.parametrize("outputs", [1, 4, 8, 9])  # narrow products are computed transposed
@pytest.mark.parametrize("layer_norm", [False, True])
def test_outputs_and_all_gradients_are_those_of_autograd(outputs: int, layer_norm: bool) -> None:
    network = make_network(outputs, layer_norm)
    (generator,) = make_generators([0])
    found = []
    shape = (REPLICAS, ROWS)
    batches = [torch.randn(*shape, INPUTS, generator=generator, dtype=torch.float64) for _ in range(2)]
    slopes = [torch.randn(*shape, outputs, generator=generator, dtype=torch.float64) for _ in range(2)]
    kinds: list[Pass] = [AutogradPass(network), DirectPass(network)]
    for run in kinds:
        results = []
        for inputs, slope in zip(batches, slopes, strict=True):  # the second uses the buffers of the first
            results.append(run(inputs).clone())
            results.append(run.input_gradient(slope, 2).clone())
            run(inputs)
            results += [found.clone() for found in run.gradients(slope)]
        found.append(results)
    assert len(found[0]) == 2 * (2 + len(list(network.parameters())))
    for expected, *others in zip(*found, strict=True):
        for ours in others:
            torch.testing.assert_close(ours, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_in_single_precision_all_kinds_are_close(layer_norm: bool) -> None:
    network = make_network(1, layer_norm).float()
    (generator,) = make_generators([0])
    inputs = torch.randn(REPLICAS, ROWS, INPUTS, generator=generator)
    slope = torch.randn(REPLICAS, ROWS, 1, generator=generator)
    kinds: list[Pass] = [AutogradPass(network), DirectPass(network)]
    expected, *others = ([run(inputs), *run.gradients(slope)] for run in kinds)
    for ours in others:
        for one, other in zip(ours, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_batches_of_another_size_and_precision_are_evaluated() -> None:
    network = make_network(2, layer_norm=True)
    run = DirectPass(network)
    (generator,) = make_generators([0])
    for rows, kind in ((6, torch.float64), (11, torch.float64), (11, torch.float32)):
        network.to(kind)
        inputs = torch.randn(REPLICAS, rows, INPUTS, generator=generator, dtype=kind)
        torch.testing.assert_close(run(inputs), network(inputs).detach())


def test_networks_with_another_activation_are_left_to_autograd() -> None:
    relu = make_network(1, layer_norm=False)
    silu = MLP([INPUTS, 4, 1], make_generators([0]), activation=nn.functional.silu)
    assert isinstance(make_pass(relu), DirectPass)
    assert isinstance(make_pass(silu), AutogradPass)
