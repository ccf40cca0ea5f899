"""Replicated layers against torch's own, one replica at a time."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm as torch_spectral_norm

from butfor.models.attention import AttentionConfig, AttentionModel
from butfor.models.dynamics import GaussianDynamics, ModelConfig
from butfor.models.networks import (
    ACTIVATIONS,
    ACTIVATIONS_IN_PLACE,
    MLP,
    InputNorm,
    LayerNorm,
    Linear,
    copy_replicas,
    make_generators,
    refresh_replicas,
)
from butfor.training.agents.policy import AgentConfig, Policy


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def linear(inputs: int, outputs: int, seeds: range, spectral_norm: bool = False, random: bool = False) -> Linear:
    """A layer in float64; `random` replaces the orthogonal weights, whose singular values are all one."""
    layer = Linear(inputs, outputs, make_generators(seeds), spectral_norm).double()
    if random:
        for replica, seed in enumerate(seeds):
            layer.weight.data[replica] = normal(inputs, outputs, seed=100 + seed)
            layer.bias.data[replica] = normal(1, outputs, seed=200 + seed)
    return layer


# --- linear ---------------------------------------------------------------------------------------


def test_each_seed_has_its_own_stream_and_the_same_seed_the_same() -> None:
    first, second, again = (torch.rand(5, generator=g) for g in make_generators([0, 1, 0]))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


@pytest.mark.parametrize(("inputs", "outputs"), [(5, 5), (3, 7), (7, 3), (1, 4), (4, 1)])
def test_initial_weights_are_orthogonal_and_biases_zero(inputs: int, outputs: int) -> None:
    layer = linear(inputs, outputs, range(3))
    singular = torch.linalg.svdvals(layer.weight)
    torch.testing.assert_close(singular, torch.ones_like(singular), rtol=1e-5, atol=1e-5)
    assert not layer.bias.any()
    assert not torch.equal(layer.weight[0], layer.weight[1])


def test_linear_is_torch_linear_for_each_replica() -> None:
    layer, x = linear(4, 3, range(3), random=True), normal(3, 6, 4)
    for replica in range(3):
        expected = nn.functional.linear(x[replica], layer.weight[replica].T, layer.bias[replica, 0])
        torch.testing.assert_close(layer(x)[replica], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("spectral_norm", [False, True])
def test_a_replica_in_a_batch_is_the_one_made_alone(spectral_norm: bool) -> None:
    together, x = linear(4, 3, range(5, 8), spectral_norm), normal(3, 6, 4)
    for replica, seed in enumerate(range(5, 8)):
        alone = linear(4, 3, range(seed, seed + 1), spectral_norm)
        for name, value in alone.state_dict().items():
            assert torch.equal(value[0], together.state_dict()[name][replica]), name
        together.eval(), alone.eval()
        torch.testing.assert_close(together(x)[replica], alone(x[replica : replica + 1])[0], rtol=1e-12, atol=1e-12)


def test_gradients_of_one_replica_do_not_reach_another() -> None:
    layer = linear(4, 3, range(3), spectral_norm=True, random=True)
    layer(normal(3, 6, 4))[1].square().sum().backward()
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert parameter.grad[1].abs().sum() > 0
        assert not parameter.grad[[0, 2]].any()


# --- spectral norm --------------------------------------------------------------------------------


def test_spectral_norm_divides_by_the_largest_singular_value() -> None:
    layer = linear(6, 5, range(4), spectral_norm=True, random=True).train()
    for _ in range(500):
        layer(normal(4, 2, 6))
    largest = torch.linalg.svdvals(layer.weight)[:, 0]
    torch.testing.assert_close(layer.effective_weight(), layer.weight / largest[:, None, None], rtol=1e-9, atol=1e-9)
    effective = torch.linalg.svdvals(layer.effective_weight())[:, 0]
    torch.testing.assert_close(effective, torch.ones(4, dtype=torch.float64), rtol=1e-9, atol=1e-9)


def test_a_fresh_spectral_norm_is_exact_before_any_forward_pass() -> None:
    layer = linear(6, 5, range(4), spectral_norm=True).eval()
    torch.testing.assert_close(layer.effective_weight(), layer.weight, rtol=1e-5, atol=1e-6)  # orthogonal: sigma = 1


def test_spectral_norm_is_torchs_step_by_step_with_its_gradients() -> None:
    ours = linear(4, 6, range(3), spectral_norm=True, random=True)
    # torch iterates u = W v, v = W' u: our [in, out] weight is its [out, in] with the roles of the two swapped
    theirs = []
    for replica in range(3):
        other = nn.Linear(6, 4, bias=False, dtype=torch.float64)
        other.weight.data = ours.weight.data[replica].clone()
        torch_spectral_norm(other)
        norm: Any = other.parametrizations["weight"][0]  # type: ignore[index]
        norm._u.data, norm._v.data = ours.left[replica, :, 0].clone(), ours.right[replica, :, 0].clone()
        theirs.append(other)
    for step in range(5):
        weight = normal(3, 4, 6, seed=step)
        ours.zero_grad()
        effective = ours.effective_weight()
        (effective * weight).sum().backward()
        for replica, other in enumerate(theirs):
            other.zero_grad()
            reference = other.weight
            (reference * weight[replica]).sum().backward()
            torch.testing.assert_close(effective[replica], reference, rtol=1e-12, atol=1e-12)
            original = other.parametrizations["weight"].original  # type: ignore[union-attr, index]
            torch.testing.assert_close(ours.weight.grad[replica], original.grad, rtol=1e-10, atol=1e-12)  # type: ignore[index]


def test_spectral_norm_iterates_once_a_training_pass_and_never_in_evaluation() -> None:
    layer, x = linear(6, 5, range(2), spectral_norm=True, random=True), normal(2, 3, 6)
    expected = nn.functional.normalize(layer.weight @ layer.right, dim=1)
    layer.train()(x)
    torch.testing.assert_close(layer.left, expected, rtol=1e-12, atol=1e-12)
    before = layer.left.clone(), layer.right.clone()
    layer.eval()(x)
    assert torch.equal(layer.left, before[0])
    assert torch.equal(layer.right, before[1])


def test_two_forward_passes_before_one_backward_give_the_sum_of_both_gradients() -> None:
    x = normal(2, 3, 6)
    together = linear(6, 5, range(2), spectral_norm=True, random=True)
    apart = linear(6, 5, range(2), spectral_norm=True, random=True)
    (together(x).square().sum() + together(2 * x).sum()).backward()
    apart(x).square().sum().backward()
    apart(2 * x).sum().backward()  # gradients add up
    torch.testing.assert_close(together.weight.grad, apart.weight.grad, rtol=1e-12, atol=1e-12)


def test_power_vectors_are_kept_with_the_weights() -> None:
    layer = linear(6, 5, range(2), spectral_norm=True, random=True)
    for _ in range(3):
        layer(normal(2, 3, 6))
    other = linear(6, 5, range(7, 9), spectral_norm=True)
    other.load_state_dict(layer.state_dict())
    layer.eval(), other.eval()
    assert torch.equal(layer(normal(2, 3, 6)), other(normal(2, 3, 6)))


# --- normalisation --------------------------------------------------------------------------------


def test_input_norm_is_batch_norm_of_each_replica_in_training_and_evaluation() -> None:
    ours = InputNorm(4, 3).double()
    theirs = [nn.BatchNorm1d(4, affine=False).double() for _ in range(3)]
    scale, shift = torch.tensor([1.0, 50.0, 1e-3, 0.0]), torch.tensor([0.0, -7.0, 3.0, 2.0])
    for step, rows in enumerate((2, 5, 64, 3)):
        x = normal(3, rows, 4, seed=step) * scale + shift  # the last column is constant
        result = ours.train()(x)
        for replica, other in enumerate(theirs):
            torch.testing.assert_close(result[replica], other.train()(x[replica]), rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(ours.mean[replica, 0], other.running_mean, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(ours.variance[replica, 0], other.running_var, rtol=1e-12, atol=1e-12)
    x = normal(3, 1, 4, seed=9) * scale + shift
    before = ours.mean.clone()
    result = ours.eval()(x)
    assert torch.equal(ours.mean, before)
    for replica, other in enumerate(theirs):
        torch.testing.assert_close(result[replica], other.eval()(x[replica]), rtol=1e-10, atol=1e-10)


def test_input_norm_passes_gradients_as_batch_norm_does() -> None:
    x, weight = normal(1, 8, 3).requires_grad_(), normal(1, 8, 3, seed=1)
    (ours,) = torch.autograd.grad((InputNorm(3, 1).double()(x) * weight).sum(), x)
    (theirs,) = torch.autograd.grad((nn.BatchNorm1d(3, affine=False).double()(x[0]) * weight[0]).sum(), x)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_frozen_norm_of_some_columns_is_evaluation_of_those_columns() -> None:
    norm = InputNorm(4, 3).double()
    norm.train()(normal(3, 20, 4) * 3 + 1)
    x = normal(3, 5, 4, seed=1)
    joined = torch.cat([norm.frozen(x[..., :3], 0), norm.frozen(x[..., 3:], 3)], -1)
    torch.testing.assert_close(joined, norm.eval()(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rows", [0, 1])
def test_too_small_a_batch_to_normalise_is_refused_with_its_size(rows: int) -> None:
    with pytest.raises(ValueError, match=rf"\b{rows}\b"):
        InputNorm(2, 1).train()(torch.zeros(1, rows, 2))


def test_layer_norm_is_torchs_with_gain_and_offset_of_each_replica() -> None:
    ours, x = LayerNorm(6, 3).double(), 4 * normal(3, 5, 6) + 2
    ours.gain.data, ours.offset.data = normal(3, 1, 6, seed=1), normal(3, 1, 6, seed=2)
    for replica in range(3):
        theirs = nn.LayerNorm(6).double()
        theirs.weight.data, theirs.bias.data = ours.gain.data[replica, 0], ours.offset.data[replica, 0]
        torch.testing.assert_close(ours(x)[replica], theirs(x[replica]), rtol=1e-12, atol=1e-12)


# --- what all modules share -----------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [1, 3])
def test_all_that_is_saved_of_a_model_has_the_replica_axis_first(replicas: int) -> None:
    generators = make_generators(range(replicas))
    tokens = {"agent": [0, 1], "object": [2], "action": [3, 4]}
    modules: list[nn.Module] = [
        GaussianDynamics(3, 2, 4, ModelConfig(layers=2, width=5), generators),
        AttentionModel(tokens, 4, AttentionConfig(normalize_input=True), generators),
    ]
    for module in modules:
        state = module.state_dict()
        assert set(dict(module.named_parameters())) < set(state)  # and buffers beside them
        assert {name: value.shape[0] for name, value in state.items()} == dict.fromkeys(state, replicas)


def test_activations_are_the_named_functions_also_in_place() -> None:
    x = torch.cat([torch.linspace(-20, 20, 4001), torch.tensor([-1e4, 1e4, -1e-6, 1e-6, 0.0])])
    expected = {"relu": x.clamp_min(0), "tanh": torch.tanh(x.double()).float()}
    assert set(ACTIVATIONS) == set(ACTIVATIONS_IN_PLACE) == set(expected)
    for name, values in expected.items():
        torch.testing.assert_close(ACTIVATIONS[name](x), values, rtol=0, atol=2e-7)
        overwritten = x.clone()
        assert ACTIVATIONS_IN_PLACE[name](overwritten) is overwritten
        torch.testing.assert_close(overwritten, values, rtol=0, atol=2e-7)


# --- MLP ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer_norm", [False, True])
def test_an_mlp_is_torchs_layers_one_after_the_other_for_each_replica(layer_norm: bool) -> None:
    sizes = [5, 7, 6, 2]
    network = MLP(sizes, make_generators(range(3)), layer_norm).double()
    for index, parameter in enumerate(network.parameters()):
        parameter.data = normal(*parameter.shape, seed=index)
    x = normal(3, 9, 5, seed=50)
    for replica in range(3):
        value = x[replica]
        for index, layer in enumerate(network.layers):
            value = value @ layer.weight[replica] + layer.bias[replica]  # type: ignore[index]
            if index < 2:
                if layer_norm:
                    norm: Any = network.norms[index]
                    value = nn.functional.layer_norm(
                        value, (sizes[index + 1],), norm.gain[replica, 0], norm.offset[replica, 0]
                    )
                value = value.clamp(min=0)
        torch.testing.assert_close(network(x)[replica], value, rtol=1e-10, atol=1e-10)
    assert len(network.norms) == (2 if layer_norm else 0)


def test_an_mlp_starts_with_xaviers_uniform_weights_and_zero_biases() -> None:
    network = MLP([30, 50, 10], make_generators(range(2)))
    for layer, (inputs, outputs) in zip(network.layers, [(30, 50), (50, 10)], strict=True):
        weight: Any = layer.weight
        limit = (6 / (inputs + outputs)) ** 0.5
        assert weight.abs().max() <= limit
        assert weight.abs().max() > 0.98 * limit
        # variance of a uniform law: limit^2 / 3; five standard errors of it are 5 sqrt(4 / 45) limit^2 / sqrt(n)
        error = 5 * (4 / 45) ** 0.5 * limit**2 / (inputs * outputs) ** 0.5
        assert (weight.var((1, 2)) - limit**2 / 3).abs().max() < error
        assert not layer.bias.any()  # type: ignore[operator]
        assert not torch.equal(weight[0], weight[1])


def test_an_mlp_in_a_batch_is_the_one_made_alone() -> None:
    together = MLP([4, 6, 2], make_generators([3, 8]), layer_norm=True)
    for replica, seed in enumerate([3, 8]):
        alone = MLP([4, 6, 2], make_generators([seed]), layer_norm=True)
        for name, value in alone.state_dict().items():
            assert torch.equal(value[0], together.state_dict()[name][replica]), name


# --- some of the replicas -------------------------------------------------------------------------


def make_model(seeds: range) -> GaussianDynamics:
    """With batch statistics, spectral norm and power vectors, after a few training passes."""
    model = GaussianDynamics(3, 2, 2, ModelConfig(layers=2, width=5), make_generators(seeds)).train()
    for step in range(3):
        model(normal(len(seeds), 10, 5, seed=step).float())
    return model.eval()


@pytest.mark.parametrize(
    ("part", "chosen"),
    [(slice(0, 4), [0, 1, 2, 3]), (slice(1, 3), [1, 2]), (slice(3, 4), [3]), (slice(2, None), [2, 3])],
)
def test_some_replicas_answer_as_they_do_among_all(part: slice, chosen: list[int]) -> None:
    model, x = make_model(range(4)), normal(4, 6, 5, seed=9).float()
    copied = copy_replicas(model, part)
    assert copied.replicas == len(chosen)
    assert model.replicas == 4  # the original stays as it was
    assert {len(value) for value in copied.state_dict().values()} == {len(chosen)}
    for one, other in zip(copied(x[chosen]), model(x), strict=True):
        torch.testing.assert_close(one, other[chosen])
    actions = normal(4, 6, 3, 2, seed=10).float()
    for one, other in zip(
        copied.predictor()(x[chosen, :, :3], actions[chosen]), model.predictor()(x[..., :3], actions), strict=True
    ):
        torch.testing.assert_close(one, other[chosen])


def test_some_replicas_are_copies_without_gradients() -> None:
    model = make_model(range(3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    copied = copy_replicas(model, slice(0, 2))
    assert not any(parameter.requires_grad for parameter in copied.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert list(dict(copied.named_parameters())) == list(dict(model.named_parameters()))
    for value in copied.state_dict().values():
        value.fill_(7.0)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_the_mode_goes_along_with_a_copy() -> None:
    model = make_model(range(2)).train()
    assert copy_replicas(model, slice(0, 1)).training
    assert not copy_replicas(model.eval(), slice(0, 1)).training


@pytest.mark.parametrize("part", [slice(0, 3), slice(1, 2), slice(1, 3)])
def test_a_refreshed_copy_is_a_new_copy_in_the_same_tensors(part: slice) -> None:
    model = make_model(range(3))
    copied = copy_replicas(model, part)
    places = {name: value.data_ptr() for name, value in copied.state_dict().items()}
    model.train()
    model(10 * normal(3, 10, 5, seed=77).float())  # other statistics and power vectors
    model.eval()
    for parameter in model.parameters():
        parameter.data += 0.1
    assert any(
        not torch.equal(value, copied.state_dict()[name])
        for name, value in copy_replicas(model, part).state_dict().items()
    )
    refresh_replicas(copied, model, part)
    for name, value in copy_replicas(model, part).state_dict().items():
        assert torch.equal(copied.state_dict()[name], value), name
        assert copied.state_dict()[name].data_ptr() == places[name]


def test_a_policy_with_sums_in_double_precision_is_taken_apart_too() -> None:
    policy = Policy(4, 2, AgentConfig(layers=1, width=5), make_generators(range(3)))
    policy.normalizer.update(normal(3, 20, 4) + 1.3)
    copied, x = copy_replicas(policy, slice(1, 3)), normal(3, 6, 4, seed=1).float()
    torch.testing.assert_close(copied(x[1:]), policy(x)[1:])
    policy.normalizer.update(normal(3, 20, 4, seed=2))
    refresh_replicas(copied, policy, slice(1, 3))
    assert copied.normalizer.total.dtype == torch.float64
    assert torch.equal(copied.normalizer.total, policy.normalizer.total[1:])
    torch.testing.assert_close(copied(x[1:]), policy(x)[1:])


def test_an_action_that_was_never_varied_counts_for_nothing() -> None:
    """Two observations and two actions, of each the second constant: the constant action is 0 for any value later."""
    norm = InputNorm(4, 2, actions=2)
    x = torch.rand(2, 64, 4, generator=make_generators([0])[0])
    x[..., 1], x[..., 3] = 0.5, 0.5
    for _ in range(200):
        norm(x)
    norm.eval()
    other = torch.rand(2, 5, 4, generator=make_generators([1])[0])
    seen = norm(other)
    assert torch.equal(seen[..., 3], torch.zeros(2, 5))
    assert (seen[..., :3] != 0).all()
    assert torch.equal(norm.frozen(other[..., 2:], 2), seen[..., 2:])


def test_an_action_that_hardly_ever_occurs_is_not_blown_up() -> None:
    """It is 1 in one batch and 0 in many: what is left of its variance must not make a 1 look like hundreds."""
    norm = InputNorm(2, 1, actions=1)
    x = torch.zeros(1, 64, 2)
    x[0, 0] = 1.0
    trained = norm(x)
    assert trained[0, 0, 0] == pytest.approx(63 / 64 / (63 / 64**2 + 1e-5) ** 0.5)  # an observation: by its deviation
    for _ in range(80):
        norm(torch.zeros(1, 64, 2))
    norm.eval()
    one = norm(torch.ones(1, 1, 2))
    assert one[0, 0, 0] > 20
    assert 5 < one[0, 0, 1] <= 10
    assert torch.equal(norm.frozen(torch.ones(1, 1, 1), 1)[0, 0], one[0, 0, 1:])
