"""Folders of detection runs with made-up numbers, and ways to damage them."""

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import average_precision_score, precision_recall_curve, roc_auc_score

from butfor.runs.files import read_json

STEPS = 30
WIDTH = 0.2
FILM_STEPS = 20
METRICS = ("auc", "ap", "f1")
PAPER = {"cai": (1.00, 0.98, 0.95), "entropy": (0.96, 0.47, 0.50), "attention": (0.42, 0.13, 0.18)}
TITLES = {
    "cai": "CAI",
    "entropy": "Entropy",
    "attention": "Attention",
    "contact": "Contact",
    "moved": "The object moved",
    "distance": "Distance",
}


def slide_episodes(count: int, generator: np.random.Generator) -> dict[str, Any]:
    """Episodes in one dimension: an agent that may push an object which then slides to a halt."""
    observation = np.zeros((count, STEPS + 1, 4), np.float32)
    action = generator.uniform(-1, 1, (count, STEPS, 1)).astype(np.float32)
    action += np.where(np.arange(count) % 3 == 0, 0.6, 0.0)[:, None, None]  # every third agent goes for the object
    contact, label = np.zeros((count, STEPS), bool), np.zeros((count, STEPS), bool)
    for number in range(count):
        agent, speed, velocity = generator.uniform(-4.9, -2.9), 0.0, 0.0
        thing = agent + generator.uniform(1.0, 2.0)
        for time in range(STEPS):
            observation[number, time] = agent, speed, thing, velocity
            reach = agent + 0.1 * (speed + 0.5)  # where full thrust would bring the agent
            label[number, time] = reach + WIDTH >= thing
            speed = speed + 0.5 * float(np.clip(action[number, time, 0], -1, 1))
            agent = agent + 0.1 * speed
            if agent + WIDTH >= thing:
                contact[number, time] = True
                agent, velocity, speed = thing - WIDTH, velocity + 2 * speed, 0.0
            velocity = max(velocity - 0.147, 0.0)
            thing = min(thing + 0.1 * velocity, 5.0)
            agent = float(np.clip(agent, -5.0, -0.5))
        observation[number, STEPS] = agent, speed, thing, velocity
    goal = np.repeat(generator.uniform(0.5, 4.5, (count, 1, 1)), STEPS + 1, axis=1).astype(np.float32)
    return {
        "observation": observation, "action": action, "achieved_goal": observation[..., 2:3], "desired_goal": goal,
        "length": np.full(count, STEPS), "sampled": np.ones((count, STEPS), bool), "contact": contact,
        "label_exact": label,
    }  # fmt: skip


def measure(label: Any, score: Any) -> dict[str, float]:
    """Area under ROC, average precision, best F1 and its threshold."""
    precision, recall, thresholds = precision_recall_curve(label, score)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    best = int(np.argmax(f1[:-1]))
    area, average = roc_auc_score(label, score), average_precision_score(label, score)
    return {"auc": float(area), "ap": float(average), "f1": float(f1[best]), "threshold": float(thresholds[best])}


def write_run(run: Path, episodes: int = 60, hostile: str = "", env: str = "slide") -> Path:
    """Write a detection folder with five seeds of made-up scores; hostile is put wherever text is free."""
    generator = np.random.default_rng(0)
    data = slide_episodes(episodes, generator)
    label = data["label_exact"].reshape(-1)
    moved = np.abs(np.diff(data["observation"][..., 2], axis=1)) > 1e-6
    shape = (5, label.size)
    scores = {
        "cai": np.where(label, generator.gamma(6.0, 0.3, shape), generator.exponential(0.06, shape)),
        "entropy": 0.8 * label + generator.normal(0.0, 0.5, shape),
        "attention": generator.uniform(0, 1, shape) ** (1 + np.arange(5))[:, None],
        "contact": data["contact"].reshape(1, -1),
        "moved": moved.reshape(1, -1),
        "distance": (data["observation"][:, :-1, 0] - data["observation"][:, :-1, 2]).reshape(1, -1),
    }
    detectors, rows = [], []
    for name, values in scores.items():
        measured = [measure(label, score) for score in values]
        rows += [{"detector": name, "seed": seed, **row} for seed, row in enumerate(measured)]
        numbers = {
            key: {"mean": float(np.mean(column)), "std": float(np.std(column))}
            for key in METRICS
            for column in [[row[key] for row in measured]]
        }
        paper = {key: [value, 0.01] for key, value in zip(METRICS, PAPER.get(name, ()), strict=False)} or None
        detectors.append({"name": name, "title": TITLES[name], "seeds": len(values), **numbers, "paper": paper})
    config = {"env": env, "seeds": 5, "model": {"layers": [64, 64], "learning_rate": 3e-4, "note": hostile}}
    versions = {
        "butfor": "0.1.0", "python": "3.11.7", "torch": "2.13", "numpy": "2.4", "commit": None, "platform": "Linux",
        "processor": "x86_64", "device": "cpu", "threads": 2, "command": f"butfor detect {env} {hostile}",
        "started": "2025-01-31T12:00:00+00:00", "seconds": 512.3,
    }  # fmt: skip
    summary = {
        "schema": 1, "env": env, "label": "exact", "states": int(label.size),
        "positive_share": float(label.mean()), "detectors": detectors, "notes": ["A note. " + hostile],
    }  # fmt: skip
    (run / "data").mkdir(parents=True)
    document = {"schema": 1, "kind": "detection", "label": f"{env}-default {hostile}", "config": config}
    (run / "config.json").write_text(json.dumps(document))
    (run / "versions.json").write_text(json.dumps(versions))
    (run / "summary.json").write_text(json.dumps(summary))
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    episode, time = (axis.reshape(-1).astype(np.int32) for axis in np.indices((episodes, STEPS)))
    floats: dict[str, Any] = {name: values.astype(np.float32) for name, values in scores.items()}
    np.savez(run / "scores.npz", label=label, episode=episode, time=time, score_form=np.array("new"), **floats)
    metadata = json.dumps({"env": env, "policy": f"random {hostile}"})
    np.savez(run / "data" / "test.npz", metadata=np.array(metadata), **data)
    return run


