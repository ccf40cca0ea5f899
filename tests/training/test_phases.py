"""How far training episodes get, by episodes made by hand; values and the relay's use by formula."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.small_training import ALL_USES, changed, metrics, small

from butfor.analysis.arms import read_run_folder
from butfor.analysis.rows import phase_row
from butfor.models.networks import make_generators
from butfor.rollouts.episodes import Episodes
from butfor.rollouts.play import Played
from butfor.training.agents.policy import AgentConfig
from butfor.training.evaluation import Phases, phases_of, reached_value
from butfor.training.goal_env import GoalEnv, open_goal_env
from butfor.training.relay import Relay, RelayConfig
from butfor.training.run import resume, train

STEPS = 4


@pytest.fixture(scope="module")
def push() -> GoalEnv:
    return open_goal_env("push", (), 50.0)


def make_episodes(heights: list[list[float]], shift: list[float], length: int = STEPS) -> Episodes:
    """Episodes whose object is at these heights above 0.42, and shifted along x from the second state on."""
    count = len(heights)
    observation = np.zeros((count, STEPS + 1, 25), np.float32)
    observation[..., 3:6] = (1.3, 0.7, 0.42)
    observation[..., 5] += np.array(heights, np.float32)
    observation[:, 1:, 3] += np.array(shift, np.float32)[:, None]
    goal = observation[..., 3:6].copy()
    return Episodes(
        observation=observation, action=np.zeros((count, STEPS, 4), np.float32), achieved_goal=goal,
        desired_goal=np.tile(np.array([1.3, 0.7, 0.42], np.float32), (count, STEPS + 1, 1)),
        length=np.full(count, length), sampled=np.zeros((count, STEPS), bool),
    )  # fmt: skip


FLAT = [0.0] * (STEPS + 1)


def test_touched_and_lifted_are_measured_from_the_first_state(push: GoalEnv) -> None:
    high = [0.0, 0.0, 0.031, 0.0, 0.0]
    found = phases_of(push, make_episodes([FLAT, FLAT, high, [0.1] * 5], [0.001, 0.003, 0.0, 0.0]))
    assert found["touched"].tolist() == [False, True, True, False]
    assert found["lifted"].tolist() == [False, False, True, False]


def test_padding_after_the_end_does_not_count(push: GoalEnv) -> None:
    late = [0.0, 0.0, 0.0, 0.2, 0.2]
    assert not phases_of(push, make_episodes([late], [0.0], length=2))["lifted"].any()
    assert phases_of(push, make_episodes([late], [0.0], length=3))["lifted"].all()


def test_shares_are_since_the_last_report_and_the_first_episode_stays(push: GoalEnv) -> None:
    """Two replicas, of which the second never touches; two episodes at once, then one."""
    phases = Phases(push, 2)

    def add(before: int, shift: list[float], success: list[bool]) -> None:
        flags = np.array(success)
        phases.add(before, Played(make_episodes([FLAT] * len(shift), shift), flags, np.zeros(len(shift), bool)))

    add(0, [0.0, 0.01, 0.0, 0.0], [False] * 4)  # environments of a replica stand side by side
    add(2, [0.01, 0.0], [True, False])
    first, second = phases.report()
    assert first == {
        "training_touched": pytest.approx(2 / 3), "training_lifted": 0, "training_success": pytest.approx(1 / 3),
        "first_touched": 2, "first_lifted": 0, "first_success": 3,
    }  # fmt: skip
    assert set(second.values()) == {0.0}
    add(3, [0.0, 0.01], [True, True])
    copied = Phases(push, 2)
    copied.restore(phases.state())
    for one in (phases, copied):
        first, second = one.report()
        assert (first["training_touched"], first["first_touched"], first["first_success"]) == (0, 2, 3)
        assert (second["training_touched"], second["first_touched"], second["first_success"]) == (1, 4, 4)


def test_the_reached_value_discounts_and_goes_on_with_the_last_reward(push: GoalEnv) -> None:
    """Rewards -1, -1, 0, 0: -1 - 0.9; a failure is worth -1 / (1 - 0.9), whatever the length."""
    episodes = make_episodes([FLAT, FLAT], [0.0, 1.0])
    episodes.achieved_goal[0, 1:3, 0] += 1.0
    np.testing.assert_allclose(reached_value(push, episodes, 0.9), [-1.9, -10.0])
    short = make_episodes([FLAT], [1.0], length=2)
    np.testing.assert_allclose(reached_value(push, short, 0.9), [-10.0])


def test_the_use_of_the_relay_follows_from_the_scores() -> None:
    score = torch.tensor([[[0.1, 0.5, 0.1, 9.0], [0.1, 0.1, 0.1, 0.1]]])  # the second replica's numbers are its own
    score = torch.cat([score, torch.ones_like(score)])
    length = torch.tensor([[3, 4], [4, 4]])
    settings = RelayConfig(share=0.5, until=0.3)
    relay = Relay(settings, AgentConfig(layers=1, width=2), 1, 1, make_generators([0, 1]), torch.device("cpu"))
    found = [list(row.values()) for row in relay.use(score, length, torch.tensor([0.4, 0.2]))]
    practised = [row["relay_acts"] for row in relay.use(score, length, torch.tensor([0.4, 0.2]), practice=0.25)]
    assert practised == pytest.approx([0.75 * acts for acts, _ in found])
    np.testing.assert_allclose(found, [[0.6 * 0.5 * 6 / 7, 0.5], [0.0, 1.0]], rtol=1e-6)


def test_a_run_records_them_and_a_resume_goes_on(tmp_path: Path) -> None:
    config = small(seeds=2, use=(*ALL_USES, "relay"))
    whole = train(config, tmp_path / "whole")
    broken = train(changed(config, episodes=7), tmp_path / "broken")
    resume(broken, episodes=config.episodes)
    rows = metrics(whole)
    assert metrics(broken)[-1] == rows[-1]
    assert {"training_touched", "first_success", "value_reached", "relay_acts", "relay_reaches"} <= set(rows[-1])
    row = phase_row(read_run_folder(whole))
    assert row is not None
    assert set(row["phases"]) == {"touched", "success"}  # nothing is lifted on a line
    assert row["value"]["predicted"] == pytest.approx(np.mean([one["value_predicted"] for one in rows[-2:]]))
    assert row["relay"]["acts"] == pytest.approx(np.mean([one["relay_acts"] for one in rows[-2:]]))
