"""Weight files: what was written comes back, one replica of several, and every way of being broken is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

from butfor.models.tables import Units
from butfor.models.weights import build_network, choose_replica, reading_weights, save_weights, units_of_header
from butfor.runs.files import save_tensors
from butfor.spaces.actions import ActionLaw

TENSORS = {"weight": torch.arange(12.0).view(6, 2)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_weights(tmp_path / "model.safetensors", "robot", 2, TENSORS, {"size": 3})
    return tmp_path / "model.safetensors"


def test_what_was_written_comes_back(path: Path) -> None:
    for newest in (2, 3):
        with reading_weights(path, "robot", newest) as (tensors, header):
            assert header == {"kind": "robot", "format": 2, "size": 3}
            assert torch.equal(tensors["weight"], TENSORS["weight"])


def test_other_kinds_and_newer_formats_are_refused(path: Path) -> None:
    with (
        pytest.raises(ValueError, match=r"model\.safetensors .*'robot'.*'influence'"),
        reading_weights(path, "influence", 2),
    ):
        pass
    with pytest.raises(ValueError, match=r"model\.safetensors .*format 2"), reading_weights(path, "robot", 1):
        pass
    for header in ({}, {"kind": "robot"}, {"kind": "robot", "format": "2"}):
        save_tensors(path, TENSORS, header)
        with pytest.raises(ValueError, match=r"model\.safetensors"), reading_weights(path, "robot", 2):
            pass


@pytest.mark.parametrize("error", [ValueError, KeyError, IndexError, TypeError, AttributeError, RuntimeError])
def test_a_file_that_does_not_fit_is_named(path: Path, error: type[Exception]) -> None:
    with pytest.raises(ValueError, match=r"model\.safetensors .*depth"), reading_weights(path, "robot", 2):
        raise error("depth")


def test_a_network_is_built_only_if_every_shape_fits() -> None:
    made: list[torch.device] = []

    def build() -> torch.nn.Linear:
        layer = torch.nn.Linear(3, 2)
        made.append(layer.weight.device)
        return layer

    weights = {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}
    assert torch.equal(build_network(build, 1, weights).weight, weights["weight"])
    assert [device.type for device in made] == ["meta", "cpu"]
    for wrong in ({"weight": torch.ones(3, 2)}, {"bias": torch.zeros(5)}, {"more": torch.zeros(1)}):
        made.clear()
        with pytest.raises(ValueError, match=next(iter(wrong))):
            build_network(build, 1, weights | wrong)
        assert [device.type for device in made] == ["meta"]
    made.clear()
    with pytest.raises(ValueError, match="100,000"):
        build_network(build, 100_000, weights)
    assert not made


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing"), reading_weights(tmp_path / "nothing", "robot", 2):
        pass


def test_one_replica_of_several() -> None:
    """Six rows are two of each of three replicas."""
    assert choose_replica(TENSORS, 3, 1)["weight"].tolist() == [[4, 5], [6, 7]]
    assert torch.equal(choose_replica(TENSORS, 3, None)["weight"], TENSORS["weight"])
    for wrong in (3, -1):
        with pytest.raises(ValueError, match=rf"{wrong}\b.* 3,"):
            choose_replica(TENSORS, 3, wrong)


def test_a_network_that_saw_unscaled_actions_is_refused() -> None:
    law: dict[str, Any] = {"low": [-1, 0], "high": [1, 10], "count": 0}
    header: dict[str, Any] = {"law": law, "entities": {"cube": [1]}, "scale": [2.0], "obs_center": [0.0, 3.0]}
    header |= {"obs_size": 2, "obs_spread": [1.0, 1.0]}
    units = Units(ActionLaw((-1, 0), (1, 10)), {"cube": [1]}, [2.0], [0.0, 3.0], [1.0, 1.0])
    assert units_of_header(header | {"format": 2}) == units
    with pytest.raises(ValueError, match="format 1"):
        units_of_header(header | {"format": 1})
    assert units_of_header(header | {"format": 1, "law": law | {"low": [-1], "high": [1]}}).law.is_unit
