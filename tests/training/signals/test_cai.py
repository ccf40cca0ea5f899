"""The model that learns along: its schedule and its data against the rules, its training against a plain loop."""

import copy
import dataclasses
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from support.replay_buffers import ACTION, ENTITY, LAW, OBS, SCALE, STEPS, expected_shares, make_replay
from torch import Tensor

from butfor.influence.gaussian import kl_to_mixture
from butfor.influence.influence import Influence
from butfor.influence.scoring import ScoreConfig, score_states
from butfor.models.dynamics import ModelConfig
from butfor.models.networks import make_generators
from butfor.training.loop import batches_due
from butfor.training.replay import ReplayBuffer
from butfor.training.settings import Config
from butfor.training.signals.cai import CaiConfig, CaiSignal
from butfor.training.signals.learned import BLOCK
from butfor.training.signals.transitions import TransitionTable

SMALL = CaiConfig(
    network=ModelConfig(layers=2, width=8, activation="tanh", spectral_norm_hidden=False),
    scoring=ScoreConfig(actions=4),
    batch_size=16,
    newest_from=4,
)


def make(replay: ReplayBuffer, seeds: list[int], config: CaiConfig = SMALL, every: int = 2) -> CaiSignal:
    table = TransitionTable(replay, LAW, {"object": ENTITY}, SCALE)
    return CaiSignal(config, table, make_generators(seeds), every=every)


def with_settings(**changes: Any) -> CaiConfig:
    return dataclasses.replace(SMALL, **changes)


# --- when -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("warmup", [1, 100, 150, 200, 300])
def test_rounds_follow_the_schedule_episode_by_episode(warmup: int) -> None:
    config = Config(warmup=warmup)
    for episode in range(1, 10_401):
        step = episode - 1
        expected = 0
        if step >= warmup - 1 and (step + 1 - warmup) % 100 == 0 and step < 10_200:
            if step < 200:
                expected = 40_000
            elif step < 5200:
                expected = 10_000
            else:
                expected = 5_000
        assert batches_due(config, episode) == expected, episode


def test_the_paper_sized_schedule_adds_up() -> None:
    """One round of 40,000, 50 of 10,000 and 50 of 5,000 batches."""
    config = Config()
    due = [batches_due(config, episode) for episode in range(1, 20_001)]
    assert sum(due) == 40_000 + 50 * 10_000 + 50 * 5_000 == 790_000
    assert [episode for episode, batches in enumerate(due, 1) if batches][:3] == [200, 300, 400]
    assert max(episode for episode, batches in enumerate(due, 1) if batches) == 10_200


def test_a_schedule_of_ones_own_counts_up_to_its_episodes() -> None:
    config = Config(warmup=1, fit_every=3, fit_schedule=((4, 9), (7, 5)))
    assert [batches_due(config, episode) for episode in range(12)] == [0, 9, 0, 0, 9, 0, 0, 5, 0, 0, 0, 0]


# --- on what --------------------------------------------------------------------------------------


def shares(model: CaiSignal) -> Tensor:
    """The chance of every step [R, E, T]."""
    model.weights.fill(model.weigh_data())
    weight = model.weights.step.double()
    return weight / weight.sum((1, 2), keepdim=True)


