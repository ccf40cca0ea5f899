"""The model of touches: its mixture against integrals and closed forms, and fits of a hand that carries an object."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from support.hand_and_object import (
    DRIFTER,
    HAND,
    OBJECT,
    STEP,
    Array,
    Labels,
    can_be_carried,
    carried,
    states,
    transitions,
)
from torch import Tensor
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal, kl_divergence

from butfor.influence.contact import (
    FULLY,
    ContactConfig,
    ContactDynamics,
    ContactPrediction,
    EntityContact,
    Touch,
)
from butfor.influence.diagnosis import Diagnosis
from butfor.influence.influence import STRONG_ACTIONS, Influence
from butfor.influence.partners import Pair
from butfor.influence.saved_models import saved_directions, saved_pair, saved_uneven
from butfor.models.dynamics import GaussianDynamics, ModelConfig
from butfor.models.fitting import FitConfig, FitProgress
from butfor.models.networks import make_generators
from butfor.models.tables import measure_transitions

# --- the mixture of one entity ----------------------------------------------------------------------


def random_touch(*shape: int, seed: int = 0, spread: float = 1.0) -> Touch:
    """Log odds and Gaussians that depend on the action, and free motion that does not: [..., K, d]."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator, dtype=torch.float64)

    *rest, actions, size = shape
    free = normal(*rest, 1, size).expand(shape), normal(*rest, 1, size).exp().expand(shape)
    return Touch(spread * normal(*rest, actions), spread * normal(*shape), normal(*shape).exp(), *free)


def same_push(log_odds: Tensor) -> Touch:
    """Touches whose Gaussians are the same for all actions; only the probability differs."""
    shape = (*log_odds.shape, 2)
    mean, one = log_odds.new_full(shape, 3.0), log_odds.new_ones(shape)
    return Touch(log_odds, mean, 0.3 * one, 0 * mean, 0.01 * one)


@pytest.mark.parametrize("log_odds", [-30.0, -2.0, 0.0, 5.0, 30.0])
@pytest.mark.parametrize("actions", [2, 3, 64])
def test_an_action_that_changes_nothing_has_no_influence(log_odds: float, actions: int) -> None:
    divergence = same_push(torch.full((5, actions), log_odds)).divergence()
    assert divergence.shape == (5, actions)
    assert divergence.max() < 1e-6


def test_with_the_same_push_influence_is_the_information_about_a_touch() -> None:
    log_odds = torch.tensor([[-8.0, 8.0], [0.0, 2.0], [-1.0, -3.0]], dtype=torch.float64)
    probability = log_odds.sigmoid()
    given_action, overall = probability, probability.mean(-1, keepdim=True).expand_as(probability)
    expected = sum(
        p * (p / q).log() for p, q in ((given_action, overall), (1 - given_action, 1 - overall))
    )  # KL of two Bernoulli distributions
    found = same_push(log_odds).divergence()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-9)

    def entropy(p: Tensor) -> Tensor:
        return -(p * p.log() + (1 - p) * (1 - p).log())

    information = entropy(probability.mean(-1)) - entropy(probability).mean(-1)
    torch.testing.assert_close(found.mean(-1), information, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("actions", [2, 5, 64])
def test_sure_touches_with_pushes_far_apart_tell_the_actions_apart(actions: int) -> None:
    mean = 100 * torch.arange(actions, dtype=torch.float32)[:, None].expand(-1, 2)
    one = torch.ones_like(mean)
    found = Touch(torch.full((actions,), 30.0), mean, one, 0 * mean, one).divergence()
    torch.testing.assert_close(found, torch.full((actions,), math.log(actions)), rtol=1e-5, atol=1e-5)


def test_an_impossible_touch_has_no_influence_however_different_the_pushes() -> None:
    mean = 100 * torch.arange(4.0)[:, None]
    one = torch.ones_like(mean)
    assert Touch(torch.full((4,), -40.0), mean, one, 0 * mean, one).divergence().max() < 1e-5


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    actions=st.integers(1, 70),
    size=st.integers(1, 4),
    spread=st.sampled_from([0.0, 1e-3, 1.0, 10.0, 100.0]),
    single=st.booleans(),
)
def test_divergence_is_between_zero_and_the_logarithm_of_the_number_of_actions(
    seed: int, actions: int, size: int, spread: float, single: bool
) -> None:
    touch = random_touch(3, actions, size, seed=seed, spread=spread)
    if single:
        touch = Touch(*(part.float() for part in vars(touch).values()))
    found = touch.divergence()
    assert found.min() >= 0
    assert found.max() <= math.log(actions) + 1e-5


