"""The benchmark of edges: data, labels, resuming, and how scores are judged."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from butfor.benchmarks import edges
from butfor.benchmarks.edge_detectors import (
    DETECTORS,
    EdgeProblem,
    attention,
    choose_detectors,
    conditional_information,
    contact,
    distance,
    effects,
    expected,
    gradients,
    moved,
    nulling,
    pairs,
    reference,
)
from butfor.benchmarks.edges import judge_edges, judge_horizons, make_problem, play_task, run_edges, write_labels
from butfor.envs.several import action_effects, make_world, removal_effects
from butfor.influence import GraphConfig
from butfor.models.fitting import FitConfig


def test_scores_that_are_the_label_are_perfect_and_noise_is_at_chance() -> None:
    generator = np.random.default_rng(0)
    label = generator.random((4000, 3, 3)) < 0.2
    perfect = judge_edges(label.astype(float), label)
    assert perfect["ap"] == perfect["auc"] == perfect["mean_ap"] == 1
    noise = judge_edges(generator.random((4000, 3, 3)), label)
    assert abs(noise["auc"] - 0.5) < 0.03
    assert abs(noise["ap"] - 0.2) < 0.03
    assert len(noise["edges"]) == 6
    rare = label.copy()
    rare[:, 0, 1] = False
    assert len(judge_edges(label.astype(float), rare)["edges"]) == 5


@pytest.fixture(scope="module")
def problem() -> tuple[EdgeProblem, dict[str, Any]]:
    """A small problem of pucks with exact labels."""
    train, test = play_task("pucks", 6000, 0), play_task("pucks", 1500, 1)
    world = make_world("pucks")
    test["effect"] = removal_effects(world, test["states"], test["action"])
    test["following"] = np.random.default_rng(0).uniform(-1, 1, (200, 2, 9, 2)).astype(np.float32)
    test["share"] = action_effects(world, test["states"][:200], (5, 10), test["following"])[1]
    return make_problem("pucks", train, test, 0), test


@pytest.mark.long
def test_detectors_find_edges(problem: tuple[EdgeProblem, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every detector scores all edges; the distance is far above the rate, the model of pairs above the distance."""
    monkeypatch.setattr("butfor.benchmarks.edge_detectors.NETWORK", FitConfig(max_epochs=3))
    short = GraphConfig(position_size=2, updates=600, motion_updates=500)
    monkeypatch.setattr("butfor.benchmarks.edge_detectors.GraphConfig", lambda position_size: short)
    given, test = problem
    label = test["effect"] > 1e-6
    chosen = (effects, expected, pairs, reference, nulling, gradients, distance, moved)
    found = {detector.__name__: detector(given) for detector in chosen}
    assert all(scores.shape == (1500, 4, 4) for scores in found.values())
    judged = {name: judge_edges(scores, label)["ap"] for name, scores in found.items()}
    assert judged["distance"] > 10 * judge_edges(found["distance"], label)["rate"]
    assert judged["effects"] > judged["pairs"] > judged["distance"]
    assert judged["effects"] > judged["expected"] > judged["distance"]
    within = judge_horizons(given, test)
    assert set(within) == {"auc_5", "auc_10"}
    assert min(within.values()) > 0.6


def test_a_benchmark_is_resumed(tmp_path: Path) -> None:
    calls = []

    def counted(given: EdgeProblem) -> Any:
        calls.append(given.seed)
        return distance(given)

    options: dict[str, Any] = {"tasks": ["pucks"], "transitions": 600, "states": 900}
    first = run_edges(tmp_path / "found", seeds=1, detectors={"near": counted}, **options)
    again = run_edges(tmp_path / "found", seeds=2, detectors={"near": counted}, **options)
    assert calls == [0, 1]
    assert again[:1] == first
    assert {row["seed"] for row in again} == {0, 1}
    data = tmp_path / "found" / "data" / "pucks-600-0.npz"
    with np.load(data) as file:
        np.testing.assert_array_equal(file["obs"], play_task("pucks", 600, 0)["obs"])


def test_attention_information_and_contact_score_all_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an epoch on few transitions; contact is what the simulator says."""
    monkeypatch.setattr("butfor.benchmarks.edge_detectors.NETWORK", FitConfig(max_epochs=1))
    test = play_task("pucks", 120, 1)
    test["contact"] = make_world("pucks").contacts(test["states"])
    given = make_problem("pucks", play_task("pucks", 300, 0), test, 0)
    for detector in (attention, conditional_information):
        scores = detector(given)
        assert scores.shape == (120, 4, 4)
        assert np.isfinite(scores).all()
        assert scores[:, 0, 1].std() > 0
    assert ((attention(given) >= 0) & (attention(given) <= 1)).all()
    np.testing.assert_array_equal(contact(given), test["contact"])


def test_labelled_states_are_the_same_however_they_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one go, resumed, or made again after damage; the labels are those of the simulator."""
    monkeypatch.setattr(edges, "PART", 300)
    monkeypatch.setattr(edges, "HORIZON_STATES", {"pucks": 10})
    whole = write_labels(tmp_path / "whole", ["pucks"], 500)
    assert [file["states"] for file in whole.values()] == [300, 300]
    write_labels(tmp_path / "resumed", ["pucks"], 1)
    first, second = (tmp_path / "resumed" / "labels" / name for name in whole)
    assert not second.exists()
    with np.load(first) as file:
        damaged = dict(file) | {"obs": file["obs"] + 1}
    np.savez(first, **damaged)
    assert write_labels(tmp_path / "resumed", ["pucks"], 600) == whole
    played = play_task("pucks", 300, edges.LABEL_SEED + 1)
    with np.load(second) as file:
        np.testing.assert_array_equal(file["obs"], played["obs"])
        effect = removal_effects(make_world("pucks"), played["states"], played["action"])
        np.testing.assert_array_equal(file["effect"], effect)
    assert whole[second.name]["true"] == np.count_nonzero(effect > 1e-6, axis=0).tolist()
    with pytest.raises(ValueError, match="slide"):
        write_labels(tmp_path, ["slide"])


def test_cubes_have_labels_of_several_steps_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were made before lack them, and are made again."""
    monkeypatch.setattr(edges, "PART", 60)
    monkeypatch.setattr(edges, "HORIZON_STATES", {"push-two": 2})
    write_labels(tmp_path, ["push-two"], 1)
    (path,) = (tmp_path / "labels").glob("*.npz")
    with np.load(path) as file:
        found = dict(file)
    world, played = make_world("push-two"), play_task("push-two", 60, edges.LABEL_SEED)
    expected = action_effects(world, played["states"][:2], (5, 10), found["following"])[1]
    np.testing.assert_array_equal(found["share"], expected)
    np.savez(path, **{name: value for name, value in found.items() if name != "share"})
    write_labels(tmp_path, ["push-two"], 1)
    with np.load(path) as file:
        np.testing.assert_array_equal(file["share"], expected)


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="slide"):
        run_edges(tmp_path, ["slide"])
    with pytest.raises(ValueError, match="0"):
        run_edges(tmp_path, ["pucks"], transitions=0)
    (tmp_path / "results.jsonl").write_text('{"task": "pucks", "states": 900}\n')
    with pytest.raises(ValueError, match=r"900.*700"):
        run_edges(tmp_path, ["pucks"], states=700)
    assert tuple(edges.LABEL) == edges.TASKS
    assert choose_detectors([]) == DETECTORS
    assert choose_detectors(["moved"]) == {"moved": moved}
    with pytest.raises(ValueError, match="speed"):
        choose_detectors(["moved", "speed"])
