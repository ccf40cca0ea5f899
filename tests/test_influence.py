"""CAI against mutual information by integration, and the public class against every mistake of its user."""

import dataclasses
import json
import math
import pickle
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from scipy import integrate
from scipy.stats import norm
from sklearn.metrics import roc_auc_score
from torch import Tensor

import butfor
import butfor.influence
from butfor.actions import ActionLaw
from butfor.dynamics import GaussianDynamics, ModelConfig, split_table, target_columns, target_scale, training_table
from butfor.fitting import FitConfig, Fitting
from butfor.gaussian import KL_FORMS, KLForm, kl_to_mixture
from butfor.influence import Influence, ScoreConfig, chunk_states, score_actions, score_entropy, score_states
from butfor.networks import make_generators

Array = NDArray[np.float64]
UNIT = ActionLaw((-1.0,), (1.0,))


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def generator(seed: int = 0) -> torch.Generator:
    return make_generators([seed])[0]


def linear_model(gains: list[float], noise: float, obs_size: int = 1) -> GaussianDynamics:
    """One action, and s'_j = s_j + gain_j a + noise n exactly: weights by hand, as a = relu(a) - relu(-a)."""
    config = ModelConfig(
        layers=1, width=2, normalize_input=False, spectral_norm_hidden=False, spectral_norm_variance=False
    )
    model = GaussianDynamics(obs_size, 1, len(gains), config, make_generators([0])).eval()
    first: Any = model.hidden[0]
    for parameter in model.parameters():
        parameter.data.zero_()
    first.weight.data[0, -1] = torch.tensor([1.0, -1.0])
    model.mean_head.weight.data[0] = torch.tensor([gains, [-gain for gain in gains]])
    model.variance_head.bias.data.fill_(math.log(math.expm1(noise**2 - config.min_variance)) - model.variance_offset)
    mean, variance = model(torch.tensor([[[0.0] * obs_size + [0.5]]]))
    torch.testing.assert_close(mean[0, 0], 0.5 * torch.tensor(gains))
    torch.testing.assert_close(variance, torch.full_like(variance, noise**2))
    return model


def random_model(replicas: int = 1, targets: int = 3, obs_size: int = 4, **config: Any) -> GaussianDynamics:
    """An untrained network with running statistics other than the initial ones, and outcomes that depend on actions."""
    settings = ModelConfig(**{"layers": 2, "width": 16} | config)
    model = GaussianDynamics(obs_size, 2, targets, settings, make_generators(range(replicas)))
    model.train()(2 * normal(replicas, 50, obs_size + 2) + 1)
    model.mean_head.weight.data *= 3
    return model.eval()


def ignore_actions(model: GaussianDynamics) -> GaussianDynamics:
    first: Any = model.hidden[0]
    first.weight.data[:, model.obs_size :] = 0
    return model


BOX = ActionLaw((-1.0, 0.0), (1.0, 3.0))


# --- the linear world: CAI is a mutual information --------------------------------------------------


def mutual_information(ratio: float) -> float:
    """I(S'; A) of s' = ratio a + n, a uniform in [-1, 1]: the entropy of s' less that of the noise, by integration."""

    def integrand(y: float) -> float:
        density = (norm.cdf(y + ratio) - norm.cdf(y - ratio)) / (2 * ratio)
        return float(-density * math.log(density)) if density > 0 else 0.0

    # symmetric; beyond ratio + 9 deviations there is nothing
    value, _ = integrate.quad(integrand, 0, ratio + 9, points=[ratio], limit=200)
    return 2 * float(value) - 0.5 * math.log(2 * math.pi * math.e)


def limit(ratio: float, form: KLForm) -> float:
    """What a form becomes for K to infinity: its sum over the mixture is an integral over uniform actions.

    Both exp(-KL) and t_fg / t_ff are Gaussian in the difference of two actions, the latter twice as wide.
    """

    def log_integral(a: float, width: float) -> float:
        share = norm.cdf(ratio * (1 - a) / width) - norm.cdf(ratio * (-1 - a) / width)
        return math.log(width * math.sqrt(2 * math.pi) / (2 * ratio) * share)

    def value(a: float) -> float:
        variational = -log_integral(a, 1)
        product = -log_integral(a, math.sqrt(2)) - 0.5 * (1 - math.log(2))
        forms = {
            "product": product,
            "variational": variational,
            "mean": max(0.0, 0.5 * (product + variational)),
            "mean_clip_product": 0.5 * (max(0.0, product) + variational),
        }
        return forms[form]

    integral, _ = integrate.quad(value, 0, 1, limit=200)  # symmetric, so the mean over [-1, 1] is that over [0, 1]
    return float(integral)


def linear_score(ratio: float, **config: Any) -> Tensor:
    states = config.pop("states", 1)
    model = linear_model([ratio * 0.1], 0.1)
    return score_states(model, torch.zeros(1, states, 1), UNIT, [[0]], ScoreConfig(**config), [generator()])[0, :, 0]


@pytest.mark.parametrize("ratio", [0.3, 1.0, 3.0, 10.0, 30.0])
def test_cai_of_a_linear_world_is_its_mutual_information(ratio: float) -> None:
    truth = mutual_information(ratio)
    limits = {form: limit(ratio, form) for form in KL_FORMS}
    assert limits["product"] <= truth <= limits["variational"]
    for form, expected in limits.items():
        # an evenly spread set of K actions 2 / K apart, each resolved by the noise: K >> ratio, so 1 % is ample
        score = linear_score(ratio, form=form, sampling="sobol", actions=1024).item()
        assert score == pytest.approx(expected, rel=0.01, abs=0.002), form
    # the known gap: the truth lies between the bounds, so their middle is off by half their distance at most
    gap = limits["variational"] - max(0.0, limits["product"])
    score = linear_score(ratio, sampling="sobol", actions=1024).item()
    assert abs(score - truth) <= 0.5 * gap + 0.02


