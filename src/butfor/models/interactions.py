"""In which steps does anything act on an entity? Learned from recorded transitions, without labels.

Each entity has a free motion: how it moves by itself, given its own columns and the action, if it is driven by it. It
is the median of the next state in the half of the steps in which all other entities are the farthest away: few of these
have a touch. (Over all steps, an object that moves may nearly always be pushed; the median is then that of a push.) If
the nearest of these are close, the entity is held in most steps, and only those that are clearly farther count. A step
in which the entity moves otherwise shows an interaction. Where the free motion is hard to predict, as that of a
tumbling cube, an interaction would not be seen: such steps are unclear, and nothing is concluded from them. A
classifier then learns from the whole state and the action in which of the other steps an interaction is to be expected.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits
from torch.nn.utils.rnn import pad_sequence

from butfor.models.gpu import matrix_precision
from butfor.models.networks import MLP, copy_replicas, make_generators, single_thread

Table = NDArray[Any]
Transitions = tuple[Table, Table, Table]
Bool = NDArray[np.bool_]

SURPRISE = 10.0  # times the usual error of free motion there, from which on a step shows an interaction
LEAST_ERROR = 0.01  # standard deviations of the entity's change
MOST_ERROR = 1e6  # the same: far from all data a network says any number
UPDATES = 3000  # of each network
BATCH = 256
WIDTH = 64
HELD_OUT = 0.2  # share of the steps by which the best weights are chosen
CHECK = 150  # updates between two looks at them
FEWEST = 20  # interactions of an entity, to learn from
UNSEEN = 0.1  # share of the interactions in well predicted steps that may go unseen in others that count as clear
FAR = 0.5  # share of the steps, those with the largest distance to others, from which free motion is learned
FARTHEST = 0.95  # quantile of these distances that counts as far away
HELD = 0.25  # share of that distance: if the nearest of these steps are closer, the entity is mostly held, and
APART = 0.5  # free motion is learned only from steps that are at least this share of it away


@dataclass
class Interactions:
    """Free motion and expected interactions of each entity."""

    entities: dict[str, list[int]]
    networks: dict[str, MLP]  # outputs per entity: the change, and the log of its usual error
    scales: dict[str, Any]
    classifiers: dict[str, Any]
    positions: int  # how many of the first columns of each entity are its position
    limits: dict[str, float]  # usual error of free motion above which an interaction would not be seen

    def surprised(self, obs: Table, action: Table, next_obs: Table) -> dict[str, Bool]:
        """In which steps [N] each entity moved otherwise than by itself."""
        found = {}
        for name, (change, error) in self._free(obs, action).items():
            found[name] = self._off(obs, next_obs, name, change) > SURPRISE * error
        return found

    def clear(self, obs: Table, action: Table) -> dict[str, Bool]:
        """In which steps [N] an interaction of each entity would be seen."""
        return {name: error <= self.limits[name] for name, (_, error) in self._free(obs, action).items()}

    def find_limits(self, obs: Table, action: Table, next_obs: Table) -> None:
        """Find the errors of free motion at which the interactions of well predicted steps would still be seen."""
        for name, (change, error) in self._free(obs, action).items():
            off = self._off(obs, next_obs, name, change)
            shown = off[(off > SURPRISE * error) & (error <= np.median(error))]
            self.limits[name] = float(np.quantile(shown, UNSEEN)) / SURPRISE if len(shown) else np.inf

    def _off(self, obs: Table, next_obs: Table, entity: str, change: Table) -> Table:
        """The largest distance [N] of the columns of an entity to its free motion, in standard deviations."""
        off = np.abs((next_obs - obs)[:, self.entities[entity]] - change) / self.scales[entity]["change"]
        return np.asarray(off.max(1))

    def score(self, obs: Table, action: Table, entity: str) -> Table:
        """How much an interaction of the entity is to be expected in each step, as log odds [N]."""
        features = self._features(obs, action, entity)
        return np.asarray(self.classifiers[entity].decision_function(features))

    @torch.no_grad()
    def _free(self, obs: Table, action: Table) -> dict[str, tuple[Table, Table]]:
        """The change of each entity [N, d] in its free motion, and its usual error [N] in standard deviations."""
        found = {}
        for name, columns in self.entities.items():
            scale = self.scales[name]
            network = self.networks[name]
            output = network(_inputs(obs, action, columns, scale)[None])[0].numpy().astype(np.float64)
            error = np.exp(np.minimum(output[:, -1], np.log(MOST_ERROR)))
            found[name] = output[:, :-1] * scale["change"], np.maximum(error, LEAST_ERROR)
        return found

    def _features(self, obs: Table, action: Table, entity: str) -> Table:
        """The state and the action, and the way from the entity to each other one, now and after their free motion."""
        free = self._free(obs, action)
        place = {name: obs[:, columns[: self.positions]] for name, columns in self.entities.items()}
        after = {name: place[name] + free[name][0][:, : self.positions] for name in self.entities}
        parts = [obs, action]
        gaps = []
        for name in self.entities:
            if name != entity:
                ways = [place[name] - place[entity], after[name] - after[entity]]
                distances = [np.linalg.norm(way, axis=1) for way in ways]
                parts += [*ways, np.stack(distances, 1)]
                gaps.append(np.minimum(*distances))
        parts.append(np.min(gaps, 0)[:, None] if gaps else np.zeros((len(obs), 1)))
        return np.concatenate(parts, 1)


def learn_interactions(
    data: Sequence[Transitions],
    entities: Mapping[str, Sequence[int]],
    seeds: Sequence[int] = (0,),
    agent: str | None = None,
    device: torch.device | str = "cpu",
    updates: int = UPDATES,
) -> list[Interactions]:
    """Learn free motions and expected interactions from each of R sets of transitions.

    Args:
        data: states [N, D], actions [N, A] and the states that followed [N, D] of each set; N may differ.
        entities: columns of each entity, all that there are; the first ones are its position.
        seeds: of the networks, their batches and the classifiers of each set.
        agent: an entity whose own interactions are not asked for; None: those of all are learned.
        device: where the networks are fitted, those of all sets together.
        updates: of the networks.

    Raises:
        ValueError: fewer than two entities.
    """
    if len(entities) < 2:
        raise ValueError(f"Interactions need at least 2 entities; got {', '.join(entities) or 'none'}.")
    columns = {name: list(given) for name, given in entities.items()}
    smallest = min(map(len, columns.values()))
    positions = smallest if smallest <= 3 else min(smallest // 2, 3)
    found = [Interactions(columns, {}, {}, {}, positions, {}) for _ in data]
    # the trees are small, too: on busy processors their threads would mostly wait for each other
    with single_thread(), threadpool_limits(1), matrix_precision("highest"):
        for place, (name, own) in enumerate(columns.items()):
            inputs, targets = [], []
            for one, (obs, action, next_obs) in zip(found, data, strict=True):
                change = (next_obs - obs)[:, own]
                gap = _gap(obs, columns, name, positions)
                usual, farthest = np.quantile(gap, [1 - FAR, FARTHEST])
                far = gap >= (usual if usual >= HELD * farthest else APART * farthest)
                seen = np.concatenate([obs[:, own], action], 1)
                spread = np.maximum(seen.std(0), 1e-6)
                scale = {"change": np.maximum(change.std(0), 1e-9), "center": seen.mean(0), "spread": spread}
                one.scales[name] = scale
                inputs.append(_inputs(obs[far], action[far], own, scale))
                targets.append(torch.as_tensor(change[far] / scale["change"], dtype=torch.float32))
            networks = _fit_free(inputs, targets, [1000 * seed + place for seed in seeds], device, updates)
            for replica, one in enumerate(found):
                one.networks[name] = copy_replicas(networks, slice(replica, replica + 1))
        for one, (obs, action, next_obs), seed in zip(found, data, seeds, strict=True):
            one.find_limits(obs, action, next_obs)
            shown = one.surprised(obs, action, next_obs)
            clear = one.clear(obs, action)
            for name in columns:
                label = shown[name][clear[name]]
                if name != agent and FEWEST <= label.sum() < len(label):
                    classifier = HistGradientBoostingClassifier(max_iter=150, random_state=seed, early_stopping=False)
                    one.classifiers[name] = classifier.fit(one._features(obs, action, name)[clear[name]], label)
    return found


def _gap(obs: Table, columns: Mapping[str, Sequence[int]], entity: str, positions: int) -> Table:
    """The distance [N] of an entity to the nearest other one."""
    place = {name: obs[:, own[:positions]] for name, own in columns.items()}
    ways = [place[name] - place[entity] for name in columns if name != entity]
    return np.asarray(np.min([np.linalg.norm(way, axis=1) for way in ways], 0))


def _inputs(obs: Table, action: Table, columns: Sequence[int], scale: Mapping[str, Any]) -> torch.Tensor:
    seen = np.concatenate([obs[:, columns], action], 1)
    return torch.as_tensor((seen - scale["center"]) / scale["spread"], dtype=torch.float32)


def _fit_free(
    inputs: Sequence[torch.Tensor],
    targets: Sequence[torch.Tensor],
    seeds: Sequence[int],
    device: torch.device | str,
    updates: int,
) -> MLP:
    """Fit the median of an entity's change [N, d], and the median of the log of its error, from each of R sets."""
    generators = make_generators(seeds)
    sizes = [inputs[0].shape[1], WIDTH, WIDTH, targets[0].shape[1] + 1]
    network = MLP(sizes, generators, activation=torch.nn.functional.silu).to(device)
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, updates)
    # Steps are in the order of their episodes: the last ones are held out, to stop before they are predicted worse.
    learned = [len(rows) - int(HELD_OUT * len(rows)) for rows in inputs]
    drawn = [_draw_rows(*one, updates) for one in zip(inputs, targets, learned, seeds, generators, strict=True)]
    rows = torch.stack(drawn, 1).to(device)  # [updates, R, BATCH]
    table, wanted = (pad_sequence(list(part), batch_first=True).to(device) for part in (inputs, targets))
    kept = [[part[first:] for part, first in zip(parts, learned, strict=True)] for parts in (inputs, targets)]
    held_out, held_targets = (pad_sequence(part, batch_first=True).to(device) for part in kept)
    count = torch.tensor([len(part) for part in kept[0]], device=device)
    valid = torch.arange(held_out.shape[1], device=device) < count[:, None]
    replica = torch.arange(len(inputs), device=device)[:, None]
    best = torch.full((len(inputs),), torch.inf, device=device)
    weights = {name: value.clone() for name, value in network.state_dict().items()}
    for update, here in enumerate(rows, 1):
        output = network(table[replica, here])
        off = (output[..., :-1] - wanted[replica, here]).abs()
        error = off.detach().amax(2).clamp_min(LEAST_ERROR).log()
        loss = off.mean((1, 2)) + 0.1 * (output[..., -1] - error).abs().mean(1)
        optimizer.zero_grad()
        loss.sum().backward()
        optimizer.step()
        schedule.step()
        if update % CHECK == 0 or update == updates:
            with torch.no_grad():
                off = (network(held_out)[..., :-1] - held_targets).abs().amax(2)
            # The logarithm: steps that cannot be predicted, as those of a falling cube, must not outweigh all others.
            missed = (off.clamp_min(LEAST_ERROR).log() * valid).sum(1) / count
            better = missed < best
            best = torch.where(better, missed, best)
            for name, value in network.state_dict().items():
                weights[name] = torch.where(better[:, None, None], value, weights[name])
    network.load_state_dict(weights)
    return network.eval().requires_grad_(False).cpu()


def _draw_rows(
    inputs: torch.Tensor, targets: torch.Tensor, learned: int, seed: int, generator: torch.Generator, updates: int
) -> torch.Tensor:
    """Rows [updates, BATCH] of all batches, among the first `learned`.

    Entities often rest, which is soon learned: three quarters of a batch are drawn by the change to be expected from
    the entity's own state. Weights by the change itself would prefer interactions, and so change the median.
    """
    size = targets.abs().amax(1).numpy()
    expected = HistGradientBoostingRegressor(max_iter=40, random_state=seed)
    expected.fit(inputs[:learned].numpy(), size[:learned])
    weight = torch.as_tensor(np.maximum(expected.predict(inputs[:learned].numpy()), 1e-6))
    even = BATCH // 4
    by_weight = torch.multinomial(weight, updates * (BATCH - even), replacement=True, generator=generator)
    uniform = torch.randint(learned, (updates, even), generator=generator)
    return torch.cat([uniform, by_weight.reshape(updates, -1)], 1)
