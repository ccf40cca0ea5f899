"""CAI of states and actions against mutual information by integration; no influence, many replicas, bounded memory."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from scipy import integrate
from scipy.stats import norm
from support.linear_models import (
    BOX,
    UNIT,
    generator,
    ignore_actions,
    linear_model,
    linear_score,
    normal,
    random_model,
)
from torch import Tensor

import butfor
import butfor.influence.influence
import butfor.influence.scoring
from butfor.influence.gaussian import KL_FORMS, KLForm, kl_to_mixture
from butfor.influence.influence import Influence
from butfor.influence.scoring import (
    ScoreConfig,
    chunk_states,
    hide_among_redrawn,
    promised_effect,
    score_actions,
    score_entropy,
    score_states,
)
from butfor.models.dynamics import GaussianDynamics
from butfor.models.networks import make_generators
from butfor.models.tables import Units
from butfor.spaces.actions import ActionLaw

# --- the linear environment: CAI is a mutual information --------------------------------------------------


def mutual_information(ratio: float) -> float:
    """I(S'; A) of s' = ratio a + n, a uniform in [-1, 1]: the entropy of s' less that of the noise, by integration."""

    def integrand(y: float) -> float:
        density = (norm.cdf(y + ratio) - norm.cdf(y - ratio)) / (2 * ratio)
        return float(-density * math.log(density)) if density > 0 else 0.0

    # symmetric; beyond ratio + 9 deviations there is nothing
    value, _ = integrate.quad(integrand, 0, ratio + 9, points=[ratio], limit=200)
    return 2 * float(value) - 0.5 * math.log(2 * math.pi * math.e)


def limit(ratio: float, form: KLForm) -> float:
    """What a form becomes for K to infinity: its sum over the mixture is an integral over uniform actions.

    Both exp(-KL) and t_fg / t_ff are Gaussian in the difference of two actions, the latter twice as wide.
    """

    def log_integral(a: float, width: float) -> float:
        share = norm.cdf(ratio * (1 - a) / width) - norm.cdf(ratio * (-1 - a) / width)
        return math.log(width * math.sqrt(2 * math.pi) / (2 * ratio) * share)

    def value(a: float) -> float:
        variational = -log_integral(a, 1)
        product = -log_integral(a, math.sqrt(2)) - 0.5 * (1 - math.log(2))
        forms = {
            "product": product,
            "variational": variational,
            "mean": max(0.0, 0.5 * (product + variational)),
            "mean_clip_product": 0.5 * (max(0.0, product) + variational),
        }
        return forms[form]

    integral, _ = integrate.quad(value, 0, 1, limit=200)  # symmetric, so the mean over [-1, 1] is that over [0, 1]
    return float(integral)


@pytest.mark.parametrize("ratio", [0.3, 1.0, 3.0, 10.0, 30.0])
def test_cai_of_a_linear_data_is_its_mutual_information(ratio: float) -> None:
    truth = mutual_information(ratio)
    limits = {form: limit(ratio, form) for form in KL_FORMS}
    assert limits["product"] <= truth <= limits["variational"]
    for form, expected in limits.items():
        # an evenly spread set of K actions 2 / K apart, each resolved by the noise: K >> ratio, so 1 % is ample
        score = linear_score(ratio, form=form, sampling="sobol", actions=1024).item()
        assert score == pytest.approx(expected, rel=0.01, abs=0.002), form
    # the known gap: the truth lies between the bounds, so their middle is off by half their distance at most
    gap = limits["variational"] - max(0.0, limits["product"])
    score = linear_score(ratio, sampling="sobol", actions=1024).item()
    assert abs(score - truth) <= 0.5 * gap + 0.02


@pytest.mark.parametrize("ratio", [0.3, 3.0])
def test_the_promise_of_a_model_is_the_mutual_information(ratio: float) -> None:
    """2,000 states with 8 outcomes each and 256 actions; the promise of a state varies with its action."""
    model = linear_model([ratio * 0.1], 0.1)
    taken = UNIT.draw(2000, 1, [generator(1)])[0, :, 0]
    actions, is_taken = hide_among_redrawn(UNIT, taken, 255, generator(2))
    promise, rank = promised_effect(model, torch.zeros(1, 2000, 1), actions[None], is_taken, [0], generator(3))
    error = promise.std().item() / math.sqrt(2000)
    assert promise.mean().item() == pytest.approx(mutual_information(ratio), abs=4 * error)
    # an outcome is nearer to the mean of its own action than to that of one at a distance d with probability
    # Phi(ratio d / 2); the distance of two uniform actions has the density (2 - d) / 2
    expected = integrate.quad(lambda d: (2 - d) / 2 * norm.cdf(ratio * d / 2), 0, 2)[0]
    assert rank.mean().item() == pytest.approx(expected, abs=4 * rank.std().item() / math.sqrt(2000))
    unmoved = ignore_actions(model)
    still = promised_effect(unmoved, torch.zeros(1, 2000, 1), actions[None], is_taken, [0], generator(3))
    torch.testing.assert_close(still[0], torch.zeros(2000), atol=1e-5, rtol=0)
    torch.testing.assert_close(still[1], torch.full((2000,), 0.5))


@pytest.mark.parametrize("form", ["variational", "mean_clip_product"])
def test_the_estimate_converges_as_actions_are_added_from_below_where_k_is_too_small(form: KLForm) -> None:
    ratio = 30.0
    expected = limit(ratio, form)
    # no estimate can exceed log K, which for K = 8 is 2.08 while the mutual information is 2.69
    assert math.log(8) < mutual_information(ratio) - 0.5
    scores = [linear_score(ratio, form=form, actions=k, states=64).mean().item() for k in (8, 32, 128, 512)]
    assert scores[0] < math.log(8)
    assert scores == sorted(scores)
    errors = [abs(score - expected) for score in scores]
    assert errors[3] < 0.02 * expected
    assert all(later < earlier / 2 for earlier, later in pairwise(errors))


@pytest.mark.parametrize("form", ["product", "variational"])
def test_a_separate_mixture_overestimates_and_converges(form: KLForm) -> None:
    # without the self term E[-log mean] >= -log E[mean] for each action (Jensen), here by far more than the error
    expected = limit(5.0, form)
    few, many = (linear_score(5.0, form=form, actions=k, states=800, separate_mixture=True) for k in (8, 64))
    deviation = few.std().item() / math.sqrt(800)
    assert few.mean().item() > expected + 5 * deviation
    assert abs(many.mean().item() - expected) < 0.25 * abs(few.mean().item() - expected)


def test_more_noise_means_less_influence() -> None:
    scores = [linear_score(ratio, sampling="sobol").item() for ratio in (0.0, 0.1, 1.0, 10.0)]
    assert scores == sorted(scores)
    assert scores[0] == 0


# --- no influence, several entities, replicas -------------------------------------------------------


@pytest.mark.parametrize("form", ["variational", "mean", "mean_clip_product"])
@pytest.mark.parametrize("config", [{}, {"activation": "tanh"}, {"normalize_input": False}])
@pytest.mark.parametrize("scoring", [{}, {"sampling": "sobol"}, {"separate_mixture": True}])
def test_there_is_no_influence_where_the_model_ignores_the_action(
    scoring: dict[str, Any], config: dict[str, Any], form: KLForm
) -> None:
    obs = normal(1, 40, 4).expand(2, -1, -1)
    for ignoring in (True, False):
        model = random_model(2, **config)
        if ignoring:
            ignore_actions(model)
        score = score_states(model, obs, BOX, [[0, 1, 2]], ScoreConfig(form=form, **scoring), [generator()])
        assert score.shape == (2, 40, 1)
        assert (score.abs().max() <= 1e-6) == ignoring


@pytest.mark.parametrize("separate", [False, True])
def test_scoring_is_a_plain_loop_over_states_actions_and_entities(separate: bool) -> None:
    model, obs, entities = random_model(2), normal(2, 3, 4), [[0, 2], [1]]
    config = ScoreConfig(actions=5, separate_mixture=separate)
    scores = score_states(model, obs, BOX, entities, config, make_generators([7, 8]))
    drawn = BOX.draw(3, 10 if separate else 5, make_generators([7, 8]))
    for replica in range(2):
        for state in range(3):
            predictions = []
            for action in drawn[replica, state]:
                inputs = torch.cat([obs[replica, state], action]).expand(2, 1, -1)
                predictions.append([value[replica, 0].detach() for value in model(inputs)])
            mean, variance = (torch.stack(values) for values in zip(*predictions, strict=True))
            for index, entity in enumerate(entities):
                f = (mean[:5, entity], variance[:5, entity])
                g = (mean[5:, entity], variance[5:, entity]) if separate else ()
                expected = kl_to_mixture(*f, *g).mean()
                torch.testing.assert_close(scores[replica, state, index], expected, rtol=1e-4, atol=1e-5)


def test_several_entities_from_one_pass_are_each_alone() -> None:
    model, obs, entities = random_model(2), normal(2, 10, 4), [[0], [2, 1], [0, 1, 2]]
    together = score_states(model, obs, BOX, entities, ScoreConfig(), [generator()])
    for index, entity in enumerate(entities):
        alone = score_states(model, obs, BOX, [entity], ScoreConfig(), [generator()])
        torch.testing.assert_close(together[..., index], alone[..., 0], rtol=1e-6, atol=1e-7)
    assert len({round(value, 4) for value in together[0, 0].tolist()}) == 3


@pytest.mark.parametrize("sampling", ["independent", "sobol"])
@pytest.mark.parametrize("law", [BOX, ActionLaw(count=2)], ids=["box", "discrete"])
def test_replicas_with_their_own_generators_score_as_each_alone(law: ActionLaw, sampling: Any) -> None:
    obs, config = normal(3, 10, 4), ScoreConfig(actions=8, sampling=sampling)
    together = score_states(random_model(3), obs, law, [[0, 1]], config, make_generators([5, 6, 7]))
    for replica in range(3):
        model = GaussianDynamics(4, 2, 3, random_model().config, make_generators([0])).eval()
        model.load_state_dict({k: v[replica : replica + 1] for k, v in random_model(3).state_dict().items()})
        part = slice(replica, replica + 1)
        alone = score_states(model, obs[part], law, [[0, 1]], config, make_generators([5 + replica]))
        torch.testing.assert_close(together[part], alone, rtol=1e-4, atol=1e-5)


def test_one_generator_gives_all_replicas_the_same_actions() -> None:
    model = random_model(1)
    twice = GaussianDynamics(4, 2, 3, model.config, make_generators([0, 0])).eval()
    twice.load_state_dict({name: torch.cat([value, value]) for name, value in model.state_dict().items()})
    obs = normal(1, 10, 4).expand(2, -1, -1)
    for sampling in ("independent", "sobol"):
        config = ScoreConfig(actions=8, sampling=sampling)
        first, second = score_states(twice, obs, BOX, [[0, 1]], config, [generator()])
        torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-6)
        first, second = score_states(twice, obs, BOX, [[0, 1]], ScoreConfig(actions=8), make_generators([0, 1]))
        assert (first - second).abs().max() > 1e-3


