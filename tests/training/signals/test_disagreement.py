"""The ensemble: members that differ, disagreement by hand, that it shrinks with training, and plain loops."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from support.replay_buffers import ENTITY, LAW, SCALE, STEPS, expected_shares, make_replay
from torch import Tensor

import butfor.training.signals.disagreement
from butfor.models.networks import make_generators
from butfor.training.replay import ReplayBuffer
from butfor.training.signals.disagreement import DisagreementSignal, Ensemble, EnsembleConfig
from butfor.training.signals.learned import BLOCK
from butfor.training.signals.transitions import TransitionTable, load_model

SIZES = (4, 2, 3)
SMALL = EnsembleConfig(members=3, layers=2, width=8, batch_size=16, newest=2, newest_from=4)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=make_generators([seed])[0])


def with_settings(**changes: Any) -> EnsembleConfig:
    return dataclasses.replace(SMALL, **changes)


def ensemble(seeds: list[int], config: EnsembleConfig = SMALL) -> Ensemble:
    return Ensemble(SIZES, config, make_generators(seeds)).eval()


# --- the ensemble ---------------------------------------------------------------------------------


def test_members_differ_and_replicas_have_their_own() -> None:
    model = ensemble([0, 1])
    assert model.replicas == 6
    weights = [*model.hidden.parameters(), model.head.weight]
    for weight in weights:
        if weight.any():  # biases start at zero
            for first in range(6):
                for second in range(first):
                    assert not torch.equal(weight[first], weight[second])
    alone = ensemble([1])
    for name, value in alone.state_dict().items():
        assert torch.equal(value, model.state_dict()[name][3:]), name


def test_a_member_is_a_plain_network_and_its_loss_the_squared_error() -> None:
    model = ensemble([0, 1])
    inputs, target = normal(1, 6, 7, 6), normal(2, 6, 7, 3)
    loss = model.loss(inputs, target)
    for member in range(6):
        x = inputs[member] / (1 + 1e-5) ** 0.5  # the running statistics are still 0 and 1
        for index, layer in enumerate((*model.hidden, model.head)):
            x = (torch.tanh(x) if index else x) @ layer.weight[member] + layer.bias[member]
        expected = torch.nn.functional.mse_loss(x, target[member])
        torch.testing.assert_close(loss[member], expected)


def test_disagreement_by_hand() -> None:
    """The mean over members and dimensions of the squared deviation from the ensemble's mean."""
    model = ensemble([0, 1])
    inputs = normal(1, 2, 5, 6)
    found = model.disagreement(inputs)
    assert found.shape == (2, 5)
    for replica in range(2):
        predicted = model(inputs[replica].expand(6, -1, -1))[3 * replica : 3 * replica + 3].detach()  # [M, n, d]
        for row in range(5):
            members = predicted[:, row]
            expected = ((members - members.mean(0)) ** 2).mean()
            torch.testing.assert_close(found[replica, row], expected)


def test_equal_members_agree() -> None:
    """Exactly, where there are as many as a sum can be divided by without rounding."""
    model = ensemble([0, 1], with_settings(members=4))
    state = {name: value.unflatten(0, (2, 4))[:, :1].expand(-1, 4, *value.shape[1:]).flatten(0, 1)
             for name, value in model.state_dict().items()}  # fmt: skip
    model.load_state_dict(state)
    assert not model.disagreement(normal(1, 2, 5, 6)).any()
    with torch.no_grad():
        model.head.bias[5] += 1  # the second member of the second replica
    found = model.disagreement(normal(1, 2, 5, 6))
    assert not found[0].any()
    torch.testing.assert_close(found[1], torch.full((5,), 3 / 16))  # the variance of 0, 1, 0, 0


def test_parts_of_the_rows_at_a_time_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = ensemble([0, 1]), normal(1, 2, 11, 6)
    expected = model.disagreement(inputs)
    for rows in (0, 3):
        monkeypatch.setitem(butfor.training.signals.disagreement.AT_ONCE, "cpu", rows * 6 * SMALL.width)
        torch.testing.assert_close(model.disagreement(inputs), expected)


def test_scoring_uses_the_running_statistics_and_changes_nothing() -> None:
    """A row's score does not depend on those beside it."""
    model = ensemble([0])
    model.train()(normal(5, 3, 50, 6) * 3 + 1)
    model.eval()
    before = copy.deepcopy(model.state_dict())
    inputs = normal(1, 1, 20, 6)
    together = model.disagreement(inputs)
    torch.testing.assert_close(model.disagreement(inputs[:, :1]), together[:, :1])
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_disagreement_shrinks_with_training_and_stays_where_nothing_was_seen() -> None:
    model = ensemble([0, 1], with_settings(width=32)).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    seen, unseen = normal(1, 2, 200, 6), normal(1, 2, 200, 6) + 8
    first = model.eval().disagreement(seen).mean(1)
    for batch in range(300):
        inputs = normal(10 + batch, 6, 50, 6)
        optimizer.zero_grad()
        model.train().loss(inputs, inputs[..., :3].sin()).sum().backward()
        optimizer.step()
    last = model.eval().disagreement(seen).mean(1)
    assert (last < 0.5 * first).all()
    assert (model.disagreement(unseen).mean(1) > 4 * last).all()


