"""Weight files of `Influence`, signals and agents: safetensors with a JSON header that names their kind and format."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from butfor.models.tables import Units
from butfor.runs.files import load_tensors, save_tensors
from butfor.spaces.actions import ActionLaw


def save_weights(
    path: Path | str, kind: str, version: int, tensors: Mapping[str, Tensor], header: Mapping[str, Any]
) -> None:
    """Write the tensors with a header that contains the `kind` of object and the `version` of its format."""
    save_tensors(path, tensors, {"kind": kind, "format": version} | dict(header))


@contextmanager
def reading_weights(path: Path | str, kind: str, version: int) -> Iterator[tuple[dict[str, Tensor], dict[str, Any]]]:
    """Give the tensors and the header of a file of this kind, to build the object in the `with` block.

    `version` is the newest format that the caller reads, besides all older ones. An error in the block shows that the
    tensors are not what the header describes, and becomes a ValueError that names the file.
    """
    tensors, header = load_tensors(path)
    if header.get("kind") != kind:
        raise ValueError(f"{path} contains the kind {header.get('kind')!r}; expected {kind!r}.")
    if header.get("format") not in range(1, version + 1):
        raise ValueError(f"{path} has format {header.get('format')}; this version of butfor reads 1 to {version}.")
    try:
        yield tensors, header
    except ValueError as error:
        raise ValueError(f"{path} cannot be loaded: {error}") from error
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError) as error:
        raise ValueError(f"{path} does not contain the weights that its header describes: {error!r}") from error


def choose_replica(tensors: Mapping[str, Tensor], replicas: int, replica: int | None) -> dict[str, Tensor]:
    """The tensors of one of R replicas, [R * k, ...] -> [k, ...]; all of them for None."""
    if replica is None:
        return dict(tensors)
    if replica not in range(replicas):
        raise ValueError(f"There is no replica {replica}; the file has {replicas}, counted from 0.")
    return {name: value.unflatten(0, (replicas, -1))[replica] for name, value in tensors.items()}


def units_of_header(header: Mapping[str, Any]) -> Units:
    """The units of a saved network. Networks of format 1 saw actions unscaled, which is no longer supported."""
    law = ActionLaw.from_plain(header["law"])
    if header["format"] == 1 and not (law.count or law.is_unit):
        raise ValueError(f"Its network (format 1) saw actions in {law.low} to {law.high} unscaled; fit it again.")
    return Units(law, header["entities"], header["scale"], header["obs_center"], header["obs_spread"])
