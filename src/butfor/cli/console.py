"""What the command line prints: progress, tables of results, and the next useful command."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from butfor.runs.reading import read_object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.table import Table

    from butfor.rollouts.episodes import Episodes
    from butfor.rollouts.play import Progress
    from butfor.studies.units import UnitState


@contextmanager
def live_progress() -> "Iterator[Progress]":
    """Show one line a stage: done, total, time taken and left; plain lines every 10 s without a terminal."""
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
    printed: dict[str, float] = {}

    def show(stage: str, done: int, total: int, text: str) -> None:
        if stage == "environment":  # a fact about it: a line that stays
            return console.print(f"environment: {text}", soft_wrap=True, markup=False, highlight=False)
        if stage not in tasks:
            tasks[stage] = bars.add_task(stage, total=total, text=text)
            began[stage] = time.monotonic(), done
        elif done < bars.tasks[tasks[stage]].completed:  # the stage starts again
            bars.reset(tasks[stage], total=total)
            began[stage] = time.monotonic(), done
        bars.update(tasks[stage], completed=done, total=total, text=text)
        if not console.is_terminal and (done >= total or time.monotonic() - printed.get(stage, 0.0) > 10):
            now = printed[stage] = time.monotonic()
            start, first = began[stage]
            left = f"{(now - start) / (done - first) * (total - done):.0f} s left" if done > first else ""
            print(", ".join(filter(None, [f"{stage}: {done} of {total}", text, left])), file=sys.stderr, flush=True)

    with bars:
        yield show


def print_next(*commands: str) -> None:
    """Print what to do next."""
    print(f"Next: {'; or '.join(commands)}")


def _table(first: str, **options: Any) -> "Table":
    from rich.box import SIMPLE
    from rich.table import Table

    return Table(first, box=SIMPLE, padding=(0, 1, 0, 0), **options)


def print_detection(folder: Path) -> None:
    """Print the tables of detectors beside the paper's numbers, and of CAI by form of the KL."""
    summary = read_object(folder / "summary.json")
    share = f"{summary['positive_share']:.1%} of {summary['states']:,} states are influenced"
    _print_detectors(f"Influence detection on {summary['env']}: {share}", summary["detectors"])
    for other in summary.get("others", []):
        _print_detectors(f"{other['title']}: {other['positive_share']:.1%} of {other['states']:,}", other["detectors"])
    _print_detectors("CAI by form of the KL", summary["forms"])


def _print_detectors(title: str, rows: list[dict[str, Any]]) -> None:
    from rich.console import Console

    if not rows:
        return
    table = _table("", title=title, title_justify="left", title_style="bold")
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
    Console().print(table)


def print_episodes(data: "Episodes") -> None:
    """Print the number of episodes and states, and the share of positive states of each label."""
    parts = [f"{name} {value[data.valid].mean():.1%}" for name, value in data.labels().items()]
    print(f"{len(data)} episodes, {int(data.length.sum()):,} states" + (f": {', '.join(parts)}" if parts else ""))


def print_agreement(rows: list[dict[str, Any]]) -> None:
    """Print a line for each pair of labels."""
    for row in rows:
        first, second = row["first"], row["second"]
        print(
            f"{first} and {second}: agree in {row['both'] + row['neither']:.2%} of {row['states']:,} states; both "
            f"{row['both']:.2%}, only {first} {row['only_first']:.2%}, only {second} {row['only_second']:.2%}"
        )


def print_evaluation(success: dict[int, float], episodes: int) -> None:
    """Print the success of each seed, and the mean."""
    for seed, share in success.items():
        print(f"seed {seed}: {share:.3f}")
    mean = sum(success.values()) / len(success)
    print(f"success {mean:.3f}, mean over {len(success)} seed(s), {episodes} episodes each")


def print_study_states(title: str, states: "Mapping[str, UnitState]") -> None:
    """Print how far each run of a study is."""
    print(f"{title}:")
    for label, state in states.items():
        played = f", {state.played:,} of {state.asked:,} episodes" if state.asked and not state.words else ""
        worker = f", in progress by {state.worker}" if state.worker else ""
        print(f"  {label:<24}{state.state}{played}{worker}  {state.folder}")
        if state.words:
            print(f"    {state.words}")


def print_training(folder: Path) -> bool:
    """Print the success over episodes, and where the time went; return whether the run is finished."""
    from rich.console import Console

    summary = read_object(folder / "summary.json")
    seeds = len(summary["seeds"])
    title = f"Success on {summary['env']}, {seeds} seed{'s' if seeds > 1 else ''}, after {summary['played']} episodes"
    Console().print(title, style="bold", highlight=False)  # a title of the table would be folded to its width
    table = _table("episode")
    table.add_column("mean", justify="right")
    table.add_column("± std", justify="right")
    rows = list(zip(summary["episodes"], summary["success"]["mean"], summary["success"]["std"], strict=True))
    every = max(-(-len(rows) // 16), 1)  # at most 16 lines, the last evaluation among them
    for episode, mean, std in rows[(len(rows) - 1) % every :: every]:
        table.add_row(f"{episode}", f"{mean:.3f}", f"{std:.3f}" if seeds > 1 else "")
    Console().print(table)
    seconds = summary["seconds"]
    learning = seconds.get("total", 0) - seconds.get("evaluation", 0)
    spent = ", ".join(f"{name} {value:.1f}" for name, value in seconds.items() if value >= 0.05)
    print(f"{learning:.1f} s without evaluation and start-up; seconds by kind: {spent}")
    return bool(summary["finished"])


def print_scores(summary: dict[str, Any]) -> None:
    """Print a table of the scores, the findings of the diagnosis, and the files."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    counts = f"{summary['states']:,} states, {summary['episodes']:,} episodes"
    console.print(Text(f"Influence in {summary['source']}: {counts}", style="bold"))
    table = _table("")
    above = f"above {summary['threshold']:g}"
    quantiles = list(next(iter(summary["entities"].values()))["quantiles"])
    for column in (above, "mean", *(f"{float(q):.0%}" for q in quantiles), "highest"):
        table.add_column(column, justify="right")
    for name, row in summary["entities"].items():
        values = [row["mean"], *row["quantiles"].values(), row["highest"]]
        table.add_row(Text(name), f"{row['above']:.1%}", *(f"{value:.3f}" for value in values))
    console.print(table)
    print(f"Scores in nats: share of states {above}, mean, quantiles, highest.")
    for name, found in summary["diagnosis"].items():
        print(f"Can the scores of {name} be trusted? {'No problem found.' if found['trusted'] else 'Problems found:'}")
        for finding in found["findings"]:
            if not finding["fine"]:
                print(f"  - {finding['words']}")
    if not summary["diagnosis"]:
        print("There are too few steps to check whether the scores can be trusted.")
    for note in summary["notes"]:
        print(f"Note: {note}")
    print(f"Scores: {summary['out']} ({', '.join(summary['names'].values())})")
    print(f"Report: {summary['report']}")
    if summary["saved_model"]:
        print(f"Model: {summary['saved_model']}")
