"""The report of a detection run: one offline page, safe with hostile data, alive in a browser."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, precision_recall_curve, roc_auc_score

from butfor import report

STEPS, WIDTH = 30, 0.2
HOSTILE = "<script>alert(1)</script>"
BREAKOUT = "</script><img src=x onerror=alert(2)>"
METRICS = ("auc", "ap", "f1")
PAPER = {"cai": (1.00, 0.98, 0.95), "entropy": (0.96, 0.47, 0.50), "attention": (0.42, 0.13, 0.18)}
TITLES = {"cai": "CAI", "entropy": "Entropy", "attention": "Attention", "contact": "Contact", "moved": "The object moved"}


def slide_episodes(count: int, generator: np.random.Generator) -> dict[str, Any]:
    """Episodes of a one-dimensional world: an agent that may push an object which then slides to a halt."""
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


def write_run(run: Path, episodes: int = 60, hostile: str = "", world: str = "slide") -> Path:
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
    config = {"world": world, "seeds": 5, "model": {"layers": [64, 64], "learning_rate": 3e-4, "note": hostile}}
    versions = {
        "butfor": "0.1.0", "python": "3.11.7", "torch": "2.13", "numpy": "2.4", "commit": None, "platform": "Linux",
        "processor": "x86_64", "device": "cpu", "threads": 2, "command": f"butfor detect {world} {hostile}",
        "started": "2025-01-31T12:00:00+00:00", "seconds": 512.3,
    }  # fmt: skip
    summary = {
        "schema": 1, "world": world, "label": "exact", "states": int(label.size),
        "positive_share": float(label.mean()), "detectors": detectors, "notes": ["A note. " + hostile],
    }  # fmt: skip
    (run / "data").mkdir(parents=True)
    document = {"schema": 1, "kind": "detection", "label": f"{world}-default {hostile}", "config": config}
    (run / "config.json").write_text(json.dumps(document))
    (run / "versions.json").write_text(json.dumps(versions))
    (run / "summary.json").write_text(json.dumps(summary))
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    episode, time = (axis.reshape(-1).astype(np.int32) for axis in np.indices((episodes, STEPS)))
    floats: dict[str, Any] = {name: values.astype(np.float32) for name, values in scores.items()}
    np.savez(run / "scores.npz", label=label, episode=episode, time=time, score_form=np.array("new"), **floats)
    metadata = json.dumps({"world": world, "policy": f"random {hostile}"})
    np.savez(run / "data" / "test.npz", metadata=np.array(metadata), **data)
    return run
