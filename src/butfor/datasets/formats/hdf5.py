"""HDF5 files with a group for each episode: robomimic and LIBERO, ManiSkill, and Minari."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from butfor.datasets.files import minari_root
from butfor.datasets.formats.dataset import (
    Arrays,
    Column,
    Dataset,
    LastState,
    Segment,
    as_its_format,
    describe_left_out,
)
from butfor.datasets.recording import Table
from butfor.runs.files import atomic_write, read_json, write_text
from butfor.runs.memory import Allowance

SIGNATURE = b"\x89HDF\r\n\x1a\n"


@dataclass(frozen=True)
class Layout:
    """Where a format keeps its episodes, and the arrays of one."""

    name: str
    root: str
    """the group that holds the episodes"""
    episode: str
    """what the names of the episodes' groups begin with; a number follows"""
    observation: tuple[str, ...]
    """where observations are; the first that is not empty"""
    added: str
    """the group in an episode for new columns"""
    last: LastState
    ends: tuple[str, ...]
    """flags of the end of an episode: the first is set where one was cut, unless another is"""


LAYOUTS = (
    Layout("robomimic", "data", "demo_", ("obs", "states"), "", "next", ("dones",)),
    Layout("ManiSkill", "", "traj_", ("obs", "env_states"), "", "own", ("truncated", "terminated")),
    Layout("Minari", "", "episode_", ("observations",), "infos/", "own", ("truncations", "terminations")),
)
LIBERO_OBSERVATION = ("states", "obs")
LIBERO_NOTE = (
    "LIBERO stores the simulator's state before the action of a row in states, and what is seen after that action in "
    "obs/*. The rows of obs/* fit the action of the next row: observe states."
)
DESCRIPTIONS = (
    "robomimic or LIBERO (data/demo_0/actions), ManiSkill (traj_0/actions), Minari (episode_0/actions), "
    "D4RL (observations, actions)"
)


def import_h5py() -> Any:
    """The package that reads HDF5 files."""
    try:
        import h5py
    except ImportError as error:
        raise ImportError("HDF5 files need h5py; install it with: pip install 'butfor[data]'.") from error
    return h5py


def children(group: Any) -> dict[str, Any]:
    """What a group contains; refuses links, which could point into other files."""
    h5py = import_h5py()
    for name in group:
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise ValueError(f"{group.file.filename}: {group.name}/{name} is a link, which is not followed.")
    return {name: group[name] for name in group}


def leaves(group: Any, path: str = "") -> dict[str, Any]:
    """The arrays in a group and in its groups, by path."""
    found: dict[str, Any] = {}
    for name, child in children(group).items():
        here = f"{path}/{name}" if path else name
        found |= leaves(child, here) if hasattr(child, "keys") else {here: child}
    return found


def copy_attributes(group: Any, copy: Any) -> None:
    """Make the groups of a group in a copy, with their attributes, and without their arrays."""
    copy.attrs.update(dict(group.attrs))
    for name, child in children(group).items():
        if hasattr(child, "keys"):
            copy_attributes(child, copy.require_group(name))


def column_of(array: Any) -> Column:
    """The shape and type of the rows of an HDF5 array."""
    kind = array.dtype.name if array.dtype.kind in "fiub" else "text" if array.dtype.kind in "OSU" else str(array.dtype)
    return Column(tuple(array.shape[1:]), kind)


def read_array(array: Any, allowance: Allowance) -> Any:
    """Read an HDF5 array. Its size is counted first: a file of some kilobytes can describe any size."""
    allowance.take(int(array.size) * array.dtype.itemsize, f"{array.name} of {array.file.filename}")
    return array[()]


def open_hdf5(path: Path) -> "EpisodeGroups | None":
    """Open a file with a group for each episode; None for another layout."""
    h5py = import_h5py()
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise ValueError(f"{path} is a damaged HDF5 file ({error}); copy or download it again.") from error
    with file:
        for layout in LAYOUTS:
            if layout.root and layout.root not in file:
                continue
            root = file[layout.root] if layout.root else file
            pattern = re.compile(rf"{layout.episode}(\d+)")
            names = sorted(
                (name for name in root if pattern.fullmatch(name)), key=lambda name: int(name.split("_")[-1])
            )
            if names:
                return _open_groups(path, file, layout, names)
    return None


