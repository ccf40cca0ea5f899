"""Why did it happen? The steps and entities without which an event of an episode would not have happened.

Every step is forked: its action is replaced by random ones, the rest of the episode is played with the recorded
actions or by the policy, and the event is looked for again. The share of the alternatives that prevent it says how
necessary the step was. Entities are left out from the first step on, where the environment can do that. Where states
cannot be saved, a model of pairs replays the episode instead.

- **Necessary**: (almost) every alternative prevents the event. The share is the probability of that.
- **Sufficient**: the event happens whatever the other actions are. The share is that of histories with random actions
  in all other steps. It means something only above the share of histories with random actions in all steps.
- **Redundancy**: where either of two steps would have brought it about, replacing one of them prevents nothing, and
  both look unnecessary. Replace several steps in a row (`window`) to see what they did together. A policy that reacts
  makes up for a replaced action, so that fewer steps are necessary than with the recorded actions.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from butfor.detection.simulations import MODEL_HINT, Simulations, make_simulations
from butfor.envs import EnvFacts, facts_of, make_vector_env, short_name
from butfor.envs.several import make_world
from butfor.influence.graph.counterfactual import Replay
from butfor.influence.graph.pairs import GraphDynamics
from butfor.influence.influence import Influence
from butfor.rollouts.episodes import Episodes
from butfor.rollouts.play import REPLAY_TOLERANCE, Observation
from butfor.spaces.entities import Entities, entity_columns

FAR = 0.05  # metres: an entity that is farther from its start has moved
NEAR = 0.05  # metres: success by a model, which does not know the environment's own distance
SAME_PLACE = 1e-4  # between the achieved goal and the position of the entity that it is about
ROWS = 4096  # that the model replays at once
Shares = NDArray[np.float64]
Act = Callable[[int, Observation], NDArray[Any]]
"""(step, observations of n copies) -> actions [n, A]."""
Places = Callable[[Observation], NDArray[Any]]
"""Observations of n copies -> where the event's entity is [n, p]."""


@dataclass(frozen=True)
class Reasons:
    """What an event of one episode depended on.

    Attributes:
        event: as it was asked for.
        happened: whether it happened at all, and at which step first.
        prevented: the share [T] of the alternatives to each step that prevent the event; NaN where a model cannot tell,
            because its errors are as large as what decides.
        entities: whether the event fails to happen without each entity; None where a model cannot tell.
        sufficient: the share [T] of the histories with random actions in all other steps in which the event happens;
            None if it was not asked for.
        by_chance: the same share with random actions in all steps.
    """

    event: str
    happened: int | None
    prevented: Shares
    entities: dict[str, bool | None]
    sufficient: Shares | None = None
    by_chance: float | None = None


@dataclass(frozen=True)
class Trials:
    """What is tried: `alternatives` of `window` actions in a row, drawn from `seed`, also keeping only these or not."""

    alternatives: int = 16
    window: int = 1
    seed: int = 0
    sufficient: bool = False

    def __post_init__(self) -> None:
        if self.alternatives < 1 or self.window < 1:
            given = f"{self.alternatives} and {self.window}"
            raise ValueError(f"alternatives and window must be at least 1; got {given}.")


@dataclass(frozen=True)
class Forks:
    """An episode of an environment that saves its states, and the event that is looked for in it."""

    sims: Simulations
    act: Act
    start: int  # seed of the reset
    length: int
    places: Places | None  # None: the event is success
    trials: Trials
    progress: Callable[[int], None]

    def begin(self) -> tuple[Observation, NDArray[Any] | None]:
        """Begin the episode: the observations, and where the event's entity is."""
        obs = self.sims.reset(self.start)
        return obs, None if self.places is None else self.places(obs)

    def step(self, actions: NDArray[Any], begin: NDArray[Any] | None) -> tuple[Observation, NDArray[np.bool_]]:
        """Step all copies: the observations, and where the event happens."""
        obs, success = self.sims.step(actions)
        if self.places is None:
            return obs, success
        return obs, np.linalg.norm(self.places(obs) - begin, axis=1) > FAR

    def random(self, generator: np.random.Generator) -> NDArray[Any]:
        """One random action for each copy."""
        law = self.sims.law
        return generator.uniform(law.low, law.high, (self.sims.count, law.size)).astype(np.float32)


