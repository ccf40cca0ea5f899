"""Episodes as arrays [episode, time, ...]: the data type that environments produce and everything else reads."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from butfor.runs.arrays import open_arrays
from butfor.runs.files import atomic_write, begins_as_npz, check_writable
from butfor.runs.printing import html_table, text_table
from butfor.runs.reading import with_new_names

SCHEMA_VERSION = 1
NEEDED = ("observation", "action", "achieved_goal", "desired_goal", "length", "sampled")
ARRAYS = (*NEEDED, "contact", "score", "reset_seed")
HEADER = ("schema_version", "metadata")
VECTORS = ("observation", "action", "achieved_goal", "desired_goal")  # a vector each step, not a number
STATES = ("observation", "achieved_goal", "desired_goal")  # one more than there are steps
PER_EPISODE = ("length", "reset_seed")
Float = NDArray[np.float32]
Bool = NDArray[np.bool_]
_KINDS = {"iu": "whole numbers", "b": "true or false", "fiu": "numbers"}


@dataclass(repr=False)
class Episodes:
    """E episodes of at most T steps; steps past `length` are padding."""

    observation: Float  # [E, T + 1, D]
    action: Float  # [E, T, A]
    achieved_goal: Float  # [E, T + 1, G]
    desired_goal: Float  # [E, T + 1, G]
    length: NDArray[np.int64]  # [E]
    sampled: Bool  # [E, T]: the action came from a known law with full support
    contact: Bool | None = None  # [E, T]
    label: dict[str, Bool] = field(default_factory=dict)  # name -> [E, T]: does the action matter in s_t?
    score: Float | None = None  # [E, T]: CAI(s_t)
    reset_seed: NDArray[np.int64] | None = None  # [E]: with it and the actions, an environment repeats the episode
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.action.ndim != 3:
            raise ValueError(f"action has shape {self.action.shape}; expected [E, T, A].")
        episodes, steps = self.action.shape[:2]
        for name, array in self.arrays().items():
            shape = [episodes] if name in PER_EPISODE else [episodes, steps + (name in STATES)]
            kinds = "iu" if name in PER_EPISODE else "fiu" if name in (*VECTORS, "score") else "b"
            dimensions = len(shape) + (name in VECTORS)
            if array.dtype.kind not in kinds or array.ndim != dimensions or list(array.shape[: len(shape)]) != shape:
                expected = [*shape, "any"] if name in VECTORS else shape
                raise ValueError(
                    f"{name} has shape {list(array.shape)} and type {array.dtype}; expected {_KINDS[kinds]} of shape "
                    f"{expected}, because action has shape {list(self.action.shape)}."
                )
        if episodes and not (self.length.min() >= 1 and self.length.max() <= steps):
            raise ValueError(f"length is from {self.length.min()} to {self.length.max()}; expected 1 to {steps}.")

    def __len__(self) -> int:
        return len(self.length)

    def __repr__(self) -> str:
        return "Episodes\n" + text_table(self._rows())

    def _repr_html_(self) -> str:
        return html_table(self._rows(), "Episodes")

    def _rows(self) -> list[list[str]]:
        """Sizes, and where labels are true, as rows of a table."""
        valid = self.valid
        shares = [f"{name} {flags[valid].mean():.1%}" for name, flags in self.labels().items()] if len(self) else []
        rows = [
            ["episodes", f"{len(self):,}"],
            ["steps", f"{int(self.length.sum()):,}"],
            ["observation", f"{self.observation.shape[2]} columns"],
            ["action", f"{self.action.shape[2]} columns"],
            ["labels", ", ".join(shares) or "none"],
        ]
        env = self.metadata.get("config", self.metadata).get("env")
        return [["environment", str(env)], *rows] if env else rows

    @property
    def valid(self) -> Bool:
        """Which steps are real, not padding: [E, T]."""
        mask: Bool = np.arange(self.action.shape[1]) < self.length[:, None]
        return mask

    def labels(self) -> dict[str, Bool]:
        """Return every label, with contact where it is known: name -> [E, T]."""
        return ({"contact": self.contact} if self.contact is not None else {}) | self.label

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays that there are, by their names in an episode file: labels as `label_...`."""
        found = {name: getattr(self, name) for name in ARRAYS if getattr(self, name) is not None}
        return found | {f"label_{name}": value for name, value in self.label.items()}

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]], metadata: dict[str, Any]) -> "Episodes":
        """Make episodes of what `arrays` returns; other names are left out."""
        label = {name.removeprefix("label_"): arrays[name] for name in arrays if name.startswith("label_")}
        return cls(**{name: arrays[name] for name in ARRAYS if name in arrays}, label=label, metadata=metadata)

    def transitions(self) -> tuple[Float, Float, Float]:
        """Return obs [N, D], action [N, A], next_obs [N, D] of all real steps, episode by episode."""
        mask = self.valid
        return self.observation[:, :-1][mask], self.action[mask], self.observation[:, 1:][mask]

    def take(self, index: NDArray[Any]) -> "Episodes":
        """Return some of the episodes, in the order of `index`."""
        return self.from_arrays({name: value[index] for name, value in self.arrays().items()}, self.metadata)

    def save(self, path: Path | str) -> None:
        """Write one compressed `.npz`; the file is complete or absent."""
        header = {"schema_version": np.array(SCHEMA_VERSION), "metadata": np.array(json.dumps(self.metadata))}
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **header, **self.arrays())

    @classmethod
    def load(cls, path: Path | str) -> "Episodes":
        """Read what `save` wrote.

        Raises:
            FileNotFoundError: the file does not exist.
            ValueError: the file is damaged, of another kind, or of a newer version.
        """
        if not Path(path).is_file():
            raise FileNotFoundError(f"There is no episode file {path}.")
        try:
            if not begins_as_npz(path):
                raise ValueError("it is not a valid .npz file")
            with open_arrays(path) as file:
                if missing := [name for name in ("schema_version", *NEEDED) if name not in file]:
                    raise ValueError(f"it has no {', '.join(missing)}; it contains {', '.join(file) or 'nothing'}")
                known = [name for name in file if name in (*ARRAYS, *HEADER) or name.startswith("label_")]
                arrays = {name: file[name] for name in known}
            version = arrays["schema_version"].item()
            if version != SCHEMA_VERSION:
                raise ValueError(f"it has schema version {version}; this version of butfor reads {SCHEMA_VERSION}")
            metadata = with_new_names(json.loads(str(arrays.get("metadata", "{}"))))
            if not isinstance(metadata, dict):
                raise ValueError(f"its metadata is not a JSON object: {metadata}")
            return cls.from_arrays(arrays, metadata)
        except Exception as error:  # a damaged file can fail in many ways
            raise ValueError(f"{path} is not a complete episode file: {str(error).rstrip('.')}.") from error


