"""The memory against plain loops over its episodes: what is stored, what is drawn, and which goals it chooses."""

from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from butfor.models.networks import make_generators
from butfor.training.replay import NOISE, Batch, ReplayBuffer, ReplayConfig, Weights, sample

STEPS = 6
SIZES = (3, 2, 2)
ALMOST_ONE = 1 - 2**-24  # the largest number that a uniform float32 can be


def episodes(first: int, lengths: list[list[int]], steps: int = STEPS, ends: bool = False) -> dict[str, NDArray[Any]]:
    """Episodes `first`, `first + 1`, ... of each replica that tell where every number belongs; padding is NaN.

    The state is (replica, episode, time), the achieved goal (episode, time), the desired one (-episode, -time), the
    action (episode, 10 time + replica). Every third action is sampled; with `ends`, odd episodes terminate.
    """
    length = np.array(lengths)
    replica, episode, time = np.meshgrid(
        np.arange(len(length)), first + np.arange(length.shape[1]), np.arange(steps + 1.0), indexing="ij"
    )
    known = time <= length[..., None]  # the last state is known, the action there is not

    def stacked(*parts: NDArray[Any]) -> NDArray[np.float32]:
        return np.where(known[..., None], np.stack(parts, -1), np.nan).astype(np.float32)

    action = np.where((time < length[..., None])[..., None], np.stack([episode, 10 * time + replica], -1), np.nan)
    return {
        "observation": stacked(replica, episode, time),
        "action": action[:, :, :-1].astype(np.float32),
        "achieved_goal": stacked(episode, time),
        "desired_goal": stacked(-episode, -time),
        "sampled": ((episode + time) % 3 == 0)[:, :, :-1] & (time < length[..., None])[:, :, :-1],
        "length": length,
        "terminated": (episode[..., 0] % 2 == 1) & ends,
    }


def random_lengths(replicas: int, num_envs: int, seed: int, steps: int = STEPS) -> list[list[int]]:
    drawn: list[list[int]] = np.random.default_rng(seed).integers(1, steps + 1, (replicas, num_envs)).tolist()
    return drawn


def wrapped(
    replicas: int = 2, capacity: int = 5, num_envs: int = 3, rounds: int = 4, ends: bool = False
) -> ReplayBuffer:
    """A ring that has gone round more than twice, with episodes of unequal lengths."""
    replay = ReplayBuffer(replicas, capacity, STEPS, SIZES, "cpu")
    for index in range(rounds):
        replay.store(episodes(index * num_envs, random_lengths(replicas, num_envs, index), ends=ends))
    return replay


def uniform_weights(replay: ReplayBuffer, even: bool = True) -> Weights:
    weights = Weights(replay, even)
    weights.fill(replay.valid().float())
    return weights


def at_one_step(replay: ReplayBuffer, episode: int, time: int) -> Weights:
    """Weights that leave no choice: this step of each replica."""
    weights = Weights(replay, even=False)
    one = torch.zeros_like(replay.score)
    one[:, episode, time] = 0.7
    weights.fill(one)
    return weights


def uniform(replicas: int, count: int, seed: int = 0) -> Tensor:
    """Noise of random numbers, among them every combination of the extreme ones."""
    noise = torch.stack([torch.rand(count, NOISE, generator=g) for g in make_generators(range(seed, seed + replicas))])
    ends = torch.cartesian_prod(*[torch.tensor([0.0, ALMOST_ONE])] * NOISE)
    noise[:, : len(ends)] = ends
    return noise


def midpoints(count: int) -> Tensor:
    """The middles of `count` equal parts of [0, 1]."""
    return (torch.arange(count, dtype=torch.float64) + 0.5) / count


def no_reward(achieved: Tensor, desired: Tensor) -> Tensor:
    return torch.zeros(achieved.shape[:-1])


def asymmetric_reward(achieved: Tensor, desired: Tensor) -> Tensor:
    """Another number for each pair of goals, and another if they are swapped."""
    return 1e4 * achieved[..., 0] + 100 * achieved[..., 1] + desired[..., 0] - 3 * desired[..., 1]


