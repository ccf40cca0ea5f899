"""The run folder: what was asked, by which versions, and what came out, in files that are whole or absent."""

import dataclasses
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import torch

from butfor import __version__
from butfor.runs.files import check_place, read_json, write_json, written
from butfor.runs.reading import with_new_names

SCHEMA_VERSION = 1
LONGEST_NAME = 180  # file systems allow 255 bytes
T = TypeVar("T")


def open_run(folder: Path | str, kind: str, config: Any, overwrite: bool = False) -> Path:
    """A new run folder, or the one of the same config to go on with; a folder that holds something else is refused."""
    folder = Path(folder)
    record = {"schema": SCHEMA_VERSION, "kind": kind, "label": run_label(kind, config), "config": plain(config)}
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; give another name for the run folder.")
    check_place(folder)
    if folder.is_dir() and any(entry.suffix != ".part" for entry in folder.iterdir()):
        held = _held_run(folder)
        if held is None:
            raise FileExistsError(f"{folder} is not empty and holds no run; give another name for the run folder.")
        if overwrite:
            (folder / "summary.json").unlink(missing_ok=True)  # from here on the run is not a finished one
            for entry in folder.iterdir():
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        elif not _same_run(read_run(folder), kind, config):
            raise FileExistsError(f"{folder} holds a run with other settings; give another name or say --overwrite.")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", record)
    return folder


def _held_run(folder: Path) -> dict[str, Any] | None:
    """The record of the run that a folder holds; None where it holds none."""
    try:
        held = with_new_names(read_json(folder / "config.json"))
    except OSError:
        return None
    return held if isinstance(held, dict) and held.keys() == {"schema", "kind", "label", "config"} else None


def _same_run(held: dict[str, Any], kind: str, config: Any) -> bool:
    """Whether a run has this kind and config; fields that it was written without count as their defaults."""
    try:
        return bool(held["kind"] == kind and plain(config_from(type(config), held["config"])) == plain(config))
    except ValueError:
        return False


def read_run(folder: Path | str) -> dict[str, Any]:
    """What a run folder's `config.json` says: schema, kind, label and config."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {folder}; give the folder of a run.")
    held = _held_run(folder)
    if held is None:
        raise ValueError(f"{folder} is not a run folder: it holds no config.json of butfor's. Give another folder.")
    if held["schema"] not in range(1, SCHEMA_VERSION + 1):
        raise ValueError(
            f"{folder} holds a run of schema {held['schema']!r}, and butfor {__version__} reads up to "
            f"{SCHEMA_VERSION}; use a newer butfor."
        )
    return held


def run_label(kind: str, config: Any) -> str:
    """A name computed from how the config differs from its type's defaults: `detection-slide-seeds=2`."""
    parts = [kind] + ([config.env] if hasattr(config, "env") else [])
    return "-".join([*parts, *(f"{name}={value}" for name, value in differences(config) if name != "env")])


def run_name(kind: str, config: Any) -> str:
    """The label as a folder's name, without what a shell would read otherwise; where long, cut and told apart."""
    label = run_label(kind, config)
    name = re.sub(r"[^\w.=+-]+", "-", re.sub(r"[()\[\]' ]", "", label).replace(",", "+"))
    digest = hashlib.blake2b(label.encode()).hexdigest()[:8]
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}-{digest}"


