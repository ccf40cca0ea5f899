"""Episodes as arrays [episode, time, ...]: the data type that worlds produce and everything else reads."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from butfor.runs.files import atomic_write, begins_as_npz, check_writable
from butfor.runs.reading import with_new_names

SCHEMA_VERSION = 1
ARRAYS = (
    "observation", "action", "achieved_goal", "desired_goal", "length", "sampled", "contact", "score", "reset_seed",
)  # fmt: skip
NEEDED = ARRAYS[:6]
Float = NDArray[np.float32]
Bool = NDArray[np.bool_]
_KINDS = {"iu": "whole numbers", "b": "true or false", "fiu": "numbers"}


@dataclass
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
    reset_seed: NDArray[np.int64] | None = None  # [E]: a world reset with it and given the actions does the same again
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.observation.ndim != 3 or self.action.ndim != 3:
            shapes = f"{self.observation.shape} and {self.action.shape}"
            raise ValueError(f"observation and action have shapes {shapes}; expected [E, T + 1, D] and [E, T, A].")
        episodes, steps = self.action.shape[:2]
        expected = {
            "observation": (episodes, steps + 1, None),
            "action": (episodes, steps, None),
            "achieved_goal": (episodes, steps + 1, None),
            "desired_goal": (episodes, steps + 1, None),
            "length": (episodes,),
            "sampled": (episodes, steps),
            "contact": (episodes, steps),
            "score": (episodes, steps),
            "reset_seed": (episodes,),
        }
        arrays = {name: getattr(self, name) for name in expected} | {f"label_{k}": v for k, v in self.label.items()}
        for name, array in arrays.items():
            shape = expected.get(name, (episodes, steps))
            if array is None:
                continue
            kind = {"length": "iu", "reset_seed": "iu", "sampled": "b", "contact": "b"}.get(
                name, "b" if name.startswith("label_") else "fiu"
            )
            if array.dtype.kind not in kind:
                raise ValueError(f"{name} has type {array.dtype}; expected {_KINDS[kind]}.")
            if array.ndim != len(shape) or any(
                want not in (None, got) for want, got in zip(shape, array.shape, strict=True)
            ):
                want = ["any" if size is None else size for size in shape]
                raise ValueError(
                    f"{name} has shape {list(array.shape)}; expected {want}, as action has {self.action.shape}."
                )
        if episodes and not (self.length.min() >= 1 and self.length.max() <= steps):
            raise ValueError(f"length runs from {self.length.min()} to {self.length.max()}; expected 1 to {steps}.")

    def __len__(self) -> int:
        return len(self.length)

    @property
    def valid(self) -> Bool:
        """Which steps are real, not padding: [E, T]."""
        mask: Bool = np.arange(self.action.shape[1]) < self.length[:, None]
        return mask

    def labels(self) -> dict[str, Bool]:
        """Every label, contact among them where it is known: name -> [E, T]."""
        return ({"contact": self.contact} if self.contact is not None else {}) | self.label

    def transitions(self) -> tuple[Float, Float, Float]:
        """obs [N, D], action [N, A], next_obs [N, D] of all real steps, episode by episode."""
        mask = self.valid
        return self.observation[:, :-1][mask], self.action[mask], self.observation[:, 1:][mask]

    def take(self, index: NDArray[Any]) -> "Episodes":
        """Some of the episodes, in the order of `index`."""
        arrays = {name: getattr(self, name) for name in ARRAYS}
        taken: dict[str, Any] = {name: None if value is None else value[index] for name, value in arrays.items()}
        label = {name: value[index] for name, value in self.label.items()}
        return Episodes(**taken, label=label, metadata=self.metadata)

    def save(self, path: Path | str) -> None:
        """Writes one compressed `.npz`, whole or not at all."""
        arrays: dict[str, NDArray[Any]] = {"schema_version": np.array(SCHEMA_VERSION)}
        arrays["metadata"] = np.array(json.dumps(self.metadata))
        for name in ARRAYS:
            if getattr(self, name) is not None:
                arrays[name] = getattr(self, name)
        arrays |= {f"label_{name}": value for name, value in self.label.items()}
        with atomic_write(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)

    @classmethod
    def load(cls, path: Path | str) -> "Episodes":
        """Reads what `save` wrote; a foreign, broken or newer file is refused with a sentence."""
        if not Path(path).is_file():
            raise FileNotFoundError(f"There is no episode file {path}.")
        if not begins_as_npz(path):
            raise ValueError(f"{path} is not an episode file of butfor, nor any .npz file; give another file.")
        try:
            with np.load(path, allow_pickle=False) as file:
                held = sorted(file.files)
                is_own = "schema_version" in held and ("observation" in held or "action" in held)
                arrays = {name: file[name] for name in held} if is_own else {}
            version = arrays.pop("schema_version", np.array(0)).item()
        except Exception as error:  # a damaged file can fail in many ways
            raise ValueError(f"{path} is not a complete episode file ({error}).") from error
        if not is_own:
            scores = {"schema_version", "episode", "time", "last"} <= set(held)
            what = "scores of `butfor score`" if scores else ", ".join(held) or "nothing"
            raise ValueError(f"{path} is not an episode file of butfor: it holds {what}; give another file.")
        if version != SCHEMA_VERSION:
            raise ValueError(f"{path} has schema version {version}; this version of butfor reads {SCHEMA_VERSION}.")
        if missing := [name for name in NEEDED if name not in arrays]:
            raise ValueError(f"{path} is not a complete episode file (it has no {', '.join(missing)}).")
        label = {name.removeprefix("label_"): arrays.pop(name) for name in list(arrays) if name.startswith("label_")}
        try:
            metadata = with_new_names(json.loads(str(arrays.pop("metadata", "{}"))))
            if not isinstance(metadata, dict):
                raise ValueError("its metadata are no JSON object")
            known = {name: value for name, value in arrays.items() if name in cls.__dataclass_fields__}
            return cls(**known, label=label, metadata=metadata)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path} is not a complete episode file ({error}).") from error


def check_episode_file(path: Path | str) -> None:
    """Refuses before any episode is played a name that an episode file cannot have."""
    if Path(path).suffix != ".npz":
        raise ValueError(f"{path} cannot name an episode file; let it end in .npz.")
    if Path(path).is_dir():
        raise FileExistsError(f"{path} is a folder; give the name of an episode file.")
    check_writable(path)


def concatenate(parts: Sequence[Episodes]) -> Episodes:
    """Episodes of the same world one after the other; optional arrays are kept where every part has them."""
    if not parts:
        raise ValueError("There are no episodes to join; give at least one part.")
    steps = max(part.action.shape[1] for part in parts)
    for name in ("observation", "action", "achieved_goal", "desired_goal"):
        sizes = sorted({getattr(part, name).shape[2] for part in parts})
        if len(sizes) > 1:
            raise ValueError(f"Only episodes of one world can be joined; {name} has sizes {sizes}.")

    def joined(arrays: Sequence[NDArray[Any] | None], extra: int) -> Any:
        present = [array for array in arrays if array is not None]
        if len(present) < len(arrays):
            return None
        return np.concatenate([_padded(array, steps + extra) for array in present])

    names = {
        "observation": 1,
        "action": 0,
        "achieved_goal": 1,
        "desired_goal": 1,
        "sampled": 0,
        "contact": 0,
        "score": 0,
    }
    columns = {name: joined([getattr(part, name) for part in parts], extra) for name, extra in names.items()}
    shared = set.intersection(*(set(part.label) for part in parts))
    label = {name: joined([part.label[name] for part in parts], 0) for name in sorted(shared)}
    length = np.concatenate([part.length for part in parts])
    resets = [part.reset_seed for part in parts if part.reset_seed is not None]
    reset_seed = np.concatenate(resets) if len(resets) == len(parts) else None
    metadata = {"parts": [part.metadata for part in parts]}
    return Episodes(**columns, length=length, reset_seed=reset_seed, label=label, metadata=metadata)


def _padded(array: NDArray[Any], steps: int) -> NDArray[Any]:
    """Zeros up to `steps` along the time axis."""
    width = [(0, 0), (0, steps - array.shape[1]), *[(0, 0)] * (array.ndim - 2)]
    return np.pad(array, width)


class EpisodeStream:
    """Episodes on their way into one file: parts beside it, each whole, joined at the end."""

    def __init__(self, path: Path | str, played: int) -> None:
        """`played` episodes of each seed are there already; parts past them, of a run that was killed, are removed."""
        self.path, self.played = Path(path), played
        self.folder = self.path.with_name(self.path.name + ".parts")
        self.waiting: list[Episodes] = []
        if not played:
            check_episode_file(self.path)
        if self.path.exists() and not played:
            raise FileExistsError(f"{self.path} exists already; give another name for the episode file.")
        if played and not self.path.exists() and not any(self.folder.glob("*.npz")):
            raise FileNotFoundError(
                f"{self.path} has none of the {played} episodes played so far; give the file that the run began with."
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        keep: set[str] = {f"{0:08d}"} if self.path.exists() else set()
        if self.path.exists():  # a finished run goes on: its file becomes the first part, and stands for all others
            whole = Episodes.load(self.path)
            before = whole.metadata.get("played")
            if not isinstance(before, int) or before < played or len(whole) % before:
                raise FileExistsError(
                    f"{self.path} is not the file of this run; give another name for the episode file."
                )
            seeds = len(whole) // whole.metadata["played"]
            whole.take(np.arange(min(played, whole.metadata["played"]) * seeds)).save(self.folder / f"{0:08d}.npz")
        for part in self.folder.glob("*.npz"):
            if part.stem not in keep and (keep or int(part.stem) >= played):
                part.unlink()
        for part in self.folder.glob(".*.part"):  # what a killed process had half-written
            part.unlink()
        self.path.unlink(missing_ok=True)

    def add(self, episodes: Episodes, seeds: int) -> None:
        """Takes in the episodes [seeds x W] that all seeds played; they are kept episode by episode, seeds in turn."""
        order = np.arange(len(episodes)).reshape(seeds, -1).T.ravel()
        self.waiting.append(episodes.take(order))

    def flush(self, played: int) -> None:
        """Writes what is waiting as a part; from then on `played` episodes of each seed are on disk."""
        if self.waiting:
            concatenate(self.waiting).save(self.folder / f"{self.played:08d}.npz")
            self.waiting, self.played = [], played

    def join(self, metadata: dict[str, Any]) -> None:
        """All parts as the one file; the parts go once it is there."""
        parts = sorted(self.folder.glob("*.npz"))
        whole = concatenate([Episodes.load(part) for part in parts])
        whole.metadata = metadata | {"played": self.played}
        whole.save(self.path)
        for part in parts:
            part.unlink()
        self.folder.rmdir()
