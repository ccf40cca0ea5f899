"""DDPG against a plain implementation for one agent, written here with torch.nn and torch.optim."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.kernels import DEVICE, needs_triton
from torch import Tensor, nn

from butfor.models.networks import make_generators
from butfor.models.passes import AutogradPass, DirectPass, KernelPass, Pass
from butfor.runs.files import load_tensors, save_tensors
from butfor.spaces.actions import ActionLaw
from butfor.training.agents import ddpg
from butfor.training.agents.ddpg import DDPG
from butfor.training.agents.policy import AgentConfig, Normalizer, load_policy, save_agent
from butfor.training.agents.sac import SAC, SACConfig
from butfor.training.agents.td3 import TD3, TD3BC, TD3BCConfig, TD3Config
from butfor.training.replay import Batch

OBS, GOAL, ACTION, ROWS = 4, 2, 3, 24
INPUTS = OBS + GOAL
SMALL = AgentConfig(layers=2, width=16, batch_size=ROWS)
LAW = ActionLaw((-1.0, 2.0, -0.5), (3.0, 2.5, 0.5))


def make_batch(seeds: list[int], kind: torch.dtype = torch.float64, weighted: bool = False) -> Batch:
    """Transitions with inputs of unlike scales; some end an episode. Each seed has its own."""
    parts: dict[str, list[Tensor]] = {}
    for generator in make_generators(seeds):
        scale, shift = torch.tensor([1.0, 30.0, 1e-3, 0.05, 2.0, 1.0]), torch.tensor([0.0, -7.0, 3.0, 1.3, 2.0, 0.0])
        own = {
            "inputs": torch.randn(ROWS, INPUTS, generator=generator, dtype=torch.float64) * scale + shift,
            "next_inputs": torch.randn(ROWS, INPUTS, generator=generator, dtype=torch.float64) * scale + shift,
            "action": torch.rand(ROWS, ACTION, generator=generator, dtype=torch.float64) * 2 - 1,
            "reward": -torch.rand(ROWS, generator=generator, dtype=torch.float64).round(),
            "bootstrap": (torch.rand(ROWS, generator=generator, dtype=torch.float64) > 0.2).double(),
            "weight": torch.rand(ROWS, generator=generator, dtype=torch.float64),
        }
        for name, value in own.items():
            parts.setdefault(name, []).append(value)
    stacked = {name: torch.stack(values).to(kind) for name, values in parts.items()}
    if not weighted:
        del stacked["weight"]
    place = torch.zeros(len(seeds), ROWS, dtype=torch.long)
    return Batch(**stacked, score=torch.zeros(len(seeds), ROWS), episode=place, time=place)


def make_agent(seeds: list[int], twin_critics: bool = False, **changes: Any) -> DDPG:
    """DDPG, or with two critics TD3 without its other two parts."""
    config = dataclasses.replace(SMALL, **changes)
    if twin_critics:
        return TD3(INPUTS, ACTION, config, make_generators(seeds), td3=TD3Config(policy_delay=1, target_noise=0.0))
    return DDPG(INPUTS, ACTION, config, make_generators(seeds))


# --- a plain implementation -----------------------------------------------------------------------


def plain_network(module: Any, replica: int) -> nn.Sequential:
    """One replica of our network as torch's own layers."""
    layers: list[nn.Module] = []
    for index, layer in enumerate(module.layers):
        inputs, outputs = layer.weight.shape[1:]
        own = nn.Linear(inputs, outputs, dtype=torch.float64)
        own.weight.data, own.bias.data = layer.weight.data[replica].T.clone(), layer.bias.data[replica, 0].clone()
        layers.append(own)
        if index < len(module.layers) - 1:
            if len(module.norms):
                norm = nn.LayerNorm(outputs, dtype=torch.float64)
                norm.weight.data = module.norms[index].gain.data[replica, 0].clone()
                norm.bias.data = module.norms[index].offset.data[replica, 0].clone()
                layers.append(norm)
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class PlainDDPG:
    """One agent, as a textbook has it."""

    def __init__(self, agent: DDPG, replica: int) -> None:
        self.config = agent.config
        self.actor, self.old_actor = (plain_network(net, replica) for net in (agent.policy.actor, agent.target_actor))
        self.critics = [plain_network(net, replica) for net in agent.critics]
        self.old_critics = [plain_network(net, replica) for net in agent.target_critics]
        parameters = [parameter for critic in self.critics for parameter in critic.parameters()]
        self.critic_optimizer = torch.optim.Adam(parameters, lr=self.config.learning_rate)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=self.config.learning_rate)
        self.seen: list[Tensor] = []

    def normalize(self, x: Tensor) -> Tensor:
        """By mean and deviation of all that was seen."""
        seen = torch.cat(self.seen)
        deviation = seen.std(0, correction=0).clamp(min=0.01)
        return ((x - seen.mean(0)) / deviation).clamp(-self.config.observation_clip, self.config.observation_clip)

    def update(self, batch: Batch, replica: int) -> tuple[list[float], Tensor]:
        config = self.config
        self.seen.append(batch.inputs[replica])
        now, then = self.normalize(batch.inputs[replica]), self.normalize(batch.next_inputs[replica])
        with torch.no_grad():
            ahead = torch.cat([then, self.old_actor(then).tanh()], 1)
            value = self.old_critics[0](ahead)[:, 0]
            for critic in self.old_critics[1:]:
                value = torch.minimum(value, critic(ahead)[:, 0])
            target = batch.reward[replica] + config.discount * batch.bootstrap[replica] * value
            if config.target_range is not None:
                low, high = config.target_range
                target = target.clamp(low, high)
        weight = torch.ones(ROWS) if batch.weight is None else batch.weight[replica]
        taken = torch.cat([now, batch.action[replica]], 1)
        errors = [critic(taken)[:, 0] - target for critic in self.critics]
        critic_loss = torch.stack([(weight * error**2).mean() for error in errors]).sum()
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()
        action = self.actor(now).tanh()
        q = self.critics[0](torch.cat([now, action], 1)).mean()
        actor_loss = -q + config.action_penalty * (action**2).mean()
        self.actor_optimizer.zero_grad()
        actor_loss.backward()
        self.actor_optimizer.step()
        pairs = [(self.old_actor, self.actor), *zip(self.old_critics, self.critics, strict=True)]
        with torch.no_grad():
            for old, new in pairs:
                for mine, other in zip(old.parameters(), new.parameters(), strict=True):
                    mine.copy_(config.polyak * mine + (1 - config.polyak) * other)
        return [critic_loss.item(), actor_loss.item(), q.item()], errors[0].detach()


