"""Figures of studies and training runs for papers, as SVG and PNG, in the look of `figures.py`."""

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from butfor.analysis.arms import BEHAVIOUR, ReadArm, read_heat_map, read_run_folder, read_study
from butfor.analysis.claims import ENOUGH, Curve
from butfor.analysis.rows import COMPARED, shown_curves
from butfor.analysis.statistics import reach_summary
from butfor.reporting.charts import Array
from butfor.reporting.figures import (
    COLUMN,
    PAGE,
    SYMBOLS,
    add_legend,
    draw_figures,
    draw_parts,
    panels,
    save_figures,
    short,
    style_of,
)
from butfor.reporting.report import read_run
from butfor.reporting.study_page import arm_look


def write_study_figures(root: Path, name: str, tell: Callable[[str], object] = lambda sentence: None) -> list[Path]:
    """Write ROOT/reports/figures/NAME-*.svg and *.png of what has been run of a study, and return their paths.

    `tell` is given a sentence for each detection run of which not all can be drawn.
    """
    arms = read_study(Path(root), name).arms

    def draw() -> dict[str, Any]:
        return {f"{name}-{kind}": one for kind, one in (draw_arms(arms) | draw_detections(arms, tell)).items()}

    return save_figures(Path(root) / "reports" / "figures", draw)


def draw_detections(arms: list[ReadArm], tell: Callable[[str], object]) -> dict[str, Any]:
    """ARM-KIND -> figure, of every detection run what `butfor report RUN --figures` draws of it."""
    figures: dict[str, Any] = {}
    for arm in (arm for arm in arms if arm.kind == "detection"):
        if not arm.summary:
            tell(f"nothing of {arm.label}, which {arm.words}")
            continue
        try:
            drawn = draw_figures(read_run(arm.folder))
        except (OSError, ValueError) as error:  # without every state's score there may still be studies and pictures
            try:
                drawn, lacking = draw_parts(arm.folder), f"{arm.label} without curves of its detectors: {error}"
            except (OSError, ValueError) as other:
                drawn, lacking = {}, f"nothing of {arm.label}: {other}"
            tell(lacking)
        figures |= {f"{file_name(arm.label)}-{kind}": figure for kind, figure in drawn.items()}
    return figures


def file_name(label: str) -> str:
    """An arm's label as a part of a file's name."""
    return re.sub(r"[^\w.]+", "-", label)[:60].strip("-.") or "arm"


def write_training_figures(run: Path, out: Path | None = None) -> list[Path]:
    """Write *.svg and *.png of a single training run to `out` (default: run/figures), and return their paths."""
    arm = read_run_folder(Path(run))
    if arm.curve is None:
        raise ValueError(f"{run} {arm.words}: there is nothing to draw.")
    return save_figures(out or Path(run) / "figures", lambda: draw_arms([arm]))


def draw_arms(arms: list[ReadArm]) -> dict[str, Any]:
    """Kind -> figure: curves of success and of behaviour, episodes to reach 60 %, heat maps; what there is."""
    looks = {arm.label: arm_look(place, len(arms)) for place, arm in enumerate(arms)}
    measured = [arm for arm in arms if arm.curve]
    if not measured:
        return {}
    figures = {"curves": curves_figure(measured, looks), "reach": reach_figure(measured, looks)}
    behaving = [arm for arm in measured if arm.behaviour]
    if behaving:
        figures["behaviour"] = behaviour_figure(behaving, looks)
    for place, arm in enumerate(arms):
        episodes, drawn = read_heat_map(arm.folder)
        if drawn:
            figures[f"heat-map{f'-{place + 1}' if len(arms) > 1 else ''}"] = heat_figure(episodes, drawn)
    return figures


def curves_figure(arms: list[ReadArm], looks: dict[str, Any]) -> Any:
    """Success over episodes: mean with its 95 % interval, or the range of few seeds; a cross where it was cut off."""
    figure, (axes,) = panels(1, COLUMN, 2.5 + 0.17 * len(arms))
    draw_curves(axes, [(arm, arm.curve) for arm in arms if arm.curve], looks)
    axes.set(ylabel="success", ylim=(0, None))
    axes.set_ylim(0, 1.02 if axes.get_ylim()[1] > 0.5 else None)
    axes.locator_params(axis="x", nbins=6)
    add_legend(figure, axes, 1)
    return figure


