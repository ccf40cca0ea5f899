"""Runs and studies are read as arms with curves and states; what is broken is an arm that says so."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.study_runs import RAMP, change_study, write_root, write_training

from butfor.analysis.arms import (
    ReadStudy,
    changes,
    decide_studies,
    differing_settings,
    read_run_folder,
    read_runs,
    read_study,
    study_names,
    use_of,
    weaknesses,
)
from butfor.analysis.claims import Claim, Curve, Found, verdict_from


def test_a_study_has_its_arms_in_their_states(tmp_path: Path) -> None:
    root = write_root(tmp_path / "root")
    assert study_names(root) == ["try"]
    study = read_study(root, "try")
    states = {arm.label: arm.state for arm in study.arms}
    expected = {"slow arm": "finished", "fast arm": "finished", "cut arm": "unfinished", "begun arm": "begun"}
    assert states.items() >= (expected | {"broken arm": "broken", "absent arm": "not run"}).items()
    assert all(bool(arm.words) == (arm.state != "finished") for arm in study.arms)
    assert {verdict.verdict for _, verdict, _ in study.verdicts} > {"undecided"}
    change_study(root, size="small")  # too short to decide anything
    assert {verdict.verdict for _, verdict, _ in read_study(root, "try").verdicts} == {"undecided"}


def test_an_evaluation_that_a_crash_cut_off_is_left_out(tmp_path: Path) -> None:
    folder = write_training(tmp_path / "run", [RAMP] * 3)
    text = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join(text[:-1]) + "\n" + text[-1][:9])  # the last seed's last line
    arm = read_run_folder(folder)
    assert arm.curve is not None
    assert arm.curve.episodes.tolist() == [100, 200, 300, 400]
    assert arm.curve.success.shape == (3, 4)
    (folder / "metrics.jsonl").write_text(json.dumps({"episode": 1, "seed": 0, "success": 1.5}))
    with pytest.raises(ValueError, match="success"):
        read_run_folder(folder)


def test_arms_that_were_evaluated_more_and_less_often_are_compared_with_a_warning(tmp_path: Path) -> None:
    often = read_run_folder(write_training(tmp_path / "fast", [RAMP] * 5), "often")
    assert often.curve is not None
    rarely = replace(often, label="rarely", curve=Curve(often.curve.episodes[1::2], often.curve.success[:, 1::2], 500))
    claim = Claim("It is faster.", "faster", "often", "rarely")
    (weakness,) = weaknesses(claim, [often, rarely])
    assert weakness.endswith("(often every 100 episodes, rarely every 200 episodes)")
    assert weaknesses(claim, [often, replace(often, label="rarely")]) == []
    assert weaknesses(replace(claim, kind="better"), [often, rarely]) == []


def test_an_arm_without_some_of_its_seeds_says_so(tmp_path: Path) -> None:
    """Seeds that are not there may be those that failed."""
    arm = read_run_folder(write_training(tmp_path / "fast", [RAMP] * 6), "fast")
    claim = Claim("It is better.", "better", "fast", "slow")
    assert weaknesses(claim, [replace(arm, asked=(10, 500))]) == ["fast has only 6 seeds of 10"]
    assert weaknesses(claim, [replace(arm, asked=(6, 500))]) == []
    fewer = replace(arm, seeds=arm.seeds[:4])
    assert weaknesses(claim, [fewer]) == ["fast has only 4 seeds"]


def test_studies_that_share_a_claim_keep_their_own_verdicts() -> None:
    claim = Claim("It is better.", "better", "fast", "slow")
    found = [verdict_from(Found("", evidence=(("reproduced", p),))) for p in (0.001, 0.9)]
    studies = [ReadStudy(name, "", "", "", "", [], [(claim, one, [])]) for name, one in zip("ab", found, strict=True)]
    decided, _ = decide_studies(studies)
    assert [study.verdicts[0][1].verdict for study in decided] == ["reproduced", "undecided"]


def test_the_settings_of_a_label() -> None:
    assert changes("training-pick-and-place-a.b=-1e-05-seeds=3") == ["a.b=-1e-05", "seeds=3"]
    assert changes("training-push") == []


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, "without influence"),
        ({"use": ["priority", "bonus"]}, "priority + bonus"),
        ({"use": ["bonus"], "signal": "vime"}, "vime"),
        ({"priority": {"kind": "per"}}, "PER"),
    ],
)
def test_what_a_run_uses_in_words(settings: dict[str, Any], expected: str) -> None:
    assert use_of(settings) == expected


def test_only_settings_with_different_values_differ(tmp_path: Path) -> None:
    """A setting that one run does not have came later, and is not a difference."""
    folders = [write_training(tmp_path / name, [RAMP] * seeds) for name, seeds in (("a", 2), ("b", 3))]
    config = json.loads((folders[1] / "config.json").read_text())
    config["config"]["vime"] = {"layers": 2}
    (folders[1] / "config.json").write_text(json.dumps(config))
    arms = read_runs(folders)
    assert [arm.label for arm in arms] == ["a", "b"]  # both use influence in the same way
    assert differing_settings(arms) == [("seeds", ["2", "3"])]
    with pytest.raises(ValueError, match="twice"):
        read_runs([folders[0], folders[0]])
