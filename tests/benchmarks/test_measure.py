"""One unit of the benchmark: which rows are fitted, what is compared, and when a diagnosis is right."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from butfor.benchmarks import measure
from butfor.benchmarks.measure import (
    Request,
    choose_episodes,
    compare_decisions,
    evaluate_some,
    judge_diagnosis,
    other_detectors,
)
from butfor.influence import Influence


def test_a_smaller_size_is_whole_episodes_of_a_larger_one() -> None:
    episode = np.repeat(np.arange(40), np.random.default_rng(0).integers(5, 15, 40))
    small, large = (choose_episodes(episode, size, seed=3) for size in (100, 250))
    for rows, size in ((small, 100), (large, 250)):
        assert size - 15 < len(rows) <= size
        for number in np.unique(episode[rows]):
            assert (episode[rows] == number).sum() == (episode == number).sum()
    assert set(small) < set(large)
    assert set(small) != set(choose_episodes(episode, 100, seed=4))
    assert len(choose_episodes(episode, len(episode), seed=0)) == len(episode)


def test_a_size_below_one_episode_is_refused() -> None:
    with pytest.raises(ValueError, match="size is 9"):
        choose_episodes(np.zeros(10, int), 9, seed=0)


def request(**changes: Any) -> Request:
    known: dict[str, Any] = {"train": "", "test": "", "size": 100, "seed": 0, "object": [2], "moves_from": None}
    return Request(**known | {"hand_position": [0, 1], "object_position": [2, 3]} | changes)


def test_detectors_without_a_model() -> None:
    test = {"obs": np.array([[0, 0, 3, 4], [1, 1, 1, 1]], np.float32), "moved": np.array([0.5, 0.0])}
    found = other_detectors(request(), test)
    np.testing.assert_allclose(found["distance"], [-5, 0])
    np.testing.assert_array_equal(found["moved"], [0.5, 0])
    assert set(found) == {"distance", "moved"}
    assert set(other_detectors(request(hand_position=None), test | {"contact": np.array([True, False])})) == {
        "moved",
        "contact",
    }


def test_who_is_right_where_two_detectors_differ() -> None:
    """States 1, 2 and 4 of 5 differ; CAI is right in states 1 and 4."""
    label = np.array([True, True, False, False, False])
    scores = {"cai": np.array([0.9, 0.8, 0.7, 0.1, 0.2]), "distance": np.array([-0.1, -0.9, -0.8, -0.7, -0.2])}
    detectors = {"cai": {"threshold": 0.7}, "distance": {"threshold": -0.2}}
    assert compare_decisions(scores, detectors, label) == {"share": 0.6, "states": 3, "cai_right": 2}


def test_only_some_states_are_evaluated() -> None:
    """CAI is wrong about the last state only, which is left out."""
    label = np.array([True, False, True, False, False])
    scores = {"cai": np.array([0.9, 0.1, 0.8, 0.2, 1.0]), "moved": np.zeros(5)}
    chosen = np.array([True, True, True, True, False])
    found = evaluate_some(scores, label, chosen)
    assert found is not None
    assert (found["share"], found["base_rate"]) == (0.8, 0.5)
    assert found["detectors"]["cai"]["auc"] == 1
    assert set(found["detectors"]) == {"cai"}
    assert evaluate_some(scores, label, ~label) is None
    assert evaluate_some(scores, label, np.zeros(5, bool)) is None


class Judged:
    """In place of a fitted model: scores are the label, and the diagnosis is given."""

    def __init__(self, label: Any, trusted: bool | None = True) -> None:
        self.label = label
        self.trusted = trusted

    def score(self, obs: Any) -> dict[str, Any]:
        return {"object": self.label.astype(np.float32)}

    def diagnose(self, obs: Any, action: Any, next_obs: Any, groups: Any) -> dict[str, Any]:
        assert len(obs) == len(groups)
        self.diagnosed = len(obs)
        if self.trusted is None:
            raise ValueError("no finite likelihood")
        return {"object": SimpleNamespace(trusted=self.trusted, size_trusted=False, findings=[])}


@pytest.mark.parametrize(
    ("trusted", "auc", "right"),
    [(True, 0.95, True), (True, 0.94, False), (False, 0.96, False), (False, 0.5, True), (None, 0.5, True)],
)
def test_when_a_diagnosis_is_right(trusted: bool | None, auc: float, right: bool) -> None:
    model: Any = Judged(np.zeros(4), trusted)
    parts = {name: np.zeros((4, 1)) for name in ("obs", "action", "next_obs")}
    found = judge_diagnosis(
        model, parts | {"sampled": np.array([True, False, True, True]), "episode": np.arange(4)}, auc
    )
    assert found["right"] == right
    assert found["trusted"] == bool(trusted)
    assert not found["size_trusted"]
    assert (found["problems"] != []) == (trusted is None)
    assert model.diagnosed == 3


def test_a_score_that_equals_the_label_has_an_auc_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    obs = generator.normal(size=(60, 4)).astype(np.float32)
    label = generator.random(60) < 0.3
    parts: dict[str, Any] = {"obs": obs, "action": obs[:, :1], "next_obs": obs, "episode": np.repeat(np.arange(6), 10)}
    np.savez(tmp_path / "train.npz", **parts)
    moved = label * 0.1
    np.savez(tmp_path / "test.npz", **parts, label=label, moved=moved, sampled=np.ones(60, bool))
    fitted = []

    def fit(*transitions: Any, **options: Any) -> Judged:
        fitted.append((len(transitions[0]), options))
        return Judged(label)

    monkeypatch.setattr(Influence, "fit", fit)
    asked = request(train=str(tmp_path / "train.npz"), test=str(tmp_path / "test.npz"), size=45, seed=5, moves_from=0.0)
    found = measure.measure(asked)
    assert fitted == [(40, {"entities": {"object": [2]}, "seed": 5})]  # the defaults: nothing else is set
    assert found["transitions"] == 40
    for metric in ("auc", "ap", "f1"):
        assert found["detectors"]["cai"][metric] == 1
        assert found["detectors"]["moved"][metric] == pytest.approx(1)
    assert found["detectors"]["distance"]["auc"] < 0.8
    assert found["disagreement"]["cai_right"] == found["disagreement"]["states"] > 0
    assert found["moving"] is None  # the object moves only where it is influenced
    assert found["diagnosis"]["right"]
    assert found["base_rate"] == label.mean()


MEASURED = """
import numpy as np
from butfor.benchmarks.measure import memory
before = memory("VmRSS")
block = np.ones(64 * 2**20, np.uint8)
print(before, memory("VmRSS"), memory("VmHWM"), block[0])
"""


def test_memory_is_in_mebibytes() -> None:
    # A process of its own: this one may give memory of earlier tests back in between.
    ended = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, check=True)
    before, now, peak, _ = map(float, ended.stdout.split())
    assert 60 < now - before < 90
    assert peak >= before + 60
