"""What the built-in vector environments share."""

import os


def processors() -> int:
    """How many of the machine's processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_threads() -> int:
    """BUTFOR_THREADS where it is set, as for processes side by side; else all processors."""
    given = os.environ.get("BUTFOR_THREADS", "")
    if not given:
        return processors()
    if not given.isdecimal() or int(given) < 1:
        raise ValueError(f"BUTFOR_THREADS is {given!r}; give a whole number of at least 1, or leave it unset.")
    return int(given)
