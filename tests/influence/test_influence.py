"""The public class on an environment with a gate, and against every mistake of its user."""

import dataclasses
import json
import math
import pickle
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from sklearn.metrics import roc_auc_score
from support.linear_models import (
    BOX,
    UNIT,
    Array,
    generator,
    ignore_actions,
    linear_model,
    linear_score,
    normal,
    random_model,
    raw_influence,
)
from torch import Tensor

import butfor
import butfor.influence.influence
import butfor.influence.scoring
from butfor.influence.gaussian import kl_to_mixture
from butfor.influence.influence import Influence
from butfor.influence.scoring import ScoreConfig, hide_among_redrawn, log_density, predict_moments
from butfor.models.dynamics import GaussianDynamics, ModelConfig
from butfor.models.fitting import FitConfig, Fitting
from butfor.models.networks import make_generators
from butfor.models.tables import target_scale
from butfor.spaces.actions import ActionLaw

# --- the class: an environment with a gate ----------------------------------------------------------------

QUICK: dict[str, Any] = {
    "model": ModelConfig(layers=2, width=24),
    "fitting": FitConfig(batch_size=100, learning_rate=4e-3, max_epochs=40, validate_every=4),
}
BRIEF: dict[str, Any] = {
    "model": ModelConfig(layers=1, width=8),
    "fitting": FitConfig(batch_size=50, max_epochs=2, validate_every=1),
}


def gate_transitions(rows: int, seed: int) -> tuple[Array, Array, Array]:
    """Columns: gate, object, bystander. The action moves the object only where the gate is above zero."""
    random = np.random.default_rng(seed)
    obs, action = random.uniform(-1, 1, (rows, 3)), random.uniform(-1, 1, (rows, 2))
    next_obs = obs + 0.02 * random.normal(size=obs.shape)
    next_obs[:, 1] += 0.3 * (obs[:, 0] > 0) * action[:, 0]
    return obs, action, next_obs


OBS, ACTION, NEXT_OBS = gate_transitions(2000, 0)
DISCRETE = np.random.default_rng(1).integers(0, 3, 2000)
ENTITIES = {"object": [1], "bystander": [2]}


@pytest.fixture(scope="module")
def fitted() -> Influence:
    return Influence.fit(OBS, ACTION, NEXT_OBS, ENTITIES, action_space=Box(-1, 1, (2,)), **QUICK)


@pytest.fixture(scope="module")
def discrete() -> Influence:
    """Action 2 moves the object to the right, 1 to the left, where the gate is open."""
    obs, _, next_obs = gate_transitions(2000, 0)
    noise = 0.02 * np.random.default_rng(2).normal(size=2000)
    next_obs[:, 1] = obs[:, 1] + 0.3 * (obs[:, 0] > 0) * (DISCRETE - 1) + noise
    return Influence.fit(obs, DISCRETE, next_obs, {"object": [1]}, **QUICK)


def brief_fit(**changes: Any) -> Influence:
    """A fit that is too short to learn anything but enough to see whether its arguments are accepted."""
    obs, action, next_obs = OBS[:200], ACTION[:200], NEXT_OBS[:200]
    given: dict[str, Any] = {"obs": obs, "action": action, "next_obs": next_obs, "entities": ENTITIES}
    given |= BRIEF | changes
    return Influence.fit(**given)


def test_entities_are_given_as_a_mapping_or_as_text() -> None:
    for words in (["object=1", "bystander=2"], ["object=observation:1:2", "bystander=2:"]):
        assert brief_fit(entities=words).entities == ENTITIES
    assert brief_fit(entities="object=1").entities == {"object": [1]}


def test_influenced_states_are_told_from_free_ones_and_the_ablation_cannot(fitted: Influence) -> None:
    obs, _, _ = gate_transitions(600, 5)
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
    obs, _, _ = gate_transitions(300, 5)
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
    return raw_influence(model, UNIT, entities, [1.0] * len(gains), ScoreConfig(**scoring))


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
    influence = Influence(fitted.model, fitted.units, ScoreConfig(actions=8, sampling="sobol"))
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


def test_a_column_at_rest_while_fitting_may_move_later() -> None:
    """Divided by a spread of 1e-25 its values would overflow."""
    obs, action, next_obs = gate_transitions(300, 5)
    still = 1e-25 * np.random.default_rng(0).standard_normal((300, 1))
    short = FitConfig(batch_size=100, max_epochs=2)
    influence = Influence.fit(
        np.hstack([obs, still]), action, np.hstack([next_obs, still]), {"object": [1]}, fitting=short
    )
    scores = influence.score(np.hstack([obs, np.ones((300, 1))]))["object"]
    assert np.isfinite(scores).all()