def find_reasons(
    episodes: Episodes,
    number: int = 0,
    event: str = "success",
    alternatives: int = 16,
    window: int = 1,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
    *,
    entities: Entities = (),
    sufficient: bool = False,
) -> Reasons:
    """Find out which steps and entities of an episode an event depended on.

    Args:
        episodes: with reset seeds, of a built-in environment or one that MuJoCo simulates.
        number: which episode.
        event: "success", or "NAME moved" for an entity that ends up, at any time, `FAR` from its start.
        alternatives: random actions that replace each action.
        window: how many actions in a row are replaced.
        seed: of the random actions.
        progress: called with the number of steps done.
        entities: columns of the positions of entities, such as "cube=3:6", in environments that are not built in;
            the achieved goal is always known as "object".
        sufficient: also find out in which share of random histories each step's action is enough.

    Raises:
        ValueError: the episode, the event or the environment does not exist, or the event cannot be replayed.
    """
    _check_number(episodes, number)
    config = episodes.metadata.get("config", episodes.metadata)
    name = short_name(config.get("env") or "")
    if episodes.reset_seed is None:
        raise ValueError(f"The episodes have no reset seeds, so they cannot be replayed. {MODEL_HINT}")
    length = int(episodes.length[number])
    actions, seen = episodes.action[number, :length], episodes.observation[number]
    facts = facts_of(name)
    columns = slice(None) if facts is None else list(facts.positions)

    def recorded(time: int, obs: Observation) -> NDArray[Any]:
        return np.repeat(actions[time : time + 1], len(obs["observation"]), 0)

    def check(time: int, obs: Observation) -> NDArray[Any]:
        gap = float(np.abs(obs["observation"][0] - seen[time])[columns].max())
        if not gap <= REPLAY_TOLERANCE:
            raise ValueError(
                f"Episode {number}, played again in {name}, is {gap:.3g} off its stored course at step {time}; it was "
                f"played in another environment or with another version of mujoco. Collect it again. {MODEL_HINT}"
            )
        return recorded(time, obs)

    trials = Trials(alternatives, window, seed, sufficient)
    start = int(episodes.reset_seed[number])
    return _find_by_forks(name, start, length, check, recorded, event, entities, trials, progress)


def find_reasons_of_policy(
    env: str,
    policy: Callable[[Observation], NDArray[Any]],
    start: int,
    event: str = "success",
    alternatives: int = 16,
    window: int = 1,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
    *,
    entities: Entities = (),
    sufficient: bool = False,
) -> Reasons:
    """Play an episode by a policy, and find out what an event depended on if the policy acts after each changed action.

    Entities are left out while the actions stay those that the policy took.

    Args:
        env: name of an environment that is built in or simulated by MuJoCo.
        policy: observations of n environments -> actions [n, A].
        start: seed of the reset.
        event: as for `find_reasons`, like the other arguments.

    Raises:
        ValueError: the event does not exist, or the states of the environment cannot be saved.
    """
    trials = Trials(alternatives, window, seed, sufficient)

    def act(time: int, obs: Observation) -> NDArray[Any]:
        return policy(obs)

    return _find_by_forks(short_name(env), start, None, act, act, event, entities, trials, progress)


