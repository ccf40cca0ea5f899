"""Tries butfor on environments of other packages: fit, score, diagnose, and judge the scores by forks of the simulator.

python results/doors.py ENV OUT.json [TRANSITIONS]

ENV is `panda-push`, `pusht`, `cube-single` or `metaworld-push`, of the packages panda-gym, gym-pusht, ogbench and
metaworld. Half of the actions are random, the others go to the object. A label is true if the object's next position
differs by more than 0.1 mm between nine actions from the same saved state; on pusht, whose simulator is not MuJoCo, if
the environment reports a contact in the step. OUT.json is extended by the environment.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from butfor import Influence, fork, restore
from butfor.detection.thresholds import evaluate
from butfor.runs.files import read_json, write_json
from butfor.runs.folder import versions

STEPS = 100  # of an episode
HELD = 10  # steps for which actions are random, or go to the object
LABELLED = 800  # states
TRIED = 8  # actions beside the one that is taken
MOVED = 1e-4  # metres
NOISE = 0.15  # of actions towards the object, in their range


@dataclass
class Door:
    """One environment: how it is made, the columns of hand and object, and a policy that goes to the object."""

    make: Callable[[], Any]
    hand: list[int]
    object: list[int]
    approach: Callable[[Any, Any, Any], Any]  # positions of hand and object, and a random action: an action
    contact: str = ""  # entry of `info` that counts contacts, if the environment cannot be forked


def make(name: str, **options: Any) -> Any:
    """An environment of Gymnasium without a time limit."""
    return gymnasium.make(name, **options).unwrapped


def make_metaworld() -> Any:
    """Push of metaworld, with one of its tasks."""
    import metaworld

    suite = metaworld.MT1("push-v3", seed=0)
    env = suite.train_classes["push-v3"]()
    env.set_task(suite.train_tasks[0])
    return env


def make_pusht() -> Any:
    """PushT of gym-pusht."""
    import gym_pusht  # noqa: F401  # registers it

    return make("gym_pusht/PushT-v0", obs_type="state")


def make_cube() -> Any:
    """One cube of OGBench."""
    import ogbench  # noqa: F401  # registers it

    return make("cube-single-v0")


def make_panda() -> Any:
    """PandaPush with exact saved states."""
    from butfor.benchmarks.panda import Panda

    return Panda("PandaPush-v3", "object", STEPS)


def to_object(gain: float) -> Callable[[Any, Any], Any]:
    """Move the hand by the way to the object; the other parts of the action stay."""

    def act(hand: Any, place: Any, action: Any) -> Any:
        return np.concatenate([np.clip(gain * (place - hand), -1, 1), action[len(hand) :]])

    return act


DOORS = {
    "panda-push": Door(make_panda, [0, 1, 2], [6, 7, 8], to_object(10)),
    "pusht": Door(make_pusht, [0, 1], [2, 3, 4], lambda hand, place, action: place, "n_contacts"),
    "cube-single": Door(make_cube, [12, 13, 14], [19, 20, 21], to_object(5)),
    "metaworld-push": Door(make_metaworld, [0, 1, 2], [4, 5, 6], to_object(10)),
}


def main(name: str, out: Path, transitions: int) -> None:
    """Measure one environment, and print the row."""
    torch.set_num_threads(1)
    door = DOORS[name]
    began = time.monotonic()
    train = play(door, transitions, seed=0)
    test = play(door, 4 * LABELLED, seed=1, labelled=LABELLED)
    entities = {"object": door.object}
    arrays = [train[part] for part in ("obs", "action", "next_obs")]
    influence = Influence.fit(*arrays, entities=entities, groups=train["episode"], seed=0)
    rows = test["labelled"]
    score = np.asarray(influence.score(test["obs"][rows])["object"], float)
    seen = test["obs"][rows]
    distance = np.linalg.norm(seen[:, door.hand] - seen[:, door.object[: len(door.hand)]], axis=1)
    label = test["label"][rows]
    judged = [test[part][test["random"]] for part in ("obs", "action", "next_obs", "episode")]
    found = influence.diagnose(*judged[:3], groups=judged[3])
    result = {
        "transitions": len(train["obs"]), "states": len(rows), "base_rate": float(label.mean()),
        "cai": evaluate(score, label), "distance": evaluate(-distance, label),
        "trusted": found["object"].trusted,
        "problems": [one.words for one in found["object"].findings if not one.fine],
        "seconds": round(time.monotonic() - began), "versions": versions("cpu"),
    }  # fmt: skip
    write_json(out, (read_json(out) if out.exists() else {"schema": 1}) | {name: result})
    print({part: result[part] for part in result if part != "versions"})


def play(door: Door, transitions: int, seed: int, labelled: int = 0) -> dict[str, Any]:
    """Transitions of episodes, and labels of some of their states."""
    env = door.make()
    random = np.random.default_rng(seed)
    low, high = env.action_space.low, env.action_space.high
    chosen = set(random.choice(transitions, labelled, replace=False).tolist())
    rows: dict[str, list[Any]] = {name: [] for name in ("obs", "action", "next_obs", "episode", "random", "label")}
    for number in range(transitions):
        if number % STEPS == 0:
            obs = observed(env.reset(seed=1000 * seed + number // STEPS))
        action = random.uniform(low, high)
        if number % HELD == 0:
            is_random = random.random() < 0.5
        taken = action
        if not is_random:
            to = door.approach(obs[door.hand], obs[door.object[: len(door.hand)]], action)
            taken = np.clip(to + random.normal(0, NOISE * (high - low)), low, high)
        taken = taken.astype(env.action_space.dtype)
        label = np.nan
        if number in chosen and not door.contact:
            tried = [taken, *random.uniform(low, high, (TRIED, len(low))).astype(taken.dtype)]
            label = spread(env, door.object, tried) > MOVED
        answer = env.step(taken)
        if number in chosen and door.contact:
            label = answer[4][door.contact] > 0
        after = observed(answer)
        values = (obs, taken, after, number // STEPS, is_random, label)
        for name, value in zip(rows, values, strict=True):
            rows[name].append(value)
        obs = after
    found = {name: np.array(values) for name, values in rows.items()}
    found["labelled"] = np.flatnonzero(~np.isnan(found["label"].astype(float)))
    return found | {"label": found["label"] == 1}


def observed(answer: Any) -> Any:
    """The observation of what `reset` or `step` returned."""
    return np.asarray(answer[0] if isinstance(answer, tuple) else answer, np.float64)


def spread(env: Any, columns: list[int], tried: list[Any]) -> float:
    """The largest range of the object's next position over several actions from the present state."""
    own = hasattr(env, "save")  # the environment of panda-gym in `butfor.benchmarks`
    state = env.save() if own else fork(env)
    after = []
    for action in tried:
        after.append(observed(env.step(action))[columns])
        if own:
            env.restore(state)
        else:
            restore(env, state)
    return float(np.ptp(np.array(after), axis=0).max())


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 10_000)
