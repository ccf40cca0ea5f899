"""Data sets on disk: Minari's and `.npz` files, read as a `Recording` and written back with their scores."""

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box

from butfor.datasets.recording import Recording, Table, join_episodes, read_arrays
from butfor.rollouts.episodes import Episodes
from butfor.runs.files import atomic_write, begins_as_npz, check_writable, read_json, write_json

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
DATA_SET_ID = re.compile(r"(?![-\w]/[-\w]+$)(?:[-\w]+/)*[-\w]+-v\d+")  # as Minari has it: no namespace of one letter
ROOM = 8192  # bytes for what HDF5 writes besides the numbers of an array
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
    if not begins_as_npz(path):
        raise ValueError(f"{path} is no .npz file, whatever its name; save plain arrays with numpy.savez.")
    try:
        with np.load(path, allow_pickle=False) as file:
            there = sorted(file.files)
            is_own = {"schema_version", "sampled", "achieved_goal"} <= set(there)
            given = {} if is_own else {name: _read(file, there, known) for name, known in NAMES.items()}
    except Exception as error:  # a damaged file can fail in many ways
        pickled = "pickled objects, which could run code when read" if "pickle" in str(error) else "no whole .npz file"
        raise ValueError(f"{path} holds {pickled} ({error}); save plain arrays with numpy.savez.") from error
    if is_own:
        own = Episodes.load(path)  # checks the version and the shapes
        given = {name: getattr(own, name) for name in ("observation", "action", "length", "sampled")}
        given["action_space"] = _told_space(own, path)
    for name in ("observation", "action"):
        if given[name] is None:
            held = ", ".join(there) or "nothing"
            raise ValueError(f"{path} has no array {' or '.join(NAMES[name])}; it has {held}. Rename or add it.")
    return read_arrays(**given, ignore=ignore, source=str(path))


def _told_space(own: Episodes, path: Path | str) -> Box | None:
    """The bounds of the actions, where an episode file of this package tells them."""
    low, high, size = own.metadata.get("action_low"), own.metadata.get("action_high"), own.action.shape[2]
    if low is None and high is None:
        return None
    try:
        bounds = np.array([low, high], dtype=np.float64)
        fits = bounds.shape == (2, size) and bool(np.isfinite(bounds).all() and (bounds[0] <= bounds[1]).all())
    except (TypeError, ValueError):
        fits = False
    if not fits:
        text = f"{path} tells actions from {low} to {high}; expected {size} number(s) each, the lower ones first"
        raise ValueError(f"{text}. Write the file anew, or leave action_low and action_high out of its metadata.")
    return Box(bounds[0], bounds[1], dtype=np.float64)


def read_minari(source: Any, ignore: Sequence[str] = ()) -> Recording:
    """A local Minari data set, by its id, its folder or as Minari gives it; nothing is downloaded."""
    data_set = source if hasattr(source, "iterate_episodes") else open_minari(source)
    return join_episodes(_episodes(data_set), data_set.action_space, ignore, f"Minari data set {data_set.id}")


def _episodes(data_set: Any) -> Iterable[tuple[Any, Any]]:
    """Observations and actions of each episode of a Minari data set."""
    try:
        for episode in data_set.iterate_episodes():
            yield episode.observations, episode.actions
    except (OSError, KeyError, RuntimeError) as error:  # as h5py tells that a file is damaged
        raise ValueError(f"The Minari data set {data_set.id} is damaged ({error}); fetch or write it again.") from error


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
    names = (path.parents[1].relative_to(root).as_posix() for path in root.glob("**/data/metadata.json"))
    there = sorted(name for name in names if DATA_SET_ID.fullmatch(name))
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
    _check_scores(recording, scores)
    columns: dict[str, Any] = {names[name]: np.asarray(score, np.float32) for name, score in scores.items()}
    columns |= {"episode": recording.episode, "time": recording.time, "last": recording.last}
    columns |= {"schema_version": np.array(SCHEMA_VERSION), "metadata": np.array(json.dumps(dict(metadata or {})))}
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **columns)


def _check_scores(recording: Recording, scores: Mapping[str, Table]) -> None:
    """Refuses scores that are not one for each state."""
    if wrong := [name for name, score in scores.items() if np.shape(score) != (len(recording.observation),)]:
        raise ValueError(f"There are not {len(recording.observation)} scores, one for each state, of {wrong[0]!r}.")