def test_a_discrete_space_is_tried_exhaustively_whatever_k() -> None:
    law, obs = ActionLaw(count=2), normal(1, 10, 4)
    model = random_model()
    every = torch.eye(2)[None, None].expand(1, 10, -1, -1)
    expected = score_actions(model, obs, every, [[0, 1]], "mean_clip_product").mean(2)
    for config in (ScoreConfig(), ScoreConfig(actions=7), ScoreConfig(separate_mixture=True)):
        torch.testing.assert_close(score_states(model, obs, law, [[0, 1]], config, [generator()]), expected)


@pytest.mark.parametrize("extreme", [0.0, 0.25, 0.75, 1.0])
def test_the_extreme_share_of_numbers_is_at_a_bound_and_the_rest_uniform(extreme: float) -> None:
    for drawn in (
        BOX.draw(100, 50, [generator()], extreme)[0],
        BOX.draw_shared(4096, 0, torch.device("cpu"), extreme)[0],
    ):
        unit = (drawn.flatten(0, 1) + 1) / 2
        low, high = ((unit == bound).double().mean(0) for bound in (0, 1))
        torch.testing.assert_close(low + high, torch.full((2,), extreme).double(), atol=0.02, rtol=0)
        torch.testing.assert_close(low, high, atol=0.02, rtol=0)
        for column in unit.T:
            inner = column[(column > 0) & (column < 1)]
            if extreme < 1:  # deciles of what is not at a bound
                expected = torch.linspace(0.1, 0.9, 9)
                torch.testing.assert_close(inner.quantile(expected), expected, atol=0.03, rtol=0)


