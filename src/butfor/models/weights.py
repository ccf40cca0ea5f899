"""Weight files of `Influence`, signals and agents: safetensors with a JSON header that names their kind and format."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from butfor.models.tables import Units, target_columns
from butfor.runs.files import load_tensors, save_tensors
from butfor.spaces.actions import ActionLaw
from butfor.spaces.entities import entity_columns

Network = TypeVar("Network", bound=nn.Module)


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
    if type(header.get("format")) is not int or header["format"] not in range(1, version + 1):
        raise ValueError(f"{path} has format {header.get('format')}; this version of butfor reads 1 to {version}.")
    if not tensors:
        raise ValueError(f"{path} contains no weights.")
    try:
        yield tensors, header
    except ValueError as error:
        raise ValueError(f"{path} cannot be loaded: {error}") from error
    except Exception as error:  # a header that somebody made up can fail in many ways
        raise ValueError(f"{path} does not contain the weights that its header describes: {error!r}") from error


def choose_replica(tensors: Mapping[str, Tensor], replicas: int, replica: int | None) -> dict[str, Tensor]:
    """The tensors of one of R replicas, [R * k, ...] -> [k, ...]; all of them for None."""
    if replica is None:
        return dict(tensors)
    if replica not in range(replicas):
        raise ValueError(f"There is no replica {replica}; the file has {replicas}, counted from 0.")
    return {name: value.unflatten(0, (replicas, -1))[replica] for name, value in tensors.items()}


def build_network(build: Callable[[], Network], layers: int, tensors: Mapping[str, Tensor]) -> Network:
    """Build a network with the weights of a file, after a comparison of all shapes.

    Args:
        build: makes the network that the header describes; it is first called on torch's meta device, where a network
            of any size takes no memory.
        layers: how many it has, by the header.
        tensors: the weights by name.

    Raises:
        ValueError: the file has other tensors than the network.
    """
    if layers > len(tensors):
        raise ValueError(f"its header describes {layers:,} layers, but it has {len(tensors)} tensors.")
    with torch.device("meta"):  # where no memory is taken
        wanted = {name: list(value.shape) for name, value in build().state_dict().items()}
    found = {name: list(value.shape) for name, value in tensors.items()}
    if found != wanted:
        name = min(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
        raise ValueError(f"{name} has shape {found.get(name)}; its header describes {wanted.get(name)}.")
    network = build()
    network.load_state_dict(tensors)
    return network


def units_of_header(header: Mapping[str, Any]) -> Units:
    """The units of a saved network, all of them checked.

    Networks of format 1 saw actions unscaled, which is no longer supported.
    """
    law = ActionLaw.from_plain(header["law"])
    if header["format"] == 1 and not (law.count or law.is_unit):
        raise ValueError(f"Its network (format 1) saw actions in {law.low} to {law.high} unscaled; fit it again.")
    size = whole_number(header, "obs_size")
    entities = entity_columns(header["entities"], size)
    return Units(
        law,
        entities,
        _numbers(header, "scale", len(target_columns(entities)), positive=True),
        _numbers(header, "obs_center", size),
        _numbers(header, "obs_spread", size, positive=True),
    )


def whole_number(header: Mapping[str, Any], name: str, least: int = 1) -> int:
    """A whole number of a header."""
    value = header[name]
    if type(value) is not int or not least <= value < 2**63:
        raise ValueError(f"{name} is {value!r:.100}; expected a whole number from {least} to 2**63 - 1.")
    return value


def _numbers(header: Mapping[str, Any], name: str, count: int, positive: bool = False) -> list[float]:
    """A list of finite numbers of a header."""
    values = header[name]
    fits = isinstance(values, list) and len(values) == count and all(type(value) in (int, float) for value in values)
    if not fits or not all(math.isfinite(value) and (value > 0 or not positive) for value in values):
        kind = "positive numbers" if positive else "finite numbers"
        raise ValueError(f"{name} is {values!r:.100}; expected {count} {kind}.")
    return [float(value) for value in values]
