"""A run or a file of somebody else may name a module: no command imports it unasked."""

import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from support.command_line import SMALL_TRAIN, Butfor
from support.small_training import small

from butfor.rollouts.episodes import Episodes
from butfor.runs.modules import module_imports
from butfor.training.run import train

MODULE = "module_of_a_run"
ENV = f"{MODULE}:butfor-test/OfAModule-v0"
SOURCE = """
import gymnasium
from support.small_training import Track
open("executed", "w").close()
gymnasium.register("butfor-test/OfAModule-v0", Track, max_episode_steps=10)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the module, a run that names it, and an episode file that does."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / f"{MODULE}.py").write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch, module_imports(True):
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        train(small(env=ENV), folder / "run", keep_episodes=folder / "kept.npz")
    episodes = Episodes.load(folder / "kept.npz")
    episodes.metadata = {"config": {"env": ENV}}
    episodes.save(folder / "episodes.npz")
    return folder


@pytest.fixture
def not_imported(place: Path, butfor_command: Butfor, monkeypatch: pytest.MonkeyPatch) -> Butfor:
    """The command in that folder, in a process that has not imported the module."""
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    gymnasium.registry.pop("butfor-test/OfAModule-v0", None)
    (place / "executed").unlink(missing_ok=True)
    return butfor_command


GIVEN_A_RUN = {
    "evaluate": ["evaluate", "run", "--episodes", "1"],
    "watch": ["watch", "run"],
    "view": ["view", "run", "--no-browser"],
    "view of a file": ["view", "episodes.npz", "--no-browser"],
    "resume": ["train", "--resume", "run", "--episodes", "12", "--no-report"],
    "collect": ["collect", ENV, "--policy", "run", "--episodes", "1", "--out", "collected.npz"],
    "report": ["report", "run", "--player"],
}


@pytest.mark.parametrize("command", GIVEN_A_RUN)
def test_a_command_that_is_given_a_run_asks_before_it_imports_the_module(
    command: str, place: Path, not_imported: Butfor
) -> None:
    _, _, err = not_imported(*GIVEN_A_RUN[command])
    assert not (place / "executed").exists()
    assert f"'{MODULE}'" in err, err
    assert "--import-module" in err


@pytest.mark.parametrize("what", ["run", "episodes.npz"])
def test_why_forks_built_in_environments_only_and_imports_nothing(what: str, place: Path, not_imported: Butfor) -> None:
    assert not_imported("why", what)[0] == 1
    assert not (place / "executed").exists()


@pytest.mark.parametrize("command", ["evaluate", "resume", "collect"])
def test_with_the_flag_the_module_is_imported(command: str, place: Path, not_imported: Butfor) -> None:
    code, _, err = not_imported(*GIVEN_A_RUN[command], "--import-module")
    assert code == 0, err
    assert (place / "executed").exists()


def test_an_environment_that_the_user_names_is_imported(place: Path, not_imported: Butfor) -> None:
    assert not_imported("collect", ENV, "--episodes", "1", "--out", "typed.npz")[0] == 0
    assert np.isfinite(Episodes.load(place / "typed.npz").observation).all()


def test_training_in_an_environment_that_the_user_names_imports_it(place: Path, not_imported: Butfor) -> None:
    code, out, err = not_imported("train", ENV, *SMALL_TRAIN, "--run", "typed", "--no-report")
    assert code == 0, err
    assert "Run: typed" in out