@pytest.mark.parametrize("form", ["variational", "mean_clip_product"])
def test_the_estimate_converges_as_actions_are_added_from_below_where_k_is_too_small(form: KLForm) -> None:
    ratio = 30.0
    expected = limit(ratio, form)
    # no estimate can exceed log K, which for K = 8 is 2.08 while the mutual information is 2.69
    assert math.log(8) < mutual_information(ratio) - 0.5
    scores = [linear_score(ratio, form=form, actions=k, states=64).mean().item() for k in (8, 32, 128, 512)]
    assert scores[0] < math.log(8)
    assert scores == sorted(scores)
    errors = [abs(score - expected) for score in scores]
    assert errors[3] < 0.02 * expected
    assert all(later < earlier / 2 for earlier, later in pairwise(errors))


@pytest.mark.parametrize("form", ["product", "variational"])
def test_a_separate_mixture_overestimates_and_converges(form: KLForm) -> None:
    # without the self term E[-log mean] >= -log E[mean] for each action (Jensen), here by far more than the error
    expected = limit(5.0, form)
    few, many = (linear_score(5.0, form=form, actions=k, states=800, separate_mixture=True) for k in (8, 64))
    deviation = few.std().item() / math.sqrt(800)
    assert few.mean().item() > expected + 5 * deviation
    assert abs(many.mean().item() - expected) < 0.25 * abs(few.mean().item() - expected)


def test_more_noise_means_less_influence() -> None:
    scores = [linear_score(ratio, sampling="sobol").item() for ratio in (0.0, 0.1, 1.0, 10.0)]
    assert scores == sorted(scores)
    assert scores[0] == 0


# --- no influence, several entities, replicas -------------------------------------------------------


@pytest.mark.parametrize("form", ["variational", "mean", "mean_clip_product"])
@pytest.mark.parametrize("config", [{}, {"activation": "tanh"}, {"normalize_input": False}])
@pytest.mark.parametrize("scoring", [{}, {"sampling": "sobol"}, {"separate_mixture": True}])
def test_there_is_no_influence_where_the_model_ignores_the_action(
    scoring: dict[str, Any], config: dict[str, Any], form: KLForm
) -> None:
    obs = normal(1, 40, 4).expand(2, -1, -1)
    for ignoring in (True, False):
        model = random_model(2, **config)
        if ignoring:
            ignore_actions(model)
        score = score_states(model, obs, BOX, [[0, 1, 2]], ScoreConfig(form=form, **scoring), [generator()])
        assert score.shape == (2, 40, 1)
        assert (score.abs().max() <= 1e-6) == ignoring


@pytest.mark.parametrize("separate", [False, True])
def test_scoring_is_a_plain_loop_over_states_actions_and_entities(separate: bool) -> None:
    model, obs, entities = random_model(2), normal(2, 3, 4), [[0, 2], [1]]
    config = ScoreConfig(actions=5, separate_mixture=separate)
    scores = score_states(model, obs, BOX, entities, config, make_generators([7, 8]))
    drawn = BOX.draw(3, 10 if separate else 5, make_generators([7, 8]))
    for replica in range(2):
        for state in range(3):
            predictions = []
            for action in drawn[replica, state]:
                inputs = torch.cat([obs[replica, state], action]).expand(2, 1, -1)
                predictions.append([value[replica, 0].detach() for value in model(inputs)])
            mean, variance = (torch.stack(values) for values in zip(*predictions, strict=True))
            for index, entity in enumerate(entities):
                f = (mean[:5, entity], variance[:5, entity])
                g = (mean[5:, entity], variance[5:, entity]) if separate else ()
                expected = kl_to_mixture(*f, *g).mean()
                torch.testing.assert_close(scores[replica, state, index], expected, rtol=1e-4, atol=1e-5)


def test_several_entities_from_one_pass_are_each_alone() -> None:
    model, obs, entities = random_model(2), normal(2, 10, 4), [[0], [2, 1], [0, 1, 2]]
    together = score_states(model, obs, BOX, entities, ScoreConfig(), [generator()])
    for index, entity in enumerate(entities):
        alone = score_states(model, obs, BOX, [entity], ScoreConfig(), [generator()])
        torch.testing.assert_close(together[..., index], alone[..., 0], rtol=1e-6, atol=1e-7)
    assert len({round(value, 4) for value in together[0, 0].tolist()}) == 3


@pytest.mark.parametrize("sampling", ["independent", "sobol"])
@pytest.mark.parametrize("law", [BOX, ActionLaw(count=2)], ids=["box", "discrete"])
def test_replicas_with_their_own_generators_score_as_each_alone(law: ActionLaw, sampling: Any) -> None:
    obs, config = normal(3, 10, 4), ScoreConfig(actions=8, sampling=sampling)
    together = score_states(random_model(3), obs, law, [[0, 1]], config, make_generators([5, 6, 7]))
    for replica in range(3):
        model = GaussianDynamics(4, 2, 3, random_model().config, make_generators([0])).eval()
        model.load_state_dict({k: v[replica : replica + 1] for k, v in random_model(3).state_dict().items()})
        part = slice(replica, replica + 1)
        alone = score_states(model, obs[part], law, [[0, 1]], config, make_generators([5 + replica]))
        torch.testing.assert_close(together[part], alone, rtol=1e-4, atol=1e-5)


def test_one_generator_gives_all_replicas_the_same_actions() -> None:
    model = random_model(1)
    twice = GaussianDynamics(4, 2, 3, model.config, make_generators([0, 0])).eval()
    twice.load_state_dict({name: torch.cat([value, value]) for name, value in model.state_dict().items()})
    obs = normal(1, 10, 4).expand(2, -1, -1)
    for sampling in ("independent", "sobol"):
        config = ScoreConfig(actions=8, sampling=sampling)
        first, second = score_states(twice, obs, BOX, [[0, 1]], config, [generator()])
        torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-6)
        first, second = score_states(twice, obs, BOX, [[0, 1]], ScoreConfig(actions=8), make_generators([0, 1]))
        assert (first - second).abs().max() > 1e-3


