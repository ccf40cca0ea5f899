"""The uniform law over an action space: what CAI averages over, and how a model sees an action."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class ActionLaw:
    """Uniform over a box from `low` to `high`, or over `count` discrete actions, which the model sees one-hot."""

    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    count: int = 0

    @property
    def size(self) -> int:
        """Numbers that describe one action to the model."""
        return self.count or len(self.low)

    @classmethod
    def of(cls, space: gymnasium.Space[Any]) -> "ActionLaw":
        """The uniform law over a Gymnasium space."""
        if isinstance(space, gymnasium.spaces.Discrete):
            if space.start != 0:
                raise ValueError(f"The discrete action space starts at {space.start}; shift its actions to start at 0.")
            return cls(count=int(space.n))
        if isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1:
            if not space.shape[0]:
                raise ValueError(f"The action space {space} has no dimension, so there are no actions to compare.")
            if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
                raise ValueError(f"The action space {space} has infinite bounds; give a Box with finite ones.")
            return cls(tuple(space.low.astype(float).tolist()), tuple(space.high.astype(float).tolist()))
        raise TypeError(
            f"The action space must be a one-dimensional Box or a Discrete; got {space}. Wrap the world so that its "
            "actions are one of these, for example by numbering the combinations of a MultiDiscrete."
        )

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> "ActionLaw":
        """What `dataclasses.asdict` gave, back from JSON."""
        return cls(tuple(data["low"]), tuple(data["high"]), data["count"])

    @classmethod
    def of_file(cls, path: Path | str, header: Mapping[str, Any]) -> "ActionLaw":
        """The law of a saved model, which must see actions as it did when it was fitted: format 1 had them unscaled."""
        law = cls.from_plain(header["law"])
        if header["format"] == 1 and not (law.count or law.is_unit):
            span = f"from {list(law.low)} to {list(law.high)}"
            raise ValueError(f"{path} has format 1, whose model saw actions {span} unscaled; fit it again.")
        return law

    @classmethod
    def from_data(cls, action: Tensor) -> "ActionLaw":
        """The law where no space is given: integers [N] are discrete actions, else the smallest box around the data."""
        if action.dim() == 1:
            negative = (action.long() < 0).nonzero()
            if len(negative):
                row = int(negative[0, 0])
                raise ValueError(f"action holds {int(action[row])} in row {row}; discrete actions start at 0.")
            return cls(count=int(action.long().max()) + 1)
        if not action.is_floating_point():
            raise ValueError(
                f"action holds whole numbers [N, {action.shape[1]}]: give discrete actions as integers [N], or say by "
                "action_space=Box(...) that they are continuous."
            )
        low, high = action.double().amin(0).tolist(), action.double().amax(0).tolist()
        return cls(tuple(low), tuple(high))

    def check(self, name: str, action: Tensor) -> None:
        """Refuses actions that are not of this space, naming the first row; warns of those outside a box's bounds."""
        if self.count:
            action = action if action.is_floating_point() else action.long()
            if action.is_floating_point() and bool((action != action.round()).any()):
                raise ValueError(f"{name} holds fractions; discrete actions are integers from 0 to {self.count - 1}.")
            bad = ((action < 0) | (action >= self.count)).nonzero()
            if len(bad):
                value, row = action[tuple(bad[0])].item(), bad[0, 0].item()
                raise ValueError(f"{name} holds {value} in row {row}; discrete actions run from 0 to {self.count - 1}.")
            if name == "action" and action.dim() != 1:
                raise ValueError(f"{name} has shape {list(action.shape)}; a discrete action space takes integers [N].")
            return
        if action.dim() < 2 or action.shape[-1] != self.size:
            shape = list(action.shape)
            raise ValueError(f"{name} has shape {shape}, but the action space has {self.size} dimension(s).")
        rows, margin = action.reshape(-1, self.size).double(), 1e-5
        low, high = rows.new_tensor(self.low), rows.new_tensor(self.high)
        outside = ((rows < low - margin) | (rows > high + margin)).any(0).nonzero().flatten().tolist()
        if outside:
            warnings.warn(
                f"{name} leaves the action space in column(s) {outside}: is it the right space?", stacklevel=3
            )

    def encode(self, action: Tensor) -> Tensor:
        """Actions as the model sees them, whatever their units: a box's from -1 to 1, discrete ones one-hot.

        A number that the bounds leave no choice about is 0. [..., A] or [...] -> [..., size].
        """
        if self.count:
            return torch.nn.functional.one_hot(action.long(), self.count).float()
        if self.is_unit:
            return action.float()
        middle, half = _frame(self.low, self.high, action.device)
        return torch.where(half > 0, (action - middle) / half, 0.0).float()

    def decode(self, encoded: Tensor) -> Tensor:
        """The inverse of `encode`."""
        if self.count:
            return encoded.argmax(-1)
        if self.is_unit:
            return encoded
        middle, half = _frame(self.low, self.high, encoded.device)
        return (middle + half * encoded).float().clamp(*self.bounds(encoded.device))  # rounding must not leave the box

    @property
    def is_unit(self) -> bool:
        """Whether the bounds are -1 and 1 in every dimension."""
        return set(self.low) == {-1.0} and set(self.high) == {1.0}

    def draw(self, states: int, actions: int, generators: Sequence[torch.Generator], extreme: float = 0.0) -> Tensor:
        """Independent actions for each state, encoded, one stream a replica -> [generators, states, actions, size].

        They are uniform, or, in the mean, an `extreme` share of their numbers is at a bound of the box.
        """
        unit = torch.stack([torch.rand(states, actions, self.size, generator=g, device=g.device) for g in generators])
        return self._stretch(unit, extreme)

    def shared(self, actions: int, seed: int, device: torch.device, extreme: float = 0.0) -> Tensor:
        """One set for all states, encoded: every discrete action, or a scrambled Sobol set: [1, 1, actions, size]."""
        if self.count:
            return torch.eye(self.count, device=device)[None, None]
        unit = torch.quasirandom.SobolEngine(self.size, scramble=True, seed=seed).draw(actions)
        return self._stretch(unit.to(device), extreme)[None, None]

    def bounds(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """`low` and `high` in float32 [size], within the box also where it is one of float64, as from -0.1 to 0.1."""
        return _rounded_inwards(self.low, self.high, device)

    def _stretch(self, unit: Tensor, extreme: float) -> Tensor:
        """Numbers in [0, 1) to -1 to 1; from a wider range, of which the `extreme` share is outside, clipped to it."""
        if extreme:
            unit = ((unit - 0.5) / max(1 - extreme, 1e-6) + 0.5).clamp(0, 1)
        drawn = 2 * unit - 1
        if any(low == high for low, high in zip(self.low, self.high, strict=True)):  # no choice there
            drawn = drawn * (_frame(self.low, self.high, unit.device)[1] > 0)
        return drawn


@cache
def _frame(low: tuple[float, ...], high: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """The middle of a box and half its width, in float64, so that an offset does not matter.

    They are made once: a graph of a GPU's work cannot copy them from the host.
    """
    lowest, highest = torch.tensor([low, high], dtype=torch.float64, device=device)
    return (lowest + highest) / 2, (highest - lowest) / 2


@cache
def _rounded_inwards(low: tuple[float, ...], high: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """The bounds of a box in float32, none beyond its own; both are the lower one where no number lies between."""
    lowest, highest = torch.tensor([low, high], dtype=torch.float64, device=device)
    above, below = lowest.float(), highest.float()
    above = torch.where(above < lowest, above.nextafter(torch.full_like(above, torch.inf)), above)
    below = torch.where(below > highest, below.nextafter(torch.full_like(below, -torch.inf)), below)
    return above, torch.maximum(above, below)


Bounds = tuple[Tensor, Tensor]
"""The lowest and the highest action, [A] each."""


def from_unit(action: Tensor, bounds: Bounds) -> Tensor:
    """Actions in [-1, 1], as an agent's network gives them, in the bounds of the world's action space."""
    low, high = bounds
    return ((low + high) / 2 + (high - low) / 2 * action).clamp(low, high)  # rounding must not leave the bounds


def to_unit(action: Tensor, bounds: Bounds) -> Tensor:
    """The inverse of `from_unit`."""
    low, high = bounds
    return (2 * action - low - high) / (high - low)
