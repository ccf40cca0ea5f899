"""The law of random actions: the uniform distribution over an action space that CAI averages over."""

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import gymnasium
import torch
from torch import Tensor

from butfor.spaces.arrays import warn_user

MOST_ACTIONS = 1_000  # discrete actions: each one is tried in each state
FEW = 20  # rows of a discrete action below which it is reported as rare, if they are also below a fifth of its share
Bounds = tuple[Tensor, Tensor]
"""The lowest and the highest action, [A] each."""


@dataclass(frozen=True)
class ActionLaw:
    """The uniform law over a box from `low` to `high`, or over `count` discrete actions, numbered from 0.

    Networks do not see actions in their own units but encoded: a box as [-1, 1], discrete actions one-hot.
    """

    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    count: int = 0

    def __post_init__(self) -> None:
        sides = zip(self.low, self.high, strict=False)
        if len(self.low) != len(self.high) or not all(math.isfinite(b - a) and a <= b for a, b in sides):
            raise ValueError(
                f"The actions are bounded by {self.low} and {self.high}; expected finite numbers, none of the lower "
                "bounds above the upper one."
            )
        if bool(self.low) == bool(self.count) or self.count < 0:
            raise ValueError(f"An action has {len(self.low)} columns and {self.count} choices; expected one of both.")
        if self.count > MOST_ACTIONS:
            raise ValueError(
                f"There are {self.count:,} discrete actions, 0 to {self.count - 1:,}; at most {MOST_ACTIONS:,} can be "
                "compared, because each is tried in each state. Give continuous actions as floats [N, A], or number "
                "discrete ones from 0 without gaps."
            )

    @property
    def size(self) -> int:
        """The number of columns of an encoded action."""
        return self.count or len(self.low)

    @property
    def is_unit(self) -> bool:
        """Whether the bounds are -1 and 1 in every dimension."""
        return set(self.low) == {-1.0} and set(self.high) == {1.0}

    @classmethod
    def from_space(cls, space: gymnasium.Space[Any]) -> "ActionLaw":
        """The uniform law over a `Discrete` space or a bounded one-dimensional `Box`."""
        if isinstance(space, gymnasium.spaces.Discrete):
            if space.start != 0:
                raise ValueError(f"The discrete action space starts at {space.start}; shift its actions to start at 0.")
            return cls(count=int(space.n))
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
            raise TypeError(
                f"The action space must be a one-dimensional Box or a Discrete; got {space}. Wrap the environment, for "
                "example to number the combinations of a MultiDiscrete."
            )
        if not space.shape[0] or not space.is_bounded():
            raise ValueError(f"The action space {space} must have at least one dimension and finite bounds.")
        return cls(tuple(space.low.astype(float).tolist()), tuple(space.high.astype(float).tolist()))

    @classmethod
    def from_data(cls, action: Tensor) -> "ActionLaw":
        """The law over 0 to the largest of integers [N], or over the smallest box around [N, A]."""
        if action.dim() == 1:
            return cls(count=max(0, int(action.long().max())) + 1)
        if not action.is_floating_point():
            raise ValueError(
                f"action contains integers of shape [N, {action.shape[1]}]; give discrete actions as integers [N], or "
                "continuous ones as floats or with action_space=Box(...)."
            )
        return cls(tuple(action.double().amin(0).tolist()), tuple(action.double().amax(0).tolist()))

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> "ActionLaw":
        """The inverse of `dataclasses.asdict`, after JSON."""
        low, high = (tuple(float(bound) for bound in data[side]) for side in ("low", "high"))
        return cls(low, high, operator.index(data["count"]))

    def check(self, name: str, action: Tensor) -> None:
        """Refuse actions that are not of this space, naming the first row; warn of actions outside the bounds."""
        if self.count:
            if not action.is_floating_point():
                action = action.long()  # unsigned integers cannot be compared
            bad = ((action < 0) | (action >= self.count) | (action != action.round())).nonzero()
            if len(bad):
                value = action[tuple(bad[0])].item()
                known = f"discrete actions are integers from 0 to {self.count - 1}"
                raise ValueError(f"{name} is {value} in row {bad[0, 0].item()}; {known}.")
            if name == "action" and action.dim() != 1:
                raise ValueError(f"{name} has shape {list(action.shape)}; discrete actions are integers [N].")
            return
        if action.dim() < 2 or action.shape[-1] != self.size:
            raise ValueError(f"{name} has shape {list(action.shape)}; the action space has {self.size} dimension(s).")
        rows = action.reshape(-1, self.size).double()
        margin = 1e-5
        outside = (rows < rows.new_tensor(self.low) - margin) | (rows > rows.new_tensor(self.high) + margin)
        if outside.any():
            columns = outside.any(0).nonzero().flatten().tolist()
            warn_user(f"{name} is outside the action space in column(s) {columns}; check the space.")

    def encode(self, action: Tensor) -> Tensor:
        """[..., A] or integers [...] -> [..., size], as networks see them; 0 where both bounds are the same number."""
        if self.count:
            return torch.nn.functional.one_hot(action.long(), self.count).float()
        if self.is_unit:
            return action.float()
        center, half_width = _center_and_half_width(self, action.device)
        return torch.where(half_width > 0, (action - center) / half_width, 0.0).float()

    def decode(self, encoded: Tensor) -> Tensor:
        """The inverse of `encode`."""
        if self.count:
            return encoded.argmax(-1)
        center, half_width = _center_and_half_width(self, encoded.device)
        action = (center + half_width * encoded).float()
        return action.clamp(*self.bounds(encoded.device))  # rounding must not leave the box

    def draw(self, states: int, actions: int, generators: Sequence[torch.Generator], extreme: float = 0.0) -> Tensor:
        """Draw encoded actions for each state, one stream per replica -> [generators, states, actions, size].

        On average a share `extreme` of their numbers is at a bound of the box, the others are uniform.
        """
        unit = torch.stack([torch.rand(states, actions, self.size, generator=g, device=g.device) for g in generators])
        return self._stretch(unit, extreme)

    def draw_shared(self, actions: int, seed: int, device: torch.device, extreme: float = 0.0) -> Tensor:
        """One encoded set for all states: every discrete action, or a scrambled Sobol set [1, 1, actions, size]."""
        if self.count:
            return torch.eye(self.count, device=device)[None, None]
        unit = torch.quasirandom.SobolEngine(self.size, scramble=True, seed=seed).draw(actions)
        return self._stretch(unit.to(device), extreme)[None, None]

    def bounds(self, device: torch.device) -> Bounds:
        """`low` and `high` in float32 [A], rounded so that they stay inside a box of float64 such as [-0.1, 0.1]."""
        return _bounds_in_float32(self, device)

    def _stretch(self, unit: Tensor, extreme: float) -> Tensor:
        """Map [0, 1) to [-1, 1]; with `extreme`, from a wider interval of which that share is outside and clipped."""
        if extreme:
            unit = ((unit - 0.5) / max(1 - extreme, 1e-6) + 0.5).clamp(0, 1)
        drawn = 2 * unit - 1
        if any(low == high for low, high in zip(self.low, self.high, strict=True)):
            drawn = drawn * (_center_and_half_width(self, unit.device)[1] > 0)
        return drawn


