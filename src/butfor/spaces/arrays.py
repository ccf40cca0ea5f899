"""Arrays from users, numpy or torch: converted to tensors and checked, with errors that name the row or column."""

import sys
import warnings
from collections.abc import Mapping, Sequence
from itertools import combinations
from types import FrameType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from butfor.spaces.entities import Entities, entity_columns

Array = np.ndarray[Any, Any] | Tensor
FEWEST_TRANSITIONS = 100
PART = 2**17  # rows that are looked at at a time


def warn_user(message: str) -> None:
    """Warn at the first line outside this library: that of the user whose call led here."""
    level = 1
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith(("butfor.", "contextlib")):
        level += 1
        frame = frame.f_back
    warnings.warn(message, stacklevel=level)


def warn_shared(entities: Mapping[str, Sequence[int]]) -> None:
    """Warn of entities that share columns: a sum of their influence counts what they share twice."""
    for first, second in combinations(entities, 2):
        if shared := sorted(set(entities[first]) & set(entities[second])):
            warn_user(
                f"The entities {first} and {second} share the columns {shared}, so the sum of their influence counts "
                "these twice. Combine them by max, or choose one of them."
            )


def to_tensor(name: str, value: Any) -> Tensor:
    """Convert an array, tensor or nested lists of real numbers to a tensor; refuse other types."""
    if isinstance(value, Tensor):
        if value.is_complex():
            raise TypeError(f"{name} has type {value.dtype}; expected an array of real numbers.")
        return value.detach().clone() if value.is_inference() else value.detach()  # else it could not be learned from
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ValueError(f"{name} is a masked array with {int(value.mask.sum())} masked values; remove or fill them.")
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
    """The result in the form of what was given: a tensor on its device for a tensor, else a numpy array."""
    return result.to(given.device) if isinstance(given, Tensor) else result.cpu().numpy()


def to_numpy(values: Any) -> NDArray[Any]:
    """An array or tensor as a numpy array."""
    return values.cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def check_finite_rows(name: str, value: Tensor) -> None:
    """Refuse NaN and numbers that are infinite in float32, naming the first place."""
    # part by part: the work on all rows at once would take more memory than the rows
    if all(torch.isfinite(part.float()).all() for part in value.split(PART)):
        return
    bad = (~torch.isfinite(value.float())).nonzero()
    row, *rest = bad[0].tolist()
    place = f"row {row}, column {rest[-1]}" if rest else f"row {row}"
    rows = len(bad[:, 0].unique())
    raise ValueError(f"{name} has NaN or infinite values in {rows} row(s), first at {place}; remove these rows.")


def check_table(name: str, value: Any, columns: int | None = None) -> Tensor:
    """Convert to a finite table of floats [N, columns], without a loss of precision."""
    table = to_tensor(name, value)
    if table.dim() != 2 or (columns is not None and table.shape[1] != columns):
        expected = f"[N, {columns if columns is not None else 'D'}]"
        raise ValueError(f"{name} has shape {list(table.shape)}; expected {expected}, one row per state.")
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
            warn_user(
                f"Column(s) {constant} of entity {name!r} change by the same amount in every transition, so no "
                "influence on them can be found."
            )
    return found


def check_transitions(
    obs: Any, action: Any, next_obs: Any, fewest: int = FEWEST_TRANSITIONS, columns: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Convert to obs [N, columns], action [N, A] or integers [N], next_obs: same length, finite, enough of them."""
    obs = check_table("obs", obs, columns)
    next_obs = check_table("next_obs", next_obs, obs.shape[1])
    action = to_tensor("action", action)
    if action.dtype == torch.bool:
        action = action.long()
    check_finite_rows("action", action)
    if action.dim() not in (1, 2) or action.shape[1:] == (0,):
        raise ValueError(f"action has shape {list(action.shape)}; expected [N, A], or integers [N].")
    if action.dim() == 1:
        if bool((action != action.round()).any()):
            raise ValueError(
                "action has shape [N] and fractions; give one continuous number as action[:, None], that is [N, 1], "
                "and discrete actions as integers [N]."
            )
        action = action.long()
    if not len(obs) == len(action) == len(next_obs):
        lengths = f"{len(obs)}, {len(action)} and {len(next_obs)}"
        raise ValueError(f"obs, action and next_obs have {lengths} rows; they must have the same number.")
    if len(obs) < fewest:
        raise ValueError(f"{len(obs)} transitions are too few to learn from; give at least {fewest}.")
    return obs, action, next_obs
