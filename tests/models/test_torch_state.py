"""Whatever a program has set in torch globally, results are the same bits, and its settings are put back."""

import copy
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from butfor.influence.influence import Influence
from butfor.models.dynamics import ModelConfig
from butfor.models.fitting import FitConfig
from butfor.models.torch_state import pinned


def fit() -> Influence:
    """A network of two layers, fitted for a moment."""
    random = np.random.default_rng(0)
    obs, action = random.normal(size=(300, 3)), random.uniform(-1, 1, (300, 1))
    next_obs = obs + 0.1 * action
    config = ModelConfig(layers=2, width=8)
    return Influence.fit(
        obs, action, next_obs, "cube=1:3", model=config, fitting=FitConfig(max_epochs=2), progress=False
    )


STATES = np.random.default_rng(1).normal(size=(50, 3))


@pytest.fixture(scope="module")
def influence() -> Influence:
    return fit()


@contextmanager
def double() -> Any:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


STATES_OF_TORCH: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "float64": double,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "default device": lambda: torch.device("meta"),
}


@pytest.mark.parametrize("state", STATES_OF_TORCH)
def test_results_do_not_depend_on_what_is_set_globally(influence: Influence, tmp_path: Path, state: str) -> None:
    expected = influence.score(STATES)["cube"]
    weights = influence.model.state_dict()
    with STATES_OF_TORCH[state]():
        before = torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
        np.testing.assert_array_equal(influence.score(STATES)["cube"], expected)
        again = fit()
        influence.save(tmp_path / "a.safetensors")
        loaded = Influence.load(tmp_path / "a.safetensors")
        assert (torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")) == before
    np.testing.assert_array_equal(loaded.score(STATES)["cube"], expected)
    for name, value in again.model.state_dict().items():
        assert torch.equal(value, weights[name]), name


def test_tensors_of_inference_mode_can_be_learned_from() -> None:
    random = np.random.default_rng(0)
    with torch.inference_mode():
        obs = torch.from_numpy(random.normal(size=(300, 3)))
        action = torch.from_numpy(random.uniform(-1, 1, (300, 1)))
        next_obs = obs + 0.1 * action
    config = ModelConfig(layers=1, width=4)
    Influence.fit(obs, action, next_obs, "cube=1:3", model=config, fitting=FitConfig(max_epochs=1), progress=False)


def test_what_is_set_is_put_back_after_an_error() -> None:
    with double():
        with pytest.raises(ZeroDivisionError), pinned():
            raise ZeroDivisionError
        assert torch.get_default_dtype() == torch.float64


def score(influence: Influence) -> Any:
    return influence.score(STATES)["cube"], influence.best_action(STATES)[1]


def test_an_influence_passes_to_a_spawned_process_and_to_a_copy(influence: Influence) -> None:
    expected = score(copy.deepcopy(influence))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(score, (influence,))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


FORK = """
import multiprocessing, numpy as np, sys, torch
sys.path.insert(0, sys.argv[1])
torch.set_num_threads(2)
from test_torch_state import fit
influence = fit()
states = np.random.default_rng(1).normal(size=(5000, 3))
expected = influence.score(states)["cube"]
def score(number): return influence.score(states)["cube"]
with multiprocessing.get_context("fork").Pool(2) as pool:
    found = pool.map(score, range(2), chunksize=1)
assert all(np.allclose(one, expected, atol=1e-5) for one in found)
print("done")
"""


def test_a_forked_pool_after_scoring_does_not_hang() -> None:
    given = os.environ | {"OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-W", "ignore", "-c", FORK, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=given, check=False)
    assert done.stdout == "done\n", done.stderr


@pytest.mark.parametrize("name", ["obs", "action"])
def test_a_masked_array_is_refused(influence: Influence, name: str) -> None:
    given: dict[str, Any] = {"obs": np.zeros((200, 3)), "action": np.zeros((200, 1)), "next_obs": np.zeros((200, 3))}
    mask = np.zeros(given[name].shape, bool)
    given[name] = np.ma.MaskedArray(given[name], mask)
    mask[3, 0] = True
    given[name] = np.ma.MaskedArray(given[name], mask)
    with pytest.raises(ValueError, match=f"{name} is a masked array with 1 masked"):
        Influence.fit(**given, entities="cube=1:3")
