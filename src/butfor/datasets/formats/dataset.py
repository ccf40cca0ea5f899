"""A dataset of any format: what it contains, its episodes as a `Recording`, and copies of it with columns added.

A format is a subclass in its own file, which reads arrays of single episodes and writes a copy. The rest is here.
"""

import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np

from butfor.datasets.files import advise_taken
from butfor.datasets.recording import Lengths, Recording, Table, join_episodes
from butfor.spaces.observations import is_image

Segment = tuple[int, int, int]
"""an episode, its first row, and the row after its last; of a whole episode (number, 0, rows[number])"""
Arrays = dict[str, Any]
"""arrays of one episode by the name of their column"""
LastState = Literal["own", "next", "row"]
"""where the state after the last action is: in an observation more than actions, in an array of next observations, or
nowhere (then the last row is the last state, and its action is not used)"""
ROBOT_WORDS = re.compile(r"robot|gripper|eef|\bee_|joint|tcp|qpos|qvel|agent|base|extra$|finger|arm|motor|goal|panda")
WHOLE = ("observation", "observations", "obs", "state", "states")  # parts that hold more than one entity
DIRECTIONS = re.compile(r"(?P<stem>.*?)[_. ]?(?:pos|position)?[_. ]?(?P<axis>[xyz])")
SUFFIXES = ((".npz",), (".hdf5", ".h5", ".hdf"), (".parquet", ".pq"), (".feather", ".arrow"), (".csv",))
"""how the names of files end, by format"""
RATES_APART = 0.05  # relative difference from which on two rates count as different


@dataclass(frozen=True)
class Column:
    """An array with one row per step: the shape of a row, its type, and names of its numbers if they are known."""

    shape: tuple[int, ...]
    dtype: str
    names: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """Why it cannot be part of an observation; empty if it can."""
        if self.dtype in ("image", "video") or is_image(self.shape, self.dtype == "uint8"):
            return f"images {list(self.shape)}" if self.shape else "images"
        is_number = re.fullmatch(r"bool|u?int\d+|float\d+", self.dtype) is not None
        return "" if is_number else f"values of type {self.dtype}"


