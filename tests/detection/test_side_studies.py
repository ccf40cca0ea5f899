"""The studies of detection: noise that keeps its word, decisions and references whose truth is known, one whole run."""

import json
import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.integrate import quad
from support.small_detection import make_episodes, separable

from butfor.detection import detectors
from butfor.detection import side_studies as studies
from butfor.detection.detectors import Scores, only_seed, score_cai, with_scoring
from butfor.detection.experiment import run_detection
from butfor.detection.settings import DetectionConfig
from butfor.detection.side_studies import Experiment, add_noise, reference_cai, state_deviation
from butfor.detection.thresholds import evaluate_seeds
from butfor.influence.gaussian import KL_FORMS
from butfor.influence.influence import Influence
from butfor.influence.scoring import ScoreConfig
from butfor.models.attention import AttentionConfig
from butfor.models.dynamics import GaussianDynamics, ModelConfig
from butfor.models.fitting import FitConfig
from butfor.models.networks import make_generators
from butfor.models.tables import Units
from butfor.rollouts.episodes import Episodes
from butfor.runs.files import read_json
from butfor.runs.folder import open_run
from butfor.spaces.actions import ActionLaw

torch.set_num_threads(1)

Array = NDArray[Any]


def silent(stage: str, done: int, total: int, text: str) -> None:
    pass


def unasked(*arguments: Any, **named: Any) -> Any:
    raise AssertionError("nothing should be fitted")


def make_experiment(influence: Any, test: Episodes, **others: Any) -> Experiment:
    """An experiment in which nothing can be fitted; settings and parts are given by name."""
    names = [item.name for item in fields(DetectionConfig)]
    settings: dict[str, Any] = {"noise_levels": (0.0,), "target_noise": 0.002, "extra_episodes": 0}
    settings |= {name: others.pop(name) for name in list(others) if name in names and name != "data"}
    given: dict[str, Any] = {
        "config": DetectionConfig(**settings), "data": None, "train": test, "validation": test,
        "sets": {"test": test}, "influence": influence, "fit": unasked, "progress": silent,
    }  # fmt: skip
    return Experiment(**given | others)


# -------------------------------------------------------------------------------------------------------- noise


def fetch_like(episodes: int = 60, steps: int = 10, seed: int = 0) -> Episodes:
    """Numbers with the dependences of Fetch's observations: 6:9 = 3:6 - 0:3, and 14:17 relative to 20:23."""
    generator = np.random.default_rng(seed)
    seen = generator.normal(generator.normal(0, 3, 25), generator.uniform(0.1, 2, 25), (episodes, steps + 1, 25))
    seen = seen.astype(np.float32)
    seen[..., 6:9] = seen[..., 3:6] - seen[..., 0:3]
    return make_episodes(seen, generator.uniform(-1, 1, (episodes, steps, 4)))


def slide_like(episodes: int = 60, steps: int = 10) -> Episodes:
    generator = np.random.default_rng(0)
    observation = generator.normal(0, [0.5, 1, 2, 3], (episodes, steps + 1, 4))
    return make_episodes(observation, generator.uniform(-1, 1, (episodes, steps, 1)))


def env_of(episodes: Episodes) -> str:
    return "push" if episodes.observation.shape[2] == 25 else "slide"


def noisy_copy(episodes: Episodes, level: float) -> Episodes:
    env = env_of(episodes)
    return add_noise(episodes, env, level, state_deviation(episodes, env), np.random.default_rng(0))


@pytest.mark.parametrize("make", [fetch_like, slide_like])
def test_no_noise_changes_nothing_but_rounding(make: Callable[[], Episodes]) -> None:
    episodes = make()
    same = add_noise(
        episodes, env_of(episodes), 0.0, state_deviation(episodes, env_of(episodes)), np.random.default_rng(0)
    )
    np.testing.assert_allclose(same.observation, episodes.observation, rtol=1e-6, atol=1e-6)
    assert same.observation.dtype == np.float32
    np.testing.assert_array_equal(same.action, episodes.action)


@pytest.mark.parametrize("make", [fetch_like, slide_like])
def test_the_given_episodes_and_everything_but_the_states_stay(make: Callable[[], Episodes]) -> None:
    episodes = make()
    before = episodes.observation.copy()
    noisy = add_noise(
        episodes, env_of(episodes), 0.3, state_deviation(episodes, env_of(episodes)), np.random.default_rng(0)
    )
    np.testing.assert_array_equal(episodes.observation, before)
    for name in ("action", "achieved_goal", "desired_goal", "length", "sampled"):
        np.testing.assert_array_equal(getattr(noisy, name), getattr(episodes, name))


