"""A Bayesian network for R replicas and its information gain: the core of VIME (Houthooft et al., 2016).

The information gain of transitions is the KL divergence, in nats, from the posterior over weights before to the one
after a few update steps on them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, softplus

from butfor.models.fitting import train_step
from butfor.models.networks import Generators, InputNorm
from butfor.runs.config import check_choices, check_least, check_positive

BETAS = (0.9, 0.999)  # Adam's defaults
EPSILON = 1e-8
AT_ONCE = {"cpu": 2**19, "cuda": 2**28}  # drawn weights that fit into a processor's cache, or into 4 GiB of a GPU


@dataclass(frozen=True)
class VimeConfig:
    """The Bayesian network, its training and its information gain. Defaults are the paper's."""

    layers: int = 2
    """hidden layers, with ReLU"""
    width: int = 64
    """units of each hidden layer"""
    samples: int = 10
    """weights drawn from the posterior for one estimate of the expected likelihood"""
    kl_weight: float = 0.05
    """factor w on KL(posterior || prior) in the training loss; the prior counts like 1 / w transitions"""
    likelihood_sigma: float = 0.5
    """standard deviation of the predicted Gaussian in scaled units, in training and in the information gain"""
    prior_sigma: float = 0.1
    """standard deviation of every weight under the prior, whose mean is 0"""
    learning_rate: float = 3e-3
    """of Adam, in training and in the update steps of the information gain"""
    batch_size: int = 25
    group: int = 10
    """consecutive transitions whose information gain is computed together"""
    steps: int = 10
    """update steps on a group's data"""
    method: Literal["iterated", "second_order"] = "iterated"
    """take the update steps, or use their closed-form second-order approximation (one gradient)"""
    step_size: float = 0.5
    """lambda of "second_order": the share of a full step; 0.5 gives gains of about the size of the iterated ones"""
    normalize_input: bool = True
    """batch normalisation of states and actions, without learnable parameters"""
    largest: float = 1000.0
    """information gain is clipped to [0, largest] nats"""

    def __post_init__(self) -> None:
        check_least(self, 1, "layers", "width", "samples", "group", "steps")
        check_least(self, 2 if self.normalize_input else 1, "batch_size")
        check_positive(self, "likelihood_sigma", "prior_sigma", "learning_rate", "step_size", "largest")
        check_least(self, 0, "kl_weight")
        check_choices(self, "method")


Posterior = tuple[Tensor, Tensor]
"""Mean and standard deviation [..., P] of P independent Gaussian weights."""


def kl_between(old: Posterior, new: Posterior) -> Tensor:
    """KL(new || old) of factorised Gaussians [..., P] -> [...], precise even if they hardly differ.

    With u = sigma_new / sigma_old - 1, log(1 / (1 + u)) + ((1 + u)^2 - 1) / 2 = u (u + 2) / 2 - log(1 + u).
    """
    (mean, deviation), (new_mean, new_deviation) = old, new
    u = (new_deviation - deviation) / deviation
    return (0.5 * u * (u + 2) - u.log1p() + 0.5 * ((new_mean - mean) / deviation).square()).sum(-1)


