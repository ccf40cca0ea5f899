"""Actions that cannot be compared are refused with a sentence."""

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete

from butfor import Influence
from butfor.action_checks import MOST_ACTIONS
from butfor.curiosity import Vime
from butfor.disagreement import Disagreement
from butfor.learning_along import InfluenceLearner

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