def _open_groups(path: Path, file: Any, layout: Layout, names: Sequence[str]) -> "EpisodeGroups":
    root = file[layout.root] if layout.root else file
    children(root)
    arrays = leaves(root[names[0]])
    columns = {name: column_of(array) for name, array in arrays.items() if array.ndim}
    is_libero = layout.name == "robomimic" and any(name in root.attrs for name in ("bddl_file_name", "problem_info"))
    observe: list[str] = []
    prefix = ""
    for place in LIBERO_OBSERVATION if is_libero else layout.observation:
        observe = [name for name in columns if name == place or name.startswith(f"{place}/")]
        if observe:
            prefix = f"{place}/" if observe[0] != place else place
            break
    action = [name for name in columns if name == "actions" or name.startswith("actions/")]
    steps = [_count_rows(root[name], observe, layout) for name in names]
    has_next = bool(observe) and all(f"next_{name}" in columns for name in observe)
    last: LastState = "own" if layout.last == "own" else "next" if has_next else "row"
    given = [name for name in columns if name.startswith("obs/")] if is_libero else observe
    notes = describe_left_out(columns, given)
    if is_libero and given:
        notes.append(LIBERO_NOTE)
    elif layout.observation[0] not in prefix:
        notes.append(f"The episodes have no {layout.observation[0]}; {prefix.rstrip('/')} is the observation.")
    return EpisodeGroups(
        path, "LIBERO" if is_libero else layout.name, columns, np.array(steps, np.int64), tuple(observe),
        tuple(action), last, prefix, _tasks(root, names, path, layout), notes=notes, layout=layout,
        names=tuple(names),
    )  # fmt: skip


def _count_rows(episode: Any, observe: Sequence[str], layout: Layout) -> int:
    """The number of actions of an episode; without actions, that of the rows in which one could be."""
    if "actions" in episode:
        actions = episode["actions"]
        return len(next(iter(leaves(actions).values()), ())) if hasattr(actions, "keys") else len(actions)
    rows = next((len(episode[name]) for name in observe if name in episode), 0)
    return max(rows - (layout.last == "own"), 0)


def minari_id(folder: Path) -> str:
    """The id of a dataset: its place in Minari's folder, or its name elsewhere."""
    root = minari_root().resolve()
    whole = folder.resolve()
    return whole.relative_to(root).as_posix() if root in whole.parents else folder.name


def _tasks(root: Any, names: Sequence[str], path: Path, layout: Layout) -> tuple[str, ...]:
    """The task of each episode, as far as the format names it."""
    task = ""
    for attribute, key in (("problem_info", "language_instruction"), ("env_args", "env_name")):
        if not task and attribute in root.attrs:
            try:
                task = str(json.loads(root.attrs[attribute]).get(key, ""))
            except (ValueError, AttributeError):  # not JSON, or not an object
                task = ""
    if layout.name == "ManiSkill" and path.with_suffix(".json").is_file():
        with as_its_format(path.with_suffix(".json")):
            task = str(read_json(path.with_suffix(".json")).get("env_info", {}).get("env_id", ""))
    return (task,) * len(names) if task else ()


