"""A miniature of the detection study: complete, reproducible, and the same however often it was cut off."""

import json
import os
import shutil
import signal
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from support import slide
from support.project import ROOT
from support.small_detection import CONFIG
from support.small_training import small

import butfor
from butfor.detection import data as detection_data
from butfor.detection import detectors
from butfor.detection import experiment as detection
from butfor.detection.experiment import run_detection
from butfor.detection.settings import DetectionConfig, detection_preset
from butfor.influence.gaussian import KL_FORMS
from butfor.influence.influence import Influence
from butfor.influence.scoring import ScoreConfig
from butfor.models.attention import AttentionConfig
from butfor.models.dynamics import ModelConfig
from butfor.rollouts.episodes import Episodes
from butfor.runs.files import read_json
from butfor.runs.reading import read_metrics

torch.set_num_threads(1)  # the promise of equal bits is for an equal number of threads

STATES = 10 * 30  # no slide episode ends early
STAGES = ["test data", "train data", "validation data", "fit CAI", "fit Attention", "scoring"]
LEARNED, RULES = ["cai", "entropy", "attention"], ["contact", "moved", "distance"]
FORMS = [f"cai_{form}" for form in KL_FORMS]
FILES = {
    "config.json", "versions.json", "metrics.jsonl", "summary.json", "scores.npz", "model.safetensors",
    "diagnosis.json", "data/train.npz", "data/validation.npz", "data/test.npz", "checkpoint/cai.pt",
    "checkpoint/attention.pt",
}  # fmt: skip

Call = tuple[str, int, int, str]


class Stop(Exception):
    """What a test breaks a run off with."""


def files(folder: Path) -> set[str]:
    """Every file of a run, hidden ones too."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def arrays(path: Path) -> dict[str, NDArray[Any]]:
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def results(folder: Path) -> dict[str, Any]:
    """Everything that a run computes, bit for bit."""
    found: dict[str, Any] = {name: read_json(folder / name) for name in ("config.json", "summary.json")}
    found["metrics"] = read_metrics(folder)
    for name in ("scores.npz", "data/train.npz", "data/validation.npz", "data/test.npz"):
        found |= {f"{name} {key}": (a.dtype, a.shape, a.tobytes()) for key, a in arrays(folder / name).items()}
    with safe_open(folder / "model.safetensors", framework="np") as file:
        found |= {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118
    return found


def assert_same_results(folder: Path, other: Path) -> None:
    one, two = results(folder), results(other)
    assert one.keys() == two.keys()
    assert [name for name in one if one[name] != two[name]] == []
    assert files(folder) == files(other)


def stop_at(wanted: int) -> Callable[[str, int, int, str], None]:
    """A progress callback that breaks the run off at its call number `wanted`."""
    calls = 0

    def progress(stage: str, done: int, total: int, text: str) -> None:
        nonlocal calls
        if calls == wanted:
            raise Stop(stage)
        calls += 1

    return progress


@pytest.fixture
def hasty_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a minute passes between any two looks at the clock, so every validation leaves a checkpoint."""
    ticks = iter(range(0, 10**9, 31))
    clock = types.SimpleNamespace(monotonic=lambda: next(ticks), perf_counter=lambda: next(ticks))
    monkeypatch.setattr(detection, "time", clock)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Call]]:
    """A run that nothing disturbed, and the calls of its progress."""
    calls: list[Call] = []
    folder = tmp_path_factory.mktemp("study") / "unbroken"
    run_detection(CONFIG, folder, progress=lambda *call: calls.append(call))
    return folder, calls


@pytest.fixture(scope="module")
def finished(unbroken: tuple[Path, list[Call]]) -> Path:
    return unbroken[0]


@pytest.fixture(scope="module")
def calls(unbroken: tuple[Path, list[Call]]) -> list[Call]:
    return unbroken[1]


# --------------------------------------------------------------------------------------------- the folder


def test_a_run_leaves_its_files_and_nothing_else(finished: Path) -> None:
    assert files(finished) == FILES


