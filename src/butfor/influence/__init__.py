"""The estimator of causal action influence (CAI). Start with `influence.py`: the class `Influence` does everything.

`scoring.py` computes CAI from a model's predictions, with the Gaussian formulas of `gaussian.py`. `contact.py` is the
model that `Influence.fit` prefers, for entities that something touches, and `partners.py` finds what touches them.
`outcomes.py` is the model of entities that change in few ways, as on a grid. Otherwise `network_choice.py` selects a
Gaussian network. `decisions.py` turns scores into decisions, `diagnosis.py` checks whether they can be trusted,
`display.py` is how both are printed, and `learner.py` trains an `Influence` along with an agent. `graph/` has influence
between entities and over several steps.
"""

from butfor.influence.contact import ContactConfig
from butfor.influence.diagnosis import Diagnosis
from butfor.influence.graph.edges import Graph
from butfor.influence.graph.pairs import GraphConfig
from butfor.influence.influence import Influence
from butfor.influence.learner import InfluenceLearner
from butfor.influence.outcomes import OutcomeConfig
from butfor.influence.scoring import ScoreConfig

__all__ = [
    "ContactConfig",
    "Diagnosis",
    "Graph",
    "GraphConfig",
    "Influence",
    "InfluenceLearner",
    "OutcomeConfig",
    "ScoreConfig",
]