# --- what is stored -------------------------------------------------------------------------------


@pytest.mark.parametrize("num_envs", [1, 2, 5])
def test_the_ring_holds_the_newest_episodes_and_reaches_its_full_capacity(num_envs: int) -> None:
    replay = ReplayBuffer(2, 5, STEPS, SIZES, "cpu")
    model: list[deque[tuple[int, int]]] = [deque(maxlen=5) for _ in range(2)]  # (episode, length)
    for index in range(7):
        lengths = random_lengths(2, num_envs, index)
        slots = replay.store(episodes(index * num_envs, lengths))
        assert slots.tolist() == [(index * num_envs + env_name) % 5 for env_name in range(num_envs)]
        for replica, own in enumerate(lengths):
            model[replica].extend((index * num_envs + env_name, length) for env_name, length in enumerate(own))
        assert replay.stored == (index + 1) * num_envs
        assert replay.size == len(model[0]) == min(5, (index + 1) * num_envs)
        for replica in range(2):
            for slot, (episode, length) in zip(replay.slots(5).tolist(), model[replica], strict=True):
                assert replay.length[replica, slot] == length
                known = replay.observation[replica, slot, : length + 1]
                assert known.tolist() == [[replica, episode, time] for time in range(length + 1)]
                assert replay.achieved_goal[replica, slot, : length + 1].tolist() == [
                    [episode, time] for time in range(length + 1)
                ]
                assert replay.action[replica, slot, :length].tolist() == [
                    [episode, 10 * time + replica] for time in range(length)
                ]
                assert replay.sampled[replica, slot, :length].tolist() == [
                    (episode + time) % 3 == 0 for time in range(length)
                ]
        expected = (torch.arange(STEPS) < replay.length[..., None]).sum()
        assert replay.valid().sum() == expected == sum(length for own in model for _, length in own)
    assert replay.size == 5


def test_more_episodes_at_once_than_there_is_room_for_leave_the_newest() -> None:
    replay = ReplayBuffer(1, 3, STEPS, SIZES, "cpu")
    replay.store(episodes(0, random_lengths(1, 8, 0)))
    assert replay.size == 3
    assert replay.observation[0, replay.slots(3), 0, 1].tolist() == [5, 6, 7]
    assert replay.action[0, replay.slots(3), 0, 0].tolist() == [5, 6, 7]


@pytest.mark.parametrize(
    ("stored", "count", "expected"),
    [(0, 4, []), (3, 0, []), (3, 2, [1, 2]), (3, 9, [0, 1, 2]), (5, 5, [0, 1, 2, 3, 4]), (7, 3, [4, 0, 1]),
     (12, 99, [2, 3, 4, 0, 1])],
)  # fmt: skip
def test_slots_are_those_of_the_newest_oldest_first(stored: int, count: int, expected: list[int]) -> None:
    replay = ReplayBuffer(1, 5, STEPS, SIZES, "cpu")
    for index in range(stored):
        replay.store(episodes(index, [[2]]))
    assert replay.slots(count).tolist() == expected


def test_a_new_episode_has_neither_the_score_nor_the_end_of_the_one_it_replaces() -> None:
    replay = ReplayBuffer(1, 1, STEPS, SIZES, "cpu")
    replay.store(episodes(1, [[STEPS]], ends=True))
    replay.score.fill_(3.0)
    assert replay.terminated.all()
    replay.store(episodes(2, [[2]]))
    assert not replay.score.any()
    assert not replay.terminated.any()
    assert replay.valid()[0, 0].tolist() == [True, True, False, False, False, False]


def test_an_empty_memory_has_no_valid_step() -> None:
    replay = ReplayBuffer(2, 3, STEPS, SIZES, "cpu")
    assert replay.size == 0
    assert not replay.valid().any()
    assert replay.valid().shape == (2, 3, STEPS)


# --- state and restore ----------------------------------------------------------------------------


