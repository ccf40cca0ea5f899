"""butfor measures when an agent's actions matter: causal action influence, state by state.

The names below are what most users need; `influence/influence.py` is the file to read first. They are loaded on first
use, so that `import butfor` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from butfor import datasets as datasets
    from butfor import plot as plot
    from butfor.datasets.files import read_data
    from butfor.datasets.score import score_file
    from butfor.envs.forks import fork, restore
    from butfor.influence.influence import Influence
    from butfor.influence.learner import InfluenceLearner
    from butfor.influence.scoring import ScoreConfig
    from butfor.integrations.wrappers import InfluenceWrapper, VectorInfluenceWrapper
    from butfor.models.dynamics import ModelConfig
    from butfor.models.fitting import FitConfig
    from butfor.rollouts.episodes import Episodes
    from butfor.spaces.mirrors import Mirror
    from butfor.training.agents.policy import load_policy
    from butfor.training.run import evaluate_run, resume, train
    from butfor.training.settings import Config, preset

__version__ = "0.1.0"
__all__ = [
    "Config", "Episodes", "FitConfig", "Influence", "InfluenceLearner", "InfluenceWrapper", "Mirror", "ModelConfig",
    "ScoreConfig", "VectorInfluenceWrapper", "__version__", "datasets", "evaluate_run", "fork", "load_policy", "plot",
    "preset", "read_data", "restore", "resume", "score_file", "train",
]  # fmt: skip

_MODULES = {
    "datasets.files": ("read_data",),
    "datasets.score": ("score_file",),
    "envs.forks": ("fork", "restore"),
    "influence.influence": ("Influence",),
    "influence.learner": ("InfluenceLearner",),
    "influence.scoring": ("ScoreConfig",),
    "integrations.wrappers": ("InfluenceWrapper", "VectorInfluenceWrapper"),
    "models.dynamics": ("ModelConfig",),
    "models.fitting": ("FitConfig",),
    "rollouts.episodes": ("Episodes",),
    "spaces.mirrors": ("Mirror",),
    "training.agents.policy": ("load_policy",),
    "training.run": ("evaluate_run", "resume", "train"),
    "training.settings": ("Config", "preset"),
}


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name in ("datasets", "plot"):  # used as modules: butfor.datasets.open(path)
        return import_module(f"butfor.{name}")
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"butfor.{module}"), name)
    raise AttributeError(f"module 'butfor' has no attribute {name!r}")
