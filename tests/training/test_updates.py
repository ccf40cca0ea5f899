"""What the agent is given to learn from: rewards, bonuses, weights and draws, by value, against plain loops."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch
from support.small_training import changed
from torch import Tensor

from butfor.models.networks import make_generators
from butfor.rollouts.episodes import Episodes
from butfor.rollouts.play import Played
from butfor.spaces.actions import ActionLaw
from butfor.training.agents.policy import AgentConfig
from butfor.training.agents.td3 import TD3Config
from butfor.training.bonus import BonusConfig
from butfor.training.goal_env import GoalEnv, open_goal_env
from butfor.training.loop import Trainer, recorded_updates
from butfor.training.priorities import PriorityConfig
from butfor.training.replay import Batch, ReplayConfig
from butfor.training.settings import Config, preset

OBS, ACTION, STEPS, SEEDS = 3, 2, 5, 2
LAW = ActionLaw((-1.0, 0.0), (1.0, 3.0))
LENGTHS = [5, 2, 4, 5, 1, 3]  # of the stored episodes; two slots more are empty
CAPACITY = len(LENGTHS) + 2
BATCH, UPDATES = 64, 3
AGENT = AgentConfig(layers=1, width=4, batch_size=BATCH, updates=UPDATES, normalizer_batches=2)


def reward(achieved: Tensor, desired: Tensor) -> Tensor:
    """0 at the goal, -1 away from it."""
    away: Tensor = (achieved - desired).square().sum(-1) > 0.25
    return -away.float()


def make_trainer(goal: int = 2, **changes: Any) -> Trainer:
    """Two seeds with six random episodes of unequal lengths each, all scored; there are no environments."""
    base = Config(env="toy", seeds=SEEDS, episodes=CAPACITY, warmup=CAPACITY, agent=AGENT)
    config: Config = changed(base, **changes)
    sizes = (OBS, ACTION, goal)
    goal_env = GoalEnv("toy", lambda count: None, STEPS, sizes, LAW, reward, None, {"object": (0,)}, (1.0,))  # type: ignore[arg-type, return-value]
    trainer = Trainer(config, goal_env, "cpu")
    generator = np.random.default_rng(0)
    count = len(LENGTHS)
    episodes = Episodes(
        observation=generator.normal(size=(SEEDS * count, STEPS + 1, OBS)).astype(np.float32),
        action=generator.uniform(LAW.low, LAW.high, (SEEDS * count, STEPS, ACTION)).astype(np.float32),
        achieved_goal=generator.normal(size=(SEEDS * count, STEPS + 1, goal)).astype(np.float32),
        desired_goal=generator.normal(size=(SEEDS * count, STEPS + 1, goal)).astype(np.float32),
        sampled=np.ones((SEEDS * count, STEPS), bool),
        length=np.array(LENGTHS * SEEDS),
    )
    nothing = np.zeros(SEEDS * count, bool)
    trainer.store(Played(episodes, nothing, nothing))
    replay = trainer.replay
    replay.score[:, :count] = torch.from_numpy(generator.uniform(0, 3, (SEEDS, count, STEPS)))
    replay.score.masked_fill_(~replay.valid(), 0)
    return trainer


def update(trainer: Trainer, *seeds: int) -> None:
    """Updates with streams of these seeds."""
    trainer.generators["updates"] = make_generators(seeds)
    trainer.update()


def watched(trainer: Trainer, monkeypatch: pytest.MonkeyPatch, error: Tensor | None = None) -> list[Batch]:
    """The batches of one `update`, in place of which the agent answers with these TD errors."""
    seen: list[Batch] = []

    def answer(batch: Batch, index: int) -> tuple[Tensor, Tensor]:
        seen.append(batch)
        given = torch.zeros_like(batch.reward) if error is None else error
        return torch.ones(SEEDS, 3), given

    monkeypatch.setattr(trainer.agent, "update", answer)
    update(trainer, 7, 8)
    return seen


def each(batches: list[Batch]) -> list[tuple[int, int, int, Batch, int]]:
    """Every sample as (replica, episode, time, its batch, its place there)."""
    return [
        (r, int(batch.episode[r, i]), int(batch.time[r, i]), batch, i)
        for batch in batches
        for r in range(SEEDS)
        for i in range(batch.reward.shape[1])
    ]


def goal_of(batch: Batch, r: int, i: int) -> Tensor:
    return batch.inputs[r, i, OBS:]


# -------------------------------------------------------------------------------------- the batch


def test_samples_are_the_stored_steps_with_actions_in_units(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer()
    replay, batches = trainer.replay, watched(trainer, monkeypatch)
    assert len(batches) == UPDATES
    goals = {"own": 0, "later": 0}
    for r, e, t, batch, i in each(batches):
        assert t < LENGTHS[e]
        assert torch.equal(batch.inputs[r, i, :OBS], replay.observation[r, e, t])
        assert torch.equal(batch.next_inputs[r, i, :OBS], replay.observation[r, e, t + 1])
        unit = (replay.action[r, e, t] - torch.tensor([0.0, 1.5])) / torch.tensor([1.0, 1.5])
        assert torch.allclose(batch.action[r, i], unit, atol=1e-6)
        goal = goal_of(batch, r, i)
        assert torch.equal(batch.next_inputs[r, i, OBS:], goal)
        own = torch.equal(goal, replay.desired_goal[r, e, t])
        later = [torch.equal(goal, replay.achieved_goal[r, e, k]) for k in range(t + 1, LENGTHS[e] + 1)]
        assert own != any(later)
        goals["own" if own else "later"] += 1
        assert batch.reward[r, i] == reward(replay.achieved_goal[r, e, t + 1], goal)
        assert batch.score[r, i] == replay.score[r, e, t]
    share = goals["later"] / sum(goals.values())
    assert abs(share - 0.8) < 5 * (0.8 * 0.2 / (SEEDS * BATCH * UPDATES)) ** 0.5
    assert all(batch.weight is None for batch in batches)
    assert {e for _, e, _, _, _ in each(batches)} == set(range(len(LENGTHS)))  # and none of the empty slots


def test_replicas_draw_from_streams_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second replica's draws are those of a trainer that has its generator in the first place."""
    first, second = make_trainer(), make_trainer()
    seen = watched(first, monkeypatch)

    def keep(batch: Batch, index: int) -> tuple[Tensor, Tensor]:
        other.append(batch)
        return torch.ones(SEEDS, 3), torch.zeros_like(batch.reward)

    other: list[Batch] = []
    monkeypatch.setattr(second.agent, "update", keep)
    update(second, 8, 7)
    for mine, theirs in zip(seen, other, strict=True):
        assert torch.equal(mine.episode, theirs.episode.flip(0))
        assert torch.equal(mine.time, theirs.time.flip(0))


