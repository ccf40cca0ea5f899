"""The model of outcomes: its probabilities against closed forms, when it is chosen, and fits of a small grid world."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from butfor.influence import outcomes
from butfor.influence.contact import ContactConfig
from butfor.influence.influence import Influence
from butfor.influence.outcomes import (
    NARROW,
    EntityPrediction,
    OutcomeConfig,
    OutcomeDynamics,
    few_values,
    find_outcomes,
)
from butfor.models.dynamics import GaussianDynamics, ModelConfig
from butfor.models.fitting import FitConfig

# --- the probabilities of one entity ----------------------------------------------------------------


def prediction(*shape: int, seed: int = 0) -> EntityPrediction:
    """Random probabilities [R, n, K, M] of M outcomes on a plane."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(shape, generator=generator, dtype=torch.float64)
    values = torch.randn((shape[-1], 2), generator=generator, dtype=torch.float64)
    return EntityPrediction(logits.log_softmax(-1), values)


def mixture(found: EntityPrediction) -> MixtureSameFamily:
    """The same as a distribution of torch: [R, n, K], events [2]."""
    mean = found.values.expand(*found.log_probability.shape, 2)
    return MixtureSameFamily(
        Categorical(logits=found.log_probability), Independent(Normal(mean, torch.full_like(mean, NARROW**0.5)), 1)
    )


def entropy(probability: Tensor) -> Tensor:
    return -(probability * probability.clamp_min(1e-300).log()).sum(-1)


def test_the_mean_divergence_is_the_information_about_the_action() -> None:
    found = prediction(2, 5, 7, 4)
    probability = found.log_probability.exp()
    expected = entropy(probability.mean(2)) - entropy(probability).mean(2)
    torch.testing.assert_close(found.divergence(separate=False).mean(2), expected)


def test_divergence_is_zero_if_the_action_changes_nothing_and_log_k_if_each_has_an_outcome_of_its_own() -> None:
    same = prediction(1, 3, 1, 4).log_probability.expand(1, 3, 6, 4)
    values = torch.zeros(6, 1, dtype=torch.float64)
    assert EntityPrediction(same, values[:4]).divergence(separate=False).max() < 1e-12
    own = torch.eye(6, dtype=torch.float64).log()[None, None]  # with logarithms of 0
    torch.testing.assert_close(
        EntityPrediction(own, values).divergence(separate=False), torch.full((1, 1, 6), math.log(6)).double()
    )


def test_with_a_separate_mixture_the_second_half_of_the_actions_is_compared_with() -> None:
    found = prediction(1, 3, 8, 4)
    given, other = found.log_probability.exp().chunk(2, 2)
    expected = (given * (given / other.mean(2, keepdim=True)).log()).sum(-1)
    torch.testing.assert_close(found.divergence(separate=True), expected)


def test_density_and_moments_are_those_of_the_mixture() -> None:
    found = prediction(2, 3, 5, 4)
    target = found.values[[0, 2, 3]] + 0.005
    expected = mixture(found).log_prob(target[None, :, None].expand(2, 3, 5, 2))
    torch.testing.assert_close(found.log_density(target[:, None]), expected)
    mean, variance = found.moments()
    torch.testing.assert_close(mean, mixture(found).mean)
    torch.testing.assert_close(variance, mixture(found).variance)


def test_outcomes_are_drawn_with_their_probabilities() -> None:
    found = prediction(2, 1, 3, 4)
    states = 20_000
    many = EntityPrediction(found.log_probability.expand(2, states, 3, 4), found.values)
    chosen = torch.zeros(states, 3, dtype=torch.bool)
    chosen[:, 1] = True
    drawn = many.sample(chosen, torch.Generator().manual_seed(0))
    assert drawn.shape == (2, states, 2)
    which = torch.cdist(drawn, found.values.expand(2, 4, 2)).argmin(-1)
    share = torch.nn.functional.one_hot(which, 4).double().mean(1)
    expected = found.log_probability[:, 0, 1].exp()
    assert (share - expected).abs().max() < 5 * (0.25 / states) ** 0.5


def test_members_are_merged_into_their_mean_probability() -> None:
    found = prediction(6, 2, 3, 4)
    expected = found.log_probability.exp().unflatten(0, (2, 3)).mean(1)
    torch.testing.assert_close(found.merge(3).log_probability.exp(), expected)


# --- when changes are few ---------------------------------------------------------------------------


def test_changes_on_a_grid_are_few_also_if_they_are_rounded() -> None:
    random = np.random.default_rng(0)
    place = (0.1 * random.integers(0, 50, 2000)).astype(np.float32)
    change = 0.1 * random.integers(-1, 2, 2000).astype(np.float32)
    rounded = torch.from_numpy(((place + change).astype(np.float64) - place) / 0.08)[:, None]  # by about 1e-7
    found = few_values(rounded.float())
    assert found is not None
    torch.testing.assert_close(found[:, 0], torch.tensor([-1.25, 0.0, 1.25]))