def test_what_follows_from_other_columns_follows_from_their_noisy_values() -> None:
    """The relative position is the difference of the positions seen; the velocity is noisy in the world frame."""
    episodes = fetch_like(3000, 2)
    deviation = state_deviation(episodes, env_of(episodes))
    noisy = add_noise(episodes, env_of(episodes), 0.2, deviation, np.random.default_rng(1)).observation.astype(
        np.float64
    )
    np.testing.assert_allclose(noisy[..., 6:9], noisy[..., 3:6] - noisy[..., 0:3], atol=1e-5)
    true = episodes.observation.astype(np.float64)
    absolute, seen = (table[..., 14:17] + table[..., 20:23] for table in (true, noisy))
    added = (seen - absolute).reshape(-1, 3)
    np.testing.assert_allclose(added.std(0), 0.2 * deviation[14:17], rtol=0.05)  # 9,000 draws: one in a hundred off
    hand = (noisy - true)[..., 20:23].reshape(-1, 3)
    for axis in range(3):  # the object's noise is not the hand's
        assert abs(np.corrcoef(added[:, axis], hand[:, axis])[0, 1]) < 0.05


@pytest.mark.parametrize("level", [0.05, 0.4])
@pytest.mark.parametrize("make", [fetch_like, slide_like])
def test_the_noise_is_as_strong_as_asked_in_each_dimension(make: Callable[..., Episodes], level: float) -> None:
    episodes = make(3000, 2)
    deviation = state_deviation(episodes, env_of(episodes))
    noisy = add_noise(episodes, env_of(episodes), level, deviation, np.random.default_rng(0))
    free = [column for column in range(episodes.observation.shape[2]) if column not in (6, 7, 8, 14, 15, 16)]
    added = (noisy.observation.astype(np.float64) - episodes.observation)[..., free]
    np.testing.assert_allclose(added.std((0, 1)), level * deviation[free], rtol=0.05)
    np.testing.assert_allclose(added.mean((0, 1)) / (level * deviation[free]), 0, atol=0.05)
    real = episodes.observation[:, :-1].reshape(-1, episodes.observation.shape[2])[:, free]
    np.testing.assert_allclose(deviation[free], real.std(0), rtol=1e-5)


def test_a_state_has_the_same_noise_as_the_next_of_one_step_and_the_first_of_another() -> None:
    noisy = add_noise(slide_like(), "slide", 0.5, np.ones(4), np.random.default_rng(0))
    obs, _, next_obs = noisy.transitions()
    steps = noisy.action.shape[1]
    inner = np.arange(len(obs)) % steps != 0
    np.testing.assert_array_equal(obs[inner], next_obs[:-1][inner[1:]])


def test_padding_has_no_say_in_the_deviation() -> None:
    episodes = slide_like()
    episodes.length[:] = 4
    expected = episodes.observation[:, :4].reshape(-1, 4).astype(np.float64).std(0)
    episodes.observation[:, 5:] = 1e6
    np.testing.assert_allclose(state_deviation(episodes, env_of(episodes)), expected, rtol=1e-6)


def score_by_first_column(influence: Any, episodes: Episodes) -> Scores:
    """In place of CAI: the first number of each state, for as many seeds as the stub has."""
    return np.repeat(episodes.transitions()[0][None, :, 0], influence.seeds, 0)


class Stub:
    """A model of so many seeds."""

    def __init__(self, seeds: int = 1) -> None:
        self.seeds = seeds


