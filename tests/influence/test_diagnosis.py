"""Every number of a diagnosis by formula, a sound model that is trusted, and each way in which one is not."""

import json
import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from butfor.influence.diagnosis import (
    AtNoise,
    Diagnosis,
    _check_variance,
    chance_of_evidence,
    diagnose_entity,
    find_broken_promises,
    find_noise,
)

ROWS, OTHERS = 4000, 20


def linear_data(gain: float = 1.0, rows: int = ROWS, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """change = gain a + n with a uniform in [-1, 1] and n of variance 1/4 where influenced, and the exact model.

    `believed`: the standard deviation of n that the model expects. `everywhere`: it expects influence everywhere;
    `elsewhere`: only in the other half.
    """
    random = np.random.default_rng(seed)
    action, others = random.uniform(-1, 1, (rows, 1)), random.uniform(-1, 1, (rows, OTHERS))
    influenced = np.arange(rows) < rows // 2
    believed = changes.pop("believed", 0.5)
    expected = ~influenced if changes.pop("elsewhere", False) else influenced | changes.pop("everywhere", False)
    weight = gain * expected[:, None]
    target = gain * action * influenced[:, None] + 0.5 * random.normal(size=(rows, 1))
    imagined = weight * action + believed * random.normal(size=(8, rows, 1))  # what the model expects
    imagined_taken, imagined_others = (norm.logpdf(imagined, weight * a, believed) for a in (action, others))
    arrays = {
        "target": target,
        "mean": weight * action,
        "variance": np.full((rows, 1), believed**2),
        "log_likelihood": norm.logpdf(target, weight * action, believed)[:, 0],
        "log_redrawn": norm.logpdf(target, weight * others, believed),
        "promise": gain_of(imagined_taken, imagined_others).mean(0),
        "promised_rank": rank_of(imagined_taken, imagined_others).mean(0),
        "score": 0.4 * (weight[:, 0] != 0) + 0.01 * random.random(rows),
        "action": action,
    }
    return arrays | changes


def gain_of(taken: Any, redrawn: Any) -> Any:
    """log p(s'|s,a) - log of the mean over all actions: [..., 1], [..., K] -> [...]."""
    density = np.exp(np.concatenate([taken, redrawn], -1))
    return np.log(density[..., 0] / density.mean(-1))


def rank_of(taken: Any, redrawn: Any) -> Any:
    """The share of others that are less likely, half of those that are equal: [..., 1], [..., K] -> [...]."""
    return (redrawn < taken).mean(-1) + 0.5 * (redrawn == taken).mean(-1)


def problems(diagnosis: Diagnosis) -> list[str]:
    return [words.split(": ", 1)[1] for words in diagnosis.words() if words.startswith("A problem")]


def test_the_exact_model_of_the_data_is_trusted() -> None:
    diagnosis = diagnose_entity(**linear_data())
    assert diagnosis.trusted, problems(diagnosis)
    assert diagnosis.size_trusted
    assert len(diagnosis.words()) == len(diagnosis.findings) == 8
    assert not problems(diagnosis)


def test_rare_moves_and_influence_everywhere_are_told_and_are_no_problems() -> None:
    assert diagnose_entity(**linear_data()).notes == []
    still = np.zeros((ROWS, 1))
    still[:80] = 1.0  # 2 %
    rare = diagnose_entity(**linear_data(target=still))
    (note,) = rare.notes
    assert "2.0% of the transitions (80 of 4,000)" in note
    assert note in rare.words()
    assert note in " ".join(repr(rare).split())
    weak = linear_data(score=np.where(np.arange(ROWS) < 40, 0.2, 0.01))
    (note,) = diagnose_entity(**weak).notes
    assert "1.0% of the states" in note
    data = linear_data()
    influenced = ROWS // 2
    always: dict[str, Any] = {name: np.asarray(part)[:influenced] for name, part in data.items()}
    everywhere = diagnose_entity(**always)
    assert everywhere.trusted, problems(everywhere)
    (note,) = everywhere.notes
    assert f"{everywhere.gain_by_score['score'][0]:.2f} nats" in note


def test_the_numbers_follow_their_formulas() -> None:
    data = linear_data()
    diagnosis = diagnose_entity(**data)
    target, mean, likelihood = data["target"][:, 0], data["mean"][:, 0], data["log_likelihood"]
    assert diagnosis.transitions == ROWS
    assert diagnosis.nll == pytest.approx(-likelihood.mean())
    assert diagnosis.nll_constant == pytest.approx(-norm.logpdf(target, target.mean(), target.std()).mean())
    assert diagnosis.nll_still == pytest.approx(-norm.logpdf(target, 0, math.sqrt(np.square(target).mean())).mean())
    constant = norm.pdf(target, target.mean(), target.std())
    assert diagnosis.skill == pytest.approx(np.log(0.99 * np.exp(likelihood) / constant + 0.01).mean())
    error = np.square(target - mean)
    assert diagnosis.r_squared == pytest.approx(1 - error.mean() / target.var())
    assert diagnosis.error_ratio == pytest.approx(error.mean() / np.square(target).mean())
    density = np.exp(np.column_stack([likelihood, data["log_redrawn"]]))
    gain = np.log(density[:, 0] / density.mean(1))
    assert diagnosis.gain == pytest.approx(gain.mean())
    assert diagnosis.gain_error == pytest.approx(gain.std(ddof=1) / math.sqrt(ROWS))
    assert diagnosis.promise == pytest.approx(data["promise"].mean())
    assert np.mean(diagnosis.gain_by_score["promise"]) == pytest.approx(diagnosis.promise)
    assert diagnosis.promise == pytest.approx(diagnosis.gain, abs=4 * diagnosis.gain_error)
    # where there is no influence all actions are equal: the rank is 1/2, and the gain 0
    assert diagnosis.gain_by_score["rank"][:5] == [0.5] * 5
    np.testing.assert_allclose(diagnosis.gain_by_score["gain"][:5], 0, atol=1e-12)
    assert diagnosis.rank == pytest.approx(np.mean(diagnosis.gain_by_score["rank"]))
    rank = rank_of(likelihood[:, None], data["log_redrawn"])
    assert diagnosis.weighted_rank == pytest.approx(np.average(rank, weights=data["score"]))
    assert diagnosis.bounded_gain == pytest.approx(np.log(0.5 + 0.5 * np.exp(gain)).mean())
    assert diagnosis.promised_rank == pytest.approx(np.average(data["promised_rank"], weights=data["score"]))
    assert diagnosis.promised_rank == pytest.approx(diagnosis.weighted_rank, abs=4 * diagnosis.weighted_rank_error)
    covariance = np.cov(data["score"], rank, ddof=0)[0, 1]
    assert diagnosis.rise == pytest.approx(covariance / data["score"].mean())
    # at most I(S'; A), and that at most 1/2 log(1 + variance of a / variance of n), as of all laws a Gaussian has most
    assert 0.1 < np.mean(diagnosis.gain_by_score["gain"][5:]) < 0.5 * math.log(1 + (1 / 3) / 0.25)
    assert diagnosis.gain == pytest.approx(np.mean(diagnosis.gain_by_score["gain"]))


def test_the_groups_are_tenths_by_rising_score() -> None:
    data = linear_data(rows=100) | {"score": np.arange(100.0)[::-1].copy()}
    scores = diagnose_entity(**data).gain_by_score["score"]
    np.testing.assert_allclose(scores, np.arange(10) * 10 + 4.5)


def test_a_gaussian_residual_has_the_shares_of_a_gaussian() -> None:
    diagnosis = diagnose_entity(**linear_data(rows=40_000))
    error = 4 * 0.5 / math.sqrt(40_000)
    np.testing.assert_allclose(diagnosis.within, [[0.6827, 0.9545]], atol=error)
    np.testing.assert_allclose(diagnosis.reliability["levels"], np.arange(1, 20) / 20)
    np.testing.assert_allclose(diagnosis.reliability["realised"], diagnosis.reliability["levels"], atol=error)


def test_each_dimension_has_its_shares() -> None:
    residual = np.array([[0.5, 3.0], [1.5, 0.0]] * 500)
    data = linear_data(rows=1000) | {"target": residual, "mean": np.zeros((1000, 2)), "variance": np.ones((1000, 2))}
    diagnosis = diagnose_entity(**data)
    assert diagnosis.within == [[0.5, 1.0], [0.5, 0.5]]
    assert any("50% of the residuals lie within one and 50% within two" in words for words in problems(diagnosis))


def test_every_dimension_must_have_a_variance_that_is_large_enough() -> None:
    """The first has the smaller share within one deviation, the second too small a share within two."""
    assert not _check_variance([[0.60, 0.95], [0.65, 0.70]]).fine
    assert _check_variance([[0.60, 0.95], [0.65, 0.93]]).fine


def test_outcomes_on_a_grid_are_no_sign_of_too_small_a_variance() -> None:
    """-1, 0 and 1 with their own variance of 2/3: a third lies within one deviation, and all within two."""
    assert _check_variance([[1 / 3, 1.0]]).fine
    assert _check_variance([[1 / 3, 1.0], [0.68, 0.95]]).fine
    assert not _check_variance([[0.54, 0.90]]).fine
    assert not _check_variance([[1 / 3, 1.0], [0.54, 0.90]]).fine


def test_what_the_action_tells_is_judged_only_where_it_was_drawn() -> None:
    """Where it was not drawn, the likelihood of the taken action is raised: that must not count as what it tells."""
    data = linear_data(rows=4000)
    drawn = np.arange(4000) % 4 == 0
    raised = data | {"log_likelihood": np.where(drawn, data["log_likelihood"], data["log_likelihood"] + 50)}
    assert diagnose_entity(**raised).rank > diagnose_entity(**data).rank + 0.05
    judged = ("log_likelihood", "log_redrawn", "promise", "promised_rank", "score")
    part = {name: data[name][drawn] for name in judged}
    rest = {name: data[name][drawn] for name in data if name not in part}
    assert diagnose_entity(**raised, drawn=drawn).gain == pytest.approx(diagnose_entity(**part, **rest).gain)
    doubted = diagnose_entity(**data, doubt="they depend on the state")
    assert not doubted.trusted
    assert any("do not look random (they depend on the state)" in sentence for sentence in doubted.words())


def test_actions_are_counted_in_ten_bins() -> None:
    # nine tenths of the actions in the lowest two bins, the rest in the middle, and the second dimension uniform
    first = np.concatenate([np.full(450, -0.95), np.full(450, -0.75), np.full(100, 0.05)])
    action = np.column_stack([first, np.linspace(-1, 1, 1000)])
    diagnosis = diagnose_entity(**linear_data(rows=1000) | {"action": action})
    assert diagnosis.coverage == [0.3, 1.0]
    assert diagnosis.smallest_bin == [0.0, 0.1]
    assert any("dimension(s) [0]" in words and "random actions" in words for words in problems(diagnosis))


def test_scores_by_extreme_actions_need_such_actions_in_the_data() -> None:
    action = np.column_stack([np.linspace(-1, 1, 1000), np.linspace(-0.79, 0.79, 1000)])  # the second never extreme
    data = linear_data(rows=1000) | {"action": action}
    assert not any("extreme" in finding.words for finding in diagnose_entity(**data).findings)
    assert any("hardly any in dimension(s) [1]" in words for words in problems(diagnose_entity(**data, extreme=0.75)))
    data["action"] = action[:, :1]
    assert not any("extreme" in words for words in problems(diagnose_entity(**data, extreme=0.75)))


def test_discrete_actions_are_counted_one_by_one() -> None:
    action = np.eye(4)[np.repeat([0, 1, 2], [500, 490, 10])]
    diagnosis = diagnose_entity(**linear_data(rows=1000) | {"action": action}, discrete=True)
    assert diagnosis.coverage == [0.5]  # a tenth of the quarter that is expected: 25 of 1000
    assert diagnosis.smallest_bin == [0.0]
    assert len(problems(diagnosis)) == 1


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (linear_data(rows=200), "only 200 held-out transitions"),
        (linear_data(gain=0.0), "knowing the action does not help to predict"),
        (linear_data(believed=0.05), "the predicted variance is too small"),
        (
            linear_data(believed=0.05),
            "contradict the size of the scores in 5 of 10 groups of states by score and in all",
        ),
        (linear_data(believed=0.05), "no better than a constant guess"),
        (linear_data() | {"mean": linear_data(seed=1)["target"]}, "the predicted mean explains nothing"),
        (linear_data(everywhere=True), "contradict the size of the scores"),
        (linear_data(everywhere=True), "their order is not shown"),
        (linear_data(elsewhere=True), "scores are high where the action does not matter"),
        (linear_data() | {"score": 1 - linear_data()["score"]}, "the action helps less where scores are higher"),
        (
            linear_data() | {"promise": linear_data()["promise"] * 10},
            "5 of 10 groups of states by score and in all states",
        ),
        (linear_data() | {"promise": linear_data()["promise"] + 0.2}, "5 of 10 groups of states by score (over all"),
        (linear_data() | {"action": np.full((ROWS, 1), 0.5)}, "not all kinds of actions were tried"),
    ],
)
def test_each_problem_is_found_and_said(data: dict[str, Any], expected: str) -> None:
    diagnosis = diagnose_entity(**data)
    assert not diagnosis.size_trusted
    assert any(expected in words for words in problems(diagnosis)), diagnosis.words()


