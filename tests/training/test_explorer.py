"""Exploratory actions by hand: policy, noise and candidates of each environment put together one by one."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from butfor.influence.gaussian import kl_to_mixture
from butfor.models.dynamics import GaussianDynamics, ModelConfig
from butfor.models.networks import make_generators
from butfor.spaces.actions import ActionLaw
from butfor.training.agents.policy import AgentConfig, Policy
from butfor.training.exploration import (
    ExploreConfig,
    Explorer,
    draw_noise,
    explore,
    noise_size,
    random_actions,
    stack_inputs,
)

OBS, GOAL, ACTION, K = 4, 2, 2, 6
LAW = ActionLaw((-1.0, 2.0), (3.0, 2.5))
LOW, HIGH = torch.tensor(LAW.low), torch.tensor(LAW.high)
EXPLORE = ExploreConfig(epsilon=0.6, noise=0.3, active=0.5, candidates=K)
STEPS = 7


def make_policy(replicas: int) -> Policy:
    policy = Policy(OBS + GOAL, ACTION, AgentConfig(layers=1, width=8), make_generators(range(replicas)))
    policy.normalizer.update(3 * torch.randn(replicas, 50, OBS + GOAL, generator=make_generators([1])[0]) + 1)
    return policy


def make_model(replicas: int) -> GaussianDynamics:
    model = GaussianDynamics(OBS, ACTION, 2, ModelConfig(layers=1, width=8), make_generators(range(10, 10 + replicas)))
    model.train()(2 * torch.randn(replicas, 50, OBS + ACTION, generator=make_generators([2])[0]))  # input statistics
    return model.eval()


def make_acting(policy: Policy, model: GaussianDynamics | None, part: slice, num_envs: int, **changes: Any) -> Explorer:
    config = dataclasses.replace(EXPLORE, **changes)
    return Explorer(policy, model, part, num_envs, LAW, config)


def observation(num_envs: int, time: int = 0) -> dict[str, NDArray[Any]]:
    """Another observation for each environment and time; achieved goals must not matter, so they are NaN."""
    generator = np.random.default_rng(time)
    return {
        "observation": generator.standard_normal((num_envs, OBS)),
        "achieved_goal": np.full((num_envs, GOAL), np.nan),
        "desired_goal": generator.standard_normal((num_envs, GOAL)),
    }


def some_of(obs: dict[str, NDArray[Any]], part: slice) -> dict[str, NDArray[Any]]:
    return {name: value[part] for name, value in obs.items()}


@torch.no_grad()
def by_hand(
    policy: Policy, model: GaussianDynamics | None, inputs: Tensor, noise: Tensor, replica: int
) -> tuple[Tensor, bool]:
    """The action of one environment [A] from inputs [D + G] and numbers [n], and whether it was drawn uniformly."""
    lot, normal, uniform = noise[0], noise[1:3], noise[3:5]
    if model is not None and lot < 0.3:
        candidates = LOW + (HIGH - LOW) * noise[5 : 5 + 2 * K].view(K, 2)
        tried = torch.cat([inputs[:OBS].expand(K, -1), LAW.encode(candidates)], 1)
        mean, variance = model(tried.expand(model.replicas, -1, -1))
        score = kl_to_mixture(mean[replica], variance[replica], form="mean_clip_product")
        return candidates[int(score.argmax())], False
    if lot < 0.6:
        return LOW + (HIGH - LOW) * uniform, True
    unit = policy(inputs.expand(len(policy.normalizer.mean), 1, -1))[replica, 0]
    action = (LOW + HIGH) / 2 + (HIGH - LOW) / 2 * (unit + 0.3 * normal)
    return torch.minimum(torch.maximum(action, LOW), HIGH), False


@pytest.mark.parametrize("active", [False, True])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_actions_are_policy_noise_and_candidates_put_together_by_hand(active: bool, num_envs: int) -> None:
    policy, model = make_policy(2), make_model(2) if active else None
    acting = make_acting(policy, model, slice(0, 2), num_envs)
    acting.begin(STEPS, make_generators([5, 6]))
    candidates = K if active else 0
    drawn = [draw_noise(STEPS, num_envs, LAW, candidates, g) for g in make_generators([5, 6])]
    assert drawn[0].shape == (STEPS, num_envs, noise_size(LAW, candidates))
    kinds: list[bool] = []
    for time in range(STEPS):
        obs = observation(2 * num_envs, time)
        action, sampled = acting(time, obs)
        assert action.shape == (2 * num_envs, ACTION)
        assert action.dtype == np.float32
        assert sampled.shape == (2 * num_envs,)
        assert sampled.dtype == np.bool_
        for env_name in range(2 * num_envs):
            replica = env_name // num_envs
            inputs = torch.cat(
                [torch.tensor(obs["observation"][env_name]), torch.tensor(obs["desired_goal"][env_name])]
            )
            expected, flag = by_hand(policy, model, inputs.float(), drawn[replica][time, env_name % num_envs], replica)
            np.testing.assert_allclose(action[env_name], expected, rtol=1e-4, atol=1e-5)
            assert sampled[env_name] == flag
            kinds.append(flag)
    assert 0 < sum(kinds) < len(kinds)


@pytest.mark.parametrize("active", [False, True])
@pytest.mark.parametrize("num_envs", [1, 2])
def test_two_groups_act_as_one_does(active: bool, num_envs: int) -> None:
    policy, model = make_policy(3), make_model(3) if active else None
    whole = make_acting(policy, model, slice(0, 3), num_envs)
    parts = [make_acting(policy, model, part, num_envs) for part in (slice(0, 2), slice(2, 3))]
    together, apart = make_generators([5, 6, 7]), make_generators([5, 6, 7])
    for _ in range(2):  # also the second episode
        whole.begin(STEPS, together)
        for part in parts:
            part.begin(STEPS, apart)
        for time in range(STEPS):
            obs = observation(3 * num_envs, time)
            action, sampled = whole(time, obs)
            groups = [
                part(time, some_of(obs, slice(part.part.start * num_envs, part.part.stop * num_envs))) for part in parts
            ]
            np.testing.assert_allclose(np.concatenate([group[0] for group in groups]), action, rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(np.concatenate([group[1] for group in groups]), sampled)


def test_candidates_are_scored_alike_whether_or_not_another_environment_needs_it() -> None:
    """Where no environment's lot says so, the model is not asked; that must not change anything."""
    policy, model = make_policy(2), make_model(2)
    acting = make_acting(policy, model, slice(0, 2), 2)
    acting.begin(STEPS, make_generators([5, 6]))
    for time in range(STEPS):
        noise = acting.noise[time]
        noise[..., 0] = 0.35 + 0.1 * time  # past the share of active actions
        obs = observation(4, time)
        inputs = torch.from_numpy(stack_inputs(obs)).view(2, 2, -1)
        always = acting._act(inputs, noise, True).flatten(0, 1).numpy()
        action, sampled = acting(time, obs)
        np.testing.assert_array_equal(action, always[:, :-1])
        np.testing.assert_array_equal(sampled, always[:, -1] > 0.5)


