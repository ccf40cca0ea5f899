"""Scoring a data set with `graph` and `horizon`: edges are written beside the scores."""

from pathlib import Path

import numpy as np
import pytest

from butfor.datasets import score as score_data
from butfor.datasets.score import Options, score_file
from butfor.detection.collect import CollectConfig, collect_file
from butfor.influence import GraphConfig
from butfor.models.dynamics import ModelConfig

ENTITIES = ["agent=observation:0:4", "first=observation:4:8", "second=observation:8:12", "third=observation:12:16"]
QUICK = GraphConfig(updates=100, motion_updates=100)


def test_edges_are_written_for_every_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_data, "GraphConfig", lambda: QUICK)
    collect_file(CollectConfig("pucks", "noisy-expert", episodes=18), tmp_path / "data.npz")
    options = Options(graph=True, horizon=2, actions=4)
    entities = [entity.replace("observation:", "") for entity in ENTITIES]
    summary = score_file(tmp_path / "data.npz", tmp_path / "scores.npz", entities, options)
    with np.load(tmp_path / "scores.npz") as file:
        edges = [name for name in file if name.startswith("edge ")]
        assert len(edges) == 12
        assert file["edge first -> third"].shape == file["cai_third"].shape == (18 * 61,)
        assert np.isfinite(file["edge first -> third"]).all()
    assert set(summary["edges"]) == {name.removeprefix("edge ") for name in edges}


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="horizon"):
        Options(horizon=0)
    with pytest.raises(ValueError, match="graph"):
        Options(graph=True, network=ModelConfig())
