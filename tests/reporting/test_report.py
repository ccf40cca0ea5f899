"""The report of a detection run: one offline page, safe with hostile data, alive in a browser."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Dialog, Page, sync_playwright
from sklearn.metrics import average_precision_score, precision_recall_curve, roc_auc_score

from butfor.reporting import charts as report_figures
from butfor.reporting import page as report_page
from butfor.reporting import report

STEPS, WIDTH = 30, 0.2
HOSTILE = "<script>alert(1)</script>"
BREAKOUT = "</script><img src=x onerror=alert(2)>"
METRICS = ("auc", "ap", "f1")
PAPER = {"cai": (1.00, 0.98, 0.95), "entropy": (0.96, 0.47, 0.50), "attention": (0.42, 0.13, 0.18)}
TITLES = {
    "cai": "CAI",
    "entropy": "Entropy",
    "attention": "Attention",
    "contact": "Contact",
    "moved": "The object moved",
}


def slide_episodes(count: int, generator: np.random.Generator) -> dict[str, Any]:
    """Episodes of a one-dimensional world: an agent that may push an object which then slides to a halt."""
    observation = np.zeros((count, STEPS + 1, 4), np.float32)
    action = generator.uniform(-1, 1, (count, STEPS, 1)).astype(np.float32)
    action += np.where(np.arange(count) % 3 == 0, 0.6, 0.0)[:, None, None]  # every third agent goes for the object
    contact, label = np.zeros((count, STEPS), bool), np.zeros((count, STEPS), bool)
    for number in range(count):
        agent, speed, velocity = generator.uniform(-4.9, -2.9), 0.0, 0.0
        thing = agent + generator.uniform(1.0, 2.0)
        for time in range(STEPS):
            observation[number, time] = agent, speed, thing, velocity
            reach = agent + 0.1 * (speed + 0.5)  # where full thrust would bring the agent
            label[number, time] = reach + WIDTH >= thing
            speed = speed + 0.5 * float(np.clip(action[number, time, 0], -1, 1))
            agent = agent + 0.1 * speed
            if agent + WIDTH >= thing:
                contact[number, time] = True
                agent, velocity, speed = thing - WIDTH, velocity + 2 * speed, 0.0
            velocity = max(velocity - 0.147, 0.0)
            thing = min(thing + 0.1 * velocity, 5.0)
            agent = float(np.clip(agent, -5.0, -0.5))
        observation[number, STEPS] = agent, speed, thing, velocity
    goal = np.repeat(generator.uniform(0.5, 4.5, (count, 1, 1)), STEPS + 1, axis=1).astype(np.float32)
    return {
        "observation": observation, "action": action, "achieved_goal": observation[..., 2:3], "desired_goal": goal,
        "length": np.full(count, STEPS), "sampled": np.ones((count, STEPS), bool), "contact": contact,
        "label_exact": label,
    }  # fmt: skip


def measure(label: Any, score: Any) -> dict[str, float]:
    """Area under ROC, average precision, best F1 and its threshold."""
    precision, recall, thresholds = precision_recall_curve(label, score)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    best = int(np.argmax(f1[:-1]))
    area, average = roc_auc_score(label, score), average_precision_score(label, score)
    return {"auc": float(area), "ap": float(average), "f1": float(f1[best]), "threshold": float(thresholds[best])}


def write_run(run: Path, episodes: int = 60, hostile: str = "", world: str = "slide") -> Path:
    """Write a detection folder with five seeds of made-up scores; hostile is put wherever text is free."""
    generator = np.random.default_rng(0)
    data = slide_episodes(episodes, generator)
    label = data["label_exact"].reshape(-1)
    moved = np.abs(np.diff(data["observation"][..., 2], axis=1)) > 1e-6
    shape = (5, label.size)
    scores = {
        "cai": np.where(label, generator.gamma(6.0, 0.3, shape), generator.exponential(0.06, shape)),
        "entropy": 0.8 * label + generator.normal(0.0, 0.5, shape),
        "attention": generator.uniform(0, 1, shape) ** (1 + np.arange(5))[:, None],
        "contact": data["contact"].reshape(1, -1),
        "moved": moved.reshape(1, -1),
    }
    detectors, rows = [], []
    for name, values in scores.items():
        measured = [measure(label, score) for score in values]
        rows += [{"detector": name, "seed": seed, **row} for seed, row in enumerate(measured)]
        numbers = {
            key: {"mean": float(np.mean(column)), "std": float(np.std(column))}
            for key in METRICS
            for column in [[row[key] for row in measured]]
        }
        paper = {key: [value, 0.01] for key, value in zip(METRICS, PAPER.get(name, ()), strict=False)} or None
        detectors.append({"name": name, "title": TITLES[name], "seeds": len(values), **numbers, "paper": paper})
    config = {"env": world, "seeds": 5, "model": {"layers": [64, 64], "learning_rate": 3e-4, "note": hostile}}
    versions = {
        "butfor": "0.1.0", "python": "3.11.7", "torch": "2.13", "numpy": "2.4", "commit": None, "platform": "Linux",
        "processor": "x86_64", "device": "cpu", "threads": 2, "command": f"butfor detect {world} {hostile}",
        "started": "2025-01-31T12:00:00+00:00", "seconds": 512.3,
    }  # fmt: skip
    summary = {
        "schema": 1, "env": world, "label": "exact", "states": int(label.size),
        "positive_share": float(label.mean()), "detectors": detectors, "notes": ["A note. " + hostile],
    }  # fmt: skip
    (run / "data").mkdir(parents=True)
    document = {"schema": 1, "kind": "detection", "label": f"{world}-default {hostile}", "config": config}
    (run / "config.json").write_text(json.dumps(document))
    (run / "versions.json").write_text(json.dumps(versions))
    (run / "summary.json").write_text(json.dumps(summary))
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    episode, time = (axis.reshape(-1).astype(np.int32) for axis in np.indices((episodes, STEPS)))
    floats: dict[str, Any] = {name: values.astype(np.float32) for name, values in scores.items()}
    np.savez(run / "scores.npz", label=label, episode=episode, time=time, score_form=np.array("new"), **floats)
    metadata = json.dumps({"world": world, "policy": f"random {hostile}"})
    np.savez(run / "data" / "test.npz", metadata=np.array(metadata), **data)
    return run


class Tags(HTMLParser):
    """Every start tag of a page with its attributes; what stands inside scripts and styles is no tag."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with its report."""
    folder = write_run(tmp_path_factory.mktemp("report") / "run")
    assert report.write_report(folder) == folder / "report.html"
    return folder


