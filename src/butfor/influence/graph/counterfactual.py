"""What would have happened otherwise in a recorded episode: the model of pairs replays it with other actions.

Three steps, as for any structural model. First, what the record says about each step's chance is inferred: whether an
entity was touched, and by how much it moved otherwise than predicted. Then actions are replaced, or an entity is taken
away. Then the model is rolled out with the same chance: an entity is touched where the probability exceeds the step's
number, which is drawn so that the recorded actions bring the recorded touches about.

With the recorded actions the replay is the record up to rounding, so that errors do not add up until something differs.
Afterwards the error of free motion is that of the recorded step in which the entity was most alike. So what rests stays
at rest, though the model lets it drift.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from butfor.influence.contact import Touch
from butfor.influence.gaussian import log_normal
from butfor.influence.graph.pairs import GraphDynamics

ALIKE = 0.3  # standard deviations between states, within which errors of free motion are alike
SAME = 0.1  # the same between predictions of a touched entity's change


@dataclass(frozen=True)
class EntityRecord:
    """What a recorded episode of T steps says about one entity."""

    own: Tensor  # [R, T, c]: its columns, those of none, and the action if that drives it
    predicted: Tensor  # [R, T, d]: mean of its scaled change, given whether it was touched
    error: Tensor  # [R, T, d]: by how much its scaled change differed from that
    touched: Tensor  # [R, T]
    number: Tensor  # [R, T]: it is touched where the probability exceeds this


class Replay:
    """A recorded episode that can be replayed otherwise."""

    @torch.no_grad()
    def __init__(self, model: GraphDynamics, seen: Tensor, actions: Tensor, chance: Tensor) -> None:
        """Infer what happened.

        Args:
            model: the model of pairs.
            seen: states [R, T + 1, D] in standard units.
            actions: encoded actions [T, A].
            chance: uniform numbers [T, E], which decide what the record leaves open.
        """
        self.model = model
        self.seen = seen
        self.actions = actions
        taken = actions.expand(model.replicas, -1, -1)
        change = (seen[:, 1:] - seen[:, :-1]) * model.units[1]
        self.records = []
        for entity, touch in enumerate(self._predict(seen[:, :-1], taken)):
            moved = change[..., model.columns[entity]] * model.change_scale[model.dims[entity]]
            log_odds = touch.log_odds + log_normal(moved, touch.mean, touch.variance)
            log_odds = log_odds - log_normal(moved, touch.free_mean, touch.free_variance)
            touched = log_odds > 0
            probability = touch.log_odds.sigmoid()
            within = chance[:, entity] * torch.where(touched, probability, 1 - probability)
            number = torch.where(touched, within, probability + within)
            predicted = torch.where(touched.unsqueeze(-1), touch.mean, touch.free_mean)
            own = self._own(seen[:, :-1], taken, entity)
            self.records.append(EntityRecord(own, predicted, moved - predicted, touched, number))

    def drift(self, entity: int) -> float:
        """The mean error of the position of an entity in recorded steps without a touch, in the data's units.

        Such errors have a direction, so that they add up over the steps of a roll-out.
        """
        record = self.records[entity]
        dims = self.model.dims[entity][: self.model.position]
        far = (record.error[..., : self.model.position] / self.model.change_scale[dims]).norm(dim=-1)
        free = ~record.touched
        return float(far[free].mean()) if free.any() else 0.0

    @torch.no_grad()
    def run(self, actions: Tensor, start: Tensor | None = None, absent: int | None = None) -> Tensor:
        """Replay with other actions.

        Args:
            actions: encoded actions [T, B, A].
            start: the steps [B] until which the episode is the recorded one; default: the first.
            absent: an entity that touches nothing.

        Returns:
            The states after each step [R, T, B, D] in standard units.
        """
        rows = actions.shape[1]
        start = torch.zeros(rows, dtype=torch.long, device=actions.device) if start is None else start
        states = [self.seen[:, :1].expand(-1, rows, -1)]
        for time, action in enumerate(actions):
            now = torch.where((time <= start)[:, None], self.seen[:, time, None], states[-1])
            states.append(self._step(time, now, action.expand(self.model.replicas, -1, -1), absent))
        return torch.stack(states[1:], 1)

    def _step(self, time: int, state: Tensor, action: Tensor, absent: int | None) -> Tensor:
        """The states [R, B, D] after a step."""
        model = self.model
        after = state.clone()
        for entity, touch in enumerate(self._predict(state, action, absent)):
            record = self.records[entity]
            hit = touch.log_odds.sigmoid() > record.number[:, time, None]
            mean = torch.where(hit.unsqueeze(-1), touch.mean, touch.free_mean)
            free = self._free_error(record, self._own(state, action, entity))
            moved = mean + torch.where(hit.unsqueeze(-1), self._touch_error(record, mean, time), free)
            columns = model.columns[entity]
            after[..., columns] += moved / model.change_scale[model.dims[entity]] / model.units[1][columns]
        return after

    def _free_error(self, record: EntityRecord, own: Tensor) -> Tensor:
        """The error of free motion in the recorded step that was most alike: [R, B, d]."""
        apart = torch.cdist(own, record.own)  # [R, B, T]
        apart = apart.masked_fill(record.touched.unsqueeze(1), torch.inf)
        nearest, place = apart.min(-1)
        error = record.error.gather(1, place.unsqueeze(-1).expand(-1, -1, record.error.shape[-1]))
        return error * (-(nearest / ALIKE).square()).exp().unsqueeze(-1)

    def _touch_error(self, record: EntityRecord, mean: Tensor, time: int) -> Tensor:
        """The error of the recorded touch, as far as the same is predicted: [R, B, d]."""
        apart = (mean - record.predicted[:, time, None]).norm(dim=-1)
        weight = (-(apart / SAME).square()).exp() * record.touched[:, time, None]
        error: Tensor = weight.unsqueeze(-1) * record.error[:, time, None]
        return error

    def _predict(self, state: Tensor, action: Tensor, absent: int | None = None) -> list[Touch]:
        """The mixture of each entity. An absent one still moves, which does not matter."""
        return [pairs.combine() for pairs in self.model.pair_touches(state, action, absent)]

    def _own(self, state: Tensor, action: Tensor, entity: int) -> Tensor:
        """What free motion depends on."""
        own = self.model.own(state, entity)
        driven = self.model.names[entity] in self.model.driven
        return torch.cat([own, action], -1) if driven else own
