"""Pages of studies and of training runs: the numbers, what is missing, the verdicts; alive in a browser."""

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page
from results_page import write_results_page as write_pages
from support.browser import chromium
from support.detection_runs import write_full_run
from support.pages import BREAKOUT, FITS, HOSTILE, Tags, page_data, section, words
from support.scenes import small_scene
from support.study_runs import (
    ARM,
    RAMP,
    add_behaviour,
    add_phases,
    change_study,
    grey_png,
    write_detection_study,
    write_root,
    write_training,
)

from butfor import cli
from butfor.analysis import arms as report_arms
from butfor.analysis.claims import Finding, Verdict, finding_of
from butfor.analysis.table_claims import RULES
from butfor.reporting import study_page
from butfor.reporting import study_page as report_study
from butfor.reporting.charts import MOST_POINTS, arm_look
from butfor.reporting.study_page import study_tables, write_study_index, write_study_report
from butfor.runs.files import parse_json, read_json
from butfor.runs.reading import read_metrics
from butfor.scenes.scene import SCENE_FILE, save_scene


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_root(tmp_path_factory.mktemp("study") / "root")
    (root / "fast" / "strip.png").write_bytes(grey_png(1322, 340))
    assert write_study_report(root, "try") == root / "reports" / "try.html"
    return root


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return (root / "reports" / "try.html").read_text(encoding="utf-8")


def row_of(page: str, label: str) -> str:
    """The words of an arm's row in the table of numbers."""
    rows = re.findall(r'<tr role="row".*?</tr>', section(page, "numbers"), re.DOTALL)
    (found,) = [words(row) for row in rows if words(row).startswith(label)]
    return found


def test_the_table_says_what_follows_from_the_curves(page: str) -> None:
    success = "1.00 ± 0.00 [1.00, 1.00] at 500 IQM 1.00 [1.00, 1.00]"
    fast = f"{success} 200 200 to 200 300 300 to 300 500 500 to 500 500 500 to 500"
    # The shared range is 100 to 500 episodes: the mean height of the ramp is 0.6, and it is above every flat curve,
    # which is not at 60 % by 500: 500 / 300 is a lower bound.
    times, better = "> 1.7 [1.7, ∞)", "1.00 [0.62, 1.00] up to 500"
    assert row_of(page, "fast arm") == f"fast arm 5 seeds {fast} 0.60 [0.60, 0.60] {times} {better}"
    never, success = "> 500 5 of 5 never", "0.10 ± 0.00 [0.10, 0.10] at 500 IQM 0.10 [0.10, 0.10]"
    slow = f"{success} {never} {never} {never} {never} 0.10 [0.10, 0.10] baseline baseline"
    assert row_of(page, "slow arm") == f"slow arm 5 seeds {slow}"
    # Cut off at 300: 90 % is not reached by then, and the area of the shared range is not known.
    cut = "300 300 to 300 > 300 5 of 5 never > 300 5 of 5 never – > 1.7 [1.7, ∞) 1.00"
    assert cut in row_of(page, "cut arm")
    assert row_of(page, "cut arm").startswith("cut arm 5 seeds; unfinished")


def test_few_seeds_have_a_range_and_no_interval(page: str) -> None:
    row = row_of(page, "few arm")
    success = "0.40 ± 0.16 0.20 to 0.60 at 500 IQM 0.40 0.20 to 0.60"  # of 0.2, 0.4 and 0.6
    assert row.startswith(f"few arm 3 seeds {success} 100 100 to > 500 1 of 3 never > 500 2 of 3 never")
    assert row.endswith("0.40 0.20 to 0.60 – too few seeds 1.00 too few seeds up to 500")
    assert "[" not in row
    assert "few arm has only 3 seeds" in words(section(page, "claims"))
    assert "few arm has only 3 seeds: no intervals, the range over seeds is shown." in words(page)


def test_what_is_missing_is_said(page: str) -> None:
    top = words(page[: page.index("<main>")])
    assert "4 of 8 arms finished, 2 unfinished, 1 not run, 1 broken" in top
    for sentence in (
        "cut arm was played for 330 of 500 episodes; its last evaluation is at 300.",
        "begun arm has begun and has no evaluation yet (0 of 500 episodes).",
        "absent arm has not been run.",
    ):
        assert sentence in top
    assert "broken arm cannot be read:" in top
    assert "not run has not been run" in row_of(page, "absent arm")


