"""Read a study: its arms with their curves, what is missing, and the verdicts on its claims."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from butfor.analysis.claims import ENOUGH, Claim, Curve, Verdict, decide_together, judge
from butfor.analysis.detection_runs import detector_rows, side_rows
from butfor.analysis.table_claims import TABLE_RULES, judge_tables
from butfor.runs.printing import count_words
from butfor.runs.reading import Array, expected_form, finite_array, read_curves, read_object, read_optional, read_run

PHASES = ("touched", "lifted", "success")  # of a training episode, in this order
VALUES = ("value_predicted", "value_reached")  # of the first states of an evaluation
RELAY = ("relay_acts", "relay_reaches")
TRAINED = (  # what training reports beside an evaluation; runs of before have less
    "score", "critic_loss", "actor_loss", "model_loss", *(f"training_{name}" for name in PHASES),
    *(f"first_{name}" for name in PHASES), *VALUES, *RELAY,
)  # fmt: skip
BEHAVIOUR = ("moved", "lifted", "held")  # what else an evaluation of a robot environment may show
SMALL = "These runs have the small size, which is too short to learn anything; they decide no claim."
CHANGE = re.compile(r"-(?=[a-z_][\w.]*=)")  # before each setting of a run's label


@dataclass(frozen=True)
class ReadArm:
    """One arm of a study and what its run folder contains so far."""

    label: str
    folder: Path
    kind: str
    state: str
    """not run, begun, unfinished, finished or broken"""
    words: str
    """how far it is, or what is wrong; empty where it is finished"""
    config: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    curve: Curve | None = None
    seeds: tuple[int, ...] = ()
    behaviour: dict[str, Curve] = field(default_factory=dict)
    """what the agent does to the object, as shares of an episode's steps"""
    trained: dict[str, Array] = field(default_factory=dict)
    """losses, scores, phases of training episodes, values and the relay [S, E] at the evaluations of the curve"""
    asked: tuple[int, int] = (0, 0)
    """the number of seeds, and of episodes of each, that the study asks for"""


@dataclass(frozen=True)
class ReadStudy:
    """An experiment of the paper, as its record and its run folders show it."""

    name: str
    title: str
    about: str
    size: str
    command: str
    arms: list[ReadArm]
    verdicts: list[tuple[Claim, Verdict, list[str]]]
    """each comparison with its verdict, decided together with the others of the study, and what weakens it"""


def study_names(root: Path) -> list[str]:
    """Return the names of the studies in a folder."""
    return sorted(path.stem for path in (Path(root) / "studies").glob("*.json"))


def read_study(root: Path, name: str) -> ReadStudy:
    """Return ROOT/studies/NAME.json with the runs that it names; a run that cannot be read is a broken arm.

    Raises:
        FileNotFoundError: there is no such study.
        ValueError: its record cannot be read.
    """
    root = Path(root)
    if not re.fullmatch(r"[\w.+-]+", name) or name.startswith("."):
        raise ValueError(f"{name!r} is not a study's name; {root / 'studies'} has {', '.join(study_names(root))}.")
    path = root / "studies" / f"{name}.json"
    held = read_object(path)
    with expected_form(path):
        arms = [read_arm(root, entry) for entry in held["arms"]]
        if len({arm.label for arm in arms}) < len(arms) or not arms:
            raise ValueError("expected at least one arm, each with a label of its own")
        claims = [Claim(**claim) for claim in held.get("claims") or []]
        title, about, size, command = (str(held.get(key) or "") for key in ("title", "about", "size", "command"))
    found = [verdict_on(claim, arms) for claim in claims]
    if size == "small":
        found = [replace(one, verdict="undecided", found=None) for one in found]
    verdicts = [(claim, one, weaknesses(claim, arms)) for claim, one in zip(claims, found, strict=True)]
    return decide_studies([ReadStudy(name, title or name, about, size, command, arms, verdicts)])[0][0]


def decide_studies(studies: Sequence[ReadStudy]) -> tuple[list[ReadStudy], float]:
    """Return the studies with their claims decided together, and the largest p-value that decides a claim."""
    claims = [comparisons_by_claim(study) for study in studies]
    decided, size = decide_together([[one for _, one in found] for words in claims for found in words.values()])
    rest = iter(decided)
    result = []
    for study, found in zip(studies, claims, strict=True):
        left = {words: iter(next(rest)) for words in found}
        verdicts = [(claim, next(left[claim.words]), weak) for claim, _, weak in study.verdicts]
        result.append(replace(study, verdicts=verdicts))
    return result, size


