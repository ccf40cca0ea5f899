"""Swapped transitions in a batch: whose columns, whose goal, how often, and which places were learned."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.small_training import metrics, models, results, small

from butfor.envs.facts import BUILT_IN
from butfor.rollouts.swaps import Swaps, propose_swaps
from butfor.training import swapping
from butfor.training.replay import ReplayBuffer, ReplayConfig, Weights, sample
from butfor.training.run import resume, train
from butfor.training.swapping import SwapConfig, Swapper

SLIDE = BUILT_IN["slide"]
PLAIN = ReplayConfig(hindsight=0.0)


def filled(episodes: int = 4, steps: int = 5, replicas: int = 2) -> ReplayBuffer:
    """States (replica, episode, time) + column / 10, achieved goals in column 2 as slide has them, actions by time."""
    replay = ReplayBuffer(replicas, episodes, steps, (4, 1, 1), "cpu")
    place = np.arange(replicas)[:, None, None] * 10_000.0 + np.arange(episodes)[:, None] * 100 + np.arange(steps + 1)
    states = place[..., None] + np.arange(4) / 10
    replay.store(
        {
            "observation": states,
            "action": place[..., :-1, None],
            "achieved_goal": states[..., 2:3],
            "desired_goal": -states[..., 2:3],
            "sampled": np.ones(place[..., :-1].shape, bool),
            "length": np.full((replicas, episodes), steps),
            "terminated": np.zeros((replicas, episodes), bool),
        }
    )
    return replay


def difference(achieved: torch.Tensor, desired: torch.Tensor) -> torch.Tensor:
    return (achieved - desired)[..., 0]


def draw(replay: ReplayBuffer, swapper: Swapper | None, config: ReplayConfig = PLAIN, rows: int = 400) -> Any:
    weights = Weights(replay, even=True)
    weights.fill(replay.valid().float())
    noise = torch.rand(replay.replicas, rows, 6, generator=torch.Generator().manual_seed(0))
    return sample(replay, weights, noise, difference, config, swapper)


def with_swaps(replay: ReplayBuffer, share: float, rows: list[list[int]]) -> Swapper:
    swapper = Swapper(SwapConfig(share=share, candidates=10), replay, SLIDE)
    swapper.table[:, : len(rows)] = torch.tensor(rows).reshape(-1, 5)
    swapper.count[:] = len(rows)
    return swapper


def test_the_object_and_the_goal_are_those_of_the_donor() -> None:
    replay = filled()
    batch = draw(replay, with_swaps(replay, 1.0, [[0, 1, 3, 4, 1]]))  # the agent of (0, 1), the object of (3, 4)
    for replica in (0, 1):
        start = 10_000.0 * replica
        agent, thing = start + 1, start + 304
        now = torch.tensor([agent, agent + 0.1, thing + 0.2, thing + 0.3, -(thing + 0.2)])
        torch.testing.assert_close(batch.inputs[replica], now.expand(400, -1))
        after = now + torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0])
        torch.testing.assert_close(batch.next_inputs[replica], after.expand(400, -1))
        torch.testing.assert_close(batch.action[replica], torch.full((400, 1), agent))
        torch.testing.assert_close(batch.reward[replica], torch.full((400,), thing + 1.2 + thing + 0.2))
    assert batch.swapped.all()


def test_hindsight_goals_are_of_the_donors_future() -> None:
    replay = filled()
    batch = draw(replay, with_swaps(replay, 1.0, [[0, 1, 3, 2, 1]]), ReplayConfig(hindsight=1.0, relative_goals=True))
    times = batch.inputs[0, :, 4] - 300.2
    assert set(times.round().long().tolist()) == {3, 4, 5}
    torch.testing.assert_close(batch.inputs[..., 5], batch.inputs[..., 4] - batch.inputs[..., 2])


def test_as_many_as_asked_for_and_the_others_are_as_before() -> None:
    replay = filled()
    plain = draw(replay, None)
    batch = draw(replay, with_swaps(replay, 0.3, [[0, 1, 3, 4, 1], [2, 0, 1, 1, 1]]))
    assert batch.swapped.float().mean().item() == pytest.approx(0.3, abs=4 * (0.21 / 800) ** 0.5)
    for name in ("inputs", "next_inputs", "action", "reward"):
        torch.testing.assert_close(getattr(batch, name)[~batch.swapped], getattr(plain, name)[~batch.swapped])
    which = batch.action[batch.swapped][:, 0] % 10_000
    assert (which == 1).float().mean().item() == pytest.approx(0.5, abs=4 * (0.25 / 240) ** 0.5)


def test_without_possible_swaps_nothing_is_swapped() -> None:
    replay = filled()
    assert not draw(replay, with_swaps(replay, 1.0, [])).swapped.any()


@pytest.mark.parametrize("env", ["push", "pick-and-place", "slide", "push-two", "pucks"])
def test_bodies_share_no_columns_and_units_come_back(env: str) -> None:
    facts = BUILT_IN[env]
    columns = [column for own in facts.bodies.values() for column in own]
    assert sorted([*columns, *facts.object_offset]) == list(range(max(columns) + 1))
    obs = np.random.default_rng(0).normal(size=(3, max(columns) + 1))
    if facts.object_offset:
        places = obs[:, list(facts.object_position)] - obs[:, list(facts.agent_position)]
        obs[:, list(facts.object_offset)] = places
    np.testing.assert_allclose(facts.from_absolute(facts.to_absolute(obs)), obs, atol=1e-12)
    # an object from elsewhere: nothing of where the first one was is left
    absolute = facts.to_absolute(obs)
    mixed, own = absolute[0].copy(), list(list(facts.bodies.values())[-1])
    mixed[own] = absolute[1, own]
    np.testing.assert_allclose(facts.to_absolute(facts.from_absolute(mixed)), mixed, atol=1e-12)
    assert next(iter(facts.bodies.values()))[: len(facts.agent_position)] == facts.agent_position


def test_relative_columns_of_a_robot_are_computed_again() -> None:
    """Offset and relative velocity of a swapped object are those to the base's gripper."""
    facts = BUILT_IN["push"]
    replay = ReplayBuffer(1, 1, 1, (25, 4, 3), "cpu")
    swapper = Swapper(SwapConfig(share=1.0, candidates=1), replay, facts)
    base, donor = torch.randn(2, 1, 1, 25, generator=torch.Generator().manual_seed(1)).unbind(0)
    mixed = swapper.mix(base, donor, swapper.columns[1].expand(1, 1, -1))[0, 0]
    base, donor = base[0, 0], donor[0, 0]
    torch.testing.assert_close(mixed[3:6], donor[3:6])
    torch.testing.assert_close(mixed[6:9], donor[3:6] - base[:3])
    torch.testing.assert_close(mixed[14:17], donor[14:17] + donor[20:23] - base[20:23])
    torch.testing.assert_close(mixed[20:], base[20:])


