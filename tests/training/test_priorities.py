"""Priorities against plain loops over the paper's formulas; padding, empty slots and other replicas never matter."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from butfor.training.priorities import (
    PriorityConfig,
    beta_at,
    by_energy,
    by_error,
    by_score,
    importance_weights,
)
from butfor.training.replay import valid_steps

TransitionTable = tuple[Tensor, Tensor, Tensor]  # score [R, E, T], achieved_goal [R, E, T+1, 3], length [R, E]
Weigh = Callable[[Tensor, Tensor, Tensor], Tensor]
WEIGHTS: dict[str, Weigh] = {
    "uniform": lambda score, achieved_goal, length: valid_steps(length, score.shape[-1]).float(),
    "error": lambda score, achieved_goal, length: by_error(score, length, 0.6),
    "energy": lambda score, achieved_goal, length: by_energy(achieved_goal, length),
    "influence": lambda score, achieved_goal, length: by_score(score, length),
    "influence, flatter and by step": lambda score, achieved_goal, length: by_score(score, length, 0.5, 0.3),
}
every_weight = pytest.mark.parametrize("weigh", WEIGHTS.values(), ids=WEIGHTS)


@st.composite
def memories(draw: st.DrawFn) -> TransitionTable:
    """Scores in eighths (many equal, sums exact), episodes of unequal lengths with empty slots, NaN after each end."""
    replicas, episodes, steps = draw(st.integers(1, 3)), draw(st.integers(1, 6)), draw(st.integers(1, 5))

    def numbers(values: st.SearchStrategy[Any], *shape: int) -> list[Any]:
        return draw(st.lists(values, min_size=math.prod(shape), max_size=math.prod(shape)))

    length = torch.tensor(numbers(st.integers(0, steps), replicas, episodes)).view(replicas, episodes)
    score = torch.tensor(numbers(st.integers(0, 16), replicas, episodes, steps)) / 8
    goal = torch.tensor(numbers(st.integers(0, 8), replicas, episodes, steps + 1, 3)) / 64
    score, goal = score.view(replicas, episodes, steps), goal.view(replicas, episodes, steps + 1, 3)
    score[torch.arange(steps) >= length[..., None]] = torch.nan
    goal[torch.arange(steps + 1) > length[..., None]] = torch.nan
    return score, goal, length


def expected_p(totals: list[float], exponent: float = 1.0) -> list[float]:
    """Section 6.3: p_i = (M + 1 - rank_i)^-1, rank_i ascending in the scores of M episodes."""
    M = len(totals)
    ascending = sorted(range(M), key=lambda i: (totals[i], -i))  # of equal scores the first is the highest
    return [(M + 1 - (ascending.index(i) + 1)) ** -exponent for i in range(M)]


def energy_of(position: list[list[float]], time_step: float = 0.04) -> float:
    """EBP: the clipped gains of E_t = g (z_t - z_0) + |x_t - x_{t-1}|^2 / (2 dt^2), summed, with E_0 = 0."""
    total, before = 0.0, 0.0
    for t in range(1, len(position)):
        speed = math.dist(position[t], position[t - 1]) / time_step
        energy = 9.81 * (position[t][2] - position[0][2]) + speed**2 / 2
        total += min(max(energy - before, 0.0), 0.5)
        before = energy
    return total


@every_weight
@settings(max_examples=40, deadline=None)
@given(memory=memories())
def test_only_stored_steps_weigh_and_some_do(weigh: Weigh, memory: TransitionTable) -> None:
    score, _, length = memory
    weight = weigh(*memory)
    assert (weight.shape, weight.dtype) == (score.shape, torch.float32)
    padding = torch.arange(score.shape[-1]) >= length[..., None]
    assert (weight[padding] == 0).all()
    assert (weight >= 0).all()  # no NaN either
    assert torch.equal((weight > 0).any(2).any(1), (length > 0).any(1))


@every_weight
@settings(max_examples=40, deadline=None)
@given(memory=memories())
def test_replicas_do_not_mix(weigh: Weigh, memory: TransitionTable) -> None:
    together = weigh(*memory)
    for replica in range(len(together)):
        alone = weigh(*(values[replica : replica + 1] for values in memory))
        torch.testing.assert_close(together[replica], alone[0], rtol=1e-6, atol=0)


@settings(max_examples=60, deadline=None)
@given(memory=memories(), exponent=st.sampled_from([1.0, 0.5, 0.0]), share=st.sampled_from([0.0, 0.25, 1.0]))
def test_influence_agrees_with_a_loop_over_the_formula(memory: TransitionTable, exponent: float, share: float) -> None:
    """Its steps share an episode's weight: a part by score (alike where none has any), the rest in equal parts."""
    score, _, length = memory
    expected = torch.zeros(score.shape, dtype=torch.float64)
    for replica in range(len(score)):
        stored = [episode for episode in range(score.shape[1]) if length[replica, episode] > 0]
        states = [score[replica, episode, : length[replica, episode]].tolist() for episode in stored]
        chances = expected_p([math.fsum(each) for each in states], exponent)
        for episode, p, values in zip(stored, chances, states, strict=True):
            total, count = math.fsum(values), len(values)
            parts = [value / total if total else 1 / count for value in values]
            steps = [p * (share * part + (1 - share) / count) for part in parts]
            expected[replica, episode, :count] = torch.tensor(steps, dtype=torch.float64)
    weight = by_score(score, length, exponent, share)
    least = 1e-5 if share else 0.0  # what steps without influence get
    torch.testing.assert_close(weight.double(), expected, rtol=1e-5 + 10 * least, atol=1e-12 + least)
    torch.testing.assert_close(weight.sum(-1).double(), expected.sum(-1), rtol=1e-5, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(memory=memories())
def test_energy_agrees_with_a_loop_over_the_formula(memory: TransitionTable) -> None:
    score, goal, length = memory
    expected = torch.zeros(score.shape, dtype=torch.float64)
    for replica in range(len(score)):
        counts = length[replica].tolist()
        energy = [energy_of(goal[replica, episode, : count + 1].tolist()) for episode, count in enumerate(counts)]
        for episode, count in enumerate(counts):
            if count:
                expected[replica, episode, :count] = (energy[episode] if any(energy) else 1.0) / count
    torch.testing.assert_close(by_energy(goal, length).double(), expected, rtol=1e-5, atol=1e-6)


def test_three_episodes_by_hand() -> None:
    score = torch.tensor([[[0.1, 0.2, 9.0], [0.0, 0.0, 0.0], [0.5, 0.5, 0.5], [7.0, 7.0, 7.0]]])
    length = torch.tensor([[2, 3, 1, 0]])  # totals 0.3, 0, 0.5, and an empty slot: ranks 2, 3, 1
    weight = by_score(score, length)
    expected = [[1 / 4, 1 / 4, 0], [1 / 9, 1 / 9, 1 / 9], [1, 0, 0], [0, 0, 0]]
    torch.testing.assert_close(weight, torch.tensor([expected]))


@pytest.mark.parametrize("count", [100, 2_000, 6_000])
def test_how_many_episodes_are_drawn_in_effect(count: int) -> None:
    """(sum p)^2 / sum p^2: the paper's exponent hardly draws more episodes as they grow in number, and 1/2 does."""
    score = torch.rand(1, count, 1, generator=torch.Generator().manual_seed(0))
    length = torch.ones(1, count, dtype=torch.int64)

    def in_effect(exponent: float) -> float:
        weight = by_score(score, length, exponent).double()
        return float(weight.sum() ** 2 / weight.square().sum())

    harmonic = math.log(count) + 0.5772 + 0.5 / count  # sum of 1 / rank
    assert in_effect(1.0) == pytest.approx(harmonic**2 / (math.pi**2 / 6 - 1 / count), rel=1e-3)
    assert in_effect(0.5) == pytest.approx((2 * math.sqrt(count) - 1.46) ** 2 / harmonic, rel=0.01)
    assert in_effect(0.0) == pytest.approx(count)


def test_a_negative_estimate_ranks_below_zero() -> None:
    score, length = torch.tensor([[[-3.0], [0.0], [2.0]]]), torch.tensor([[1, 1, 1]])
    assert by_score(score, length).flatten().tolist() == pytest.approx([1 / 3, 1 / 2, 1])
    assert by_score(score, length, PriorityConfig(rank_exponent=1).rank_exponent, 0.5).sum() == pytest.approx(11 / 6)


def test_a_step_with_a_negative_estimate_has_no_part_by_score() -> None:
    weight = by_score(torch.tensor([[[-3.0, 1.0, 3.0]]]), torch.tensor([[3]]), 1, 0.5)
    assert weight.flatten().tolist() == pytest.approx([1 / 6, 1 / 6 + 1 / 8, 1 / 6 + 3 / 8], abs=1e-5)


def test_without_any_score_ranks_follow_the_slots() -> None:
    totals = by_score(torch.zeros(1, 4, 2), torch.tensor([[2, 0, 1, 2]])).sum(-1)
    torch.testing.assert_close(totals, torch.tensor([[1.0, 0, 1 / 2, 1 / 3]]))


def test_a_position_that_is_not_a_number_shows() -> None:
    goal = torch.ones(1, 2, 2, 3)
    goal[0, 0, 1, 2] = torch.nan
    assert by_energy(goal, torch.ones(1, 2, dtype=torch.long)).isnan().any()


def test_a_lifted_cube_by_hand() -> None:
    """1 mm up in a step: 9.81e-3 J of height and 0.025^2 / 2 J of motion; the motion ends in the next step."""
    rest = torch.tensor([1.3, 0.7, 0.42])
    up = rest + torch.tensor([0, 0, 0.001])
    thrown = rest + torch.tensor([0.5, 0, 0])  # (0.5 / 0.04)^2 / 2 = 78 J, counted as 0.5; what follows is padding
    goal = torch.stack(
        [torch.stack([rest, rest, up, up]), torch.stack([rest] * 4), torch.stack([rest, thrown, -rest, rest])]
    )
    weight = by_energy(goal[None].double(), torch.tensor([[3, 3, 1]]))
    lifted = 9.81e-3 + 0.025**2 / 2
    expected = torch.tensor([[[lifted / 3] * 3, [0.0] * 3, [0.5, 0, 0]]])
    torch.testing.assert_close(weight, expected, rtol=1e-4, atol=0)


def test_energy_depends_on_the_time_step() -> None:
    goal = torch.tensor([[[[0.0, 0, 0], [0.01, 0, 0]]]])
    for time_step in (0.04, 0.1):
        weight = by_energy(goal, torch.tensor([[1]]), time_step).item()
        assert weight == pytest.approx((0.01 / time_step) ** 2 / 2, rel=1e-5)


def test_without_any_energy_a_replica_is_uniform() -> None:
    goal = torch.ones(2, 3, 5, 3)
    goal[1, 0, 1:, 2] += 0.01
    weight = by_energy(goal, torch.tensor([[4, 2, 0], [4, 2, 0]]))
    torch.testing.assert_close(weight[0].sum(-1), torch.tensor([1.0, 1, 0]))
    assert weight[1, 0, 0] > 0
    assert (weight[1, 1:] == 0).all()


def test_errors_are_floored_and_raised_to_alpha() -> None:
    weight = by_error(torch.tensor([[[0.0, 32.0, 1.0, 5.0]]]), torch.tensor([[3]]), 0.6)
    torch.testing.assert_close(weight, torch.tensor([[[1e-6**0.6, 8.0, 1.0, 0.0]]]))
    even = by_error(torch.tensor([[[0.0, 32.0, 1.0, 5.0]]]), torch.tensor([[3]]), 0.0)
    assert even.tolist() == [[[1, 1, 1, 0]]]


def test_valid_steps_are_those_before_the_end() -> None:
    length = torch.tensor([[0, 1], [3, 2]])
    expected = [[[0, 0, 0], [1, 0, 0]], [[1, 1, 1], [1, 1, 0]]]
    assert valid_steps(length, 3).dtype == torch.bool
    assert valid_steps(length, 3).int().tolist() == expected


@settings(max_examples=60, deadline=None)
@given(memory=memories(), exponent=st.floats(0, 1), kind=st.sampled_from(["error", "influence", "energy"]))
def test_importance_weights_agree_with_the_formula(memory: TransitionTable, exponent: float, kind: str) -> None:
    """(N P)^-exponent over its maximum, for every drawable step of the memory: at most 1, and 1 at the smallest."""
    weight = WEIGHTS[kind](*memory)
    for replica, values in enumerate(weight.flatten(1).tolist()):
        drawable = [value for value in values if value > 0]
        if not drawable:
            continue
        raw = [(len(drawable) * value / sum(drawable)) ** -exponent for value in drawable]
        drawn = torch.tensor([drawable])
        got = importance_weights(weight[replica : replica + 1], drawn, exponent)
        torch.testing.assert_close(got.double(), torch.tensor([raw]).double() / max(raw), rtol=1e-4, atol=0)
        assert (got <= 1).all()
        assert got[0, drawn[0].argmin()] == 1


def test_importance_weights_are_a_replicas_own() -> None:
    weight = torch.tensor([[[1.0, 4.0, 0.0]], [[9.0, 36.0, 81.0]]])
    drawn = torch.tensor([[4.0, 1.0], [81.0, 36.0]])
    half = torch.tensor([[1 / 2, 1], [1 / 3, 1 / 2]])
    for exponent in (0.5, torch.tensor(0.5)):
        torch.testing.assert_close(importance_weights(weight, drawn, exponent), half)


def test_a_step_of_weight_zero_that_rounding_drew_is_bounded() -> None:
    assert importance_weights(torch.tensor([[[0.0, 2.0]]]), torch.zeros(1, 1), 1.0).item() == 1


def test_beta_rises_linearly_to_one() -> None:
    config = PriorityConfig(beta=0.4, beta_episodes=20_000)
    found = [beta_at(config, episode) for episode in (0, 5_000, 10_000, 20_000, 90_000)]
    assert found == pytest.approx([0.4, 0.55, 0.7, 1.0, 1.0])


def everything(score: Tensor, goal: Tensor, length: Tensor) -> dict[str, Tensor]:
    """Every weight of a memory, and the importance weights of its first steps."""
    results = {name: weigh(score, goal, length) for name, weigh in WEIGHTS.items()}
    exponent = score[0, 0, 0] * 0 + 0.5  # on the device, as in a captured step
    results["importance"] = importance_weights(results["error"], results["error"][:, :, 0], exponent)
    return results


def example(device: str) -> TransitionTable:
    generator = torch.Generator().manual_seed(0)
    score, goal = torch.rand(2, 7, 5, generator=generator), torch.rand(2, 7, 6, 3, generator=generator) / 100
    length = torch.randint(1, 6, (2, 7), generator=generator)
    return score.to(device), goal.to(device), length.to(device)


def test_nothing_reads_a_value_on_the_host() -> None:
    """Tensors without values suffice: shapes never depend on values and no step waits for one."""
    for name, result in everything(*example("meta")).items():
        assert result.device.type == "meta", name
        assert result.shape == ((2, 7) if name == "importance" else (2, 7, 5)), name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU: graphs cannot be recorded here")
def test_captured_agrees_with_the_cpu() -> None:
    memory = example("cuda")
    everything(*memory)  # warms up
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = everything(*memory)
    changed = [values.flip(0, 1) for values in example("cpu")]
    for values, new in zip(memory, changed, strict=True):
        values.copy_(new)
    graph.replay()
    for name, expected in everything(*changed).items():
        torch.testing.assert_close(results[name].cpu(), expected, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "cai"}, "kind.*'cai'"),
        ({"alpha": -0.1}, r"alpha.* -0\.1"),
        ({"alpha": math.nan}, "alpha.* nan"),
        ({"beta": -0.4}, r"beta.* -0\.4"),
        ({"beta_episodes": 0}, "beta_episodes must be at least 1; got 0"),
        ({"rank_exponent": -1.0}, r"rank_exponent.* -1"),
        ({"step_share": 1.5}, r"step_share.* 1\.5"),
    ],
)
def test_impossible_configs_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PriorityConfig(**values)
