"""Read run folders, also of earlier versions. A broken file raises a sentence that names it. Needs no torch."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from butfor import __version__
from butfor.runs.arrays import open_arrays
from butfor.runs.digests import RESTORE
from butfor.runs.files import parse_json, read_json

Array = NDArray[Any]
SCHEMA_VERSION = 1
# Fields that had another name before.
RENAMED = {
    "world": "env",
    "worlds": "num_envs",
    "agent_worlds": "agent_envs",
    "influence": "use",
    "model": "cai",
    "ensemble": "disagreement",
}


def with_new_names(held: Any) -> Any:
    """Return the content of a config.json or summary.json with the present names of its fields."""
    if not isinstance(held, dict):
        return held
    renamed = {("env" if name == "world" else name): value for name, value in held.items()}
    if isinstance(held.get("config"), dict):
        renamed["config"] = _settings_with_new_names(held["config"], held.get("kind"))
    return renamed


def _settings_with_new_names(old: dict[str, Any], kind: Any) -> dict[str, Any]:
    """Translate the settings of a run of before, which named its environment `world`."""
    if "world" not in old:
        return old
    if kind != "training":
        return {RENAMED[name] if "world" in name else name: value for name, value in old.items()}
    new = {RENAMED.get(name, name): value for name, value in old.items()}
    if isinstance(model := old.get("model"), dict):  # what all signals share was part of the influence model
        new["cai"] = {name: value for name, value in model.items() if name not in ("every", "schedule")}
        new |= {f"fit_{name}": model[name] for name in ("every", "schedule") if name in model}
    curiosity = new.pop("curiosity", "none")
    if curiosity != "none":  # rivals were always used as a bonus
        new |= {"signal": curiosity, "use": ["bonus"]}
    if (columns := new.pop("entity", None)) and new.get("use"):  # without a use it had no effect
        new["entities"] = [f"object={','.join(map(str, columns))}"]
    if isinstance(agent := old.get("agent"), dict) and "twin_critics" in agent:
        new["agent"] = {name: value for name, value in agent.items() if name != "twin_critics"}
        if agent["twin_critics"]:  # TD3 without its other two parts
            new |= {"algorithm": "td3", "td3": {"policy_delay": 1, "target_noise": 0.0}}
    return new


def read_run(folder: Path | str) -> dict[str, Any]:
    """Return the config.json of a run folder.

    Returns:
        `schema`, `kind` ("training" or "detection"), `label` and `config`, the settings by name.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: it is not a run folder, or its config.json cannot be read.
    """
    folder = Path(folder)
    if not folder.is_dir():
        what = f"{folder} is a file" if folder.exists() else f"There is no folder {folder}"
        raise FileNotFoundError(f"{what}; give the folder of a run.")
    if not is_run(folder):
        raise ValueError(f"{folder} is not a run folder: it has no config.json of butfor. Give the folder of a run.")
    return read_object(folder / "config.json")


def is_run(folder: Path) -> bool:
    """Whether a folder contains a config.json of butfor; one that is not JSON raises."""
    path = folder / "config.json"
    held = read_json(path) if path.is_file() else None
    return isinstance(held, dict) and held.keys() == {"schema", "kind", "label", "config"}


def read_object(path: Path | str) -> dict[str, Any]:
    """Return the JSON object in a file of a run folder, such as summary.json; fields have their present names."""
    held = read_json(path)
    if not isinstance(held, dict):
        raise ValueError(f"{path} contains {type(held).__name__}; expected a JSON object. {RESTORE}")
    schema = held.get("schema", SCHEMA_VERSION)
    if type(schema) is not int or schema not in range(1, SCHEMA_VERSION + 1):
        raise ValueError(
            f"{path} has schema {schema!r}; butfor {__version__} reads up to {SCHEMA_VERSION}. Install a newer butfor."
        )
    renamed: dict[str, Any] = with_new_names(held)
    return renamed


def read_metrics(folder: Path | str, name: str = "metrics.jsonl", needed: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl, as `iterate_metrics` yields them."""
    return list(iterate_metrics(folder, name, needed))