def test_no_states_have_no_scores(fitted: Influence) -> None:
    nothing = np.zeros((0, 3))
    assert fitted.score(nothing)["object"].shape == (0,)
    assert fitted.action_scores(nothing, np.zeros((0, 4, 2)))["object"].shape == (0, 4)
    action, score = fitted.best_action(nothing, "object")
    assert action.shape == (0, 2)
    assert score.shape == (0,)


def test_members_predict_as_one_gaussian() -> None:
    """Mean of the means; mean of the variances plus the variance of the means (the law of total variance)."""
    model, config = random_model(3), ScoreConfig(actions=16)
    ensemble = raw_influence(model, BOX, {"a": [0, 1], "b": [2]}, [1.0] * 3, config, seed=4)
    obs, seen = normal(10, 4), BOX.draw(10, 5, make_generators([1]))[0]
    inputs, actions = torch.cat([obs[:, None].expand(-1, 5, -1), seen], -1).flatten(0, 1), BOX.decode(seen)
    mean, variance = (part.unflatten(1, (10, 5)) for part in model(inputs.expand(3, -1, -1)))  # [3, 10, 5, 3]
    total = variance.mean(0) + (mean - mean.mean(0)).square().mean(0)
    scores = ensemble.action_scores(obs, actions)
    for name, dims in (("a", [0, 1]), ("b", [2])):
        expected = kl_to_mixture(mean.mean(0)[..., dims], total[..., dims], form=config.form)
        torch.testing.assert_close(scores[name], expected, rtol=1e-4, atol=1e-5)
    repeated = random_model(1)
    same = GaussianDynamics(4, 2, 3, repeated.config, make_generators([0] * 3))
    same.load_state_dict({name: value.expand(3, *value.shape[1:]) for name, value in repeated.state_dict().items()})
    one, three = (raw_influence(m, BOX, {"a": [0, 1]}, [1.0] * 3, config, seed=4) for m in (repeated, same))
    torch.testing.assert_close(three.score(obs)["a"], one.score(obs)["a"], rtol=1e-4, atol=1e-5)  # agreed members


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


def test_the_best_action_of_a_linear_data_is_an_extreme_one() -> None:
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
    influence = raw_influence(model, ActionLaw(count=4), {"a": [0]}, [1.0])
    action, score = influence.best_action(np.zeros((2000, 1)))
    assert np.abs(score).max() <= 1e-6
    counts = np.bincount(action, minlength=4)
    assert np.abs(counts - 500).max() < 100  # the deviation is 19
    assert not np.array_equal(action, influence.best_action(np.zeros((2000, 1)))[0])  # every call tries other actions
    first, again = (influence.best_action(np.zeros((2000, 1)), generator=generator(1))[0] for _ in range(2))
    assert np.array_equal(first, again)


