"""Why did it happen? The steps and entities without which an event of an episode would not have happened.

Every step is forked: its action is replaced by random ones, the rest of the episode is played with the recorded
actions or by the policy, and the event is looked for again. The share of the alternatives that prevent it says how
necessary the step was. Entities are left out from the first step on, where the environment can do that. Where the
environment does not save its states, a model of pairs is rolled out instead.

- **Necessary**: (almost) every alternative prevents the event. The share is the probability of that.
- **Sufficient**: not asked for here. A step that is not necessary may still have been sufficient.
- **Redundancy**: where either of two steps would have brought it about, replacing one of them prevents nothing, and
  both look unnecessary. Replace several steps in a row (`window`) to see what they did together. A policy that reacts
  makes up for a replaced action, so that fewer steps are necessary than with the recorded actions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from butfor.envs import EnvFacts, facts_of, make_vector_env, short_name
from butfor.envs.several import make_world
from butfor.influence.graph.horizon import roll_out
from butfor.influence.graph.pairs import GraphDynamics
from butfor.influence.influence import Influence
from butfor.rollouts.episodes import Episodes
from butfor.rollouts.play import Observation, reset_seeds

FAR = 0.05  # metres: an entity that is farther from its start has moved
Shares = NDArray[np.float64]


@dataclass(frozen=True)
class Reasons:
    """What an event of one episode depended on.

    Attributes:
        event: as it was asked for.
        happened: whether it happened at all, and at which step first.
        prevented: the share [T] of the alternatives to each step that prevent the event; NaN where a model does not
            foresee the event with the actions that were taken.
        entities: whether the event fails to happen without each entity.
    """

    event: str
    happened: int | None
    prevented: Shares
    entities: dict[str, bool]


def find_reasons(
    episodes: Episodes,
    number: int = 0,
    event: str = "success",
    alternatives: int = 16,
    window: int = 1,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> Reasons:
    """Find out which steps and entities of an episode an event depended on.

    Args:
        episodes: of an environment that saves its states: pucks or a Fetch environment.
        number: which episode.
        event: "success", or "NAME moved" for an entity that ends up, at any time, `FAR` from its start.
        alternatives: random actions that replace each action.
        window: how many actions in a row are replaced.
        seed: of the random actions.
        progress: called with the number of steps done.

    Raises:
        ValueError: the episode, the event or the environment does not exist, or the event cannot be replayed.
    """
    name = short_name(episodes.metadata.get("config", {}).get("env", ""))
    _check(episodes, number, alternatives, window)
    length = int(episodes.length[number])
    actions = episodes.action[number, :length]

    def recorded(time: int, obs: Observation) -> NDArray[Any]:
        return np.repeat(actions[time : time + 1], len(obs["observation"]), 0)

    start = int(reset_seeds(episodes)[number])
    return _find_by_forks(name, start, length, recorded, event, alternatives, window, seed, progress)


def find_reasons_of_policy(
    env: str,
    policy: Callable[[Observation], NDArray[Any]],
    start: int,
    event: str = "success",
    alternatives: int = 16,
    window: int = 1,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> Reasons:
    """Play an episode by a policy, and find out what an event depended on if the policy acts after each changed action.

    Entities are left out while the actions stay those that the policy took.

    Args:
        env: name of an environment that saves its states.
        policy: observations of n environments -> actions [n, A].
        start: seed of the reset.
        event: as for `find_reasons`, like the other arguments.

    Raises:
        ValueError: the event does not exist, or the environment does not save its states.
    """
    if alternatives < 1 or window < 1:
        raise ValueError(f"alternatives and window must be at least 1; got {alternatives} and {window}.")
    name = short_name(env)
    facts = facts_of(name)
    length = facts.max_episode_steps if facts else 0
    return _find_by_forks(
        name, start, length, lambda time, obs: policy(obs), event, alternatives, window, seed, progress
    )  # fmt: skip


def _find_by_forks(
    name: str, start: int, length: int, act: Callable[[int, Observation], NDArray[Any]], event: str, alternatives: int,
    window: int, seed: int, progress: Callable[[int], None],
) -> Reasons:  # fmt: skip
    """Play an episode of an environment that saves its states, then fork each step up to the event."""
    facts = facts_of(name)
    if facts is None or not (facts.forks or facts.several):
        raise ValueError(f"{name or 'An unknown environment'} does not save its states; give a model of pairs.")
    happens = _event(facts, event)
    env: Any = make_vector_env(name, alternatives)
    try:
        obs, _ = env.reset(seed=[start] * alternatives)
        begin = obs["observation"].copy()
        states, taken = [], []
        first = None
        for time in range(length):
            states.append(env.save_state()[:1])
            taken.append(act(time, obs)[:1])
            obs, reward, *_ = env.step(np.repeat(taken[-1], alternatives, 0))
            if first is None and happens(begin, obs["observation"], reward)[0]:
                first = time
        prevented = np.zeros(length)
        if first is not None:
            generator = np.random.default_rng(seed)
            for time in range(first + 1):
                env.restore_state(None, np.repeat(states[time], alternatives, 0))
                obs = env._observe()
                happened = np.zeros(alternatives, dtype=bool)
                for later in range(time, length):
                    action = act(later, obs)
                    if later < time + window:
                        action = generator.uniform(-1, 1, action.shape).astype(np.float32)
                    obs, reward, *_ = env.step(action)
                    happened |= happens(begin, obs["observation"], reward)
                    env._finished[:] = False  # the time limit is that of the recorded episode
                prevented[time] = 1 - happened.mean()
                progress(time + 1)
    finally:
        env.close()
    entities = {}
    if first is not None and facts.several:
        entities = _without_entities(facts, states, np.concatenate(taken), begin, event)
    return Reasons(event, first, prevented, entities)


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
) -> Reasons:
    """Find out which steps and entities an event depended on, by rolling out a model of pairs from recorded states.

    After the replaced actions the recorded ones follow, and the same random numbers decide about touches. Errors of
    the model grow with every step. So each step is judged only if the model foresees the event with the actions that
    were taken.

    Args:
        influence: fitted with `GraphConfig` on such data.
        episodes: of any environment.
        number: which episode.
        event: "NAME moved" for one of the model's entities that ends up, at any time, `far` from its start.
        alternatives: random actions that replace each action.
        window: how many actions in a row are replaced.
        seed: of the random actions.
        far: distance of an entity from its start that counts as moved, in the units of the data.

    Raises:
        ValueError: the episode or the event does not exist, or the model is not one of pairs.
    """
    model = influence.model
    if not isinstance(model, GraphDynamics):
        raise ValueError("The model does not know who touches whom; fit it with model=GraphConfig().")
    _check(episodes, number, alternatives, window)
    target, _, verb = event.rpartition(" ")
    if verb != "moved" or target not in model.names:
        known = ", ".join(f"'{name} moved'" for name in model.names)
        raise ValueError(f"There is no event {event!r} for this model; expected {known}.")
    length = int(episodes.length[number])
    columns = model.columns[model.names.index(target)][: model.position]
    seen = episodes.observation[number, : length + 1]
    away = np.linalg.norm((seen - seen[0])[1:, columns], axis=1) > far
    prevented = np.full(length, np.nan)
    if not away.any():
        return Reasons(event, None, np.zeros(length), {})
    first = int(away.argmax())
    generator = torch.Generator().manual_seed(seed)
    chances = torch.rand(length, len(model.names), 1, generator=generator).to(influence.device)  # of each step
    recorded = influence.law.encode(torch.from_numpy(episodes.action[number, :length])).float().to(influence.device)

    def happens(time: int, changed: int, absent: int | None = None) -> NDArray[np.bool_]:
        """Whether the event happens after each alternative; the first one has the recorded actions."""
        rows = alternatives + 1
        begin = influence.model_obs(seen[time : time + 1]).expand(-1, rows, -1)
        drawn = influence.law.draw(rows, changed, [generator])[0] if changed else recorded.new_zeros(rows, 0, 0)
        actions = [one.expand(rows, -1) for one in recorded[time:, None]]
        for later in range(min(changed, len(actions))):
            actions[later] = torch.cat([actions[later][:1], drawn[1:, later].to(actions[later])])
        offset = torch.from_numpy(seen[time, columns] - seen[0, columns]).to(influence.device)
        dims = model.dims[model.names.index(target)][: model.position]
        found = np.zeros(rows, dtype=bool)
        for change, _ in roll_out(model, begin, actions, chances[time:].expand(-1, -1, rows), absent):
            place = offset + change[..., dims].mean(0) / model.change_scale[dims]
            found |= (place.norm(dim=-1) > far).cpu().numpy()
        return found

    for time in range(first + 1):
        foreseen, *others = happens(time, window)
        prevented[time] = 1 - np.mean(others) if foreseen else np.nan
    prevented[first + 1 :] = 0
    places = [place for place, name in enumerate(model.names) if name != target]
    foreseen = bool(happens(0, 0)[0])
    entities = {model.names[place]: not happens(0, 0, place)[0] for place in places} if foreseen else {}
    return Reasons(event, first, prevented, entities)


def _check(episodes: Episodes, number: int, alternatives: int, window: int) -> None:
    """Refuse an episode that does not exist, and numbers that mean nothing."""
    if number not in range(len(episodes)):
        raise ValueError(f"There is no episode {number}; the file has {len(episodes)}, counted from 0.")
    if alternatives < 1 or window < 1:
        raise ValueError(f"alternatives and window must be at least 1; got {alternatives} and {window}.")


def _event(facts: EnvFacts, event: str) -> Callable[[Any, Any, Any], Any]:
    """A function of the first observations, those after a step, and its rewards: where the event happened [n]."""
    if event == "success":
        return lambda begin, obs, reward: np.asarray(reward) == 0
    name, _, verb = event.rpartition(" ")
    if verb != "moved" or name not in facts.entities:
        known = ", ".join(f"'{entity} moved'" for entity in facts.entities)
        raise ValueError(f"There is no event {event!r} in {facts.name}; expected 'success', {known}.")
    columns = list(facts.entities[name][: len(facts.agent_position)])
    return lambda begin, obs, reward: np.linalg.norm((obs - begin)[:, columns], axis=1) > FAR


def _without_entities(
    facts: EnvFacts, states: Sequence[Any], actions: NDArray[Any], begin: Any, event: str
) -> dict[str, bool]:
    """Whether the event fails to happen without each entity; the event's own entity is left out."""
    world = make_world(facts.name)
    saved = states[0]
    rows = saved[:, :16].astype(np.float32) if facts.name == "pucks" else saved
    goal = facts.object_position if event == "success" else facts.entities[event.rpartition(" ")[0]]
    owner = next(name for name, columns in facts.entities.items() if goal[0] in columns)
    size = len(facts.agent_position)
    start = world.outcome(rows)[0, world.entities.index(owner), :size]
    target = None
    if event == "success":
        target = saved[0, -1 - size : -1]  # desired goal, then the elapsed steps
    found = {}
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
        found[name] = not happened
    return found
