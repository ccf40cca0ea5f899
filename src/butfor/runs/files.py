"""Files that are whole or absent: written under a temporary name, then renamed; read as data, never executed.

torch is imported where it is used: the report reads and writes files without it.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def check_place(path: Path | str) -> None:
    """Refuses before the work what could not be written after it: tries the nearest folder that is there already."""
    path = Path(path)
    around = path.absolute()
    folder = around if os.path.isdir(around) else next(parent for parent in around.parents if os.path.exists(parent))
    probe = folder / f".{os.getpid()}.part"
    try:
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError as error:
        reason = f"{folder} takes no files ({error.strerror})"
        raise OSError(f"{path} cannot be written: {reason}; give another place.") from error


@contextmanager
def written(path: Path | str) -> Iterator[Path]:
    """Gives a temporary name to write to; renames it to `path` if all went well, removes it if not."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def said(what: str, advice: str) -> Iterator[None]:
    """A full disk and the like, in a sentence."""
    try:
        yield
    except OSError as error:
        raise OSError(f"{what} could not be written ({error.strerror or error}); {advice}.") from error


def write_json(path: Path | str, value: Any) -> None:
    """JSON that people can read, too."""
    with written(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2) + "\n")


def read_json(path: Path | str) -> Any:
    """The value of a JSON file; a broken one is refused with a sentence."""
    try:
        return json.loads(Path(path).read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        reason = f"{path} is not valid JSON ({error}); it may have been cut off"
        raise ValueError(f"{reason}. Put back a copy of it, or have it written again.") from error


def begins_as_npz(path: Path | str) -> bool:
    """Whether a file begins as an .npz does, which is a zip; of one that was cut off to nothing, nobody knows."""
    with Path(path).open("rb") as file:
        return b"PK".startswith(file.read(2))


def save_tensors(path: Path | str, tensors: "Mapping[str, Tensor]", header: Mapping[str, Any]) -> None:
    """A safetensors file with a JSON header inside."""
    from safetensors.torch import save

    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with written(path) as temporary:
        temporary.write_bytes(save(contiguous, metadata={"butfor": json.dumps(header)}))


def load_tensors(path: Path | str) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """The tensors and the JSON header of a file that `save_tensors` wrote."""
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get("butfor", "null")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = json.loads(text)
    except (SafetensorError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not a complete safetensors file ({error}).") from error
    if not isinstance(header, dict):
        raise ValueError(f"{path} is a safetensors file, but not one of butfor's: its header is missing.")
    return tensors, header


def save_checkpoint(path: Path | str, state: Mapping[str, Any]) -> None:
    """A checkpoint of tensors and plain values."""
    import torch

    with written(path) as temporary, temporary.open("wb") as file:
        try:
            torch.save(dict(state), file)
        except RuntimeError as error:  # how torch reports that a write failed
            raise OSError(f"{path} could not be written ({error.__cause__ or error}).") from error


def load_checkpoint(path: Path | str) -> dict[str, Any]:
    """What `save_checkpoint` wrote, on the CPU; nothing in the file is executed."""
    import torch

    try:
        state = torch.load(path, weights_only=True, map_location="cpu")
    except OSError:
        raise
    except Exception as error:  # torch raises many kinds for a broken file
        raise ValueError(f"{path} is not a complete checkpoint ({type(error).__name__}).") from error
    if not isinstance(state, dict):
        raise ValueError(f"{path} is not a complete checkpoint: it holds {type(state).__name__}.")
    return state