@pytest.fixture(scope="module")
def page(run: Path) -> str:
    return (run / "report.html").read_text(encoding="utf-8")


def page_data(page: str) -> dict[str, Any]:
    """The JSON that the page carries for its charts."""
    found = re.search(r'<script type="application/json" id="page-data">(.*?)</script>', page, re.DOTALL)
    assert found
    return dict(json.loads(found[1]))


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
    run = write_run(tmp_path / "run", episodes=12, hostile=HOSTILE + BREAKOUT, world=BREAKOUT)
    hostile = report.write_report(run).read_text(encoding="utf-8")
    ours, theirs = Tags(page), Tags(hostile)
    assert HOSTILE not in hostile
    assert BREAKOUT not in hostile
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in hostile
    assert len(theirs.named("script")) == len(ours.named("script"))
    assert not theirs.named("img")
    assert page_data(hostile)["timeline"]["layout"] is None


def change_json(name: str, **values: Any) -> Callable[[Path], None]:
    """Set or remove (None) keys of a JSON file of the run."""

    def change(run: Path) -> None:
        content = json.loads((run / name).read_text()) | values
        (run / name).write_text(json.dumps({key: value for key, value in content.items() if value is not None}))

    return change


def change_arrays(name: str, **values: Any) -> Callable[[Path], None]:
    """Replace arrays of an .npz of the run by a function of what they were."""

    def change(run: Path) -> None:
        with np.load(run / name) as file:
            arrays = {key: file[key] for key in file.files}
        np.savez(run / name, **{key: values.get(key, lambda array: array)(array) for key, array in arrays.items()})

    return change


def cut(name: str) -> Callable[[Path], None]:
    """Keep the first half of a file, as a crash would."""

    def change(run: Path) -> None:
        content = (run / name).read_bytes()
        (run / name).write_bytes(content[: len(content) // 2])

    return change


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


@contextmanager
def chromium() -> Iterator[Browser]:
    """Headless Chromium, where it is installed."""
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"no browser to open the report with: none of {', '.join(names)} is installed")
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*arguments, "--disable-sync"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@contextmanager
def watched_pages(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens a report; afterwards nothing may have gone wrong in it and nothing may have been fetched."""
    opened: list[Page] = []
    wrong: list[str] = []
    fetched: set[str] = set()

    def refuse(dialog: Dialog) -> None:
        wrong.append(dialog.message)
        dialog.dismiss()

    def open_page(run: Path, width: int = 1280, **options: Any) -> Page:
        view = browser.new_page(viewport={"width": width, "height": 900}, **options)
        opened.append(view)
        view.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
        view.on("pageerror", lambda error: wrong.append(str(error)))
        view.on("dialog", refuse)
        view.on("request", lambda request: fetched.add(request.url))
        view.goto((run / "report.html").as_uri())
        view.wait_for_selector("#plot-timeline .main-svg")
        return view

    yield open_page
    addresses = {view.url for view in opened}
    for view in opened:
        view.close()
    assert wrong == []
    assert fetched == addresses


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
    run = write_run(tmp_path / "run", episodes=12, world="push")
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