@pytest.mark.parametrize("cap", [2.0, 0.5])
@pytest.mark.parametrize("ceiling", [0.0, None, -0.5])
def test_the_bonus_is_added_clipped_and_never_beats_a_reached_goal(
    monkeypatch: pytest.MonkeyPatch, cap: float, ceiling: float | None
) -> None:
    trainer = make_trainer(use=("bonus",), bonus=BonusConfig(0.6, cap, ceiling=ceiling))
    replay = trainer.replay
    at_the_top = 0
    for r, e, t, batch, i in each(watched(trainer, monkeypatch)):
        base = float(reward(replay.achieved_goal[r, e, t + 1], goal_of(batch, r, i)))
        expected = base + 0.6 * min(float(replay.score[r, e, t]), cap)
        if ceiling is not None:
            at_the_top += expected >= ceiling
            expected = min(expected, ceiling)
        assert float(batch.reward[r, i]) == pytest.approx(expected, abs=1e-6)
    assert bool(at_the_top) == (ceiling is not None)


def test_an_intrinsic_reward_is_the_clipped_score_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    changes: dict[str, Any] = {
        "use": ("intrinsic",), "agent": {"target_range": None}, "bonus": BonusConfig(cap=1.5),
        "replay": ReplayConfig(hindsight=0.0),
    }  # fmt: skip
    trainer = make_trainer(**changes)
    replay = trainer.replay
    clipped = 0
    for r, e, t, batch, i in each(watched(trainer, monkeypatch)):
        score = float(replay.score[r, e, t])
        clipped += score > 1.5
        assert float(batch.reward[r, i]) == pytest.approx(min(score, 1.5))
        assert torch.equal(goal_of(batch, r, i), replay.desired_goal[r, e, t])  # no hindsight
    assert clipped


