"""The report of a detection run: one offline page, safe with hostile data, alive in a browser."""

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
from support.detection_runs import METRICS, STEPS, change_arrays, change_json, cut, write_run
from support.pages import BREAKOUT, HOSTILE, Tags, page_data

from butfor.reporting import charts as report_figures
from butfor.reporting import page as report_page
from butfor.reporting import report


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with its report."""
    folder = write_run(tmp_path_factory.mktemp("report") / "run")
    assert report.write_report(folder) == folder / "report.html"
    return folder


@pytest.fixture(scope="module")
def page(run: Path) -> str:
    return (run / "report.html").read_text(encoding="utf-8")


def test_the_page_is_one_file_that_fetches_nothing(run: Path, page: str) -> None:
    inputs = {"config.json", "versions.json", "metrics.jsonl", "summary.json", "scores.npz", "data"}
    assert {path.name for path in run.iterdir()} == inputs | {"report.html"}
    tags = Tags(page)
    assert len(tags.named("script")) == 3  # data, plotly, the page's own
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
    summary = json.loads((run / "summary.json").read_text())
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
        assert {trace["legendgroup"] for trace in lines if "legendgroup" in trace} == {"cai", "entropy", "attention"}
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


def test_roc_curve_of_known_scores() -> None:
    label = np.array([False, True, False, True])
    scores = np.array([[0.1, 0.9, 0.2, 0.8], [1, 1, 1, 1], [0.9, 0.1, 0.8, 0.2]])
    x, y = report_figures.seed_curves(label, scores, "roc")
    assert len(x) <= 400
    assert (x[0], x[-1]) == (0.0, 1.0)
    assert np.array_equal(y[:, 0], np.zeros(3))
    assert np.array_equal(y[0, 1:], np.ones(len(x) - 1))  # perfect
    assert y[1] == pytest.approx(x)  # tells nothing
    assert np.array_equal(y[2, x < 1.0], np.zeros((x < 1.0).sum()))  # always wrong


def test_precision_is_that_of_the_first_threshold_that_reaches_a_recall() -> None:
    label = np.array([True, False, True])
    x, y = report_figures.seed_curves(label, np.array([[3.0, 2.0, 1.0], [1.0, 1.0, 1.0]]), "pr")
    assert y[0] == pytest.approx(np.where(x <= 0.5, 1.0, 2.0 / 3.0))
    assert y[0].mean() == pytest.approx(0.5 * 1.0 + 0.5 * 2.0 / 3.0)  # average precision
    assert y[1] == pytest.approx(np.full(len(x), 2.0 / 3.0))


def test_episodes_are_chosen_to_tell_something() -> None:
    label, contact, score = np.zeros((20, 4), bool), np.zeros((20, 4), bool), np.zeros((20, 4))
    label[:16, 1] = True
    contact[:10, 1] = True  # 0 to 9 hit, 10 to 15 come close, 16 to 19 never do
    score[label] = 1.0
    score[12, 1] = 0.2  # missed by 0.3
    score[13, 1] = 0.1  # missed by 0.4: the largest
    score[18, 2] = 0.9  # a false alarm
    score[:, 3] = np.nan  # after the end
    chosen = report.choose_episodes(label, contact, score, 0.5)
    assert [number for number, title in chosen.items() if title == "influence and contact"] == [0, 4, 9]
    titles = {title: number for number, title in chosen.items()}
    assert titles["influence without contact"] == 10
    assert titles["no influence"] == 16
    assert titles["largest miss"] == 13
    assert titles["largest false alarm"] == 18
    assert len(chosen) == 7


def test_nested_settings_become_dotted_rows() -> None:
    nested = {"a": 1, "b": {"c": [1, 2], "d": {"e": None}}, "f": [{"g": "x"}, {"g": True}], "h": {}}
    expected = [("a", "1"), ("b.c", "[1, 2]"), ("b.d.e", "–"), ("f.0.g", "x"), ("f.1.g", "true")]
    assert report_page.flatten(nested) == expected
    (_, text), *_ = report_page.flatten({"long": "x" * 1000})
    assert len(text) < 310


def test_settings_and_provenance_are_shown(page: str) -> None:
    text = re.sub(r"<[^>]*>", " ", page[page.index('id="run"') : page.index("<footer")])
    for shown in ("model.learning_rate", "0.0003", "butfor detect slide", "8 min 32 s", "x86_64", "scores.npz"):
        assert shown in text
    assert "model.safetensors" not in text  # not in this folder


def test_hostile_text_stays_text(tmp_path: Path, page: str) -> None:
    run = write_run(tmp_path / "run", episodes=12, hostile=HOSTILE + BREAKOUT, env=BREAKOUT)
    hostile = report.write_report(run).read_text(encoding="utf-8")
    ours, theirs = Tags(page), Tags(hostile)
    assert HOSTILE not in hostile
    assert BREAKOUT not in hostile
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in hostile
    assert len(theirs.named("script")) == len(ours.named("script"))
    assert not theirs.named("img")
    assert page_data(hostile)["timeline"]["layout"] is None


BROKEN: dict[str, tuple[Callable[[Path], Any], type[Exception], str]] = {
    "no folder": (shutil.rmtree, FileNotFoundError, r"There is no folder .*run; give the folder of a run\.$"),
    "no run": (lambda run: (run / "config.json").unlink(), FileNotFoundError, r"run is not a run folder: it holds no"),
    "no config of ours": (change_json("config.json", kind=None), ValueError, r"config\.json is not butfor's"),
    "no scores": (lambda run: (run / "scores.npz").unlink(), FileNotFoundError, r"scores\.npz is missing"),
    "no data": (lambda run: (run / "data/test.npz").unlink(), FileNotFoundError, r"test\.npz is missing"),
    "other kind": (change_json("config.json", kind="guessing"), ValueError, "kind 'guessing'"),
    "other schema": (change_json("summary.json", schema=2), ValueError, r"summary\.json has schema 2"),
    "no JSON": (
        lambda run: (run / "config.json").write_text("{"),
        ValueError,
        r"config\.json cannot be .*\. Make the run",
    ),
    "a list": (lambda run: (run / "summary.json").write_text("[]"), ValueError, "JSON object was expected"),
    "cut metrics": (cut("metrics.jsonl"), ValueError, r"metrics\.jsonl cannot be read"),
    "cut scores": (cut("scores.npz"), ValueError, r"scores\.npz cannot be read"),
    "no zip": (lambda run: (run / "scores.npz").write_bytes(b"hello"), ValueError, r"scores\.npz cannot be read"),
    "no world": (change_json("summary.json", env=None), ValueError, "'env' is missing"),
    "no detectors": (change_json("summary.json", detectors=[]), ValueError, "names no detector"),
    "other states": (change_json("summary.json", states=7), ValueError, "count different states"),
    "text for settings": (change_json("config.json", config="text"), ValueError, "unexpected form"),
    "one class": (change_arrays("scores.npz", label=np.zeros_like), ValueError, "both influenced and free"),
    "not a number": (change_arrays("scores.npz", cai=lambda old: old * np.nan), ValueError, "finite scores"),
    "other shape": (change_arrays("scores.npz", cai=lambda old: old[:, :-1]), ValueError, "finite scores"),
    "other order": (change_arrays("scores.npz", time=lambda old: old[::-1]), ValueError, "different states"),
    "odd goals": (change_arrays("data/test.npz", desired_goal=lambda old: old[:, :-1]), ValueError, "differ in shape"),
    "lost state": (change_arrays("data/test.npz", observation=lambda old: old / 0), ValueError, "finite numbers"),
}


@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_broken_folder_is_refused_with_a_sentence(case: str, tmp_path: Path) -> None:
    break_it, error, message = BROKEN[case]
    run = write_run(tmp_path / "run", episodes=6)
    break_it(run)
    with pytest.raises(error, match=message) as raised:
        report.write_report(run)
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.rglob("*report*"))


def test_a_file_is_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"run is a file; give the folder of a run\.$"):
        report.write_report(tmp_path / "run")


def test_a_failed_write_keeps_the_old_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", episodes=6)
    (run / "report.html").write_text("old")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        report.write_report(run)
    assert (run / "report.html").read_text() == "old"
    assert not list(run.glob(".report*"))


def test_the_report_never_loads_torch() -> None:
    code = "import sys, butfor.reporting.report; sys.exit('torch' in sys.modules)"
    environment = {"PYTHONPATH": str(Path(report.__file__).parents[2])}
    assert subprocess.run([sys.executable, "-c", code], env=environment, timeout=120).returncode == 0


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
    """The position in the world that the drawing shows: the walls at -5 and 5 stand 14 pixels from its ends."""
    middle, width = view.evaluate(f"""() => {{
        const box = document.getElementById("drawn-{name}");
        return [Number(box.getAttribute("x")) + Number(box.getAttribute("width")) / 2,
                document.getElementById("world").viewBox.baseVal.width];
    }}""")
    return float(-5 + 10 * (middle - 14) / (width - 28))


def slide_to(view: Page, step: int) -> None:
    """Move the slider as a hand would."""
    view.evaluate("""step => { const slider = document.getElementById("step");
                     slider.value = step; slider.dispatchEvent(new Event("input")); }""", step)  # fmt: skip


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
            slide_to(page, step)
            assert cursor(page) == pytest.approx(step, abs=0.05)
            assert drawn_position(page, "agent") == pytest.approx(data["observation"][number, step, 0], abs=1e-3)
            assert drawn_position(page, "object") == pytest.approx(data["observation"][number, step, 2], abs=1e-3)
            assert page.inner_text("#read-step") == f"{step} of {STEPS}"
            for event, key in (("influence", "label_exact"), ("contact", "contact")):
                assert page.inner_text(f"#read-{event}") == ("yes" if data[key][number, step] else "no")


def test_keys_play_and_pointer_move_the_cursor(run: Path, view: Callable[..., Page]) -> None:
    page = view(run)
    slide_to(page, 5)
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
    fits = "document.documentElement.scrollWidth <= window.innerWidth"
    assert page.evaluate(fits)
    page.click("summary")
    for width in (320, 390, 768):
        page.set_viewport_size({"width": width, "height": 844})
        page.wait_for_function(f"() => {fits}", timeout=5000)


def test_charts_follow_the_colour_scheme(run: Path, view: Callable[..., Page]) -> None:
    page = view(run, color_scheme="dark")
    colours = "[...document.querySelectorAll('#plot-roc .js-line')].map(line => line.style.stroke)"
    assert "rgb(86, 180, 233)" in page.evaluate(colours)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 25, 29)"
    page.emulate_media(color_scheme="light")
    page.wait_for_function(f"() => {colours}.includes('rgb(0, 114, 178)')")


def test_other_worlds_have_no_drawing(tmp_path: Path, view: Callable[..., Page]) -> None:
    run = write_run(tmp_path / "run", episodes=12, env="push")
    report.write_report(run)
    page = view(run)
    assert page.locator("#world").count() == 0
    slide_to(page, 9)
    assert cursor(page) == pytest.approx(9, abs=0.05)
    names = page.evaluate("document.getElementById('plot-timeline').data.map(trace => trace.name)")
    assert {"achieved 1", "goal 1"} <= set(names)


def test_hostile_text_does_nothing_in_a_browser(tmp_path: Path, view: Callable[..., Page]) -> None:
    run = write_run(tmp_path / "run", episodes=12, hostile=HOSTILE + BREAKOUT)
    report.write_report(run)
    page = view(run)
    assert HOSTILE + BREAKOUT in page.inner_text(".note >> nth=0")
