"""Files that are complete or absent: written under a temporary name, then renamed. Reading never executes anything."""

import glob
import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from butfor.runs.digests import FIELD, RESTORE, add_digest, digest_of_tensors, remove_digest

if TYPE_CHECKING:
    from torch import Tensor

PART = re.compile(r".*\.(\d{1,7})\.part")  # with the number of a process


def check_writable(path: Path | str) -> None:
    """Raise OSError where a path could not be written, before any work is done: test the nearest existing folder."""
    whole = Path(path).absolute()
    folder = whole if os.path.isdir(whole) else next(parent for parent in whole.parents if os.path.exists(parent))
    probe = folder / f".{os.getpid()}.part"
    try:
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise OSError(f"{path} needs {folder} to be writable ({error.strerror}). Give another place.") from error


@contextmanager
def atomic_write(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path to write to; rename it to `path` at the end, or remove it if anything raises.

    The content is on disk before the name: after a power failure the file is the old or the new one.

    Raises:
        OSError: the file could not be written; the message has the reason, also where a library hid it.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        _flush_to_disk(temporary)
        os.replace(temporary, path)
        _flush_to_disk(path.parent)
        remove_leftovers(path.parent, f".{glob.escape(path.name)}.*.part")
    except Exception as error:
        if (reason := reason_of(error)) is None:
            raise
        raise OSError(f"{path} could not be written ({reason}).") from error
    finally:
        temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path, pattern: str = "*.part") -> None:
    """Remove what killed processes left half-written: temporary files, named with a process that no longer runs."""
    for left in folder.glob(pattern):
        match = PART.fullmatch(left.name)
        if match and not _is_another(int(match[1])):
            left.unlink(missing_ok=True)


def _is_another(process: int) -> bool:
    """Whether another process with this number is running."""
    try:
        os.kill(process, 0)  # signal 0 only asks
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user
        return True
    return process != os.getpid()


def _flush_to_disk(path: Path) -> None:
    """Wait until the disk has a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def reason_of(error: BaseException) -> str | None:
    """Return why the system refused a file operation, such as "No space left on device"; None for other errors.

    A library that fails to clean up after a full disk raises an error of its own, whose cause or context has the
    reason.
    """
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            return seen.strerror
        seen = seen.__cause__ or seen.__context__
    return None


@contextmanager
def explain_write_error(what: str, advice: str) -> Iterator[None]:
    """Turn an OSError, such as that of a full disk, into a sentence."""
    try:
        yield
    except OSError as error:
        raise OSError(f"{what} could not be written ({reason_of(error) or error}); {advice}.") from error


def write_text(path: Path | str, text: str) -> None:
    """Write a text file."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path | str, value: Any) -> None:
    """Write a value as indented JSON; an object gets a digest."""
    written = add_digest(value) if isinstance(value, Mapping) else value
    write_text(path, json.dumps(written, indent=2) + "\n")


def read_json(path: Path | str) -> Any:
    """Return the value of a JSON file, without its digest.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not JSON, or changed after it was written.
    """
    try:
        text = Path(path).read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no file {path}.") from None
    return parse_json(text, path)


def parse_json(text: bytes | str, name: Path | str) -> Any:
    """Return a JSON value without its digest; `name` says in messages where it comes from."""
    try:
        value = json.loads(text.decode() if isinstance(text, bytes) else text)
    except (ValueError, RecursionError) as error:  # RecursionError: nested thousands deep
        raise ValueError(f"{name} is not valid JSON ({error}). {RESTORE}") from error
    return remove_digest(value, name)


def begins_as_npz(path: Path | str) -> bool:
    """Whether a file begins like an .npz, which is a zip file; an empty file counts as one that was cut off."""
    with Path(path).open("rb") as file:
        return b"PK".startswith(file.read(2))


def save_tensors(path: Path | str, tensors: "Mapping[str, Tensor]", header: Mapping[str, Any]) -> None:
    """Write a safetensors file with a JSON header inside; the header has a digest of all."""
    from safetensors.torch import save

    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    plain = json.loads(json.dumps(header))
    text = json.dumps({**plain, FIELD: digest_of_tensors(contiguous, plain)})
    with atomic_write(path) as temporary:
        temporary.write_bytes(save(contiguous, metadata={"butfor": text}))


def load_tensors(path: Path | str) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """Return the tensors and the JSON header of a file that `save_tensors` wrote.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged, or butfor did not write it.
    """
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get("butfor", "null")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = json.loads(text)
    except (SafetensorError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not a complete safetensors file ({error}).") from error
    if not isinstance(header, dict):
        raise ValueError(f"{path} is a safetensors file, but butfor did not write it: its header is missing.")
    remove_digest({name: value for name, value in header.items() if name != FIELD}, path)  # raises if it is damaged
    digest = header.pop(FIELD, None)
    if digest is not None and digest != digest_of_tensors(tensors, header):
        raise ValueError(f"{path} changed after butfor wrote it: its content does not match its digest. {RESTORE}")
    return tensors, header


def save_checkpoint(path: Path | str, state: Mapping[str, Any]) -> None:
    """Write a checkpoint of tensors and plain values; refuse what `load_checkpoint` could not load."""
    import torch
    from torch.serialization import get_unsafe_globals_in_checkpoint

    with atomic_write(path) as temporary:
        with temporary.open("wb") as file:
            try:
                torch.save(dict(state), file)
            except RuntimeError as error:  # how torch reports that a write failed
                raise OSError(f"{path} could not be written ({error.__cause__ or error}).") from error
            file.flush()
            os.fsync(file.fileno())  # on disk before an older one is removed
        if unsafe := get_unsafe_globals_in_checkpoint(temporary):
            raise TypeError(f"The state contains {', '.join(sorted(unsafe))}; expected tensors and plain values only.")


def load_checkpoint(path: Path | str) -> dict[str, Any]:
    """Return what `save_checkpoint` wrote, on the CPU; nothing in the file is executed."""
    import torch

    try:
        with zipfile.ZipFile(path) as archive:  # torch itself does not compare the checksums
            if damaged := archive.testzip():
                raise zipfile.BadZipFile(f"the checksum of {damaged} is wrong")
        state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
        return state
    except OSError:
        raise
    except Exception as error:  # torch raises many kinds for a broken file
        raise ValueError(f"{path} is not a complete checkpoint ({type(error).__name__}).") from error
