"""The optional parts of a detection report: other labels, threshold, studies, diagnosis and pictures."""

import base64
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page
from support.browser import chromium, watched_pages
from support.detection_runs import FILM_STEPS, METRICS, change_deep, change_json, write_full_run, write_run
from support.pages import BREAKOUT, FITS, HOSTILE, Tags, page_data

from butfor.reporting import detection_page as report_detection
from butfor.reporting import report

SECTIONS = ("others", "films", "map", "failures", "studies", "diagnosis")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_full_run(tmp_path_factory.mktemp("report") / "run", episodes=30)
    report.write_report(folder)
    return folder


@pytest.fixture(scope="module")
def page(run: Path) -> str:
    return (run / "report.html").read_text(encoding="utf-8")


def part(page: str, name: str) -> str:
    """The words of a section."""
    found = re.search(rf'<section aria-labelledby="{name}".*?</section>', page, re.DOTALL)
    assert found
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", found[0])).replace("&nbsp;", " ")


def test_each_part_is_there_only_with_its_file(page: str, tmp_path: Path) -> None:
    for name in SECTIONS:
        assert f'<section aria-labelledby="{name}"' in page
        assert f'href="#{name}"' in page
    bare = report.write_report(write_run(tmp_path / "run", episodes=6)).read_text(encoding="utf-8")
    assert 'aria-labelledby="threshold"' in bare
    assert not [name for name in SECTIONS if f'<section aria-labelledby="{name}"' in bare or f'"#{name}"' in bare]
    some = write_full_run(tmp_path / "some", episodes=6)
    for name in ("studies.json", "pictures/map.npz"):
        (some / name).unlink()
    content = json.loads((some / "pictures/index.json").read_text())
    (some / "pictures/index.json").write_text(json.dumps({"timelines": content["timelines"]}))
    left = report.write_report(some).read_text(encoding="utf-8")
    shown = [name for name in SECTIONS if f'<section aria-labelledby="{name}"' in left]
    assert shown == ["others", "films", "diagnosis"]


