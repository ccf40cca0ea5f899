"""Whole runs: what their folders hold, going on after any interruption to the same bits, errors that harm nothing."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from support.files import protected
from support.small_training import ALL_USES, TRACK, Track, metrics, models, results, small
from support.training_server import Server

from butfor.detection.settings import DetectionConfig
from butfor.influence.influence import Influence
from butfor.rollouts.episodes import Episodes
from butfor.rollouts.play import EnvError
from butfor.runs import checkpoints, locks
from butfor.runs.checkpoints import latest_checkpoint
from butfor.runs.config import config_from
from butfor.runs.files import read_json, save_checkpoint, write_json
from butfor.runs.folder import open_run
from butfor.runs.reading import read_metrics
from butfor.training import loop as trainer_library
from butfor.training import run as train_library
from butfor.training.agents.policy import load_policy
from butfor.training.goal_env import GoalEnv, open_goal_env
from butfor.training.loop import Trainer
from butfor.training.run import evaluate_run, resume, train
from butfor.training.settings import Config
from butfor.training.signals.cai import CaiSignal

torch.set_num_threads(1)

CONFIG = small(seeds=2, first_seed=3, use=ALL_USES)
OFTEN = small(seeds=2, first_seed=3, use=ALL_USES, checkpoint_seconds=0.0)
EVALUATED = [6, 9, 10]  # every third episode after the warm-up of four, and the last
ARRAYS = ("observation", "action", "achieved_goal", "desired_goal", "length", "sampled")


class Killed(BaseException):
    """The end of a process that has no time to do anything about it."""


def kill_at(episode: int, stage: str = "episodes") -> Callable[[str, int, int, str], None]:
    """A progress that ends the run at an episode, after its evaluation and before a checkpoint of it."""

    def progress(now: str, done: int, total: int, text: str) -> None:
        if now == stage and done >= episode:
            raise Killed

    return progress


def stored(folder: Path) -> list[int]:
    """The episodes of the checkpoints, oldest first."""
    return sorted(int(path.name.split("-")[0]) for path in (folder / "checkpoint").glob("*.pt"))


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows.

    It reads files in the order of their names, which have the second and then a counter: of one second, 10 before 9.
    """
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with tempfile.TemporaryDirectory() as ordered:
        for number, file in enumerate(sorted((folder / "events").iterdir(), key=lambda file: file.stat().st_mtime_ns)):
            shutil.copy(file, Path(ordered) / f"events.out.tfevents.{number:03}")
        events = accumulator.EventAccumulator(ordered, size_guidance={"scalars": 0})
        events.Reload()
    return {name: [(one.step, one.value) for one in events.Scalars(name)] for name in events.Tags()["scalars"]}


summaries: list[Any] = []  # of the run `unbroken`, after each of its evaluations


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run of two seeds with every use of influence, its episodes kept."""
    place = tmp_path_factory.mktemp("unbroken")

    def look(folder: Path) -> None:
        summaries.append(read_json(folder / "summary.json"))

    return train(CONFIG, place / "run", keep_episodes=place / "episodes.npz", on_evaluation=look)


# ------------------------------------------------------------------------------------ the run folder


def test_metrics_have_a_line_an_evaluation_and_seed(unbroken: Path) -> None:
    rows = read_metrics(unbroken)
    assert [(row["episode"], row["seed"]) for row in rows] == [(e, s) for e in EVALUATED for s in (3, 4)]
    names = ["episode", "seed", "success", "value_predicted", "value_reached", "critic_loss", "actor_loss", "value"]
    names += ["model_loss", "score", "training_touched", "training_success", "first_touched", "first_success"]
    assert all(list(row) == [*names, "seconds"] for row in rows)
    assert all(row["success"] * 3 in (0, 1, 2, 3) for row in rows)
    assert [row["seconds"] for row in rows] == sorted(row["seconds"] for row in rows)


def test_tensorboard_shows_the_metrics(unbroken: Path) -> None:
    shown, rows = curves(unbroken), metrics(unbroken)
    for seed in (3, 4):
        mine = [row for row in rows if row["seed"] == seed]
        for name in [name for name in rows[0] if name not in ("episode", "seed", "seconds")]:
            points = shown.pop(f"{name}/seed {seed}")
            assert [step for step, _ in points] == EVALUATED
            assert [value for _, value in points] == pytest.approx([row[name] for row in mine])
    means = [np.mean([row["success"] for row in rows if row["episode"] == episode]) for episode in EVALUATED]
    assert list(shown) == ["success/mean"]
    assert [step for step, _ in shown["success/mean"]] == EVALUATED
    assert [value for _, value in shown["success/mean"]] == pytest.approx(means)


def test_the_folder_says_what_was_asked_by_which_versions_and_what_came_out(unbroken: Path) -> None:
    record = read_json(unbroken / "config.json")
    assert (record["schema"], record["kind"]) == (1, "training")
    assert config_from(Config, record["config"]) == CONFIG
    assert read_json(unbroken / "versions.json")["torch"] == torch.__version__
    summary, rows = read_json(unbroken / "summary.json"), metrics(unbroken)
    assert (summary["env"], summary["seeds"], summary["played"], summary["finished"]) == ("slide", [3, 4], 10, True)
    assert summary["episodes"] == EVALUATED
    for i, episode in enumerate(EVALUATED):
        values = [row["success"] for row in rows if row["episode"] == episode]
        assert summary["success"]["mean"][i] == pytest.approx(np.mean(values))
        assert summary["success"]["std"][i] == pytest.approx(np.std(values))
    kinds = {"simulation", "model", "scoring", "updates", "evaluation", "total"}
    assert summary["seconds"].keys() == kinds
    assert sum(summary["seconds"].values()) <= 2.1 * summary["seconds"]["total"]
    assert not list(unbroken.rglob(".*"))  # nothing half-written
    names = {"config.json", "versions.json", "metrics.jsonl", "summary.json", "model.safetensors", "episodes.json"}
    assert {path.name for path in unbroken.iterdir()} == names | {"influence.safetensors", "events", "checkpoint"}


def test_while_a_run_trains_its_summary_does_not_grow(unbroken: Path) -> None:
    assert [one["played"] for one in summaries] == EVALUATED
    assert not any(one["finished"] for one in summaries)
    assert all(one["episodes"] == one["success"]["mean"] == [] for one in summaries)  # metrics.jsonl has them


def test_a_trained_policy_loads_in_one_line_and_acts(unbroken: Path) -> None:
    agent = latest_checkpoint(unbroken)["learner"]["agent"]  # type: ignore[index]
    generator = np.random.default_rng(0)
    obs = {name: generator.normal(size=(5, size)).astype(np.float32) for name, size in
           (("observation", 4), ("desired_goal", 1))}  # fmt: skip
    actions = {seed: load_policy(unbroken, seed)(obs) for seed in (3, 4)}
    for r, seed in enumerate((3, 4)):
        x = torch.from_numpy(np.concatenate([obs["observation"], obs["desired_goal"]], 1))
        x = (x - agent["policy.normalizer.mean"][r]) / agent["policy.normalizer.deviation"][r]
        x = x.clamp(-5, 5)
        for layer in range(3):
            x = x @ agent[f"policy.actor.layers.{layer}.weight"][r] + agent[f"policy.actor.layers.{layer}.bias"][r]
            x = torch.tanh(x) if layer == 2 else torch.relu(x)
        assert np.allclose(actions[seed], x.numpy(), atol=1e-6)
        one = {name: value[0] for name, value in obs.items()}
        assert np.allclose(load_policy(unbroken, seed)(one), actions[seed][0], atol=1e-6)
    assert np.array_equal(load_policy(unbroken)(obs), actions[3])
    assert not np.allclose(actions[3], actions[4])


def test_the_influence_model_loads_and_scores(unbroken: Path) -> None:
    influence = Influence.load(unbroken / "influence.safetensors")
    state = latest_checkpoint(unbroken)
    assert state is not None
    for name, value in influence.model.state_dict().items():
        assert torch.equal(value, state["model"]["model"][name]), name
    scores = influence.score(state["replay"]["observation"][0, 0, :-1].numpy())
    assert list(scores) == ["object"]
    assert scores["object"].shape == (30,)  # the mean over the seeds
    assert np.isfinite(scores["object"]).all()


def test_kept_episodes_are_all_that_were_played_in_order(unbroken: Path) -> None:
    episodes, replay = Episodes.load(unbroken.parent / "episodes.npz"), latest_checkpoint(unbroken)["replay"]  # type: ignore[index]
    assert len(episodes) == 20
    assert episodes.metadata["seeds"] == [3, 4]
    assert (episodes.metadata["env"], episodes.metadata["played"]) == ("slide", 10)
    assert (episodes.metadata["action_low"], episodes.metadata["action_high"]) == ([-1], [1])
    for name in ARRAYS:
        kept = getattr(episodes, name)
        for r in range(2):
            assert np.array_equal(kept[r::2], replay[name][r].numpy()), name
    assert set(episodes.label) == {"exact"}
    assert episodes.contact is not None
    assert episodes.sampled[:8].all()
    assert not episodes.sampled[8:].all()
    assert sorted(path.name for path in unbroken.parent.iterdir()) == ["episodes.npz", "run"]  # no parts are left


def test_the_run_has_a_name_of_its_own_where_none_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = train(small(episodes=4))
    second = train(small(episodes=4, agent={"polyak": 0.9}))
    assert {first.parent, second.parent} == {Path("runs")}
    for folder in (first, second):  # a shell reads it as one word, a file system as one name
        assert re.fullmatch(r"[\w.=+-]{1,200}", folder.name)
        assert folder.name.startswith("slide-episodes4-warmup4")
        assert load_policy(folder).env == "slide"
    with pytest.raises(FileExistsError, match=re.escape(str(first))):
        train(small(episodes=4))


# --------------------------------------------------------------------------------------------- going on


def test_going_on_to_more_episodes_ends_as_if_they_had_been_asked_for_at_once(tmp_path: Path) -> None:
    config = {"seeds": 2, "use": ALL_USES, "fit_every": 2}
    whole = train(small(**config, episodes=12), tmp_path / "whole", keep_episodes=tmp_path / "whole.npz")
    parts = train(small(**config, episodes=6), tmp_path / "parts", keep_episodes=tmp_path / "parts.npz")
    assert len(Episodes.load(tmp_path / "parts.npz")) == 12
    resume(parts, episodes=9, keep_episodes=tmp_path / "parts.npz")
    assert read_json(parts / "config.json")["config"]["episodes"] == 9
    resume(parts, episodes=12)  # it remembers where its episodes go
    assert results(parts) == results(whole)
    assert curves(parts) == curves(whole)
    assert read_json(parts / "config.json") == read_json(whole / "config.json")
    first, second = (Episodes.load(tmp_path / f"{name}.npz") for name in ("whole", "parts"))
    assert all(np.array_equal(getattr(first, name), getattr(second, name)) for name in ARRAYS)


def test_an_end_between_two_evaluations_adds_one_and_changes_nothing_else(tmp_path: Path, unbroken: Path) -> None:
    parts = train(small(seeds=2, first_seed=3, use=ALL_USES, episodes=7), tmp_path / "run")
    resume(parts, episodes=10)
    assert models(parts) == models(unbroken)
    success = {(row["episode"], row["seed"]): row["success"] for row in metrics(parts)}
    expected = {(row["episode"], row["seed"]): row["success"] for row in metrics(unbroken)}
    assert success.keys() == expected.keys() | {(7, 3), (7, 4)}
    assert success | expected == success


@pytest.mark.parametrize(
    "changes",
    [
        {"priority": {"kind": "per"}},
        {"use": ("intrinsic",), "agent": {"target_range": None}},
        {"use": ALL_USES, "replay": {"capacity": 5}},
        {"use": ALL_USES, "overlap": ("acting", "updates", "model"), "num_envs": 2},
        {"use": ALL_USES, "cai": {"rescore": "newest", "scoring": {"sampling": "sobol"}}},
        {"use": ALL_USES, "cai": {"model": "touch"}, "overlap": ("acting", "model")},
        {"use": ("bonus", "priority", "relay"), "cai": {"horizon": 3}},
        {"env": "pucks", "entities": ("third=12:14",), "use": ALL_USES, "cai": {"model": "touch", "source": "first"}},
        {"algorithm": "td3", "agent": {"critic_layer_norm": True}},
        {
            "use": ("priority", "relay"),
            "agent": {"critics": 2, "caution_rate": 0.5},
            "explore": {"practice": 0.5, "success_factor": 0.2},
            "priority": {"rank_exponent": 0.5, "step_share": 0.5},
        },
    ],
    ids=["per", "intrinsic", "full memory", "overlap", "newest", "touches", "horizon", "source", "critics", "caution"],
)
def test_every_kind_of_run_goes_on_to_the_same_bits(tmp_path: Path, changes: dict[str, Any]) -> None:
    config = small(seeds=2, evaluate_every=2, checkpoint_seconds=0.0, **changes)
    whole = train(config, tmp_path / "whole")
    broken = tmp_path / "broken"
    with pytest.raises(Killed):
        train(config, broken, progress=kill_at(6))
    with pytest.raises(Killed):
        resume(broken, progress=kill_at(8))
    resume(broken)
    assert results(broken) == results(whole)
    begun, later = read_json(broken / "versions.json"), read_json(whole / "versions.json")
    assert (len(begun["resumed"]), "resumed" in later) == (2, False)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU: there is nothing to repeat on it")
@pytest.mark.parametrize("by", ["influence", "touches", "per", "vime", "disagreement"])
def test_on_a_gpu_a_deterministic_run_goes_on_to_the_same_bits(tmp_path: Path, by: str) -> None:
    kinds: dict[str, dict[str, Any]] = {
        "influence": {"use": ALL_USES},
        "touches": {"use": ALL_USES, "cai": {"model": "touch"}},
        "per": {"priority": {"kind": "per"}},
    }
    changes = kinds.get(by, {"use": ("bonus",), "signal": by})
    config = small(seeds=2, evaluate_every=2, checkpoint_seconds=0.0, deterministic=True, **changes)
    whole = train(config, tmp_path / "whole", "cuda")
    with pytest.raises(Killed):
        train(config, tmp_path / "broken", "cuda", progress=kill_at(7))
    resume(tmp_path / "broken", "cuda")
    assert results(tmp_path / "broken") == results(whole)
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path: Path, unbroken: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        train(CONFIG, folder, keep_episodes=tmp_path / "episodes.npz", progress=kill_at(7))
    assert len(metrics(folder)) == 2  # of the evaluation after episode 6
    assert stored(folder) == []
    resume(folder, keep_episodes=tmp_path / "episodes.npz")
    assert results(folder) == results(unbroken)
    assert curves(folder) == curves(unbroken)  # each point once
    assert len(Episodes.load(tmp_path / "episodes.npz")) == 20


def test_a_run_killed_as_soon_as_it_had_a_config_starts_again(tmp_path: Path, unbroken: Path) -> None:
    """Its versions are those of now: what computed none of the results is not named beside them."""
    folder = open_run(tmp_path / "run", "training", CONFIG)
    (folder / "versions.json").write_text('{"commit": "earlier"}')
    assert results(resume(folder)) == results(unbroken)
    record = read_json(folder / "versions.json")
    assert record["commit"] != "earlier"
    assert "resumed" not in record


def test_metrics_past_the_checkpoint_are_written_anew(tmp_path: Path, unbroken: Path) -> None:
    folder = tmp_path / "run"
    episodes = tmp_path / "episodes.npz"
    with pytest.raises(Killed):
        train(OFTEN, folder, keep_episodes=episodes, progress=kill_at(9))  # evaluated, not saved
    assert stored(folder) == [7, 8]
    assert [row["episode"] for row in metrics(folder)] == [6, 6, 9, 9]
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"episode": 12, "seed": 3, "succ')  # cut off by a crash
    resume(folder, keep_episodes=episodes)
    assert results(folder) == results(unbroken)
    assert curves(folder) == curves(unbroken)
    first, second = Episodes.load(episodes), Episodes.load(unbroken.parent / "episodes.npz")
    assert all(np.array_equal(getattr(first, name), getattr(second, name)) for name in ARRAYS)


def test_what_killed_processes_left_half_written_is_removed(tmp_path: Path, unbroken: Path) -> None:
    folder, kept = tmp_path / "run", tmp_path / "kept.npz"
    with pytest.raises(Killed):
        train(OFTEN, folder, keep_episodes=kept, progress=kill_at(7))
    with subprocess.Popen(["true"]) as process:
        dead = process.pid
    for place, name in ((folder, "summary.json"), (folder / "checkpoint", "a.pt"), (tmp_path / "kept.npz.parts", "b")):
        (place / f".{name}.{dead}.part").write_text("half")
    resume(folder, keep_episodes=kept)
    assert results(folder) == results(unbroken)
    assert not list(tmp_path.rglob("*.part"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.npz", "run"]


def test_a_finished_run_that_is_resumed_stays_as_it_is(tmp_path: Path, unbroken: Path) -> None:
    folder = train(CONFIG, tmp_path / "run")
    before = results(folder)
    resume(folder)
    assert results(folder) == before == results(unbroken)


@pytest.mark.parametrize("left", [["model.safetensors"], ["summary.json"], ["model.safetensors", "summary.json"]])
def test_results_without_a_checkpoint_are_not_written_over(tmp_path: Path, left: list[str]) -> None:
    """As of a run that was copied without its largest part."""
    folder = train(small(), tmp_path / "run")
    shutil.rmtree(folder / "checkpoint")
    for name in {"model.safetensors", "summary.json"} - set(left):
        (folder / name).unlink()
    before = results(folder)
    with pytest.raises(ValueError, match=f"{folder} .*checkpoint/"):
        resume(folder)
    assert results(folder) == before


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_anew(tmp_path: Path) -> None:
    folder = train(small(), tmp_path / "run")
    whole = results(folder)
    shutil.rmtree(folder / "checkpoint")
    (folder / "model.safetensors").unlink()
    (folder / "summary.json").write_text(json.dumps(read_json(folder / "summary.json") | {"finished": False}))
    assert results(resume(folder)) == whole


# ------------------------------------------------------------------------------- stopping at good moments


@pytest.mark.parametrize("overlap", [(), ("acting", "updates", "model")], ids=["in turn", "overlapping"])
def test_stopped_over_and_over_a_run_ends_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overlap: tuple[Any, ...]
) -> None:
    """A time limit of nothing: each call gets a chunk of the model's round done, or an episode."""
    monkeypatch.setattr(trainer_library, "CHUNK", 4)
    config = small(seeds=2, use=ALL_USES, overlap=overlap)
    whole = train(config, tmp_path / "whole")
    folder = train(config, tmp_path / "run", time_limit=0.0, keep_episodes=tmp_path / "episodes.npz")
    within = calls = 0
    while not read_json(folder / "summary.json")["finished"]:
        state = latest_checkpoint(folder)
        assert state is not None
        within += state["interrupted"] and state["pending"] > 0
        resume(folder, time_limit=0.0, keep_episodes=tmp_path / "episodes.npz")
        calls += 1
        assert calls < 50
    assert results(folder) == results(whole)
    assert len(Episodes.load(tmp_path / "episodes.npz")) == 20
    assert within >= 7  # the first round of 30 batches alone has seven ends of chunks
    if not overlap:
        # further chunks of the first round, its updates; episodes 5 and 6; 7 with three chunks; 8 and 9; 10 like 7
        assert calls == 7 + 1 + 2 + (3 + 1) + 2 + (3 + 1)