@dataclass
class Dataset(ABC):
    """Episodes on disk, opened but not read."""

    path: Path
    kind: str
    """name of the format"""
    columns: dict[str, Column]
    rows: Lengths
    """number of rows of each episode [E]"""
    observe: tuple[str, ...]
    """columns that make up the observation"""
    action: tuple[str, ...]
    last: LastState
    prefix: str = ""
    """what the names of observations begin with; left out in the names of their parts"""
    tasks: tuple[str, ...] = ()
    """the task of each episode [E], if the format names them"""
    action_space: gymnasium.Space[Any] | None = None
    notes: list[str] = field(default_factory=list)
    action_names: ClassVar[str] = "actions"
    """what this format calls actions, for messages"""

    def __len__(self) -> int:
        return len(self.rows)

    @abstractmethod
    def read(self, names: Sequence[str]) -> Iterator[Arrays]:
        """The named arrays of each episode in turn."""

    @abstractmethod
    def _write(self, temporary: Path, segments: Sequence[Segment], added: Mapping[str, Sequence[Table]]) -> None:
        """Write some segments, with columns added, to a path that does not exist."""

    def recording(
        self, observe: Sequence[str] = (), ignore: Sequence[str] = (), action: Sequence[str] = ()
    ) -> Recording:
        """Read all episodes.

        Args:
            observe: columns that make up the observation; default: those of the format, without images and texts.
            ignore: parts of the observation, or columns of the action, to leave out.
            action: columns that make up the action, in this order; default: those of the format. They are not part of
                the default observation.

        Raises:
            ValueError: a column does not exist, there are no actions, or the arrays do not fit together.
        """
        acts = self.acted(action, ignore)
        names = self.observed(observe, (*ignore, *self._acting_parts(acts, observe)))
        nexts = [f"next_{name}" for name in names if self._has_next(names)]
        episodes = (
            self._episode(place, arrays, names, acts)
            for place, arrays in enumerate(self.read([*dict.fromkeys([*names, *nexts, *acts])]))
        )
        return join_episodes(episodes, self._space_of(acts), (), str(self.path))

    def acted(self, action: Sequence[str] = (), ignore: Sequence[str] = ()) -> list[str]:
        """The columns of the action; refuses those that do not exist or hold no numbers."""
        chosen = self._known(action or self.action, "action")
        leave = self._known(ignore, "ignore")
        found = [name for name in chosen if name not in leave]
        for name in found:
            if reason := self.columns[name].reason:
                raise ValueError(f"{name!r} holds {reason}; actions are numbers. Choose other columns with --action.")
        if not found:
            raise ValueError(
                f"{self.path} has no actions, which influence needs. It has {', '.join(self.columns)}; actions are "
                f"called {self.action_names}. Choose their columns with --action, or rename or add them."
            )
        return found

    def _acting_parts(self, acts: Sequence[str], observe: Sequence[str]) -> list[str]:
        """What the default observation leaves out: the action, which another choice of it would take in twice."""
        return [] if observe else [name for name in acts if name in self.observe]

    def _space_of(self, acts: Sequence[str]) -> gymnasium.Space[Any] | None:
        """The space of the action; not known if other columns than those of the format are chosen."""
        return self.action_space if list(acts) == list(self.action) else None

    def _known(self, names: Sequence[str], option: str) -> list[str]:
        """The columns that an option names, as columns or as parts of the observation; refuses unknown ones."""
        parts = {self.part(name): name for name in self.columns}
        found = [name if name in self.columns else parts.get(name, name) for name in names]
        if unknown := [name for name in found if name not in self.columns]:
            raise ValueError(f"--{option} names {unknown[0]!r}; {self.path} has {', '.join(self.columns)}.")
        return found

    def observed(self, observe: Sequence[str] = (), ignore: Sequence[str] = ()) -> list[str]:
        """The columns of the observation; refuses those that do not exist or hold no numbers."""
        chosen = self._known(observe or self.observe, "observe")
        leave = self._known(ignore, "ignore")
        for name in chosen if observe else ():
            if reason := self.columns[name].reason:
                raise ValueError(f"{name!r} holds {reason}; influence needs positions and velocities.")
        found = [name for name in chosen if name not in leave and not self.columns[name].reason]
        if not found:
            left = [f"{name} holds {self.columns[name].reason}" for name in chosen if self.columns[name].reason]
            raise ValueError(
                f"{self.path} has no observations of numbers{': ' * bool(left)}{', '.join(left)}. Choose columns with "
                f"--observe, such as simulator states, or record positions and velocities; it has "
                f"{', '.join(self.columns)}."
            )
        return found

    @property
    def has_numbers(self) -> bool:
        """Whether some column of the observation holds numbers, not images or texts."""
        return not all(self.columns[name].reason for name in self.observe)

    @property
    def to_ignore(self) -> list[str]:
        """Parts of the observation that `butfor score` must be told to leave out; it leaves most images out itself."""
        return []

    def left_out(self) -> list[str]:
        """Parts of the observation that hold no numbers."""
        return [self.part(name) for name in self.observe if self.columns[name].reason]

    def part(self, name: str) -> str:
        """The name that a column has as a part of the observation."""
        return name.removeprefix(self.prefix)

    def _episode(self, place: int, arrays: Arrays, names: Sequence[str], acts: Sequence[str]) -> tuple[Any, Any]:
        """The observations [T + 1] and actions [T] of an episode."""
        actions = {name: arrays[name] for name in acts}
        count = len(actions[acts[0]])
        expected = dict.fromkeys(names, count + (self.last == "own")) | dict.fromkeys(acts, count)
        if self._has_next(names):
            expected |= {f"next_{name}": count for name in names}
        for name, rows in expected.items():
            if len(arrays[name]) != rows:
                raise ValueError(
                    f"Episode {place} of {self.path} is ragged: {name} has {len(arrays[name])} rows, and "
                    f"{acts[0]} has {count}; expected {rows}. Remove this episode."
                )
        observation = {self.part(name): arrays[name] for name in names}
        if self._has_next(names):
            after = {self.part(name): arrays[f"next_{name}"][-1:] for name in names}
            observation = {part: np.concatenate([rows, after[part]]) for part, rows in observation.items()}
        elif self.last != "own":
            actions = {name: array[:-1] for name, array in actions.items()}
        return (observation[""] if list(observation) == [""] else observation), self._whole_action(actions)

    def _whole_action(self, actions: Arrays) -> Any:
        """An array of actions; or parts by name, of which `join_episodes` makes one, if those of the format are read.

        Chosen columns keep the order in which they are given.
        """
        if len(actions) == 1:
            return next(iter(actions.values()))
        if list(actions) == list(self.action):
            return actions
        rows = {name: len(array) for name, array in actions.items()}
        if len(set(rows.values())) > 1:
            raise ValueError(f"{self.path}: the columns of the action differ in their number of rows: {rows}.")
        return np.concatenate([array.reshape(len(array), -1) for array in actions.values()], 1)

    def _has_next(self, names: Sequence[str]) -> bool:
        """Whether next observations of these columns are stored; of simulator states they often are not."""
        return self.last == "next" and all(name in self.observe for name in names)

    def by_row(self, recording: Recording, scores: Table) -> list[Table]:
        """Scores of the states [S] of a recording as one array for each episode, in the rows of the file."""
        parts = np.split(scores, np.cumsum(recording.length + 1)[:-1])
        return [part[: rows + (self.last == "own")] for part, rows in zip(parts, self.rows, strict=True)]

    def write(
        self,
        out: Path | str,
        segments: Sequence[Segment] | None = None,
        added: Mapping[str, Sequence[Table]] | None = None,
        overwrite: bool = False,
    ) -> Path:
        """Write a copy in the same format; the original is not changed.

        Args:
            out: the new file or folder.
            segments: rows of episodes to write, each as an episode; default: all episodes.
            added: new columns by name, one array for each episode of this dataset, as `by_row` returns.
            overwrite: replace an existing file, or a folder that contains a dataset of this format.

        Returns:
            The path of the copy.

        Raises:
            FileExistsError: `out` exists.
            ValueError: `out` is the original, a new column is already there, or episodes of this format cannot be cut.
        """
        target = self.check_copy(out, added or (), overwrite, any(map(self.is_cut, segments or ())))
        with fresh_copy(target, self.path) as temporary:
            self._write(temporary, self.whole() if segments is None else segments, added or {})
        return target

    def whole(self) -> list[Segment]:
        """All episodes as segments."""
        return [(place, 0, int(rows)) for place, rows in enumerate(self.rows)]

    def is_cut(self, segment: Segment) -> bool:
        """Whether a segment is only a part of its episode."""
        place, first, last = segment
        return (first, last) != (0, int(self.rows[place]))

    @property
    def uncuttable(self) -> str:
        """Why parts of episodes cannot be written, as the end of a sentence; empty if they can."""
        return ""

    def check_copy(
        self, out: Path | str, added: Iterable[str] = (), overwrite: bool = False, cut: bool = False
    ) -> Path:
        """The path of a copy; refuses before the work what could not be written after it. `cut`: parts of episodes."""
        if cut and self.uncuttable:
            raise ValueError(f"{self.path} {self.uncuttable}.")
        target = Path(out)
        original = self.path.resolve()
        if original in (target.resolve(), *target.resolve().parents) or target.resolve() in original.parents:
            raise ValueError(f"{out} is the input, or inside it, or contains it; choose another path for the copy.")
        if taken := sorted(set(added) & set(self.columns)):
            raise ValueError(f"{self.path} already has the columns {taken}; {advise_taken(taken, self.suffix)}.")
        self._check_suffix(target)
        if target.exists() and (target.is_dir() != self.is_folder or not overwrite):
            advice = "" if target.is_dir() != self.is_folder else " or replace it with --overwrite"
            raise FileExistsError(f"{target} already exists; choose another name{advice}.")
        if target.is_dir() and not self.is_of_format(target):
            raise FileExistsError(f"{target} is a folder with other content; choose another name.")
        self._check_beside(target, overwrite)
        return target

    @property
    def suffix(self) -> str:
        """How the names of copies usually end; empty for folders."""
        return ""

    def _check_suffix(self, target: Path) -> None:
        """Refuse the name of a file of another format: nobody would find out what a copy is."""
        given = next((kind for kind in SUFFIXES if target.suffix.lower() in kind), None)
        if given is None or self.suffix in given or target.suffix == self.path.suffix:
            return
        kind = f"a file that ends in {self.suffix}" if self.suffix else "a folder"
        raise ValueError(
            f"{target} has the name of another format. A copy of {self.path} is of its format, {self.kind}: choose the "
            f"name of {kind}."
        )

    def beside(self, path: Path) -> Path | None:
        """The second file that this dataset has where its first is at `path`, such as ManiSkill's JSON; None: no."""
        return None

    def page_of(self, copy: Path) -> Path:
        """Where the report on a copy is written: beside it, with its name."""
        name = copy.stem if copy.suffix and not self.is_folder else copy.name
        return copy.with_name(f"{name}.html")

    def files(self, *copies: Path) -> set[Path]:
        """What nothing else may be written to: the files of this dataset and of copies of it."""
        places = [place for path in (self.path, *copies) for place in (path, self.beside(path))]
        return {place.resolve() for place in places if place is not None}

    def _check_beside(self, target: Path, overwrite: bool) -> None:
        """Refuse a copy whose second file is one of the original, or would replace another."""
        second = self.beside(target)
        if second is None:
            return
        words = f"A copy at {target} needs {second} beside it"
        own = {self.path.resolve(), target.resolve(), (self.beside(self.path) or self.path).resolve()}
        if second.resolve() in own:
            raise ValueError(f"{words}, which is taken by the input or by the copy itself; choose another name.")
        if second.is_dir() or (second.exists() and not overwrite):
            advice = "" if second.is_dir() else " or replace it with --overwrite"
            raise FileExistsError(f"{words}, which already exists; choose another name{advice}.")

    @property
    def is_folder(self) -> bool:
        """Whether copies are folders."""
        return self.path.is_dir()

    def is_of_format(self, folder: Path) -> bool:
        """Whether a folder contains a dataset of this format, so that it may be replaced."""
        return False

    def suggest_entities(self) -> list[str]:
        """Entities that the names of the columns suggest, as `--entities` expects them."""
        found: list[str] = []
        if not self.has_numbers:
            return found
        several = len(self.observed()) > 1
        for name in self.observed():
            column = self.columns[name]
            part = self.part(name)
            where = f"{part}:" if several else ""
            if groups := _named_positions(column.names):
                found += [f"{stem}={where}{_ranges(columns)}" for stem, columns in groups.items()]
            elif len(column.shape) > 1:  # a matrix, such as a camera's
                continue
            elif part and not column.names and not (ROBOT_WORDS.search(part.lower()) or part in WHOLE):
                found.append(f"{part.split('/')[-1]}={part if several else f'0:{int(np.prod(column.shape))}'}")
        return found


