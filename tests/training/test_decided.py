"""Decided returns: by value on an episode that leaves the agent's reach, and in a run."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.small_training import small

from butfor.training.decided import DecidedReturns, recorded_return
from butfor.training.replay import Batch, ReplayBuffer
from butfor.training.run import train

STEPS = 4


def reward(achieved: torch.Tensor, desired: torch.Tensor) -> torch.Tensor:
    return -((achieved - desired).abs()[..., 0] > 0.5).float()


def make_buffer(ways: list[list[float]], lengths: list[int]) -> ReplayBuffer:
    """Episodes with these places of the object; the agent is at 0 to 1."""
    replay = ReplayBuffer(1, len(ways), STEPS, (1, 1, 1), "cpu")
    obs = np.broadcast_to(np.linspace(0, 1, STEPS + 1), (1, len(ways), STEPS + 1))[..., None]
    zeros = np.zeros((1, len(ways), STEPS))
    replay.store({
        "observation": obs, "achieved_goal": np.array([ways])[..., None], "action": zeros[..., None],
        "desired_goal": np.zeros_like(obs), "length": np.array([lengths]), "sampled": zeros > 0,
        "terminated": np.zeros((1, len(ways)), bool),
    })  # fmt: skip
    return replay


def draw(episode: int, time: int) -> Batch:
    one = torch.ones(1, 1)
    return Batch(*[one[..., None]] * 3, one, one, one, one.long() * episode, one.long() * time)


def test_the_return_is_known_once_the_object_stays_out_of_reach() -> None:
    replay = make_buffer([[0.0, 0.5, 3.0, 4.0, 4.0], [0.0, 3.0, 0.5, 3.0, 3.0], [0.0, 0.5, 3.0, 9.0, 9.0]], [4, 4, 2])
    decided = DecidedReturns(replay, reward, 0.5, (0,))
    goal = torch.full((1, 1, 1), 4.0)
    assert decided(draw(0, 1), goal).isnan()  # before the reach has been measured
    decided.measure()
    assert decided(draw(0, 0), goal).isnan()  # the object is within reach after the step
    # rewards -1 (at 3), 0 and 0 (at 4), the last for ever
    assert decided(draw(0, 1), goal).item() == -1
    # at 9 it would be -1 each step, for ever: 1 / (1 - 0.5)
    assert decided(draw(0, 1), torch.full((1, 1, 1), 9.0)).item() == -2
    assert decided(draw(1, 0), goal).isnan()  # it comes back
    assert decided(draw(1, 2), goal).item() == -2
    assert decided(draw(2, 1), torch.full((1, 1, 1), 9.0)).item() == -2  # what follows the end does not count


def test_the_last_reward_continues() -> None:
    rewards = torch.tensor([[[-1.0, -1.0, 0.0, -1.0]]])
    counted = torch.tensor([[[False, True, True, True]]])
    found = recorded_return(rewards, counted, torch.tensor([[1]]), 0.9)
    torch.testing.assert_close(found, torch.tensor([[-1 - 0.9**2 * 10]]))


def test_a_run_with_decided_returns(tmp_path: Path) -> None:
    config = small(replay={"decided_returns": True}, use=("priority",))
    assert (train(config, tmp_path / "run") / "summary.json").exists()


@pytest.mark.parametrize("changes", [{"use": ("bonus",)}, {"use": ("priority",), "swap": {"share": 0.3}}])
def test_what_excludes_it(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="decided_returns"):
        small(replay={"decided_returns": True}, **changes)
