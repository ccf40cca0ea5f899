"""The pages of the five studies of detection: each shows its own experiment, and says what a folder does not hold."""

import base64
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from results_page import write_results_page
from support.browser import chromium
from support.detection_runs import FILM_STEPS, write_full_run
from support.pages import FITS, HOSTILE, Tags, page_data, section, words
from support.study_runs import grey_png

from butfor import cli
from butfor.reporting.study_detection import FRAMES, study_tables
from butfor.reporting.study_figures import file_name, write_study_figures
from butfor.reporting.study_page import write_study_report

NAMES = ("table1", "detection-curves", "random-test-set", "random-training-data", "trajectories")
EXACT, HEURISTIC, RANDOM = (
    "Against the exact label, on the test set",
    "Against the paper’s heuristic label",
    "On random-policy states, exact label",
)
NOISE, ACTIONS, HELPS = "Noise in the observations", "How many actions to try", "What helps"
NOISE_PLOTS = {f"0-noise-{metric}" for metric in ("auc", "ap", "f1")}
SHOWN = {  # study -> headings, and plots
    "table1": ((EXACT, HEURISTIC), set()),
    "detection-curves": (
        (EXACT, HEURISTIC, NOISE, ACTIONS),
        {"0-roc-0", "0-pr-0", "0-roc-1", "0-pr-1", "0-actions"} | NOISE_PLOTS,
    ),
    "random-test-set": ((RANDOM, ACTIONS), {"0-roc-0", "0-pr-0", "0-actions"}),
    "random-training-data": ((EXACT, HEURISTIC, HELPS), set()),
    "trajectories": ((EXACT, HEURISTIC), {"0-film-0", "0-film-1"}),
}


def write_studies(root: Path, label: str = "pick-and-place") -> None:
    """The five studies, each with the one arm that they share."""
    (root / "studies").mkdir()
    for name in NAMES:
        arm = {"label": label, "folder": "run", "kind": "detection"}
        study = {"schema": 1, "name": name, "title": name, "about": "", "arms": [arm]}
        (root / "studies" / f"{name}.json").write_text(json.dumps(study))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("studies") / "root"
    write_full_run(root / "run", episodes=6)
    (root / "run" / "report.html").write_text("its own page")
    write_studies(root)
    for name in NAMES:
        write_study_report(root, name)
    return root


def page_of(root: Path, name: str) -> str:
    return (root / "reports" / f"{name}.html").read_text(encoding="utf-8")


def detection(root: Path, name: str) -> str:
    """The words of the part about detection, written anew."""
    return words(section(write_study_report(root, name).read_text(encoding="utf-8"), "detection"))


@pytest.mark.parametrize("name", NAMES)
def test_the_page_shows_the_experiment_of_its_study(root: Path, name: str) -> None:
    page, (headings, plots) = page_of(root, name), SHOWN[name]
    part = section(page, "detection")
    found = re.findall(r"<h4>(.*?)</h4>", part)
    assert sorted(words(heading) for heading in found) == sorted(headings)
    assert set(page_data(page)["figures"]) == plots
    assert {tag["id"] for tag in Tags(page).named("div") if "plot" in (tag.get("class") or "")} == {
        f"plot-{plot}" for plot in plots
    }
    assert '<a href="../run/report.html">The whole report of this run</a>' in part


def test_tables_name_states_label_and_the_papers_share(root: Path) -> None:
    told = words(section(page_of(root, "table1"), "detection"))
    assert re.search(
        r"180 states of pick-and-place, heuristic label; [\d.]+% of them influenced \(paper: 41.2%\)", told
    )
    assert "90 states of pick-and-place, exact label" in words(section(page_of(root, "random-test-set"), "detection"))


