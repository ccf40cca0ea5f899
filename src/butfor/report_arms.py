"""A study's files, read and checked: its arms with their curves, what is missing, and the verdicts on its claims."""

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from butfor.claims import (
    ENOUGH,
    TABLE_RULES,
    Claim,
    Curve,
    Verdict,
    claim_from,
    judge,
    judge_tables,
    overlap,
    rule_words,
)
from butfor.report_figures import Array, Row
from butfor.report_reading import detector_rows, expected_form, numbers, read, read_optional, side_rows
from butfor.statistics import area_under_curve, curve_summary, probability_of_improvement, reach_summary

BEHAVIOUR = ("moved", "lifted", "held")  # what else an evaluation of a robot world may show
LEVELS = (0.3, 0.6, 0.9, 0.95)
STUDY_AGAIN = "Write the study's file again."
RUN_AGAIN = "Run it again."
HEAT_AGAIN = "Delete it and have it written again."
SMALL = "These runs are of the small size, too short to learn anything: they decide no claim."
CHANGE = re.compile(r"-(?=[a-z_][\w.]*=)")  # before each setting of a run's label


@dataclass(frozen=True)
class Arm:
    """One arm of a study and what its run folder holds by now."""

    label: str
    folder: Path
    kind: str
    state: str
    """not run, begun, unfinished, finished or broken"""
    words: str
    """what there is to say about its state; empty where it is finished"""
    config: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    curve: Curve | None = None
    seeds: tuple[int, ...] = ()
    behaviour: dict[str, Curve] = field(default_factory=dict)
    """what the agent does to the object, as shares of an episode's steps"""
    asked: tuple[int, int] = (0, 0)
    """seeds, and episodes of each, that the study asks for"""


@dataclass(frozen=True)
class Study:
    """A named experiment of the paper, as its file and its run folders show it."""

    name: str
    title: str
    about: str
    size: str
    command: str
    arms: list[Arm]
    verdicts: list[tuple[Claim, Verdict, list[str]]]
    """each claim with its verdict and what weakens it"""


def study_names(root: Path) -> list[str]:
    """The studies that a folder holds."""
    return sorted(path.stem for path in (Path(root) / "studies").glob("*.json"))


def read_study(root: Path, name: str) -> Study:
    """ROOT/studies/NAME.json with the runs that it names; a run that cannot be read is an arm that says so."""
    root = Path(root)
    if not re.fullmatch(r"[\w.+-]+", name) or name.startswith("."):
        raise ValueError(f"{name!r} is no name of a study; {root / 'studies'} holds {', '.join(study_names(root))}.")
    path = root / "studies" / f"{name}.json"
    held = read(path, STUDY_AGAIN)
    if held.get("schema") != 1:
        raise ValueError(f"{path} has schema {held.get('schema')!r}, but this butfor reads schema 1. {STUDY_AGAIN}")
    with expected_form(path, STUDY_AGAIN):
        entries = [(str(arm["label"]), arm_folder(root, arm["folder"]), str(arm["kind"])) for arm in held["arms"]]
        work = [(int(arm.get("seeds") or 0), int(arm.get("episodes") or 0)) for arm in held["arms"]]
        if len({label for label, *_ in entries}) < len(entries) or not entries:
            raise ValueError("each arm needs a label of its own, and there must be one at least")
        claims = [claim_from(claim) for claim in held.get("claims") or []]
        title, about, size, command = (str(held.get(key) or "") for key in ("title", "about", "size", "command"))
    arms = [replace(read_arm(*entry), asked=asked) for entry, asked in zip(entries, work, strict=True)]
    verdicts = [(claim, verdict_on(claim, arms), weaknesses(claim, arms)) for claim in claims]
    if size == "small":
        verdicts = [(claim, replace(found, verdict="undecided"), weak) for claim, found, weak in verdicts]
    return Study(name, title or name, about, size, command, arms, verdicts)