def test_a_discrete_space_is_tried_exhaustively_whatever_k() -> None:
    law, obs = ActionLaw(count=2), normal(1, 10, 4)
    model = random_model()
    every = torch.eye(2)[None, None].expand(1, 10, -1, -1)
    expected = score_actions(model, obs, every, [[0, 1]], "mean_clip_product").mean(2)
    for config in (ScoreConfig(), ScoreConfig(actions=7), ScoreConfig(separate_mixture=True)):
        torch.testing.assert_close(score_states(model, obs, law, [[0, 1]], config, [generator()]), expected)


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("scoring", [{}, {"sampling": "sobol"}, {"separate_mixture": True}])
def test_chunking_does_not_change_the_scores(
    scoring: dict[str, Any], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, obs, config = random_model(2), normal(2, 17, 4), ScoreConfig(actions=8, **scoring)
    actions = BOX.draw(17, 5, make_generators([3]))

    def all_scores() -> list[Tensor]:
        return [
            score_states(model, obs, BOX, [[0], [1, 2]], config, make_generators([0, 1])),
            score_actions(model, obs, actions, [[0], [1, 2]], "mean"),
            score_entropy(model, obs, BOX, [0, 2], config, [generator()]),
        ]

    expected = all_scores()
    monkeypatch.setattr(butfor.influence, "chunk_states", lambda *_: size)
    for result, whole in zip(all_scores(), expected, strict=True):
        torch.testing.assert_close(result, whole, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("actions", [2, 64, 1000])
@pytest.mark.parametrize("replicas", [1, 5])
def test_what_is_in_memory_at_a_time_is_bounded(replicas: int, actions: int) -> None:
    model, cpu = random_model(replicas, width=64, layers=1), torch.device("cpu")
    size = chunk_states(model, actions, cpu)
    assert size >= 1
    numbers = replicas * actions * (64 + actions)  # one layer's activations and one table of pairs, of one state
    assert size == 1 or size * numbers <= 2**22
    assert chunk_states(model, actions, torch.device("cuda")) * numbers <= 2**31


def test_no_more_states_than_a_chunk_are_predicted_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = random_model(), []
    predict = model.predictor()

    def recording(obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        seen.append((obs.shape[1], actions.shape[1]))
        return predict(obs, actions)

    monkeypatch.setattr(model, "predictor", lambda: recording)
    score_states(model, normal(1, 5000, 4), BOX, [[0]], ScoreConfig(actions=64), [generator()])
    size = chunk_states(model, 64, torch.device("cpu"))
    assert size < 5000
    assert max(seen) == (size, size)
    assert sum(states for states, _ in seen) == 5000


# --- the entropy rival ----------------------------------------------------------------------------


def test_the_entropy_rival_is_the_entropy_of_the_noise() -> None:
    model = linear_model([1.0, 2.0], 0.3)
    expected = 2 * 0.5 * math.log(2 * math.pi * math.e * 0.3**2)
    for config in (ScoreConfig(), ScoreConfig(sampling="sobol"), ScoreConfig(separate_mixture=True)):
        result = score_entropy(model, torch.zeros(1, 3, 1), UNIT, [0, 1], config, [generator()])
        torch.testing.assert_close(result, torch.full((1, 3), expected), rtol=1e-5, atol=1e-5)


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"actions": 1}, "actions must be at least 2.*got 1"),
        ({"form": "exact"}, "'exact'.*product, variational"),
        ({"sampling": "grid"}, "'grid'.*'independent' or 'sobol'"),
    ],
)
def test_wrong_score_settings_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ScoreConfig(**settings)


# --- tables ---------------------------------------------------------------------------------------


def test_the_model_predicts_the_union_of_the_entities_columns() -> None:
    assert target_columns({"a": [4, 2], "b": [2, 0]}) == [0, 2, 4]


def test_targets_are_scaled_by_their_deviation_or_as_configured() -> None:
    change = torch.tensor([[1.0, 0.0, 5.0], [3.0, 0.0, -5.0], [5.0, 0.0, 0.0]], dtype=torch.float64)
    transitions = (torch.zeros(3, 3, dtype=torch.float64), torch.zeros(3, 1), change)
    scale = target_scale(transitions, {"a": [0, 1], "b": [2]}, ModelConfig())
    torch.testing.assert_close(scale, torch.tensor([0.5, 1.0, 0.2], dtype=torch.float64))
    scale = target_scale(transitions, {"a": [0, 1], "b": [2]}, ModelConfig(target_scale=50.0))
    assert scale.tolist() == [50.0, 50.0, 50.0]


def test_changes_are_taken_before_rounding_to_single_precision() -> None:
    # next to 1e6 single precision has steps of 0.06
    obs = torch.full((4, 2), 1e6, dtype=torch.float64)
    change = torch.tensor([[0.001, 7], [0.002, 7], [0.003, 7], [0.004, 7]], dtype=torch.float64)
    scale = torch.tensor([10.0, 0.5], dtype=torch.float64)
    inputs, target = training_table((obs, torch.zeros(4, 1), obs + change), UNIT, {"a": [1, 0]}, scale, "cpu")
    assert inputs.dtype == target.dtype == torch.float32
    assert inputs.shape == (4, 3)
    torch.testing.assert_close(target, (change * scale).float(), rtol=1e-5, atol=0)


def test_inputs_are_observations_and_encoded_actions() -> None:
    obs, action = torch.arange(6.0).view(3, 2), torch.tensor([2, 0, 1])
    inputs, _ = training_table((obs, action, obs), ActionLaw(count=3), {"a": [0]}, torch.ones(1), "cpu")
    assert inputs.tolist() == [[0, 1, 0, 0, 1], [2, 3, 1, 0, 0], [4, 5, 0, 1, 0]]


@pytest.mark.parametrize(("share", "held_out"), [(0.1, 10), (0.5, 50), (0.001, 1), (0.985, 98)])
def test_a_share_of_the_rows_is_held_out_at_random(share: float, held_out: int) -> None:
    rows = torch.arange(100.0)[:, None]
    train, validation = split_table((rows, -rows), share, 0)
    assert len(validation[0]) == held_out
    assert sorted([*train[0].flatten().tolist(), *validation[0].flatten().tolist()]) == list(range(100))
    assert torch.equal(train[0], -train[1])
    assert torch.equal(validation[0], -validation[1])
    again, other = split_table((rows, -rows), share, 0), split_table((rows, -rows), share, 1)
    assert torch.equal(validation[0], again[1][0])
    assert not torch.equal(torch.cat([train[0], validation[0]]), torch.cat([other[0][0], other[1][0]]))


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 2.0, math.nan, 0.9999])
def test_a_share_that_leaves_nothing_on_one_side_is_refused(share: float) -> None:
    rows = torch.arange(100.0)[:, None]
    with pytest.raises(ValueError, match="validation"):
        split_table((rows, rows), share, 0)


