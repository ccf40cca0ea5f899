"""The page of a detection run: one offline file, safe with hostile data, interactive in a browser."""

import base64
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page
from support.browser import chromium, watched_pages
from support.detection_runs import (
    FILM_STEPS,
    METRICS,
    STEPS,
    change_arrays,
    change_deep,
    change_json,
    cut,
    write_full_run,
    write_run,
)
from support.pages import BREAKOUT, FITS, HOSTILE, Tags, page_data
from support.scenes import small_scene

import butfor
from butfor.reporting.detection_page import choose_episodes, explore_thresholds
from butfor.reporting.study_page import write_report
from butfor.runs.files import read_json
from butfor.scenes.scene import SCENE_FILE, save_scene

SECTIONS = ("others", "films", "map", "failures", "studies", "diagnosis")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with its report."""
    folder = write_run(tmp_path_factory.mktemp("report") / "run")
    assert write_report(folder) == folder / "report.html"
    return folder


@pytest.fixture(scope="module")
def page(run: Path) -> str:
    return (run / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with everything that a report can show, and its report."""
    folder = write_full_run(tmp_path_factory.mktemp("report") / "run", episodes=30)
    write_report(folder)
    return folder


@pytest.fixture(scope="module")
def full_page(full: Path) -> str:
    return (full / "report.html").read_text(encoding="utf-8")