class BayesianNetwork(nn.Module):
    """R networks with independent Gaussian weights and biases, stored as one vector of P numbers per replica.

    Each layer has two pieces of the vector: its weight [in, out] and its bias [out].
    """

    offset: Tensor

    def __init__(self, sizes: tuple[int, int, int], config: VimeConfig, generators: Generators) -> None:
        """Draw the initial means; `sizes` are those of an observation, an action and a target.

        Means of weights are N(0, 0.2^2), of biases 0; standard deviations are the prior's.
        """
        super().__init__()
        self.obs_size, action_size, self.target_size = sizes
        self.config = config
        self.replicas = len(generators)
        inputs = self.obs_size + action_size
        self.norm = InputNorm(inputs, self.replicas) if config.normalize_input else None
        self.shapes = list(pairwise([inputs, *[config.width] * config.layers, self.target_size]))
        self.pieces = [size for rows, columns in self.shapes for size in (rows * columns, columns)]
        self.size = sum(self.pieces)  # P
        means = []
        for generator in generators:
            for rows, columns in self.shapes:
                means += [0.2 * torch.randn(rows * columns, generator=generator), torch.zeros(columns)]
        self.mean = nn.Parameter(torch.cat(means).view(self.replicas, self.size))
        start = config.prior_sigma + math.log(-math.expm1(-config.prior_sigma))  # the inverse of softplus
        self.rho = nn.Parameter(torch.full_like(self.mean, start))
        # a constant drift, without a prior
        self.register_buffer("offset", torch.zeros(self.replicas, 1, self.target_size))

    def posterior(self) -> Posterior:
        """Mean and deviation = softplus(rho) of every weight [R, P]."""
        return self.mean, softplus(self.rho)

    def kl(self) -> Tensor:
        """KL(posterior || prior) [R]."""
        prior = torch.zeros_like(self.mean), torch.full_like(self.mean, self.config.prior_sigma)
        return kl_between(prior, self.posterior())

    def apply_weights(self, weights: Tensor, x: Tensor) -> Tensor:
        """Apply given weights [Q, S, P] to normalised inputs [Q, B, D + A] -> [Q, S, B, d], for any Q."""
        count, samples = weights.shape[:2]
        x = x[:, None].expand(-1, samples, -1, -1).flatten(0, 1)  # [Q * S, B, D + A]
        pieces = weights.flatten(0, 1).split(self.pieces, -1)
        for layer, shape in enumerate(self.shapes):
            weight, bias = pieces[2 * layer].unflatten(-1, shape), pieces[2 * layer + 1].unsqueeze(1)
            x = torch.baddbmm(bias, x if layer == 0 else x.relu(), weight)
        return x.view(count, samples, *x.shape[1:])

    def normalized(self, inputs: Tensor) -> Tensor:
        """Normalise [R, B, D + A], by the batch's statistics in training mode and by the running ones otherwise."""
        normalized: Tensor = inputs if self.norm is None else self.norm(inputs)
        return normalized

    def forward(self, inputs: Tensor, noise: Tensor) -> Tensor:
        """Predict with S drawn weights: inputs [R, B, D + A], standard normal noise [R, S, P] -> [R, S, B, d]."""
        mean, deviation = (part.unsqueeze(1) for part in self.posterior())
        return self.apply_weights(torch.addcmul(mean, deviation, noise), self.normalized(inputs)) + self.offset[:, None]

    def loss(self, inputs: Tensor, target: Tensor, noise: Tensor) -> Tensor:
        """The negative ELBO [R]: NLL, summed over dimensions, mean over samples and batch, + kl_weight KL(q || p)."""
        sigma = self.config.likelihood_sigma
        error = (target[:, None] - self(inputs, noise)) / sigma  # [R, S, B, d]; the target is that of every sample
        constant = self.target_size * (math.log(sigma) + 0.5 * math.log(2 * math.pi))
        likelihood: Tensor = 0.5 * error.square().sum(-1).mean((1, 2)) + constant
        return likelihood + self.config.kl_weight * self.kl()