def test_config_and_versions(finished: Path) -> None:
    config = read_json(finished / "config.json")
    assert config["schema"] == 1
    assert config["kind"] == "detection"
    assert config["label"].startswith("detection-slide-seeds=2-data=scripted-train_episodes=11-")
    assert config["config"]["env"] == "slide"
    assert config["config"]["fitting"]["max_epochs"] == 5
    versions = read_json(finished / "versions.json")
    needed = {
        "butfor", "python", "torch", "numpy", "commit", "platform", "processor", "device", "threads", "command",
        "started", "seconds",
    }  # fmt: skip
    assert needed <= versions.keys()
    assert versions["butfor"] == butfor.__version__
    assert versions["device"] == "cpu"
    assert versions["threads"] == 1
    assert 0 < versions["seconds"] < 300


def test_data_is_half_random_half_scripted_and_each_file_is_its_own(finished: Path) -> None:
    starts = []
    for name, count in (("train", 11), ("validation", 6), ("test", 10)):
        episodes = Episodes.load(finished / "data" / f"{name}.npz")
        assert len(episodes) == count
        assert episodes.observation.shape == (count, 31, 4)
        assert episodes.desired_goal.shape == (count, 31, 1)
        assert episodes.contact is not None
        assert list(episodes.label) == ["exact"]
        assert [part["policy"] for part in episodes.metadata["parts"]] == ["random", "noisy-expert"]
        half = count - count // 2
        assert episodes.sampled[:half].all()
        assert not episodes.sampled[half:].all()
        starts += episodes.observation[:, 0, 0].tolist()
    assert len(set(starts)) == 11 + 6 + 10  # nothing is tested that was trained on


def test_scores_have_the_states_of_the_episode_file_in_its_order(finished: Path) -> None:
    scores, test = arrays(finished / "scores.npz"), Episodes.load(finished / "data" / "test.npz")
    assert set(LEARNED + RULES + ["label", "episode", "time"]) <= scores.keys()
    for name in LEARNED + RULES:
        assert scores[name].shape == (2 if name in LEARNED else 1, STATES)
        assert scores[name].dtype == np.float32
        assert np.isfinite(scores[name]).all()
    assert scores["label"].dtype == np.bool_
    assert scores["episode"].dtype == scores["time"].dtype == np.int32
    np.testing.assert_array_equal(scores["episode"], np.repeat(np.arange(10), 30))
    np.testing.assert_array_equal(scores["time"], np.tile(np.arange(30), 10))
    states = test.observation[scores["episode"], scores["time"]]
    np.testing.assert_array_equal(scores["label"], slide.influence(states))
    next_states, contact = slide.step(states, test.action[scores["episode"], scores["time"]])
    np.testing.assert_array_equal(scores["contact"][0], contact)
    np.testing.assert_array_equal(scores["moved"][0], np.abs(next_states[:, 2] - states[:, 2]))
    np.testing.assert_array_equal(scores["distance"][0], -np.abs(states[:, 2] - states[:, 0]))


def test_the_learned_scores_belong_to_their_states_and_differ_between_seeds(finished: Path) -> None:
    """The saved model gives the saved scores, and gives the same ones in another order of states."""
    scores, test = arrays(finished / "scores.npz"), Episodes.load(finished / "data" / "test.npz")
    influence = Influence.load(finished / "model.safetensors")
    models: Any = types.SimpleNamespace(influence=influence)
    np.testing.assert_array_equal(detectors.cai(models, test), scores["cai"])
    np.testing.assert_array_equal(detectors.conditional_entropy(models, test), scores["entropy"])
    for name in LEARNED:
        assert not np.array_equal(scores[name][0], scores[name][1])
        assert scores[name].std() > 0


