"""Scoring a data set: known truth is found, every state is scored, episodes are held out whole, outputs are whole."""

import json
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import minari
import numpy as np
import pytest
import torch
from gymnasium import spaces
from minari.data_collector.episode_buffer import EpisodeBuffer
from sklearn.metrics import roc_auc_score
from support.browser import chromium
from support.dataset_formats import digest, write_ogbench, write_parquet, write_robomimic
from support.pages import BREAKOUT, Tags, page_data
from support.scenes import small_scene

from butfor import Influence, cli
from butfor.datasets import score as score_data
from butfor.datasets.files import read_npz
from butfor.datasets.formats import open_dataset
from butfor.datasets.recording import Recording, read_arrays
from butfor.datasets.score import Options, score_file, split_steps
from butfor.influence.contact import ContactConfig
from butfor.influence.graph.pairs import GraphConfig
from butfor.influence.scoring import ScoreConfig
from butfor.models.dynamics import STEEP, ModelConfig
from butfor.reporting.file_pages import choose_episodes, render_scores

pytestmark = pytest.mark.filterwarnings("ignore:.*is set to None", "ignore:env_spec is None")
SMALL = ModelConfig(layers=2, width=48)
QUICK = Options(epochs=150, actions=12, network=SMALL)


def pushing_episodes(episodes: int, seed: int = 0) -> tuple[list[Any], list[Any], Any]:
    """A hand that moves a cube where it is near, and a clock that nothing moves: observations, actions, near [S]."""
    random, observations, actions = np.random.default_rng(seed), list[Any](), list[Any]()
    for _ in range(episodes):
        action = random.uniform(-1, 1, (int(random.integers(20, 50)), 1))
        states = [random.uniform(-1, 1, 3)]
        for (push,) in action:
            hand, cube, clock = states[-1]
            moved = 0.3 * push * (abs(hand - cube) < 0.4) + 0.03 * random.normal()
            states.append(np.array([random.uniform(-1, 1), cube + moved, 0.9 * clock + 0.1 * random.normal()]))
        observations.append(np.array(states))
        actions.append(action)
    every = np.concatenate(observations)
    return observations, actions, np.abs(every[:, 0] - every[:, 1]) < 0.4


