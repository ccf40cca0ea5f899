"""Steps and fits: replicas against single ones, early stopping against constructed cases, resumed against unbroken."""

import io
import math
from typing import Any

import pytest
import torch
from support.small_networks import CONFIGS, SEEDS, network, normal
from torch import Tensor, nn

from butfor.models.dynamics import GaussianDynamics, ModelConfig
from butfor.models.fitting import DirectAdam, FitConfig, Fittable, Fitting, make_optimizer
from butfor.models.networks import make_generators

# --- steps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_broken_target_stops_the_fit(value: float) -> None:
    inputs, target = normal(40, 5), normal(40, 2, seed=1)
    target[7, 0] = value
    fitting = Fitting(network(), (inputs, target), (inputs, target), FitConfig(batch_size=10), make_generators(SEEDS))
    with pytest.raises(FloatingPointError, match="replica 0, 1, 2"):
        list(fitting.run())


# --- fitting: a model whose validation errors are written down beforehand --------------------------


class Scripted(Fittable):
    """Its validation error in epoch e is `errors[replica][e - 1]`; `age` counts the epochs that a replica has seen."""

    def __init__(self, errors: list[list[float]], broken_from: dict[int, int] | None = None) -> None:
        super().__init__()
        self.replicas, self.errors, self.broken_from = len(errors), torch.tensor(errors), broken_from or {}
        self.weight = nn.Parameter(torch.zeros(self.replicas, 1))
        self.register_buffer("age", torch.zeros(self.replicas))
        self.batches: list[Tensor] = []

    def loss(self, inputs: Tensor, target: Tensor) -> Tensor:
        self.batches.append(inputs[..., 0].clone())
        self.get_buffer("age").add_(1)  # one batch an epoch, unless a test looks at the batches
        loss = self.weight.sum(1)
        for replica, epoch in self.broken_from.items():
            if self.get_buffer("age")[replica] >= epoch:
                loss = loss * torch.where(torch.arange(self.replicas) == replica, math.nan, 1.0)
        return loss

    def predict_mean(self, inputs: Tensor) -> Tensor:
        epoch = self.get_buffer("age").long() - 1
        error = self.errors[torch.arange(self.replicas), epoch]
        return error.sqrt()[:, None, None].expand(-1, inputs.shape[1], 1)


def scripted_fitting(model: Scripted, rows: int = 4, **config: Any) -> Fitting:
    settings = FitConfig(**{"batch_size": rows, "validate_every": 1} | config)
    table = (torch.arange(rows, dtype=torch.float32)[:, None], torch.zeros(rows, 1))
    return Fitting(model, table, table, settings, make_generators(range(model.replicas)))


def test_a_loss_that_is_not_a_number_stops_the_fit_and_names_the_replica() -> None:
    model = Scripted([[1.0] * 3] * 3, broken_from={1: 2})
    with pytest.raises(FloatingPointError, match=r"replica 1\b"):
        list(scripted_fitting(model, max_epochs=3).run())


def test_a_validation_error_that_is_not_a_number_stops_the_fit_and_names_the_replica() -> None:
    # otherwise no validation is ever better than the first, and untrained weights come back as the best
    model = Scripted([[1.0] * 3, [math.nan] * 3, [1.0] * 3])
    with pytest.raises(FloatingPointError, match=r"validation.*replica 1\b"):
        list(scripted_fitting(model, max_epochs=3).run())


