"""Forward and backward passes of an `MLP`, for losses whose gradient is written down by the caller.

All kinds compute the same: `AutogradPass` lets autograd find the gradients and is the reference; `DirectPass`
multiplies the matrices itself, into buffers that are reused, because small networks on a CPU otherwise spend much of an
update on allocating memory and recording operations. `FunctionalPass` does so without buffers: on a GPU a compiler
fuses everything between its matrix products.
"""

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from butfor.models.networks import EPSILON, MLP


class Pass(Protocol):
    """Evaluates a network on batches, and then finds gradients for the last batch."""

    def __call__(self, inputs: Tensor) -> Tensor:
        """The outputs [R, B, out] for inputs [R, B, in]; the next call may overwrite them."""
        ...

    def gradients(self, gradient: Tensor) -> list[Tensor]:
        """The gradient in every parameter, given that in the outputs [R, B, out]; the next call may overwrite them."""
        ...

    def input_gradient(self, gradient: Tensor, start: int) -> Tensor:
        """The gradient of the loss in the inputs from column `start` on, given that in the outputs."""
        ...


def make_pass(network: MLP) -> Pass:
    """The faster kind for this network and its device; on a GPU operations are recorded anyway, see `captured`."""
    on_cpu = next(network.parameters()).device.type == "cpu"
    return DirectPass(network) if on_cpu and network.activation is torch.relu else AutogradPass(network)


def set_gradients(module: nn.Module, gradients: Iterable[Tensor]) -> None:
    """Set `grad` of all parameters, in their order."""
    for parameter, gradient in zip(module.parameters(), gradients, strict=True):
        if gradient is not parameter.grad:
            # compiled functions give axes of size 1 other strides than parameters have, which fused optimisers refuse
            parameter.grad = gradient.reshape(-1).view(parameter.shape)


class AutogradPass:
    """The reference, for any network and device."""

    def __init__(self, network: MLP) -> None:
        self.network = network
        self.learns = next(network.parameters()).requires_grad  # a target network does not

    def __call__(self, inputs: Tensor) -> Tensor:
        with torch.set_grad_enabled(self.learns):
            self.inputs = inputs.detach().requires_grad_(self.learns)
            self.outputs: Tensor = self.network(self.inputs)
        outputs: Tensor = self.outputs.detach()
        return outputs

    def gradients(self, gradient: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(self.outputs, list(self.network.parameters()), gradient))

    def input_gradient(self, gradient: Tensor, start: int) -> Tensor:
        return torch.autograd.grad(self.outputs, self.inputs, gradient)[0][..., start:]


class Buffers:
    """Memory that is reused at every step: new memory would have to be mapped first."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], Tensor] = {}

    def __call__(self, name: str, index: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor of this shape, the same at every call as long as its shape stays."""
        found = self._kept.get((name, index))
        if found is None or found.shape != shape or found.dtype != dtype:
            found = self._kept[name, index] = torch.empty(shape, dtype=dtype)
        return found


NARROW = 8  # columns up to which a product is computed transposed: five times as fast on a CPU


class Products:
    """The three products of an affine layer, bias + x weight and its gradients, on a CPU."""

    def __init__(self) -> None:
        self.buffer = Buffers()

    def forward(self, index: int, bias: Tensor, x: Tensor, weight: Tensor, scale: float = 1.0) -> Tensor:
        """scale (bias + x weight): [R, B, out], in the buffer of this layer."""
        replicas, rows, width = x.shape[0], x.shape[1], weight.shape[2]
        if width <= NARROW:
            planes = self.buffer("planes", index, (replicas, width, rows), x.dtype)
            return torch.baddbmm(bias.mT, weight.mT, x.mT, beta=scale, alpha=scale, out=planes).mT
        result = self.buffer("output", index, (replicas, rows, width), x.dtype)
        return torch.baddbmm(bias, x, weight, beta=scale, alpha=scale, out=result)

    def input_gradient(self, index: int, gradient: Tensor, weight: Tensor) -> Tensor:
        """The gradient in x, [R, B, in], in the buffer of this layer."""
        result = self.buffer("gradient", index, (*gradient.shape[:2], weight.shape[1]), gradient.dtype)
        if weight.shape[2] == 1:
            return torch.mul(gradient, weight.mT, out=result)
        return torch.bmm(gradient, weight.mT, out=result)

    def weight_gradient(self, x: Tensor, gradient: Tensor, result: Tensor) -> None:
        """Write the gradient in the weight, [R, in, out]."""
        if gradient.shape[2] <= NARROW:
            result.copy_(torch.bmm(gradient.mT, x).mT)
        else:
            torch.bmm(x.mT, gradient, out=result)