def write_npz(path: Path, episodes: int) -> Path:
    """The episodes of `pushing_episodes` as one file."""
    observations, actions, _ = pushing_episodes(episodes)
    np.savez(
        path, observation=np.concatenate(observations), action=np.concatenate(actions), length=list(map(len, actions))
    )
    return path


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder with data.npz, its scores of two entities, the report and the model; and the summary."""
    folder = tmp_path_factory.mktemp("scored")
    data, stages = write_npz(folder / "data.npz", 90), list[str]()
    summary = score_file(
        data, folder / "scores.npz", ["cube=1", "clock=2"], QUICK, save_model=folder / "model.safetensors",
        progress=lambda stage, done, total, text: stages.append(stage),
    )  # fmt: skip
    assert set(stages) == {"fitting", "scoring"}
    return folder, summary


def test_known_truth_is_found_in_every_state(scored: tuple[Path, dict[str, Any]]) -> None:
    folder, summary = scored
    near = pushing_episodes(90)[2]
    with np.load(folder / "scores.npz", allow_pickle=False) as file:
        cube, clock, last = file["cai_cube"], file["cai_clock"], file["last"]
    assert len(cube) == len(near) == summary["states"] == summary["steps"] + 90
    assert roc_auc_score(near, cube) > 0.9
    assert roc_auc_score(near[last], cube[last]) > 0.9  # the states in which no action was taken
    assert cube[near].mean() > 4 * cube[~near].mean()
    assert clock.max() < 0.1  # the action never matters for the clock


def test_the_summary_says_what_the_scores_are(scored: tuple[Path, dict[str, Any]]) -> None:
    folder, summary = scored
    with np.load(folder / "scores.npz", allow_pickle=False) as file:
        cube, metadata = file["cai_cube"], json.loads(str(file["metadata"]))
    found = summary["entities"]["cube"]
    assert found["columns"] == [1]
    assert found["above"] == pytest.approx((cube > 0.1).mean())
    assert found["mean"] == pytest.approx(cube.mean())
    assert found["quantiles"]["0.5"] == pytest.approx(np.median(cube))
    assert found["highest"] == cube.max()
    assert summary["names"] == {"cube": "cai_cube", "clock": "cai_clock"}
    assert metadata == summary
    assert summary["diagnosis"]["cube"]["trusted"]
    assert not summary["diagnosis"]["clock"]["trusted"]  # knowing the action does not help to predict it
    assert any("bounds of the actions" in note for note in summary["notes"])


def test_a_saved_model_scores_alike_and_judges_itself(scored: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, _ = scored
    again = score_file(folder / "data.npz", tmp_path / "again.npz", (), QUICK, model=folder / "model.safetensors")
    with np.load(folder / "scores.npz") as first, np.load(tmp_path / "again.npz") as second:
        np.testing.assert_array_equal(first["cai_cube"], second["cai_cube"])
    assert any("model was given" in note for note in again["notes"])
    recording = read_npz(folder / "data.npz")
    direct = Influence.load(folder / "model.safetensors").score(recording.observation)
    with np.load(folder / "scores.npz") as first:
        np.testing.assert_allclose(first["cai_cube"], direct["cube"], rtol=1e-5, atol=1e-6)
    few = write_npz(tmp_path / "few.npz", 1)  # too few to fit a model, but not to score by one
    assert score_file(few, tmp_path / "few-scores.npz", (), QUICK, model=folder / "model.safetensors")["episodes"] == 1


def test_a_saved_model_tries_extreme_actions_where_they_are_asked_for(
    scored: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, options = scored[0], replace(QUICK, extreme=0.75)
    score_file(folder / "data.npz", tmp_path / "out.npz", (), options, model=folder / "model.safetensors")
    influence = Influence.load(folder / "model.safetensors")
    influence.scoring = replace(influence.scoring, actions=12, extreme=0.75)
    obs = read_npz(folder / "data.npz").observation
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_allclose(found["cai_cube"], influence.score(obs)["cube"], rtol=1e-5, atol=1e-6)
    influence.save(tmp_path / "extreme.safetensors")  # without the option a model keeps its own share
    summary = score_file(folder / "data.npz", tmp_path / "kept.npz", (), QUICK, model=tmp_path / "extreme.safetensors")
    settings = {"members": 1, "actions": 12, "extreme": 0.75, "seed": 0, "network": asdict(influence.model.config)}
    assert summary["settings"] == settings


def test_the_same_seed_gives_the_same_scores(tmp_path: Path) -> None:
    data, found = write_npz(tmp_path / "data.npz", 40), list[Any]()
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        score_file(data, tmp_path / f"{name}.npz", ["cube=1"], Options(epochs=1, actions=4, seed=seed, network=SMALL))
        with np.load(tmp_path / f"{name}.npz") as file:
            found.append(file["cai"])
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


def test_whole_episodes_are_held_out() -> None:
    groups = np.repeat(np.arange(30), np.arange(1, 31))
    one, two = split_steps(groups, (0.2, 0.1), seed=0)
    assert not (one & two).any()
    for chosen, share in ((one, 0.2), (two, 0.1)):
        assert {bool(chosen[groups == name].all()) for name in range(30)} == {True, False}
        assert all(chosen[groups == name].all() or not chosen[groups == name].any() for name in range(30))
        assert share <= chosen.mean() <= share + 30 / len(groups)  # at most one episode too many
    assert not np.array_equal(one, split_steps(groups, (0.2, 0.1), seed=1)[0])
    one, two = split_steps(np.array([0, 0, 0, 1, 2]), (0.9, 0.9), seed=0)  # something is left to learn from
    assert (one | two).sum() < 5


def test_all_actions_count_for_the_law_also_those_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """An action that only one episode has is known, whichever episodes are held out, and no bound is left."""
    obs, spaces_given = np.random.default_rng(0).normal(size=(1040, 2)), list[Any]()

    def fit(*_: Any, action_space: Any, **__: Any) -> Any:
        spaces_given.append(action_space)
        model = SimpleNamespace(config=ModelConfig())
        return SimpleNamespace(law=SimpleNamespace(count=3), model=model, scoring=ScoreConfig())

    monkeypatch.setattr(Influence, "fit", fit)
    for action in (np.eye(1, 1000, 7, dtype=int)[0] * 2, np.eye(1000, 2, dtype=float) * 5 - 1):
        recording = read_arrays(obs, action, length=[25] * 40)
        notes = score_data.fit_recording(recording, {"cube": (0,)})[2]
        assert len(notes) == 1
    assert spaces_given[0] == spaces.Discrete(3)
    assert (spaces_given[1].low.tolist(), spaces_given[1].high.tolist()) == ([-1, -1], [4, 4])


@pytest.mark.parametrize(("network", "told"), [(None, True), (STEEP, False)])
def test_a_steeper_network_that_nobody_asked_for_is_told(
    network: ModelConfig | None, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages: list[str] = []

    def fit(*_: Any, progress: Any, **__: Any) -> Any:
        for config in ([ModelConfig()] if network is None else []) + [STEEP]:
            module = SimpleNamespace(config=config)
            progress(SimpleNamespace(epoch=1, epochs=300, best_error=torch.ones(1), model=module))
        return SimpleNamespace(law=SimpleNamespace(count=0), model=module, scoring=ScoreConfig())

    monkeypatch.setattr(Influence, "fit", fit)
    recording = read_arrays(np.random.default_rng(0).normal(size=(1040, 2)), np.zeros((1000, 1)), length=[25] * 40)
    options = Options(network=network)
    notes = score_data.fit_recording(
        recording, {"cube": (0,)}, options, progress=lambda stage, *_: stages.append(stage)
    )[2]
    assert any("steeper" in note for note in notes) is told
    assert stages == (["fitting", "a steeper network"] if told else ["fitting"])


@pytest.mark.parametrize(
    ("config", "epochs", "told"),
    [(ContactConfig(), 5, "touches"), (GraphConfig(), 5, "pairs"), (ContactConfig(), None, ""), (ModelConfig(), 5, "")],
)
def test_epochs_without_effect_are_told(
    config: Any, epochs: int | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted = SimpleNamespace(model=SimpleNamespace(config=config), scoring=ScoreConfig())
    monkeypatch.setattr(Influence, "fit", lambda *_, **__: fitted)
    recording = read_arrays(np.random.default_rng(0).normal(size=(1040, 2)), np.zeros((1000, 1)), length=[25] * 40)
    notes = [
        note
        for note in score_data.fit_recording(recording, {"cube": (0,)}, Options(epochs=epochs))[2]
        if "epochs" in note
    ]
    assert ([told] if told else []) == [word for word in ("touches", "pairs") for note in notes if word in note]


def test_a_state_too_far_away_to_be_scored_is_named(scored: tuple[Path, dict[str, Any]]) -> None:
    obs = np.zeros((8, 3))
    obs[5] = 3e38
    recording = read_arrays(obs, np.zeros((6, 1)), length=[3, 3])
    with pytest.raises(FloatingPointError, match=r"1 state.* episode 1, step 1"):
        score_data.score_recording(Influence.load(scored[0] / "model.safetensors"), recording)


def long_recording(lengths: list[int]) -> Recording:
    obs = np.arange(sum(lengths) + len(lengths), dtype=float)[:, None]
    return read_arrays(obs, np.zeros((sum(lengths), 1)), length=lengths)


def test_long_episodes_are_cut_into_stretches() -> None:
    groups, notes = score_data._group_steps(long_recording([100] * 10))
    assert np.bincount(groups).tolist() == [100] * 10
    assert not notes
    groups, notes = score_data._group_steps(long_recording([950, 30, 20]))
    assert np.bincount(groups).tolist() == [50] * 19 + [30, 20]
    assert "stretches of 50 steps" in notes[0]


@pytest.mark.filterwarnings("ignore:action leaves the action space")
def test_actions_that_are_not_random_are_told(scored: tuple[Path, dict[str, Any]]) -> None:
    """An episode file says which actions were drawn; where there are too few of them, a note says so."""
    observations, actions, _ = pushing_episodes(30)
    every, influence = read_arrays(observations, actions), Influence.load(scored[0] / "model.safetensors")
    judged = np.arange(len(every.action)) < 600
    for random, told in ((600, False), (100, False), (99, True), (0, True)):
        sampled = np.arange(len(every.action)) < random
        found, notes = score_data.diagnose_recording(influence, replace(every, sampled=sampled), judged)
        assert found["cube"].transitions == 600
        assert [re.findall(r"\d+", note) for note in notes] == [[str(random), "600"]] * told
    assert score_data.diagnose_recording(influence, every, np.arange(len(every.action)) < 9) == ({}, [])


@pytest.mark.filterwarnings("ignore:action leaves the action space")
def test_a_model_of_several_steps_is_diagnosed_with_so_many(scored: tuple[Path, dict[str, Any]]) -> None:
    observations, actions, _ = pushing_episodes(30)
    every, influence = read_arrays(observations, actions), Influence.load(scored[0] / "model.safetensors")
    influence.horizon = 3  # as a training run with cai.horizon saves it
    found, _ = score_data.diagnose_recording(influence, every, np.arange(len(every.action)) < 600)
    moved = [np.array([states[min(t + 3, len(states) - 1)] for t in range(len(states) - 1)]) for states in observations]
    change = np.concatenate([part - states[:-1] for part, states in zip(moved, observations, strict=True)])[:600, 1]
    mean, _ = influence.predict(*(part[:600] for part in (every.transitions()[0], every.action[:, None])))["cube"]
    off = np.concatenate(moved)[:600, 1] - mean[:, 0, 0]
    assert found["cube"].r_squared == pytest.approx(1 - (off**2).sum() / ((change - change.mean()) ** 2).sum())


def make_minari(name: str, episodes: int, entity_is_image: bool = False) -> None:
    """The episodes of `pushing_episodes` as a Minari dataset with nested observations."""
    buffers = []
    for obs, action in zip(*pushing_episodes(episodes)[:2], strict=True):
        n = len(action)
        parts: dict[str, Any] = {"cube": obs[:, 1:], "robot": {"hand": obs[:, :1]}}
        if entity_is_image:
            parts["camera"] = np.zeros((n + 1, 32, 32, 3), np.uint8)
        ended: dict[str, Any] = {"terminations": np.zeros(n, bool), "truncations": np.arange(n) == n - 1}
        steps: dict[str, Any] = {"actions": action, "rewards": np.arange(n) * 0.5, "infos": {"x": np.zeros(n + 1)}}
        buffers.append(EpisodeBuffer(observations=parts, **steps, **ended))
    wide: dict[str, Any] = {"cube": spaces.Box(-9, 9, (2,), np.float64)}
    wide["robot"] = spaces.Dict({"hand": spaces.Box(-9, 9, (1,), np.float64)})
    if entity_is_image:
        wide["camera"] = spaces.Box(0, 255, (32, 32, 3), np.uint8)
    act = spaces.Box(-1, 1, (1,), np.float64)
    minari.create_dataset_from_buffers(name, buffers, observation_space=spaces.Dict(wide), action_space=act)


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["butfor", "score", *map(str, words)])
    cli.main()


def test_the_command_writes_a_new_minari_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    make_minari("mine/cube-v0", 40)
    out = ("--out", "mine/cube-cai-v0", "--epochs", "2", "--actions", "8", "--device", "cpu")
    run(monkeypatch, "mine/cube-v0", "--entities", "cube=cube:0", *out)
    shown = capsys.readouterr().out
    assert re.search(r"mine/cube-v0: [\d,]+ states, 40 episodes", shown)
    assert re.search(r"cube +[\d.]+% +[\d.]+", shown)
    assert "Can the scores of cube be trusted?" in shown
    assert "Scores: mine/cube-cai-v0 (cai)" in shown
    data_set = minari.load_dataset("mine/cube-cai-v0")
    assert all(one.infos["cai"].shape == (len(one) + 1, 1) for one in data_set.iterate_episodes())
    assert data_set.storage.metadata["butfor"]["entities"]["cube"]["columns"] == [0]
    assert (tmp_path / "mine/cube-cai-v0/report.html").is_file()
    with pytest.raises(SystemExit, match=r"Error: .*mine/cube-cai-v0"):
        run(monkeypatch, "mine/cube-v0", "--entities", "cube=cube:0", *out)
    two = ("--entities", "a=cube:0", "b=cube:1", "--report", tmp_path / "page.html", "--overwrite")
    run(monkeypatch, "mine/cube-v0", *two, *out)
    assert {"cai_a", "cai_b", "x"} == set(minari.load_dataset("mine/cube-cai-v0")[0].infos)
    assert (tmp_path / "page.html").is_file()
    assert not (tmp_path / "mine/cube-cai-v0/report.html").exists()


@pytest.mark.parametrize(
    ("writer", "suffix", "copied"),
    [(write_robomimic, ".npz", True), (write_parquet, ".npz", True), (write_ogbench, ".dat", False)],
)
def test_the_content_decides_not_the_name(
    writer: Any, suffix: str, copied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An HDF5 file or table called .npz is copied with its scores; of an .npz file they are written alone."""
    monkeypatch.setattr("butfor.datasets.score.FEWEST", 10)
    random = np.random.default_rng(0)
    episodes = [random.normal(size=(41, 6)).astype(np.float32) for _ in range(20)]
    actions = [random.uniform(-1, 1, (40, 2)).astype(np.float32) for _ in range(20)]
    data = writer(tmp_path, episodes, actions).rename(tmp_path / f"data{suffix}")
    before = digest(data)
    options = Options(epochs=1, actions=4, network=SMALL)
    where = "object" if writer is write_robomimic else "3:6"
    for out in (data, tmp_path / "model.safetensors"):
        with pytest.raises((ValueError, FileExistsError), match=out.name):
            score_file(data, out, [f"cube={where}"], options, save_model=tmp_path / "model.safetensors", overwrite=True)
    summary = score_file(data, None, [f"cube={where}"], options)
    assert summary["out"] == str(tmp_path / "data-cai.npz")
    if copied:
        assert "cai" in open_dataset(summary["out"]).columns
        assert open_dataset(summary["out"]).kind == open_dataset(data).kind
    else:
        with np.load(summary["out"]) as file:
            assert file["cai"].shape == (20 * 41,)
    score_file(data, tmp_path / "alone.npz", [f"cube={where}"], options)
    with np.load(tmp_path / "alone.npz") as file:
        assert len(file["cai"]) == 20 * 41
    assert digest(data) == before