def test_every_level_of_noise_has_a_fit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name a fit finds its checkpoint: two that share one would share a model."""
    monkeypatch.setattr(detectors, "score_cai", score_by_first_column)
    test, fitted = separable(40), dict[str, tuple[Episodes, Episodes]]()

    def fit(name: str, train: Episodes, validation: Episodes) -> Stub:
        assert name not in fitted
        fitted[name] = train, validation
        return Stub(2)

    levels = (0.0, 0.001, 0.002, 0.05, 0.5)
    found = studies.study_noise(
        make_experiment(Stub(2), test, fit=fit, noise_levels=levels, train=separable(40, seed=1))
    )
    assert len(fitted) == 4
    assert found["levels"] == list(levels)
    for where in ("train_only", "train_and_test"):
        for metric in ("auc", "ap", "f1"):
            assert np.shape(found[where][metric]) == (5, 2)
    auc = {where: np.array(found[where]["auc"])[:, 0] for where in ("train_only", "train_and_test")}
    assert len(set(auc["train_only"])) == 1  # the stub's scores do not depend on the fit
    assert auc["train_and_test"][0] == pytest.approx(auc["train_only"][0], abs=1e-6)
    # P(N(4, 1) > N(0, 1)) = Phi(4 / sqrt 2); half a deviation of noise, of variance 1 + 0.16 x 16, widens both
    assert auc["train_only"][0] == pytest.approx(normal_cdf(4 / math.sqrt(2)), abs=0.005)
    wider = math.sqrt(2 * (1 + 0.25 * (1 + 0.16 * 16)))
    assert auc["train_and_test"][4] == pytest.approx(normal_cdf(4 / wider), abs=0.03)
    for train, validation in fitted.values():
        assert not np.array_equal(train.observation, validation.observation)


def normal_cdf(x: float) -> float:
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


# ---------------------------------------------------------------------------------------------------- decisions


def rows_of(found: dict[str, Any], method: str, name: str = "test") -> dict[float, dict[str, Any]]:
    return {row["target"]: row for row in found["rows"] if (row["method"], row["set"]) == (method, name)}


@pytest.mark.parametrize(("foreign_mean", "kept"), [(0.0, True), (-1.5, False)])
def test_promises_hold_where_free_states_are_alike_and_not_where_they_differ(
    monkeypatch: pytest.MonkeyPatch, foreign_mean: float, kept: bool
) -> None:
    """Free states of another agent that score lower make those of this one look influenced."""
    monkeypatch.setattr(detectors, "score_cai", score_by_first_column)
    test, other = separable(200), separable(200, free_mean=foreign_mean, seed=9)
    found = studies.study_decisions(make_experiment(Stub(2), test, validation=other))
    assert found["targets"] == [0.01, 0.05, 0.10]
    own, foreign = rows_of(found, "free states"), rows_of(found, "free states of the validation set")
    assert list(own) == list(foreign) == [0.01, 0.05, 0.10]
    assert len(found["rows"]) == 9  # no action was random
    for target in (0.05, 0.10):
        # Benjamini and Hochberg: the share of free states, 0.8, times the target
        assert own[target]["realised"] == pytest.approx(0.8 * target, abs=0.025)
        assert own[target]["found"] > 0.8  # at 4 deviations, even 3.1 (p = 0.001) leaves Phi(0.9) = 0.82
        assert (foreign[target]["realised"] <= target + 0.02) == kept
        assert foreign[target]["found"] > 0.8
    assert [row["target"] for row in found["rows"] if row["realised"] is None] == [0.01]  # 100 episodes cannot
    for row in found["rows"]:
        if row["realised"] is None:
            continue
        assert row["seeds"] == 2
        assert row["realised_std"] == 0  # the stub's seeds are the same
        share = 0.2 * row["found"] / (1 - row["realised"]) if row["realised"] < 1 else 0
        assert row["rejected"] == pytest.approx(share, rel=0.1)  # influenced and found, of those called


def test_scores_that_know_nothing_find_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detectors, "score_cai", score_by_first_column)
    found = studies.study_decisions(make_experiment(Stub(), separable(200, gap=0.0)))
    for row in rows_of(found, "free states").values():
        assert row["found"] < 0.02
        assert row["rejected"] < 0.02


def test_other_policies_are_judged_too_and_unlabelled_validation_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detectors, "score_cai", score_by_first_column)
    asked: list[tuple[str, int]] = []

    class SomeData:
        def episodes(self, name: str, count: int) -> Episodes:
            asked.append((name, count))
            return separable(count, seed=len(asked))

    test, unlabelled = separable(30), separable(5)
    unlabelled.label = {}
    sets = {"test": test, "random": separable(30, seed=3)}
    case = make_experiment(Stub(), test, sets=sets, data=SomeData(), validation=unlabelled, extra_episodes=12)
    found = studies.study_decisions(case)
    assert asked == [("noisy-expert", 12), ("expert", 12)]
    assert {(row["method"], row["set"]) for row in found["rows"]} == {
        (method, name)
        for method in ("free states", "free states by episode")
        for name in ("test", "random", "noisy-expert", "expert")
    }


@pytest.mark.parametrize("sampled", [False, True])
def test_a_single_episode_has_nothing_to_calibrate_with(monkeypatch: pytest.MonkeyPatch, sampled: bool) -> None:
    """A study comes after hours of training; it must not end in an error."""
    influence, episodes = gated((0.0, 1.0)), gated_episodes((0.0, 1.0), 1, steps=60)
    episodes.sampled[:] = sampled
    found = studies.study_decisions(make_experiment(influence, episodes, validation=unlabelled(episodes)))
    assert {row["method"] for row in found["rows"]} == {
        "free states", "free states by episode",
        *(["random actions", "random actions by episode"] if sampled else []),
    }  # fmt: skip
    assert all((row["found"], row["rejected"]) == (0, 0) for row in found["rows"])
    assert all(row["realised"] is None for row in found["rows"] if "random" not in row["method"])  # no promise


# ---------------------------------------------------------------------------------- a model whose truth is known

NOISE, SCALE = 0.002, 50.0


def gated(effects: tuple[float, ...], replicas: int = 1) -> Influence:
    """The object's next place is effect_g x action + N(0, NOISE^2), g the group that a state belongs to.

    A state is [one-hot of G groups, place]. relu(a + 10 s_g - 10) - relu(-a + 10 s_g - 10) is a where s_g = 1, else 0.
    """
    groups = len(effects)
    config = ModelConfig(
        layers=1, width=2 * groups, normalize_input=False, spectral_norm_hidden=False, spectral_norm_variance=False,
        target_scale=SCALE,
    )  # fmt: skip
    model = GaussianDynamics(groups + 1, 1, 1, config, make_generators(range(replicas)))
    variance = (NOISE * SCALE) ** 2 - config.min_variance
    with torch.no_grad():
        hidden: Any = model.hidden[0]
        hidden.weight.zero_()
        hidden.bias.fill_(-10)
        model.mean_head.weight.zero_()
        for group, effect in enumerate(effects):
            for unit, sign in ((2 * group, 1.0), (2 * group + 1, -1.0)):
                hidden.weight[:, group, unit], hidden.weight[:, groups + 1, unit] = 10, sign
                model.mean_head.weight[:, unit, 0] = sign * effect * SCALE
        model.variance_head.weight.zero_()
        model.variance_head.bias.fill_(math.log(math.expm1(variance)) - model.variance_offset)
    return Influence(model, Units.raw(ActionLaw((-1.0,), (1.0,)), {"object": [groups]}, [SCALE], model.obs_size))


def gated_episodes(effects: tuple[float, ...], count: int, steps: int = 1, seed: int = 0) -> Episodes:
    """Transitions of that environment with uniform actions, with new groups in each state."""
    generator = np.random.default_rng(seed)
    group = generator.integers(0, len(effects), (count, steps + 1))
    action = generator.uniform(-1, 1, (count, steps, 1))
    move = np.array(effects)[group[:, :-1]] * action[..., 0] + NOISE * generator.standard_normal((count, steps))
    place = np.concatenate([np.zeros((count, 1)), move.cumsum(1)], 1)
    observation = np.concatenate([np.eye(len(effects))[group], place[..., None]], -1)
    label = np.array(effects)[group[:, :-1]] > 0
    return make_episodes(observation, action, label={"exact": label}, sampled=np.ones((count, steps), dtype=bool))


def unlabelled(episodes: Episodes) -> Episodes:
    bare = episodes.take(np.arange(len(episodes)))
    bare.label = {}
    return bare


def true_cai(effect: float) -> float:
    """I(a; y) of y = effect a + N(0, NOISE^2), a uniform in [-1, 1]: h(y) - h(noise), by quadrature, in nats."""
    ratio = effect / NOISE
    if not ratio:
        return 0.0

    def density(y: float) -> float:  # of y in units of the noise
        return (normal_cdf(y + ratio) - normal_cdf(y - ratio)) / (2 * ratio)

    def term(y: float) -> float:
        value = density(y)
        return -value * math.log(value) if value > 0 else 0.0

    entropy = quad(term, -ratio - 9, ratio + 9, points=[-ratio, ratio], limit=200)[0]
    return float(entropy - 0.5 * math.log(2 * math.pi * math.e))


def variational_cai(effect: float) -> float:
    """-E_a log E_b exp(-(effect (a - b) / NOISE)^2 / 2): what the variational form tends to with many actions."""
    grid = np.linspace(-1, 1, 2001)
    pairs = np.exp(-0.5 * np.square(effect / NOISE * (grid[:, None] - grid)))
    return float(-np.log(pairs.mean(1)).mean())


def test_the_stubs_model_predicts_its_environment() -> None:
    influence = gated((0.0, 0.01, 0.05))
    obs = np.concatenate([np.eye(3), np.full((3, 1), 0.7)], 1).astype(np.float32)
    actions = torch.tensor([[-1.0], [0.5]]).expand(1, 3, 2, 1)
    mean, variance = influence.model.predictor()(influence.model_obs(obs), actions)
    expected = SCALE * np.outer([0.0, 0.01, 0.05], [-1.0, 0.5])
    np.testing.assert_allclose(mean[0, ..., 0].numpy(), expected, atol=1e-5)
    np.testing.assert_allclose(variance.numpy(), (NOISE * SCALE) ** 2, rtol=1e-3)


EFFECTS = (0.0, 0.002, 0.004, 0.008, 0.016)


def reference_rows(influence: Influence, outcome_of: Callable[[Array], Array] = lambda outcome: outcome) -> list[Any]:
    """The reference study on 60 states of the stub's environment, 12 of each effect."""
    group = np.repeat(np.arange(len(EFFECTS)), 12)
    obs = np.concatenate([np.eye(len(EFFECTS))[group], np.zeros((len(group), 1))], 1).astype(np.float32)
    actions = np.random.default_rng(5).uniform(-1, 1, (len(group), 128))
    outcome = (np.array(EFFECTS)[group, None] * actions)[..., None]  # [n, M, 1]

    class Forks:
        def forks(self, test: Episodes) -> tuple[Array, Array]:
            return obs, outcome_of(outcome)

    def fit(name: str, target_noise: float) -> Influence:
        assert target_noise == NOISE
        return influence

    return studies.study_reference(make_experiment(None, slide_like(2), data=Forks(), fit=fit, target_noise=NOISE))