def differences(config: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """The fields of a config dataclass that are not at their defaults, nested names joined by dots."""
    found: list[tuple[str, Any]] = []
    for item in dataclasses.fields(config):
        value, name = getattr(config, item.name), prefix + item.name
        default = item.default if item.default is not dataclasses.MISSING else None
        if item.default_factory is not dataclasses.MISSING:
            default = item.default_factory()
        if dataclasses.is_dataclass(value):
            reference = default
            if not dataclasses.is_dataclass(default):
                found.append((name, "on"))
                reference = type(value)()  # type: ignore[misc]
            pairs = zip(flat(value), flat(reference), strict=True)
            found += [(f"{name}.{key}", mine) for (key, mine), (_, other) in pairs if mine != other]
        elif value != default:
            found.append((name, value))
    return found


def flat(config: Any) -> list[tuple[str, Any]]:
    """All fields of a config dataclass, nested names joined by dots."""
    rows: list[tuple[str, Any]] = []
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        nested = (
            [(f"{item.name}.{key}", inner) for key, inner in flat(value)] if dataclasses.is_dataclass(value) else None
        )
        rows += [(item.name, value)] if nested is None else nested
    return rows


def plain(config: Any) -> Any:
    """A config dataclass as JSON would read it back."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def config_from(kind: type[T], data: Any) -> T:
    """The inverse of `plain`; missing fields take their defaults, so that older runs load."""
    config: T = _dataclass_from(kind, data, "")
    return config


def _dataclass_from(kind: Any, data: Any, name: str) -> Any:
    """A dataclass from a JSON object; `name` is that of the field it belongs to."""
    if not isinstance(data, dict):
        raise ValueError(f"{name or 'The config'} must be an object with fields of {kind.__name__}; got {data!r}.")
    prefix = f"{name}." if name else ""
    hints, items = get_type_hints(kind), {item.name: item for item in dataclasses.fields(kind)}
    for key in data:
        if key not in items:
            raise ValueError(f"{prefix}{key} is no field of {kind.__name__}; its fields are {', '.join(items)}.")
    for key, item in items.items():
        if key not in data and item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            raise ValueError(f"{prefix}{key} is missing, and {kind.__name__} has no default for it; give a value.")
    return kind(**{key: _value_from(hints[key], value, prefix + key) for key, value in data.items()})


def _value_from(hint: Any, value: Any, name: str) -> Any:
    """What JSON read, as the type of its field: lists as tuples, whole numbers as floats, objects as dataclasses."""
    origin, options = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _dataclass_from(hint, value, name)
    if origin in (Union, UnionType):
        possible = [option for option in options if (option is NoneType) == (value is None)]
        if len(possible) == 1:
            return _value_from(possible[0], value, name)
        for option in possible:
            if not dataclasses.is_dataclass(option):  # JSON does not tell which of several it was
                with suppress(ValueError):
                    return _value_from(option, value, name)
    if origin is tuple and isinstance(value, list):
        kinds = options[:1] * len(value) if options[1:] == (...,) else options
        if len(kinds) == len(value):
            return tuple(_value_from(kinds[i], one, f"{name}[{i}]") for i, one in enumerate(value))
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is hint or (origin is Literal and any(one == value and type(one) is type(value) for one in options)):
        return value
    wanted = hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
    raise ValueError(f"{name} must be {wanted}; got {value!r}.")


def versions(device: torch.device | str) -> dict[str, Any]:
    """What a result depends on besides its config: versions, commit, hardware, command."""
    device = torch.device(device)
    packages = ("torch", "numpy", "scipy", "scikit-learn", "gymnasium", "mujoco", "gymnasium-robotics")
    found = {name: _version(name) for name in packages}
    return {
        "butfor": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        **{name: version for name, version in found.items() if version},
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "threads": torch.get_num_threads(),
        "command": shlex.join(["butfor", *sys.argv[1:]]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def versions_resumed(folder: Path, device: torch.device | str) -> dict[str, Any]:
    """versions.json of a run that goes on: what began it and, as `resumed`, what each later process had different."""
    now = versions(device)
    try:
        begun: dict[str, Any] = read_json(folder / "versions.json")
        changed = {key: value for key, value in now.items() if begun.get(key) != value}
        return begun | {"resumed": [*begun.get("resumed", []), changed]}
    except (OSError, ValueError, TypeError, AttributeError):  # none, or none that can be read: the first that is known
        return now


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the source that runs, marked where files differ from it; BUTFOR_COMMIT where git is absent."""
    source = Path(__file__).resolve()

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        return subprocess.run(command, cwd=source.parent, capture_output=True, text=True, check=True, timeout=10).stdout

    if os.environ.get("BUTFOR_COMMIT"):  # a copy without its history is told which commit it is
        return os.environ["BUTFOR_COMMIT"]
    try:
        git("ls-files", "--error-unmatch", source.name)  # else this is a copy inside somebody else's repository
        return git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*").strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _processor() -> str:
    """The processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def write_metrics(folder: Path, rows: Iterable[dict[str, Any]]) -> None:
    """`metrics.jsonl` anew: one JSON object a line."""
    with written(folder / "metrics.jsonl") as temporary:
        temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))


def append_metrics(folder: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Further rows of `metrics.jsonl`, in one write; a line that a crash cut off is removed first."""
    path = folder / "metrics.jsonl"
    if _is_cut_off(path):
        write_metrics(folder, read_metrics(folder))
    text = "".join(json.dumps(row) + "\n" for row in rows)
    with path.open("ab") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())  # on disk before the checkpoint that relies on it


def _is_cut_off(path: Path) -> bool:
    """Whether a file's last line has no end."""
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def truncate_metrics(folder: Path, episode: int) -> None:
    """`metrics.jsonl` up to an episode: what came later, the run that goes on from there writes anew."""
    if (folder / "metrics.jsonl").is_file():
        write_metrics(folder, [row for row in read_metrics(folder) if row["episode"] <= episode])


def read_metrics(folder: Path | str) -> list[dict[str, Any]]:
    """The rows of `metrics.jsonl`; a line cut off by a crash ends the reading."""
    rows = []
    for line in (Path(folder) / "metrics.jsonl").read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


class Events:
    """Curves for TensorBoard; without a writer nothing is kept."""

    def __init__(self, writer: Any = None) -> None:
        self.writer = writer

    def add(self, values: Mapping[str, float], step: int) -> None:
        """One point a curve, written at once: a crash must not take what lies before the last checkpoint."""
        if self.writer is not None:
            for name, value in values.items():
                self.writer.add_scalar(name, value, step)
            self.writer.flush()

    def close(self) -> None:
        """Ends the writing."""
        if self.writer is not None:
            self.writer.close()


def open_events(folder: Path, purge_step: int | None = None) -> Events:
    """TensorBoard's files in `events/`; what an earlier process wrote for steps after `purge_step` is hidden."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        warnings.warn(
            f"No TensorBoard curves are written ({error}); to have them: pip install 'butfor[tensorboard]'.",
            stacklevel=2,
        )
        return Events()
    first = None if purge_step is None else purge_step + 1  # TensorBoard hides this step, too
    return Events(SummaryWriter(str(folder / "events"), purge_step=first))