@pytest.mark.parametrize("ratio", [0.3, 1.0, 10.0])
@pytest.mark.parametrize("form", KL_FORMS)
def test_cai_by_wholly_extreme_actions_of_a_linear_data_is_that_of_two_gaussians(ratio: float, form: KLForm) -> None:
    """s' = ratio a + n at a = -1 and 1: both KLs are 2 ratio^2, so exp(-KL) and t_fg / t_ff = exp(-ratio^2) follow."""
    variational = math.log(2) - math.log1p(math.exp(-2 * ratio**2))
    product = math.log(2) - math.log1p(math.exp(-(ratio**2))) - 0.5 * (1 - math.log(2))
    expected = {
        "product": product,
        "variational": variational,
        "mean": max(0.0, 0.5 * (product + variational)),
        "mean_clip_product": 0.5 * (max(0.0, product) + variational),
    }[form]
    score = linear_score(ratio, sampling="sobol", extreme=1.0, form=form)  # half of a Sobol set is on each side
    assert score.item() == pytest.approx(expected, abs=1e-5)


def test_extreme_actions_show_what_only_a_strong_action_does() -> None:
    """Where the outcome depends on actions beyond 0.99 alone, hardly one of 64 uniform actions sees it."""
    model = linear_model([100.0], 0.1)
    first: Any = model.hidden[0]
    first.bias.data[0, 0] = torch.tensor([-0.99, -10.0])  # relu(a - 0.99)
    scores = [
        score_states(model, torch.zeros(1, 1, 1), UNIT, [[0]], ScoreConfig(extreme=extreme), [generator()]).item()
        for extreme in (0.0, 0.75)
    ]
    assert scores[0] < 0.1
    assert scores[1] > 0.5


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("scoring", [{}, {"sampling": "sobol"}, {"extreme": 0.5}, {"separate_mixture": True}])
def test_chunking_does_not_change_the_scores(
    scoring: dict[str, Any], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, obs, config = random_model(2), normal(2, 17, 4), ScoreConfig(actions=8, **scoring)
    actions = BOX.draw(17, 5, make_generators([3]))

    def all_scores() -> list[Tensor]:
        return [
            score_states(model, obs, BOX, [[0], [1, 2]], config, make_generators([0, 1])),
            score_actions(model, obs, actions, [[0], [1, 2]], "mean"),
            score_entropy(model, obs, BOX, [0, 2], config, [generator()]),
        ]

    expected = all_scores()
    monkeypatch.setattr(butfor.influence.scoring, "chunk_states", lambda *_: size)
    for result, whole in zip(all_scores(), expected, strict=True):
        torch.testing.assert_close(result, whole, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("actions", [2, 64, 1000])
@pytest.mark.parametrize("replicas", [1, 5])
def test_what_is_in_memory_at_a_time_is_bounded(replicas: int, actions: int) -> None:
    model, cpu = random_model(replicas, width=64, layers=1), torch.device("cpu")
    size = chunk_states(model, actions, cpu)
    assert size >= 1
    numbers = replicas * actions * (64 + actions)  # one layer's activations and one table of pairs, of one state
    assert size == 1 or size * numbers <= 2**22
    assert chunk_states(model, actions, torch.device("cuda")) * numbers <= 2**31


def test_no_more_states_than_a_chunk_are_predicted_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = random_model(), []
    predict = model.predictor()

    def recording(obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        seen.append((obs.shape[1], actions.shape[1]))
        return predict(obs, actions)

    monkeypatch.setattr(model, "predictor", lambda: recording)
    score_states(model, normal(1, 5000, 4), BOX, [[0]], ScoreConfig(actions=64), [generator()])
    size = chunk_states(model, 64, torch.device("cpu"))
    assert size < 5000
    assert max(seen) == (size, size)
    assert sum(states for states, _ in seen) == 5000


def test_an_influence_converts_no_more_states_than_a_chunk_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What scoring takes beyond the states and the scores does not grow with them."""
    units = Units(BOX, {"a": [0], "b": [1, 2]}, [1.0] * 3, [0.5, 0.0, -1.0, 2.0], [2.0, 1.0, 0.1, 3.0])
    influence = Influence(random_model(2, width=8, layers=1), units, ScoreConfig(actions=64), 0)
    states = normal(500, 4)
    whole = units.standardize(states).expand(2, -1, -1)
    expected = score_states(influence.model, whole, BOX, units.dims, influence.scoring, make_generators([0]), 2)[0]
    seen = []
    standardize = Units.standardize

    def recording(self: Units, obs: Tensor) -> Tensor:
        seen.append(len(obs))
        return standardize(self, obs)

    monkeypatch.setattr(Units, "standardize", recording)
    found = influence.score(states)
    assert torch.equal(torch.stack([found["a"], found["b"]], 1), expected)
    assert found["a"].dtype == torch.float32
    assert max(seen) == chunk_states(influence.model, 64, torch.device("cpu")) < 500
    assert sum(seen) == 500


# --- the entropy rival ----------------------------------------------------------------------------


def test_the_entropy_rival_is_the_entropy_of_the_noise() -> None:
    model = linear_model([1.0, 2.0], 0.3)
    expected = 2 * 0.5 * math.log(2 * math.pi * math.e * 0.3**2)
    for config in (ScoreConfig(), ScoreConfig(sampling="sobol"), ScoreConfig(separate_mixture=True)):
        result = score_entropy(model, torch.zeros(1, 3, 1), UNIT, [0, 1], config, [generator()])
        torch.testing.assert_close(result, torch.full((1, 3), expected), rtol=1e-5, atol=1e-5)


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"actions": 1}, r"actions.*\b1\b"),
        ({"form": "exact"}, "form.*'exact'"),
        ({"sampling": "grid"}, "sampling.*'grid'"),
        ({"extreme": 1.1}, "extreme.*1.1"),
        ({"extreme": -0.1}, "extreme.*-0.1"),
    ],
)
def test_wrong_score_settings_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ScoreConfig(**settings)
