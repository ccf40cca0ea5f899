"""The run folder: create it, write and read its files, find it again, lock it, save and restore checkpoints.

A run folder is all that passes between computing and showing. `folder` writes it and `reading` reads it: read these
two first. `config` has what every config dataclass shares. Nothing here imports torch before it is needed, so that
pages and statistics work without it.
"""

from butfor.runs.config import check_between, check_choices, check_least, check_positive, config_from, plain
from butfor.runs.folder import invoked_as, open_run, run_label, run_name, versions
from butfor.runs.locks import BusyError, locked
from butfor.runs.reading import find_run, read_arrays, read_curves, read_metrics, read_object, read_run

__all__ = [
    "BusyError", "check_between", "check_choices", "check_least", "check_positive", "config_from", "find_run",
    "invoked_as", "locked", "open_run", "plain", "read_arrays", "read_curves", "read_metrics", "read_object",
    "read_run", "run_label", "run_name", "versions",
]  # fmt: skip