def test_a_variance_that_is_too_small_is_a_problem_of_size_only() -> None:
    """The model expects a tenth of the true deviation, in the right half of the states."""
    diagnosis = diagnose_entity(**linear_data(believed=0.05))
    assert diagnosis.trusted
    assert not diagnosis.size_trusted
    assert any(words.startswith("A problem of size: ") for words in diagnosis.words())
    assert not any(words.startswith("A problem: ") for words in diagnosis.words())
    assert "trust the order of the scores, not their size" in repr(diagnosis).splitlines()[0]
    wrong = diagnose_entity(**linear_data(elsewhere=True))
    assert not wrong.trusted
    assert "do not trust the scores" in repr(wrong).splitlines()[0]


def test_a_steeper_network_is_advised_where_the_lower_scores_say_nothing() -> None:
    data = linear_data() | {"promise": linear_data()["promise"] + 0.2}
    assert "try a steeper network" in problems(diagnose_entity(**data))[0]
    assert "steeper" not in problems(diagnose_entity(**data, steep=True))[0]
    data["promise"] = np.where(np.arange(ROWS) < ROWS // 2, 2.0, 0.0)
    assert "steeper" not in problems(diagnose_entity(**data))[0]


def test_a_small_promise_in_half_of_the_states_is_no_problem_though_the_action_tells_nothing_there() -> None:
    assert diagnose_entity(**linear_data() | {"promise": linear_data()["promise"] + 0.08}).trusted


# --- how often a model is called overconfident, by simulation -------------------------------------


def broken(seed: int, clustered: bool = True, short: float = 0.0, episodes: int = 40, steps: int = 25) -> list[int]:
    """At the border of what is allowed, less `short` in the third tenth; episodes share half of the variance."""
    random = np.random.default_rng(seed)
    clusters = np.repeat(np.arange(episodes), steps)
    promise = np.repeat(np.linspace(0, 1, episodes), steps)  # similar within an episode, so groups are few episodes
    gains = 0.5 * promise - 0.05 + 0.2 * (random.normal(size=episodes)[clusters] + random.normal(size=len(clusters)))
    groups = np.array_split(random.permutation(len(clusters)), 10)
    gains[groups[2]] -= short
    return find_broken_promises(gains, promise, groups, clusters if clustered else np.arange(len(clusters)))


def test_false_alarms_are_as_rare_as_promised() -> None:
    """1 % at most over all groups and the whole, also for correlated states of an episode; 600 simulations."""
    allowed = 0.01 + 3 * math.sqrt(0.01 * 0.99 / 600)
    assert np.mean([bool(broken(seed)) for seed in range(600)]) <= allowed
    assert np.mean([bool(broken(seed, clustered=False)) for seed in range(600)]) > allowed


def test_a_group_that_falls_short_is_found_and_only_that_one() -> None:
    found = [broken(seed, short=0.4) for seed in range(200)]
    assert np.mean([2 in places for places in found]) > 0.9
    assert np.mean([any(place not in (2, 10) for place in places) for places in found]) <= 0.01 + 3 * 0.007


@pytest.mark.parametrize(
    ("wrong", "order", "size"),
    [
        ({}, True, True),
        ({"believed": 0.25}, True, False),  # half of the true deviation
        ({"everywhere": True}, False, False),  # influence where there is none, with scores that differ by chance
        ({"elsewhere": True}, False, False),
    ],
)
def test_right_models_are_trusted_and_wrong_ones_are_not(wrong: dict[str, Any], order: bool, size: bool) -> None:
    """1,000 held-out transitions, 150 simulations, at most 3 % of them wrong; three standard errors are allowed."""
    found = [diagnose_entity(**linear_data(rows=1000, seed=seed, **wrong)) for seed in range(150)]
    most = 0.03 + 3 * math.sqrt(0.03 * 0.97 / 150)
    assert np.mean([one.trusted != order for one in found]) <= most
    assert np.mean([one.size_trusted != size for one in found]) <= most


def too_certain(seed: int, **wrong: Any) -> Diagnosis:
    """A model that expects a tenth of the true deviation, judged at the noise that the residuals show."""
    data = linear_data(rows=1000, seed=seed, believed=0.05, **wrong)
    noise = find_noise(*(data[name] for name in ("target", "mean", "variance", "score")))
    calmer = linear_data(rows=1000, seed=seed, believed=0.05 * math.sqrt(noise), **wrong)
    at_noise = AtNoise(noise, *(calmer[name] for name in AtNoise._fields[1:]))
    return diagnose_entity(**data, at_noise=at_noise)


@pytest.mark.parametrize(("wrong", "order"), [({}, True), ({"everywhere": True}, False), ({"elsewhere": True}, False)])
def test_the_order_of_a_model_that_is_too_certain_is_judged_at_the_noise_that_there_is(
    wrong: dict[str, Any], order: bool
) -> None:
    """The effect is as large as the noise, so that ranks are far below what the model expects; as above."""
    found = [too_certain(seed, gain=0.5, **wrong) for seed in range(150)]
    most = 0.03 + 3 * math.sqrt(0.03 * 0.97 / 150)
    assert np.mean([one.trusted != order for one in found]) <= most
    assert not any(one.size_trusted for one in found)
    if order:
        assert np.mean([one.noise for one in found]) == pytest.approx(100, rel=0.1)  # of the variance
        plain = [diagnose_entity(**linear_data(gain=0.5, rows=1000, seed=seed, believed=0.05)) for seed in range(20)]
        assert not any(one.trusted for one in plain)
        assert {one.noise for one in plain} == {1.0}


def test_the_noise_is_a_quantile_of_the_residuals_where_scores_are_high() -> None:
    random = np.random.default_rng(0)
    deviation = np.repeat([3.0, 1.0], 20_000)[:, None]
    target = deviation * random.normal(size=(40_000, 2))
    zero, one = np.zeros_like(target), np.ones_like(target)
    high = (deviation[:, 0] > 2).astype(float)
    assert find_noise(target, zero, one, high) == pytest.approx(9, rel=0.05)
    assert find_noise(target, zero, one, 1 - high) == pytest.approx(1, rel=0.05)
    assert find_noise(target, zero, 100 * one, high) == 1.0  # a variance that is too large is left alone
    assert find_noise(target, zero, one, 0 * high) == pytest.approx(
        np.quantile(np.square(target), 0.683), rel=1e-3
    )  # no score at all: all states count


def ordered(seed: int, kept: float, episodes: int = 40, steps: int = 25) -> Diagnosis:
    """Ranks of episodes in which the model expects an effect in a half, and of which the share `kept` is there.

    An episode is influenced or not, and its ranks have an offset in common.
    """
    random = np.random.default_rng(seed)
    rows = episodes * steps
    clusters = np.repeat(np.arange(episodes), steps)
    scored = clusters % 2 == 0
    offset = 0.1 * random.choice([-1, 1], episodes)[clusters]
    # a rank of mean 1/2 + shift, uniform on what is left of [0, 1]
    shift = np.where(scored, 0.3 * kept + offset, 0.0)
    rank = np.where(shift >= 0, random.uniform(2 * shift.clip(0), 1), random.uniform(0, 1 + 2 * shift.clip(None, 0)))
    others = np.linspace(0, 1, OTHERS)[None].repeat(rows, 0)
    data = linear_data(rows=rows, seed=seed)
    changed = {"log_likelihood": rank, "log_redrawn": others, "score": np.where(scored, 1.0, 0.01)}
    changed["promised_rank"] = np.where(scored, 0.8, 0.5)
    return diagnose_entity(**data | changed, episodes=clusters)


def order_is_wrong(diagnosis: Diagnosis) -> bool:
    return any("scores are high where" in words for words in problems(diagnosis))


def test_scores_of_which_half_is_confirmed_are_rarely_called_wrong_and_unconfirmed_ones_often() -> None:
    """At the border at most 1 % of 400 simulations, with correlated states of an episode; three standard errors."""
    assert np.mean([order_is_wrong(ordered(seed, 0.5)) for seed in range(400)]) <= 0.01 + 3 * math.sqrt(0.01 / 400)
    assert np.mean([order_is_wrong(ordered(seed, 0.0)) for seed in range(50)]) > 0.9


def few_influenced(seed: int, share: float) -> Diagnosis:
    """The action acts in this share of 1,000 states, which have a score of 1; the others have one of 0.01."""
    random = np.random.default_rng(seed)
    data = linear_data(gain=2.0, rows=1000, seed=seed)
    influenced = random.permutation(1000) < 1000 * share
    data |= {"score": np.where(random.permutation(1000) < 30, 1.0, 0.01)} if share == 0 else {}
    for name in ("log_likelihood", "log_redrawn"):  # only noise tells the actions apart elsewhere
        noise = random.normal(size=data[name].shape)
        data[name] = np.where(influenced.reshape(-1, *[1] * (noise.ndim - 1)), data[name], noise)
    rows = np.arange(1000) < 500  # where the data are influenced
    return diagnose_entity(**data | ({"score": np.where(influenced & rows, 1.0, 0.01)} if share else {}))


def helps(diagnosis: Diagnosis) -> bool:
    return not any("does not help" in words for words in problems(diagnosis))


def test_a_few_states_show_that_the_action_helps() -> None:
    """3 % of 1,000 states, 20 simulations; without influence at most 1 % of 100 say so, with three standard errors."""
    assert np.mean([helps(few_influenced(seed, 0.06)) for seed in range(20)]) > 0.9
    assert np.mean([helps(few_influenced(seed, 0.0)) for seed in range(100)]) <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / 100)