def test_columns_of_a_minari_data_set_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    make_minari("mine/cube-v0", 40)
    options = Options(epochs=1, actions=4, network=SMALL, observe=("robot/hand",))
    with pytest.raises(ValueError, match="infos/y"):
        score_file("mine/cube-v0", None, ["a=0"], replace(options, observe=("infos/y",)))
    summary = score_file("mine/cube-v0", None, ["a=0"], options)
    assert summary["parts"] == {"robot/hand": 1}
    assert "cai" in minari.load_dataset("mine/cube-cai-v0")[0].infos
    score_file("mine/cube-v0", "mine/other-v0", ["a=0"], options)
    assert "cai" in minari.load_dataset("mine/other-v0")[0].infos


def test_a_minari_data_set_is_scored_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    make_minari("mine/cube-v0", 40)
    options = Options(epochs=1, actions=4, network=SMALL)
    entities = ["cube=robot/hand:0"]
    alone = score_file("mine/cube-v0", tmp_path / "with.npz", entities, options)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "minari", None)
        again = score_file("mine/cube-v0", tmp_path / "without.npz", entities, options)
        score_file("mine/cube-v0", None, entities, options)
    assert alone["parts"] == again["parts"]
    with np.load(tmp_path / "with.npz") as one, np.load(tmp_path / "without.npz") as other:
        np.testing.assert_array_equal(one["cai"], other["cai"])
    assert "cai" in minari.load_dataset("mine/cube-cai-v0")[0].infos