def _named_positions(names: Sequence[str]) -> dict[str, list[int]]:
    """Columns whose names differ only in x, y and z, by what they share, without those of the robot."""
    groups: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        match = DIRECTIONS.fullmatch(name)
        if match and match["stem"].rstrip("_. ") and not ROBOT_WORDS.search(name.lower()):
            groups.setdefault(re.sub(r"\W+", "_", match["stem"].rstrip("_. ")), []).append(place)
    return {stem: columns for stem, columns in groups.items() if len(columns) > 1}


def _ranges(columns: Sequence[int]) -> str:
    """Columns as text: 3:6, or 3,5."""
    first, last = columns[0], columns[-1]
    is_run = list(columns) == list(range(first, last + 1))
    return f"{first}:{last + 1}" if is_run else ",".join(map(str, columns))


def rate_notes(times: Sequence[Table], nominal: float | None = None, unit: str = "second") -> list[str]:
    """Notes on episodes recorded at different rates, from the time of each row in some unit, by episode."""
    gaps = [np.diff(np.asarray(one, np.float64)) for one in times if len(one) > 1]
    if not gaps:
        return []
    steps = np.array([float(np.median(one)) for one in gaps])
    rates = 1 / np.maximum(steps, 1e-9)
    if rates.max() > (1 + RATES_APART) * rates.min():
        words = f"{rates.min():.3g} to {rates.max():.3g} rows per {unit}"
        if unit != "second":
            words = f"a row every {steps.min():.3g} to {steps.max():.3g} {unit.replace('unit', 'units', 1)}"
        return [
            f"Episodes were recorded at different rates, {words}; one step means different times. Resample them to "
            "one rate, or score them separately."
        ]
    jumps = sum(int((one > 1.5 * np.median(one)).sum()) for one in gaps)
    notes = [f"{jumps} step(s) take longer than the others: rows are missing there."] if jumps else []
    if nominal and abs(rates[0] / nominal - 1) > RATES_APART:
        notes.append(f"The rows are {rates[0]:.3g} per second; the dataset states {nominal:g}.")
    return notes