def test_the_reference_is_the_mutual_information_and_the_bias_that_of_the_form() -> None:
    rows = reference_rows(gated(EFFECTS, replicas=2))
    assert {(row["form"], row["actions"]) for row in rows} == {(form, k) for form in KL_FORMS for k in (8, 16, 32, 64)}
    truth = np.mean([true_cai(effect) for effect in EFFECTS])
    for row in rows:
        assert row["true_mean"] == pytest.approx(truth, abs=0.04)  # 128 actions with 4 draws each, 60 states
        points = np.array(row["scatter"])
        assert points.shape == (60, 2)
        assert row["bias"] == pytest.approx((points[:, 1] - points[:, 0]).mean(), abs=1e-3)
        assert row["absolute_error"] >= abs(row["bias"]) - 1e-9
        assert row["rank_correlation_std"] == pytest.approx(0)  # the replicas are alike
    by = {(row["form"], row["actions"]): row for row in rows}
    variational = np.mean([variational_cai(effect) for effect in EFFECTS])
    assert by["variational", 64]["bias"] == pytest.approx(variational - truth, abs=0.06)
    for form in KL_FORMS:  # groups of 12 lie apart, but within a group there is only noise: 1 - 1 / 25 at most
        assert 0.85 < by[form, 64]["rank_correlation"] <= 1
    for actions in (8, 64):
        product, upper = (by[form, actions]["bias"] for form in ("product", "variational"))
        assert product < upper  # a lower and an upper bound
        assert product < by["mean_clip_product", actions]["bias"] <= upper + 1e-9
    free = np.array(by["mean_clip_product", 64]["scatter"])[:12]
    np.testing.assert_allclose(free, 0, atol=1e-3)


