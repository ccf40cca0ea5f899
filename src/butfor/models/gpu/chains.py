"""GPU kernels for a whole network: all layers forward, all layers back, and the gradients of all weights.

Layer by layer, a small network spends most of its time on launches and on passing activations on. Here a program takes
some rows of a batch through all layers: what it writes, it reads again itself. The first call of each kind of network
compiles for some seconds.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDEST = 512  # units of a hidden layer: a program keeps all of them for its rows
MOST_OUTPUTS = 64
ACTIVATIONS = {"relu": 0, "tanh": 1}
EPSILON = 1e-5  # added to the variances of layer normalisation


class Chain(NamedTuple):
    """The weights of a network with hidden layers of one width; lists have one tensor per layer, the last included."""

    weights: list[Tensor]  # [R, in, out]
    biases: list[Tensor]  # [R, 1, out]
    gains: list[Tensor]  # of layer normalisation, [R, 1, width] for each hidden layer, or none
    offsets: list[Tensor]
    activation: str


class Kept(NamedTuple):
    """What the way back needs of the way forward."""

    inputs: Tensor  # [R, B, in]
    hidden: Tensor  # outputs of the hidden layers, [L, R, B, width]
    normal: Tensor  # before gain and offset; without layer normalisation empty
    scale: Tensor  # 1 / deviation, [L, R, B]


class Gradients(NamedTuple):
    """The gradients of a `Chain`, in the same order."""

    weights: list[Tensor]
    biases: list[Tensor]
    gains: list[Tensor]
    offsets: list[Tensor]


def fits(chain: Chain) -> bool:
    """Whether the kernels take this network."""
    *hidden, last = chain.weights
    widths = {weight.shape[2] for weight in hidden}
    plain = all(weight.dtype == torch.float32 and weight.is_contiguous() for weight in chain.weights)
    return plain and len(widths) == 1 and widths.pop() <= WIDEST and last.shape[2] <= MOST_OUTPUTS


def forward(chain: Chain, inputs: Tensor) -> tuple[Tensor, Kept]:
    """The outputs [R, B, out] for inputs [R, B, in], and what `backward` needs."""
    inputs = inputs.contiguous()
    replicas, rows, columns = inputs.shape
    layers = len(chain.weights) - 1
    width, outputs = chain.weights[-1].shape[1:]
    has_norm = bool(chain.gains)
    hidden = inputs.new_empty(layers, replicas, rows, width)
    normal = torch.empty_like(hidden) if has_norm else inputs.new_empty(0)
    scale = inputs.new_empty(layers, replicas, rows) if has_norm else normal
    result = inputs.new_empty(replicas, rows, outputs)
    tile = _tile(width)
    with torch.cuda.device_of(inputs):
        _forward[(triton.cdiv(rows, tile["ROWS"]), replicas)](
            inputs, tuple(chain.weights), tuple(chain.biases), tuple(chain.gains), tuple(chain.offsets),
            hidden, normal, scale, result, rows, columns, outputs,
            width, layers, ACTIVATIONS[chain.activation], has_norm, EPSILON, _precision(), **tile,
        )  # fmt: skip
    return result, Kept(inputs, hidden, normal, scale)


def backward(
    chain: Chain, kept: Kept, gradient: Tensor, start: int | None = None, learns: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Take the gradient in the outputs [R, B, out] back through all layers.

    Returns that behind each hidden layer's affine map [L, R, B, width], that behind its normalisation (empty without
    one, or if nothing `learns`), and that in the inputs from column `start` on (empty if None).
    """
    gradient = gradient.contiguous()
    layers, replicas, rows, width = kept.hidden.shape
    columns, outputs = kept.inputs.shape[2], gradient.shape[2]
    has_norm = bool(chain.gains)
    behind = torch.empty_like(kept.hidden)
    scaled = torch.empty_like(kept.hidden) if has_norm and learns else gradient.new_empty(0)
    wanted = 0 if start is None else columns - start
    result = gradient.new_empty(replicas, rows, wanted)
    tile = _tile(width)
    with torch.cuda.device_of(gradient):
        _backward[(triton.cdiv(rows, tile["ROWS"]), replicas)](
            gradient, tuple(chain.weights), tuple(chain.gains), kept.hidden, kept.normal, kept.scale,
            behind, scaled, result, rows, columns, outputs, start or 0,
            width, layers, ACTIVATIONS[chain.activation], has_norm, learns, start is not None, _precision(), **tile,
        )  # fmt: skip
    return behind, scaled, result