def assert_same_networks(agent: DDPG, plain: PlainDDPG, replica: int, tolerance: float) -> None:
    networks = {
        "actor": (agent.policy.actor, plain.actor),
        "target actor": (agent.target_actor, plain.old_actor),
        **{f"critic {i}": (agent.critics[i], own) for i, own in enumerate(plain.critics)},
        **{f"target critic {i}": (agent.target_critics[i], own) for i, own in enumerate(plain.old_critics)},
    }
    for name, (ours, theirs) in networks.items():
        expected = theirs.state_dict()
        for key, value in plain_network(ours, replica).state_dict().items():
            torch.testing.assert_close(value, expected[key], rtol=tolerance, atol=tolerance, msg=f"{name} {key}")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"twin_critics": True},
        {"critic_layer_norm": True},
        {"twin_critics": True, "critic_layer_norm": True, "layers": 3},
        {"target_range": None, "discount": 0.9},
        {"target_range": (-1.2, -0.3)},  # clips on both sides
        {"action_penalty": 0.0, "polyak": 0.5},
        {"action_penalty": 20.0, "observation_clip": 0.5},
        {"learning_rate": 0.02, "layers": 1, "polyak": 0.0},
    ],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_three_updates_are_those_of_a_plain_implementation(changes: dict[str, Any], weighted: bool) -> None:
    agent = make_agent([1, 2], **changes).double()
    plain = [PlainDDPG(agent, replica) for replica in range(2)]
    for step in range(3):
        batch = make_batch([10 * step, 10 * step + 1], weighted=weighted)
        statistics, error = agent.update(batch, step)
        for replica, other in enumerate(plain):
            numbers, expected = other.update(batch, replica)
            torch.testing.assert_close(statistics[replica].tolist(), numbers, rtol=1e-7, atol=1e-7)
            torch.testing.assert_close(error[replica], expected, rtol=1e-7, atol=1e-7)
            assert_same_networks(agent, other, replica, 1e-7)