def verdict_on(claim: Claim, arms: Sequence[Arm]) -> Verdict:
    """The verdict on a claim from the arms' curves, or from the tables of a run."""
    if claim.kind in TABLE_RULES:
        try:
            return judge_tables(claim, [table for arm in arms if arm.label == claim.arm for table in run_tables(arm)])
        except ValueError as error:  # the page of the others is worth more than this verdict
            return Verdict("undecided", f"{claim.arm}: {error}", rule_words(claim.kind), measured=False)
    measured = {
        arm.label: arm.curve if claim.measure == "success" else arm.behaviour.get(claim.measure) for arm in arms
    }
    return judge(claim, {label: curve for label, curve in measured.items() if curve})


def run_tables(arm: Arm) -> list[Row]:
    """What a claim that is about no curve can rest on: a detection run's tables, or a training run's heat map."""
    if arm.kind == "training":
        path = arm.folder / "heatmap.npz"
        return [{"heat_map": read(path, HEAT_AGAIN)}] if path.is_file() else []
    with expected_form(arm.folder / "studies.json", RUN_AGAIN):
        sides = side_rows(arm.summary, read_optional(arm.folder / "studies.json") or {})
    return [arm.summary | {"sides": sides}, *arm.summary.get("others", [])] if arm.summary else []


def arm_folder(root: Path, name: Any) -> Path:
    """A run folder below the root; a name that leads elsewhere is refused."""
    if not isinstance(name, str) or not name or Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError(f"{name!r} is no folder below {root}")
    return root / name


def read_arm(label: str, folder: Path, kind: str) -> Arm:
    """What an arm's folder holds; nothing that is wrong with it keeps the other arms from being shown."""
    if not (folder / "config.json").is_file():
        return Arm(label, folder, kind, "not run", "has not been run")
    try:
        arm = read_run_folder(folder, label)
        if arm.kind != kind:
            raise ValueError(f"{folder} holds a run of kind {arm.kind!r}, not {kind!r}.")
        return arm
    except (OSError, ValueError) as error:
        return Arm(label, folder, kind, "broken", f"cannot be read: {error}")


def read_run_folder(folder: Path, label: str = "") -> Arm:
    """A folder of a training or detection run as an arm; what cannot be read is refused with a sentence."""
    config = read(folder / "config.json", RUN_AGAIN)
    versions, summary = (
        read(folder / name, RUN_AGAIN) if (folder / name).is_file() else {}
        for name in ("versions.json", "summary.json")
    )
    for name, schema in (("config.json", config.get("schema")), ("summary.json", summary.get("schema", 1))):
        if schema != 1:
            raise ValueError(f"{folder / name} has schema {schema!r}, but this butfor reads schema 1. {RUN_AGAIN}")
    with expected_form(folder / "config.json", RUN_AGAIN):
        kind, settings, _ = str(config["kind"]), dict(config["config"]), str(config["label"])
    common: dict[str, Any] = {"config": config, "versions": versions, "summary": summary}
    if kind != "training":
        begun = ("finished", "") if summary else ("begun", "has begun and has no results yet")
        with expected_form(folder / "summary.json", RUN_AGAIN):
            _ = summary and (detector_rows(summary["detectors"], {}), int(summary["states"]), summary["world"])
        return Arm(label or folder.name, folder, kind, *begun, **common)
    with expected_form(folder / "config.json", RUN_AGAIN):
        asked = int(settings["episodes"])
    curves, seeds = read_curves(folder / "metrics.jsonl", asked)
    curve = curves.pop("success", None)
    with expected_form(folder / "summary.json", RUN_AGAIN):
        state, words = progress_of(summary, curve, asked)
        _ = {key: float(value) for key, value in (summary.get("seconds") or {}).items()}
    return Arm(
        label or use_of(settings), folder, kind, state, words, curve=curve, seeds=seeds, behaviour=curves, **common
    )


def progress_of(summary: dict[str, Any], curve: Curve | None, asked: int) -> tuple[str, str]:
    """Whether a training run is finished, and where it is not, how far it came."""
    if curve is None:
        return "begun", f"has begun and has no evaluation yet (0 of {asked:,} episodes)"
    last = int(curve.episodes[-1])
    played = int(summary.get("played", last))
    if summary.get("finished") is True and played >= asked:
        return "finished", ""
    return "unfinished", f"was played for {played:,} of {asked:,} episodes; its last evaluation is at {last:,}"