def test_metrics_are_those_of_the_scores(finished: Path) -> None:
    scores, rows = arrays(finished / "scores.npz"), read_metrics(finished)
    expected = [(name, seed) for name in LEARNED for seed in range(2)] + [(name, 0) for name in RULES]
    expected += [(name, seed) for name in FORMS for seed in range(2)]
    assert [(row["detector"], row["seed"]) for row in rows] == expected
    label = scores["label"]
    for row in rows:
        assert row.keys() == {"set", "label", "detector", "seed", "auc", "ap", "f1", "threshold"}
        assert (row["set"], row["label"]) == ("test", "exact")
        if row["detector"] in FORMS:
            continue  # their scores are not kept
        score = scores[row["detector"]][row["seed"]]
        pairs = score[label][:, None] - score[~label]
        assert row["auc"] == pytest.approx((pairs > 0).mean() + (pairs == 0).mean() / 2)
        said = score >= row["threshold"]
        assert row["f1"] == pytest.approx(2 * (said & label).sum() / (said.sum() + label.sum()))
    own = [row for row in rows if row["detector"] == "cai"]
    same = [row for row in rows if row["detector"] == f"cai_{CONFIG.scoring.form}"]
    assert [row["auc"] for row in own] == [row["auc"] for row in same]


def test_the_summary_is_that_of_the_metrics(finished: Path) -> None:
    summary, rows = read_json(finished / "summary.json"), read_metrics(finished)
    label = arrays(finished / "scores.npz")["label"]
    assert summary["schema"] == 1
    assert summary["env"] == "slide"
    assert summary["label"] == "exact"
    assert summary["states"] == STATES
    assert summary["positive_share"] == pytest.approx(label.sum() / STATES)
    assert [row["name"] for row in summary["detectors"]] == LEARNED + RULES
    assert [row["name"] for row in summary["forms"]] == FORMS
    titles = ["CAI", "Entropy", "Attention", "Contact", "The object moved", "Distance"]
    assert [row["title"] for row in summary["detectors"]] == titles
    assert all(isinstance(note, str) for note in summary["notes"])
    for row in summary["detectors"] + summary["forms"]:
        assert row["seeds"] == (1 if row["name"] in RULES else 2)
        for metric in ("auc", "ap", "f1"):
            values = [other[metric] for other in rows if other["detector"] == row["name"]]
            assert row[metric]["mean"] == pytest.approx(np.mean(values))
            assert row[metric]["std"] == pytest.approx(np.std(values))
    paper = {row["name"]: row["paper"] for row in summary["detectors"]}
    assert paper["cai"] == {"auc": [1.00, 0.00], "ap": [0.98, 0.00], "f1": [0.95, 0.01]}  # table 1
    assert paper["moved"] is paper["distance"] is None


def test_a_seed_does_not_depend_on_the_others(finished: Path, tmp_path: Path) -> None:
    alone = arrays(run_detection(replace(CONFIG, seeds=1), tmp_path / "alone") / "scores.npz")
    together = arrays(finished / "scores.npz")
    for name in LEARNED:
        np.testing.assert_allclose(alone[name][0], together[name][0], rtol=1e-3, atol=1e-5)


def test_forms_are_compared_only_if_asked(tmp_path: Path) -> None:
    folder = run_detection(replace(CONFIG, seeds=1, compare_forms=False), tmp_path / "run")
    assert read_json(folder / "summary.json")["forms"] == []
    assert {row["detector"] for row in read_metrics(folder)} == set(LEARNED + RULES)


# ---------------------------------------------------------------------------------------------- progress


def test_progress_goes_through_the_stages_in_order(calls: list[Call]) -> None:
    assert list(dict.fromkeys(call[0] for call in calls)) == STAGES
    for _, done, total, text in calls:
        assert 0 <= done <= total
        assert isinstance(text, str)


@pytest.mark.parametrize("stage", STAGES)
def test_progress_of_each_stage_only_grows_and_ends_with_all_done(calls: list[Call], stage: str) -> None:
    done = [call[1] for call in calls if call[0] == stage]
    assert done == sorted(done)
    assert done[-1] == next(call[2] for call in calls if call[0] == stage)


# ------------------------------------------------------------------------------------- again, and instead


