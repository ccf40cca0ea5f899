"""Adam, and the averages that target networks are, in one launch for all parameters of a network.

torch's own kernels cut parameters into few, long pieces, which leaves most of a GPU idle with small networks. The state
stays that of `torch.optim.Adam`, so checkpoints are the same on every device.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # numbers in a program


class KernelAdam(torch.optim.Adam):
    """`torch.optim.Adam` without weight decay on a GPU (Kingma and Ba, 2015, algorithm 1)."""

    prepared: Any = None  # the state that the tensors below belong to; loading another one replaces it
    steps: Tensor  # of all parameters, so that one operation counts them
    gradients: list[Tensor]  # where the kernel reads them
    table: Tensor  # addresses

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step of every parameter; all of them have a gradient."""
        (group,) = self.param_groups
        if self.prepared is not self.state or not self.state:
            self._prepare(group["params"])
        new = [(old, one.grad) for old, one in zip(self.gradients, group["params"], strict=True) if one.grad is not old]
        if new:
            torch._foreach_copy_([old for old, _ in new], [gradient for _, gradient in new])
        self.steps += 1
        beta1, beta2 = group["betas"]
        rate = group["lr"]
        is_tensor = isinstance(rate, Tensor)  # a rate that changes
        largest = max(one.numel() for one in self.gradients)
        with torch.cuda.device_of(self.steps):
            _adam[(triton.cdiv(largest, BLOCK), len(self.gradients))](
                self.table, self.steps, rate if is_tensor else self.steps, 0.0 if is_tensor else rate,
                beta1, 1 - beta1, beta2, 1 - beta2, _logarithm(beta1), _logarithm(beta2), group["eps"],
                is_tensor, BLOCK,
            )  # fmt: skip

    step.hooked = True  # type: ignore[attr-defined]  # torch wraps it in a record for its profiler otherwise

    def _prepare(self, parameters: list[Tensor]) -> None:
        """Collect the addresses of all tensors, and the counts of the steps in one tensor."""
        states = [self.state[parameter] for parameter in parameters]
        if not states[0]:  # as torch makes it in the first step
            for state, parameter in zip(states, parameters, strict=True):
                state |= {"step": torch.zeros((), device=parameter.device)}
                state |= {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        self.steps = torch.stack([state["step"] for state in states])
        for state, count in zip(states, self.steps, strict=True):
            state["step"] = count
        self.gradients = [_kept(parameter) for parameter in parameters]
        moments = [[state[name] for state in states] for name in ("exp_avg", "exp_avg_sq")]
        self.table = _table(parameters, self.gradients, *moments)
        self.prepared = self.state


class Average:
    """target += weight (source - target) for all parameters of a network, in one launch."""

    def __init__(self, targets: list[Tensor], sources: list[Tensor], weight: float) -> None:
        self.kept = (targets, sources)  # a table does not keep what it points to
        self.table = _table(targets, sources)
        self.weight = weight
        self.grid = (triton.cdiv(max(one.numel() for one in targets), BLOCK), len(targets))

    def __call__(self) -> None:
        with torch.cuda.device_of(self.table):
            _average[self.grid](self.table, self.weight, BLOCK)


def _kept(parameter: Tensor) -> Tensor:
    """A parameter's gradient, in one piece."""
    assert parameter.grad is not None
    return parameter.grad if parameter.grad.is_contiguous() else parameter.grad.contiguous()


def _table(*lists: list[Tensor]) -> Tensor:
    """For each parameter its size, and the address of its tensor in each list: [n, 1 + lists]."""
    rows = [[tensors[0].numel(), *(tensor.data_ptr() for tensor in tensors)] for tensors in zip(*lists, strict=True)]
    for tensors in zip(*lists, strict=True):
        assert all(one.is_contiguous() and one.dtype == torch.float32 for one in tensors)
    return torch.tensor(rows, dtype=torch.int64).to(lists[0][0].device)


def _logarithm(beta: float) -> float:
    return math.log(beta) if beta else -math.inf


# Parameters have no types, since Triton reads annotations as its own.


@triton.jit
def _place(table, column, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The address in a column of the table, in the row of this program."""
    return tl.load(table + tl.program_id(1) * COLUMNS + column).to(tl.pointer_type(tl.float32))


@triton.jit
def _rest(log_beta, count):  # type: ignore[no-untyped-def]
    """1 - beta^count, to all digits of single precision."""
    x = log_beta * count
    power = tl.exp(x)
    # Kahan's e^x - 1; for large x the plain difference is exact enough
    small = tl.where(power == 1, x, (power - 1) * x / tl.log(power))
    return -tl.where(x < -1, power - 1, small)


@triton.jit
def _adam(  # type: ignore[no-untyped-def]
    table, steps, rate, fixed_rate, beta1, rest1, beta2, rest2, log1, log2, epsilon,
    IS_TENSOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Some numbers of one parameter; 1 - beta is given, because its digits are lost in single precision."""
    size = tl.load(table + tl.program_id(1) * 5)
    start = tl.program_id(0) * BLOCK
    if start < size:
        at = start + tl.arange(0, BLOCK)
        inside = at < size
        parameter, gradient = _place(table, 1, 5) + at, _place(table, 2, 5) + at
        first, second = _place(table, 3, 5) + at, _place(table, 4, 5) + at
        count = tl.load(steps + tl.program_id(1))
        size_of_step = fixed_rate
        if IS_TENSOR:
            size_of_step = tl.load(rate)
        slope = tl.load(gradient, inside, other=0.0)
        mean = beta1 * tl.load(first, inside, other=0.0) + rest1 * slope
        square = beta2 * tl.load(second, inside, other=0.0) + rest2 * slope * slope
        deviation = tl.sqrt(square) / tl.sqrt(_rest(log2, count)) + epsilon
        value = tl.load(parameter, inside, other=0.0)
        tl.store(parameter, value - size_of_step / _rest(log1, count) * mean / deviation, inside)
        tl.store(first, mean, inside)
        tl.store(second, square, inside)


@triton.jit
def _average(table, weight, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Some numbers of one parameter."""
    size = tl.load(table + tl.program_id(1) * 3)
    start = tl.program_id(0) * BLOCK
    if start < size:
        at = start + tl.arange(0, BLOCK)
        inside = at < size
        target, source = _place(table, 1, 3) + at, _place(table, 2, 3) + at
        value = tl.load(target, inside, other=0.0)
        tl.store(target, value + weight * (tl.load(source, inside, other=0.0) - value), inside)