def behaviour_figure(arms: list[ReadArm], looks: dict[str, Any]) -> Any:
    """The shares of steps in which the object is moved, lifted and held, over episodes."""
    names = [name for name in BEHAVIOUR if any(name in arm.behaviour for arm in arms)]
    figure, every = panels(len(names), PAGE, 2.2 + 0.17 * len(arms), sharey=True)
    for axes, name in zip(every, names, strict=True):
        draw_curves(axes, [(arm, arm.behaviour[name]) for arm in arms if name in arm.behaviour], looks)
        axes.set_title(name)
        axes.locator_params(axis="x", nbins=4)
    every[0].set_ylim(0, 1.02)  # of all
    every[0].set_ylabel("share of an episode's steps")
    add_legend(figure, every[0], 1)
    return figure


def draw_curves(axes: Any, given: list[tuple[ReadArm, Curve]], looks: dict[str, Any]) -> None:
    """A line and a band for each arm, over episodes."""
    for arm, curve in given:
        shown, look, x = shown_curves(curve), looks[arm.label], curve.episodes
        if len(arm.seeds) > 1:
            axes.fill_between(x, shown["mean_low"], shown["mean_high"], color=look["colour"], alpha=0.18, linewidth=0)
        seeds = f", {len(arm.seeds)} seed{'s' if len(arm.seeds) != 1 else ''}"
        seeds += ", range" if 1 < len(arm.seeds) < ENOUGH else ""
        axes.plot(x, shown["mean"], label=short(arm.label, 36) + seeds, **style_of(look, marker=False))
        if arm.state != "finished":
            axes.plot(x[-1:], shown["mean"][-1:], "X", color=look["colour"], markersize=6, clip_on=False)
    axes.set(xlabel="episodes of each seed", xlim=(0, None))
    axes.xaxis.set_major_formatter("{x:,.0f}")


def heat_figure(episodes: Array, drawn: Mapping[str, tuple[Array, str]]) -> Any:
    """What `read_heat_map` gives, over groups of episodes, whose means are given, and the steps of an episode."""
    middle = (episodes[1:] + episodes[:-1]) / 2
    first, last = (middle[0], middle[-1]) if len(middle) else (2 * episodes[0], 0.0)
    edges = [2 * episodes[0] - first, *middle, 2 * episodes[-1] - last]  # as far from the mean on either side
    figure, every = panels(len(drawn), PAGE if len(drawn) > 1 else COLUMN, 2.4, sharey=True)
    for axes, (title, (values, unit)) in zip(every, drawn.items(), strict=True):
        axes.grid(visible=False)
        mesh = axes.pcolormesh(edges, np.arange(len(values) + 1) - 0.5, values, rasterized=True)
        figure.colorbar(mesh, cax=axes.inset_axes((1.04, 0, 0.05, 1))).outline.set_visible(False)
        axes.set(xlabel="episodes", title=f"{title} ({unit})")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.locator_params(axis="x", nbins=5)
    every[0].set_ylabel("step")
    return figure


def reach_figure(arms: list[ReadArm], looks: dict[str, Any]) -> Any:
    """Episodes to 60 % success: median and 95 % interval; an arrow where the median seed was not there at the end."""
    figure, (axes,) = panels(1, PAGE, 0.7 + 0.24 * len(arms))
    for place, arm in enumerate(reversed(arms)):
        assert arm.curve is not None
        reach, look = reach_summary(arm.curve.episodes, arm.curve.success, COMPARED), looks[arm.label]
        few = reach.seeds < ENOUGH
        low, high = (min(reach.each), max(reach.each)) if few else (reach.low, reach.high)
        ends = [min(low, reach.limit), high if math.isfinite(high) else reach.limit]
        axes.plot(ends, [place, place], color=look["colour"], linewidth=2.4, alpha=0.45, solid_capstyle="butt")
        marker = ">" if reach.is_bound else SYMBOLS[look["symbol"]]
        axes.plot([reach.value], [place], marker, color=look["colour"], markersize=6, clip_on=False, zorder=4)
        words = f"  > {reach.limit:,}" if reach.is_bound else f"  {reach.value:,.0f}"
        axes.annotate(words, (max(ends[1], reach.value), place), va="center", xytext=(4, 0), textcoords="offset points")
    axes.set_yticks(range(len(arms)), [short(arm.label) for arm in reversed(arms)])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.set(xlabel=f"episodes to {100 * COMPARED:g} % success, median seed", ylim=(-0.6, len(arms) - 0.4))
    axes.set_xlim(0, 1.12 * axes.get_xlim()[1])
    axes.xaxis.set_major_formatter("{x:,.0f}")
    return figure