def _find_by_forks(
    name: str, start: int, length: int | None, play: Act, follow: Act, event: str, entities: Entities, trials: Trials,
    progress: Callable[[int], None],
) -> Reasons:  # fmt: skip
    """Play an episode, then fork each step up to the event."""
    facts = facts_of(name)
    sims = make_simulations(name, trials.alternatives)
    try:
        places = _places(name, facts, sims.reset(start), event, entities)
        forks = Forks(sims, follow, start, length or sims.steps, places, trials, progress)
        taken, first = _play(forks, play)
        prevented = np.zeros(len(taken))
        if first is None:
            return Reasons(event, None, prevented, {})
        prevented[: first + 1] = _prevented(forks, taken, first)
        sufficient, by_chance = _sufficient(forks, taken, first) if trials.sufficient else (None, None)
    finally:
        sims.close()
    without: dict[str, bool | None] = {}
    if facts is not None and facts.several:
        without = _without_entities(facts, start, taken, event)
    return Reasons(event, first, prevented, without, sufficient, by_chance)


def _play(forks: Forks, act: Act) -> tuple[NDArray[Any], int | None]:
    """Play the episode: its actions [T, A], and the step in which the event first happens."""
    obs, begin = forks.begin()
    taken = []
    first = None
    for time in range(forks.length):
        action = act(time, obs)
        taken.append(action[0])
        obs, happens = forks.step(np.repeat(action[:1], forks.sims.count, 0), begin)
        if first is None and happens[0]:
            first = time
    return np.array(taken), first


def _prevented(forks: Forks, taken: NDArray[Any], first: int) -> Shares:
    """Play the episode again, and from each step up to the event the alternatives: the share [first + 1] without it."""
    generator = np.random.default_rng(forks.trials.seed)
    obs, begin = forks.begin()
    shares = []
    for time in range(first + 1):
        here = forks.sims.save(same=True)
        happened = np.zeros(forks.sims.count, dtype=bool)
        for later in range(time, forks.length):
            action = forks.act(later, obs)
            if later < time + forks.trials.window:
                action = forks.random(generator)
            obs, happens = forks.step(action, begin)
            happened |= happens
        shares.append(1 - happened.mean())
        forks.sims.restore(here)
        obs, _ = forks.step(np.repeat(taken[time : time + 1], forks.sims.count, 0), begin)
        forks.progress(time + 1)
    return np.array(shares)


def _sufficient(forks: Forks, taken: NDArray[Any], first: int) -> tuple[Shares, float]:
    """Play random histories, and from each step on the same with the recorded actions kept in its window.

    Returns the share of histories with the event by step [T], and by random actions alone. In steps after the event
    nothing recorded is left that could be sufficient, so that the share is 0 there.
    """
    generator = np.random.default_rng(np.random.SeedSequence((forks.trials.seed, 1)))
    random = np.stack([forks.random(generator) for _ in range(forks.length)])  # [T, n, A]
    _, begin = forks.begin()
    before = np.zeros(forks.sims.count, dtype=bool)
    shares = np.zeros(forks.length)
    for time in range(forks.length):
        if time <= first:
            here = forks.sims.save(same=False)
            happened = before.copy()
            for later in range(time, forks.length):
                kept = later < time + forks.trials.window
                _, happens = forks.step(
                    np.broadcast_to(taken[later], random[0].shape) if kept else random[later], begin
                )
                happened |= happens
            shares[time] = happened.mean()
            forks.sims.restore(here)
        _, happens = forks.step(random[time], begin)
        before |= happens
    return shares, float(before.mean())