def test_the_best_action_for_one_of_several_entities_needs_its_name(fitted: Influence) -> None:
    with pytest.raises(ValueError, match=r"entity=.*object, bystander"):
        fitted.best_action(OBS[:2])
    with pytest.raises(ValueError, match=r"'cube'.*object, bystander"):
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
    brief_fit(validation=gate_transitions(33, 7), progress=seen.append)
    assert seen[0].train[0].shape == (200, 5)
    assert seen[0].validation[0].shape == (33, 5)
    standardised = (gate_transitions(33, 7)[0] - OBS[:200].mean(0)) / OBS[:200].std(0, ddof=1)
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
        from butfor.spaces.actions import ActionLaw
        from butfor.models.dynamics import GaussianDynamics, ModelConfig
        from butfor.influence.scoring import ScoreConfig, score_states
        from butfor.models.networks import make_generators
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
        ({"obs": OBS[:200, 0]}, r"^obs .*\[200\]"),
        ({"next_obs": NEXT_OBS[:200, :2]}, r"next_obs .*\[200, 2\].*\[N, 3\]"),
        ({"action": ACTION[:200, 0]}, r"^action .*\[N, 1\]"),
        ({"action": ACTION[:150]}, "200, 150 and 200 rows"),
        ({"obs": OBS[:50], "action": ACTION[:50], "next_obs": NEXT_OBS[:50]}, r"\b50\b"),
        ({"obs": np.where(OBS[:200] == OBS[7, 1], np.nan, OBS[:200])}, "^obs .*row 7, column 1"),
        ({"action": np.where(ACTION[:200] == ACTION[9, 0], np.inf, ACTION[:200])}, "^action .*row 9, column 0"),
        ({"entities": {}}, "entities"),
        ({"entities": {"cube": [3]}}, "'cube'.* 3;.*0 to 2"),
        ({"action_space": Box(-np.inf, 1, (2,))}, "inf"),
        ({"action_space": Box(-1, 1, (3,))}, r"(?i)action.*\b2\b.*\b3\b|action.*\b3\b.*\b2\b"),
        ({"action_space": Box(-1, 1, (1,))}, r"(?i)action.*\b2\b.*\b1\b|action.*\b1\b.*\b2\b"),
        ({"action_space": Discrete(3)}, "(?i)action.*(discrete|integers)"),
        ({"action": DISCRETE[:200], "action_space": Box(-1, 1, (1,))}, r"(?i)action.*\[200\]"),
        ({"action": DISCRETE[:200, None], "action_space": Discrete(3)}, r"(?i)action.*\[200, 1\]"),
        ({"action": DISCRETE[:200], "action_space": Discrete(2)}, rf"(?i)action.*row {np.argmax(DISCRETE == 2)}\b"),
        ({"action": DISCRETE[:200] - 1}, rf"(?i)action.*row {np.argmax(DISCRETE == 0)}\b"),
        ({"validation": 0.0}, "validation.*0.0"),
        ({"validation": 1.0}, "validation.*1.0"),
        ({"validation": 0.9999}, "validation"),
        ({"validation": (OBS[:50, :2], ACTION[:50], NEXT_OBS[:50, :2])}, r"validation.*\[50, 2\]"),
        ({"validation": (OBS[:50], ACTION[:50, :1], NEXT_OBS[:50])}, r"validation.*\[50, 1\]"),
        ({"validation": (OBS[:50], ACTION[:50])}, "validation"),
        ({"validation": "a tenth"}, "validation"),
        ({"members": 0}, "members.*0"),
    ],
)
def test_what_cannot_be_fitted_is_refused_with_its_place(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        brief_fit(**changes)


def test_validation_data_are_named_when_they_are_broken() -> None:
    broken = gate_transitions(33, 7)
    broken[2][4, 1] = np.nan
    with pytest.raises(ValueError, match=r"validation.*next_obs .*row 4, column 1"):
        brief_fit(validation=broken)


def test_a_list_of_validation_arrays_is_as_good_as_a_tuple() -> None:
    seen: list[Fitting] = []
    brief_fit(validation=list(gate_transitions(33, 7)), progress=seen.append)
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
    assert texts[1].startswith("Column(s) [2] of entity 'bystander' change")
    assert {Path(warning.filename).name for warning in caught} == {Path(__file__).name}


@pytest.mark.filterwarnings("ignore:(Action column|Discrete action)")
def test_what_was_never_tried_counts_for_nothing_after_a_few_batches_already() -> None:
    # the statistics of the inputs start at a variance of 1; eight batches are not enough to forget that
    action = ACTION[:200].copy()
    action[:, 1] = 0.5
    influence = Influence.fit(OBS[:200], action, NEXT_OBS[:200], ENTITIES, action_space=Box(-1, 1, (2,)), **BRIEF)
    untried = np.stack([np.zeros((20, 5)), np.tile(np.linspace(-1, 1, 5), (20, 1))], -1)
    discrete = Influence.fit(OBS[:200], DISCRETE[:200], NEXT_OBS[:200], ENTITIES, action_space=Discrete(5), **BRIEF)
    for scores in (
        influence.action_scores(OBS[:20], untried),
        discrete.action_scores(OBS[:20], np.tile([3, 4], (20, 1))),
    ):
        for score in scores.values():
            np.testing.assert_allclose(score, 0, atol=1e-6)


def test_actions_outside_their_space_are_warned_of() -> None:
    # the model would be asked about the space alone: most likely the wrong space, or actions in other units
    with pytest.warns(UserWarning, match=r"(?i)action.*column.*\b0\b"):
        brief_fit(action_space=Box(np.array([-0.1, -1.0]), np.array([0.1, 1.0]), dtype=np.float64))


def test_a_change_that_is_constant_up_to_rounding_does_not_become_noise_of_size_one() -> None:
    obs, action, next_obs = gate_transitions(200, 0)
    next_obs[:, 2] = obs[:, 2] + 0.1
    transitions = tuple(map(torch.from_numpy, (obs, action, next_obs)))
    scale = target_scale(transitions, {"clock": [2]})  # type: ignore[arg-type]
    # the change is 0.1 plus rounding of 1e-17; its inverse as a scale would give targets of 1e15
    assert scale.item() * 0.1 < 1e6


def test_a_steady_drift_does_not_hide_the_influence() -> None:
    # the object also moves by 10 in every step, 80 deviations: the action's part is the same, and so the score must be
    next_obs = NEXT_OBS.copy()
    next_obs[:, 1] += 10
    drifting = Influence.fit(OBS, ACTION, next_obs, {"object": [1]}, action_space=Box(-1, 1, (2,)), **QUICK)
    obs = gate_transitions(300, 5)[0]
    obs = obs[np.abs(obs[:, 0]) > 0.1]
    score, is_open = drifting.score(obs)["object"], obs[:, 0] > 0
    assert roc_auc_score(is_open, score) > 0.95
    assert np.median(score[is_open]) > 1


# --- the class: wrong states and actions -----------------------------------------------------------


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        (OBS[0], r"obs .*\[3\].*\[N, 3\]"),
        (OBS[:4, :2], r"obs .*\[4, 2\].*\[N, 3\]"),
        (OBS[None, :4], r"obs .*\[1, 4, 3\].*\[N, 3\]"),
        (np.array([[0, 0, 0], [0, np.nan, 0]]), "obs .*row 1, column 1"),
        (np.array([[0, 0, 0], [0, 0, -np.inf]]), "obs .*row 1, column 2"),
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
        (np.zeros((5, 2)), r"actions .*\[5, 2\].*\[5, M, 2\]"),
        (np.zeros((4, 3, 2)), r"actions .*\[4, 3, 2\].* \[5, M, 2\]"),
        (np.zeros((5, 3, 1)), r"actions .*\[5, 3, 1\].* \[5, M, 2\]"),
        (np.full((5, 3, 2), np.nan), "actions .*row 0"),
        (np.zeros((5, 0, 2)), r"actions .*\[5, 0, 2\]"),
    ],
)
def test_wrong_actions_are_refused_with_the_place(actions: Array, message: str, fitted: Influence) -> None:
    with pytest.raises(ValueError, match=message):
        fitted.action_scores(OBS[:5], actions)


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.zeros((2, 3, 3)), r"actions .*\[2, 3, 3\].* \[2, M\]"),
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
    for field in ("law", "entities", "units", "scoring", "seed"):
        assert getattr(influence, field) == getattr(loaded, field), field
    assert influence.model.config == loaded.model.config


