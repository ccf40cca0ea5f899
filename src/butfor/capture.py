"""CUDA graphs: the same step, recorded once and replayed: small networks cost launches rather than arithmetic."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def captured(
    step: Callable[[Tensor], Tensor], example: Tensor, module: nn.Module, optimizer: torch.optim.Optimizer
) -> Callable[[Tensor], Tensor]:
    """`step` as a CUDA graph for arguments shaped like `example`; anywhere but on a GPU, `step` itself.

    Recording needs a few calls to warm up; what they did to the module and the optimiser is undone.
    """
    if example.device.type != "cuda":
        return step
    argument = example.clone()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    fresh = not optimizer.state
    moments = [value.clone() for value in _moments(optimizer)]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(argument)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step(argument)
    with torch.no_grad():
        for name, value in module.state_dict().items():
            value.copy_(before[name])
        for index, value in enumerate(_moments(optimizer)):
            value.zero_() if fresh else value.copy_(moments[index])

    def replay(value: Tensor) -> Tensor:
        argument.copy_(value)
        graph.replay()
        return result

    return replay


def _moments(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Every tensor of the optimiser's state, in a fixed order."""
    groups = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [value for parameter in groups for _, value in sorted(optimizer.state.get(parameter, {}).items())]