def test_states_whose_physics_blew_up_are_left_out_of_the_reference() -> None:
    def blown(outcome: Array) -> Array:
        broken = outcome.copy()
        broken[3, 7] = np.nan
        return broken

    for row in reference_rows(gated(EFFECTS), blown):
        assert len(row["scatter"]) == 59
        assert np.isfinite([row["bias"], row["absolute_error"], row["rank_correlation"], row["true_mean"]]).all()


@pytest.mark.filterwarnings("error")
def test_a_model_that_sees_no_influence_has_no_rank_correlation() -> None:
    for row in reference_rows(gated((0.0,) * len(EFFECTS))):
        if row["form"] in ("mean", "mean_clip_product"):
            assert row["rank_correlation"] == 0


def test_random_actions_calibrate_decisions_in_an_environment_that_the_model_knows() -> None:
    effects = (0.0, 0.0, 0.05)
    episodes = gated_episodes(effects, 1500)
    case = make_experiment(gated(effects, replicas=2), episodes, validation=unlabelled(episodes))
    found = studies.study_decisions(case)
    rows = rows_of(found, "random actions")
    assert list(rows) == [0.01, 0.05, 0.10]
    assert rows[0.10]["realised"] <= 0.10 + 0.02
    assert rows[0.10]["found"] > 0.9  # 250 influenced in a half: 5 / 251 with no doubtful one, 15 / 251 with two
    assert rows[0.01]["found"] == 0  # that would take 5 / 0.01 = 500 of them


