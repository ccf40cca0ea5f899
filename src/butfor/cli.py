"""The command line: parse, call, print. Everything heavy is imported by the command that needs it."""

import dataclasses
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from butfor import __version__

if TYPE_CHECKING:
    from butfor.study import Progress

PRESET = "(default: the preset's)"
KLFormName = Literal["preset", "product", "variational", "mean", "mean_clip_product"]
Count = Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint=PRESET)]
DESCRIPTION = """Would it have happened but for the action?

butfor measures, state by state, how much an agent's action influences each object of its world (causal action
influence, CAI). Start with: butfor detect slide --preset demo. `butfor --version` prints the version."""


def detect(
    world: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WORLD")],
    /,
    preset: Literal["paper", "demo"] = "paper",
    seeds: Count = None,
    train_episodes: Count = None,
    validation_episodes: Count = None,
    test_episodes: Count = None,
    max_epochs: Count = None,
    actions: Count = None,
    form: Annotated[KLFormName, tyro.conf.arg(help_behavior_hint=PRESET)] = "preset",
    run: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER", help_behavior_hint="")] = None,
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> None:
    """How well can one tell, state by state, whether the action influences the object?

    Collects episodes, trains the influence model and its rivals over several seeds at once, compares every detector
    with the exact answer, and writes a run folder with a report. Called again, it goes on where it was cut off.

    Args:
        world: the world whose states are judged: slide (or its Gymnasium id)
        preset: settings to start from: the paper's, or a short run of a minute or two
        seeds: independent models, trained together as one batch
        train_episodes: episodes to learn from
        validation_episodes: episodes that decide when training ends
        test_episodes: episodes to judge
        max_epochs: training ends earlier for a seed whose validation error no longer improves
        actions: K, the actions tried in each state
        form: how the KL of a Gaussian to a mixture is approximated
        run: the run folder (default: runs/ and a name made from the settings)
        overwrite: start anew where the run folder holds a run already
        device: where to compute; auto takes a GPU where there is one
    """
    from butfor.envs import short_name
    from butfor.record import run_label
    from butfor.study import DETECTION_PRESETS, run_detection

    base = DETECTION_PRESETS[preset]
    config = _changed(
        base,
        world=short_name(world),
        seeds=seeds,
        train_episodes=train_episodes,
        validation_episodes=validation_episodes,
        test_episodes=test_episodes,
        fitting=_changed(base.fitting, max_epochs=max_epochs),
        scoring=_changed(base.scoring, actions=actions, form=None if form == "preset" else form),
    )
    folder = run or Path("runs") / run_label("detection", config)
    with _live_progress() as progress:
        run_detection(config, folder, choose_device(device), overwrite, progress)
    print_detection(folder)
    try:
        from butfor.report import write_report

        print(f"\nReport: {write_report(folder)}")
    except ImportError as error:  # a machine that only computes may lack what draws
        print(f"\nRun: {folder}\nNo report was written: {error}. Write it elsewhere with: butfor report {folder}")


def collect(
    world: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WORLD")],
    /,
    policy: Literal["random", "expert", "noisy-expert"] = "random",
    episodes: int = 1000,
    labels: str = "",
    seed: int = 0,
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None,
) -> None:
    """Play episodes into a file, with labels that say whether the action matters in each state.

    The file is saved whole every 500 episodes; called again after an interruption, the command goes on from there.

    Args:
        world: slide, push, pick-and-place, rot-table, or the id of any Gymnasium goal world (random actions, no labels)
        policy: uniform actions, a scripted expert, or the expert with noise and a fifth of random actions
        episodes: how many episodes
        labels: any of exact, heuristic, contact, separated by commas
        seed: the seed of the episodes' starts and of the policy
        out: the episode file (default: data/WORLD-POLICY.npz)
    """
    from butfor.collect import CollectConfig, collect_file
    from butfor.envs import short_name

    wanted = tuple(filter(None, labels.split(",")))
    config = CollectConfig(world, policy, episodes, wanted, seed)
    path = out or Path("data") / f"{short_name(world).replace('/', '-')}-{policy}.npz"
    with _live_progress() as progress:
        data = collect_file(config, path, lambda done: progress("episodes", done, episodes, policy))
    parts = [f"{name} {value[data.valid].mean():.1%}" for name, value in data.labels().items()]
    print(f"{len(data)} episodes, {int(data.length.sum()):,} states" + (f": {', '.join(parts)}" if parts else ""))
    print(f"Episodes: {path}")


def labels(file: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")], /, pictures: int = 12) -> None:
    """Where do the labels of an episode file agree? A table, and a page with pictures of states where they differ.

    Args:
        file: an episode file of a Fetch world with at least two labels
        pictures: states to draw for each pair of labels
    """
    from butfor.agreement import compare, write_agreement
    from butfor.episodes import Episodes

    for row in compare(Episodes.load(file)):
        agree = row["both"] + row["neither"]
        print(f"{row['first']} and {row['second']}: agree in {agree:.2%} of {row['states']:,} states; both ", end="")
        print(f"{row['both']:.2%}, only {row['first']} {row['only_first']:.2%}, ", end="")
        print(f"only {row['second']} {row['only_second']:.2%}")
    print(f"Page: {write_agreement(file, pictures)}")


def report(run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")], /) -> None:
    """Write the report of a finished run anew.

    Args:
        run: the run folder
    """
    from butfor.report import write_report

    print(f"Report: {write_report(run)}")


def print_detection(folder: Path) -> None:
    """The table of detectors beside the paper's numbers, and CAI by form of the KL where that was asked for."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    from butfor.files import read_json

    summary = read_json(folder / "summary.json")
    share = f"{summary['positive_share']:.1%} of {summary['states']:,} states are influenced"
    titles = {"detectors": f"Influence detection on {summary['world']}: {share}", "forms": "CAI by form of the KL"}
    for key, title in titles.items():
        table = Table("", title=title, title_justify="left", title_style="bold", box=SIMPLE, padding=(0, 1, 0, 0))
        for column in ("AUC", "AP", "best F1"):
            table.add_column(column, justify="right")
            table.add_column("paper", justify="right", style="dim")
        for row in summary[key]:
            cells = [row["title"]]
            for metric in ("auc", "ap", "f1"):
                spread = f"±{row[metric]['std']:.3f}" if row["seeds"] > 1 else ""
                cells += [
                    f"{row[metric]['mean']:.3f}{spread:<6}",
                    f"{row['paper'][metric][0]:.2f}" if row["paper"] else "",
                ]
            table.add_row(*cells)
        if summary[key]:
            Console().print(table)


def choose_device(name: str) -> str:
    """The device to compute on; `auto` takes a GPU where there is one."""
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, but torch finds no CUDA GPU here; use --device cpu.")
    return "cuda" if name != "cpu" and torch.cuda.is_available() else "cpu"


def _changed(config: Any, **changes: Any) -> Any:
    """A config with those fields replaced that were given."""
    return dataclasses.replace(config, **{name: value for name, value in changes.items() if value is not None})


@contextmanager
def _live_progress() -> "Iterator[Progress]":
    """One line a stage: how much is done, how it goes, time taken and left; plain lines where there is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    bars = Bars(
        TextColumn("{task.description:<16}"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn(),
        TimeRemainingColumn(), TextColumn("{task.fields[text]}"), console=console, disable=not console.is_terminal,
    )  # fmt: skip
    tasks: dict[str, Any] = {}
    spoken = 0.0

    def show(stage: str, done: int, total: int, text: str) -> None:
        nonlocal spoken
        if stage not in tasks:
            tasks[stage] = bars.add_task(stage, total=total, text=text)
        bars.update(tasks[stage], completed=done, total=total, text=text)
        if not console.is_terminal and (done >= total or time.monotonic() - spoken > 10):
            spoken = time.monotonic()
            print(f"{stage}: {done} of {total}, {text}", file=sys.stderr, flush=True)

    with bars:
        yield show


def _interrupt(number: int, frame: Any) -> None:
    """A polite end by SIGTERM is treated like Ctrl-C."""
    raise KeyboardInterrupt


def main() -> None:
    """The entry point: exit code 0 if all went well, 1 after an error's sentence, 130 after an interruption."""
    arguments = sys.argv[1:]
    if arguments in (["--version"], ["-V"]):
        print(f"butfor {__version__}")
        return
    signal.signal(signal.SIGTERM, _interrupt)
    commands: dict[str, Any] = {"detect": detect, "collect": collect, "labels": labels, "report": report}
    try:
        tyro.extras.subcommand_cli_from_dict(
            commands, prog="butfor", description=DESCRIPTION, args=arguments or ["--help"]
        )
    except KeyboardInterrupt:
        again = "the same command without --overwrite" if "--overwrite" in arguments else "the same command"
        print(f"\nInterrupted; nothing that was written is lost, and {again} goes on from there.", file=sys.stderr)
        sys.exit(130)
    except (ValueError, TypeError, OSError, FloatingPointError, ImportError, MemoryError) as error:
        sys.exit(f"Error: {error}")
    except RuntimeError as error:
        if type(error).__name__ == "OutOfMemoryError":  # torch's; not worth importing torch for
            sys.exit(f"Error: {error}")
        raise


if __name__ == "__main__":
    main()