@torch.no_grad()
def find_reasons_by_model(
    influence: Influence,
    episodes: Episodes,
    number: int = 0,
    event: str = "",
    alternatives: int = 16,
    window: int = 1,
    seed: int = 0,
    far: float = FAR,
    *,
    near: float = NEAR,
    sufficient: bool = False,
) -> Reasons:
    """Find out which steps and entities an event depended on, by replaying an episode in a model of pairs.

    The errors that the model makes on the record are corrected, see `butfor.influence.graph.counterfactual`, so that
    an alternative that changes nothing leaves the recorded event. What is left of them is the error of free motion,
    which adds up over the rest of the episode. An alternative in which the entity's largest distance from its start is
    nearer to `far` than that (or its least distance to the goal to `near`) is not counted, and a step or entity with
    mostly such alternatives is not judged.

    Args:
        influence: fitted with `GraphConfig` on such data.
        episodes: of any environment.
        number: which episode.
        event: "NAME moved" for one of the model's entities that ends up, at any time, `far` from its start; or
            "success": the entity of the achieved goal is, at any time, less than `near` from the desired goal.
        alternatives: random actions that replace each action.
        window: how many actions in a row are replaced.
        seed: of the random actions.
        far: distance of an entity from its start that counts as moved, in the units of the data.
        near: distance to the goal that counts as success, in the units of the data.
        sufficient: also find out in which share of random histories each step's action is enough.

    Raises:
        ValueError: the episode or the event does not exist, a distance is not positive, or the model is not one of
            pairs or has other actions.
    """
    model = influence.model
    if not isinstance(model, GraphDynamics):
        raise ValueError("The model does not know who touches whom; fit it with model=GraphConfig().")
    _check_number(episodes, number)
    columns = episodes.action.shape[-1]
    if influence.law.count or columns != influence.law.size:
        fitted = f"{influence.law.size} {'discrete actions' if influence.law.count else 'columns'}"
        raise ValueError(f"The actions of the episodes have {columns} columns; the model was fitted with {fitted}.")
    for option, distance in (("far", far), ("near", near)):
        if not 0 < distance < math.inf:
            raise ValueError(f"{option} is {distance:g}; expected a positive distance.")
    trials = Trials(alternatives, window, seed, sufficient)
    length = int(episodes.length[number])
    name, _, verb = event.rpartition(" ")
    goal = None
    if event == "success":
        target = _goal_entity(model, episodes, number)
        goal = episodes.desired_goal[number, 1 : length + 1]
    elif verb == "moved" and name in model.names:
        target = model.names.index(name)
    else:
        raise ValueError(f"There is no event {event!r} for this model; expected 'success', {_events(model.names)}.")
    generator = torch.Generator().manual_seed(seed)
    seen, taken = episodes.observation[number, : length + 1], episodes.action[number, :length]
    record = RecordedMotion(influence, seen, taken, target, far if goal is None else near, generator, goal)
    if record.first is None:
        return Reasons(event, None, np.zeros(length), {})
    prevented = np.zeros(length)
    prevented[: record.first + 1] = record.prevented(trials, generator)
    enough, by_chance = record.sufficient(trials, generator) if sufficient else (None, None)
    without = {name: record.needs(place) for place, name in enumerate(model.names) if place != target}
    return Reasons(event, record.first, prevented, without, enough, by_chance)


def _goal_entity(model: GraphDynamics, episodes: Episodes, number: int) -> int:
    """The place of the entity whose first columns are the achieved goal of an episode."""
    length = int(episodes.length[number])
    achieved = episodes.achieved_goal[number, : length + 1]
    seen = episodes.observation[number, : length + 1]
    for place, columns in enumerate(model.columns):
        own = seen[:, columns[: achieved.shape[1]]]
        if own.shape == achieved.shape and own.size and np.abs(own - achieved).max() <= SAME_PLACE:
            return place
    raise ValueError(
        "The achieved goal is not the position of an entity of the model, so the model cannot tell success; expected "
        f"{_events(model.names)}."
    )


