"""In which steps does anything act on an entity? Learned from recorded transitions, without labels.

Each entity has a free motion: how it moves by itself, given its own columns and the action, if it is driven by it. It
is the median of the next state in the half of the steps in which all other entities are the farthest away: few of these
have a touch. (Over all steps, an object that moves may nearly always be pushed; the median is then that of a push.) A
step in which the entity moves otherwise shows an interaction. Where the free motion is hard to predict, as that of a
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

from butfor.models.networks import MLP, make_generators, single_thread

Table = NDArray[Any]
Bool = NDArray[np.bool_]

SURPRISE = 10.0  # times the usual error of free motion there, from which on a step shows an interaction
LEAST_ERROR = 0.01  # standard deviations of the entity's change
UPDATES = 3000
BATCH = 256
WIDTH = 64
HELD_OUT = 0.2  # share of the steps by which the best weights are chosen
CHECK = 150  # updates between two looks at them
FEWEST = 20  # interactions of an entity, to learn from
UNSEEN = 0.1  # share of the interactions in well predicted steps that may go unseen in others that count as clear
FAR = 0.5  # share of the steps, those with the largest distance to others, from which free motion is learned


@dataclass
class Interactions:
    """Free motion and expected interactions of each entity."""

    entities: dict[str, list[int]]
    networks: Any  # outputs per entity: the change, and the log of its usual error
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
            found[name] = output[:, :-1] * scale["change"], np.maximum(np.exp(output[:, -1]), LEAST_ERROR)
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
    obs: Table, action: Table, next_obs: Table, entities: Mapping[str, Sequence[int]], seed: int = 0
) -> Interactions:
    """Learn free motions and expected interactions from transitions.

    Args:
        obs: states [N, D].
        action: actions [N, A].
        next_obs: the states that followed [N, D].
        entities: columns of each entity, all that there are; the first ones are its position.
        seed: of the networks, their batches and the classifiers.

    Raises:
        ValueError: fewer than two entities.
    """
    if len(entities) < 2:
        raise ValueError(f"Interactions need at least 2 entities; got {', '.join(entities) or 'none'}.")
    columns = {name: list(given) for name, given in entities.items()}
    smallest = min(map(len, columns.values()))
    positions = smallest if smallest <= 3 else min(smallest // 2, 3)
    scales: dict[str, Any] = {}
    networks: dict[str, Any] = {}
    with single_thread():
        for place, (name, own) in enumerate(columns.items()):
            change = (next_obs - obs)[:, own]
            gap = _gap(obs, columns, name, positions)
            far = gap >= np.quantile(gap, 1 - FAR)
            seen = np.concatenate([obs[:, own], action], 1)
            spread = np.maximum(seen.std(0), 1e-6)
            scales[name] = {"change": np.maximum(change.std(0), 1e-9), "center": seen.mean(0), "spread": spread}
            networks[name] = _fit_free(obs[far], action[far], change[far], own, scales[name], 1000 * seed + place)
    found = Interactions(columns, networks, scales, {}, positions, {})
    found.find_limits(obs, action, next_obs)
    shown = found.surprised(obs, action, next_obs)
    clear = found.clear(obs, action)
    for name in columns:
        label = shown[name][clear[name]]
        if FEWEST <= label.sum() < len(label):
            classifier = HistGradientBoostingClassifier(max_iter=150, random_state=seed, early_stopping=False)
            found.classifiers[name] = classifier.fit(found._features(obs, action, name)[clear[name]], label)
    return found


def _gap(obs: Table, columns: Mapping[str, Sequence[int]], entity: str, positions: int) -> Table:
    """The distance [N] of an entity to the nearest other one."""
    place = {name: obs[:, own[:positions]] for name, own in columns.items()}
    ways = [place[name] - place[entity] for name in columns if name != entity]
    return np.asarray(np.min([np.linalg.norm(way, axis=1) for way in ways], 0))


def _inputs(obs: Table, action: Table, columns: Sequence[int], scale: Mapping[str, Any]) -> torch.Tensor:
    seen = np.concatenate([obs[:, columns], action], 1)
    return torch.as_tensor((seen - scale["center"]) / scale["spread"], dtype=torch.float32)


def _fit_free(obs: Table, action: Table, change: Table, own: Sequence[int], scale: Any, seed: int) -> Any:
    """Fit the median of an entity's change, and the median of the log of its error."""
    generators = make_generators([seed])
    inputs = _inputs(obs, action, own, scale)
    targets = torch.as_tensor(change / scale["change"], dtype=torch.float32)
    network = MLP([inputs.shape[1], WIDTH, WIDTH, len(own) + 1], generators, activation=torch.nn.functional.silu)
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, UPDATES)
    # Steps are in the order of their episodes: the last ones are held out, to stop before they are predicted worse.
    learned = len(inputs) - int(HELD_OUT * len(inputs))
    best, weights = torch.inf, network.state_dict()
    # Entities often rest, which is soon learned: three quarters of a batch are drawn by the change to be expected from
    # the entity's own state. Weights by the change itself would prefer interactions, and so change the median.
    size = np.abs(targets.numpy()).max(1)
    expected = HistGradientBoostingRegressor(max_iter=40, random_state=seed)
    expected.fit(inputs[:learned].numpy(), size[:learned])
    weight = torch.as_tensor(np.maximum(expected.predict(inputs.numpy()), 1e-6))
    drawn = torch.multinomial(
        weight[:learned], UPDATES * (BATCH - BATCH // 4), replacement=True, generator=generators[0]
    )
    for update, by_weight in enumerate(drawn.reshape(UPDATES, -1), 1):
        rows = torch.randint(learned, (BATCH,), generator=generators[0])
        rows[BATCH // 4 :] = by_weight
        output = network(inputs[rows][None])[0]
        off = (output[:, :-1] - targets[rows]).abs()
        error = off.detach().amax(1).clamp_min(LEAST_ERROR).log()
        loss = off.mean() + 0.1 * (output[:, -1] - error).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if update % CHECK == 0 or update == UPDATES:
            with torch.no_grad():
                off = (network(inputs[None, learned:])[0, :, :-1] - targets[learned:]).abs().amax(1)
            # The logarithm: steps that cannot be predicted, as those of a falling cube, must not outweigh all others.
            missed = float(off.clamp_min(LEAST_ERROR).log().mean())
            if missed < best:
                best = missed
                weights = {name: value.clone() for name, value in network.state_dict().items()}
    network.load_state_dict(weights)
    return network.eval().requires_grad_(False)