def same_memory(one: ReplayBuffer, other: ReplayBuffer) -> None:
    assert (one.stored, one.size) == (other.stored, other.size)
    for name in one.fields:
        left, right = getattr(one, name)[:, : one.size], getattr(other, name)[:, : one.size]
        assert left.dtype == right.dtype, name
        torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True, msg=name)


@pytest.mark.parametrize(("rounds", "capacity"), [(1, 9), (3, 9), (2, 9), (4, 5), (0, 5)])
def test_a_restored_memory_goes_on_as_if_never_saved(rounds: int, capacity: int, tmp_path: Any) -> None:
    replay = wrapped(rounds=rounds, capacity=capacity, ends=True)
    replay.score.uniform_(generator=make_generators([3])[0])
    torch.save(replay.state(), tmp_path / "memory.pt")
    restored = ReplayBuffer(2, capacity, STEPS, SIZES, "cpu")
    restored.restore(torch.load(tmp_path / "memory.pt", weights_only=True))
    same_memory(replay, restored)
    for memory in (replay, restored):
        memory.store(episodes(100, random_lengths(2, 3, 9), ends=True))
    same_memory(replay, restored)


@pytest.mark.parametrize("rounds", [1, 3])  # 9 episodes fill the ring to the brim without going round
def test_a_memory_may_grow_while_it_has_not_gone_round(rounds: int) -> None:
    replay, larger = wrapped(rounds=rounds, capacity=9), ReplayBuffer(2, 20, STEPS, SIZES, "cpu")
    larger.restore(replay.state())
    same_memory(replay, larger)
    larger.store(episodes(50, [[1, 2], [3, 4]]))
    assert larger.size == 3 * rounds + 2
    assert larger.observation[0, larger.slots(3), 0, 1].tolist() == [3 * rounds - 1, 50, 51]


@pytest.mark.parametrize("capacity", [4, 6, 50])
def test_a_ring_that_has_gone_round_is_not_put_into_one_of_another_size(capacity: int) -> None:
    with pytest.raises(ValueError, match=rf"5 episodes.*{capacity}"):
        ReplayBuffer(2, capacity, STEPS, SIZES, "cpu").restore(wrapped(capacity=5).state())


def test_a_memory_that_is_too_small_for_what_was_saved_says_so() -> None:
    state = wrapped(rounds=2, capacity=9).state()  # 6 episodes
    with pytest.raises(ValueError, match=r"6 episodes.* 4"):
        ReplayBuffer(2, 4, STEPS, SIZES, "cpu").restore(state)


def test_a_saved_state_does_not_change_with_the_memory() -> None:
    replay = wrapped(capacity=5)
    state = replay.state()
    before = {name: state[name].clone() for name in replay.fields}
    replay.store(episodes(100, random_lengths(2, 3, 9)))
    replay.score.fill_(1.0)
    for name, value in before.items():
        torch.testing.assert_close(state[name], value, rtol=0, atol=0, equal_nan=True, msg=name)


# --- draws by weight ------------------------------------------------------------------------------


def test_drawn_frequencies_are_the_weights_up_to_the_grid() -> None:
    replay = ReplayBuffer(2, 6, STEPS, SIZES, "cpu")
    weight = torch.rand(2, 6, STEPS, generator=make_generators([0])[0])
    weight[weight < 0.3] = 0
    weight[0, 0], weight[1, 5], weight[0, 3, 1:] = 0, 0, 0
    weights, count = Weights(replay, even=False), 300
    weights.fill(weight)
    noise = torch.cartesian_prod(midpoints(count), midpoints(count)).expand(2, -1, -1)
    episode, time = weights.draw(noise)
    for replica in range(2):
        drawn = torch.zeros(6, STEPS, dtype=torch.float64)
        drawn.index_put_((episode[replica], time[replica]), torch.ones(count**2, dtype=torch.float64), accumulate=True)
        share = weight[replica].double() / weight[replica].double().sum()
        # a grid of n points hits an interval of length p between n p - 1 and n p + 1 times
        assert (drawn.sum(1) / count**2 - share.sum(1)).abs().max() <= 1 / count
        for row in range(6):
            if drawn[row].sum() > 0:
                given = drawn[row] / drawn[row].sum()
                assert (given - share[row] / share[row].sum()).abs().max() <= 1 / count
        assert not drawn[weight[replica] == 0].any()