@pytest.mark.parametrize("changes", [{}, {"twin_critics": True, "critic_layer_norm": True, "actor_layer_norm": True}])
def test_updates_by_autograd_are_those_without_it(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for make in (AutogradPass, DirectPass):
        monkeypatch.setattr(ddpg, "make_pass", make)
        agent = make_agent([1, 2], **changes).double()
        results = [agent.update(make_batch([step, step + 9], weighted=True), step) for step in range(4)]
        assert {type(run) for run in agent._passes.values()} == {make}
        found.append([*agent.state_dict().values(), *[value for pair in results for value in pair]])
    for expected, value in zip(*found, strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-8, atol=1e-8)


def make_kind(kind: str, config: AgentConfig) -> DDPG:
    """An agent by its name, of two replicas."""
    first = (INPUTS, ACTION, config, make_generators([1, 2]))
    if kind == "TD3":
        return TD3(*first, td3=TD3Config())
    if kind == "TD3+BC":
        return TD3BC(*first, td3=TD3BCConfig())
    return SAC(*first, sac=SACConfig()) if kind == "SAC" else DDPG(*first)


@needs_triton
@pytest.mark.parametrize("kind", ["DDPG", "several critics", "TD3", "TD3+BC", "SAC"])
def test_updates_by_kernels_are_those_of_autograd(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, Any] = {"critics": 3, "critics_in_target": 2} if kind == "several critics" else {}
    config = dataclasses.replace(SMALL, critic_layer_norm=True, **drawn)
    found = []
    for kernels in (False, True):
        used: list[type] = []

        def make_pass(network: Any, kernels: bool = kernels, used: list[type] = used) -> Pass:
            used.append(KernelPass if kernels else AutogradPass)
            made: Pass = used[-1](network)
            return made

        monkeypatch.setattr(ddpg, "make_pass", make_pass)
        agent = make_kind(kind, config).to(DEVICE)
        results: list[Tensor] = []
        for step in range(3):
            batch = make_batch([step, step + 9], torch.float32, weighted=True)
            noise = torch.rand(2, ROWS, agent.noise_size, generator=make_generators([step])[0])
            batch.noise = noise if agent.noise_size else None
            moved = {name: value.to(DEVICE) for name, value in vars(batch).items() if isinstance(value, Tensor)}
            results += agent.update(dataclasses.replace(batch, **moved), step)
        assert used
        found.append((results, torch.cat([value.flatten().float() for value in agent.state_dict().values()])))
    (expected, weights), (ours, others) = found
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    # Adam turns a gradient of rounding errors alone into a whole step
    assert ((weights - others).abs() < 1e-5).double().mean() > 0.97


def test_single_precision_stays_close_to_the_plain_implementation() -> None:
    """Adam divides by the gradient's size, so a gradient of rounding errors alone may turn a step; few parameters."""
    agent = DDPG(INPUTS, ACTION, SMALL, make_generators([1]))
    doubled = DDPG(INPUTS, ACTION, SMALL, make_generators([1])).double()
    plain = PlainDDPG(doubled, 0)
    for step in range(3):
        batch = make_batch([step], torch.float32)
        agent.update(batch, step)
        plain.update(make_batch([step]), 0)
    expected = torch.cat([value.flatten() for value in plain.actor.state_dict().values()])
    ours = torch.cat([value.flatten() for value in plain_network(agent.policy.actor, 0).double().state_dict().values()])
    assert ((ours - expected).abs() < 1e-5).double().mean() > 0.98


# --- the parts of an update -----------------------------------------------------------------------


def constant_critics(agent: DDPG, values: list[float]) -> None:
    """Critics, and their targets, that answer the same whatever they are asked."""
    for networks in (agent.critics, agent.target_critics):
        for network, value in zip(networks, values, strict=True):
            last: Any = network.layers[-1]  # type: ignore[index]
            last.weight.data.zero_()
            last.bias.data.fill_(value)


@pytest.mark.parametrize(
    ("target_range", "reward", "expected"),
    [
        ((-50.0, 0.0), -80.0, -50.0),
        ((-50.0, 0.0), 13.0, 0.0),  # 13 + 0.5 (-6) = 10
        ((-50.0, 0.0), -1.0, -4.0),
        (None, -80.0, -83.0),
        (None, 13.0, 10.0),
    ],
)
def test_targets_are_clipped_to_their_range(
    target_range: tuple[float, float] | None, reward: float, expected: float
) -> None:
    config = dataclasses.replace(SMALL, target_range=target_range, discount=0.5)
    agent = DDPG(INPUTS, ACTION, config, make_generators([0]))
    constant_critics(agent, [-6.0])
    batch = make_batch([0], torch.float32)
    batch.reward, batch.bootstrap = torch.full((1, ROWS), reward), torch.ones(1, ROWS)
    _, error = agent.update(batch, 0)
    torch.testing.assert_close(error, torch.full((1, ROWS), -6.0 - expected))


def test_where_the_environment_ended_nothing_follows() -> None:
    agent = make_agent([0], discount=0.5)
    constant_critics(agent, [-6.0])
    batch = make_batch([0], torch.float32)
    batch.reward, batch.bootstrap = torch.full((1, ROWS), -1.0), torch.arange(ROWS)[None] % 2.0
    _, error = agent.update(batch, 0)
    torch.testing.assert_close(error, -6.0 - torch.where(batch.bootstrap > 0, -4.0, -1.0))


@pytest.mark.parametrize("values", [[-6.0, -9.0], [-9.0, -6.0]])
def test_of_two_critics_the_smaller_answer_is_the_target(values: list[float]) -> None:
    agent = make_agent([0], discount=0.5, twin_critics=True)
    constant_critics(agent, values)
    batch = make_batch([0], torch.float32)
    batch.reward, batch.bootstrap = torch.full((1, ROWS), -1.0), torch.ones(1, ROWS)
    statistics, error = agent.update(batch, 0)
    target = -1 + 0.5 * -9.0
    torch.testing.assert_close(error, torch.full((1, ROWS), values[0] - target))
    loss = sum((value - target) ** 2 for value in values)
    assert statistics[0, 0] == pytest.approx(loss)


def test_two_critics_start_unlike_each_other_and_like_their_targets() -> None:
    agent = make_agent([0], twin_critics=True)
    first, second = (dict(critic.named_parameters()) for critic in agent.critics)
    assert not torch.equal(first["layers.0.weight"], second["layers.0.weight"])
    for old, new in ((agent.target_critics, agent.critics), (agent.target_actor, agent.policy.actor)):
        for name, value in new.state_dict().items():
            assert torch.equal(old.state_dict()[name], value), name


def test_a_transition_of_weight_zero_does_not_teach_the_critic() -> None:
    critics = []
    for wrong_reward in (-1.0, -30.0):
        agent = DDPG(INPUTS, ACTION, SMALL, make_generators([0]))
        batch = make_batch([0], torch.float32)
        batch.weight = torch.ones(1, ROWS)
        batch.weight[0, 5] = 0
        batch.reward[0, 5] = wrong_reward
        agent.update(batch, 0)
        critics.append(agent.critics.state_dict())
    for name, value in critics[0].items():
        assert torch.equal(value, critics[1][name]), name


@pytest.mark.parametrize("changes", [{}, {"twin_critics": True, "critic_layer_norm": True}])
def test_every_trainable_parameter_and_every_target_changes(changes: dict[str, Any]) -> None:
    """Each as a whole: a unit that no row of the batch activates stays as it is."""
    agent = make_agent([0, 1], **changes)
    trained = [
        parameter
        for optimizer in (agent.actor_optimizer, agent.critic_optimizer)
        for group in optimizer.param_groups
        for parameter in group["params"]
    ]
    learnable = [parameter for parameter in agent.parameters() if parameter.requires_grad]
    assert {id(one) for one in trained} == {id(one) for one in learnable}
    before = {name: value.clone() for name, value in agent.state_dict().items()}
    agent.update(make_batch([0, 1], torch.float32), 0)
    for name, value in agent.state_dict().items():
        for replica in range(2):
            assert not torch.equal(value[replica], before[name][replica]), (name, replica)


def test_replicas_at_once_are_each_replica_alone() -> None:
    changes = {"twin_critics": True, "critic_layer_norm": True}
    seeds = [3, 8, 5]
    together = make_agent(seeds, **changes).double()
    for step in range(3):
        together.update(make_batch([seed + 100 * step for seed in seeds], weighted=True), step)
    for replica, seed in enumerate(seeds):
        alone = make_agent([seed], **changes).double()
        for step in range(3):
            alone.update(make_batch([seed + 100 * step], weighted=True), step)
        for name, value in alone.state_dict().items():
            torch.testing.assert_close(value[0], together.state_dict()[name][replica], rtol=1e-9, atol=1e-9, msg=name)


def test_actions_lie_between_minus_one_and_one() -> None:
    agent = DDPG(INPUTS, ACTION, SMALL, make_generators([0, 1]))
    for layer in agent.policy.actor.layers:
        layer.weight.data.mul_(10)  # type: ignore[operator]
    action = agent.policy(100 * torch.randn(2, 50, INPUTS, generator=make_generators([0])[0]))
    assert action.shape == (2, 50, ACTION)
    assert action.abs().max() <= 1
    assert action.abs().max() > 0.99


# --- the normaliser -------------------------------------------------------------------------------


def test_the_normaliser_is_numpys_mean_and_deviation_with_floor_and_clip() -> None:
    generator = np.random.default_rng(0)
    scale = np.array([1.0, 50.0, 1e-3, 0.0, 0.011])
    seen = [
        (generator.standard_normal((2, rows, 5)) * scale + np.array([0, 3, 1.3, 7, -2])).astype(np.float32)
        for rows in (3, 100, 17)
    ]
    ours = Normalizer(5, 2, clip=1.5)
    for batch in seen:
        ours.update(torch.from_numpy(batch))
    everything = np.concatenate(seen, 1).astype(np.float64)
    mean, deviation = everything.mean(1), np.maximum(everything.std(1), 0.01)
    assert (deviation[:, 2:4] == 0.01).all()  # the floor counts
    np.testing.assert_allclose(ours.mean[:, 0], mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(ours.deviation[:, 0], deviation, rtol=1e-5)
    x = (generator.standard_normal((2, 40, 5)) * np.maximum(scale, 0.01) * 2 + mean[:, None]).astype(np.float32)
    expected = np.clip((x.astype(np.float64) - mean[:, None]) / deviation[:, None], -1.5, 1.5)
    np.testing.assert_allclose(ours(torch.from_numpy(x)), expected, atol=1e-3)
    assert (np.abs(expected) == 1.5).any()
    assert (np.abs(expected) < 1.4).any()


def test_before_any_data_the_normaliser_only_clips() -> None:
    x = torch.tensor([[[-9.0, 0.5, 9.0]]])
    assert torch.equal(Normalizer(3, 1, clip=5.0)(x), torch.tensor([[[-5.0, 0.5, 5.0]]]))


def test_the_normaliser_keeps_its_digits_over_two_thousand_batches() -> None:
    """Sums of half a million squares near 1.7 in single precision would leave nothing of a variance of 1e-4."""
    ours, generator = Normalizer(2, 1, clip=5.0), make_generators([0])[0]
    total, square, rows = np.zeros(2), np.zeros(2), 0
    for _ in range(2000):
        batch = 1.3 + torch.tensor([0.01, 0.02]) * torch.randn(1, 256, 2, generator=generator)
        ours.update(batch)
        shifted = batch[0].double().numpy() - 1.3  # sums without cancellation
        total, square, rows = total + shifted.sum(0), square + (shifted**2).sum(0), rows + 256
    mean, deviation = 1.3 + total / rows, np.sqrt(square / rows - (total / rows) ** 2)
    np.testing.assert_allclose(ours.mean[0, 0], mean, rtol=1e-6)
    np.testing.assert_allclose(ours.deviation[0, 0], np.maximum(deviation, 0.01), rtol=1e-5)


def test_an_update_shows_the_normaliser_the_states_and_not_the_next_ones() -> None:
    agent, batch = DDPG(INPUTS, ACTION, SMALL, make_generators([0])), make_batch([0], torch.float32)
    agent.update(batch, 0)
    assert agent.policy.normalizer.count.tolist() == [[[ROWS]]]
    torch.testing.assert_close(agent.policy.normalizer.mean, batch.inputs.mean(1, keepdim=True), rtol=1e-5, atol=1e-6)


# --- a trained policy -----------------------------------------------------------------------------


def trained(tmp_path: Path, changes: dict[str, Any] | None = None) -> tuple[DDPG, Path]:
    agent = make_agent([0, 1], **(changes or {}))
    agent.update(make_batch([0, 1], torch.float32), 0)
    path = tmp_path / "model.safetensors"
    save_agent(path, agent.state_dict(), agent.config, LAW, (OBS, ACTION, GOAL), "some/World-v0", [7, 3])
    return agent, path


def observations(count: int) -> dict[str, Any]:
    generator = np.random.default_rng(1)
    return {
        "observation": generator.standard_normal((count, OBS)),
        "achieved_goal": generator.standard_normal((count, GOAL)),
        "desired_goal": generator.standard_normal((count, GOAL)),
    }


@pytest.mark.parametrize("changes", [{}, {"target_range": None, "twin_critics": True, "critic_layer_norm": True}])
@pytest.mark.parametrize(("seed", "replica"), [(None, 0), (7, 0), (3, 1)])
def test_a_saved_agent_acts_as_it_did(tmp_path: Path, seed: int | None, replica: int, changes: dict[str, Any]) -> None:
    agent, path = trained(tmp_path, changes)
    obs = observations(6)
    inputs = torch.from_numpy(np.concatenate([obs["observation"], obs["desired_goal"]], 1)).float()
    unit = agent.policy(inputs.expand(2, -1, -1))[replica].detach().numpy().astype(np.float64)
    low, high = np.array(LAW.low), np.array(LAW.high)
    expected = low + (high - low) * (unit + 1) / 2
    for given in (path, str(path), tmp_path):  # the file or the folder that holds it
        policy = load_policy(given, seed)
        many = policy(obs)
        assert many.shape == (6, ACTION)
        assert many.dtype == np.float32
        np.testing.assert_allclose(many, expected, rtol=1e-5, atol=1e-6)
        for row in range(6):
            one = policy({name: value[row] for name, value in obs.items()})
            assert one.shape == (ACTION,)
            np.testing.assert_allclose(one, expected[row], rtol=1e-5, atol=1e-6)
    assert (policy.env, policy.seed, policy.sizes) == ("some/World-v0", [7, 3][replica], (OBS, ACTION, GOAL))


def test_a_loaded_policy_is_not_trained_any_further(tmp_path: Path) -> None:
    _, path = trained(tmp_path)
    policy = load_policy(path)
    assert not any(parameter.requires_grad for parameter in policy.policy.parameters())


def test_a_missing_agent_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "other.safetensors"):
        with pytest.raises(FileNotFoundError, match=re.escape(str(path))):
            load_policy(path)


def test_a_seed_that_was_not_trained_is_refused(tmp_path: Path) -> None:
    _, path = trained(tmp_path)
    with pytest.raises(ValueError, match=r"seed 0\b.*\[7, 3\]"):
        load_policy(path, seed=0)


def rewritten(path: Path, **changes: Any) -> Path:
    """The file with some entries of its header replaced, or left out where None."""
    tensors, header = load_tensors(path)
    header = {name: value for name, value in (header | changes).items() if value is not None}
    save_tensors(path, tensors, header)
    return path


def test_files_with_the_names_of_before_are_read(tmp_path: Path) -> None:
    _, path = trained(tmp_path)
    settings = load_tensors(path)[1]["agent"] | {"twin_critics": False}
    assert load_policy(rewritten(path, env=None, world="push", agent=settings)).env == "push"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "influence"}, "'influence'"),
        ({"kind": None}, "None"),
        ({"format": 2}, "format 2"),
        ({"format": None}, "format None"),
        ({"agent": None}, ""),
        ({"agent": {"depth": 3}}, ""),
        ({"sizes": [OBS + 1, ACTION, GOAL]}, ""),
        ({"seeds": []}, ""),
        ({"seeds": [1]}, ""),
        ({"law": [1, 2]}, ""),
        ({"law": None}, ""),
    ],
)
def test_files_that_are_not_such_an_agent_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    _, path = trained(tmp_path)
    with pytest.raises(ValueError, match=rf"model\.safetensors.*{message}"):
        load_policy(rewritten(path, **changes))


