"""Transitions of the replay buffer as models learn from them, and the files of the rivals' models."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from butfor.influence.partners import Partners, partner_columns
from butfor.models.networks import Generators, make_generators
from butfor.models.tables import Table, Units, target_columns
from butfor.models.weights import (
    build_network,
    choose_replica,
    reading_weights,
    save_weights,
    units_of_header,
    whole_number,
)
from butfor.runs.config import config_from
from butfor.spaces.actions import ActionLaw
from butfor.training.replay import ReplayBuffer

FORMAT_VERSION = 2
Module = TypeVar("Module", bound=nn.Module)
Settings = TypeVar("Settings")


class TransitionTable:
    """The transitions of the replay buffer as inputs and targets, in the units of the environment."""

    def __init__(
        self,
        replay: ReplayBuffer,
        law: ActionLaw,
        entities: Mapping[str, Sequence[int]],
        scale: Sequence[float],
        partners: Partners | None = None,
        horizon: int = 1,
    ) -> None:
        """`scale` is the factor on the change of each column that belongs to any entity, in rising order.

        For a model of touches the `partners` of each entity are given; their changes, unscaled, follow in the targets.
        Changes are those within `horizon` steps, or up to the end of the episode.
        """
        self.partners = partners
        self.horizon = horizon
        columns = target_columns(entities)
        steps = partner_columns(partners, entities) if partners else []
        size = replay.observation.shape[-1]
        self.replay = replay
        self.device = replay.observation.device
        self.units = Units.raw(law, entities, scale, size)
        self.sizes = (size, law.size, len(columns))  # of an observation, an action and a target
        self.columns = torch.tensor([*columns, *steps], device=self.device)
        factor = [*self.units.scale, *[1.0] * len(steps)]
        self.factor = torch.tensor(factor, dtype=torch.float32, device=self.device)

    def table(self, replica: Tensor, episode: Tensor, time: Tensor) -> Table:
        """Inputs [..., D + A] and targets [..., d] of the transitions at these indices, which broadcast."""
        now = self.replay.observation[replica, episode, time]
        later = time + 1
        if self.horizon > 1:
            later = torch.minimum(time + self.horizon, self.replay.length[replica, episode].clamp_min(1))
            later = torch.maximum(later, time + 1)  # of steps after the end, which count for nothing
        then = self.replay.observation[replica, episode, later]
        inputs = torch.cat([now, self.units.law.encode(self.replay.action[replica, episode, time])], -1)
        return inputs, (then - now)[..., self.columns] * self.factor

    def episodes(self, slots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, targets [R, n, T, ...] and whether they are real [R, n, T] of all steps of some episodes."""
        time = torch.arange(self.replay.steps, device=slots.device)
        return *self.table(self.replay.rows[:, None], slots[:, None], time), self.replay.valid()[:, slots]


def save_model(path: Path | str, kind: str, model: Any, units: Units, replicas: int, seed: int = 0) -> None:
    """Write one safetensors file with a JSON header; nothing in it is executable."""
    shape = {"replicas": replicas, "obs_size": model.obs_size, "config": asdict(model.config), "seed": seed}
    header = asdict(units) | shape
    save_weights(path, kind, FORMAT_VERSION, model.state_dict(), header)


def load_model(
    path: Path | str,
    kind: str,
    model_type: Callable[[tuple[int, int, int], Settings, Generators], Module],
    settings_type: type[Settings],
    device: torch.device | str = "cpu",
    replica: int | None = None,
) -> tuple[Module, Units, int]:
    """Load what `save_model` wrote, all replicas or one: the model, its units and its seed.

    A model is made from the sizes of an observation, an action and a target, its settings, and one generator per
    replica.
    """
    with reading_weights(path, kind, FORMAT_VERSION) as (tensors, header):
        units = units_of_header(header)
        replicas = whole_number(header, "replicas")
        seed = whole_number(header, "seed", least=-(2**63))
        tensors = choose_replica(tensors, replicas, replica)
        sizes = (whole_number(header, "obs_size"), units.law.size, len(units.scale))
        settings = config_from(settings_type, header["config"])
        if replica is None and replicas > len(next(iter(tensors.values()))):
            raise ValueError(f"replicas is {replicas}; its tensors have fewer.")
        generators = make_generators([0] * (replicas if replica is None else 1))
        layers = int(header["config"]["layers"])
        model = build_network(lambda: model_type(sizes, settings, generators), layers, tensors)
        return model.to(device), units, seed