def test_learned_swaps_are_places_in_the_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = filled(episodes=6)
    asked: list[Any] = []

    def stand_in(recordings: Any, entities: Any, options: Any, seeds: Any, device: Any) -> Any:
        asked.extend(zip(recordings, seeds, strict=True))
        zeros = np.zeros((2, 2, 4))
        kept = Swaps(zeros, zeros[:, :1, :1], np.array([1, 1]), np.array([0, 7]), np.array([14, 2]))
        return [(kept, kept, {})] * 2

    monkeypatch.setattr(swapping, "augment_recordings", stand_in)
    swapper = Swapper(SwapConfig(share=0.5, candidates=10, newest=4), replay, SLIDE)
    assert swapper.is_due()
    swapper.learn([5, 6])
    assert [seed for _, seed in asked] == [5, 6]
    assert swapper.count.tolist() == [2, 2]
    assert swapper.table[0, :2].tolist() == [[2, 0, 4, 4, 1], [3, 2, 2, 2, 1]]  # slots 2 to 5, five steps each
    np.testing.assert_array_equal(asked[1][0].observation[:, 0], replay.observation[1, 2:, :, 0].flatten())
    assert not swapper.is_due()
    again = Swapper(swapper.config, replay, SLIDE)
    again.restore(swapper.state())
    assert torch.equal(again.table, swapper.table)
    assert again.learned_at == 6


@pytest.mark.parametrize("wrong", [{"share": 1.5}, {"false_discovery_rate": 1.0}, {"candidates": 0}, {"growth": 1.0}])
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SwapConfig(**wrong)  # type: ignore[arg-type]


def test_a_run_that_swaps_learns_again_as_it_grows_and_resumes_with_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Played episodes; every swap is called possible, and it is decided again when the episodes have doubled."""
    asked: list[int] = []

    def stand_in(recordings: Any, entities: Any, options: Any, seeds: Any, device: Any) -> Any:
        asked.extend(len(steps) for steps in recordings)
        every = [propose_swaps(steps, entities, options) for steps in recordings]
        return [(one, one, {}) for one in every]

    monkeypatch.setattr(swapping, "augment_recordings", stand_in)
    config = small(seeds=2, evaluate_every=4, swap=SwapConfig(share=0.5, candidates=50))
    whole = train(config, tmp_path / "whole")
    assert asked == [4, 4, 8, 8]
    assert all(row["swaps"] > 0 for row in metrics(whole))
    part = train(dataclasses.replace(config, episodes=8), tmp_path / "part")
    resume(part, episodes=10)
    assert results(part) == results(whole)
    plain = train(dataclasses.replace(config, swap=SwapConfig()), tmp_path / "plain")
    assert models(plain) != models(whole)