def test_actions_of_an_unknown_law_do_not_calibrate() -> None:
    episodes = gated_episodes((0.0, 0.05), 300)
    episodes.sampled[:] = False
    found = studies.study_decisions(make_experiment(gated((0.0, 0.05)), episodes, validation=unlabelled(episodes)))
    assert {row["method"] for row in found["rows"]} == {"free states", "free states by episode"}
    scores = score_cai(gated((0.0, 0.05)), episodes)
    assert evaluate_seeds(scores, episodes)[0]["auc"] == 1  # the truth itself


# ------------------------------------------------------------------------------------------------ reference


def test_the_reference_is_the_integral_of_the_mixture_divergence() -> None:
    outcomes = np.array([[[0.0], [0.5], [2.0]]])
    noise = 0.4
    grid = np.linspace(-4, 6, 20001)
    densities = np.exp(-0.5 * ((grid - outcomes[0]) / noise) ** 2) / (noise * np.sqrt(2 * np.pi))  # [3, grid]
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.nan_to_num(densities * np.log(densities / densities.mean(0)))
    truth = float(np.trapezoid(terms, grid, axis=1).mean())
    estimate = reference_cai(outcomes, noise, 4000, np.random.default_rng(0))
    # one draw of the integrand varies by less than log 3 around its mean
    assert estimate[0] == pytest.approx(truth, abs=4 * np.log(3) / np.sqrt(3 * 4000))


def test_the_reference_is_zero_without_influence_and_log_m_with_full_influence() -> None:
    same, apart = np.ones((1, 5, 3)), np.arange(5.0)[None, :, None] * np.ones(3)
    both = reference_cai(np.concatenate([same, apart]), 1e-3, 3, np.random.default_rng(0))
    assert both[0] == pytest.approx(0, abs=1e-12)
    assert both[1] == pytest.approx(np.log(5), rel=1e-9)


# ---------------------------------------------------------------------------------------------- members, scorers


def untrained(replicas: int = 3) -> Influence:
    config = ModelConfig(layers=2, width=6)
    model = GaussianDynamics(4, 2, 2, config, make_generators(range(replicas)))
    center, spread = [0.5, -1.0, 2.0, 0.0], [1.0, 2.0, 0.5, 3.0]
    law = ActionLaw((-1.0, -1.0), (1.0, 1.0))
    return Influence(model, Units(law, {"object": [2, 3]}, [1.0, 2.0], center, spread), ScoreConfig(5), 7)


def test_a_member_is_what_the_file_gives_alone(tmp_path: Path) -> None:
    influence = untrained()
    influence.save(tmp_path / "model.safetensors")
    obs = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    together = score_cai(influence, obs)
    for seed in range(3):
        alone, loaded = only_seed(influence, seed), Influence.load(tmp_path / "model.safetensors", replica=seed)
        assert alone.model.replicas == 1
        np.testing.assert_array_equal(alone.score(obs)["object"], loaded.score(obs)["object"])
        np.testing.assert_allclose(alone.score(obs)["object"], together[seed], rtol=1e-5)
        names = ("units", "scoring", "seed")
        assert [getattr(alone, name) for name in names] == [getattr(loaded, name) for name in names]
    assert influence.model.replicas == 3  # left as it was
    assert not np.allclose(together[0], together[1])


