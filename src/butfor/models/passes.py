"""Forward and backward passes of an `MLP`, for losses whose gradient is written down by the caller.

All kinds compute the same: `AutogradPass` lets autograd find the gradients and is the reference; `DirectPass`
multiplies the matrices itself, into buffers that are reused, because small networks on a CPU otherwise spend much of an
update on allocating memory and recording operations. `KernelPass` launches one kernel for all layers of a GPU.
"""

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from butfor.models.gpu import has_kernels
from butfor.models.networks import EPSILON, MLP, tanh


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
    """The fastest kind for this network and its device."""
    device = next(network.parameters()).device
    if device.type == "cpu":
        return DirectPass(network) if network.activation is torch.relu else AutogradPass(network)
    if has_kernels(device) and network.activation in (torch.relu, tanh) and _chains().fits(chain_of(network)):
        return KernelPass(network)
    return AutogradPass(network)


def set_gradients(module: nn.Module, gradients: Iterable[Tensor]) -> None:
    """Set `grad` of all parameters, in their order."""
    for parameter, gradient in zip(module.parameters(), gradients, strict=True):
        if gradient is not parameter.grad:
            parameter.grad = gradient


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


class KernelPass:
    """Kernels that take rows through all layers, for networks with hidden layers of one width on a GPU."""

    def __init__(self, network: MLP) -> None:
        self.chain = chain_of(network)
        self.network = network

    def __call__(self, inputs: Tensor) -> Tensor:
        outputs: Tensor
        outputs, self.kept = _chains().forward(self.chain, inputs)
        return outputs

    def gradients(self, gradient: Tensor) -> list[Tensor]:
        chains = _chains()
        behind, scaled, _ = chains.backward(self.chain, self.kept, gradient)
        into = chains.Gradients(*([gradient_of(one) for one in part] for part in self.chain[:4]))
        chains.weight_gradients(self.kept, gradient, behind, scaled, into)
        return [gradient_of(parameter) for parameter in self.network.parameters()]

    def input_gradient(self, gradient: Tensor, start: int) -> Tensor:
        found: Tensor = _chains().backward(self.chain, self.kept, gradient, start, learns=False)[2]
        return found


def _chains() -> Any:
    from butfor.models.gpu import chains  # Triton is there only with a GPU

    return chains


def chain_of(network: MLP) -> Any:
    """The network's parameters, as the kernels take them."""
    layers: list[Any] = list(network.layers)
    norms: list[Any] = list(network.norms)
    activation = {torch.relu: "relu", tanh: "tanh"}[network.activation]
    weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
    return _chains().Chain(weights, biases, [norm.gain for norm in norms], [norm.offset for norm in norms], activation)
