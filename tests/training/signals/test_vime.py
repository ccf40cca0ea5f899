"""VIME on a replay buffer: what it scores, that scoring changes nothing, and plain loops."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.replay_buffers import ENTITY, LAW, OBS, SCALE, STEPS, make_replay
from torch.distributions import Normal, kl_divergence

from butfor.models.bayesian import BayesianNetwork, VimeConfig, draw_noise, gain_of_steps
from butfor.models.networks import make_generators
from butfor.training.replay import ReplayBuffer
from butfor.training.signals.learned import BLOCK
from butfor.training.signals.transitions import TransitionTable, load_model
from butfor.training.signals.vime import RunningMedian, VimeSignal

SMALL = VimeConfig(layers=2, width=8, samples=3, batch_size=16, group=3, steps=2, kl_weight=1e-3)


# --- the running median ---------------------------------------------------------------------------


def test_the_running_median_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of the last three medians, each over the last two episodes, of real steps alone."""
    monkeypatch.setattr("butfor.training.signals.vime.EPISODES", 2)
    monkeypatch.setattr("butfor.training.signals.vime.MEDIANS", 3)
    median = RunningMedian(2, 3)
    real = torch.tensor([[True, True, True], [True, False, False]])
    scores = [
        [[1.0, 2.0, 6.0], [4.0, 99.0, 99.0]],
        [[3.0, 5.0, 7.0], [6.0, 99.0, 99.0]],
        [[0.0, 0.0, 0.0], [0.0, 99.0, 99.0]],
        [[8.0, 8.0, 8.0], [1.0, 99.0, 99.0]],
    ]
    first = [2.0, 4.0, 1.5, 4.0]  # of 1 2 6; 1 2 3 5 6 7; 0 0 0 3 5 7; 0 0 0 8 8 8
    second = [4.0, 5.0, 3.0, 0.5]  # of 4; 4 6; 0 6; 0 1
    for time, score in enumerate(scores):
        found = median.update(torch.tensor(score), real)
        window = slice(max(0, time - 2), time + 1)
        assert found.tolist() == pytest.approx([np.mean(first[window]), np.mean(second[window])])


def test_the_windows_are_ten_episodes_and_a_hundred_medians() -> None:
    random, median, episodes, medians = np.random.default_rng(0), RunningMedian(1, 4), [], []
    for _ in range(130):
        score = random.exponential(size=4).astype(np.float32)
        episodes.append(score)
        medians.append(np.median(episodes[-10:]))
        found = median.update(torch.from_numpy(score)[None], torch.ones(1, 4, dtype=torch.bool))
        assert found.item() == pytest.approx(np.mean(medians[-100:]), rel=1e-5)


def test_scores_without_size_are_divided_by_one() -> None:
    assert RunningMedian(1, 3).update(torch.zeros(1, 3), torch.ones(1, 3, dtype=torch.bool)).tolist() == [1.0]


def test_a_restored_running_median_goes_on() -> None:
    median, other = RunningMedian(1, 3), RunningMedian(1, 3)
    real = torch.ones(1, 3, dtype=torch.bool)
    median.update(torch.tensor([[1.0, 2.0, 3.0]]), real)
    other.load_state_dict(copy.deepcopy(median.state_dict()))
    new = torch.tensor([[5.0, 6.0, 7.0]])
    assert torch.equal(median.update(new, real), other.update(new, real))


# --- a replay buffer ----------------------------------------------------------------------------


def make(replay: ReplayBuffer, seeds: list[int], config: VimeConfig = SMALL) -> VimeSignal:
    return VimeSignal(config, TransitionTable(replay, LAW, {"object": ENTITY}, SCALE), make_generators(seeds))