def test_other_tables_have_their_own_numbers_and_curves(run: Path, page: str) -> None:
    words, figures = part(page, "others"), page_data(page)["figures"]
    scores = np.load(run / "scores.npz")
    states = scores["label"].size
    heuristic = float(scores["label_heuristic"].mean())
    assert f"{states:,} states, {100 * heuristic:.1f} % of them influenced (paper: 41.2 %)." in words
    assert f"{states // 2:,} states," in words
    shares = {"pr-0": heuristic, "pr-1": float(scores["label"][: states // 2].mean())}
    for name, share in shares.items():
        assert figures[name]["data"][-1]["y"] == pytest.approx([share, share], abs=1e-5)  # chance
    assert "roc-2" not in figures  # the third has no scores, but a table
    assert page.count('<table class="detectors"') == 4
    # Contact is a marker at the recall that it has under the other label.
    marker = next(trace for trace in figures["pr-0"]["data"] if trace.get("legendgroup") == "contact")
    assert marker["x"] == pytest.approx([scores["contact"][0][scores["label_heuristic"]].mean()], abs=1e-5)


def test_thresholds_of_known_scores() -> None:
    label, score = np.array([True, False, True, False]), np.array([0.9, 0.8, 0.8, 0.1], np.float32)
    points, _ = report_detection.explorer("CAI", score, label)
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
    points, _ = report_detection.explorer("CAI", score, label)
    count = len(points["threshold"])
    assert 200 < count <= 400
    assert all(len(points[key]) == count for key in ("precision", "recall", "f1", "flagged"))
    assert (points["recall"][0], points["flagged"][0]) == (1.0, 1.0)
    assert points["threshold"][-1] == pytest.approx(score.max(), abs=1e-5)
    assert np.diff(points["recall"]).min() > -0.02  # no recall is far from a point
    best = max(2 * (label & (score >= t)).sum() / ((score >= t).sum() + label.sum()) for t in score)
    assert points["f1"][points["best"]] == pytest.approx(best, abs=1e-5)
    constant, _ = report_detection.explorer("CAI", np.ones(4), np.array([True, False, False, False]))
    assert (constant["precision"], constant["recall"], constant["flagged"]) == ([0.25], [1.0], [1.0])


def test_noise_has_a_mean_and_a_range_for_each_level(run: Path, page: str) -> None:
    given = json.loads((run / "studies.json").read_text())["noise"]
    figures = page_data(page)["figures"]
    for metric in METRICS:
        lines = [trace for trace in figures[f"noise-{metric}"]["data"] if "fill" not in trace]
        bands = [trace for trace in figures[f"noise-{metric}"]["data"] if "fill" in trace]
        for line, shade, kind in zip(lines, bands, ("train_only", "train_and_test"), strict=True):
            values = np.array(given[kind][metric])
            assert line["y"] == pytest.approx(values.mean(1), abs=1e-5)
            edge = np.concatenate([values.max(1), values.min(1)[::-1]])
            assert shade["y"] == pytest.approx(edge, abs=1e-5)
        assert figures[f"noise-{metric}"]["layout"]["xaxis"]["ticktext"] == ["0", "1", "5", "10", "20", "50"]


def test_tables_of_the_studies_are_grouped(page: str) -> None:
    words = part(page, "studies")
    assert "New actions in each state; mean of both bounds, the lower cut at 0 8 0.908 ± 0.010" in words
    assert words.index("New actions in each state") < words.index("One Sobol set for all states")
    assert "As in the paper 0.930 ± 0.010 0.830 ± 0.010 0.780 ± 0.010" in words
    assert "★ best: 0.950 ± 0.010" in words
    assert "Ranks, on random states 1 % 1.3 % ± 0.2 43.0 % 1,234" in words
    assert re.search(r"8 −0\.\d{3} 0\.908 64", words)


def test_decisions_and_reference_have_the_diagonal(run: Path, page: str) -> None:
    figures, given = page_data(page)["figures"], json.loads((run / "studies.json").read_text())
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


def test_the_diagnosis_says_its_words(page: str) -> None:
    words = part(page, "diagnosis")
    assert "! a problem was found" in words
    assert page.count('<li class="problem">A problem: the predicted variance is too small') == 1
    figures = page_data(page)["figures"]
    curve = figures["reliability-0"]["data"][1]
    assert (len(curve["x"]), curve["y"][0]) == (19, pytest.approx(0.05**1.3, abs=1e-5))
    assert figures["gain-0"]["data"][0]["error_y"]["array"] == [0.05] * 10


def test_pictures_are_inside_the_page(run: Path, page: str) -> None:
    data, tags = page_data(page), Tags(page)
    first = (run / "pictures/step-1-0.png").read_bytes()
    assert data["films"][1]["frames"][0] == "data:image/png;base64," + base64.b64encode(first).decode()
    assert [len(film["frames"]) for film in data["films"]] == [FILM_STEPS, FILM_STEPS]
    cards = [image for image in tags.named("img") if "src" in image]
    assert len(cards) == 6
    links = [value for _, attributes in tags.found for key, value in attributes.items() if key in ("src", "href")]
    assert all(value is not None and value.startswith(("data:", "#")) for value in links)
    words = part(page, "failures")
    assert "CAI 0.123 ± 0.045 Influence yes Effect 4.20 mm Contact no Distance 7.1 cm" in words
    assert "Effect – Contact" in words
    arrays = np.load(run / "pictures/map.npz")
    shown = np.array(data["figures"]["map-effect"]["data"][0]["z"], float)  # a gap is null
    assert shown == pytest.approx(100 * arrays["effect"], abs=1e-5, nan_ok=True)
    box = data["figures"]["map-cai"]["layout"]["shapes"][0]
    assert [box[key] for key in ("x0", "x1", "y0", "y1")] == [-2.5, 2.5, -2.0, 2.0]


def write(name: str, content: bytes) -> Callable[[Path], Any]:
    return lambda run: (run / name).write_bytes(content)


INDEX, FILM = "pictures/index.json", ("timelines", 0)
BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "set elsewhere": (change_deep("summary.json", "others", 1, "set", value="../x"), "no name of a set"),
    "odd label": (change_deep("summary.json", "others", 0, "label", value="guess"), r"summary\.json .*'guess'"),
    "other states": (change_deep("summary.json", "others", 1, "states", value=7), r"scores-random\.npz .*shape"),
    "no list": (change_json("summary.json", others=5), r"summary\.json .*not iterable"),
    "no detectors": (change_deep("summary.json", "others", 1, "detectors", value=[]), "names no detector"),
    "cut others": (write("scores-random.npz", b"PK"), r"scores-random\.npz cannot be read"),
    "no JSON": (write("studies.json", b"{"), r"studies\.json cannot be read"),
    "other schema": (change_json("studies.json", schema=2), r"studies\.json has another schema"),
    "a list": (write("diagnosis.json", b"[]"), "JSON object was expected"),
    "odd noise": (change_deep("studies.json", "noise", "levels", value=[0.1]), r"studies\.json .*shape"),
    "not a number": (change_deep("studies.json", "helps", 0, "ap", "mean", value=float("nan")), "finite numbers"),
    "text": (change_deep("studies.json", "decisions", "rows", 0, "realised", value="x"), r"studies\.json"),
    "no form": (change_deep("studies.json", "reference", 0, value={"scatter": [[0, 1]]}), "'form' is missing"),
    "no words": (change_json("diagnosis.json", object={"trusted": True}), "'words' is missing"),
    "odd gain": (change_deep("diagnosis.json", "object", "gain_by_score", "gain", value=[1]), r"diagnosis\.json"),
    "index": (write(INDEX, b"{"), r"index\.json cannot be read"),
    "few frames": (change_deep(INDEX, *FILM, "frames", value=["step-0-0.png"]), "1 frames for 20 steps"),
    "few marks": (change_deep(INDEX, *FILM, "contact", value=[0, 1]), r"index\.json .*shape"),
    "elsewhere": (change_deep(INDEX, "failures", 0, "image", value="../config.json"), "no name of a file beside"),
    "lost image": (lambda run: (run / "pictures/step-0-3.png").unlink(), r"step-0-3\.png is missing"),
    "no image": (write("pictures/state-0.jpg", b"<svg onload=alert(1)>"), "neither a JPEG nor a PNG"),
    "cut map": (write("pictures/map.npz", b"PK"), r"map\.npz cannot be read"),
    "odd map": (lambda run: np.savez(run / "pictures/map.npz", x=[1.0], y=[1.0], cai=[1.0]), r"map\.npz .*shape"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small folder to copy and break."""
    return write_full_run(tmp_path_factory.mktemp("whole") / "run", episodes=6)


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_part_is_refused_with_a_sentence(case: str, whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    break_it, message = BROKEN[case]
    break_it(run)
    with pytest.raises(ValueError, match=message) as raised:
        report.write_report(run)
    assert "\n" not in str(raised.value)
    assert str(raised.value).endswith("Run `butfor detect` again.")
    assert not list(run.glob("*report*"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def view(browser: Browser) -> Iterator[Callable[..., Page]]:
    with watched_pages(browser) as open_page:
        yield open_page


@pytest.fixture(scope="module")
def shown(browser: Browser, run: Path) -> Iterator[Page]:
    """The whole report, open."""
    with watched_pages(browser) as open_page:
        yield open_page(run)


def move(view: Page, slider: str, value: int) -> None:
    """Move a slider as a hand would."""
    view.evaluate("""([id, value]) => { const slider = document.getElementById(id);
                     slider.value = value; slider.dispatchEvent(new Event("input")); }""", [slider, value])  # fmt: skip


def cursor(view: Page, plot: str) -> float:
    """Where a chart's cursor is, in the units of its axis."""
    return float(view.evaluate(f"document.getElementById('plot-{plot}').layout.shapes[0].x0"))


def test_every_part_is_alive(run: Path, page: str, shown: Page) -> None:
    data = page_data(page)
    for name in data["figures"]:
        assert shown.locator(f"#plot-{name} .main-svg").count() > 0, name
    for name in ("map-cai", "map-effect"):
        assert shown.locator(f"#plot-{name} .hm image").count() == 1
    targets = shown.evaluate("[...document.querySelectorAll('.contents a')].map(a => !!document.querySelector(a.hash))")
    assert len(targets) == 12
    assert all(targets)
    # The threshold explorer against the definitions.
    scores = np.load(run / "scores.npz")
    score, label = scores["cai"][0], scores["label"]
    assert cursor(shown, "explorer") == data["explorer"]["threshold"][data["explorer"]["best"]]
    for place in (0, 50, len(data["explorer"]["threshold"]) - 1):
        move(shown, "threshold-slider", place)
        threshold = cursor(shown, "explorer")
        assert threshold == data["explorer"]["threshold"][place]
        flagged = score >= threshold - 1e-5  # the page rounds
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


def test_a_film_shows_the_frame_of_each_step(page: str, shown: Page) -> None:
    films = page_data(page)["films"]
    assert shown.locator("#film-strip button").count() == 10
    shown.select_option("#film-episode", index=1)
    assert shown.input_value("#film-step") == "9"  # the first influenced step
    for step in (0, 12, FILM_STEPS - 1):
        move(shown, "film-step", step)
        assert shown.get_attribute("#film-frame", "src") == films[1]["frames"][step]
        assert cursor(shown, "film") == step
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
    hostile = report.write_report(run).read_text(encoding="utf-8")
    assert HOSTILE not in hostile
    assert BREAKOUT not in hostile
    assert len(Tags(hostile).named("script")) == 3
    page = view(run, width=390, color_scheme="dark")
    assert BREAKOUT in page.inner_text(".words")
    assert BREAKOUT in page.inner_text("#film-episode")
    for width in (320, 390, 768):
        page.set_viewport_size({"width": width, "height": 844})
        page.wait_for_function(f"() => {FITS}", timeout=5000)
        clipped = """[...document.querySelectorAll("table")].filter(t => t.offsetWidth > t.parentElement.clientWidth + 1
                     && !t.closest("details")).length"""
        assert page.evaluate(clipped) == 0
    colours = "[...document.querySelectorAll('#plot-film .js-line')].map(line => line.style.stroke)"
    assert "rgb(86, 180, 233)" in page.evaluate(colours)
    page.emulate_media(color_scheme="light")
    page.wait_for_function(f"() => {colours}.includes('rgb(0, 114, 178)')")