def weight_gradients(kept: Kept, gradient: Tensor, behind: Tensor, scaled: Tensor, into: Gradients) -> None:
    """Write the gradients of all weights, given that in the outputs and what `backward` returned."""
    layers, replicas, rows, width = kept.hidden.shape
    columns, outputs = kept.inputs.shape[2], gradient.shape[2]
    across = triton.cdiv(width, PRODUCT["COLUMNS"])
    down = triton.cdiv(width, PRODUCT["INNER"])
    of_first = triton.cdiv(columns, PRODUCT["INNER"]) * across
    tiles = (layers - 1) * down * across + of_first + down * triton.cdiv(outputs, NARROW)
    gradient = gradient.contiguous()
    with torch.cuda.device_of(gradient):
        _weight_gradients[(tiles, replicas)](
            kept.inputs, kept.hidden, gradient, behind, tuple(into.weights), rows, columns, outputs, of_first,
            width, layers, NARROW, _precision(), **PRODUCT,
        )  # fmt: skip
        _column_sums[(layers * triton.cdiv(width, SUMMED) + triton.cdiv(outputs, SUMMED), replicas)](
            gradient, behind, scaled, kept.normal, tuple(into.biases), tuple(into.gains), tuple(into.offsets),
            rows, outputs, width, layers, bool(into.gains), 128, SUMMED,
        )  # fmt: skip


TILE = {"ROWS": 32, "STEP": 32, "num_warps": 4, "num_stages": 3}  # the fastest of 8 on an H200
PRODUCT = {"INNER": 64, "COLUMNS": 64, "STEP": 32, "num_warps": 2, "num_stages": 4}  # the fastest of 14
NARROW = 16  # columns of a tile of the outputs
SUMMED = 32  # columns that a program sums over the rows