@dataclass
class EpisodeGroups(Dataset):
    """An HDF5 file with a group for each episode."""

    layout: Layout = LAYOUTS[0]
    names: tuple[str, ...] = ()
    """of the groups"""

    @property
    def file(self) -> Path:
        """The HDF5 file."""
        return self.path / "data" / "main_data.hdf5" if self.layout.name == "Minari" else self.path

    @property
    def to_ignore(self) -> list[str]:
        return self.left_out() if self.layout.name == "Minari" else []

    def read(self, names: Sequence[str]) -> Iterator[Arrays]:
        h5py = import_h5py()
        allowance = Allowance()
        with h5py.File(self.file, "r") as file:
            for place, group_name in enumerate(self.names):
                group = file[f"{self.layout.root}/{group_name}"]
                found = leaves(group)
                if missing := [name for name in names if name not in found]:
                    raise ValueError(
                        f"Episode {place} ({group_name}) of {self.path} has no {missing[0]}; it has "
                        f"{', '.join(found)}. Remove this episode, or leave the column out."
                    )
                try:
                    yield {name: read_array(found[name], allowance) for name in names}
                except OSError as error:
                    raise ValueError(f"{group_name} of {self.path} is damaged ({error}); download it again.") from error

    @property
    def suffix(self) -> str:
        return "" if self.is_folder else ".hdf5"

    def is_of_format(self, folder: Path) -> bool:
        return (folder / "data" / "metadata.json").is_file()  # of Minari, the only format here with folders

    def _write(self, temporary: Path, segments: Sequence[Segment], added: Mapping[str, Sequence[Table]]) -> None:
        if self.layout.name != "Minari":
            return self._write_file(temporary, segments, added)
        (temporary / "data").mkdir(parents=True)
        self._write_file(temporary / "data" / "main_data.hdf5", segments, added)
        about = read_json(self.path / "data" / "metadata.json")
        size = (temporary / "data" / "main_data.hdf5").stat().st_size
        about |= {"total_episodes": len(segments), "dataset_size": round(size / 1e6, 1)}
        about |= {"total_steps": sum(last - first for _, first, last in segments)}
        (temporary / "data" / "metadata.json").write_text(json.dumps(about, indent=2), encoding="utf-8")

    def _write_file(self, path: Path, segments: Sequence[Segment], added: Mapping[str, Sequence[Table]]) -> None:
        h5py = import_h5py()
        is_whole = list(segments) == self.whole()
        episode_names = set(self.names)
        with h5py.File(self.file, "r") as source, h5py.File(path, "w") as copy:
            root = source[self.layout.root] if self.layout.root else source
            new = copy.require_group(self.layout.root) if self.layout.root else copy
            renamed: dict[str, list[str]] = {}
            for group, target in {id(source): (source, copy), id(root): (root, new)}.values():
                target.attrs.update(dict(group.attrs))
                for name in children(group):
                    if name not in target and name not in episode_names and name != self.layout.root:
                        group.copy(name, target)
            for number, (place, first, last) in enumerate(segments):
                name = self.names[place] if is_whole else f"{self.layout.episode}{number}"
                renamed.setdefault(self.names[place], []).append(name)
                episode = self._write_episode(root[self.names[place]], new, name, place, first, last)
                for column, values in added.items():
                    part = values[place][first : last + (self.last == "own")]
                    shape = {"data": part[:, None], "maxshape": (None, 1), "chunks": True}  # as Minari stores infos
                    episode.create_dataset(
                        f"{self.layout.added}{column}", **(shape if self.layout.name == "Minari" else {"data": part})
                    )
            counts = {"total": sum(last - first for _, first, last in segments), "num_demos": len(segments)}
            new.attrs.update({name: count for name, count in counts.items() if name in new.attrs})  # robomimic, LIBERO
            self._write_masks(copy, renamed)

    def _write_episode(self, group: Any, new: Any, name: str, place: int, first: int, last: int) -> Any:
        """Copy an episode, or the rows from `first` to `last` of every array that has a row for each step."""
        steps = int(self.rows[place])
        group.file.copy(group, new, name=name)
        episode = new[name]
        if (first, last) != (0, steps):
            for path, array in leaves(episode).items():
                more = array.shape[0] - steps if array.ndim else -1
                if more in (0, 1):
                    part = array[first : last + more]
                    attributes = dict(array.attrs)
                    del episode[path]
                    episode.create_dataset(path, data=part).attrs.update(attributes)
            flags = [episode[flag] for flag in self.layout.ends if flag in episode]
            if last < steps and flags and not any(np.any(flag[-1]) for flag in flags):
                flags[0][-1] = 1
        for attribute, value in {"num_samples": last - first, "total_steps": last - first}.items():
            if attribute in episode.attrs:
                episode.attrs[attribute] = value
        if self.layout.name == "Minari":
            episode.attrs["id"] = int(name.removeprefix(self.layout.episode))
        return episode

    def _write_masks(self, copy: Any, renamed: Mapping[str, list[str]]) -> None:
        """Keep robomimic's lists of episodes, such as those for validation, in step with the episodes written."""
        for key in list(copy.get("mask", ())):
            listed = [name.decode() if isinstance(name, bytes) else str(name) for name in copy["mask"][key][()]]
            kept = [new for name in listed for new in renamed.get(name, ())]
            del copy["mask"][key]
            copy["mask"].create_dataset(key, data=np.array(kept, dtype="S"))

    def beside(self, path: Path) -> Path | None:
        has_json = self.layout.name == "ManiSkill" and self.path.with_suffix(".json").is_file()
        return path.with_suffix(".json") if has_json else None

    def write(self, out: Path | str, segments: Any = None, added: Any = None, overwrite: bool = False) -> Path:
        target = self.check_copy(out, added or (), overwrite)
        second = self.beside(target)
        if second is not None:
            with atomic_write(second) as temporary:  # renamed after the episodes are written: both exist, or neither
                with as_its_format(self.path.with_suffix(".json")):
                    listed = self._list_episodes(self.whole() if segments is None else list(segments))
                temporary.write_text(json.dumps(listed, indent=2), encoding="utf-8")
                return super().write(out, segments, added, overwrite)
        super().write(out, segments, added, overwrite)
        if self.layout.name == "Minari":  # Minari finds a dataset by its id
            place = target / "data" / "metadata.json"
            write_text(place, json.dumps(read_json(place) | {"dataset_id": minari_id(target)}, indent=2))
        return target

    def _list_episodes(self, segments: Sequence[Segment]) -> dict[str, Any]:
        """The content of ManiSkill's JSON file, which its loader needs, for a copy of some segments."""
        listed: dict[str, Any] = read_json(self.path.with_suffix(".json"))
        by_name = {f"traj_{one.get('episode_id')}": one for one in listed.get("episodes", [])}
        episodes = [dict(by_name.get(self.names[place], {})) for place, _, _ in segments]
        with import_h5py().File(self.path, "r") as file:
            for about, segment in zip(episodes, segments, strict=True):
                place, first, last = segment
                about["elapsed_steps"] = last - first
                for result in ("success", "fail") if self.is_cut(segment) else ():
                    flags = file[self.names[place]].get(result)
                    if result in about and flags is not None:
                        about[result] = bool(flags[last - 1])
        if list(segments) != self.whole():
            episodes = [one | {"episode_id": number} for number, one in enumerate(episodes)]
        return listed | {"episodes": episodes}
