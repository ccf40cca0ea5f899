"""The loss of `GaussianDynamics` and its gradients, written out: a training step on a CPU without autograd.

The reference is `GaussianDynamics.loss` with autograd. Here the heads are one product, every product is written into a
buffer that is reused, and tanh = 2 sigmoid(2 x) - 1 needs one pass over memory more than the sigmoid.
"""

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from butfor.models.networks import Linear
from butfor.models.passes import Products, gradient_of

if TYPE_CHECKING:
    from butfor.models.dynamics import GaussianDynamics


class DirectGaussian:
    """Called with a batch, it returns the loss and sets the gradient of every parameter of the model."""

    def __init__(self, model: "GaussianDynamics") -> None:
        self.model = model
        self.products = Products()
        self.minus_one = torch.tensor(-1.0)

    @torch.no_grad()
    def __call__(self, inputs: Tensor, target: Tensor) -> Tensor:
        """Inputs [R, B, D + A] and targets [R, B, d] -> the loss [R]."""
        model = self.model
        hidden: list[Any] = list(model.hidden)
        x = inputs if model.norm is None else model.norm(inputs)
        seen = [x]  # what each layer saw
        weights = [layer.effective_weight() for layer in hidden]
        for index, (layer, weight) in enumerate(zip(hidden, weights, strict=True)):
            x = self._activate(index, layer.bias, x, weight)
            seen.append(x)
        heads = (model.mean_head, model.variance_head)
        weights.append(torch.cat([head.effective_weight() for head in heads], -1))
        output = self.products.forward(len(hidden), torch.cat([head.bias for head in heads], -1), x, weights[-1])
        loss, gradient = self._loss(output, target)

        width = model.target_size
        above = torch.empty_like(weights[-1])
        self.products.weight_gradient(x, gradient, above)
        offset = gradient.sum(1, keepdim=True)
        for head, part in zip(heads, (slice(0, width), slice(width, None)), strict=True):
            set_weight_gradient(head, above[..., part], weights[-1][..., part])
            gradient_of(head.bias).copy_(offset[..., part])
        for index in reversed(range(len(hidden))):
            layer = hidden[index]
            gradient = self.products.input_gradient(index + 1, gradient, weights[index + 1])
            self._deactivate(gradient, seen[index + 1])
            found = gradient_of(layer.weight)
            self.products.weight_gradient(seen[index], gradient, found)
            set_weight_gradient(layer, found, weights[index])
            torch.sum(gradient, 1, keepdim=True, out=gradient_of(layer.bias))
        return loss

    def _activate(self, index: int, bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """A hidden layer and its activation."""
        if self.model.config.activation == "relu":
            return self.products.forward(index, bias, x, weight).relu_()
        if x.dtype != torch.float32:
            return self.products.forward(index, bias, x, weight).tanh_()
        result = self.products.forward(index, bias, x, weight, scale=2.0).sigmoid_()
        return torch.add(self.minus_one, result, alpha=2, out=result)

    def _deactivate(self, gradient: Tensor, output: Tensor) -> None:
        """Multiply by the derivative of the activation, in place, given its output."""
        operations = torch.ops.aten
        if self.model.config.activation == "relu":
            operations.threshold_backward.grad_input(gradient, output, 0, grad_input=gradient)
        else:
            operations.tanh_backward.grad_input(gradient, output, grad_input=gradient)

    def _loss(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """The loss [R], and its gradient in the outputs of both heads [R, B, 2 d]."""
        config = self.model.config
        rows = target.shape[1]
        mean, raw = output.split(self.model.target_size, -1)
        raw = raw + self.model.variance_offset
        free = torch.nn.functional.softplus(raw) + config.min_variance
        variance = free.clamp(max=config.max_variance)
        error = mean - target
        precision = variance.reciprocal()
        scaled = error * precision
        squared = scaled * error
        terms = 0.5 * (squared + variance.log() + math.log(2 * math.pi))
        in_variance = (0.5 / rows) * precision * (1 - squared) * torch.sigmoid(raw) * (free <= config.max_variance)
        gradient = torch.cat([scaled / rows, in_variance], -1)
        if config.beta:
            weight = variance**config.beta
            terms = terms * weight
            gradient = gradient * torch.cat([weight, weight], -1)
        return terms.sum(-1).mean(-1), gradient


def set_weight_gradient(layer: Linear, gradient: Tensor, effective: Tensor) -> None:
    """Set the gradient of a layer's weight, given that in the weight as applied.

    With spectral norm that is W / s with s = left' W right, so the gradient in W is
    (gradient - <gradient, W / s> left right') / s.
    """
    found = gradient_of(layer.weight)
    if not layer.spectral_norm:
        if found is not gradient:
            found.copy_(gradient)
        return
    along = (gradient * effective).sum((1, 2), keepdim=True)
    value = (layer.left * layer.weight * layer.right.mT).sum((1, 2), keepdim=True)
    torch.addcmul(gradient, along * layer.left, layer.right.mT, value=-1, out=found).div_(value)