# --- the class: a world with a gate ----------------------------------------------------------------

QUICK: dict[str, Any] = {
    "model": ModelConfig(layers=2, width=24),
    "fitting": FitConfig(batch_size=100, learning_rate=4e-3, max_epochs=40, validate_every=4),
}
BRIEF: dict[str, Any] = {
    "model": ModelConfig(layers=1, width=8),
    "fitting": FitConfig(batch_size=50, max_epochs=2, validate_every=1),
}


def gate_world(rows: int, seed: int) -> tuple[Array, Array, Array]:
    """Columns: gate, object, bystander. The action moves the object only where the gate is above zero."""
    random = np.random.default_rng(seed)
    obs, action = random.uniform(-1, 1, (rows, 3)), random.uniform(-1, 1, (rows, 2))
    next_obs = obs + 0.02 * random.normal(size=obs.shape)
    next_obs[:, 1] += 0.3 * (obs[:, 0] > 0) * action[:, 0]
    return obs, action, next_obs


OBS, ACTION, NEXT_OBS = gate_world(2000, 0)
DISCRETE = np.random.default_rng(1).integers(0, 3, 2000)
ENTITIES = {"object": [1], "bystander": [2]}


@pytest.fixture(scope="module")
def fitted() -> Influence:
    return Influence.fit(OBS, ACTION, NEXT_OBS, ENTITIES, action_space=Box(-1, 1, (2,)), **QUICK)


@pytest.fixture(scope="module")
def discrete() -> Influence:
    """Action 2 moves the object to the right, 1 to the left, where the gate is open."""
    obs, _, next_obs = gate_world(2000, 0)
    noise = 0.02 * np.random.default_rng(2).normal(size=2000)
    next_obs[:, 1] = obs[:, 1] + 0.3 * (obs[:, 0] > 0) * (DISCRETE - 1) + noise
    return Influence.fit(obs, DISCRETE, next_obs, {"object": [1]}, **QUICK)


def brief_fit(**changes: Any) -> Influence:
    """A fit that is too short to learn anything but enough to see whether its arguments are accepted."""
    obs, action, next_obs = OBS[:200], ACTION[:200], NEXT_OBS[:200]
    given: dict[str, Any] = {"obs": obs, "action": action, "next_obs": next_obs, "entities": ENTITIES}
    given |= BRIEF | changes
    return Influence.fit(**given)


def test_influenced_states_are_told_from_free_ones_and_the_ablation_cannot(fitted: Influence) -> None:
    obs, _, _ = gate_world(600, 5)
    obs = obs[np.abs(obs[:, 0]) > 0.1]  # next to the edge of the gate a smooth model must err
    is_open = obs[:, 0] > 0
    scores = fitted.score(obs)
    assert roc_auc_score(is_open, scores["object"]) > 0.95
    assert np.median(scores["object"][is_open]) > 1  # the mutual information of 0.3 a + 0.02 n is 1.99
    assert np.median(scores["object"][~is_open]) < 0.1
    assert np.median(scores["bystander"]) < 0.1
    shuffled = np.random.default_rng(0).permutation(ACTION)
    ablation = Influence.fit(OBS, shuffled, NEXT_OBS, ENTITIES, action_space=Box(-1, 1, (2,)), **QUICK)
    assert np.median(ablation.score(obs)["object"][is_open]) < 0.05
    assert roc_auc_score(is_open, ablation.score(obs)["object"]) < 0.9


def test_discrete_actions_are_told_too(discrete: Influence) -> None:
    obs, _, _ = gate_world(300, 5)
    obs = obs[np.abs(obs[:, 0]) > 0.1]
    assert discrete.law == ActionLaw(count=3)
    score = discrete.score(obs)["object"]
    assert roc_auc_score(obs[:, 0] > 0, score) > 0.95
    # three outcomes far apart: 1/2 (2 log 3 - 0.1534)
    assert np.median(score[obs[:, 0] > 0]) == pytest.approx(0.5 * (2 * math.log(3) - 0.1534), abs=0.1)


# --- the class: scores ----------------------------------------------------------------------------


def linear_influence(gains: list[float], entities: dict[str, list[int]], **scoring: Any) -> Influence:
    obs_size = 1 + max(column for columns in entities.values() for column in columns)
    model = linear_model(gains, 0.1, obs_size)
    return Influence(model, UNIT, entities, [1.0] * len(gains), ScoreConfig(**scoring))


def test_each_entity_has_the_score_of_its_own_columns() -> None:
    # columns 1, 3 and 4 are predicted; only 3 is influenced
    influence = linear_influence([0.0, 1.0, 0.0], {"still": [4, 1], "moved": [3], "both": [3, 1]}, sampling="sobol")
    scores = influence.score(np.zeros((6, 5)))
    assert list(scores) == ["still", "moved", "both"]
    assert np.array_equal(scores["still"], np.zeros(6))
    assert scores["moved"].min() > 1
    # a column that is not influenced adds nothing to the KL, but its constant 0.1534 to the gap of the product
    np.testing.assert_allclose(scores["both"], scores["moved"] - 0.25 * (1 - math.log(2)), atol=1e-5)


def test_scores_do_not_change_from_call_to_call_but_with_the_generator(fitted: Influence) -> None:
    obs = OBS[:20]
    first = fitted.score(obs)["object"]
    assert np.array_equal(first, fitted.score(obs)["object"])
    other = fitted.score(obs, generator(1))["object"]
    assert not np.array_equal(first, other)
    assert np.array_equal(other, fitted.score(obs, generator(1))["object"])
    np.testing.assert_allclose(first, other, atol=0.5)
    stream = generator(1)
    fitted.score(obs, stream)
    assert not np.array_equal(other, fitted.score(obs, stream)["object"])  # fresh actions at each call


def test_a_sobol_score_changes_with_the_generator_too(fitted: Influence) -> None:
    influence = Influence(
        fitted.model, fitted.law, fitted.entities, fitted.scale, ScoreConfig(actions=8, sampling="sobol")
    )
    first = influence.score(OBS[:20])["object"]
    assert np.array_equal(first, influence.score(OBS[:20])["object"])
    assert not np.array_equal(first, influence.score(OBS[:20], generator(1))["object"])