def gradient_of(parameter: Tensor) -> Tensor:
    """The tensor of a parameter's gradient, made on first use; its values are to be overwritten."""
    if parameter.grad is None:
        parameter.grad = torch.empty_like(parameter)
    return parameter.grad


class DirectPass:
    """Products of matrices in reused buffers, for networks with ReLU on a CPU."""

    def __init__(self, network: MLP) -> None:
        self.network = network
        self.layers: list[Any] = list(network.layers)
        self.norms: list[Any] = list(network.norms)
        self.products = Products()
        self.buffer = self.products.buffer

    @torch.no_grad()
    def __call__(self, inputs: Tensor) -> Tensor:
        self.kept = [inputs]  # what each layer saw
        self.normalized: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []  # input, result, mean, 1 / deviation
        *hidden, last = self.layers
        x = inputs
        for index, layer in enumerate(hidden):
            x = self.products.forward(index, layer.bias, x, layer.weight)
            if self.norms:
                norm = self.norms[index]
                result, mean, scale = torch.native_layer_norm(x, (norm.features,), None, None, EPSILON)
                self.normalized.append((x, result, mean, scale))
                scaled = self.buffer("scaled", index, x.shape, x.dtype)
                x = torch.addcmul(norm.offset, result, norm.gain, out=scaled)
            x = x.relu_()
            self.kept.append(x)
        return self.products.forward(len(hidden), last.bias, x, last.weight)

    @torch.no_grad()
    def gradients(self, gradient: Tensor) -> list[Tensor]:
        layers = self.layers
        for index in reversed(range(len(layers))):
            layer = layers[index]
            self.products.weight_gradient(self.kept[index], gradient, gradient_of(layer.weight))
            torch.sum(gradient, 1, keepdim=True, out=gradient_of(layer.bias))
            if index:
                gradient = self._below(index, gradient, layer.weight, set_gradients=True)
        return [gradient_of(parameter) for parameter in self.network.parameters()]

    @torch.no_grad()
    def input_gradient(self, gradient: Tensor, start: int) -> Tensor:
        layers = self.layers
        for index in reversed(range(1, len(layers))):
            gradient = self._below(index, gradient, layers[index].weight, set_gradients=False)
        return torch.bmm(gradient, layers[0].weight[:, start:].mT)

    def _below(self, index: int, gradient: Tensor, weight: Tensor, set_gradients: bool) -> Tensor:
        """The gradient in the output of the layer below, behind ReLU and layer normalisation."""
        result = self.products.input_gradient(index, gradient, weight)
        torch.ops.aten.threshold_backward.grad_input(result, self.kept[index], 0, grad_input=result)
        if not self.norms:
            return result
        norm = self.norms[index - 1]
        before, normal, mean, scale = self.normalized[index - 1]
        if set_gradients:
            torch.sum(result, 1, keepdim=True, out=gradient_of(norm.offset))
            torch.sum(result * normal, 1, keepdim=True, out=gradient_of(norm.gain))
        found: tuple[Tensor, ...] = torch.ops.aten.native_layer_norm_backward(
            result.mul_(norm.gain), before, (norm.features,), mean, scale, None, None, (True, False, False)
        )
        return found[0]


