"""A study's files, read and checked: its arms with their curves, what is missing, and the verdicts on its claims."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from butfor.analysis.claims import (
    ENOUGH,
    TABLE_RULES,
    Claim,
    Curve,
    Verdict,
    claim_from,
    judge,
    judge_tables,
    rule_words,
)
from butfor.analysis.detection_runs import detector_rows, expected_form, numbers, read, read_optional, side_rows
from butfor.reporting.charts import Array, Row

BEHAVIOUR = ("moved", "lifted", "held")  # what else an evaluation of a robot world may show
STUDY_AGAIN = "Delete it, or write it anew by `butfor study run`, which skips the runs that are finished."
RUN_AGAIN = "Run it again."
HEAT_AGAIN = "Delete it and have it written again."
SMALL = "These runs are of the small size, too short to learn anything: they decide no claim."
CHANGE = re.compile(r"-(?=[a-z_][\w.]*=)")  # before each setting of a run's label


@dataclass(frozen=True)
class ReadArm:
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
class ReadStudy:
    """A named experiment of the paper, as its file and its run folders show it."""

    name: str
    title: str
    about: str
    size: str
    command: str
    arms: list[ReadArm]
    verdicts: list[tuple[Claim, Verdict, list[str]]]
    """each claim with its verdict and what weakens it"""


def study_names(root: Path) -> list[str]:
    """The studies that a folder holds."""
    return sorted(path.stem for path in (Path(root) / "studies").glob("*.json"))


def read_study(root: Path, name: str) -> ReadStudy:
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
    return ReadStudy(name, title or name, about, size, command, arms, verdicts)


def verdict_on(claim: Claim, arms: Sequence[ReadArm]) -> Verdict:
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


def run_tables(arm: ReadArm) -> list[Row]:
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


def read_arm(label: str, folder: Path, kind: str) -> ReadArm:
    """What an arm's folder holds; nothing that is wrong with it keeps the other arms from being shown."""
    if not (folder / "config.json").is_file():
        return ReadArm(label, folder, kind, "not run", "has not been run")
    try:
        arm = read_run_folder(folder, label)
        if arm.kind != kind:
            raise ValueError(f"{folder} holds a run of kind {arm.kind!r}, not {kind!r}.")
        return arm
    except (OSError, ValueError) as error:
        return ReadArm(label, folder, kind, "broken", f"cannot be read: {error}")


def read_run_folder(folder: Path, label: str = "") -> ReadArm:
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
            _ = summary and (detector_rows(summary["detectors"], {}), int(summary["states"]), summary["env"])
        return ReadArm(label or folder.name, folder, kind, *begun, **common)
    with expected_form(folder / "config.json", RUN_AGAIN):
        asked = int(settings["episodes"])
    curves, seeds = read_curves(folder / "metrics.jsonl", asked)
    curve = curves.pop("success", None)
    with expected_form(folder / "summary.json", RUN_AGAIN):
        state, words = progress_of(summary, curve, asked)
        _ = {key: float(value) for key, value in (summary.get("seconds") or {}).items()}
    return ReadArm(
        label or use_of(settings), folder, kind, state, words, curve=curve, seeds=seeds, behaviour=curves, **common
    )


def progress_of(summary: dict[str, Any], curve: Curve | None, asked: int) -> tuple[str, str]:
    """Whether a training run is finished, and where it is not, how far it came."""
    last = 0 if curve is None else int(curve.episodes[-1])
    played = int(summary.get("played", last))
    if curve is None:
        return "begun", f"has begun and has no evaluation yet ({played:,} of {asked:,} episodes)"
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
    uses = [str(use) for use in settings.get("use") or []]
    signal = str(settings.get("signal", "cai"))
    if signal != "cai":
        uses = [signal if use == "bonus" else f"{signal} {use}" for use in uses]
    kind = str((settings.get("priority") or {}).get("kind", "uniform"))
    uses += [kind.upper()] if kind != "uniform" else []
    return " + ".join(uses) or "without influence"


def changes(label: str) -> list[str]:
    """The settings of a run that are not the defaults, from its label: `seeds=10`, `worlds=2`."""
    return CHANGE.split(label)[1:]


def weaknesses(claim: Claim, arms: Iterable[ReadArm]) -> list[str]:
    """What a reader must know of the arms that a verdict rests on."""
    chosen = [arm for arm in arms if arm.label in (claim.arm, claim.than) and arm.curve]
    few = [f"{arm.label} has only {count_words(len(arm.seeds), 'seed')}" for arm in chosen if len(arm.seeds) < ENOUGH]
    unlike = []
    spacing = {arm.label: int(np.median(np.diff(arm.curve.episodes, prepend=0))) for arm in chosen if arm.curve}
    if claim.kind == "faster" and len(set(spacing.values())) > 1:
        told = ", ".join(f"{label} every {count_words(step, 'episode')}" for label, step in spacing.items())
        unlike = [f"the rarer an arm's evaluations, the later they find a level ({told})"]
    return few + [f"{arm.label} {arm.words}" for arm in chosen if arm.words] + unlike


def count_words(count: int, noun: str) -> str:
    """Such as "1 seed" or "3 seeds"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
