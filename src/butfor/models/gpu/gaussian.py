"""GPU kernels for both heads of `GaussianDynamics` and its loss; a program has one replica."""

import torch
import triton
import triton.language as tl
from torch import Tensor

SMALLEST = 1e-12  # length that a vector is divided by at least, as in torch


def join_heads(
    mean: tuple[Tensor, Tensor], variance: tuple[Tensor, Tensor], vectors: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Weight [R, width, 2 d] and bias [R, 1, 2 d] of both heads, and the variance head's largest singular value [R].

    With singular `vectors`, left [R, width, 1] and right [R, d, 1], these take a step of power iteration, and the
    variance head's weight is divided by that value; without, it is 1.
    """
    weight, bias = mean
    replicas, width, size = weight.shape
    joined, offset = weight.new_empty(replicas, width, 2 * size), weight.new_empty(replicas, 1, 2 * size)
    value = weight.new_empty(replicas)
    left, right = vectors or (value, value)
    with torch.cuda.device_of(weight):
        _join_heads[(replicas,)](
            weight, bias, *variance, left, right, joined, offset, value,
            width, size, vectors is not None, SMALLEST, triton.next_power_of_2(width), triton.next_power_of_2(size),
        )  # fmt: skip
    return joined, offset, value


def split_heads(
    joined: Tensor, gradient: tuple[Tensor, Tensor], value: Tensor,
    vectors: tuple[Tensor, Tensor] | None, mean: tuple[Tensor, Tensor], variance: tuple[Tensor, Tensor],
) -> None:  # fmt: skip
    """Write the gradients in both heads' own weights and biases, given those in the joint ones of `join_heads`."""
    replicas, width, size = mean[0].shape
    left, right = vectors or (value, value)
    with torch.cuda.device_of(value):
        _split_heads[(replicas,)](
            joined, *gradient, left, right, value, *mean, *variance,
            width, size, vectors is not None, triton.next_power_of_2(width), triton.next_power_of_2(size),
        )  # fmt: skip


def likelihood(
    output: Tensor, target: Tensor, offset: float, least: float, most: float, beta: float
) -> tuple[Tensor, Tensor]:
    """The loss [R] of `GaussianDynamics` and its gradient in the outputs of both heads, [R, B, 2 d]."""
    replicas, rows, size = target.shape
    loss, gradient = output.new_empty(replicas), torch.empty_like(output)
    with torch.cuda.device_of(output):
        _likelihood[(replicas,)](
            output, target.contiguous(), loss, gradient, rows, size, offset, least, most, beta, beta != 0,
            256, triton.next_power_of_2(size),
        )  # fmt: skip
    return loss, gradient


# Parameters have no types, since Triton reads annotations as its own.


@triton.jit
def _join_heads(  # type: ignore[no-untyped-def]
    mean_weight, mean_bias, weight, bias, left, right, joined, offset, value, width, size,
    SPECTRAL: tl.constexpr, SMALLEST: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Both heads of one replica."""
    replica = tl.program_id(0).to(tl.int64)
    unit, column = tl.arange(0, WIDTH), tl.arange(0, SIZE)
    inside = (unit < width)[:, None] & (column < size)[None, :]
    at = (replica * width + unit)[:, None] * size + column[None, :]
    to = (replica * width + unit)[:, None] * 2 * size + column[None, :]
    own = tl.load(weight + at, inside, other=0.0)
    if SPECTRAL:
        across = tl.load(right + replica * size + column, column < size, other=0.0)
        along = tl.sum(own * across[None, :], 1)
        along /= tl.maximum(tl.sqrt(tl.sum(along * along, 0)), SMALLEST)
        across = tl.sum(own * along[:, None], 0)
        across /= tl.maximum(tl.sqrt(tl.sum(across * across, 0)), SMALLEST)
        tl.store(left + replica * width + unit, along, unit < width)
        tl.store(right + replica * size + column, across, column < size)
        largest = tl.sum(tl.sum(own * along[:, None] * across[None, :], 1), 0)
        own /= largest
    else:
        largest = 1.0
    tl.store(value + replica, largest)
    tl.store(joined + to, tl.load(mean_weight + at, inside, other=0.0), inside)
    tl.store(joined + to + size, own, inside)
    at, to = replica * size + column, replica * 2 * size + column
    tl.store(offset + to, tl.load(mean_bias + at, column < size, other=0.0), column < size)
    tl.store(offset + to + size, tl.load(bias + at, column < size, other=0.0), column < size)


@triton.jit
def _split_heads(  # type: ignore[no-untyped-def]
    joined, gradient, of_offset, left, right, value, mean_weight, mean_bias, weight, bias, width, size,
    SPECTRAL: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Both heads of one replica. With W / s as applied, the gradient in W is (G - <G, W / s> left right') / s."""
    replica = tl.program_id(0).to(tl.int64)
    unit, column = tl.arange(0, WIDTH), tl.arange(0, SIZE)
    inside = (unit < width)[:, None] & (column < size)[None, :]
    to = (replica * width + unit)[:, None] * size + column[None, :]
    at = (replica * width + unit)[:, None] * 2 * size + column[None, :]
    tl.store(mean_weight + to, tl.load(gradient + at, inside, other=0.0), inside)
    own = tl.load(gradient + at + size, inside, other=0.0)
    if SPECTRAL:
        applied = tl.load(joined + at + size, inside, other=0.0)
        along = tl.load(left + replica * width + unit, unit < width, other=0.0)
        across = tl.load(right + replica * size + column, column < size, other=0.0)
        shared = tl.sum(tl.sum(own * applied, 1), 0)
        own = (own - shared * along[:, None] * across[None, :]) / tl.load(value + replica)
    tl.store(weight + to, own, inside)
    to, at = replica * size + column, replica * 2 * size + column
    tl.store(mean_bias + to, tl.load(of_offset + at, column < size, other=0.0), column < size)
    tl.store(bias + to, tl.load(of_offset + at + size, column < size, other=0.0), column < size)


@triton.jit
def _likelihood(  # type: ignore[no-untyped-def]
    output, target, loss, gradient, rows, size, offset, least, most, beta,
    WEIGHED: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """All rows of one replica."""
    replica = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, SIZE)
    total = tl.zeros([ROWS, SIZE], tl.float32)
    for start in range(0, rows, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (column < size)[None, :]
        at = (replica * rows + row)[:, None] * 2 * size + column[None, :]
        mean = tl.load(output + at, inside, other=0.0)
        raw = tl.load(output + at + size, inside, other=0.0) + offset
        wanted = tl.load(target + (replica * rows + row)[:, None] * size + column[None, :], inside, other=0.0)
        power = tl.exp(-tl.abs(raw))
        one_more = 1 + power
        rise = tl.where(one_more == 1, power, tl.log(one_more) * power / (one_more - 1))  # log(1 + power), exactly
        free = tl.maximum(raw, 0.0) + rise + least  # softplus
        variance = tl.where(free > most, most, free)  # NaN stays
        slope = tl.where(raw >= 0, 1 / one_more, power / one_more)  # of softplus
        error = mean - wanted
        scaled = error / variance
        squared = scaled * error
        term = 0.5 * (squared + tl.log(variance) + 1.8378770664093453)  # log(2 pi)
        in_mean = scaled / rows
        in_variance = tl.where(free <= most, 0.5 / rows * (1 - squared) / variance * slope, 0.0)
        if WEIGHED:
            weight = tl.exp(beta * tl.log(variance))
            term *= weight
            in_mean *= weight
            in_variance *= weight
        total += tl.where(inside, term, 0.0)
        tl.store(gradient + at, in_mean, inside)
        tl.store(gradient + at + size, in_variance, inside)
    tl.store(loss + replica, tl.sum(tl.sum(total, 1), 0) / rows)
