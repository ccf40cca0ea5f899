"""Training runs whose files are damaged, shared, copied or edited: refused with a sentence, and nothing is lost."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.small_training import small

from butfor.rollouts.episodes import Episodes
from butfor.runs import files as files_module
from butfor.runs.config import plain
from butfor.runs.files import read_json, write_json
from butfor.runs.locks import BusyError, lock_path, locked
from butfor.runs.reading import read_run
from butfor.training.run import resume, train


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two seeds that keeps its episodes."""
    place = tmp_path_factory.mktemp("finished")
    return train(small(seeds=2), place / "run", keep_episodes=place / "kept.npz")


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy that keeps no episodes."""
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / "episodes.json").unlink()
    return folder


@pytest.mark.parametrize("left", [0, 2])
def test_metrics_that_lost_rows_stop_a_resume(run: Path, left: int) -> None:
    """The checkpoint knows how many there were; a file that is cut off between two lines looks complete."""
    path = run / "metrics.jsonl"
    content = b"".join(path.read_bytes().splitlines(keepends=True)[:left])
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"metrics\.jsonl has {left} rows.*lost"):
        resume(run, episodes=12)
    assert path.read_bytes() == content


@pytest.mark.parametrize("value", ["{}", "null", '"1"', "[1]", "NaN"])
def test_a_row_of_another_form_stops_a_resume_and_is_not_rewritten(run: Path, value: str) -> None:
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    lines[1] = f'{{"episode": 3, "seed": 1, "success": {value}}}\n'
    path.write_text("".join(lines))
    with pytest.raises(ValueError, match=r"metrics\.jsonl"):
        resume(run, episodes=12)
    assert path.read_text() == "".join(lines)


def test_a_damaged_row_of_metrics_stops_a_resume_and_no_row_is_lost(run: Path) -> None:
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    lines[2] = lines[2].replace('"', "", 1)
    path.write_text("".join(lines))
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 3"):
        resume(run, episodes=12)
    assert path.read_text() == "".join(lines)


@pytest.mark.parametrize(
    "change", [{"seeds": 3}, {"algorithm": "td3"}, {"agent": {"width": 16}}, {"warmup": 5}], ids=str
)
def test_a_run_is_not_resumed_with_other_settings(run: Path, change: dict[str, Any]) -> None:
    """Whoever edits config.json has to remove its digest, too; the checkpoint still knows the settings."""
    write_json(
        run / "config.json",
        read_run(run) | {"config": plain(small(seeds=2, **{**change}) if "seeds" not in change else small(**change))},
    )
    name = next(iter(change))
    with pytest.raises(ValueError, match=f"differs from the checkpoint in {name}"):
        resume(run, episodes=12)


def test_a_checkpoint_that_does_not_fit_is_a_sentence(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a run from before checkpoints knew their settings."""
    monkeypatch.setattr("butfor.training.run._check_settings", lambda *given: None)
    for config in (small(seeds=2, agent={"width": 16}), small(seeds=2, agent={"layers": 3})):
        write_json(run / "config.json", read_run(run) | {"config": plain(config)})
        with pytest.raises(ValueError, match=r"checkpoint of .*run does not fit"):
            resume(run, episodes=12)


def test_an_edited_config_is_noticed(run: Path) -> None:
    path = run / "config.json"
    path.write_text(path.read_text().replace('"warmup": 4', '"warmup": 5'))
    with pytest.raises(ValueError, match=r"config\.json changed"):
        resume(run, episodes=12)


# ----------------------------------------------------------------------------------------- episode files


def test_an_episode_file_belongs_to_one_run_at_a_time(tmp_path: Path) -> None:
    with locked(tmp_path / "kept.npz"), pytest.raises(BusyError, match=r"kept\.npz"):
        train_elsewhere(tmp_path)
    assert not (tmp_path / "second").exists()


def train_elsewhere(place: Path) -> None:
    """Another process would hold the lock in another thread; here it is enough that the lock is held."""
    train(small(), place / "second", keep_episodes=place / "kept.npz")