def test_an_evaluation_after_a_stop_within_a_round_is_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the round after episode 10, then killed after that episode's evaluation."""
    monkeypatch.setattr(trainer_library, "CHUNK", 5)
    folder = tmp_path / "run"
    stopped = False

    def stop(stage: str, done: int, total: int, text: str) -> None:
        nonlocal stopped
        if stage == "model" and text == "after episode 10" and not stopped:
            stopped = True
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(CONFIG, folder, progress=stop)
    state = latest_checkpoint(folder)
    assert state is not None
    assert (state["interrupted"], state["replay"]["stored"], state["pending"]) == (True, 10, 0)
    with pytest.raises(Killed):
        resume(folder, progress=kill_at(10))
    assert [row["episode"] for row in metrics(folder)] == [6, 6, 9, 9, 10, 10]
    resume(folder)
    whole = train(CONFIG, tmp_path / "whole")
    assert results(folder) == results(whole)
    assert curves(folder) == curves(whole)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_episode_finish_and_says_how_to_go_on(
    tmp_path: Path, unbroken: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "run"
    before = signal.getsignal(number)

    def progress(stage: str, done: int, total: int, text: str) -> None:
        if stage == "episodes" and done == 7:
            signal.raise_signal(number)

    with pytest.raises(KeyboardInterrupt) as caught:
        train(CONFIG, folder, progress=progress)
    (words,) = caught.value.args
    assert "episode 7" in words
    assert f"--resume {folder}" in words
    assert signal.getsignal(number) == before
    summary = read_json(folder / "summary.json")
    assert (summary["finished"], summary["played"]) == (False, 7)
    assert stored(folder) == [7]
    assert load_policy(folder).seed == 3  # it can be watched meanwhile
    resume(folder)
    assert results(folder) == results(unbroken)


def test_a_signal_in_the_last_episode_comes_too_late_to_stop_anything(tmp_path: Path, unbroken: Path) -> None:
    def progress(stage: str, done: int, total: int, text: str) -> None:
        if stage == "episodes" and done == 10:
            signal.raise_signal(signal.SIGINT)

    try:
        train(CONFIG, tmp_path / "run", progress=progress)
    except KeyboardInterrupt as stopped:
        pytest.fail(f"the run was finished, but it says: {stopped}")
    assert results(tmp_path / "run") == results(unbroken)
    assert read_json(tmp_path / "run" / "summary.json")["finished"]


def test_stopped_in_the_warm_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first update there is a policy, too, and nothing to show of it."""
    config = small(seeds=2, warmup=8, episodes=9)

    def few(*arguments: Any) -> GoalEnv:
        return replace(open_goal_env(*arguments), evaluation_envs=3)  # random episodes that are played at once

    whole = train(config, tmp_path / "whole")
    monkeypatch.setattr(train_library, "open_goal_env", few)
    folder = train(config, tmp_path / "run", time_limit=0.0)
    assert read_json(folder / "summary.json")["played"] == 3
    assert read_json(folder / "summary.json")["episodes"] == []
    resume(folder, time_limit=0.0)
    assert read_json(folder / "summary.json")["played"] == 6
    resume(folder)
    assert results(folder) == results(whole)


# --------------------------------------------------------------------------------- processes and signals

OPTIONS = [
    "--use", "priority", "bonus", "active", "--seeds", "2", "--warmup", "10", "--evaluate-every", "10",
    "--evaluation-episodes", "4", "--checkpoint-seconds", "0.1", "--agent.layers", "2", "--agent.width", "16",
    "--agent.batch-size", "16", "--agent.updates", "4", "--agent.normalizer-batches", "3", "--explore.candidates", "4",
    "--cai.network.layers", "2", "--cai.network.width", "16", "--cai.batch-size", "16", "--fit-every", "10",
    "--cai.scoring.actions", "4", "--cai.newest-from", "40", "--device", "cpu",
]  # fmt: skip
LONG = ["train", "slide", *OPTIONS, "--fit-schedule", "1000", "80", "--episodes", "100"]
KILLS = 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("processes")) as server:
        assert server.run("--version") == 0
        yield server


def test_killed_at_random_moments_a_run_ends_with_the_same_bits(server: Server) -> None:
    """SIGKILL at 20 moments, of start-up, play, updates, rounds of the model, evaluations and checkpoints."""
    began = time.monotonic()
    assert server.run(*LONG, "--run", "unbroken", "--keep-episodes", "unbroken.npz") == 0, server.stderr
    lasted = time.monotonic() - began
    folder, generator = server.folder / "killed", np.random.default_rng(1)
    kept = server.folder / "killed.npz"

    def assert_as_unbroken() -> None:
        assert results(folder) == results(server.folder / "unbroken")
        assert curves(folder) == curves(server.folder / "unbroken")
        first, second = Episodes.load(server.folder / "unbroken.npz"), Episodes.load(kept)
        assert all(np.array_equal(getattr(first, name), getattr(second, name)) for name in ARRAYS)
        assert stored(folder)[-1] == 100

    reached: list[int] = []  # episodes of the newest checkpoint after each kill
    while len(reached) < KILLS or len(set(reached)) < 5:
        started = (folder / "config.json").exists()
        begin = ["train", "--resume", "killed"] if started else [*LONG, "--run", "killed"]
        server.start(*begin, "--keep-episodes", "killed.npz")
        time.sleep(generator.uniform(0, lasted / 8) * max(1, len(reached) / KILLS))  # in time, something gets done
        server.signal(signal.SIGKILL)
        code = server.wait()
        if code == 0:  # it was quicker than the first: once more from the start
            assert_as_unbroken()
            shutil.rmtree(folder)
            kept.unlink()
            continue
        assert code == -signal.SIGKILL, f"exit code {code} after {len(reached)} kills: {server.stderr}"
        reached.append(max(stored(folder), default=0))
    assert server.run("train", "--resume", "killed", "--keep-episodes", "killed.npz") == 0, server.stderr
    assert_as_unbroken()


def wait_until(server: Server, ready: Callable[[], object]) -> None:
    """Looks again and again, for minutes on a busy machine."""
    end = time.monotonic() + 150
    while not ready():
        assert time.monotonic() < end, server.stderr
        time.sleep(0.005)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_process_told_to_stop_saves_and_exits_with_130(server: Server, number: signal.Signals) -> None:
    name = f"stopped by {number.name}"
    server.start(*LONG, "--run", name)
    wait_until(server, lambda: list((server.folder / name).glob("checkpoint/*.pt")))
    server.signal(number)
    assert server.wait() == 130, server.stderr
    played = read_json(server.folder / name / "summary.json")["played"]
    assert 10 <= played < 100
    assert stored(server.folder / name)[-1] == played
    last = server.stderr.splitlines()[-1]
    assert f"episode {played}" in last
    assert f"--resume {name}" in last
    assert "Traceback" not in server.stderr
    assert server.stdout == ""
    assert server.run("train", "--resume", name, "--episodes", str(played + 1)) == 0, server.stderr
    assert f"Run: {name}" in server.stdout.splitlines()


def test_a_second_ctrl_c_ends_at_once(server: Server) -> None:
    """In the middle of updates that would take minutes."""
    endless = [*LONG, "--run", "endless"]
    endless[endless.index("--agent.updates") + 1] = "200000"
    server.start(*endless)
    wait_until(server, lambda: "model: 80 of 80" in server.stderr)  # what follows are the updates
    time.sleep(0.3)
    server.signal(signal.SIGINT)
    time.sleep(1.3)
    assert not (server.folder / "endless/summary.json").exists()
    began = time.monotonic()
    server.signal(signal.SIGINT)
    assert server.wait() == 130
    assert time.monotonic() - began < 30  # also on a busy machine
    assert "--resume RUN" in server.stderr.splitlines()[-1]
    assert "Traceback" not in server.stderr


def test_a_time_limit_counts_from_the_start_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what a GPU's recording takes: else a limit that leaves room for the checkpoint does not."""
    least = train(small(episodes=100_000), tmp_path / "least", time_limit=0.0)
    monkeypatch.setattr(Trainer, "prepare", lambda self, progress: time.sleep(0.5))
    folder = train(small(episodes=100_000), tmp_path / "run", time_limit=0.5)
    assert read_json(folder / "summary.json")["played"] == read_json(least / "summary.json")["played"]
    with pytest.raises(ValueError, match="time_limit"):
        train(small(), tmp_path / "other", time_limit=-1.0)


def test_a_time_limit_ends_the_command_in_good_order(server: Server) -> None:
    assert server.run(*LONG, "--run", "limited", "--time-limit", "0.2") == 0, server.stderr
    summary = read_json(server.folder / "limited/summary.json")
    assert 10 <= summary["played"] < 100
    assert not summary["finished"]
    assert f"after {summary['played']} episodes" in " ".join(server.stdout.split())


# ------------------------------------------------------------------------------------ damaged checkpoints


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [truncate, flip_a_bit, empty])
def test_after_a_damaged_checkpoint_the_one_before_is_used(
    tmp_path: Path, unbroken: Path, damage: Callable[[Path], None]
) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        train(OFTEN, folder, progress=kill_at(9))
    older, newest = sorted((folder / "checkpoint").glob("*.pt"))
    damage(newest)
    with pytest.warns(UserWarning, match=rf"{newest.name}.*{older.name}"):
        resume(folder)
    assert results(folder) == results(unbroken)
    with warnings.catch_warnings(action="error"):
        resume(folder)  # the damaged one has gone


