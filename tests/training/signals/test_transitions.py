"""Units, a replay buffer as a table, and saved models that are refused with a sentence."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.replay_buffers import ENTITY, LAW, SCALE, STEPS, make_replay, make_transitions

from butfor.models.bayesian import BayesianNetwork, VimeConfig
from butfor.models.networks import make_generators
from butfor.models.tables import Units
from butfor.spaces.actions import ActionLaw
from butfor.training.signals.transitions import TransitionTable, load_model, save_model

DATA = make_transitions(300, 0)
TENSORS: Any = tuple(map(torch.from_numpy, DATA))


def test_a_memory_as_a_table() -> None:
    """The columns of all entities in rising order with their own factors, whatever the order they are named in."""
    replay = make_replay([0, 1], 6)
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


def test_changes_within_several_steps_end_with_the_episode() -> None:
    replay = make_replay([0, 1], 6)
    table = TransitionTable(replay, LAW, {"object": ENTITY}, SCALE, horizon=3)
    _, target, valid = table.episodes(torch.arange(6))
    for replica, slot, time in torch.nonzero(valid).tolist():
        last = min(time + 3, int(replay.length[replica, slot]))
        change = replay.observation[replica, slot, last] - replay.observation[replica, slot, time]
        torch.testing.assert_close(target[replica, slot, time], change[list(ENTITY)] * torch.tensor(SCALE))


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    units = Units.measure(TENSORS, {"ball": [1], "cube": [0]}, ActionLaw.from_data(TENSORS[1]))
    model = BayesianNetwork((4, 2, 2), VimeConfig(layers=2, width=8), make_generators([0, 1]))
    save_model(tmp_path / "model.safetensors", "vime", model, units, replicas=2, seed=5)
    return tmp_path / "model.safetensors"


def rewrite(path: Path, drop: str | None = None, **changes: Any) -> None:
    """The same file with some of its header changed, or without a tensor."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["butfor"])
    del header["digest"]  # read like a file from before digests
    tensors = {name: value for name, value in load_file(path).items() if name != drop}
    save_file(tensors, path, metadata={"butfor": json.dumps(header | changes)})


def test_what_was_saved_comes_back(saved: Path) -> None:
    model, units, seed = load_model(saved, "vime", BayesianNetwork, VimeConfig)
    assert (model.replicas, seed) == (2, 5)
    assert units == Units.measure(TENSORS, {"ball": [1], "cube": [0]}, ActionLaw.from_data(TENSORS[1]))
    second, _, _ = load_model(saved, "vime", BayesianNetwork, VimeConfig, replica=1)
    assert torch.equal(second.mean[0], model.mean[1])
    assert second.norm is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "influence"}, "'influence'.*'vime'"),
        ({"format": 99}, "99"),
        ({"replicas": 3}, "model.safetensors"),
        ({"scale": [1.0]}, "model.safetensors"),
        ({"config": {"depth": 3}}, "model.safetensors"),
        ({"drop": "rho"}, "model.safetensors"),
    ],
)
def test_other_files_are_refused(saved: Path, changes: dict[str, Any], message: str) -> None:
    rewrite(saved, **changes)
    with pytest.raises(ValueError, match=message):
        load_model(saved, "vime", BayesianNetwork, VimeConfig)


def test_a_replica_that_is_not_there_is_refused(saved: Path) -> None:
    with pytest.raises(ValueError, match=r"replica 2; .* 2,"):
        load_model(saved, "vime", BayesianNetwork, VimeConfig, replica=2)