def test_a_finished_run_returns_at_once(finished: Path, calls: list[Call]) -> None:
    before = {name: (finished / name).stat().st_mtime_ns for name in FILES - {"config.json"}}
    assert run_detection(CONFIG, finished, progress=stop_at(0)) == finished  # not one call
    assert {name: (finished / name).stat().st_mtime_ns for name in before} == before


def test_the_same_config_elsewhere_gives_the_same_bits(finished: Path, tmp_path: Path) -> None:
    assert_same_results(run_detection(CONFIG, str(tmp_path / "again")), finished)


def test_other_settings_are_refused_and_nothing_is_touched(finished: Path) -> None:
    before = results(finished)
    with pytest.raises(FileExistsError, match="unbroken"):
        run_detection(replace(CONFIG, seeds=1), finished)
    assert results(finished) == before


def test_overwrite_replaces_the_run(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    (folder / "report.html").write_text("old")
    seen: list[str] = []
    run_detection(CONFIG, folder, overwrite=True, progress=lambda stage, *rest: seen.append(stage))
    assert list(dict.fromkeys(seen)) == STAGES
    assert_same_results(folder, finished)


# ---------------------------------------------------------------------------------------- cut off, resumed


@pytest.mark.parametrize("part", ["first", "last"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_run_cut_off_in_any_stage_ends_with_the_same_bits(
    finished: Path, calls: list[Call], tmp_path: Path, stage: str, part: str
) -> None:
    numbers = [number for number, call in enumerate(calls) if call[0] == stage]
    number = numbers[0] if part == "first" else numbers[-1]
    with pytest.raises(Stop, match=stage):
        run_detection(CONFIG, tmp_path / "run", progress=stop_at(number))
    assert not (tmp_path / "run" / "summary.json").exists()
    assert_same_results(run_detection(CONFIG, tmp_path / "run"), finished)


def test_a_fit_that_ended_early_is_not_fitted_again(tmp_path: Path) -> None:
    """A learning rate so large that patience ends: the checkpoint of that end is as good as one of the last epoch."""
    config = replace(CONFIG, fitting=replace(CONFIG.fitting, learning_rate=1.0, max_epochs=50, patience=1))
    calls: list[Call] = []
    run_detection(config, tmp_path / "unbroken", progress=lambda *call: calls.append(call))
    epochs = [call[1] for call in calls if call[0] == "fit CAI"]
    assert epochs[-2] < 50  # the last call says that the stage is done
    assert epochs[-1] == 50
    number = [call[0] for call in calls].index("fit Attention")
    with pytest.raises(Stop, match="fit Attention"):
        run_detection(config, tmp_path / "run", progress=stop_at(number))
    again: list[Call] = []
    run_detection(config, tmp_path / "run", progress=lambda *call: again.append(call))
    assert [call[1] for call in again if call[0] == "fit CAI"] == [50]
    assert_same_results(tmp_path / "run", tmp_path / "unbroken")


@pytest.mark.usefixtures("hasty_clock")
def test_a_run_cut_off_again_and_again_ends_with_the_same_bits(finished: Path, tmp_path: Path) -> None:
    """Each attempt gets two steps further: through the data, and every epoch's checkpoint, to the scores."""
    for _ in range(12):
        with pytest.raises(Stop):
            run_detection(CONFIG, tmp_path / "run", progress=stop_at(2))
    with pytest.raises(Stop, match="scoring"):
        run_detection(CONFIG, tmp_path / "run", progress=stop_at(2))
    assert_same_results(run_detection(CONFIG, tmp_path / "run"), finished)


RESULTS = ["model.safetensors", "scores.npz", "metrics.jsonl", "summary.json", "versions.json"]


@pytest.mark.parametrize("name", RESULTS)
def test_a_run_cut_off_before_any_result_file_gets_all_of_them(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    real = os.replace

    def stop(source: Path, target: Path) -> None:
        if Path(target).name == name:
            raise Stop(name)
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stop)
        with pytest.raises(Stop, match=name):
            run_detection(CONFIG, tmp_path / "run")
    assert_same_results(run_detection(CONFIG, tmp_path / "run"), finished)


KILLED = """
import os, signal, sys, types
sys.path.insert(0, {tests!r})
from support.small_detection import CONFIG
from butfor.detection import experiment as detection

ticks = iter(range(0, 10**9, 31))  # a checkpoint after every validation
detection.time = types.SimpleNamespace(monotonic=lambda: next(ticks), perf_counter=lambda: next(ticks))

def progress(stage, done, total, text):
    if (stage, done) == ("fit Attention", 3):
        os.kill(os.getpid(), signal.SIGKILL)

detection.run_detection(CONFIG, sys.argv[1], progress=progress)
"""


def test_a_killed_process_is_resumed_by_another_with_the_same_bits(finished: Path, tmp_path: Path) -> None:
    """SIGKILL in the middle of a fit: nothing can be tidied up, and what is on disk must do."""
    code = KILLED.format(tests=str(ROOT / "tests"))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    child = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "run")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert {"checkpoint/cai.pt", "checkpoint/attention.pt"} <= files(tmp_path / "run")
    seen: list[Call] = []
    run_detection(CONFIG, tmp_path / "run", progress=lambda *call: seen.append(call))
    assert_same_results(tmp_path / "run", finished)
    assert not [call for call in seen if call[0] in STAGES[:3]]  # the data was kept
    assert [call[1] for call in seen if call[0] == "fit Attention"] == [3, 4, 5, 5]  # and epochs 1 and 2


# ------------------------------------------------------------------------------------------ damaged files


@pytest.fixture
def cut_off(finished: Path, tmp_path: Path) -> Path:
    """A run with data and both checkpoints, and no results yet."""
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    for name in ("scores.npz", "metrics.jsonl", "summary.json", "versions.json"):
        (folder / name).unlink()
    return folder


def damage_empty(path: Path) -> None:
    path.write_bytes(b"")


def damage_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-500])


