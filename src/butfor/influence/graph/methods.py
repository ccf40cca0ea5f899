"""The methods of `Influence` about sources, targets and horizons."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from butfor.influence.graph.edges import (
    ACTION,
    Alternative,
    Graph,
    action_probabilities,
    decide_by_probability,
    effect_sizes,
    hindsight_sizes,
    score_absences,
    score_entity_source,
    touch_probabilities,
)
from butfor.influence.graph.horizon import Policy, draw_seed, score_horizon
from butfor.influence.graph.pairs import GraphDynamics
from butfor.models.networks import choose_generator
from butfor.spaces.arrays import Array, check_table, like, to_tensor

AVERAGED = 8  # actions that the influence of an entity is averaged over
AVERAGED_LATER = 2  # the same over several steps, where the continuations are averaged over, too
CONTINUATIONS = 4  # random continuations that the influence over several steps is averaged over
HORIZON_ACTIONS = 16  # first actions that are tried
DECIDED_ACTIONS = 16  # actions of which one must matter
SPARE = 4  # times as many other states as are needed are drawn, of which those that fit are taken

Following = Array | Callable[[NDArray[Any]], Array]
"""How the agent goes on: actions, or a policy that returns the actions [B, A] for states [B, D]."""


def check_horizon(horizon: Any) -> None:
    """Refuse what is not a number of steps."""
    if isinstance(horizon, bool) or not isinstance(horizon, int | np.integer) or horizon < 1:
        raise ValueError(f"horizon must be a number of steps, at least 1; got {horizon!r}.")


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
        following: Following | None = None,
        generator: torch.Generator | None = None,
    ) -> Graph:
        """Compute the influence of the action and of each entity on each entity, in nats.

        Args:
            obs: states [N, D].
            action: the actions taken [N, A], for influence in that step; default: the mean over random actions. The
                influence of the action itself is CAI in either case.
            alternative: what an entity is compared with: "absent", the default of the model of pairs (`GraphConfig`),
                or "reference", the default of other models. See `butfor.influence.graph.edges`.
            reference: states [M, D] from which other states of an entity are drawn; default: `obs`. With the model of
                pairs, an entity is not put nearer to another one than it is in any of these states.
            draws: other states that are drawn for each state.
            horizon: steps within which the source matters; default: that of `fit`. Another one needs the model of
                pairs, and beyond 1 entities are then compared with their absence.
            following: the actions after the first one [N, horizon - 1, A] or [N, C, horizon - 1, A], or a policy that
                returns actions [B, A] for states [B, D] and so reacts to what happens; default: random actions.
            generator: of the tried actions and drawn states; by default the same call gives the same values.

        Returns:
            The influence [N, source, target], with the names of sources and targets.
        """
        names = list(self.entities)
        steps = self.horizon if horizon is None else horizon
        self._check_question(steps, alternative, reference, draws, following)
        rows = self._score_within(obs, steps, following, choose_generator(generator, self.seed, self.device))
        random = choose_generator(generator, self.seed, self.device)  # a new one by default: as `score(source=)` uses
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
        if not 1 <= counted <= model.longest:
            raise ValueError(f"columns must be from 1 to {model.longest}, the columns of an entity; got {columns}.")
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
        """Decide which sources matter for which targets in the next step, by the model's own probabilities.

        For each edge as many states are chosen as possible while the mean probability of being wrong stays within the
        rate. The rate holds as far as these probabilities are right, which no held-out data can show: a touch is not
        observed. docs/graph.md says how many decisions were false where the simulator knows.

        Args:
            obs: states [N, D].
            action: the actions taken [N, A], for the edges between entities; default: random ones.
            false_discovery_rate: the largest expected share of false decisions among those that are true.
            next_obs: the states that followed [N, D]; with `action`, decisions between entities are about the
                observed step.

        Returns:
            True or false [N, source, target]; false where source and target are the same. That the action matters for
            an entity means that some action would make a difference, whatever was done.
        """
        model = self._graph_model("decide_graph")
        random = choose_generator(None, self.seed, self.device)
        states = self.model_obs(obs)
        tried = self._draw_actions(states.shape[1], DECIDED_ACTIONS, random)
        actions = tried[:, :AVERAGED] if action is None else self._taken(obs, action)
        if next_obs is None:
            touched = touch_probabilities(model, states, actions)
        elif action is None:
            raise ValueError("next_obs is about one observed step: give its action, too.")
        else:
            observed = self._observed(obs, action, next_obs)
            touched = touch_probabilities(model, states, actions, observed)
            expected = hindsight_sizes(model, states, observed)[..., : model.position].amax(-1)
            touched = touched * (expected >= model.least_effect)  # what is not seen afterwards did not matter
        probability = torch.cat([action_probabilities(model, states, tried).unsqueeze(1), touched], 1).double()
        decided = np.zeros(probability.shape, dtype=bool)
        for place in np.argwhere(~np.isnan(probability[0].cpu().numpy())) if len(probability) else []:
            edge = (slice(None), *place)
            decided[edge] = decide_by_probability(probability[edge].cpu().numpy(), false_discovery_rate)
        names = tuple(self.entities)
        return Graph(like(torch.from_numpy(decided), obs), (ACTION, *names), names)

    def _observed(self: Any, obs: Array, action: Array, next_obs: Array) -> Tensor:
        """The scaled changes of observed steps [N, d]."""
        given = (obs, action, next_obs)
        target: Tensor = self.units.checked_table("next_obs belongs to", given, self.device)[1]
        return target

    def _check_question(
        self: Any,
        horizon: int,
        alternative: Alternative | None,
        reference: Array | None,
        draws: int,
        following: Following | None,
    ) -> None:
        """Refuse values that mean nothing, and those that another one makes useless."""
        check_horizon(horizon)
        if alternative not in (None, "absent", "reference"):
            raise ValueError(f"alternative is {alternative!r}; expected 'absent' or 'reference'.")
        if draws < 1:
            raise ValueError(f"draws must be at least 1; got {draws}.")
        if following is not None and horizon == 1:
            raise ValueError("following is about the steps after the first one; give it with a horizon of 2 or more.")
        if horizon > self.predicted_steps and (alternative == "reference" or reference is not None):
            raise ValueError(
                f"horizon={horizon} compares entities with their absence; alternative='reference' and reference= are "
                "for a horizon of 1."
            )

    def _score_within(self: Any, obs: Array, horizon: int, following: Following | None, random: Any) -> Tensor:
        """Influence of the action within some steps: [N, E]."""
        at_once: Tensor = self._scores(obs, random, self.model.replicas)[0]
        if horizon == self.predicted_steps:
            return at_once
        model = self._graph_model(f"horizon={horizon}")
        states = self.model_obs(obs)
        first = self._draw_actions(states.shape[1], min(HORIZON_ACTIONS, self.scoring.actions), random)
        seed = draw_seed(random)
        later = self._continuation(obs, horizon, following, random)
        rolled_out = score_horizon(model, states, first, later, horizon, seed, None, CONTINUATIONS)
        return torch.maximum(at_once, rolled_out)

    def _score_sources(
        self: Any, obs: Array, sources: Sequence[str], random: torch.Generator, action: Array | None = None,
        alternative: Alternative | None = None, reference: Array | None = None, draws: int = 15,
        horizon: int | None = None, following: Following | None = None,
    ) -> Tensor:  # fmt: skip
        """Influence of entities on every entity: [N, S, E]. Each has the same random numbers, alone or among others."""
        horizon = self.horizon if horizon is None else horizon
        for source in sources:
            self.dims(source)  # refuses an unknown name
        places = [list(self.entities).index(source) for source in sources]
        states = self.model_obs(obs)
        actions = self._draw_actions(states.shape[1], AVERAGED, random) if action is None else self._taken(obs, action)
        if horizon != self.predicted_steps:
            model = self._graph_model(f"horizon={horizon}")
            first = actions[:, :AVERAGED_LATER]
            seed = draw_seed(random)
            later = self._continuation(obs, horizon, following, random)
            rows = [score_horizon(model, states, first, later, horizon, seed, place, CONTINUATIONS) for place in places]
            return torch.maximum(score_absences(model, states, actions, places), torch.stack(rows, 1))
        of_pairs = isinstance(self.model, GraphDynamics)
        kind = alternative or ("absent" if of_pairs else "reference")
        if kind == "reference" and reference is None and states.shape[1] < 2:
            raise ValueError(
                "The influence of an entity compares with its other states, and only one state is given. Give more "
                "states, or others with graph(..., reference=)."
            )
        if kind == "absent" and of_pairs:
            return score_absences(self.model, states, actions, places)
        others: list[Tensor | None] = [None] * len(sources)
        if kind == "reference":
            given = states if reference is None else self.model_obs(reference)
            size = (states.shape[1], SPARE * draws if of_pairs else draws)
            index = torch.randint(given.shape[1], size, generator=random, device=random.device).to(given.device)
            others = [self._other_states(states, given[0], index, place, draws) for place in places]
        found = [
            score_entity_source(
                self.model, states, actions, self.entities[source], self._dims, replaced, self.scoring.form
            )
            for source, replaced in zip(sources, others, strict=True)
        ]
        return torch.stack(found, 1)

    def _other_states(self: Any, states: Tensor, given: Tensor, index: Tensor, place: int, draws: int) -> Tensor:
        """The columns of an entity in some of the given states [M, D], chosen by `index` [N, C]: [N, draws, d].

        The model of pairs takes the first that are not nearer to another entity than any given state is.
        """
        columns = list(self.entities.values())[place]
        drawn = given[index][..., columns]
        model = self.model
        if not isinstance(model, GraphDynamics):
            return drawn
        fits = torch.ones(index.shape, dtype=torch.bool, device=drawn.device)
        where = model.place(given, place)
        for other in range(len(model.names)):
            if other != place:
                nearest = (where - model.place(given, other)).norm(dim=-1).min()
                gap = (where[index] - model.place(states[0], other).unsqueeze(1)).norm(dim=-1)
                fits &= gap >= nearest
        order = (~fits).to(torch.uint8).argsort(stable=True, dim=1)[:, :draws, None]
        return drawn.gather(1, order.expand(-1, -1, len(columns)))

    def _continuation(
        self: Any, obs: Array, horizon: int, following: Following | None, random: torch.Generator
    ) -> Tensor | Policy:
        """Encoded actions after the first one [N, C, horizon - 1, A], those given or random ones; or a policy."""
        count = len(check_table("obs", obs, self.model.obs_size))
        if following is None:
            # step by step, so that a longer horizon begins with the same actions
            return torch.stack([self._draw_actions(count, CONTINUATIONS, random) for _ in range(horizon - 1)], 2)
        if callable(following):
            reacting: Policy = self._reacting(following)
            return reacting
        given = to_tensor("following", following)
        sizes = [] if self.law.count else [self.law.size]
        if given.dim() == 2 + len(sizes):
            given = given.unsqueeze(1)
        if given.dim() != 3 + len(sizes) or given.shape[0] != count or given.shape[2] < horizon - 1:
            raise ValueError(
                f"following has shape {list(given.shape)}; expected [{count}, C, {horizon - 1}, {self.law.size}]."
            )
        encoded: Tensor = self._encoded("following", given[:, :, : horizon - 1])
        return encoded

    def _reacting(self: Any, policy: Callable[[NDArray[Any]], Array]) -> Policy:
        """A user's policy as a function of states in standard units."""
        center, spread = self.model.units

        def act(states: Tensor) -> Tensor:
            obs = (states * spread + center).cpu().numpy()
            encoded: Tensor = self._encoded("following(obs)", to_tensor("following(obs)", policy(obs)), len(obs))
            return encoded

        return act

    def _encoded(self: Any, name: str, given: Tensor, rows: int | None = None) -> Tensor:
        """Actions of this space as networks see them; refuse others."""
        if rows is not None and (given.dim() == 0 or len(given) != rows):
            raise ValueError(f"{name} has shape {list(given.shape)}; expected one action for each of {rows} states.")
        if given.is_floating_point() and not given.isfinite().all():
            raise ValueError(f"{name} contains NaN or infinite values.")
        self.law.check(name, given)
        encoded: Tensor = self.law.encode(given).float().to(self.device)
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
        if given.dim() == 0:
            raise ValueError(f"action is {given.item()}; expected the actions taken, one for each state.")
        encoded: Tensor = self._given_actions(obs, given[:, None])[1][0].float()
        return encoded

    def _graph_model(self: Any, what: str) -> GraphDynamics:
        if not isinstance(self.model, GraphDynamics):
            raise ValueError(f"{what} needs the model of pairs; fit with model=GraphConfig(), or with horizon=.")
        return self.model