def test_scores_that_change_change_the_next_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(use=("bonus", "priority"), bonus=BonusConfig(ceiling=None))
    watched(trainer, monkeypatch)
    trainer.replay.score.mul_(0).add_(1.0)
    for r, e, t, batch, i in each(watched(trainer, monkeypatch)):
        base = float(reward(trainer.replay.achieved_goal[r, e, t + 1], goal_of(batch, r, i)))
        assert float(batch.reward[r, i]) == pytest.approx(base + 0.2)


# -------------------------------------------------------------------------------------- the draws


def shares(trainer: Trainer) -> Tensor:
    """Each step's chance [R, E, T], from the weights that were filled in."""
    return trainer.weights.step / trainer.weights.step.sum((1, 2), keepdim=True)


def assert_drawn_so(trainer: Trainer, expected: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights are as expected [R, E, T], and frequencies follow them within five standard errors."""
    batches = watched(trainer, monkeypatch)
    expected = expected / expected.sum((1, 2), keepdim=True)
    assert torch.allclose(shares(trainer), expected.float(), atol=1e-6)
    counts = torch.zeros_like(expected)
    for r, e, t, _, _ in each(batches):
        counts[r, e, t] += 1
    total = counts.sum((1, 2), keepdim=True)
    error = (expected * (1 - expected) / total).sqrt()
    assert ((counts / total - expected).abs() <= 5 * error + 1e-12).all()


def by_hand(trainer: Trainer, episode: Callable[[int, int], float]) -> Tensor:
    """An episode's chance p(replica, episode) in equal parts over its steps: [R, E, T]."""
    weight = torch.zeros(SEEDS, CAPACITY, STEPS, dtype=torch.float64)
    for r in range(SEEDS):
        for e, length in enumerate(LENGTHS):
            weight[r, e, :length] = episode(r, e) / length
    return weight


MANY: dict[str, Any] = {"agent": {"batch_size": 1500}}


def test_without_priority_every_step_is_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(**MANY)
    assert_drawn_so(trainer, by_hand(trainer, lambda r, e: LENGTHS[e]), monkeypatch)


def test_cai_p_draws_episodes_by_the_inverse_of_their_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(use=("priority",), **MANY)
    totals = trainer.replay.score.sum(-1)
    ranks = [[1 + sum(totals[r, : len(LENGTHS)] > totals[r, e]) for e in range(len(LENGTHS))] for r in range(SEEDS)]
    assert sorted(map(int, ranks[0])) == [1, 2, 3, 4, 5, 6]
    assert_drawn_so(trainer, by_hand(trainer, lambda r, e: 1 / float(ranks[r][e])), monkeypatch)


def test_ebp_draws_by_the_energy_that_the_object_gained(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(goal=3, priority=PriorityConfig("ebp"), **MANY)
    replay = trainer.replay
    replay.achieved_goal.mul_(0.01)
    replay.achieved_goal[:, 1] = 0.5  # an object that never moved

    def gained(r: int, e: int) -> float:
        place = replay.achieved_goal[r, e].double()
        total = before = 0.0
        for t in range(1, LENGTHS[e] + 1):
            speed = (place[t] - place[t - 1]) / 0.04
            energy = float(9.81 * (place[t, 2] - place[0, 2]) + 0.5 * (speed @ speed))
            total += min(max(energy - before, 0.0), 0.5)
            before = energy
        return total

    assert gained(0, 1) == 0 < gained(0, 0)
    assert_drawn_so(trainer, by_hand(trainer, gained), monkeypatch)


def test_ebp_without_any_energy_draws_all_episodes_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(goal=3, priority=PriorityConfig("ebp"), **MANY)
    trainer.replay.achieved_goal.zero_()
    assert_drawn_so(trainer, by_hand(trainer, lambda r, e: 1.0), monkeypatch)


# --------------------------------------------------------------------------- PER and importance


STORED = ("observation", "action", "achieved_goal", "desired_goal", "sampled", "length")
PER: dict[str, Any] = {"priority": PriorityConfig("per", beta_episodes=24)}


def test_new_steps_have_the_largest_error_seen_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(**PER)
    assert torch.equal(trainer.error[:, : len(LENGTHS)], torch.ones(SEEDS, len(LENGTHS), STEPS))
    assert not trainer.error[:, len(LENGTHS) :].any()
    error = torch.linspace(-1, 1, BATCH).mul(torch.tensor([[3.0], [0.5]]))  # the largest is 3 of the first replica
    watched(trainer, monkeypatch, error)
    assert trainer.largest_error.tolist() == [3.0, 1.0]  # it starts at 1 and never falls
    watched(trainer, monkeypatch, 0.1 * error)
    assert trainer.largest_error.tolist() == [3.0, 1.0]
    one = Episodes(**{name: getattr(trainer.replay, name)[:, 0].numpy() for name in STORED})
    trainer.store(Played(one, np.zeros(SEEDS, bool), np.zeros(SEEDS, bool)))
    assert (trainer.error[0, 6] == 3).all()
    assert (trainer.error[1, 6] == 1).all()


def test_errors_are_written_back_and_weigh_the_next_batch_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch after batch: the errors of one are the priorities of the next, with importance weights to match."""
    trainer = make_trainer(**PER)
    generator = torch.Generator().manual_seed(0)
    errors = torch.ones(SEEDS, CAPACITY, STEPS, dtype=torch.float64)
    beta = 0.4 + 0.6 * 6 / 24  # six of 24 episodes are stored
    valid = trainer.replay.valid()
    seen = 0

    def answer(batch: Batch, index: int) -> tuple[Tensor, Tensor]:
        nonlocal seen
        weight = errors.clamp(min=1e-6).pow(0.6) * valid
        assert torch.allclose(trainer.weights.step, weight.float(), rtol=1e-5)
        smallest = weight.masked_fill(~valid, torch.inf).amin((1, 2))
        error = 2 * torch.randn(SEEDS, BATCH, generator=generator)
        assert batch.weight is not None
        for r in range(SEEDS):
            chance = weight[r] / weight[r].sum()
            count = int(valid[r].sum())
            largest = (count * smallest[r] / weight[r].sum()) ** -beta  # of the whole memory
            for i in range(BATCH):
                at = (int(batch.episode[r, i]), int(batch.time[r, i]))
                expected = float((count * chance[at]) ** -beta / largest)
                assert float(batch.weight[r, i]) == pytest.approx(expected, rel=1e-4)
                errors[(r, *at)] = abs(float(error[r, i]))
        seen += 1
        return torch.ones(SEEDS, 3), error

    monkeypatch.setattr(trainer.agent, "update", answer)
    update(trainer, 7, 8)
    assert seen == UPDATES
    stored = trainer.error[:, : len(LENGTHS)].double()
    drawn = errors[:, : len(LENGTHS)]
    assert torch.allclose(stored.where(valid[:, : len(LENGTHS)], 0.0), drawn.where(valid[:, : len(LENGTHS)], 0.0))
    assert (stored != 1).any()


@pytest.mark.parametrize(("stored", "beta"), [(6, 0.55), (12, 0.7), (24, 1.0), (100, 1.0)])
def test_the_exponent_of_the_importance_weights_rises_with_the_episodes(stored: int, beta: float) -> None:
    trainer = make_trainer(**PER)
    trainer.replay.stored = stored
    trainer.set_weights()
    assert float(trainer.importance) == pytest.approx(beta)


# ------------------------------------------------------------------------------- updates and state


def test_the_normaliser_sees_its_batches_once_and_then_every_update(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer()
    normalizer = trainer.agent.policy.normalizer
    watched(trainer, monkeypatch)  # the agent's own update would show it one batch more each
    assert normalizer.count.flatten().tolist() == [2 * BATCH] * SEEDS
    watched(trainer, monkeypatch)
    assert normalizer.count.flatten().tolist() == [2 * BATCH] * SEEDS
    monkeypatch.undo()
    update(trainer, 7, 8)
    assert normalizer.count.flatten().tolist() == [(2 + UPDATES) * BATCH] * SEEDS


def test_statistics_are_means_since_they_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(num_envs=3, episodes=11)
    assert len(watched(trainer, monkeypatch)) == 3 * UPDATES  # updates grow with the environments
    watched(trainer, monkeypatch)
    assert torch.equal(trainer.statistics, torch.full((SEEDS, 3), 6.0 * UPDATES))
    names = ("critic_loss", "actor_loss", "value")
    assert [[row[name] for name in names] for row in trainer.report()] == [[1.0] * 3] * SEEDS
    assert [[row[name] for name in names] for row in trainer.report()] == [[0.0] * 3] * SEEDS


@pytest.mark.parametrize(
    "changes",
    [{}, PER, {"use": ("priority", "bonus")}, {"algorithm": "td3"}],
    ids=["uniform", "per", "influence", "TD3"],
)
def test_a_restored_trainer_goes_on_to_the_same_bits(changes: dict[str, Any]) -> None:
    unbroken, broken = make_trainer(**changes), make_trainer(**changes)
    for trainer in (unbroken, broken):
        update(trainer, 1, 2)
    state = broken.state()
    fresh = make_trainer(**changes)
    fresh.restore(state)
    for trainer in (unbroken, fresh):
        update(trainer, 5, 5)
    expected, got = unbroken.agent.state_dict(), fresh.agent.state_dict()
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    for name in ("error", "largest_error", "statistics"):
        assert torch.equal(getattr(unbroken, name), getattr(fresh, name)), name
    assert (unbroken.count, unbroken.normalized) == (fresh.count, fresh.normalized)
    before = make_trainer(**changes)
    assert not any(
        torch.equal(value, before.agent.state_dict()[name]) for name, value in expected.items() if "layers" in name
    )


def test_a_trainer_alone_and_in_a_pair_learn_the_same() -> None:
    """One replica taken out of a pair, with its own streams, ends where it ends in the pair, but for rounding."""
    for changes in ({}, PER, {"use": ("priority", "bonus")}):
        pair = make_trainer(**changes)
        update(pair, 7, 8)
        for r in range(SEEDS):
            alone = Trainer(dataclasses.replace(pair.config, seeds=1, first_seed=r), pair.goal_env, "cpu")
            whole = pair.replay.state()
            alone.replay.restore({name: v if name == "stored" else v[r : r + 1] for name, v in whole.items()})
            alone.error[:, : len(LENGTHS)] = 1.0
            update(alone, 7 + r)
            for name, value in alone.agent.state_dict().items():
                other = pair.agent.state_dict()[name][r : r + 1]
                assert torch.allclose(value, other, rtol=1e-4, atol=1e-6), (name, r)


@pytest.mark.parametrize(("updates", "delay", "block"), [(40, 2, 20), (14, 2, 14), (27, 3, 9), (26, 4, 26)])
def test_updates_in_blocks_are_the_same(updates: int, delay: int, block: int) -> None:
    agent = dataclasses.replace(AGENT, updates=updates)
    whole, parts = (make_trainer(algorithm="td3", agent=agent, td3=TD3Config(policy_delay=delay)) for _ in range(2))
    assert whole.block == updates
    parts.block = recorded_updates(updates, delay)
    assert parts.block == block
    for trainer in (whole, parts):
        update(trainer, 7, 8)
    for name, value in whole.agent.state_dict().items():
        assert torch.equal(value, parts.agent.state_dict()[name]), name
    torch.testing.assert_close(whole.statistics, parts.statistics)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU: graphs cannot be recorded here")
@pytest.mark.parametrize("algorithm", ["ddpg", "td3"])
def test_recorded_updates_with_a_relay_equal_plain_ones(algorithm: Literal["ddpg", "td3"]) -> None:
    states = []
    for recorded in (True, False):
        agent = AgentConfig(layers=2, width=16, batch_size=32, updates=4, normalizer_batches=2, critic_layer_norm=True)
        config = dataclasses.replace(
            preset("push", "record"), algorithm=algorithm, agent=agent, seeds=2, episodes=8, warmup=4, tf32=False
        )
        trainer = Trainer(config, open_goal_env("push", target_scale=50.0), "cuda")
        trainer.store(trainer.play_random())
        trainer.replay.score.uniform_(0, 1, generator=torch.Generator("cuda").manual_seed(0))
        if recorded:
            trainer.block = 2  # a graph of two updates, replayed twice in each call
        else:
            trainer.block = trainer.updates
            trainer._recorded = trainer.update_agent
        trainer.update()
        trainer.update()
        assert trainer.relay is not None
        states.append([*trainer.agent.state_dict().values(), *trainer.relay.agent.state_dict().values()])
    for one, other in zip(*states, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