def information_gain(
    model: BayesianNetwork, x: Tensor, target: Tensor, valid: Tensor, noise: Tensor, dims: Tensor
) -> Tensor:
    """KL(after || before) in nats for G groups of n transitions: normalised inputs x [R, G, n, D + A] -> [R, G].

    Only valid transitions [R, G, n, 1] and the dimensions `dims` of the target [R, G, n, d] count. All groups use the
    same noise [R, steps, S, P], so that they differ only by their data. The model is not modified: each group has its
    own copy of the posterior and its own Adam, which starts without moments.

    iterated: `steps` steps on KL(new || before) + the NLL, summed over the group and mean over S samples.

    second_order: KL(before + delta || before) is 1/2 delta' H delta with H = diag(1 / sigma^2) for means and, as
    sigma = softplus(rho), H = diag(2 sigmoid(rho)^2 / sigma^2) for rho. With the NLL to first order, g' delta, the
    best step is delta = -H^-1 g; a share lambda of it gains 1/2 lambda^2 g' H^-1 g.
    """
    config = model.config
    groups = x.shape[1]
    x = x.flatten(0, 1)  # [R * G, n, D + A]
    valid = valid.flatten(0, 1)[:, None]  # [R * G, 1, n, 1]
    wanted = (target - model.offset[:, None])[..., dims].flatten(0, 1)[:, None]  # [R * G, 1, n, d]
    before = torch.stack([model.mean, model.rho]).detach()[:, :, None]  # [2, R, 1, P]
    old = before[0], softplus(before[1])

    def surprise(new: Tensor, noise: Tensor) -> Tensor:
        """The NLL of all groups together, except for a constant: noise [R, S, P]."""
        weights = torch.addcmul(new[0][:, :, None], softplus(new[1])[:, :, None], noise[:, None])  # [R, G, S, P]
        error = (wanted - model.apply_weights(weights.flatten(0, 1), x)[..., dims]) / config.likelihood_sigma
        return 0.5 * (error.square() * valid).sum() / config.samples

    with torch.enable_grad():
        new = before.repeat(1, 1, groups, 1).requires_grad_()  # [2, R, G, P]
        if config.method == "second_order":
            (gradient,) = torch.autograd.grad(surprise(new, noise[:, 0]), new)
            slope = gradient.square()
            curve = 2 * (before[1].sigmoid() / old[1]).square()
            squared = slope[0] * old[1].square() + slope[1] / curve  # [R, G, P]
            return (0.5 * config.step_size**2 * squared.sum(-1)).clamp(0, config.largest)
        first, second = torch.zeros_like(new), torch.zeros_like(new)
        for step in range(1, config.steps + 1):
            objective = kl_between(old, (new[0], softplus(new[1]))).sum() + surprise(new, noise[:, step - 1])
            (gradient,) = torch.autograd.grad(objective, new)
            with torch.no_grad():
                first.lerp_(gradient, 1 - BETAS[0])
                second.lerp_(gradient.square(), 1 - BETAS[1])
                root = (second / (1 - BETAS[1] ** step)).sqrt_().add_(EPSILON)
                new.addcdiv_(first, root, value=-config.learning_rate / (1 - BETAS[0] ** step))
    with torch.no_grad():
        return kl_between(old, (new[0], softplus(new[1]))).clamp(0, config.largest)


def draw_noise(generators: Generators, *shape: int) -> Tensor:
    """Draw standard normal numbers, one generator per replica: [generators, *shape]."""
    return torch.stack([torch.randn(shape, generator=g, device=g.device) for g in generators])


def train_block(
    loss_of: Callable[..., Tensor], optimizer: torch.optim.Optimizer, inputs: Tensor, target: Tensor, noise: Tensor
) -> Tensor:
    """Take n optimiser steps on [R, n * B, ...] with weight noise [R, n, S, P]; return the summed loss [R]."""
    steps = noise.shape[1]
    batches = zip(inputs.chunk(steps, 1), target.chunk(steps, 1), noise.unbind(1), strict=True)
    losses = [train_step(partial(loss_of, noise=drawn), optimizer, x, y) for x, y, drawn in batches]
    return torch.stack(losses).sum(0)


def gain_of_steps(
    model: BayesianNetwork, inputs: Tensor, target: Tensor, valid: Tensor, generators: Generators, dims: Sequence[int]
) -> Tensor:
    """The information gain of the group that each step of W episodes belongs to: valid [R, W, T] -> [R, W, T].

    Inputs are [R, W, T, D + A], targets [R, W, T, d]. No group spans two episodes; the last of each may be shorter.
    One generator gives all replicas the same noise; R generators give each replica its own.
    """
    config = model.config
    replicas, episodes, steps = valid.shape
    updates = config.steps if config.method == "iterated" else 1
    noise = draw_noise(generators, updates, config.samples, model.size).expand(replicas, -1, -1, -1)
    x = model.normalized(inputs.flatten(1, 2)).reshape(inputs.shape)
    count = -(-steps // config.group)  # groups of an episode
    padding = (0, 0, 0, count * config.group - steps)
    shape = (replicas, episodes * count, config.group)
    x, target, counts = (
        pad(table, padding).reshape(*shape, table.shape[-1]) for table in (x, target, valid[..., None].to(x.dtype))
    )  # [R, G, n, ...]
    gain = x.new_zeros(replicas, episodes * count)
    at_once = max(1, AT_ONCE["cuda" if x.is_cuda else "cpu"] // (replicas * config.samples * model.size))
    columns = torch.tensor(list(dims), device=x.device)
    for start in range(0, episodes * count, at_once):
        part = slice(start, start + at_once)
        gain[:, part] = information_gain(model, x[:, part], target[:, part], counts[:, part], noise, columns)
    return gain.view(replicas, episodes, count).repeat_interleave(config.group, 2)[..., :steps] * valid