def test_what_cannot_be_done_is_said_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scored: tuple[Path, dict[str, Any]]
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing is fitted")

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setattr(Influence, "fit", never)
    make_minari("mine/pictures-v0", 2, entity_is_image=True)
    data, model = scored[0] / "data.npz", scored[0] / "model.safetensors"
    few, out = write_npz(tmp_path / "few.npz", 3), tmp_path / "out.npz"
    narrow = tmp_path / "narrow.npz"
    np.savez(narrow, observation=np.zeros((1001, 2)), action=np.zeros((1000, 1)))
    held = tmp_path / "held.npz"
    held.write_text("mine")
    (tmp_path / "folder.npz").mkdir()
    cube, root = ("--entities", "cube=1"), tmp_path / "minari"
    states = ("mine/pictures-v0", "--entities", "cube=cube:0", "--ignore", "camera")
    for words, message in (
        ((data, *cube, "--out", held), "held.npz .*--overwrite"),
        ((data, *cube, "--out", tmp_path / "folder.npz", "--overwrite"), "folder.npz"),
        ((data, *cube, "--out", data), "data.npz"),
        ((data, *cube, "--out", out, "--overwrite", "--report", data), "data.npz"),
        ((data, *cube, "--out", out, "--overwrite", "--save-model", data), "data.npz"),
        ((data, *cube, "--out", out, "--overwrite", "--report", out), "out.npz, .*out.npz"),
        ((data, *cube, "--out", out, "--overwrite", "--save-model", out), "out.npz, .*out.npz"),
        ((*states, "--out", "mine/b-v0", "--report", root / "mine/b-v0/page.html"), "mine/b-v0/page.html"),
        ((*states, "--out", "mine/b-v0", "--save-model", root / "mine/pictures-v0/data/m"), "pictures-v0/data/m"),
        ((data, *cube, "--out", "mine/cube-v0"), "mine/cube-v0.*.npz"),
        ((data, *cube, "--out", held / "out.npz"), "held.npz"),
        ((data, "--out", out), "entities"),
        ((data, "--entities", "cube=3:6", "--out", out), "cube"),
        ((data, "--entities", "cube=state:1", "--out", out), "state"),
        ((data, "--entities", "a/b=1", "--out", out), "a/b"),
        ((data, *cube, "--out", out, "--members", 0), "members .*0"),
        ((few, *cube, "--out", out), "few.npz .*1,000"),
        (("mine/pictures-v0", "--entities", "cube=cube:0", "--out", out), "'camera' .*images.*--ignore camera"),
        (("mine/none-v0", *cube, "--out", out), "mine/none-v0.*mine/pictures-v0"),
        (("data.hdf5", *cube, "--out", out), "'data.hdf5'"),
        ((narrow, "--model", model, "--out", out), "model.safetensors .* 2\\].* 3\\]"),
        ((data, "--entities", "other=0", "--model", model, "--out", out), "other"),
    ):
        with pytest.raises(SystemExit, match=f"Error: .*{message}") as ended:
            run(monkeypatch, *words, "--device", "cpu")
        assert "\n" not in str(ended.value)
    assert held.read_text() == "mine"
    assert not out.exists()
    with pytest.raises(SystemExit, match="1,000"):  # without the images there are states
        run(monkeypatch, *states, "--out", out, "--device", "cpu")
    monkeypatch.setattr(score_data, "fit_recording", None)
    with pytest.raises(SystemExit, match=r"/proc/x/out\.npz"):
        run(monkeypatch, data, *cube, "--out", "/proc/x/out.npz", "--device", "cpu")


