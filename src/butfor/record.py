"""The run folder: what was asked, by which versions, and what came out, in files that are whole or absent."""

import dataclasses
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from butfor import __version__
from butfor.files import read_json, write_json, written

SCHEMA_VERSION = 1


def open_run(folder: Path | str, kind: str, config: Any, overwrite: bool = False) -> Path:
    """A new run folder, or the one of the same config to go on with; a folder that holds something else is refused."""
    folder = Path(folder)
    record = {"schema": SCHEMA_VERSION, "kind": kind, "label": run_label(kind, config), "config": plain(config)}
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; give another name for the run folder.")
    if folder.is_dir() and any(entry.suffix != ".part" for entry in folder.iterdir()):
        held = _held_run(folder)
        if held is None:
            raise FileExistsError(f"{folder} is not empty and holds no run; give another name for the run folder.")
        if overwrite:
            (folder / "summary.json").unlink(missing_ok=True)  # from here on the run is not a finished one
            for entry in folder.iterdir():
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        elif held != record:
            raise FileExistsError(f"{folder} holds a run with other settings; give another name or say --overwrite.")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", record)
    return folder


def _held_run(folder: Path) -> dict[str, Any] | None:
    """The record of the run that a folder holds; None where it holds none."""
    try:
        held = read_json(folder / "config.json")
    except OSError:
        return None
    return held if isinstance(held, dict) and held.keys() == {"schema", "kind", "label", "config"} else None


def run_label(kind: str, config: Any) -> str:
    """A name computed from how the config differs from its type's defaults: `detection-slide-seeds=2`."""
    parts = [kind] + ([config.world] if hasattr(config, "world") else [])
    return "-".join([*parts, *(f"{name}={value}" for name, value in differences(config) if name != "world")])


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

    try:
        git("ls-files", "--error-unmatch", source.name)  # else this is a copy inside somebody else's repository
        return git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*").strip()
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("BUTFOR_COMMIT")


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


def read_metrics(folder: Path | str) -> list[dict[str, Any]]:
    """The rows of `metrics.jsonl`; a line cut off by a crash ends the reading."""
    rows = []
    for line in (Path(folder) / "metrics.jsonl").read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows
