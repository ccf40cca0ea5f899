"""The numbers of a study's arms as cells of tables: each a value, and its spread in words."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from butfor.analysis.arms import PHASES, ReadArm
from butfor.analysis.claims import ENOUGH, Curve, overlap
from butfor.analysis.rank_tests import Float
from butfor.analysis.statistics import (
    area_under_curve,
    curve_summary,
    probability_of_improvement,
    reach_summary,
    speedup,
)

Row = dict[str, Any]
LEVELS = (0.3, 0.6, 0.9, 0.95)
COMPARED = 0.6  # the level of success at which the paper compares speeds


def shown_curves(curve: Curve) -> dict[str, Float]:
    """Return the lines and bands of a curve: 95 % intervals, or the range where there are too few seeds for them."""
    found = curve_summary(curve.episodes, curve.success)
    if len(curve.success) < ENOUGH:
        low, high = curve.success.min(0), curve.success.max(0)
        found |= {"mean_low": low, "mean_high": high, "iqm_low": low, "iqm_high": high}
    return found


def shared_range(arms: Sequence[ReadArm]) -> tuple[int, int] | None:
    """Return the episodes that all finished arms cover, or else all measured ones: areas are compared there."""
    measured = [arm for arm in arms if arm.curve]
    finished = [arm for arm in measured if arm.state == "finished"]
    grids = [arm.curve.episodes for arm in finished or measured if arm.curve]
    first = max((int(grid[0]) for grid in grids), default=0)
    last = min((int(grid[-1]) for grid in grids), default=0)
    return (first, last) if first < last else None


def areas(curve: Curve, ends: tuple[int, int] | None) -> Float | None:
    """Return the area under each seed's curve [S] over a range; None where the curve does not cover it."""
    if ends is None or curve.episodes[0] > ends[0] or curve.episodes[-1] < ends[1]:
        return None
    return area_under_curve(curve.episodes, curve.success, ends)


def arm_row(arm: ReadArm, baseline: ReadArm | None, ends: tuple[int, int] | None) -> Row:
    """Return an arm's row of the table."""
    curve = arm.curve
    assert curve is not None
    seeds = len(arm.seeds)
    last = int(curve.episodes[-1])
    summary = {name: values[-1] for name, values in shown_curves(curve).items()}
    end = cell(summary["mean"], summary["mean_low"], summary["mean_high"], seeds) | {"at": f"at {last:,}"}
    if seeds > 1:
        middle = cell(summary["iqm"], summary["iqm_low"], summary["iqm_high"], seeds)
        end["value"] += f" ± {summary['std']:.2f}"
        end["at"] += f"; IQM {middle['value']} {middle['spread']}"
    row: Row = {
        "label": arm.label,
        "seeds": seeds,
        "few": seeds < ENOUGH,
        "note": "" if arm.state == "finished" else arm.state,
        "last": f"{last:,}",
        "end": end,
        "reach": [reach_cell(curve, level) for level in LEVELS],
        "area": {"value": "–", "spread": ""},
    }
    area = areas(curve, ends)
    if area is not None:
        found = shown_curves(Curve(np.zeros(1, int), area[:, None], 0))  # the interval of a mean over seeds
        row["area"] = cell(area.mean(), found["mean_low"][0], found["mean_high"][0], seeds)
    if arm is baseline or baseline is None or baseline.curve is None:
        absent = {"value": "baseline" if arm is baseline else "–", "spread": ""}
        return row | {"times": absent, "improvement": absent}
    times = times_cell(curve, baseline.curve)
    return row | {"times": times, "improvement": improvement_cell(curve, baseline.curve)}


