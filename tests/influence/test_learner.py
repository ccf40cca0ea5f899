"""An `Influence` that learns along: what is remembered, how rounds go on, and when a network starts anew."""

import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from support import hand_and_object
from support.hand_and_object import HAND, OBJECT, can_be_carried, states

from butfor import FitConfig, Influence, ModelConfig
from butfor.influence.contact import ContactConfig, ContactDynamics
from butfor.influence.learner import InfluenceLearner
from butfor.influence.partners import Pair
from butfor.models.dynamics import GaussianDynamics

BOX: Any = gymnasium.spaces.Box(-1.0, 1.0, (1,))
SMALL: dict[str, Any] = {"model": ModelConfig(layers=1, width=16), "fitting": FitConfig(batch_size=50)}


def transitions(count: int, seed: int = 0, push: float = 0.5) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(seed)
    obs, action = random.normal(size=(count, 3)), random.uniform(-1, 1, (count, 1))
    next_obs = obs + 0.01 * random.normal(size=obs.shape)
    next_obs[:, 2:] += push * action
    return obs, action, next_obs


def test_the_buffer_keeps_the_latest() -> None:
    learner = InfluenceLearner(1, BOX, {"x": [0]}, buffer_size=100)
    for start, count in ((0, 30), (30, 60), (90, 50), (140, 250)):  # over the end, and more than there is room for
        obs = np.arange(start, start + count, dtype=np.float64)[:, None]
        learner.add(obs, obs / 1000, obs + 1)
        end = start + count
        kept, action, following = (part.numpy()[:, 0] for part in learner.transitions())
        assert learner.added == end
        assert learner.stored == len(kept) == min(end, 100)
        np.testing.assert_array_equal(np.sort(kept), np.arange(max(0, end - 100), end))
        np.testing.assert_array_equal(following, kept + 1)
        np.testing.assert_array_equal(action, kept / 1000)


def test_whole_numbers_and_low_precision_at_first_cut_nothing_later() -> None:
    learner = InfluenceLearner(1, BOX, {"x": [0]}, buffer_size=100)
    half = np.array([[0.5]], np.float16)
    learner.add(half, np.array([[1]]), half)
    learner.add(np.array([[1 / 3]]), np.array([[0.3]], np.float32), np.array([[2 / 3]]))
    obs, action, next_obs = (part.numpy()[:, 0].tolist() for part in learner.transitions())
    assert (obs, next_obs) == ([0.5, 1 / 3], [0.5, 2 / 3])
    assert action == [1.0, float(np.float32(0.3))]
    whole = InfluenceLearner(1, gymnasium.spaces.Discrete(2), {"x": [0]}, buffer_size=100)
    whole.add(np.array([[3]]), np.array([1]), np.array([[4]]))
    whole.add(np.array([[0.1]]), np.array([0]), np.array([[0.2]]))
    assert whole.transitions()[0].tolist() == [[3.0], [0.1]]
    assert whole.transitions()[1].tolist() == [1, 0]


def test_rounds_go_on_from_the_last() -> None:
    """Two rounds of five batches are one of ten; an Influence that was handed out goes on with them."""
    learners = [InfluenceLearner(3, BOX, {"x": [2]}, seed=3, **SMALL) for _ in range(2)]
    for learner in learners:
        learner.add(*transitions(300))
        assert learner.influence is None
    learners[0].fit(5)
    handed_out = learners[0].influence
    learners[0].fit(5)
    learners[1].fit(10)
    assert handed_out is learners[0].influence
    states = transitions(20, seed=1)[0]
    scores = [learner.influence.score(states)["x"] for learner in learners if learner.influence is not None]
    np.testing.assert_array_equal(scores[0], scores[1])


def test_it_learns_what_fitting_on_the_same_data_learns() -> None:
    """The loss of the true model: 0.5 log(2 pi e sigma^2) in units of the change's standard deviation."""
    data, entities = transitions(2000), {"x": [2], "y": [0]}
    settings: dict[str, Any] = {"fitting": FitConfig(batch_size=200, learning_rate=3e-3)}
    learner = InfluenceLearner(3, BOX, entities, model=ModelConfig(layers=2, width=64), **settings)
    learner.add(*data)
    first, _, last = learner.fit(20), learner.fit(300), learner.fit(50)
    spread = (0.5**2 / 3 + 0.01**2) ** 0.5
    best = 0.5 * np.log(2 * np.pi * np.e * (0.01 / spread) ** 2) + 0.5 * np.log(2 * np.pi * np.e)
    assert best < last < best + 1.5 < first
    assert learner.influence is not None
    x, y = learner.influence.score(data[0][:200]).values()
    assert x.mean() > 1.5
    assert y.mean() < 0.1


