"""A captured step is the same step: it agrees with the eager one and leaves no trace of its recording."""

import copy

import pytest
import torch
from torch import Tensor

from butfor.attention import AttentionConfig, AttentionModel
from butfor.capture import captured
from butfor.dynamics import GaussianDynamics, ModelConfig
from butfor.fitting import FitConfig, Fitting, make_optimizer, take, train_step
from butfor.networks import make_generators

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
        return train_step(model.loss, optimizer, take(inputs, index), take(target, index))

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
        return train_step(model.loss, optimizer, take(inputs, index), take(target, index))

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
