"""Data sets on disk: Minari's and `.npz` files, read as a `Recording` and written back with their scores."""

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from butfor.episodes import Episodes
from butfor.files import read_json, write_json, written
from butfor.recording import Recording, Table, join_episodes, read_arrays

__all__ = ["Recording", "read_arrays", "read_data", "read_minari", "read_npz", "write_columns", "write_minari"]

SCHEMA_VERSION = 1  # of a column file
NAMES = {  # what an array is called -> by these names in an .npz file
    "observation": ("observation", "observations", "obs", "states"),
    "action": ("action", "actions"),
    "next_observation": ("next_observation", "next_observations", "next_obs", "next_states"),
    "terminals": ("terminals", "terminal", "terminations", "terminated", "dones", "done"),
    "timeouts": ("timeouts", "timeout", "truncations", "truncated"),
    "length": ("length", "lengths", "episode_lengths", "episode_length"),
    "sampled": ("sampled",),
}
DATA_SET_ID = re.compile(r"(?:[-\w]+/)*[-\w]+-v\d+")
DATA_SETS = "Minari data sets are named like mine/cube-v0"


def read_data(source: Path | str, ignore: Sequence[str] = ()) -> Recording:
    """An `.npz` file, or a Minari data set by its id or its folder; the parts named in `ignore` are left out."""
    path, text = Path(source), str(source)
    if path.suffix == ".npz":
        return read_npz(path, ignore)
    if path.is_file():
        raise ValueError(f"{path} is of a type that is not read; give an .npz file or the id of a Minari data set.")
    if not path.is_dir() and not DATA_SET_ID.fullmatch(text):
        raise FileNotFoundError(f"There is no file {text!r}; give an .npz file, or an id ({DATA_SETS}).")
    return read_minari(source, ignore)


def read_npz(path: Path | str, ignore: Sequence[str] = ()) -> Recording:
    """Episodes of an `.npz` file: this package's own, or arrays under the names that other packages use."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no file {path}; give the .npz file with the data.")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays: dict[str, Any] = {name: file[name] for name in file.files}
    except Exception as error:  # a damaged file can fail in many ways
        pickled = "pickled objects, which could run code when read" if "pickle" in str(error) else "no whole .npz file"
        raise ValueError(f"{path} holds {pickled} ({error}); save plain arrays with numpy.savez.") from error
    if {"schema_version", "sampled", "achieved_goal"} <= set(arrays):
        own = Episodes.load(path)  # checks the version and the shapes
        arrays = {"observation": own.observation, "action": own.action, "length": own.length, "sampled": own.sampled}
    given = {name: found for name, known in NAMES.items() if (found := _find(arrays, known)) is not None}
    for name in ("observation", "action"):
        if name not in given:
            there = ", ".join(sorted(arrays)) or "nothing"
            raise ValueError(f"{path} has no array {' or '.join(NAMES[name])}; it has {there}. Rename or add it.")
    return read_arrays(**given, ignore=ignore, source=str(path))


def read_minari(source: Any, ignore: Sequence[str] = ()) -> Recording:
    """A local Minari data set, by its id, its folder or as Minari gives it; nothing is downloaded."""
    data_set = source if hasattr(source, "iterate_episodes") else open_minari(source)
    episodes = ((episode.observations, episode.actions) for episode in data_set.iterate_episodes())
    return join_episodes(episodes, data_set.action_space, ignore, f"Minari data set {data_set.id}")


def open_minari(source: Path | str) -> Any:
    """The Minari data set of an id or a folder, which must be there."""
    folder = minari_folder(source)
    try:
        import minari

        return minari.MinariDataset(folder / "data")
    except ImportError as error:  # of Minari, or of what reads this kind of storage
        text = f"The Minari data set {folder} cannot be read without its packages ({error})"
        raise ImportError(f"{text}; to have them: pip install 'butfor[minari]'.") from error
    except Exception as error:  # a damaged data set can fail in many ways
        raise ValueError(
            f"{folder} is no data set that this Minari reads ({type(error).__name__}: {error})."
        ) from error


def minari_folder(source: Path | str) -> Path:
    """The folder of a local Minari data set; if it is not there, the sentence names those that are."""
    root = minari_root()
    folder = next((place for place in (root / str(source), Path(source)) if _is_data_set(place)), None)
    if folder is not None:
        return folder
    there = sorted(path.parents[1].relative_to(root).as_posix() for path in root.glob("**/data/metadata.json"))
    held = f"it has {', '.join(there)}" if there else "it has none"
    raise FileNotFoundError(
        f"There is no Minari data set {str(source)!r} in {root}: {held}. Nothing is downloaded here; "
        f"to fetch one first: minari download ID."
    )


def minari_root() -> Path:
    """Where Minari keeps its data sets."""
    return Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets")


def column_names(entities: Iterable[str]) -> dict[str, str]:
    """What each entity's scores are called in a file: `cai` where there is one entity, else `cai_NAME`."""
    names = list(entities)
    for name in names:
        if not re.fullmatch(r"[^/\x00]+", name):
            raise ValueError(f"The entity's name {name!r} cannot be written to a file; choose one without '/'.")
    return {names[0]: "cai"} if len(names) == 1 else {name: f"cai_{name}" for name in names}


