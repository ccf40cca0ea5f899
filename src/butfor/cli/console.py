"""What the command line shows: progress while it works, and tables at the end."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from butfor.runs.files import read_json
from butfor.runs.reading import with_new_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from butfor.rollouts.episodes import Episodes
    from butfor.rollouts.play import Progress


@contextmanager
def live_progress() -> "Iterator[Progress]":
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
    began: dict[str, tuple[float, int]] = {}
    spoken: dict[str, float] = {}

    def show(stage: str, done: int, total: int, text: str) -> None:
        if stage == "environment":  # what was found out about it: a line that stays, and no progress
            return console.print(f"environment: {text}", soft_wrap=True, markup=False, highlight=False)
        if stage not in tasks:
            tasks[stage] = bars.add_task(stage, total=total, text=text)
            began[stage] = time.monotonic(), done
        elif done < bars.tasks[tasks[stage]].completed:  # the stage came round again
            bars.reset(tasks[stage], total=total)
            began[stage] = time.monotonic(), done
        bars.update(tasks[stage], completed=done, total=total, text=text)
        if not console.is_terminal and (done >= total or time.monotonic() - spoken.get(stage, 0.0) > 10):
            now = spoken[stage] = time.monotonic()
            start, first = began[stage]
            left = f"{(now - start) / (done - first) * (total - done):.0f} s left" if done > first else ""
            print(", ".join(filter(None, [f"{stage}: {done} of {total}", text, left])), file=sys.stderr, flush=True)

    with bars:
        yield show


def print_detection(folder: Path) -> None:
    """The tables of detectors beside the paper's numbers, and CAI by form of the KL where that was asked for."""
    summary = with_new_names(read_json(folder / "summary.json"))
    share = f"{summary['positive_share']:.1%} of {summary['states']:,} states are influenced"
    _print_detectors(f"Influence detection on {summary['env']}: {share}", summary["detectors"])
    for other in summary.get("others", []):
        _print_detectors(f"{other['title']}: {other['positive_share']:.1%} of {other['states']:,}", other["detectors"])
    _print_detectors("CAI by form of the KL", summary["forms"])


def _print_detectors(title: str, rows: list[dict[str, Any]]) -> None:
    """One table; nothing where it would have no rows."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    table = Table("", title=title, title_justify="left", title_style="bold", box=SIMPLE, padding=(0, 1, 0, 0))
    for column in ("AUC", "AP", "best F1"):
        table.add_column(column, justify="right")
        table.add_column("paper", justify="right", style="dim")
    for row in rows:
        cells = [row["title"]]
        for metric in ("auc", "ap", "f1"):
            spread = f"±{row[metric]['std']:.3f}" if row["seeds"] > 1 else ""
            paper = f"{row['paper'][metric][0]:.2f}" if row["paper"] else ""
            cells += [f"{row[metric]['mean']:.3f}{spread:<6}", paper]
        table.add_row(*cells)
    if rows:
        Console().print(table)


def print_episodes(data: "Episodes") -> None:
    """How many episodes and states, and the share of the states that each label calls influenced."""
    parts = [f"{name} {value[data.valid].mean():.1%}" for name, value in data.labels().items()]
    print(f"{len(data)} episodes, {int(data.length.sum()):,} states" + (f": {', '.join(parts)}" if parts else ""))


def print_agreement(rows: list[dict[str, Any]]) -> None:
    """A line for each pair of labels."""
    for row in rows:
        agree = row["both"] + row["neither"]
        print(f"{row['first']} and {row['second']}: agree in {agree:.2%} of {row['states']:,} states; both ", end="")
        print(f"{row['both']:.2%}, only {row['first']} {row['only_first']:.2%}, ", end="")
        print(f"only {row['second']} {row['only_second']:.2%}")


def print_evaluation(success: dict[int, float], episodes: int) -> None:
    """The success of each seed, and their mean."""
    for seed, share in success.items():
        print(f"seed {seed}: {share:.3f}")
    mean = sum(success.values()) / len(success)
    print(f"success {mean:.3f}, mean over {len(success)} seed(s), {episodes} episodes each")


def print_study_states(title: str, states: "Mapping[str, Any]") -> None:
    """How far each run of a study is."""
    print(f"{title}:")
    for label, state in states.items():
        known = state.asked and not state.words
        played = f", {state.played:,} of {state.asked:,} episodes" if known else ""
        worker = f", {state.worker} works on it" if state.worker else ""
        print(f"  {label:<24}{state.state}{played}{worker}  {state.folder}")
        if state.words:
            print(f"    {state.words}")


def print_training(folder: Path) -> bool:
    """The success over episodes, and where the time went; says whether the run is finished."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    summary = with_new_names(read_json(folder / "summary.json"))
    seeds = len(summary["seeds"])
    title = f"Success on {summary['env']}, {seeds} seed{'s' if seeds > 1 else ''}, after {summary['played']} episodes"
    Console().print(title, style="bold", highlight=False)  # a title of the table would be folded to its width
    table = Table("episode", box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("mean", justify="right")
    table.add_column("± std", justify="right")
    rows = list(zip(summary["episodes"], summary["success"]["mean"], summary["success"]["std"], strict=True))
    every = -(-len(rows) // 16)  # at most 16 lines, the last evaluation among them
    for episode, mean, std in rows[(len(rows) - 1) % every if rows else 0 :: max(every, 1)]:
        table.add_row(f"{episode}", f"{mean:.3f}", f"{std:.3f}" if seeds > 1 else "")
    Console().print(table)
    learning = summary["seconds"].get("total", 0) - summary["seconds"].get("evaluation", 0)
    print(f"{learning:.1f} s without evaluation and start-up", end="; ")
    spent = {name: value for name, value in summary["seconds"].items() if value >= 0.05}
    print("seconds by kind: " + ", ".join(f"{name} {value:.1f}" for name, value in spent.items()))
    return bool(summary["finished"])


def print_scores(summary: dict[str, Any]) -> None:
    """A table of the scores, what the diagnosis says of them, and where they are."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    counts = f"{summary['states']:,} states, {summary['episodes']:,} episodes"
    console.print(Text(f"Influence in {summary['source']}: {counts}", style="bold"))
    table = Table("", box=SIMPLE, padding=(0, 1, 0, 0))
    quantiles = list(next(iter(summary["entities"].values()))["quantiles"])
    for column in (f"above {summary['threshold']:g}", "mean", *(f"{float(q):.0%}" for q in quantiles), "highest"):
        table.add_column(column, justify="right")
    for name, row in summary["entities"].items():
        values = [row["mean"], *row["quantiles"].values(), row["highest"]]
        table.add_row(Text(name), f"{row['above']:.1%}", *(f"{value:.3f}" for value in values))
    console.print(table)
    print(f"Nats; above {summary['threshold']:g}: share of the states; then mean, quantiles and highest score.")
    for name, found in summary["diagnosis"].items():
        print(f"Can the scores of {name} be trusted? {'No problem was found.' if found['trusted'] else 'Mind this:'}")
        for finding in found["findings"]:
            if not finding["fine"]:
                print(f"  - {finding['words']}")
    if not summary["diagnosis"]:
        print("There are too few steps to say whether the scores can be trusted.")
    for note in summary["notes"]:
        print(f"Note: {note}")
    names = ", ".join(summary["names"].values())
    print(f"Scores: {summary['out']} ({names})\nReport: {summary['report']}")
    if summary["saved_model"]:
        print(f"Model: {summary['saved_model']}")