# --- a replay buffer ----------------------------------------------------------------------------


def make(replay: ReplayBuffer, seeds: list[int], config: EnsembleConfig = SMALL) -> DisagreementSignal:
    return DisagreementSignal(config, TransitionTable(replay, LAW, {"object": ENTITY}, SCALE), make_generators(seeds))


def plain_fit(replay: ReplayBuffer, batches: int, seeds: tuple[int, int], replica: int) -> tuple[float, list[Any]]:
    """The members of one replica as models of their own, batch by batch; mean over members of the summed loss."""
    start = make(make_replay([replica], 1), [seeds[0]]).model
    generator, total = make_generators([seeds[1]])[0], 0.0
    lengths = replay.length[replica].tolist()
    steps = [(slot, time) for slot, length in enumerate(lengths) for time in range(length)]
    members, optimizers = [], []
    for member in range(3):
        one = Ensemble((4, 2, 2), with_settings(members=2), make_generators([0])).train()
        state = {name: value[[member, member]] for name, value in start.state_dict().items()}  # twins
        one.load_state_dict(state)
        members.append(one)
        optimizers.append(torch.optim.Adam(one.parameters(), lr=SMALL.learning_rate, betas=SMALL.betas))
    for _ in range(batches):
        for one, optimizer in zip(members, optimizers, strict=True):
            rows = []
            for first, second in torch.rand(SMALL.batch_size, 2, generator=generator).double().tolist():
                slot, _ = steps[int(first * len(steps))]
                rows.append((slot, int(second * lengths[slot])))
            obs = torch.stack([replay.observation[replica, slot, time] for slot, time in rows])
            then = torch.stack([replay.observation[replica, slot, time + 1] for slot, time in rows])
            action = torch.stack([replay.action[replica, slot, time] for slot, time in rows])
            target = (then - obs)[:, list(ENTITY)] * torch.tensor(SCALE)
            predicted = one(torch.cat([obs, LAW.encode(action)], 1).expand(2, -1, -1))
            loss = torch.nn.functional.mse_loss(predicted[0], target)
            optimizer.zero_grad()
            (loss + torch.nn.functional.mse_loss(predicted[1], target)).backward()
            optimizer.step()
            total += loss.item() / 3
    return total, members


