"""Datasets on disk: `.npz` files and Minari datasets, read as a `Recording` and written with their scores."""

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box

from butfor.datasets.recording import Recording, Table, join_episodes, read_arrays
from butfor.rollouts.episodes import Episodes
from butfor.runs.arrays import ArrayFile, open_arrays
from butfor.runs.files import atomic_write, begins_as_npz, check_writable, read_json, write_text
from butfor.runs.memory import Allowance, TooLargeError

SCHEMA_VERSION = 1  # of a column file
NAMES = {  # argument of `read_arrays` -> names of that array in .npz files
    "observation": ("observation", "observations", "obs", "states"),
    "action": ("action", "actions"),
    "next_observation": ("next_observation", "next_observations", "next_obs", "next_states"),
    "terminals": ("terminals", "terminal", "terminations", "terminated", "dones", "done"),
    "timeouts": ("timeouts", "timeout", "truncations", "truncated"),
    "length": ("length", "lengths", "episode_lengths", "episode_length"),
    "sampled": ("sampled",),
}
DATASET_ID = re.compile(r"(?![-\w]/[-\w]+$)(?:[-\w]+/)*[-\w]+-v\d+")  # Minari does not read a namespace of one letter
HDF5_ROOM = 8192  # bytes that HDF5 needs for an array besides its numbers


def read_data(source: Path | str, ignore: Sequence[str] = ()) -> Recording:
    """Read an .npz file, or a local Minari dataset by its id or folder, without the parts in `ignore`."""
    path = Path(source)
    if is_npz_file(path) or (path.suffix == ".npz" and not path.exists()):
        return read_npz(path, ignore)
    if path.is_file():
        raise ValueError(f"{path} is not an .npz file; give an .npz file or the id of a Minari dataset.")
    return read_minari(source, ignore)


def is_npz_file(path: Path | str) -> bool:
    """Whether a path is an .npz file, by its content."""
    return Path(path).is_file() and begins_as_npz(path)