def test_the_order_of_actions_does_not_matter() -> None:
    touch = random_touch(6, 9, 2)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    log_odds, *parts = vars(touch).values()
    shuffled = Touch(log_odds[:, order], *(part[:, order] for part in parts))
    torch.testing.assert_close(shuffled.divergence(), touch.divergence()[:, order])


def test_divergence_is_the_sum_of_its_two_parts() -> None:
    touch = random_touch(8, 6, 3)
    probability = touch.log_odds.sigmoid()
    bernoulli = torch.distributions.Bernoulli(probability)
    overall = torch.distributions.Bernoulli(probability.mean(-1, keepdim=True).expand_as(probability))
    pushes = Independent(Normal(touch.mean[:, :, None], touch.variance[:, :, None].sqrt()), 1)
    others = Independent(Normal(touch.mean[:, None], touch.variance[:, None].sqrt()), 1)
    share = probability / probability.sum(-1, keepdim=True)
    between = -(share[:, None] * (-kl_divergence(pushes, others)).exp()).sum(-1).log()
    expected = kl_divergence(bernoulli, overall) + probability * between
    torch.testing.assert_close(touch.divergence(), expected)


def test_divergence_is_at_least_that_of_the_outcomes_by_integration() -> None:
    touch = random_touch(20, 5, 1)
    grid = torch.linspace(-60, 60, 60_001, dtype=torch.float64)
    density = Normal(touch.mean, touch.variance.sqrt()).log_prob(grid).exp()  # [20, 5, grid]
    probability = touch.log_odds.sigmoid()
    joint = probability[..., None] * density
    ratio = (joint.clamp_min(1e-300) / joint.mean(1, keepdim=True).clamp_min(1e-300)).log()
    touched = torch.trapezoid(joint * ratio, grid)
    free = (1 - probability) * ((1 - probability) / (1 - probability.mean(1, keepdim=True))).log()
    exact = touched + free
    assert (exact.mean(1) > 0.05).all()
    assert (touch.divergence() >= exact - 1e-6).all()


def test_log_density_integrates_to_one() -> None:
    touch = random_touch(10, 4, 1)
    grid = torch.linspace(-60, 60, 120_001, dtype=torch.float64)
    columns = [part[..., None, :] for part in list(vars(touch).values())[1:]]
    density = Touch(touch.log_odds[..., None], *columns).log_density(grid[:, None]).exp()  # [10, 4, grid]
    torch.testing.assert_close(torch.trapezoid(density, grid), torch.ones(10, 4, dtype=torch.float64))
    mean, variance = (part[..., 0] for part in touch.moments())
    numeric = torch.trapezoid(density * grid, grid)
    torch.testing.assert_close(mean, numeric)
    around = (grid - numeric[..., None]).square()
    torch.testing.assert_close(variance, torch.trapezoid(density * around, grid))


def mixture(touch: Touch) -> Any:
    probability = touch.log_odds.sigmoid()
    means = torch.stack([touch.mean, touch.free_mean], -2)
    variances = torch.stack([touch.variance, touch.free_variance], -2)
    chosen = Categorical(torch.stack([probability, 1 - probability], -1))
    return MixtureSameFamily(chosen, Independent(Normal(means, variances.sqrt()), 1))


