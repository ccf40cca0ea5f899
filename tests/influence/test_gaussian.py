"""Gaussians against torch.distributions and numerical integration, and float32 against float64."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate
from torch import Tensor
from torch.distributions import Independent, Normal, kl_divergence

from butfor.influence.gaussian import KL_FORMS, KLForm, entropy, kl_to_mixture

Gaussians = tuple[Tensor, Tensor]
HALF_GAP = 0.5 * (1 - math.log(2))  # H(f) + log t_ff = 0.1534 a dimension, whatever the variance


def random_gaussians(*shape: int, seed: int = 0, spread: float = 1.0, dtype: torch.dtype = torch.float64) -> Gaussians:
    """Means N(0, spread^2) and log-normal variances of the given shape."""
    generator = torch.Generator().manual_seed(seed)
    mean = spread * torch.randn(shape, generator=generator, dtype=torch.float64)
    variance = torch.randn(shape, generator=generator, dtype=torch.float64).exp()
    return mean.to(dtype), variance.to(dtype)


def distribution(mean: Tensor, variance: Tensor) -> Any:
    return Independent(Normal(mean.double(), variance.double().sqrt()), 1)


def kl_of(f: Gaussians, g: Gaussians | None, form: KLForm) -> Tensor:
    """`kl_to_mixture` with the mixture g, or with none, so that f is its own."""
    return kl_to_mixture(*f, form=form) if g is None else kl_to_mixture(*f, *g, form=form)


def reference(mean: Tensor, variance: Tensor, mixture: Gaussians, form: KLForm) -> Tensor:
    """Appendix A.4 as printed (with the log-determinant's sign corrected), by torch.distributions in float64."""
    f = distribution(mean[..., :, None, :], variance[..., :, None, :])
    g = distribution(mixture[0][..., None, :, :], mixture[1][..., None, :, :])
    sum_of_both = distribution(mixture[0][..., None, :, :], variance[..., :, None, :] + mixture[1][..., None, :, :])
    count = math.log(mixture[0].shape[-2])
    variational = count - torch.logsumexp(-kl_divergence(f, g), -1)
    log_t = sum_of_both.log_prob(mean[..., :, None, :].double())
    product = count - torch.logsumexp(log_t, -1) - f.entropy()[..., 0]
    forms: dict[str, Tensor] = {
        "product": product,
        "variational": variational,
        "mean": (0.5 * (product + variational)).clamp_min(0),
        "mean_clip_product": 0.5 * (product.clamp_min(0) + variational),
    }
    return forms[form]


# --- closed forms ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dimensions", [1, 2, 7])
def test_entropy_is_that_of_torch_distributions(dimensions: int) -> None:
    mean, variance = random_gaussians(5, 4, dimensions)
    torch.testing.assert_close(entropy(variance), distribution(mean, variance).entropy(), rtol=1e-12, atol=1e-12)


def test_kl_has_the_log_determinant_the_right_way_round() -> None:
    # KL(N(0, 1) || N(0, e^2)) = 1/2 (e^-2 - 1 + 2); with the paper's printed ratio it would be negative
    zero, one, wide = torch.zeros(1, 1), torch.ones(1, 1), torch.full((1, 1), math.e**2)
    found = kl_to_mixture(zero, one, zero, wide, form="variational")
    assert found.item() == pytest.approx(0.5 * (math.exp(-2) + 1))


# --- the KL to a mixture against numerical integration --------------------------------------------


def integrated_kl(mean: Tensor, variance: Tensor, mixture: Gaussians) -> Tensor:
    """KL of each of K Gaussians [K, d] to the mixture [M, d], d = 1 or 2, by the trapezoid rule over +-10 deviations.

    For smooth integrands that vanish at the ends this rule converges faster than any power of the step.
    """
    points = 4001 if mean.shape[1] == 1 else 251
    unit = torch.linspace(-10, 10, points, dtype=torch.float64)
    step = unit[1] - unit[0]
    grid = torch.cartesian_prod(*[unit] * mean.shape[1]).reshape(-1, mean.shape[1])  # [P, d]
    result = []
    for center, width in zip(mean, variance, strict=True):
        x = center + grid * width.sqrt()
        log_f = distribution(center, width).log_prob(x)
        log_g = torch.logsumexp(distribution(*mixture).log_prob(x[:, None]), 1) - math.log(len(mixture[0]))
        volume = step ** mean.shape[1] * width.sqrt().prod()
        result.append((log_f.exp() * (log_f - log_g)).sum() * volume)
    return torch.stack(result)


def test_the_integration_that_judges_agrees_with_quad() -> None:
    mean, variance = random_gaussians(3, 1, seed=7)

    def integrand(x: float) -> float:
        log_p = distribution(mean, variance).log_prob(torch.tensor([[x]], dtype=torch.float64))
        return float(log_p[0].exp() * (log_p[0] - torch.logsumexp(log_p, 0) + math.log(3)))

    center, width = mean[0].item(), 10 * variance[0].sqrt().item()
    expected, _ = integrate.quad(integrand, center - width, center + width, limit=200)
    assert integrated_kl(mean, variance, (mean, variance))[0].item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("own", [True, False], ids=["own mixture", "separate mixture"])
@pytest.mark.parametrize("spread", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("dimensions", [1, 2])
def test_product_and_variational_enclose_the_true_kl_of_each_action(dimensions: int, spread: float, own: bool) -> None:
    f = random_gaussians(5, dimensions, seed=8, spread=spread)
    g = f if own else random_gaussians(7, dimensions, seed=9, spread=spread)
    truth = integrated_kl(*f, g)
    bounds = {form: kl_of(f, None if own else g, form) for form in KL_FORMS}
    lower, upper = bounds["product"], bounds["variational"]
    assert (lower <= truth + 1e-9).all()
    assert (truth <= upper + 1e-9).all()
    # the middle of an enclosing interval is never further from the truth than half of it
    assert ((bounds["mean"] - truth).abs() <= 0.5 * (upper - lower) + 1e-9).all()
    # and as the KL is never negative, max(product, 0) is a lower bound too, which makes the interval smaller
    assert ((bounds["mean_clip_product"] - truth).abs() <= 0.5 * (upper - lower.clamp_min(0)) + 1e-9).all()


@pytest.mark.parametrize("own", [True, False], ids=["own mixture", "separate mixture"])
@pytest.mark.parametrize("form", KL_FORMS)
@pytest.mark.parametrize("dimensions", [1, 3, 65, 100])
def test_every_form_is_its_formula(form: KLForm, dimensions: int, own: bool) -> None:
    f = random_gaussians(2, 3, 6, dimensions, seed=10)
    g = f if own else random_gaussians(2, 3, 4, dimensions, seed=11)
    result = kl_of(f, None if own else g, form)
    assert result.shape == (2, 3, 6)
    torch.testing.assert_close(result, reference(*f, g, form), rtol=1e-10, atol=1e-10)


def test_leading_axes_of_gaussians_and_mixture_broadcast() -> None:
    f, g = random_gaussians(5, 3, 2, seed=12), random_gaussians(4, 2, seed=13)
    expected = kl_to_mixture(*f, g[0].expand(5, -1, -1), g[1].expand(5, -1, -1))
    torch.testing.assert_close(kl_to_mixture(*f, *g), expected)


def test_inputs_are_not_overwritten() -> None:
    f, g = random_gaussians(4, 2, seed=14), random_gaussians(3, 2, seed=15)
    before = [value.clone() for value in (*f, *g)]
    for form in KL_FORMS:
        kl_to_mixture(*f, form=form)
        kl_to_mixture(*f, *g, form=form)
    assert all(torch.equal(old, new) for old, new in zip(before, (*f, *g), strict=True))


def test_a_mixture_of_one_has_the_plain_kl_as_its_variational_form() -> None:
    f, g = random_gaussians(6, 3, seed=16), random_gaussians(1, 3, seed=17)
    expected = kl_divergence(distribution(*f), distribution(*g))
    torch.testing.assert_close(kl_to_mixture(*f, *g, form="variational"), expected, rtol=1e-12, atol=1e-12)


def test_order_within_the_mixture_does_not_matter() -> None:
    f, g = random_gaussians(6, 3, seed=18), random_gaussians(9, 3, seed=19)
    shuffled = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(kl_to_mixture(*f, *g), kl_to_mixture(*f, g[0][shuffled], g[1][shuffled]))


# --- known values ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dimensions", [1, 3, 64, 65])
@pytest.mark.parametrize("variance", [1e-8, 1.0, 200.0])
def test_equal_components_give_zero_and_the_product_its_constant(
    variance: float, dimensions: int, dtype: torch.dtype
) -> None:
    f = (torch.full((32, dimensions), 3.7, dtype=dtype), torch.full((32, dimensions), variance, dtype=dtype))
    for mixture in (None, f):
        results = {form: kl_of(f, mixture, form) for form in KL_FORMS}
        assert torch.equal(results["variational"], torch.zeros(32, dtype=dtype))
        assert torch.equal(results["mean"], torch.zeros(32, dtype=dtype))
        assert torch.equal(results["mean_clip_product"], torch.zeros(32, dtype=dtype))
        constant = torch.full((32,), -HALF_GAP * dimensions, dtype=dtype)
        torch.testing.assert_close(results["product"], constant, rtol=1e-5, atol=0)


@pytest.mark.parametrize("count", [2, 32, 64, 500])
@pytest.mark.parametrize("dimensions", [1, 3])
def test_components_far_apart_give_log_k(dimensions: int, count: int) -> None:
    mean = (1000 * torch.arange(count, dtype=torch.float32))[:, None].expand(-1, dimensions)
    variance = torch.full_like(mean, 0.3)
    product = math.log(count) - HALF_GAP * dimensions
    expected: dict[KLForm, float] = {
        "variational": math.log(count),
        "product": product,
        "mean": max(0.0, 0.5 * (math.log(count) + product)),
        "mean_clip_product": 0.5 * (math.log(count) + max(0.0, product)),
    }
    for form, value in expected.items():
        torch.testing.assert_close(
            kl_to_mixture(mean, variance, form=form), torch.full((count,), value), rtol=1e-5, atol=1e-6
        )


def test_the_largest_score_is_the_known_one() -> None:
    # 1/2 (2 log K - 0.1534 d): 3.24 for K = 32, d = 3; 3.93 for K = 64
    for count, expected in ((32, 3.24), (64, 3.93)):
        mean = (1e4 * torch.arange(count, dtype=torch.float32))[:, None].expand(-1, 3)
        largest = kl_to_mixture(mean, torch.ones_like(mean)).max().item()
        assert largest == pytest.approx(expected, abs=0.005)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.integers(2, 40), st.integers(1, 6), st.floats(-4, 4), st.booleans())
def test_no_score_leaves_its_bounds(seed: int, count: int, dimensions: int, exponent: float, same: bool) -> None:
    mean, variance = random_gaussians(count, dimensions, seed=seed, spread=10**exponent, dtype=torch.float32)
    if same:
        variance = variance[:1].expand_as(variance)
    results = {form: kl_to_mixture(mean, variance, form=form) for form in KL_FORMS}
    rounding = 1e-5
    # exp(-KL) <= 1 and the self term is 1, so the mean lies between 1 / K and 1
    assert (results["variational"] >= -1e-10).all()
    assert (results["variational"] <= math.log(count) + rounding).all()
    # t_fg / t_ff <= 2^(d/2), with equality for a point-like g; equal variances allow no more than 1
    assert (results["product"] >= -dimensions * (HALF_GAP if same else 0.5) - rounding).all()
    largest = math.log(count) - HALF_GAP * dimensions
    assert (results["product"] <= largest + rounding).all()
    assert (results["mean"] >= 0).all()
    assert (results["mean"] <= max(0, 0.5 * (math.log(count) + largest)) + rounding).all()
    assert (results["mean_clip_product"] <= 0.5 * (math.log(count) + max(0, largest)) + rounding).all()


def test_no_score_is_negative_where_variances_differ_by_the_last_bits() -> None:
    # a KL is never negative; here it is about 1e-14, which is where rounding could turn its sign
    bits = torch.arange(64, dtype=torch.float32)[:, None] * 2.0**-23
    for base in (1.0, 0.7, 3e-8, 150.0):
        variance = base * (1 + bits)
        score = kl_to_mixture(torch.zeros_like(variance), variance, form="mean_clip_product")
        assert (score >= 0).all(), f"smallest score {score.min().item()} at variance {base}"


# --- float32 against float64 ----------------------------------------------------------------------

# How exact float32 can be. Inputs are exact here: the reference sees the same float32 numbers. With x the ratio of
# two variances, x - 1 - log x has the derivative 1 - 1/x, so the rounding of x and of log x (2^-24 each) costs about
# 1e-7 |x - 1| d. For x - 1 = 1e-3 that is 1e-10, against a KL of 5e-7. The variational form needs no floor beyond it.
# The product form is a difference of terms of order d log 2 (half of it log t_fg - log t_ff, half the constant) and
# crosses zero, so it is exact only to about 1e-7 of these terms.
FLOORS: dict[KLForm, float] = {
    "variational": 2e-10,
    "mean_clip_product": 2e-10,
    "product": 1e-6,
    "mean": 5e-7,
}


def assert_float32_is_exact(f: Gaussians, g: Gaussians | None) -> None:
    for form in KL_FORMS:
        result = kl_of(f, g, form)
        assert result.dtype == torch.float32
        assert torch.isfinite(result).all(), form
        expected = reference(*f, g or f, form)
        error = (result.double() - expected).abs() - 1e-4 * expected.abs()
        assert error.max() <= FLOORS[form], (form, error.max().item())


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**31),
    count=st.sampled_from([2, 3, 16, 64]),
    dimensions=st.integers(1, 8),
    distance=st.one_of(st.just(-math.inf), st.floats(-10, 6)),
    lowest=st.floats(-8, math.log10(200)),
    highest=st.floats(-8, math.log10(200)),
    own=st.booleans(),
)
def test_float32_is_exact_for_any_variances_and_distances(
    seed: int, count: int, dimensions: int, distance: float, lowest: float, highest: float, own: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def draw(amount: int) -> Gaussians:
        uniform = torch.rand(2, 3, amount, dimensions, generator=generator)
        variance = 10 ** (lowest + (highest - lowest) * uniform[0])
        return 10.0**distance * (uniform[1] - 0.5), variance.clamp(1e-8, 200)

    assert_float32_is_exact(draw(count), None if own else draw(max(1, count // 2)))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**31),
    dimensions=st.integers(1, 8),
    relative=st.sampled_from([1e-3, 1e-4, 1e-5, 1e-6, 1e-7]),
    level=st.floats(-7.9, 2.2),
    offset=st.sampled_from([0.0, 1.0, 1e6]),
    own=st.booleans(),
)
def test_float32_is_exact_for_nearly_equal_gaussians(
    seed: int, dimensions: int, relative: float, level: float, offset: float, own: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def draw() -> Gaussians:
        normal = torch.randn(2, 3, 32, dimensions, generator=generator)
        variance = (10**level * (1 + relative * normal[0])).clamp(1e-8, 200)
        return offset + relative * 10 ** (level / 2) * normal[1], variance

    assert_float32_is_exact(draw(), None if own else draw())


@pytest.mark.parametrize("own", [True, False], ids=["own mixture", "separate mixture"])
def test_float32_is_exact_at_the_ends_of_the_range(own: bool) -> None:
    ends = torch.tensor([1e-8, 1e-8 * 1.001, 1.0, 200.0 / 1.001, 200.0])
    variance = torch.cartesian_prod(ends, ends)  # [25, 2]
    for distance in (0.0, 1e-6, 1e-3, 1.0, 1e3, 1e6):
        mean = distance * torch.linspace(0, 1, 25)[:, None] * torch.tensor([1.0, -1.0])
        f = (mean, variance)
        assert_float32_is_exact(f, None if own else (mean.flip(0), variance.roll(7, 0)))


def test_float32_does_not_overflow_in_many_dimensions() -> None:
    # one wide Gaussian among narrow ones: log t_fg - log t_ff is 1/2 log 2 a dimension, so 104, and its exp infinite
    variance = torch.full((4, 300), 1e-6)
    variance[0] = 100.0
    f = (torch.zeros(4, 300), variance)
    for form in KL_FORMS:
        for mixture in (None, f):
            result = kl_of(f, mixture, form)
            torch.testing.assert_close(result.double(), reference(*f, f, form), rtol=1e-4, atol=1e-4)


# --- misuse ---------------------------------------------------------------------------------------


def test_an_unknown_form_is_refused_with_the_known_ones() -> None:
    unknown: Any = "max"
    with pytest.raises(ValueError, match=r"'max'.*product, variational, mean, mean_clip_product"):
        kl_to_mixture(*random_gaussians(2, 1), form=unknown)


def test_half_a_mixture_is_refused() -> None:
    mean, variance = random_gaussians(3, 2)
    with pytest.raises(ValueError, match="mixture_variance"):
        kl_to_mixture(mean, variance, mixture_mean=mean + 1)
    with pytest.raises(ValueError, match="mixture_mean"):
        kl_to_mixture(mean, variance, mixture_variance=2 * variance)


def test_there_is_no_silently_wrong_gradient() -> None:
    mean, variance = random_gaussians(3, 2)
    result = kl_to_mixture(mean.requires_grad_(), variance).sum()
    if result.requires_grad:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.backward()
    assert mean.grad is None


def test_entropy_grows_with_each_variance_by_half_its_log() -> None:
    variance = np.array([[1.0, 2.0, 3.0]])
    wider = variance * np.array([1.0, math.e**2, 1.0])
    assert (entropy(torch.from_numpy(wider)) - entropy(torch.from_numpy(variance))).item() == pytest.approx(1.0)


def test_means_too_far_apart_for_single_precision_give_no_nan() -> None:
    mean, far, variance = torch.zeros(2, 1), torch.full((3, 1), 1e16), torch.full((3, 1), 1e-8)
    for form in KL_FORMS:
        assert torch.isfinite(kl_to_mixture(mean, variance[:2], far, variance, form)).all(), form