def test_a_header_without_the_environment_is_refused(tmp_path: Path) -> None:
    _, path = trained(tmp_path)
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        load_policy(rewritten(path, env=None))


def test_a_file_cut_off_is_refused(tmp_path: Path) -> None:
    _, path = trained(tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"model\.safetensors is not a complete safetensors file"):
        load_policy(path)


def test_the_header_is_readable_without_butfor(tmp_path: Path) -> None:
    _, path = trained(tmp_path)
    raw = path.read_bytes()
    metadata = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["__metadata__"]
    header = json.loads(metadata["butfor"])
    assert (header["kind"], header["env"], header["seeds"]) == ("agent", "some/World-v0", [7, 3])
    assert header["agent"]["width"] == SMALL.width


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        (np.zeros(OBS), "dictionary with observation and desired_goal"),
        ({"observation": np.zeros(OBS)}, "dictionary with observation and desired_goal"),
        ({"observation": np.zeros(OBS + 1), "desired_goal": np.zeros(GOAL)}, r"observation has shape \[5\].*\[4\]"),
        ({"observation": np.zeros(OBS), "desired_goal": np.zeros((1, 1, GOAL))}, r"desired_goal has shape \[1, 1, 2\]"),
        ({"observation": np.zeros(()), "desired_goal": np.zeros(GOAL)}, r"observation has shape \[\]"),
        ({"observation": np.zeros((2, OBS)), "desired_goal": np.zeros((2, 3))}, r"desired_goal has shape \[2, 3\]"),
    ],
)
def test_observations_of_another_environment_are_refused(tmp_path: Path, obs: Any, message: str) -> None:
    _, path = trained(tmp_path)
    with pytest.raises(ValueError, match=message):
        load_policy(path)(obs)


