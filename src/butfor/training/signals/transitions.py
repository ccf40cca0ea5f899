"""Transitions as models learn from them, from arrays or from the replay buffer, and the files of fitted models."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import gymnasium
import torch
from torch import Tensor, nn

from butfor.models.dynamics import (
    ModelConfig,
    Table,
    Transitions,
    entity_dims,
    obs_range,
    target_columns,
    target_scale,
    training_table,
)
from butfor.models.networks import make_generators
from butfor.runs.files import load_tensors, save_tensors
from butfor.spaces.action_checks import check_count
from butfor.spaces.actions import ActionLaw
from butfor.training.replay import ReplayBuffer

FORMAT_VERSION = 2
Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class Units:
    """How observations are centred and scaled, actions encoded and changes scaled, and what the entities are."""

    law: ActionLaw
    entities: Mapping[str, Sequence[int]]
    """columns of the observation by name"""
    scale: Sequence[float]
    """the factor on the change of each predicted column, in the order of `target_columns`"""
    obs_center: Sequence[float]
    obs_spread: Sequence[float]

    @classmethod
    def of(
        cls,
        transitions: Transitions,
        entities: Mapping[str, Sequence[int]],
        action_space: gymnasium.Space[Any] | None,
    ) -> "Units":
        """Measure the mean and standard deviation of each column, and of each change."""
        law = check_count(ActionLaw.from_data(transitions[1]) if action_space is None else ActionLaw.of(action_space))
        scale = target_scale(transitions, entities, ModelConfig())
        center, spread = obs_range(transitions[0])
        return cls(law, entities, scale.tolist(), center.tolist(), spread.tolist())

    @property
    def dims(self) -> list[list[int]]:
        """Positions of each entity's columns among the predicted ones."""
        return entity_dims(self.entities)

    def table(self, transitions: Transitions, device: torch.device | str) -> Table:
        """Inputs [N, D + A] and targets [N, d]."""
        lists = (self.scale, self.obs_center, self.obs_spread)
        numbers = [torch.tensor(list(one), dtype=torch.float64, device=transitions[0].device) for one in lists]
        return training_table(transitions, self.law, self.entities, numbers[0], device, *numbers[1:])


class TransitionTable:
    """The transitions of the replay buffer as inputs and targets, in the units of the environment."""

    def __init__(
        self,
        replay: ReplayBuffer,
        law: ActionLaw,
        entities: Mapping[str, Sequence[int]],
        scale: Sequence[float],
    ) -> None:
        """`scale` is the factor on the change of each column that belongs to any entity, in rising order."""
        columns, size = target_columns(entities), replay.observation.shape[-1]
        self.replay = replay
        self.device = replay.observation.device
        named = {name: list(entity) for name, entity in entities.items()}
        self.units = Units(law, named, list(scale), [0.0] * size, [1.0] * size)
        self.sizes = (size, law.size, len(columns))  # of an observation, an action and a target
        self.columns = torch.tensor(columns, device=self.device)
        self.factor = torch.tensor(self.units.scale, dtype=torch.float32, device=self.device)

    def table(self, replica: Tensor, episode: Tensor, time: Tensor) -> Table:
        """Inputs [..., D + A] and targets [..., d] of the transitions at these indices, which broadcast."""
        now = self.replay.observation[replica, episode, time]
        then = self.replay.observation[replica, episode, time + 1]
        inputs = torch.cat([now, self.units.law.encode(self.replay.action[replica, episode, time])], -1)
        return inputs, (then - now)[..., self.columns] * self.factor

    def episodes(self, slots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, targets [R, n, T, ...] and whether they are real [R, n, T] of all steps of some episodes."""
        time = torch.arange(self.replay.steps, device=slots.device)
        return *self.table(self.replay.rows[:, None], slots[:, None], time), self.replay.valid()[:, slots]


def save_model(path: Path | str, kind: str, model: Any, units: Units, replicas: int, seed: int = 0) -> None:
    """Write one safetensors file with a JSON header; nothing in it is executable."""
    header = dataclasses.asdict(units) | {
        "kind": kind,
        "format": FORMAT_VERSION,
        "replicas": replicas,
        "obs_size": model.obs_size,
        "config": dataclasses.asdict(model.config),
        "seed": seed,
    }
    save_tensors(path, model.state_dict(), header)


def load_model(
    path: Path | str,
    kind: str,
    make: Callable[[tuple[int, int, int], dict[str, Any], list[torch.Generator]], Module],
    device: torch.device | str,
    replica: int | None,
) -> tuple[Module, Units, int]:
    """Load what `save_model` wrote, all replicas or one: the model, its units and its seed.

    `make` builds the model from the sizes of an observation, an action and a target, the settings, and one generator
    per replica.
    """
    tensors, header = load_tensors(path)
    if header.get("kind") != kind:
        raise ValueError(
            f"{path} contains {header.get('kind')!r}; expected {kind!r}. Load it with the class that wrote it."
        )
    if header.get("format") not in (1, FORMAT_VERSION):
        raise ValueError(f"{path} has format {header.get('format')}; this version reads format {FORMAT_VERSION}.")
    try:
        law = ActionLaw.of_file(path, header)
        units = Units(law, *(header[name] for name in ("entities", "scale", "obs_center", "obs_spread")))
        count = header["replicas"]
        if replica is not None:
            if replica not in range(count):
                raise ValueError(f"{path} contains {count} replicas, counted from 0; there is no replica {replica}.")
            tensors = {name: value.unflatten(0, (count, -1))[replica] for name, value in tensors.items()}
        sizes = (header["obs_size"], law.size, len(units.scale))
        model = make(sizes, header["config"], make_generators([0] * (count if replica is None else 1)))
        model.load_state_dict(tensors)
        return model.to(device), units, header["seed"]
    except (KeyError, IndexError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path} does not contain the weights that its header describes: {error}") from error