def test_verdicts_are_worded_and_coloured(page: str) -> None:
    claims = re.findall(r'<li class="claim (\w+)">(.*?)</li>', section(page, "claims"), re.DOTALL)
    told = [(colour, words(text)) for colour, text in claims]
    # 60 % after 300 episodes against never within 500: a bound of 1.7 shows "faster", and no factor of 2.
    expected = [
        "open ? undecided",  # five seeds of five have a p-value of 2 / 32
        "middle ◐ partly",
        "bad ✗ not reproduced",
        "open ? undecided",
        "open ? undecided",  # three seeds are too few
    ]
    for (colour, text), verdict in zip(told, expected, strict=True):
        assert colour == verdict.split()[0]
        assert verdict.partition(" ")[2] in text
        assert "How this is decided" in text
    assert "fast arm at 500 episodes: 1.00 [1.00, 1.00], median seed; 5 of 5 seeds have 0.95 or more." in told[0][1]
    assert "Here: level 95 %, within 500 episodes." in told[0][1]
    assert "more than 1.7 [1.7, unbounded] times fewer episodes. The paper says 2" in told[1][1]
    assert "absent arm: not measured yet." in told[3][1]
    assert "1 partly ✗ 1 not reproduced ? 3 undecided" in words(page[: page.index("<main>")])


def results_text(root: Path, page: Path) -> str:
    """The page of results and all pages beside it."""
    write_pages(root, page)
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(page.parent.glob("results*.md")))


def test_small_runs_decide_nothing(tmp_path: Path) -> None:
    root = write_root(tmp_path / "root")
    change_study(root, size="small")
    assert {verdict.verdict for _, verdict, _ in report_arms.read_study(root, "try").verdicts} == {"undecided"}
    assert report_arms.SMALL in words(write_study_report(root, "try").read_text(encoding="utf-8"))
    assert report_arms.SMALL in results_text(root, tmp_path / "results.md")


def test_curves_have_means_bands_and_seeds(page: str) -> None:
    traces = page_data(page)["figures"]["curves"]["data"]
    groups = {"slow": "arm-0", "fast": "arm-1", "cut": "arm-2", "few": "arm-3"}
    assert {trace["legendgroup"] for trace in traces} == set(groups.values())
    assert {trace["meta"] for trace in traces if trace["visible"]} == {"mean"}
    for name, group in groups.items():
        mine = [trace for trace in traces if trace["legendgroup"] == group]
        assert sum(trace["meta"] == "seeds" for trace in mine) == (3 if name == "few" else 5)
        shade, line = (trace for trace in mine if trace["meta"] == "mean")
        if name == "few":
            assert shade["y"] == [0.6] * 5 + [0.2] * 5  # the range
            assert line["y"] == pytest.approx([0.4] * 5)
        if name == "fast":
            assert line["y"] == pytest.approx(RAMP)
            assert line["customdata"] == [[value, value] for value in RAMP]
        assert (line["marker"]["symbol"][-1] == "x") == (name == "cut")  # a cross where it was cut off
    assert len({trace["line"]["color"] for trace in traces if trace["meta"] == "seeds"}) == 4


def test_what_was_run_is_told(page: str) -> None:
    run = words(section(page, "run"))
    assert "butfor study try" in run
    assert "All runs change these settings from the defaults" in run
    assert "use=('priority',) , agent.learning_rate=1e-05" in run.replace(" .", "")
    assert "seeds=5 5 1 min 40 s cpu, 2 cores abc123" in run


def test_a_detection_arm_has_its_table_and_a_link(page: str) -> None:
    part = section(page, "detection")
    assert "1,234 states of slide, exact label" in words(part)
    assert "0.900 ± 0.010 0.95 ± 0.01" in words(part)
    assert 'href="../detection/report.html"' in part


