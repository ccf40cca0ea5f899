"""A digest in every file that butfor writes, so that a changed byte is noticed when the file is read.

JSON objects and the rows of metrics.jsonl have it as their field `digest`, safetensors files in their header,
checkpoints in their name. Files written before digests have none, and are read as they are. A digest protects against
damaged disks and edits by mistake, not against somebody who computes a new one.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

FIELD = "digest"
DIGITS = 16
_encode = json.JSONEncoder(sort_keys=True).encode
RESTORE = "Restore it from a copy, or run the command that wrote it again."


def add_digest(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with the digest of its content as its last field."""
    return {**value, FIELD: _digest_of_object(json.loads(json.dumps(value)))}  # as it will be read back


def remove_digest(value: Any, name: Path | str) -> Any:
    """Check the digest of a JSON object, where it has one, and return the object without it.

    Args:
        value: what was read; anything but an object with a digest is returned as it is.
        name: the file, for messages.

    Raises:
        ValueError: the content changed after the digest was made.
    """
    if not isinstance(value, dict):
        return value
    if FIELD not in value:
        if any(_is_damaged_field(key, inner) for key, inner in value.items()):
            raise ValueError(f"{name} changed after butfor wrote it: its digest is damaged. {RESTORE}")
        return value
    content = {key: inner for key, inner in value.items() if key != FIELD}
    if value[FIELD] != _digest_of_object(content):
        raise ValueError(f"{name} changed after butfor wrote it: its content does not match its digest. {RESTORE}")
    return content


def _is_damaged_field(key: str, value: Any) -> bool:
    """Whether a field was the digest before its name was damaged: half of its letters and its length are left."""
    same = sum(one == other for one, other in zip(key, FIELD, strict=False))
    return isinstance(value, str) and len(value) == DIGITS and len(key) == len(FIELD) and same >= 3


def digest_of_tensors(tensors: "Mapping[str, Tensor]", header: Mapping[str, Any]) -> str:
    """Return a digest of names, types, shapes and bytes of tensors on the CPU, and of the header beside them."""
    import torch

    content = hashlib.blake2b(_digest_of_object(header).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        content.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        content.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return content.hexdigest()[:DIGITS]


def digest_of_file(path: Path) -> str:
    """Return a digest of all bytes of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:DIGITS]


def _digest_of_object(value: Mapping[str, Any]) -> str:
    """Return a digest of a JSON object's content: spaces and the order of its fields do not matter."""
    return hashlib.blake2b(_encode(value).encode()).hexdigest()[:DIGITS]
