"""The newest two checkpoints of a run. A digest of the content is part of each name, so that damage is detected."""

import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from butfor.runs.digests import digest_of_file
from butfor.runs.files import explain_write_error, load_checkpoint, remove_leftovers, save_checkpoint

KEPT = 2
NAME = re.compile(r"\d{8,}-(\d{4,})-[0-9a-f]{16}\.pt")  # episode, serial number, digest


def save_checkpoint_in(folder: Path, episode: int, state: Mapping[str, Any]) -> Path:
    """Write `checkpoint/EPISODE-SERIAL-DIGEST.pt` in a run folder, then remove all but the newest two.

    Raises:
        TypeError: the state contains something that could be saved but not loaded.
        OSError: the checkpoint could not be written; the earlier ones are unchanged.
    """
    place = folder / "checkpoint"
    earlier = _newest_first(place)
    serial = earlier[0][0] + 1 if earlier else 1
    unnamed = place / f"{serial:04d}.{os.getpid()}.part"  # until its digest is known
    advice = f"free space in {place} or make it writable, then resume the run: its earlier checkpoints are unchanged"
    with explain_write_error(f"The checkpoint of episode {episode}", advice):
        try:
            save_checkpoint(unnamed, state)
            path = place / f"{episode:08d}-{serial:04d}-{digest_of_file(unnamed)}.pt"
            os.replace(unnamed, path)
        finally:
            unnamed.unlink(missing_ok=True)
    for _, old in earlier[KEPT - 1 :]:
        old.unlink(missing_ok=True)
    remove_leftovers(place)
    remove_leftovers(folder)
    return path


def latest_checkpoint(folder: Path) -> dict[str, Any] | None:
    """Return the newest undamaged state, on the CPU, or None where no checkpoint was written. Nothing is executed.

    Raises:
        ValueError: there are checkpoints, and all are damaged.
    """
    problems: list[str] = []
    for _, path in _newest_first(folder / "checkpoint"):
        try:
            if not path.stem.endswith(digest_of_file(path)):  # torch would not notice a changed number
                raise ValueError(f"{path} is damaged: its content does not match its name.")
            state = load_checkpoint(path)
        except ValueError as error:
            problems.append(str(error))
            continue
        for problem in problems:
            warnings.warn(f"{problem} The earlier {path.name} is used instead.", stacklevel=2)
        return state
    if problems:
        raise ValueError(
            f"All checkpoints of {folder} are damaged. {' '.join(problems)} Restore one of them from a copy, or start "
            "the run again with --overwrite (in a study: delete its folder)."
        )
    return None


def _newest_first(place: Path) -> list[tuple[int, Path]]:
    """Return checkpoints with their serial numbers: a run resumed after damage writes an earlier episode later."""
    matches = [(NAME.fullmatch(path.name), path) for path in place.glob("*.pt")]
    return sorted(((int(match[1]), path) for match, path in matches if match), reverse=True)
