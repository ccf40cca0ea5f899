"""`butfor.plot`: figures show the numbers of a model whose outcomes are known."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import plotly.graph_objects
import plotly.io
import pytest
from support.command_line import ENVIRONMENT
from support.linear_models import UNIT, linear_model
from support.study_runs import write_training

import butfor
from butfor import Episodes, Influence, plot
from butfor.influence.scoring import ScoreConfig
from butfor.models.tables import Units

OBS = np.random.default_rng(0).normal(size=(60, 3))


def pushed_and_free() -> Influence:
    """The first column is moved by the action (gain 2, noise 0.5), the second is not."""
    units = Units.raw(UNIT, {"pushed": [0], "free": [1]}, [1.0, 1.0], 3)
    return Influence(linear_model([2.0, 0.0], 0.5, 3), units, ScoreConfig())


def some_episodes() -> Episodes:
    flags = np.zeros((2, 20), dtype=bool)
    flags[1, 5:8] = True
    return Episodes(
        observation=OBS[:42].reshape(2, 21, 3).astype(np.float32),
        action=np.zeros((2, 20, 1), np.float32),
        achieved_goal=np.zeros((2, 21, 1), np.float32),
        desired_goal=np.zeros((2, 21, 1), np.float32),
        length=np.array([20, 12]),
        sampled=np.ones((2, 20), dtype=bool),
        contact=flags,
        label={"exact": flags},
    )


def test_plotly_is_imported_by_the_first_figure() -> None:
    code = "import sys, butfor.plot; sys.exit('plotly' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT).returncode == 0
    assert butfor.plot is plot


def test_a_timeline_shows_the_scores_of_every_entity() -> None:
    influence = pushed_and_free()
    figure = plot.timeline(influence, OBS[:10], threshold=0.3)
    assert isinstance(figure, plotly.graph_objects.Figure)
    assert [trace.name for trace in figure.data] == ["pushed", "free"]
    for trace in figure.data:
        assert np.allclose(trace.y, influence.score(OBS[:10])[trace.name], atol=1e-5)
    assert figure.layout.shapes[0].y0 == 0.3
    assert [trace.name for trace in plot.timeline(influence, OBS, entity="free").data] == ["free"]


def test_a_timeline_of_episodes_shows_their_labels_and_ends_with_the_episode() -> None:
    figure = plot.timeline(pushed_and_free(), some_episodes(), number=1, entity="pushed")
    score, contact = figure.data
    assert len(score.y) == 12
    assert list(contact.x) == [5, 6, 7]
    assert [(shape.x0, shape.x1) for shape in figure.layout.shapes] == [(4.5, 7.5)]
    with pytest.raises(ValueError, match="number is 2"):
        plot.timeline(pushed_and_free(), some_episodes(), number=2)


def test_the_fan_of_a_state_is_as_wide_as_the_gain_and_flat_without_influence() -> None:
    influence = pushed_and_free()
    fan = plot.outcomes(influence, OBS[0], entity="pushed", actions=256)
    points = next(trace for trace in fan.data if trace.name == "under another action")
    reached = np.asarray(points.y) - OBS[0, 0]
    assert np.abs(reached).max() == pytest.approx(2.0, abs=0.05)  # gain 2, actions to 1
    noise = next(trace for trace in fan.data if trace.name.startswith("noise"))
    assert noise.y[1] - noise.y[0] == pytest.approx(2 * 0.5, abs=1e-3)
    assert "action" in points.text[0]
    flat = plot.outcomes(influence, OBS[0], entity="free")
    still = next(trace for trace in flat.data if trace.name == "under another action")
    assert np.ptp(still.y) == 0
    assert np.ptp(flat.layout.yaxis.range) == pytest.approx(np.ptp(fan.layout.yaxis.range))  # comparable


def test_wrong_states_columns_and_entities_are_refused() -> None:
    influence = pushed_and_free()
    with pytest.raises(ValueError, match=r"\[60, 3\]"):
        plot.outcomes(influence, OBS, entity="pushed")
    with pytest.raises(ValueError, match=r"\[2\]"):
        plot.outcomes(influence, OBS[0], entity="pushed", columns=[2])
    with pytest.raises(ValueError, match="pushed, free"):
        plot.outcomes(influence, OBS[0])
    with pytest.raises(ValueError, match="7"):
        plot.influence_map(influence, 0, 7, entity="pushed")
    with pytest.raises(ValueError, match="leaf"):
        plot.timeline(influence, OBS, entity="leaf")


def test_a_map_of_data_has_the_mean_score_of_each_cell_and_gaps_elsewhere() -> None:
    influence = pushed_and_free()
    corners = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    heat = plot.influence_map(influence, 0, (1, 2), corners, entity="pushed", size=2).data[0]
    scores = influence.score(corners)["pushed"]
    shown = np.array(heat.z, dtype=float)
    assert shown[0, 0] == pytest.approx(scores[:2].mean(), abs=1e-4)
    assert shown[1, 1] == pytest.approx(scores[2], abs=1e-4)
    assert np.isnan(shown[[0, 1], [1, 0]]).all()


def test_a_map_of_one_state_varies_two_columns_and_adjusts_the_others() -> None:
    seen = []

    def adjust(states: np.ndarray) -> np.ndarray:
        seen.append(states.copy())
        return states

    figure = plot.influence_map(pushed_and_free(), 0, (1, 2), OBS[0], entity="free", size=5, adjust=adjust)
    (states,) = seen
    assert states.shape == (25, 3)
    assert np.allclose(states[:5, 0], np.array(figure.data[0].x), atol=1e-5)
    assert np.allclose(states[::5, 1] - OBS[0, 2], np.array(figure.data[0].y), atol=1e-5)
    assert (states[:, 2] == OBS[0, 2]).all()


def test_reliability_of_a_diagnosis() -> None:
    random = np.random.default_rng(1)
    action = random.uniform(-1, 1, (600, 1))
    obs = random.normal(size=(600, 3))
    change = np.concatenate([2 * action, 0 * action, 0 * action], 1) + 0.5 * random.normal(size=obs.shape)
    found = pushed_and_free().diagnose(obs, action, obs + change)
    figure = plot.reliability(found)
    assert [trace.name for trace in figure.data if trace.showlegend] == ["pushed", "free"]
    assert np.allclose(figure.data[1].y, 100 * np.array(found["pushed"].reliability["realised"]), atol=1e-4)
    assert len(plot.reliability(found["free"]).data) == 2


def test_curves_of_runs(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_training(tmp_path / name, [[0.1, 0.9], [0.3, 0.7]])
    figure = plot.curves([tmp_path / "one", tmp_path / "two"])
    lines = [trace for trace in figure.data if trace.showlegend]
    assert [line.name.split(",")[0] for line in lines] == ["one", "two"]
    assert np.allclose(lines[0].y, [0.2, 0.8])
    assert len([trace for trace in plot.curves(tmp_path / "one").data if trace.showlegend]) == 1
    with pytest.raises(ValueError, match="held"):
        plot.curves(tmp_path / "one", measure="held")
    with pytest.raises(ValueError, match="no runs"):
        plot.curves([])


def test_dark_templates_get_the_colours_of_dark_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    light = plot.timeline(pushed_and_free(), OBS).data[0].line.color
    monkeypatch.setattr(plotly.io.templates, "default", "plotly_dark")
    assert plot.timeline(pushed_and_free(), OBS).data[0].line.color != light
