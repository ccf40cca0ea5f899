"""GPU kernels that normalise a batch and update running statistics; a program has a few columns of one replica."""

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 4


def normalize(x: Tensor, mean: Tensor, variance: Tensor, least: Tensor, momentum: float, epsilon: float) -> Tensor:
    """Normalise [R, B, features] by the batch's statistics and update the running ones, as `InputNorm` in training."""
    replicas, rows, columns = x.shape
    x = x.contiguous()
    result = torch.empty_like(x)
    with torch.cuda.device_of(x):
        _normalize[(triton.cdiv(columns, COLUMNS), replicas)](
            x, mean, variance, least, result, rows, columns, momentum, epsilon, triton.next_power_of_2(rows), COLUMNS
        )
    return result


def observe(
    now: Tensor, then: Tensor, sums: tuple[Tensor, Tensor, Tensor], statistics: tuple[Tensor, Tensor], clip: float
) -> tuple[Tensor, Tensor]:
    """Include `now` in an agent's `Normalizer` and normalise both batches, [R, B, features].

    `sums` are of values and their squares [R, 1, features] and the number of rows [R, 1, 1], in double precision;
    `statistics` are mean and deviation.
    """
    replicas, rows, columns = now.shape
    now, then = now.contiguous(), then.contiguous()
    results = torch.empty_like(now), torch.empty_like(then)
    sums[2].add_(rows)
    with torch.cuda.device_of(now):
        _observe[(triton.cdiv(columns, COLUMNS), replicas)](
            now, then, *sums, *statistics, *results, rows, columns, clip, triton.next_power_of_2(rows), COLUMNS
        )
    return results


# Parameters have no types, since Triton reads annotations as its own.


@triton.jit
def _normalize(  # type: ignore[no-untyped-def]
    x, mean, variance, least, result, rows, columns, momentum, epsilon, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Some columns of a batch."""
    row = tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    replica = tl.program_id(1).to(tl.int64)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    at = (replica * rows + row)[:, None] * columns + column[None, :]
    own = replica * columns + column
    value = tl.load(x + at, inside, other=0.0)
    middle = tl.sum(value, 0) / rows
    apart = tl.where(inside, value - middle[None, :], 0.0)
    spread = tl.sum(apart * apart, 0) / rows
    before = tl.load(mean + own, column < columns, other=0.0)
    tl.store(mean + own, before + momentum * (middle - before), column < columns)
    before = tl.load(variance + own, column < columns, other=0.0)
    unbiased = spread * (rows / (rows - 1.0))
    tl.store(variance + own, before + momentum * (unbiased - before), column < columns)
    smallest = tl.load(least + own, column < columns, other=0.0)
    tl.store(result + at, apart / tl.sqrt(tl.maximum(spread, smallest) + epsilon)[None, :], inside)


@triton.jit
def _observe(  # type: ignore[no-untyped-def]
    now, then, total, square, count, mean, deviation, now_result, then_result, rows, columns, clip,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Some columns of two batches; the first also updates the statistics."""
    row = tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    replica = tl.program_id(1).to(tl.int64)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    at = (replica * rows + row)[:, None] * columns + column[None, :]
    own = replica * columns + column
    value = tl.load(now + at, inside, other=0.0)
    exact = value.to(tl.float64)
    summed = tl.load(total + own, column < columns, other=0.0) + tl.sum(exact, 0)
    squared = tl.load(square + own, column < columns, other=0.0) + tl.sum(exact * exact, 0)
    tl.store(total + own, summed, column < columns)
    tl.store(square + own, squared, column < columns)
    seen = tl.load(count + replica)
    middle = summed / seen
    spread = tl.sqrt(tl.maximum(squared / seen - middle * middle, 0.0001)).to(tl.float32)
    middle = middle.to(tl.float32)
    tl.store(mean + own, middle, column < columns)
    tl.store(deviation + own, spread, column < columns)
    value = (value - middle[None, :]) / spread[None, :]
    tl.store(now_result + at, tl.clamp(value, -clip, clip, propagate_nan=tl.PropagateNan.ALL), inside)
    value = (tl.load(then + at, inside, other=0.0) - middle[None, :]) / spread[None, :]
    tl.store(then_result + at, tl.clamp(value, -clip, clip, propagate_nan=tl.PropagateNan.ALL), inside)
