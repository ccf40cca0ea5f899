"""The relay: what it learns is DDPG on influence without goals; when it acts, by hand; interruptions change nothing."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.small_training import ALL_USES, changed, metrics, models, small
from torch import Tensor

from butfor.models.dynamics import GaussianDynamics, ModelConfig
from butfor.models.networks import make_generators
from butfor.spaces.actions import ActionLaw
from butfor.training.agents import AgentConfig, load_policy
from butfor.training.agents.ddpg import DDPG
from butfor.training.agents.sac import GaussianPolicy
from butfor.training.exploration import ExploreConfig, Explorer, explore
from butfor.training.relay import Relay, RelayConfig
from butfor.training.replay import Batch
from butfor.training.run import evaluate_run, resume, train

OBS, GOAL, ACTION, ROWS, REPLICAS = 3, 2, 2, 16, 2
AGENT = AgentConfig(layers=1, width=6)
RELAY = RelayConfig(share=0.5, until=0.3, cap=1.5, discount=0.9, action_penalty=0.2)
RECORD = {
    "use": (*ALL_USES, "relay"),
    "replay": {"other_goals": 0.5, "influenced_goals": 0.0, "relative_goals": True},
    "agent": {"critic_layer_norm": True, "actor_layer_norm": True, "critics": 2},
}


def make_batch(seed: int) -> Batch:
    generator = make_generators([seed])[0]

    def draw(*shape: int) -> Tensor:
        return torch.randn(REPLICAS, ROWS, *shape, generator=generator)

    place = torch.zeros(REPLICAS, ROWS, dtype=torch.int64)
    ends = (draw() > 0).float()
    return Batch(draw(OBS + GOAL), draw(ACTION).tanh(), draw(OBS + GOAL), draw(), ends, 2 * draw(), place, place)


def test_it_learns_as_ddpg_with_one_critic_does_from_influence_without_a_goal() -> None:
    relay = Relay(
        RELAY, changed(AGENT, critics=2, caution_rate=0.1), OBS, ACTION, make_generators([0, 1]), torch.device("cpu")
    )
    own = changed(AGENT, discount=0.9, action_penalty=0.2, target_range=(0.0, 15.0))
    agent = DDPG(OBS, ACTION, own, make_generators([0, 1]))
    for index in range(3):
        batch = make_batch(index)
        relay.update(batch, index)
        seen = {"inputs": batch.inputs[..., :OBS], "next_inputs": batch.next_inputs[..., :OBS]}
        agent.update(changed(batch, **seen, reward=batch.score.clamp(0, 1.5)), index)
    for name, value in agent.state_dict().items():
        torch.testing.assert_close(relay.agent.state_dict()[name], value)


def test_it_acts_in_its_share_of_the_steps_where_influence_is_low() -> None:
    relay = Relay(RELAY, AGENT, OBS, ACTION, make_generators([0]), torch.device("cpu"))
    influence = torch.tensor([[0.29], [0.29], [0.31], [-0.1]])
    lot = torch.tensor([[0.49], [0.51], [0.1], [0.1]])
    assert relay.turn(influence, lot)[:, 0].tolist() == [True, False, False, True]


@pytest.mark.parametrize("drawn", [False, True])
def test_its_actions_have_noise_also_beside_a_policy_that_draws_its_own(drawn: bool) -> None:
    bounds = ActionLaw((-1.0, 0.0), (1.0, 4.0)).bounds(torch.device("cpu"))  # half the range: 1 and 2
    noise = torch.tensor([[[0.9, 0.5, -1.0, *[0.0] * 5, lot] for lot in (0.0, 1.0)]])  # the relay's turn, the policy's
    own, other = torch.tensor([0.2, 1.0]).expand(1, 2, 2), torch.tensor([-0.2, 3.0]).expand(1, 2, 2)
    config = ExploreConfig(epsilon=0.3, noise=0.4, active=0.0, candidates=2)
    relay = (other, lambda influence, lot: lot < 0.5)
    action, _ = explore(own, noise, bounds, config, lambda tried: tried[..., 0], relay, 0.5, drawn)
    expected = [[-0.2 + 0.4 * 0.5 * 0.5, 3.0 - 0.4 * 0.5 * 2.0], [0.2 + 0.1, 1.0 - 0.4]]
    if drawn:
        expected[1] = [0.2, 1.0]
    torch.testing.assert_close(action[0], torch.tensor(expected))


def test_an_explorer_with_sac_gives_the_relay_its_noise() -> None:
    """Both policies are alike in all steps, so that what differs between the relay's actions is noise."""
    law = ActionLaw((-1.0,) * ACTION, (1.0,) * ACTION)
    relay = Relay(changed(RELAY, share=1.0, until=100.0), AGENT, OBS, ACTION, make_generators([0]), torch.device("cpu"))
    policy = GaussianPolicy(OBS + GOAL, ACTION, AGENT, make_generators([1]))
    model = GaussianDynamics(OBS, ACTION, 1, ModelConfig(layers=1, width=4), make_generators([2])).eval()
    obs = {"observation": np.zeros((500, OBS)), "achieved_goal": np.zeros((500, GOAL))}
    obs["desired_goal"] = obs["achieved_goal"]
    for noise in (0.0, 0.05):
        config = ExploreConfig(epsilon=0.0, noise=noise, active=0.0, candidates=2)
        explorer = Explorer(policy, model, slice(0, 1), 500, law, config, relay=relay)
        explorer.begin(1, make_generators([3]))
        action = explorer(0, obs)[0]
        assert action.std(0) == pytest.approx([noise] * ACTION, abs=0.2 * noise)  # 6 standard errors