def comparisons_by_claim(study: ReadStudy) -> dict[str, list[tuple[Claim, Verdict]]]:
    """Return the comparisons of each claim of a study by its words: those with the same words make up one claim."""
    found: dict[str, list[tuple[Claim, Verdict]]] = {}
    for claim, verdict, _ in study.verdicts:
        found.setdefault(claim.words, []).append((claim, verdict))
    return found


def verdict_on(claim: Claim, arms: Sequence[ReadArm]) -> Verdict:
    """Return the verdict on a claim, from the arms' curves or from the tables of a run."""
    if claim.kind in TABLE_RULES:
        try:
            return judge_tables(claim, [table for arm in arms if arm.label == claim.arm for table in run_tables(arm)])
        except ValueError as error:  # the other verdicts must still be shown
            return Verdict("undecided", f"{claim.arm}: {error}", measured=False)
    measured = {
        arm.label: arm.curve if claim.measure == "success" else arm.behaviour.get(claim.measure) for arm in arms
    }
    return judge(claim, {label: curve for label, curve in measured.items() if curve})


def run_tables(arm: ReadArm) -> list[dict[str, Any]]:
    """Return the tables of a detection run, or scores over training: what claims that are not on curves rest on."""
    if arm.kind == "training":
        heat_map = read_optional(arm.folder / "heatmap.npz")
        shares = {name: curve.success for name, curve in arm.behaviour.items()}
        both = [{"training": shares | {"score": arm.trained["score"]}}] if "score" in arm.trained else []
        return [*both, *([{"heat_map": heat_map}] if heat_map else [])]
    with expected_form(arm.folder / "studies.json"):
        sides = side_rows(arm.summary, read_optional(arm.folder / "studies.json") or {})
    return [arm.summary | {"sides": sides}, *arm.summary.get("others", [])] if arm.summary else []


def read_arm(root: Path, entry: dict[str, Any]) -> ReadArm:
    """Return an arm of a study's record; where its run folder cannot be read, the other arms are still shown."""
    name = entry["folder"]
    if not isinstance(name, str) or not name or Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError(f"{name!r} is not a folder below {root}")
    label = str(entry["label"])
    kind = str(entry["kind"])
    asked = (int(entry.get("seeds") or 0), int(entry.get("episodes") or 0))
    absent = ReadArm(label, root / name, kind, "not run", "has not been run", asked=asked)
    if not (absent.folder / "config.json").is_file():
        return absent
    try:
        arm = read_run_folder(absent.folder, label)
        if arm.kind != kind:
            raise ValueError(f"{arm.folder} is a run of kind {arm.kind!r}; expected {kind!r}.")
        return replace(arm, asked=asked)
    except (OSError, ValueError) as error:
        return replace(absent, state="broken", words=f"cannot be read: {error}")


def read_run_folder(folder: Path, label: str = "") -> ReadArm:
    """Return a training or detection run as an arm.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: it is not a run folder, or a file in it cannot be read.
    """
    config = read_run(folder)
    versions = read_optional(folder / "versions.json") or {}
    summary = read_optional(folder / "summary.json") or {}
    with expected_form(folder / "config.json"):
        label = label or (use_of(config["config"]) if config["kind"] == "training" else folder.name)
    words = "has begun and has no results yet"
    arm = ReadArm(label, folder, config["kind"], "begun", words, config, versions, summary)
    if arm.kind == "training":
        return _read_curves_of(arm)
    if not summary:
        return arm
    with expected_form(folder / "summary.json"):  # what the pages rely on
        detector_rows(summary["detectors"], {})
        int(summary["states"])
        str(summary["env"])
    return replace(arm, state="finished", words="")


def name_runs(arms: Sequence[ReadArm]) -> list[ReadArm]:
    """Return runs with labels that tell them apart: how each uses influence if that differs, else their folders."""
    labels = [arm.label for arm in arms]
    if len(set(labels)) == len(labels):
        return list(arms)
    names = [arm.folder.resolve().name for arm in arms]
    if len(set(names)) < len(names):
        names = [str(arm.folder) for arm in arms]
    if len(set(names)) < len(names):
        raise ValueError(f"A run is given twice: {', '.join(names)}. Give each run once.")
    return [replace(arm, label=name) for arm, name in zip(arms, names, strict=True)]


def read_runs(folders: Sequence[Path]) -> list[ReadArm]:
    """Return training runs to compare, with labels that tell them apart.

    Raises:
        ValueError: a run is not a training run, or is given twice.
    """
    arms = [read_run_folder(Path(folder)) for folder in folders]
    for arm in arms:
        if arm.kind != "training":
            raise ValueError(f"{arm.folder} is a run of kind {arm.kind!r}; only training runs can be compared.")
    return name_runs(arms)


