"""TorchRL's replay buffers with the sampler: frequencies by influence, new steps, a full ring, hindsight, its state."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("torchrl", reason="TorchRL is not installed; pip install 'butfor[torchrl]' runs these tests")

from support.linear_models import UNIT, linear_model, raw_influence
from tensordict import TensorDict
from torchrl.data import HERReplayBuffer, LazyTensorStorage, TensorDictReplayBuffer

from butfor.influence.influence import Influence
from butfor.integrations.torchrl import InfluenceSampler

DRAWN = 20_000


class Known:
    """Stands in for a model: the score of a state is its first column; it counts what it is asked for."""

    entities = {"cube": [0]}
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.asked = 0

    def dims(self, entity: str) -> list[int]:
        return [0]

    def score(self, obs: Any, generator: torch.Generator) -> dict[str, Any]:
        self.asked += len(obs)
        return {"cube": obs[:, 0]}


def steps(scores: list[list[float]]) -> TensorDict:
    """Episodes, one after the other, whose states are their scores; achieved goals count the steps of all."""
    flat = torch.tensor([score for episode in scores for score in episode])
    ends = torch.tensor([place == len(episode) - 1 for episode in scores for place in range(len(episode))])
    count = len(flat)
    goal = torch.arange(count, dtype=torch.float32)[:, None]
    following = {"reward": torch.zeros(count, 1), "done": ends[:, None], "achieved_goal": goal + 1}
    first = {"observation": flat[:, None], "achieved_goal": goal, "desired_goal": torch.full((count, 1), -1.0)}
    return TensorDict(first | {"next": TensorDict(following, [count])}, [count])


def shares(buffer: Any, size: int) -> Any:
    """How often each step is drawn."""
    index = buffer.sample(DRAWN)["index"].reshape(-1).numpy()
    return np.bincount(index, minlength=size) / DRAWN


def make(sampler: InfluenceSampler, capacity: int = 20) -> Any:
    return TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), sampler=sampler, batch_size=8)


def close(found: Any, expected: list[float]) -> None:
    """Within four standard errors of the expected frequencies."""
    wanted = np.array(expected)
    assert (np.abs(found - wanted) <= 4 * np.sqrt(wanted * (1 - wanted) / DRAWN) + 1e-12).all(), (found, wanted)


def test_episodes_are_drawn_by_rank_and_their_steps_alike() -> None:
    """Ranks 2, 1 and 3 of chances 1/2, 1, 1/3, over steps 2, 4 and 1."""
    model: Any = Known()
    buffer = make(InfluenceSampler(model))
    buffer.extend(steps([[1.0, 1.0], [0.0, 0.0, 4.0, 0.0], [0.5]]))
    total = 1 / 2 + 1 + 1 / 3
    close(shares(buffer, 7), [*[1 / 4 / total] * 2, *[1 / 4 / total] * 4, 1 / 3 / total])
    assert model.asked == 7
    buffer.sample(8)
    assert model.asked == 7  # each step once


def test_ranks_count_by_their_exponent() -> None:
    model: Any = Known()
    buffer = make(InfluenceSampler(model, rank_exponent=0.5))
    buffer.extend(steps([[1.0], [4.0], [0.0], [2.0]]))
    chances = [3**-0.5, 1, 4**-0.5, 2**-0.5]
    close(shares(buffer, 4), [chance / sum(chances) for chance in chances])


def test_new_steps_are_scored_and_a_model_can_come_later() -> None:
    model: Any = Known()
    sampler = InfluenceSampler()
    buffer = make(sampler)
    buffer.extend(steps([[0.0, 0.0], [1.0]]))
    close(shares(buffer, 3), [1 / 3] * 3)
    sampler.use_model(model)
    close(shares(buffer, 3), [1 / 6, 1 / 6, 2 / 3])
    buffer.extend(steps([[9.0]]))
    total = 1 + 1 / 2 + 1 / 3
    close(shares(buffer, 4), [1 / 6 / total, 1 / 6 / total, 1 / 2 / total, 1 / total])
    assert model.asked == 4


def test_an_episode_across_the_end_of_a_full_ring_is_one() -> None:
    """Capacity 5: [a a][b b b] is overwritten by [c c c], whose last step is at index 2; b has two steps left."""
    model: Any = Known()
    buffer = make(InfluenceSampler(model), capacity=5)
    buffer.extend(steps([[0.0, 0.0], [1.0, 1.0, 1.0]]))
    buffer.extend(steps([[5.0, 0.0, 0.0]]))
    close(shares(buffer, 5), [*[2 / 9] * 3, *[1 / 6] * 2])
    buffer.extend(steps([[0.0, 7.0, 0.0, 0.0]]))  # indices 3, 4, 0 and 1, then c's last step at 2
    close(shares(buffer, 5), [1 / 6, 1 / 6, 1 / 3, 1 / 6, 1 / 6])


def test_hindsight_goals_are_of_the_episodes_that_were_drawn() -> None:
    model: Any = Known()
    buffer: Any = HERReplayBuffer(
        lambda batch: (batch["achieved_goal"] == batch["desired_goal"]).float(),
        storage=LazyTensorStorage(20), sampler=InfluenceSampler(model), batch_size=8, her_ratio=1.0,
    )  # fmt: skip
    buffer.extend(steps([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]))
    batch = buffer.sample(6000)
    index, goal = batch["index"].reshape(-1), batch["desired_goal"][:, 0]
    assert (index < 3).float().mean().item() == pytest.approx(2 / 3, abs=0.03)
    assert (goal >= index).all()
    assert ((goal < 3) == (index < 3)).all()


def test_the_state_comes_back(tmp_path: Path) -> None:
    model: Any = Known()
    buffer = make(InfluenceSampler(model))
    buffer.extend(steps([[1.0, 1.0], [3.0]]))
    buffer.sample(8)
    saved = buffer.sampler.state_dict()
    buffer.sampler.dumps(tmp_path)
    expected = buffer.sample(50)["index"]
    first, second = InfluenceSampler(model), InfluenceSampler(model)
    first.load_state_dict(saved)
    second.loads(tmp_path)
    for other in (first, second):
        index, _ = other.sample(buffer.storage, 50)
        torch.testing.assert_close(index, expected.reshape(-1))
    assert model.asked == 3
    buffer.empty()
    with pytest.raises(RuntimeError, match="empty"):
        buffer.sample(4)


def test_a_sum_of_entities_that_share_columns_is_warned_of() -> None:
    model: Any = Known()
    model.entities = {"cube": [0, 1], "both": [1, 2]}
    with pytest.warns(UserWarning, match="share the columns"):
        InfluenceSampler(model)


def test_each_scoring_tries_other_actions() -> None:
    """A state that is stored twice, one step at a time, has two scores; a restored sampler tries what comes next."""
    influence: Influence = raw_influence(linear_model([1.0], 0.1), UNIT, {"cube": [0]}, [1.0])
    buffer = make(InfluenceSampler(influence))
    for _ in range(2):
        buffer.extend(steps([[0.3]]))
        buffer.sample(4)
    saved = buffer.sampler.state_dict()
    assert saved["scores"][0] != saved["scores"][1]
    buffer.extend(steps([[0.3]]))
    buffer.sample(4)
    other = InfluenceSampler(influence)
    other.load_state_dict(saved)
    other.extend([2])
    other.sample(buffer.storage, 4)
    torch.testing.assert_close(other.scores[:3], buffer.sampler.scores[:3], rtol=0, atol=0)


def test_a_fitted_model_scores_and_wrong_entities_are_named() -> None:
    influence: Influence = raw_influence(linear_model([1.0], 0.1), UNIT, {"cube": [0]}, [1.0])
    buffer = make(InfluenceSampler(influence, entity="cube"))
    buffer.extend(steps([[0.3, 0.1], [0.2]]))
    buffer.sample(4)
    expected = influence.score(torch.tensor([[0.3], [0.1], [0.2]]))["cube"]
    torch.testing.assert_close(buffer.sampler.scores[:3], expected)
    with pytest.raises(ValueError, match="'ball'"):
        InfluenceSampler(influence, entity="ball")


def test_steps_are_stored_and_drawn_in_turns() -> None:
    """As in online training: after each episode, and in the middle of one, a batch by the ranks so far."""
    model: Any = Known()
    buffer = make(InfluenceSampler(model), capacity=6)
    episodes = steps([[1.0, 1.0], [0.0, 4.0, 0.0], [0.5]])
    buffer.extend(episodes[:2])
    close(shares(buffer, 2), [1 / 2] * 2)
    buffer.extend(episodes[2:3])  # the first step of the second episode, which has the lower rank until its next step
    close(shares(buffer, 3), [1 / 3, 1 / 3, 1 / 3])
    for step in episodes[3:5]:
        buffer.add(step)
        assert len(buffer.sample()) == 8
    close(shares(buffer, 5), [1 / 6] * 2 + [2 / 9] * 3)
    buffer.extend(episodes[5:])
    total = 1 + 1 / 2 + 1 / 3
    close(shares(buffer, 6), [*[1 / 4 / total] * 2, *[1 / 3 / total] * 3, 1 / 3 / total])
    buffer.extend(steps([[9.0, 9.0]]))  # the storage is full: the first episode is overwritten
    close(shares(buffer, 6), [*[1 / 2 / total] * 2, *[1 / 6 / total] * 3, 1 / 3 / total])
    assert model.asked == 8


@pytest.mark.parametrize(("capacity", "single"), [(7, False), (4, True)])
def test_hindsight_goals_are_drawn_online(capacity: int, single: bool) -> None:
    """With `extend` while the storage has room, and with `add` also when it is full, where TorchRL's `extend` fails."""
    model: Any = Known()
    buffer: Any = HERReplayBuffer(
        lambda batch: (batch["achieved_goal"] == batch["desired_goal"]).float(),
        storage=LazyTensorStorage(capacity), sampler=InfluenceSampler(model), batch_size=8, her_ratio=1.0,
    )  # fmt: skip
    episodes = steps([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    for step in episodes.split(1):
        if single:
            buffer.add(step[0])
        else:
            buffer.extend(step)
        batch = buffer.sample()
        own, goal = batch["achieved_goal"][:, 0], batch["desired_goal"][:, 0]
        assert (goal >= own).all()  # reached in this step or later
        assert ((goal < 3) == (own < 3)).all()  # in the same episode
    assert model.asked == 6


@pytest.mark.parametrize(
    ("option", "key"), [("observation_key", "state"), ("end_key", ("next", "over")), ("end_key", "next")]
)
def test_a_wrong_key_is_named_with_the_keys_there_are(option: str, key: Any) -> None:
    model: Any = Known()
    keys: dict[str, Any] = {option: key}
    buffer = make(InfluenceSampler(model, **keys))
    buffer.extend(steps([[1.0]]))
    with pytest.raises(ValueError, match=option) as found:
        buffer.sample()
    assert all(part in str(found.value) for part in (repr(key), "achieved_goal", "('next', 'done')"))