def test_one_replica_can_be_loaded_alone(tmp_path: Path) -> None:
    path, obs = tmp_path / "model.safetensors", normal(10, 4)
    raw_influence(random_model(3), BOX, {"a": [0, 1], "b": [2]}, [1.0] * 3, ScoreConfig(actions=16), seed=4).save(path)
    everything = load_file(path)
    parts = [Influence.load(path, replica=replica) for replica in range(3)]
    for replica, part in enumerate(parts):
        assert part.model.replicas == 1
        for name, value in part.model.state_dict().items():
            assert torch.equal(value[0], everything[name][replica]), name
    scores = torch.stack([part.score(obs)["a"] for part in parts])
    assert (scores[1:] != scores[0]).all()
    assert (Influence.load(path).score(obs)["a"] != scores).any()  # all together are another model again
    for wrong in (3, -1):
        with pytest.raises(ValueError, match=rf"model\.safetensors .*replica {wrong}\b"):
            Influence.load(path, replica=wrong)


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
    assert header["format"] == 3


def resave(path: Path, header: Any, tensors: dict[str, Tensor] | None = None) -> None:
    kept = load_file(path) if tensors is None else tensors
    save_file(kept, path, metadata={"butfor": header if isinstance(header, str) else json.dumps(header)})


def header_of(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        header: dict[str, Any] = json.loads(file.metadata()["butfor"])
    del header["digest"]  # a made-up header does not need one: it is then read like a file from before digests
    return header


def test_a_truncated_file_is_refused(saved: Path) -> None:
    whole = saved.read_bytes()
    for length in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        saved.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"model\.safetensors"):
            Influence.load(saved)


def test_a_foreign_safetensors_file_is_refused(saved: Path) -> None:
    save_file({"weight": torch.zeros(3)}, saved)
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        Influence.load(saved)


def test_another_kind_of_file_is_refused(saved: Path) -> None:
    resave(saved, header_of(saved) | {"kind": "agent"})
    with pytest.raises(ValueError, match=r"model\.safetensors .*'agent'.*'influence'"):
        Influence.load(saved)


def test_a_newer_format_is_refused_with_both_versions(saved: Path) -> None:
    resave(saved, header_of(saved) | {"format": 9})
    with pytest.raises(ValueError, match=r"format 9.* 8\b"):
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
        with pytest.raises(ValueError, match=r"model\.safetensors"):
            Influence.load(saved)
    torch.save({"model": Trap(sprung)}, saved)
    with pytest.raises(ValueError, match=r"model\.safetensors"):
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


