"""What the command line prints: progress, tables of results, and the next useful command."""

import re
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from butfor.runs.printing import count_words
from butfor.runs.reading import read_object, read_run

if TYPE_CHECKING:
    from butfor.analysis.benchmark import Benchmark
    from butfor.datasets.formats import Dataset
    from butfor.rollouts.play import Progress


@contextmanager
def live_progress() -> "Iterator[Progress]":
    """Show one line a stage: done, total, time taken and left; plain lines every 10 s without a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars
    from rich.table import Column

    console = Console(stderr=True)
    wide = console.width >= 110
    bars = Bars(
        TextColumn("{task.description}", table_column=Column(no_wrap=True, min_width=16 if wide else 10)),
        BarColumn(24 if wide else 12), MofNCompleteColumn(), TimeElapsedColumn(),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        # only this column may be cut off, so that counts and times stay visible in a narrow terminal
        TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
        console=console, disable=not console.is_terminal, expand=True,
        speed_estimate_period=600,  # seconds; one fit of a benchmark takes longer than rich's 30
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


def write_player_scene(folder: Path) -> None:
    """Play the episodes that the report of a run shows; one that cannot be played does not matter much."""
    try:
        with live_progress() as progress:
            if read_run(folder)["kind"] == "training":
                from butfor.scenes.evaluation import write_evaluation_scene

                write_evaluation_scene(folder, progress)
            else:
                from butfor.reporting.pictures import write_scene

                write_scene(folder, progress)
    except (ImportError, OSError, ValueError, RuntimeError) as error:
        print(f"The report has no player: {error}", file=sys.stderr)


class FoldedLines:
    """A stream that ends the lines of a help text between words; tyro leaves usage and description as one line each."""

    def __init__(self, stream: Any) -> None:
        """Write to another stream."""
        self.stream = stream

    def write(self, text: str) -> int:
        """Write lines that fit the terminal; lines of a box fit already."""
        width = shutil.get_terminal_size().columns
        folded = []
        for line in text.split("\n"):
            if len(line) <= width or "│" in line or "─" in line:
                folded.append(line)
                continue
            short = re.sub(r"\{[^}]{60,}\}", "COMMAND", line)  # a list below names the commands
            wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
            wrapper.subsequent_indent = "  " if "usage:" in line else ""
            folded.append(wrapper.fill(short))
        return int(self.stream.write("\n".join(folded)))

    def __getattr__(self, name: str) -> Any:
        """Everything else is that of the other stream."""
        return getattr(self.stream, name)


def fold(text: str, stream: Any, indent: str = "") -> str:
    """Return a text whose lines end between words if the stream is a terminal; else as it is, for other programs."""
    if not stream.isatty():
        return text
    width = min(shutil.get_terminal_size().columns, 100) - 1
    return textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def say(text: str, indent: str = "") -> None:
    """Print a sentence; in a terminal its lines end between words."""
    print(fold(text, sys.stdout, indent))


def print_next(*commands: str) -> None:
    """Print what to do next."""
    print(f"Next: {'; or '.join(commands)}")


def _print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a title and a table whose first column is aligned left."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False)  # names are not markup
    console.print(title, style="bold")  # a title of the table would be folded to its width
    table = Table(columns[0], box=SIMPLE, padding=(0, 1, 0, 0))
    for column in columns[1:]:
        table.add_column(column, justify="right", style="dim" if column == "paper" else None)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def print_detection(folder: Path) -> None:
    """Print the tables of detectors beside the paper's numbers, and of CAI by form of the KL."""
    summary = read_object(folder / "summary.json")
    share = f"{summary['positive_share']:.1%} of {summary['states']:,} states are influenced"
    _print_detectors(f"Influence detection on {summary['env']}: {share}", summary["detectors"])
    for other in summary.get("others", []):
        _print_detectors(f"{other['title']}: {other['positive_share']:.1%} of {other['states']:,}", other["detectors"])
    _print_detectors("CAI by form of the KL", summary["forms"])


