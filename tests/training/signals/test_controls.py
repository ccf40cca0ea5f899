"""Signals without a model: moved, nearness and labels, by plain loops."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.replay_buffers import ENTITY, LAW, SCALE, STEPS, make_replay

from butfor.envs.facts import BUILT_IN
from butfor.influence.scoring import ScoreConfig
from butfor.models.dynamics import ModelConfig
from butfor.models.networks import make_generators
from butfor.training.signals.cai import CaiConfig, CaiSignal
from butfor.training.signals.labels import LabelSignal
from butfor.training.signals.moved import MovedConfig, MovedSignal
from butfor.training.signals.nearness import NearnessConfig, NearnessSignal
from butfor.training.signals.shuffled import ShuffledSignal
from butfor.training.signals.transitions import TransitionTable


def table(seeds: list[int]) -> TransitionTable:
    return TransitionTable(make_replay(seeds, 6), LAW, {"object": ENTITY}, SCALE)


def test_moved_is_one_where_a_column_of_the_entity_changes_by_more_than_the_threshold() -> None:
    transitions = table([0, 1])
    replay = transitions.replay
    MovedSignal(MovedConfig(threshold=1.5), transitions).score(torch.arange(6))
    seen = set()
    for r in range(2):
        for e in range(6):
            for t in range(STEPS):
                change = (replay.observation[r, e, t + 1] - replay.observation[r, e, t])[list(ENTITY)]
                moved = bool((change.abs() * torch.tensor(SCALE) > 1.5).any()) and t < int(replay.length[r, e])
                assert replay.score[r, e, t] == moved
                seen.add(moved)
    assert seen == {True, False}


def test_nearness_falls_with_the_distance() -> None:
    transitions = table([0, 1])
    replay = transitions.replay
    facts = replace(BUILT_IN["slide"], agent_position=(0, 1), object_position=(2, 3))
    NearnessSignal(NearnessConfig(length=0.5), transitions, facts).score(torch.arange(6))
    for r in range(2):
        for e in range(6):
            for t in range(STEPS):
                hand, thing = replay.observation[r, e, t, :2], replay.observation[r, e, t, 2:]
                expected = torch.exp(-(hand - thing).square().sum().sqrt() / 0.5) * (t < int(replay.length[r, e]))
                torch.testing.assert_close(replay.score[r, e, t], expected)


def test_a_label_is_copied_for_real_steps() -> None:
    transitions = table([0])
    replay = transitions.replay
    replay.label = torch.rand(replay.score.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    LabelSignal(transitions).score(torch.arange(4))
    assert torch.equal(replay.score[:, :4], (replay.label & replay.valid())[:, :4].float())
    assert not replay.score[:, 4:].any()


def test_shuffled_gives_each_episode_the_true_scores_of_a_stored_one() -> None:
    transitions = table([0, 1])
    replay = transitions.replay
    config = CaiConfig(network=ModelConfig(layers=1, width=4), scoring=ScoreConfig(actions=4))
    signal = ShuffledSignal(config, transitions, make_generators([0, 1]))
    signal.score(torch.arange(6), make_generators([2, 3]))
    assert signal.own is not None
    CaiSignal(config, transitions, make_generators([0, 1])).score(torch.arange(6), make_generators([2, 3]))
    assert torch.equal(signal.own, replay.score)

    signal.score(torch.arange(6), make_generators([2, 3]))
    givers = set()
    for r in range(2):
        for e in range(6):
            real = replay.valid()[r, e]
            same = [k for k in range(6) if torch.equal(replay.score[r, e], signal.own[r, k] * real)]
            assert same
            givers.add((e, same[0]))
    assert any(taker != giver for taker, giver in givers)


def test_there_is_nothing_to_fit_to_save_or_to_score_again(tmp_path: Path) -> None:
    signal = MovedSignal(MovedConfig(), table([0, 1]))
    assert not signal.learns
    assert signal.fit(3, []).tolist() == [0.0, 0.0]
    assert not len(signal.stale())
    signal.save(tmp_path, 0)
    assert not list(tmp_path.iterdir())
    assert signal.state() == {}


@pytest.mark.parametrize(("config", "name"), [(MovedConfig, "threshold"), (NearnessConfig, "length")])
def test_impossible_settings_are_refused(config: type, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}.* -1"):
        config(**{name: -1})
