"""Exploration by sweeping its random numbers: which actions are tried how often, and what influence adds to rewards."""

from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from butfor.models.networks import make_generators
from butfor.spaces.actions import ActionLaw
from butfor.training.bonus import BonusConfig, add_bonus
from butfor.training.exploration import (
    ExploreConfig,
    choose,
    draw_noise,
    explore,
    noise_size,
)

LAW = ActionLaw((-1.0, 2.0), (3.0, 2.5))
BOUNDS = LOW, HIGH = torch.tensor(LAW.low), torch.tensor(LAW.high)
K = 5


def midpoints(count: int) -> Tensor:
    """The middles of `count` equal parts of [0, 1]."""
    return (torch.arange(count) + 0.5) / count


def random_noise(num_envs: int, candidates: int = K, replicas: int = 2) -> Tensor:
    """[R, W, n], the lot of whose first number is swept over [0, 1]."""
    generators = make_generators(range(replicas))
    noise = torch.stack([draw_noise(1, num_envs, LAW, candidates, g)[0] for g in generators])
    noise[..., 0] = midpoints(num_envs)
    return noise


def first_number(candidates: Tensor) -> Tensor:
    """A score that is simply the first number of an action."""
    return candidates[..., 0]


# --- random numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize(("candidates", "size"), [(0, 5), (K, 5 + 3 * K), (32, 5 + 96)])
def test_an_action_takes_one_lot_noise_a_uniform_action_and_the_candidates(candidates: int, size: int) -> None:
    assert noise_size(LAW, candidates) == size  # 1 + A + A + K (A + 1)
    noise = draw_noise(3, 4, LAW, candidates, make_generators([0])[0])
    assert noise.shape == (3, 4, size)


def test_the_noise_is_normal_and_all_else_uniform() -> None:
    noise = draw_noise(50, 40, LAW, 3, make_generators([0])[0]).flatten(0, 1).numpy()
    for column in range(noise.shape[1]):  # each p-value of a true law falls below 1e-4 once in 10,000
        law = "norm" if column in (1, 2) else "uniform"
        assert stats.kstest(noise[:, column], law).pvalue > 1e-4, column


def test_the_same_stream_gives_the_same_numbers_and_another_others() -> None:
    first, again, other = (draw_noise(3, 2, LAW, K, g) for g in make_generators([5, 5, 6]))
    assert torch.equal(first, again)
    assert not (first == other).any()


# --- which action ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "active"), [(0.3, 1.0), (0.3, 0.5), (0.5, 0.0), (0.0, 1.0), (1.0, 0.25)])
def test_actions_are_active_uniform_or_the_policys_in_their_shares(epsilon: float, active: float) -> None:
    num_envs = 200
    noise = random_noise(num_envs)
    policy = LOW + (HIGH - LOW) * torch.rand(2, num_envs, 2, generator=make_generators([9])[0])
    config = ExploreConfig(epsilon=epsilon, noise=0.2, active=active, candidates=K)
    seen: list[Tensor] = []

    def score(candidates: Tensor) -> Tensor:
        seen.append(candidates)
        return first_number(candidates)

    action, sampled = explore(policy, noise, BOUNDS, config, score)
    assert action.shape == (2, num_envs, 2)
    assert sampled.shape == (2, num_envs)
    assert sampled.dtype == torch.bool
    (candidates,) = seen
    assert candidates.shape == (2, num_envs, K, 2)
    counts = {"active": 0, "uniform": 0, "policy": 0}
    for replica in range(2):
        for env_name in range(num_envs):
            own = noise[replica, env_name]
            unit = own[5 : 5 + 2 * K].view(K, 2)
            torch.testing.assert_close(candidates[replica, env_name], LOW + (HIGH - LOW) * unit)
            if own[0] < epsilon * active:
                kind, expected = "active", candidates[replica, env_name, candidates[replica, env_name, :, 0].argmax()]
            elif own[0] < epsilon:
                kind, expected = "uniform", LOW + (HIGH - LOW) * own[3:5]
            else:  # noise in units of half the range: 2 and 0.25
                noisy = policy[replica, env_name] + 0.2 * torch.tensor([2.0, 0.25]) * own[1:3]
                kind, expected = "policy", torch.minimum(torch.maximum(noisy, LOW), HIGH)
            counts[kind] += 1
            torch.testing.assert_close(action[replica, env_name], expected)
            assert sampled[replica, env_name] == (kind == "uniform")
    shares = {"active": epsilon * active, "uniform": epsilon * (1 - active), "policy": 1 - epsilon}
    assert counts == {kind: round(2 * num_envs * share) for kind, share in shares.items()}