def _print_detectors(title: str, detectors: list[dict[str, Any]]) -> None:
    rows = []
    for found in detectors:
        row = [found["title"]]
        for metric in ("auc", "ap", "f1"):
            spread = f"±{found[metric]['std']:.3f}" if found["seeds"] > 1 else ""
            paper = f"{found['paper'][metric][0]:.2f}" if found["paper"] else ""
            row += [f"{found[metric]['mean']:.3f}{spread:<6}", paper]
        rows.append(row)
    if rows:
        _print_table(title, ["", "AUC", "paper", "AP", "paper", "best F1", "paper"], rows)


def print_demo(summary: dict[str, Any]) -> None:
    """Print how well each score finds the influenced states, the decisions, and whether the model can be trusted."""
    share = f"{summary['influenced']:.0%} of {summary['states']:,} test states have it"
    rows = [[row["title"], *(f"{row[key]:.3f}" for key in ("auc", "ap", "f1"))] for row in summary["detectors"]]
    _print_table(f"The action's influence on the cube: {share}", ["", "AUC", "AP", "best F1"], rows)
    decided = summary["decisions"]
    print(f"Decisions at a false discovery rate of {decided['rate']:.0%}: {decided['called']:,} states are called")
    print(f"influenced; {decided['false']:.1%} of these are false, {decided['found']:.0%} of the influenced are found.")
    for found in summary["diagnosis"].values():
        print(f"Can the model be trusted?\n  {_verdict(found)}")
    for problem in summary["problems"]:
        say(f"  - {problem}", "    ")
    for note in summary["notes"]:
        say(f"Note: {note}", "  ")


