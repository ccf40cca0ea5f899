"""Every study is made of configs that exist, and its claims are about its own arms."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.project import ROOT

from butfor.analysis.claims import Claim
from butfor.detection.settings import detection_preset
from butfor.runs.files import read_json
from butfor.studies.paper import HER, STUDIES, Study, make_study, study_states, write_study
from butfor.studies.units import unit_name
from butfor.training.settings import Config, preset

torch.set_num_threads(1)
ISSUED = {
    "table1", "detection-curves", "random-test-set", "random-training-data", "trajectories", "intrinsic", "bonus-sweep",
    "active-sweep", "exploration", "replay-push", "replay-pick-and-place", "replay-rot-table", "combined",
    "vime-variants", "disagreement-variants", "partial-rescoring", "heatmaps",
}  # fmt: skip


def configs(study: Study) -> dict[str, Config]:
    return {label: config for label, config in study.arms.items() if isinstance(config, Config)}


def test_every_experiment_of_the_paper_is_there_except_its_negative_results() -> None:
    ours = {"controls", "touch-model", "touch-model-push", "record", "record-push", "record-fetch-slide"}
    assert set(STUDIES) == ISSUED | ours


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("size", ["paper", "small"])
def test_a_study_has_a_name_arms_and_claims_about_them(name: str, size: str) -> None:
    study = make_study(name, size)  # type: ignore[arg-type]
    assert study.name == name
    folders = [unit_name(config) for config in study.arms.values()]
    assert len(set(folders)) == len(folders) > 0  # two arms that are the same run would be a mistake
    assert study.claims
    for claim in study.claims:
        assert {*claim.own, *claim.others} <= set(study.arms)


@pytest.mark.parametrize("name", STUDIES)
def test_the_papers_size_is_ten_seeds(name: str) -> None:
    for config in configs(make_study(name)).values():
        assert config.seeds == 10


def test_the_arms_are_what_their_labels_say() -> None:
    combined = configs(make_study("combined"))
    assert len(combined) == 8
    assert combined[HER].use == ()
    assert combined["P + bonus + active"].use == ("priority", "bonus", "active")
    sweep = configs(make_study("bonus-sweep"))
    assert {0.0 if not c.use else c.bonus.weight for c in sweep.values()} == {0, 0.05, 0.1, 0.2, 0.5, 1}
    active = configs(make_study("active-sweep"))
    assert {0.0 if not c.use else c.explore.active for c in active.values()} == {0, 0.25, 0.5, 0.75, 1}
    rotating = configs(make_study("replay-rot-table"))
    assert {c.env for c in rotating.values()} == {"rot-table"}
    assert [rotating[label].priority.kind for label in (HER, "EBP", "PER")] == ["uniform", "ebp", "per"]
    assert rotating["CAI-P"].use == ("priority",)
    assert rotating[HER].agent == preset("rot-table").agent
    assert configs(make_study("partial-rescoring"))["newest"].cai.rescore == "newest"


def test_studies_share_their_runs() -> None:
    shared = unit_name(configs(make_study("combined"))[HER])
    names = {name for name in STUDIES if shared in {unit_name(config) for config in make_study(name).arms.values()}}
    assert names == {"combined", "exploration", "bonus-sweep", "active-sweep", "replay-pick-and-place", "controls"}
    assert "trained once for five of them" in (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
    studies = [make_study(name) for name in ("table1", "trajectories", "random-test-set")]
    detection = {unit_name(study.arms["pick-and-place"]) for study in studies}
    assert detection == {unit_name(detection_preset("pick-and-place"))}


def test_options_change_every_arm_and_nothing_else() -> None:
    options = {"seeds": 3, "episodes": 3000, "num_envs": 2, "evaluate_every": 400}
    study = make_study("combined", **options, overlap=("updates",))  # type: ignore[arg-type]
    for label, config in configs(study).items():
        expected = replace(configs(make_study("combined"))[label], **options, overlap=("updates",))  # type: ignore[arg-type]
        assert config == expected


def test_a_small_study_asks_its_own_questions_and_keeps_its_own_record(tmp_path: Path) -> None:
    studies = [make_study(name, "small") for name in ("detection-curves", "random-training-data")]
    assert [study.arms["pick-and-place"].studies for study in studies] == [("actions", "noise"), ("helps",)]  # type: ignore[union-attr]
    whole = write_study(make_study("combined"), tmp_path, "paper")
    assert write_study(make_study("combined", "small"), tmp_path, "small") != whole


def test_what_there_is_not_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'table2'.* table1"):
        make_study("table2")
    with pytest.raises(ValueError, match=r"size.*'large'"):
        make_study("table1", "large")  # type: ignore[arg-type]


def test_a_study_leaves_a_record_of_its_arms_and_claims(tmp_path: Path) -> None:
    study = make_study("replay-push")
    record = read_json(write_study(study, tmp_path, "paper"))
    assert record["schema"] == 1
    assert [arm["folder"] for arm in record["arms"]] == [unit_name(config) for config in study.arms.values()]
    assert [Claim(**claim) for claim in record["claims"]] == study.claims
    assert {state.state for state in study_states(study, tmp_path).values()} == {"absent"}
    short = make_study("replay-push", seeds=3, episodes=3000)  # the record says what the paper's size asks all the same
    record = read_json(write_study(short, tmp_path, "paper"))
    assert [arm["folder"] for arm in record["arms"]] == [unit_name(config) for config in short.arms.values()]
    assert {(arm["seeds"], arm["episodes"]) for arm in record["arms"]} == {(10, 10_000)}