def weighty_episodes(seed: int, influence: bool) -> Diagnosis:
    """50 episodes of 20 steps; only three have scores, and with `influence` the action acts in these."""
    data = linear_data(gain=1.0, rows=1000, seed=seed)
    random = np.random.default_rng(seed + 1000)
    episodes = np.arange(1000) // 20
    acted = (episodes < 3) & influence
    for name in ("log_likelihood", "log_redrawn"):
        noise = random.normal(size=data[name].shape)
        data[name] = np.where(acted.reshape(-1, *[1] * (noise.ndim - 1)), data[name], noise)
    return diagnose_entity(**data | {"score": np.where(episodes < 3, random.random(1000), 0.001)}, episodes=episodes)


def test_a_few_episodes_show_that_the_action_helps() -> None:
    """Without influence at most 1 % of 100 simulations say so, with three standard errors."""
    assert np.mean([helps(weighty_episodes(seed, influence=True)) for seed in range(20)]) > 0.9
    allowed = 0.01 + 3 * math.sqrt(0.01 * 0.99 / 100)
    assert np.mean([helps(weighty_episodes(seed, influence=False)) for seed in range(100)]) <= allowed


def rarely_decided(seed: int, influence: bool) -> Diagnosis:
    """40 episodes of 25 steps of a hand that adds up its actions, and something that it pushes within 0.7 of 0.

    There a model expects a push with the logistic chance of 8 a - 8, as is true with `influence`; elsewhere it is
    nearly sure that the action a does nothing. Without influence a push has the chance 0.2 anywhere.
    """
    random = np.random.default_rng(seed)
    others = random.uniform(-1, 1, (40, 25, OTHERS))
    action = random.uniform(-1, 1, (40, 25, 1))
    hand = np.cumsum(action, 1) - action
    near = np.abs(hand) < 0.7

    def chance(action: Any) -> Any:
        return 1 / (1 + np.exp(8 - 8 * action)) * near + 1e-4 * (2 + action)

    pushed = random.random((40, 25, 1)) < (chance(action) if influence else 0.2)
    taken, redrawn = (np.log(np.where(pushed, chance(a), 1 - chance(a))).reshape(1000, -1) for a in (action, others))
    data = linear_data(rows=1000, seed=seed, log_likelihood=taken[:, 0], log_redrawn=redrawn)
    data |= {"score": (0.05 + 0.1 * near).reshape(-1), "promised_rank": np.full(1000, 0.5)}
    return diagnose_entity(**data, episodes=np.arange(1000) // 25)


def test_bounded_gains_show_that_the_action_helps_where_ranks_are_mostly_noise() -> None:
    """Without influence at most 1 % of 300 simulations say so, with three standard errors: later states depend on
    earlier actions, and pushes where none is expected have large ratios."""
    found = [rarely_decided(seed, influence=True) for seed in range(40)]
    assert np.mean([helps(one) for one in found]) > 0.9
    ranks_alone = [
        max((one.rank - 0.5) / one.rank_error, (one.weighted_rank - 0.5) / one.weighted_rank_error) > norm.isf(0.005)
        for one in found
    ]
    assert np.mean(ranks_alone) < 0.6
    allowed = 0.01 + 3 * math.sqrt(0.01 * 0.99 / 300)
    assert np.mean([helps(rarely_decided(seed, influence=False)) for seed in range(300)]) <= allowed


def test_the_chance_of_evidence_is_that_of_the_places_of_the_taken_actions() -> None:
    """One state: the taken action is among the best m of K + 1 with chance m / (K + 1); several alike: products."""
    others = np.log(np.arange(1.0, OTHERS + 1))[None]
    for place in (1, 5, OTHERS):
        chance = chance_of_evidence(np.log([place + 0.5]), others, np.ones(1))
        assert chance == pytest.approx(
            (OTHERS + 1 - place) / (OTHERS + 1), abs=0.04
        )  # over 3 deviations of 1,999 draws
    first = np.zeros((2, 1))
    assert chance_of_evidence(np.log([2.0, 2.0]), first, np.ones(2)) == pytest.approx(1 / 4, abs=0.03)
    assert chance_of_evidence(np.zeros(50), np.zeros((50, OTHERS)), np.ones(50)) == 1


def too_sure(seed: int, influence: bool) -> float:
    """The chance of the evidence for a model that is right about the mean of 200 changes, but four times too sure."""
    random = np.random.default_rng(seed)
    action, others = random.uniform(-1, 1, (200, 1)), random.uniform(-1, 1, (200, OTHERS))
    change = 0.3 * action * influence + random.standard_t(2, (200, 1))
    taken, redrawn = (norm.logpdf(change, 0.3 * a, 0.25) for a in (action, others))
    return chance_of_evidence(taken[:, 0], redrawn, np.ones(200))


def test_a_model_that_is_too_sure_is_tried_less_sure() -> None:
    """Chances are uniform without influence: three standard errors at 1 and at 10 %."""
    without = np.array([too_sure(seed, influence=False) for seed in range(300)])
    for level in (0.01, 0.1):
        assert (without <= level).mean() <= level + 3 * math.sqrt(level * (1 - level) / 300)
    assert 0.4 < np.median(without) < 0.6
    assert np.median([too_sure(seed, influence=True) for seed in range(40)]) < 0.1


def test_the_error_of_the_weighted_rank_is_at_least_that_of_random_ranks() -> None:
    """The ranks of one episode with all of the weight hardly vary around their mean: their error would be near 0."""
    found = weighty_episodes(0, influence=False)
    one = diagnose_entity(**linear_data(rows=1000) | {"score": (np.arange(1000) < 20).astype(float)},
                          episodes=np.arange(1000) // 20)  # fmt: skip
    assert one.weighted_rank_error == pytest.approx(math.sqrt((OTHERS + 2) / (12 * OTHERS) / 20))
    assert found.weighted_rank_error >= math.sqrt((OTHERS + 2) / (12 * OTHERS) / 60)


def test_what_falls_short_but_not_clearly_is_said_and_is_no_problem() -> None:
    """The model expects 1.3 times the effect that is there: far more than two errors, but not twice as much."""
    data = linear_data(gain=2.0)
    right, short = (diagnose_entity(**data | {"promise": data["promise"] * more}) for more in (1.0, 1.3))
    assert right.trusted, problems(right)
    assert short.trusted, problems(short)
    assert right.notes == []
    (note,) = short.notes
    assert f"{short.gain_by_score['promise'][-1]:.2f} nats" in note


def test_scores_of_zero_weigh_all_states_alike() -> None:
    diagnosis = diagnose_entity(**linear_data() | {"score": np.zeros(ROWS)})
    assert diagnosis.weighted_rank == pytest.approx(diagnosis.rank)


def test_an_outlier_does_not_hide_that_the_model_predicts() -> None:
    """One transition of 4,000 at a million nats outweighs all others in the mean, but not in the skill."""
    data = linear_data()
    data["log_likelihood"][7] = -1e6
    diagnosis = diagnose_entity(**data)
    assert diagnosis.nll > diagnosis.nll_constant
    assert diagnosis.skill > 0
    assert not any("no better than a constant guess" in words for words in problems(diagnosis))


def test_a_steeper_network_is_advised_where_the_action_tells_nothing_and_the_network_is_smooth() -> None:
    data = linear_data(gain=0.0)
    advised = [words for words in diagnose_entity(**data).words() if "try a steeper network: model=butfor" in words]
    assert len(advised) == 2  # by what the mean explains, and by what the action tells
    assert not any("steeper" in words for words in diagnose_entity(**data, steep=True).words())


def test_a_column_that_never_changes_has_finite_numbers() -> None:
    still = {"target": np.zeros((1000, 1)), "mean": np.zeros((1000, 1))}
    diagnosis = diagnose_entity(**linear_data(rows=1000) | still)
    assert (diagnosis.r_squared, diagnosis.error_ratio) == (1.0, 0.0)
    assert diagnosis.nll_constant == diagnosis.nll_still == pytest.approx(0.5 * math.log(2 * math.pi * 1e-8))


def test_a_diagnosis_is_plain_for_json() -> None:
    diagnosis = diagnose_entity(**linear_data(rows=1000, believed=0.05))
    plain = json.loads(json.dumps(diagnosis.plain(), allow_nan=False))
    assert plain["trusted"] is True
    assert plain["size_trusted"] is False
    assert plain["verdict"].endswith("trust the order of the scores, not their size")
    assert plain["words"] == diagnosis.words()
    assert plain["transitions"] == 1000
    assert plain["reliability"].keys() == {"levels", "realised"}
    assert {"score", "gain", "error"} <= plain["gain_by_score"].keys()


def test_transitions_without_a_finite_likelihood_are_refused() -> None:
    data = linear_data(rows=1000)
    for name in ("log_likelihood", "log_redrawn"):
        changed = data[name].copy()
        changed[7] = -np.inf
        with pytest.raises(ValueError, match=r"1 transition.*row 7\b"):
            diagnose_entity(**data | {name: changed})


def test_too_few_transitions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\b9 "):
        diagnose_entity(**linear_data(rows=9))