def test_a_network_starts_anew_where_its_units_no_longer_fit() -> None:
    learner = InfluenceLearner(3, BOX, {"x": [2]}, buffer_size=1000, **SMALL)
    learner.add(*transitions(1000, push=0.0))
    learner.fit(2)
    first = learner.influence
    learner.add(*transitions(100, seed=1, push=0.02))  # hardly more than the noise
    learner.fit(2)
    assert learner.influence is first
    learner.add(*transitions(500, seed=2, push=0.5))
    learner.fit(2)
    assert isinstance(learner.influence, Influence)
    assert learner.influence is not first
    change = np.diff([part[:, 2] for part in learner.transitions()[::2]], axis=0)
    assert learner.influence.units.scale == pytest.approx([1 / change.std(ddof=1)])
    fixed = InfluenceLearner(3, BOX, {"x": [2]}, model=ModelConfig(layers=1, width=16, target_scale=50.0))
    found = []
    for push in (0.0, 0.5):
        fixed.add(*transitions(500, push=push))
        fixed.fit(2)
        found.append(fixed.influence)
    assert isinstance(found[0], Influence)
    assert found[0] is found[1]
    assert found[0].units.scale == [50.0]


def test_what_is_at_rest_at_first_may_move_later() -> None:
    """A velocity at rest is 1e-25, say: in units of that, one of 1 would be no number in single precision."""
    learner = InfluenceLearner(3, BOX, {"x": [2]}, **SMALL)
    at_rest, moving = transitions(300), transitions(300, seed=1)
    for part in at_rest[::2]:
        part[:, 0] *= 1e-25
    learner.add(*at_rest)
    learner.fit(2)
    assert learner.influence is not None
    assert np.isfinite(learner.influence.score(moving[0])["x"]).all()
    learner.add(*moving)
    learner.fit(2)
    assert np.isfinite(learner.influence.score(moving[0])["x"]).all()


def test_a_calibration_ends_with_the_weights_that_it_was_made_for() -> None:
    learner = InfluenceLearner(3, BOX, {"x": [2]}, **SMALL)
    learner.add(*transitions(300))
    learner.fit(2)
    assert learner.influence is not None
    learner.influence.calibrate(free_obs=transitions(50)[0])
    learner.fit(2)
    with pytest.raises(ValueError, match="calibrate"):
        learner.influence.decide(transitions(5)[0])


def test_an_interrupted_round_leaves_a_network_that_scores() -> None:
    learner = InfluenceLearner(3, BOX, {"x": [2]}, **SMALL)
    learner.add(*transitions(300))
    learner.fit(2)
    assert learner.influence is not None
    with torch.no_grad():
        learner.influence.model.mean_head.bias.fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="NaN"):
        learner.fit(1)
    assert not learner.influence.model.training


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"obs": np.zeros((2, 4)), "next_obs": np.zeros((2, 4))}, r"expected \[N, 3\]"),
        ({"action": np.zeros((2, 2))}, r"action.*\[2, 2\].*\b1\b"),
        ({"action": np.zeros((3, 1))}, r"\b3\b.*\b2\b"),
        ({"next_obs": np.full((2, 3), np.nan)}, "next_obs .*row 0"),
    ],
)
def test_wrong_transitions_are_refused(change: dict[str, Any], sentence: str) -> None:
    learner = InfluenceLearner(3, BOX, {"x": [2]})
    given = {"obs": np.zeros((2, 3)), "action": np.zeros((2, 1)), "next_obs": np.zeros((2, 3))} | change
    with pytest.raises(ValueError, match=sentence):
        learner.add(**given)
    assert learner.stored == 0


def test_other_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"buffer_size.*10"):
        InfluenceLearner(3, BOX, {"x": [2]}, buffer_size=10)
    with pytest.raises(ValueError, match="columns 0 to 2"):
        InfluenceLearner(3, BOX, {"x": [3]})
    with pytest.raises(ValueError, match=r"batch_size.*1"):
        InfluenceLearner(3, BOX, {"x": [2]}, fitting=FitConfig(batch_size=1))
    learner = InfluenceLearner(3, BOX, {"x": [2]})
    with pytest.raises(ValueError, match="no transitions"):
        learner.fit(1)
    learner.add(*transitions(50))
    with pytest.raises(ValueError, match=r"\b50 transitions"):
        learner.fit(1)
    with pytest.raises(ValueError, match=r"batches.* 0\b"):
        learner.fit(0)


