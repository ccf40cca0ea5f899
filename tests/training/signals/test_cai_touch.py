"""A model of touches that learns along: its loss against its parts, replicas alone and together, and what it learns."""

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from support.hand_and_object import HAND, OBJECT, can_be_carried, states, transitions
from torch import Tensor
from torch.distributions import Bernoulli, kl_divergence

from butfor.influence.contact import (
    ALONG,
    FOLLOWED,
    ContactDynamics,
    ContactPrediction,
    EntityContact,
    make_contact_optimizer,
)
from butfor.influence.influence import Influence
from butfor.influence.partners import Pair
from butfor.influence.scoring import ScoreConfig, score_states
from butfor.models.dynamics import ModelConfig
from butfor.models.gpu import deterministic
from butfor.models.networks import copy_replicas, make_generators
from butfor.models.tables import Units
from butfor.spaces.actions import ActionLaw
from butfor.training.replay import ReplayBuffer
from butfor.training.signals.cai import CaiConfig, CaiSignal
from butfor.training.signals.learned import BLOCK
from butfor.training.signals.transitions import TransitionTable

OBS = 7
LAW = ActionLaw((-1.0, -1.0), (1.0, 1.0))
PARTNERS = {"object": [Pair(OBJECT, HAND)]}
SCALE = (10.0, 10.0)
CONFIG = CaiConfig(model="touch", scoring=ScoreConfig(actions=8), batch_size=64, learning_rate=2e-3, newest_from=10_000)


def make_replay(seeds: list[int], count: int, device: str = "cpu") -> ReplayBuffer:
    """`count` episodes of one step for each seed, transitions of a hand that can carry an object."""
    replay = ReplayBuffer(len(seeds), count, 1, (OBS, 2, 2), device)
    given = [transitions(count, seed) for seed in seeds]
    obs, action, next_obs = (np.stack(part) for part in zip(*given, strict=True))  # [R, count, ...]
    replay.store(
        {
            "observation": np.stack([obs, next_obs], 2),
            "action": action[:, :, None],
            "achieved_goal": np.zeros((len(seeds), count, 2, 2)),
            "desired_goal": np.zeros((len(seeds), count, 2, 2)),
            "sampled": np.ones((len(seeds), count, 1), bool),
            "length": np.ones((len(seeds), count), int),
            "terminated": np.zeros((len(seeds), count), bool),
        }
    )
    return replay


def make(replay: ReplayBuffer, seeds: list[int]) -> CaiSignal:
    table = TransitionTable(replay, LAW, {"object": OBJECT}, SCALE, PARTNERS)
    return CaiSignal(CONFIG, table, make_generators(seeds))


def test_the_influence_of_a_source_is_that_of_its_presence() -> None:
    """KL( B(t) || (B(t) + B(0)) / 2 ) of the probability t that the hand touches the object with the action taken."""
    replay = make_replay([0, 1], 40)
    table = TransitionTable(replay, LAW, {"object": OBJECT}, SCALE, PARTNERS)
    signal = CaiSignal(replace(CONFIG, source="hand=0:2"), table, make_generators([0, 1]))
    signal.fit(30, make_generators([3, 4]))
    signal.score(torch.arange(40), make_generators([5, 6]))
    actions = LAW.encode(replay.action[:, :, 0]).unsqueeze(2)
    found = signal.model.predictor()(replay.observation[:, :, 0], actions)
    assert isinstance(found, ContactPrediction)
    touched = found.touches[0, 1].log_odds.sigmoid().double()[..., 0]
    expected = kl_divergence(Bernoulli(touched), Bernoulli(touched / 2))
    torch.testing.assert_close(replay.score[..., 0].double(), expected, rtol=1e-3, atol=1e-5)
    assert float(replay.score.max()) <= math.log(2)
    assert float(replay.score.std()) > 1e-4
    with pytest.raises(ValueError, match=r"'cube'.*'gaussian'"):  # which does not know what touches
        CaiConfig(source="cube")


def untrained(seeds: list[int], names: tuple[str, ...] = ("object",)) -> ContactDynamics:
    columns = {"object": OBJECT, "other": [5, 6]}
    entities = {name: columns[name] for name in names}
    units = Units.raw(LAW, entities, [10.0, 10.0, 20.0, 20.0][: 2 * len(names)], OBS)
    return ContactDynamics(units, {name: [Pair(entities[name], HAND)] for name in names}, ALONG, make_generators(seeds))


def batch(rows: int, seed: int, replicas: int = 1) -> tuple[Tensor, Tensor]:
    """Inputs, and as targets the changes of the object times 10 and those of the hand."""
    tables = []
    for replica in range(replicas):
        obs, action, next_obs = (torch.from_numpy(part).float() for part in transitions(rows, seed + replica))
        change = next_obs - obs
        target = torch.cat([10 * change[:, OBJECT], change[:, HAND]], 1)
        tables.append((torch.cat([obs, action], 1), target))
    inputs, targets = zip(*tables, strict=True)
    return torch.stack(inputs), torch.stack(targets)