def test_each_replica_stops_by_itself_and_keeps_its_best_weights() -> None:
    errors = [
        [5, 4, 4, 6, 1, 1, 1, 1, 1, 1],  # 4 again is no better, 6 is the second without a better one: stops at 4
        [5, 6, 4, 5, 3, 4, 2, 3, 3, 1],  # never two in a row, until 3 and 3: stops at epoch 9
        [9, 8, 7, 6, 5, 4, 3, 2, 1, 0],  # improves to the end
    ]
    model = Scripted([[float(error) for error in row] for row in errors])
    fitting = scripted_fitting(model, max_epochs=10, patience=2)
    stopped = [fitting.stopped.tolist() for _ in fitting.run()]
    assert [row[0] for row in stopped] == [False] * 3 + [True] * 7
    assert [row[1] for row in stopped] == [False] * 8 + [True] * 2
    assert [row[2] for row in stopped] == [False] * 10
    assert fitting.best_epoch.tolist() == [2, 7, 10]
    torch.testing.assert_close(fitting.best_error, torch.tensor([4.0, 2.0, 0.0]))
    # every replica went through ten epochs, but each has the weights of its best one
    assert model.get_buffer("age").tolist() == [2, 7, 10]
    # the gradient is one, so Adam moves the weight by about the learning rate an epoch
    torch.testing.assert_close(model.weight[:, 0], -3e-4 * torch.tensor([2.0, 7.0, 10.0]), rtol=1e-4, atol=0)
    assert not model.training


def test_fitting_ends_when_the_last_replica_has_stopped() -> None:
    model = Scripted([[1.0] * 50, [3.0, 2.0] + [2.0] * 48])
    fitting = scripted_fitting(model, max_epochs=50, patience=3)
    validations = [fitting.epoch for _ in fitting.run()]
    assert validations == [1, 2, 3, 4, 5]
    assert fitting.best_epoch.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("every", "last", "expected"),
    [(1, 4, [1, 2, 3, 4]), (3, 7, [1, 3, 6, 7]), (5, 10, [1, 5, 10]), (20, 3, [1, 3]), (2, 1, [1])],
)
def test_validations_are_after_the_first_epoch_then_every_so_many_and_at_the_end(
    every: int, last: int, expected: list[int]
) -> None:
    fitting = scripted_fitting(Scripted([[float(-e + 20) for e in range(20)]]), validate_every=every, max_epochs=last)
    assert [fitting.epoch for _ in fitting.run()] == expected


def test_a_replica_that_diverges_after_it_has_stopped_does_not_end_the_others() -> None:
    model = Scripted([[1.0] * 9, [float(9 - epoch) for epoch in range(9)]], broken_from={0: 5})
    fitting = scripted_fitting(model, max_epochs=9, patience=2)
    list(fitting.run())
    assert fitting.best_epoch.tolist() == [1, 9]


@pytest.mark.parametrize(("rows", "batch_size"), [(8, 3), (9, 3), (5, 5), (4, 100)])
def test_an_epoch_shows_each_replica_every_row_once_in_its_own_order(rows: int, batch_size: int) -> None:
    model = Scripted([[0.0] * 10, [0.0] * 10])
    fitting = scripted_fitting(model, rows, batch_size=batch_size, max_epochs=1)
    list(fitting.run())
    sizes = [batch.shape[1] for batch in model.batches]
    assert sizes[:-1] == [batch_size] * (len(sizes) - 1)
    seen = torch.cat(model.batches, 1)
    assert torch.equal(seen.sort(1).values, torch.arange(rows, dtype=torch.float32).expand(2, -1))
    assert not torch.equal(seen[0], seen[1])


def test_batches_of_one_are_learned_from_where_nothing_is_normalised() -> None:
    model = network((0,), normalize_input=False)
    before = model.mean_head.weight.detach().clone()
    table = (normal(5, 5), normal(5, 2, seed=1))
    fitting = Fitting(model, table, table, FitConfig(batch_size=1, max_epochs=2), make_generators([0]))
    next(fitting.run())
    assert not torch.equal(model.mean_head.weight, before)


# --- fitting: networks ----------------------------------------------------------------------------

QUICK = FitConfig(batch_size=16, learning_rate=2e-2, max_epochs=12, validate_every=1, patience=2)


def tables(seed: int = 0, rows: int = 50) -> tuple[Tensor, Tensor]:
    """Small and noisy, so that a fast learner soon overfits."""
    inputs = normal(rows, 5, seed=seed)
    return inputs, inputs[..., :2] + 2 * normal(rows, 2, seed=seed + 1)