@pytest.mark.parametrize("moves", [0, 3, 20, 1000])
def test_changes_that_vary_are_not_few_however_rare_they_are(moves: int) -> None:
    change = torch.zeros(1000, 2)
    change[:moves] = torch.randn(moves, 2, generator=torch.Generator().manual_seed(0))
    assert few_values(change) is None


def test_every_entity_must_change_in_few_ways() -> None:
    grid = torch.randint(-1, 2, (1000, 1)).float()
    noisy = torch.randn(1000, 1)
    assert find_outcomes(torch.cat([grid, noisy], 1), [[0], [1]]) is None
    assert find_outcomes(torch.cat([grid, noisy], 1), [[0, 1]]) is None
    found = find_outcomes(torch.cat([grid, noisy], 1), [[0]])
    assert found is not None
    assert [len(values) for values in found] == [3]


# --- fits of a small grid world ---------------------------------------------------------------------

SIZE = 7
WAYS = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])
QUICK = OutcomeConfig(width=64, updates=800, learning_rate=3e-3, weight_decay=0.1)
Table = NDArray[np.float64]


def shove(rows: int, seed: int) -> tuple[Table, NDArray[np.int64], Table, NDArray[np.bool_]]:
    """An agent and a box on a grid of SIZE cells: who walks into the box shoves it. Also where the action matters."""
    random = np.random.default_rng(seed)
    agent, box = random.integers(0, SIZE, (2, rows, 2))
    near = random.random(rows) < 0.5
    agent[near] = np.clip(box + WAYS[random.integers(4, size=rows)], 0, SIZE - 1)[near]
    agent = np.where((agent == box).all(1, keepdims=True), (box + 1) % SIZE, agent)
    action = random.integers(4, size=rows)

    def after(action: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        there = np.clip(agent + WAYS[action], 0, SIZE - 1)
        shoved = (there == box).all(1)
        moved = np.where(shoved[:, None], np.clip(box + WAYS[action], 0, SIZE - 1), box)
        stuck = (moved == there).all(1)
        return np.where(stuck[:, None], agent, there), moved

    moves = [(after(np.full(rows, way))[1] != box).any(1) for way in range(4)]
    label: NDArray[np.bool_] = np.any(moves, axis=0)
    next_agent, next_box = after(action)
    obs, next_obs = (np.concatenate(parts, 1).astype(np.float64) for parts in ((agent, box), (next_agent, next_box)))
    return obs, action, next_obs, label


OBS, ACTION, NEXT_OBS = shove(4000, 0)[:3]
TEST_OBS, *_, LABEL = shove(1500, 1)


@pytest.fixture(scope="module")
def fitted() -> Influence:
    return Influence.fit(OBS, ACTION, NEXT_OBS, "box=2:4", model=QUICK, progress=False)


def test_influence_is_found_and_has_its_size(fitted: Influence) -> None:
    score = fitted.score(TEST_OBS)["box"]
    assert roc_auc_score(LABEL, score) > 0.98
    assert np.median(score[~LABEL]) < 0.01
    one_of_four = -0.25 * math.log(0.25) - 0.75 * math.log(0.75)  # the information of whether a shove happens
    assert np.median(score[LABEL]) == pytest.approx(one_of_four, abs=0.05)


def test_without_a_relation_to_the_action_there_is_no_influence() -> None:
    random = np.random.default_rng(0)
    ablation = Influence.fit(OBS, random.permutation(ACTION), NEXT_OBS, "box=2:4", model=QUICK, progress=False)
    score = ablation.score(TEST_OBS)["box"]
    assert score[LABEL].mean() < 0.2
    obs, action, next_obs, _ = shove(2000, 2)
    assert not ablation.diagnose(obs, random.permutation(action), next_obs)["box"].trusted


def test_the_fit_is_trusted_and_its_size_too(fitted: Influence) -> None:
    found = fitted.diagnose(*shove(2000, 2)[:3])["box"]
    assert found.trusted
    assert found.size_trusted


def test_it_is_the_default_on_a_grid_and_only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "train_on_batches", lambda *given: None)  # which model is chosen, not what it learns
    chosen = Influence.fit(OBS, ACTION, NEXT_OBS, ["agent=0:2", "box=2:4"], progress=False)
    assert isinstance(chosen.model, OutcomeDynamics)
    assert chosen.model.counts == [5, 5]
    noisy = NEXT_OBS + 0.01 * np.random.default_rng(0).normal(size=NEXT_OBS.shape)
    brief = FitConfig(batch_size=500, max_epochs=1)
    other = Influence.fit(OBS, ACTION, noisy, "box=2:4", fitting=brief, progress=False)
    assert isinstance(other.model, GaussianDynamics)
    asked = Influence.fit(OBS, ACTION, NEXT_OBS, "box=2:4", model=ModelConfig(), fitting=brief, progress=False)
    assert isinstance(asked.model, GaussianDynamics)