def only(model: ContactDynamics) -> EntityContact:
    entity = model.entities[0]
    assert isinstance(entity, EntityContact)
    return entity


def test_the_loss_has_three_parts_which_train_networks_of_their_own() -> None:
    model = untrained([0, 1]).train()
    inputs, target = batch(50, 0, 2)
    loss = model.loss(inputs, target)
    assert loss.shape == (2,)
    entity = only(model)
    obs, action = inputs[..., :OBS], inputs[..., OBS:]
    seen = (obs - entity.obs_center) / entity.obs_spread
    free = entity.free(seen)
    step = entity.partner_step(torch.cat([seen, action], -1))
    found = entity.predict(obs, action, free.detach(), model.units, model.change_scale)
    parts = {
        "free": (free - target[..., :2]).abs().mean((1, 2)),
        "partner_step": (step - target[..., 2:] / entity.step_scale).abs().mean((1, 2)),
        "touch": -found.log_density(target[..., :2]).mean(1),
    }
    torch.testing.assert_close(loss, sum(parts.values()))
    for name, part in parts.items():
        model.zero_grad()
        part.sum().backward(retain_graph=True)
        trained = {key.split(".")[2] for key, value in model.named_parameters() if value.grad is not None}
        assert trained == ({"touch", "free_variance"} if name == "touch" else {name})


def test_the_loss_of_two_entities_is_the_sum_of_theirs() -> None:
    both = untrained([0], ("object", "other")).train()
    inputs, target = batch(50, 0)
    change = (torch.from_numpy(np.subtract(*transitions(50, 0)[2::-2])).float() * 20)[None, :, [5, 6]]
    steps = target[..., 2:]
    total = both.loss(inputs, torch.cat([target[..., :2], change, steps, steps], -1))
    alone = torch.zeros(1)
    for entity, own, scale in zip(both.entities, (target[..., :2], change), (10.0, 20.0), strict=True):
        assert isinstance(entity, EntityContact)
        parts = (inputs[..., :OBS], inputs[..., OBS:], own, steps, both.units, torch.full((1, 1, 2), scale))
        alone = alone + entity.loss(*parts)
    torch.testing.assert_close(total, alone)


def test_units_follow_all_batches_at_first() -> None:
    model = untrained([0]).train()
    entity = only(model)
    batches = [batch(40, seed) for seed in range(5)]
    for inputs, target in batches:
        model.loss(inputs, target)
    obs = [inputs[0, :, :OBS] for inputs, _ in batches]
    steps = [target[0, :, 2:] for _, target in batches]
    torch.testing.assert_close(entity.obs_center[0, 0], torch.stack([one.mean(0) for one in obs]).mean(0))
    torch.testing.assert_close(entity.obs_spread[0, 0], torch.stack([one.std(0) for one in obs]).mean(0))
    torch.testing.assert_close(entity.step_scale[0, 0], torch.stack([one.std(0) for one in steps]).mean(0))
    model.eval()
    before = copy.deepcopy(model.state_dict())
    model.loss(*batches[0])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_later_units_forget_old_batches() -> None:
    model = untrained([0]).train()
    entity = only(model)
    near, far = batch(20, 0), batch(20, 0)
    far[0][..., :OBS] += 5
    for inputs, target in [*[near] * FOLLOWED, *[far] * 3 * FOLLOWED]:
        with torch.no_grad():
            entity.follow(inputs[..., :OBS], target[..., 2:], model.units)
    left = (1 - 1 / FOLLOWED) ** (3 * FOLLOWED)
    expected = far[0][0, :, :OBS].mean(0) - 5 * left
    torch.testing.assert_close(entity.obs_center[0, 0], expected, rtol=1e-3, atol=1e-3)


def test_a_column_that_never_varies_gives_finite_numbers() -> None:
    model = untrained([0]).train()
    inputs, target = batch(50, 0)
    inputs[..., 5] = 3.0
    target[..., 3] = 0
    model.loss(inputs, target)
    inputs[..., 5] = 4.0
    assert torch.isfinite(model.loss(inputs, target)).all()


@pytest.mark.filterwarnings("ignore")
def test_a_compiler_sees_one_graph_that_gives_the_same() -> None:
    plain, other = untrained([0, 1]).train(), untrained([0, 1]).train()
    compiled: Any = torch.compile(other.loss, backend="aot_eager", fullgraph=True, dynamic=False)
    for seed in range(3):
        inputs, target = batch(50, seed, 2)
        torch.testing.assert_close(compiled(inputs, target), plain.loss(inputs, target))
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], value, msg=name)


