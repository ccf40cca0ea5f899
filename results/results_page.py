"""Write docs/results.md from result files: which claims of the paper hold, which do not, and what has not been run."""

import os
import shlex
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from butfor.analysis.arms import SMALL, ReadArm, ReadStudy, count_words, read_study, study_names
from butfor.analysis.claims import ENOUGH, Claim
from butfor.analysis.detection_runs import METRICS, side_rows
from butfor.analysis.rows import (
    COMPARED,
    LEVELS,
    arm_row,
    cell,
    duration,
    noted,
    seconds_of,
    shared_range,
    shown_curves,
)
from butfor.reporting.charts import Row
from butfor.reporting.page import write_page
from butfor.reporting.study_page import shown_by, study_tables
from butfor.runs.reading import read_optional

SIDES = {  # side questions of a detection run, by title
    "helps": "What helps",
    "noise": "Noise",
    "actions": "Number of actions K",
    "episodes": "CAI by kind of episode",
}
SHORT = 3000  # episodes, for those who have less time
KINDS = {  # of claims
    "reaches": "reaches a level",
    "faster": "is faster than another",
    "better": "is better than another",
    "on par": "is on par with another",
    "detects": "detects as well as in the paper",
    "alone": "has the only detector that is reliable",
    "times": "has a number that is a multiple of another",
    "follows": "has scores that correlate with something over training",
    "uneven": "has scores that vary more than the label",
}
INTRODUCTION = """# What reproduces and what does not

Written from the files in `{results}` by `results_page.write_results_page`; change those, not this page.

| on this page | means |
|---|---|
| verdict | follows from [rules](#how-verdicts-are-decided); *undecided*: the runs so far cannot decide it |
| [a, b] | 95 % bootstrap interval over seeds |
| a to b | range over seeds, where there are fewer than {enough} |
| success | mean over seeds at the last evaluation ± standard deviation; IQM: interquartile mean |
| episodes to a level | those of the median seed |
| times fewer | ratio of these episodes at {compared:.0%}; a lower bound (>) where the slower arm never reaches it |
"""


def write_results_page(results: Path, page: Path) -> Path:
    """Write a page of all studies in RESULTS/studies: claims with verdicts, tables, and what has not been run."""
    results, page = Path(results), Path(page)
    studies = [read_study(results, name) for name in study_names(results)]
    shown = [study for study in studies if any(arm.state in ("finished", "unfinished") for arm in study.arms)]
    parts = [INTRODUCTION.format(results=relative(results, page.parent), enough=ENOUGH, compared=COMPARED)]
    claims = [(study, *found) for study in studies for found in study.verdicts]
    if claims:
        measured = [found for found in claims if found[2].measured]
        rows = [(f"[{clean(s.title)}](#{anchor(s.title)})", clean(claim.words) + compared(claim),
                 f"**{verdict.verdict}**") for s, claim, verdict, _ in measured]  # fmt: skip
        waiting = len(claims) - len(measured)
        parts.append("## In short\n\n" + table(("study", "the paper's claim", "here"), rows))
        parts += [f"{waiting} further claims need runs that have not been made.\n"] if waiting else []
    parts += [section(study, page.parent) for study in shown]
    parts.append(missing(studies))
    if rules := {claim.kind: claim.rule for _, claim, *_ in claims}:
        lines = [f"- A claim that an arm {KINDS.get(kind, kind)}. {clean(rules[kind])}" for kind in sorted(rules)]
        parts.append("\n".join(["## How verdicts are decided\n", *lines, ""]))
    return write_page(page, "\n".join(parts))


def compared(claim: Claim) -> str:
    """Return the arms of a claim, in brackets."""
    return f" ({clean(claim.arm)}{f' against {clean(claim.than)}' if claim.than else ''})"


