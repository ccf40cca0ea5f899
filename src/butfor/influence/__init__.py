"""The estimator of causal action influence (CAI). Start with `influence.py`: the class `Influence` does everything.

`scoring.py` computes CAI from a network's predictions with the Gaussian formulas of `gaussian.py`. `decisions.py` turns
scores into decisions, `diagnosis.py` checks whether they can be trusted. `network_choice.py` selects the network of
`Influence.fit`, and `learner.py` trains an `Influence` along with an agent.
"""

from butfor.influence.diagnosis import Diagnosis
from butfor.influence.influence import Influence
from butfor.influence.learner import InfluenceLearner
from butfor.influence.scoring import ScoreConfig

__all__ = ["Diagnosis", "Influence", "InfluenceLearner", "ScoreConfig"]