def test_without_a_whole_checkpoint_nothing_is_started_anew_in_silence(tmp_path: Path) -> None:
    folder = train(CONFIG, tmp_path / "run")
    for path in (folder / "checkpoint").glob("*.pt"):
        truncate(path)
    before = results(folder)
    with pytest.raises(ValueError, match=rf"{folder} .*\.pt is"):
        resume(folder, episodes=12)
    assert results(folder) == before
    assert read_json(folder / "config.json")["config"]["episodes"] == 10


# --------------------------------------------------------------------------------------------- errors


def assert_intact(folder: Path, saved: int) -> None:
    """The newest checkpoint is of this episode, whole, and holds nothing but numbers; nothing claims to be finished."""
    assert stored(folder)[-1] == saved
    assert not (folder / "summary.json").exists() or not read_json(folder / "summary.json")["finished"]
    with warnings.catch_warnings(action="error"):
        state = latest_checkpoint(folder)
    assert state is not None
    values = [*state["learner"]["agent"].values(), *state["model"]["model"].values(), state["replay"]["score"]]
    assert all(torch.isfinite(value).all() for value in values)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("critic", "The agent's loss of replica 1 became NaN or infinite"),
        ("model", "replica 1.*NaN"),
    ],
)
def test_a_loss_that_is_no_number_stops_the_run_before_it_is_saved(
    tmp_path: Path, unbroken: Path, monkeypatch: pytest.MonkeyPatch, where: str, words: str
) -> None:
    """From episode 7 on, which is not evaluated, the second replica's network is broken."""
    update, fit = Trainer.update, CaiSignal.fit

    def broken_update(self: Trainer) -> None:
        if self.replay.stored == 7:
            with torch.no_grad():
                next(self.agent.critics.parameters())[1] = torch.nan  # type: ignore[attr-defined]
        update(self)

    def broken_fit(self: CaiSignal, batches: int, *rest: Any) -> Any:
        if self.replay.stored == 7:
            with torch.no_grad():
                next(self.model.parameters())[1] = torch.inf
        return fit(self, batches, *rest)

    with monkeypatch.context() as patch:
        if where == "critic":
            patch.setattr(Trainer, "update", broken_update)
        else:
            patch.setattr(CaiSignal, "fit", broken_fit)
        with pytest.raises(FloatingPointError, match=words):
            train(OFTEN, tmp_path / "run")
    assert_intact(tmp_path / "run", 6)
    resume(tmp_path / "run")
    assert results(tmp_path / "run") == results(unbroken)


