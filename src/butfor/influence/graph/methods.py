"""The methods of `Influence` about sources, targets and horizons."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from butfor.influence.graph.edges import (
    ACTION,
    Alternative,
    Graph,
    decide_by_probability,
    effect_sizes,
    score_absences,
    score_entity_source,
    touch_probabilities,
)
from butfor.influence.graph.horizon import score_horizon
from butfor.influence.graph.pairs import GraphDynamics
from butfor.models.networks import choose_generator
from butfor.spaces.arrays import Array, check_table, like, to_tensor

AVERAGED = 8  # actions that the influence of an entity is averaged over
AVERAGED_LATER = 2  # the same over several steps, where the continuations are averaged over, too
CONTINUATIONS = 4  # random continuations that the influence over several steps is averaged over
HORIZON_ACTIONS = 16  # first actions that are tried


class GraphMethods:
    """`graph`, `effects` and `decide_graph`, and the scores that need a source or a horizon; a part of `Influence`."""

    horizon: int = 1

    @property
    def predicted_steps(self: Any) -> int:
        """How many steps the model predicts at once: the horizon, but 1 for the model of pairs, which is rolled out."""
        steps: int = 1 if isinstance(self.model, GraphDynamics) else self.horizon
        return steps

    def graph(
        self: Any,
        obs: Array,
        action: Array | None = None,
        *,
        alternative: Alternative | None = None,
        reference: Array | None = None,
        draws: int = 15,
        horizon: int | None = None,
        following: Array | None = None,
        generator: torch.Generator | None = None,
    ) -> Graph:
        """Compute the influence of the action and of each entity on each entity, in nats.

        Args:
            obs: states [N, D].
            action: the actions taken [N, A], for influence in that step; default: the mean over random actions. The
                influence of the action itself is CAI in either case.
            alternative: what an entity is compared with: "absent", the default of the model of pairs (`GraphConfig`),
                or "reference", the default of other models. See `butfor.influence.graph.edges`.
            reference: states [M, D] from which other states of an entity are drawn; default: `obs`.
            draws: other states that are drawn for each state.
            horizon: steps within which the source matters; default: that of `fit`. Another one needs the model of
                pairs, and beyond 1 entities are then compared with their absence.
            following: the actions after the first one [N, horizon - 1, A] or [N, C, horizon - 1, A]; default: random.
            generator: of the tried actions and drawn states; by default the same call gives the same values.

        Returns:
            The influence [N, source, target], with the names of sources and targets.
        """
        random = choose_generator(generator, self.seed, self.device)
        names = list(self.entities)
        steps = self.horizon if horizon is None else horizon
        rows = self._score_within(obs, steps, following, random)
        given = (random, action, alternative, reference, draws, steps, following)
        values = torch.cat([rows.unsqueeze(1), self._score_sources(obs, names, *given)], 1)  # [N, 1 + E, E]
        place = torch.arange(len(names), device=values.device)
        values[:, 1 + place, place] = torch.nan
        return Graph(like(values, obs), (ACTION, *names), tuple(names))

    def effects(
        self: Any, obs: Array, action: Array, next_obs: Array | None = None, columns: int | None = None
    ) -> Graph:
        """Estimate how far each entity displaces each other one in a step, in the units of `obs`.

        It needs the model of pairs. The effect is the difference of the expected outcomes with the source and without
        it; with `next_obs`, at most as much as the outcome differs from the expected one without the source.

        Args:
            obs: states [N, D].
            action: the actions taken [N, A].
            next_obs: the states that followed [N, D], if they are known: then effects are estimated better.
            columns: how many of the first columns of each entity count; default: its position.

        Returns:
            The largest difference of any counted column [N, source, target], with the names of sources and targets. The
            action is not among the sources; NaN where source and target are the same.
        """
        model = self._graph_model("effects")
        counted = model.position if columns is None else columns
        if counted < 1:
            raise ValueError(f"columns must be at least 1; got {columns}.")
        observed = None if next_obs is None else self._observed(obs, action, next_obs)
        taken = self._taken(obs, action)[:, 0]
        values = effect_sizes(model, self.model_obs(obs), taken, observed, counted)
        place = torch.arange(len(self.entities), device=values.device)
        values[:, place, place] = torch.nan
        return Graph(like(values, obs), tuple(self.entities), tuple(self.entities))

    def decide_graph(
        self: Any,
        obs: Array,
        action: Array | None = None,
        false_discovery_rate: float = 0.05,
        next_obs: Array | None = None,
    ) -> Graph:
        """Decide which sources matter for which targets, by the model's own probabilities of a touch.

        For each edge as many states are chosen as possible while the mean probability of being wrong stays within the
        rate. The rate holds as far as the model's probabilities are right; check them with `diagnose`.

        Args:
            obs: states [N, D].
            action: the actions taken [N, A]; default: random ones.
            false_discovery_rate: the largest expected share of false decisions among those that are true.
            next_obs: the states that followed [N, D]; with `action`, decisions are about the observed step.

        Returns:
            True or false [N, source, target]; false where source and target are the same.
        """
        model = self._graph_model("decide_graph")
        random = choose_generator(None, self.seed, self.device)
        states = self.model_obs(obs)
        actions = self._draw_actions(states.shape[1], AVERAGED, random) if action is None else self._taken(obs, action)
        observed = None
        if next_obs is not None:
            if action is None:
                raise ValueError("next_obs is about one observed step: give its action, too.")
            observed = self._observed(obs, action, next_obs)
        probability = touch_probabilities(model, states, actions, observed).double().cpu().numpy()
        decided = np.zeros(probability.shape, dtype=bool)
        for place in np.argwhere(~np.isnan(probability[0])) if len(probability) else []:
            edge = (slice(None), *place)
            decided[edge] = decide_by_probability(probability[edge], false_discovery_rate)
        names = tuple(self.entities)
        return Graph(like(torch.from_numpy(decided), obs), (ACTION, *names), names)

    def _observed(self: Any, obs: Array, action: Array, next_obs: Array) -> Tensor:
        """The scaled changes of observed steps [N, d]."""
        given = (obs, action, next_obs)
        target: Tensor = self.units.checked_table("next_obs belongs to", given, self.device)[1]
        return target

    def _score_within(self: Any, obs: Array, horizon: int, following: Array | None, random: Any) -> Tensor:
        """Influence of the action within some steps: [N, E]."""
        if horizon == self.predicted_steps:
            scores: Tensor = self._scores(obs, random, self.model.replicas)[0]
            return scores
        model = self._graph_model(f"horizon={horizon}")
        states = self.model_obs(obs)
        first = self._draw_actions(states.shape[1], min(HORIZON_ACTIONS, self.scoring.actions), random)
        later = self._continuation(obs, horizon, following, random)
        return score_horizon(model, states, first, later, horizon, random, self.scoring.form)

    def _score_sources(
        self: Any, obs: Array, sources: Sequence[str], random: torch.Generator, action: Array | None = None,
        alternative: Alternative | None = None, reference: Array | None = None, draws: int = 15,
        horizon: int | None = None, following: Array | None = None,
    ) -> Tensor:  # fmt: skip
        """Influence of entities on every entity: [N, S, E]."""
        horizon = self.horizon if horizon is None else horizon
        for source in sources:
            self.dims(source)  # refuses an unknown name
        places = [list(self.entities).index(source) for source in sources]
        states = self.model_obs(obs)
        at_once = horizon == self.predicted_steps
        averaged = AVERAGED if at_once else AVERAGED_LATER
        actions = self._draw_actions(states.shape[1], averaged, random) if action is None else self._taken(obs, action)
        form = self.scoring.form
        if not at_once:
            model = self._graph_model(f"horizon={horizon}")
            later = self._continuation(obs, horizon, following, random)
            rows = [score_horizon(model, states, actions, later, horizon, random, form, place) for place in places]
            return torch.stack(rows, 1)
        of_pairs = isinstance(self.model, GraphDynamics)
        kind = alternative or ("absent" if of_pairs else "reference")
        if kind not in ("absent", "reference"):
            raise ValueError(f"alternative is {alternative!r}; expected 'absent' or 'reference'.")
        if draws < 1:
            raise ValueError(f"draws must be at least 1; got {draws}.")
        if kind == "reference" and reference is None and states.shape[1] < 2:
            raise ValueError(
                "The influence of an entity compares with its other states, and only one state is given. Give more "
                "states, or others with graph(..., reference=)."
            )
        if kind == "absent" and of_pairs:
            return score_absences(self.model, states, actions, places)
        rows = []
        for source in sources:
            columns = self.entities[source]
            others: Tensor | None = None
            if kind == "reference":
                given = states if reference is None else self.model_obs(reference)
                index = torch.randint(given.shape[1], (states.shape[1], draws), generator=random, device=random.device)
                others = given[0][index.to(given.device)][..., columns]  # [N, M, d]
            rows.append(score_entity_source(self.model, states, actions, columns, self._dims, others, form))
        return torch.stack(rows, 1)

    def _continuation(self: Any, obs: Array, horizon: int, following: Array | None, random: torch.Generator) -> Tensor:
        """Encoded actions after the first one [N, C, horizon - 1, A]: those given, or random ones."""
        count = len(check_table("obs", obs, self.model.obs_size))
        if following is None:
            drawn = self._draw_actions(count, CONTINUATIONS * (horizon - 1), random)
            by_step: Tensor = drawn.unflatten(1, (CONTINUATIONS, horizon - 1))
            return by_step
        given = to_tensor("following", following)
        sizes = [] if self.law.count else [self.law.size]
        if given.dim() == 2 + len(sizes):
            given = given.unsqueeze(1)
        if given.dim() != 3 + len(sizes) or given.shape[0] != count or given.shape[2] < horizon - 1:
            raise ValueError(
                f"following has shape {list(given.shape)}; expected [{count}, C, {horizon - 1}, {self.law.size}]."
            )
        self.law.check("following", given)
        encoded: Tensor = self.law.encode(given[:, :, : horizon - 1]).float().to(self.device)
        return encoded

    def _draw_actions(self: Any, states: int, count: int, random: torch.Generator) -> Tensor:
        """Encoded random actions [N, K, A]."""
        if self.law.count:
            drawn = torch.randint(self.law.count, (states, count), generator=random, device=random.device)
            encoded: Tensor = self.law.encode(drawn).float()
            return encoded
        tried: Tensor = self.law.draw(states, count, [random], self.scoring.extreme)[0]
        return tried

    def _taken(self: Any, obs: Array, action: Array) -> Tensor:
        """The given actions [N, A] as one tried action of each state [N, 1, A]."""
        given = to_tensor("action", action)
        encoded: Tensor = self._given_actions(obs, given[:, None])[1][0].float()
        return encoded

    def _graph_model(self: Any, what: str) -> GraphDynamics:
        if not isinstance(self.model, GraphDynamics):
            raise ValueError(f"{what} needs the model of pairs; fit with model=GraphConfig(), or with horizon=.")
        return self.model
