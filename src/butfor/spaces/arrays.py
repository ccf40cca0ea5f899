"""Arrays from outside: numpy or torch, checked with sentences that name the offending row or column."""

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from butfor.spaces.entities import Entities, entity_columns

Array = np.ndarray[Any, Any] | Tensor
FEWEST_TRANSITIONS = 100


def to_tensor(name: str, value: Any) -> Tensor:
    """A numpy or torch array (or nested lists) of real numbers as a tensor; other types are refused."""
    if isinstance(value, Tensor):
        if value.is_complex():
            raise TypeError(f"{name} has type {value.dtype}; expected an array of real numbers.")
        return value.detach()
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} is not an array: its rows have different lengths.") from error
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} has type {array.dtype}; expected an array of real numbers.")
    kind = np.float64 if array.dtype.itemsize > 8 else array.dtype.newbyteorder("=")
    array = np.ascontiguousarray(array, dtype=kind).reshape(array.shape)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def like(result: Tensor, given: Any) -> Any:
    """The result as the kind that was given: torch for torch (on its device), else numpy."""
    return result.to(given.device) if isinstance(given, Tensor) else result.cpu().numpy()


def check_finite_rows(name: str, value: Tensor) -> None:
    """Refuses NaN and what is infinite in single precision, naming the first place."""
    bad = (~torch.isfinite(value.float())).nonzero()
    if len(bad):
        row, *rest = bad[0].tolist()
        column = f", column {rest[-1]}" if rest else ""
        rows = len(bad[:, 0].unique())
        raise ValueError(f"{name} holds NaN or infinity in {rows} row(s), first at row {row}{column}; remove them.")


def check_table(name: str, value: Any, columns: int | None = None) -> Tensor:
    """A finite table [N, columns] as float (its precision kept)."""
    table = to_tensor(name, value)
    expected = f"[N, {columns if columns is not None else 'D'}]"
    if table.dim() != 2 or (columns is not None and table.shape[1] != columns):
        raise ValueError(f"{name} has shape {list(table.shape)}; expected {expected}, one row a state.")
    check_finite_rows(name, table)
    return table if table.is_floating_point() else table.double()


def change_rounding(obs: Tensor, next_obs: Tensor) -> Tensor:
    """How much the change next_obs - obs of each column may vary by rounding alone: [N, d] -> [d]."""
    epsilon = max(torch.finfo(table.dtype).eps for table in (obs, next_obs))
    return 4 * epsilon * torch.maximum(obs.abs(), next_obs.abs()).amax(0)


def check_entities(entities: Entities, obs: Tensor, next_obs: Tensor) -> dict[str, list[int]]:
    """Read the entities' columns by `entity_columns`; warn of columns whose change never varies in the data [N, D]."""
    found = entity_columns(entities, obs.shape[1])
    for name, columns in found.items():
        change = next_obs[:, columns] - obs[:, columns]
        fixed = change.amax(0) - change.amin(0) <= change_rounding(obs[:, columns], next_obs[:, columns])
        constant = [column for column, is_fixed in zip(columns, fixed, strict=True) if is_fixed]
        if constant:
            warnings.warn(
                f"Column(s) {constant} of entity {name!r} change by the same amount in every transition, so no "
                "influence on them can be found.",
                stacklevel=3,
            )
    return found


def check_transitions(
    obs: Any, action: Any, next_obs: Any, fewest: int = FEWEST_TRANSITIONS
) -> tuple[Tensor, Tensor, Tensor]:
    """Transitions obs [N, D], action [N, A] or integers [N], next_obs [N, D]: same length, finite, enough of them."""
    obs = check_table("obs", obs)
    next_obs = check_table("next_obs", next_obs, obs.shape[1])
    action = to_tensor("action", action)
    action = action.long() if action.dtype == torch.bool else action  # false is action 0, true is 1
    check_finite_rows("action", action)
    if action.dim() == 1 and bool((action != action.round()).any()):
        raise ValueError(
            "action has shape [N] and holds fractions; give one continuous number as action[:, None], that is [N, 1], "
            "and discrete actions as integers [N]."
        )
    if action.dim() not in (1, 2) or action.shape[1:] == (0,):
        raise ValueError(f"action has shape {list(action.shape)}; expected [N, A], or integers [N].")
    if action.dim() == 1:
        action = action.long()
    if not len(obs) == len(action) == len(next_obs):
        lengths = f"{len(obs)}, {len(action)} and {len(next_obs)}"
        raise ValueError(f"obs, action and next_obs have {lengths} rows; they must have the same number.")
    if len(obs) < fewest:
        raise ValueError(f"{len(obs)} transitions are too few to learn from; give at least {fewest}.")
    return obs, action, next_obs