def test_the_page_fetches_nothing(page: str) -> None:
    tags = Tags(page)
    links = [value for _, given in tags.found for key, value in given.items() if key in ("src", "href")]
    assert all(value and value.startswith(("data:", "#", "../", "index.html")) for value in links), links
    assert len(tags.named("script")) == 4
    (policy,) = [meta for meta in tags.named("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert str(policy["content"]).startswith("default-src 'none'")


def test_hostile_text_stays_text(tmp_path: Path, page: str) -> None:
    root = write_root(tmp_path / "root", note=HOSTILE + BREAKOUT)
    hostile = write_study_report(root, "try").read_text(encoding="utf-8")
    index = write_study_index(root).read_text(encoding="utf-8")
    for text in (hostile, index):
        assert HOSTILE not in text
        assert BREAKOUT not in text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
        assert not Tags(text).named("img")
    assert len(Tags(hostile).named("script")) == len(Tags(page).named("script"))
    told = results_text(root, tmp_path / "results.md")
    told = re.sub(r"```sh\n[^`]*\n```", "", told)  # a block of code is shown as it is
    assert "```" not in told
    assert "<script" not in told
    assert "<img" not in told


def test_the_index_counts_and_links(root: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(root, tmp_path / "root"))
    shutil.copy(root / "studies" / "try.json", root / "studies" / "other.json")
    page = write_study_index(root).read_text(encoding="utf-8")
    assert [tag["href"] for tag in Tags(page).named("a")] == ["try.html"]  # the other has no page yet
    assert words(page).count("◐ 1 partly ✗ 1 not reproduced ? 3 undecided") == 2
    assert words(page).count("4 of 8 arms finished, 2 unfinished, 1 not run, 1 broken; size paper") == 2
    assert "no page yet" in page
    (tmp_path / "empty").mkdir()
    assert "There are no studies yet" in write_study_index(tmp_path / "empty").read_text(encoding="utf-8")


def test_runs_that_are_shorter_than_the_study_asks_say_so(root: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(root, tmp_path / "root"))

    def told(*names: str, **asked: int) -> tuple[str, str]:
        names = names or ("fast", "few", "no")
        change_study(root, arms=[{"label": name, "folder": name, "kind": "training"} | asked for name in names])
        page = write_study_report(root, "try").read_text(encoding="utf-8")
        return words(page[: page.index("<main>")]), words(write_study_index(root).read_text(encoding="utf-8"))

    page, index = told(seeds=3, episodes=500)
    assert "2 of 3 arms finished, 1 not run Claims" in page
    assert "2 of 3 arms finished, 1 not run; size paper Written by" in index
    page, index = told(seeds=10, episodes=20_000)
    short = "3 to 5 of the paper's 10 seeds, 500 of the paper's 20,000 episodes"
    assert f"2 of 3 arms finished, 1 not run; {short}" in page
    assert f"2 of 3 arms finished, 1 not run; size paper, but {short}" in index
    page, _ = told("fast", "cut", seeds=5, episodes=500)
    assert "1 of 2 arms finished, 1 unfinished; 330 to 500 of the paper's 500 episodes" in page  # what was played


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "schema": ({"schema": 2}, r"try\.json has schema 2"),
    "no arms": ({"arms": []}, r"try\.json.*arm"),
    "twice": ({"arms": [ARM, ARM]}, r"try\.json.*label"),
    "elsewhere": ({"arms": [ARM | {"folder": "../fast"}]}, r"'\.\./fast'"),
    "absolute": ({"arms": [ARM | {"folder": "/tmp"}]}, "'/tmp'"),
    "no label": ({"arms": [{"folder": "fast"}]}, "'label'"),
    "odd claim": ({"claims": [{"words": "x", "kind": "guess", "arm": "a"}]}, "'guess'"),
    "odd key": ({"claims": [{"wrds": "x"}]}, r"try\.json"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_study_is_refused_with_a_sentence(case: str, tmp_path: Path) -> None:
    root, (values, message) = write_root(tmp_path / "root"), BROKEN[case]
    change_study(root, **values)
    with pytest.raises(ValueError, match=message) as raised:
        write_study_report(root, "try")
    assert "\n" not in str(raised.value)
    assert not (root / "reports").exists()


def test_names_of_studies(root: Path) -> None:
    with pytest.raises(ValueError, match=r"'\.\./try'"):
        write_study_report(root, "../try")
    with pytest.raises(FileNotFoundError, match=r"nothing\.json"):
        write_study_report(root, "nothing")


def test_a_training_run_has_a_page(root: Path, tmp_path: Path) -> None:
    cut = Path(shutil.copytree(root / "cut", tmp_path / "cut"))
    page = study_page.write_report(cut).read_text(encoding="utf-8")
    assert (cut / "report.html").is_file()
    assert "Learning push" in words(page)
    assert "330 of 500" in words(page)
    assert "The run was played for 330 of 500 episodes" in words(page)
    assert "Success at 300 episodes 0.60 ± 0.00 [0.60, 0.60]" in words(page)
    assert "agent.learning_rate" not in words(section(page, "numbers"))
    assert "Better than" not in page
    begun = Path(shutil.copytree(root / "begun", tmp_path / "begun"))
    page = study_page.write_report(begun).read_text(encoding="utf-8")
    assert "The run has begun and has no evaluation yet (0 of 500 episodes)." in words(page)
    assert "plotly.js v" not in page
    one = write_training(tmp_path / "one", [RAMP])
    page = study_page.write_report(one).read_text(encoding="utf-8")
    assert "There is only 1 seed: no intervals." in words(page)
    assert row_of(page, "priority").startswith("priority 1 seed 1.00 one seed at 500 200 one seed")


def test_films_and_heat_maps(root: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(root / "fast", tmp_path / "fast"))
    (run / "watch.gif").write_bytes(b"GIF89a" + bytes(50))
    (run / "watch.mp4").write_bytes(bytes(report_study.MOST_BYTES + 1))  # too large: a link
    score = np.arange(15.0).reshape(5, 3)
    np.savez(run / "heatmap.npz", episodes=[100, 200, 300], score=score, label=score > 7)
    page = study_page.write_report(run).read_text(encoding="utf-8")
    images = [str(tag["src"]) for tag in Tags(page).named("img")]
    assert sum(image.startswith("data:image/gif") for image in images) == 1
    assert 'href="watch.mp4"' in page
    figures = page_data(page)["figures"]
    assert figures["heat-0-0"]["data"][0]["z"] == score.tolist()
    assert figures["heat-0-1"]["data"][0]["z"] == (100.0 * (score > 7)).tolist()
    earlier = words(section(page, "heat"))
    assert "Of seed 0, the run’s first." in earlier
    assert "from a few replayed episodes of each group" in earlier  # the file does not say how many
    said: dict[str, Any] = {"seed": 3, "counts": [102, 101, 101], "labelled": [4, 4, 4]}
    np.savez(run / "heatmap.npz", episodes=[100, 200, 300], score=score, label=score > 7, **said)
    told = words(section(study_page.write_report(run).read_text(encoding="utf-8"), "heat"))
    assert "Of seed 3, the run’s first. A column is a group of 101 to 102 episodes." in told
    assert "from 4 replayed episodes of each group" in told
    (run / "watch.gif").write_bytes(b"<svg onload=alert(1)>")
    (run / "heatmap.npz").write_bytes(b"PK")
    page = study_page.write_report(run).read_text(encoding="utf-8")  # the numbers are shown all the same
    assert "data:image/gif" not in page
    assert 'aria-labelledby="heat"' not in page
    assert "heatmap.npz cannot be read" in words(page[: page.index("<main>")])


def test_a_run_that_was_resumed_by_other_versions_says_so(root: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(root / "few", tmp_path / "few"))
    versions = read_json(run / "versions.json")
    resumed = [{"command": "butfor train --resume few", "commit": "def456", "device": "NVIDIA"}, {"started": "later"}]
    (run / "versions.json").write_text(json.dumps(versions | {"resumed": resumed}))
    told = words(section(study_page.write_report(run).read_text(encoding="utf-8"), "run"))
    assert "command butfor train started" in told  # that which began it
    assert "resumed.0.command butfor train --resume few resumed.0.commit def456" in told
    assert "resumed.1.started later" in told


def test_a_strip_of_earlier_versions_is_shown_where_there_is_no_player(page: str, root: Path, tmp_path: Path) -> None:
    (image,) = Tags(page).named("img")
    assert "fast arm" in str(image["alt"])
    run = Path(shutil.copytree(root / "fast", tmp_path / "fast"))
    save_scene(run / SCENE_FILE, small_scene(2))
    assert Tags(study_page.write_report(run).read_text(encoding="utf-8")).named("img") == []


def test_what_the_agent_does_is_drawn_where_it_was_measured(root: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(root / "few", tmp_path / "few"))
    rows = read_metrics(run)
    for row in rows:
        row |= {"moved": row["seed"] / 10, "held": 0.0}
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = study_page.write_report(run).read_text(encoding="utf-8")
    figures = page_data(page)["figures"]
    assert set(figures) == {"curves", "curves-moved", "curves-held"}
    shade, line = figures["curves-moved"]["data"]
    assert line["y"] == pytest.approx([0.1] * 5)  # the mean of 0, 0.1 and 0.2
    assert shade["y"] == [0.2] * 5 + [0.0] * 5
    assert "Moved Held" in words(section(page, "behaviour"))


def test_of_a_long_run_every_row_is_read_once_and_a_line_has_as_many_points_as_a_screen_shows(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time grows with the rows, and the page does not grow."""
    run = Path(shutil.copytree(root / "few", tmp_path / "few"))
    count = 2 * MOST_POINTS + 1
    rows = [
        {"episode": number, "seed": seed, "success": number / count, "held": 0.5, "critic_loss": float(number)}
        for number in range(1, count + 1)
        for seed in range(2)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    parsed = []

    def count_row(text: bytes | str, name: Path | str) -> Any:
        parsed.append(name)
        return parse_json(text, name)

    monkeypatch.setattr("butfor.runs.reading.parse_json", count_row)
    page = study_page.write_report(run).read_text(encoding="utf-8")
    assert len([name for name in parsed if "metrics.jsonl" in str(name)]) == len(rows)
    figures = page_data(page)["figures"]
    lines = [line for name in ("curves", "curves-held", "trained-critic_loss") for line in figures[name]["data"]]
    assert {len(line["x"]) for line in lines} == {MOST_POINTS, 2 * MOST_POINTS}  # a line, and both edges of a band
    ends = [(line["x"][0], line["x"][-1]) for line in lines if len(line["x"]) == MOST_POINTS]
    assert set(ends) == {(1, count)}
    assert f"{MOST_POINTS:,} evenly spaced evaluations of {count:,}" in words(page)


def test_arms_can_be_told_apart() -> None:
    looks = [tuple(arm_look(place, 18).values()) for place in range(18)]
    assert len(set(looks)) == 18


def test_the_command_writes_figures_and_curves_for_rliable(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(shutil.copytree(root, tmp_path / "root"))

    def say(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["butfor", *arguments])
        cli.main()
        return capsys.readouterr().out

    said = say("study", "report", "try", "--figures", "--rliable", "--root", str(root))
    assert f"Figures: {root / 'reports' / 'figures'}" in said
    assert (root / "reports" / "figures" / "try-curves.svg").is_file()
    with np.load(root / "reports" / "try-rliable.npz") as found:
        assert found["episodes"].tolist() == [100, 200, 300]  # those that the arm has that was cut off
        assert set(found.files) == {"tasks", "episodes", "slow arm", "fast arm", "cut arm", "few arm"}
        np.testing.assert_array_equal(found["fast arm"], np.tile(RAMP[:3], (5, 1, 1)))
        assert found["few arm"].shape == (3, 1, 3)
    said = say("report", str(root / "few"), "--figures")
    assert {path.name for path in (root / "few" / "figures").glob("*.svg")} == {"curves.svg", "reach.svg"}
    with pytest.raises(SystemExit, match=r"begun"):
        say("report", str(root / "begun"), "--figures")
    change_study(root, arms=[ARM | {"folder": "absent"}])
    said = say("study", "report", "--figures", "--rliable", "--root", str(root))
    assert "Figures: none of try" in said
    assert "none of try: its arms share no evaluation" in said


def test_a_damaged_heat_map_keeps_no_study_from_its_report(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(shutil.copytree(root, tmp_path / "root"))
    (root / "few" / "heatmap.npz").write_bytes(b"PK")
    monkeypatch.setattr(sys, "argv", ["butfor", "study", "report", "--figures", "--root", str(root)])
    cli.main()
    said = capsys.readouterr().out
    assert "Figures: none of try: " in said
    assert "heatmap.npz cannot be read" in said
    assert "Index: " in said


def test_the_results_page_tells_what_the_agent_does_where_a_claim_is_about_it(root: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(root, tmp_path / "root"))
    add_behaviour(root / "few")
    few = next(arm for arm in read_json(root / "studies" / "try.json")["arms"] if arm["folder"] == "few")
    claim = {"words": "It moves it.", "kind": "reaches", "arm": few["label"], "level": 0.05, "measure": "moved"}
    change_study(root, claims=[claim])
    text = results_text(root, tmp_path / "results.md")
    assert "| episodes | moved | held |" in text
    assert "| 100 | 0.10 (0.00 to 0.20) | 0.50 (0.50 to 0.50) |" in text
    change_study(root, claims=[claim | {"measure": "success"}])
    assert "| moved |" not in results_text(root, tmp_path / "results.md")


def test_the_results_page(root: Path, tmp_path: Path) -> None:
    page = write_pages(root, tmp_path / "docs" / "results.md")
    short, text = page.read_text(encoding="utf-8"), results_text(root, tmp_path / "docs" / "results.md")
    row = "| [A try](results-learning.md#a-try) | Slow is on par. | **not reproduced** | slow arm against fast arm: "
    assert f"{row}area -0.500 [-0.500, -0.500] |" in short
    assert "3 claims of the table could be tested, and 2 of them are decided" in short
    assert "1 further claim cannot be judged" in short  # about an arm that has no curve
    assert "A try: *Slow is on par.* Nothing else was tried." in short
    assert "- **Undecided**: Fast gets there. (fast arm)\n  fast arm at 500 episodes: 1.00 [1.00, 1.00]," in text
    link = re.search(r"\| fast arm \(\[files\]\((.*?)\)\) \| 5 \| (.*?) \|", text)
    assert link
    assert (page.parent / link[1]).resolve() == (root / "fast").resolve()
    assert link[2] == "1.00 ± 0.00 [1.00, 1.00] (at 500; IQM 1.00 [1.00, 1.00])"
    assert "0.40 ± 0.16 (0.20 to 0.60) (at 500; IQM 0.40 0.20 to 0.60)" in text
    assert "| CAI | 0.900 ± 0.010 | 0.95 ± 0.01 |" in text
    missing = (page.parent / "results-missing.md").read_text(encoding="utf-8")
    for label in ("cut arm", "begun arm", "broken arm", "absent arm"):
        assert f"- A try: **{label}** " in missing
    assert "fast arm" not in missing
    rules = (page.parent / "results-rules.md").read_text(encoding="utf-8")
    assert rules.count("## A claim that an arm ") == len(RULES)


def test_how_far_training_episodes_get_is_told_where_it_was_recorded(root: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(root / "few", tmp_path / "few"))
    assert 'id="phases"' not in study_page.write_report(run).read_text(encoding="utf-8")
    add_phases(run)
    page = study_page.write_report(run).read_text(encoding="utf-8")
    told = words(section(page, "phases"))
    for part in ("50 %", "> 500", "25 %", "-8.2", "-12.5", "15 %", "90 %"):
        assert part in told
    assert {"trained-training_touched", "trained-value_reached", "trained-relay_acts"} <= set(
        page_data(page)["figures"]
    )
    rows = [{k: v for k, v in row.items() if not k.startswith(("value_", "relay_"))} for row in read_metrics(run)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))  # of another environment
    told = words(section(study_page.write_report(run).read_text(encoding="utf-8"), "phases"))
    assert "25 %" in told
    assert "-8.2" not in told


def test_the_results_page_lists_success_at_chosen_episodes_of_the_record(root: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(root, tmp_path / "root"))
    assert "success after" not in results_text(root, tmp_path / "results.md")
    (root / "studies" / "try.json").rename(root / "studies" / "record-try.json")
    text = results_text(root, tmp_path / "results.md")
    head = re.search(r"\| success after (\|.*\|)", text)
    found = re.search(r"\| fast arm \(\[files\]\([^)]*\)\) (\|.*\|)\n\|", text)
    assert head
    assert found
    episodes, cells = ([cell.strip() for cell in row[1].strip("|").split("|")] for row in (head, found))
    shown = {episode: cell for episode, cell in zip(episodes, cells, strict=True) if cell != "–"}
    expected = {"200": "0.40 [0.40, 0.40]", "400": "0.80 [0.80, 0.80]", "500": "1.00 [1.00, 1.00]"}
    assert shown == expected  # of its evaluations, every 100 episodes up to 500, the chosen ones


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (("reproduced", "reproduced"), "reproduced"),
        (("reproduced", "undecided"), "partly"),
        (("reproduced", "not reproduced"), "partly"),
        (("undecided", "not reproduced"), "not reproduced"),
        (("undecided", "undecided"), "undecided"),
    ],
)
def test_a_claim_of_several_comparisons_has_one_verdict(found: tuple[Finding, ...], expected: str) -> None:
    assert finding_of([Verdict(one, "") for one in found]) == expected


def test_the_results_page_tells_which_runs_were_too_short_to_decide(root: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(root, tmp_path / "root"))
    claims = [
        {"words": "Slow gets there.", "kind": "reaches", "arm": "slow arm", "level": 0.99, "within": 20_000},
        {"words": "Fast is better.", "kind": "better", "arm": "fast arm", "than": "slow arm"},
    ]
    arms = read_json(root / "studies" / "try.json")["arms"]
    change_study(root, claims=claims, arms=[arm | {"seeds": 5, "episodes": 20_000} for arm in arms])
    text = results_text(root, tmp_path / "results.md")
    line = "claims that are not fully decided need more of the paper's episodes: **slow arm** (500 of 20,000)"
    assert f"- A try: {line}. `butfor study run try --arms 'slow arm'`" in text
    change_study(root, claims=claims, arms=[arm | {"seeds": 5, "episodes": 500} for arm in arms])
    assert "not fully decided" not in results_text(root, tmp_path / "results.md")


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
    "trajectories": ((EXACT, HEURISTIC), set()),
}


@pytest.fixture(scope="module")
def detection_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("studies") / "root"
    write_full_run(root / "run", episodes=6)
    save_scene(root / "run" / SCENE_FILE, small_scene(2))
    (root / "run" / "report.html").write_text("its own page")
    for name in NAMES:
        write_detection_study(root, name)
        write_study_report(root, name)
    return root


def page_of(root: Path, name: str) -> str:
    return (root / "reports" / f"{name}.html").read_text(encoding="utf-8")


def detection(root: Path, name: str) -> str:
    """The words of the part about detection, written anew."""
    return words(section(write_study_report(root, name).read_text(encoding="utf-8"), "detection"))


@pytest.mark.parametrize("name", NAMES)
def test_the_page_shows_the_experiment_of_its_study(detection_root: Path, name: str) -> None:
    page, (headings, plots) = page_of(detection_root, name), SHOWN[name]
    part = section(page, "detection")
    found = re.findall(r"<h4>(.*?)</h4>", part)
    assert sorted(words(heading) for heading in found) == sorted(headings)
    assert set(page_data(page)["figures"]) == plots
    assert {tag["id"] for tag in Tags(page).named("div") if "plot" in (tag.get("class") or "")} == {
        f"plot-{plot}" for plot in plots
    }
    assert '<a href="../run/report.html">Full report of this run</a>' in part


def test_tables_name_states_label_and_the_papers_share(detection_root: Path) -> None:
    told = words(section(page_of(detection_root, "table1"), "detection"))
    assert re.search(
        r"180 states of pick-and-place, heuristic label; [\d.]+% of them influenced \(paper: 41.2%\)", told
    )
    assert "90 states of pick-and-place, exact label" in words(
        section(page_of(detection_root, "random-test-set"), "detection")
    )


def test_curves_are_those_of_the_states_that_the_study_judges(detection_root: Path) -> None:
    """Chance in a chart of precision is the share of influenced states, which the sets do not share."""
    for name, file, key, plot in (
        ("detection-curves", "scores.npz", "label", "0-pr-0"),
        ("detection-curves", "scores.npz", "label_heuristic", "0-pr-1"),
        ("random-test-set", "scores-random.npz", "label", "0-pr-0"),
    ):
        with np.load(detection_root / "run" / file) as scores:
            share = float(scores[key].mean())
        chance = page_data(page_of(detection_root, name))["figures"][plot]["data"][-1]
        assert (chance["name"], chance["y"]) == ("chance", pytest.approx([share, share], abs=1e-5))


def test_episodes_are_shown_by_the_player(detection_root: Path) -> None:
    page = page_of(detection_root, "trajectories")
    (player,) = [tag for tag in Tags(section(page, "detection")).named("div") if tag.get("class") == "bf-player"]
    assert "butforStage2d" in page
    assert "THREE" not in page  # the scene is flat
    assert player.get("data-whole") is None
    assert "bf-player" not in page_of(detection_root, "table1")


def test_the_paper_has_columns_only_where_it_gives_numbers(detection_root: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(detection_root, tmp_path / "root"))
    summary = read_json(root / "run" / "summary.json")
    summary["detectors"] = [row | {"paper": None} for row in summary["detectors"]]
    (root / "run" / "summary.json").write_text(json.dumps(summary))
    tables = section(write_study_report(root, "table1").read_text(encoding="utf-8"), "detection").split("<h4>")[1:]
    assert ["columnheader" in table and 'class="number paper"' in table for table in tables] == [False, True]
    assert "The paper reports no numbers with this label on these states." in words(tables[0])


def test_what_a_folder_lacks_is_said_and_the_tables_are_there(detection_root: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(detection_root, tmp_path / "root"))
    for name in ("scores.npz", "scores-random.npz", "studies.json", "report.html"):
        (root / "run" / name).unlink()
    (root / "run" / SCENE_FILE).unlink()
    for name, sentences in {
        "detection-curves": ("(scores.npz)", "butfor detect --studies noise"),
        "random-test-set": ("(scores-random.npz)",),
        "random-training-data": ("butfor detect --studies helps",),
        "trajectories": (SCENE_FILE, "butfor report RUN --player"),
    }.items():
        told = detection(root, name)
        assert all(sentence in told for sentence in sentences), name
        assert "CAI ★ best: 1.000" in told
        assert "Full report" not in told
    (root / "run" / "figures").mkdir()  # committed results hold figures, not what they were drawn from
    for figure in ("timeline-1", "roc-random-exact"):
        (root / "run" / "figures" / f"{figure}.png").write_bytes(grey_png(3, 2))
    for name, figure in (("trajectories", "timeline-1"), ("random-test-set", "roc-random-exact")):
        page = write_study_report(root, name).read_text(encoding="utf-8")
        (image,) = Tags(page).named("img")
        assert image["alt"] == f"Figure {figure} of this run, drawn by butfor report --figures"
        assert "butfor report RUN --figures" not in page  # nothing is lacking
    summary = read_json(root / "run" / "summary.json")
    (root / "run" / "summary.json").write_text(json.dumps(summary | {"others": []}))
    assert "states of the random set" in detection(root, "random-test-set")


@pytest.mark.parametrize(
    ("study", "file"),
    [
        ("detection-curves", "scores.npz"),
        ("detection-curves", "studies.json"),
        ("trajectories", "player.json"),
    ],
)
def test_a_damaged_file_keeps_nothing_else_from_being_shown(
    detection_root: Path, tmp_path: Path, study: str, file: str
) -> None:
    root = Path(shutil.copytree(detection_root, tmp_path / "root"))
    (root / "run" / file).write_bytes(b"PK")
    told = detection(root, study)
    assert str(root / "run" / file) in told
    assert EXACT in told
    assert "CAI ★ best: 1.000" in told
    assert (NOISE in told) == (file == "scores.npz")


def test_the_page_of_results_shows_the_same_tables(detection_root: Path, tmp_path: Path) -> None:
    summary = read_json(detection_root / "run" / "summary.json")
    assert [one["title"] for one in study_tables("random-test-set-small", summary)] == [RANDOM]
    assert [one["title"] for one in study_tables("anything", summary)] == [EXACT, HEURISTIC]
    text = results_text(detection_root, tmp_path / "results.md")
    for name, (headings, _) in SHOWN.items():
        part = text[text.index(f"## {name}\n") :].split("\n## ")[0]
        assert [title for title in (EXACT, HEURISTIC, RANDOM) if title in part] == [
            title for title in headings if title in (EXACT, HEURISTIC, RANDOM)
        ]


def test_hostile_text_of_a_detection_run_stays_text(tmp_path: Path) -> None:
    write_full_run(tmp_path / "run", episodes=6, hostile=HOSTILE)
    for name in ("trajectories", "random-training-data"):
        write_detection_study(tmp_path, name, "arm" + HOSTILE)
        page = write_study_report(tmp_path, name).read_text(encoding="utf-8")
        assert HOSTILE not in page
        assert "&lt;script&gt;" in page


def test_a_page_of_episodes_is_alive_and_fits_the_smallest_screen(detection_root: Path) -> None:
    wrong: list[Any] = []
    with chromium() as browser:
        view = browser.new_page(viewport={"width": 320, "height": 844})
        view.on("pageerror", lambda error: wrong.append(error))
        view.goto((detection_root / "reports" / "trajectories.html").as_uri())
        for plot in SHOWN["trajectories"][1]:
            view.wait_for_selector(f"#plot-{plot} .main-svg")
        view.wait_for_function(f"() => {FITS}", timeout=30_000)
    assert wrong == []


@pytest.fixture(scope="module")
def shown(root: Path) -> Iterator[Page]:
    """The page of the study, open; afterwards nothing may have gone wrong in it and nothing may have been fetched."""
    wrong, fetched = list[str](), set[str]()
    with chromium() as browser:
        view = browser.new_page(viewport={"width": 1280, "height": 900})
        view.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
        view.on("pageerror", lambda error: wrong.append(str(error)))
        view.on("request", lambda request: fetched.add(request.url))
        view.goto((root / "reports" / "try.html").as_uri())
        view.wait_for_selector("#plot-curves .main-svg")
        yield view
        assert fetched == {view.url}
    assert wrong == []


def traces(view: Page) -> int:
    return view.locator("#plot-curves .scatterlayer .trace").count()


def test_a_reader_chooses_what_is_drawn(shown: Page) -> None:
    assert traces(shown) == 8  # four arms, each a line and a band
    shown.click("[data-shown=seeds]")
    assert traces(shown) == 5 + 5 + 5 + 3
    shown.click("#curve-legend button[data-detector=arm-3]")
    assert traces(shown) == 15
    shown.click("[data-shown=iqm]")
    assert traces(shown) == 6
    assert shown.get_attribute("[data-shown=iqm]", "aria-pressed") == "true"
    assert shown.get_attribute("[data-shown=seeds]", "aria-pressed") == "false"
    for arm in ("arm-0", "arm-1"):
        shown.click(f"#curve-legend button[data-detector={arm}]")
    assert shown.evaluate("document.getElementById('plot-curves').layout.xaxis.range[1]") == pytest.approx(1.02 * 300)
    for arm in ("arm-0", "arm-1", "arm-3"):
        shown.click(f"#curve-legend button[data-detector={arm}]")
    shown.click("[data-shown=mean]")
    assert traces(shown) == 8


def test_it_fits_every_screen_and_follows_the_colour_scheme(shown: Page) -> None:
    for details in shown.locator("main details > summary").all():
        details.click()
    for width in (320, 390, 768, 1000, 1280):
        shown.set_viewport_size({"width": width, "height": 844})
        shown.wait_for_function(f"() => {FITS}", timeout=30_000)
    colours = "[...document.querySelectorAll('#plot-curves .js-line')].map(line => line.style.stroke)"
    assert "rgb(0, 114, 178)" in shown.evaluate(colours)
    shown.emulate_media(color_scheme="dark")
    shown.wait_for_function(f"() => {colours}.includes('rgb(86, 180, 233)')")
    shown.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert "rgb(0, 114, 178)" in shown.evaluate(colours)  # paper is light
    shown.evaluate("window.dispatchEvent(new Event('afterprint'))")
    shown.emulate_media(color_scheme="light")


def test_the_table_of_arms_lies_in_its_column_with_names_of_two_lines_at_most(shown: Page) -> None:
    shown.set_viewport_size({"width": 1125, "height": 844})  # just wide enough for a table with columns
    box = "document.querySelector('section[aria-labelledby=numbers] table.arms').parentElement"
    names = "[...document.querySelectorAll('section[aria-labelledby=numbers] .arms .name')]"
    shown.evaluate(f"{names}.forEach(name => {{ name.lastChild.textContent = 'P + bonus + active' }})")
    assert shown.evaluate(f"{box}.scrollWidth <= {box}.clientWidth")
    assert shown.evaluate(f"Math.max(...{names}.map(name => name.getBoundingClientRect().height))") < 50
    shown.reload()
    shown.wait_for_selector("#plot-curves .main-svg")
