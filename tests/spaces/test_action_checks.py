"""Actions that cannot be compared are refused with a sentence, those that were never tried are warned of."""

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from butfor import FitConfig, Influence, ModelConfig
from butfor.influence.learner import InfluenceLearner
from butfor.spaces.action_checks import MOST_ACTIONS, warn_untried
from butfor.spaces.actions import ActionLaw
from butfor.training.signals.disagreement import Disagreement
from butfor.training.signals.vime import Vime

RANDOM = np.random.default_rng(0)
OBS = RANDOM.normal(size=(120, 2))
NEXT_OBS = OBS + RANDOM.normal(size=OBS.shape)


@pytest.mark.parametrize("kind", [Influence, Vime, Disagreement])
def test_more_discrete_actions_than_can_be_compared_are_refused(kind: Any) -> None:
    action = np.arange(120)
    action[7] = 10**9
    sentence = "1,000,000,001 discrete actions, 0 to 1,000,000,000; at most 1,000 can be compared.*as floats"
    with pytest.raises(ValueError, match=sentence):
        kind.fit(OBS, action, NEXT_OBS, {"x": [0]})
    with pytest.raises(ValueError, match="There are 1,001 discrete actions"):
        kind.fit(OBS, np.arange(120), NEXT_OBS, {"x": [0]}, action_space=Discrete(MOST_ACTIONS + 1))
    InfluenceLearner(2, Discrete(MOST_ACTIONS), {"x": [0]})
    with pytest.raises(ValueError, match="There are 1,001 discrete actions"):
        InfluenceLearner(2, Discrete(MOST_ACTIONS + 1), {"x": [0]})


@pytest.mark.parametrize(
    ("law", "action", "start"),
    [
        (
            ActionLaw(count=4),
            torch.arange(120) % 3,
            r"Discrete action\(s\) \[3\] never occur in the data: what these",
        ),
        (
            ActionLaw(count=20),
            torch.full((120,), 2),
            r"Discrete action\(s\) \[0, 1, 3, .*, 10\] and 9 more never occur",
        ),
        (ActionLaw(count=1), torch.zeros(120).long(), "The action never varies in the data"),
        (
            ActionLaw((-1.0, -1.0), (1.0, 1.0)),
            torch.rand(120, 2).index_fill(1, torch.tensor([1]), 0.3),
            r".* \[1\] never",
        ),
    ],
)
def test_actions_that_were_never_tried_are_warned_of(law: ActionLaw, action: torch.Tensor, start: str) -> None:
    with pytest.warns(UserWarning, match=f"^{start}.*was never seen and counts for nothing"):
        assert warn_untried(law, action)


@pytest.mark.filterwarnings("ignore:The network predicts no better")
def test_a_score_of_what_is_new_does_not_promise_that_untried_actions_count_for_nothing() -> None:
    action = np.stack([RANDOM.uniform(-1, 1, 120), np.full(120, 0.3)], 1)
    for fit in (partial(Vime.fit, batches=20), partial(Disagreement.fit, epochs=1)):
        with pytest.warns(
            UserWarning, match=r"\[1\] never vary in the data: .* so that their scores are a guess; coll"
        ):
            fit(OBS, action, NEXT_OBS, {"x": [0]})


def test_actions_that_were_all_tried_are_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not warn_untried(ActionLaw(count=3), torch.arange(120) % 3)
        assert not warn_untried(ActionLaw((-1.0,), (1.0,)), torch.rand(120, 1))


def test_discrete_actions_that_were_hardly_ever_tried_are_warned_of() -> None:
    action = torch.arange(3000) % 3
    action[:19] = 3
    with pytest.warns(
        UserWarning, match=r"action\(s\) \[3\] occur in fewer than 20 of 3,000 rows each: .* hardly known"
    ):
        assert warn_untried(ActionLaw(count=4), action)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        action[19] = 3
        assert not warn_untried(ActionLaw(count=4), action)
        assert not warn_untried(ActionLaw(count=4), torch.arange(60) % 4)  # 15 each: few, but no fewer than the others


def test_fitting_warns_of_them_at_the_users_line_and_learning_along_once() -> None:
    action, small = np.arange(120) % 2, ModelConfig(layers=1, width=8)
    with pytest.warns(UserWarning, match=r"action\(s\) \[2\] never occur") as caught:
        Influence.fit(
            OBS, action, NEXT_OBS, {"x": [0]}, action_space=Discrete(3), model=small, fitting=FitConfig(max_epochs=1)
        )
    assert Path(caught[0].filename).name == Path(__file__).name
    learner = InfluenceLearner(2, Box(-1.0, 1.0, (2,)), {"x": [0]}, model=small)
    learner.add(OBS, np.stack([RANDOM.uniform(-1, 1, 120), np.zeros(120)], 1), NEXT_OBS)
    with pytest.warns(UserWarning, match=r"Action column\(s\) \[1\] never vary"):
        learner.fit(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.fit(1)