@pytest.mark.parametrize("batches", [3, BLOCK + 4])
def test_fitting_is_a_plain_loop_for_each_member(batches: int) -> None:
    """Each with samples of its own."""
    replay = make_replay([0, 1], 4)  # too few for the newest to count
    model = make(replay, [5, 6])
    model.weights.fill(model.weigh_data())
    losses = model.fit(batches, make_generators([8, 9]))
    assert losses.shape == (2,)
    assert not model.model.training
    for replica in range(2):
        loss, members = plain_fit(replay, batches, (5 + replica, 8 + replica), replica)
        assert losses[replica].item() == pytest.approx(loss, rel=1e-4)
        for member, plain in enumerate(members):
            for name, value in plain.state_dict().items():
                found = model.model.state_dict()[name][3 * replica + member]
                torch.testing.assert_close(found, value[0], rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("parts", [[9, 36], [20, 25], [44, 1]])
def test_a_fit_in_parts_is_a_fit_at_once(parts: list[int]) -> None:
    states = []
    for sizes in ([sum(parts)], parts):
        model = make(make_replay([0, 1], 9), [5, 6])
        model.weights.fill(model.weigh_data())
        generators = make_generators([8, 9])
        total = torch.stack([model.fit(size, generators) for size in sizes]).sum(0)
        states.append((model.state(), total))
    (once, loss), (apart, losses) = states
    torch.testing.assert_close(loss, losses)
    for name, value in once["model"].items():
        assert torch.equal(value, apart["model"][name]), name


@pytest.mark.parametrize(
    ("stored", "capacity", "share"), [(4, 50, None), (5, 50, 0.25), (9, 7, 0.25), (9, 2, None), (9, 3, 0.25)]
)
def test_a_quarter_of_the_samples_comes_from_the_newest_episodes(
    stored: int, capacity: int, share: float | None
) -> None:
    replay = make_replay([0, 1], stored, capacity)
    model = make(replay, [0, 1])
    model.weights.fill(model.weigh_data())
    weight = model.weights.step.double()
    expected = expected_shares(replay, 2, share, False)
    torch.testing.assert_close(weight / weight.sum((1, 2), keepdim=True), expected, rtol=1e-5, atol=1e-7)


def test_each_step_holds_the_disagreement_at_its_state_and_action() -> None:
    replay = make_replay([0, 1], 9)
    model = make(replay, [5, 6])
    model.weights.fill(model.weigh_data())
    model.fit(30, make_generators([8, 9]))
    before = copy.deepcopy(model.state())
    slots = torch.tensor([6, 2, 3])
    model.score(slots, make_generators([3, 4]))
    for replica in range(2):
        for slot in slots.tolist():
            inputs = torch.cat([replay.observation[:, slot, :STEPS], LAW.encode(replay.action[:, slot])], -1)
            expected = model.model.disagreement(inputs)[replica]
            length = int(replay.length[replica, slot])
            torch.testing.assert_close(replay.score[replica, slot, :length], expected[:length])
            assert (expected > 0).all()
            assert not replay.score[replica, slot, length:].any()
    others = torch.ones(50, dtype=torch.bool).index_fill(0, slots, False)
    assert not replay.score[:, others].any()  # untouched
    for name, value in before["model"].items():
        assert torch.equal(value, model.model.state_dict()[name]), name


def test_replicas_at_once_are_each_replica_alone() -> None:
    together = make(make_replay([0, 1, 2], 9), [5, 6, 7])
    together.weights.fill(together.weigh_data())
    together.fit(BLOCK + 3, make_generators([10, 11, 12]))
    together.score(together.replay.slots(9))
    for replica in range(3):
        alone = make(make_replay([replica], 9), [5 + replica])
        alone.weights.fill(alone.weigh_data())
        alone.fit(BLOCK + 3, make_generators([10 + replica]))
        alone.score(alone.replay.slots(9))
        for name, value in alone.model.state_dict().items():
            found = together.model.state_dict()[name][3 * replica : 3 * replica + 3]
            torch.testing.assert_close(value, found, rtol=1e-3, atol=1e-4, msg=name)
        torch.testing.assert_close(alone.replay.score[0], together.replay.score[replica], rtol=1e-2, atol=1e-4)


def test_a_restored_one_goes_on_as_if_never_saved() -> None:
    replay = make_replay([0, 1], 9)
    model = make(replay, [5, 6])
    model.weights.fill(model.weigh_data())
    model.fit(7, make_generators([8, 9]))
    model.score(replay.slots(9))
    saved = copy.deepcopy(model.state())
    model.fit(5, make_generators([1, 2]))
    other = make(replay, [70, 71], with_settings(rescore="once"))
    other.weights.fill(other.weigh_data())
    other.restore(saved)
    assert not len(other.stale())
    other.fit(5, make_generators([1, 2]))
    for name, value in model.model.state_dict().items():
        assert torch.equal(value, other.model.state_dict()[name]), name


def test_which_episodes_are_scored_after_a_round() -> None:
    """All of them, or each once: those of the warm-up after the first round, later ones when they come."""
    for rescore, expected in (("all", [[0, 1, 2, 3], [0, 1, 2, 3, 4]]), ("once", [[], [4]])):
        replay = make_replay([0], 4)
        model = make(replay, [5], with_settings(rescore=rescore))
        assert model.stale().tolist() == [0, 1, 2, 3]
        model.score(model.stale())
        assert model.stale().tolist() == expected[0]
        before = replay.score.clone()
        model.score(model.stale())  # the same again, or nothing
        assert torch.equal(replay.score, before)
        replay.stored += 1
        assert model.stale().tolist() == expected[1]


def test_the_saved_networks_come_back(tmp_path: Path) -> None:
    signal = make(make_replay([0, 1], 9), [5, 6])
    signal.fit(30, make_generators([8, 9]))
    signal.save(tmp_path, 3)
    path = tmp_path / "disagreement.safetensors"
    for replica, part in ((None, slice(None)), (0, slice(3)), (1, slice(3, 6))):  # three members each
        model, units, _ = load_model(path, "disagreement", Ensemble, EnsembleConfig, replica=replica)
        assert model.config == SMALL
        assert units.entities == {"object": sorted(ENTITY)}
        for name, value in signal.model.state_dict().items():
            assert torch.equal(value[part], model.state_dict()[name]), name


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"members": 1}, "members.* 1"),
        ({"layers": 0}, "layers must be at least 1; got 0"),
        ({"width": 0}, "width must be at least 1"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 1}, "batch_size.* 1"),
        ({"newest": 0}, "newest must be at least 1"),
        ({"activation": "sine"}, "'sine'"),
        ({"learning_rate": 0.0}, "learning_rate must be positive; got 0.0"),
        ({"newest_share": 1.0}, r"newest_share.*1\.0"),
        ({"rescore": "never"}, "rescore.*'never'"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EnsembleConfig(**settings)
