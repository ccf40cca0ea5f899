"""Networks for R replicas at once, and how they are fitted.

Start with `dynamics.py`, the Gaussian network p(s'_j | s, a) behind CAI, then `fitting.py`. `networks.py` has the
layers, `tables.py` what networks learn from, `weights.py` their files, `gpu.py` CUDA graphs and determinism.
`attention.py` and `bayesian.py` are the networks of two baselines.
"""

from butfor.models.attention import AttentionConfig, AttentionModel
from butfor.models.bayesian import BayesianNetwork, VimeConfig
from butfor.models.dynamics import STEEP, GaussianDynamics, ModelConfig
from butfor.models.fitting import FitConfig, FitProgress, Fitting
from butfor.models.tables import Units

__all__ = [
    "STEEP", "AttentionConfig", "AttentionModel", "BayesianNetwork", "FitConfig", "FitProgress", "Fitting",
    "GaussianDynamics", "ModelConfig", "Units", "VimeConfig",
]  # fmt: skip