@pytest.mark.parametrize("only_sampled", [False, True])
@pytest.mark.parametrize(
    ("stored", "capacity", "share"),
    [
        (3, 50, None),
        (4, 50, None),  # newest_from is 4
        (5, 50, 0.25),
        (9, 50, 0.25),
        (9, 7, 0.25),  # the ring has gone round: the newest lie in slots 0 and 1
        (8, 7, 0.25),  # and in the last and the first
        (9, 2, None),  # every episode is among the newest
        (9, 1, None),
        (9, 3, 0.25),
    ],
)
def test_a_quarter_of_the_samples_comes_from_the_newest_episodes(
    stored: int, capacity: int, share: float | None, only_sampled: bool
) -> None:
    replay = make_replay([0, 1, 2], stored, capacity)
    model = make(replay, [0, 1, 2], with_settings(only_sampled=only_sampled))
    expected = expected_shares(replay, 2, share, only_sampled)
    torch.testing.assert_close(shares(model), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("share", [0.0, 0.6])
def test_the_share_of_the_newest_is_a_setting(share: float) -> None:
    replay = make_replay([0, 1], 9)
    model = make(replay, [0, 1], with_settings(newest_share=share), every=3)
    newest = shares(model)[:, replay.slots(3)].sum((1, 2))
    torch.testing.assert_close(newest, torch.full_like(newest, share), rtol=1e-5, atol=1e-7)


def test_drawn_batches_have_a_quarter_of_the_newest_episodes() -> None:
    replay = make_replay([0, 1], 9)
    model = make(replay, [0, 1])
    model.weights.fill(model.weigh_data())
    count = 400
    noise = torch.full((2, count, 2), 0.5)
    noise[..., 0] = (torch.arange(count) + 0.5) / count
    episode, _ = model.weights.draw(noise)
    newest = torch.isin(episode, replay.slots(2)).sum(1)
    assert newest.tolist() == [count // 4] * 2


def test_where_the_newest_hold_no_sampled_step_all_come_from_the_rest() -> None:
    replay = make_replay([0, 1], 9)
    replay.sampled[0, replay.slots(2)] = False  # of one replica alone
    replay.sampled[1] = True
    model = make(replay, [0, 1], with_settings(only_sampled=True))
    chances = shares(model)
    assert not chances[0, replay.slots(2)].any()
    assert chances[0].sum() == pytest.approx(1)
    assert chances[1, replay.slots(2)].sum() == pytest.approx(0.25, abs=1e-6)


def test_without_any_sampled_step_nothing_is_drawn_from_empty_slots() -> None:
    replay = make_replay([0], 3)
    replay.sampled.fill_(False)
    model = make(replay, [0], with_settings(only_sampled=True))
    try:
        model.weights.fill(model.weigh_data())
    except ValueError:
        return  # a sentence would do, too
    episode, time = model.weights.draw(torch.rand(1, 20, 2, generator=make_generators([0])[0]))
    assert replay.valid()[replay.rows, episode, time].all()


# --- fitting --------------------------------------------------------------------------------------


def plain_fit(model: Any, replay: ReplayBuffer, batches: int, seed: int, replica: int) -> tuple[float, Any]:
    """One replica, batch by batch: Gaussian likelihood of the scaled change of the entity, torch's own Adam."""
    optimizer = torch.optim.Adam(model.parameters(), lr=SMALL.learning_rate, betas=SMALL.betas)
    generator = make_generators([seed])[0]
    steps = [(slot, time) for slot in range(replay.capacity) for time in range(int(replay.length[replica, slot]))]
    lengths = replay.length[replica].tolist()
    model.train()
    total = 0.0
    for _ in range(batches):
        noise = torch.rand(SMALL.batch_size, 2, generator=generator).double()
        rows = []
        for first, second in noise.tolist():
            slot, _ = steps[int(first * len(steps))]  # an episode in proportion to its length
            rows.append((slot, int(second * lengths[slot])))
        obs = torch.stack([replay.observation[replica, slot, time] for slot, time in rows])
        then = torch.stack([replay.observation[replica, slot, time + 1] for slot, time in rows])
        action = torch.stack([replay.action[replica, slot, time] for slot, time in rows])
        target = (then - obs)[:, list(ENTITY)] * torch.tensor(SCALE)
        mean, variance = model(torch.cat([obs, LAW.encode(action)], 1)[None])
        likelihood = torch.distributions.Normal(mean[0], variance[0].sqrt()).log_prob(target).sum(1)
        loss = -likelihood.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total, model


@pytest.mark.parametrize("batches", [3, BLOCK + 4])
def test_fitting_is_a_plain_loop_for_each_replica(batches: int) -> None:
    replay = make_replay([0, 1], 4)  # too few for the newest to count
    model = make(replay, [5, 6])
    alone = [make(make_replay([seed], 4), [5 + seed]).model for seed in (0, 1)]
    model.weights.fill(model.weigh_data())
    losses = model.fit(batches, make_generators([8, 9]))
    assert losses.shape == (2,)
    assert not model.model.training
    for replica in range(2):
        loss, plain = plain_fit(alone[replica], replay, batches, 8 + replica, replica)
        assert losses[replica].item() == pytest.approx(loss, rel=1e-4)
        for name, value in plain.state_dict().items():
            torch.testing.assert_close(
                model.model.state_dict()[name][replica], value[0], rtol=1e-3, atol=1e-4, msg=name
            )


@pytest.mark.parametrize("parts", [[9, 36], [20, 25], [1] * 5 + [40], [44, 1]])
def test_a_fit_in_parts_is_a_fit_at_once(parts: list[int]) -> None:
    """Weights and the optimiser's moments stay between calls."""
    states = []
    for sizes in ([sum(parts)], parts):
        replay = make_replay([0, 1], 9)
        model = make(replay, [5, 6])
        model.weights.fill(model.weigh_data())
        generators = make_generators([8, 9])
        total = torch.stack([model.fit(size, generators) for size in sizes]).sum(0)
        states.append((model.state(), total))
    (once, loss), (apart, losses) = states
    torch.testing.assert_close(loss, losses, rtol=1e-5, atol=1e-5)
    for name, value in once["model"].items():
        assert torch.equal(value, apart["model"][name]), name
    for index, moments in once["optimizer"]["state"].items():
        for name, value in moments.items():
            assert torch.equal(value, apart["optimizer"]["state"][index][name]), (index, name)


def test_every_parameter_learns_and_the_loss_falls() -> None:
    replay = make_replay([0, 1], 30)
    model = make(replay, [5, 6], with_settings(learning_rate=0.01))
    model.weights.fill(model.weigh_data())
    before = copy.deepcopy(model.model.state_dict())
    generators = make_generators([8, 9])
    first = model.fit(20, generators)
    model.fit(100, generators)
    assert (model.fit(20, generators) < first).all()
    for name, value in model.model.state_dict().items():
        for replica in range(2):
            assert not torch.equal(value[replica], before[name][replica]), (name, replica)


def test_a_restored_model_goes_on_as_if_never_saved() -> None:
    replay = make_replay([0, 1], 9)
    model = make(replay, [5, 6])
    model.weights.fill(model.weigh_data())
    model.fit(7, make_generators([8, 9]))
    saved = copy.deepcopy(model.state())
    model.fit(5, make_generators([1, 2]))
    other = make(replay, [70, 71])
    other.weights.fill(other.weigh_data())
    other.restore(saved)
    other.fit(5, make_generators([1, 2]))
    for name, value in model.model.state_dict().items():
        assert torch.equal(value, other.model.state_dict()[name]), name


def test_replicas_at_once_are_each_replica_alone() -> None:
    together = make(make_replay([0, 1, 2], 9), [5, 6, 7])
    together.weights.fill(together.weigh_data())
    together.fit(BLOCK + 3, make_generators([10, 11, 12]))
    together.score(together.replay.slots(9), make_generators([20, 21, 22]))
    for replica in range(3):
        alone = make(make_replay([replica], 9), [5 + replica])
        alone.weights.fill(alone.weigh_data())
        alone.fit(BLOCK + 3, make_generators([10 + replica]))
        alone.score(alone.replay.slots(9), make_generators([20 + replica]))
        for name, value in alone.model.state_dict().items():
            torch.testing.assert_close(
                value[0], together.model.state_dict()[name][replica], rtol=1e-3, atol=1e-4, msg=name
            )
        torch.testing.assert_close(alone.replay.score[0], together.replay.score[replica], rtol=1e-2, atol=1e-4)


# --- scoring --------------------------------------------------------------------------------------


def test_each_step_holds_the_score_of_the_state_it_starts_from() -> None:
    replay = make_replay([0, 1], 9)
    model = make(replay, [5, 6])
    model.weights.fill(model.weigh_data())
    model.fit(30, make_generators([8, 9]))
    slots = torch.tensor([6, 2, 3])
    model.score(slots, make_generators([3, 4]))
    states = replay.observation[:, slots, :STEPS].reshape(2, 3 * STEPS, OBS)
    expected = score_states(model.model, states, LAW, [[0, 1]], SMALL.scoring, make_generators([3, 4]))
    for replica in range(2):
        for row, slot in enumerate(slots.tolist()):
            length = int(replay.length[replica, slot])
            for time in range(STEPS):
                score = replay.score[replica, slot, time]
                assert score == (expected[replica, row * STEPS + time, 0] if time < length else 0)
    assert (replay.score[:, slots][replay.valid()[:, slots]] > 0).all()
    others = torch.ones(50, dtype=torch.bool).index_fill(0, slots, False)
    assert not replay.score[:, others].any()  # untouched


def test_more_episodes_than_are_scored_at_a_time_are_scored_alike() -> None:
    replay = make_replay([0], 1, capacity=1100, steps=1)
    replay.length.fill_(1)
    replay.observation.copy_(torch.randn(replay.observation.shape, generator=make_generators([1])[0]))
    replay.stored = 1100
    model = make(replay, [5], with_settings(scoring=ScoreConfig(actions=2)))
    model.model.eval()
    model.score(replay.slots(1100), make_generators([3]))
    expected = score_states(
        model.model, replay.observation[:, :, 0], LAW, [[0, 1]], model.config.scoring, make_generators([3])
    )
    torch.testing.assert_close(replay.score[..., 0], expected[..., 0])


@pytest.mark.parametrize(
    ("rescore", "stored", "expected"),
    [("all", 1500, 1500), ("newest", 1500, 1000), ("newest", 2000, 2000), ("newest", 2099, 2099),
     ("newest", 2100, 1000), ("newest", 600, 600), ("newest", 999, 999)],
)  # fmt: skip
def test_which_episodes_are_scored_anew(rescore: Any, stored: int, expected: int) -> None:
    replay = ReplayBuffer(1, 3000, 1, (OBS, ACTION, 1), "cpu")
    replay.stored = stored
    slots = make(replay, [0], with_settings(rescore=rescore), every=100).stale()
    assert torch.equal(slots, torch.arange(stored - expected, stored))


def test_the_public_influence_is_that_of_the_models(tmp_path: Path) -> None:
    """Two replicas are the members of one public estimate, with changes in the environment's units."""
    replay = make_replay([0, 1], 9)
    model = make(replay, [5, 6])
    model.weights.fill(model.weigh_data())
    model.fit(30, make_generators([8, 9]))
    model.save(tmp_path, 3)
    public = Influence.load(tmp_path / "influence.safetensors")
    assert public.entities == {"object": list(ENTITY)}
    assert public.units.scale == list(SCALE)
    obs = replay.observation[0, 0, :2]
    expected = score_states(model.model, obs.expand(2, -1, -1), LAW, [[0, 1]], SMALL.scoring, make_generators([3]), 2)
    torch.testing.assert_close(torch.as_tensor(public.score(obs, make_generators([3])[0])["object"]), expected[0, :, 0])


def test_the_public_influence_has_the_horizon_of_the_run(tmp_path: Path) -> None:
    """Its model predicts all steps at once: the same scores as in the run, and no roll-out of single steps."""
    replay = make_replay([0], 9)
    table = TransitionTable(replay, LAW, {"object": ENTITY}, SCALE, horizon=3)
    model = CaiSignal(SMALL, table, make_generators([5]))
    model.weights.fill(model.weigh_data())
    model.fit(30, make_generators([8]))
    model.save(tmp_path, 3)
    public = Influence.load(tmp_path / "influence.safetensors")
    assert (public.horizon, public.predicted_steps) == (3, 3)
    assert "3 steps at once" in repr(public)
    obs = replay.observation[0, 0, :2]
    expected = score_states(model.model, obs[None], LAW, [[0, 1]], SMALL.scoring, make_generators([3]))[0, :, 0]
    random = [make_generators([3])[0] for _ in range(2)]
    torch.testing.assert_close(torch.as_tensor(public.score(obs, random[0])["object"]), expected)
    torch.testing.assert_close(torch.as_tensor(public.graph(obs, generator=random[1])["action", "object"]), expected)
    for other in (1, 5):
        with pytest.raises(ValueError, match=f"horizon={other}.*model of pairs"):
            public.graph(obs, horizon=other)


# --- several entities -----------------------------------------------------------------------------

SEVERAL = {"both": (3, 1), "first": (0, 1), "last": (3,)}  # predicted are columns 0, 1 and 3
DIMS = [[2, 1], [0, 1], [2]]


def several(replay: ReplayBuffer, combine: str) -> CaiSignal:
    table = TransitionTable(replay, LAW, SEVERAL, (5.0, *SCALE))
    with pytest.warns(UserWarning, match="share the columns") if combine == "sum" else nullcontext():
        return CaiSignal(SMALL, table, make_generators([5, 6]), combine)


@pytest.mark.parametrize("combine", ["sum", "max", "both", "first", "last"])
def test_scores_of_several_entities_are_combined(combine: str, tmp_path: Path) -> None:
    replay = make_replay([0, 1], 9)
    model = several(replay, combine)
    model.weights.fill(model.weigh_data())
    model.fit(30, make_generators([8, 9]))
    slots = torch.arange(9)
    model.score(slots, make_generators([3, 4]))
    obs = replay.observation[:, :9, :-1].flatten(1, 2)
    own = score_states(model.model, obs, LAW, DIMS, SMALL.scoring, make_generators([3, 4])).view(2, 9, STEPS, 3)
    assert (own.argmax(-1) == 0).float().mean() < 0.95  # the largest is not always the same
    hand = {"sum": own[..., 0] + own[..., 1] + own[..., 2], "max": own.max(-1).values}
    hand |= dict(zip(SEVERAL, own.unbind(-1), strict=True))
    expected = torch.where(replay.valid()[:, :9], hand[combine], 0)
    torch.testing.assert_close(replay.score[:, :9], expected)

    model.save(tmp_path, 3)
    public = Influence.load(tmp_path / "influence.safetensors", replica=1)
    assert public.entities == {name: list(columns) for name, columns in SEVERAL.items()}
    assert public.units.scale == [5.0, *SCALE]
    scores = public.score(obs[1], make_generators([4])[0])
    for entity, name in enumerate(SEVERAL):
        torch.testing.assert_close(torch.as_tensor(scores[name]), own[1, ..., entity].flatten(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("combine", ["sum", "max", "both", "first", "last"])
def test_actions_are_compared_by_the_same_combination(combine: str) -> None:
    generator = make_generators([1])[0]
    mean, variance = torch.randn(2, 4, 6, 3, generator=generator), torch.rand(2, 4, 6, 3, generator=generator) + 0.1
    found = several(make_replay([0, 1], 1), combine).compare((mean, variance))
    assert found.shape == (2, 4, 6)
    own = [kl_to_mixture(mean[..., dims], variance[..., dims]) for dims in DIMS]
    hand = {"sum": own[0] + own[1] + own[2], "max": torch.maximum(torch.maximum(own[0], own[1]), own[2])}
    hand |= dict(zip(SEVERAL, own, strict=True))
    torch.testing.assert_close(found, hand[combine])


def test_actions_are_compared_by_the_configured_form() -> None:
    generator = make_generators([1])[0]
    mean, variance = torch.randn(2, 4, 6, 2, generator=generator), torch.rand(2, 4, 6, 2, generator=generator) + 0.1
    model = make(make_replay([0, 1], 1), [5, 6], with_settings(scoring=ScoreConfig(actions=4, form="variational")))
    assert torch.equal(model.compare((mean, variance)), kl_to_mixture(mean, variance, form="variational"))


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size.* 0"),
        ({"batch_size": 1}, "batch_size.* 1"),
        ({"learning_rate": -1.0}, "learning_rate.* -1.0"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"newest_share": 1.0}, "newest_share.* 1.0"),
        ({"newest_share": -0.1}, "newest_share"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CaiConfig(**settings)


def test_an_unknown_kind_of_rescoring_is_refused() -> None:
    with pytest.raises(ValueError, match="sometimes"):
        CaiConfig(rescore="sometimes")  # type: ignore[arg-type]
