"""Files with one row per step for all episodes: .npz files (OGBench and others) and D4RL's HDF5 files."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from butfor.datasets.files import NAMES, read_npz
from butfor.datasets.formats.dataset import Arrays, Column, Dataset, LastState, Segment, describe_left_out
from butfor.datasets.formats.hdf5 import column_of, copy_attributes, import_h5py, leaves, read_array
from butfor.datasets.recording import Lengths, Recording, Table, read_arrays
from butfor.runs.arrays import open_arrays
from butfor.runs.memory import Allowance

OWN = "episodes of butfor"  # kind of an episode file


@dataclass
class FlatFile(Dataset):
    """Arrays with one row per step, in an .npz or HDF5 file; flags or lengths show where episodes end."""

    found: dict[str, str] = field(default_factory=dict)
    """arrays by their meaning: `terminals` and so on, as in `butfor.datasets.files.NAMES`"""
    nexts: dict[str, str] = field(default_factory=dict)
    """the array of next observations that belongs to each array of observations"""
    action_names: ClassVar[str] = " or ".join(NAMES["action"])

    @property
    def is_npz(self) -> bool:
        """Whether it is an .npz file, not an HDF5 file."""
        return not self.kind.startswith("D4RL")

    @property
    def suffix(self) -> str:
        return ".npz" if self.is_npz else ".hdf5"

    @property
    def to_ignore(self) -> list[str]:
        return self.left_out() if self.is_npz else []

    def read(self, names: Sequence[str]) -> Iterator[Arrays]:
        arrays = self._load(names)
        places = {name: self._rows_of(array, self.whole()) for name, array in arrays.items()}
        for place in range(len(self)):
            yield {name: array[places[name][place]] for name, array in arrays.items()}

    def recording(
        self, observe: Sequence[str] = (), ignore: Sequence[str] = (), action: Sequence[str] = ()
    ) -> Recording:
        acts = self.acted(action, ignore)
        names = self.observed(observe, (*ignore, *self._acting_parts(acts, observe)))
        has_next = set(names) <= set(self.nexts)
        ends = [name for name in ("terminals", "timeouts", "length", "sampled") if name in self.found]
        after = [self.nexts[name] for name in names if has_next]
        given = self._load(dict.fromkeys([*names, *acts, *after, *(self.found[name] for name in ends)]))
        marks: dict[str, Any] = {name: given[self.found[name]] for name in ends}
        if len(self) and not has_next:  # these columns alone may not show the ends that were found at opening
            marks = {name: mark for name, mark in marks.items() if name == "sampled"} | {"length": self.rows}
        nexts = {self.part(name): given[self.nexts[name]] for name in names} if has_next else None
        return read_arrays(
            _unless_single({self.part(name): given[name] for name in names}),
            self._whole_action({name: given[name] for name in acts}),
            None if nexts is None else _unless_single(nexts),
            source=str(self.path),
            **marks,
        )

    def find_episodes(self, height: int, steps: int) -> None:
        """Find where episodes end, in a file with `height` observations and `steps` actions, and set `rows`."""
        if self.action and self.has_numbers:
            recording = self.recording()
        else:  # images are not read, and actions may be missing: the flags alone show the ends
            ends = [name for name in ("terminals", "timeouts", "length") if name in self.found]
            flags = self._load([self.found[name] for name in ends])
            given = {name: flags[self.found[name]] for name in ends}
            if not self.action:  # the flags also show how many steps there are
                steps = int(next((np.sum(mark) if name == "length" else np.size(mark) for name, mark in given.items())))
            recording = read_arrays(np.zeros((height, 1)), np.zeros((steps, 1)), source=str(self.path), **given)
        has_last = len(recording.action) == steps  # every action is used, so the state after it is known
        if has_last and not self.nexts:
            self.last = "own"
        self.rows = recording.length + (not has_last)

    def _load(self, names: Any) -> Arrays:
        if self.is_npz:
            with open_arrays(self.path) as file:
                return {name: file[name] for name in names}
        with import_h5py().File(self.path, "r") as file:
            allowance = Allowance()
            return {name: read_array(file[name], allowance) for name in names}

    def _rows_of(self, array: Any, segments: Sequence[Segment]) -> list[slice]:
        """The rows of segments in an array with a row for each step or, with last states of their own, each state."""
        more = int(self._has_states(array))
        starts = np.cumsum(self.rows + more) - self.rows - more
        return [slice(starts[place] + first, starts[place] + last + more) for place, first, last in segments]

    def _has_states(self, array: Any) -> bool:
        return self.last == "own" and np.ndim(array) > 0 and len(array) == self.rows.sum() + len(self)

    def _write(self, temporary: Path, segments: Sequence[Segment], added: Mapping[str, Sequence[Table]]) -> None:
        more = int(self.last == "own")
        new = {
            name: np.concatenate([values[place][first : last + more] for place, first, last in segments])
            for name, values in added.items()
        }
        lengths = np.array([last - first for _, first, last in segments])
        chosen = self._chooser(segments, lengths)
        is_marked = {"terminals", "timeouts", "length"} & set(self.found)
        if not is_marked and (any(map(self.is_cut, segments)) or (len(segments) < len(self) and not self.nexts)):
            new["length"] = lengths
        if self.is_npz:
            with open_arrays(self.path) as file:
                arrays = {name: chosen(name, array) for name, array in file.items()}
            with temporary.open("wb") as target:
                np.savez_compressed(target, allow_pickle=False, **arrays, **new)
            return
        h5py = import_h5py()
        with h5py.File(self.path, "r") as source, h5py.File(temporary, "w") as copy:
            copy_attributes(source, copy)
            for name, array in leaves(source).items():
                rows = chosen(name, read_array(array, Allowance()))  # one array at a time
                copy.create_dataset(name, data=rows, compression=array.compression).attrs.update(dict(array.attrs))
            for name, values in new.items():
                copy.create_dataset(name, data=values)

    def _chooser(self, segments: Sequence[Segment], lengths: Lengths) -> Callable[[str, Any], Any]:
        """A function from the name of an array and its rows to those that are kept."""
        found = self.found
        is_whole = list(segments) == self.whole()
        total = int(self.rows.sum())
        last_rows = np.cumsum(lengths) - 1
        flags = [found[name] for name in ("timeouts", "terminals") if name in found]
        loaded = self._load(flags)
        ended = np.zeros(len(segments), bool)
        for flag in loaded.values():
            kept = np.concatenate([flag[rows] for rows in self._rows_of(flag, segments)])
            ended |= kept.reshape(len(kept), -1)[last_rows].astype(bool).any(1)

        def choose(name: str, array: Any) -> Any:
            if is_whole:
                return array
            if name == found.get("length"):
                return lengths.astype(array.dtype)
            if np.ndim(array) == 0 or (len(array) != total and not self._has_states(array)):
                return array
            rows = np.concatenate([array[rows] for rows in self._rows_of(array, segments)])
            if flags and name == flags[0]:  # what was cut ends at its new last row
                rows[last_rows[~ended]] = 1
            return rows

        return choose


def _unless_single(parts: dict[str, Any]) -> Any:
    """A dictionary of parts, or the only array if it has no name."""
    return parts[""] if list(parts) == [""] else parts


@dataclass
class EpisodeFile(Dataset):
    """An episode file of butfor, or another .npz file with padded episodes [E, T, ...]."""

    steps: int = 0
    """T, the number of actions of an episode with its padding"""

    @property
    def suffix(self) -> str:
        return ".npz"

    def recording(
        self, observe: Sequence[str] = (), ignore: Sequence[str] = (), action: Sequence[str] = ()
    ) -> Recording:
        if observe or action:
            raise ValueError(
                f"{self.path} has padded episodes, of which only {self.observe[0]} and {self.action[0]} are read; omit "
                "--observe and --action."
            )
        return read_npz(self.path, ignore)

    def read(self, names: Sequence[str]) -> Iterator[Arrays]:
        with open_arrays(self.path) as file:
            arrays = {name: file[name] for name in names}
        for place, rows in enumerate(self.rows):
            yield {name: array[place, : rows + array.shape[1] - self.steps] for name, array in arrays.items()}

    def _write(self, temporary: Path, segments: Sequence[Segment], added: Mapping[str, Sequence[Table]]) -> None:
        with open_arrays(self.path) as file:
            arrays = dict(file)
        for name, values in added.items():
            arrays[name] = np.zeros((len(self), self.steps), np.float32)
            for place, value in enumerate(values):
                arrays[name][place, : self.rows[place]] = value[: self.rows[place]]
        cut = [place for place, segment in enumerate(segments) if self.is_cut(segment)]
        if cut:
            arrays.pop("reset_seed", None)  # it repeats an episode only from its beginning
            known = next((name for name in NAMES["length"] if name in arrays), "length")
            arrays[known] = np.asarray(self.rows)
        for name, array in arrays.items():
            if array.ndim and len(array) == len(self):
                arrays[name] = self._choose(name, array, segments, cut)
        with temporary.open("wb") as target:
            np.savez_compressed(target, allow_pickle=False, **arrays)

    def _choose(self, name: str, array: Any, segments: Sequence[Segment], cut: Sequence[int]) -> Any:
        """The rows of an array that belong to some segments, one after the other."""
        new = array[[place for place, _, _ in segments]]
        more = array.shape[1] - self.steps if array.ndim > 1 else -1  # 1 where last states are included
        for number in cut:
            place, first, last = segments[number]
            if name in NAMES["length"]:
                new[number] = last - first
            elif more in (0, 1):
                new[number] = np.zeros_like(array[place])
                new[number, : last - first + more] = array[place, first : last + more]
                if name in NAMES["timeouts"]:
                    new[number, last - first - 1] = 1
        return new


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
    observe, action = (_parts_of(names, found.get(meaning, "")) for meaning in ("observation", "action"))
    if pickled := [name for name in (*observe, *action) if columns[name].dtype == "object"]:
        raise ValueError(
            f"{path}: {pickled[0]} contains pickled objects, which are not loaded; save an array of numbers, with the "
            "episodes one after the other and their lengths in `length`."
        )
    if observe and action and (is_own or len(columns[action[0]].shape) == 2):
        recording = read_npz(path)
        steps = columns[action[0]].shape[0]
        has_last = columns[observe[0]].shape[0] > steps
        last: LastState = "own" if has_last else "next" if "next_observation" in found else "row"
        columns = {
            name: Column(one.shape[1:], one.dtype) if one.shape[:1] in ((steps,), (steps + 1,)) else one
            for name, one in columns.items()
        }  # of a step
        return EpisodeFile(
            path, OWN if is_own else "padded .npz", columns, recording.length + (last == "row"),
            observe, action, last, _prefix_of(observe), tasks=_episode_task(path, len(recording)),
            action_space=recording.action_space, steps=steps,
        )  # fmt: skip
    is_ogbench = {"observations", "actions", "terminals"} <= set(names) and "next_observations" not in names
    kind = "OGBench .npz" if is_ogbench and {"qpos", "button_states"} & set(names) else ".npz"
    heights = {name: header.shape[0] if header.shape else 0 for name, header in headers.items()}
    return _flat_file(path, kind, columns, found, heights)


def open_d4rl(path: Path) -> FlatFile | None:
    """Open an HDF5 file with one row per step; None for another layout."""
    with import_h5py().File(path, "r") as file:
        arrays = leaves(file)
        columns = {name: column_of(array) for name, array in arrays.items()}
        heights = {name: array.shape[0] if array.shape else 0 for name, array in arrays.items()}
    found = _meanings(list(columns))
    return _flat_file(path, "D4RL HDF5", columns, found, heights) if "observation" in found else None


def _flat_file(
    path: Path, kind: str, columns: dict[str, Column], found: dict[str, str], heights: Mapping[str, int]
) -> FlatFile:
    """Open a file whose arrays have `heights` rows each."""
    observe, action = (_parts_of(list(columns), found.get(name, "")) for name in ("observation", "action"))
    ends = {"terminals", "timeouts", "length"} & set(found)
    if not observe or not (action or ends):
        expected = " or ".join(NAMES["action" if observe else "observation"])
        raise ValueError(f"{path} has no array {expected}; it has {', '.join(columns) or 'none'}. Rename or add it.")
    first = found["observation"]
    after = found.get("next_observation", "")
    nexts = {name: name.replace(first, after, 1) for name in observe if after}
    dataset = FlatFile(
        path, kind, columns, np.zeros(0, np.int64), observe, action, "next" if nexts else "row", _prefix_of(observe),
        notes=describe_left_out(columns, observe), found=found, nexts=nexts,
    )  # fmt: skip
    dataset.find_episodes(heights[observe[0]], heights[action[0] if action else observe[0]])
    return dataset


def _parts_of(names: Sequence[str], head: str) -> tuple[str, ...]:
    """The array called `head`, or those called `head/PART`."""
    return tuple(name for name in names if head and (name == head or name.startswith(f"{head}/")))


def _prefix_of(observe: Sequence[str]) -> str:
    """What the names of observations begin with: the whole name of a single array, or `observations/`."""
    head, slash, _ = observe[0].partition("/")
    return head + slash


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
