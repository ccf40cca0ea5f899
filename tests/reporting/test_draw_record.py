"""The picture of the record: curves where the runs are, published numbers in their places."""

import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import draw_record
import minutes
import pytest
from support.study_runs import FLAT, RAMP, write_training

from butfor.runs.reading import read_metrics

NAMESPACE = "{http://www.w3.org/2000/svg}"


def test_curves_and_published_numbers_are_where_they_belong(tmp_path: Path) -> None:
    write_training(tmp_path / "push-record", [RAMP] * 5)
    write_training(tmp_path / "push-paper", [FLAT] * 5)
    write_training(tmp_path / "pick-and-place-paper", [FLAT] * 5)  # without the record there is no panel
    text = draw_record.draw(tmp_path)
    drawn = ElementTree.fromstring(text)
    lines = [line.attrib["points"].split() for line in drawn.iter(f"{NAMESPACE}polyline")]
    ramp = [tuple(map(float, point.split(","))) for point in lines[0]]
    x, y = draw_record.LEFT, draw_record.TOP
    width = draw_record.WIDTH - draw_record.LEFT - draw_record.RIGHT
    for place, (success, point) in enumerate(zip(RAMP, ramp, strict=True), start=1):
        assert point == pytest.approx((x + width * place / 5, y + draw_record.HEIGHT * (1 - success)), abs=0.06)
    assert len(lines) == 2
    words = " ".join(part.text or "" for part in drawn.iter(f"{NAMESPACE}text"))
    assert "FetchPush" in words
    assert "FetchPickAndPlace" not in words
    assert "RHER: 0.95 at 1,300" in words
    assert "5 seeds" in words
    assert "Fetch v1, MuJoCo 2.0" in words
    assert not re.search(r'l6 6l-6 6l-6 -6z" fill="#000"', text)  # all published numbers lie beyond 500 episodes


def test_a_published_number_within_the_axis_is_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(draw_record.ANCHORS, "push", [draw_record.Anchor("other", 0.5, 250)])
    write_training(tmp_path / "push-record", [RAMP] * 5)
    marked = re.search(r'<path d="M([\d.]+) ([\d.]+)l6 6', draw_record.draw(tmp_path))
    assert marked
    middle = draw_record.LEFT + (draw_record.WIDTH - draw_record.LEFT - draw_record.RIGHT) / 2
    assert float(marked[1]) == pytest.approx(middle)
    assert float(marked[2]) + 6 == pytest.approx(draw_record.TOP + draw_record.HEIGHT / 2)


def test_without_runs_the_folders_that_are_expected_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="push-record"):
        draw_record.draw(tmp_path)


def test_minutes_are_those_of_the_evaluation_that_reaches_the_level(tmp_path: Path) -> None:
    """RAMP has 0.8 at 400 and 1.0 at 500 episodes; 3 seconds an episode."""
    run = write_training(tmp_path / "run", [RAMP, FLAT])
    rows = [row | {"seconds": 3 * row["episode"]} for row in read_metrics(run)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert minutes.minutes(run, 0.9) == {0: (500, 25), 1: (math.inf, math.inf)}
    assert minutes.minutes(run, 0.8)[0] == (400, 20)