def test_an_interruption_says_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Influence, "fit", interrupt)
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, write_npz(tmp_path / "data.npz", 40), "--entities", "cube=1", "--out", tmp_path / "out.npz")
    assert ended.value.code == 130
    assert "no scores were written" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["data.npz"]


@pytest.mark.parametrize(("name", "network"), [("choose", None), ("paper", ModelConfig()), ("steep", STEEP)])
def test_the_command_names_a_network(
    name: str, network: ModelConfig | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def given(*_: Any, model: ModelConfig | None, **__: Any) -> None:
        assert model == network
        raise KeyboardInterrupt

    monkeypatch.setattr(Influence, "fit", given)
    data = write_npz(tmp_path / "data.npz", 40)
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, data, "--entities", "cube=1", "--out", tmp_path / "out.npz", "--network", name)
    assert ended.value.code == 130


def test_more_actions_than_memory_are_refused_before_the_fit(tmp_path: Path) -> None:
    with pytest.raises(MemoryError, match="1,000,000,000 actions"):
        score_file(tmp_path / "never-read.npz", tmp_path / "out.npz", ["cube=0"], Options(actions=10**9))


@pytest.mark.parametrize("setting", [("--members", "5"), ("--horizon", "3")])
def test_settings_of_a_fit_are_refused_with_a_model(setting: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match=setting[0]):
        run(monkeypatch, "a.npz", "--out", "b.npz", "--model", "m.safetensors", *setting)