def read_npz(path: Path | str, ignore: Sequence[str] = ()) -> Recording:
    """Read an episode file of butfor, or an .npz file with arrays under the names in `NAMES`."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path} does not exist; give the .npz file with the data.")
    if not begins_as_npz(path):
        raise ValueError(f"{path} is not a valid .npz file; save arrays with numpy.savez.")
    try:
        with open_arrays(path) as file:
            names = sorted(file)
            is_own = {"schema_version", "sampled", "achieved_goal"} <= set(names)
            given = {} if is_own else {name: _read_array(file, known) for name, known in NAMES.items()}
    except TooLargeError as error:
        raise ValueError(f"{path} is too large: {error}") from error
    except Exception as error:  # a damaged file can fail in many ways
        problem = "contains pickled objects, which are not loaded" if "pickle" in str(error) else "is damaged"
        raise ValueError(f"{path} {problem} ({error}); save plain arrays with numpy.savez.") from error
    if is_own:
        own = Episodes.load(path)
        given = {name: getattr(own, name) for name in ("observation", "action", "length", "sampled")}
        given["action_space"] = _stored_space(own, path)
    for name in ("observation", "action"):
        if given[name] is None:
            found = ", ".join(names) or "no arrays"
            raise ValueError(f"{path} has no array {' or '.join(NAMES[name])}; it has {found}. Rename or add it.")
    return read_arrays(**given, ignore=ignore, source=str(path))


def _read_array(file: ArrayFile, names: Sequence[str]) -> Any:
    """The first array with one of the names, or a dictionary of those called `NAME/PART`, or None."""
    for name in names:
        if name in file:
            return file[name]
        if parts := {key.removeprefix(f"{name}/"): file[key] for key in file if key.startswith(f"{name}/")}:
            return parts
    return None


def _stored_space(own: Episodes, path: Path | str) -> Box | None:
    """The bounds of the actions in the metadata of an episode file, if it has them."""
    low, high = (own.metadata.get(name) for name in ("action_low", "action_high"))
    if low is None and high is None:
        return None
    try:
        space = Box(np.array(low, np.float64), np.array(high, np.float64), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} has wrong action bounds ({error}); correct them in the metadata.") from error
    if space.shape != own.action.shape[2:]:
        raise ValueError(f"{path} has {space.shape} action bounds for actions with shape {own.action.shape[2:]}.")
    return space


def read_minari(source: Any, ignore: Sequence[str] = ()) -> Recording:
    """Read a local Minari dataset, given as its id, its folder or a `MinariDataset`, without the parts in `ignore`."""
    is_open = hasattr(source, "iterate_episodes")
    dataset = source if is_open else open_minari(source)
    if not is_open:
        _check_size(minari_folder(source) / "data" / "main_data.hdf5", dataset.id)
    return join_episodes(_minari_episodes(dataset), dataset.action_space, ignore, f"Minari dataset {dataset.id}")


def _minari_episodes(dataset: Any) -> Iterator[tuple[Any, Any]]:
    """The observations and actions of each episode."""
    try:
        for episode in dataset.iterate_episodes():
            yield episode.observations, episode.actions
    except (ImportError, MemoryError):
        raise
    except Exception as error:  # a damaged dataset can fail in many ways
        raise _unreadable_minari(dataset.id, error) from error


def _unreadable_minari(dataset_id: str, error: Exception) -> ValueError:
    reason = f"{type(error).__name__}: {error}"
    return ValueError(
        f"Minari cannot read the episodes of {dataset_id} ({reason}). It may be damaged: download it again. Or it is a "
        "fault of Minari: convert the dataset to HDF5."
    )


def _check_size(file: Path, dataset_id: str) -> None:
    """Count the observations and actions of a Minari dataset before Minari reads them; only HDF5 shows their sizes."""
    if not file.is_file():
        return
    import h5py

    allowance = Allowance()

    def count(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and name.split("/")[1:2] in (["observations"], ["actions"]):
            allowance.take(int(item.size) * item.dtype.itemsize, f"{name} of {file}")

    try:
        with h5py.File(file, "r") as held:
            held.visititems(count)
    except (OSError, KeyError, RuntimeError) as error:  # what h5py raises for a damaged file
        raise _unreadable_minari(dataset_id, error) from error


def open_minari(source: Path | str) -> Any:
    """Open a local Minari dataset by its id or folder."""
    folder = minari_folder(source)
    try:
        import minari

        return minari.MinariDataset(folder / "data")
    except ImportError as error:  # of Minari, or of what reads this kind of storage
        raise ImportError(
            f"Reading the Minari dataset {folder} needs more packages ({error}): pip install 'butfor[minari]'."
        ) from error
    except Exception as error:  # a damaged dataset can fail in many ways
        raise ValueError(
            f"Minari cannot read the dataset {folder} ({type(error).__name__}: {error}); download it again."
        ) from error


def minari_folder(source: Path | str) -> Path:
    """The folder of a local Minari dataset given by its id or folder."""
    root = minari_root()
    for folder in (root / str(source), Path(source)):
        if _is_dataset(folder):
            return folder
    names = (path.parents[1].relative_to(root).as_posix() for path in root.glob("**/data/metadata.json"))
    known = ", ".join(sorted(name for name in names if DATASET_ID.fullmatch(name))) or "none"
    raise FileNotFoundError(
        f"{str(source)!r} is neither a file nor a Minari dataset in {root}; local datasets: {known}. butfor downloads "
        "nothing; fetch it with: minari download ID."
    )


def minari_root() -> Path:
    """The folder in which Minari stores its datasets."""
    return Path(os.environ.get("MINARI_DATASETS_PATH") or Path.home() / ".minari" / "datasets")


def _is_dataset(folder: Path) -> bool:
    return (folder / "data" / "metadata.json").is_file()


def column_names(entities: Iterable[str]) -> dict[str, str]:
    """Names of the scores in a file: `cai` for a single entity, else `cai_NAME` for each."""
    names = list(entities)
    if wrong := [name for name in names if not re.fullmatch(r"[^/\x00]+", name)]:
        raise ValueError(f"The entity name {wrong[0]!r} cannot be used in a file; choose one without '/'.")
    return {names[0]: "cai"} if len(names) == 1 else {name: f"cai_{name}" for name in names}


def advise_taken(names: Sequence[str], suffix: str = "") -> str:
    """What to do if data of files with a suffix already have columns of scores."""
    if list(names) == ["cai"]:  # one entity alone is always called so
        alone = " without --with-data" if suffix == ".npz" else ""
        return f"use the data without it, or write the scores alone with `butfor score --out FILE.npz`{alone}"
    return "use the original, or rename the entities"


def write_columns(
    path: Path | str,
    recording: Recording,
    scores: Mapping[str, Table],
    metadata: Mapping[str, Any] | None = None,
    edges: Mapping[str, Table] | None = None,
) -> None:
    """Write scores [S] of each entity, and of edges "source -> target", as an .npz file with one row per state."""
    columns = _named_scores(recording, scores)
    columns |= {f"edge {name}": np.asarray(edge, np.float32) for name, edge in (edges or {}).items()}
    columns |= {"episode": recording.episode, "time": recording.time, "last": recording.last}
    columns |= {"schema_version": np.array(SCHEMA_VERSION), "metadata": np.array(json.dumps(dict(metadata or {})))}
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **columns)


def _named_scores(recording: Recording, scores: Mapping[str, Table]) -> dict[str, Any]:
    """The scores by their names in a file, as float32 [S]."""
    names = column_names(scores)
    states = len(recording.observation)
    for name, score in scores.items():
        if np.shape(score) != (states,):
            raise ValueError(f"The scores of {name!r} have shape {np.shape(score)}; expected one per state, {states}.")
    return {names[name]: np.asarray(score, np.float32) for name, score in scores.items()}


def check_outputs(
    data: Path | str,
    out: Path | str,
    entities: Iterable[str],
    report: Path | str | None,
    save_model: Path | str | None,
    overwrite: bool,
    taken: Iterable[Path] = (),
) -> tuple[Path, Path]:
    """Paths of scores and report; refuses before the work what could not be written after it.

    `taken` are the files of the data; by default those of an .npz file or a Minari dataset.
    """
    column_names(entities)
    to_npz = Path(out).suffix == ".npz"
    from_npz = is_npz_file(data)
    if from_npz and not to_npz:
        raise ValueError(f"--out is {str(out)!r}; scores of an .npz file are written to a file that ends in .npz.")
    target = Path(out) if to_npz else check_new_minari(data, str(out), entities, overwrite)
    inner_page = target / "report.html"  # inside a new dataset
    page = Path(report or (target.with_suffix(".html") if to_npz else inner_page))
    given = (target if to_npz else None, page if to_npz or report else None, save_model)
    files = [Path(path) for path in given if path is not None]
    source = set(taken) or {(Path(data) if from_npz else minari_folder(data)).resolve()}
    kept = source if to_npz else {*source, target.resolve()}
    check_new_files([path for path in files if path != inner_page], kept, overwrite)
    for path in [*files, target.parent]:
        check_writable(path)
    return target, page


def check_new_files(files: Sequence[Path], taken: set[Path], overwrite: bool) -> None:
    """Refuse files that exist, are given twice, or are among the paths `taken` or inside them."""
    for path in files:
        if taken & {path.resolve(), *path.resolve().parents}:
            raise ValueError(f"{path} is part of the input data or of the new dataset; choose another path.")
        if path.is_dir():
            raise FileExistsError(f"{path} is a folder; give the name of a file.")
        if path.exists() and not overwrite:
            raise FileExistsError(f"{path} already exists; choose another name or replace it with --overwrite.")
    if len({path.resolve() for path in files}) < len(files):
        raise ValueError(f"Scores, report and model need different files; got {', '.join(map(str, files))}.")


def check_new_minari(source: Path | str, new: str, entities: Iterable[str], overwrite: bool = False) -> Path:
    """The folder of the scored copy of a dataset; refuses what could not be written in the end."""
    if not DATASET_ID.fullmatch(new):
        raise ValueError(f"{new!r} is not a valid id of a dataset (mine/cube-v0); column files end in .npz.")
    dataset = open_minari(source)
    target = minari_root() / new
    if target.resolve() == Path(dataset.spec.data_path).parent.resolve():
        raise ValueError(f"{new} is the input dataset; choose another id for the copy with scores.")
    if target.exists() and not (overwrite and _is_dataset(target)):
        advice = "replace it with --overwrite" if _is_dataset(target) else "remove it: it is not a Minari dataset"
        raise FileExistsError(f"{target} already exists; choose another id or {advice}.")
    if dataset.storage.FORMAT != "hdf5":
        kind = dataset.storage.FORMAT
        raise ValueError(f"{dataset.id} is stored as {kind}, to which no scores can be added; use --out FILE.npz.")
    import h5py

    infos: set[str] = set()
    with h5py.File(Path(dataset.spec.data_path) / "main_data.hdf5") as file:
        for place in range(dataset.total_episodes):
            infos |= set(_episode_group(h5py, file, place).get("infos", ()))
    if taken := sorted(infos & set(column_names(entities).values())):
        raise ValueError(f"{dataset.id} already has infos {taken}; {advise_taken(taken)}.")
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
    """Copy a Minari dataset with `infos["cai"]` of shape (T + 1, 1) added to every episode.

    Args:
        source: id or folder of the dataset.
        new: id of the copy.
        recording: what was read from the dataset.
        scores: scores of each entity [S]; with several entities each is called `cai_NAME`.
        metadata: stored in the copy's metadata as `butfor`.
        overwrite: replace an existing dataset.
        beside: texts of further files beside the data, by name.

    Returns:
        The folder of the copy.
    """
    target = check_new_minari(source, new, scores, overwrite)
    if len(recording) != open_minari(source).total_episodes:
        raise ValueError(f"The recording has {len(recording)} episode(s); {source} has another number.")
    edges = np.cumsum(recording.length + 1)[:-1]
    parts = {name: np.split(score[:, None], edges) for name, score in _named_scores(recording, scores).items()}
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    old = target.with_name(f".{target.name}.{os.getpid()}.old")
    try:
        data = minari_folder(source) / "data"
        for path in [data, *sorted(data.rglob("*"))]:  # without their modes: the source may be read-only
            copy = temporary / "data" / path.relative_to(data)
            copy.mkdir(parents=True) if path.is_dir() else shutil.copyfile(path, copy)
        _add_infos(temporary / "data" / "main_data.hdf5", parts)
        about = read_json(temporary / "data" / "metadata.json")
        size = sum(path.stat().st_size for path in (temporary / "data").iterdir())
        about |= {"dataset_id": new, "dataset_size": round(size / 1e6, 1), "butfor": dict(metadata or {})}
        write_text(temporary / "data" / "metadata.json", json.dumps(about, indent=2))
        for name, text in (beside or {}).items():
            write_text(temporary / name, text)
        for namespace in [minari_root() / parent for parent in Path(new).parents if parent.name]:
            if not (namespace / "namespace_metadata.json").exists():
                write_text(namespace / "namespace_metadata.json", "{}")
        if target.exists():
            target.rename(old)
        temporary.rename(target)
    finally:
        if old.exists() and not target.exists():
            old.rename(target)
        for folder in (temporary, old):
            shutil.rmtree(folder, ignore_errors=True)
    return target


def _add_infos(path: Path, parts: Mapping[str, list[Table]]) -> None:
    """Add arrays, one for each episode, to the infos of a dataset's HDF5 file."""
    import h5py

    with path.open("ab") as room:  # HDF5 crashes on a full disk; this fails with an error instead
        for score in (score for episodes in parts.values() for score in episodes):
            room.write(bytes(HDF5_ROOM + 2 * score.nbytes))
    with h5py.File(path, "a") as file:
        for key, episodes in parts.items():
            for place, score in enumerate(episodes):
                infos = _episode_group(h5py, file, place).require_group("infos")
                infos.create_dataset(key, data=score, chunks=True, maxshape=(None, 1))


def _episode_group(h5py: Any, file: Any, place: int) -> Any:
    """An episode's HDF5 group; refuses links, which could point into other files."""
    for name in (f"episode_{place}", f"episode_{place}/infos"):
        if not isinstance(file.get(name, getlink=True), h5py.HardLink | None):
            raise ValueError(f"{name} of the dataset is a link, which is not followed; copy its content in.")
    return file[f"episode_{place}"]