def test_curves_are_those_of_the_states_that_the_study_judges(root: Path) -> None:
    """Chance in a chart of precision is the share of influenced states, which the sets do not share."""
    for name, file, key, plot in (
        ("detection-curves", "scores.npz", "label", "0-pr-0"),
        ("detection-curves", "scores.npz", "label_heuristic", "0-pr-1"),
        ("random-test-set", "scores-random.npz", "label", "0-pr-0"),
    ):
        with np.load(root / "run" / file) as scores:
            share = float(scores[key].mean())
        chance = page_data(page_of(root, name))["figures"][plot]["data"][-1]
        assert (chance["name"], chance["y"]) == ("chance", pytest.approx([share, share], abs=1e-5))


def test_episodes_are_strips_of_frames_over_their_influence(root: Path) -> None:
    page = page_of(root, "trajectories")
    assert "Episode 7: No contact" in words(page)
    images = [str(tag["src"]) for tag in Tags(section(page, "detection")).named("img")]
    assert len(images) == 2 * FRAMES
    middle = (root / "run" / "pictures" / f"step-0-{int(0.5 * FILM_STEPS / FRAMES)}.png").read_bytes()
    assert images[0] == "data:image/png;base64," + base64.b64encode(middle).decode()
    index = json.loads((root / "run" / "pictures" / "index.json").read_text())
    influenced = np.flatnonzero(index["timelines"][1]["label"])
    shapes = page_data(page)["figures"]["0-film-1"]["layout"]["shapes"]
    assert [shape["x0"] + 0.5 for shape in shapes if shape["type"] == "rect"] == influenced.tolist()  # and no cursor


def test_the_paper_has_columns_only_where_it_gives_numbers(root: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(root, tmp_path / "root"))
    summary = json.loads((root / "run" / "summary.json").read_text())
    summary["detectors"] = [row | {"paper": None} for row in summary["detectors"]]
    (root / "run" / "summary.json").write_text(json.dumps(summary))
    tables = section(write_study_report(root, "table1").read_text(encoding="utf-8"), "detection").split("<h4>")[1:]
    assert ["columnheader" in table and 'class="number paper"' in table for table in tables] == [False, True]
    assert "The paper gives no numbers by this label on these states." in words(tables[0])


def test_what_a_folder_lacks_is_said_and_the_tables_are_there(root: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(root, tmp_path / "root"))
    for name in ("scores.npz", "scores-random.npz", "studies.json", "report.html"):
        (root / "run" / name).unlink()
    shutil.rmtree(root / "run" / "pictures")
    curves = "No ROC and precision-recall curves where the folder holds neither the scores of the states"
    for name, sentences in {
        "detection-curves": (f"{curves} (scores.npz)", "This run did not ask about noise (butfor detect"),
        "random-test-set": (f"{curves} (scores-random.npz)",),
        "random-training-data": ("This run did not ask about helps",),
        "trajectories": ("No episodes: the folder holds neither pictures of them (pictures/index.json)",),
    }.items():
        told = detection(root, name)
        assert all(sentence in told for sentence in sentences), name
        assert "CAI ★ best: 1.000" in told
        assert "The whole report" not in told
    (root / "run" / "figures").mkdir()  # committed results hold figures, not what they were drawn from
    for figure in ("timeline-1", "roc-random-exact"):
        (root / "run" / "figures" / f"{figure}.png").write_bytes(grey_png(3, 2))
    for name, figure in (("trajectories", "timeline-1"), ("random-test-set", "roc-random-exact")):
        page = write_study_report(root, name).read_text(encoding="utf-8")
        (image,) = Tags(page).named("img")
        assert image["alt"] == f"Figure {figure} of this run, drawn by butfor report --figures"
        assert "the folder holds neither" not in page
    summary = json.loads((root / "run" / "summary.json").read_text())
    (root / "run" / "summary.json").write_text(json.dumps(summary | {"others": []}))
    assert "This run judged no states of the random set." in detection(root, "random-test-set")