@pytest.mark.parametrize("scale", [1.0, 1e-8, 1e6])
def test_a_step_of_weight_zero_is_never_drawn_not_even_by_the_extreme_numbers(scale: float) -> None:
    replay = ReplayBuffer(3, 7, STEPS, SIZES, "cpu")
    weight = torch.zeros(3, 7, STEPS)
    weight[0, 2:5, 1:4] = torch.rand(3, 3, generator=make_generators([1])[0]) + 0.1  # zeros on all sides
    weight[0, 3, 2] = weight[0, 3, 1] = 0
    weight[1, 6, STEPS - 1] = 1  # a single step, the last
    weight[2, 0, 0], weight[2, 6, 5] = 1e-6, 1e4  # first and last, of very unequal weight
    weights = Weights(replay, even=False)
    weights.fill(weight * scale)
    extreme = torch.tensor([0.0, 2**-24, 2**-12, 1 / 3, 0.5, 1 - 2**-12, 1 - 2**-23, ALMOST_ONE])
    noise = torch.cat([torch.cartesian_prod(extreme, extreme), torch.rand(2000, 2, generator=make_generators([2])[0])])
    episode, time = weights.draw(noise.expand(3, -1, -1))
    for replica in range(3):
        assert (weight[replica][episode[replica], time[replica]] > 0).all()
    assert set(zip(episode[1].tolist(), time[1].tolist(), strict=True)) == {(6, STEPS - 1)}
    assert [int(episode[2, 0]), int(time[2, 0])] == [0, 0]  # noise 0 is the first step however small its weight
    assert (episode[2, 1:] == 6).sum() > 1000


def test_even_weights_draw_what_their_running_sums_would() -> None:
    """Steps of an episode that weigh the same are found by counting; episodes weigh what they like."""
    replay = wrapped()
    episode_weight = torch.rand(2, 5, 1, generator=make_generators([0])[0])
    episode_weight[0, 2] = 0
    noise = torch.cartesian_prod(midpoints(211), midpoints(7 * 6 * 5 * 4 + 1)).float().expand(2, -1, -1)
    drawn = []
    for even in (True, False):
        weights = Weights(replay, even)
        weights.fill(replay.valid() * episode_weight)
        drawn.append(weights.draw(noise))
    assert torch.equal(drawn[0][0], drawn[1][0])
    assert torch.equal(drawn[0][1], drawn[1][1])


def test_even_weights_never_draw_padding_whatever_the_length() -> None:
    replay = ReplayBuffer(1, 1000, 1000, (1, 1, 1), "cpu")
    replay.length[0] = torch.arange(1, 1001)
    weights = uniform_weights(replay)
    noise = torch.full((1, 20_000, 2), ALMOST_ONE)
    noise[0, :, 0] = torch.rand(20_000, generator=make_generators([0])[0])
    episode, time = weights.draw(noise)
    assert torch.equal(time, replay.length[0, episode] - 1)  # the last step of each
    assert len(episode.unique()) > 900


@pytest.mark.parametrize("even", [False, True])
def test_of_ten_thousand_ranked_episodes_each_has_its_own_part_of_the_numbers(even: bool) -> None:
    """A running sum in single precision would shift the small parts at the end by a good share of their size."""
    replay = ReplayBuffer(1, 10_000, 1, SIZES, "cpu")
    replay.length.fill_(1)
    weight = 1 / torch.arange(1, 10_001.0)
    weights = Weights(replay, even)
    weights.fill(weight.view(1, -1, 1))
    end = weight.double().cumsum(0)
    for place in (0.01, 0.99):
        noise = torch.zeros(1, 10_000, 2, dtype=torch.float64)
        noise[0, :, 0] = (end - (1 - place) * weight.double()) / end[-1]
        assert torch.equal(weights.draw(noise)[0][0], torch.arange(10_000))