def section(study: ReadStudy, folder: Path) -> str:
    """Return the section of a study: what it is about, verdicts, and the numbers of its arms."""
    parts = [f"## {clean(study.title)}\n"]
    parts += [f"{clean(study.about)}\n"] if study.about else []
    parts += [f"**{SMALL}**\n"] if study.size == "small" else []
    for claim, verdict, weak in study.verdicts:
        note = f" Note: {clean('; '.join(weak))}." if weak else ""
        parts.append(
            f"- **{verdict.verdict[0].upper()}{verdict.verdict[1:]}**: {clean(claim.words)}{compared(claim)}\n"
            f"  {clean(verdict.words)}{note}"
        )
    parts += [""] if study.verdicts else []
    measured, ends = [arm for arm in study.arms if arm.curve], shared_range(study.arms)
    behaving = {claim.arm for claim, _, _ in study.verdicts if claim.measure != "success"}
    parts += [behaviour_table(arm, folder) for arm in measured if arm.label in behaving and arm.behaviour]
    if measured:
        parts.append(curve_table(measured, study.arms[0] if len(study.arms) > 1 else None, ends, folder))
        if ends:
            parts.append(f"Area: under the success curve from {ends[0]:,} to {ends[1]:,} episodes, 0 to 1.\n")
    for arm in study.arms:
        if arm.kind == "detection" and arm.summary:
            parts += detection_tables(study.name, arm, folder)
    if study.command:
        parts.append(f"```sh\n{' '.join(study.command.replace('`', '').split())}\n```\n")
    return "\n".join(parts)


def curve_table(measured: list[ReadArm], baseline: ReadArm | None, ends: tuple[int, int] | None, folder: Path) -> str:
    """Return the numbers of the training arms of a study."""
    head = ["arm", "seeds", "success", *(f"episodes to {100 * level:g} %" for level in LEVELS), "area"]
    if baseline:
        head += [f"times fewer than {clean(baseline.label)}", f"better than {clean(baseline.label)}"]
    rows = []
    for arm in measured:
        row = arm_row(arm, baseline, ends)
        cells = [row["end"], *row["reach"], row["area"]]
        cells += [row["times"], row["improvement"]] if baseline else []
        state = "" if arm.state == "finished" else f", {arm.state}"
        rows.append([f"{linked(arm, folder)}{state}", f"{row['seeds']}", *map(cell_text, cells)])
    machines, commits = (sorted({one for arm in measured for one in noted(arm, key)}) for key in ("device", "commit"))
    times = ", ".join(f"{clean(arm.label)} {duration(seconds_of(arm))}" for arm in measured)
    where, commit = clean(", ".join(machines) or "unknown hardware"), clean(", ".join(commits) or "unknown")
    return f"{table(head, rows)}\nRun on {where}, commit {commit}. {played_words(measured)}Time: {times}.\n"


def played_words(arms: list[ReadArm]) -> str:
    """Return where the runs differ from the paper's: environments in parallel, overlap, episodes of an evaluation."""
    settings = [arm.config["config"] for arm in arms]
    overlaps = {" and ".join(map(str, one.get("overlap") or ())) or "nothing" for one in settings}
    counts, judged = (
        " or ".join(map(str, sorted({int(one.get(key) or 0) for one in settings} - {0})))
        for key in ("num_envs", "evaluation_episodes")
    )
    if not counts or not judged:
        return ""
    return (
        f"Each seed plays {counts} episodes at once (the paper: one); overlapped: {' or '.join(sorted(overlaps))} (the "
        f"paper: nothing); an evaluation is {judged} episodes per seed. "
    )


def behaviour_table(arm: ReadArm, folder: Path) -> str:
    """Return how often the object was moved, lifted and held at each evaluation, as mean shares of the steps."""
    episodes, columns = next(iter(arm.behaviour.values())).episodes, []
    for shown in map(shown_curves, arm.behaviour.values()):
        numbers = zip(shown["mean"], shown["mean_low"], shown["mean_high"], strict=True)
        columns.append([cell_text(cell(*three, len(arm.seeds))) for three in numbers])
    rows = [[f"{episode:,}", *cells] for episode, *cells in zip(episodes, *columns, strict=True)]
    words = f"{linked(arm, folder)}: shares of an episode's steps, mean over {count_words(len(arm.seeds), 'seed')}."
    return f"{words}\n\n{table(['episodes', *arm.behaviour], rows)}"