class RecordedMotion:
    """How far one entity got in a recorded episode of T steps, and would have got otherwise.

    The event is that it is, at any time, farther than `limit` from its start; or with the desired goals [T, G], nearer
    than `limit` to the goal.
    """

    def __init__(
        self, influence: Influence, seen: NDArray[Any], action: NDArray[Any], target: int, limit: float,
        generator: torch.Generator, goal: NDArray[Any] | None = None,
    ) -> None:  # fmt: skip
        self.law = influence.law
        self.model: GraphDynamics = influence.model
        self.columns = self.model.columns[target][: self.model.position if goal is None else goal.shape[1]]
        self.limit = limit
        states = influence.model_obs(seen)
        self.actions = self.law.encode(torch.from_numpy(action)).float().to(states.device)
        chance = torch.rand(len(action), len(self.model.names), generator=generator).to(states.device)
        self.replay = Replay(self.model, states, self.actions, chance)
        self.begin = self._place(states[:, 0])
        self.way = self._place(states[:, 1:])  # [R, T, p]
        self.goal = None if goal is None else torch.from_numpy(goal).to(self.way)[:, None]  # [T, 1, G]
        happens = self._excess(self.way[:1].unsqueeze(2))[0, :, 0] > 0
        self.first = int(happens.int().argmax()) if happens.any() else None
        self.drift = self.replay.drift(target)

    def prevented(self, trials: Trials, generator: torch.Generator) -> Shares:
        """The share of the alternatives to each step up to the event that prevent it; NaN where it is not known."""
        steps = self._first() + 1
        drawn = self.law.draw(steps, trials.alternatives * trials.window, [generator])[0]
        drawn = drawn.unflatten(1, (trials.alternatives, trials.window)).to(self.actions)
        rows = self.actions[:, None, None].repeat(1, steps, trials.alternatives, 1)  # [T, steps, n, A]
        for step in range(steps):
            there = rows[step : step + trials.window, step]
            there.copy_(drawn[step].transpose(0, 1)[: len(there)])
        start = torch.arange(steps, device=rows.device).repeat_interleave(trials.alternatives)
        moved, known = self._judge(rows.flatten(1, 2), start)
        return _share(~moved, known, steps)

    def sufficient(self, trials: Trials, generator: torch.Generator) -> tuple[Shares, float]:
        """The share of random histories with the event if each step's actions are kept, and if none are."""
        steps, length = self._first() + 1, len(self.actions)
        drawn = self.law.draw(length, trials.alternatives, [generator])[0].to(self.actions)  # [T, n, A]
        rows = drawn[:, None].repeat(1, steps + 1, 1, 1)  # the last of them keeps none
        for step in range(steps):
            rows[step : step + trials.window, step] = self.actions[step : step + trials.window, None]
        moved, known = self._judge(rows.flatten(1, 2))
        found = _share(moved, known, steps + 1)
        return np.concatenate([found[:-1], np.zeros(length - steps)]), float(found[-1])

    def needs(self, entity: int) -> bool | None:
        """Whether the event fails to happen without another entity; None if that is not known."""
        moved, known = self._judge(self.actions[:, None], absent=entity)
        share = _share(~moved, known, 1)[0]
        return None if np.isnan(share) else bool(share > 0.5)

    def _first(self) -> int:
        assert self.first is not None, "the event did not happen"
        return self.first

    def _judge(
        self, actions: Tensor, start: Tensor | None = None, absent: int | None = None
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Whether the event happens with the actions [T, B, A], and whether that is certain: [R, B] each."""
        begins = torch.zeros(actions.shape[1], dtype=torch.long, device=actions.device) if start is None else start
        parts = []
        for first in range(0, actions.shape[1], ROWS):
            some = slice(first, first + ROWS)
            way = self._place(self.replay.run(actions[:, some], begins[some], absent))  # [R, T, B, p]
            parts.append([self._excess(way).amax(1), self._away(way).amax(1),
                          (way - self.way.unsqueeze(2)).norm(dim=-1).amax(1)])  # fmt: skip
        excess, largest, changed = (torch.cat(part, -1) for part in zip(*parts, strict=True))
        error = self.drift * (len(actions) - begins)
        # what stays where it was, or moves as recorded, is certain: the error is not larger than either difference
        error = torch.minimum(error, torch.minimum(largest, changed))
        certain = excess.abs() >= error
        return (excess > 0).cpu().numpy(), certain.cpu().numpy()

    def _away(self, way: Tensor) -> Tensor:
        """Distances of positions [R, T, B, p] from the start: [R, T, B]."""
        distance: Tensor = (way - self.begin[: len(way), None, None]).norm(dim=-1)
        return distance

    def _excess(self, way: Tensor) -> Tensor:
        """By how much the distances of positions [R, T, B, p] are beyond the limit, where the event is: [R, T, B]."""
        if self.goal is None:
            return self._away(way) - self.limit
        distance: Tensor = (way - self.goal).norm(dim=-1)
        return self.limit - distance

    def _place(self, states: Tensor) -> Tensor:
        """The position of the entity in states in standard units, in the data's units."""
        center, spread = self.model.units
        place: Tensor = states[..., self.columns] * spread[self.columns] + center[self.columns]
        return place


def _share(found: NDArray[np.bool_], known: NDArray[np.bool_], groups: int) -> Shares:
    """The share of what is found among what is known, [R, groups x n] -> [groups]; NaN if most is not known."""
    found, known = (
        np.moveaxis(part.reshape(len(part), groups, -1), 1, 0).reshape(groups, -1) for part in (found, known)
    )
    count = known.sum(1)
    return np.where(2 * count >= known.shape[1], (found & known).sum(1) / np.maximum(count, 1), np.nan)


def _check_number(episodes: Episodes, number: int) -> None:
    """Refuse an episode that does not exist."""
    if number not in range(len(episodes)):
        raise ValueError(f"There is no episode {number}; the file has {len(episodes)}, counted from 0.")


def _places(name: str, facts: EnvFacts | None, obs: Observation, event: str, entities: Entities) -> Places | None:
    """Where the entity of an event is in observations; None for success."""
    size = obs["observation"].shape[1]
    if facts is None:
        columns: Mapping[str, Sequence[int]] = entity_columns(entities, size) if entities else {}
    elif entities:
        raise ValueError(f"entities is for environments that are not built in; {name} has {', '.join(facts.entities)}.")
    else:
        columns = {entity: own[: len(facts.agent_position)] for entity, own in facts.entities.items()}
    if event == "success":
        return None
    target, _, verb = event.rpartition(" ")
    if verb == "moved" and target in columns:
        return lambda obs: obs["observation"][:, list(columns[target])]
    if facts is None and event == "object moved" and "achieved_goal" in obs:
        return lambda obs: obs["achieved_goal"]
    known = [*columns, *(["object"] if facts is None and "achieved_goal" in obs else [])]
    hint = "" if facts is not None else " Name others with --entities NAME=COLUMNS."
    raise ValueError(
        f"There is no event {event!r} in {name}; expected 'success'{', ' if known else ''}{_events(known)}.{hint}"
    )


def _events(names: Sequence[str]) -> str:
    """The events of entities, for messages."""
    return ", ".join(f"'{name} moved'" for name in names)


def _without_entities(facts: EnvFacts, seed: int, actions: NDArray[Any], event: str) -> dict[str, bool | None]:
    """Whether the event fails to happen without each entity; the event's own entity is left out."""
    world = make_world(facts.name)
    env: Any = make_vector_env(facts.name, 1)
    env.reset(seed=[seed])
    saved = env.save_state()
    env.close()
    rows = saved[:, :16].astype(np.float32) if facts.name == "pucks" else saved
    goal = facts.object_position if event == "success" else facts.entities[event.rpartition(" ")[0]]
    owner = next(name for name, columns in facts.entities.items() if goal[0] in columns)
    size = len(facts.agent_position)
    start = world.outcome(rows)[0, world.entities.index(owner), :size]
    target = None
    if event == "success":
        target = saved[0, -1 - size : -1]  # desired goal, then the elapsed steps
    without: dict[str, bool | None] = {}
    for place, name in enumerate(world.entities):
        if name == owner:
            continue
        now = rows
        happened = False
        for action in actions:
            now = world.step(now, action[None], absent=place)
            where = world.outcome(now)[0, world.entities.index(owner), :size]
            if target is None:
                happened |= bool(np.linalg.norm(where - start) > FAR)
            else:
                happened |= bool(np.linalg.norm(where - target) <= world.goal_radius)
        without[name] = not happened
    return without