def differing_settings(arms: Sequence[ReadArm]) -> list[tuple[str, list[str]]]:
    """Return the settings with different values, and the value in each run; "–" in a run of before the setting."""
    found = [dict(_flat(arm.config["config"])) for arm in arms]
    names = dict.fromkeys(name for settings in found for name in settings)
    rows = [(name, [settings.get(name, "–") for settings in found]) for name in names]
    return [(name, values) for name, values in rows if len(set(values) - {"–"}) > 1]


def _flat(settings: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    """Settings by their names with dots, as text."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            text = ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
            yield prefix + name, text


def _read_curves_of(arm: ReadArm) -> ReadArm:
    """Return a training run with its curves [S, E] of success and behaviour, and how far it is."""
    with expected_form(arm.folder / "config.json"):
        asked = int(arm.config["config"]["episodes"])
    episodes, seeds, values = read_curves(arm.folder, ("success", *BEHAVIOUR, *TRAINED))
    trained = {name: values.pop(name) for name in TRAINED if name in values}
    with expected_form(arm.folder / "metrics.jsonl"):
        if seeds and "success" not in values:
            raise KeyError("success")
        for name, shares in values.items():
            if shares.min() < 0 or shares.max() > 1:
                raise ValueError(f"{name} must lie in [0, 1]")
    behaviour = {name: Curve(episodes, shares, asked) for name, shares in values.items()}
    curve = behaviour.pop("success", None)
    last = int(episodes[-1]) if curve else 0
    with expected_form(arm.folder / "summary.json"):
        played = int(arm.summary.get("played", last))
    state = "unfinished"
    words = f"was played for {played:,} of {asked:,} episodes; its last evaluation is at {last:,}"
    if curve is None:
        state = "begun"
        words = f"has begun and has no evaluation yet ({played:,} of {asked:,} episodes)"
    elif arm.summary.get("finished") is True and played >= asked:
        state = "finished"
        words = ""
    return replace(arm, state=state, words=words, curve=curve, seeds=seeds, behaviour=behaviour, trained=trained)


def read_heat_map(folder: Path) -> tuple[Array, dict[str, tuple[Array, str]]]:
    """Return a run's heatmap.npz: episodes [x], and by title the values [T, x] with their unit; empty where absent."""
    path = folder / "heatmap.npz"
    arrays = read_optional(path)
    if not arrays:
        return np.empty(0), {}
    with expected_form(path):
        x = finite_array(arrays["episodes"], None)
        drawn = {"CAI": (finite_array(arrays["score"], None, len(x)), "nats")}
        if "label" in arrays:
            drawn["states with influence"] = (100 * finite_array(arrays["label"], None, len(x)), "%")
    return x, drawn


def use_of(settings: dict[str, Any]) -> str:
    """Return how a training run uses influence or another signal, in a few words."""
    uses = [str(use) for use in settings.get("use") or []]
    signal = str(settings.get("signal", "cai"))
    if signal != "cai":
        uses = [signal if use == "bonus" else f"{signal} {use}" for use in uses]
    kind = str((settings.get("priority") or {}).get("kind", "uniform"))
    uses += [kind.upper()] if kind != "uniform" else []
    return " + ".join(uses) or "without influence"


def changes(label: str) -> list[str]:
    """Return the settings of a run that are not the defaults, from its label: `seeds=10`, `num_envs=2`."""
    return CHANGE.split(label)[1:]


def weaknesses(claim: Claim, arms: Iterable[ReadArm]) -> list[str]:
    """Return what weakens a verdict: missing seeds, unfinished arms, evaluations at different spacing."""
    chosen = [arm for arm in arms if arm.label in (*claim.own, *claim.others) and arm.curve]
    few = [
        f"{arm.label} has only {count_words(len(arm.seeds), 'seed')}"
        + (f" of {arm.asked[0]}" if len(arm.seeds) < arm.asked[0] else "")
        for arm in chosen
        if len(arm.seeds) < max(ENOUGH, arm.asked[0])
    ]
    unlike = []
    spacing = {arm.label: int(np.median(np.diff(arm.curve.episodes, prepend=0))) for arm in chosen if arm.curve}
    if claim.kind == "faster" and len(set(spacing.values())) > 1:
        spaced = ", ".join(f"{label} every {count_words(step, 'episode')}" for label, step in spacing.items())
        unlike = [f"the rarer an arm's evaluations, the later they find a level ({spaced})"]
    return few + [f"{arm.label} {arm.words}" for arm in chosen if arm.words] + unlike