@pytest.mark.parametrize(
    "changes", [{"agent": {"learning_rate": 1e30}}, {"cai": {"learning_rate": 1e30}}], ids=["agent", "model"]
)
def test_a_learning_rate_that_is_far_too_high_ends_with_a_sentence(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(FloatingPointError, match=r"became NaN or infinite. Lower the learning rate"):
        train(small(use=ALL_USES, checkpoint_seconds=0.0, episodes=40, **changes), tmp_path / "run")
    assert not (tmp_path / "run" / "summary.json").exists()
    state = latest_checkpoint(tmp_path / "run")
    if state is not None:
        assert torch.isfinite(state["learner"]["statistics"]).all()


def test_a_full_disk_leaves_the_last_checkpoint_as_it_was(
    tmp_path: Path, unbroken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, state: Any) -> None:
        if state["replay"]["stored"] < 8:
            return save_checkpoint(path, state)
        path.write_bytes(b"as much as there was room for")
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "save_checkpoint", full)
        words = r"The checkpoint of episode 8 could not be written \(.*No space left on device"
        with pytest.raises(OSError, match=words):
            train(OFTEN, tmp_path / "run")
    assert_intact(tmp_path / "run", 7)
    resume(tmp_path / "run")
    assert results(tmp_path / "run") == results(unbroken)
    assert not list((tmp_path / "run" / "checkpoint").glob("*.part"))