def test_new_weights_replace_the_old_ones_in_the_same_tensors() -> None:
    replay = ReplayBuffer(1, 3, 2, SIZES, "cpu")
    weights = Weights(replay, even=False)
    step, running = weights.step, weights.running
    weights.fill(torch.ones(1, 3, 2))
    weights.fill(torch.tensor([[[0.0, 0.0], [0.0, 4.0], [0.0, 0.0]]]))
    assert weights.step is step
    assert weights.running is running
    episode, time = weights.draw(torch.rand(1, 50, 2, generator=make_generators([0])[0]))
    assert (episode == 1).all()
    assert (time == 1).all()


# --- samples --------------------------------------------------------------------------------------


def test_a_share_of_the_replaced_goals_is_the_desired_goal_of_another_episode() -> None:
    replay = wrapped()
    weights = uniform_weights(replay)
    config = ReplayConfig(hindsight=0.8, other_goals=0.25)
    noise = torch.cat([uniform(2, 1000), uniform(2, 1000, seed=7)[..., :2]], -1)
    assert noise.shape[-1] == config.noise
    batch = sample(replay, weights, noise, asymmetric_reward, config)
    plain = sample(replay, weights, noise[..., :NOISE], asymmetric_reward, ReplayConfig(hindsight=0.8))
    other, _ = weights.draw(noise[..., NOISE:])
    is_other = noise[..., 2] < 0.2
    assert torch.equal(batch.inputs[~is_other], plain.inputs[~is_other])
    expected = replay.desired_goal[replay.rows, other, 0]
    assert torch.equal(batch.inputs[..., 3:][is_other], expected[is_other])
    assert torch.equal(batch.next_inputs[..., 3:], batch.inputs[..., 3:])
    achieved = replay.achieved_goal[replay.rows, batch.episode, batch.time + 1]
    assert torch.equal(batch.reward, asymmetric_reward(achieved, batch.inputs[..., 3:]))


def test_other_goals_can_be_drawn_uniformly_whatever_the_weights() -> None:
    """Of three episodes, of which the first has all the weight, each gives a third of the goals (2,000 draws)."""
    replay = ReplayBuffer(1, 5, 2, (3, 1, 1), "cpu")
    episodes = {
        "observation": np.zeros((1, 3, 3, 3)),
        "action": np.zeros((1, 3, 2, 1)),
        "achieved_goal": np.zeros((1, 3, 3, 1)),
        "desired_goal": np.arange(3.0)[None, :, None, None].repeat(3, 2),
        "length": np.full((1, 3), 2),
    }
    replay.store(episodes)
    weights = Weights(replay, even=True)
    weight = torch.zeros(1, 5, 2)
    weight[:, 0] = 1.0
    weights.fill(weight)
    config = ReplayConfig(hindsight=1.0, other_goals=1.0, other_goals_by="uniform")
    noise = torch.rand(1, 2000, config.noise, generator=make_generators([0])[0])
    noise[0, 0] = 1 - 2**-24
    goal = sample(replay, weights, noise, no_reward, config).inputs[0, :, 3]
    assert goal[0] == 2
    for episode in range(3):
        assert float((goal == episode).float().mean()) == pytest.approx(1 / 3, abs=0.05)
    by_weight = ReplayConfig(hindsight=1.0, other_goals=1.0)
    assert (sample(replay, weights, noise, no_reward, by_weight).inputs[0, :, 3] == 0).all()