def write_columns(
    path: Path | str, recording: Recording, scores: Mapping[str, Table], metadata: Mapping[str, Any] | None = None
) -> None:
    """Scores [S] of each entity as an `.npz` with one row a state, whole or not at all."""
    names = column_names(scores)
    columns: dict[str, Any] = {names[name]: np.asarray(score, np.float32) for name, score in scores.items()}
    columns |= {"episode": recording.episode, "time": recording.time, "last": recording.last}
    columns |= {"schema_version": np.array(SCHEMA_VERSION), "metadata": np.array(json.dumps(dict(metadata or {})))}
    with written(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **columns)


def check_new_minari(source: Path | str, new: str, entities: Iterable[str], overwrite: bool = False) -> Path:
    """The folder that the scored copy of a data set will have; refuses what could not be written in the end."""
    if not DATA_SET_ID.fullmatch(new):
        raise ValueError(f"{new!r} cannot name a new data set; {DATA_SETS}, and column files end in .npz.")
    data_set, target = open_minari(source), minari_root() / new
    if target.resolve() == Path(data_set.spec.data_path).parent.resolve():
        raise ValueError(f"{new} is the data set that is read; give another id for the copy with scores.")
    if target.exists() and not overwrite:
        raise FileExistsError(f"The data set {new} exists already; give another id or say --overwrite.")
    if target.exists() and not _is_data_set(target):
        raise FileExistsError(f"{target} is no data set of Minari's and is not overwritten; give another id.")
    if data_set.storage.FORMAT != "hdf5":
        kind = data_set.storage.FORMAT
        raise ValueError(f"{data_set.id} is stored as {kind}; scores are added to hdf5 only: give --out FILE.npz.")
    for infos in (episode.infos or {} for episode in data_set.iterate_episodes([0])):
        if taken := sorted(set(infos) & set(column_names(entities).values())):
            text = f"{data_set.id} has infos {', '.join(map(repr, taken))} already"
            raise ValueError(f"{text}; score the data set from which it was made, or rename the entity.")
    return target


def write_minari(
    source: Path | str,
    new: str,
    recording: Recording,
    scores: Mapping[str, Table],
    metadata: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    beside: Mapping[str, str] | None = None,
) -> Path:
    """A copy of a Minari data set with `infos["cai"]` of shape (T + 1, 1) in every episode; all else stays as it was.

    With several entities each has its own `cai_NAME`. `beside` are texts by the names of files beside the data.
    """
    target = check_new_minari(source, new, scores, overwrite)
    import h5py

    if len(recording) != open_minari(source).total_episodes:
        raise ValueError(f"The scores are of {len(recording)} episodes; {source} has another number of them.")
    names, edges = column_names(scores), np.cumsum(recording.length + 1)[:-1]
    parts = {names[name]: np.split(np.asarray(score, np.float32)[:, None], edges) for name, score in scores.items()}
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        # The files are copied, not written anew: seeds, options and compressed images stay as they are.
        shutil.copytree(minari_folder(source) / "data", temporary / "data")
        with h5py.File(temporary / "data" / "main_data.hdf5", "a") as file:
            for key, episodes in parts.items():
                for place, score in enumerate(episodes):
                    _refuse_link(h5py, file, f"episode_{place}")
                    _refuse_link(h5py, file[f"episode_{place}"], "infos")
                    infos = file[f"episode_{place}"].require_group("infos")
                    infos.create_dataset(key, data=score, chunks=True, maxshape=(None, 1))
        about = read_json(temporary / "data" / "metadata.json")
        size = sum(path.stat().st_size for path in (temporary / "data").iterdir())
        about |= {"dataset_id": new, "dataset_size": round(size / 1e6, 1), "butfor": dict(metadata or {})}
        write_json(temporary / "data" / "metadata.json", about)
        for name, text in (beside or {}).items():
            (temporary / name).write_text(text, encoding="utf-8")
        for folder in [minari_root() / parent for parent in Path(new).parents if parent.name]:  # Minari's namespaces
            if not (folder / "namespace_metadata.json").exists():
                write_json(folder / "namespace_metadata.json", {})
        if target.exists():
            target.rename(old := target.with_name(f".{target.name}.{os.getpid()}.old"))
            temporary.rename(target)
            shutil.rmtree(old)
        else:
            temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def _refuse_link(h5py: Any, group: Any, name: str) -> None:
    """Refuses a part of a data set that is a link elsewhere: writing to it would change another file."""
    if not isinstance(group.get(name, getlink=True), h5py.HardLink | None):
        raise ValueError(f"{name} of the data set is a link to another place, which is not followed; copy it in.")


def _find(arrays: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The first array that has one of the names, or the nested dictionary of those named `NAME/PART`."""
    for name in names:
        if name in arrays:
            return arrays[name]
        if inner := {
            key.removeprefix(f"{name}/"): array for key, array in arrays.items() if key.startswith(f"{name}/")
        }:
            return inner
    return None


def _is_data_set(folder: Path) -> bool:
    return (folder / "data" / "metadata.json").is_file()
