"""Speed and repeatability on a GPU: CUDA graphs, compiled functions, matrix precision and deterministic operations.

Small networks spend more time on launching operations than on arithmetic, so a training step is recorded once as a CUDA
graph and replayed. On a CPU, and where the same bits are required, the same functions run as they are.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._triton import has_triton

Function = TypeVar("Function", bound=Callable[..., Any])
MOST_ROWS = 4096  # of a batch that `inputs.py` normalises: a program holds all of them
Changed = nn.Module | torch.optim.Optimizer | Tensor
"""What a step writes to."""


def captured(step: Callable[..., Any], examples: Sequence[Tensor], changes: Sequence[Changed]) -> Callable[..., Any]:
    """Record `step` as a CUDA graph for arguments shaped like `examples`; return `step` itself where this is not done.

    Recording needs a few warm-up calls; what they did to `changes` is undone. The result of a call is overwritten by
    the next one.
    """
    if examples[0].device.type != "cuda" or torch.are_deterministic_algorithms_enabled():
        return step
    arguments = [example.clone() for example in examples]
    fresh = [one for one in changes if isinstance(one, torch.optim.Optimizer) and not one.state]
    before = [value.clone() for value in tensors_of(changes)]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        if has_kernels(examples[0].device):
            with compiling_together():
                step(*arguments)
        for _ in range(3):
            step(*arguments)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step(*arguments)
    with torch.no_grad():
        for value in tensors_of(fresh):  # these optimisers had no moments before
            value.zero_()
        kept = [one for one in changes if not any(one is other for other in fresh)]
        for value, old in zip(tensors_of(kept), before, strict=True):
            value.copy_(old)

    def replay(*values: Tensor) -> Any:
        for argument, value in zip(arguments, values, strict=True):
            argument.copy_(value, non_blocking=True)
        graph.replay()
        return result

    return replay


RECOMPILED = 64  # kinds of arguments and settings a function is compiled for, at most; then it runs as it is


def compiled(function: Function, device: torch.device | str) -> Function:
    """Fuse the small operations of `function` on a GPU with a compiler; elsewhere return it as it is."""
    if not can_compile(device):
        return function
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, RECOMPILED)  # several models in a process share a function
    # loops of foreach operations cannot be reordered: torch 2.11 fails when it tries
    options: dict[str, Any] = {"loop_ordering_after_fusion": False}
    return torch.compile(function, dynamic=False, options=options)  # type: ignore[return-value]


def can_compile(device: torch.device | str) -> bool:
    """Whether `compiled` compiles: on a GPU with a C compiler and Triton, unless the same bits are required."""
    if torch.device(device).type != "cuda" or torch.are_deterministic_algorithms_enabled():
        return False
    return _has_compiler()


@cache  # it looks through folders, and is asked for each chunk of states that is scored
def _has_compiler() -> bool:
    return shutil.which("cc") is not None and has_triton()


@contextmanager
def compiling_together() -> Iterator[None]:
    """Kernels that are launched within for the first time are not launched, but compiled at the end, side by side.

    Most of a compilation is other programs: an assembler, and a C compiler for what launches the kernel.
    """
    import triton

    found: dict[str, Callable[[], Any]] = {}

    def note(*, fn: Any, compile: dict[str, Any], **rest: Any) -> bool:
        data = compile["specialization_data"]
        found[f"{fn.name} {data}"] = lambda: fn.jit_function.preload(data)._init_handles()
        return True

    before = triton.knobs.runtime.jit_cache_hook
    triton.knobs.runtime.jit_cache_hook = note
    try:
        yield
    finally:
        triton.knobs.runtime.jit_cache_hook = before
    with ThreadPoolExecutor() as pool:
        for compilation in [pool.submit(one) for one in found.values()]:
            with suppress(Exception):  # of another version of Triton: then the first launch compiles
                compilation.result()


def has_kernels(device: torch.device | str) -> bool:
    """Whether the kernels of this package run: they need the matrix units of NVIDIA's Ampere or later."""
    return can_compile(device) and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)


class SideStream:
    """On a GPU, what runs within it runs beside what follows outside, until `join`; elsewhere it runs at once.

    It may read what was computed before, which must be kept until `join`.
    """

    def __init__(self, device: torch.device | str) -> None:
        self._stream = torch.cuda.Stream() if torch.device(device).type == "cuda" else None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):  # None: no stream
            yield

    def join(self) -> None:
        """Let the present stream wait for it."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)


def tensors_of(changes: Sequence[Changed]) -> list[Tensor]:
    """Every tensor of modules and optimisers, in a fixed order."""
    found: list[Tensor] = []
    for one in changes:
        if isinstance(one, Tensor):
            found.append(one)
        elif isinstance(one, nn.Module):
            found += one.state_dict().values()
        else:
            parameters = [parameter for group in one.param_groups for parameter in group["params"]]
            for parameter in parameters:
                found += [value for _, value in sorted(one.state.get(parameter, {}).items())]
    return found


@contextmanager
def matrix_precision(precision: str) -> Iterator[None]:
    """Set the precision of float32 matrix products, "highest" or "high" (TF32); recorded graphs keep theirs."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def deterministic(on: bool) -> Iterator[None]:
    """If `on`, nothing is recorded or compiled, and only operations are used that always give the same bits."""
    before = torch.get_deterministic_debug_mode()
    if on:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS may sum in another order
        torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


def running_sum(values: Tensor) -> Tensor:
    """The cumulative sum over the last axis; computed on the CPU where the same bits are required."""
    if values.device.type == "cuda" and torch.are_deterministic_algorithms_enabled():
        return values.cpu().cumsum(-1).to(values.device)  # a GPU adds in any order
    return values.cumsum(-1)
