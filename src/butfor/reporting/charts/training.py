"""Charts of training runs: learning curves, episodes to a level of success, and heat maps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from butfor.analysis.arms import ReadArm
from butfor.analysis.claims import ENOUGH, Curve
from butfor.analysis.rows import COMPARED, shown_curves
from butfor.analysis.statistics import reach_summary
from butfor.reporting.charts.chart import Array, Axis, Chart, HeatMap, Row, Series, drawn_places, range_of, shorten


def learning_chart(
    given: Sequence[tuple[ReadArm, Curve]],
    looks: Mapping[str, Row],
    measure: str,
    choices: Sequence[str] = ("mean",),
    title: str = "",
) -> Chart:
    """Curves over episodes; `choices` of mean, iqm and seeds are drawn, of which the mean is visible at first."""
    hover = "<b>%{fullData.name}</b><br>%{x:,} episodes<br>%{y:.2f}"
    interval = " [%{customdata[0]:.2f}, %{customdata[1]:.2f}]<extra></extra>"
    groups = {label: f"arm-{place}" for place, label in enumerate(looks)}
    series: list[Series] = []
    tops = [0.0]
    for arm, measured in given:
        places = drawn_places(len(measured.episodes))
        curve = replace(measured, episodes=measured.episodes[places], success=measured.success[:, places])
        shown = shown_curves(curve)
        seeds = len(curve.success)
        name = f"{shorten(arm.label, 36)}, {seeds} seed{'' if seeds == 1 else 's'}"
        name += ", range" if 1 < seeds < ENOUGH else ""
        common: Row = {**looks[arm.label], "group": groups[arm.label]}
        for choice in [choice for choice in choices if choice != "seeds"]:
            edges = np.stack([shown[f"{choice}_low"], shown[f"{choice}_high"]])  # [2, E]
            tops.append(float(edges[1].max()))
            series.append(Series(
                curve.episodes, shown[choice], name, size=6, band=edges if seeds > 1 else None, extra=edges.T,
                hover=hover + interval, choice=choice, visible=choice == "mean", cut_off=arm.state != "finished",
                **common,
            ))  # fmt: skip
        for seed, values in zip(arm.seeds, curve.success, strict=True) if "seeds" in choices else ():
            tops.append(float(values.max()))
            series.append(Series(
                curve.episodes, values, name, width=1.2, hover=f"{hover}, seed {seed}<extra></extra>", choice="seeds",
                visible=False, **common | {"symbol": "none"},
            ))  # fmt: skip
    top = max(tops)
    end = max(int(curve.episodes[-1]) for _, curve in given)
    y_range = (-0.02, 1.03) if top > 0.5 else (-0.02 * top, 1.08 * top or 1.0)
    x = Axis("episodes of each seed", (0, 1.02 * end), thousands=True)
    return Chart(series, x, Axis(measure, y_range), title)


def trained_chart(given: Mapping[str, tuple[Array, Array]], looks: Mapping[str, Row], unit: str = "") -> Chart:
    """What training reports between evaluations: episodes [E] and values [S, E] by label, mean and range over seeds."""
    hover = "<b>%{fullData.name}</b><br>%{x:,} episodes<br>%{y:.3g}<extra></extra>"
    groups = {label: f"arm-{place}" for place, label in enumerate(looks)}
    series = []
    for label, (all_episodes, all_values) in given.items():
        places = drawn_places(len(all_episodes))
        values = all_values[:, places]
        series.append(Series(
            all_episodes[places], values.mean(0), label, band=range_of(values), hover=hover, group=groups[label],
            **looks[label] | {"symbol": "none"},
        ))  # fmt: skip
    return Chart(series, Axis("episodes of each seed", thousands=True), Axis(unit))


def reach_chart(given: Sequence[tuple[ReadArm, Curve]], looks: Mapping[str, Row]) -> Chart:
    """Episodes to reach 60 % success: median and 95 % interval; an arrow if the median seed did not reach it."""
    series = []
    notes = []
    for height, (arm, curve) in enumerate(reversed(given)):
        reach = reach_summary(curve.episodes, curve.success, COMPARED)
        colour = looks[arm.label]["colour"]
        low, high = (min(reach.each), max(reach.each)) if len(reach.each) < ENOUGH else (reach.low, reach.high)
        ends = [min(low, reach.limit), high if math.isfinite(high) else reach.limit]
        series.append(Series(ends, [height, height], colour=colour, width=4.8, opacity=0.45))
        symbol = "triangle-right" if reach.is_bound else looks[arm.label]["symbol"]
        series.append(Series([reach.value], [height], colour=colour, dash="none", symbol=symbol, size=12))
        text = f"  > {reach.limit:,}" if reach.is_bound else f"  {reach.value:,.0f}"
        notes.append((max(ends[1], reach.value), height, text))
    end = 1.15 * max(x for x, _, _ in notes)  # with space for the notes
    ticks = {height: shorten(arm.label) for height, (arm, _) in enumerate(reversed(given))}
    x = Axis(f"episodes to {100 * COMPARED:g} % success, median seed", (0, end), thousands=True)
    return Chart(series, x, Axis(range=(-0.6, len(given) - 0.4), ticks=ticks, grid=False), notes=notes)


def heat_chart(episodes: Array, values: Array, name: str, unit: str) -> Chart:
    """A quantity [T, x] over the steps of an episode and groups of episodes."""
    hover = f"%{{x:,}} episodes, step %{{y}}<br>%{{z:.3g}} {unit}<extra></extra>"
    heat = HeatMap(episodes, np.arange(len(values)), values, name, unit, hover)
    return Chart(x=Axis("episodes", thousands=True, grid=False), y=Axis("step", grid=False), heat_map=heat)