def check_outputs(
    data: Path | str,
    out: Path | str,
    entities: Mapping[str, Any],
    report: Path | str | None,
    save_model: Path | str | None,
    overwrite: bool,
) -> tuple[Path, Path]:
    """Where the scores and the report go; refuses before the work begins what could not be written after it."""
    column_names(entities)
    is_file = Path(out).suffix == ".npz"
    if not is_file and Path(data).suffix == ".npz":
        raise ValueError(f"--out is {str(out)!r}, but scores of an .npz file go to another one; let it end in .npz.")
    target = Path(out) if is_file else check_new_minari(data, str(out), entities, overwrite)
    page = Path(report) if report else target.with_suffix(".html") if is_file else target / "report.html"
    files = [*([target] if is_file else []), *([page] if report or is_file else [])]
    files += [] if save_model is None else [Path(save_model)]
    read = (Path(data) if Path(data).suffix == ".npz" else minari_folder(data)).resolve()
    for path in files:
        inside = {path.resolve(), *path.resolve().parents}
        if read in inside:
            raise ValueError(f"{path} is what is read, or in it; give another name.")
        if not is_file and target.resolve() in inside and path != target / "report.html":
            raise ValueError(f"{path} is in the new data set, which gets its name in the end; give another place.")
    if len({path.resolve() for path in files}) < len(files):
        raise ValueError("The scores, the report and the model go to files of their own; give each another name.")
    for path in files:
        if path.exists() and not overwrite:
            raise FileExistsError(f"{path} exists already; give another name or say --overwrite.")
        if path.is_dir():
            raise FileExistsError(f"{path} is a folder; give the name of a file.")
    for path in [*files, target.parent]:
        check_writable(path)
    return target, page


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
    import h5py

    with h5py.File(Path(data_set.spec.data_path) / "main_data.hdf5") as file:
        held = {
            name for place in range(data_set.total_episodes) for name in _episode(h5py, file, place).get("infos", ())
        }
    if taken := sorted(held & set(column_names(entities).values())):
        text = f"{data_set.id} has infos {', '.join(map(repr, taken))} already"
        raise ValueError(f"{text}; score the data set from which it was made, or name the entities otherwise.")
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
    _check_scores(recording, scores)
    parts = {names[name]: np.split(np.asarray(score, np.float32)[:, None], edges) for name, score in scores.items()}
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    old = target.with_name(f".{target.name}.{os.getpid()}.old")
    try:
        # The files are copied, not written anew: seeds, options and compressed images stay as they are.
        # Their modes are not: what is copied may be read-only.
        given = minari_folder(source)
        for path in [given / "data", *sorted((given / "data").rglob("*"))]:
            copy = temporary / path.relative_to(given)
            copy.mkdir(parents=True) if path.is_dir() else shutil.copyfile(path, copy)
        with (temporary / "data" / "main_data.hdf5").open("ab") as room:  # HDF5 crashes where a disk is full
            for score in (score for episodes in parts.values() for score in episodes):
                room.write(bytes(ROOM + 2 * score.nbytes))
        with h5py.File(temporary / "data" / "main_data.hdf5", "a") as file:
            for key, episodes in parts.items():
                for place, score in enumerate(episodes):
                    infos = _episode(h5py, file, place).require_group("infos")
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
            target.rename(old)
        temporary.rename(target)
    finally:
        if old.exists() and not target.exists():
            old.rename(target)
        for folder in (temporary, old):
            shutil.rmtree(folder, ignore_errors=True)
    return target


def _episode(h5py: Any, file: Any, place: int) -> Any:
    """An episode's group; refuses one that is a link elsewhere, or whose infos are: it would be another file's."""
    for name in (f"episode_{place}", f"episode_{place}/infos"):
        if not isinstance(file.get(name, getlink=True), h5py.HardLink | None):
            raise ValueError(f"{name} of the data set is a link to another place, which is not followed; copy it in.")
    return file[f"episode_{place}"]


def _read(file: Any, there: Sequence[str], names: Sequence[str]) -> Any:
    """The first array that has one of the names, or the nested dictionary of those named `NAME/PART`, or None."""
    for name in names:
        if name in there:
            return file[name]
        if inner := {key.removeprefix(f"{name}/"): file[key] for key in there if key.startswith(f"{name}/")}:
            return inner
    return None


def _is_data_set(folder: Path) -> bool:
    return (folder / "data" / "metadata.json").is_file()