def test_some_replicas_are_copied_with_their_units() -> None:
    model = untrained([0, 1, 2]).train()
    model.loss(*batch(50, 0, 3))
    model.eval()
    part = copy_replicas(model, slice(1, 3))
    obs = torch.from_numpy(states(20, 5)).float()
    actions = torch.rand(1, 20, 4, 2, generator=make_generators([1])[0])
    whole = model.predictor()(obs.expand(3, -1, -1), actions).touches[0, 1]
    found = part.predictor()(obs.expand(2, -1, -1), actions).touches[0, 1]
    for one, other in zip(found.parts(), whole.parts(), strict=True):
        torch.testing.assert_close(one, other[1:])


def test_weights_of_touches_decay_and_those_of_motions_do_not() -> None:
    model = untrained([0])
    optimizer = make_contact_optimizer(model, 0.1, (0.9, 0.9))
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    for value in model.parameters():
        value.grad = torch.zeros_like(value)
    optimizer.step()
    for name, value in model.named_parameters():
        decays = name.split(".")[2] in ("touch", "free_variance")
        torch.testing.assert_close(value.detach(), before[name] * (1 - 0.1 * ALONG.weight_decay * decays), msg=name)


def test_replicas_at_once_are_each_replica_alone() -> None:
    together = make(make_replay([0, 1], 300), [5, 6])
    together.fit(BLOCK + 3, make_generators([10, 11]))
    together.score(together.replay.slots(30), make_generators([20, 21]))
    for replica in range(2):
        alone = make(make_replay([replica], 300), [5 + replica])
        alone.fit(BLOCK + 3, make_generators([10 + replica]))
        alone.score(alone.replay.slots(30), make_generators([20 + replica]))
        for name, value in alone.model.state_dict().items():
            torch.testing.assert_close(
                value[0], together.model.state_dict()[name][replica], rtol=1e-3, atol=1e-4, msg=name
            )
        torch.testing.assert_close(alone.replay.score[0], together.replay.score[replica], rtol=1e-2, atol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU: graphs cannot be recorded here")
def test_recorded_batches_agree_with_eager_ones() -> None:
    found = []
    for eager in (True, False):
        signal = make(make_replay([0, 1], 300, "cuda"), [5, 6])
        with deterministic(eager):  # which records nothing
            signal.fit(BLOCK + 3, make_generators([10, 11], "cuda"), fast=False)
        found.append(signal.model.state_dict())
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name], rtol=1e-2, atol=1e-3, msg=name)


def test_a_restored_model_continues_as_if_never_saved() -> None:
    replay = make_replay([0, 1], 100)
    model = make(replay, [5, 6])
    model.fit(7, make_generators([8, 9]))
    saved = copy.deepcopy(model.state())
    model.fit(5, make_generators([1, 2]))
    other = make(replay, [70, 71])
    other.restore(saved)
    other.fit(5, make_generators([1, 2]))
    for name, value in model.model.state_dict().items():
        assert torch.equal(value, other.model.state_dict()[name]), name


def test_it_learns_where_the_object_can_be_carried_and_is_saved(tmp_path: Path) -> None:
    """Chance is an AUC of 0.5; the untrained model is below 0.9."""
    signal = make(make_replay([0], 3000), [5])
    generators = make_generators([8])
    first = signal.fit(BLOCK, generators)
    signal.fit(1200, generators)
    assert signal.fit(BLOCK, generators) < first
    signal.save(tmp_path, 3)
    public = Influence.load(tmp_path / "influence.safetensors")
    assert isinstance(public.model, ContactDynamics)
    assert public.model.pairs == PARTNERS
    obs = states(1000, 7)
    score = public.score(obs)["object"]
    assert roc_auc_score(can_be_carried(obs), score) > 0.95
    seen = torch.from_numpy(obs).float()[None]
    own = score_states(signal.model, seen, LAW, [[0, 1]], CONFIG.scoring, make_generators([3]))
    np.testing.assert_allclose(public.score(obs, make_generators([3])[0])["object"], own[0, :, 0].numpy(), rtol=1e-5)


def test_actions_are_compared_by_their_touches() -> None:
    signal = make(make_replay([0, 1], 10), [5, 6])
    for layer in ("touch", "partner_step"):
        getattr(only(signal.model), layer).layers[-1].weight.data *= 300
    model, compare = signal.action_model()
    obs = torch.from_numpy(states(6, 1)).float().expand(2, -1, -1)
    actions = 2 * torch.rand(2, 6, 5, 2, generator=make_generators([1])[0]) - 1
    predicted: Any = model.predictor()(obs, actions)
    found = compare(predicted)
    assert found.shape == (2, 6, 5)
    assert found.max() > 1e-3
    assert torch.equal(found, predicted.touches[0, 1].divergence())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "touches"}, "model.* 'touches'"),
        ({"agent": (0, 1)}, r"cai.agent is \(0, 1\)"),
        ({"model": "touch", "batch_size": 1, "network": ModelConfig(normalize_input=False)}, "batch_size.* 1"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CaiConfig(**settings)
