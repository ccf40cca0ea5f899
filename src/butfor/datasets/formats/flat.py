"""Files with one row per step for all episodes: .npz files (OGBench and others) and D4RL's HDF5 files."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from butfor.datasets.files import NAMES, read_npz
from butfor.datasets.formats.dataset import Arrays, Column, Dataset, Segment, describe_left_out
from butfor.datasets.formats.hdf5 import column_of, import_h5py, leaves, read_array
from butfor.datasets.recording import Recording, Table, read_arrays
from butfor.runs.arrays import open_arrays
from butfor.runs.memory import Allowance


@dataclass
class FlatFile(Dataset):
    """Arrays with one row per step, in an .npz or HDF5 file; flags or lengths show where episodes end."""

    found: dict[str, str] = field(default_factory=dict)
    """arrays by their meaning: `action`, `terminals` and so on, as in `butfor.datasets.files.NAMES`"""
    nexts: dict[str, str] = field(default_factory=dict)
    """the array of next observations that belongs to each array of observations"""

    @property
    def is_npz(self) -> bool:
        """Whether it is an .npz file, not an HDF5 file."""
        return not self.kind.startswith("D4RL")

    def read(self, names: Sequence[str]) -> Iterator[Arrays]:
        arrays = self._load(names)
        first = np.cumsum(self.rows) - self.rows
        for start, rows in zip(first, self.rows, strict=True):
            yield {name: array[start : start + rows] for name, array in arrays.items()}

    def recording(self, observe: Sequence[str] = (), ignore: Sequence[str] = ()) -> Recording:
        names = self.observed(observe, ignore)
        found = self.found
        has_next = set(names) <= set(self.nexts)
        given = self._load(dict.fromkeys([*names, *found.values(), *(self.nexts[name] for name in names if has_next)]))
        nexts = {self.part(name): given[self.nexts[name]] for name in names} if has_next else None
        observation = {self.part(name): given[name] for name in names}
        return read_arrays(
            observation[""] if list(observation) == [""] else observation,
            given[found["action"]],
            nexts[""] if nexts is not None and list(nexts) == [""] else nexts,
            source=str(self.path),
            **{name: given[found[name]] for name in ("terminals", "timeouts", "length", "sampled") if name in found},
        )

    def _load(self, names: Any) -> Arrays:
        if self.is_npz:
            with open_arrays(self.path) as file:
                return {name: file[name] for name in names}
        with import_h5py().File(self.path, "r") as file:
            allowance = Allowance()
            return {name: read_array(file[name], allowance) for name in names}

    def _write(self, temporary: Path, segments: Sequence[Segment], added: Mapping[str, Sequence[Table]]) -> None:
        if self.last == "own":
            raise ValueError(
                f"{self.path} has more observations than actions, so its arrays have no common rows; write scores "
                "alone to an .npz file, or save next_observations."
            )
        starts = np.cumsum(self.rows) - self.rows
        kept = np.concatenate([np.arange(starts[place] + a, starts[place] + b) for place, a, b in segments])
        ends = np.zeros(len(kept), bool)
        ends[np.cumsum([b - a for _, a, b in segments]) - 1] = True
        total = int(self.rows.sum())
        new = {name: np.concatenate([values[place][a:b] for place, a, b in segments]) for name, values in added.items()}
        found = self.found
        is_cut = list(segments) != self.whole()
        flags = {found[name] for name in ("timeouts", "terminals") if name in found}

        def chosen(name: str, array: Any) -> Any:
            """The kept rows of an array; cut episodes end at their new last row."""
            if name == found.get("length"):
                return np.array([b - a for _, a, b in segments], array.dtype)
            if np.ndim(array) == 0 or len(array) != total:
                return array
            rows = array[kept]
            if is_cut and name in flags and name == found.get("timeouts", found.get("terminals")):
                rows = np.where(ends.reshape(-1, *[1] * (rows.ndim - 1)), np.ones(1, rows.dtype), rows)
            return rows

        if self.is_npz:
            with open_arrays(self.path) as file:
                arrays = {name: chosen(name, array) for name, array in file.items()}
            with temporary.open("wb") as target:
                np.savez_compressed(target, allow_pickle=False, **arrays, **new)
            return
        h5py = import_h5py()
        with h5py.File(self.path, "r") as source, h5py.File(temporary, "w") as copy:
            copy.attrs.update(dict(source.attrs))
            for name, array in leaves(source).items():
                rows = chosen(name, read_array(array, Allowance()))  # one array at a time
                copy.create_dataset(name, data=rows).attrs.update(dict(array.attrs))
            for name, values in new.items():
                copy.create_dataset(name, data=values)


@dataclass
class EpisodeFile(Dataset):
    """An episode file of butfor, or another .npz file with padded episodes [E, T, ...]."""

    def recording(self, observe: Sequence[str] = (), ignore: Sequence[str] = ()) -> Recording:
        if observe:
            raise ValueError(f"{self.path} has padded episodes, of which only observation is read; omit --observe.")
        return read_npz(self.path, ignore)

    def read(self, names: Sequence[str]) -> Iterator[Arrays]:
        with open_arrays(self.path) as file:
            arrays = {name: file[name] for name in names}
        for place, rows in enumerate(self.rows):
            yield {name: array[place, : rows + (array.shape[1] > rows)] for name, array in arrays.items()}

    def _write(self, temporary: Path, segments: Sequence[Segment], added: Mapping[str, Sequence[Table]]) -> None:
        if any((first, last) != (0, self.rows[place]) for place, first, last in segments):
            raise ValueError(f"{self.path} has padded episodes, of which only whole ones can be kept.")
        order = np.array([place for place, _, _ in segments])
        with open_arrays(self.path) as file:
            arrays = dict(file)
        steps = next(array.shape[1] for name, array in arrays.items() if name in NAMES["action"])
        for name, values in added.items():
            arrays[name] = np.zeros((len(self), steps), np.float32)
            for place, value in enumerate(values):
                arrays[name][place, : self.rows[place]] = value[: self.rows[place]]
        for name, array in arrays.items():
            if array.ndim and len(array) == len(self):
                arrays[name] = array[order]
        with temporary.open("wb") as target:
            np.savez_compressed(target, allow_pickle=False, **arrays)


def open_npz(path: Path) -> FlatFile | EpisodeFile:
    """Open an .npz file; reads it once to find its episodes."""
    try:
        with open_arrays(path) as file:
            headers = {name: file.header(name) for name in file}
        columns = {name: Column(header.shape[1:], header.dtype.name) for name, header in headers.items()}
        names = list(headers)
    except Exception as error:  # a damaged file can fail in many ways
        raise ValueError(f"{path} is not a valid .npz file ({error}); save arrays with numpy.savez.") from error
    found = _meanings(names)
    is_own = "schema_version" in names
    if {"observation", "action"} <= set(found) and (is_own or len(columns[found["action"]].shape) == 2):
        recording = read_npz(path)
        return EpisodeFile(
            path, "episodes of butfor" if is_own else "padded .npz", columns, recording.length,
            (found["observation"],), (found["action"],), "own", found["observation"],
            tasks=_episode_task(path, len(recording)), action_space=recording.action_space,
        )  # fmt: skip
    is_ogbench = {"observations", "actions", "terminals"} <= set(names) and "next_observations" not in names
    kind = "OGBench .npz" if is_ogbench and {"qpos", "button_states"} & set(names) else ".npz"
    return _flat_file(path, kind, columns, found)


def open_d4rl(path: Path) -> FlatFile | None:
    """Open an HDF5 file with one row per step; None for another layout."""
    with import_h5py().File(path, "r") as file:
        arrays = leaves(file)
        columns = {name: column_of(array) for name, array in arrays.items()}
    found = _meanings(list(columns))
    return _flat_file(path, "D4RL HDF5", columns, found) if {"observation", "action"} <= set(found) else None


def _flat_file(path: Path, kind: str, columns: dict[str, Column], found: dict[str, str]) -> FlatFile:
    if missing := [name for name in ("observation", "action") if name not in found]:
        expected = " or ".join(NAMES[missing[0]])
        raise ValueError(f"{path} has no array {expected}; it has {', '.join(columns) or 'none'}. Rename or add it.")
    first = found["observation"]
    observe = tuple(name for name in columns if name == first or name.startswith(f"{first}/"))
    prefix = first if observe == (first,) else f"{first}/"
    named = {meaning: name for meaning, name in found.items() if meaning not in ("observation", "next_observation")}
    after = found.get("next_observation", "")
    nexts = {name: name.replace(first, after, 1) for name in observe if after}
    dataset = FlatFile(
        path, kind, columns, np.zeros(0, np.int64), observe, (found["action"],), "next" if nexts else "row", prefix,
        notes=describe_left_out(columns, observe), found=named, nexts=nexts,
    )  # fmt: skip
    recording = dataset.recording()
    if not nexts and len(recording.action) == len(dataset._load([found["action"]])[found["action"]]):
        dataset.last = "own"
    dataset.rows = recording.length + (dataset.last == "row")
    return dataset


def _meanings(names: Sequence[str]) -> dict[str, str]:
    """The arrays by their meaning; of the parts `observations/arm`, the name before the slash."""
    heads = [name.split("/")[0] for name in names]
    return {meaning: name for meaning, known in NAMES.items() for name in known[::-1] if name in heads}


def _episode_task(path: Path, episodes: int) -> tuple[str, ...]:
    """The environment in the metadata of an episode file, for each episode."""
    with open_arrays(path) as file:
        about = json.loads(str(file["metadata"])) if "metadata" in file else {}
    task = about.get("config", {}).get("env", "") if isinstance(about, dict) else ""
    return (str(task),) * episodes if task else ()
