"""A prior of a user: the network learns the rest, scores see the sum, and a file does not hold the function."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from numpy.typing import NDArray
from support.linear_models import linear_score

from butfor.influence.contact import ContactConfig
from butfor.influence.influence import Influence
from butfor.models.dynamics import ModelConfig
from butfor.models.fitting import FitConfig
from butfor.models.prior import fit_units
from butfor.models.tables import Units
from butfor.spaces.actions import ActionLaw

Array = NDArray[Any]
GAIN, NOISE, OFFSET = 0.5, 0.1, 2.0
QUICK: dict[str, Any] = {
    "model": ModelConfig(layers=1, width=8),
    "fitting": FitConfig(batch_size=100, learning_rate=1e-2, max_epochs=20, validate_every=2),
    "action_space": Box(-1, 1, (1,)),
    "progress": False,
}


def curve(obs: Array, action: Array) -> Array:
    """Known dynamics that a network of 8 units cannot learn: the action acts through a fast oscillation."""
    after = obs.copy()
    after[:, 0] += GAIN * np.sin(40 * action[:, 0])
    return after


def linear(obs: Array, action: Array) -> Array:
    after = obs.copy()
    after[:, 0] += GAIN * action[:, 0]
    return after


def transitions(known: Any, rows: int = 2000) -> tuple[Array, Array, Array]:
    """The known dynamics, a constant that they do not know, and noise; the second column is a bystander."""
    random = np.random.default_rng(0)
    obs, action = random.uniform(-1, 1, (rows, 2)), random.uniform(-1, 1, (rows, 1))
    next_obs = known(obs, action) + NOISE * random.normal(size=obs.shape)
    next_obs[:, 0] += OFFSET
    return obs, action, next_obs


@pytest.fixture(scope="module")
def fitted() -> Influence:
    return Influence.fit(*transitions(curve), {"thing": [0], "other": [1]}, prior=curve, **QUICK)


def test_scores_are_those_of_the_sum() -> None:
    """An exact prior leaves noise alone, so the score is that of a linear model with this gain and noise."""
    influence = Influence.fit(*transitions(linear), {"thing": [0], "other": [1]}, prior=linear, **QUICK)
    obs = np.random.default_rng(1).uniform(-1, 1, (200, 2))
    score = influence.score(obs)
    expected = linear_score(GAIN / NOISE, states=200).mean().item()
    assert score["thing"].mean() == pytest.approx(expected, rel=0.1)
    assert score["other"].mean() < 0.05 * expected


@pytest.fixture(scope="module")
def exact() -> Influence:
    """The prior is all that happens, in single precision; the last column does not move, and the prior knows that."""
    return Influence.fit(*exact_transitions(), {"thing": [0], "still": [2]}, prior=linear, **QUICK)


def exact_transitions(rows: int = 2000) -> tuple[Array, Array, Array]:
    random = np.random.default_rng(0)
    obs = random.uniform(-1, 1, (rows, 3)).astype(np.float32)
    action = random.uniform(-1, 1, (rows, 1)).astype(np.float32)
    return obs, action, linear(obs, action)


@pytest.mark.filterwarnings("ignore:.*change by the same amount")
def test_an_exact_prior_has_the_score_of_almost_no_noise(exact: Influence) -> None:
    """The score of a linear model grows with gain / noise up to about log K; a network without prior falls short."""
    obs = exact_transitions(200)[0]
    score = exact.score(obs)
    limit = linear_score(1e6, states=200).mean().item()
    assert score["thing"].mean() == pytest.approx(limit, rel=0.02)
    assert score["still"].mean() < 0.02 * limit
    alone = Influence.fit(*exact_transitions(), {"thing": [0], "still": [2]}, **QUICK)
    assert score["thing"].mean() > alone.score(obs)["thing"].mean()
    assert exact.units.scale[1] == alone.units.scale[1] == 1


@pytest.mark.filterwarnings("ignore:.*change by the same amount")
def test_less_noise_around_a_prior_never_lowers_the_score(exact: Influence) -> None:
    obs, action, next_obs = exact_transitions()
    noise = np.random.default_rng(2).normal(size=len(obs))
    scores = []
    for size in (1e-1, 1e-3, 1e-5, 1e-7):
        noisy = next_obs.astype(np.float64)
        noisy[:, 0] += size * noise
        influence = Influence.fit(obs, action, noisy, {"thing": [0]}, prior=linear, **QUICK)
        scores.append(influence.score(obs[:200])["thing"].mean())
    scores.append(exact.score(obs[:200])["thing"].mean())
    assert all(later > 0.99 * earlier for earlier, later in pairwise(scores)), scores


def test_columns_that_a_prior_returns_as_they_are_keep_their_units() -> None:
    obs, action, next_obs = transitions(linear)
    given: Any = tuple(map(torch.from_numpy, (obs, action, next_obs)))
    entities, law = {"thing": [0], "other": [1]}, ActionLaw((-1.0,), (1.0,))
    units = Units.measure(given, entities, law)
    found = fit_units(lambda obs, action: obs, given, units, None)
    np.testing.assert_allclose(found.scale, units.scale)
    fixed = fit_units(linear, given, Units.measure(given, entities, law, 50.0), 50.0)
    assert list(fixed.scale) == [50.0, 50.0]


def test_the_network_learns_what_is_missing(fitted: Influence) -> None:
    """The constant of the world is added to the prior; without one, the oscillation is not learned."""
    obs, action, _ = transitions(curve, 50)
    mean, deviation = (part[:, 0, 0] for part in fitted.predict(obs, action[:, None])["thing"])
    np.testing.assert_allclose(mean, curve(obs, action)[:, 0] + OFFSET, atol=0.05)
    np.testing.assert_allclose(deviation, NOISE, rtol=0.25)
    alone = Influence.fit(*transitions(curve), {"thing": [0], "other": [1]}, **QUICK)
    assert fitted.score(obs)["thing"].mean() > 5 * alone.score(obs)["thing"].mean()


def test_diagnosis_sees_the_sum(fitted: Influence) -> None:
    found = fitted.diagnose(*transitions(curve, 1000))["thing"]
    variance = GAIN**2 / 2
    assert found.r_squared == pytest.approx(variance / (variance + NOISE**2), abs=0.05)


def test_a_file_needs_the_same_prior_again(fitted: Influence, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    fitted.save(path)
    obs = transitions(curve, 20)[0]
    again = Influence.load(path, prior=curve)
    np.testing.assert_array_equal(again.score(obs)["thing"], fitted.score(obs)["thing"])
    with pytest.raises(ValueError, match="prior="):
        Influence.load(path)
    with pytest.raises(ValueError, match=re.escape(str(path))):
        Influence.load(path, prior=linear)
    assert "prior" in repr(again)


def test_a_file_of_an_exact_prior_is_loaded_although_the_prior_rounds_otherwise(
    exact: Influence, tmp_path: Path
) -> None:
    """On another machine the function may differ by the last digit of single precision, but not by more."""
    path = tmp_path / "model.safetensors"
    exact.save(path)
    obs = exact_transitions(20)[0]
    again = Influence.load(path, prior=linear)
    np.testing.assert_array_equal(again.score(obs)["thing"], exact.score(obs)["thing"])
    center = abs(exact.units.obs_center[0])
    Influence.load(path, prior=lambda obs, action: linear(obs, action) + center * np.finfo(np.float32).eps)
    with pytest.raises(ValueError, match="prior"):
        Influence.load(path, prior=lambda obs, action: linear(obs, action) + 1e-4)


def test_a_model_without_prior_refuses_one(tmp_path: Path) -> None:
    short = QUICK | {"fitting": FitConfig(batch_size=50, max_epochs=1)}
    influence = Influence.fit(*transitions(linear, 200), {"thing": [0]}, **short)
    influence.save(tmp_path / "plain.safetensors")
    assert influence.prior is None
    with pytest.raises(ValueError, match="prior"):
        Influence.load(tmp_path / "plain.safetensors", prior=linear)


@pytest.mark.parametrize(
    ("prior", "named"),
    [
        (lambda obs, action: obs[:, :1], "[200, 1]"),
        (lambda obs, action: obs[:-1], "199"),
        (lambda obs, action: obs * np.nan, "row 0"),
        (lambda obs, action: None, "object"),
        ("kinematics", "'kinematics'; expected a function"),
    ],
)
def test_a_wrong_answer_is_named(prior: Any, named: str) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(named)):
        Influence.fit(*transitions(linear, 200), {"thing": [0]}, prior=prior, **QUICK)


@pytest.mark.parametrize("other", [{"model": ContactConfig()}, {"model": None, "agent": [1]}])
def test_only_a_gaussian_network_adds_to_a_prior(other: Any) -> None:
    with pytest.raises(ValueError, match="prior="):
        Influence.fit(*transitions(linear, 200), {"thing": [0]}, prior=linear, **QUICK | other)


def test_discrete_actions_reach_the_function_as_integers() -> None:
    random = np.random.default_rng(0)
    obs = random.uniform(-1, 1, (300, 1))
    action = random.integers(0, 3, 300)

    def step(obs: Array, action: Array) -> Array:
        assert action.dtype.kind == "i"
        return np.asarray(obs + (action[:, None] == 2) * 0.25)

    short = QUICK | {"action_space": None, "fitting": FitConfig(batch_size=50, max_epochs=2)}
    next_obs = step(obs, action) + 0.001 * random.normal(size=obs.shape)
    influence = Influence.fit(obs, action, next_obs, {"thing": [0]}, prior=step, **short)
    mean, _ = influence.predict(obs[:4], np.tile([0, 1, 2], (4, 1)))["thing"]
    np.testing.assert_allclose(mean[..., 0] - obs[:4], [[0, 0, 0.25]] * 4, atol=0.01)