def test_influenced_goals_come_from_after_the_next_influenced_step() -> None:
    replay = wrapped()
    replay.score.copy_(torch.rand(replay.score.shape, generator=make_generators([4])[0]))
    weights = uniform_weights(replay)
    batch = sample(replay, weights, uniform(2, 1000), no_reward, ReplayConfig(hindsight=1.0, influenced_goals=0.7))
    kept = 0
    for replica in range(2):
        for i in range(1000):
            slot, t = int(batch.episode[replica, i]), int(batch.time[replica, i])
            length = int(replay.length[replica, slot])
            later = [k for k in range(t, length) if replay.score[replica, slot, k] > 0.7]
            goal = batch.inputs[replica, i, 3:]
            if later:
                assert later[0] < goal[1] <= length
            else:
                assert torch.equal(goal, replay.desired_goal[replica, slot, t])
                kept += 1
    assert 0 < kept < 2000


def test_relative_goals_are_what_is_left_to_the_goal() -> None:
    replay = wrapped()
    weights = uniform_weights(replay)
    noise = uniform(2, 200)
    plain = sample(replay, weights, noise, no_reward, ReplayConfig())
    batch = sample(replay, weights, noise, no_reward, ReplayConfig(relative_goals=True))
    goal = plain.inputs[..., 3:]
    for inputs, before, time in (
        (batch.inputs, plain.inputs, plain.time),
        (batch.next_inputs, plain.next_inputs, plain.time + 1),
    ):
        assert torch.equal(inputs[..., :5], before)
        assert torch.equal(inputs[..., 5:], goal - replay.achieved_goal[replay.rows, plain.episode, time])


@pytest.mark.parametrize(("hindsight", "even"), [(0.0, True), (0.8, True), (0.8, False), (1.0, False)])
def test_a_batch_is_what_a_plain_loop_takes_from_the_memory(hindsight: float, even: bool) -> None:
    replay = wrapped(ends=True)
    replay.score.copy_(torch.rand(replay.score.shape, generator=make_generators([4])[0]))
    noise = uniform(2, 1000)
    weights = uniform_weights(replay, even)
    batch = sample(replay, weights, noise, asymmetric_reward, ReplayConfig(hindsight=hindsight))
    episodes_drawn, times = weights.draw(noise[..., :2])
    relabelled = 0
    for replica in range(2):
        for i in range(1000):
            slot, t = int(episodes_drawn[replica, i]), int(times[replica, i])
            length = int(replay.length[replica, slot])
            assert t < length
            goal = batch.inputs[replica, i, 3:]
            episode = float(replay.observation[replica, slot, 0, 1])
            if noise[replica, i, 2] < hindsight:
                assert goal[0] == episode  # achieved in the same episode
                assert t < goal[1] <= length  # and later
                relabelled += 1
            else:
                assert goal.tolist() == [-episode, -t]
            assert batch.inputs[replica, i, :3].tolist() == [replica, episode, t]
            assert batch.next_inputs[replica, i, :3].tolist() == [replica, episode, t + 1]
            assert torch.equal(batch.next_inputs[replica, i, 3:], goal)
            assert batch.action[replica, i].tolist() == [episode, 10 * t + replica]
            expected = 1e4 * episode + 100 * (t + 1) + goal[0] - 3 * goal[1]  # achieved at t + 1, then the goal
            assert batch.reward[replica, i] == expected
            ended = episode % 2 == 1 and t + 1 == length
            assert batch.bootstrap[replica, i] == (0 if ended else 1)
            assert batch.score[replica, i] == replay.score[replica, slot, t]
            assert [int(batch.episode[replica, i]), int(batch.time[replica, i])] == [slot, t]
    assert batch.weight is None
    assert 0 < float(1 - batch.bootstrap.mean()) < 0.5  # some ended
    assert relabelled == int((noise[..., 2] < hindsight).sum())


