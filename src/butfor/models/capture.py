"""CUDA graphs: the same step, recorded once and replayed: small networks cost launches rather than arithmetic."""

import os
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
    """`step` as a CUDA graph for arguments shaped like `examples`; `step` itself elsewhere and where bits must repeat.

    Recording needs a few calls to warm up; what they did to `changes` is undone. The result is overwritten by the
    next call.
    """
    if examples[0].device.type != "cuda" or torch.are_deterministic_algorithms_enabled():
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
    if torch.device(device).type != "cuda" or torch.are_deterministic_algorithms_enabled():
        return function
    if shutil.which("cc") is None or not torch.utils._triton.has_triton():
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


@contextmanager
def deterministic(on: bool) -> Iterator[None]:
    """Where `on`, nothing is recorded or compiled, and only operations that give the same bits every time are used."""
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    if on:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS may sum in another order
    torch.use_deterministic_algorithms(on or before, warn_only=warns and not on)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)


def running_sum(values: Tensor) -> Tensor:
    """The cumulative sum over the last axis; a GPU adds in any order, so where bits must repeat the host does it."""
    if values.device.type == "cuda" and torch.are_deterministic_algorithms_enabled():
        return values.cpu().cumsum(-1).to(values.device)
    return values.cumsum(-1)
