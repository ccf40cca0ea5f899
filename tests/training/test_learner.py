"""What the agent is given to learn from: rewards, bonuses, weights and draws, by value, against plain loops."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.small_training import changed, copy_of
from torch import Tensor

from butfor.models.networks import make_generators
from butfor.spaces.actions import ActionLaw
from butfor.training.agents.policy import AgentConfig
from butfor.training.bonus import BonusConfig
from butfor.training.goal_env import GoalEnv
from butfor.training.loop import Learner
from butfor.training.priorities import PriorityConfig
from butfor.training.replay import Batch, ReplayBuffer, ReplayConfig
from butfor.training.settings import Config

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


def make_learner(goal: int = 2, **changes: Any) -> Learner:
    """Two seeds with six random episodes of unequal lengths each, all scored."""
    config: Config = changed(Config(env="toy", seeds=SEEDS, agent=AGENT), **changes)
    replay = ReplayBuffer(SEEDS, CAPACITY, STEPS, (OBS, ACTION, goal), "cpu")
    generator = np.random.default_rng(0)
    count = len(LENGTHS)
    replay.store(
        {
            "observation": generator.normal(size=(SEEDS, count, STEPS + 1, OBS)),
            "action": generator.uniform(LAW.low, LAW.high, (SEEDS, count, STEPS, ACTION)),
            "achieved_goal": generator.normal(size=(SEEDS, count, STEPS + 1, goal)),
            "desired_goal": generator.normal(size=(SEEDS, count, STEPS + 1, goal)),
            "sampled": np.ones((SEEDS, count, STEPS), bool),
            "length": np.array([LENGTHS] * SEEDS),
            "terminated": np.zeros((SEEDS, count), bool),
        }
    )
    replay.score[:, :count] = torch.from_numpy(generator.uniform(0, 3, (SEEDS, count, STEPS)))
    replay.score.masked_fill_(~replay.valid(), 0)
    sizes = (OBS, ACTION, goal)
    world = GoalEnv("toy", lambda count: None, STEPS, sizes, LAW, reward, True, {}, (), 1)  # type: ignore[arg-type, return-value]
    learner = Learner(config, world, replay, make_generators([0, 1]), torch.device("cpu"))
    learner.welcome(torch.arange(count))
    return learner


def watched(learner: Learner, monkeypatch: pytest.MonkeyPatch, error: Tensor | None = None) -> list[Batch]:
    """The batches of one `update`, in place of which the agent answers with these TD errors."""
    seen: list[Batch] = []

    def update(batch: Batch, optimizers: Any) -> tuple[Tensor, Tensor]:
        seen.append(batch)
        given = torch.zeros_like(batch.reward) if error is None else error
        return torch.ones(SEEDS, 3), given

    monkeypatch.setattr(learner.agent, "update", update)
    learner.update(make_generators([7, 8]))
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
    learner = make_learner()
    replay, batches = learner.replay, watched(learner, monkeypatch)
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
    """The second replica's draws are those of a learner that has its generator in the first place."""
    first, second = make_learner(), make_learner()
    seen = watched(first, monkeypatch)

    def keep(batch: Batch, optimizers: Any) -> tuple[Tensor, Tensor]:
        other.append(batch)
        return torch.ones(SEEDS, 3), torch.zeros_like(batch.reward)

    other: list[Batch] = []
    monkeypatch.setattr(second.agent, "update", keep)
    second.update(make_generators([8, 7]))
    for mine, theirs in zip(seen, other, strict=True):
        assert torch.equal(mine.episode, theirs.episode.flip(0))
        assert torch.equal(mine.time, theirs.time.flip(0))


@pytest.mark.parametrize("cap", [2.0, 0.5])
@pytest.mark.parametrize("ceiling", [0.0, None, -0.5])
def test_the_bonus_is_added_clipped_and_never_beats_a_reached_goal(
    monkeypatch: pytest.MonkeyPatch, cap: float, ceiling: float | None
) -> None:
    learner = make_learner(use=("bonus",), bonus=BonusConfig(0.6, cap, ceiling=ceiling))
    replay = learner.replay
    at_the_top = 0
    for r, e, t, batch, i in each(watched(learner, monkeypatch)):
        base = float(reward(replay.achieved_goal[r, e, t + 1], goal_of(batch, r, i)))
        expected = base + 0.6 * min(float(replay.score[r, e, t]), cap)
        if ceiling is not None:
            at_the_top += expected >= ceiling
            expected = min(expected, ceiling)
        assert float(batch.reward[r, i]) == pytest.approx(expected, abs=1e-6)
    assert bool(at_the_top) == (ceiling is not None)