def cell_text(cell: Row) -> str:
    """Return a cell in one line: 0.97 [0.96, 0.98] (at 3,000)."""
    spread = str(cell["spread"])
    parts = [cell["value"], f"({spread})" if " to " in spread else spread, f"({cell['at']})" if cell.get("at") else ""]
    return clean(" ".join(part for part in parts if part))


def detection_tables(study: str, arm: ReadArm, folder: Path) -> list[str]:
    """Return what a study shows of a detection run: the tables that belong to it, and side questions."""
    parts = []
    for one in study_tables(study, arm.summary):
        share = (
            f"; {one['positive_share']:.1%} of {one['states']:,} states are influenced"
            if "positive_share" in one
            else ""
        )
        paper = f" (paper: {one['paper_share']:.1%})" if one.get("paper_share") else ""
        parts.append(f"{linked(arm, folder)}. {clean(one['title'])}{share}{paper}:\n")
        parts.append(detector_table(one["detectors"]))
    sides = side_rows(arm.summary, read_optional(arm.folder / "studies.json") or {})
    shown_here = shown_by(study)
    for name in (*shown_here.studies, *(["episodes"] if shown_here.episodes else [])):
        if rows := sides.get(name):
            where = f", on the {clean(rows[0]['set'])} set" if rows[0].get("set") else ""
            parts.append(f"{SIDES[name]}, exact label{where}:\n")
            shown = {"cai": "CAI"} if "cai" in rows[0] else {"auc": "AUC", "ap": "average precision", "f1": "best F1"}
            cells = [
                [clean(row["title"]), *(f"{row[key]['mean']:.3f} ± {row[key]['std']:.3f}" for key in shown)]
                for row in rows
            ]
            parts.append(table(["", *shown.values()], cells))
    return parts


def detector_table(detectors: list[dict[str, Any]]) -> str:
    """Return the detectors of a detection run beside the paper's numbers."""
    head = ["detector", *(name for metric in ("AUC", "average precision", "best F1") for name in (metric, "paper"))]
    rows = []
    for row in detectors:
        cells = [clean(row["title"])]
        for metric in METRICS:
            spread = f" ± {row[metric]['std']:.3f}" if row["seeds"] > 1 else ""
            paper = (row.get("paper") or {}).get(metric) or []
            cells += [f"{row[metric]['mean']:.3f}{spread}", " ± ".join(f"{number:.2f}" for number in paper)]
        rows.append(cells)
    return table(head, rows)


def missing(studies: list[ReadStudy]) -> str:
    """Return the arms that have not been run, are unfinished or too short, with the command and how long it takes."""
    lines = []
    cost = episode_cost(studies)
    options = common_options(studies)
    for study in studies:
        absent, short = [arm for arm in study.arms if arm.state == "not run"], too_short(study)
        for arm in study.arms:
            if arm.words and arm not in absent:
                end = f". {price(study, [arm], cost, options, arm.curve.asked)}" if arm.curve else "."
                lines.append(f"- {clean(study.title)}: **{clean(arm.label)}** {clean(arm.words)}{end}")
        if absent:
            names, have = ", ".join(f"**{clean(arm.label)}**" for arm in absent), "has" if len(absent) == 1 else "have"
            lines.append(f"- {clean(study.title)}: {names} {have} not been run. {price(study, absent, cost, options)}")
        if short:
            names = ", ".join(f"**{clean(arm.label)}** ({last:,} of {arm.asked[1]:,})" for arm, last in short)
            longer = f"undecided claims need more of the paper's episodes: {names}"
            words = price(study, [arm for arm, _ in short], cost, options)
            lines.append(f"- {clean(study.title)}: {longer}. {words}")
    if cost and lines:
        seconds = f"{cost:.2f} s per episode of ten seeds, the median of the runs on this page"
        lines.append(f"\nTimes are for one run after another at {seconds}, most of which ran beside others.")
    return "\n".join(["## Missing and unfinished runs\n", *(lines or ["Nothing is missing."]), ""])