def phase_row(arm: ReadArm) -> Row | None:
    """Return when training first reached each phase, and how far it is: None for a run that did not record it.

    A phase has the episode of the median seed, as bound where too few seeds have it, and the share of the newest
    training episodes. Values are of the first states of the last evaluation: the critic's minus the reached one.
    """
    if arm.curve is None or "first_success" not in arm.trained:
        return None
    limit = int(arm.curve.episodes[-1])
    row: Row = {"label": arm.label, "phases": {}, "value": None, "relay": None}
    for name in PHASES:
        if not {f"first_{name}", f"training_{name}"} <= arm.trained.keys():
            continue
        last = arm.trained[f"first_{name}"][:, -1]  # [S]; 0: none yet
        first = float(np.median(np.where(last > 0, last, np.inf)))
        share = float(arm.trained[f"training_{name}"][:, -1].mean())
        row["phases"][name] = {"first": f"{first:,.0f}" if math.isfinite(first) else f"> {limit:,}", "share": share}
    columns = {name: float(values[:, -1].mean()) for name, values in arm.trained.items()}
    if {"value_predicted", "value_reached"} <= columns.keys():
        row["value"] = {name: columns[f"value_{name}"] for name in ("predicted", "reached")}
    if {"relay_acts", "relay_reaches"} <= columns.keys():
        row["relay"] = {name: columns[f"relay_{name}"] for name in ("acts", "reaches")}
    return row


def cell(value: float, low: float, high: float, seeds: int) -> Row:
    """Return a share with its interval, or with its range where there are too few seeds."""
    spread = f"[{low:.2f}, {high:.2f}]" if seeds >= ENOUGH else f"{low:.2f} to {high:.2f}"
    return {"value": f"{value:.2f}", "spread": spread if seeds > 1 else "one seed"}


def reach_cell(curve: Curve, level: float) -> Row:
    """Return the episodes that the median seed needs to reach a level."""
    reach = reach_summary(curve.episodes, curve.success, level)
    seeds = len(reach.each)

    def text(episodes: float) -> str:
        return f"{episodes:,.0f}" if math.isfinite(episodes) else f"> {reach.limit:,}"

    found: Row = {"value": text(math.inf if reach.is_bound else reach.value), "spread": ""}
    if not reach.is_bound:
        few = "one seed" if seeds == 1 else f"{text(min(reach.each))} to {text(max(reach.each))}"
        found["spread"] = f"[{text(reach.low)}, {text(reach.high)}]" if seeds > ENOUGH else few
    if reach.censored:
        found["at"] = f"{reach.censored} of {seeds} never"
    return found


def times_cell(curve: Curve, baseline: Curve) -> Row:
    """Return how many times fewer episodes than the baseline an arm needs to reach the compared level."""
    if min(len(curve.success), len(baseline.success)) < ENOUGH:
        return {"value": "–", "spread": "too few seeds"}
    ours, theirs = (reach_summary(one.episodes, one.success, COMPARED) for one in (curve, baseline))
    ratio = speedup(theirs, ours) if min(ours.each) > 0 else None
    if ratio is None or ratio.value is None:
        return {"value": "–", "spread": "" if ratio is None else "not reached"}
    spread = ratio.interval().replace("unbounded]", "∞)")
    return {"value": f"{'> ' if ratio.is_lower_bound else ''}{ratio.value:.1f}", "spread": spread}


def improvement_cell(curve: Curve, baseline: Curve) -> Row:
    """Return the probability that a seed of this arm has a larger area than one of the baseline."""
    ends = overlap(curve, baseline)
    if ends is None:
        is_one = np.isin(curve.episodes, baseline.episodes).any()  # an area needs two
        return {"value": "–", "spread": "one shared episode" if is_one else "no shared episodes"}
    ours, theirs = (area_under_curve(one.episodes, one.success, ends) for one in (curve, baseline))
    chance = probability_of_improvement(ours, theirs)
    few = min(len(ours), len(theirs)) < ENOUGH
    spread = "too few seeds" if few else f"[{chance.low:.2f}, {chance.high:.2f}]"
    return {"value": f"{chance.value:.2f}", "spread": spread, "at": f"up to {ends[1]:,}"}


def duration(seconds: Any) -> str:
    """Return seconds as hours, minutes and seconds."""
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min {rest:02d} s"


def noted(arm: ReadArm, key: str) -> list[str]:
    """Return a value of versions.json in all processes that worked on a run, the first one's first, without repeats."""
    resumed = arm.versions.get("resumed")
    records = [arm.versions, *(resumed if isinstance(resumed, list) else [])]
    return list(dict.fromkeys(str(one[key]) for one in records if isinstance(one, dict) and one.get(key)))


def seconds_of(arm: ReadArm) -> Any:
    """Return how many seconds an arm's run took."""
    held = arm.summary.get("seconds")
    return held.get("total") if isinstance(held, dict) else arm.versions.get("seconds")