@pytest.mark.parametrize("part", [slice(0, 2), slice(1, 2)])
def test_policy_and_model_stay_as_they_are_until_refreshed(part: slice) -> None:
    policy, model = make_policy(2), make_model(2)
    replicas = part.stop - part.start

    def actions(acting: Explorer, active: float) -> NDArray[Any]:
        acting.config = dataclasses.replace(EXPLORE, epsilon=active, active=1.0)
        acting.begin(1, make_generators([5, 6]))
        return acting(0, observation(replicas * 40))[0].copy()

    acting = make_acting(policy, model, part, 40)
    before = [actions(acting, active) for active in (0.0, 1.0)]  # by the policy alone, by the model alone
    policy.load_state_dict({name: value * 1.5 for name, value in policy.state_dict().items()})
    model.load_state_dict({name: value * 1.5 for name, value in model.state_dict().items()})
    for active in (0, 1):
        np.testing.assert_array_equal(actions(acting, float(active)), before[active])
    acting.refresh()
    fresh = make_acting(policy, model, part, 40)
    for active in (0, 1):
        now = actions(acting, float(active))
        np.testing.assert_array_equal(now, actions(fresh, float(active)))
        assert not np.array_equal(now, before[active])


def test_what_compares_the_actions_decides() -> None:
    """By its predicted mean in one dimension alone, the chosen action is the candidate for which that is highest."""
    policy, model = make_policy(2), make_model(2)
    config = dataclasses.replace(EXPLORE, epsilon=1.0, active=1.0)
    acting = Explorer(policy, model, slice(0, 2), 3, LAW, config, lambda predicted: predicted[0][..., 1])
    acting.begin(1, make_generators([5, 6]))
    obs = observation(6)
    actions, _ = acting(0, obs)
    candidates = LOW + (HIGH - LOW) * acting.noise[0, ..., 5 : 5 + 2 * K].unflatten(-1, (K, 2))  # [R, W, K, A]
    states = torch.from_numpy(obs["observation"]).float().view(2, 3, OBS)
    mean, _ = model.predictor()(states, LAW.encode(candidates))
    best = mean[..., 1].argmax(-1)
    for replica in range(2):
        for env_name in range(3):
            expected = candidates[replica, env_name, best[replica, env_name]]
            np.testing.assert_allclose(actions[replica * 3 + env_name], expected, rtol=1e-6)


