"""The run folder: create it, write and read its files, find it again, lock it, save and restore checkpoints.

A run folder is all that passes between computing and showing. `folder` writes it and `reading` reads it: read these
two first. `config` has what every config dataclass shares. Nothing here imports torch before it is needed, so that
pages and statistics work without it.
"""

from butfor.runs.checkpoints import latest_checkpoint, save_checkpoint_in
from butfor.runs.config import (
    check_between,
    check_choices,
    check_least,
    check_positive,
    config_from,
    differences,
    flat,
    plain,
)
from butfor.runs.files import atomic_write, check_writable, read_json, write_json
from butfor.runs.folder import (
    append_metrics,
    invoked_as,
    open_events,
    open_run,
    run_label,
    run_name,
    truncate_metrics,
    versions,
    versions_resumed,
    write_metrics,
)
from butfor.runs.locks import BusyError, locked, worker_on
from butfor.runs.reading import find_run, read_arrays, read_curves, read_metrics, read_object, read_run

__all__ = [
    "BusyError",
    "append_metrics",
    "atomic_write",
    "check_between",
    "check_choices",
    "check_least",
    "check_positive",
    "check_writable",
    "config_from",
    "differences",
    "find_run",
    "flat",
    "invoked_as",
    "latest_checkpoint",
    "locked",
    "open_events",
    "open_run",
    "plain",
    "read_arrays",
    "read_curves",
    "read_json",
    "read_metrics",
    "read_object",
    "read_run",
    "run_label",
    "run_name",
    "save_checkpoint_in",
    "truncate_metrics",
    "versions",
    "versions_resumed",
    "worker_on",
    "write_json",
    "write_metrics",
]