# -------------------------------------------------------------------------------------- foreign environments


FOREIGN = small(env=TRACK, seeds=2, use=ALL_USES, cai={"network": {"target_scale": None}})


@pytest.fixture
def track() -> Iterator[type[Track]]:
    """The environment's class, which counts its steps and can be told to break."""
    Track.steps, Track.breaks_at = 0, None
    yield Track
    Track.breaks_at = None


@pytest.mark.parametrize("by", ["id", "function"])
def test_a_foreign_environment_trains_with_episodes_of_unequal_lengths(tmp_path: Path, by: str) -> None:
    def make_env() -> gymnasium.Env[Any, Any]:
        return gymnasium.wrappers.TimeLimit(Track(), 10)

    made = {"make_env": make_env} if by == "function" else {}
    config = FOREIGN if by == "id" else small(**{"env": "my own", "seeds": 2, "use": ALL_USES})
    folder = train(config, tmp_path / "run", keep_episodes=tmp_path / "kept.npz", **made)  # type: ignore[arg-type]
    replay = latest_checkpoint(folder)["replay"]  # type: ignore[index]
    lengths = replay["length"]
    assert 3 <= lengths.min() < lengths.max() == 10
    steps = torch.arange(10)
    past = steps >= lengths[..., None]
    assert not replay["score"][past].any()
    assert replay["score"][~past].any()
    assert replay["terminated"][lengths < 10].all()
    assert not replay["terminated"].all()  # the time limit ends an episode, but not the environment
    obs = replay["observation"]
    assert torch.equal(obs[:, :, :-1, 0][~past], steps.expand_as(past)[~past].float())  # the time that was observed
    kept = Episodes.load(tmp_path / "kept.npz")
    assert np.array_equal(kept.length[0::2], lengths[0])
    shorter = resume(folder, episodes=12, keep_episodes=tmp_path / "kept.npz", **made)  # type: ignore[arg-type]
    assert read_json(shorter / "summary.json")["played"] == 12
    assert load_policy(folder)({"observation": np.zeros(2), "desired_goal": np.zeros(1)}).shape == (1,)
    assert all(0 <= share <= 1 for share in evaluate_run(folder, 5, **made).values())  # type: ignore[arg-type]


