"""Write run folders: what was asked, with which versions, and what came out. torch is imported only where needed."""

import hashlib
import importlib.metadata
import json
import math
import os
import platform
import re
import subprocess
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from butfor import __version__
from butfor.runs.config import config_from, differences, plain
from butfor.runs.digests import RESTORE, add_digest
from butfor.runs.files import check_writable, read_json, write_json, write_text
from butfor.runs.reading import SCHEMA_VERSION, is_run, read_metrics, read_run

if TYPE_CHECKING:
    import torch

# What butfor writes into a run folder.
WRITTEN = (
    "versions.json", "metrics.jsonl", "summary.json", "episodes.json", "diagnosis.json", "studies.json", "scores.npz",
    "heatmap.npz", "model.safetensors", "influence.safetensors", "vime.safetensors", "disagreement.safetensors",
    "scores-random.npz", "report.html", "player.json", "watch.mp4", "watch.gif", "strip.png", ".*.part",
    "checkpoint/*.pt", "checkpoint/*.part", "events/events.out.tfevents.*", "pictures/index.json", "pictures/map.npz",
    "pictures/step-*.jpg", "pictures/state-*.jpg", "data/train*.npz", "data/validation*.npz", "data/test*.npz",
    "data/random*.npz", "data/expert*.npz", "data/noisy-expert*.npz", "data/agents.npz",
    "data/agents.npz.parts/*.npz", "data/forks.npz",
    *(f"figures/{name}.{kind}" for name in (
        "roc*", "precision-recall*", "timeline-*", "actions", "reference", "decisions", "noise", "reliability", "map",
        "curves", "reach", "behaviour", "heat-map*",
    ) for kind in ("svg", "png", "pdf")),
)  # fmt: skip
PLACES = ("checkpoint", "events", "pictures", "figures", "data/agents.npz.parts", "data/agents", "data")
LONGEST_WORDS = 40  # characters of a run's name that say what is different
_command: ContextVar[str] = ContextVar("command", default="")


@contextmanager
def invoked_as(command: str) -> Iterator[None]:
    """While active, runs and studies record this command as the one that started them."""
    token = _command.set(command)
    try:
        yield
    finally:
        _command.reset(token)


def invoked_command() -> str:
    """Return the command that `invoked_as` set; empty where the library is used without the command line."""
    return _command.get()


def open_run(
    folder: Path | str, kind: str, config: Any, overwrite: bool = False, episodes: Mapping[str, Any] | None = None
) -> Path:
    """Create a run folder of a kind ("training" or "detection"), or open the one that the same config created.

    Args:
        folder: the run folder.
        kind: "training" or "detection".
        config: the settings.
        overwrite: replace the run in the folder.
        episodes: content of episodes.json, which says where a run keeps its episodes. It is written before
            config.json, so that a run that was killed in between does not forget it.

    Raises:
        FileExistsError: the folder contains a run with other settings, or files that are not a run.
    """
    folder = Path(folder)
    record = {"schema": SCHEMA_VERSION, "kind": kind, "label": run_label(kind, config), "config": plain(config)}
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file; give another name for the run folder.")
    check_writable(folder)
    if folder.is_dir() and any(entry.suffix != ".part" and entry.name != "episodes.json" for entry in folder.iterdir()):
        if not is_run(folder):
            raise FileExistsError(f"{folder} is not empty and is not a run; give another name for the run folder.")
        if overwrite:
            remove_run(folder)
        elif not _same_run(read_run(folder), kind, config):
            raise FileExistsError(
                f"{folder} contains a run with other settings. Give another name, or replace it with --overwrite."
            )
    folder.mkdir(parents=True, exist_ok=True)
    if episodes is not None:
        write_json(folder / "episodes.json", episodes)
    write_json(folder / "config.json", record)
    return folder


def remove_run(folder: Path) -> None:
    """Remove what butfor wrote into a run folder, except config.json; files that it did not write stay."""
    (folder / "summary.json").unlink(missing_ok=True)  # from here on the run is not a finished one
    for place in PLACES:
        if (folder / place).is_symlink():  # what a link points to is not part of the run
            (folder / place).unlink()
    if (agents := folder / "data" / "agents" / "config.json").is_file():  # a run that played the data of detection
        remove_run(agents.parent)
        agents.unlink()
    for path in [path for pattern in WRITTEN for path in folder.glob(pattern)]:
        path.unlink()
    for place in PLACES:
        with suppress(OSError):  # missing, or with files of others
            (folder / place).rmdir()


def _same_run(held: dict[str, Any], kind: str, config: Any) -> bool:
    """Whether a run has this kind and config; fields that it was written without count as their defaults."""
    try:
        return bool(held["kind"] == kind and plain(config_from(type(config), held["config"])) == plain(config))
    except ValueError:
        return False


def run_label(kind: str, config: Any) -> str:
    """Return how a config differs from its type's defaults, in full: `detection-slide-seeds=2`."""
    parts = [kind] + ([config.env] if hasattr(config, "env") else [])
    return "-".join([*parts, *(f"{name}={value}" for name, value in differences(config) if name != "env")])