@pytest.mark.parametrize(("length", "time"), [(6, 0), (6, 5), (6, 2), (4, 0), (4, 3), (1, 0)])
def test_every_later_state_is_an_equally_likely_goal_and_no_other(length: int, time: int) -> None:
    replay = ReplayBuffer(2, 3, STEPS, SIZES, "cpu")
    replay.store(episodes(0, [[STEPS, length, 1], [2, length, STEPS]]))
    count = 60 * 7  # divisible by every number of later states
    noise = torch.full((2, count, NOISE), 0.5)
    noise[..., 3] = midpoints(count)
    batch = sample(replay, at_one_step(replay, 1, time), noise, no_reward, ReplayConfig(hindsight=1.0))
    expected = dict.fromkeys(range(time + 1, length + 1), count // (length - time))
    for replica in range(2):
        assert (batch.inputs[replica, :, 3] == 1).all()
        times, counts = batch.inputs[replica, :, 4].unique(return_counts=True)
        assert dict(zip(times.int().tolist(), counts.tolist(), strict=True)) == expected


@pytest.mark.parametrize("steps", [50, 64, 1000])
@pytest.mark.parametrize("share", [0.0, ALMOST_ONE])
def test_the_extreme_numbers_choose_the_next_and_the_last_state(steps: int, share: float) -> None:
    replay = ReplayBuffer(1, 1, steps, SIZES, "cpu")
    replay.store(episodes(0, [[steps]], steps))
    weights = uniform_weights(replay)
    noise = torch.zeros(1, steps, NOISE)
    noise[0, :, 1], noise[..., 3] = midpoints(steps), share
    batch = sample(replay, weights, noise, no_reward, ReplayConfig(hindsight=1.0))
    time = torch.arange(steps)
    assert torch.equal(batch.time[0], time)
    expected = time + 1 if share == 0 else torch.full_like(time, steps)
    assert torch.equal(batch.inputs[0, :, 4].long(), expected)


@pytest.mark.parametrize("hindsight", [0.0, 0.25, 0.8, 1.0])
def test_the_share_of_relabelled_goals_is_hindsight(hindsight: float) -> None:
    replay = wrapped()
    noise = uniform(2, 1000)
    noise[..., 2] = midpoints(1000)
    batch = sample(replay, uniform_weights(replay), noise, no_reward, ReplayConfig(hindsight=hindsight))
    for replica in range(2):  # desired goals are never positive, achieved ones always have a positive time
        assert int((batch.inputs[replica, :, 4] > 0).sum()) == round(1000 * hindsight)


def test_a_replica_among_others_gives_what_it_gives_alone() -> None:
    together, noise = wrapped(replicas=3), uniform(3, 500)
    batch = sample(together, uniform_weights(together), noise, asymmetric_reward, ReplayConfig())
    for replica in range(3):
        alone = ReplayBuffer(1, 5, STEPS, SIZES, "cpu")
        for index in range(4):
            given = episodes(index * 3, random_lengths(3, 3, index))
            alone.store({name: value[replica : replica + 1] for name, value in given.items()})
        own = sample(alone, uniform_weights(alone), noise[replica : replica + 1], asymmetric_reward, ReplayConfig())
        for name in ("inputs", "action", "next_inputs", "reward", "bootstrap", "episode", "time"):
            assert torch.equal(getattr(own, name)[0], getattr(batch, name)[replica]), name


# --- batches and settings -------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "sizes"), [(4, [4, 4, 2]), (10, [10]), (99, [10]), (1, [1] * 10)])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_batch_is_split_in_order_with_nothing_lost(size: int, sizes: list[int], weighted: bool) -> None:
    replay = wrapped()
    whole = sample(replay, uniform_weights(replay), uniform(2, 40, 5)[:, 16:26], asymmetric_reward, ReplayConfig())
    whole.weight = torch.rand(2, 10) if weighted else None
    parts = whole.split(size)
    assert [part.reward.shape[1] for part in parts] == sizes
    for name in Batch.__dataclass_fields__:
        values = [getattr(part, name) for part in parts]
        if getattr(whole, name) is None:
            assert values == [None] * len(parts)
        else:
            assert torch.equal(torch.cat(values, 1), getattr(whole, name)), name


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"capacity": 0}, "capacity must be at least 1"),
        ({"capacity": -3}, "capacity.* -3"),
        ({"hindsight": 1.2}, r"hindsight.* 1\.2"),
        ({"hindsight": -0.1}, "hindsight"),
        ({"hindsight": float("nan")}, "hindsight.* nan"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReplayConfig(**settings)