def test_numpy_gives_numpy_and_torch_gives_torch(fitted: Influence) -> None:
    obs, actions = OBS[:5], ACTION[:15].reshape(5, 3, 2)
    from_numpy, from_torch = fitted.score(obs), fitted.score(torch.from_numpy(obs))
    assert from_numpy.keys() == from_torch.keys() == ENTITIES.keys()
    for name in ENTITIES:
        assert isinstance(from_numpy[name], np.ndarray)
        assert from_numpy[name].dtype == np.float32
        assert from_numpy[name].shape == (5,)
        assert isinstance(from_torch[name], Tensor)
        assert np.array_equal(from_numpy[name], from_torch[name].numpy())
    assert isinstance(fitted.action_scores(obs, actions)["object"], np.ndarray)
    assert isinstance(fitted.action_scores(torch.from_numpy(obs), actions)["object"], Tensor)
    for given, kind in ((obs, np.ndarray), (torch.from_numpy(obs), Tensor)):
        action, score = fitted.best_action(given, "object")
        assert isinstance(action, kind)
        assert isinstance(score, kind)
    assert np.array_equal(fitted.score(obs.tolist())["object"], fitted.score(obs)["object"])


def test_no_states_have_no_scores(fitted: Influence) -> None:
    nothing = np.zeros((0, 3))
    assert fitted.score(nothing)["object"].shape == (0,)
    assert fitted.action_scores(nothing, np.zeros((0, 4, 2)))["object"].shape == (0, 4)
    action, score = fitted.best_action(nothing, "object")
    assert action.shape == (0, 2)
    assert score.shape == (0,)


def test_members_are_averaged() -> None:
    model, config = random_model(3), ScoreConfig(actions=16)
    ensemble = Influence(model, BOX, {"a": [0, 1], "b": [2]}, [1.0] * 3, config, seed=4)
    obs = normal(10, 4)
    parts = []
    for replica in range(3):
        alone = GaussianDynamics(4, 2, 3, model.config, make_generators([0]))
        alone.load_state_dict({name: value[replica : replica + 1] for name, value in model.state_dict().items()})
        parts.append(Influence(alone, BOX, ensemble.entities, [1.0] * 3, config, seed=4))
    actions = BOX.draw(10, 5, make_generators([1]))[0]
    for name in ("a", "b"):
        mean = torch.stack([part.score(obs)[name] for part in parts]).mean(0)
        torch.testing.assert_close(ensemble.score(obs)[name], mean, rtol=1e-4, atol=1e-5)
        mean = torch.stack([part.action_scores(obs, actions)[name] for part in parts]).mean(0)
        torch.testing.assert_close(ensemble.action_scores(obs, actions)[name], mean, rtol=1e-4, atol=1e-5)


def test_scoring_leaves_the_callers_arrays_and_the_global_generator_alone(fitted: Influence) -> None:
    obs, before = OBS[:20].copy(), torch.get_rng_state()
    fitted.score(obs)
    fitted.best_action(obs, "object")
    assert np.array_equal(obs, OBS[:20])
    assert torch.equal(torch.get_rng_state(), before)


# --- the class: actions ---------------------------------------------------------------------------


def test_an_action_is_compared_with_exactly_the_given_ones(fitted: Influence) -> None:
    obs, actions = torch.from_numpy(OBS[:6]).float(), fitted.law.draw(6, 4, [generator(1)])[0]
    scores = fitted.action_scores(obs, actions)["object"]
    assert scores.shape == (6, 4)
    dims = fitted.dims("object")
    for state in range(6):
        inputs = torch.cat([fitted.model_obs(obs)[0, state].expand(4, -1), actions[state]], 1)
        mean, variance = fitted.model(inputs[None])
        expected = kl_to_mixture(mean[0, :, dims].detach(), variance[0, :, dims].detach())
        torch.testing.assert_close(scores[state], expected, rtol=1e-3, atol=1e-4)


def test_known_actions_have_known_scores() -> None:
    # three times the same outcome and one far away, in one dimension: exp(-KL) is one for equals and zero for others
    influence = linear_influence([10.0], {"a": [0]})
    actions = np.array([[[0.5], [0.5], [0.5], [-0.5]], [[0.1], [0.1], [0.1], [0.1]]])
    gap = 0.5 * (1 - math.log(2))
    common = 0.5 * (math.log(4 / 3) + max(0.0, math.log(4 / 3) - gap))
    rare = 0.5 * (math.log(4) + math.log(4) - gap)
    expected = [[common] * 3 + [rare], [0.0] * 4]
    np.testing.assert_allclose(influence.action_scores(np.zeros((2, 1)), actions)["a"], expected, atol=1e-5)
    alone = influence.action_scores(np.zeros((2, 1)), actions[:, :1])["a"]
    assert np.array_equal(alone, np.zeros((2, 1)))


def test_the_mean_over_actions_of_their_scores_is_the_score_of_the_state(fitted: Influence) -> None:
    obs = OBS[:8]
    drawn = fitted.law.draw(8, fitted.scoring.actions, [generator(fitted.seed)])[0]
    for name in ENTITIES:
        by_action = fitted.action_scores(obs, drawn)[name].mean(1)
        np.testing.assert_allclose(fitted.score(obs)[name], by_action, rtol=1e-4, atol=1e-6)


def test_the_best_action_is_the_tried_one_with_the_largest_score(fitted: Influence) -> None:
    obs = OBS[:50]
    for name in ENTITIES:
        action, score = fitted.best_action(obs, name, generator(3))
        assert action.shape == (50, 2)
        assert score.shape == (50,)
        tried = fitted.law.draw(50, fitted.scoring.actions, [generator(3)])[0].numpy()
        scores = fitted.action_scores(obs, tried)[name]
        np.testing.assert_allclose(score, scores.max(1), rtol=1e-5, atol=1e-7)
        place = np.abs(tried - action[:, None]).sum(2).argmin(1)
        assert np.array_equal(tried[np.arange(50), place], action)
        np.testing.assert_allclose(scores[np.arange(50), place], scores.max(1), rtol=1e-5, atol=1e-7)


