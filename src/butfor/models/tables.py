"""The tables that networks learn from: transitions in standard units, and these units.

A network sees observations with mean 0 and standard deviation 1, actions as `ActionLaw.encode` gives them, and predicts
the change of the entities' columns, each times a factor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from butfor.spaces.actions import ActionLaw, warn_untried
from butfor.spaces.arrays import Array, change_rounding, check_entities, check_transitions
from butfor.spaces.entities import Entities

Transitions = tuple[Tensor, Tensor, Tensor]
"""obs [N, D], action [N, A] or integers [N], next_obs [N, D]."""
Table = tuple[Tensor, Tensor]
"""Inputs [N, D + A] and targets [N, d] of a network."""

SMALLEST_DEVIATION = 1e-12  # of a column that is not treated as constant
UNEVEN = 0.2  # standard deviations: an uneven column has a smaller median distance to its median (Gaussian: 0.67)
FINER = 10.0  # factor on small differences of uneven columns


@dataclass(frozen=True)
class Units:
    """How observations, actions and changes are scaled, and which columns belong to each entity."""

    law: ActionLaw
    entities: dict[str, list[int]]  # columns of the observation by name
    scale: Sequence[float]  # factor on the change of each predicted column, in the order of `target_columns`
    obs_center: Sequence[float]
    obs_spread: Sequence[float]

    @classmethod
    def measure(
        cls, transitions: Transitions, entities: dict[str, list[int]], law: ActionLaw, scale: float | None = None
    ) -> "Units":
        """Measure mean and deviation of each column, and of each change; `scale` fixes the factor on all changes."""
        obs = transitions[0].double()
        deviation = obs.std(0)
        # A column that varies less, as velocities at rest do, counts as constant: it may be of the size of 1 later.
        spread = torch.where(deviation > SMALLEST_DEVIATION, deviation, 1.0)
        factors = target_scale(transitions, entities, scale)
        return cls(law, entities, factors.tolist(), obs.mean(0).tolist(), spread.tolist())

    @classmethod
    def raw(
        cls, law: ActionLaw, entities: Mapping[str, Sequence[int]], scale: Sequence[float], obs_size: int
    ) -> "Units":
        """Units that leave observations as they are."""
        columns = {name: list(entity) for name, entity in entities.items()}
        return cls(law, columns, list(scale), [0.0] * obs_size, [1.0] * obs_size)

    @property
    def dims(self) -> list[list[int]]:
        """The place of each entity's columns in what the network predicts."""
        columns = target_columns(self.entities)
        return [[columns.index(column) for column in entity] for entity in self.entities.values()]

    def standardize(self, obs: Tensor) -> Tensor:
        """Observations [N, D] as the network sees them; centred in float64, so that large offsets cost no digits."""
        center, spread = torch.tensor([self.obs_center, self.obs_spread], dtype=torch.float64, device=obs.device)
        standardized: Tensor = ((obs - center) / spread).float()
        return standardized

    def table(self, transitions: Transitions, device: torch.device | str) -> Table:
        """Inputs [N, D + A] and targets [N, d] on the device."""
        obs, action, next_obs = transitions
        scale = torch.tensor(self.scale, dtype=torch.float64, device=obs.device)
        target = (next_obs - obs)[:, target_columns(self.entities)] * scale
        inputs = torch.cat([self.standardize(obs), self.law.encode(action)], 1)
        return inputs.to(device), target.float().to(device)

    def checked_table(self, what: str, given: Sequence[Array], device: torch.device | str, fewest: int = 1) -> Table:
        """The table of a user's own transitions; an error begins with `what` was expected."""
        try:
            obs, action, next_obs = given
            transitions = check_transitions(obs, action, next_obs, fewest, len(self.obs_center))
            self.law.check("action", transitions[1])
        except (ValueError, TypeError) as error:
            raise ValueError(f"{what} (obs, action, next_obs): {error}") from error
        return self.table(transitions, device)


class StandardizedStates:
    """States [R, N, D] as a network sees them, computed part by part: `states[:, 10:20]` is a tensor [R, 10, D]."""

    def __init__(self, obs: Tensor, units: Units, replicas: int, device: torch.device) -> None:
        self.obs = obs  # [N, D], of the user
        self.units = units
        self.shape = (replicas, *obs.shape)
        self.device = device

    def __getitem__(self, place: tuple[slice, slice]) -> Tensor:
        part = self.units.standardize(self.obs[place[1]]).to(self.device)
        return part.expand(self.shape[0], -1, -1)[place[0]]