def test_what_was_found_out_about_a_foreign_environment_is_told(tmp_path: Path) -> None:
    """The place is column 1; it moves by 0.3 times a uniform action, whose standard deviation is 1 / sqrt(3)."""
    told: list[tuple[str, str]] = []
    folder = train(FOREIGN, tmp_path / "run", progress=lambda stage, done, total, text: told.append((stage, text)))
    found = read_json(folder / "summary.json")["found"]
    assert found["entities"]["object"]["columns"] == [1]
    assert found["entities"]["object"]["scale"] == [pytest.approx(3**0.5 / 0.3, rel=0.3)]  # of a few random episodes
    assert (found["reward_of_a_reached_goal"], found["longest_episode"]) == (0, 10)
    assert [stage for stage, _ in told].count("environment") == 1
    assert told[0][1].startswith("object: columns 1 of the observation, their changes times ")
    assert told[0][1].endswith("; reward of a reached goal: 0; episodes of at most 10 steps")
    told.clear()
    train(small(), tmp_path / "slide", progress=lambda stage, done, total, text: told.append((stage, text)))
    assert "environment" not in dict(told)  # of a built-in environment it is known


def test_the_entity_of_a_foreign_environment_is_the_achieved_goal_unless_named(tmp_path: Path) -> None:
    first = Influence.load(train(FOREIGN, tmp_path / "goal") / "influence.safetensors")
    assert first.entities == {"object": [1]}
    named = small(env=TRACK, entities=("object=0:2",), use=("active",))
    second = Influence.load(train(named, tmp_path / "named") / "influence.safetensors")
    assert second.entities == {"object": [0, 1]}


