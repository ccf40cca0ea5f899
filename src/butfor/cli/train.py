"""`butfor train`: agents that use influence, or a rival of it; or the rest of an interrupted run."""

import dataclasses
import math
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args, get_type_hints

import tyro

from butfor.cli.console import live_progress, print_next, print_training, write_player_scene
from butfor.cli.options import Device, File, Flag, ImportModule, RunFolder, Seconds, choose_device
from butfor.cli.settings import parse_settings
from butfor.runs.config import differences
from butfor.runs.modules import module_imports
from butfor.runs.reading import find_run

if TYPE_CHECKING:
    from butfor.training.settings import Config

SHOWN = {
    "use", "signal", "entities", "combine", "seeds", "first_seed", "episodes", "data", "data_share", "warmup",
    "num_envs", "evaluate_every", "evaluation_episodes", "algorithm", "swap", "swap.share", "priority",
    "priority.kind", "bonus", "bonus.weight", "cai", "cai.model",
}  # fmt: skip
PRESETS = (
    "settings to start from: paper, record (ours, needs fewer episodes), intrinsic (influence is the only reward), "
    "fast (shorter fits of the model), offline (TD3+BC on recorded episodes; the default with --data), vime, "
    "vime-object, vime-full, disagreement, disagreement-position or disagreement-full"
)

BETWEEN_PAGES = 20  # seconds, at least, between two reports of a running training
TIMES_LONGER = 20  # than a report took to write: the page of a long run takes at most a twentieth of the time


@dataclasses.dataclass(frozen=True, kw_only=True)
class Session:
    """Options that hold for this process only."""

    time_limit: Seconds = None
    keep_episodes: File = None
    """.npz file to write every played episode to"""
    device: Device = "auto"
    no_report: Flag = False
    """write no report after evaluations and at the end; `butfor report RUN` writes it later"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions(Session):
    """Options of a new run, beside its settings."""

    preset: Annotated[str, tyro.conf.arg(metavar="NAME", help=PRESETS)] = "paper"
    signal: str = "cai"  # a setting, which is also an option here because a rival's signal selects its preset
    data: tuple[str, ...] = ()  # a setting, too: episodes of files select the preset offline
    run: RunFolder = None
    resume: Annotated[str | None, tyro.conf.arg(metavar="RUN", help_behavior_hint="")] = None
    """run to resume instead; `butfor train --resume RUN --help` lists the options"""
    overwrite: Flag = False
    """replace the run in the run folder"""
    help_all: Flag = False
    """list all settings and exit"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResumeOptions(Session):
    """Resume a training run from its last checkpoint."""

    import_module: ImportModule = False

    resume: Annotated[str, tyro.conf.arg(metavar="RUN")]
    """run folder, the beginning of its name in runs/, or latest"""
    episodes: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="(default: as before)")] = None
    """number of episodes to train to"""


def train(arguments: list[str]) -> None:
    """Train agents (DDPG, TD3 or SAC, with HER) that use influence as replay priority, reward bonus or for exploration.

    With --data FILES, agents (TD3+BC) learn from recorded episodes and play only to be evaluated. ENV is slide, push,
    pick-and-place, fetch-slide, rot-table, pucks, push-two, stack-two, or the id of any goal-conditioned Gymnasium
    environment.
    """
    if any(word.split("=")[0] == "--resume" for word in arguments):
        folder, report = _resume(arguments)
    else:
        folder, report = _start(arguments)
    finished = print_training(folder)
    print(f"Run: {folder}")
    if finished and report:
        write_player_scene(folder)
    page = _Page(report).write(folder, running=False)
    if page is not None:
        print(f"Report: {page}")
    if finished:
        opened = f"open {page} in a browser" if page else f"butfor report {folder}"
        print_next(opened, f"butfor view {folder}")
    else:
        print_next(f"butfor train --resume {folder} (the time limit was reached)")


class _Page:
    """The report of a run, written after evaluations while it trains, and at the end."""

    next_one = -math.inf  # when the next page may be written

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted

    def write(self, folder: Path, running: bool = True) -> Path | None:
        """Write it, unless that was done a moment ago; a page that cannot be written does not stop the training."""
        began = time.monotonic()
        if not self.wanted or (running and began < self.next_one):
            return None
        try:
            from butfor.reporting.heatmap import write_heatmap
            from butfor.reporting.study_page import write_report

            if not running:
                with suppress(ValueError):  # a run without influence has none
                    write_heatmap(folder, labels=False)
            return write_report(folder, running=running)
        except (ImportError, OSError, ValueError) as error:  # also where plotly is not installed
            if not running:
                print(f"The report could not be written: {error}", file=sys.stderr)
            return None
        finally:
            now = time.monotonic()
            self.next_one = now + max(BETWEEN_PAGES, (now - began) * TIMES_LONGER)


def _resume(arguments: list[str]) -> tuple[Path, bool]:
    from butfor.training.run import resume

    options, unknown = tyro.cli(ResumeOptions, args=arguments, prog="butfor train", return_unknown_args=True)
    if unknown:
        allowed = ", ".join(f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(ResumeOptions))
        raise ValueError(
            f"{' '.join(unknown)} cannot be given with --resume: the run keeps its settings. Allowed are {allowed}."
        )
    with live_progress() as progress, module_imports(options.import_module):
        folder = resume(
            find_run(options.resume), choose_device(options.device), episodes=options.episodes,
            time_limit=options.time_limit, keep_episodes=options.keep_episodes, progress=progress,
            on_evaluation=_Page(wanted=not options.no_report).write,
        )  # fmt: skip
    return folder, not options.no_report


def _start(arguments: list[str]) -> tuple[Path, bool]:
    from butfor.training.run import train as train_run

    config, options = parse_settings(train, arguments, _defaults, RunOptions, SHOWN)
    _refuse_unused(config, _defaults(config.env, options))
    with live_progress() as progress, module_imports(True):  # the user typed its name
        folder = train_run(
            config, options.run, choose_device(options.device), overwrite=options.overwrite,
            time_limit=options.time_limit, keep_episodes=options.keep_episodes, progress=progress,
            on_evaluation=_Page(wanted=not options.no_report).write,
        )  # fmt: skip
    return folder, not options.no_report


def _defaults(env: str, options: RunOptions) -> "Config":
    """Return the preset; without one, a rival's signal selects the paper's settings for it."""
    from butfor.training.settings import RIVALS, preset

    rival = options.signal if options.signal in RIVALS else ""
    if options.preset == "paper":
        return preset(env, rival or ("offline" if options.data else "paper"))
    if not options.preset.startswith(rival):
        raise ValueError(f"--preset {options.preset} and --signal {rival} contradict each other; give one of them.")
    return preset(env, options.preset)


def _refuse_unused(config: "Config", base: "Config") -> None:
    """Refuse changed settings of a signal or an algorithm that is not chosen."""
    hints = get_type_hints(type(config))
    parts = {*get_args(hints["signal"]), *get_args(hints["algorithm"])} - {config.signal, config.algorithm}
    changed = [name for name, _ in differences(config, base)]
    unused = [name for name in changed if name.split(".")[0] in parts and name != "cai.network.target_scale"]  # of all
    if unused:
        options = ", ".join(f"--{name}" for name in unused).replace("_", "-")
        chosen = f"--signal {config.signal} --algorithm {config.algorithm}"
        raise ValueError(f"{options}: not used with {chosen}. Remove them, or choose their signal or algorithm.")
