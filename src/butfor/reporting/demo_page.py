"""The page of `butfor demo`: a robot and a cube, told from what happened to how it was measured."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from butfor.reporting import charts
from butfor.reporting.page import render_page
from butfor.reporting.player import embed
from butfor.reporting.plotly_renderer import draw

if TYPE_CHECKING:
    from butfor.scenes import Scene

AXES = ("x of the cube (cm)", "y of the cube (cm)")


def render_demo(summary: Mapping[str, Any], shown: Mapping[str, Any], scene: "Scene | None") -> str:
    """The page as text.

    Args:
        summary: the numbers of the demo's summary.json.
        shown: `fans`, the outcomes of other actions in two states, and `map`, scores around the cube.
        scene: what the player shows; None: nothing.
    """
    figures: dict[str, Any] = {}
    for place, fan in enumerate(shown["fans"]):
        hover = [f"action {np.round(action, 2).tolist()}" for action in fan["actions"]]
        now, outcomes, deviation, ends = (fan[key] for key in ("now", "outcomes", "deviation", "ends"))
        figures[f"fan-{place}"] = draw(charts.outcomes_chart(now, outcomes, deviation, ends, AXES, hover))
    figures["map"] = draw(charts.map_chart(shown["map"], "cai", "CAI", "nats"))
    diagnosis = []
    for name, found in summary["diagnosis"].items():
        levels, realised = (np.asarray(found["reliability"][key]) for key in ("levels", "realised"))
        gain = [np.asarray(found["gain_by_score"][key]) for key in ("score", "gain", "error")]
        figures["reliability"] = draw(charts.reliability_chart([("", levels, realised)]))
        figures["gain"] = draw(charts.gain_chart(*gain))
        diagnosis.append(found | {"name": name, "reliability": "reliability", "gain": "gain"})
    best = {key: max(row[key] for row in summary["detectors"]) for key in ("auc", "ap", "f1")}
    return render_page(
        "demo.html.j2",
        {"figures": figures},
        summary=summary,
        fans=shown["fans"],
        best=best,
        diagnosis=diagnosis,
        player=None if scene is None else embed(scene),
    )
