"""Medians of alternating runs, so that other load on the machine affects all rivals alike."""

import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from butfor.runs.folder import versions

PROCESSORS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def medians(rivals: dict[str, Callable[[], Any]], device: str, runs: int = 7) -> dict[str, float]:
    """Median seconds of each rival over `runs` turns, after a warm-up."""
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for turn in range(runs + 1):
        for name, function in rivals.items():
            began = time.perf_counter()
            function()
            if device == "cuda":
                torch.cuda.synchronize()
            if turn:  # the first turn warms up
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in times.items()}


Shape = tuple[int, int, int]
"""Rows, inner size and columns of a matrix product."""


def layer_products(rows: int, sizes: Sequence[int]) -> list[Shape]:
    """The products of a forward pass through layers of these sizes."""
    return [(rows, one, other) for one, other in pairwise(sizes)]


def gradient_products(rows: int, sizes: Sequence[int]) -> list[Shape]:
    """The products of a backward pass: gradients of all weights, and of the inputs of all layers but the first."""
    weights = [(one, rows, other) for one, other in pairwise(sizes)]
    return weights + [(rows, other, one) for one, other in pairwise(sizes[1:])]


def matrix_products(replicas: int, shapes: Sequence[Shape], device: str) -> Callable[[], None]:
    """A function that computes products of these shapes for each replica and nothing else: the floor of a step."""
    quick = [(min(m, n), k, max(m, n)) for m, k, n in shapes]  # a CPU is slow where the columns are few
    operands = [
        tuple(torch.randn(replicas, *size, device=device) for size in ((m, k), (k, n), (m, n))) for m, k, n in quick
    ]

    def run() -> None:
        for left, right, result in operands:
            torch.bmm(left, right, out=result)

    return run


def note(item: str, ours: float, other: float, unit: str, against: str, goal: float | None = None) -> None:
    """Add a row for the table of `make bench` to the file that the variable BENCH_ROWS names, if it is set.

    `ours` and `other`, that of the peer or the floor, are times, or rates in units with "/s"; `goal` is of their ratio.
    """
    if path := os.environ.get("BENCH_ROWS"):
        row = {"item": item, "ours": ours, "other": other, "unit": unit, "against": against, "goal": goal}
        row["processors"] = PROCESSORS
        with Path(path).open("a") as file:
            file.write(json.dumps(row) + "\n")


def describe(device: str) -> str:
    """Versions and hardware, for the first line of the output."""
    found = versions(device)
    hardware = found["device"] if device == "cuda" else f"{found['processor']}, {found['threads']} threads"
    return f"butfor {found['butfor']}, commit {found['commit']}, torch {found['torch']}, {hardware}, {found['started']}"


def matrix_peak(device: str) -> float:
    """Measured float32 operations per second of a large matrix product."""
    size = 8192 if device == "cuda" else 2048
    a, b = torch.randn(size, size, device=device), torch.randn(size, size, device=device)
    return 2 * size**3 / min(medians({"product": lambda: a @ b}, device).values())