@pytest.mark.parametrize("config", [CONFIGS["defaults"], CONFIGS["no input norm"]], ids=["defaults", "no input norm"])
def test_fitting_replicas_is_fitting_each_alone_with_stops_and_best_weights(config: dict[str, Any]) -> None:
    train, validation = tables(), tables(5)
    together = Fitting(network(**config), train, validation, QUICK, make_generators([7, 8, 9]))
    list(together.run())
    epochs = []
    for replica, seed in enumerate(SEEDS):
        part = slice(replica, replica + 1)
        alone = Fitting(network((seed,), **config), train, validation, QUICK, make_generators([7 + replica]))
        list(alone.run())
        epochs.append(alone.epoch)
        assert together.best_epoch[replica] == alone.best_epoch[0]
        torch.testing.assert_close(together.best_error[replica], alone.best_error[0], rtol=1e-6, atol=1e-8)
        for name, value in alone.model.state_dict().items():
            kept = together.model.state_dict()[name][part]
            torch.testing.assert_close(kept, value, rtol=1e-6, atol=1e-8, msg=name)
    assert len(set(epochs)) > 1, "the replicas must stop at different times for this to mean something"


def test_the_best_error_is_that_of_the_weights_that_are_kept() -> None:
    train, validation = tables(), tables(5)
    fitting = Fitting(network(), train, validation, QUICK, make_generators([7, 8, 9]))
    errors = [fitting.error.clone() for _ in fitting.run()]
    mean = fitting.model.predict_mean(validation[0].expand(3, -1, -1))
    expected = (mean - validation[1]).square().mean((1, 2))
    torch.testing.assert_close(fitting.best_error, expected.detach(), rtol=1e-9, atol=1e-9)
    assert (fitting.best_error >= torch.stack(errors).amin(0) - 1e-12).all()


def test_validation_in_chunks_is_validation_at_once() -> None:
    inputs, target = normal(20_000, 5), normal(20_000, 2, seed=1)
    fitting = Fitting(network(), tables(), (inputs, target), FitConfig(max_epochs=1), make_generators(SEEDS))
    list(fitting.run())
    mean = fitting.model.predict_mean(inputs.expand(3, -1, -1))
    torch.testing.assert_close(fitting.error, (mean - target).square().mean((1, 2)).detach(), rtol=1e-9, atol=1e-9)


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    loaded: dict[str, Any] = torch.load(buffer, weights_only=True)
    return loaded