def read_curves(path: Path, asked: int) -> tuple[dict[str, Curve], tuple[int, ...]]:
    """Success [S, E], and what else each seed's evaluations show; an evaluation that a crash cut off is left out."""
    if not path.is_file():
        return {}, ()
    lines, rows = path.read_text(encoding="utf-8", errors="replace").splitlines(), []
    for place, line in enumerate(lines):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            if place < len(lines) - 1:
                raise ValueError(f"{path} cannot be read (line {place + 1}: {error}). {RUN_AGAIN}") from error
    with expected_form(path, RUN_AGAIN):
        found = {(int(row["episode"]), int(row["seed"])): row for row in rows}
        seeds = sorted({seed for _, seed in found})
        whole = [e for e in sorted({e for e, _ in found}) if all((e, seed) in found for seed in seeds)]
        curves = {}
        for key in ("success", *BEHAVIOUR) if whole else ():
            if key == "success" or all(key in row for row in found.values()):
                each = [[float(found[episode, seed][key]) for episode in whole] for seed in seeds]
                values = numbers(each, len(seeds), len(whole))
                if values.min() < 0 or values.max() > 1:
                    raise ValueError(f"{key} must lie from 0 to 1")
                curves[key] = Curve(np.asarray(whole), values, asked)
    return curves, tuple(seeds) if whole else ()


def read_heat_map(folder: Path) -> tuple[Array, dict[str, tuple[Array, str]]]:
    """A run's heatmap.npz: episodes [x], and what is drawn over them and the steps, [T, x] with its unit; or none."""
    path = folder / "heatmap.npz"
    if not path.is_file():
        return np.empty(0), {}
    arrays = read(path, HEAT_AGAIN)
    with expected_form(path, HEAT_AGAIN):
        x = numbers(arrays["episodes"], None)
        drawn = {"CAI": (numbers(arrays["score"], None, len(x)), "nats")}
        if "label" in arrays:
            drawn["states with influence"] = (100 * numbers(arrays["label"], None, len(x)), "%")
    return x, drawn


def use_of(settings: dict[str, Any]) -> str:
    """How a training run uses influence or a rival of it, in a few words."""
    uses = [str(use) for use in settings.get("influence") or []]
    kind = str((settings.get("priority") or {}).get("kind", "uniform"))
    uses += [kind.upper()] if kind != "uniform" else []
    uses += [str(settings["curiosity"])] if settings.get("curiosity", "none") != "none" else []
    return " + ".join(uses) or "without influence"


def changes(label: str) -> list[str]:
    """The settings of a run that are not the defaults, from its label: `seeds=10`, `worlds=2`."""
    return CHANGE.split(label)[1:]


def weaknesses(claim: Claim, arms: Iterable[Arm]) -> list[str]:
    """What a reader must know of the arms that a verdict rests on."""
    chosen = [arm for arm in arms if arm.label in (claim.arm, claim.than) and arm.curve]
    few = [f"{arm.label} has only {count_words(len(arm.seeds), 'seed')}" for arm in chosen if len(arm.seeds) < ENOUGH]
    return few + [f"{arm.label} {arm.words}" for arm in chosen if arm.words]


def count_words(count: int, noun: str) -> str:
    """Such as "1 seed" or "3 seeds"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


# --- numbers in words -----------------------------------------------------------------------------


def shown_curves(curve: Curve) -> Row:
    """The lines and bands of a curve: 95 % intervals, or the range where there are too few seeds for them."""
    found: Row = {key: np.asarray(values) for key, values in curve_summary(curve.episodes, curve.success).items()}
    if len(curve.success) < ENOUGH:
        low, high = curve.success.min(0), curve.success.max(0)
        found |= {"mean_low": low, "mean_high": high, "iqm_low": low, "iqm_high": high}
    return found


def shared_range(arms: Sequence[Arm]) -> tuple[int, int] | None:
    """The episodes over which areas are compared: those that all finished arms cover, or else all measured ones."""
    measured = [arm for arm in arms if arm.curve]
    finished = [arm for arm in measured if arm.state == "finished"]
    grids = [arm.curve.episodes for arm in finished or measured if arm.curve]
    first, last = max((int(grid[0]) for grid in grids), default=0), min((int(grid[-1]) for grid in grids), default=0)
    return (first, last) if first < last else None


def areas(curve: Curve, ends: tuple[int, int] | None) -> Array | None:
    """The area under each seed's curve [S] over a range of episodes; None where the curve does not cover it."""
    if ends is None or curve.episodes[0] > ends[0] or curve.episodes[-1] < ends[1]:
        return None
    return area_under_curve(curve.episodes, curve.success, ends)