@pytest.mark.parametrize(
    "change",
    [
        {"entities": {"object": [99]}},
        {"entities": {"object": [-1]}},
        {"entities": {"object": [1, 1]}},
        {"entities": {"object": [1.5]}},
        {"entities": {}},
        {"entities": 3},
        {"law": {"low": [1.0], "high": [-1.0], "count": 0}},
        {"law": {"low": [math.nan], "high": [1.0], "count": 0}},
        {"law": {"low": [-math.inf], "high": [1.0], "count": 0}},
        {"law": {"low": [-1.0], "high": [1.0, 1.0], "count": 0}},
        {"law": {"low": [], "high": [], "count": 0}},
        {"law": {"low": [], "high": [], "count": -3}},
        {"law": {"low": [], "high": [], "count": 2.5}},
        {"scale": [0.0, 1.0]},
        {"scale": [math.nan, 1.0]},
        {"scale": []},
        {"obs_center": []},
        {"obs_center": [math.inf] * 3},
        {"obs_spread": [0.0] * 3},
        {"obs_spread": ["1"] * 3},
        {"obs_size": 10**12},
        {"obs_size": "3"},
        {"seed": "0"},
        {"seed": 2**80},
        {"scoring": {"actions": 0}},
        {"scoring": {"actions": "many"}},
        {"model": {"layers": 100_000}},
        {"model": {"layers": 2, "width": 10**9}},
        {"model": {"width": math.nan}},
        {"model": {"depth": 3}},
        {"model": []},
        {"format": True},
        {"format": [3]},
        {"partners": {"object": [{"entity": [1], "partner": [77]}]}},
        {"partners": 5},
    ],
    ids=str,
)
def test_a_header_with_a_wrong_value_is_refused_before_memory_is_taken(saved: Path, change: dict[str, Any]) -> None:
    """The file has no digest, as if somebody had made it."""
    resave(saved, header_of(saved) | change)
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        Influence.load(saved)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.safetensors"):
        Influence.load(tmp_path / "nothing.safetensors")


# --- the class: decisions ---------------------------------------------------------------------------


def clear_states(rows: int, seed: int) -> tuple[Array, NDArray[np.bool_]]:
    """States away from the gate's edge, and whether the gate is open."""
    obs = gate_transitions(rows, seed)[0]
    obs = obs[np.abs(obs[:, 0]) > 0.1]
    return obs, obs[:, 0] > 0


@pytest.fixture
def uncalibrated(fitted: Influence) -> Influence:
    """The fitted influence, to be calibrated by one test alone."""
    return Influence(fitted.model, fitted.units)


def test_free_states_make_decisions_with_few_false_discoveries(uncalibrated: Influence) -> None:
    free = gate_transitions(2000, 8)[0]
    free = free[free[:, 0] < -0.1]
    obs, is_open = clear_states(1000, 9)
    influence = uncalibrated.calibrate(free_obs=free)
    assert influence is uncalibrated
    chosen = influence.decide(obs, 0.1)
    assert chosen.keys() == ENTITIES.keys()
    assert chosen["object"].dtype == np.bool_
    assert chosen["object"][is_open].mean() > 0.95
    assert chosen["object"][~is_open].sum() / chosen["object"].sum() < 0.15
    free_scores, scores = influence.score(free)["object"], influence.score(obs)["object"]
    at_least = (free_scores[:, None] >= scores).sum(0)
    np.testing.assert_allclose(influence.p_values(obs)["object"], (1 + at_least) / (len(free) + 1))


def test_transitions_make_decisions_with_few_false_discoveries(uncalibrated: Influence) -> None:
    obs, action, next_obs = gate_transitions(2000, 8)
    states, is_open = clear_states(1000, 9)
    influence = uncalibrated.calibrate(transitions=(obs, action, next_obs))
    p_values = influence.calibration["object"].p_values
    assert p_values is not None
    assert p_values[obs[:, 0] > 0.1].mean() < 0.2
    free = p_values[obs[:, 0] < 0]
    assert free.mean() == pytest.approx(0.505, abs=4 * math.sqrt(1 / 12 / len(free)))  # uniform on 1/100, ..., 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        chosen = influence.decide(states, 0.1)
    assert chosen["object"][is_open].mean() > 0.8
    assert chosen["object"][~is_open].sum() / chosen["object"].sum() < 0.15
    # the bystander is never influenced, and a warning at the user's line says that nothing is called so
    assert not chosen["bystander"].any()
    assert [Path(warning.filename).name for warning in caught] == [Path(__file__).name]
    assert "influence on bystander" in str(caught[0].message)
    with pytest.raises(ValueError, match="free_obs"):
        influence.p_values(states)