def damage_text(path: Path) -> None:
    path.write_text("hello")


def damage_foreign(path: Path) -> None:
    torch.save({"weights": torch.zeros(3)}, path)


def damage_shape(path: Path) -> None:
    """The checkpoint of a model with other layers."""
    state = torch.load(path, weights_only=True)
    state["model"] = {name: tensor[..., :1] for name, tensor in state["model"].items()}
    torch.save(state, path)


@pytest.mark.parametrize("damage", [damage_empty, damage_cut, damage_text, damage_foreign, damage_shape])
def test_a_damaged_checkpoint_is_named_or_written_again(
    finished: Path, cut_off: Path, damage: Callable[[Path], None]
) -> None:
    damage(cut_off / "checkpoint" / "cai.pt")
    try:
        run_detection(CONFIG, cut_off)
    except ValueError as error:
        sentence = str(error)
        assert "cai.pt" in sentence
        assert "delete" in sentence.lower()  # the sentence says what to do
    else:
        assert_same_results(cut_off, finished)


@pytest.mark.parametrize("damage", [damage_empty, damage_cut, damage_text])
@pytest.mark.parametrize("name", ["train.npz", "test.npz"])
def test_a_damaged_data_file_is_named(cut_off: Path, name: str, damage: Callable[[Path], None]) -> None:
    damage(cut_off / "data" / name)
    with pytest.raises(ValueError, match=name):
        run_detection(CONFIG, cut_off)


def test_a_data_file_of_another_run_is_refused(cut_off: Path) -> None:
    """The config promises ten test episodes, and the summary would state them."""
    shutil.copy(cut_off / "data" / "validation.npz", cut_off / "data" / "test.npz")
    with pytest.raises(ValueError, match=r"test\.npz"):
        run_detection(CONFIG, cut_off)


# ------------------------------------------------------------------------------------------------- config