@dataclass(frozen=True)
class Steps:
    """E episodes in sequence with N steps in total; each has one state more than steps: S = N + E states."""

    observation: NDArray[Any]  # [S, D]
    action: NDArray[Any]  # [N, A], or integers [N] of discrete actions
    length: NDArray[np.int64]  # [E], in steps

    def __len__(self) -> int:
        return len(self.length)

    @property
    def episode(self) -> NDArray[np.int64]:
        """The episode of each state [S]."""
        return np.repeat(np.arange(len(self.length)), self.length + 1)

    @property
    def time(self) -> NDArray[np.int64]:
        """The step of each state within its episode [S]."""
        first = np.cumsum(self.length + 1) - self.length - 1
        return np.arange(len(self.observation)) - np.repeat(first, self.length + 1)

    @property
    def last(self) -> Bool:
        """Which states end an episode, so that no action was taken in them [S]."""
        ends: Bool = self.time == np.repeat(self.length, self.length + 1)
        return ends

    def transitions(
        self, chosen: Bool | None = None, later: int = 1
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """obs [n, D], action [n, A] or [n], and next_obs [n, D] of all steps or of the `chosen` [N].

        With `later`, next_obs is so many steps later, or at the end of the episode.
        """
        before = np.flatnonzero(~self.last)  # [N]: the row of the state in which each step begins
        rows = np.arange(len(before)) if chosen is None else np.flatnonzero(chosen)
        first = before[rows]
        ends = np.flatnonzero(self.last)
        then = np.minimum(first + later, ends[np.searchsorted(ends, first)])
        return self.observation[first], self.action[rows], self.observation[then]


def check_episode_file(path: Path | str) -> None:
    """Refuse, before any episode is played, a path that an episode file cannot have."""
    if Path(path).suffix != ".npz":
        raise ValueError(f"{path} is not a name for an episode file; it must end in .npz.")
    if Path(path).is_dir():
        raise FileExistsError(f"{path} is a folder; give the name of an episode file.")
    check_writable(path)


def concatenate(parts: Sequence[Episodes]) -> Episodes:
    """Join episodes of the same environment; optional arrays are kept where every part has them."""
    if not parts:
        raise ValueError("There are no episodes to join; give at least one part.")
    for name in VECTORS:
        sizes = sorted({getattr(part, name).shape[2] for part in parts})
        if len(sizes) > 1:
            raise ValueError(f"Only episodes of one environment can be joined; {name} has sizes {sizes}.")
    found = [part.arrays() for part in parts]
    joined = {}
    for name in sorted(set.intersection(*map(set, found))):
        arrays = [part[name] for part in found]
        if name not in PER_EPISODE:  # shorter episodes get zeros at the end
            steps = max(array.shape[1] for array in arrays)
            rest = [(0, 0)] * (arrays[0].ndim - 2)
            arrays = [np.pad(array, [(0, 0), (0, steps - array.shape[1]), *rest]) for array in arrays]
        joined[name] = np.concatenate(arrays)
    return Episodes.from_arrays(joined, {"parts": [part.metadata for part in parts]})


class EpisodeStream:
    """Episodes that are written while a run plays them: as parts beside the file, which are joined at the end."""

    def __init__(self, path: Path | str, played: int, run: str = "") -> None:
        """Open the stream of a run that has `played` episodes of each seed on disk; parts past them are removed.

        `run` identifies the run: it is written into the files, and those of another run are refused.
        """
        self.path = Path(path)
        self.played = played
        self.run = run
        self.folder = self.parts_of(path)
        self.waiting: list[Episodes] = []
        finished = self.path.exists()  # the file of a finished run becomes the first part, instead of all others
        if not played:
            check_episode_file(self.path)
            if finished:
                raise FileExistsError(f"{self.path} already exists; give another name for the episode file.")
        elif finished:
            whole = Episodes.load(self.path)
            before = whole.metadata.get("played")
            if not isinstance(before, int) or before < played or len(whole) % before or not self._is_own(self.path):
                raise FileExistsError(f"{self.path} is not the file of this run; give another name.")
            first = whole.take(np.arange(played * (len(whole) // before)))
        elif not any(self.folder.glob("*.npz")):
            raise FileNotFoundError(
                f"{self.path} has none of the {played} episodes played so far; give the file that the run began with."
            )
        if other := [part for part in self.folder.glob("*.npz") if not self._is_own(part)]:
            raise FileExistsError(f"{other[0]} is of another run; remove {self.folder}, or give another name.")
        self.folder.mkdir(parents=True, exist_ok=True)
        for part in (*self.folder.glob("*.npz"), *self.folder.glob(".*.part")):
            if finished or part.suffix == ".part" or int(part.stem) >= played:  # .part: half-written by a killed run
                part.unlink()
        if finished:
            first.metadata["run"] = self.run
            first.save(self.folder / f"{0:08d}.npz")
            self.path.unlink()

    @staticmethod
    def parts_of(path: Path | str) -> Path:
        """Return the folder with the parts of a file that is not joined yet."""
        return Path(path).with_name(Path(path).name + ".parts")

    def _is_own(self, path: Path) -> bool:
        """Whether a file is of this run, or of a time when files did not say so."""
        with suppress(OSError, ValueError, KeyError), open_arrays(path) as file:
            return json.loads(str(file["metadata"])).get("run", "") in ("", self.run)
        return True  # what is damaged is reported when it is read

    def add(self, episodes: Episodes, seeds: int) -> None:
        """Add episodes [seeds x N] that all seeds played; they are kept episode by episode, seeds in turn."""
        order = np.arange(len(episodes)).reshape(seeds, -1).T.ravel()
        self.waiting.append(episodes.take(order))

    def flush(self, played: int) -> None:
        """Write what is waiting as a part; from then on `played` episodes of each seed are on disk."""
        if self.waiting:
            part = concatenate(self.waiting)
            part.metadata["run"] = self.run
            part.save(self.folder / f"{self.played:08d}.npz")
            self.waiting = []
            self.played = played

    def join(self, metadata: dict[str, Any]) -> None:
        """Write all parts as one file, then remove them."""
        parts = sorted(self.folder.glob("*.npz"))
        whole = concatenate([Episodes.load(part) for part in parts])
        whole.metadata = metadata | {"played": self.played} | ({"run": self.run} if self.run else {})
        whole.save(self.path)
        for part in parts:
            part.unlink()
        self.folder.rmdir()
