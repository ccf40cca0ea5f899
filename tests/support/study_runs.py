"""Folders of training runs and of studies with made-up numbers."""

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from butfor.runs.files import read_json
from butfor.runs.reading import read_metrics

EVALUATIONS = (100, 200, 300, 400, 500)
RAMP = [0.2, 0.4, 0.6, 0.8, 1.0]  # 30 % at 200, 60 % at 300, 90 % and 95 % at 500 episodes; its mean height is 0.6
ARM = {"label": "a", "folder": "fast", "kind": "training"}
FLAT = [0.1] * 5
SETTINGS = {"env": "push", "use": ["priority"], "priority": {"kind": "uniform"}, "signal": "cai"}


def write_training(
    folder: Path, curves: list[list[float]], asked: int = 500, played: int | None = None, note: str = ""
) -> Path:
    """A folder of a training run whose seeds succeed as told, evaluated every 100 episodes."""
    folder.mkdir(parents=True)
    label = f"training-push-use=('priority',)-seeds={len(curves)}-agent.learning_rate=1e-05{note}"
    config = SETTINGS | {"seeds": len(curves), "episodes": asked, "note": note}
    document = {"schema": 1, "kind": "training", "label": label, "config": config}
    (folder / "config.json").write_text(json.dumps(document))
    versions = {"butfor": "0.1.0", "commit": "abc123" + note, "device": "cpu", "cores": 2, "command": "butfor train"}
    (folder / "versions.json").write_text(json.dumps(versions))
    rows = [
        {"episode": episode, "seed": seed, "success": curve[place]}
        for place, episode in enumerate(EVALUATIONS[: len(curves[0])])
        for seed, curve in enumerate(curves)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    played = asked if played is None else played
    summary = {"schema": 1, "finished": played == asked, "played": played, "seconds": {"total": 100.0}}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def write_detection(folder: Path, note: str = "") -> None:
    folder.mkdir()
    numbers = {metric: {"mean": 0.9, "std": 0.01} for metric in ("auc", "ap", "f1")}
    detectors = [{"name": "cai", "title": "CAI" + note, "seeds": 5, **numbers, "paper": {"auc": [0.95, 0.01]}}]
    summary: dict[str, Any] = {"schema": 1, "env": "slide", "label": "exact", "states": 1234, "positive_share": 0.1}
    summary["detectors"] = detectors
    (folder / "summary.json").write_text(json.dumps(summary))
    document = {"schema": 1, "kind": "detection", "label": "detection-slide", "config": {"seeds": 5}}
    (folder / "config.json").write_text(json.dumps(document))
    (folder / "report.html").write_text("its own page")


def claim(words: str, kind: str, arm: str, **others: Any) -> dict[str, Any]:
    return {"words": words, "kind": kind, "arm": arm} | others


def write_root(root: Path, note: str = "") -> Path:
    """A folder with a study whose arms are in every state that there is."""
    write_training(root / "slow", [FLAT] * 5)
    write_training(root / "fast", [RAMP] * 5, note=note)
    write_training(root / "cut", [RAMP[:3]] * 5, played=330)
    write_training(root / "few", [[level] * 5 for level in (0.2, 0.4, 0.6)])
    write_training(root / "begun", [FLAT])
    for name in ("metrics.jsonl", "summary.json"):
        (root / "begun" / name).unlink()
    write_training(root / "broken", [FLAT])
    (root / "broken" / "metrics.jsonl").write_text('{"episode": 1\n{}\n')
    write_detection(root / "detection", note)
    names = ("slow", "fast", "cut", "few", "begun", "broken", "absent", "detection")
    arms = [
        {"label": f"{name} arm{note}", "folder": name, "kind": "detection" if name == "detection" else "training"}
        for name in names
    ]
    fast, slow = f"fast arm{note}", f"slow arm{note}"
    claims = [
        claim("Fast gets there. " + note, "reaches", fast, level=0.95, within=500),
        claim("Fast is twice as fast.", "faster", fast, than=slow, factor=2.0),
        claim("Slow is on par.", "on par", slow, than=fast),
        claim("What is absent is fast.", "faster", f"absent arm{note}", than=slow, factor=2.0),
        claim("Few are on par.", "on par", f"few arm{note}", than=slow),
    ]
    study = {"schema": 1, "name": "try", "title": "A try" + note, "about": "What it is about." + note, "size": "paper"}
    study |= {"command": "butfor study try" + note, "arms": arms, "claims": claims}
    (root / "studies").mkdir()
    (root / "studies" / "try.json").write_text(json.dumps(study))
    return root


def write_detection_study(root: Path, name: str, label: str = "pick-and-place") -> None:
    """Write a study whose only arm is the detection run in the folder run."""
    (root / "studies").mkdir(exist_ok=True)
    arm = {"label": label, "folder": "run", "kind": "detection"}
    study = {"schema": 1, "name": name, "title": name, "about": "", "arms": [arm]}
    (root / "studies" / f"{name}.json").write_text(json.dumps(study))


def change_study(root: Path, **values: Any) -> None:
    path = root / "studies" / "try.json"
    path.write_text(json.dumps(read_json(path) | values))


def grey_png(width: int, height: int) -> bytes:
    """A picture of one colour, by the rules of PNG: a header, compressed rows, an end, each with its checksum."""
    parts = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0),
        b"IDAT": zlib.compress(bytes([0, *[128] * width]) * height),
        b"IEND": b"",
    }
    chunks = [struct.pack(">I", len(v)) + k + v + struct.pack(">I", zlib.crc32(k + v)) for k, v in parts.items()]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def add_phases(run: Path) -> None:
    """Add to a training run how far its episodes get: seed s touches at 10 + s, and no seed lifts."""
    rows = read_metrics(run)
    phases = {"training_touched": 0.5, "training_lifted": 0.0, "training_success": 0.25, "first_lifted": 0}
    more = {"value_predicted": -8.25, "value_reached": -12.5, "relay_acts": 0.15, "relay_reaches": 0.9, **phases}
    lines = [row | more | {"first_touched": 10 + row["seed"], "first_success": 2_000 + row["seed"]} for row in rows]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def add_behaviour(run: Path) -> None:
    """Add to a training run how often the object was moved and held, and a heat map."""
    rows = read_metrics(run)
    (run / "metrics.jsonl").write_text(
        "".join(json.dumps(row | {"moved": row["seed"] / 10, "held": 0.5}) + "\n" for row in rows)
    )
    np.savez(run / "heatmap.npz", episodes=[100, 200, 300], score=np.eye(3), label=np.eye(3) > 0)