def test_a_flat_and_a_multiplicative_bonus(monkeypatch: pytest.MonkeyPatch) -> None:
    def flat(base: float, score: float) -> float:
        return min(base + 0.3 * (score > 1.0), 0.0)

    def multiplicative(base: float, score: float) -> float:
        return min(base * max(0.0, 1 - 0.3 * min(score, 2.0)), 0.0)

    rules: dict[Any, Callable[[float, float], float]] = {"flat": flat, "multiplicative": multiplicative}
    for kind, rule in rules.items():
        learner = make_learner(use=("bonus",), bonus=BonusConfig(0.3, kind=kind, threshold=1.0))
        replay = learner.replay
        for r, e, t, batch, i in each(watched(learner, monkeypatch)):
            base = float(reward(replay.achieved_goal[r, e, t + 1], goal_of(batch, r, i)))
            assert float(batch.reward[r, i]) == pytest.approx(rule(base, float(replay.score[r, e, t])), abs=1e-6)


@pytest.mark.parametrize(("over", "left"), [(6, 0.0), (12, 0.5), (24, 0.75), (3, 0.0)])
def test_an_annealed_bonus_falls_with_the_episodes(monkeypatch: pytest.MonkeyPatch, over: int, left: float) -> None:
    """Six episodes are stored: of a weight that falls over 12, half is left."""
    bonus = BonusConfig(weight=0.4, ceiling=None, anneal_episodes=over)
    learner = make_learner(use=("bonus",), bonus=bonus)
    replay = learner.replay
    for r, e, t, batch, i in each(watched(learner, monkeypatch)):
        base = float(reward(replay.achieved_goal[r, e, t + 1], goal_of(batch, r, i)))
        expected = base + 0.4 * left * min(float(replay.score[r, e, t]), 2.0)
        assert float(batch.reward[r, i]) == pytest.approx(expected, abs=1e-6)


def test_an_intrinsic_reward_is_the_clipped_score_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    changes: dict[str, Any] = {
        "use": ("intrinsic",), "agent": {"target_range": None}, "bonus": BonusConfig(cap=1.5),
        "replay": ReplayConfig(hindsight=0.0),
    }  # fmt: skip
    learner = make_learner(**changes)
    replay = learner.replay
    clipped = 0
    for r, e, t, batch, i in each(watched(learner, monkeypatch)):
        score = float(replay.score[r, e, t])
        clipped += score > 1.5
        assert float(batch.reward[r, i]) == pytest.approx(min(score, 1.5))
        assert torch.equal(goal_of(batch, r, i), replay.desired_goal[r, e, t])  # no hindsight
    assert clipped


def test_scores_that_change_change_the_next_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make_learner(use=("bonus", "priority"), bonus=BonusConfig(ceiling=None))
    watched(learner, monkeypatch)
    learner.replay.score.mul_(0).add_(1.0)
    for r, e, t, batch, i in each(watched(learner, monkeypatch)):
        base = float(reward(learner.replay.achieved_goal[r, e, t + 1], goal_of(batch, r, i)))
        assert float(batch.reward[r, i]) == pytest.approx(base + 0.2)


# -------------------------------------------------------------------------------------- the draws


def shares(learner: Learner) -> Tensor:
    """Each step's chance [R, E, T], from the weights that were filled in."""
    return learner.weights.step / learner.weights.step.sum((1, 2), keepdim=True)