@pytest.mark.parametrize("goals", [(GOAL,), (3, GOAL)])
def test_observations_and_goals_of_unlike_number_are_refused_by_name(tmp_path: Path, goals: tuple[int, ...]) -> None:
    _, path = trained(tmp_path)
    with pytest.raises(ValueError, match="desired_goal"):
        load_policy(path)({"observation": np.zeros((2, OBS)), "desired_goal": np.zeros(goals)})


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": 0}, "layers.*1.*0"),
        ({"width": 0}, "width"),
        ({"batch_size": 0}, "batch_size"),
        ({"updates": 0}, "updates"),
        ({"learning_rate": 0.0}, r"learning_rate.*0\.0"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"discount": 1.0}, r"discount.*0.*1.*1\.0"),
        ({"polyak": -0.1}, "polyak"),
        ({"target_range": (0.0, -50.0)}, r"target_range.*\(0\.0,\ \-50\.0\)"),
        ({"target_range": (float("nan"), 0.0)}, "target_range"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AgentConfig(**settings)


@pytest.mark.parametrize("clip", [0.0, -5.0, float("nan")])
def test_a_clip_that_leaves_nothing_of_the_observation_is_refused(clip: float) -> None:
    with pytest.raises(ValueError, match="observation_clip"):
        AgentConfig(observation_clip=clip)


@pytest.mark.parametrize(("caution", "value"), [(0.0, -3.0), (0.5, -4.0), (1.0, -5.0)])
def test_caution_moves_the_target_from_the_first_critic_to_the_smallest(caution: float, value: float) -> None:
    config = dataclasses.replace(SMALL, critics=2, caution_rate=0.1, discount=0.5, target_range=None)
    agent = DDPG(INPUTS, ACTION, config, make_generators([1, 2]))
    constant_critics(agent, [-3.0, -5.0])
    agent.caution.fill_(caution)
    batch = make_batch([1, 2], torch.float32)
    _, error = agent.update(batch, 0)
    torch.testing.assert_close(error, -3 - (batch.reward + 0.5 * batch.bootstrap * value))


def test_caution_grows_by_what_was_promised_and_not_reached() -> None:
    """By rate x excess x (1 - discount) for each episode that counts, between 0 and 1."""
    config = dataclasses.replace(SMALL, critics=2, caution_rate=0.1, discount=0.9)
    agent = DDPG(INPUTS, ACTION, config, make_generators([1, 2]))
    counts = torch.tensor([[True, True, False], [True, False, False]])
    agent.adjust_caution(torch.tensor([[3.0, 4.0, 90.0], [-5.0, 90.0, 90.0]]), counts)
    assert agent.caution.flatten().tolist() == pytest.approx([0.07, 0.0])
    agent.adjust_caution(torch.tensor([[-2.0, 0.0, 0.0], [500.0, 0.0, 0.0]]), counts)
    assert agent.caution.flatten().tolist() == pytest.approx([0.05, 1.0])
