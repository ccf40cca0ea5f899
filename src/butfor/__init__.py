"""butfor: when do an agent's actions matter? Causal action influence, state by state."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from butfor.influence.influence import Influence
    from butfor.influence.scoring import ScoreConfig
    from butfor.models.dynamics import ModelConfig
    from butfor.models.fitting import FitConfig
    from butfor.training.agents.policy import load_policy
    from butfor.training.settings import preset

__version__ = "0.1.0"
__all__ = ["FitConfig", "Influence", "ModelConfig", "ScoreConfig", "__version__", "load_policy", "preset"]

_HOMES = {
    "Influence": "influence.influence",
    "ScoreConfig": "influence.scoring",
    "ModelConfig": "models.dynamics",
    "FitConfig": "models.fitting",
    "load_policy": "training.agents.policy",
    "preset": "training.settings",
}


def __dir__() -> list[str]:
    """The public names, also those not loaded yet."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Loads the public names on first use, so that `butfor --version` need not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'butfor' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"butfor.{_HOMES[name]}"), name)
