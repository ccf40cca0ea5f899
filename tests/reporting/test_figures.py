"""Figures for papers: which files a run folder gives, that they repeat in bytes, and what is drawn in them."""

import json
import re
import shutil
import struct
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import imread
from support.detection_runs import FILM_STEPS, change_json, write_full_run, write_run
from support.project import Import
from support.study_runs import ARM, add_behaviour, change_study, write_detection_study, write_root

from butfor import cli
from butfor.analysis import detection_runs as report_reading
from butfor.analysis.arms import read_heat_map, read_study
from butfor.reporting import figures, study_page
from butfor.reporting.charts import detector_chart, heat_chart
from butfor.reporting.figures import file_name, write_study_figures
from butfor.reporting.matplotlib_renderer import COLUMN, draw
from butfor.runs.files import read_json

CURVES = {f"{kind}{name}" for kind in ("roc", "precision-recall") for name in ("", "-test-heuristic", "-random-exact")}
NAMES = CURVES | {"noise", "actions", "reference", "decisions", "reliability", "timeline-1", "timeline-2", "map"}
PAGE_WIDE = {"noise", "reference", "decisions", "timeline-1", "timeline-2", "map"}
BLUE, VERMILLION, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"


def draw_all(run: Path) -> dict[str, Figure]:
    return figures.draw_detectors(run) | figures.draw_parts(run)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that can be drawn, and its figures."""
    folder = write_full_run(tmp_path_factory.mktemp("figures") / "run", episodes=6)
    before = dict(matplotlib.rcParams)
    written = figures.write_figures(folder)
    assert dict(matplotlib.rcParams) == before
    assert sorted(written) == sorted((folder / "figures").iterdir())
    return folder


@pytest.fixture(scope="module")
def drawn(run: Path) -> dict[str, Figure]:
    """The figures themselves, by name."""
    return draw_all(run)


@pytest.fixture(scope="module")
def studies(run: Path) -> Any:
    return read_json(run / "studies.json")


def line(axes: Axes, place: int) -> tuple[Any, Any]:
    """x and y of a line."""
    x, y = (np.asarray(values, float) for values in axes.lines[place].get_data())
    return x, y


def band(axes: Axes, place: int) -> tuple[float, float]:
    """The lowest and the highest place of a filled area."""
    corners = np.asarray(axes.collections[place].get_paths()[0].vertices, float)  # [n, 2]
    return float(corners[:, 1].min()), float(corners[:, 1].max())


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def change_title(title: str) -> Any:
    """Give the first detector another title."""

    def change(folder: Path) -> None:
        detectors = read_json(folder / "summary.json")["detectors"]
        detectors[0]["title"] = title
        change_json("summary.json", detectors=detectors)(folder)

    return change


def test_every_figure_is_there_as_svg_and_png(run: Path) -> None:
    files = {path.name for path in (run / "figures").iterdir()}
    assert files == {f"{name}.{kind}" for name in NAMES for kind in ("svg", "png")}
    for name in NAMES:
        inches = 6.8 if name in PAGE_WIDE else 3.3
        content = (run / "figures" / f"{name}.png").read_bytes()
        assert struct.unpack(">I", content[16:20])[0] == round(200 * inches)  # the header's width
        assert imread(run / "figures" / f"{name}.png").std() > 0.01
        root = ElementTree.fromstring((run / "figures" / f"{name}.svg").read_bytes())
        assert float(root.attrib["width"].removesuffix("pt")) == pytest.approx(72 * inches)


def test_text_in_an_svg_is_text(run: Path) -> None:
    root = ElementTree.fromstring((run / "figures" / "precision-recall.svg").read_bytes())
    words = {"".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"recall", "precision", "CAI", "chance"} <= words


def test_the_same_run_gives_the_same_bytes(run: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in (run / "figures").iterdir()}
    assert not [name for name, content in before.items() if re.search(rb"[dD]ate|tIME|Software", content[:2000])]
    again = Path(shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("figures")))
    change_json("summary.json", others=[])(again)  # more of the same curves would only take time
    with matplotlib.rc_context({"font.size": 20, "savefig.dpi": 30}):  # a reader's own settings change nothing
        written = {path.name: path.read_bytes() for path in figures.write_figures(again)}
    assert len(written) == len(before) - 8
    assert [name for name, content in written.items() if content != before[name]] == []


def test_a_part_without_its_file_is_left_out(run: Path, tmp_path: Path) -> None:
    bare = draw_all(write_run(tmp_path / "bare", episodes=6))
    assert list(bare) == ["roc", "precision-recall"]
    some = Path(shutil.copytree(run, tmp_path / "some"))
    for name in ("diagnosis.json", "pictures/map.npz", "scores-random.npz"):
        (some / name).unlink()
    change_json("studies.json", noise=None, reference=[], decisions={"rows": []})(some)
    left = set(draw_all(some))
    curves = {name for name in CURVES if "random" not in name}
    assert left == curves | {"actions", "timeline-1", "timeline-2"}


def test_curves_of_known_scores() -> None:
    label = np.array([True, False, True, False])
    scores = {
        "cai": np.array([[4.0, 3.0, 2.0, 1.0], [4.0, 1.0, 3.0, 2.0]]),  # the second seed is perfect
        "contact": np.array([[1.0, 1.0, 0.0, 0.0]]),
    }
    numbers = {metric: {"mean": 0.5, "std": 0.0} for metric in report_reading.METRICS}
    rows = report_reading.detector_rows(
        [{"name": name, "title": name, "seeds": len(scores[name]), **numbers} for name in scores], scores
    )
    roc, pr = (draw([detector_chart(rows, scores, label, kind)], COLUMN, 3.0) for kind in ("roc", "pr"))
    x, y = line(pr.axes[0], 0)
    # The first seed's precision is 1 up to a recall of 1/2 and 2/3 above; the band goes from there to 1.
    assert y == pytest.approx(np.where(x < 0.5 + 1e-6, 1.0, (2 / 3 + 1) / 2))
    assert band(pr.axes[0], 0) == pytest.approx((2 / 3, 1.0))
    x, y = line(roc.axes[0], 0)
    # The first seed's curve goes up to 1/2 at once, and to 1 at a false positive rate of 1/2.
    assert np.interp([0.25, 0.48, 0.52, 1.0], x, y) == pytest.approx([0.75, 0.75, 1.0, 1.0])
    # Contact finds one of two and raises one false alarm in two.
    for figure, point in ((roc, (0.5, 0.5)), (pr, (0.5, 0.5))):
        marker = figure.axes[0].lines[1]
        assert (line(figure.axes[0], 1)) == point
        assert (marker.get_marker(), marker.get_linestyle(), to_hex(marker.get_color())) == ("D", "None", PURPLE)
    assert [values.tolist() for values in line(roc.axes[0], 2)] == [[0, 1], [0, 1]]
    assert line(pr.axes[0], 2)[1].tolist() == [0.5, 0.5]  # chance is the share of influenced states
    assert legend(roc) == ["cai", "contact", "chance"]


def test_detectors_look_the_same_everywhere(drawn: dict[str, Figure]) -> None:
    for name in CURVES:
        looks = [(to_hex(shown.get_color()), shown.get_linestyle()) for shown in drawn[name].axes[0].lines[:3]]
        assert looks == [(BLUE, "-"), (VERMILLION, "--"), (GREEN, "-.")]
        assert legend(drawn[name])[:3] == ["CAI", "Entropy", "Attention"]


def test_noise_has_a_mean_and_a_range_for_each_level(drawn: dict[str, Figure], studies: Any) -> None:
    for axes, metric in zip(drawn["noise"].axes, ("auc", "ap"), strict=True):
        for place, kind in enumerate(("train_only", "train_and_test")):
            values = np.array(studies["noise"][kind][metric])  # [L, S]
            assert line(axes, place)[1] == pytest.approx(values.mean(1))
            assert band(axes, place) == pytest.approx((values.min(), values.max()))
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "1", "5", "10", "20", "50"]


def test_actions_are_drawn_over_their_number(drawn: dict[str, Figure], studies: Any) -> None:
    (axes,) = drawn["actions"].axes
    assert len(axes.containers) == 2  # independent and Sobol
    for container, sampling in zip(axes.containers, ("independent", "sobol"), strict=True):
        rows = [row for row in studies["actions"] if row["sampling"] == sampling]
        x, y = container[0].get_data()
        assert x == pytest.approx([row["actions"] for row in rows], rel=0.03)  # moved aside a little
        assert y == pytest.approx([row["ap"]["mean"] for row in rows])


def test_reference_has_the_diagonal_and_the_bias(drawn: dict[str, Figure], studies: Any) -> None:
    left, right = drawn["reference"].axes
    most = [row for row in studies["reference"] if row["actions"] == 64]
    for place, row in enumerate(most):
        assert np.allclose(np.array(line(left, place)).T, row["scatter"])
    x, y = line(left, 2)
    assert x.tolist() == y.tolist()
    for place, form in enumerate(("mean", "mean_clip_product")):
        bias = [row["bias"] for row in studies["reference"] if row["form"] == form]
        assert [values.tolist() for values in line(right, place)] == [[8, 64], bias]


def test_decisions_have_a_panel_a_set(drawn: dict[str, Figure]) -> None:
    test, random = drawn["decisions"].axes
    assert [axes.get_title() for axes in (test, random)] == ["test states", "random states"]
    expected = {test: [[0.8, 4.0, 8.0], [0.5, 2.5, 5.0]], random: [[], [1.3, 6.5, 13.0]]}
    for axes, promised in expected.items():
        x, y = line(axes, -1)
        assert x.tolist() == y.tolist()
        for container, realised in zip(axes.containers, promised, strict=True):
            x, y = container[0].get_data()
            assert list(y) == pytest.approx(realised)
            assert list(x) == pytest.approx([1.0, 5.0, 10.0][: len(realised)])
    assert legend(drawn["decisions"]) == ["Free states", "Ranks"]


def test_reliability_is_in_percent(drawn: dict[str, Figure]) -> None:
    (axes,) = drawn["reliability"].axes
    levels = np.arange(5, 96, 5)
    x, y = line(axes, 1)
    assert x == pytest.approx(levels)
    assert y == pytest.approx(100 * (levels / 100) ** 1.3)


def test_a_timeline_shows_frames_over_their_steps(run: Path, drawn: dict[str, Figure]) -> None:
    film = read_json(run / "pictures/index.json")["timelines"][1]
    below, middle, strip = drawn["timeline-2"].axes
    assert len(strip.images) == 10
    for place, shown in enumerate(strip.images):
        frame = imread(run / "pictures" / film["frames"][2 * place])  # the first of its two steps
        assert np.array_equal(np.asarray(shown.get_array()), frame)
        left, right, *_ = shown.get_extent()
        assert (left + right) / 2 == pytest.approx(2 * place + 0.5)
    # A frame is as wide as high on paper.
    width, height = drawn["timeline-2"].get_size_inches() * strip.get_position().size
    assert height == pytest.approx(width / 10)
    score = np.array(film["score"])  # [S, T]
    assert line(middle, 0)[1] == pytest.approx(score.mean(0))
    assert band(middle, 0) == pytest.approx((score.min(), score.max()))
    for axes in (below, middle):
        (shade,) = axes.patches  # influence from step 9 to 15
        box = shade.get_extents().transformed(axes.transData.inverted())
        assert (box.x0, box.x1) == pytest.approx((8.5, 15.5))
        assert axes.get_xlim() == (-0.5, FILM_STEPS - 0.5)
    names = [tick.get_text() for tick in below.get_yticklabels()]
    for name, marks in zip(names, below.lines, strict=True):
        assert np.asarray(marks.get_xdata()).tolist() == np.flatnonzero(film[name]).tolist()
    assert not drawn["timeline-1"].axes[1].patches  # nothing is influenced in the first


def test_few_steps_give_few_frames(run: Path) -> None:
    film: Any = report_reading.read_pictures(run)
    film = film["films"][1] | {"length": 3, "score": np.array([[0.0, 1.0, 0.5]])}
    film["events"] = {name: happened[:3] for name, happened in film["events"].items()}
    _, middle, strip = figures.draw_episode(run / "pictures", film, 1.0).axes
    assert [shown.get_extent()[:2] for shown in strip.images] == [
        pytest.approx((step - 0.144, step + 0.144)) for step in range(3)
    ]
    assert not middle.collections  # one seed has no range


def test_the_map_has_its_units_and_gaps(run: Path, drawn: dict[str, Figure]) -> None:
    arrays, maps = np.load(run / "pictures/map.npz"), drawn["map"].axes[:2]
    for axes, key, factor in zip(maps, ("cai", "effect"), (1, 100), strict=True):
        (mesh,) = axes.collections
        shown: Any = np.ma.asarray(mesh.get_array())
        assert np.array_equal(np.ma.getmaskarray(shown), np.isnan(arrays[key]))
        assert shown.filled(np.nan) == pytest.approx(factor * arrays[key], nan_ok=True)
        box = axes.patches[0].get_extents().transformed(axes.transData.inverted())
        assert box.extents == pytest.approx([-2.5, -2.0, 2.5, 2.0])
    labels = [axes.get_ylabel() for axes in drawn["map"].axes[0].child_axes + drawn["map"].axes[1].child_axes]
    assert labels == ["CAI (nats)", "effect of the action (cm)"]


def test_any_text_can_be_a_title(tmp_path: Path) -> None:
    title = r"$\frac{1} <b>&amp; \unknown$ & " + "long " * 30
    folder = write_run(tmp_path / "run", episodes=6)
    change_title(title)(folder)
    figures.write_figures(folder)
    root = ElementTree.fromstring((folder / "figures" / "roc.svg").read_bytes())
    assert title[:42] + " …" in {"".join(node.itertext()) for node in root.iter()}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("pictures/step-0-0.png", b"\x89PNG\r\n\x1a\n", r"step-0-0\.png"),
        ("pictures/step-0-0.png", b"\xff\xd8\xff\xe0", r"step-0-0\.png"),
        ("studies.json", b"{", r"studies\.json"),
    ],
)
def test_a_broken_part_is_refused_before_anything_is_written(
    name: str, content: bytes, message: str, run: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("figures")))
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        figures.write_figures(folder)
    assert not (folder / "figures").exists()


def test_pyplot_is_not_touched(library_imports: list[Import]) -> None:
    """It holds global state and may look for a screen."""
    assert not [str(found) for found in library_imports if found.target.startswith("matplotlib.pyplot")]


def test_the_command_writes_figures_only_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "run", episodes=6)
    monkeypatch.setattr(study_page, "write_report", lambda run, out, **options: run / "report.html")
    monkeypatch.setattr(sys, "argv", ["butfor", "report", str(folder)])
    cli.main()
    assert f"Report: {folder / 'report.html'}\n" in capsys.readouterr().out
    assert not (folder / "figures").exists()
    monkeypatch.setattr(sys, "argv", ["butfor", "report", str(folder), "--figures"])
    cli.main()
    assert f"Report: {folder / 'report.html'}\nFigures: {folder / 'figures'}\n" in capsys.readouterr().out
    assert len(list((folder / "figures").iterdir())) == 4


def test_without_matplotlib_the_command_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(study_page, "write_report", lambda run, out, **options: run / "report.html")
    monkeypatch.delitem(sys.modules, "butfor.reporting.figures")
    monkeypatch.delitem(sys.modules, "butfor.reporting.matplotlib_renderer")
    monkeypatch.setitem(sys.modules, "matplotlib.style", None)
    monkeypatch.setattr(sys, "argv", ["butfor", "report", str(tmp_path), "--figures"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert "pip install 'butfor[figures]'" in str(ended.value)
    assert capsys.readouterr().out == f"Report: {tmp_path / 'report.html'}\n"  # what can be written is


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_root(tmp_path_factory.mktemp("study") / "root")


@pytest.fixture(scope="module")
def detection_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("studies") / "root"
    write_full_run(root / "run", episodes=6)
    write_detection_study(root, "table1")
    return root


def heat_figure(run: Path) -> Figure:
    episodes, drawn = read_heat_map(run)
    return draw([heat_chart(episodes, values, name, unit) for name, (values, unit) in drawn.items()], COLUMN, 2.4)


def test_figures_of_a_study(root: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(root, tmp_path / "root"))
    paths = write_study_figures(root, "try")
    names = [f"try-{name}.{kind}" for name in ("curves", "reach") for kind in ("svg", "png")]
    assert [path.name for path in paths] == names
    svg = (root / "reports" / "figures" / "try-curves.svg").read_text()
    for text in ("fast arm, 5 seeds", "few arm, 3 seeds, range", "episodes of each seed"):
        assert text in svg
    reach = (root / "reports" / "figures" / "try-reach.svg").read_text()
    assert "&gt; 500" in reach or "> 500" in reach
    before = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in write_study_figures(root, "try")] == before
    change_study(root, arms=[ARM | {"folder": "absent"}])
    assert write_study_figures(root, "try") == []


def test_behaviour_and_heat_maps_are_figures_where_they_were_measured(root: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(root, tmp_path / "root"))
    add_behaviour(root / "few")
    names = {path.name for path in write_study_figures(root, "try")}
    heat = [name for name in names if "heat-map" in name]
    assert len(heat) == 2
    assert "try-behaviour.png" in names
    folder = root / "reports" / "figures"
    drawn = figures.draw_arms(read_study(root, "try").arms)["behaviour"]
    limits = [axes.get_ylim() for axes in drawn.axes]
    assert min(high for _, high in limits) >= 0.5  # that of held, though moved is lower
    svg_text = (folder / "try-behaviour.svg").read_text()
    assert all(f">{name}<" in svg_text for name in ("moved", "held"))
    assert "lifted" not in svg_text
    (svg,) = [name for name in heat if name.endswith("svg")]
    assert "states with influence (%)" in (folder / svg).read_text()


def test_a_heat_map_of_one_group_of_episodes_fills_its_panel(root: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(root / "few", tmp_path / "few"))
    np.savez(run / "heatmap.npz", episodes=[60.0], score=np.ones((5, 1)))
    mesh: Any = heat_figure(run).axes[0].collections[0]
    assert mesh.get_coordinates()[0, :, 0].tolist() == [0.0, 120.0]
    np.savez(run / "heatmap.npz", episodes=[50.0, 150.0, 260.0], score=np.ones((5, 3)))
    mesh = heat_figure(run).axes[0].collections[0]
    assert mesh.get_coordinates()[0, :, 0].tolist() == [0.0, 100.0, 205.0, 315.0]


def test_figures_of_the_detection_runs_of_a_study(
    detection_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(shutil.copytree(detection_root, tmp_path / "root"))

    def say() -> str:
        monkeypatch.setattr(sys, "argv", ["butfor", "study", "report", "table1", "--figures", "--root", str(root)])
        cli.main()
        return capsys.readouterr().out

    (root / "run" / "studies.json").unlink()  # fewer to draw
    shutil.rmtree(root / "run" / "pictures")
    summary = read_json(root / "run" / "summary.json")
    (root / "run" / "summary.json").write_text(json.dumps(summary | {"others": []}))
    names = [path.name for path in write_study_figures(root, "table1") if path.suffix == ".svg"]
    assert names == [f"table1-pick-and-place-{kind}.svg" for kind in ("roc", "precision-recall", "reliability")]
    shutil.rmtree(root / "reports" / "figures")
    (root / "run" / "scores.npz").unlink()
    lack = "pick-and-place without curves of its detectors: "
    said = say()
    assert f"Figures: {root / 'reports' / 'figures'}\n  {lack}" in said
    assert f"{root / 'run'} lacks scores.npz" in said
    assert [path.name for path in (root / "reports" / "figures").glob("*.svg")] == [
        "table1-pick-and-place-reliability.svg"
    ]
    (root / "run" / "diagnosis.json").write_text("{")
    said = say()
    assert f"Figures: none of table1\n  {lack}" in said
    assert "\n  pick-and-place without studies and pictures: " in said
    shutil.rmtree(root / "run")
    assert "Figures: none of table1\n  nothing of pick-and-place, which has not been run" in say()
    assert file_name("../K = 8 / 16") == "K-8-16"
