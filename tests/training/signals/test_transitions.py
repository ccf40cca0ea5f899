"""Units, an agent's memory as a table, and saved models that are refused with a sentence."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.replay_buffers import ENTITY, LAW, SCALE, STEPS, memory, world

from butfor.models.bayesian import BayesianNetwork, VimeConfig
from butfor.models.dynamics import target_columns
from butfor.models.networks import make_generators
from butfor.training.signals.transitions import TransitionTable, Units
from butfor.training.signals.vime import Vime

DATA = world(300, 0)
TENSORS: Any = tuple(map(torch.from_numpy, DATA))


def test_units_are_those_of_the_data() -> None:
    units = Units.of(TENSORS, {"ball": [1], "both": [2, 0, 1]}, None)
    obs, action, next_obs = DATA
    assert units.law.low == pytest.approx(action.min(0).tolist())
    assert target_columns(units.entities) == [0, 1, 2]
    assert units.dims == [[1], [2, 0, 1]]
    inputs, target = units.table(TENSORS, "cpu")
    np.testing.assert_allclose(inputs[:, :4], (obs - obs.mean(0)) / obs.std(0, ddof=1), rtol=1e-4, atol=1e-5)
    low, high = action.min(0), action.max(0)
    np.testing.assert_allclose(inputs[:, 4:], (2 * action - low - high) / (high - low), rtol=1e-5, atol=1e-6)
    change = (next_obs - obs)[:, :3]
    np.testing.assert_allclose(target, change / change.std(0, ddof=1), rtol=1e-3, atol=1e-3)


def test_a_memory_as_a_table() -> None:
    """The columns of all entities in rising order with their own factors, whatever the order they are named in."""
    replay = memory([0, 1], 6)
    first, second = ENTITY
    for entities in ({"object": ENTITY}, {"object": ENTITY[::-1]}, {"one": [second], "other": [second, first]}):
        table = TransitionTable(replay, LAW, entities, SCALE)
        assert table.sizes == (4, 2, 2)
        assert table.units.scale == list(SCALE)
        inputs, target, valid = table.episodes(torch.tensor([4, 1]))
        assert inputs.shape == (2, 2, STEPS, 6)
        for replica in range(2):
            for row, slot in enumerate((4, 1)):
                assert valid[replica, row].sum() == replay.length[replica, slot]
                for time in range(STEPS):
                    now, then = replay.observation[replica, slot, time : time + 2]
                    seen = torch.cat([now, LAW.encode(replay.action[replica, slot, time])])
                    assert torch.equal(inputs[replica, row, time], seen)
                    change = (then - now)[list(ENTITY)] * torch.tensor(SCALE)
                    torch.testing.assert_close(target[replica, row, time], change)
        some, _ = table.table(replay.rows, torch.tensor([[4, 1], [1, 4]]), torch.tensor([[0, 2], [3, 1]]))
        assert torch.equal(some[1, 0], inputs[1, 1, 3])
        assert torch.equal(some[0, 1], inputs[0, 1, 2])


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    units = Units.of(TENSORS, {"ball": [1], "cube": [0]}, None)
    model = BayesianNetwork((4, 2, 2), VimeConfig(layers=2, width=8), make_generators([0, 1]))
    Vime(model, units, seed=5).save(tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def rewrite(path: Path, drop: str | None = None, **changes: Any) -> None:
    """The same file with some of its header changed, or without a tensor."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["butfor"])
    tensors = {name: value for name, value in load_file(path).items() if name != drop}
    save_file(tensors, path, metadata={"butfor": json.dumps(header | changes)})


def test_what_was_saved_comes_back(saved: Path) -> None:
    loaded = Vime.load(saved)
    assert loaded.seed == 5
    assert loaded.model.replicas == 2
    assert loaded.units == Units.of(TENSORS, {"ball": [1], "cube": [0]}, None)
    second = Vime.load(saved, replica=1)
    assert torch.equal(second.model.mean[0], loaded.model.mean[1])
    assert second.model.norm is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "influence"}, "holds 'influence'; expected 'vime'"),
        ({"format": 99}, "has format 99; this version reads format 2"),
        ({"replicas": 3}, "does not hold the weights that its header describes"),
        ({"scale": [1.0]}, "does not hold the weights that its header describes"),
        ({"config": {"depth": 3}}, "does not hold the weights that its header describes"),
        ({"drop": "rho"}, "does not hold the weights that its header describes"),
    ],
)
def test_other_files_are_refused(saved: Path, changes: dict[str, Any], message: str) -> None:
    rewrite(saved, **changes)
    with pytest.raises(ValueError, match=message):
        Vime.load(saved)


def test_a_replica_that_is_not_there_is_refused(saved: Path) -> None:
    with pytest.raises(ValueError, match="holds 2 replicas, counted from 0; there is no replica 2"):
        Vime.load(saved, replica=2)