def assert_same_bits(first: Fitting, second: Fitting) -> None:
    assert first.epoch == second.epoch
    for name in ("error", "best_error", "best_epoch", "stale"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name
        assert torch.equal(first.best[name], second.best[name]), name


@pytest.mark.parametrize("decay", [False, True])
@pytest.mark.parametrize("interrupted_after", [0, 1, 4, 7])
def test_a_fit_that_is_interrupted_and_resumed_ends_with_the_same_bits(interrupted_after: int, decay: bool) -> None:
    config = FitConfig(batch_size=16, learning_rate=1e-2, max_epochs=9, validate_every=1, patience=3, decay=decay)

    def fresh(seed: int) -> Fitting:
        model = network(tuple(seed + other for other in SEEDS), torch.float32)
        data = [(inputs.float(), target.float()) for inputs, target in (tables(), tables(5))]
        return Fitting(model, data[0], data[1], config, make_generators([seed, seed + 1, seed + 2]))

    unbroken = fresh(0)
    list(unbroken.run())
    assert unbroken.epoch > 7
    first = fresh(0)
    run = first.run()
    for _ in range(interrupted_after):
        next(run)
    saved = through_a_file(first.state())
    resumed = fresh(50)  # as in a new process, where nothing is as it was
    resumed.restore(saved)
    list(resumed.run())
    assert_same_bits(unbroken, resumed)


def test_the_learning_rate_falls_along_half_a_cosine_where_it_is_to() -> None:
    for decay, expected in ((False, [0.1] * 4), (True, [0.1, 0.1 * (1 + math.sqrt(0.5)) / 2, 0.05])):
        config = FitConfig(batch_size=40, learning_rate=0.1, max_epochs=4, validate_every=1, decay=decay)
        fitting = Fitting(network(), tables(), tables(5), config, make_generators(SEEDS))
        rates = [one.optimizer.param_groups[0]["lr"] for one in fitting.run()]  # that of each epoch, after it
        assert rates[: len(expected)] == pytest.approx(expected)
        assert len(rates) == 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_recorded_step_follows_the_falling_rate() -> None:
    """The last of many epochs changes next to nothing, which a rate fixed in the recording would not give."""
    config = FitConfig(batch_size=16, learning_rate=1e-2, max_epochs=100, validate_every=1, patience=1000, decay=True)
    model = network(SEEDS, torch.float32).cuda()
    data = [(inputs.float().cuda(), target.float().cuda()) for inputs, target in (tables(), tables(5))]
    fitting = Fitting(model, data[0], data[1], config, make_generators(SEEDS))
    weights = [model.mean_head.weight.detach().clone() for _ in fitting.run()]
    first, last = (weights[1] - weights[0]).abs().max(), (weights[-1] - weights[-2]).abs().max()
    assert last < 0.01 * first


def test_a_state_is_a_snapshot_that_later_training_does_not_change() -> None:
    fitting = Fitting(network(), tables(), tables(5), QUICK, make_generators(SEEDS))
    run = fitting.run()
    next(run)
    state = fitting.state()
    weight, best = state["model"]["mean_head.weight"].clone(), state["best"]["mean_head.weight"].clone()
    moments = [value["exp_avg"].clone() for value in state["optimizer"]["state"].values()]
    next(run), next(run)
    assert torch.equal(state["model"]["mean_head.weight"], weight)
    assert torch.equal(state["best"]["mean_head.weight"], best)
    kept = [value["exp_avg"] for value in state["optimizer"]["state"].values()]
    assert all(torch.equal(old, new) for old, new in zip(moments, kept, strict=True))


def test_two_fits_restored_from_one_state_do_not_share_it() -> None:
    first = Fitting(network(), tables(), tables(5), QUICK, make_generators(SEEDS))
    next(first.run())
    state = through_a_file(first.state())
    ends = []
    for _ in range(2):
        again = Fitting(network(), tables(), tables(5), QUICK, make_generators(SEEDS))
        again.restore(state)
        list(again.run())
        ends.append(again)
    assert_same_bits(*ends)


def test_a_state_of_other_settings_is_refused() -> None:
    first = Fitting(network(), tables(), tables(5), QUICK, make_generators(SEEDS))
    other = Fitting(network(), tables(), tables(5), FitConfig(batch_size=8), make_generators(SEEDS))
    with pytest.raises(ValueError, match="batch_size"):
        other.restore(first.state())


def test_a_state_from_before_a_setting_existed_goes_on() -> None:
    fitting = Fitting(network(), tables(), tables(5), QUICK, make_generators(SEEDS))
    state = fitting.state()
    del state["config"]["decay"]
    fitting.restore(state)


def test_breaking_off_and_finishing_puts_the_best_weights_in() -> None:
    model = Scripted([[3.0, 1.0, 2.0, 2.0, 2.0]])
    fitting = scripted_fitting(model, max_epochs=5)
    for state in fitting.run():
        if state.epoch == 4:
            break
    assert model.get_buffer("age").tolist() == [4]
    fitting.finish()
    assert model.get_buffer("age").tolist() == [2]


def test_the_same_seeds_give_the_same_bits_and_others_do_not() -> None:
    def weights(model_seed: int, data_seed: int) -> Tensor:
        data = [(inputs.float(), target.float()) for inputs, target in (tables(), tables(5))]
        model = network((model_seed,) * 3, torch.float32)
        list(Fitting(model, data[0], data[1], QUICK, make_generators([data_seed] * 3)).run())
        return model.mean_head.weight.detach()

    assert torch.equal(weights(0, 0), weights(0, 0))
    assert not torch.equal(weights(0, 0), weights(1, 0))
    assert not torch.equal(weights(0, 0), weights(0, 1))


def test_fitting_does_not_touch_the_global_generator() -> None:
    before = torch.get_rng_state()
    list(Fitting(network(), tables(), tables(5), QUICK, make_generators(SEEDS)).run())
    assert torch.equal(torch.get_rng_state(), before)


def test_fit_learns_the_mean_and_the_variance_of_a_known_function() -> None:
    # y = sin(3 s) + a / 2 + exp(s - 1.5) n: the noise's deviation goes from 0.08 to 0.61
    def draw(rows: int, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        inputs = 2 * torch.rand(rows, 2, generator=generator) - 1
        noise = torch.randn(rows, 1, generator=generator) * torch.exp(inputs[:, :1] - 1.5)
        return inputs, torch.sin(3 * inputs[:, :1]) + inputs[:, 1:] / 2 + noise

    config = ModelConfig(layers=2, width=32, activation="tanh", normalize_input=False, spectral_norm_hidden=False)
    fit_config = FitConfig(batch_size=250, learning_rate=5e-3, max_epochs=40, validate_every=5)
    model = GaussianDynamics(1, 1, 1, config, make_generators([0, 1]))
    fitting = Fitting(model, draw(4000, 0), draw(1000, 1), fit_config, make_generators([2, 3]))
    list(fitting.run())
    inputs, _ = draw(1000, 2)
    mean, variance = model(inputs.expand(2, -1, -1))
    truth = torch.sin(3 * inputs[:, :1]) + inputs[:, 1:] / 2
    # the noise has a mean variance of 0.09, so 4000 samples and some 30 free directions allow an error of
    # sqrt(30 * 0.09 / 4000) = 0.03 in the mean and sqrt(2 * 30 / 4000) = 0.12 in the log variance; three times that
    assert ((mean - truth).square().mean((1, 2)).sqrt() < 0.09).all()
    log_ratio = variance.log() - 2 * (inputs[:, :1] - 1.5)
    assert (log_ratio.square().mean((1, 2)).sqrt() < 0.36).all()
    # a network that knew the mean but not how the noise changes would be off by the deviation of 2 s, which is 1.15
    assert (log_ratio.std((1, 2)) < 0.36).all()


def test_the_direct_step_is_that_of_torch_also_after_a_state_is_loaded() -> None:
    """The same bits, with a learning rate that changes; a state of either is loaded by the other."""

    def make(kind: type[torch.optim.Adam]) -> tuple[nn.Module, torch.optim.Adam]:
        model = network(SEEDS, torch.float32)
        return model, kind(model.parameters(), lr=1e-2, betas=(0.8, 0.99), fused=True)

    def take_steps(pairs: list[tuple[nn.Module, torch.optim.Adam]], seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for step in range(4):
            for values in zip(*(model.parameters() for model, _ in pairs), strict=True):
                gradient = torch.randn(values[0].shape, generator=generator)
                for value in values:
                    value.grad = gradient.clone()
            for _, optimizer in pairs:
                optimizer.param_groups[0]["lr"] = 1e-2 / (1 + step)
                optimizer.step()

    def assert_equal(pairs: list[tuple[nn.Module, torch.optim.Adam]]) -> None:
        (model, first), (other, second) = pairs
        for one, two in zip(model.parameters(), other.parameters(), strict=True):
            assert torch.equal(one, two)
            assert all(torch.equal(first.state[one][name], second.state[two][name]) for name in first.state[one])

    pairs = [make(torch.optim.Adam), make(DirectAdam)]
    before = [value.clone() for value in pairs[0][0].parameters()]
    take_steps(pairs, 0)
    assert_equal(pairs)
    assert not any(torch.equal(old, new) for old, new in zip(before, pairs[0][0].parameters(), strict=True))
    states = [through_a_file(optimizer.state_dict()) for _, optimizer in pairs]
    for (_, optimizer), state in zip(pairs, reversed(states), strict=True):
        optimizer.load_state_dict(state)
    take_steps(pairs, 1)
    assert_equal(pairs)


def test_a_version_of_torch_without_the_kernel_steps_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network(SEEDS, torch.float32)
    assert isinstance(make_optimizer(model, FitConfig()), DirectAdam)
    monkeypatch.delattr(torch, "_fused_adam_")
    assert type(make_optimizer(model, FitConfig())) is torch.optim.Adam