def test_the_best_action_of_a_linear_world_is_an_extreme_one() -> None:
    action, score = linear_influence([1.0], {"a": [0]}).best_action(np.zeros((40, 1)))
    assert np.median(np.abs(action)) > 0.9  # of 64 tried ones, the most extreme but for gaps between them
    assert (action > 0).any()
    assert (action < 0).any()
    assert score.min() > linear_score(10.0, sampling="sobol").item()  # above the mean over actions


def test_the_best_discrete_action_is_an_integer_of_the_space(discrete: Influence) -> None:
    obs = OBS[:100]
    action, _ = discrete.best_action(obs)
    assert action.shape == (100,)
    assert action.dtype == np.int64
    assert set(action) <= {0, 1, 2}


def test_ties_are_broken_at_random() -> None:
    config = ModelConfig(layers=1, width=4, normalize_input=False)
    model = ignore_actions(GaussianDynamics(1, 4, 1, config, make_generators([0])))
    influence = Influence(model, ActionLaw(count=4), {"a": [0]}, [1.0])
    action, score = influence.best_action(np.zeros((2000, 1)))
    assert np.abs(score).max() <= 1e-6
    counts = np.bincount(action, minlength=4)
    assert np.abs(counts - 500).max() < 100  # the deviation is 19
    assert not np.array_equal(action, influence.best_action(np.zeros((2000, 1)))[0])  # every call tries other actions
    first, again = (influence.best_action(np.zeros((2000, 1)), generator=generator(1))[0] for _ in range(2))
    assert np.array_equal(first, again)


def test_the_best_action_for_one_of_several_entities_needs_its_name(fitted: Influence) -> None:
    with pytest.raises(ValueError, match=r"several entities.*entity=.*object, bystander"):
        fitted.best_action(OBS[:2])
    with pytest.raises(ValueError, match=r"no entity 'cube'.*object, bystander"):
        fitted.best_action(OBS[:2], "cube")