def test_the_page_is_one_file_that_fetches_nothing(run: Path, page: str) -> None:
    inputs = {"config.json", "versions.json", "metrics.jsonl", "summary.json", "scores.npz", "data"}
    assert {path.name for path in run.iterdir()} == inputs | {"report.html"}
    tags = Tags(page)
    assert len(tags.named("script")) == 4  # data, plotly, the page's own, and what starts them
    assert [script["id"] for script in tags.named("script") if script.get("id") == "plotly"] == ["plotly"]
    assert page.count("plotly.js v") == 1  # the banner of the library
    links = [value for _, attributes in tags.found for key, value in attributes.items() if key in ("src", "href")]
    assert all(value is not None and value.startswith("data:") for value in links), links
    styles = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert len(styles) == 1
    assert "url(" not in styles[0]
    assert "@import" not in styles[0]
    policies = [meta for meta in tags.named("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert str(policies[0]["content"]).startswith("default-src 'none'")


def test_the_table_shows_our_numbers_beside_the_papers(run: Path, page: str) -> None:
    summary = read_json(run / "summary.json")
    rows = re.findall(r'<tr role="row">(.*?)</tr>', page, re.DOTALL)[1:]
    assert len(rows) == len(summary["detectors"])
    means = {key: [detector[key]["mean"] for detector in summary["detectors"]] for key in METRICS}
    for html_row, detector in zip(rows, summary["detectors"], strict=True):
        text = re.sub(r"<[^>]*>", "", html_row)
        assert detector["title"] in text
        cells = re.findall(r"<td (.*?)</td>", html_row, re.DOTALL)
        for place, key in enumerate(METRICS):
            ours, theirs = cells[2 * place : 2 * place + 2]
            assert f"{detector[key]['mean']:.3f}" in ours
            assert ("±" in ours) == (detector["seeds"] == 5)
            assert ("★" in ours) == (detector[key]["mean"] == max(means[key]))
            expected = f"{detector['paper'][key][0]:.2f} ± 0.01" if detector["paper"] else "–"
            assert theirs.endswith(expected)


def test_curves_are_thin_and_binary_detectors_are_markers(run: Path, page: str) -> None:
    data = page_data(page)
    share = float(np.load(run / "scores.npz")["label"].mean())
    for name in ("roc", "pr"):
        traces = data["figures"][name]["data"]
        lines = [trace for trace in traces if trace["mode"] == "lines" and "fill" not in trace]
        names = {trace["legendgroup"] for trace in lines if "legendgroup" in trace}
        assert names == {"cai", "entropy", "attention", "distance"}
        assert {trace["legendgroup"] for trace in traces if trace["mode"] == "markers"} == {"contact", "moved"}
        assert all(len(trace["x"]) == len(trace["y"]) <= 400 for trace in lines)
        assert len([trace for trace in traces if "fill" in trace]) == 3
    chance = data["figures"]["pr"]["data"][-1]
    assert chance["y"] == pytest.approx([share, share], abs=1e-5)
    # Contact never speaks where there is no influence, so its precision is 1 and its recall the share of contacts.
    scores = np.load(run / "scores.npz")
    marker = next(trace for trace in data["figures"]["pr"]["data"] if trace.get("legendgroup") == "contact")
    recall = scores["contact"][0][scores["label"]].mean()
    assert (marker["x"][0], marker["y"][0]) == (pytest.approx(recall, abs=1e-5), 1.0)


def test_a_run_of_before_the_distance_is_shown_without_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", episodes=20)
    metrics = run / "metrics.jsonl"
    kept = [line for line in metrics.read_text().splitlines(keepends=True) if '"distance"' not in line]
    metrics.write_text("".join(kept))
    rows = read_json(run / "summary.json")["detectors"]
    change_json("summary.json", detectors=[row for row in rows if row["name"] != "distance"])(run)
    arrays = dict(np.load(run / "scores.npz"))
    del arrays["distance"]
    np.savez(run / "scores.npz", **arrays)
    page = write_report(run).read_text(encoding="utf-8")
    assert "Attention" in page
    assert "Distance" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def test_episodes_are_chosen_to_tell_something() -> None:
    label, contact, score = np.zeros((20, 4), bool), np.zeros((20, 4), bool), np.zeros((20, 4))
    label[:16, 1] = True
    contact[:10, 1] = True  # 0 to 9 hit, 10 to 15 come close, 16 to 19 never do
    score[label] = 1.0
    score[12, 1] = 0.2  # missed by 0.3
    score[13, 1] = 0.1  # missed by 0.4: the largest
    score[18, 2] = 0.9  # a false alarm
    score[:, 3] = np.nan  # after the end
    chosen = choose_episodes(label, contact, score, 0.5)
    assert [number for number, title in chosen.items() if title == "influence and contact"] == [0, 4, 9]
    titles = {title: number for number, title in chosen.items()}
    assert titles["influence without contact"] == 10
    assert titles["no influence"] == 16
    assert titles["largest miss"] == 13
    assert titles["largest false alarm"] == 18
    assert len(chosen) == 7


def test_settings_and_provenance_are_shown(page: str) -> None:
    text = re.sub(r"<[^>]*>", " ", page[page.index('id="run"') : page.index("<footer")])
    for shown in ("model.learning_rate", "0.0003", "butfor detect slide", "8 min 32 s", "x86_64", "scores.npz"):
        assert shown in text
    assert "model.safetensors" not in text  # not in this folder


def test_hostile_text_stays_text(tmp_path: Path, page: str) -> None:
    run = write_run(tmp_path / "run", episodes=12, hostile=HOSTILE + BREAKOUT, env=BREAKOUT)
    hostile = write_report(run).read_text(encoding="utf-8")
    ours, theirs = Tags(page), Tags(hostile)
    assert HOSTILE not in hostile
    assert BREAKOUT not in hostile
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in hostile
    assert len(theirs.named("script")) == len(ours.named("script"))
    assert not theirs.named("img")
    assert page_data(hostile)["timeline"]["layout"] is None


# How a folder is broken, the error, and the file or value that it names.
BROKEN: dict[str, tuple[Callable[[Path], Any], type[Exception], str]] = {
    "no folder": (shutil.rmtree, FileNotFoundError, "run"),
    "no run": (lambda run: (run / "config.json").unlink(), ValueError, r"config\.json"),
    "no config of ours": (change_json("config.json", kind=None), ValueError, r"config\.json"),
    "no scores": (lambda run: (run / "scores.npz").unlink(), FileNotFoundError, r"scores\.npz"),
    "no data": (lambda run: (run / "data/test.npz").unlink(), FileNotFoundError, r"test\.npz"),
    "other kind": (change_json("config.json", kind="guessing"), ValueError, "'guessing'"),
    "other schema": (change_json("summary.json", schema=2), ValueError, r"summary\.json has schema 2"),
    "no JSON": (lambda run: (run / "config.json").write_text("{"), ValueError, r"config\.json"),
    "a list": (lambda run: (run / "summary.json").write_text("[]"), ValueError, r"summary\.json"),
    "cut metrics": (cut("metrics.jsonl"), ValueError, r"metrics\.jsonl"),
    "cut scores": (cut("scores.npz"), ValueError, r"scores\.npz"),
    "no zip": (lambda run: (run / "scores.npz").write_bytes(b"hello"), ValueError, r"scores\.npz"),
    "no detectors": (change_json("summary.json", detectors=[]), ValueError, "detector"),
    "no label": (change_json("summary.json", label=None), ValueError, "'label'"),
    "other states": (change_json("summary.json", states=7), ValueError, r"scores\.npz.*7"),
    "one class": (change_arrays("scores.npz", label=np.zeros_like), ValueError, "influenced and free"),
    "not a number": (change_arrays("scores.npz", cai=lambda old: old * np.nan), ValueError, r"scores\.npz.*finite"),
    "other shape": (change_arrays("scores.npz", cai=lambda old: old[:, :-1]), ValueError, r"scores\.npz.*shape"),
    "other order": (change_arrays("scores.npz", time=lambda old: old[::-1]), ValueError, r"scores\.npz and data/test"),
}


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_broken_folder_is_refused_with_a_sentence(case: str, tmp_path: Path) -> None:
    break_it, error, message = BROKEN[case]
    run = write_run(tmp_path / "run", episodes=6)
    break_it(run)
    with pytest.raises(error, match=message) as raised:
        write_report(run)
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.rglob("*report*"))


def test_a_file_is_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("{}")
    with pytest.raises(FileNotFoundError, match="run is a file"):
        write_report(tmp_path / "run")


def test_a_report_never_loads_torch_and_loads_plotly_only_to_write_a_page() -> None:
    code = "import sys, butfor.reporting.study_page; sys.exit(bool({'torch', 'plotly'} & set(sys.modules)))"
    environment = {"PYTHONPATH": str(Path(butfor.__file__).parents[1])}
    assert subprocess.run([sys.executable, "-c", code], env=environment, timeout=120).returncode == 0


def part(page: str, name: str) -> str:
    """The words of a section."""
    found = re.search(rf'<section aria-labelledby="{name}".*?</section>', page, re.DOTALL)
    assert found
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", found[0])).replace("&nbsp;", " ")


def test_each_part_is_there_only_with_its_file(full_page: str, tmp_path: Path) -> None:
    for name in SECTIONS:
        assert f'<section aria-labelledby="{name}"' in full_page
        assert f'href="#{name}"' in full_page
    bare = write_report(write_run(tmp_path / "run", episodes=6)).read_text(encoding="utf-8")
    assert 'aria-labelledby="threshold"' in bare
    assert not [name for name in SECTIONS if f'<section aria-labelledby="{name}"' in bare or f'"#{name}"' in bare]
    some = write_full_run(tmp_path / "some", episodes=6)
    for name in ("studies.json", "pictures/map.npz"):
        (some / name).unlink()
    content = read_json(some / "pictures/index.json")
    (some / "pictures/index.json").write_text(json.dumps({"timelines": content["timelines"]}))
    left = write_report(some).read_text(encoding="utf-8")
    shown = [name for name in SECTIONS if f'<section aria-labelledby="{name}"' in left]
    assert shown == ["others", "films", "diagnosis"]


def test_other_tables_have_their_own_numbers_and_curves(full: Path, full_page: str) -> None:
    words, figures = part(full_page, "others"), page_data(full_page)["figures"]
    scores = np.load(full / "scores.npz")
    states = scores["label"].size
    heuristic = float(scores["label_heuristic"].mean())
    assert f"{states:,} states, {100 * heuristic:.1f} % of them influenced (paper: 41.2 %)." in words
    assert f"{states // 2:,} states," in words
    shares = {"pr-0": heuristic, "pr-1": float(scores["label"][: states // 2].mean())}
    for name, share in shares.items():
        assert figures[name]["data"][-1]["y"] == pytest.approx([share, share], abs=1e-5)  # chance
    assert "roc-2" not in figures  # the third has no scores, but a table
    assert full_page.count('<table class="detectors"') == 4
    # Contact is a marker at the recall that it has under the other label.
    marker = next(trace for trace in figures["pr-0"]["data"] if trace.get("legendgroup") == "contact")
    assert marker["x"] == pytest.approx([scores["contact"][0][scores["label_heuristic"]].mean()], abs=1e-5)


def test_thresholds_of_known_scores() -> None:
    label, score = np.array([True, False, True, False]), np.array([0.9, 0.8, 0.8, 0.1], np.float32)
    points = explore_thresholds(score, label)
    assert points["threshold"] == pytest.approx([0.1, 0.8, 0.9], abs=1e-5)
    assert points["precision"] == pytest.approx([1 / 2, 2 / 3, 1], abs=1e-5)
    assert points["recall"] == pytest.approx([1, 1, 1 / 2], abs=1e-5)
    assert points["f1"] == pytest.approx([2 / 3, 4 / 5, 2 / 3], abs=1e-5)
    assert points["flagged"] == pytest.approx([1, 3 / 4, 1 / 4], abs=1e-5)
    assert points["best"] == 1


def test_many_thresholds_are_thinned_but_keep_ends_and_best() -> None:
    generator = np.random.default_rng(0)
    label = generator.uniform(size=5000) < 0.03
    score = np.where(label, generator.gamma(4, 0.3, 5000), generator.exponential(0.02, 5000))
    points = explore_thresholds(score, label)
    count = len(points["threshold"])
    assert 200 < count <= 400
    assert all(len(points[key]) == count for key in ("precision", "recall", "f1", "flagged"))
    assert (points["recall"][0], points["flagged"][0]) == (1.0, 1.0)
    assert points["threshold"][-1] == pytest.approx(score.max(), abs=1e-5)
    assert np.diff(points["recall"]).min() > -0.02  # no recall is far from a point
    best = max(2 * (label & (score >= t)).sum() / ((score >= t).sum() + label.sum()) for t in score)
    assert points["f1"][points["best"]] == pytest.approx(best, abs=1e-5)
    constant = explore_thresholds(np.ones(4), np.array([True, False, False, False]))
    assert (constant["precision"], constant["recall"], constant["flagged"]) == ([0.25], [1.0], [1.0])


def test_noise_has_a_mean_and_a_range_for_each_level(full: Path, full_page: str) -> None:
    given = read_json(full / "studies.json")["noise"]
    figures = page_data(full_page)["figures"]
    for metric in METRICS:
        lines = [trace for trace in figures[f"noise-{metric}"]["data"] if "fill" not in trace]
        bands = [trace for trace in figures[f"noise-{metric}"]["data"] if "fill" in trace]
        for line, shade, kind in zip(lines, bands, ("train_only", "train_and_test"), strict=True):
            values = np.array(given[kind][metric])
            assert line["y"] == pytest.approx(values.mean(1), abs=1e-5)
            edge = np.concatenate([values.max(1), values.min(1)[::-1]])
            assert shade["y"] == pytest.approx(edge, abs=1e-5)
        assert figures[f"noise-{metric}"]["layout"]["xaxis"]["ticktext"] == ["0", "1", "5", "10", "20", "50"]


def test_tables_of_the_studies_are_grouped(full_page: str) -> None:
    words = part(full_page, "studies")
    assert "New actions in each state; mean of both bounds, the lower cut at 0 8 0.908 ± 0.010" in words
    assert words.index("New actions in each state") < words.index("One Sobol set for all states")
    assert "As in the paper 0.930 ± 0.010 0.830 ± 0.010 0.780 ± 0.010" in words
    assert "★ best: 0.950 ± 0.010" in words
    assert "Ranks, on random states 1 % 1.3 % ± 0.2 43.0 % 1,234" in words
    assert re.search(r"8 −0\.\d{3} 0\.908 64", words)


def test_decisions_and_reference_have_the_diagonal(full: Path, full_page: str) -> None:
    figures, given = page_data(full_page)["figures"], read_json(full / "studies.json")
    *lines, diagonal = figures["decisions"]["data"]
    assert diagonal["x"] == diagonal["y"]
    assert [line["y"] for line in lines] == [[0.8, 4.0, 8.0], [0.5, 2.5, 5.0], [1.3, 6.5, 13.0]]
    assert all(line["x"] == [1.0, 5.0, 10.0] for line in lines)
    assert lines[0]["error_y"]["array"] == [0.25, 1.25, 2.5]
    *clouds, diagonal = figures["reference"]["data"]
    assert diagonal["x"] == diagonal["y"]
    assert [cloud["visible"] for cloud in clouds] == [True, False, False, False]
    for cloud, entry in zip(clouds, given["reference"], strict=True):
        assert pytest.approx(np.array(entry["scatter"]), abs=1e-5) == np.array([cloud["x"], cloud["y"]]).T


def test_the_diagnosis_says_its_words(full_page: str) -> None:
    words = part(full_page, "diagnosis")
    assert "! a problem was found" in words
    assert full_page.count('<li class="problem">A problem: the predicted variance is too small') == 1
    figures = page_data(full_page)["figures"]
    curve = figures["reliability-0"]["data"][1]
    assert (len(curve["x"]), curve["y"][0]) == (19, pytest.approx(100 * 0.05**1.3, abs=1e-5))
    assert figures["gain-0"]["data"][0]["error_y"]["array"] == [0.05] * 10


def test_pictures_are_inside_the_page(full: Path, full_page: str) -> None:
    data, tags = page_data(full_page), Tags(full_page)
    first = (full / "pictures/step-1-0.png").read_bytes()
    assert data["films"][1]["frames"][0] == "data:image/png;base64," + base64.b64encode(first).decode()
    assert [len(film["frames"]) for film in data["films"]] == [FILM_STEPS, FILM_STEPS]
    cards = [image for image in tags.named("img") if "src" in image]
    assert len(cards) == 6
    links = [value for _, attributes in tags.found for key, value in attributes.items() if key in ("src", "href")]
    assert all(value is not None and value.startswith(("data:", "#")) for value in links)
    words = part(full_page, "failures")
    assert "CAI 0.123 ± 0.045 Influence yes Effect 4.20 mm Contact no Distance 7.1 cm" in words
    assert "Effect – Contact" in words
    arrays = np.load(full / "pictures/map.npz")
    shown = np.array(data["figures"]["map-effect"]["data"][0]["z"], float)  # a gap is null
    assert shown == pytest.approx(100 * arrays["effect"], abs=1e-5, nan_ok=True)
    box = data["figures"]["map-cai"]["layout"]["shapes"][0]
    assert [box[key] for key in ("x0", "x1", "y0", "y1")] == [-2.5, 2.5, -2.0, 2.0]


def write(name: str, content: bytes) -> Callable[[Path], Any]:
    return lambda run: (run / name).write_bytes(content)


INDEX = "pictures/index.json"
FILM = ("timelines", 0)
# How each part is broken, and the file or value that the error names.
BROKEN_PARTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "set elsewhere": (change_deep("summary.json", "others", 1, "set", value="../x"), r"summary\.json.*'\.\./x'"),
    "odd label": (change_deep("summary.json", "others", 0, "label", value="guess"), r"summary\.json.*'guess'"),
    "other states": (change_deep("summary.json", "others", 1, "states", value=7), r"scores-random\.npz.*7"),
    "no list": (change_json("summary.json", others=5), r"summary\.json"),
    "no detectors": (change_deep("summary.json", "others", 1, "detectors", value=[]), r"summary\.json.*detector"),
    "cut others": (write("scores-random.npz", b"PK"), r"scores-random\.npz"),
    "no JSON": (write("studies.json", b"{"), r"studies\.json"),
    "other schema": (change_json("studies.json", schema=2), r"studies\.json.*schema"),
    "a list": (write("diagnosis.json", b"[]"), r"diagnosis\.json"),
    "odd noise": (change_deep("studies.json", "noise", "levels", value=[0.1]), r"studies\.json.*shape"),
    "not a number": (change_deep("studies.json", "helps", 0, "ap", "mean", value=float("nan")), r"studies\.json"),
    "text": (change_deep("studies.json", "decisions", "rows", 0, "realised", value="x"), r"studies\.json.*'x'"),
    "no form": (change_deep("studies.json", "reference", 0, value={"scatter": [[0, 1]]}), "'form'"),
    "no words": (change_json("diagnosis.json", object={"trusted": True}), "'words'"),
    "odd gain": (change_deep("diagnosis.json", "object", "gain_by_score", "gain", value=[1]), r"diagnosis\.json"),
    "index": (write(INDEX, b"{"), r"index\.json"),
    "few frames": (change_deep(INDEX, *FILM, "frames", value=["step-0-0.png"]), r"index\.json.*1 frames.*20"),
    "few marks": (change_deep(INDEX, *FILM, "contact", value=[0, 1]), r"index\.json.*shape"),
    "elsewhere": (change_deep(INDEX, "failures", 0, "image", value="../config.json"), r"'\.\./config\.json'"),
    "lost image": (lambda run: (run / "pictures/step-0-3.png").unlink(), r"step-0-3\.png"),
    "no image": (write("pictures/state-0.jpg", b"<svg onload=alert(1)>"), r"state-0\.jpg"),
    "cut map": (write("pictures/map.npz", b"PK"), r"map\.npz"),
    "odd map": (lambda run: np.savez(run / "pictures/map.npz", x=[1.0], y=[1.0], cai=[1.0]), r"map\.npz.*shape"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small folder to copy and break."""
    return write_full_run(tmp_path_factory.mktemp("whole") / "run", episodes=6)


@pytest.mark.parametrize("case", BROKEN_PARTS)
def test_a_broken_part_is_refused_with_a_sentence(case: str, whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    break_it, message = BROKEN_PARTS[case]
    break_it(run)
    with pytest.raises(ValueError, match=message) as raised:
        write_report(run)
    assert "\n" not in str(raised.value)
    assert not list(run.glob("*report*"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def view(browser: Browser) -> Iterator[Callable[..., Page]]:
    with watched_pages(browser) as open_page:
        yield open_page


def cursor(view: Page) -> float:
    """Where the timeline's cursor is drawn, in steps: its place between the ticks of the axis."""
    return float(
        view.evaluate("""() => {
            const plot = document.getElementById("plot-timeline");
            const box = plot.querySelector('.shapelayer path[data-index="0"]').getBoundingClientRect();
            const axis = plot._fullLayout.xaxis;
            return axis.p2l(box.x + box.width / 2 - plot.getBoundingClientRect().x - axis._offset);
        }""")
    )


def drawn_position(view: Page, name: str) -> float:
    """The position that the drawing shows: the walls at -5 and 5 stand 14 pixels from its ends."""
    middle, width = view.evaluate(f"""() => {{
        const box = document.getElementById("drawn-{name}");
        return [Number(box.getAttribute("x")) + Number(box.getAttribute("width")) / 2,
                document.getElementById("drawing").viewBox.baseVal.width];
    }}""")
    return float(-5 + 10 * (middle - 14) / (width - 28))


def move(view: Page, slider: str, value: int) -> None:
    """Move a slider as a hand would."""
    view.evaluate("""([id, value]) => { const slider = document.getElementById(id);
                     slider.value = value; slider.dispatchEvent(new Event("input")); }""", [slider, value])  # fmt: skip


def test_all_charts_are_drawn(run: Path, view: Callable[..., Page]) -> None:
    page = view(run)
    for name, marks in {"roc": ".trace", "pr": ".trace", "scores": ".bars .point path", "timeline": ".trace"}.items():
        assert page.locator(f"#plot-{name} .main-svg").count() > 0
        assert page.locator(f"#plot-{name} .main-svg {marks}").count() >= 5, name
        box = page.locator(f"#plot-{name}").bounding_box()
        assert box is not None
        assert min(box["width"], box["height"]) > 200


def test_the_slider_moves_cursor_drawing_and_readout(run: Path, view: Callable[..., Page]) -> None:
    page, data = view(run), np.load(run / "data" / "test.npz")
    titles = page.locator("#episode option").all_text_contents()
    assert 3 <= len(titles) <= 8
    for index in (0, len(titles) - 1):
        page.select_option("#episode", index=index)
        number = int(re.findall(r"Episode (\d+):", titles[index])[0])
        for step in (0, 13, 29):
            move(page, "step", step)
            assert cursor(page) == pytest.approx(step, abs=0.05)
            assert drawn_position(page, "agent") == pytest.approx(data["observation"][number, step, 0], abs=1e-3)
            assert drawn_position(page, "object") == pytest.approx(data["observation"][number, step, 2], abs=1e-3)
            assert page.inner_text("#read-step") == f"{step} of {STEPS}"
            for event, key in (("influence", "label_exact"), ("contact", "contact")):
                assert page.inner_text(f"#read-{event}") == ("yes" if data[key][number, step] else "no")


def test_keys_play_and_pointer_move_the_cursor(run: Path, view: Callable[..., Page]) -> None:
    page = view(run)
    move(page, "step", 5)
    page.focus("#step")
    page.keyboard.press("ArrowRight")
    assert cursor(page) == pytest.approx(6, abs=0.05)
    page.focus("#play")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert cursor(page) == pytest.approx(4, abs=0.05)
    page.click("#play")
    page.wait_for_function("() => Number(document.getElementById('step').value) >= 7")
    page.click("#play")
    stopped = page.input_value("#step")
    page.wait_for_timeout(400)
    assert page.input_value("#step") == stopped
    page.locator("#plot-timeline").scroll_into_view_if_needed()
    box = page.locator("#plot-timeline").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + box["height"] * 0.2)
    page.wait_for_function("() => Number(document.getElementById('step').value) > 24")


def test_a_name_in_the_legend_hides_its_curves(run: Path, view: Callable[..., Page]) -> None:
    page = view(run)
    before = page.locator("#plot-roc .scatterlayer .trace").count()
    page.click("#curve-legend button[data-detector=entropy]")
    assert page.locator("#plot-roc .scatterlayer .trace").count() == before - 2  # line and band
    assert page.get_attribute("#curve-legend button[data-detector=entropy]", "aria-pressed") == "false"
    page.click("#curve-legend button[data-detector=entropy]")
    assert page.locator("#plot-roc .scatterlayer .trace").count() == before


def test_nothing_is_wider_than_the_screen(run: Path, view: Callable[..., Page]) -> None:
    page = view(run, width=390)
    assert page.evaluate(FITS)
    page.click("summary")
    for width in (320, 390, 768):
        page.set_viewport_size({"width": width, "height": 844})
        page.wait_for_function(f"() => {FITS}", timeout=30_000)


def test_charts_follow_the_colour_scheme(run: Path, view: Callable[..., Page]) -> None:
    page = view(run, color_scheme="dark")
    colours = "[...document.querySelectorAll('#plot-roc .js-line')].map(line => line.style.stroke)"
    assert "rgb(86, 180, 233)" in page.evaluate(colours)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 25, 29)"
    page.emulate_media(color_scheme="light")
    page.wait_for_function(f"() => {colours}.includes('rgb(0, 114, 178)')")


def test_other_envs_have_no_drawing(tmp_path: Path, view: Callable[..., Page]) -> None:
    run = write_run(tmp_path / "run", episodes=12, env="push")
    write_report(run)
    page = view(run)
    assert page.locator("#drawing").count() == 0
    move(page, "step", 9)
    assert cursor(page) == pytest.approx(9, abs=0.05)
    names = page.evaluate("document.getElementById('plot-timeline').data.map(trace => trace.name)")
    assert {"achieved 1", "goal 1"} <= set(names)


def test_hostile_text_does_nothing_in_a_browser(tmp_path: Path, view: Callable[..., Page]) -> None:
    run = write_run(tmp_path / "run", episodes=12, hostile=HOSTILE + BREAKOUT)
    write_report(run)
    page = view(run)
    assert HOSTILE + BREAKOUT in page.inner_text(".note >> nth=0")


@pytest.fixture(scope="module")
def shown(browser: Browser, full: Path) -> Iterator[Page]:
    """The whole report, open."""
    with watched_pages(browser) as open_page:
        yield open_page(full)


def cursor_of(view: Page, plot: str) -> float:
    """Where a chart's cursor is, in the units of its axis."""
    return float(view.evaluate(f"document.getElementById('plot-{plot}').layout.shapes[0].x0"))


def test_every_part_is_alive(full: Path, full_page: str, shown: Page) -> None:
    data = page_data(full_page)
    for name in data["figures"]:
        assert shown.locator(f"#plot-{name} .main-svg").count() > 0, name
    for name in ("map-cai", "map-effect"):
        assert shown.locator(f"#plot-{name} .hm image").count() == 1
    targets = shown.evaluate("[...document.querySelectorAll('.contents a')].map(a => !!document.querySelector(a.hash))")
    assert len(targets) == 12
    assert all(targets)
    # The threshold explorer against the definitions.
    scores = np.load(full / "scores.npz")
    score, label = scores["cai"][0], scores["label"]
    assert cursor_of(shown, "explorer") == data["explorer"]["threshold"][data["explorer"]["best"]]
    for place in (0, 50, len(data["explorer"]["threshold"]) - 1):
        move(shown, "threshold-slider", place)
        threshold = cursor_of(shown, "explorer")
        assert threshold == data["explorer"]["threshold"][place]
        assert cursor_of(shown, "scores") == threshold  # the histogram of scores follows
        flagged = score >= threshold - 1e-5  # the full_page rounds
        assert shown.inner_text("#explore-recall") == f"{flagged[label].mean():.3f}"
        assert shown.inner_text("#explore-flagged") == f"{100 * flagged.mean():.1f} %"
        assert shown.inner_text("#explore-false") == f"{100 * (~label[flagged]).mean():.1f} %"
    shown.click("#best-threshold")
    assert shown.input_value("#threshold-slider") == str(data["explorer"]["best"])
    # One estimator at a time, with the diagonal.
    shown.select_option("#reference-choice", index=2)
    visible = "document.getElementById('plot-reference').data.map(trace => trace.visible !== false)"
    assert shown.evaluate(visible) == [False, False, True, False, True]
    # A name hides its curves everywhere.
    before = shown.locator("#plot-pr-0 .scatterlayer .trace").count()
    shown.click("#curve-legend button[data-detector=entropy]")
    assert shown.locator("#plot-pr-0 .scatterlayer .trace").count() == before - 2


def test_a_film_shows_the_frame_of_each_step(full_page: str, shown: Page) -> None:
    films = page_data(full_page)["films"]
    assert shown.locator("#film-strip button").count() == 10
    shown.select_option("#film-episode", index=1)
    assert shown.input_value("#film-step") == "9"  # the first influenced step
    for step in (0, 12, FILM_STEPS - 1):
        move(shown, "film-step", step)
        assert shown.get_attribute("#film-frame", "src") == films[1]["frames"][step]
        assert cursor_of(shown, "film") == step
        assert shown.inner_text("#film-read-step") == f"{step} of {FILM_STEPS}"
        assert shown.inner_text("#film-read-influence") == ("yes" if films[1]["events"]["influence"][step] else "no")
        assert shown.get_attribute(f"#film-strip button >> nth={step // 2}", "aria-current") == "true"
    shown.click("#film-strip button >> nth=3")
    assert shown.get_attribute("#film-frame", "src") == films[1]["frames"][7]
    # A frame of the strip stands over its step in the chart.
    middle = shown.evaluate("""() => {
        const plot = document.getElementById("plot-film"), axis = plot._fullLayout.xaxis;
        const box = document.querySelectorAll("#film-strip button")[3].getBoundingClientRect();
        return axis.p2l(box.x + box.width / 2 - plot.getBoundingClientRect().x - axis._offset);
    }""")
    assert middle == pytest.approx(6.5, abs=0.2)  # steps 6 and 7
    shown.locator("#plot-film").scroll_into_view_if_needed()
    box = shown.locator("#plot-film").bounding_box()
    assert box is not None
    shown.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + box["height"] * 0.3)
    shown.wait_for_function("() => Number(document.getElementById('film-step').value) > 15")


def test_hostile_text_in_the_parts_stays_text_and_all_fits(tmp_path: Path, view: Callable[..., Page]) -> None:
    run = write_full_run(tmp_path / "run", hostile=HOSTILE + BREAKOUT)
    hostile = write_report(run).read_text(encoding="utf-8")
    assert HOSTILE not in hostile
    assert BREAKOUT not in hostile
    assert len(Tags(hostile).named("script")) == 4
    page = view(run, width=390, color_scheme="dark")
    assert BREAKOUT in page.inner_text(".words")
    assert BREAKOUT in page.inner_text("#film-episode")
    for width in (320, 390, 768):
        page.set_viewport_size({"width": width, "height": 844})
        page.wait_for_function(f"() => {FITS}", timeout=30_000)
        clipped = """[...document.querySelectorAll("table")].filter(t => t.offsetWidth > t.parentElement.clientWidth + 1
                     && !t.closest("details")).length"""
        assert page.evaluate(clipped) == 0
    colours = "[...document.querySelectorAll('#plot-film .js-line')].map(line => line.style.stroke)"
    assert "rgb(86, 180, 233)" in page.evaluate(colours)
    page.emulate_media(color_scheme="light")
    page.wait_for_function(f"() => {colours}.includes('rgb(0, 114, 178)')")


def test_the_player_stands_for_films(tmp_path: Path) -> None:
    """A run with a scene shows the player; the films of earlier versions are left out."""
    folder = write_full_run(tmp_path / "run", episodes=30)
    save_scene(folder / SCENE_FILE, small_scene(2))
    text = write_report(folder).read_text(encoding="utf-8")
    assert len([tag for tag in Tags(text).named("div") if tag.get("class") == "bf-player"]) == 1
    assert 'id="film-frame"' not in text
    assert page_data(text)["films"] == []
