"""The written-out gradients of the Gaussian model against autograd."""

import copy
from dataclasses import replace

import pytest
import torch

from butfor.models.direct_gaussian import DirectGaussian
from butfor.models.dynamics import GaussianDynamics, ModelConfig
from butfor.models.fitting import FitConfig, make_optimizer, train_step
from butfor.models.networks import make_generators

REPLICAS, ROWS = 3, 40
SMALL = ModelConfig(layers=3, width=16)
CONFIGS = {
    "detection": SMALL,
    "learning": replace(SMALL, activation="tanh", spectral_norm_hidden=False),
    "steep": replace(SMALL, spectral_norm_hidden=False, beta=0.5),
    "clipped": replace(SMALL, max_variance=1.1, activation="tanh", layers=1),
    "plain": replace(SMALL, normalize_input=False, spectral_norm_variance=False, spectral_norm_hidden=False, width=4),
}


def make_model(config: ModelConfig, kind: torch.dtype = torch.float64) -> GaussianDynamics:
    return GaussianDynamics(5, 2, 3, config, make_generators(range(REPLICAS))).to(kind).train()


def make_batch(seed: int, kind: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    (generator,) = make_generators([seed])
    inputs = torch.randn(REPLICAS, ROWS, 7, generator=generator, dtype=kind)
    return inputs, 3 * torch.randn(REPLICAS, ROWS, 3, generator=generator, dtype=kind)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("kind", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-5)])
def test_loss_and_gradients_are_those_of_autograd(name: str, kind: torch.dtype, tolerance: float) -> None:
    reference = make_model(CONFIGS[name], kind)
    model = copy.deepcopy(reference)
    direct = DirectGaussian(model)
    for seed in range(2):  # the second batch meets iterated vectors, running statistics and used buffers
        batch = make_batch(seed, kind)
        expected = reference.loss(*batch)
        reference.zero_grad()
        expected.sum().backward()
        torch.testing.assert_close(direct(*batch), expected.detach(), rtol=tolerance, atol=tolerance)
        for (key, parameter), other in zip(model.named_parameters(), reference.parameters(), strict=True):
            assert parameter.grad is not None, key
            assert other.grad is not None, key
            scale = float(other.grad.abs().max())
            assert float((parameter.grad - other.grad).abs().max()) <= tolerance * scale, key
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, reference.state_dict()[key], rtol=tolerance, atol=tolerance, msg=key)


def test_the_clipped_variance_of_the_test_above_is_clipped_in_some_rows() -> None:
    model = make_model(CONFIGS["clipped"])
    share = (model(make_batch(0)[0])[1] == CONFIGS["clipped"].max_variance).double().mean()
    assert 0.01 < share < 0.99


def test_ten_optimiser_steps_lead_to_the_same_weights() -> None:
    reference = make_model(CONFIGS["learning"])
    model = copy.deepcopy(reference)
    fitting = FitConfig(learning_rate=1e-3)
    optimizers = [make_optimizer(one, fitting) for one in (reference, model)]
    loss = model.direct_loss()
    assert isinstance(loss, DirectGaussian)
    for seed in range(10):
        expected = train_step(reference.loss, optimizers[0], *make_batch(seed))
        found = train_step(loss, optimizers[1], *make_batch(seed))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    for value, other in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(value, other, rtol=1e-7, atol=1e-9)