def test_density_and_moments_are_those_of_torch_distributions() -> None:
    touch = random_touch(7, 4, 3)
    target = torch.randn(7, 1, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    torch.testing.assert_close(touch.log_density(target), mixture(touch).log_prob(target))
    mean, variance = touch.moments()
    torch.testing.assert_close(mean, mixture(touch).mean)
    torch.testing.assert_close(variance, mixture(touch).variance)


def test_drawn_outcomes_have_the_moments_of_the_chosen_action() -> None:
    """4,000 copies of two states; the chosen actions are the second and the third."""
    touch = random_touch(1, 2, 3, 2)
    copies = 4000
    many = Touch(*(part.repeat_interleave(copies, 1) for part in vars(touch).values()))
    chosen = torch.tensor([[False, True, False], [False, False, True]])
    outcome = many.sample(chosen.repeat_interleave(copies, 0), torch.Generator().manual_seed(0))
    assert outcome.shape == (1, 2 * copies, 2)
    drawn = outcome[0].unflatten(0, (2, copies))
    for mean, variance, found in zip(*(part[0, chosen] for part in touch.moments()), drawn, strict=True):
        assert ((found.mean(0) - mean).abs() < 5 * (variance / copies).sqrt()).all()
        spread = ((found - mean).square() - variance).std(0) / math.sqrt(copies)
        assert ((found.var(0) - variance).abs() < 5 * spread).all()
    prediction = ContactPrediction({(2, 0): many}, 4)
    whole = prediction.sample(chosen.repeat_interleave(copies, 0), torch.Generator().manual_seed(0))
    torch.testing.assert_close(whole[..., [2, 0]], outcome)
    assert not whole[..., [1, 3]].any()


def test_density_is_finite_far_from_everything() -> None:
    touch = same_push(torch.tensor([-30.0, 0.0, 30.0]))
    assert torch.isfinite(touch.log_density(torch.full((2,), 1e4))).all()


def test_half_of_the_actions_can_be_the_mixture() -> None:
    touch = random_touch(2, 5, 6, 2)
    halves = [Touch(*(part[:, :, half] for part in touch.parts())) for half in (slice(0, 3), slice(3, 6))]
    found = ContactPrediction({(0, 1): touch}, 2).divergence([0, 1], "mean", separate=True)
    assert found.shape == (2, 5, 3)
    torch.testing.assert_close(found, halves[0].divergence(halves[1]))
    torch.testing.assert_close(halves[0].divergence(halves[0]), halves[0].divergence())
    probability, other = (half.log_odds.sigmoid() for half in halves)
    share = other / other.sum(-1, keepdim=True)
    others = Independent(Normal(halves[1].mean, halves[1].variance.sqrt()), 1)
    for k in range(3):
        own = Independent(Normal(halves[0].mean[:, :, [k]], halves[0].variance[:, :, [k]].sqrt()), 1)
        between = -(share * (-kl_divergence(own.expand(others.batch_shape), others)).exp()).sum(-1).log()
        whether = kl_divergence(
            torch.distributions.Bernoulli(probability[:, :, k]), torch.distributions.Bernoulli(other.mean(-1))
        )
        torch.testing.assert_close(found[:, :, k], (whether + probability[:, :, k] * between).clamp_min(0))


# --- members --------------------------------------------------------------------------------------


def test_one_member_is_merged_into_itself() -> None:
    touch = random_touch(3, 2, 4, 2)
    assert touch.merge(1) is touch


@pytest.mark.parametrize("members", [2, 3])
def test_identical_members_are_merged_into_one_of_them(members: int) -> None:
    touch = random_touch(2, 5, 4, 3)
    repeated = Touch(*(part.repeat_interleave(members, 0) for part in vars(touch).values()))
    merged = repeated.merge(members)
    for name, part in vars(touch).items():
        torch.testing.assert_close(getattr(merged, name), part)
    torch.testing.assert_close(merged.divergence(), touch.divergence())


def test_merged_members_have_the_moments_of_their_mixture() -> None:
    touch = random_touch(3, 5, 4, 2)
    free = (part[:1].expand_as(part) for part in (touch.free_mean, touch.free_variance))
    touch = Touch(touch.log_odds, touch.mean, touch.variance, *free)
    merged = touch.merge(3)
    torch.testing.assert_close(merged.log_odds.sigmoid()[0], touch.log_odds.sigmoid().mean(0))
    means, variances = touch.moments()
    mean, variance = merged.moments()
    torch.testing.assert_close(mean[0], means.mean(0))
    torch.testing.assert_close(variance[0], variances.mean(0) + means.var(0, correction=0))


def test_a_member_that_expects_no_touch_has_no_say_in_the_push() -> None:
    touch = random_touch(2, 1, 4, 2)
    log_odds = torch.stack([torch.full((1, 4), 2.0), torch.full((1, 4), -60.0)]).double()
    merged = Touch(log_odds, touch.mean, touch.variance, touch.free_mean, touch.free_variance).merge(2)
    torch.testing.assert_close(merged.mean[0], touch.mean[0])
    torch.testing.assert_close(merged.variance[0], touch.variance[0])
    torch.testing.assert_close(merged.log_odds.sigmoid()[0], log_odds.sigmoid()[0] / 2)


def test_members_that_all_expect_no_touch_are_merged_with_equal_weights() -> None:
    touch = Touch(*(part.float() for part in random_touch(2, 1, 4, 2).parts()))
    never = torch.full((2, 1, 4), -200.0)  # its probability rounds to 0
    merged = Touch(never, touch.mean, touch.variance, touch.free_mean, touch.free_variance).merge(2)
    torch.testing.assert_close(merged.mean[0], touch.mean.mean(0))
    torch.testing.assert_close(merged.variance[0], touch.variance.mean(0) + touch.mean.var(0, correction=0))
    assert merged.divergence().max() < 1e-5


def test_the_prediction_of_several_entities_has_each_in_its_columns() -> None:
    first, second = random_touch(2, 5, 4, 2, seed=1), random_touch(2, 5, 4, 1, seed=2)
    prediction = ContactPrediction({(2, 0): first, (1,): second}, 3)
    mean, variance = prediction.moments()
    assert mean.shape == variance.shape == (2, 5, 4, 3)
    torch.testing.assert_close(mean[..., [2, 0]], first.moments()[0])
    torch.testing.assert_close(variance[..., [1]], second.moments()[1])
    target = torch.randn(5, 1, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    density = prediction.log_density(target, [2, 0])
    assert density.shape == (2, 5, 4)
    torch.testing.assert_close(density, first.log_density(target[..., [2, 0]]))
    torch.testing.assert_close(prediction.divergence([1], "mean_clip_product"), second.divergence())
    assert prediction.merge(2).moments()[0].shape == (1, 5, 4, 3)


# --- the untrained model --------------------------------------------------------------------------

GIVEN = transitions(3000, 0)
TEST = states(2000, 7)
TRUTH = can_be_carried(TEST)
DISTANCE = np.linalg.norm(TEST[:, OBJECT] - TEST[:, HAND], axis=1)
UNIT = Box(-1, 1, (2,))
ENTITIES = {"object": OBJECT}
QUICK = ContactConfig(updates=1500, motion_updates=600, learning_rate=3e-3)
BRIEF = ContactConfig(width=8, motion_width=8, updates=100, motion_updates=100, batch_size=100)


def untrained(seeds: list[int]) -> tuple[ContactDynamics, Tensor]:
    """A model and standardized states [R, N, D]."""
    _, units = measure_transitions(GIVEN, ENTITIES, UNIT)
    model = ContactDynamics(units, {"object": [Pair(OBJECT, HAND)]}, BRIEF, make_generators(seeds))
    return model, units.standardize(torch.from_numpy(TEST)).expand(len(seeds), -1, -1)


def test_positions_are_relative_and_in_the_units_of_the_data() -> None:
    model, obs = untrained([0])
    entity = model.entities[0]
    assert isinstance(entity, EntityContact)
    (found,) = entity.positions(obs, model.units)
    np.testing.assert_allclose(found[0].numpy(), TEST[:, OBJECT] - TEST[:, HAND], atol=1e-6)


def test_the_action_acts_only_through_the_step_of_the_partner() -> None:
    model, obs = untrained([0, 1])
    entity = model.entities[0]
    assert isinstance(entity, EntityContact)
    for network in (entity.touch, entity.partner_step):
        last: Any = network.layers[-1]
        last.weight.data *= 300  # so that what they see matters
    actions = 2 * torch.rand(1, 1, 16, 2, generator=torch.Generator().manual_seed(0)) - 1
    touch = model.predictor()(obs, actions).touches[0, 1]
    assert touch.log_odds.shape == (2, len(TEST), 16)
    assert touch.divergence().mean() > 1e-3
    assert torch.equal(touch.free_mean, touch.free_mean[:, :, :1].expand_as(touch.free_mean))
    first: Any = entity.partner_step.layers[0]
    first.weight.data[:, model.obs_size :] = 0  # a partner that ignores the action
    assert model.predictor()(obs, actions).touches[0, 1].divergence().max() < 1e-5


# --- fits -----------------------------------------------------------------------------------------


def fit(**changes: Any) -> Influence:
    """A fit of a hand and an object, long enough to find out where the action matters."""
    arguments: dict[str, Any] = {"entities": ENTITIES, "action_space": UNIT, "model": QUICK}
    return Influence.fit(*GIVEN, **arguments | changes)


def brief_fit(**changes: Any) -> Influence:
    """A fit that learns little, of a given hand."""
    return fit(**{"model": BRIEF, "agent": HAND} | changes)


@pytest.fixture(scope="module")
def fitted() -> Influence:
    return fit()


@pytest.fixture(scope="module")
def ensemble() -> Influence:
    return brief_fit(members=2)


def test_the_default_is_a_model_of_touches_with_strong_actions(fitted: Influence) -> None:
    assert isinstance(fitted.model, ContactDynamics)
    (pair,) = fitted.model.pairs["object"]
    assert (pair.entity, pair.partner) == (OBJECT, HAND)
    assert fitted.scoring == STRONG_ACTIONS


def test_the_default_is_three_members() -> None:
    assert brief_fit().model.replicas == 3
    assert brief_fit(members=1).model.replicas == 1
    gaussian = fit(model=ModelConfig(layers=1, width=8), fitting=FitConfig(max_epochs=1))
    assert gaussian.model.replicas == 1


def test_geometry_varies_by_one_within_three_reaches() -> None:
    influence = brief_fit(agent=None)
    model = influence.model
    (pair,) = model.pairs["object"]
    place = torch.from_numpy(GIVEN[0][:, OBJECT] - GIVEN[0][:, HAND])
    near = place.norm(dim=1) < (FULLY + 1) * pair.reach
    assert 0 < near.sum() < len(near)
    described = torch.cat([place, place.abs(), place.norm(dim=1, keepdim=True)], 1)
    for found, expected in (
        (model.entities[0].center, described[near].mean(0)),
        (model.entities[0].spread, described[near].std(0)),
    ):
        for part in found[0, 0].split(described.shape[1]):
            torch.testing.assert_close(part.double(), expected.double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("configured", "transitions", "expected"),
    [(0.1, 60_000, 0.1), (0.1, 15_000, 0.1), (0.1, 5_000, 0.3), (0.1, 100, 1.0), (0.5, 2_000, 1.0), (2.0, 100, 2.0)],
)
def test_weights_decay_more_with_few_transitions(configured: float, transitions: int, expected: float) -> None:
    assert ContactConfig(weight_decay=configured).decay(transitions) == pytest.approx(expected)


def test_scores_tell_where_the_object_can_be_carried(fitted: Influence) -> None:
    score = fitted.score(TEST)["object"]
    assert score.shape == (len(TEST),)
    assert roc_auc_score(TRUTH, score) > 0.95
    assert score[TRUTH].mean() > 0.2
    assert score[DISTANCE > 2 * STEP + 0.2].mean() < 0.01
    assert score.min() >= 0
    assert score.max() <= math.log(fitted.scoring.actions) + 1e-5


def test_the_prediction_follows_the_hand_that_carries(fitted: Influence) -> None:
    obs, action, next_obs = transitions(1000, 3)
    diagnosis = fitted.diagnose(obs, action, next_obs)["object"]
    assert isinstance(diagnosis, Diagnosis)
    assert diagnosis.transitions == 1000
    assert diagnosis.r_squared > 0.25  # carried by a hair or not: the edge is sharper than a smooth network
    assert diagnosis.nll < diagnosis.nll_constant
    assert diagnosis.gain > 5 * diagnosis.gain_error > 0


@pytest.mark.long
def test_the_default_settings_learn_the_push() -> None:
    influence = fit(model=None, agent=HAND, seed=1)
    assert influence.diagnose(*transitions(1000, 3))["object"].r_squared > 0.25


def test_actions_are_compared(fitted: Influence) -> None:
    # The hand is beside the object: with +1 it carries it, with -1 it does not.
    obs = states(50, 8)
    obs[:, HAND] = obs[:, OBJECT] - [0.2, 0.0]
    actions = np.tile(np.array([[1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]]), (50, 1, 1))
    assert carried(obs, actions[:, 0]).all()
    assert not carried(obs, actions[:, 1]).any()
    found = fitted.action_scores(obs, actions)["object"]
    assert found.shape == (50, 4)
    assert found.max() <= math.log(4) + 1e-5
    np.testing.assert_allclose(found[:, 1], found[:, 2], rtol=1e-3, atol=1e-5)
    # a touch with probability 1 for one of four actions: log 4, and log 4/3 for each other
    assert np.median(found[:, 0]) > 0.7 * math.log(4)
    assert np.median(found[:, 1]) == pytest.approx(math.log(4 / 3), abs=0.15)


def test_the_best_action_leads_to_the_object(fitted: Influence) -> None:
    near = states(200, 9)
    near[:, HAND] = near[:, OBJECT] - [0.2, 0.0]
    action, score = fitted.best_action(near)
    assert action.shape == (200, 2)
    assert score.shape == (200,)
    assert np.abs(action).max() <= 1
    assert carried(near, action).mean() > 0.9
    assert (score >= fitted.score(near)["object"] - 0.3).all()  # the highest is above the mean, of other actions
    again, _ = fitted.best_action(near)
    assert not np.array_equal(action, again)


def test_tensors_give_tensors(fitted: Influence) -> None:
    obs = torch.from_numpy(TEST[:20])
    score = fitted.score(obs)["object"]
    assert isinstance(score, Tensor)
    np.testing.assert_array_equal(score.numpy(), fitted.score(TEST[:20])["object"])


def test_decisions_have_few_false_alarms(fitted: Influence, tmp_path: Path) -> None:
    fitted.calibrate(transitions=transitions(2000, 4))
    decided: Labels = fitted.decide(TEST, false_discovery_rate=0.1)["object"]
    assert decided.shape == TRUTH.shape
    assert decided.dtype == bool
    assert decided[TRUTH].mean() > 0.35
    assert (~TRUTH[decided]).mean() < 0.15
    assert not decided[DISTANCE > 2 * STEP + 0.2].any()
    fitted.save(tmp_path / "influence.safetensors")
    loaded = Influence.load(tmp_path / "influence.safetensors")
    np.testing.assert_array_equal(loaded.score(TEST)["object"], fitted.score(TEST)["object"])
    np.testing.assert_array_equal(loaded.decide(TEST, 0.1)["object"], decided)


def test_free_states_calibrate_too(fitted: Influence, tmp_path: Path) -> None:
    free: Array = states(1500, 11)
    free = free[~can_be_carried(free)]
    fitted.calibrate(free_obs=free)
    p_values = fitted.p_values(TEST)["object"]
    # Conformal p-values of free states are uniform: their mean is 1/2 with a deviation of 0.29 / sqrt(1600).
    assert p_values[~TRUTH].mean() == pytest.approx(0.5, abs=0.05)
    assert np.median(p_values[TRUTH]) < 0.01
    fitted.save(tmp_path / "influence.safetensors")
    loaded = Influence.load(tmp_path / "influence.safetensors")
    np.testing.assert_array_equal(loaded.p_values(TEST)["object"], p_values)


def test_the_same_seed_gives_the_same_scores_and_another_one_others() -> None:
    first, second, other = (brief_fit(seed=seed).score(TEST)["object"] for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, second)
    assert not np.allclose(first, other)


def test_a_given_hand_is_the_one_that_is_found() -> None:
    told, found = brief_fit(agent=HAND), brief_fit(agent=None)
    for influence in (told, found):
        assert isinstance(influence.model, ContactDynamics)
        (pair,) = influence.model.pairs["object"]
        assert (pair.entity, pair.partner) == (OBJECT, HAND)
    np.testing.assert_array_equal(told.score(TEST)["object"], found.score(TEST)["object"])


def test_what_surprises_beyond_the_reach_is_not_taken_for_influence() -> None:
    """Far from the hand the object jumps along the action half of the time, by chance: no touch was recorded there."""
    random = np.random.default_rng(0)
    obs, action, next_obs = transitions(3000, 0)
    far = (np.linalg.norm(obs[:, HAND] - obs[:, OBJECT], axis=1) > 0.9) & (random.random(3000) < 0.5)
    next_obs[far] += np.eye(7)[OBJECT[0]] * STEP * np.sign(action[far, :1])
    influence = Influence.fit(obs, action, next_obs, ENTITIES, action_space=UNIT, agent=HAND, model=QUICK)
    assert isinstance(influence.model, ContactDynamics)
    (pair,) = influence.model.pairs["object"]
    assert pair.reach is not None
    beyond = (FULLY + 1) * pair.reach < DISTANCE
    assert 20 < beyond.sum() < len(TEST) - 20
    score = influence.score(TEST)["object"]
    assert score[beyond].max() < 1e-6
    assert score[TRUTH].mean() > 100 * score[beyond].mean()
    unlimited = ContactDynamics(
        influence.units, {"object": [Pair(OBJECT, HAND)]}, influence.model.config, make_generators([0, 1, 2])
    )
    unlimited.load_state_dict(influence.model.state_dict())
    influence.model = unlimited
    assert influence.score(TEST)["object"][beyond].mean() > 1e-4  # without the reach


@pytest.mark.parametrize("reach", [None, 0.25])
def test_the_reach_is_saved(reach: float | None, tmp_path: Path) -> None:
    influence = brief_fit()
    assert isinstance(influence.model, ContactDynamics)
    units = influence.units
    pairs = {"object": [Pair(OBJECT, HAND, reach)]}
    influence.model = ContactDynamics(units, pairs, influence.model.config, make_generators([0]))
    influence.save(tmp_path / "influence.safetensors")
    loaded = Influence.load(tmp_path / "influence.safetensors")
    assert isinstance(loaded.model, ContactDynamics)
    assert loaded.model.pairs == pairs


def test_a_model_with_uneven_columns_is_saved(tmp_path: Path) -> None:
    obs, action, next_obs = transitions(500, 0)
    for part in (obs, next_obs):
        part[:, DRIFTER] **= 9  # most values are close to 0
    influence = Influence.fit(obs, action, next_obs, ENTITIES, action_space=UNIT, agent=HAND, model=BRIEF)
    assert isinstance(influence.model, ContactDynamics)
    assert influence.model.uneven == DRIFTER
    influence.save(tmp_path / "influence.safetensors")
    loaded = Influence.load(tmp_path / "influence.safetensors")
    assert isinstance(loaded.model, ContactDynamics)
    assert loaded.model.uneven == DRIFTER
    np.testing.assert_array_equal(loaded.score(TEST)["object"], influence.score(TEST)["object"])


@pytest.mark.parametrize("uneven", [[7], [-1], [0, 0], [0.5], "0", {"a": 1}])
def test_impossible_uneven_columns_of_a_file_are_refused(uneven: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="uneven"):
        saved_uneven(uneven, 7)


def test_a_file_of_before_has_no_uneven_columns() -> None:
    assert saved_uneven([], 7) == []


@pytest.mark.parametrize("directions", [[[6, 7]], [[-1, 0]], [[0, 0]], [[0]], [[0, 1, 2]], "01", [{"a": 1}], [3]])
def test_impossible_directions_of_a_file_are_refused(directions: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        saved_directions(directions, 7)


def test_a_file_of_before_has_no_directions() -> None:
    assert saved_directions([], 7) == []


def with_direction(rows: int) -> tuple[Array, Array, Array]:
    """Transitions of the hand and the object whose last two columns are a direction."""
    obs, action, next_obs = transitions(rows, 0)
    angle = np.random.default_rng(0).uniform(-np.pi, np.pi, rows)
    for part in (obs, next_obs):
        part[:, DRIFTER] = np.stack([np.cos(angle), np.sin(angle)], 1)
    return obs, action, next_obs


def test_a_model_with_directions_is_saved(tmp_path: Path) -> None:
    obs, action, next_obs = with_direction(500)
    influence = Influence.fit(obs, action, next_obs, ENTITIES, action_space=UNIT, agent=HAND, model=BRIEF)
    assert isinstance(influence.model, ContactDynamics)
    assert influence.model.directions == [DRIFTER]
    influence.save(tmp_path / "influence.safetensors")
    loaded = Influence.load(tmp_path / "influence.safetensors")
    assert isinstance(loaded.model, ContactDynamics)
    assert loaded.model.directions == [DRIFTER]
    np.testing.assert_array_equal(loaded.score(obs[:100])["object"], influence.score(obs[:100])["object"])


def test_positions_are_seen_along_and_across_directions() -> None:
    """Columns: a direction (0, 1), two partners (2, 3) and (4, 5), the object (6, 7)."""
    pairs = [Pair([6, 7], [2, 3]), Pair([6, 7], [4, 5])]
    entity = EntityContact((8, 2), [6, 7], pairs, ContactConfig(), make_generators([0]), directions=[[0, 1]])
    obs = torch.tensor([0.6, 0.8, 0.0, 0.0, 3.0, -1.0, 2.0, 1.0])[None, None]
    units = torch.stack([torch.zeros(1, 8), torch.ones(1, 8)], 1)
    first, second, between = entity.turn(obs, entity.positions(obs, units), units)
    # (2, 1), (-1, 2) and (-3, 1), along (0.6, 0.8) and across it, (-0.8, 0.6)
    for seen, along, across in ((first, 2.0, -1.0), (second, 1.0, 2.0), (between, -1.0, 3.0)):
        expected = torch.tensor([along, across, abs(along), abs(across), math.hypot(along, across)])
        torch.testing.assert_close(seen[0, 0], expected)
    assert entity.describe(obs, units).shape == entity.center.shape == (1, 1, 2 * 3 * 5 + 3 * 5)


@pytest.mark.parametrize("reach", [0.0, -1.0, math.inf, math.nan, "far"])
def test_an_impossible_reach_of_a_file_is_refused(reach: Any) -> None:
    with pytest.raises(ValueError, match="reach"):
        saved_pair({"entity": OBJECT, "partner": HAND, "reach": reach}, 7)


def test_a_pair_of_an_older_file_has_no_reach() -> None:
    assert saved_pair({"entity": OBJECT, "partner": HAND}, 7) == Pair(OBJECT, HAND)


def test_too_many_columns_of_the_agent_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\b3\b"):
        brief_fit(agent=[0, 1, 2])


def test_settings_of_touches_without_a_partner_are_refused() -> None:
    with pytest.raises(ValueError, match="agent="):
        fit(entities={"drifter": DRIFTER})


def test_a_gaussian_network_is_fitted_if_asked_for() -> None:
    fitting = FitConfig(max_epochs=1, validate_every=1)
    influence = fit(model=ModelConfig(layers=1, width=8), fitting=fitting)
    assert isinstance(influence.model, GaussianDynamics)
    assert influence.scoring.extreme == 0


def test_a_gaussian_network_has_no_columns_of_the_agent() -> None:
    with pytest.raises(ValueError, match="agent"):
        fit(model=ModelConfig(layers=1, width=8), agent=HAND)


@pytest.mark.parametrize(("name", "value"), [("updates", 0), ("layers", 0), ("narrowest", 0.0), ("wide", -1.0)])
def test_settings_below_their_least_value_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        ContactConfig(**{name: value})


def test_two_entities_have_models_of_their_own() -> None:
    config = ContactConfig(updates=800, motion_updates=400, learning_rate=3e-3)
    both = fit(entities={"object": OBJECT, "drifter": DRIFTER}, agent=HAND, model=config)
    scores = both.score(TEST)
    assert list(scores) == ["object", "drifter"]
    assert roc_auc_score(TRUTH, scores["object"]) > 0.95
    assert scores["drifter"].mean() < 0.1
    found = both.diagnose(*transitions(600, 3))
    assert list(found) == ["object", "drifter"]
    assert found["object"].gain > 5 * found["object"].gain_error
    assert found["drifter"].gain < 3 * found["drifter"].gain_error
    with pytest.raises(ValueError, match="object, drifter"):
        both.best_action(TEST[:2])
    action, score = both.best_action(TEST[:2], "drifter")
    assert action.shape == (2, 2)
    assert score.shape == (2,)


def test_progress_rises_to_its_end() -> None:
    seen: list[FitProgress] = []
    config = ContactConfig(width=4, motion_width=4, updates=300, motion_updates=150, batch_size=20)
    brief_fit(model=config, progress=seen.append, members=2, entities={"object": OBJECT, "drifter": DRIFTER})
    assert [one.epoch for one in seen] == list(range(1, 13))  # 2 entities of 150 + 150 + 300 updates
    assert {one.epochs for one in seen} == {12}
    assert all(one.best_error.shape == (2,) for one in seen)


@pytest.mark.parametrize("fails", [False, True])
def test_the_number_of_threads_is_as_before(fails: bool) -> None:
    def report(progress: FitProgress) -> None:
        assert torch.get_num_threads() == 1
        if fails:
            raise KeyboardInterrupt

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        if fails:
            with pytest.raises(KeyboardInterrupt):
                brief_fit(progress=report)
        else:
            brief_fit(progress=report, agent=None)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


# --- ensembles and files --------------------------------------------------------------------------


def test_members_are_saved_and_loaded_together_or_alone(ensemble: Influence, tmp_path: Path) -> None:
    path = tmp_path / "influence.safetensors"
    ensemble.save(path)
    loaded = Influence.load(path)
    np.testing.assert_array_equal(loaded.score(TEST)["object"], ensemble.score(TEST)["object"])
    np.testing.assert_array_equal(loaded.spread(TEST)["object"], ensemble.spread(TEST)["object"])
    alone = [Influence.load(path, replica=replica).score(TEST)["object"] for replica in (0, 1)]
    assert not np.allclose(*alone)
    np.testing.assert_allclose(ensemble.spread(TEST)["object"], np.std(alone, axis=0, ddof=1), rtol=1e-3, atol=1e-6)


def test_a_member_is_a_fit_with_its_own_seed(ensemble: Influence, tmp_path: Path) -> None:
    ensemble.save(tmp_path / "influence.safetensors")
    first = Influence.load(tmp_path / "influence.safetensors", replica=0)
    alone = brief_fit(members=1)
    np.testing.assert_allclose(first.score(TEST)["object"], alone.score(TEST)["object"], rtol=0.01, atol=1e-4)


def test_one_replica_is_loaded_without_the_calibration(ensemble: Influence, tmp_path: Path) -> None:
    ensemble.calibrate(transitions=transitions(300, 4))
    ensemble.save(tmp_path / "influence.safetensors")
    np.testing.assert_array_equal(
        Influence.load(tmp_path / "influence.safetensors").calibration["object"].scores,
        ensemble.calibration["object"].scores,
    )
    one = Influence.load(tmp_path / "influence.safetensors", replica=1)
    assert one.model.replicas == 1
    assert one.calibration == {}


def test_an_ensemble_does_everything(ensemble: Influence) -> None:
    obs = TEST[:30]
    assert ensemble.score(obs)["object"].shape == (30,)
    assert ensemble.spread(obs)["object"].shape == (30,)
    assert ensemble.action_scores(obs, np.zeros((30, 3, 2)))["object"].shape == (30, 3)
    assert ensemble.best_action(obs)[0].shape == (30, 2)
    ensemble.calibrate(transitions=transitions(300, 4))
    with pytest.warns(UserWarning, match="300 transitions"):  # this model has learned too little to decide
        assert not ensemble.decide(obs)["object"].any()
    assert list(ensemble.diagnose(*transitions(300, 5))) == ["object"]
