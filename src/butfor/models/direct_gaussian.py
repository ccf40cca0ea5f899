"""The loss of `GaussianDynamics` and its gradients, written out: a training step without autograd.

The reference is `GaussianDynamics.loss` with autograd. On a CPU the heads are one product, every product is written
into a buffer that is reused, and tanh = 2 sigmoid(2 x) - 1 needs one pass over memory more than the sigmoid. On a GPU
there are kernels.
"""

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from butfor.models.gpu import MOST_ROWS
from butfor.models.networks import EPSILON, MOMENTUM, Linear
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


class KernelGaussian:
    """The same on a GPU: kernels for the inputs, for all layers forward and back, for both heads and for the loss."""

    def __init__(self, model: "GaussianDynamics") -> None:
        self.model = model

    @staticmethod
    def takes(model: "GaussianDynamics") -> bool:
        """Whether the kernels take this model, on a GPU that has them."""
        from butfor.models.gpu import chains  # Triton is there only with a GPU

        hidden: list[Any] = list(model.hidden)
        weights = [*(layer.weight for layer in hidden), model.mean_head.weight]
        return 2 * model.target_size <= chains.MOST_OUTPUTS and chains.fits(
            chains.Chain(weights, [], [], [], model.config.activation)
        )

    @torch.no_grad()
    def __call__(self, inputs: Tensor, target: Tensor) -> Tensor:
        """Inputs [R, B, D + A] and targets [R, B, d] -> the loss [R]."""
        from butfor.models.gpu import chains, gaussian
        from butfor.models.gpu import inputs as batches

        model, config = self.model, self.model.config
        hidden: list[Any] = list(model.hidden)
        mean, variance = model.mean_head, model.variance_head
        vectors = (variance.left, variance.right) if variance.spectral_norm else None
        norm = model.norm
        if norm is not None and inputs.shape[1] > MOST_ROWS:
            inputs = norm(inputs)
        elif norm is not None:
            inputs = batches.normalize(inputs, norm.mean, norm.variance, norm.least, MOMENTUM, EPSILON)
        weights = [layer.effective_weight() for layer in hidden]
        own = (mean.weight, mean.bias), (variance.weight, variance.bias)
        *joined, value = gaussian.join_heads(*own, vectors)
        biases = [*(layer.bias for layer in hidden), joined[1]]
        chain = chains.Chain([*weights, joined[0]], biases, [], [], config.activation)
        output, kept = chains.forward(chain, inputs)
        loss, gradient = gaussian.likelihood(
            output, target, model.variance_offset, config.min_variance, config.max_variance, config.beta
        )
        behind, scaled, _ = chains.backward(chain, kept, gradient)
        above = torch.empty_like(joined[0]), torch.empty_like(joined[1])
        into = chains.Gradients(
            [*(gradient_of(layer.weight) for layer in hidden), above[0]],
            [*(gradient_of(layer.bias) for layer in hidden), above[1]],
            [],
            [],
        )
        chains.weight_gradients(kept, gradient, behind, scaled, into)
        of_mean, of_variance = ((gradient_of(weight), gradient_of(bias)) for weight, bias in own)
        gaussian.split_heads(joined[0], above, value, vectors, of_mean, of_variance)
        for layer, weight in zip(hidden, weights, strict=True):
            set_weight_gradient(layer, gradient_of(layer.weight), weight)
        return loss


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