def assert_drawn_so(learner: Learner, expected: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights are as expected [R, E, T], and frequencies follow them within five standard errors."""
    batches = watched(learner, monkeypatch)
    expected = expected / expected.sum((1, 2), keepdim=True)
    assert torch.allclose(shares(learner), expected.float(), atol=1e-6)
    counts = torch.zeros_like(expected)
    for r, e, t, _, _ in each(batches):
        counts[r, e, t] += 1
    total = counts.sum((1, 2), keepdim=True)
    error = (expected * (1 - expected) / total).sqrt()
    assert ((counts / total - expected).abs() <= 5 * error + 1e-12).all()


def by_hand(learner: Learner, episode: Callable[[int, int], float]) -> Tensor:
    """An episode's chance p(replica, episode) in equal parts over its steps: [R, E, T]."""
    weight = torch.zeros(SEEDS, CAPACITY, STEPS, dtype=torch.float64)
    for r in range(SEEDS):
        for e, length in enumerate(LENGTHS):
            weight[r, e, :length] = episode(r, e) / length
    return weight


MANY: dict[str, Any] = {"agent": {"batch_size": 1500}}


def test_without_priority_every_step_is_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make_learner(**MANY)
    assert_drawn_so(learner, by_hand(learner, lambda r, e: LENGTHS[e]), monkeypatch)


def test_cai_p_draws_episodes_by_the_inverse_of_their_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make_learner(use=("priority",), **MANY)
    totals = learner.replay.score.sum(-1)
    ranks = [[1 + sum(totals[r, : len(LENGTHS)] > totals[r, e]) for e in range(len(LENGTHS))] for r in range(SEEDS)]
    assert sorted(map(int, ranks[0])) == [1, 2, 3, 4, 5, 6]
    assert_drawn_so(learner, by_hand(learner, lambda r, e: 1 / float(ranks[r][e])), monkeypatch)


def test_cai_p_in_proportion_to_powered_scores_within_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    priority = PriorityConfig(distribution="proportional", power=2.0, within_episode=True)
    learner = make_learner(use=("priority",), priority=priority, **MANY)
    score = learner.replay.score.double()
    expected = score.square().sum(-1, keepdim=True) * score / score.sum(-1, keepdim=True).clamp(min=1e-9)
    assert_drawn_so(learner, expected, monkeypatch)


def test_ebp_draws_by_the_energy_that_the_object_gained(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make_learner(goal=3, priority=PriorityConfig("ebp"), **MANY)
    replay = learner.replay
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
    assert_drawn_so(learner, by_hand(learner, gained), monkeypatch)


def test_ebp_without_any_energy_draws_all_episodes_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make_learner(goal=3, priority=PriorityConfig("ebp"), **MANY)
    learner.replay.achieved_goal.zero_()
    assert_drawn_so(learner, by_hand(learner, lambda r, e: 1.0), monkeypatch)


# --------------------------------------------------------------------------- PER and importance


PER: dict[str, Any] = {"priority": PriorityConfig("per", beta_episodes=24)}


def test_new_steps_have_the_largest_error_seen_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make_learner(**PER)
    assert torch.equal(learner.error[:, : len(LENGTHS)], torch.ones(SEEDS, len(LENGTHS), STEPS))
    assert not learner.error[:, len(LENGTHS) :].any()
    error = torch.linspace(-1, 1, BATCH).mul(torch.tensor([[3.0], [0.5]]))  # the largest is 3 of the first replica
    watched(learner, monkeypatch, error)
    assert learner.largest_error.tolist() == [3.0, 1.0]  # it starts at 1 and never falls
    watched(learner, monkeypatch, 0.1 * error)
    assert learner.largest_error.tolist() == [3.0, 1.0]
    learner.welcome(torch.tensor([6]))
    assert (learner.error[0, 6] == 3).all()
    assert (learner.error[1, 6] == 1).all()


def test_errors_are_written_back_and_weigh_the_next_batch_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch after batch: the errors of one are the priorities of the next, with importance weights to match."""
    learner = make_learner(**PER)
    generator = torch.Generator().manual_seed(0)
    errors = torch.ones(SEEDS, CAPACITY, STEPS, dtype=torch.float64)
    beta = 0.4 + 0.6 * 6 / 24  # six of 24 episodes are stored
    valid = learner.replay.valid()
    seen = 0

    def update(batch: Batch, optimizers: Any) -> tuple[Tensor, Tensor]:
        nonlocal seen
        weight = errors.clamp(min=1e-6).pow(0.6) * valid
        assert torch.allclose(learner.weights.step, weight.float(), rtol=1e-5)
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

    monkeypatch.setattr(learner.agent, "update", update)
    learner.update(make_generators([7, 8]))
    assert seen == UPDATES
    stored = learner.error[:, : len(LENGTHS)].double()
    drawn = errors[:, : len(LENGTHS)]
    assert torch.allclose(stored.where(valid[:, : len(LENGTHS)], 0.0), drawn.where(valid[:, : len(LENGTHS)], 0.0))
    assert (stored != 1).any()


@pytest.mark.parametrize(("stored", "beta"), [(6, 0.55), (12, 0.7), (24, 1.0), (100, 1.0)])
def test_the_exponent_of_the_importance_weights_rises_with_the_episodes(stored: int, beta: float) -> None:
    learner = make_learner(**PER)
    learner.replay.stored = stored
    learner.weigh()
    assert float(learner.importance) == pytest.approx(beta)


def test_cai_p_can_be_corrected_by_importance_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make_learner(use=("priority",), priority=PriorityConfig(importance=0.5))
    batches = watched(learner, monkeypatch)
    step = learner.weights.step
    smallest = [float(step[r][step[r] > 0].min()) for r in range(SEEDS)]
    weights = []
    for r, e, t, batch, i in each(batches):
        assert batch.weight is not None
        weights.append(float(batch.weight[r, i]))
        assert weights[-1] == pytest.approx((smallest[r] / float(step[r, e, t])) ** 0.5, rel=1e-5)
    assert max(weights) <= 1
    assert min(weights) < 0.7


# ------------------------------------------------------------------------------- updates and state


def test_the_normaliser_sees_its_batches_once_and_then_every_update(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make_learner()
    normalizer = learner.agent.policy.normalizer
    watched(learner, monkeypatch)  # the agent's own update would show it one batch more each
    assert normalizer.count.flatten().tolist() == [2 * BATCH] * SEEDS
    watched(learner, monkeypatch)
    assert normalizer.count.flatten().tolist() == [2 * BATCH] * SEEDS
    monkeypatch.undo()
    learner.update(make_generators([7, 8]))
    assert normalizer.count.flatten().tolist() == [(2 + UPDATES) * BATCH] * SEEDS


def test_statistics_are_means_since_they_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = make_learner(num_envs=3, episodes=203)
    assert len(watched(learner, monkeypatch)) == 3 * UPDATES  # updates grow with the worlds
    watched(learner, monkeypatch)
    assert torch.equal(learner.statistics, torch.full((SEEDS, 3), 6.0 * UPDATES))
    assert torch.equal(learner.means(), torch.ones(SEEDS, 3))
    assert not learner.means().any()


@pytest.mark.parametrize(
    "changes",
    [{}, PER, {"use": ("priority", "bonus")}, {"agent": {"twin_critics": True}}],
    ids=["uniform", "per", "influence", "twin critics"],
)
def test_a_restored_learner_goes_on_to_the_same_bits(changes: dict[str, Any]) -> None:
    unbroken, broken = make_learner(**changes), make_learner(**changes)
    generators = make_generators([7, 8])
    for learner in (unbroken, broken):
        learner.update(make_generators([1, 2]))
    state = broken.state()
    fresh = make_learner(**changes)
    fresh.restore(state)
    for learner in (unbroken, fresh):
        for generator in generators:
            generator.manual_seed(5)
        learner.update(generators)
    expected, got = copy_of(unbroken.agent), copy_of(fresh.agent)
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    for name in ("error", "largest_error", "statistics"):
        assert torch.equal(getattr(unbroken, name), getattr(fresh, name)), name
    assert (unbroken.count, unbroken.normalized) == (fresh.count, fresh.normalized)
    before = make_learner(**changes)
    assert not any(
        torch.equal(value, copy_of(before.agent)[name]) for name, value in expected.items() if "layers" in name
    )


def test_a_learner_alone_and_in_a_pair_learn_the_same() -> None:
    """One replica taken out of a pair, with its own streams, ends where it ends in the pair, but for rounding."""
    for changes in ({}, PER, {"use": ("priority", "bonus")}):
        pair = make_learner(**changes)
        pair.update(make_generators([7, 8]))
        for r in range(SEEDS):
            config = dataclasses.replace(pair.config, seeds=1)
            replay = ReplayBuffer(1, CAPACITY, STEPS, (OBS, ACTION, 2), "cpu")
            whole = pair.replay.state()
            replay.restore({name: v if name == "stored" else v[r : r + 1] for name, v in whole.items()})
            alone = Learner(config, pair.world, replay, make_generators([r]), torch.device("cpu"))
            alone.welcome(torch.arange(len(LENGTHS)))
            alone.update(make_generators([7 + r]))
            for name, value in alone.agent.state_dict().items():
                other = pair.agent.state_dict()[name][r : r + 1]
                assert torch.allclose(value, other, rtol=1e-4, atol=1e-6), (name, r)