class FunctionalPass:
    """Products of matrices in new memory, for networks with ReLU; to be made and used within a compiled function.

    A product with a single column is written as a sum: a compiler fuses it with what comes before and after.
    """

    def __init__(self, network: MLP) -> None:
        self.layers: list[Any] = list(network.layers)
        self.norms: list[Any] = list(network.norms)

    def __call__(self, inputs: Tensor) -> Tensor:
        self.kept = [inputs]  # what each layer saw
        self.normalized: list[tuple[Tensor, Tensor]] = []  # before gain and offset, and 1 / deviation
        *hidden, last = self.layers
        x = inputs
        for index, layer in enumerate(hidden):
            x = product(x, layer.weight) + layer.bias
            if self.norms:
                norm = self.norms[index]
                variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
                scale = torch.rsqrt(variance + EPSILON)
                normal = (x - mean) * scale
                self.normalized.append((normal, scale))
                x = normal * norm.gain + norm.offset
            x = x.relu()
            self.kept.append(x)
        outputs: Tensor = product(x, last.weight) + last.bias
        return outputs

    def gradients(self, gradient: Tensor) -> list[Tensor]:
        of_layers: list[Tensor] = []
        of_norms: list[Tensor] = []
        for index in reversed(range(len(self.layers))):
            of_layers = [weight_gradient(self.kept[index], gradient), column_sum(gradient), *of_layers]
            if index:
                gradient = self._before_relu(index, gradient)
                if self.norms:
                    normal, _ = self.normalized[index - 1]
                    both = [column_sum(gradient * normal), column_sum(gradient)]
                    of_norms = [*both, *of_norms]
                gradient = self._before_norm(index, gradient)
        return [*of_layers, *of_norms]

    def input_gradient(self, gradient: Tensor, start: int) -> Tensor:
        for index in reversed(range(1, len(self.layers))):
            gradient = self._before_norm(index, self._before_relu(index, gradient))
        return product(gradient, self.layers[0].weight[:, start:].mT)

    def _before_relu(self, index: int, gradient: Tensor) -> Tensor:
        """The gradient behind the weights of a layer and the ReLU below it."""
        return torch.where(self.kept[index] > 0, product(gradient, self.layers[index].weight.mT), 0.0)

    def _before_norm(self, index: int, gradient: Tensor) -> Tensor:
        """The gradient behind the layer normalisation below a layer, if there is one."""
        if not self.norms:
            return gradient
        normal, scale = self.normalized[index - 1]
        gradient = gradient * self.norms[index - 1].gain
        along = (gradient * normal).mean(-1, keepdim=True)  # a normalised row cannot grow, nor move as a whole
        return scale * (gradient - gradient.mean(-1, keepdim=True) - normal * along)


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x weight: [R, B, in] and [R, in, out] -> [R, B, out]."""
    if weight.shape[1] == 1:
        return x * weight
    if weight.shape[2] == 1:
        return (x * weight.mT).sum(-1, keepdim=True)
    return torch.bmm(x, weight)


def weight_gradient(x: Tensor, gradient: Tensor) -> Tensor:
    """The gradient in the weight of x weight: [R, B, in] and [R, B, out] -> [R, in, out]."""
    if gradient.shape[2] == 1:
        return column_sum(x * gradient).mT
    return torch.bmm(x.mT, gradient)


PARTS = 4  # below 8: then the compiler adds the sums of the parts within the kernel that reads the result
WIDE = 32  # columns from which on rows are summed in parts


def column_sum(values: Tensor) -> Tensor:
    """The sum over the rows: [R, B, C] -> [R, 1, C].

    A kernel that sums all rows of few columns occupies a fraction of a GPU, with all operations that a compiler fuses
    into it. Sums over parts of the rows occupy more of it.
    """
    replicas, rows, columns = values.shape
    if columns < WIDE or rows % PARTS:
        return values.sum(1, keepdim=True)
    return values.view(replicas, PARTS, rows // PARTS, columns).sum(2).sum(1, keepdim=True)