def test_discrete_transitions_calibrate_too(discrete: Influence) -> None:
    obs, _, next_obs = gate_transitions(2000, 8)
    action = np.random.default_rng(3).integers(0, 3, 2000)
    next_obs[:, 1] = (
        obs[:, 1] + 0.3 * (obs[:, 0] > 0) * (action - 1) + 0.02 * np.random.default_rng(4).normal(size=2000)
    )
    states, is_open = clear_states(1000, 9)
    chosen = discrete.calibrate(transitions=(obs, action, next_obs)).decide(states, 0.1)["object"]
    # of three actions the taken one is the likeliest: with equals in random order p is uniform below 1/3
    p_values = discrete.calibration["object"].p_values
    assert p_values is not None
    assert p_values[obs[:, 0] > 0.1].mean() == pytest.approx(1 / 6, abs=0.03)
    assert chosen[is_open].mean() > 0.8
    assert chosen[~is_open].sum() / chosen.sum() < 0.15


def test_decisions_are_of_the_kind_of_the_states(uncalibrated: Influence) -> None:
    uncalibrated.calibrate(free_obs=torch.from_numpy(OBS[OBS[:, 0] < 0]))
    obs = OBS[:30]
    for method in (uncalibrated.decide, uncalibrated.p_values):
        from_numpy, from_torch = method(obs)["object"], method(torch.from_numpy(obs))["object"]
        assert isinstance(from_numpy, np.ndarray)
        assert isinstance(from_torch, Tensor)
        assert np.array_equal(from_numpy, from_torch.numpy())


def test_what_cannot_be_calibrated_or_decided_is_refused(uncalibrated: Influence) -> None:
    transitions = gate_transitions(50, 8)
    for method in (uncalibrated.decide, uncalibrated.p_values):
        with pytest.raises(ValueError, match=r"free_obs=.*transitions="):
            method(OBS[:5])
    for given in ({}, {"free_obs": OBS[:5], "transitions": transitions}):
        with pytest.raises(ValueError, match=r"free_obs.*transitions"):
            uncalibrated.calibrate(**given)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no states"):
        uncalibrated.calibrate(free_obs=OBS[:0])
    with pytest.raises(ValueError, match=r"obs .*\[5, 2\].*\[N, 3\]"):
        uncalibrated.calibrate(free_obs=OBS[:5, :2])
    with pytest.raises(ValueError, match=r"transitions .*\[50, 1\]"):
        uncalibrated.calibrate(transitions=(transitions[0], transitions[1][:, :1], transitions[2]))
    with pytest.raises(ValueError, match=r"redraws.* 0"):
        uncalibrated.calibrate(transitions=transitions, redraws=0)
    assert not uncalibrated.calibration
    uncalibrated.calibrate(free_obs=OBS[:10])
    with pytest.raises(ValueError, match=r"\b10 .*\b19\b"):
        uncalibrated.decide(OBS[:5])
    with pytest.raises(ValueError, match=r"1\.5"):
        uncalibrated.decide(OBS[:5], 1.5)