def test_with_scoring_keeps_the_model() -> None:
    influence = untrained()
    scoring = ScoreConfig(9, "sobol", form="product")
    other = with_scoring(influence, scoring)
    assert other.model is influence.model
    assert (other.scoring, other.seed, other.units) == (scoring, 7, influence.units)
    assert influence.scoring == ScoreConfig(5)


def test_each_variant_has_its_own_data_and_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """What helps: beta-NLL, no spectral norm, neither, other episodes."""
    monkeypatch.setattr(detectors, "score_cai", score_by_first_column)
    test, random, asked = separable(40), separable(65, seed=2), list[tuple[str, dict[str, Any]]]()

    class SomeData:
        def episodes(self, name: str, count: int) -> Episodes:
            assert (name, count) == ("random-train", 25 + 40)
            return random

    def fit(name: str, **changes: Any) -> Stub:
        asked.append((name, changes))
        return Stub(3)

    case = make_experiment(Stub(3), test, fit=fit, data=SomeData(), train=separable(25), model=ModelConfig(width=9))
    rows = studies.study_helps(case)
    assert len(rows) == 5
    assert asked[0][1] == {"model": ModelConfig(width=9, beta=0.5)}
    neither: dict[str, Any] = {"width": 9, "spectral_norm_hidden": False, "spectral_norm_variance": False}
    assert asked[1][1] == {"model": ModelConfig(**neither)}
    assert asked[2][1] == {"model": ModelConfig(**neither, beta=0.5)}
    for part, rows_of_it in (("train", slice(25)), ("validation", slice(25, None))):
        np.testing.assert_array_equal(asked[3][1][part].observation, random.observation[rows_of_it])
    assert len({name for name, _ in asked}) == 4
    assert len({row["auc"]["mean"] for row in rows}) == 1


# ------------------------------------------------------------------------------------- a whole run in miniature