def iterate_metrics(
    folder: Path | str, name: str = "metrics.jsonl", needed: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """Yield the rows of metrics.jsonl. A last line that a crash cut off, without a line end, is left out.

    Args:
        folder: the run folder.
        name: the file in it.
        needed: fields that every row must have.

    Raises:
        ValueError: another line is damaged, or lacks a field.
    """
    path = Path(folder) / name
    with path.open("rb") as file:  # as bytes: a damaged one may be another line end
        for number, line in enumerate(file, start=1):
            try:
                row = parse_json(line, f"{path}, line {number}")
            except ValueError:
                if not line.endswith(b"\n"):
                    return
                raise
            if not isinstance(row, dict) or (missing := [field for field in needed if field not in row]):
                lacks = ", ".join(missing) if isinstance(row, dict) else "an object"
                raise ValueError(f"{path}, line {number}, lacks {lacks}. {RESTORE}")
            yield row


def read_curves(folder: Path | str, names: Sequence[str]) -> tuple[Array, tuple[int, ...], dict[str, Array]]:
    """Return what the evaluations of a training run measured.

    Args:
        folder: the run folder.
        names: columns of metrics.jsonl, such as "success". Those that not every row has are left out.

    Returns:
        Episodes [E] at which all seeds were evaluated, the seeds, and the values [S, E] by name.
    """
    path = Path(folder) / "metrics.jsonl"
    rows = iterate_metrics(folder, needed=("episode", "seed")) if path.is_file() else iter(())
    columns: dict[str, list[Any]] = {name: [] for name in ("episode", "seed", *names)}
    for row in rows:  # only what is asked for is kept of a row: there may be a million
        for name in [name for name in columns if name not in row]:
            del columns[name]
        for name, values in columns.items():
            values.append(row[name])
    with expected_form(path):
        episodes, episode = np.unique(np.asarray(columns.pop("episode"), np.int64), return_inverse=True)
        seeds, seed = np.unique(np.asarray(columns.pop("seed"), np.int64), return_inverse=True)
        found = np.full((len(seeds), len(episodes)), -1)
        found[seed, episode] = np.arange(len(episode))  # a row that is there twice: the later one
        whole = (found >= 0).all(0)
        if not whole.any():
            return np.empty(0, int), (), {}
        found = found[:, whole]
        curves = {
            name: finite_array(np.asarray(values, float)[found], *found.shape) for name, values in columns.items()
        }
    return episodes[whole], tuple(seeds.tolist()), curves


def read_arrays(path: Path | str) -> dict[str, Array]:
    """Return the arrays of an .npz file by name; nothing in it is executed."""
    try:
        with open_arrays(path) as arrays:
            return dict(arrays)
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no file {path}.") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}). {RESTORE}") from error


def read_optional(path: Path) -> Any:
    """Return the arrays of an .npz file or the object of a JSON file, or None if it does not exist."""
    if not path.is_file():
        return None
    return read_arrays(path) if path.suffix == ".npz" else read_object(path)


@contextmanager
def expected_form(path: Path | str) -> Iterator[None]:
    """Turn errors about the content of a file or folder into one sentence that names it."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path} has an unexpected form ({what}). {RESTORE}") from error


def finite_array(values: Any, *shape: int | None) -> Array:
    """Return values as a finite array of a shape, in which None stands for any length but zero."""
    array = np.asarray(values, float)
    fits = array.ndim == len(shape)
    fits = fits and all(wanted in (None, size) for wanted, size in zip(shape, array.shape, strict=True))
    if not fits or not array.size or not np.isfinite(array).all():
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"expected finite numbers of shape [{wanted}], got shape {list(array.shape)}")
    return array


def find_run(text: str | Path, root: Path | str = "runs") -> Path:
    """Return the run folder that a user means.

    Args:
        text: a path, the beginning of a folder's name in `root`, or "latest" for the run there that began last.
        root: the folder with the runs.

    Raises:
        FileNotFoundError: no run fits.
        ValueError: several runs fit.
    """
    if Path(text).exists():
        return Path(text)
    runs = {path.parent.name: path.parent for path in Path(root).glob("*/config.json")}
    if str(text) == "latest" and runs:
        return max(runs.values(), key=_began)
    fitting = [name for name in sorted(runs) if name.startswith(str(text))]
    if str(text) in runs or len(fitting) == 1:
        return runs[fitting[0]]  # the shortest name comes first
    if fitting:
        raise ValueError(f"{str(text)!r} fits several runs in {root}: {', '.join(fitting)}. Give more of the name.")
    there = f"{root} contains {', '.join(sorted(runs))}" if runs else f"{root} contains no runs"
    raise FileNotFoundError(f"There is no run {str(text)!r}; {there}.")


def _began(run: Path) -> float:
    """Return when a run began or was last resumed: versions.json is written then."""
    return max(path.stat().st_mtime for path in (run / "config.json", run / "versions.json") if path.is_file())