@pytest.mark.parametrize("active", [0.0, 1.0])
def test_its_action_takes_the_place_of_the_policys(active: float) -> None:
    """Candidates score what their first column says; the last number decides about the turn."""
    law = ActionLaw((-1.0,) * ACTION, (1.0,) * ACTION)
    count, candidates = 400, 4
    noise = torch.rand(1, count, 1 + 2 * ACTION + candidates * (ACTION + 1) + 1, generator=make_generators([3])[0])
    own, other = torch.full((1, count, ACTION), 0.5), torch.full((1, count, ACTION), -0.5)
    config = ExploreConfig(epsilon=0.3, noise=0.0, active=active, candidates=candidates)
    seen: list[Tensor] = []

    def score(tried: Tensor) -> Tensor:
        seen.append(tried)
        return tried[..., 0]

    def turn(influence: Tensor, lot: Tensor) -> Tensor:
        return (influence < 0) & (lot < 0.5)

    action, sampled = explore(own, noise, law.bounds(torch.device("cpu")), config, score, (other, turn))
    influence = seen[0][0, ..., 0].mean(-1)
    kinds = set()
    for row in range(count):
        lot, last = float(noise[0, row, 0]), float(noise[0, row, -1])
        if lot < 0.3:
            best = seen[0][0, row, seen[0][0, row, :, 0].argmax()]
            expected = best if active else 2 * noise[0, row, 1 + ACTION : 1 + 2 * ACTION] - 1
            kinds.add("exploratory")
        else:
            relayed = bool(influence[row] < 0) and last < 0.5
            expected = other[0, row] if relayed else own[0, row]
            kinds.add("relay" if relayed else "policy")
        torch.testing.assert_close(action[0, row], expected)
        assert bool(sampled[0, row]) == (lot < 0.3 and not active)
    assert kinds == {"exploratory", "relay", "policy"}


@pytest.mark.parametrize("overlap", [(), ("acting", "updates", "model")])
def test_a_run_with_all_parts_of_the_record_is_resumed_to_the_bit(tmp_path: Path, overlap: tuple[str, ...]) -> None:
    config = small(seeds=2, overlap=overlap, **RECORD)
    whole = train(config, tmp_path / "whole")
    broken = train(changed(config, episodes=7), tmp_path / "broken")
    assert models(resume(broken, episodes=config.episodes)) == models(whole)
    assert metrics(broken)[-1] == metrics(whole)[-1]


def test_a_policy_with_relative_goals_is_loaded_and_needs_the_achieved_goal(tmp_path: Path) -> None:
    run = train(small(**RECORD), tmp_path / "run")
    policy = load_policy(run)
    obs = {"observation": np.zeros(4), "achieved_goal": np.array([0.2]), "desired_goal": np.array([0.5])}
    inputs = torch.tensor([[[0, 0, 0, 0, 0.5, 0.3]]], dtype=torch.float32)
    with torch.no_grad():
        np.testing.assert_allclose(policy(obs), policy.policy(inputs)[0, 0], rtol=1e-5)
    with pytest.raises(ValueError, match="achieved_goal"):
        policy({name: obs[name] for name in ("observation", "desired_goal")})
    assert set(evaluate_run(run, 2)) == {0}


@pytest.mark.parametrize(
    ("name", "value"), [("share", 1.5), ("until", -1.0), ("cap", 0.0), ("discount", 1.0), ("action_penalty", -0.1)]
)
def test_impossible_settings_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name}.*{value}"):
        RelayConfig(**{name: value})


def test_the_relay_needs_a_signal_that_compares_actions() -> None:
    with pytest.raises(ValueError, match=r"'relay'.*'moved'"):
        small(use=("relay",), signal="moved")
