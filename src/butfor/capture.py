"""CUDA graphs: the same step, recorded once and replayed: small networks cost launches rather than arithmetic."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Function = TypeVar("Function", bound=Callable[..., Any])
Changed = nn.Module | torch.optim.Optimizer | Tensor
"""What a step writes to."""


def captured(step: Callable[..., Any], examples: Sequence[Tensor], changes: Sequence[Changed]) -> Callable[..., Any]:
    """`step` as a CUDA graph for arguments shaped like `examples`; anywhere but on a GPU, `step` itself.

    Recording needs a few calls to warm up; what they did to `changes` is undone. The result is overwritten by the
    next call.
    """
    if examples[0].device.type != "cuda":
        return step
    arguments = [example.clone() for example in examples]
    fresh = [one for one in changes if isinstance(one, torch.optim.Optimizer) and not one.state]
    before = [value.clone() for value in _tensors(changes)]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(*arguments)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step(*arguments)
    with torch.no_grad():
        for value in _tensors(fresh):  # it had no moments before
            value.zero_()
        kept = [one for one in changes if not any(one is other for other in fresh)]
        for value, old in zip(_tensors(kept), before, strict=True):
            value.copy_(old)

    def replay(*values: Tensor) -> Any:
        for argument, value in zip(arguments, values, strict=True):
            argument.copy_(value, non_blocking=True)
        graph.replay()
        return result

    return replay


def compiled(function: Function, device: torch.device | str) -> Function:
    """`function` with its small operations fused, on a GPU for which a compiler is installed; elsewhere itself."""
    if torch.device(device).type != "cuda" or shutil.which("cc") is None or not torch.utils._triton.has_triton():
        return function
    return torch.compile(function, dynamic=False)  # type: ignore[return-value]


def _tensors(changes: Sequence[Changed]) -> list[Tensor]:
    """Every tensor of modules and optimisers, in a fixed order."""
    found: list[Tensor] = []
    for one in changes:
        if isinstance(one, Tensor):
            found.append(one)
        elif isinstance(one, nn.Module):
            found += one.state_dict().values()
        else:
            groups = [parameter for group in one.param_groups for parameter in group["params"]]
            states = [one.state.get(parameter, {}) for parameter in groups]
            found += [value for state in states for _, value in sorted(state.items())]
    return found


@contextmanager
def matrix_precision(precision: str) -> Iterator[None]:
    """float32 matrix products on a GPU at "highest" precision, or "high" (TF32); recorded graphs keep theirs."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