def measure_transitions(
    given: tuple[Array, Array, Array],
    entities: Entities,
    space: gymnasium.Space[Any] | None,
    scale: float | None = None,
) -> tuple[Transitions, Units]:
    """Check a user's transitions and measure their units and, without a space, the law; warn of what never varies."""
    transitions = check_transitions(*given)
    columns = check_entities(entities, transitions[0], transitions[2])
    law = ActionLaw.from_data(transitions[1]) if space is None else ActionLaw.from_space(space)
    law.check("action", transitions[1])
    warn_untried(law, transitions[1])
    return transitions, Units.measure(transitions, columns, law, scale)


def uneven_columns(standardized: Tensor) -> tuple[list[int], Tensor]:
    """Columns [N, D] in standard units with most values close together and a few far away: which, and their medians.

    Such as the height of an object that stands on a table and sometimes falls off. Beside the fall, what matters on the
    table is small in standard units.
    """
    median = standardized.median(0).values
    distance = (standardized - median).abs().median(0).values
    found = distance < UNEVEN * standardized.std(0)
    columns: list[int] = found.nonzero()[:, 0].tolist()
    return columns, median[columns]


def add_finer(obs: Tensor, columns: Sequence[int], median: Tensor) -> Tensor:
    """States [..., D] in standard units, and again some columns of them on a finer scale: [..., D + n]."""
    if not columns:
        return obs
    chosen = torch.stack([obs[..., column] for column in columns], -1)
    return torch.cat([obs, (FINER * (chosen - median)).asinh()], -1)


def target_columns(entities: Mapping[str, Sequence[int]]) -> list[int]:
    """The columns that a network predicts: those of all entities, in rising order."""
    return sorted({column for entity in entities.values() for column in entity})


def target_scale(transitions: Transitions, entities: Mapping[str, Sequence[int]], fixed: float | None = None) -> Tensor:
    """The factor on each predicted change [d]: `fixed`, or 1 / standard deviation (1 where only rounding varies)."""
    obs, next_obs = (table[:, target_columns(entities)] for table in transitions[::2])
    deviation = (next_obs.double() - obs.double()).std(0)
    if fixed is not None:
        return torch.full_like(deviation, fixed)
    return torch.where(deviation > change_rounding(obs, next_obs), 1 / deviation, 1.0)


def move_scale(transitions: Transitions, entities: Mapping[str, Sequence[int]]) -> Tensor:
    """The factor that makes moves about 1 however rare they are: mean |change| / mean change^2 [d] (1 if at rest)."""
    obs, next_obs = (table[:, target_columns(entities)] for table in transitions[::2])
    change = next_obs.double() - obs.double()
    factor = change.abs().mean(0) / change.square().mean(0)
    return torch.where(change.std(0) > change_rounding(obs, next_obs), factor, 1.0)


def split_table(table: Table, share: float, seed: int, groups: Array | None = None) -> tuple[Table, Table]:
    """Hold out a random share of the rows for validation, whole groups [N] if they are given: (train, validation)."""
    inputs, target = table
    count = len(inputs)
    group = np.arange(count) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    if group.shape != (count,):
        raise ValueError(f"groups has shape {list(group.shape)}; expected [{count}], the episode of each transition.")
    sizes = torch.from_numpy(np.bincount(group))
    order = torch.randperm(len(sizes), generator=torch.Generator().manual_seed(seed))
    rows = order.argsort()[torch.from_numpy(group)].argsort(stable=True).to(inputs.device)  # group by group
    ends = sizes[order].cumsum(0).tolist()
    held_out = max(1, round(share * count)) if 0 < share < 1 else 0
    kept = max((end for end in ends if end <= count - held_out), default=0)
    if not 0 < kept < count:
        what = "transitions" if groups is None else f"{len(sizes)} episodes in groups"
        raise ValueError(
            f"validation is {share}; expected a share of the {what} between 0 and 1 that leaves some for training."
        )
    rest, chosen = rows.split([kept, count - kept])
    return (inputs[rest], target[rest]), (inputs[chosen], target[chosen])
