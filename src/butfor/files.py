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


def write_json(path: Path | str, value: Any) -> None:
    """JSON that people can read, too."""
    with written(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2) + "\n")


def read_json(path: Path | str) -> Any:
    """The value of a JSON file; a broken one is refused with a sentence."""
    try:
        return json.loads(Path(path).read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}); it may have been cut off. Write it again.") from error


def save_tensors(path: Path | str, tensors: "Mapping[str, Tensor]", header: Mapping[str, Any]) -> None:
    """A safetensors file with a JSON header inside."""
    from safetensors.torch import save_file

    with written(path) as temporary:
        contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(contiguous, temporary, metadata={"butfor": json.dumps(header)})


def load_tensors(path: Path | str) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """The tensors and the JSON header of a file that `save_tensors` wrote."""
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get("butfor")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is not a complete safetensors file ({error}).") from error
    if header is None:
        raise ValueError(f"{path} is a safetensors file, but not one of butfor's: its header is missing.")
    return tensors, json.loads(header)


def save_checkpoint(path: Path | str, state: Mapping[str, Any]) -> None:
    """A checkpoint of tensors and plain values."""
    import torch

    with written(path) as temporary:
        torch.save(dict(state), temporary)


def load_checkpoint(path: Path | str) -> dict[str, Any]:
    """What `save_checkpoint` wrote; nothing in the file is executed."""
    import torch

    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
    except FileNotFoundError:
        raise
    except Exception as error:  # torch raises many kinds for a broken file
        raise ValueError(f"{path} is not a complete checkpoint ({type(error).__name__}).") from error
    return state
