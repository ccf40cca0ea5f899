"""The long tables of docs/results-learning.md and docs/results-detection.md: what each study measured."""

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from butfor.analysis.arms import SMALL, ReadArm, ReadStudy
from butfor.analysis.claims import Claim, Verdict
from butfor.analysis.detection_runs import METRICS, side_rows
from butfor.analysis.rows import LEVELS, arm_row, cell, duration, noted, seconds_of, shared_range, shown_curves
from butfor.reporting.charts import Row
from butfor.reporting.study_page import shown_by, study_tables
from butfor.runs.printing import count_words
from butfor.runs.reading import read_optional
from butfor.studies.record import SHOWN

SIDES = {  # side questions of a detection run, by title
    "helps": "What helps",
    "noise": "Noise",
    "actions": "Number of actions K",
    "episodes": "CAI by kind of episode",
}
DEVIATIONS = {  # by study: how its runs differ from its experiment, beside what the verdicts say
    "table1": "Deviations from the paper's experiment. Both: the form of the KL is `mean_clip_product` (deviation 1). "
    "FetchPickAndPlace: 3,000 test episodes instead of 7,500; at most 400 epochs with a falling learning rate instead "
    "of 2,000 with a constant one; agents that play eight episodes at once (deviation 33); more influenced states. "
    "Weighted to the paper's share of them, CAI has an average precision of 0.966 and an F1 of 0.894. See "
    "[deviations](deviations.md).\n",
}


def section(study: ReadStudy, folder: Path) -> str:
    """Return the section of a study: what it is about, verdicts, and the numbers of its arms."""
    parts = [f"## {clean(study.title)}\n"]
    parts += [f"{clean(study.about)}\n"] if study.about else []
    parts += [f"**{SMALL}**\n"] if study.size == "small" else []
    for claim, verdict, weak in study.verdicts:
        if not verdict.measured and study.name.startswith("record"):
            continue  # results-missing.md lists the arms that have not been run
        note = f" Note: {clean('; '.join(weak))}." if weak else ""
        parts.append(
            f"- **{verdict.verdict[0].upper()}{verdict.verdict[1:]}**: {clean(claim.words)}{compared(claim)}\n"
            f"  {clean(verdict.words)}{p_value(verdict)}{note}"
        )
    parts += [""] if study.verdicts else []
    parts += [DEVIATIONS[study.name]] if study.name in DEVIATIONS else []
    measured, ends = [arm for arm in study.arms if arm.curve], shared_range(study.arms)
    behaving = {claim.arm for claim, _, _ in study.verdicts if claim.measure != "success"}
    parts += [behaviour_table(arm, folder) for arm in measured if arm.label in behaving and arm.behaviour]
    if measured and study.name.startswith("record"):
        parts.append(success_table(measured, folder))
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


def compared(claim: Claim) -> str:
    """Return the arms of a claim, in brackets."""
    than = f" against {clean(claim.than)}" if claim.than else ""
    more = f" and {count_words(len(claim.than_variants), 'variant')}" if claim.than_variants else ""
    return f" ({clean(claim.arm)}{than}{more})"


def p_value(verdict: Verdict) -> str:
    """Return the p-value of the finding, or the smallest where nothing is decided, in brackets."""
    if not verdict.found or not verdict.found.evidence:
        return ""
    p = dict(verdict.found.evidence).get(verdict.verdict, verdict.found.least)
    return f" (p = {p:.2g})" if p >= 0.0001 else " (p < 0.0001)"


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


def success_table(measured: list[ReadArm], folder: Path) -> str:
    """Return the mean success of each arm with its interval at chosen episodes, where it was evaluated there."""
    cells: dict[str, dict[int, str]] = {}
    for arm in measured:
        assert arm.curve is not None
        shown = shown_curves(arm.curve)
        three = zip(shown["mean"], shown["mean_low"], shown["mean_high"], strict=True)
        found = zip(shown["episodes"], three, strict=True)
        cells[linked(arm, folder)] = {int(at): cell_text(cell(*one, len(arm.seeds))) for at, one in found}
    columns = [at for at in SHOWN if any(at in found for found in cells.values())]
    rows = [[arm, *(found.get(at, "–") for at in columns)] for arm, found in cells.items()]
    return table(["success after", *(f"{at:,}" for at in columns)], rows)


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
