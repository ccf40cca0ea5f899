"""Scoring a data set with `graph` and `horizon`: edges are written beside the scores."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.pages import page_data, section, words

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
        highest = {name.removeprefix("edge "): file[name].max() for name in edges}
    assert {name: edge["highest"] for name, edge in summary["edges"].items()} == highest
    check_page((tmp_path / "scores.html").read_text(encoding="utf-8"), summary)


def check_page(page: str, summary: dict[str, Any]) -> None:
    """The edges are in a table, as strips over time and in the player; sentences know the horizon."""
    part = section(page, "edges")
    for name, edge in summary["edges"].items():
        assert f"{name.replace(' -> ', ' → ')} written as edge {name} {100 * edge['above']:.1f}" in words(part)
    data = page_data(page)
    assert {"edges-0", "edges-1"} <= set(data["figures"])
    (strips,) = data["figures"]["edges-0"]["data"]
    assert np.shape(strips["z"]) == (12, 61)
    assert len(data["explorer"]["shares"]) == 4 + 12
    chosen = data["explorer"]["chosen"]
    assert [shares[chosen] for shares in data["explorer"]["shares"][4:]] == pytest.approx(
        [edge["above"] for edge in summary["edges"].values()], abs=1e-5
    )
    (scene,) = re.findall(r'bf-player"><script type="application/json">(.*?)</script>', page, re.DOTALL)
    found = json.loads(scene)
    assert found["horizon"] == 2
    assert found["episodes"][0]["title"].startswith("Most influence between entities")
    names = {f"{edge['source']} -> {edge['target']}" for edge in found["episodes"][0]["edges"]}
    assert names == set(summary["edges"])
    assert "in the next 2 steps, in nats" in words(section(page, "numbers"))
    assert "in the next step, in nats" not in words(page)


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="horizon"):
        Options(horizon=0)
    with pytest.raises(ValueError, match="graph"):
        Options(graph=True, network=ModelConfig())