def print_training(folder: Path) -> bool:
    """Print the success over episodes, and where the time went; return whether the run is finished."""
    summary = read_object(folder / "summary.json")
    seeds = len(summary["seeds"])
    title = f"Success on {summary['env']}, {seeds} seed{'s' if seeds > 1 else ''}, after {summary['played']} episodes"
    success = zip(summary["episodes"], summary["success"]["mean"], summary["success"]["std"], strict=True)
    rows = [[f"{episode}", f"{mean:.3f}", f"{std:.3f}" if seeds > 1 else ""] for episode, mean, std in success]
    every = max(-(-len(rows) // 16), 1)  # at most 16 lines, the last evaluation among them
    _print_table(title, ["episode", "mean", "± std"], rows[(len(rows) - 1) % every :: every])
    seconds = summary["seconds"]
    learning = seconds.get("total", 0) - seconds.get("evaluation", 0)
    spent = ", ".join(f"{name} {value:.1f}" for name, value in seconds.items() if value >= 0.05)
    say(f"{learning:.1f} s without evaluation and start-up; seconds by kind: {spent}")
    return bool(summary["finished"])


def print_comparison(folders: Sequence[Path]) -> None:
    """Print success at the end, episodes to 60 %, and the chance of each run to be better; then what differs."""
    from butfor.analysis.arms import differing_settings, read_runs
    from butfor.analysis.rows import LEVELS, arm_row, phase_row, shared_range

    arms = read_runs(folders)
    ends = shared_range(arms)
    rows = []
    for arm in arms:
        if arm.curve is None:
            rows.append([arm.label, arm.words, "", "", ""])
            continue
        row = arm_row(arm, arms[0], ends)
        reach = row["reach"][LEVELS.index(0.6)]
        cells = [row["end"], reach, row["area"], row["improvement"]]
        rows.append([arm.label, *(f"{one['value']}\n{one['spread']}".rstrip() for one in cells)])
    _print_table(
        "Training runs, mean over seeds", ["", "success", "episodes to 60%", "area", "better than first"], rows
    )
    _print_phases([found for arm in arms if (found := phase_row(arm))])
    differing = differing_settings(arms)
    if differing:
        _print_table(
            "Settings that differ", ["", *(arm.label for arm in arms)], [[name, *values] for name, values in differing]
        )
    else:
        print("All settings are the same.")


def _print_phases(rows: list[dict[str, Any]]) -> None:
    """Print when training first touched, lifted and succeeded, and how values and relay stand at the end."""
    table = []
    for row in rows:
        phases = [row["phases"].get(name) for name in ("touched", "lifted", "success")]
        value = row.get("value")
        relay = row.get("relay")
        table.append([
            row["label"],
            *(f"{one['first']} ({one['share']:.0%})" if one else "–" for one in phases),
            f"{value['predicted']:.1f} / {value['reached']:.1f}" if value else "–",
            f"{relay['acts']:.0%} / {relay['reaches']:.0%}" if relay else "–",
        ])  # fmt: skip
    if table:
        columns = ["", "touched", "lifted", "success", "value", "relay"]
        _print_table("Training episodes: the first of the median seed (share of the newest)", columns, table)
        print(
            "value: of first states, by the critic / reached; relay: steps in which it acts / episodes with influence"
        )


def print_benchmark(benchmark: "Benchmark") -> None:
    """Print a row for each task and amount of data, and which goals are met."""
    rows: list[list[str]] = []
    for row in benchmark.rows:
        if [row["task"]] not in rows:
            rows.append([row["task"]])
        cells = [f"  {row['size']:,}"]
        for metric in ("auc", "ap"):
            compared = [row["detectors"].get(name) for name in ("cai", "distance")]
            cells.append(
                "\N{NO-BREAK SPACE}".join(f"{one[metric]['mean']:.3f}" if one else "    –" for one in compared)
            )
        cells += ["–" if row[name] is None else f"{row[name]:.0%}" for name in ("disagreement", "cai_right")]
        rows.append([*cells, f"{row['cpu_seconds']:.0f}", f"{row['right']}/{row['seeds']}"])
    columns = ["", "AUC distance", "AP distance", "differ", "right", "fit s", "diag."]
    _print_table("Influence.fit with its default settings, means over seeds", columns, rows)
    print("By task and transitions to fit on: AUC and AP of CAI, then of minus the distance between hand and object;")
    print("differ: states where the two decide differently; right: in how many of these CAI is right; fit s: seconds")
    print("of processor time of a fit; diag.: fits that `diagnose` judges correctly.")
    for goal in benchmark.goals:
        verdict = "not measured" if goal.met is None else "met" if goal.met else "not met"
        say(f"Goal {verdict}: {goal.words}", "  ")
        for missed in goal.missed:
            say(f"  - {missed}", "    ")


def print_dataset(dataset: "Dataset") -> None:
    """Print the format, episodes, columns and notes of a data set, and the entities that its names suggest."""
    rows = dataset.rows
    lengths = f"{rows.min()} to {rows.max()} rows" if len(set(rows)) > 1 else f"{rows.sum() // max(len(rows), 1)} rows"
    episodes = count_words(len(dataset), "episode")
    title = f"{dataset.path}: {dataset.kind}, {episodes} of {lengths}, {int(rows.sum()):,} in all"
    table = []
    for name, column in dataset.columns.items():
        role = "action" if name in dataset.action else ""
        if name in dataset.observe:
            role = "not read" if column.reason else "observation"
        table.append([name, column.dtype, "x".join(map(str, column.shape)) or "1", role])
    _print_table(title, ["column", "type", "size", "read as"], table)
    for name in (*dataset.observe, *dataset.action):
        if names := dataset.columns[name].names:
            print(f"{name}: {', '.join(f'{place} {one}' for place, one in enumerate(names))}")
    tasks = list(dict.fromkeys(dataset.tasks))
    if tasks:
        print(f"Tasks: {', '.join(f'{task} ({dataset.tasks.count(task)})' for task in tasks[:10])}")
    for note in dataset.notes:
        say(f"Note: {note}", "  ")
    if not dataset.action:
        say(
            f"Note: There are no actions ({dataset.action_names}), so influence cannot be scored. Columns with "
            "other names are read with --action.",
            "  ",
        )


def print_augmentation(summary: dict[str, Any]) -> None:
    """Print how many stretches are kept, and the shares of impossible ones if they were audited."""
    steps = "transitions" if summary["steps"] == 1 else f"stretches of {summary['steps']} steps"
    kept = f"{summary['kept']:,} of {summary['candidates']:,} new {steps} kept"
    print(f"{kept}; at most {summary['promised']:.1%} of them are expected to be impossible.")
    if summary["computed"]:
        say(f"Computed again from the entities: {summary['computed']}.", "  ")
    rows = []
    for name, found in (summary["audit"] or {}).items():
        shares = [found["impossible"], *found["faults"].values()]
        rows.append([name, f"{found['replayed']:,}", *(f"{share:.2%}" for share in shares)])
    if rows:
        faults = next(iter(summary["audit"].values()))["faults"]
        _print_table("Replayed in the simulator", ["", "replayed", "impossible", *faults], rows)
    print(f"Transitions: {summary['out']}")


def _verdict(found: dict[str, Any]) -> str:
    """The verdict of a diagnosis as a sentence, before the problems that it found."""
    words: str = found["verdict"]
    return words[:1].upper() + words[1:] + "."


def _print_trust(diagnosis: dict[str, Any]) -> None:
    """Print the problems that the diagnosis found, entity by entity."""
    for name, found in diagnosis.items():
        print(f"Can the scores of {name} be trusted?\n  {_verdict(found)}")
        for finding in found["findings"]:
            if not finding["fine"]:
                say(f"  - {finding['words']}", "    ")
        for note in found["notes"]:
            say(f"Note on {name}: {note}", "  ")
    if not diagnosis:
        print("There are too few steps to check whether the scores can be trusted.")


def print_curation(summary: dict[str, Any]) -> None:
    """Print what is kept by phase and by task, and the files."""
    written = count_words(summary["written_episodes"], "episode")
    kept = f"{summary['kept_rows']:,} of {summary['rows']:,} rows kept, in {written}"
    rows = [[row["phase"], f"{row['before']:.1%}", f"{row['after']:.1%}"] for row in summary["phases"]]
    _print_table(f"{summary['source']}: {kept}", ["", "all rows", "kept rows"], rows)
    for row in summary["tasks"]:
        episodes = count_words(row["episodes"], "episode")
        print(f"{row['task']}: {row['kept']:.1%} of {row['rows']:,} rows in {episodes} kept")
    _print_trust(summary["diagnosis"])
    for note in summary["notes"]:
        say(f"Note: {note}", "  ")
    print(f"Kept part: {summary['out']}")
    print(f"Report: {summary['report']}")


def print_scores(summary: dict[str, Any]) -> None:
    """Print a table of the scores, the findings of the diagnosis, and the files."""
    entities = summary["entities"]
    above = f"above {summary['threshold']:g}"
    quantiles = [f"{float(quantile):.0%}" for quantile in next(iter(entities.values()))["quantiles"]]
    rows = []
    for name, found in entities.items():
        values = [found["mean"], *found["quantiles"].values(), found["highest"]]
        rows.append([name, f"{found['above']:.1%}", *(f"{value:.3f}" for value in values)])
    title = f"Influence in {summary['source']}: {summary['states']:,} states, {summary['episodes']:,} episodes"
    _print_table(title, ["", above, "mean", *quantiles, "highest"], rows)
    print(f"Scores in nats: share of states {above}, mean, quantiles, highest.")
    _print_trust(summary["diagnosis"])
    for note in summary["notes"]:
        say(f"Note: {note}", "  ")
    print(f"Scores: {summary['out']} ({', '.join(summary['names'].values())})")
    print(f"Report: {summary['report']}")
    if summary["saved_model"]:
        print(f"Model: {summary['saved_model']}")
