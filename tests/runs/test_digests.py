"""A changed byte is noticed: in every JSON file, every row of metrics, every tensor and header."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from butfor.runs.digests import add_digest, digest_of_tensors, remove_digest
from butfor.runs.files import load_tensors, read_json, save_tensors, write_json
from butfor.runs.folder import write_metrics
from butfor.runs.reading import read_metrics

OBJECT = {"schema": 1, "name": "cube", "numbers": [0.1, 1e-30, 3, float("inf")], "inner": {"on": True, "none": None}}
ROWS = [{"episode": 50, "seed": seed, "success": 0.1 * seed} for seed in range(3)]
TENSORS = {"weight": torch.arange(6.0).reshape(2, 3), "count": torch.tensor(7), "none": torch.zeros(0, 4)}
HEADER = {"kind": "test", "format": 1, "scale": [0.5, 2.0]}


def write_object(path: Path) -> None:
    write_json(path, OBJECT)


def write_rows(path: Path) -> None:
    write_metrics(path.parent, ROWS, path.name)


def write_tensors(path: Path) -> None:
    save_tensors(path, TENSORS, HEADER)


def read_rows(path: Path) -> Any:
    return read_metrics(path.parent, path.name)


def read_tensors(path: Path) -> Any:
    tensors, header = load_tensors(path)
    return {name: (str(value.dtype), value.tolist()) for name, value in tensors.items()}, header


@pytest.mark.parametrize(
    ("write", "read"),
    [(write_object, read_json), (write_rows, read_rows), (write_tensors, read_tensors)],
    ids=["object", "rows", "tensors"],
)
def test_every_flipped_bit_is_noticed_or_harmless(
    tmp_path: Path, write: Callable[[Path], None], read: Callable[[Path], Any]
) -> None:
    """Harmless: spaces between the fields of JSON, and the name of the digest's own field.

    Without its line end, the last row counts as cut off by a crash.
    """
    path = tmp_path / "file"
    write(path)
    content = path.read_bytes()
    intact = read(path)
    noticed = 0
    for place in range(len(content)):
        for bit in (0, 4):
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                found = read(path)
            except ValueError:
                noticed += 1
                continue
            cut_off = write is write_rows and place == len(content) - 1
            expected = intact[:-1] if cut_off else intact
            assert _without_other_digest(found) == expected, (
                f"byte {place}: {content[place]:c} became {damaged[place]:c}"
            )
    assert noticed > 1.5 * len(content)


def _without_other_digest(found: Any) -> Any:
    """What was read, without a field that was the digest before its name was damaged."""
    if isinstance(found, list):
        return [_without_other_digest(row) for row in found]
    if isinstance(found, tuple):
        return tuple(map(_without_other_digest, found))
    known = {*OBJECT, *ROWS[0], *TENSORS, *HEADER}
    return {name: value for name, value in found.items() if name in known}


def test_files_from_before_digests_are_read(tmp_path: Path) -> None:
    from safetensors.torch import save

    (tmp_path / "old.json").write_text(json.dumps(OBJECT))
    assert read_json(tmp_path / "old.json") == OBJECT
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    assert read_metrics(tmp_path) == ROWS
    (tmp_path / "old.safetensors").write_bytes(save(TENSORS, metadata={"butfor": json.dumps(HEADER)}))
    tensors, header = load_tensors(tmp_path / "old.safetensors")
    assert header == HEADER
    assert torch.equal(tensors["weight"], TENSORS["weight"])


@pytest.mark.parametrize("name", ["digesu", "dig\x11st", "Digest"])
def test_a_digest_under_a_damaged_name_is_noticed(tmp_path: Path, name: str) -> None:
    held = add_digest(OBJECT)
    held[name] = held.pop("digest")
    (tmp_path / "a.json").write_text(json.dumps(held))
    with pytest.raises(ValueError, match=r"a\.json changed"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_text(json.dumps({"direct": "to the left", "digits": 3}))
    assert read_json(tmp_path / "a.json") == {"direct": "to the left", "digits": 3}


def test_the_order_of_fields_and_spaces_do_not_matter() -> None:
    held = add_digest(OBJECT)
    assert list(held) == [*OBJECT, "digest"]
    backwards = json.loads(json.dumps(dict(reversed(held.items())), indent=7))
    assert remove_digest(backwards, "it") == OBJECT


def test_tuples_and_numbered_fields_are_as_json_reads_them_back(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {1: (2, 3)})
    assert read_json(tmp_path / "a.json") == {"1": [2, 3]}


@pytest.mark.parametrize(
    "other",
    [
        {"weight": torch.arange(6.0).reshape(3, 2)},
        {"weight": torch.arange(6).reshape(2, 3)},
        {"bias": torch.arange(6.0).reshape(2, 3)},
        {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.zeros(0)},
    ],
    ids=["shape", "type", "name", "one more"],
)
def test_a_digest_of_tensors_depends_on_all_that_they_are(other: dict[str, torch.Tensor]) -> None:
    whole = digest_of_tensors({"weight": torch.arange(6.0).reshape(2, 3)}, HEADER)
    assert digest_of_tensors(other, HEADER) != whole
    assert digest_of_tensors({"weight": torch.arange(6.0).reshape(2, 3)}, HEADER | {"format": 2}) != whole


def test_a_digest_does_not_depend_on_how_a_tensor_lies_in_memory() -> None:
    table = torch.from_numpy(np.arange(6.0).reshape(2, 3))
    assert digest_of_tensors({"a": table.T}, {}) == digest_of_tensors({"a": table.T.contiguous()}, {})


@pytest.mark.parametrize("text", ["[" * 100_000 + "]" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000])
def test_json_that_is_nested_too_deeply_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json"):
        read_json(tmp_path / "config.json")