CONFIG = DetectionConfig(
    env="pick-and-place",
    data="scripted",
    seeds=2,
    train_episodes=8,
    validation_episodes=4,
    test_episodes=4,
    random_episodes=8,
    model=ModelConfig(layers=1, width=16, target_scale=50.0),
    fitting=FitConfig(batch_size=100, learning_rate=1e-3, max_epochs=2, validate_every=1),
    attention=AttentionConfig(embedding=4, feedforward=4, layers=1, normalize_input=True),
    attention_fitting=FitConfig(batch_size=100, learning_rate=1e-3, max_epochs=2, validate_every=1),
    compare_forms=False,
    studies=("actions", "decisions", "ensembles", "helps", "noise", "reference"),
    noise_levels=(0.0, 0.1),
    extra_episodes=2,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pick-and-place with every study, and its report."""
    pytest.importorskip("mujoco")
    from butfor.reporting.study_page import write_report

    folder = run_detection(CONFIG, tmp_path_factory.mktemp("runs") / "pick-and-place")
    write_report(folder)
    return folder


@pytest.fixture(scope="module")
def found(run: Path) -> Any:
    return read_json(run / "studies.json")


def test_every_study_has_its_rows(found: Any) -> None:
    assert set(found) == {"schema", "actions", "decisions", "ensembles", "helps", "noise", "reference"}
    assert [row["set"] for row in found["actions"]] == ["random"] * 16  # the paper's choice: the harder set
    assert len({(row["actions"], row["sampling"], row["form"]) for row in found["actions"]}) == 16
    assert np.shape(found["noise"]["train_only"]["auc"]) == (2, 2)
    without, again = (np.array(found["noise"][where]["auc"])[0] for where in ("train_only", "train_and_test"))
    np.testing.assert_allclose(without, again, atol=1e-3)  # noise of strength 0 is none
    assert len(found["reference"]) == 16
    assert "NaN" not in json.dumps(found)
    sets = {row["set"] for row in found["decisions"]["rows"]}
    assert sets == {"test", "random", "noisy-expert", "expert"}
    ranked = {row["set"] for row in found["decisions"]["rows"] if row["method"] == "random actions"}
    assert ranked == {"test", "random", "noisy-expert"}  # the expert does nothing by chance


def test_the_first_row_of_what_helps_is_the_main_table(run: Path, found: Any) -> None:
    main = read_json(run / "summary.json")["detectors"][0]
    assert (main["name"], found["helps"][0]["title"]) == ("cai", "As in the table")
    for metric in ("auc", "ap", "f1"):
        assert found["helps"][0][metric] == pytest.approx(main[metric])


def test_ensembles_are_judged_on_every_set_and_label(run: Path, found: Any) -> None:
    rows = found["ensembles"]
    assert len(rows) == 2 * 2 * 2 * 2  # variants, ways to choose actions, sets, labels
    assert {row["networks"] for row in rows} == {1, 5}
    main = read_json(run / "summary.json")["detectors"][0]
    alone = next(row for row in rows if (row["networks"], row["set"], row["label"]) == (1, "test", "exact"))
    for metric in ("auc", "ap", "f1"):
        assert alone[metric] == pytest.approx(main[metric])
    assert alone["at_paper_share"]["auc"] == alone["auc"]  # does not depend on the share
    assert alone["at_paper_share"]["ap"] != alone["ap"]
    for row in (row for row in rows if "extreme" not in row["title"]):
        key = {name: row[name] for name in ("networks", "set", "label")} | {"title": f"{row['title']}, extreme actions"}
        (other,) = [other for other in rows if key.items() <= other.items()]
        assert other["auc"] != row["auc"]


def test_forked_states_are_states_of_the_test_set_and_depend_on_the_action_as_labelled(run: Path) -> None:
    test = Episodes.load(run / "data" / "test.npz")
    with np.load(run / "data" / "forks.npz") as file:
        obs, outcome = file["obs"], file["outcome"]
    assert outcome.shape == (4, 512, 3)
    effect = np.ptp(outcome, axis=1).max(-1)
    used = []
    for state, spread, positions in zip(obs, effect, outcome, strict=True):
        (place,) = np.argwhere((test.observation[:, :-1] == state).all(-1))
        used.append(int(place[0]))
        assert (spread > 1e-6) == test.label["exact"][tuple(place)]
        assert np.abs(positions - state[3:6]).max() < 0.1  # it does not go far within one step
        if spread <= 1e-6:
            np.testing.assert_allclose(positions[0], test.observation[place[0], place[1] + 1, 3:6], atol=2e-3)
    assert sorted(used) == [0, 1, 2, 3]


def test_both_sets_are_judged_by_both_labels(run: Path) -> None:
    summary = read_json(run / "summary.json")
    tables = [(table["set"], table["label"]) for table in summary["others"]]
    assert tables == [("test", "heuristic"), ("random", "exact"), ("random", "heuristic")]
    for table in summary["others"]:
        paper = {row["name"]: row["paper"] for row in table["detectors"]}
        assert (paper["cai"] is not None) == ((table["set"], table["label"]) == ("test", "heuristic"))
        with np.load(run / ("scores.npz" if table["set"] == "test" else "scores-random.npz")) as scores:
            label = scores["label" if table["label"] == "exact" else "label_heuristic"]
        assert table["positive_share"] == pytest.approx(label.mean())
        assert table["states"] == len(label)
    assert [table["paper_share"] for table in summary["others"]] == [0.453, None, 0.033]


def test_training_data_has_no_labels_and_what_is_judged_has_all(run: Path) -> None:
    for name in ("train", "random-train", "validation", "test", "random", "noisy-expert", "expert"):
        episodes = Episodes.load(run / "data" / f"{name}.npz")
        assert set(episodes.label) == (set() if "train" in name else {"exact", "heuristic"}), name


def test_the_report_shows_every_study(run: Path) -> None:
    page = (run / "report.html").read_text(encoding="utf-8")
    for title in ("Trained on random episodes", "as if 45.3 % were influenced", "free states of the validation set"):
        assert title.lower() in page.lower()


def test_a_label_that_says_the_same_of_all_states_is_noticed_before_the_training(run: Path, tmp_path: Path) -> None:
    """The heuristic label is judged at the very end; that it cannot be is known from the data."""
    config = replace(CONFIG, random_episodes=0)
    test = Episodes.load(run / "data" / "test.npz")
    test.label["heuristic"][:] = False
    test.save(open_run(tmp_path / "run", "detection", config) / "data" / "test.npz")
    seen: list[str] = []
    with pytest.raises(ValueError, match=r"200 test .*heuristic"):
        run_detection(config, tmp_path / "run", progress=lambda stage, *rest: seen.append(stage))
    assert seen == []