def test_below_the_threshold_an_exploratory_action_is_uniform() -> None:
    noise, policy = random_noise(40), torch.zeros(2, 40, 2)
    config = ExploreConfig(epsilon=1.0, candidates=K, threshold=0.5)

    def score(candidates: Tensor) -> Tensor:
        """Mean influence 0.25 in the first 20 environments, 1 in the others."""
        return torch.linspace(0, 2, K).expand(2, 40, K) * torch.tensor([0.25] * 20 + [1.0] * 20)[:, None]

    action, sampled = explore(policy, noise, BOUNDS, config, score)
    assert sampled[:, :20].all()
    assert not sampled[:, 20:].any()
    torch.testing.assert_close(action[:, :20], LOW + (HIGH - LOW) * noise[:, :20, 3:5])
    last = noise[:, 20:, 5 + 2 * (K - 1) : 5 + 2 * K]  # the last candidate has the highest score
    torch.testing.assert_close(action[:, 20:], LOW + (HIGH - LOW) * last)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_without_a_score_every_exploratory_action_is_uniform(epsilon: float) -> None:
    """`active` only counts where influence is used for exploration."""
    noise = random_noise(100, 0)
    action, sampled = explore(torch.zeros(2, 100, 2), noise, BOUNDS, ExploreConfig(epsilon=epsilon, active=1.0), None)
    assert sampled.sum() == round(200 * epsilon)
    torch.testing.assert_close(action[sampled], (LOW + (HIGH - LOW) * noise[..., 3:5])[sampled])


def test_the_choice_of_one_environment_does_not_depend_on_the_others() -> None:
    noise, policy = random_noise(40), torch.full((2, 40, 2), 2.2)
    config = ExploreConfig(epsilon=0.6, active=0.5, candidates=K)
    action, sampled = explore(policy, noise, BOUNDS, config, first_number)
    for replica in range(2):
        for env_name in range(40):
            part = (slice(replica, replica + 1), slice(env_name, env_name + 1))
            own, flag = explore(policy[part], noise[part], BOUNDS, config, first_number)
            assert torch.equal(own[0, 0], action[replica, env_name])
            assert flag[0, 0] == sampled[replica, env_name]


def test_without_noise_the_policys_action_stays_as_it_is() -> None:
    policy = LOW + (HIGH - LOW) * torch.rand(2, 50, 2, generator=make_generators([1])[0])
    action, sampled = explore(policy, random_noise(50, 0), BOUNDS, ExploreConfig(epsilon=0, noise=0), None)
    assert torch.equal(action, policy)
    assert not sampled.any()


def test_noisy_actions_are_clipped_to_the_bounds_of_each_dimension() -> None:
    policy = torch.stack([LOW, HIGH]).expand(2, -1, -1)
    noise = random_noise(2, 0)
    noise[:, 0, 1:3], noise[:, 1, 1:3] = -3.0, 3.0
    action, _ = explore(policy, noise, BOUNDS, ExploreConfig(epsilon=0), None)
    assert torch.equal(action, policy)


def test_the_scale_of_the_noise_is_that_of_half_the_range() -> None:
    law = ActionLaw((-100.0, -0.1), (300.0, 0.1))
    noise = draw_noise(1, 20_000, law, 0, make_generators([2])[0])
    action, _ = explore(
        torch.tensor([100.0, 0.0]).expand(1, 20_000, 2), noise, law.bounds(noise.device), ExploreConfig(epsilon=0), None
    )
    # 0.2 x 200 and 0.2 x 0.1; five standard errors of a standard deviation, std / sqrt(2 n)
    expected = torch.tensor([40.0, 0.02])
    assert ((action[0].std(0) - expected).abs() < 5 * expected / (2 * 20_000) ** 0.5).all()


@pytest.mark.parametrize("seed", range(3))
def test_uniform_actions_never_leave_the_bounds_by_rounding(seed: int) -> None:
    generator = make_generators([seed])[0]
    edges = (torch.rand(2, 300, generator=generator) * 10 - 5).sort(0).values
    law = ActionLaw(tuple(edges[0].tolist()), tuple(edges[1].tolist()))
    noise = torch.full((1, 2, noise_size(law, 0)), 1 - 2**-24)
    noise[..., 0], noise[:, 1] = 0, 0
    action, _ = explore(torch.zeros(1, 2, 300), noise, law.bounds(noise.device), ExploreConfig(epsilon=1.0), None)
    assert (action >= edges[0]).all()
    assert (action <= edges[1]).all()


