"""Diagonal Gaussians: entropy, and the KL divergence of a Gaussian to an equal-weight mixture (paper, appendix A.4).

A Gaussian is a pair of tensors `mean, variance` whose last axis is its dimension d. Everything is written in ratios
of variances and differences of means, so that float32 keeps its precision from variances of 1e-8 to 200.
"""

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from butfor.models.gpu import has_kernels

KLForm = Literal["product", "variational", "mean", "mean_clip_product"]
KL_FORMS: tuple[KLForm, ...] = get_args(KLForm)


def entropy(variance: Tensor) -> Tensor:
    """H = 1/2 log((2 pi e)^d |Sigma|): [..., d] -> [...]."""
    return 0.5 * (variance.log() + math.log(2 * math.pi * math.e)).sum(-1)


def log_normal(target: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """log N(target; mean, variance): [..., d] -> [...]."""
    squared = (target - mean).square() / variance
    return -0.5 * (squared + variance.log() + math.log(2 * math.pi)).sum(-1)


def kl_between(mean: Tensor, variance: Tensor, other_mean: Tensor, other_variance: Tensor) -> Tensor:
    """KL of each of K Gaussians to each of M others: [..., K, d], [..., M, d] -> [..., K, M]."""
    ratio = variance.unsqueeze(-2) / other_variance.unsqueeze(-3)
    squared = (mean.unsqueeze(-2) - other_mean.unsqueeze(-3)).square() / other_variance.unsqueeze(-3)
    return 0.5 * (squared + ratio - 1 - ratio.log()).sum(-1)


def kl_to_mixture(
    mean: Tensor,
    variance: Tensor,
    mixture_mean: Tensor | None = None,
    mixture_variance: Tensor | None = None,
    form: KLForm = "mean_clip_product",
) -> Tensor:
    """KL of each of K Gaussians to an equal-weight mixture of M Gaussians: [..., K, d], [..., M, d] -> [..., K].

    `product` is a lower and `variational` an upper bound of it. `mean` is their mean, clipped at zero (the paper's);
    `mean_clip_product` clips only the product term. Without a mixture the K Gaussians are their own mixture. Temporary
    tensors are overwritten, so there is no gradient.
    """
    if form not in KL_FORMS:
        raise ValueError(f"form is {form!r}; expected one of {', '.join(KL_FORMS)}.")
    own = mixture_mean is None
    if own != (mixture_variance is None):
        raise ValueError("Give both mixture_mean and mixture_variance, or neither.")
    if mixture_mean is None or mixture_variance is None:
        if has_kernels(mean.device):
            from butfor.models.gpu import kernels  # Triton is there only with a GPU

            if kernels.takes(mean, variance):
                return kernels.kl_to_own_mixture(mean, variance, form)
        mixture_mean, mixture_variance = mean, variance
    divergence, overlap = _pairs(mean, variance, mixture_mean, mixture_variance)
    dimensions = mean.shape[-1]
    # H(f) + log t_ff = d (1 - log 2) / 2, and `overlap` is relative to log t_ff
    product = -_log_mean_exp(overlap, own and dimensions <= 64) - 0.5 * dimensions * (1 - math.log(2))  # [..., K]
    variational = -_log_mean_exp(divergence.neg_(), own)  # [..., K]
    if form == "product":
        return product
    if form == "variational":
        return variational
    if form == "mean":
        return (0.5 * (product + variational)).clamp_min(0)
    return 0.5 * (product.clamp_min(0) + variational)


def _pairs(mean_f: Tensor, variance_f: Tensor, mean_g: Tensor, variance_g: Tensor) -> tuple[Tensor, Tensor]:
    """All K x M pairs: KL(f || g) and log t_fg - log t_ff, each [..., K, M].

    The log-determinant enters as log |Sigma_g| / |Sigma_f|; the paper's appendix prints the inverse ratio. The loop
    over dimensions keeps the K x M plane innermost, which suits vector units.
    """
    shape = torch.broadcast_shapes(mean_f[..., :, None, 0].shape, mean_g[..., None, :, 0].shape)
    divergence = mean_f.new_zeros(shape)
    overlap = mean_f.new_full(shape, mean_f.shape[-1] * math.log(2))
    for j in range(mean_f.shape[-1]):
        variance_b = variance_g[..., None, :, j]
        ratio = variance_f[..., :, None, j] / variance_b  # [..., K, M]
        squared = (mean_f[..., :, None, j] - mean_g[..., None, :, j]).square_().div_(variance_b)
        log_ratio = ratio.log()
        plus = ratio + 1
        divergence += ratio.sub_(1).sub_(log_ratio).add_(squared)
        overlap.addcdiv_(squared, plus, value=-1)
        overlap += log_ratio.sub_(plus.log_())
    return divergence.mul_(0.5), overlap.mul_(0.5)


def _log_mean_exp(exponent: Tensor, bounded: bool) -> Tensor:
    """log mean exp over the last axis, precise even if every exponent is tiny; overwrites its input.

    `bounded`: the largest exponent is known to be moderate (each Gaussian is in its own mixture): no shift is needed.
    """
    if bounded:
        return exponent.expm1_().mean(-1).log1p_()
    largest = exponent.clamp_(min=-1e30).amax(-1, keepdim=True)
    return largest.squeeze(-1) + exponent.sub_(largest).expm1_().mean(-1).log1p_()
