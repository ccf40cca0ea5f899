"""Why did it happen? The steps and entities without which an event of an episode would not have happened.

Every step is forked: its action is replaced by random ones, the rest of the episode is played with the recorded
actions, and the event is looked for again. The share of the alternatives that prevent it says how necessary the step
was. Entities are left out from the first step on, where the environment can do that.

- **Necessary**: (almost) every alternative prevents the event. The share is the probability of that.
- **Sufficient**: not asked for here. A step that is not necessary may still have been sufficient.
- **Redundancy**: where either of two steps would have brought it about, replacing one of them prevents nothing, and
  both look unnecessary. Replace several steps in a row (`window`) to see what they did together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from butfor.envs import EnvFacts, facts_of, make_vector_env, short_name
from butfor.envs.several import make_world
from butfor.rollouts.episodes import Episodes
from butfor.rollouts.play import reset_seeds

FAR = 0.05  # metres: an entity that is farther from its start has moved
Shares = NDArray[np.float64]


@dataclass(frozen=True)
class Reasons:
    """What an event of one episode depended on.

    Attributes:
        event: as it was asked for.
        happened: whether it happened at all, and at which step first.
        prevented: the share [T] of the alternatives to each step that prevent the event.
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
    facts = facts_of(name)
    if facts is None or not (facts.forks or facts.several):
        raise ValueError(f"The episodes are of {name or 'an unknown environment'}, which does not save its states.")
    if number not in range(len(episodes)):
        raise ValueError(f"There is no episode {number}; the file has {len(episodes)}, counted from 0.")
    if alternatives < 1 or window < 1:
        raise ValueError(f"alternatives and window must be at least 1; got {alternatives} and {window}.")
    happens = _event(facts, event)
    length = int(episodes.length[number])
    actions = episodes.action[number, :length]
    env: Any = make_vector_env(name, alternatives)
    try:
        env.reset(seed=[int(reset_seeds(episodes)[number])] * alternatives)
        begin = env._observe()["observation"]
        states = []
        first = None
        for time in range(length):
            states.append(env.save_state()[:1])
            obs, reward, *_ = env.step(np.repeat(actions[time : time + 1], alternatives, 0))
            if first is None and happens(begin, obs["observation"], reward)[0]:
                first = time
        prevented = np.zeros(length)
        if first is not None:
            generator = np.random.default_rng(seed)
            for time in range(first + 1):
                env.restore_state(None, np.repeat(states[time], alternatives, 0))
                happened = np.zeros(alternatives, dtype=bool)
                for later in range(time, length):
                    taken = np.repeat(actions[later : later + 1], alternatives, 0)
                    if later < time + window:
                        taken = generator.uniform(-1, 1, taken.shape).astype(np.float32)
                    obs, reward, *_ = env.step(taken)
                    happened |= happens(begin, obs["observation"], reward)
                    env._finished[:] = False  # the time limit is that of the recorded episode
                prevented[time] = 1 - happened.mean()
                progress(time + 1)
    finally:
        env.close()
    entities = _without_entities(facts, states, actions, begin, event) if first is not None and facts.several else {}
    return Reasons(event, first, prevented, entities)


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
