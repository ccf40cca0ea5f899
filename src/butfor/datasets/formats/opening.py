"""Open a dataset of any format, recognised by its content."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from butfor.datasets.files import DATASET_ID, minari_folder, minari_root
from butfor.datasets.formats.dataset import Column, Dataset, as_its_format, describe_left_out
from butfor.datasets.formats.flat import open_d4rl, open_npz
from butfor.datasets.formats.hdf5 import DESCRIPTIONS, SIGNATURE, open_hdf5
from butfor.datasets.formats.lerobot import is_lerobot, open_lerobot
from butfor.datasets.formats.tables import BEGINNINGS, import_pyarrow, open_table, table_dataset
from butfor.runs.files import read_json
from butfor.spaces.observations import is_image

FORMATS = (
    "a LeRobot folder (v2.0, v2.1, v3.0), a robomimic, LIBERO, ManiSkill or D4RL HDF5 file, a Minari dataset, an .npz "
    "file (OGBench and others), a Parquet or Feather table, or a folder of Parquet tables"
)


def open_dataset(source: Any) -> Dataset:
    """Open a dataset of any format that is read; its content, not its name, shows the format.

    Args:
        source: a file, a folder, the id of a local Minari dataset, or a pandas DataFrame with an episode column.

    Returns:
        What the dataset contains; `recording()` reads it, `write()` writes a copy with columns added.

    Raises:
        FileNotFoundError: there is no such file, folder or Minari dataset.
        ValueError: it is of no known format, or damaged.
        ImportError: h5py or pyarrow is missing.
    """
    if is_frame(source):
        return _open_frame(source)
    path = Path(source)
    with as_its_format(path):
        return _open_path(path, source)


def _open_path(path: Path, source: Any) -> Dataset:
    if path.is_file():
        return _open_file(path)
    if path.is_dir() and is_lerobot(path):
        return open_lerobot(path)
    if path.is_dir() and not (path / "data" / "metadata.json").is_file():
        if any(path.rglob("*.parquet")):
            return open_table(path)
        raise ValueError(f"{path} is a folder without a dataset that is known; expected {FORMATS}.")
    return _open_minari(minari_folder(source))


def is_frame(source: Any) -> bool:
    """Whether data are a pandas DataFrame, not a path."""
    return hasattr(source, "iloc")


def _open_frame(frame: Any) -> Dataset:
    """Open a DataFrame; levels of its index that have names are columns, as `to_parquet` writes them."""
    index = getattr(frame, "index", None)
    levels = [name for name in getattr(index, "names", ()) if name is not None]
    columns = {str(name): index.get_level_values(name) for name in levels if index is not None}
    columns |= {str(name): frame[name] for name in frame.columns}
    pyarrow = import_pyarrow()
    # As in a file that pandas writes, NaN and NA are empty: of text and of integers, too.
    table = pyarrow.table({name: pyarrow.array(list(column), from_pandas=True) for name, column in columns.items()})
    return table_dataset(table, Path("DataFrame"), "pandas DataFrame")


def _open_file(path: Path) -> Dataset:
    with path.open("rb") as file:
        begins = file.read(len(SIGNATURE))
    if not begins:
        raise ValueError(f"{path} is empty (0 bytes); copy or download it again.")
    if begins == SIGNATURE:
        if (path.parent / "metadata.json").is_file() and path.name == "main_data.hdf5":
            return _open_minari(path.parent.parent)
        found = open_hdf5(path) or open_d4rl(path)
        if found is None:
            raise ValueError(f"{path} is an HDF5 file of no known layout; known are {DESCRIPTIONS}.")
        return found
    if begins[:2] == b"PK":
        return open_npz(path)
    if begins[:4] in BEGINNINGS:
        return open_table(path)
    raise ValueError(f"{path} is of no known format; expected {FORMATS}.")


def _open_minari(folder: Path) -> Dataset:
    """Open a Minari dataset; those that are not stored as HDF5 are read only by `read_minari`."""
    file = folder / "data" / "main_data.hdf5"
    if not file.is_file():
        raise ValueError(
            f"{folder} is a Minari dataset that is not stored as HDF5; score it with --out FILE.npz, without --observe."
        )
    found = open_hdf5(file)
    if found is None:
        raise ValueError(f"{file} has no episodes; download the dataset again.")
    found.path = folder
    found.action_space = _minari_action_space(folder)
    images = _minari_images(_minari_space(folder, "observation_space"), "observations")
    found.columns |= {name: Column(shape, "image") for name, shape in images.items() if name in found.columns}
    found.notes = describe_left_out(found.columns, found.observe)
    return found


def _minari_space(folder: Path, name: str) -> dict[str, Any]:
    """A space in the metadata of a Minari dataset; empty if there is none."""
    text = read_json(folder / "data" / "metadata.json").get(name) or {}
    given: dict[str, Any] = json.loads(text) if isinstance(text, str) else text
    return given


def _minari_images(space: Mapping[str, Any], path: str) -> dict[str, tuple[int, ...]]:
    """The shapes of images by column: Minari stores them compressed, as rows of bytes that do not show it."""
    if space.get("type") == "Dict":
        parts = (_minari_images(part, f"{path}/{name}") for name, part in space["subspaces"].items())
        return {name: shape for part in parts for name, shape in part.items()}
    shape = tuple(space.get("shape") or ())
    return {path: shape} if is_image(shape, space.get("dtype") == "uint8") else {}


def _minari_action_space(folder: Path) -> spaces.Space[Any] | None:
    """The action space in the metadata of a Minari dataset, if it is a bounded Box of one dimension or Discrete."""
    given = _minari_space(folder, "action_space")
    if given.get("type") == "Box" and len(given["shape"]) == 1:
        kind = np.dtype(given["dtype"]).type
        box = spaces.Box(np.array(given["low"], kind), np.array(given["high"], kind), dtype=kind)
        return box if box.is_bounded() else None
    if given.get("type") == "Discrete" and not given.get("start"):
        return spaces.Discrete(int(given["n"]))
    return None


def copy_path(dataset: Dataset, out: Path | str) -> Path:
    """Where a copy is written: a path, or for Minari an id in its folder."""
    if dataset.kind == "Minari" and not DATASET_ID.fullmatch(Path(out).name):
        raise ValueError(
            f"{str(out)!r} is not a valid id of a dataset, nor a folder with the name of one; both end in a version: "
            "mine/cube-v0."
        )
    is_id = dataset.kind == "Minari" and DATASET_ID.fullmatch(str(out)) and not Path(out).is_absolute()
    return minari_root() / str(out) if is_id else Path(out)


def default_copy(dataset: Dataset, word: str) -> Path:
    """A name beside the original: data.hdf5 -> data-cai.hdf5; a Minari dataset keeps its version at the end."""
    if dataset.kind == "Minari":
        match = re.fullmatch(r"(.+)-v(\d+)", dataset.path.name)
        stem, version = match.groups() if match else (dataset.path.name, "0")
        return dataset.path.with_name(f"{stem}-{word}-v{version}")
    suffix = "" if dataset.is_folder else dataset.path.suffix if dataset.path.is_file() else ".parquet"
    return dataset.path.with_name(f"{dataset.path.name.removesuffix(suffix)}-{word}{suffix}")