@pytest.mark.parametrize("kind", ["free", "groups", "transitions"])
def test_a_saved_influence_decides_as_before(kind: str, tmp_path: Path) -> None:
    influence, path = brief_fit(members=2, action_space=Box(-1, 1, (2,))), tmp_path / "model.safetensors"
    if kind == "free":
        influence.calibrate(free_obs=OBS[200:400])
    elif kind == "groups":  # two entities, and names that are no numbers
        influence = brief_fit(entities={"a": [0], "b": [1, 2]}, members=2)
        influence.calibrate(free_obs=OBS[200:400], groups=np.repeat(["first", "second", "third", "fourth"], 50))
    else:
        influence.calibrate(transitions=gate_transitions(200, 8), groups=np.arange(200) // 20, redraws=9)
    influence.save(path)
    loaded = Influence.load(path)
    for name, before in influence.calibration.items():
        np.testing.assert_array_equal(loaded.calibration[name].scores, before.scores)
        np.testing.assert_array_equal(loaded.calibration[name].p_values, before.p_values)
        np.testing.assert_array_equal(loaded.calibration[name].groups, before.groups)
        assert np.array_equal(loaded.decide(OBS[:50], 0.9)[name], influence.decide(OBS[:50], 0.9)[name])
    assert not Influence.load(path, replica=1).calibration  # its scores are not those of all members


def test_a_calibration_for_other_entities_is_refused(saved: Path) -> None:
    tensors = load_file(saved) | {"calibration.scores.cube": torch.zeros(3)}
    resave(saved, header_of(saved), tensors)
    with pytest.raises(ValueError, match=r"model\.safetensors .*calibration"):
        Influence.load(saved)


def test_the_spread_is_the_deviation_of_the_members_scores(tmp_path: Path) -> None:
    path, obs = tmp_path / "model.safetensors", normal(10, 4)
    influence = raw_influence(random_model(3), BOX, {"a": [0, 1], "b": [2]}, [1.0] * 3, ScoreConfig(actions=16), seed=4)
    influence.save(path)
    parts = [Influence.load(path, replica=replica).score(obs) for replica in range(3)]
    for name, spread in influence.spread(obs).items():
        scores = torch.stack([part[name] for part in parts])
        torch.testing.assert_close(spread, scores.std(0), rtol=1e-3, atol=1e-5)
        assert spread.max() > 0.01
    with pytest.raises(ValueError, match="members"):
        Influence.load(path, replica=0).spread(obs)


# --- densities ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 4, 100])
def test_the_density_is_the_members_mean_in_any_chunks(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(butfor.influence.scoring, "chunk_states", lambda *_: size)
    model, obs, target = random_model(3), normal(10, 4), normal(10, 3, seed=1)
    actions = BOX.draw(10, 5, [generator(2)])
    found = log_density(model, obs.expand(3, -1, -1), actions, target, [2, 0])
    assert found.shape == (10, 5)
    for state in range(10):
        mean, variance = model(torch.cat([obs[state].expand(5, -1), actions[0, state]], 1).expand(3, -1, -1))
        density = torch.distributions.Normal(mean[..., [2, 0]], variance[..., [2, 0]].sqrt())
        expected = density.log_prob(target[state, [2, 0]]).sum(-1).exp().mean(0).log()
        torch.testing.assert_close(found[state], expected, rtol=1e-4, atol=1e-4)


def test_the_moments_are_those_of_the_members_mixture() -> None:
    model, obs, action = random_model(3), normal(10, 4), BOX.draw(10, 1, [generator(2)])[0, :, 0]
    mean, variance = predict_moments(model, obs.expand(3, -1, -1), action)
    means, variances = model(torch.cat([obs, action], 1).expand(3, -1, -1))
    torch.testing.assert_close(mean, means.mean(0), rtol=1e-4, atol=1e-5)
    second = (variances + means.square()).mean(0)  # E[x^2] of the mixture
    torch.testing.assert_close(variance, second - means.mean(0).square(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("law", [BOX, ActionLaw(count=3)])
def test_the_taken_action_hides_at_any_place_among_fresh_ones(law: ActionLaw) -> None:
    taken = torch.full((3000, law.size), 0.123)
    actions, is_taken = hide_among_redrawn(law, taken, 4, generator())
    assert actions.shape == (3000, 5, law.size)
    assert torch.equal(is_taken.sum(1), torch.ones(3000, dtype=torch.long))
    assert torch.equal((actions == 0.123).all(2), is_taken)
    places = is_taken.float().mean(0)
    assert (places - 0.2).abs().max() < 5 * math.sqrt(0.2 * 0.8 / 3000)
    fresh = actions[~is_taken]
    if law.count:
        assert torch.equal(fresh.sum(1), torch.ones(len(fresh)))
        assert (fresh.mean(0) - 1 / 3).abs().max() < 5 * math.sqrt(2 / 9 / len(fresh))
    else:
        assert (fresh.amin(0) + 1).abs().max() < 0.01
        assert (fresh.amax(0) - 1).abs().max() < 0.01


# --- the class: diagnosis -------------------------------------------------------------------------


def test_a_fitted_model_is_diagnosed_for_each_entity(fitted: Influence) -> None:
    obs, action, next_obs = gate_transitions(2000, 8)
    found = fitted.diagnose(obs, action, next_obs)
    assert found.keys() == ENTITIES.keys()
    item = found["object"]
    assert item.transitions == 2000
    assert item.nll < min(item.nll_constant, item.nll_still) - 0.5
    assert item.coverage == [1.0, 1.0]
    assert item.r_squared > 0.8
    assert item.gain_by_score["rank"][-1] > 0.8
    assert item.gain_by_score["gain"][-1] > 0.5
    # no action moves the bystander
    bystander = found["bystander"]
    assert bystander.rank == pytest.approx(0.5, abs=4 * bystander.rank_error)
    assert not bystander.trusted
    assert any("does not help to predict" in words for words in bystander.words())


def test_scores_by_extreme_actions_are_judged_by_what_uniform_ones_promise(fitted: Influence) -> None:
    """What is redrawn is uniform: a score by extreme actions is another, and no sign of a model too sure of itself."""
    held_out = gate_transitions(2000, 8)
    extreme = Influence(fitted.model, fitted.units, dataclasses.replace(fitted.scoring, extreme=0.75), fitted.seed)
    means = [np.mean(one.score(held_out[0])["object"]) for one in (fitted, extreme)]
    assert abs(means[1] - means[0]) > 0.05
    uniform, other = (one.diagnose(*held_out)["object"] for one in (fitted, extreme))
    assert other.gain_by_score == uniform.gain_by_score
    assert other.words() == [*uniform.words(), "The data contain extreme actions, which the scores use."]


def test_discrete_actions_are_diagnosed_too(discrete: Influence) -> None:
    obs, _, next_obs = gate_transitions(600, 8)
    action = np.random.default_rng(3).integers(0, 3, 600)
    assert discrete.diagnose(obs, action, next_obs)["object"].coverage == [1.0]
    rare = discrete.diagnose(obs, np.zeros(600, dtype=int), next_obs)["object"]
    assert rare.coverage == [pytest.approx(1 / 3)]


def test_transitions_of_one_episode_are_not_independent(fitted: Influence) -> None:
    """Each twice: with their groups the errors are as before, without them smaller by the root of two."""
    held_out = gate_transitions(1000, 8)
    obs, action, next_obs = (np.repeat(part, 2, axis=0) for part in held_out)
    alone = fitted.diagnose(*held_out)["object"]
    grouped = fitted.diagnose(obs, action, next_obs, groups=np.repeat(np.arange(1000), 2))["object"]
    ignored = fitted.diagnose(obs, action, next_obs)["object"]
    assert grouped.gain_error == pytest.approx(alone.gain_error, rel=0.2)
    assert ignored.gain_error == pytest.approx(alone.gain_error / math.sqrt(2), rel=0.2)
    with pytest.raises(ValueError, match=r"groups.*\[3\].*1000"):
        fitted.diagnose(*held_out, groups=np.arange(3))


def test_what_cannot_be_diagnosed_is_refused(fitted: Influence) -> None:
    obs, action, next_obs = gate_transitions(50, 8)
    with pytest.raises(ValueError, match="50, 49 and 50"):
        fitted.diagnose(obs, action[:-1], next_obs)
    with pytest.raises(ValueError, match=r"\b5 "):
        fitted.diagnose(obs[:5], action[:5], next_obs[:5])


def test_the_public_names_are_those_of_the_package() -> None:
    assert butfor.Influence is Influence
    assert butfor.ScoreConfig is ScoreConfig
    assert dataclasses.is_dataclass(butfor.ModelConfig)


def test_a_discrete_policy_that_sees_the_state_is_not_taken_for_chance() -> None:
    random = np.random.default_rng(0)
    obs = random.uniform(-1, 1, (2000, 2))
    zone = ((obs[:, 0] + 1) * 2).astype(int)
    next_obs = obs + 0.1 * np.sin(7 * zone)[:, None] * [[0, 1]] + 0.01 * random.normal(size=obs.shape)
    chosen, drawn = np.where(random.random(2000) < 0.1, random.integers(0, 4, 2000), zone), random.integers(0, 4, 2000)
    fitting = FitConfig(batch_size=250, learning_rate=1e-3, max_epochs=2, validate_every=2)
    for action, expected in ((chosen, True), (drawn, False)):
        influence = Influence.fit(obs, action, next_obs, {"thing": [1]}, action_space=Discrete(4), fitting=fitting)
        words = " ".join(influence.diagnose(obs, action, next_obs)["thing"].words())
        assert ("the actions do not look random (they depend on the state" in words) == expected
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            influence.calibrate(transitions=(obs, action, next_obs))
        assert any("do not look random" in str(one.message) for one in told) == expected


def test_a_policy_that_sees_the_state_is_not_taken_for_chance() -> None:
    """The entity follows the state alone, and so do the actions: without a doubt the model would be trusted."""
    random = np.random.default_rng(0)
    obs = random.normal(size=(3000, 2))
    action = np.clip(np.tanh(2 * obs[:, :1]) + 0.1 * random.normal(size=(3000, 1)), -1, 1)
    next_obs = obs + 0.1 * np.tanh(2 * obs[:, :1]) * [[0, 1]] + 0.01 * random.normal(size=obs.shape)
    influence = Influence.fit(
        obs, action, next_obs, {"thing": [1]}, action_space=Box(-1, 1, (1,)),
        fitting=FitConfig(batch_size=250, learning_rate=1e-3, max_epochs=5, validate_every=5),
        model=ModelConfig(layers=1, width=16),
    )  # fmt: skip
    found = influence.diagnose(obs, action, next_obs)["thing"]
    assert not found.trusted
    assert any("do not look random" in sentence for sentence in found.words())
    with pytest.warns(UserWarning, match="do not look random"):
        influence.calibrate(transitions=(obs, action, next_obs), redraws=9)
    drawn = np.arange(3000) < 1000
    action[drawn] = random.uniform(-1, 1, (1000, 1))
    words = influence.diagnose(obs, action, next_obs, sampled=drawn)["thing"].words()
    assert not any("do not look random" in sentence for sentence in words)
    with pytest.raises(ValueError, match=r"sampled.* 0 of 3000"):
        influence.diagnose(obs, action, next_obs, sampled=np.zeros(3000, dtype=bool))