def run_name(kind: str, config: Any, digits: int = 4) -> str:
    """Return a short name for a run's folder, such as `push-priority-bonus-3f2a`.

    It consists of the environment, what differs from the defaults in up to 40 characters (choices before numbers), and
    the first `digits` of a digest of the whole label, which tells apart runs that share the words.
    """
    words = [_word("env", config.env)] if hasattr(config, "env") else []
    words += [kind] if kind != "training" else []
    changed = dict.fromkeys(_word(name, value) for name, value in differences(config) if name != "env")
    left = LONGEST_WORDS
    for word in sorted(changed, key=lambda word: any(map(str.isdigit, word))):
        size = len(word.encode())  # a file's name is limited in bytes
        if size < left:
            words.append(word)
            left -= size + 1
    digest = hashlib.blake2b(run_label(kind, config).encode()).hexdigest()[:digits]
    return "-".join([*words, digest])


def _word(name: str, value: Any) -> str:
    """Return a setting as a word for a folder's name: `vime`, `priority-bonus`, `seeds10`, `no-contact`."""
    last = name.rpartition(".")[2]
    if value is True or value == "on":
        word = last
    elif value is False or value is None or value == ():
        word = f"no-{last}"
    elif isinstance(value, tuple) and all(isinstance(one, str) for one in value):
        word = "-".join(value)
    else:
        word = value if isinstance(value, str) else f"{last}{value}"
    return re.sub(r"[^\w.+]+", "-", word).strip("-")  # without what a shell would interpret


def versions(device: "torch.device | str") -> dict[str, Any]:
    """Return what a result depends on besides its config: versions, commit, hardware, command."""
    import torch

    device = torch.device(device)
    packages = ("torch", "numpy", "scipy", "scikit-learn", "gymnasium", "mujoco", "gymnasium-robotics")
    found = {}
    for name in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return {
        "butfor": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        **found,
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        "threads": torch.get_num_threads(),
        "command": invoked_command(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def versions_resumed(folder: Path, device: "torch.device | str") -> dict[str, Any]:
    """Return versions.json of a run: of its start and, as `resumed`, what differed in the processes that resumed it."""
    now = versions(device)
    try:
        begun: dict[str, Any] = read_json(folder / "versions.json")
        changed = {key: value for key, value in now.items() if begun.get(key) != value}
        return begun | {"resumed": [*begun.get("resumed", []), changed]}
    except (OSError, ValueError, TypeError, AttributeError):  # missing or damaged: a run must still be resumable
        return now


def _commit() -> str | None:
    """Return the commit of this source, marked "-dirty" where files differ from it; BUTFOR_COMMIT takes precedence."""
    if os.environ.get("BUTFOR_COMMIT"):  # for copies without a history
        return os.environ["BUTFOR_COMMIT"]
    source = Path(__file__).resolve()

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        return subprocess.run(command, cwd=source.parent, capture_output=True, text=True, check=True, timeout=10).stdout

    try:
        git("ls-files", "--error-unmatch", source.name)  # else this is a copy inside somebody else's repository
        return git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*").strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _processor() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def write_metrics(folder: Path, rows: Iterable[dict[str, Any]], name: str = "metrics.jsonl") -> None:
    """Write `metrics.jsonl`, one JSON object per line; rows that were there are replaced."""
    write_text(folder / name, _lines_of(rows))


def append_metrics(folder: Path, rows: Iterable[dict[str, Any]], name: str = "metrics.jsonl") -> None:
    """Append rows to `metrics.jsonl` in one write; a line that a crash cut off is removed first."""
    path = folder / name
    if _ends_within_a_line(path):
        write_metrics(folder, read_metrics(folder, name), name)
    with path.open("ab") as file:
        file.write(_lines_of(rows).encode())
        file.flush()
        os.fsync(file.fileno())  # on disk before the checkpoint that relies on it


def truncate_metrics(folder: Path, episode: int, least: int = 0) -> None:
    """Remove the rows of `metrics.jsonl` after an episode: the run that resumes there writes them again.

    Args:
        folder: the run folder.
        episode: the last that stays.
        least: rows up to this episode that had been written when the run was saved.

    Raises:
        ValueError: a row is damaged, or there are fewer than `least`; the file is not changed.
    """
    path = folder / "metrics.jsonl"
    rows = read_metrics(folder, needed=("episode", "seed", "success")) if path.is_file() else []
    for number, row in enumerate(rows, start=1):
        found = [row[name] for name in ("episode", "seed", "success")]
        if not all(isinstance(value, int | float) and math.isfinite(value) for value in found):
            raise ValueError(f"{path}, line {number}, has {found} as episode, seed and success. {RESTORE}")
    kept = [row for row in rows if row["episode"] <= episode]
    if len(kept) < least:
        raise ValueError(
            f"{path} has {len(kept)} rows up to episode {episode}, but {least} had been written when the run was "
            "saved: some are lost. Restore it from a copy, or start the run again with --overwrite."
        )
    if rows:
        write_metrics(folder, kept)


def _lines_of(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(add_digest(row)) + "\n" for row in rows)


def _ends_within_a_line(path: Path) -> bool:
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


class Events:
    """Curves for TensorBoard in `events/`; without TensorBoard there is a warning and nothing is written.

    Points of an earlier process after `purge_step` are hidden.
    """

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        self.writer: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            advice = "Install it with: pip install 'butfor[tensorboard]'"
            warnings.warn(f"No TensorBoard curves are written ({error}). {advice}", stacklevel=2)
            return
        first = None if purge_step is None else purge_step + 1  # TensorBoard hides this step, too
        self.writer = SummaryWriter(str(folder / "events"), purge_step=first)

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Add a point to each curve and flush: what lies before a checkpoint must survive a crash."""
        if self.writer is not None:
            for name, value in values.items():
                self.writer.add_scalar(name, value, step)
            self.writer.flush()

    def close(self) -> None:
        """Close the files."""
        if self.writer is not None:
            self.writer.close()