def describe_left_out(columns: Mapping[str, Column], observe: Sequence[str]) -> list[str]:
    """A note on the columns of the observation that hold images or texts."""
    left = [f"{name} ({columns[name].reason})" for name in observe if columns[name].reason]
    return [f"Not read: {', '.join(left)}; influence needs positions and velocities."] if left else []


@contextmanager
def as_its_format(path: Path) -> Iterator[None]:
    """Turn errors at content of another kind than its format has, such as a number for a list, into a sentence."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged, or its content is not as its format says ({type(error).__name__}: {error}); write or "
            "download it again."
        ) from error


@contextmanager
def fresh_copy(target: Path, source: Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`; rename it at the end, or remove it if anything raises."""
    target.parent.mkdir(parents=True, exist_ok=True)
    files = [source] if source.is_file() else [path for path in source.rglob("*") if path.is_file()]
    needed = sum(path.stat().st_size for path in files)
    if shutil.disk_usage(target.parent).free < 1.1 * needed:  # HDF5 crashes on a full disk
        raise OSError(f"There is no space for a copy of {source} ({needed / 1e6:.0f} MB); free some, or choose a disk.")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    old = target.with_name(f".{target.name}.{os.getpid()}.old")
    try:
        yield temporary
        if target.is_dir():
            target.rename(old)
        os.replace(temporary, target)
    finally:
        if old.exists() and not target.exists():
            old.rename(target)
        for path in (temporary, old):
            if path.is_dir():
                _remove_folder(path)
            else:
                path.unlink(missing_ok=True)


def _remove_folder(folder: Path) -> None:
    """Remove a folder, also where folders inside are read-only, as in copies of read-only data."""
    if folder.is_symlink():  # what it leads to is not ours
        return folder.unlink()
    for place, _, _ in os.walk(folder):  # each folder before those inside; links are not followed
        with suppress(OSError):
            os.chmod(place, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
