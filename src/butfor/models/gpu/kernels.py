"""Two GPU kernels for scoring: a layer with its activation, and the KL divergence of Gaussians to their mixture.

As tensor operations they read and write the activations of all actions in all states several times, and all pairs of
actions some thirty times. Each kernel is compiled in a second or two, at its first call.
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

ACTIVATIONS = {None: 0, "relu": 1, "tanh": 2}
FORMS = {"product": 0, "variational": 1, "mean": 2, "mean_clip_product": 3}
PAIRS = 1024  # of actions in a program; each of its 128 threads then has 8
MOST_ACTIONS = 256  # a program has whole rows of pairs
TILE = {"ROWS": 64, "COLUMNS": 128, "STEP": 32, "num_warps": 4, "num_stages": 2}  # the fastest of 15 on an H200
TF32 = -(2**13)  # mask of the bits that a number rounded to TF32 keeps


class Split(NamedTuple):
    """A weight as a sum of numbers that TF32 holds and their rests: [R, out, in] each."""

    high: Tensor
    low: Tensor


def split(weight: Tensor) -> Split:
    """Prepare a weight [R, in, out] for `layer`. Matrix units read this order of its axes fastest."""
    turned = weight.mT.contiguous()
    high = ((turned.view(torch.int32) + 2**12) & TF32).view(torch.float32)  # rounded to the nearest
    return Split(high, turned - high)


def layer(x: Tensor, weight: Split, bias: Tensor, activation: str | None) -> Tensor:
    """activation(x weight + bias) of each replica: [R, B, in], a weight [R, in, out] and [R, 1, out] -> [R, B, out].

    The product is a sum of three products of TF32 numbers, nearly as exact as one of float32.
    """
    replicas, rows, inner = x.shape
    columns = weight.high.shape[1]
    x, bias = x.contiguous(), bias.contiguous()
    result = x.new_empty(replicas, rows, columns)

    def grid(tile: dict[str, int]) -> tuple[int, int]:
        return triton.cdiv(rows, tile["ROWS"]) * triton.cdiv(columns, tile["COLUMNS"]), replicas

    with torch.cuda.device(x.device):  # Triton launches on the present one
        _layer[grid](x, *weight, bias, result, rows, columns, inner, ACTIVATIONS[activation], **TILE)
    return result


def takes(mean: Tensor, variance: Tensor) -> bool:
    """Whether `kl_to_own_mixture` takes these Gaussians [..., K, d]."""
    alike = mean.dtype == variance.dtype == torch.float32 and mean.shape == variance.shape
    return alike and mean.shape[-2] <= MOST_ACTIONS and mean.shape[-1] <= 64 and mean.numel() > 0


def kl_to_own_mixture(mean: Tensor, variance: Tensor, form: str) -> Tensor:
    """KL of each of K Gaussians to the mixture of all of them: [..., K, d] -> [..., K]; see `kl_to_mixture`."""
    count, dimensions = mean.shape[-2:]
    mean, variance = mean.contiguous(), variance.contiguous()
    result = mean.new_empty(mean.shape[:-1])
    columns = triton.next_power_of_2(count)
    rows = max(1, min(columns, PAIRS // columns))
    grid = (mean.numel() // (count * dimensions), triton.cdiv(count, rows))
    with torch.cuda.device(mean.device):
        _kl_to_own_mixture[grid](mean, variance, result, count, dimensions, rows, columns, FORMS[form], math.log(2))
    return result


# Parameters have no types, since Triton reads annotations as its own.


@triton.jit
def _layer(  # type: ignore[no-untyped-def]
    x, high, low, bias, result, rows, columns, INNER: tl.constexpr, ACTIVATION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """One tile of the result. Tiles of the same rows are neighbours, so that these are read from memory once."""
    across = tl.cdiv(columns, COLUMNS)
    replica = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) // across * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    of_row = (replica * rows + row)[:, None]
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, INNER, STEP):
        inner = start + tl.arange(0, STEP)
        left = tl.load(x + of_row * INNER + inner[None, :], (row < rows)[:, None] & (inner < INNER)[None, :], other=0.0)
        large = ((left.to(tl.int32, bitcast=True) + 4096) & -8192).to(tl.float32, bitcast=True)  # rounded to TF32
        at = (replica * columns + column)[None, :] * INNER + inner[:, None]
        inside = (inner < INNER)[:, None] & (column < columns)[None, :]
        right = tl.load(high + at, inside, other=0.0)
        # summed apart, because matrix units cut off what they add to a large number
        part = tl.dot(left - large, right, input_precision="tf32")
        part = tl.dot(large, tl.load(low + at, inside, other=0.0), part, input_precision="tf32")
        total += tl.dot(large, right, part, input_precision="tf32")
    total += tl.load(bias + replica * columns + column, column < columns, other=0.0)[None, :]
    if ACTIVATION == 1:
        total = tl.maximum(total, 0.0, propagate_nan=tl.PropagateNan.ALL)
    elif ACTIVATION == 2:
        total = 2 * tl.sigmoid(2 * total) - 1  # tanh, within 2e-7
    tl.store(result + of_row * columns + column[None, :], total, (row < rows)[:, None] & (column < columns)[None, :])


@triton.jit
def _kl_to_own_mixture(  # type: ignore[no-untyped-def]
    mean, variance, result, count, DIMENSIONS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, FORM: tl.constexpr, LOG2: tl.constexpr,
):  # fmt: skip
    """For rows f and all columns g of one state: KL(f || g) and log t_fg - log t_ff, and their means over g."""
    state = tl.program_id(0).to(tl.int64) * count
    f = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    g = tl.arange(0, COLUMNS)
    divergence = tl.zeros([ROWS, COLUMNS], tl.float32)
    overlap = tl.zeros([ROWS, COLUMNS], tl.float32) + DIMENSIONS * LOG2
    for j in range(DIMENSIONS):
        at_f, at_g = (state + f) * DIMENSIONS + j, (state + g) * DIMENSIONS + j
        mean_f = tl.load(mean + at_f, f < count, other=0.0)[:, None]
        mean_g = tl.load(mean + at_g, g < count, other=0.0)[None, :]
        variance_f = tl.load(variance + at_f, f < count, other=1.0)[:, None]
        variance_g = tl.load(variance + at_g, g < count, other=1.0)[None, :]
        ratio = libdevice.div_rn(variance_f, variance_g)
        difference = mean_f - mean_g
        squared = libdevice.div_rn(difference * difference, variance_g)
        log_ratio = libdevice.log(ratio)
        plus = ratio + 1
        divergence += ratio - 1 - log_ratio + squared
        overlap += log_ratio - libdevice.log(plus) - libdevice.div_rn(squared, plus)
    inside = (g < count)[None, :]
    apart = tl.sum(tl.where(inside, libdevice.expm1(-0.5 * divergence), 0.0), 1) / count
    shared = tl.sum(tl.where(inside, libdevice.expm1(0.5 * overlap), 0.0), 1) / count
    variational = -libdevice.log1p(apart)
    product = -libdevice.log1p(shared) - 0.5 * DIMENSIONS * (1 - LOG2)
    if FORM == 0:
        found = product
    elif FORM == 1:
        found = variational
    elif FORM == 2:
        found = tl.maximum(0.5 * (product + variational), 0.0, propagate_nan=tl.PropagateNan.ALL)
    else:
        found = 0.5 * (tl.maximum(product, 0.0, propagate_nan=tl.PropagateNan.ALL) + variational)
    tl.store(result + state + f, found, f < count)