def _tile(width: int) -> dict[str, Any]:
    """How a program's rows are cut: as many as keep their hidden layer in registers."""
    columns = max(16, triton.next_power_of_2(width))
    return TILE | {"COLUMNS": columns, "ROWS": min(TILE["ROWS"], max(16, 16384 // columns))}


def _precision() -> str:
    """How products are rounded, as torch's own at the moment."""
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


# Parameters have no types, since Triton reads annotations as its own.


@triton.jit
def _product(  # type: ignore[no-untyped-def]
    total, x, weight, rows, row, inner, columns, column, down, across, STEP: tl.constexpr, PRECISION: tl.constexpr
):
    """total + x weight, for the rows of a program: x [rows, inner] and weight [inner, columns] of one replica.

    `down` and `across` are the steps in memory from one row of the weight to the next, and from one column to the next.
    """
    for start in range(0, inner, STEP):
        at = start + tl.arange(0, STEP)
        left = tl.load(x + row[:, None] * inner + at[None, :], (row < rows)[:, None] & (at < inner)[None, :], other=0.0)
        inside = (at < inner)[:, None] & (column < columns)[None, :]
        right = tl.load(weight + at[:, None] * down + column[None, :] * across, inside, other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    return total


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    inputs, weights, biases, gains, offsets, hidden, normal, scale, result, rows, columns, outputs,
    WIDTH: tl.constexpr, LAYERS: tl.constexpr, ACTIVATION: tl.constexpr, NORM: tl.constexpr, EPSILON: tl.constexpr,
    PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Some rows of one replica through all layers."""
    replica = tl.program_id(1).to(tl.int64)
    replicas = tl.num_programs(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    unit = tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (unit < WIDTH)[None, :]
    place = row[:, None] * WIDTH + unit[None, :]
    for layer in tl.static_range(LAYERS):
        start = (layer * replicas + replica) * rows  # first row of this layer's outputs
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        if layer == 0:
            x, weight = inputs + replica * rows * columns, weights[0] + replica * columns * WIDTH
            total = _product(total, x, weight, rows, row, columns, WIDTH, unit, WIDTH, 1, STEP, PRECISION)
        else:
            x, weight = hidden + (start - replicas * rows) * WIDTH, weights[layer] + replica * WIDTH * WIDTH
            total = _product(total, x, weight, rows, row, WIDTH, WIDTH, unit, WIDTH, 1, STEP, PRECISION)
        total += tl.load(biases[layer] + replica * WIDTH + unit, unit < WIDTH, other=0.0)[None, :]
        if NORM:
            mean = tl.sum(total, 1) / WIDTH  # units beyond the width are 0
            total = tl.where((unit < WIDTH)[None, :], total - mean[:, None], 0.0)
            deviation = 1 / tl.sqrt(tl.sum(total * total, 1) / WIDTH + EPSILON)
            total *= deviation[:, None]
            tl.store(normal + start * WIDTH + place, total, inside)
            tl.store(scale + start + row, deviation, row < rows)
            total *= tl.load(gains[layer] + replica * WIDTH + unit, unit < WIDTH, other=0.0)[None, :]
            total += tl.load(offsets[layer] + replica * WIDTH + unit, unit < WIDTH, other=0.0)[None, :]
        if ACTIVATION == 0:
            total = tl.maximum(total, 0.0, propagate_nan=tl.PropagateNan.ALL)
        else:
            total = 2 * tl.sigmoid(2 * total) - 1  # tanh, within 2e-7
        tl.store(hidden + start * WIDTH + place, total, inside)
        tl.debug_barrier()  # other threads read these rows in the next layer
    last = tl.arange(0, 16)
    x = hidden + ((LAYERS - 1) * replicas + replica) * rows * WIDTH
    weight = weights[LAYERS] + replica * WIDTH * outputs
    for first in range(0, outputs, 16):
        output = first + last
        few = tl.zeros([ROWS, 16], tl.float32)
        few = _product(few, x, weight, rows, row, WIDTH, outputs, output, outputs, 1, STEP, PRECISION)
        few += tl.load(biases[LAYERS] + replica * outputs + output, output < outputs, other=0.0)[None, :]
        at = (replica * rows + row)[:, None] * outputs + output[None, :]
        tl.store(result + at, few, (row < rows)[:, None] & (output < outputs)[None, :])


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    gradient, weights, gains, hidden, normal, scale, behind, scaled, result, rows, columns, outputs, first,
    WIDTH: tl.constexpr, LAYERS: tl.constexpr, ACTIVATION: tl.constexpr, NORM: tl.constexpr, LEARNS: tl.constexpr,
    INPUTS: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """The gradient of some rows of one replica back through all layers."""
    replica = tl.program_id(1).to(tl.int64)
    replicas = tl.num_programs(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    unit = tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (unit < WIDTH)[None, :]
    place = row[:, None] * WIDTH + unit[None, :]
    for layer in tl.static_range(LAYERS - 1, -1, -1):
        start = (layer * replicas + replica) * rows
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        if layer == LAYERS - 1:
            x, weight = gradient + replica * rows * outputs, weights[LAYERS] + replica * WIDTH * outputs
            total = _product(total, x, weight, rows, row, outputs, WIDTH, unit, 1, outputs, 16, PRECISION)
        else:
            x, weight = behind + (start + replicas * rows) * WIDTH, weights[layer + 1] + replica * WIDTH * WIDTH
            total = _product(total, x, weight, rows, row, WIDTH, WIDTH, unit, 1, WIDTH, STEP, PRECISION)
        output = tl.load(hidden + start * WIDTH + place, inside, other=0.0)
        if ACTIVATION == 0:
            total = tl.where(output > 0, total, 0.0)
        else:
            total *= 1 - output * output
        if NORM:
            if LEARNS:
                tl.store(scaled + start * WIDTH + place, total, inside)
            total *= tl.load(gains[layer] + replica * WIDTH + unit, unit < WIDTH, other=0.0)[None, :]
            seen = tl.load(normal + start * WIDTH + place, inside, other=0.0)
            along = tl.sum(total * seen, 1) / WIDTH  # a normalised row cannot grow, nor move as a whole
            mean = tl.sum(total, 1) / WIDTH
            deviation = tl.load(scale + start + row, row < rows, other=0.0)
            total = deviation[:, None] * (total - mean[:, None] - seen * along[:, None])
        tl.store(behind + start * WIDTH + place, total, inside)
        tl.debug_barrier()
    if INPUTS:
        last = tl.arange(0, 16)
        wanted = columns - first
        weight = weights[0] + (replica * columns + first) * WIDTH
        for begin in range(0, wanted, 16):
            column = begin + last
            few = tl.zeros([ROWS, 16], tl.float32)
            x = behind + replica * rows * WIDTH
            few = _product(few, x, weight, rows, row, WIDTH, wanted, column, 1, WIDTH, STEP, PRECISION)
            at = (replica * rows + row)[:, None] * wanted + column[None, :]
            tl.store(result + at, few, (row < rows)[:, None] & (column < wanted)[None, :])


@triton.jit
def _tile_gradient(  # type: ignore[no-untyped-def]
    x, gradient, result, rows, inner, columns, tile,
    PRECISION: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """One tile of x' gradient, [rows, inner] and [rows, columns] of one replica."""
    across = tl.cdiv(columns, COLUMNS)
    unit = tile // across * INNER + tl.arange(0, INNER)
    column = tile % across * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([INNER, COLUMNS], tl.float32)
    for start in range(0, rows, STEP):
        row = start + tl.arange(0, STEP)
        seen = (unit < inner)[:, None] & (row < rows)[None, :]
        left = tl.load(x + row[None, :] * inner + unit[:, None], seen, other=0.0)
        known = (row < rows)[:, None] & (column < columns)[None, :]
        right = tl.load(gradient + row[:, None] * columns + column[None, :], known, other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    at = unit[:, None] * columns + column[None, :]
    tl.store(result + at, total, (unit < inner)[:, None] & (column < columns)[None, :])


@triton.jit
def _weight_gradients(  # type: ignore[no-untyped-def]
    inputs, hidden, gradient, behind, weights, rows, columns, outputs, of_first,
    WIDTH: tl.constexpr, LAYERS: tl.constexpr, NARROW: tl.constexpr,
    PRECISION: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """One tile of a weight's gradient. Those of all layers are of one launch, side by side."""
    replica = tl.program_id(1).to(tl.int64)
    per_layer: tl.constexpr = (WIDTH + INNER - 1) // INNER * ((WIDTH + COLUMNS - 1) // COLUMNS)
    step = tl.num_programs(1) * rows * WIDTH  # from one layer to the next
    hidden += replica * rows * WIDTH
    behind += replica * rows * WIDTH
    tile = tl.program_id(0)
    if tile < per_layer * (LAYERS - 1):
        layer = tile // per_layer + 1
        result = weights[LAYERS]
        for index in tl.static_range(1, LAYERS):
            result = tl.where(layer == index, weights[index], result)
        x, back = hidden + (layer - 1) * step, behind + layer * step
        result += replica * WIDTH * WIDTH
        _tile_gradient(x, back, result, rows, WIDTH, WIDTH, tile % per_layer, PRECISION, INNER, COLUMNS, STEP)
    elif tile < per_layer * (LAYERS - 1) + of_first:
        tile -= per_layer * (LAYERS - 1)
        x, result = inputs + replica * rows * columns, weights[0] + replica * columns * WIDTH
        _tile_gradient(x, behind, result, rows, columns, WIDTH, tile, PRECISION, INNER, COLUMNS, STEP)
    else:
        tile -= per_layer * (LAYERS - 1) + of_first
        x, result = hidden + (LAYERS - 1) * step, weights[LAYERS] + replica * WIDTH * outputs
        back = gradient + replica * rows * outputs
        _tile_gradient(x, back, result, rows, WIDTH, outputs, tile, PRECISION, INNER, NARROW, STEP)


@triton.jit
def _column_sums(  # type: ignore[no-untyped-def]
    gradient, behind, scaled, normal, biases, gains, offsets, rows, outputs,
    WIDTH: tl.constexpr, LAYERS: tl.constexpr, NORM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Sums over the rows of some columns of a layer: the gradients of its bias, gain and offset."""
    replica = tl.program_id(1).to(tl.int64)
    across: tl.constexpr = (WIDTH + COLUMNS - 1) // COLUMNS
    layer = tl.program_id(0) // across
    bias = tl.zeros([ROWS, COLUMNS], tl.float32)
    if layer < LAYERS:
        unit = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
        start = (layer * tl.num_programs(1) + replica) * rows * WIDTH
        gain = tl.zeros([ROWS, COLUMNS], tl.float32)
        offset = tl.zeros([ROWS, COLUMNS], tl.float32)
        for first in range(0, rows, ROWS):
            row = first + tl.arange(0, ROWS)
            inside = (row < rows)[:, None] & (unit < WIDTH)[None, :]
            at = row[:, None] * WIDTH + unit[None, :]
            bias += tl.load(behind + start + at, inside, other=0.0)
            if NORM:
                part = tl.load(scaled + start + at, inside, other=0.0)
                offset += part
                gain += part * tl.load(normal + start + at, inside, other=0.0)
        to = replica * WIDTH + unit
        for index in tl.static_range(LAYERS):
            if layer == index:
                tl.store(biases[index] + to, tl.sum(bias, 0), unit < WIDTH)
                if NORM:
                    tl.store(gains[index] + to, tl.sum(gain, 0), unit < WIDTH)
                    tl.store(offsets[index] + to, tl.sum(offset, 0), unit < WIDTH)
    else:
        output = (tl.program_id(0) - LAYERS * across) * COLUMNS + tl.arange(0, COLUMNS)
        gradient += replica * rows * outputs
        for first in range(0, rows, ROWS):
            row = first + tl.arange(0, ROWS)
            inside = (row < rows)[:, None] & (output < outputs)[None, :]
            bias += tl.load(gradient + row[:, None] * outputs + output[None, :], inside, other=0.0)
        tl.store(biases[LAYERS] + replica * outputs + output, tl.sum(bias, 0), output < outputs)
