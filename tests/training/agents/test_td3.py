"""TD3: what it adds to DDPG, by value."""

import dataclasses

import pytest
import torch
from torch import Tensor

from butfor.models.networks import make_generators
from butfor.training.agents.policy import AgentConfig
from butfor.training.agents.td3 import TD3, TD3BC, TD3BCConfig, TD3Config
from butfor.training.replay import Batch

INPUTS, ACTIONS, ROWS = 5, 2, 40
SMALL = AgentConfig(layers=1, width=8, target_range=None)


def make_batch(noise: float | None) -> Batch:
    """Random transitions of one replica, with this uniform number for every action."""
    generator = torch.Generator().manual_seed(0)
    inputs, after = torch.randn(2, 1, ROWS, INPUTS, generator=generator)
    place = torch.zeros(1, ROWS, dtype=torch.long)
    return Batch(
        inputs=inputs, action=torch.rand(1, ROWS, ACTIONS, generator=generator) * 2 - 1, next_inputs=after,
        reward=-torch.ones(1, ROWS), bootstrap=torch.ones(1, ROWS), score=torch.zeros(1, ROWS), episode=place,
        time=place, noise=None if noise is None else torch.full((1, ROWS, ACTIONS), noise),
    )  # fmt: skip


def make_agent(**changes: float) -> TD3:
    settings = dataclasses.replace(TD3Config(), **changes)  # type: ignore[arg-type]
    return TD3(INPUTS, ACTIONS, SMALL, make_generators([3]), td3=settings)


def networks(agent: TD3, name: str) -> list[Tensor]:
    return [value.clone() for key, value in agent.state_dict().items() if key.startswith(name)]


@pytest.mark.parametrize(
    ("uniform", "deviations"), [(0.5, 0.0), (0.841344746, 1.0), (0.158655254, -1.0), (0.977249868, 2.0)]
)
def test_the_target_action_is_smoothed_by_normal_noise(uniform: float, deviations: float) -> None:
    """A uniform number u stands for the u-quantile of the normal distribution."""
    agent = make_agent(target_noise=0.1, noise_clip=10.0)
    batch = make_batch(uniform)
    then = agent.policy.normalizer(batch.next_inputs)
    plain = torch.tanh(agent.target_actor(then))
    expected = (plain + 0.1 * deviations).clamp(-1, 1)
    torch.testing.assert_close(agent._next_action(then, batch), expected, atol=1e-5, rtol=0)


def test_the_noise_is_clipped_and_actions_stay_in_range() -> None:
    agent = make_agent(target_noise=1.0, noise_clip=0.3)
    batch = make_batch(0.9999)
    then = agent.policy.normalizer(batch.next_inputs)
    plain = torch.tanh(agent.target_actor(then))
    torch.testing.assert_close(agent._next_action(then, batch), (plain + 0.3).clamp(-1, 1))


def test_actor_and_targets_are_updated_every_second_time() -> None:
    agent = make_agent()
    names = ("policy.actor", "target_actor", "target_critics")
    for index in range(4):
        before = {name: networks(agent, name) for name in (*names, "critics")}
        agent.update(make_batch(0.7), index)
        for name in names:
            same = all(torch.equal(a, b) for a, b in zip(before[name], networks(agent, name), strict=True))
            assert same == (index % 2 == 1), (name, index)
        assert not all(torch.equal(a, b) for a, b in zip(before["critics"], networks(agent, "critics"), strict=True))


def test_the_smaller_of_two_critics_is_the_target() -> None:
    agent = make_agent(target_noise=0.0)
    with torch.no_grad():
        for critics in (agent.critics, agent.target_critics):
            for critic, value in zip(critics, (-6.0, -9.0), strict=True):
                for parameter in critic.parameters():
                    parameter.zero_()
                critic.layers[-1].bias.fill_(value)  # type: ignore[index, union-attr]
    _, error = agent.update(make_batch(None), 1)
    target = -1 + SMALL.discount * -9.0
    torch.testing.assert_close(error, torch.full((1, ROWS), -6.0 - target))


def test_it_asks_for_one_number_per_action_only_where_noise_is_added() -> None:
    assert make_agent().noise_size == ACTIONS
    assert make_agent(target_noise=0.0).noise_size == 0


@pytest.mark.parametrize("name", ["policy_delay", "target_noise", "noise_clip"])
def test_impossible_settings_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}.* -1"):
        TD3Config(**{name: -1})


def make_cloning(value_weight: float) -> TD3BC:
    config = dataclasses.replace(SMALL, action_penalty=0.0, learning_rate=0.02)
    return TD3BC(INPUTS, ACTIONS, config, make_generators([3]), td3=TD3BCConfig(value_weight=value_weight))


@pytest.mark.parametrize("swapped", [False, True])
def test_the_actor_of_td3bc_weighs_value_against_distance(swapped: bool) -> None:
    """Loss and gradients against the formula and autograd."""
    agent = make_cloning(2.5)
    batch = make_batch(0.5)
    cloned = torch.arange(ROWS)[None] >= (ROWS // 2 if swapped else 0)
    if swapped:
        batch.swapped = ~cloned  # nobody took these actions there
    now = agent.policy.normalizer(batch.inputs)
    action = torch.tanh(agent.policy.actor(now))
    value = agent.critics[0](torch.cat([now, action], -1))[..., 0]
    distance = (action - batch.action).square().mean(-1) * cloned
    expected = distance.mean() - 2.5 * value.mean() / value.detach().abs().mean()
    gradients = torch.autograd.grad(expected, list(agent.policy.actor.parameters()))
    with torch.no_grad():
        loss, mean = agent._update_actor(now, batch, is_due=True)
    torch.testing.assert_close(loss[0], expected.detach())
    torch.testing.assert_close(mean[0], value.mean().detach())
    for parameter, gradient in zip(agent.policy.actor.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_with_little_weight_on_the_value_recorded_actions_are_cloned() -> None:
    agent = make_cloning(1e-6)
    batch = make_batch(0.5)
    batch.action = torch.full_like(batch.action, 0.4)
    for index in range(200):
        agent.update(batch, index)
    torch.testing.assert_close(agent.policy(batch.inputs), batch.action, atol=0.05, rtol=0)


def test_a_value_weight_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="value_weight"):
        TD3BCConfig(value_weight=0)
