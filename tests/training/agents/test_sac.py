"""SAC: densities, targets, temperature and drawn actions by formula; runs are resumed and loaded."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.small_training import changed, metrics, models, small
from torch import Tensor

from butfor.models.networks import make_generators
from butfor.training.agents import AgentConfig, load_policy
from butfor.training.agents.ddpg import DDPG
from butfor.training.agents.sac import SAC, SACConfig, log_density
from butfor.training.replay import Batch
from butfor.training.run import resume, train

INPUTS, ACTIONS, ROWS, REPLICAS = 5, 2, 40, 2
SMALL = AgentConfig(layers=1, width=8, target_range=None, action_penalty=0.0)
QUANTILES = torch.tensor([0.5, 0.841344746])  # of 0 and 1 standard deviation


def make_batch(noise: Tensor | None) -> Batch:
    """Random transitions, with these uniform numbers for every one."""
    generator = torch.Generator().manual_seed(0)
    inputs, after = torch.randn(2, REPLICAS, ROWS, INPUTS, generator=generator)
    place = torch.zeros(REPLICAS, ROWS, dtype=torch.long)
    ends = (torch.rand(REPLICAS, ROWS, generator=generator) > 0.2).float()
    return Batch(
        inputs=inputs, action=torch.rand(REPLICAS, ROWS, ACTIONS, generator=generator) * 2 - 1, next_inputs=after,
        reward=-torch.ones(REPLICAS, ROWS), bootstrap=ends, score=torch.zeros(REPLICAS, ROWS), episode=place,
        time=place, noise=None if noise is None else noise.expand(REPLICAS, ROWS, -1),
    )  # fmt: skip


def make_agent(agent: dict[str, Any] | None = None, **changes: Any) -> SAC:
    config = dataclasses.replace(SMALL, **agent or {})
    return SAC(INPUTS, ACTIONS, config, make_generators([3, 4]), sac=dataclasses.replace(SACConfig(), **changes))


def set_critics(agent: DDPG, *values: float) -> None:
    """Let each critic, and its target, give one value for everything."""
    with torch.no_grad():
        for critics in (agent.critics, agent.target_critics):
            for critic, value in zip(critics, values, strict=True):
                for parameter in critic.parameters():
                    parameter.zero_()
                critic.layers[-1].bias.fill_(value)  # type: ignore[index, union-attr]


def test_the_density_is_that_of_a_squashed_gaussian() -> None:
    """Against torch.distributions in float64."""
    generator = torch.Generator().manual_seed(1)
    mean, logarithm, normal = torch.randn(3, 200, ACTIONS, generator=generator, dtype=torch.float64)
    squashed = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(mean, logarithm.exp()), [torch.distributions.TanhTransform()]
    )
    before = mean + logarithm.exp() * normal
    inner = (before.abs() < 8).all(-1)  # beyond, torch's inverse of tanh loses digits
    expected = squashed.log_prob(torch.tanh(before)).sum(-1)
    assert inner.sum() > 150
    torch.testing.assert_close(log_density(before, normal, logarithm)[inner], expected[inner], rtol=1e-6, atol=1e-6)
    far = log_density(torch.tensor([[30.0]]), torch.tensor([[0.0]]), torch.tensor([[0.0]]))
    assert float(far) == pytest.approx(-0.5 * math.log(2 * math.pi) - 2 * (math.log(2) - 30), rel=1e-6)


def test_an_action_is_drawn_around_the_mean_that_is_evaluated() -> None:
    policy = make_agent().policy
    inputs = make_batch(None).inputs
    seen = policy.normalizer(inputs)
    mean, deviation = policy.actor(seen), policy.deviation(seen).clamp(-5, 2).exp()
    normal = torch.full((REPLICAS, ROWS, ACTIONS), -1.5)
    torch.testing.assert_close(policy.draw(inputs, normal), torch.tanh(mean - 1.5 * deviation))
    torch.testing.assert_close(policy(inputs), torch.tanh(mean))


@pytest.mark.parametrize("soft", [True, False])
def test_the_target_is_the_smaller_value_and_the_entropy(soft: bool) -> None:
    """r + discount x bootstrap x (min(-6, -9) - temperature x log density), the error of the first critic."""
    agent = make_agent(temperature=0.3, soft_targets=soft)
    set_critics(agent, -6.0, -9.0)
    batch = make_batch(torch.cat([QUANTILES, QUANTILES]))
    agent.policy.normalizer.update(batch.inputs)  # as the update does
    then = agent.policy.normalizer(batch.next_inputs)
    logarithm = agent.policy.deviation(then).clamp(-5, 2)
    normal = torch.tensor([0.0, 1.0]).expand(REPLICAS, ROWS, -1)
    density = log_density(agent.policy.actor(then) + logarithm.exp() * normal, normal, logarithm)
    entropy = 0.3 * density if soft else torch.zeros(())
    target = -1 + SMALL.discount * batch.bootstrap * (-9 - entropy)
    fresh = make_agent(temperature=0.3, soft_targets=soft)
    set_critics(fresh, -6.0, -9.0)
    _, error = fresh.update(batch, 0)
    torch.testing.assert_close(error, (-6 - target).detach(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("wanted", "change"), [(50.0, 1), (-50.0, -1)])
def test_the_temperature_rises_until_the_entropy_is_as_wanted(wanted: float, change: int) -> None:
    """Adam's first step is one learning rate in the direction of the gradient."""
    agent = make_agent(entropy=wanted, temperature=0.2)
    agent.update(make_batch(torch.cat([QUANTILES, QUANTILES])), 0)
    expected = torch.full((REPLICAS,), math.log(0.2) + change * SMALL.learning_rate)
    torch.testing.assert_close(agent.temperature["logarithm"].detach(), expected)
    fixed = make_agent(entropy=wanted, temperature=0.2, learn_temperature=False)
    fixed.update(make_batch(torch.cat([QUANTILES, QUANTILES])), 0)
    torch.testing.assert_close(fixed.temperature["logarithm"].detach(), torch.full((REPLICAS,), math.log(0.2)))


