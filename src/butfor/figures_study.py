"""Figures of studies for papers, as SVG and PNG, in the look of `figures.py`."""

import math
from pathlib import Path
from typing import Any

from butfor.claims import ENOUGH
from butfor.figures import COLUMN, PAGE, SYMBOLS, add_legend, panels, save_figures, short, style_of
from butfor.report_arms import Arm, Study, read_study, shown_curves
from butfor.report_study import arm_look
from butfor.statistics import reach_summary

LEVEL = 0.6  # of success, at which the paper compares its arms


def write_study_figures(root: Path, name: str) -> list[Path]:
    """Write ROOT/reports/figures/NAME-*.svg and *.png of what has been run of a study, and return their paths."""
    study = read_study(Path(root), name)
    return save_figures(Path(root) / "reports" / "figures", lambda: draw_study(study))


def draw_study(study: Study) -> dict[str, Any]:
    """Name -> figure: the curves and the episodes to reach 60 %; nothing where no arm has a curve."""
    looks = {arm.label: arm_look(place, len(study.arms)) for place, arm in enumerate(study.arms)}
    measured = [arm for arm in study.arms if arm.curve]
    if not measured:
        return {}
    figures = {f"{study.name}-curves": curves_figure(measured, looks)}
    return figures | {f"{study.name}-reach": reach_figure(measured, looks)}


def curves_figure(arms: list[Arm], looks: dict[str, Any]) -> Any:
    """Success over episodes: mean with its 95 % interval, or the range of few seeds; a cross where it was cut off."""
    figure, (axes,) = panels(1, COLUMN, 2.5 + 0.17 * len(arms))
    for arm in arms:
        assert arm.curve is not None
        shown, look, x = shown_curves(arm.curve), looks[arm.label], arm.curve.episodes
        if len(arm.seeds) > 1:
            axes.fill_between(x, shown["mean_low"], shown["mean_high"], color=look["colour"], alpha=0.18, linewidth=0)
        seeds = f", {len(arm.seeds)} seed{'s' if len(arm.seeds) != 1 else ''}"
        seeds += ", range" if 1 < len(arm.seeds) < ENOUGH else ""
        axes.plot(x, shown["mean"], label=short(arm.label, 36) + seeds, **style_of(look, marker=False))
        if arm.state != "finished":
            axes.plot(x[-1:], shown["mean"][-1:], "X", color=look["colour"], markersize=6, clip_on=False)
    axes.set(xlabel="episodes of each seed", ylabel="success", xlim=(0, None), ylim=(0, None))
    axes.set_ylim(0, 1.02 if axes.get_ylim()[1] > 0.5 else None)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", nbins=6)
    add_legend(figure, axes, 1)
    return figure


def reach_figure(arms: list[Arm], looks: dict[str, Any]) -> Any:
    """Episodes to 60 % success: median and 95 % interval; an arrow where the median seed was not there at the end."""
    figure, (axes,) = panels(1, PAGE, 0.7 + 0.24 * len(arms))
    for place, arm in enumerate(reversed(arms)):
        assert arm.curve is not None
        reach, look = reach_summary(arm.curve.episodes, arm.curve.success, LEVEL), looks[arm.label]
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
    axes.set(xlabel=f"episodes to {100 * LEVEL:g} % success, median seed", ylim=(-0.6, len(arms) - 0.4))
    axes.set_xlim(0, 1.12 * axes.get_xlim()[1])
    axes.xaxis.set_major_formatter("{x:,.0f}")
    return figure