def test_an_interruption_after_the_fit_tells_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: Any, **given: Any) -> None:
        given["save_model"].write_text("weights")
        raise KeyboardInterrupt

    monkeypatch.setattr(score_data, "score_file", interrupt)
    with pytest.raises(SystemExit):
        run(monkeypatch, "a.npz", "--out", "b.npz", "--save-model", tmp_path / "m", "--device", "cpu")
    assert f"--model {tmp_path / 'm'}" in capsys.readouterr().err


@pytest.mark.parametrize("broken", ["butfor.reporting.file_pages.render_page", "numpy.savez_compressed", "os.replace"])
def test_scores_and_report_are_both_there_or_neither(
    broken: str, scored: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(broken, fail)
    text = r"out\.npz .*disk full.*--model .*model\.safetensors"
    with pytest.raises(OSError, match=text):
        score_file(scored[0] / "data.npz", tmp_path / "out.npz", (), QUICK, model=scored[0] / "model.safetensors")
    assert not list(tmp_path.iterdir())


def test_telling_episodes_are_those_of_highest_and_lowest_mean() -> None:
    length = np.array([1, 2, 1, 1, 3, 1, 1, 1])
    means = np.array([3.0, 1.0, 7.0, 0.0, 5.0, 2.0, 6.0, 4.0])
    score = np.repeat(means, length + 1)
    assert choose_episodes(score, length) == {"most": [2, 6, 4], "least": [3, 1, 5]}
    assert choose_episodes(score[:5], length[:2]) == {"most": [0], "least": [1]}
    assert choose_episodes(score[:2], length[:1]) == {"most": [0]}


def test_the_page_shows_the_numbers_and_escapes_names(scored: tuple[Path, dict[str, Any]]) -> None:
    folder, summary = scored
    page = (folder / "scores.html").read_text(encoding="utf-8")
    assert f"{100 * summary['entities']['cube']['above']:.1f}&nbsp;%" in page
    assert 'http-equiv="Content-Security-Policy"' in page
    assert not [tag for tag in Tags(page).found if tag[1].get("src")]
    assert {"spread-0", "most-0", "least-1", "reliability-0", "gain-1"} <= set(page_data(page)["figures"])
    hostile = json.loads(
        json.dumps(summary).replace('"cube"', json.dumps(BREAKOUT)).replace(summary["source"], BREAKOUT)
    )
    hostile["notes"].append(BREAKOUT)
    with np.load(folder / "scores.npz") as file:
        scores = {BREAKOUT: file["cai_cube"], "clock": file["cai_clock"]}
    scene = small_scene(2, title=BREAKOUT)
    theirs = render_scores(hostile, scores, read_npz(folder / "data.npz").length, scene=scene)
    assert BREAKOUT not in theirs
    assert "&lt;img src=x onerror=alert(2)&gt;" in theirs
    assert len(Tags(theirs).named("script")) == len(Tags(page).named("script"))
    assert not Tags(theirs).named("img")


@pytest.mark.long
def test_the_page_opens_in_a_browser(scored: tuple[Path, dict[str, Any]]) -> None:
    """Nothing goes wrong or is fetched, every chart is drawn, and a telephone shows the page without scrolling."""
    address, wrong, fetched = (scored[0] / "scores.html").as_uri(), list[str](), set[str]()
    with chromium() as browser:
        for width in (1280, 390):
            view = browser.new_page(viewport={"width": width, "height": 900})
            view.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
            view.on("pageerror", lambda error: wrong.append(str(error)))
            view.on("request", lambda request: fetched.add(request.url))
            view.goto(address)
            view.wait_for_selector("#plot-gain-1 .main-svg")
            assert view.locator(".plot").count() == view.locator(".plot:has(.main-svg)").count() == 14
            assert view.evaluate("document.documentElement.scrollWidth") <= width
            view.locator("#threshold-slider").fill("40")  # moves every chart of scores and the numbers with it
            chosen = view.evaluate(
                "JSON.parse(document.getElementById('page-data').textContent).explorer.threshold[40]"
            )
            places = ("spread-0", "x0"), ("spread-1", "x0"), ("most-0", "y0"), ("least-1", "y0")
            for name, key in places:
                shown = view.evaluate(f"document.getElementById('plot-{name}').layout.shapes[0].{key}")
                assert shown == pytest.approx(chosen)
            assert float(view.locator(".question [data-threshold]").inner_text()) == pytest.approx(chosen, rel=0.01)
            view.close()
    assert wrong == []
    assert fetched == {address}


def test_a_data_frame_is_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is a Parquet table in the current folder, unless another name is given."""
    monkeypatch.setattr("butfor.datasets.score.FEWEST", 10)
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    columns = {"episode": [*np.arange(600) // 30], "action": [*random.normal(size=(600, 1))]}
    columns["obs"] = [*random.normal(size=(600, 2))]
    frame = SimpleNamespace(iloc=None, columns=list(columns), index=None)
    frame_type = type("Frame", (SimpleNamespace,), {"__getitem__": lambda _, name: columns[name]})
    frame = frame_type(**vars(frame))
    options = Options(epochs=1, actions=4, network=SMALL)
    summary = score_file(frame, None, ["cube=1"], options)
    assert summary["out"] == "DataFrame-cai.parquet"
    assert open_dataset(tmp_path / "DataFrame-cai.parquet").columns["cai"].shape == ()
    score_file(frame, tmp_path / "alone.npz", ["cube=1"], options)
    with np.load(tmp_path / "alone.npz") as file:
        assert file["cai"].shape == (600,)


def test_an_npz_file_is_scored_with_actions_of_other_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("butfor.datasets.score.FEWEST", 10)
    random = np.random.default_rng(0)
    arrays: dict[str, Any] = {"observations": random.normal(size=(600, 2)), "torques": random.normal(size=(600, 1))}
    np.savez(tmp_path / "data.npz", terminals=np.arange(600) % 30 == 29, **arrays)
    with pytest.raises(ValueError, match="action or actions"):
        score_file(tmp_path / "data.npz", None, ["cube=1"], QUICK)
    options = Options(epochs=1, actions=4, network=SMALL, action=("torques",))
    summary = score_file(tmp_path / "data.npz", None, ["cube=1"], options)
    assert summary["steps"] == 600 - 20


def test_a_part_of_the_action_of_an_npz_file_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("butfor.datasets.score.FEWEST", 10)
    random = np.random.default_rng(0)
    arrays: dict[str, Any] = {f"actions/{name}": random.normal(size=(600, 1)) for name in ("arm", "fingers")}
    ends = np.arange(600) % 30 == 29
    np.savez(tmp_path / "data.npz", observations=random.normal(size=(600, 2)), terminals=ends, **arrays)
    options = Options(epochs=1, actions=4, network=SMALL, ignore=("actions/fingers",))
    score_file(tmp_path / "data.npz", None, ["cube=1"], options, save_model=tmp_path / "model.safetensors")
    assert len(Influence.load(tmp_path / "model.safetensors").law.low) == 1
