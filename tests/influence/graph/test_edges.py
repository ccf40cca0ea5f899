"""Influence between entities: identities and closed forms in linear-Gaussian worlds, and the model of pairs."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from sklearn.metrics import average_precision_score, roc_auc_score
from support.linear_models import UNIT, raw_influence

from butfor.envs import facts_of, make_vector_env
from butfor.envs.experts import scripted_action
from butfor.envs.several.edges import action_effects, removal_effects
from butfor.envs.several.pucks import PucksWorld
from butfor.influence import GraphConfig, Influence
from butfor.influence.graph import horizon as horizon_module
from butfor.influence.graph.edges import (
    FAINTEST,
    Graph,
    action_probabilities,
    decide_by_probability,
    score_absences,
)
from butfor.influence.graph.methods import CONTINUATIONS
from butfor.influence.graph.pair_fitting import _find_reach, _make_mutual
from butfor.influence.graph.pairs import GraphDynamics, PairTouches
from butfor.influence.scoring import ScoreConfig
from butfor.models.dynamics import GaussianDynamics, ModelConfig
from butfor.models.networks import make_generators
from butfor.models.tables import Units
from butfor.spaces.actions import ActionLaw


def pulled(gain: float, noise: float, form: Any = "mean_clip_product") -> Influence:
    """Two entities of one column: the first one's position adds gain times itself to the second one's change."""
    config = ModelConfig(
        layers=1, width=2, normalize_input=False, spectral_norm_hidden=False, spectral_norm_variance=False
    )
    model = GaussianDynamics(2, 1, 2, config, make_generators([0])).eval()
    for parameter in model.parameters():
        parameter.data.zero_()
    first: Any = model.hidden[0]
    first.weight.data[0, 0] = torch.tensor([1.0, -1.0])  # s = relu(s) - relu(-s)
    model.mean_head.weight.data[0, :, 1] = torch.tensor([gain, -gain])
    model.variance_head.bias.data.fill_(math.log(math.expm1(noise**2 - config.min_variance)) - model.variance_offset)
    entities = {"first": [0], "second": [1]}
    return raw_influence(model, UNIT, entities, [1.0, 1.0], ScoreConfig(form=form))


@pytest.mark.parametrize("ratio", [0.5, 2.0, 8.0])
def test_the_mean_over_a_reference_is_the_mutual_information(ratio: float) -> None:
    """I(s'_j; s_i) = log(1 + (gain / noise)^2) / 2 for Gaussian s_i; the two bounds of the KL enclose it.

    600 states and 127 draws; the draws' mixture contains the state itself, which costs up to log(128) / 128.
    """
    states = np.random.default_rng(0).standard_normal((600, 2)).astype(np.float32)
    still = np.zeros((600, 1), dtype=np.float32)
    exact = 0.5 * math.log1p(ratio**2)
    lower, upper = (
        pulled(ratio * 0.1, 0.1, form)
        .graph(states, still, draws=127, alternative="reference")["first", "second"]
        .mean()
        for form in ("product", "variational")
    )
    slack = 0.05 * exact + 0.04
    assert lower <= exact + slack
    assert upper >= exact - slack
    middle = pulled(ratio * 0.1, 0.1).graph(states, still, draws=127)["first", "second"].mean()
    assert middle == pytest.approx(exact, rel=0.25)


def test_the_influence_of_an_absent_entity_is_the_divergence_from_both() -> None:
    """Nulling compares N(gain s, noise) with the equal mixture of itself and N(0, noise)."""
    state = np.array([[1.5, 0.0]], dtype=np.float32)

    def integrand(x: float) -> float:
        here, there = norm.pdf(x, 0.15, 0.1), norm.pdf(x, 0.0, 0.1)
        return float(here * math.log(here / (0.5 * here + 0.5 * there)))

    exact = quad(integrand, -0.5, 0.8)[0]
    lower, upper = (
        float(pulled(0.1, 0.1, form).graph(state, alternative="absent")["first", "second"][0])
        for form in ("product", "variational")
    )
    assert max(lower, 0) <= exact <= upper + 1e-6
    assert exact <= math.log(2)


def test_what_the_model_ignores_has_no_influence() -> None:
    states = np.random.default_rng(0).standard_normal((50, 2)).astype(np.float32)
    for alternative in ("absent", "reference"):
        graph = pulled(1.0, 0.1).graph(states, alternative=alternative)
        np.testing.assert_allclose(graph["second", "first"], 0, atol=1e-6)
        np.testing.assert_allclose(graph["action", "second"], 0, atol=1e-6)
        assert (graph["first", "second"] > 0.01).any()
        assert np.isnan(graph.values[:, 1, 0]).all()  # the first entity on itself


def test_a_source_gives_the_same_scores_as_its_row() -> None:
    states = np.random.default_rng(0).standard_normal((20, 2)).astype(np.float32)
    influence = pulled(1.0, 0.3)
    scores = influence.score(states, source="first")
    assert list(scores) == ["second"]
    assert (scores["second"] >= 0).all()
    np.testing.assert_array_equal(scores["second"], influence.graph(states)["first", "second"])
    np.testing.assert_array_equal(influence.score(states, source="action")["second"], influence.score(states)["second"])
    with pytest.raises(ValueError, match="'third'"):
        influence.score(states, source="third")
    with pytest.raises(ValueError, match="reference="):  # one state has no others to compare with
        influence.score(states[:1], source="first")


def test_touches_of_several_sources_combine() -> None:
    """1 - t = product of (1 - t_i); given a touch, source i pushes with probability t_i / t, and pushes add up."""
    probability = torch.tensor([0.5, 0.2, 0.1])
    pushes = torch.tensor([[1.0], [2.0], [0.0]])
    touches = PairTouches(torch.logit(probability), pushes, torch.ones(3, 1), torch.zeros(1), torch.ones(1))
    whole = touches.combine()
    touched = 1 - 0.5 * 0.8 * 0.9
    assert float(whole.log_odds.sigmoid()) == pytest.approx(touched)
    share = probability / touched  # of each source, given that some source touches
    assert float(whole.mean) == pytest.approx(float((share[:, None] * pushes).sum()))
    expected = (share * (1 + (1 - share) * pushes[:, 0].square())).sum()
    assert float(whole.variance) == pytest.approx(float(expected))


def test_a_touch_is_mutual_unless_the_action_drives_one() -> None:
    """t_ij = t_ji of two entities that the action does not drive, whatever they see of each other."""
    law = ActionLaw((-1.0, -1.0), (1.0, 1.0))
    entities = {"hand": [0, 1, 2, 3], "first": [4, 5, 6, 7], "second": [8, 9, 10, 11]}
    units = Units.raw(law, entities, [1.0] * 12, 12)
    model = GraphDynamics(units, ["hand"], GraphConfig(), make_generators([0, 1]))
    generator = torch.Generator().manual_seed(0)
    obs = torch.randn(2, 30, 12, generator=generator)
    steps = torch.randn(2, 30, 3, 4, generator=generator)
    with torch.no_grad():
        odds = model.judge(obs, steps.unsqueeze(3), steps.unsqueeze(2), None)[0]  # [R, B, source, target]
    torch.testing.assert_close(odds[:, :, 1, 2], odds[:, :, 2, 1])
    assert float(odds[:, :, 1, 2].std()) > 1e-3
    assert float((odds[:, :, 0, 1] - odds[:, :, 1, 0]).abs().min()) > 0


def test_decisions_keep_the_expected_share_of_errors() -> None:
    """20,000 draws from calibrated probabilities: the share of errors is within four standard errors of the rate."""
    generator = np.random.default_rng(0)
    probability = generator.beta(0.3, 0.6, 20_000)
    truth = generator.random(20_000) < probability
    chosen = decide_by_probability(probability, 0.1)
    wrong = 1 - truth[chosen].mean()
    assert wrong <= 0.1 + 4 * np.sqrt(0.09 / chosen.sum())
    assert wrong >= 0.08  # as many as possible are chosen
    assert not decide_by_probability(np.zeros(5), 0.1).any()
    with pytest.raises(ValueError, match=r"1\.5"):
        decide_by_probability(probability, 1.5)


def test_an_unknown_edge_is_named() -> None:
    graph = Graph(np.zeros((2, 3, 2)), ("action", "a", "b"), ("a", "b"))
    assert graph["action", "b"].shape == (2,)
    assert ("a", "b") in graph.edges()
    assert ("a", "a") not in graph.edges()
    with pytest.raises(KeyError, match="'c'"):
        graph["c", "a"]


# ---------------------------------------------------------------------------------------- the model of pairs


def play(episodes: int, seed: int) -> tuple[Any, Any, Any]:
    """Transitions of Pucks, a third of them with random actions."""
    env = make_vector_env("pucks", episodes)
    obs, _ = env.reset(seed=seed)
    generator = np.random.default_rng(seed)
    rows: list[tuple[Any, Any, Any]] = []
    facts: Any = facts_of("pucks")
    for _ in range(60):
        action, _ = scripted_action(facts.expert, obs, generator, 0.2, 0.33)
        before = obs["observation"]
        obs = env.step(action)[0]
        rows.append((before, action, obs["observation"]))
    return tuple(np.concatenate(parts) for parts in zip(*rows, strict=True))  # type: ignore[return-value]


SMALL = GraphConfig(updates=500, motion_updates=500)


@pytest.fixture(scope="module")
def fitted() -> Influence:
    facts: Any = facts_of("pucks")
    entities = {name: list(columns) for name, columns in facts.entities.items()}
    return Influence.fit(*play(150, 0), entities, model=SMALL, horizon=4, progress=False)


@pytest.fixture(scope="module")
def tested() -> tuple[Any, Any]:
    obs, action, _ = play(20, 1)
    return obs, action


def test_an_effect_is_the_geometric_mean_of_what_is_seen_and_of_hindsight(
    fitted: Influence, tested: tuple[Any, Any]
) -> None:
    obs, action = (part[:300] for part in tested)
    after = PucksWorld().step(obs, action)
    model: Any = fitted.model
    states = fitted.model_obs(obs.astype(np.float32))
    taken = fitted.law.encode(torch.from_numpy(action)).float()[None]
    moved = torch.from_numpy(after - obs).double() * torch.tensor(fitted.units.scale, dtype=torch.float64)
    source, target = 1, 3
    dims = model.dims[target][:2]
    scale = model.change_scale[dims].double()
    with torch.no_grad():
        whole, without = (
            model.pair_touches(states, taken, absent)[target].combine().moments()[0][0, :, :2].double()
            for absent in (None, source)
        )
        steps = torch.stack([moved[:, part] for part in model.dims], 1)[None].float()
        size = model.look_back(states, steps)[0, :, source, target, :2].double().exp()
    seen = torch.minimum(
        ((whole - without) / scale).abs().amax(-1), ((moved[:, dims] - without) / scale).abs().amax(-1)
    )
    least = math.sqrt(model.config.wide)
    hindsight = ((size - least).clamp_min(FAINTEST * least) / scale).amax(-1)
    expected = (seen * hindsight).sqrt().numpy()
    found = fitted.effects(obs, action, after, columns=2)["first", "third"]
    np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-5)
    assert (expected > 1e-3).any()


def test_effects_have_the_size_of_those_of_the_simulator(fitted: Influence, tested: tuple[Any, Any]) -> None:
    """In the data's units, position and velocity; with the outcome they are found better than without it."""
    obs, action = tested
    world = PucksWorld()
    exact = removal_effects(world, obs, action)
    other = ~np.eye(4, dtype=bool)
    label = exact[:, other].ravel() > world.tolerance
    after = world.step(obs, action)
    found = {
        what: fitted.effects(obs, action, outcome, columns=4).values[:, other].ravel()
        for what, outcome in (("without", None), ("with", after))
    }
    precision = {what: average_precision_score(label, values) for what, values in found.items()}
    assert precision["with"] > precision["without"]
    assert precision["with"] > 0.75
    hit = label & (exact[:, other].ravel() > 0.2)
    assert 0.5 < np.median(found["with"][hit] / exact[:, other].ravel()[hit]) < 1.5
    near = obs.reshape(-1, 4, 4)[:, 1, :2] - obs.reshape(-1, 4, 4)[:, 3, :2]
    far = np.linalg.norm(near, axis=1) > 0.6  # nothing moves that far in a step
    assert (fitted.effects(obs[far][:200], action[far][:200])["first", "third"] < 1e-2).mean() > 0.95
    decided = fitted.decide_graph(obs, action, 0.1, after).values[:, 1:][:, other].ravel()
    assert decided.sum() > 10
    assert label[decided].mean() > 0.8


def test_hits_between_pucks_are_found(fitted: Influence, tested: tuple[Any, Any]) -> None:
    """After a short fit, the edges of all pairs together: far ahead of the distance, against the exact labels."""
    obs, action = tested
    label = removal_effects(PucksWorld(), obs, action) > PucksWorld.tolerance
    graph = fitted.graph(obs, action, horizon=1)
    places = obs.reshape(-1, 4, 4)[..., :2]
    near = -np.linalg.norm(places[:, :, None] - places[:, None], axis=-1)
    other = ~np.eye(4, dtype=bool)
    found = average_precision_score(label[:, other].ravel(), graph.values[:, 1:][:, other].ravel())
    distance = average_precision_score(label[:, other].ravel(), near[:, other].ravel())
    assert found > distance + 0.05
    assert fitted.model.driven == ["agent"]
    assert graph["action", "agent"].min() > 0.1


def test_the_reach_of_a_pair_is_that_of_its_sharper_direction() -> None:
    """Surprises up to 0.3 in one direction; in the other, half of what is farther is a surprise, too."""
    distance = torch.arange(1, 101) / 100
    sharp = distance <= 0.3
    gaps = torch.stack([torch.full((100,), torch.inf), distance], 1)
    reach, sharpness = _find_reach(gaps, sharp)
    torch.testing.assert_close((reach[1], sharpness[1]), (torch.tensor(0.3), torch.tensor(1.0)))
    blurred = sharp | (torch.arange(100) % 2 == 1)  # 30 + 35 surprises, 35 others, all farther than 0.3
    _, less = _find_reach(gaps, blurred)
    torch.testing.assert_close(less[1], torch.tensor(30 / 65 + 1 / 65 - 0 / 35), atol=1 / 35, rtol=0)
    mutual = _make_mutual(torch.tensor([[0.0, 0.3], [0.7, 0.0]]), torch.tensor([[0.0, 1.0], [less[1], 0.0]]))
    torch.testing.assert_close(mutual, torch.tensor([[0.0, 0.3], [0.3, 0.0]]))
    unknown = _make_mutual(torch.tensor([[0.0, 1e12], [0.7, 0.0]]), torch.tensor([[-1.0, -1.0], [0.0, -1.0]]))
    assert unknown[0, 1] == unknown[1, 0]


def test_decisions_are_mostly_right(fitted: Influence, tested: tuple[Any, Any]) -> None:
    obs, action = tested
    label = removal_effects(PucksWorld(), obs, action) > PucksWorld.tolerance
    decided = fitted.decide_graph(obs, action, false_discovery_rate=0.2)
    other = ~np.eye(4, dtype=bool)
    chosen = decided.values[:, 1:][:, other]
    assert chosen.sum() > 10
    assert label[:, other][chosen].mean() > 0.5
    assert not decided.values[:, 1:][:, ~other].any()


def test_the_action_matters_only_for_what_is_touched_by_what_it_moves(fitted: Influence) -> None:
    """m_second = 1 - (1 - t_12 m_1)(1 - t_32 m_3); the action moves the agent alone, and nothing moves the third."""
    touched = torch.zeros(1, 1, 4, 4)
    touched[0, 0, 0, 1] = 0.5  # agent and first
    touched[0, 0, 1, 2] = 0.8  # first and second
    touched[0, 0, 3, 2] = 1.0  # third and second: with any action
    model: Any = fitted.model
    log_odds = torch.logit(torch.cat([touched, torch.zeros(1, 1, 1, 4)], 2))  # with the rest
    empty = torch.zeros(1, 1, 0)

    class Fixed:
        names, driven, replicas = model.names, model.driven, 1

        def pair_touches(self, *_: Any, **__: Any) -> list[PairTouches]:
            return [PairTouches(log_odds[..., target], empty, empty, empty, empty) for target in range(4)]

    found = action_probabilities(Fixed(), torch.zeros(1, 1, 16), torch.zeros(1, 1, 2))  # type: ignore[arg-type]
    torch.testing.assert_close(found, torch.tensor([[1.0, 0.5, 0.4, 0.0]]))


def test_decisions_about_the_action_are_mostly_right(fitted: Influence, tested: tuple[Any, Any]) -> None:
    obs = tested[0]
    label = action_effects(PucksWorld(), obs, (1,))[0][:, 0, 1:] > PucksWorld.tolerance
    decided = fitted.decide_graph(obs, false_discovery_rate=0.1).values[:, 0, 1:]
    assert decided.sum() > 10
    assert (decided & ~label).sum() <= 0.3 * decided.sum()
    assert (decided & label).sum() >= 0.5 * label.sum()


@pytest.mark.parametrize("chunk", [horizon_module.CHUNK, 2**11])
def test_more_steps_never_show_less_influence(
    fitted: Influence, tested: tuple[Any, Any], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sure hit is worth log 2, within any number of steps; also if the states are rolled out in parts."""
    monkeypatch.setattr(horizon_module, "CHUNK", chunk)
    obs = tested[0][:200]
    one, three, six = (np.nan_to_num(fitted.graph(obs, horizon=steps).values) for steps in (1, 3, 6))
    assert (three >= one).all()
    assert (six >= three).all()
    assert six.sum() > three.sum() > one.sum()
    assert three[:, 1:].max() == pytest.approx(math.log(2), abs=0.01)


@pytest.mark.parametrize("horizon", [1, 3])
def test_a_source_has_the_same_scores_alone_and_in_the_graph(
    fitted: Influence, tested: tuple[Any, Any], horizon: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    obs = tested[0][:50]
    monkeypatch.setattr(fitted, "horizon", horizon)
    graph = fitted.graph(obs)
    for source in ("action", "second"):
        for target, score in fitted.score(obs, source=source).items():
            if target != source:
                np.testing.assert_allclose(score, graph[source, target], rtol=1e-5, atol=1e-7)


def test_a_policy_goes_on_as_the_actions_that_it_would_choose(fitted: Influence, tested: tuple[Any, Any]) -> None:
    obs = tested[0][:40]
    fixed = np.array([0.5, -1.0], dtype=np.float32)
    seen = []

    def policy(states: Any) -> Any:
        seen.append(states)
        return np.tile(fixed, (len(states), 1))

    following = np.tile(fixed, (40, CONTINUATIONS, 2, 1))
    by_policy, given = (fitted.graph(obs, horizon=3, following=one).values for one in (policy, following))
    np.testing.assert_array_equal(by_policy, given)
    assert seen[0].shape[1] == obs.shape[1]
    assert np.abs(seen[0][:, :2].mean(0) - obs[:, :2].mean(0)).max() < 0.2  # in the data's units


def test_other_states_of_an_entity_do_not_overlap(fitted: Influence, tested: tuple[Any, Any]) -> None:
    """No puck is put nearer to another than any two of the given states are."""
    obs = torch.from_numpy(tested[0][:300])
    states, model = fitted.model_obs(tested[0][:300]), fitted.model
    index = torch.randint(300, (300, 60), generator=torch.Generator().manual_seed(0))
    drawn: Any = fitted._other_states(states, states[0], index, 1, 5)
    where = drawn[..., :2] * model.units[1][4:6] + model.units[0][4:6]  # of the first puck
    for other in (8, 12):
        nearest = (obs[:, 4:6] - obs[:, other : other + 2]).norm(dim=-1).min()
        gaps = (where - obs[:, None, other : other + 2]).norm(dim=-1)
        assert gaps.min() >= nearest - 1e-5
    assert (index.shape, drawn.shape) == ((300, 60), (300, 5, 4))


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"horizon": 0}, "0"),
        ({"horizon": 2.5}, r"2\.5"),
        ({"horizon": "3"}, "'3'"),
        ({"alternative": "gone", "horizon": 3}, "gone"),
        ({"alternative": "reference", "horizon": 3}, "horizon=3"),
        ({"draws": 0, "horizon": 3}, "draws"),
        ({"following": np.zeros((5, 1, 2), np.float32), "horizon": 1}, "following"),
        ({"following": np.full((5, 1, 2), np.nan, np.float32), "horizon": 2}, "NaN"),
        ({"following": lambda states: np.zeros((3, 2), np.float32), "horizon": 2}, r"\[3, 2\]"),
    ],
)
def test_questions_that_mean_nothing_are_refused(
    fitted: Influence, tested: tuple[Any, Any], options: dict[str, Any], value: str
) -> None:
    with pytest.raises(ValueError, match=value):
        fitted.graph(tested[0][:5], **options)


def test_other_mistakes_are_named_and_no_states_are_an_answer(fitted: Influence, tested: tuple[Any, Any]) -> None:
    obs, action = tested[0][:5], tested[1][:5]
    with pytest.raises(ValueError, match="99"):
        fitted.effects(obs, action, columns=99)
    with pytest.raises(ValueError, match=r"0\.05"):
        fitted.decide_graph(obs, 0.05)  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="agent"):
        fitted.graph(obs)["agent", "agent"]
    for horizon in (1, 3):
        assert fitted.graph(obs[:0], horizon=horizon).values.shape == (0, 5, 4)
    assert fitted.effects(obs[:0], action[:0]).values.shape == (0, 4, 4)
    assert fitted.decide_graph(obs[:0]).values.shape == (0, 5, 4)


def test_the_action_matters_later_for_what_is_farther(fitted: Influence, tested: tuple[Any, Any]) -> None:
    """Against exact labels with random continuations; the chance level of the AUC is 0.5."""
    obs = tested[0][::8]
    following = np.random.default_rng(0).uniform(-1, 1, (len(obs), 4, 3, 2)).astype(np.float32)
    label = action_effects(PucksWorld(), obs, (4,), following)[1][:, 0, 1:] >= 0.5
    values = fitted.graph(obs, following=following).values[:, 0, 1:]
    assert roc_auc_score(label.ravel(), values.ravel()) > 0.85
    one, four = fitted.graph(obs, horizon=1), fitted.graph(obs, horizon=4)
    assert (four["action", "first"] > 0.05).mean() > (one["action", "first"] > 0.05).mean()
    scores = fitted.score(obs)
    assert set(scores) == {"agent", "first", "second", "third"}


def test_a_saved_model_gives_the_same_graph(fitted: Influence, tested: tuple[Any, Any], tmp_path: Path) -> None:
    fitted.save(tmp_path / "graph.safetensors")
    loaded = Influence.load(tmp_path / "graph.safetensors")
    obs = tested[0][:30]
    np.testing.assert_array_equal(loaded.graph(obs).values, fitted.graph(obs).values)
    assert loaded.horizon == 4
    assert "model of pairs" in repr(loaded)


def test_a_graph_costs_less_than_a_score_for_every_entity(
    fitted: Influence, tested: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in rows that the networks of touches see: below k times one CAI for k entities."""
    rows: list[int] = []
    judge = fitted.model.judge

    def counted(obs: Any, *rest: Any) -> Any:
        rows.append(obs.shape[1])
        return judge(obs, *rest)

    monkeypatch.setattr(fitted.model, "judge", counted)
    fitted._scores(tested[0][:20], None, 1)
    one, rows[:] = sum(rows), []
    fitted.graph(tested[0][:20], horizon=1)
    assert sum(rows) < len(fitted.entities) * one


def test_actions_and_sources_together_give_what_each_gives_alone(fitted: Influence, tested: tuple[Any, Any]) -> None:
    obs = fitted.model_obs(tested[0][:10])
    action = torch.rand(10, 3, 2, generator=torch.Generator().manual_seed(0)) * 2 - 1
    rows, tried = obs.repeat_interleave(3, 1), action.flatten(0, 1)[None]
    with torch.no_grad():
        together = fitted.model.pair_touches(rows, tried, tried=3)
        for one, other in zip(together, fitted.model.pair_touches(rows, tried), strict=True):
            for part, expected in zip(one.combine().parts(), other.combine().parts(), strict=True):
                torch.testing.assert_close(part, expected)
    whole = score_absences(fitted.model, obs, action, range(4))
    for source in range(4):
        torch.testing.assert_close(score_absences(fitted.model, obs, action, [source])[:, 0], whole[:, source])
    alone = [score_absences(fitted.model, obs, action[:, [number]], range(4)) for number in range(3)]
    torch.testing.assert_close(torch.stack(alone).mean(0), whole)


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"entities": "agent=0:4"}, "agent"),
        ({"entities": ["agent=0:4", "first=3:8"]}, r"\[3\]"),
        ({"model": GraphConfig(position_size=5)}, "5"),
        ({"horizon": 0}, "0"),
        ({"horizon": 2.5}, r"2\.5"),
        ({"horizon": "3"}, "'3'"),
        ({"horizon": 3, "model": ModelConfig()}, "3"),
        ({"agent": [0, 1]}, "agent"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], value: str) -> None:
    arguments: dict[str, Any] = {"entities": ["agent=0:4", "first=4:8"], "model": SMALL} | options
    with pytest.raises(ValueError, match=value):
        Influence.fit(*play(3, 0), progress=False, **arguments)


def test_other_models_have_no_horizon_and_no_decisions() -> None:
    influence = pulled(1.0, 0.1)
    states = np.zeros((3, 2), dtype=np.float32)
    with pytest.raises(ValueError, match="horizon=3"):
        influence.graph(states, horizon=3)
    with pytest.raises(ValueError, match="decide_graph"):
        influence.decide_graph(states)
    with pytest.raises(ValueError, match="'gone'"):
        influence.graph(states, alternative="gone")  # type: ignore[arg-type]