@pytest.mark.parametrize("size", [1.0, 1e-6])
def test_neither_small_units_nor_an_untried_action_look_like_influence(size: float) -> None:
    """A hand goes where the first action says, a leaf flies about; the second action is never varied."""
    random = np.random.default_rng(0)
    obs, action = random.uniform(-1, 1, (2000, 2)), np.full((2000, 2), 0.5)
    action[:, 0] = random.uniform(-1, 1, 2000)
    after = obs + 0.1 * np.stack([action[:, 0], random.normal(size=2000)], 1)
    learner = InfluenceLearner(2, gymnasium.spaces.Box(-size, size, (2,), np.float64), {"hand": [0], "leaf": [1]})
    learner.add(obs, size * action, after)
    with pytest.warns(UserWarning, match=r"\[1\] never"):
        learner.fit(200)
    assert learner.influence is not None
    scores = learner.influence.score(obs[:200])
    assert scores["hand"].mean() > 1
    assert scores["leaf"].mean() < 0.1


def test_untried_actions_are_warned_of_at_the_users_line_and_by_a_learner_once() -> None:
    random = np.random.default_rng(0)
    obs, next_obs = random.normal(size=(2, 120, 2))
    action, small = np.arange(120) % 2, ModelConfig(layers=1, width=8)
    with pytest.warns(UserWarning, match=r"\[2\] never") as caught:
        Influence.fit(
            obs,
            action,
            next_obs,
            {"x": [0]},
            action_space=gymnasium.spaces.Discrete(3),
            model=small,
            fitting=FitConfig(max_epochs=1),
        )
    assert Path(caught[0].filename).name == Path(__file__).name
    learner = InfluenceLearner(2, gymnasium.spaces.Box(-1.0, 1.0, (2,)), {"x": [0]}, model=small)
    learner.add(obs, np.stack([random.uniform(-1, 1, 120), np.zeros(120)], 1), next_obs)
    with pytest.warns(UserWarning, match=r"\[1\] never"):
        learner.fit(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.fit(1)


# --- a model of touches ---------------------------------------------------------------------------

UNIT: Any = gymnasium.spaces.Box(-1.0, 1.0, (2,))


def hand_learner(**changes: Any) -> InfluenceLearner:
    settings: dict[str, Any] = {"fitting": FitConfig(batch_size=100, learning_rate=3e-3)}
    return InfluenceLearner(7, UNIT, {"object": OBJECT}, **settings | changes)


def test_it_becomes_a_model_of_touches_that_tells_where_the_action_matters() -> None:
    learner = hand_learner()
    learner.add(*hand_and_object.transitions(3000, 0))
    first = learner.fit(20)
    influence = learner.influence
    assert influence is not None
    assert isinstance(influence.model, ContactDynamics)
    assert learner.partners == {"object": [Pair(OBJECT, HAND)]}
    learner.fit(800)
    assert learner.fit(20) < first
    assert learner.influence is influence
    obs = states(1000, 7)
    assert roc_auc_score(can_be_carried(obs), influence.score(obs)["object"]) > 0.95


def test_partners_are_looked_for_again_when_the_data_have_doubled() -> None:
    """At first the hand is far from the object, so that nothing shows what touches it."""
    learner = hand_learner(model=None)
    obs, action, next_obs = hand_and_object.transitions(4000, 0)
    far = np.linalg.norm(obs[:, OBJECT] - obs[:, HAND], axis=1) > 0.45
    learner.add(obs[far][:400], action[far][:400], next_obs[far][:400])
    learner.fit(2)
    assert isinstance(learner.influence, Influence)
    assert isinstance(learner.influence.model, GaussianDynamics)
    learner.add(*(part[400:700] for part in (obs, action, next_obs)))  # 700 are not twice as many
    learner.fit(2)
    assert isinstance(learner.influence.model, GaussianDynamics)
    learner.add(*(part[700:] for part in (obs, action, next_obs)))
    learner.fit(2)
    assert isinstance(learner.influence.model, ContactDynamics)


def test_with_a_given_agent_it_is_a_model_of_touches_from_the_first_round_on() -> None:
    learners = [hand_learner(agent=HAND, model=ContactConfig(width=8, motion_width=8)) for _ in range(2)]
    for learner in learners:
        learner.add(*hand_and_object.transitions(200, 0))
    learners[0].fit(3)
    learners[0].fit(2)
    learners[1].fit(5)
    obs = states(20, 7)
    scores = [learner.influence.score(obs)["object"] for learner in learners if learner.influence is not None]
    np.testing.assert_array_equal(*scores)
    assert learners[0].influence is not None
    assert learners[0].influence.model.config.width == 8


def test_a_model_of_touches_needs_something_that_touches() -> None:
    with pytest.raises(ValueError, match="agent="):
        hand_learner(agent=HAND, model=ModelConfig())
    with pytest.raises(ValueError, match="column 9"):
        hand_learner(agent=[0, 9])
    learner = InfluenceLearner(3, BOX, {"x": [2]}, model=ContactConfig())
    learner.add(*transitions(200))
    with pytest.raises(ValueError, match="agent="):
        learner.fit(1)