def arm_row(arm: Arm, baseline: Arm | None, ends: tuple[int, int] | None) -> Row:
    """A row of the table, each cell as a value and what is said of its spread."""
    curve = arm.curve
    assert curve is not None
    summary, few = shown_curves(curve), len(arm.seeds) < ENOUGH
    last = int(curve.episodes[-1])
    end = cell(summary["mean"][-1], summary["mean_low"][-1], summary["mean_high"][-1], len(arm.seeds))
    row: Row = {
        "label": arm.label,
        "seeds": len(arm.seeds),
        "few": few,
        "note": "" if arm.state == "finished" else arm.state,
        "end": end | {"at": f"at {last:,}"},
    }
    row["reach"] = [reach_cell(curve, level) for level in LEVELS]
    area = areas(curve, ends)
    row["area"] = {"value": "–", "spread": ""}
    if area is not None:
        middle = curve_summary([0], area[:, None])  # the interval of a mean over seeds
        low, high = (area.min(), area.max()) if few else (middle["mean_low"][0], middle["mean_high"][0])
        row["area"] = cell(area.mean(), low, high, len(area))
    row["improvement"] = improvement_cell(arm, baseline)
    return row


def cell(value: float, low: float, high: float, seeds: int) -> Row:
    """A number of 0 to 1 with its interval, or its range where there are too few seeds."""
    spread = f"[{low:.2f}, {high:.2f}]" if seeds >= ENOUGH else f"{low:.2f} to {high:.2f}"
    return {"value": f"{value:.2f}", "spread": spread if seeds > 1 else "one seed"}


def reach_cell(curve: Curve, level: float) -> Row:
    """The episodes that the median seed needs to reach a level."""
    reach = reach_summary(curve.episodes, curve.success, level)
    value, _, spread = reach.words().replace("more than", ">").partition(" episodes")
    never = {"at": f"{reach.censored} of {reach.seeds} never"} if reach.censored else {}
    spread = spread.partition("(")[0].strip() if never else spread.strip(" ()")  # an interval, or "one seed"
    if 1 < reach.seeds < ENOUGH and not reach.is_bound:
        ends = (min(reach.each), max(reach.each))
        low, high = (f"{end:,.0f}" if math.isfinite(end) else f"> {reach.limit:,}" for end in ends)
        spread = f"{low} to {high}"
    return {"value": value, "spread": spread} | never


def improvement_cell(arm: Arm, baseline: Arm | None) -> Row:
    """The probability that a seed of this arm has a larger area than one of the baseline, over the episodes of both."""
    if baseline is None or arm is baseline or arm.curve is None or baseline.curve is None:
        return {"value": "baseline" if arm is baseline else "–", "spread": ""}
    ends = overlap(arm.curve, baseline.curve)
    if ends is None:
        return {"value": "–", "spread": "nothing in common"}
    ours, theirs = (area_under_curve(curve.episodes, curve.success, ends) for curve in (arm.curve, baseline.curve))
    chance, end = probability_of_improvement(ours, theirs), f"up to {ends[1]:,}"
    few = min(len(ours), len(theirs)) < ENOUGH
    spread = "too few seeds" if few else f"[{chance.low:.2f}, {chance.high:.2f}]"
    return {"value": f"{chance.value:.2f}", "spread": spread, "at": end}


def duration(seconds: Any) -> str:
    """Seconds as hours, minutes and seconds."""
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min {rest:02d} s"


def seconds_of(arm: Arm) -> Any:
    """How long an arm's run took."""
    held = arm.summary.get("seconds")
    return held.get("total") if isinstance(held, dict) else arm.versions.get("seconds")
