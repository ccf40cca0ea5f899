"""Medians of alternating runs, so that other load on the machine affects all rivals alike."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from butfor.runs.folder import versions


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