# --- the class: fitting ---------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_bits_and_another_does_not() -> None:
    first, again, other = (brief_fit(seed=seed).score(OBS[:9])["object"] for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_fitting_leaves_arrays_and_the_global_generator_alone() -> None:
    copies, before = [array.copy() for array in (OBS, ACTION, NEXT_OBS)], torch.get_rng_state()
    brief_fit()
    assert all(np.array_equal(old, new) for old, new in zip(copies, (OBS, ACTION, NEXT_OBS), strict=True))
    assert torch.equal(torch.get_rng_state(), before)


def test_progress_is_called_after_every_validation() -> None:
    epochs: list[int] = []
    brief_fit(progress=lambda fitting: epochs.append(fitting.epoch))
    assert epochs == [1, 2]


def test_members_are_replicas_with_their_own_weights() -> None:
    influence = brief_fit(members=3)
    assert influence.model.replicas == 3
    weight = influence.model.mean_head.weight
    assert not torch.equal(weight[0], weight[1])
    assert influence.score(OBS[:4])["object"].shape == (4,)


def test_given_validation_data_are_used_and_nothing_is_held_out() -> None:
    seen: list[Fitting] = []
    brief_fit(validation=gate_world(33, 7), progress=seen.append)
    assert seen[0].train[0].shape == (200, 5)
    assert seen[0].validation[0].shape == (33, 5)
    standardised = (gate_world(33, 7)[0] - OBS[:200].mean(0)) / OBS[:200].std(0, ddof=1)
    np.testing.assert_allclose(seen[0].validation[0][:, :3], standardised, rtol=1e-5, atol=1e-6)
    seen.clear()
    brief_fit(validation=0.25, progress=seen.append)
    assert (len(seen[0].train[0]), len(seen[0].validation[0])) == (150, 50)


@pytest.mark.parametrize(("scale", "offset"), [(1e-6, 0.0), (0.01, 5e5), (1e5, -3.0)])
def test_the_units_of_the_observations_do_not_matter(scale: float, offset: float) -> None:
    changed = {"obs": OBS[:200] * scale + offset, "next_obs": NEXT_OBS[:200] * scale + offset}
    expected = brief_fit().score(OBS[:50])["object"]
    # rounding of the given numbers alone: 1e-16 of the offset, against steps of a tenth of the scale
    np.testing.assert_allclose(
        brief_fit(**changed).score(changed["obs"][:50])["object"], expected, rtol=2e-3, atol=1e-4
    )


def test_memory_does_not_grow_with_the_number_of_states() -> None:
    program = """
        import resource, sys, torch
        from butfor.actions import ActionLaw
        from butfor.dynamics import GaussianDynamics, ModelConfig
        from butfor.influence import ScoreConfig, score_states
        from butfor.networks import make_generators
        torch.set_num_threads(1)
        model = GaussianDynamics(25, 4, 3, ModelConfig(layers=1, width=256), make_generators([0])).eval()
        law = ActionLaw((-1.0,) * 4, (1.0,) * 4)
        for states in (2_000, 20_000):
            score_states(model, torch.zeros(1, states, 25), law, [[0, 1, 2]], ScoreConfig(), make_generators([0]))
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    few, many = map(int, done.stdout.split())
    unit = 2**10 if sys.platform != "darwin" else 1  # kibibytes, but on macOS bytes
    # 18,000 states more are 1.8 MB of observations and 0.07 MB of scores; their activations would be 1.2 GB
    assert (many - few) * unit < 20 * 2**20


def test_without_a_space_actions_are_tried_within_the_data() -> None:
    law = brief_fit().law
    np.testing.assert_allclose(law.low, ACTION[:200].min(0))
    np.testing.assert_allclose(law.high, ACTION[:200].max(0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"obs": OBS[:200, 0]}, r"obs has shape \[200\]; expected \[N, D\]"),
        ({"next_obs": NEXT_OBS[:200, :2]}, r"next_obs has shape \[200, 2\]; expected \[N, 3\]"),
        ({"action": ACTION[:200, 0]}, r"action has shape \[N\] with fractions"),
        ({"action": ACTION[:150]}, "200, 150 and 200 rows"),
        ({"obs": OBS[:50], "action": ACTION[:50], "next_obs": NEXT_OBS[:50]}, "50 transitions are too few"),
        ({"obs": np.where(OBS[:200] == OBS[7, 1], np.nan, OBS[:200])}, "obs holds NaN.*row 7, column 1"),
        ({"action": np.where(ACTION[:200] == ACTION[9, 0], np.inf, ACTION[:200])}, "action holds.*row 9, column 0"),
        ({"entities": {}}, "entities is empty"),
        ({"entities": {"cube": [3]}}, "'cube' names column 3, but observations have columns 0 to 2"),
        ({"action_space": Box(-np.inf, 1, (2,))}, "infinite bounds"),
        ({"action_space": Box(-1, 1, (3,))}, r"(?i)action.*\b2\b.*\b3\b|action.*\b3\b.*\b2\b"),
        ({"action_space": Box(-1, 1, (1,))}, r"(?i)action.*\b2\b.*\b1\b|action.*\b1\b.*\b2\b"),
        ({"action_space": Discrete(3)}, "(?i)action.*(discrete|integers)"),
        ({"action": DISCRETE[:200], "action_space": Box(-1, 1, (1,))}, r"(?i)action.*\[200\]"),
        ({"action": DISCRETE[:200, None], "action_space": Discrete(3)}, r"(?i)action.*\[200, 1\]"),
        ({"action": DISCRETE[:200], "action_space": Discrete(2)}, rf"(?i)action.*row {np.argmax(DISCRETE == 2)}\b"),
        ({"action": DISCRETE[:200] - 1}, rf"(?i)action.*row {np.argmax(DISCRETE == 0)}\b"),
        ({"validation": 0.0}, "validation is 0.0; expected a share"),
        ({"validation": 1.0}, "validation is 1.0; expected a share"),
        ({"validation": 0.9999}, "validation"),
        ({"validation": (OBS[:50, :2], ACTION[:50], NEXT_OBS[:50, :2])}, r"validation.*\[50, 2\]"),
        ({"validation": (OBS[:50], ACTION[:50, :1], NEXT_OBS[:50])}, r"validation.*\[50, 1\]"),
        ({"validation": (OBS[:50], ACTION[:50])}, "validation"),
        ({"validation": "a tenth"}, "validation"),
        ({"members": 0}, "members"),
    ],
)
def test_what_cannot_be_fitted_is_refused_with_its_place(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        brief_fit(**changes)


def test_validation_data_are_named_when_they_are_broken() -> None:
    broken = gate_world(33, 7)
    broken[2][4, 1] = np.nan
    with pytest.raises(ValueError, match=r"validation.*next_obs holds NaN.*row 4, column 1"):
        brief_fit(validation=broken)


def test_a_list_of_validation_arrays_is_as_good_as_a_tuple() -> None:
    seen: list[Fitting] = []
    brief_fit(validation=list(gate_world(33, 7)), progress=seen.append)
    assert len(seen[0].validation[0]) == 33


def test_constant_columns_are_warned_of_at_the_users_line() -> None:
    action, next_obs = ACTION[:200].copy(), NEXT_OBS[:200].copy()
    action[:, 1], next_obs[:, 2] = 0.5, OBS[:200, 2]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Influence.fit(OBS[:200], action, next_obs, ENTITIES, **BRIEF)
    texts = sorted(str(warning.message) for warning in caught)
    assert len(texts) == 2
    assert texts[0].startswith("Action column(s) [1] never vary")
    assert texts[1].startswith("Column(s) [2] of entity 'bystander' always change")
    assert {Path(warning.filename).name for warning in caught} == {Path(__file__).name}


def test_actions_outside_their_space_are_warned_of() -> None:
    # the model would be asked about the space alone: most likely the wrong space, or actions in other units
    with pytest.warns(UserWarning, match=r"(?i)action.*column.*\b0\b"):
        brief_fit(action_space=Box(np.array([-0.1, -1.0]), np.array([0.1, 1.0]), dtype=np.float64))


def test_a_change_that_is_constant_up_to_rounding_does_not_become_noise_of_size_one() -> None:
    obs, action, next_obs = gate_world(200, 0)
    next_obs[:, 2] = obs[:, 2] + 0.1
    transitions = tuple(map(torch.from_numpy, (obs, action, next_obs)))
    scale = target_scale(transitions, {"clock": [2]}, ModelConfig())  # type: ignore[arg-type]
    # the change is 0.1 plus rounding of 1e-17; its inverse as a scale would give targets of 1e15
    assert scale.item() * 0.1 < 1e6


def test_a_steady_drift_does_not_hide_the_influence() -> None:
    # the object also moves by 10 in every step, 80 deviations: the action's part is the same, and so the score must be
    next_obs = NEXT_OBS.copy()
    next_obs[:, 1] += 10
    drifting = Influence.fit(OBS, ACTION, next_obs, {"object": [1]}, action_space=Box(-1, 1, (2,)), **QUICK)
    obs = gate_world(300, 5)[0]
    obs = obs[np.abs(obs[:, 0]) > 0.1]
    score, is_open = drifting.score(obs)["object"], obs[:, 0] > 0
    assert roc_auc_score(is_open, score) > 0.95
    assert np.median(score[is_open]) > 1


# --- the class: wrong states and actions -----------------------------------------------------------


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        (OBS[0], r"obs has shape \[3\]; expected \[N, 3\]"),
        (OBS[:4, :2], r"obs has shape \[4, 2\]; expected \[N, 3\]"),
        (OBS[None, :4], r"obs has shape \[1, 4, 3\]; expected \[N, 3\]"),
        (np.array([[0, 0, 0], [0, np.nan, 0]]), "obs holds NaN or infinity.*row 1, column 1"),
        (np.array([[0, 0, 0], [0, 0, -np.inf]]), "obs holds NaN or infinity.*row 1, column 2"),
        (np.array([[0, 0, 0], [1e39, 0, 0]]), "row 1, column 0"),  # infinite in single precision
    ],
)
@pytest.mark.parametrize("method", ["score", "action_scores", "best_action"])
def test_wrong_states_are_refused_with_the_place(method: str, obs: Array, message: str, fitted: Influence) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "score": lambda: fitted.score(obs),
        "action_scores": lambda: fitted.action_scores(obs, np.zeros((len(obs), 4, 2))),
        "best_action": lambda: fitted.best_action(obs, "object"),
    }
    with pytest.raises(ValueError, match=message):
        calls[method]()


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.zeros((5, 2)), r"actions has shape \[5, 2\]; expected \[5, 'M', 2\]"),
        (np.zeros((4, 3, 2)), r"actions has shape \[4, 3, 2\]; expected \[5, 'M', 2\]"),
        (np.zeros((5, 3, 1)), r"actions has shape \[5, 3, 1\]; expected \[5, 'M', 2\]"),
        (np.full((5, 3, 2), np.nan), "actions holds NaN or infinity.*row 0"),
        (np.zeros((5, 0, 2)), r"actions has shape \[5, 0, 2\]"),
    ],
)
def test_wrong_actions_are_refused_with_the_place(actions: Array, message: str, fitted: Influence) -> None:
    with pytest.raises(ValueError, match=message):
        fitted.action_scores(OBS[:5], actions)


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.zeros((2, 3, 3)), r"actions has shape \[2, 3, 3\]; expected \[2, 'M'\]"),
        (np.array([[0, 1], [2, 3]]), r"(?i)action.*row 1\b"),
        (np.array([[0, 1], [-1, 2]]), r"(?i)action.*row 1\b"),
        (np.array([[0.0, 1.0], [1.7, 2.0]]), "(?i)action.*(integer|fraction)"),
    ],
)
def test_wrong_discrete_actions_are_refused_with_the_place(actions: Array, message: str, discrete: Influence) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        discrete.action_scores(OBS[:2], actions)


# --- the class: files -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["box", "discrete", "members"])
def test_a_saved_influence_gives_the_same_numbers(kind: str, tmp_path: Path) -> None:
    changes: dict[str, dict[str, Any]] = {
        "box": {"scoring": ScoreConfig(actions=16, sampling="sobol", form="mean"), "action_space": Box(-1, 1, (2,))},
        "discrete": {"action": DISCRETE[:200]},
        "members": {"members": 2, "scoring": ScoreConfig(separate_mixture=True), "seed": 5},
    }
    influence = brief_fit(**changes[kind])
    influence.save(tmp_path / "model.safetensors")
    loaded = Influence.load(tmp_path / "model.safetensors")
    for name in ENTITIES:
        assert np.array_equal(influence.score(OBS[:20])[name], loaded.score(OBS[:20])[name])
        for first, second in zip(
            influence.best_action(OBS[:20], name, generator(2)),
            loaded.best_action(OBS[:20], name, generator(2)),
            strict=True,
        ):
            assert np.array_equal(first, second)
    for field in ("law", "entities", "scale", "scoring", "seed"):
        assert getattr(influence, field) == getattr(loaded, field), field
    assert influence.model.config == loaded.model.config


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    brief_fit().save(path)
    return path


def test_a_save_is_one_safetensors_file_with_a_header_of_json(saved: Path) -> None:
    assert [path.name for path in saved.parent.iterdir()] == ["model.safetensors"]
    with safe_open(saved, framework="pt") as file:
        header = json.loads(file.metadata()["butfor"])
    assert header["entities"] == ENTITIES
    assert header["format"] == 1


def resave(path: Path, header: Any, tensors: dict[str, Tensor] | None = None) -> None:
    kept = load_file(path) if tensors is None else tensors
    save_file(kept, path, metadata={"butfor": header if isinstance(header, str) else json.dumps(header)})


def header_of(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        header: dict[str, Any] = json.loads(file.metadata()["butfor"])
    return header


def test_a_truncated_file_is_refused(saved: Path) -> None:
    whole = saved.read_bytes()
    for length in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        saved.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"model\.safetensors is not a complete safetensors file"):
            Influence.load(saved)


def test_a_foreign_safetensors_file_is_refused(saved: Path) -> None:
    save_file({"weight": torch.zeros(3)}, saved)
    with pytest.raises(ValueError, match=r"not one of butfor's"):
        Influence.load(saved)


def test_another_kind_of_file_is_refused(saved: Path) -> None:
    resave(saved, header_of(saved) | {"kind": "agent"})
    with pytest.raises(ValueError, match=r"holds 'agent', not a saved Influence"):
        Influence.load(saved)


def test_a_newer_format_is_refused_with_both_versions(saved: Path) -> None:
    resave(saved, header_of(saved) | {"format": 2})
    with pytest.raises(ValueError, match=r"format 2.*format 1"):
        Influence.load(saved)


class Trap:
    """Unpickling it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_pickle_is_refused_and_not_run(saved: Path) -> None:
    sprung = saved.with_name("sprung")
    for content in (pickle.dumps(Trap(sprung)), b"\x80\x04" + b"\0" * 100):
        saved.write_bytes(content)
        with pytest.raises(ValueError, match="not a complete safetensors file"):
            Influence.load(saved)
    torch.save({"model": Trap(sprung)}, saved)
    with pytest.raises(ValueError, match="not a complete safetensors file"):
        Influence.load(saved)
    assert not sprung.exists()


def test_a_header_that_does_not_fit_its_weights_is_refused(saved: Path) -> None:
    header, tensors = header_of(saved), load_file(saved)
    wrong: dict[str, tuple[Any, dict[str, Tensor] | None]] = {
        "other sizes": (header | {"obs_size": 7}, None),
        "no weights": (header, {"other": torch.zeros(1)}),
        "a weight is missing": (header, {k: v for k, v in tensors.items() if k != "mean_head.bias"}),
        "a field is missing": ({k: v for k, v in header.items() if k != "law"}, None),
        "no JSON": ("{", None),
        "no object": ("[]", None),
    }
    for case, (changed, weights) in wrong.items():
        resave(saved, changed, weights if weights is not None else tensors)
        with pytest.raises(ValueError, match=r"model\.safetensors"):
            raise AssertionError(f"{case}: loaded as {Influence.load(saved)}")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no file .*nothing\.safetensors"):
        Influence.load(tmp_path / "nothing.safetensors")


def test_the_public_names_are_those_of_the_package() -> None:
    assert butfor.Influence is Influence
    assert butfor.ScoreConfig is ScoreConfig
    assert dataclasses.is_dataclass(butfor.ModelConfig)