@pytest.mark.parametrize("name", ["seeds", "train_episodes", "validation_episodes", "test_episodes"])
@pytest.mark.parametrize("value", [0, -1])
def test_numbers_below_one_are_refused_by_name(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=rf"{name} .*{value}"):
        DetectionConfig(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("env", ["push", "CartPole-v1", "", "Slide"])
def test_an_environment_without_labels_is_refused_with_those_that_have_them(env: str) -> None:
    with pytest.raises(ValueError, match=rf"'{env}'.* slide"):
        DetectionConfig(env=env)


def test_the_papers_settings_are_the_default() -> None:
    paper = detection_preset("slide")
    assert paper == DetectionConfig()
    assert (paper.model.layers, paper.model.width, paper.model.normalize_input) == (4, 128, False)
    assert (paper.seeds, paper.scoring.actions, paper.fitting.batch_size) == (5, 64, 1000)


def test_the_note_says_who_played(finished: Path) -> None:
    assert "scripted policy" in read_json(finished / "summary.json")["notes"][0]


def test_too_few_states_are_noticed_before_the_training(tmp_path: Path) -> None:
    """One random episode seldom holds an influenced state; hours of training must not end with that sentence."""
    seen: list[str] = []
    config = replace(CONFIG, test_episodes=1)
    with pytest.raises(ValueError, match="same exact label"):
        run_detection(config, tmp_path / "run", progress=lambda stage, *rest: seen.append(stage))
    assert [stage for stage in seen if stage.startswith("fit")] == []


# ------------------------------------------------------------------------------------------------ studies

STUDIED = replace(
    CONFIG, studies=("actions", "decisions", "helps", "noise"), noise_levels=(0.0, 0.004, 0.001), extra_episodes=3,
    validation_episodes=10,
)  # fmt: skip


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Call]]:
    """A run with studies that nothing disturbed, and the calls of its progress."""
    calls: list[Call] = []
    folder = tmp_path_factory.mktemp("study") / "studied"
    run_detection(STUDIED, folder, progress=lambda *call: calls.append(call))
    return folder, calls


def test_studies_are_written_beside_the_other_results(studied: tuple[Path, list[Call]], finished: Path) -> None:
    folder, calls = studied
    found = read_json(folder / "studies.json")
    assert list(found) == ["schema", *STUDIED.studies]
    fits = [call[0] for call in calls if call[0].startswith("fit CAI ") and call[1] == 5 and call[3].startswith("best")]
    assert (
        len(fits) == len(set(fits)) == 4 + 2
    )  # beta-NLL, no spectral norm, both, random episodes; two levels of noise
    assert len(list((folder / "checkpoint").iterdir())) == 2 + len(fits)
    assert not (finished / "studies.json").exists()  # none was asked for
    low, high = (found["noise"]["train_only"]["auc"][place] for place in (2, 1))
    assert low != high  # each level has a model of its own


def cut_places(calls: list[Call]) -> dict[str, int]:
    """The number of the first call of some stages that belong to studies."""
    stages = [call[0] for call in calls]
    wanted = ["actions", "noisy-expert data", "decisions", "random-train data", "fit CAI with beta-NLL"]
    wanted.append(next(stage for stage in reversed(stages) if stage.endswith("noise")))
    return {stage: stages.index(stage) for stage in wanted}


@pytest.mark.parametrize("place", range(6))
def test_a_run_cut_off_in_its_studies_ends_with_the_same_bits(
    studied: tuple[Path, list[Call]], tmp_path: Path, place: int
) -> None:
    folder, calls = studied
    stage, number = list(cut_places(calls).items())[place]
    with pytest.raises(Stop, match=stage):
        run_detection(STUDIED, tmp_path / "run", progress=stop_at(number))
    kept = tmp_path / "run" / "studies.json"
    before = read_json(kept) if kept.exists() else {}
    again: list[str] = []
    run_detection(STUDIED, tmp_path / "run", progress=lambda stage, *rest: again.append(stage))
    assert kept.read_bytes() == (folder / "studies.json").read_bytes()
    assert_same_results(tmp_path / "run", folder)
    assert {"actions", "decisions"}.isdisjoint(before.keys() & set(again))  # what is known is not computed again


