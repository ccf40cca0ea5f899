"""How much memory butfor may take: known before the work, so that a mistake is a sentence and not a killed process.

`BUTFOR_MEMORY_GB` sets the limit; by default it is the memory that is available when the work begins.
"""

import os
import re
import resource
from contextlib import suppress
from pathlib import Path

VARIABLE = "BUTFOR_MEMORY_GB"
FILE_SHARE = 4  # what is read from a file is copied and converted: it may take a quarter of the memory
# How torch and Python say that memory cannot be had.
EXHAUSTED = (
    "DefaultCPUAllocator",
    "can't allocate memory",
    "Storage size calculation overflowed",
    "too large to convert",
)
LAYER_BYTES = 5_000  # of the objects of Python and torch that a layer consists of, besides its weights
LARGEST_FILE = 4 * 2**30  # bytes that the arrays of a file may take, unless the user sets a limit


def memory_limit() -> int:
    """Return how many bytes may be taken: `BUTFOR_MEMORY_GB`, or what is available now."""
    text = os.environ.get(VARIABLE)
    if not text:
        return available_memory()
    try:
        limit = float(text)
    except ValueError:
        limit = 0.0
    if not 0 < limit < 1e9:
        raise ValueError(f"{VARIABLE} is {text!r}; expected a positive number of gigabytes.")
    return round(limit * 1e9)


def file_limit() -> int:
    """Return how many bytes the arrays of one file may take."""
    share = memory_limit() // FILE_SHARE
    return share if os.environ.get(VARIABLE) else min(share, LARGEST_FILE)


class TooLargeError(ValueError):
    """An array takes more memory than the limit allows."""


class Allowance:
    """How many bytes the arrays of one dataset may still take."""

    def __init__(self) -> None:
        self.left = file_limit()

    def take(self, size: int, name: str) -> None:
        """Count an array before it is read.

        Raises:
            TooLargeError: it does not fit into what is left.
        """
        if size > self.left:
            raise TooLargeError(
                f"{name} takes {in_words(size)}, and {in_words(self.left)} are left of what the arrays of one file may "
                f"take. If the file is what you expect, raise the limit: {VARIABLE} is the memory that butfor may use, "
                "of which a file may take a quarter."
            )
        self.left -= size


def available_memory() -> int:
    """Return how many bytes this process can still take, by the system, its container and its own limit."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")))
    with suppress(OSError, ValueError):  # of a container; "max" without one
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        found.append(limit - int((group / "memory.current").read_text()))
    own = resource.getrlimit(resource.RLIMIT_AS)[0]
    with suppress(OSError, ValueError):
        if own != resource.RLIM_INFINITY:
            found.append(own - int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE"))
    return max(0, min(found))


def check_memory(needed: float, what: str, advice: str) -> None:
    """Refuse work that needs more memory than there is.

    Args:
        needed: bytes, estimated from below: what is refused could not have been done.
        what: names the work, as the subject of a sentence.
        advice: what to do instead, a sentence.

    Raises:
        MemoryError: more is needed than `memory_limit`.
    """
    limit = memory_limit()
    if needed > limit:
        raise MemoryError(
            f"{what} would take at least {in_words(needed)} of memory, and {in_words(limit)} are available. {advice} "
            f"{VARIABLE} sets another limit."
        )


def network_bytes(inputs: int, width: int, layers: int) -> float:
    """Return how many bytes training the hidden layers of a network takes at least.

    Each weight is there five times: itself, its gradient, two moments of Adam, and a copy, such as a target network.
    """
    weights = (inputs + 1) * width + (layers - 1) * (width + 1) * width
    return 5 * 4.0 * weights + LAYER_BYTES * layers


def describe_exhaustion(error: BaseException) -> str | None:
    """Return a sentence for an error of memory that ran out, or of too deep a recursion; None for other errors.

    torch reports memory of the CPU that it cannot get as a RuntimeError.
    """
    text = str(error)
    if isinstance(error, RecursionError):
        return f"The data are nested too deeply ({text})."
    if isinstance(error, MemoryError):
        return text if text.endswith(".") else f"There is not enough memory ({text or 'no further reason'})."
    if isinstance(error, RuntimeError | OverflowError) and any(words in text for words in EXHAUSTED):
        found = re.search(r"allocate (\d+) bytes", text)
        wanted = f": {in_words(int(found[1]))} were asked for at once" if found else ""
        return f"There is not enough memory{wanted}. Use smaller settings, or fewer rows or episodes."
    return None


def in_words(size: float) -> str:
    """Return a number of bytes for people: 12 GB."""
    units = ["bytes", "kB", "MB", "GB", "TB"]
    while size >= 1000 and len(units) > 1:
        size /= 1000
        del units[0]
    return f"{size:,.0f} {units[0]}" if size >= 10 or units[0] == "bytes" else f"{size:.1f} {units[0]}"