@pytest.mark.parametrize(
    ("study", "file"),
    [
        ("detection-curves", "scores.npz"),
        ("detection-curves", "studies.json"),
        ("trajectories", "pictures/index.json"),
        ("trajectories", "metrics.jsonl"),
    ],
)
def test_a_damaged_file_keeps_nothing_else_from_being_shown(root: Path, tmp_path: Path, study: str, file: str) -> None:
    root = Path(shutil.copytree(root, tmp_path / "root"))
    (root / "run" / file).write_bytes(b"PK")
    told = detection(root, study)
    assert f"{root / 'run' / file} cannot be read" in told
    assert EXACT in told
    assert "CAI ★ best: 1.000" in told
    assert (NOISE in told) == (file == "scores.npz")


def test_the_page_of_results_shows_the_same_tables(root: Path, tmp_path: Path) -> None:
    summary = json.loads((root / "run" / "summary.json").read_text())
    assert [one["title"] for one in study_tables("random-test-set-small", summary)] == [RANDOM]
    assert [one["title"] for one in study_tables("anything", summary)] == [EXACT, HEURISTIC]
    text = write_results_page(root, tmp_path / "results.md").read_text(encoding="utf-8")
    for name, (headings, _) in SHOWN.items():
        part = text[text.index(f"## {name}\n") :].split("\n## ")[0]
        assert [title for title in (EXACT, HEURISTIC, RANDOM) if title in part] == [
            title for title in headings if title in (EXACT, HEURISTIC, RANDOM)
        ]


def test_figures_for_papers_are_those_of_the_runs(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(shutil.copytree(root, tmp_path / "root"))

    def say() -> str:
        monkeypatch.setattr(sys, "argv", ["butfor", "study", "report", "table1", "--figures", "--root", str(root)])
        cli.main()
        return capsys.readouterr().out

    (root / "run" / "studies.json").unlink()  # fewer to draw
    shutil.rmtree(root / "run" / "pictures")
    summary = json.loads((root / "run" / "summary.json").read_text())
    (root / "run" / "summary.json").write_text(json.dumps(summary | {"others": []}))
    names = [path.name for path in write_study_figures(root, "table1") if path.suffix == ".svg"]
    assert names == [f"table1-pick-and-place-{kind}.svg" for kind in ("roc", "precision-recall", "reliability")]
    shutil.rmtree(root / "reports" / "figures")
    (root / "run" / "scores.npz").unlink()
    lack = f"pick-and-place without curves of its detectors: {root / 'run' / 'scores.npz'} is missing"
    assert f"Figures: {root / 'reports' / 'figures'}\n  {lack}" in say()
    assert [path.name for path in (root / "reports" / "figures").glob("*.svg")] == [
        "table1-pick-and-place-reliability.svg"
    ]
    (root / "run" / "diagnosis.json").write_text("{")
    assert "Figures: none of table1\n  nothing of pick-and-place: " in say()
    shutil.rmtree(root / "run")
    assert "Figures: none of table1\n  nothing of pick-and-place, which has not been run" in say()
    assert file_name("../K = 8 / 16") == "K-8-16"


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    write_full_run(tmp_path / "run", episodes=6, hostile=HOSTILE)
    write_studies(tmp_path, "arm" + HOSTILE)
    for name in ("trajectories", "random-training-data"):
        page = write_study_report(tmp_path, name).read_text(encoding="utf-8")
        assert HOSTILE not in page
        assert "&lt;script&gt;" in page


def test_the_page_is_alive_and_fits_the_smallest_screen(root: Path) -> None:
    wrong: list[Any] = []
    with chromium() as browser:
        view = browser.new_page(viewport={"width": 320, "height": 844})
        view.on("pageerror", lambda error: wrong.append(error))
        view.goto((root / "reports" / "trajectories.html").as_uri())
        for plot in SHOWN["trajectories"][1]:
            view.wait_for_selector(f"#plot-{plot} .main-svg")
        view.wait_for_function(f"() => {FITS}", timeout=5000)
    assert wrong == []