# --- which candidate ------------------------------------------------------------------------------


def chosen_index(score: list[float], noise: Tensor) -> Tensor:
    """Which of the candidates each row of noise [N, K] chooses: [N]."""
    count = len(noise)
    candidates = torch.arange(len(score), dtype=torch.float32)[:, None].expand(1, count, -1, 1)
    return choose(torch.tensor(score).expand(1, count, -1), candidates, noise[None])[0, :, 0].long()


def test_the_best_candidate_is_taken_whatever_the_noise() -> None:
    noise = torch.rand(500, 4, generator=make_generators([0])[0])
    noise[:, 2] = 0.0
    assert (chosen_index([0.1, 0.2, 0.2000001, -5.0], noise) == 2).all()


def test_the_best_of_each_environment_is_its_own() -> None:
    score = torch.rand(2, 3, K, generator=make_generators([0])[0])
    candidates = torch.rand(2, 3, K, 2, generator=make_generators([1])[0])
    chosen = choose(score, candidates, torch.rand(2, 3, K, generator=make_generators([2])[0]))
    for replica in range(2):
        for env_name in range(3):
            assert torch.equal(
                chosen[replica, env_name], candidates[replica, env_name, score[replica, env_name].argmax()]
            )


def test_ties_are_broken_at_random() -> None:
    """Where no action matters all scores are 0, and the choice is uniform."""
    count = 30_000
    noise = torch.rand(count, 4, generator=make_generators([0])[0])
    for score, tied in (([0.0, 0.0, 0.0, 0.0], [0, 1, 2, 3]), ([1.0, 3.0, 3.0, 0.0], [1, 2])):
        drawn = torch.bincount(chosen_index(score, noise), minlength=4)
        assert [index for index in range(4) if drawn[index]] == tied
        assert stats.chisquare(drawn[tied].numpy()).pvalue > 1e-4


@pytest.mark.parametrize("number", [0.0, 1 - 2**-24])
def test_extreme_random_numbers_choose_a_candidate_too(number: float) -> None:
    noise = torch.full((1, 4), number)
    assert chosen_index([0.0, 1.0, 0.0, 0.5], noise).tolist() == [1]


# --- the bonus ------------------------------------------------------------------------------------

REWARDS = torch.tensor([-1.0, -1.0, -1.0, -1.0, 0.0, 0.0, -3.0])
SCORES = torch.tensor([0.0, 0.5, 1.9, 7.0, 0.0, 1.0, -2.0])


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # r + 0.2 min(max(score, 0), 2), at most 0
        (BonusConfig(), [-1.0, -0.9, -0.62, -0.6, 0.0, 0.0, -3.0]),
        (BonusConfig(ceiling=None), [-1.0, -0.9, -0.62, -0.6, 0.0, 0.2, -3.0]),
        (BonusConfig(ceiling=-0.7), [-1.0, -0.9, -0.7, -0.7, -0.7, -0.7, -3.0]),
        (BonusConfig(weight=1.0, cap=100.0), [-1.0, -0.5, 0.0, 0.0, 0.0, 0.0, -3.0]),
        (BonusConfig(weight=1.0, cap=0.25), [-1.0, -0.75, -0.75, -0.75, 0.0, 0.0, -3.0]),
        (BonusConfig(weight=0.0), [-1.0, -1.0, -1.0, -1.0, 0.0, 0.0, -3.0]),
    ],
)
def test_the_bonus_is_its_formula(config: BonusConfig, expected: list[float]) -> None:
    torch.testing.assert_close(add_bonus(REWARDS, SCORES, config), torch.tensor(expected))


def test_the_bonus_leaves_its_arguments_as_they_were() -> None:
    reward, score = REWARDS.clone(), SCORES.clone()
    add_bonus(reward, score, BonusConfig())
    assert torch.equal(reward, REWARDS)
    assert torch.equal(score, SCORES)


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": 1.5}, r"epsilon.*0.*1.*1\.5"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"active": -0.1}, "active"),
        ({"success_factor": 1.5}, r"success_factor.*1\.5"),
        ({"noise": -1.0}, r"noise.*\-1\.0"),
        ({"noise": float("nan")}, "noise"),
        ({"candidates": 1}, "candidates.*2.*1"),
    ],
)
def test_impossible_settings_of_exploration_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExploreConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weight": -0.1}, r"weight.*0.*\-0\.1"),
        ({"weight": float("nan")}, "weight"),
        ({"cap": 0.0}, "cap.*0"),
    ],
)
def test_impossible_settings_of_the_bonus_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BonusConfig(**settings)