def test_parts_of_another_run_are_refused_and_kept(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(stage: str, done: int, total: int, text: str) -> None:
        if stage == "episodes" and done >= 6:
            raise Stop

    kept = tmp_path / "kept.npz"
    with pytest.raises(Stop):
        train(small(checkpoint_seconds=0.0), tmp_path / "first", keep_episodes=kept, progress=stop)
    parts = {path.name: path.read_bytes() for path in Path(f"{kept}.parts").iterdir()}
    assert parts
    with pytest.raises(FileExistsError, match=r"kept\.npz\.parts"):
        train(small(first_seed=7), tmp_path / "second", keep_episodes=kept)
    other = train(small(first_seed=7), tmp_path / "second", time_limit=0.0)
    with pytest.raises(FileExistsError, match="another run"):
        resume(other, keep_episodes=kept)
    assert {path.name: path.read_bytes() for path in Path(f"{kept}.parts").iterdir()} == parts
    resume(tmp_path / "first")
    assert len(Episodes.load(kept)) == 10


def test_a_copy_of_a_run_leaves_the_originals_episodes_alone(finished: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(finished, tmp_path / "copy")
    kept = finished.parent / "kept.npz"
    before = kept.read_bytes()
    with pytest.raises(ValueError, match=r"copy is a copy of .*run"):
        resume(copy, episodes=12)
    assert kept.read_bytes() == before
    own = shutil.copy(kept, tmp_path / "own.npz")
    resume(copy, episodes=12, keep_episodes=own)
    assert len(Episodes.load(own)) == 24
    assert kept.read_bytes() == before
    resume(copy, episodes=14)  # it has its own file now
    assert len(Episodes.load(own)) == 28


def test_a_run_that_was_moved_keeps_its_file(finished: Path, tmp_path: Path) -> None:
    first = shutil.copytree(finished, tmp_path / "first")
    own = shutil.copy(finished.parent / "kept.npz", tmp_path / "own.npz")
    resume(first, episodes=12, keep_episodes=own)
    moved = first.rename(tmp_path / "moved")
    resume(moved, episodes=14)
    assert len(Episodes.load(own)) == 28
    assert read_json(moved / "episodes.json")["run"] == str(moved.resolve())


def test_a_run_that_was_killed_before_its_config_does_not_forget_its_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(path: Path | str, text: str) -> None:
        if Path(path).name == "config.json":
            raise Killed
        write(path, text)

    write = files_module.write_text
    monkeypatch.setattr(files_module, "write_text", kill)
    with pytest.raises(Killed):
        train(small(), tmp_path / "run", keep_episodes=tmp_path / "kept.npz")
    assert os.listdir(tmp_path / "run") == ["episodes.json"]
    monkeypatch.undo()
    train(small(), tmp_path / "run", keep_episodes=tmp_path / "kept.npz")  # the same command again
    assert len(Episodes.load(tmp_path / "kept.npz")) == 10


HOLD = """
import sys, time
from butfor.runs.locks import working_on
with working_on(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_run_in_use_is_refused_even_if_its_lock_file_was_removed(run: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(run)], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            lock_path(run.resolve()).unlink()
            with pytest.raises(BusyError, match="run is in use"):
                resume(run, episodes=12)
            with pytest.raises(BusyError, match="run is in use"):
                train(small(), run, overwrite=True)
        finally:
            other.kill()
    assert (run / "summary.json").is_file()


# ------------------------------------------------------------------------------------- impossible settings


@pytest.mark.parametrize(
    "change",
    [
        {"agent": {"width": 1_000_000}},
        {"num_envs": 100_000_000, "episodes": 100_000_004, "replay": {"capacity": 100_000_000}},
        {"seeds": 10_000_000},
        {"episodes": 10**9, "replay": {"capacity": 10**9}},
        {"agent": {"batch_size": 10**12}},
        {"agent": {"layers": 10**9}},
        {"agent": {"critics": 10**9}},
        {"use": ("bonus",), "cai": {"network": {"layers": 10**9}}},
        {"use": ("bonus",), "cai": {"network": {"width": 10**9}}},
        {"use": ("bonus",), "cai": {"scoring": {"actions": 10**9}}},
        {"use": ("bonus",), "cai": {"batch_size": 10**12}},
        {"use": ("active",), "explore": {"candidates": 10**9}},
        {"swap": {"share": 0.5, "candidates": 10**12}},
        {"use": ("bonus",), "signal": "vime", "vime": {"samples": 10**9}},
        {"use": ("bonus",), "signal": "vime", "vime": {"group": 10**12}},
        {"use": ("bonus",), "signal": "disagreement", "disagreement": {"members": 10**9}},
    ],
    ids=str,
)
def test_settings_that_do_not_fit_into_memory_are_refused_before_a_folder_is_made(
    tmp_path: Path, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUTFOR_MEMORY_GB", "16")
    with pytest.raises(MemoryError, match=r"at least .*[GT]B of memory, and 16 GB"):
        train(small(**change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"checkpoint_seconds": float("nan")}, "checkpoint_seconds"),
        ({"bonus": {"weight": float("inf")}}, r"bonus\.weight"),
        ({"bonus": {"weight": 1e39}}, r"bonus\.weight"),  # infinite in float32
        ({"agent": {"target_range": (-1e300, 0.0)}}, r"agent\.target_range"),
        ({"agent": {"critics": 0}}, r"AgentConfig\.critics"),
        ({"agent": {"action_penalty": -1.0}}, r"AgentConfig\.action_penalty"),
        ({"agent": {"normalizer_batches": -1}}, r"AgentConfig\.normalizer_batches"),
        ({"cai": {"betas": (0.9, 1.0)}}, r"CaiConfig\.betas"),
        ({"cai": {"newest_from": -1}}, r"CaiConfig\.newest_from"),
        ({"disagreement": {"betas": (-0.1, 0.9)}}, r"EnsembleConfig\.betas"),
        ({"first_seed": 2**60}, r"Config\.first_seed"),
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_refused_by_name(change: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        small(**change)


def test_a_policy_that_diverges_is_not_reported_as_a_fault_of_the_environment(tmp_path: Path) -> None:
    with pytest.raises(FloatingPointError, match=r"actions in episode .* diverged"):
        train(small(agent={"learning_rate": 1e30}), tmp_path / "run")