def test_the_wanted_entropy_is_minus_the_number_of_actions_unless_given() -> None:
    assert make_agent().entropy == -ACTIONS
    assert make_agent(entropy=0.5).entropy == 0.5


def test_with_worthless_actions_the_policy_learns_to_be_random() -> None:
    """Where all actions have the same value, entropy is all that counts: it rises to that of uniform actions."""
    agent = make_agent({"learning_rate": 0.02}, learn_temperature=False, temperature=1.0)
    generator = torch.Generator().manual_seed(5)

    def entropy() -> Tensor:
        seen = agent.policy.normalizer(make_batch(None).inputs)
        normal = torch.randn(REPLICAS, ROWS, ACTIONS, generator=torch.Generator().manual_seed(6))
        return -agent.policy.draw_normalized(seen, normal)[1].mean(-1).detach()

    with torch.no_grad():
        agent.policy.deviation.layers[-1].bias.fill_(-2.0)  # type: ignore[operator]
    before = entropy()
    for index in range(60):
        set_critics(agent, -3.0, -3.0)
        agent.update(make_batch(torch.rand(REPLICAS, ROWS, 2 * ACTIONS, generator=generator)), index)
    most = ACTIONS * math.log(2)  # of uniform actions in [-1, 1]
    assert (before < 0).all()
    assert (entropy() > 0.8 * most).all()
    assert (entropy() < most + 0.1).all()


def test_a_run_is_resumed_to_the_bit_and_its_policy_loaded(tmp_path: Path) -> None:
    agent = {"critics": 3, "critics_in_target": 2}
    config = small(seeds=2, algorithm="sac", use=("bonus", "active"), agent=agent, explore={"success_factor": 0.5})
    whole = train(config, tmp_path / "whole")
    broken = train(changed(config, episodes=7), tmp_path / "broken")
    assert models(resume(broken, episodes=config.episodes)) == models(whole)
    assert metrics(broken)[-1] == metrics(whole)[-1]
    obs = {"observation": np.zeros(4), "desired_goal": np.array([0.5])}
    policy = load_policy(whole)
    with torch.no_grad():
        mean = policy.policy(torch.tensor([[[0, 0, 0, 0, 0.5]]]))
    np.testing.assert_allclose(policy(obs), mean[0, 0], rtol=1e-5)


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match=r"temperature.* 0\.0"):
        SACConfig(temperature=0.0)
    for drawn in (0, 3):
        with pytest.raises(ValueError, match=f"critics_in_target.* {drawn}"):
            AgentConfig(critics=2, critics_in_target=drawn)


@pytest.mark.parametrize(("lots", "least"), [((0.1, 0.2, 0.9), -5.0), ((0.9, 0.3, 0.1), -7.0), ((0.2, 0.8, 0.1), -7.0)])
def test_the_target_is_the_smallest_of_the_critics_that_the_lots_choose(lots: tuple[float, ...], least: float) -> None:
    """Two of three critics with the values -3, -5 and -7: those with the smallest lots."""
    config = dataclasses.replace(SMALL, critics=3, critics_in_target=2)
    agent = DDPG(INPUTS, ACTIONS, config, make_generators([3, 4]))
    assert agent.noise_size == 3
    set_critics(agent, -3.0, -5.0, -7.0)
    batch = make_batch(torch.tensor(lots))
    statistics, error = agent.update(batch, 0)
    torch.testing.assert_close(error, -3 - (-1 + SMALL.discount * batch.bootstrap * least))
    assert not torch.isnan(statistics).any()