def plain_fit(model: BayesianNetwork, replay: ReplayBuffer, batches: int, seed: int, replica: int) -> float:
    """One replica, batch by batch, by torch.distributions and torch's own Adam; the summed loss."""
    optimizer = torch.optim.Adam(model.parameters(), lr=SMALL.learning_rate)
    generator = make_generators([seed])[0]
    lengths = replay.length[replica].tolist()
    steps = [(slot, time) for slot, length in enumerate(lengths) for time in range(length)]
    model.train()
    total = 0.0
    for start in range(0, batches, BLOCK):
        count = min(BLOCK, batches - start)
        places = torch.rand(count * SMALL.batch_size, 2, generator=generator).double()
        noise = torch.randn(count, SMALL.samples, model.size, generator=generator)
        for batch, drawn in zip(places.split(SMALL.batch_size), noise, strict=True):
            rows = []
            for first, second in batch.tolist():
                slot, _ = steps[int(first * len(steps))]
                rows.append((slot, int(second * lengths[slot])))
            obs = torch.stack([replay.observation[replica, slot, time] for slot, time in rows])
            then = torch.stack([replay.observation[replica, slot, time + 1] for slot, time in rows])
            action = torch.stack([replay.action[replica, slot, time] for slot, time in rows])
            target = (then - obs)[:, list(ENTITY)] * torch.tensor(SCALE)
            predicted = model(torch.cat([obs, LAW.encode(action)], 1)[None], drawn[None])[0]
            likelihood = Normal(predicted, SMALL.likelihood_sigma).log_prob(target).sum(-1).mean()
            divergence = kl_divergence(Normal(*model.posterior()), Normal(0.0, SMALL.prior_sigma)).sum()
            loss = SMALL.kl_weight * divergence - likelihood
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total


@pytest.mark.parametrize("batches", [3, BLOCK + 4])
def test_fitting_is_a_plain_loop_for_each_replica(batches: int) -> None:
    replay = make_replay([0, 1], 9)
    vime = make(replay, [5, 6])
    vime.weights.fill(vime.weigh_data())
    losses = vime.fit(batches, make_generators([8, 9]))
    assert losses.shape == (2,)
    assert not vime.model.training
    for replica in range(2):
        plain = make(make_replay([replica], 1), [5 + replica]).model
        assert losses[replica].item() == pytest.approx(
            plain_fit(plain, replay, batches, 8 + replica, replica), rel=1e-4
        )
        for name, value in plain.state_dict().items():
            found = vime.model.state_dict()[name][replica]
            torch.testing.assert_close(found, value[0], rtol=1e-3, atol=1e-4, msg=name)


def test_every_number_learns_and_the_loss_falls() -> None:
    table = TransitionTable(make_replay([0, 1], 30), LAW, {"object": (1,)}, (2.0,))
    vime = VimeSignal(SMALL, table, make_generators([5, 6]))
    vime.weights.fill(vime.weigh_data())
    before, generators = copy.deepcopy(vime.model.state_dict()), make_generators([8, 9])
    first = vime.fit(20, generators)
    vime.fit(100, generators)
    assert (vime.fit(20, generators) < first).all()
    for name, value in vime.model.state_dict().items():
        if name != "offset":
            assert (value != before[name]).float().mean() > 0.99, name


def test_scores_are_gains_over_their_usual_size_episode_by_episode() -> None:
    replay = make_replay([0, 1], 9)
    vime = make(replay, [5, 6])
    vime.weights.fill(vime.weigh_data())
    vime.fit(30, make_generators([8, 9]))
    median = RunningMedian(2, STEPS)
    for slots in (torch.tensor([2, 3, 6]), torch.tensor([7])):
        vime.score(slots, make_generators([3, 4]))
        now, then = replay.observation[:, slots, :STEPS], replay.observation[:, slots, 1:]
        inputs = torch.cat([now, LAW.encode(replay.action[:, slots])], -1)
        target = (then - now)[..., list(ENTITY)] * torch.tensor(SCALE)
        valid = replay.valid()[:, slots]
        gain = gain_of_steps(vime.model, inputs, target, valid, make_generators([3, 4]), range(2))
        for row, slot in enumerate(slots.tolist()):
            usual = median.update(gain[:, row], valid[:, row])
            for replica in range(2):
                expected = gain[replica, row] / usual[replica]
                torch.testing.assert_close(replay.score[replica, slot], expected)
                length = int(replay.length[replica, slot])
                assert (replay.score[replica, slot, :length] > 0).all()
                assert not replay.score[replica, slot, length:].any()
    others = torch.ones(50, dtype=torch.bool).index_fill(0, torch.tensor([2, 3, 6, 7]), False)
    assert not replay.score[:, others].any()  # untouched