def test_fetch_reach_trains_by_its_id(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium_robotics")
    config = small(env="gymnasium_robotics:FetchReach-v4", warmup=1, episodes=2, use=ALL_USES)
    folder = train(config, tmp_path / "run")
    assert metrics(folder)[0]["episode"] == 2
    assert np.abs(load_policy(folder)({"observation": np.zeros(10), "desired_goal": np.zeros(3)})).max() <= 1


def test_an_environment_that_fails_leaves_the_last_checkpoint_as_it_was(tmp_path: Path, track: type[Track]) -> None:
    config = small(env=TRACK, seeds=2, use=ALL_USES, checkpoint_seconds=0.0)
    whole = train(config, tmp_path / "whole")
    counted, track.steps = track.steps, 0
    track.breaks_at = counted - 25  # in the last episodes or their evaluation
    folder = tmp_path / "run"
    sentence = r"^butfor-test/Track-v0 raised ZeroDivisionError in .*episode (8|9|10): the track has no length$"
    with pytest.raises(EnvError, match=sentence) as caught:
        train(config, folder)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    saved = stored(folder)[-1]
    assert 7 <= saved < 10
    track.breaks_at = None  # mended
    resume(folder)
    assert results(folder) == results(whole)


def test_an_environment_that_fails_at_once_leaves_no_folder_behind(tmp_path: Path, track: type[Track]) -> None:
    track.breaks_at = 2
    with pytest.raises(EnvError, match="Track-v0 raised ZeroDivisionError"):
        train(FOREIGN, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


# ----------------------------------------------------------------------------- one process at a time

HOLD = """
import sys, time
from butfor.runs.locks import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_run_that_another_process_works_on_is_left_alone_until_that_is_killed(
    tmp_path: Path, unbroken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "GRACE", 0.0)
    folder = train(replace(CONFIG, episodes=7), tmp_path / "run")
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        busy = f"{folder}.*{other.pid}"
        with pytest.raises(locks.BusyError, match=busy):
            resume(folder, episodes=10)
        with pytest.raises(locks.BusyError, match=busy):
            train(CONFIG, folder, overwrite=True)
        assert {path: path.read_bytes() for path in folder.rglob("*.*")} == before
        other.kill()
    resume(folder, episodes=10)
    assert models(folder) == models(unbroken)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_who_holds_the_lock_of_a_folder_may_train_and_go_on_in_it(
    tmp_path: Path, unbroken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a study does with its units; and a folder may be named in any way."""
    folder = tmp_path / "run"
    with locks.locked(folder):
        train(replace(CONFIG, episodes=7), folder)
        monkeypatch.chdir(folder)
        resume(".", episodes=10)
        assert locks.worker_on(folder)
    assert models(folder) == models(unbroken)


# ------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (small(env="nowhere"), "nowhere"),
        (small(env="CartPole-v1"), r"CartPole\-v1"),
        (small(entities=("object=7",), use=("bonus",)), "object=7"),
        (small(use=("bonus",), cai={"model": "touch", "source": "puck"}), "'puck'"),
        (
            small(priority={"kind": "ebp"}),
            "'ebp'.*slide",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(
    tmp_path: Path, config: Config, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        train(config, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ({"cai": {"model": "touch"}}, True),
        ({"cai": {"model": "touch"}, "bonus": {"weight": 2.0}}, False),
        ({"cai": {"model": "touch"}, "use": ("priority", "active")}, False),
        ({"cai": {"model": "gaussian"}}, False),
    ],
)
def test_a_bonus_that_adds_next_to_nothing_is_warned_of(tmp_path: Path, changes: dict[str, Any], warned: bool) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        train(small(**{"use": ("bonus",), "episodes": 5} | changes), tmp_path / "run")
    assert any("--bonus.weight" in str(one.message) for one in found) == warned


def test_a_folder_that_holds_a_run_or_something_else_is_left_alone(tmp_path: Path, unbroken: Path) -> None:
    before = {path: path.read_bytes() for path in unbroken.rglob("*") if path.is_file()}
    with pytest.raises(FileExistsError, match=f"--resume {unbroken}"):
        train(CONFIG, unbroken)
    assert {path: path.read_bytes() for path in unbroken.rglob("*") if path.is_file()} == before
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("precious")
    for overwrite in (False, True):
        with pytest.raises(FileExistsError, match=r"thesis"):
            train(CONFIG, tmp_path / "thesis", overwrite=overwrite)
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "precious"


@pytest.mark.parametrize("limit", [-1.0, float("nan")])
def test_a_time_limit_that_is_none_is_refused_before_a_run_is_overwritten_or_changed(
    tmp_path: Path, unbroken: Path, limit: float
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(unbroken, folder)
    with pytest.raises(ValueError, match=r"time_limit.*0"):
        train(CONFIG, folder, overwrite=True, time_limit=limit)
    with pytest.raises(ValueError, match=r"time_limit.*0"):
        resume(folder, episodes=12, time_limit=limit)
    held = [{path.relative_to(one): path.read_bytes() for path in one.rglob("*.*")} for one in (folder, unbroken)]
    assert held[0] == held[1]


def test_an_overwritten_run_starts_anew(tmp_path: Path, unbroken: Path) -> None:
    folder = train(small(episodes=4), tmp_path / "run")
    (folder / "checkpoint" / "note").write_text("old")
    train(CONFIG, folder, overwrite=True)
    assert results(folder) == results(unbroken)
    assert stored(folder) == [10]
    assert (folder / "checkpoint" / "note").read_text() == "old"  # it is not the run's


def test_an_episode_file_that_exists_is_left_alone(tmp_path: Path, unbroken: Path) -> None:
    kept = tmp_path / "kept.npz"
    kept.write_text("precious")
    with pytest.raises(FileExistsError, match=r"kept\.npz"):
        train(CONFIG, tmp_path / "run", keep_episodes=kept)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.npz"]
    assert kept.read_text() == "precious"


def test_an_episode_file_cannot_begin_in_the_middle_of_a_run(tmp_path: Path) -> None:
    """It would lack the first episodes without a word."""
    folder = train(CONFIG, tmp_path / "run")
    with pytest.raises(FileNotFoundError, match=r"late\.npz has none of the 10 episodes played so far"):
        resume(folder, episodes=12, keep_episodes=tmp_path / "late.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert stored(folder) == [10]


def test_fewer_episodes_than_played_cannot_be_asked_for(tmp_path: Path) -> None:
    folder = train(CONFIG, tmp_path / "run")
    before = results(folder), read_json(folder / "config.json")
    with pytest.raises(ValueError, match=r" 10 .* 9\."):
        resume(folder, episodes=9)
    assert (results(folder), read_json(folder / "config.json")) == before


def test_a_run_that_cannot_be_written_is_told_before_it_goes_on(
    unbroken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_library, "latest_checkpoint", None)  # nothing is even looked at
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "run")
        shutil.copytree(unbroken, folder)
        os.chmod(name, 0o755)
        os.chmod(folder / "config.json", 0o644)
        for place in (folder, folder / "checkpoint"):
            with protected(place), pytest.raises(OSError, match=str(place)):
                resume(folder, episodes=12)
            os.chmod(folder, 0o777)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a folder nobody can write to")
def test_episodes_that_cannot_be_kept_are_told_before_a_run_goes_on(
    tmp_path: Path, unbroken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(unbroken, folder)
    write_json(folder / "episodes.json", {"file": "/proc/x/y.npz"})
    monkeypatch.setattr(train_library, "open_goal_env", None)
    with pytest.raises(OSError, match=r"/proc/x/y\.npz"):
        resume(folder, episodes=12)
    assert read_json(folder / "config.json") == read_json(unbroken / "config.json")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": 12}, "10.*12"),
        ({"extra": 1}, r"\(2,\ 1,\ 1\).*\(3,\ 1,\ 1\)"),
        ({"high": 2}, r"\-1\.0.*1\.0.*\(2\.0,\)"),
    ],
)
def test_an_environment_that_has_changed_is_not_gone_on_in(tmp_path: Path, changes: dict[str, int], words: str) -> None:
    class Changed(Track):
        def __init__(self, extra: int = 0, high: int = 1) -> None:
            self.extra, box = extra, gymnasium.spaces.Box(-np.inf, np.inf, (2 + extra,), np.float64)
            self.observation_space = gymnasium.spaces.Dict({**Track.observation_space.spaces, "observation": box})  # type: ignore[attr-defined]
            self.action_space = gymnasium.spaces.Box(-1, high, (1,), np.float32)

        def _observe(self) -> Any:
            seen = super()._observe()
            return seen | {"observation": np.append(seen["observation"], [7.0] * self.extra)}

    def make(steps: int = 10, **given: int) -> Any:
        return lambda: gymnasium.wrappers.TimeLimit(Changed(**given), steps)

    folder = train(replace(FOREIGN, env="changing"), tmp_path / "run", make_env=make())
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    with pytest.raises(ValueError, match=words):
        resume(folder, episodes=12, make_env=make(**changes))
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == before
    resume(folder, episodes=12, make_env=make())


def test_only_training_runs_can_be_resumed(tmp_path: Path) -> None:
    open_run(tmp_path / "detection", "detection", DetectionConfig())
    with pytest.raises(ValueError, match="'detection'"):
        resume(tmp_path / "detection")
    with pytest.raises(FileNotFoundError, match="There is no folder"):
        resume(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="is not a run folder"):
        resume(tmp_path / "empty")
    assert {path.name for path in tmp_path.iterdir()} == {"detection", "empty"}


def test_environments_are_given_back_whatever_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Trainer] = []
    close = Trainer.close

    def watched(self: Trainer) -> None:
        closed.append(self)
        close(self)

    monkeypatch.setattr(Trainer, "close", watched)
    train(CONFIG, tmp_path / "good")
    with pytest.raises(Killed):
        train(CONFIG, tmp_path / "bad", progress=kill_at(7))
    assert len(closed) == 2