def test_acting_never_changes_what_is_trained() -> None:
    policy, model = make_policy(2), make_model(2)
    before = {name: value.clone() for name, value in (policy.state_dict() | model.state_dict()).items()}
    acting = make_acting(policy, model, slice(0, 2), 3)
    acting.begin(STEPS, make_generators([5, 6]))
    for time in range(STEPS):
        acting(time, observation(6, time))
    for name, value in (policy.state_dict() | model.state_dict()).items():
        assert torch.equal(value, before[name]), name
    assert all(parameter.requires_grad for parameter in [*policy.parameters(), *model.parameters()])


def test_a_model_in_training_mode_is_used_in_evaluation_mode() -> None:
    policy, model = make_policy(2), make_model(2)
    actions = []
    for training in (False, True):
        acting = make_acting(policy, model.train(training), slice(0, 2), 5, epsilon=1.0, active=1.0)
        acting.begin(1, make_generators([5, 6]))
        actions.append(acting(0, observation(10))[0])
    np.testing.assert_array_equal(actions[0], actions[1])
    assert model.training  # and left as it was


def test_random_actions_are_uniform_numbers_within_the_bounds_by_time_and_environment() -> None:
    table = random_actions(STEPS, 2, LAW, make_generators([5, 6, 7])).numpy()
    assert table.shape == (STEPS, 6, ACTION)
    assert table.dtype == np.float32
    drawn = [draw_noise(STEPS, 2, LAW, 0, g) for g in make_generators([5, 6, 7])]
    for time in range(STEPS):
        for env_name in range(6):
            uniform = drawn[env_name // 2][time, env_name % 2, 3:5].numpy()
            np.testing.assert_allclose(table[time, env_name], LOW.numpy() + (HIGH - LOW).numpy() * uniform, rtol=1e-6)
    assert len(np.unique(table)) == table.size


def test_a_policy_that_always_explores_takes_the_random_actions() -> None:
    acting = make_acting(make_policy(2), None, slice(0, 2), 2, epsilon=1.0)
    acting.begin(STEPS, make_generators([5, 6]))
    table = random_actions(STEPS, 2, LAW, make_generators([5, 6])).numpy()
    for time in range(STEPS):
        action, sampled = acting(time, observation(4, time))
        np.testing.assert_array_equal(action, table[time])
        assert sampled.all()


def test_the_policy_sees_observation_and_desired_goal_in_single_precision() -> None:
    obs = observation(3)
    inputs = stack_inputs(obs)
    assert inputs.dtype == np.float32
    np.testing.assert_array_equal(inputs[:, :OBS], obs["observation"].astype(np.float32))
    np.testing.assert_array_equal(inputs[:, OBS:], obs["desired_goal"].astype(np.float32))


def test_exploration_falls_in_proportion_to_success() -> None:
    """A factor of 0.25: epsilon 0.6 and noise 0.3 are whole without success, 0.625 of it at half, 0.25 at full success.

    A share of 4,000 actions has a standard error of at most 0.008.
    """
    policy, num_envs = make_policy(3), 4_000
    acting = make_acting(policy, None, slice(0, 3), num_envs, success_factor=0.25)
    acting.refresh(torch.tensor([0.0, 0.5, 1.0]))
    acting.begin(1, make_generators([7, 8, 9]))
    obs = observation(3 * num_envs)
    action, sampled = acting(0, obs)
    inputs = torch.from_numpy(stack_inputs(obs)).view(3, num_envs, -1)
    with torch.no_grad():
        own = (LOW + HIGH) / 2 + (HIGH - LOW) / 2 * policy(inputs)
    moved = (torch.from_numpy(action).view(3, num_envs, ACTION) - own) / ((HIGH - LOW) / 2)
    for replica, amount in enumerate((1.0, 0.625, 0.25)):
        uniform = torch.from_numpy(sampled).view(3, num_envs)[replica]
        assert float(uniform.float().mean()) == pytest.approx(0.6 * amount, abs=0.04)
        central = (own[replica].sub((LOW + HIGH) / 2).div((HIGH - LOW) / 2).abs() < 0.4) & ~uniform[:, None]
        noise = moved[replica][central]  # hardly ever clipped
        assert len(noise) > 300
        assert float(noise.abs().median()) == pytest.approx(0.6745 * 0.3 * amount, rel=0.2)


def test_without_a_factor_success_changes_nothing() -> None:
    acting = make_acting(make_policy(2), None, slice(0, 2), 3)
    acting.refresh(torch.tensor([0.0, 1.0]))
    assert (acting.amount == 1).all()


def test_in_practice_the_policy_acts_nearly_alone() -> None:
    """Half of the environments explore a tenth as much; shares of about 10,000 actions, standard error below 0.005."""
    policy, num_envs = make_policy(1), 20_000
    acting = make_acting(policy, None, slice(0, 1), num_envs, practice=0.5)
    acting.begin(1, make_generators([7]))
    practises = acting.practises[0, :, 0].numpy()
    assert practises.mean() == pytest.approx(0.5, abs=0.02)
    sampled = acting(0, observation(num_envs))[1]
    epsilon = acting.config.epsilon
    assert sampled[~practises].mean() == pytest.approx(epsilon, abs=0.025)
    assert sampled[practises].mean() == pytest.approx(epsilon / 10, abs=0.025)
    before = practises.copy()
    acting.begin(1, make_generators([8]))  # another episode
    assert 0.4 < (before == acting.practises[0, :, 0].numpy()).mean() < 0.6


def test_the_relay_does_not_act_in_practice() -> None:
    law = ActionLaw((-1.0,), (1.0,))
    practises = torch.tensor([[[True], [False]]])
    noise = draw_noise(1, 2, law, 4, make_generators([0])[0], relay=True)
    noise[..., 0] = 0.99  # not exploratory
    noise[..., 1] = 0.0  # no noise
    policy, other = torch.full((1, 2, 1), -0.5), torch.full((1, 2, 1), 0.5)
    turn = lambda influence, lot: torch.ones_like(influence, dtype=torch.bool)  # noqa: E731
    score = lambda candidates: candidates[..., 0]  # noqa: E731
    config = ExploreConfig(candidates=4)
    action, _ = explore(
        policy, noise, law.bounds(torch.device("cpu")), config, score, (other, turn), practises=practises
    )
    assert action.flatten().tolist() == [-0.5, 0.5]