# Both are cached so that the tensors exist before a CUDA graph is captured, which cannot copy them from the host.
@cache
def _center_and_half_width(law: ActionLaw, device: torch.device) -> Bounds:
    """In float64, so that a large offset of the box costs no digits: [A] each."""
    lowest, highest = torch.tensor([law.low, law.high], dtype=torch.float64, device=device)
    return (lowest + highest) / 2, (highest - lowest) / 2


@cache
def _bounds_in_float32(law: ActionLaw, device: torch.device) -> Bounds:
    """Rounded towards the inside of the box; both are the lower one where no float32 lies between them."""
    lowest, highest = torch.tensor([law.low, law.high], dtype=torch.float64, device=device)
    above, below = lowest.float(), highest.float()
    above = torch.where(above < lowest, above.nextafter(torch.full_like(above, torch.inf)), above)
    below = torch.where(below > highest, below.nextafter(torch.full_like(below, -torch.inf)), below)
    return above, torch.maximum(above, below)


def from_unit(action: Tensor, bounds: Bounds) -> Tensor:
    """Map an agent's actions from [-1, 1] to the bounds of the environment's action space."""
    low, high = bounds
    return ((low + high) / 2 + (high - low) / 2 * action).clamp(low, high)  # rounding must not leave the bounds


def to_unit(action: Tensor, bounds: Bounds) -> Tensor:
    """The inverse of `from_unit`."""
    low, high = bounds
    return (2 * action - low - high) / (high - low)


def warn_untried(law: ActionLaw, action: Tensor) -> bool:
    """Warn of actions that never or hardly occur in the data; return whether there are any."""
    rare: list[int] = []
    if law.count > 1:
        counts = torch.bincount(action.long(), minlength=law.count)
        never = (counts == 0).nonzero().flatten().tolist()
        rare = ((counts > 0) & (counts < min(FEW, len(action) / law.count / 5))).nonzero().flatten().tolist()
        missing = f"Discrete action(s) {_first_ten(never)} never occur"
    elif law.count == 1:
        never = [0]
        missing = "There is only one action, so actions never vary"
    else:
        never = (action == action[0]).all(0).nonzero().flatten().tolist()
        missing = f"Action column(s) {never} never vary"
    if rare:
        warn_user(
            f"Discrete action(s) {_first_ten(rare)} occur in fewer than {FEW} of {len(action):,} rows each. Their "
            "effect is hardly known and may look like influence; collect more of them."
        )
    if never:
        warn_user(f"{missing} in the data, so their effect is unknown; collect varied actions.")
    return bool(never or rare)


def describe_mismatch(law: ActionLaw, env_law: ActionLaw) -> str | None:
    """A sentence if an `Influence` with this law does not fit the environment's actions; a smaller box does fit."""
    if (law.count, law.size) == (env_law.count, env_law.size):
        sides = zip(law.low, law.high, env_law.low, env_law.high, strict=True)
        if all(max(c - a, b - d) <= 1e-6 * max(abs(c), abs(d)) for a, b, c, d in sides):  # except for rounding
            return None
    return f"The Influence was fitted for {_in_words(law)}; the environment has {_in_words(env_law)}."


def _first_ten(numbers: list[int]) -> str:
    return f"{numbers[:10]}{f' and {len(numbers) - 10} more' if len(numbers) > 10 else ''}"


def _in_words(law: ActionLaw) -> str:
    if law.count:
        return f"{law.count} discrete actions"
    low, high = (", ".join(f"{bound:g}" for bound in side) for side in (law.low, law.high))
    return f"actions from [{low}] to [{high}]"
