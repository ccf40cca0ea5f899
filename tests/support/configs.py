"""Small config dataclasses, and the files of a folder, for tests of run folders."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from butfor.runs.files import read_json


@dataclass(frozen=True)
class Inner:
    """A nested config."""

    width: int = 128
    betas: tuple[float, float] = (0.9, 0.999)


@dataclass(frozen=True)
class Outer:
    """A config with an environment and nested configs."""

    env: str = "slide"
    seeds: int = 5
    model: Inner = Inner(width=64)  # not the type's own default
    fitting: Inner = field(default_factory=Inner)
    form: str | None = None
    extra: Inner | None = None


def content(folder: Path) -> dict[str, bytes]:
    """Every file under a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


FOREIGN: dict[str, dict[str, str]] = {
    "no config": {"thesis.tex": "precious"},
    "hidden": {".precious": "precious"},
    "another program's config": {"config.json": '{"model_type": "bert"}', "weights.bin": "precious"},
    "config that is a list": {"config.json": "[1, 2]", "weights.bin": "precious"},
    "config that is no JSON": {"config.json": "// precious\n{}", "weights.bin": "precious"},
    "config that is empty": {"config.json": "", "weights.bin": "precious"},
    "config with a config": {"config.json": '{"config": {"world": "slide"}}', "weights.bin": "precious"},
}


def edit_config(folder: Path, **changes: Any) -> None:
    """Changes entries of a run's `config.json`."""
    held = read_json(folder / "config.json")
    (folder / "config.json").write_text(json.dumps(held | changes))