def png(pixels: Any) -> bytes:
    """The pixels [height, width, 3] as a PNG file."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels.astype(np.uint8))

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def draw_scene(gripper: float, thing: float, size: int = 90) -> bytes:
    """A table with an object and a gripper, so that frames of different steps differ."""
    pixels = np.full((size, size, 3), (205, 214, 222), np.uint8)
    pixels[size * 2 // 3 :] = (120, 96, 72)
    for place, height, colour in ((thing, 12, (213, 94, 0)), (gripper, 40, (40, 40, 40))):
        left = int(place * (size - 12))
        pixels[size * 2 // 3 - height : size * 2 // 3, left : left + 12] = colour
    return png(pixels)


def spread(mean: float, std: float = 0.01) -> dict[str, float]:
    return {"mean": mean, "std": std}


def metrics(base: float) -> dict[str, Any]:
    return {"auc": spread(base), "ap": spread(base - 0.1), "f1": spread(base - 0.15)}


def make_studies(hostile: str = "") -> dict[str, Any]:
    generator = np.random.default_rng(1)
    levels = [0.0, 0.01, 0.05, 0.1, 0.2, 0.5]

    def fall(steepness: float) -> dict[str, Any]:
        mean = 0.95 - steepness * np.sqrt(levels)[:, None]
        return {key: (mean - 0.05 * place + generator.uniform(-0.02, 0.02, (6, 5))).tolist()
                for place, key in enumerate(METRICS)}  # fmt: skip

    truth = generator.gamma(0.6, 0.6, 150)
    reference, actions = [], []
    for count in (8, 64):
        for form in ("mean", "mean_clip_product"):
            estimate = truth * (1 - 1 / count) + generator.normal(0, 0.3 / np.sqrt(count), 150)
            numbers = {"bias": float((estimate - truth).mean()), "rank_correlation": 0.9 + count / 1000}
            scatter = np.stack([truth, estimate], 1).tolist()
            reference.append({"actions": count, "form": form, **numbers, "scatter": scatter})
        for sampling in ("independent", "sobol"):
            row = {"actions": count, "sampling": sampling, "form": "mean_clip_product"}
            actions.append(row | metrics(0.9 + count / 1000))
    rows = [
        {"set": chosen, "method": method, "target": target, "realised": target * factor, "realised_std": target / 4,
         "found": 0.4 + 3 * target, "rejected": 1234.4, "seeds": 5}
        for chosen, method, factor in (("test", "free states", 0.8), ("test", "ranks", 0.5), ("random", "ranks", 1.3))
        for target in (0.01, 0.05, 0.1)
    ]  # fmt: skip
    titles = ["As in the paper", "beta-NLL instead of the likelihood", "Five members averaged " + hostile]
    helps = [{"name": f"v{n}", "title": title, **metrics(0.93 + 0.01 * n)} for n, title in enumerate(titles)]
    return {
        "noise": {"levels": levels, "train_only": fall(0.3), "train_and_test": fall(0.5)}, "actions": actions,
        "helps": helps, "reference": reference, "decisions": {"targets": [0.01, 0.05, 0.1], "rows": rows},
    }  # fmt: skip


def make_diagnosis(hostile: str = "") -> dict[str, Any]:
    levels = np.arange(0.05, 0.96, 0.05)
    gain = {"score": np.geomspace(1e-3, 1.5, 10).tolist(), "gain": np.geomspace(0.01, 1.2, 10).tolist()}
    words = ["The model predicts held-out changes better than a guess without a model (1.21 against 2.07).",
             "A problem: the predicted variance is too small; give it more data. " + hostile]  # fmt: skip
    return {"object": {
        "words": words, "trusted": False, "gain_by_score": gain | {"error": [0.05] * 10},
        "reliability": {"levels": levels.tolist(), "realised": (levels**1.3).tolist()},
    }}  # fmt: skip


def write_pictures(folder: Path, hostile: str = "") -> None:
    """Two films, six cards and the map, of made-up numbers."""
    folder.mkdir()
    generator, films, steps = np.random.default_rng(2), [], np.arange(FILM_STEPS)
    for number, title in enumerate(("No contact", "A brief touch " + hostile)):
        label = (abs(steps - 12) < 4) & bool(number)
        frames = [f"step-{number}-{step}.png" for step in steps]
        for step, name in enumerate(frames):
            (folder / name).write_bytes(draw_scene((step + number) / 40, 0.7))
        score = np.where(label, 0.8, 0.03) + generator.uniform(0, 0.2, (3, FILM_STEPS)) * (0.2 + label)
        films.append({
            "title": title, "episode": 7 + number, "frames": frames, "score": score.tolist(),
            "label": label.astype(int).tolist(), "contact": (label & (steps % 2 == 0)).tolist(),
            "heuristic": (abs(steps - 12) < 6).tolist(),
        })  # fmt: skip
    failures = []
    for number in range(6):
        kind = "missed" if number < 3 else "false alarm"
        (folder / f"state-{number}.jpg").write_bytes(draw_scene(0.5 + 0.05 * number, 0.7))
        failures.append({
            "image": f"state-{number}.jpg", "episode": 3 * number, "time": 11, "score": 0.123, "spread": 0.045,
            "exact": number < 3, "effect": 0.0042 if number else None, "contact": False, "distance": 0.071,
            "kind": kind,
        })  # fmt: skip
    line = np.linspace(-12, 12, 13)
    distance = np.hypot(line[:, None] - 1, line)  # not the same along x and y
    cai = np.where(distance > 3, np.exp(-distance / 5), np.nan)
    np.savez(folder / "map.npz", x=line, y=line, cai=cai, effect=0.03 * cai**2, half=[2.5, 2.0])
    index = {"timelines": films, "failures": failures, "map": {"file": "map.npz"}}
    (folder / "index.json").write_text(json.dumps(index))


def write_full_run(run: Path, episodes: int = 12, hostile: str = "") -> Path:
    """A detection folder with everything that a report can show."""
    write_run(run, episodes, hostile, env="pick-and-place")
    with np.load(run / "scores.npz") as file:
        arrays = {key: file[key] for key in file.files}
    label = arrays["label"]
    wider = label | np.roll(label, 3)
    np.savez(run / "scores.npz", **arrays, label_heuristic=wider)
    half = len(label) // 2
    np.savez(run / "scores-random.npz", **{key: value[..., :half] for key, value in arrays.items() if value.ndim})
    summary = read_json(run / "summary.json")
    summary["others"] = [
        {"set": chosen, "title": title + hostile, "label": kind, "states": len(truth), "paper_share": share,
         "positive_share": float(truth.mean()), "detectors": summary["detectors"]}
        for chosen, title, kind, truth, share in (
            ("test", "Against the paper’s heuristic label", "heuristic", wider, 0.412),
            ("random", "On random-policy states, exact label", "exact", label[:half], None),
            ("lost", "On states whose scores are not here", "exact", label, None),
        )
    ]  # fmt: skip
    (run / "summary.json").write_text(json.dumps(summary))
    (run / "studies.json").write_text(json.dumps(make_studies(hostile)))
    (run / "diagnosis.json").write_text(json.dumps(make_diagnosis(hostile)))
    write_pictures(run / "pictures", hostile)
    return run


def change_json(name: str, **values: Any) -> Callable[[Path], None]:
    """Set or remove (None) keys of a JSON file of the run."""

    def change(run: Path) -> None:
        content = read_json(run / name) | values
        (run / name).write_text(json.dumps({key: value for key, value in content.items() if value is not None}))

    return change


def change_arrays(name: str, **values: Any) -> Callable[[Path], None]:
    """Replace arrays of an .npz of the run by a function of what they were."""

    def change(run: Path) -> None:
        with np.load(run / name) as file:
            arrays = {key: file[key] for key in file.files}
        np.savez(run / name, **{key: values.get(key, lambda array: array)(array) for key, array in arrays.items()})

    return change


def change_deep(name: str, *keys: Any, value: Any) -> Callable[[Path], None]:
    """Put a value somewhere inside a JSON file of the run."""

    def change(run: Path) -> None:
        content = read_json(run / name)
        inner = content
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
        (run / name).write_text(json.dumps(content))

    return change


def cut(name: str) -> Callable[[Path], None]:
    """Keep the first half of a file, as a crash would."""

    def change(run: Path) -> None:
        content = (run / name).read_bytes()
        (run / name).write_bytes(content[: len(content) // 2])

    return change
