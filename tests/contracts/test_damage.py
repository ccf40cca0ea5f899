"""Faults put into every file that commands read and write: nothing is silently wrong, and nothing is lost.

The short form takes seconds; the long form, marked long, tries many more places.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.faults import Killed, copies_before_operations, fault_at, full
from support.small_training import small

from butfor.influence.influence import Influence
from butfor.rollouts.episodes import Episodes
from butfor.runs.checkpoints import latest_checkpoint
from butfor.runs.reading import read_metrics, read_object, read_run
from butfor.training.agents import load_policy
from butfor.training.run import resume, train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with a policy, an influence model and kept episodes."""
    place = tmp_path_factory.mktemp("damage")
    return train(small(use=("bonus",), seeds=2), place / "run", keep_episodes=place / "kept.npz")


def policy_file(path: Path) -> Any:
    policy = load_policy(path)
    random = np.random.default_rng(0)
    parts = zip(("observation", "desired_goal"), policy.sizes[::2], strict=True)
    obs = {name: random.normal(size=(5, size)) for name, size in parts}
    return policy(obs).tolist(), policy.env, policy.seeds


def influence_file(path: Path) -> Any:
    influence = Influence.load(path)
    states = np.random.default_rng(0).normal(size=(5, influence.model.obs_size))
    return {name: score.tolist() for name, score in influence.score(states).items()}


def episode_file(path: Path) -> Any:
    episodes = Episodes.load(path)
    return {name: array.tolist() for name, array in episodes.arrays().items()}, episodes.metadata


def checkpoint_file(path: Path) -> Any:
    state = latest_checkpoint(path.parent.parent)
    assert state is not None
    return state["replay"]["observation"].tolist(), state["config"]


FILES: dict[str, Callable[[Path], Any]] = {
    "config.json": lambda path: read_run(path.parent),
    "summary.json": read_object,
    "versions.json": read_object,
    "episodes.json": read_object,
    "metrics.jsonl": lambda path: read_metrics(path.parent),
    "model.safetensors": policy_file,
    "influence.safetensors": influence_file,
    "../kept.npz": episode_file,
    "checkpoint/*.pt": checkpoint_file,
}


def flip(run: Path, tmp_path: Path, name: str, tries: int, seed: int) -> tuple[int, int]:
    """Change random bytes of a file; return how often that was noticed, and how often it changed nothing."""
    place = tmp_path / "place"
    shutil.copytree(run.parent, place)
    path = next((place / "run").glob(name)) if "*" in name else (place / "run" / name).resolve()
    content = path.read_bytes()
    intact = FILES[name](path)
    random = np.random.default_rng(seed)
    noticed = harmless = 0
    for _ in range(tries):
        damaged = bytearray(content)
        for _ in range(int(random.integers(1, 4))):
            damaged[int(random.integers(len(content)))] = int(random.integers(256))
        path.write_bytes(damaged)
        try:
            found = FILES[name](path)
        except (ValueError, OSError):
            noticed += 1
            continue
        assert _same(found, intact), f"{name} was read with other content"
        harmless += 1
    return noticed, harmless


def _same(found: Any, intact: Any) -> bool:
    """Whether what was read is the same, but for a cut-off last row, or the digest itself under a damaged name."""
    if isinstance(intact, list) and found == intact[:-1]:
        return True
    if isinstance(found, dict) and isinstance(intact, dict):
        found = {key: found.get(key) for key in intact}
    return json.dumps(found) == json.dumps(intact)


@pytest.mark.parametrize("name", FILES)
def test_changed_bytes_are_noticed_or_harmless(run: Path, tmp_path: Path, name: str) -> None:
    noticed, harmless = flip(run, tmp_path, name, 40, 0)
    assert noticed >= 30, f"{harmless} changes changed nothing"


@pytest.mark.long
@pytest.mark.parametrize("name", FILES)
def test_many_changed_bytes_are_noticed_or_harmless(run: Path, tmp_path: Path, name: str) -> None:
    noticed, _ = flip(run, tmp_path, name, 1000, 1)
    assert noticed >= 750


def whole(folder: Path) -> tuple[Any, Any]:
    """What must be the same after an interruption."""
    return _rows_so_far(folder), (folder / "model.safetensors").read_bytes()


def test_a_kill_before_any_file_operation_leaves_a_run_that_can_be_read_and_resumed(tmp_path: Path) -> None:
    """Every folder that a kill would leave is read; every ninth is resumed."""
    config = small(episodes=6, checkpoint_seconds=0.0)
    place = tmp_path / "run"
    with copies_before_operations(place, tmp_path / "copies") as copies:
        train(config, place)
    expected = whole(place)
    for number, copy in enumerate(copies):
        begun = (copy / "config.json").is_file()
        if begun:
            rows = whole(copy)[0] if (copy / "model.safetensors").is_file() else _rows_so_far(copy)
            assert rows == expected[0][: len(rows)], f"copy {number}"
            latest_checkpoint(copy)
        if number % 9 == 0:
            assert whole(resume(copy) if begun else train(config, copy)) == expected, f"copy {number}"
            assert not list(copy.rglob("*.part"))
    assert len(copies) > 40


def _rows_so_far(folder: Path) -> list[Any]:
    written = read_metrics(folder) if (folder / "metrics.jsonl").is_file() else []
    return [{name: value for name, value in row.items() if name != "seconds"} for row in written]


def interrupt_everywhere(tmp_path: Path, fault: Callable[[], BaseException], step: int) -> int:
    """Interrupt a run at every `step`-th file operation, resume it, and compare; return how many there are."""
    config = small(episodes=6, checkpoint_seconds=0.0)
    with fault_at(-1, Killed()) as count:
        expected = whole(train(config, tmp_path / "whole"))
    for number in range(1, count[0] + 1, step):
        folder = tmp_path / f"run-{number}"
        with fault_at(number, fault()), pytest.raises((Killed, OSError)) as caught:
            train(config, folder)
        if isinstance(caught.value, OSError):
            assert "No space left" in str(caught.value), caught.value
        begun = (folder / "config.json").is_file()
        assert whole(resume(folder) if begun else train(config, folder)) == expected, f"operation {number}"
        assert not list(folder.rglob("*.part"))
    return count[0]


@pytest.mark.parametrize("fault", [Killed, full], ids=["killed", "full disk"])
def test_a_run_that_is_interrupted_at_a_file_operation_ends_with_the_same_bits(
    tmp_path: Path, fault: Callable[[], BaseException]
) -> None:
    assert interrupt_everywhere(tmp_path, fault, 7) > 20


@pytest.mark.long
@pytest.mark.parametrize("fault", [Killed, full], ids=["killed", "full disk"])
def test_a_run_that_is_interrupted_at_every_file_operation_ends_with_the_same_bits(
    tmp_path: Path, fault: Callable[[], BaseException]
) -> None:
    interrupt_everywhere(tmp_path, fault, 1)