def test_the_diagnosis_is_of_the_first_seed_on_data_that_nothing_was_chosen_by(finished: Path) -> None:
    """Early stopping has looked at the validation episodes; the test episodes are new."""
    test = Episodes.load(finished / "data" / "test.npz")
    alone = Influence.load(finished / "model.safetensors", replica=0)
    order = np.random.default_rng(0).permutation(STATES)
    episode = np.repeat(np.arange(len(test.length)), test.length)[order]
    obs, action, next_obs = (part[order] for part in test.transitions())
    expected = alone.diagnose(obs, action, next_obs, groups=episode)["object"].plain()
    assert read_json(finished / "diagnosis.json") == {"object": json.loads(json.dumps(expected))}


def test_agents_play_for_a_run_of_their_own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way: agents learn, their episodes are judged, and a kill while they learn changes nothing."""
    monkeypatch.setattr(detection_data, "preset", lambda env: small(env=env, checkpoint_seconds=0.0))
    config = replace(CONFIG, data="agents", agent_episodes=24, test_episodes=24, seeds=1, compare_forms=False)
    config = replace(config, agent_envs=4)
    calls: list[Call] = []
    whole = run_detection(config, tmp_path / "whole", progress=lambda *call: calls.append(call))
    note = read_json(whole / "summary.json")["notes"][0]
    assert "24 episodes" in note
    assert "Half of the test episodes are random" in note
    number = next(place for place, call in enumerate(calls) if call[:2] == ("episodes", 16))
    with pytest.raises(Stop, match="episodes"):
        run_detection(config, tmp_path / "cut", progress=stop_at(number))
    one, two = results(whole), results(run_detection(config, tmp_path / "cut"))
    assert [name for name in one if one[name] != two[name]] == []


def test_the_time_of_a_process_that_was_cut_off_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However early: the longest part of a run may be its data."""
    monkeypatch.setattr(detection, "NOTE_EVERY", 0.0)
    config = replace(CONFIG, seeds=1, compare_forms=False, studies=())
    with pytest.raises(Stop, match="data"):
        run_detection(config, tmp_path, progress=stop_at(1))
    before = read_json(tmp_path / "versions.json")
    (tmp_path / "versions.json").write_text(json.dumps(before | {"seconds": 1000.0}))
    run_detection(config, tmp_path)
    assert before["seconds"] >= 0
    after = read_json(tmp_path / "versions.json")
    assert 1000 < after["seconds"] < 1300
    assert (after["started"], len(after["resumed"])) == (before["started"], 1)


@pytest.mark.parametrize(("num_envs", "overlap"), [(1, []), (4, ["updates"])])
def test_agents_may_play_several_episodes_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_envs: int, overlap: list[str]
) -> None:
    monkeypatch.setattr(detection_data, "preset", lambda env: small(env=env))
    asked = replace(CONFIG, data="agents", agent_episodes=24, train_episodes=24, agent_envs=num_envs)
    data = detection_data.ExperimentData(asked, tmp_path, lambda *call: None)
    assert len(data.episodes("train", 24)) == 24
    config = read_json(tmp_path / "agents" / "config.json")["config"]
    assert (config["num_envs"], config["overlap"], config["episodes"], config["seeds"]) == (num_envs, overlap, 24, 3)


@pytest.mark.parametrize(
    "change",
    [
        {"model": ModelConfig(layers=10**9)},
        {"model": ModelConfig(width=10**9)},
        {"seeds": 10**9},
        {"scoring": ScoreConfig(actions=10**9)},
        {"attention": AttentionConfig(layers=10**9)},
        {"attention": AttentionConfig(embedding=10**9)},
        {"test_episodes": 10**9},
        {"extra_episodes": 10**9, "studies": ("decisions",)},
    ],
    ids=str,
)
def test_settings_that_do_not_fit_into_memory_are_refused_before_a_folder_is_made(
    tmp_path: Path, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUTFOR_MEMORY_GB", "16")
    with pytest.raises(MemoryError, match=r"at least .*[GT]B of memory, and 16 GB"):
        run_detection(replace(CONFIG, **change), tmp_path / "run")
    assert not (tmp_path / "run").exists()
