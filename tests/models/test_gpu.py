"""A captured step is the same step: it agrees with the eager one and leaves no trace of its recording."""

import copy
import os

import numpy as np
import pytest
import torch
from torch import Tensor

from butfor.models.attention import AttentionConfig, AttentionModel
from butfor.models.dynamics import GaussianDynamics, ModelConfig
from butfor.models.fitting import FitConfig, Fitting, make_optimizer, train_step
from butfor.models.gpu import captured, compiled, deterministic, matrix_precision, running_sum, tensors_of
from butfor.models.networks import make_generators
from butfor.training.agents.ddpg import DDPG
from butfor.training.agents.policy import AgentConfig
from butfor.training.replay import Batch

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU: graphs cannot be recorded here")
INPUTS, TARGET = torch.randn(200, 5, generator=make_generators([0])[0]), torch.zeros(200, 2)


def make(device: str, kind: str = "gaussian") -> GaussianDynamics | AttentionModel:
    generators = make_generators([1, 2, 3])
    if kind == "attention":
        tokens = {"agent": [0], "object": [1, 2], "action": [3, 4]}
        return AttentionModel(tokens, 2, AttentionConfig(normalize_input=True), generators).to(device).train()
    return GaussianDynamics(3, 2, 2, ModelConfig(layers=2, width=16), generators).to(device).train()


def steps(device: str, kind: str, capture: bool, count: int = 5) -> tuple[dict[str, Tensor], list[Tensor]]:
    model, losses = make(device, kind), []
    optimizer = make_optimizer(model, FitConfig())
    inputs, target = INPUTS.to(device), TARGET.to(device)

    def eager(index: Tensor) -> Tensor:
        return train_step(model.loss, optimizer, inputs[index], target[index])

    batches = torch.randint(200, (count, 3, 32), generator=make_generators([9])[0]).to(device)
    step = captured(eager, [batches[0]], [model, optimizer]) if capture else eager
    for index in batches:
        losses.append(step(index).clone())
    return model.state_dict(), losses


def test_without_a_gpu_the_step_itself_is_used() -> None:
    model = make("cpu")

    def step(index: Tensor) -> Tensor:
        return index

    assert captured(step, [torch.zeros(3, 4, dtype=torch.long)], [model, make_optimizer(model, FitConfig())]) is step


@needs_gpu
@pytest.mark.parametrize("kind", ["gaussian", "attention"])
def test_captured_agrees_with_eager(kind: str) -> None:
    eager, captured_run = steps("cuda", kind, False), steps("cuda", kind, True)
    for name, value in eager[0].items():
        torch.testing.assert_close(captured_run[0][name], value, rtol=1e-4, atol=1e-6, msg=name)
    torch.testing.assert_close(torch.stack(captured_run[1]), torch.stack(eager[1]), rtol=1e-4, atol=1e-6)


@needs_gpu
@pytest.mark.parametrize("fresh", [True, False])
def test_recording_leaves_no_trace(fresh: bool) -> None:
    model = make("cuda")
    optimizer = make_optimizer(model, FitConfig())
    inputs, target = INPUTS.to("cuda"), TARGET.to("cuda")

    def eager(index: Tensor) -> Tensor:
        return train_step(model.loss, optimizer, inputs[index], target[index])

    index = torch.arange(96, device="cuda").view(3, 32)
    if not fresh:
        eager(index)
    weights, moments = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())["state"]
    captured(eager, [index], [model, optimizer])
    for name, value in model.state_dict().items():
        assert torch.equal(value, weights[name]), name
    for key, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            assert torch.equal(value, moments[key][name] if not fresh else torch.zeros_like(value)), (key, name)