@pytest.mark.parametrize("method", ["iterated", "second_order"])
def test_scoring_a_memory_trains_nothing(method: Any) -> None:
    """Neither weights nor moments nor statistics change, to the bit: a fit goes on as if nothing had been scored."""
    states = []
    for scores in (False, True):
        replay = make_replay([0, 1], 9)
        vime = make(replay, [5, 6], dataclasses.replace(SMALL, method=method))
        vime.weights.fill(vime.weigh_data())
        generators = make_generators([8, 9])
        vime.fit(5, generators)
        if scores:
            vime.score(replay.slots(9), make_generators([3, 4]))
        vime.fit(5, generators)
        states.append(vime.state())
    for name, value in states[0]["model"].items():
        assert torch.equal(value, states[1]["model"][name]), name
    for index, moments in states[0]["optimizer"]["state"].items():
        for name, value in moments.items():
            assert torch.equal(value, states[1]["optimizer"]["state"][index][name]), (index, name)


def test_replicas_at_once_are_each_replica_alone() -> None:
    together = make(make_replay([0, 1, 2], 9), [5, 6, 7])
    together.weights.fill(together.weigh_data())
    together.fit(BLOCK + 3, make_generators([10, 11, 12]))
    together.score(together.replay.slots(9), make_generators([20, 21, 22]))
    for replica in range(3):
        alone = make(make_replay([replica], 9), [5 + replica])
        alone.weights.fill(alone.weigh_data())
        alone.fit(BLOCK + 3, make_generators([10 + replica]))
        alone.score(alone.replay.slots(9), make_generators([20 + replica]))
        for name, value in alone.model.state_dict().items():
            found = together.model.state_dict()[name][replica]
            torch.testing.assert_close(value[0], found, rtol=1e-3, atol=1e-4, msg=name)
        torch.testing.assert_close(alone.replay.score[0], together.replay.score[replica], rtol=1e-2, atol=1e-3)


def test_a_restored_one_goes_on_as_if_never_saved() -> None:
    def go_on(vime: VimeSignal) -> None:
        vime.weights.fill(vime.weigh_data())
        vime.fit(5, make_generators([1, 2]))
        vime.score(vime.replay.slots(2), make_generators([3, 4]))

    vime = make(make_replay([0, 1], 9), [5, 6])
    vime.weights.fill(vime.weigh_data())
    vime.fit(7, make_generators([8, 9]))
    vime.score(vime.replay.slots(4), make_generators([1, 2]))
    saved = copy.deepcopy(vime.state())
    go_on(vime)
    other = make(make_replay([0, 1], 9), [70, 71])
    other.restore(saved)
    assert not len(other.stale())
    go_on(other)
    for name, value in vime.model.state_dict().items():
        assert torch.equal(value, other.model.state_dict()[name]), name
    assert torch.equal(other.replay.score[:, other.replay.slots(2)], vime.replay.score[:, vime.replay.slots(2)])


def test_each_episode_is_scored_once() -> None:
    """Those of the warm-up after the first round, later ones when they come."""
    replay = make_replay([0], 4)
    vime = make(replay, [5])
    assert vime.stale().tolist() == [0, 1, 2, 3]
    vime.score(vime.stale(), make_generators([3]))
    before = replay.score.clone()
    assert not len(vime.stale())
    vime.score(vime.stale(), make_generators([3]))  # nothing to do
    assert torch.equal(replay.score, before)
    replay.stored += 1
    assert vime.stale().tolist() == [4]


def test_all_steps_are_drawn_alike() -> None:
    replay = make_replay([0, 1], 9)
    vime = make(replay, [5, 6])
    vime.weights.fill(vime.weigh_data())
    assert torch.equal(vime.weights.step, replay.valid().float())


def test_the_saved_networks_come_back(tmp_path: Path) -> None:
    vime = make(make_replay([0, 1], 9), [5, 6])
    vime.fit(30, make_generators([8, 9]))
    vime.save(tmp_path, 3)
    model, units, seed = load_model(tmp_path / "vime.safetensors", "vime", BayesianNetwork, VimeConfig)
    assert (model.config, model.obs_size, seed) == (SMALL, OBS, 3)
    assert units.entities == {"object": sorted(ENTITY)}
    assert units.scale == list(SCALE)
    for name, value in vime.model.state_dict().items():
        assert torch.equal(value, model.state_dict()[name]), name


def test_noise_of_each_replica_is_its_own() -> None:
    noise = draw_noise(make_generators([1, 2]), 3)
    assert torch.equal(noise[1:], draw_noise(make_generators([2]), 3))
    assert not torch.equal(noise[0], noise[1])
