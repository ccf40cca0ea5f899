"""`butfor detect`: compare detectors of influence with the exact answer."""

import dataclasses
import sys
from pathlib import Path
from typing import Literal

from butfor.cli.console import live_progress, print_detection, print_next
from butfor.cli.options import Device, Flag, RunFolder, choose_device
from butfor.cli.settings import parse_settings

SHOWN = {
    "seeds", "data", "studies", "train_episodes", "validation_episodes", "test_episodes", "random_episodes",
    "agent_episodes", "agent_envs", "extra_episodes", "fitting", "fitting.max_epochs", "scoring", "scoring.actions",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class DetectOptions:
    """Options beside the settings."""

    preset: Literal["paper", "reduced", "demo"] = "paper"
    """settings to start from: paper, reduced (minutes on a GPU) or demo (minutes on two CPU cores)"""
    run: RunFolder = None
    pictures: bool = True
    """render episodes, failures and a map of influence for the report (pick-and-place)"""
    overwrite: Flag = False
    """replace the run in the run folder"""
    device: Device = "auto"
    help_all: Flag = False
    """list all settings and exit"""


def detect(arguments: list[str]) -> None:
    """Measure how well influence is detected, state by state, against the simulator's exact answer.

    Collects episodes, fits the influence model and its rivals for several seeds at once, compares all detectors, and
    writes a run folder with a report. The same command resumes an interrupted run. ENV is slide or pick-and-place.
    """
    from butfor.detection.experiment import run_detection
    from butfor.detection.settings import DetectionConfig, detection_preset
    from butfor.envs import short_name
    from butfor.reporting.pictures import illustrate
    from butfor.runs.folder import run_name

    def start(env: str, options: DetectOptions) -> DetectionConfig:
        return detection_preset(short_name(env), options.preset)

    config, options = parse_settings(detect, arguments, start, DetectOptions, SHOWN)
    folder = options.run or Path("runs") / run_name("detection", config)
    with live_progress() as progress:
        run_detection(config, folder, choose_device(options.device), options.overwrite, progress)
    print_detection(folder)
    with live_progress() as progress:
        page, problems = illustrate(folder, options.pictures, progress)
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"\nReport: {page}" if page else f"\nRun: {folder}")
    print_next(f"open {page} in a browser" if page else f"butfor report {folder}")
