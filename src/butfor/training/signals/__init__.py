"""Signals: a score of every stored step, which priority, bonus, exploration or reward use. Read `cai.py` first.

CAI is one signal among others; VIME and disagreement are its rivals, `moved`, `nearness`, `contact`, `oracle` and
`shuffled` its controls. A signal is one file with its settings, and one line in `SIGNALS`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from butfor.influence.scoring import Dynamics
from butfor.models.networks import Generators
from butfor.training.signals.cai import CaiConfig, CaiSignal
from butfor.training.signals.disagreement import DisagreementSignal, EnsembleConfig
from butfor.training.signals.labels import LabelSignal
from butfor.training.signals.moved import MovedConfig, MovedSignal
from butfor.training.signals.nearness import NearnessConfig, NearnessSignal
from butfor.training.signals.shuffled import ShuffledSignal
from butfor.training.signals.transitions import TransitionTable
from butfor.training.signals.vime import VimeSignal

if TYPE_CHECKING:
    from butfor.training.goal_env import GoalEnv
    from butfor.training.settings import Config

__all__ = [
    "LABELS", "OF_CAI", "SIGNALS", "CaiConfig", "CaiSignal", "DisagreementSignal", "EnsembleConfig", "LabelSignal",
    "MovedConfig", "MovedSignal", "NearnessConfig", "NearnessSignal", "ShuffledSignal", "Signal", "VimeSignal",
]  # fmt: skip


class Signal(Protocol):
    """A score of every step in the replay buffer, of R replicas at once."""

    learns: bool
    """whether it has a model, which is fitted in rounds; without one, episodes are scored when they are stored"""

    def fit(self, batches: int, generators: Generators, fast: bool = True) -> Tensor:
        """Train on batches of the replay buffer; their summed loss [R]."""
        ...

    def score(self, slots: Tensor, generators: Generators) -> None:
        """Write the scores of the episodes in these slots to `replay.score`."""
        ...

    def stale(self) -> Tensor:
        """The slots to score again after a round of training."""
        ...

    def action_model(self) -> tuple[Dynamics, Callable[[Any], Tensor]] | None:
        """For active exploration: a model of outcomes, and the score of K actions by its prediction; or None."""
        ...

    def prepare(self, fast: bool) -> None:
        """On a GPU, record what `fit` does before the first episode."""
        ...

    def save(self, folder: Path, seed: int) -> None:
        """Write the model to the run folder."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything that a checkpoint must contain."""
        ...

    def restore(self, state: Any) -> None:
        """Put back what `state` returned."""
        ...


# The signal's name in the settings -> the signal, from settings, transitions, environment and first weights.
Make = Callable[["Config", TransitionTable, "GoalEnv", Generators], Signal]
SIGNALS: dict[str, Make] = {
    "cai": lambda config, table, env, streams: CaiSignal(config.cai, table, streams, config.combine, config.fit_every),
    "vime": lambda config, table, env, streams: VimeSignal(config.vime, table, streams),
    "disagreement": lambda config, table, env, streams: DisagreementSignal(config.disagreement, table, streams),
    "moved": lambda config, table, env, streams: MovedSignal(config.moved, table),
    "nearness": lambda config, table, env, streams: NearnessSignal(config.nearness, table, env.built_in),
    "contact": lambda config, table, env, streams: LabelSignal(table),
    "oracle": lambda config, table, env, streams: LabelSignal(table),
    "shuffled": lambda config, table, env, streams: ShuffledSignal(
        config.cai, table, streams, config.combine, config.fit_every
    ),
}
OF_CAI = ("cai", "shuffled")  # signals with the settings `cai`
LABELS = {"oracle": ("exact",), "contact": ("contact",)}  # what a signal needs the environment to report