@needs_gpu
def test_a_fit_on_the_gpu_agrees_with_one_on_the_cpu_and_resumes() -> None:
    config = FitConfig(batch_size=64, max_epochs=6, validate_every=2)

    def fit(device: str, pause: bool = False) -> Fitting:
        table = (INPUTS.to(device), TARGET.to(device))
        fitting = Fitting(make(device), table, table, config, make_generators([1, 2, 3]))
        for state in fitting.run():
            if pause and state.epoch == 4:
                saved = state.state()
                fitting = Fitting(make(device), table, table, config, make_generators([7, 8, 9]))
                fitting.restore(saved)
                list(fitting.run())
                break
        return fitting

    on_cpu, on_gpu, resumed = fit("cpu"), fit("cuda"), fit("cuda", pause=True)
    torch.testing.assert_close(on_gpu.best_error.cpu(), on_cpu.best_error, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(resumed.best_error, on_gpu.best_error, rtol=1e-4, atol=1e-6)


def test_a_step_without_a_gpu_is_itself_also_for_tensors_it_writes_to() -> None:
    counter = torch.zeros(1)

    def step(value: Tensor) -> Tensor:
        counter.add_(value.sum())
        return counter

    used = captured(step, [torch.ones(2)], [counter])
    assert counter == 0  # nothing was called to warm up
    used(torch.ones(2))
    assert counter == 2


def test_without_a_gpu_nothing_is_compiled() -> None:
    def function(x: Tensor) -> Tensor:
        return x

    assert compiled(function, "cpu") is function
    assert compiled(function, torch.device("cpu")) is function


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_the_precision_of_products_is_put_back(precision: str) -> None:
    before = torch.get_float32_matmul_precision()
    with matrix_precision(precision):
        assert torch.get_float32_matmul_precision() == precision
    assert torch.get_float32_matmul_precision() == before


def test_the_precision_of_products_is_put_back_after_an_error() -> None:
    before = torch.get_float32_matmul_precision()
    other = "high" if before == "highest" else "highest"
    with pytest.raises(ZeroDivisionError), matrix_precision(other):
        raise ZeroDivisionError
    assert torch.get_float32_matmul_precision() == before


def test_all_that_an_optimiser_and_a_module_hold_is_found() -> None:
    """What a recording must undo: weights, buffers, both moments and the step count of every parameter."""
    model = make("cpu")
    optimizer = make_optimizer(model, FitConfig())
    extra = torch.zeros(3)
    parameters, saved = len(list(model.parameters())), len(model.state_dict())
    assert saved > parameters  # there are buffers
    assert len(tensors_of([model, optimizer, extra])) == saved + 1  # no moments yet
    index = torch.arange(96).view(3, 32)
    train_step(model.loss, optimizer, INPUTS[index], TARGET[index])
    found = tensors_of([model, optimizer, extra])
    assert len(found) == saved + 3 * parameters + 1
    assert found[-1] is extra
    places = {value.data_ptr() for value in found}
    for value in [*model.state_dict().values(), *(v for s in optimizer.state.values() for v in s.values())]:
        assert value.data_ptr() in places


def updates(device: str, capture: bool, count: int = 4) -> dict[str, Tensor]:
    """Updates of an agent, with weights, from noise alone."""
    config = AgentConfig(layers=2, width=16, critic_layer_norm=True, critics=2, caution_rate=0.1)
    agent = DDPG(6, 2, config, make_generators([1, 2, 3]), device)
    total = torch.zeros(3, 3, device=device)

    def eager(noise: Tensor) -> Tensor:
        inputs, next_inputs, action, rest = noise.split([6, 6, 2, 2], -1)
        place = torch.zeros(noise.shape[:2], dtype=torch.long, device=device)
        batch = Batch(inputs, action, next_inputs, -rest[..., 0].round(), (rest[..., 1] > 0.1).float(), rest[..., 0],
                      place, place, rest[..., 1])  # fmt: skip
        total.add_(agent.update(batch, 0)[0])
        return total

    draws = torch.rand(count, 3, 32, 16, generator=make_generators([9])[0]).to(device)
    step = captured(eager, [draws[0]], [*agent.changes(), total]) if capture else eager
    one = torch.ones(3, 1, device=device)
    agent.adjust_caution(100 * one, one.bool())  # a recorded graph reads it at each replay
    for noise in draws:
        step(noise)
    return agent.state_dict() | {"total": total}


@needs_gpu
def test_captured_updates_of_an_agent_agree_with_eager_ones() -> None:
    eager, recorded = updates("cuda", False), updates("cuda", True)
    for name, value in eager.items():
        torch.testing.assert_close(recorded[name], value, rtol=1e-4, atol=1e-4, msg=name)


@needs_gpu
@pytest.mark.parametrize("layer_norm", [False, True])
def test_gradients_of_an_agent_by_kernels_agree_with_those_of_autograd(layer_norm: bool) -> None:
    """The gradients, and not the weights: Adam turns a gradient of rounding errors alone into a whole step."""
    generator = torch.Generator("cuda").manual_seed(0)
    now, then, rest = torch.randn(3, 3, 32, 6, device="cuda", generator=generator)
    place = torch.zeros(3, 32, dtype=torch.long, device="cuda")
    ones = torch.ones(3, 32, device="cuda")
    batch = Batch(now, rest[..., :2].tanh(), then, -rest[..., 2].abs(), ones, ones, place, place, rest[..., 3].abs())
    found = []
    for exact in (True, False):
        with deterministic(exact), torch.no_grad():
            config = AgentConfig(layers=2, width=16, critic_layer_norm=layer_norm)
            agent = DDPG(6, 2, config, make_generators([1, 2, 3]), "cuda")
            seen, loss, error, of_critic = agent._descend_critics(batch)
            *losses, of_actor = agent._climb_critics(seen, batch, True)
        found.append([seen, loss, error, *losses, *of_critic, *of_actor, *agent.policy.normalizer.buffers()])
    for expected, ours in zip(*found, strict=True):
        scale = float(expected.abs().max())
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-4 * scale)


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 0)])
@pytest.mark.parametrize("on", [False, True])
def test_a_running_sum_adds_along_the_last_axis(shape: tuple[int, ...], on: bool) -> None:
    values = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with deterministic(on):
        found = running_sum(values)
    np.testing.assert_allclose(found.numpy(), np.cumsum(values.numpy(), -1), rtol=1e-12)
    assert found.shape == values.shape
    assert found.dtype == values.dtype


@needs_gpu
def test_a_running_sum_on_a_gpu_has_the_hosts_bits_where_they_must_repeat() -> None:
    values = torch.rand(100_000, generator=torch.Generator().manual_seed(0))
    with deterministic(True):
        found = running_sum(values.cuda())
    assert found.is_cuda
    assert torch.equal(found.cpu(), values.cumsum(-1))


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("on", [False, True])
def test_exactness_is_switched_on_within_and_put_back(before: bool, on: bool) -> None:
    """Also after an error; switched on outside, it is not switched off inside."""
    with deterministic(before):
        with pytest.raises(InterruptedError), deterministic(on):  # noqa: PT012
            assert torch.are_deterministic_algorithms_enabled() == (on or before)
            assert not on or os.environ["CUBLAS_WORKSPACE_CONFIG"]
            raise InterruptedError
        assert torch.are_deterministic_algorithms_enabled() == before
    assert not torch.are_deterministic_algorithms_enabled()