def too_short(study: ReadStudy) -> list[tuple[ReadArm, int]]:
    """Return the measured arms of undecided claims that are shorter than the paper's, and their last episode."""
    undecided = [claim for claim, found, _ in study.verdicts if found.verdict == "undecided" and found.measured]
    asked = {label for claim in undecided for label in (claim.arm, claim.than)}
    lasts = [(arm, int(arm.curve.episodes[-1])) for arm in study.arms if arm.label in asked and arm.curve]
    return [(arm, last) for arm, last in lasts if last < arm.asked[1]]


def price(
    study: ReadStudy, arms: list[ReadArm], cost: float | None, options: list[str], episodes: int | None = None
) -> str:
    """Return the command that runs these arms, for so many episodes or the study's, and how long it takes."""
    counts = [episodes or arm.asked[1] for arm in arms if arm.kind == "training"]
    words = [f"{count_words(len(arms), 'run')}, about {duration(cost * sum(counts))}:"] if cost and any(counts) else []
    command = ["butfor", "study", "run", study.name.removesuffix("-small"), *(options if counts else [])]
    command += ["--episodes", str(episodes)] if episodes else []
    command += ["--arms", *(arm.label for arm in arms)] if len(arms) < len(study.arms) else []
    words += [f"`{shlex.join(command)}`"] if not set("<`") & set("".join(command)) else []
    short = sum(min(count, SHORT) for count in counts)
    if cost and short < sum(counts) and not any(arm.curve for arm in arms):
        words.append(f"({duration(cost * short)} with `--episodes {SHORT}`)")
    return " ".join(words)


def common_options(studies: list[ReadStudy]) -> list[str]:
    """Return the options of `butfor study run` with which most of the training runs were made."""
    settings = [arm.config["config"] for study in studies for arm in study.arms if arm.curve]
    envs = Counter(int(one.get("num_envs") or 1) for one in settings).most_common(1)
    overlap = Counter(
        tuple(one.get("overlap") or ()) for one in settings if one.get("use") and one.get("signal", "cai") == "cai"
    ).most_common(1)
    options = ["--num-envs", str(envs[0][0])] if envs and envs[0][0] > 1 else []
    return options + (["--overlap", *overlap[0][0]] if overlap and overlap[0][0] else [])


def episode_cost(studies: list[ReadStudy]) -> float | None:
    """Return the seconds per episode of ten seeds, evaluation and start-up included: the median of all long runs."""
    costs = {}
    for arm in (arm for study in studies for arm in study.arms):
        seconds, played = seconds_of(arm), arm.summary.get("played")
        if isinstance(seconds, int | float) and isinstance(played, int) and played >= 1000 and len(arm.seeds) == 10:
            costs[arm.folder] = seconds / played
    return float(np.median(list(costs.values()))) if costs else None


def table(head: Any, rows: Any) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(row)} |" for row in [head, *rows]]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:], ""])


def linked(arm: ReadArm, folder: Path) -> str:
    """Return an arm's name with a link to its files."""
    return f"{clean(arm.label)} ([files]({quote(relative(arm.folder, folder))}))"


def relative(path: Path, folder: Path) -> str:
    """Return a path relative to a folder."""
    return Path(os.path.relpath(path, folder)).as_posix()


def anchor(title: str) -> str:
    """Return the name of a heading's anchor, as GitHub makes it."""
    return "".join(sign for sign in title.lower().replace(" ", "-") if sign.isalnum() or sign in "-_")


def clean(text: Any) -> str:
    """Return text that Markdown shows unchanged, on one line."""
    words = " ".join(str(text).split())
    for sign in ("\\", "|", "*", "_", "`"):
        words = words.replace(sign, f"\\{sign}")
    return words.replace("<", "&lt;").replace("](", "]\\(")