def test_it_is_refused_where_changes_are_not_few_or_something_else_is_asked_for() -> None:
    noisy = NEXT_OBS + 0.01 * np.random.default_rng(0).normal(size=NEXT_OBS.shape)
    with pytest.raises(ValueError, match="few ways"):
        Influence.fit(OBS, ACTION, noisy, "box=2:4", model=OutcomeConfig())
    with pytest.raises(ValueError, match="agent="):
        Influence.fit(OBS, ACTION, NEXT_OBS, "box=2:4", agent=[0, 1], model=OutcomeConfig())
    with pytest.raises(ValueError, match="prior="):
        Influence.fit(OBS, ACTION, NEXT_OBS, "box=2:4", prior=lambda obs, action: obs, model=OutcomeConfig())
    with pytest.raises(ValueError, match="updates"):
        OutcomeConfig(updates=0)


def test_continuous_actions_and_members() -> None:
    """A shove with a force above one half in a state in which it matters."""
    random = np.random.default_rng(0)
    obs = random.integers(0, 2, (3000, 2)).astype(np.float64)  # open; where the lamp is
    action = random.uniform(-1, 1, (3000, 1))
    next_obs = obs.copy()
    switched = (obs[:, 0] == 1) & (action[:, 0] > 0.5)
    next_obs[switched, 1] = 1 - obs[switched, 1]
    fitted = Influence.fit(
        obs, action, next_obs, "lamp=1", model=QUICK, action_space=Box(-1, 1, (1,)), members=2, progress=False
    )
    score = fitted.score(obs[:500])["lamp"]
    is_open = obs[:500, 0] == 1
    assert score[~is_open].max() < 0.05
    assert np.median(score[is_open]) == pytest.approx(-0.25 * math.log(0.25) - 0.75 * math.log(0.75), abs=0.06)
    assert fitted.spread(obs[:5])["lamp"].shape == (5,)
    best, _ = fitted.best_action(obs[:500][is_open])
    assert (best > 0.3).mean() > 0.9


def test_a_saved_model_has_the_same_scores(fitted: Influence, tmp_path: Path) -> None:
    fitted.save(tmp_path / "grid.safetensors")
    loaded = Influence.load(tmp_path / "grid.safetensors")
    np.testing.assert_array_equal(loaded.score(TEST_OBS)["box"], fitted.score(TEST_OBS)["box"])
    assert isinstance(loaded.model, OutcomeDynamics)
    assert "5 outcomes" in repr(loaded)


@pytest.mark.parametrize("counts", [5, [], [5, 5], ["5"]])
def test_a_file_with_other_outcomes_than_entities_is_refused(fitted: Influence, tmp_path: Path, counts: object) -> None:
    path = tmp_path / "grid.safetensors"
    fitted.save(path)
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["butfor"])
    del header["digest"]  # it is then read like a file from before digests
    save_file(load_file(path), path, metadata={"butfor": json.dumps(header | {"outcomes": counts})})
    with pytest.raises(ValueError, match=r"outcomes is .*; expected"):
        Influence.load(path)


def test_predictions_are_the_expected_cells(fitted: Influence) -> None:
    obs = np.array([[2.0, 3, 3, 3], [0, 0, 5, 5]])  # next to the box, and far from it
    mean, deviation = fitted.predict(obs, np.array([[0, 1], [0, 1]]))["box"]
    np.testing.assert_allclose(mean, [[[4, 3], [3, 3]], [[5, 5], [5, 5]]], atol=0.15)
    assert deviation.shape == mean.shape


def test_influence_between_entities_is_that_of_other_models(fitted: Influence) -> None:
    both = Influence.fit(OBS, ACTION, NEXT_OBS, ["agent=0:2", "box=2:4"], model=QUICK, progress=False)
    graph = both.graph(TEST_OBS[:300])
    edge = graph["agent", "box"]
    assert roc_auc_score(LABEL[:300], edge) > 0.9


def test_a_model_of_touches_can_still_be_asked_for() -> None:
    brief = ContactConfig(updates=2, motion_updates=2)
    fitted = Influence.fit(OBS, ACTION, NEXT_OBS, "box=2:4", agent=[0, 1], model=brief, progress=False)
    assert not isinstance(fitted.model, OutcomeDynamics)
