"""How well the labels of `butfor benchmark defaults` can be predicted from the state, by models that learn from labels:

python results/benchmark_ceiling.py --data FOLDER [--tasks stick ...]     (an hour on one core)

For the tasks on which the default misses a goal. Labels states of other episodes than the benchmark's 3,000 test states
and trains gradient-boosted trees, extra trees and a network on them; which of these, and which inputs, is chosen by
average precision on a fifth of the training episodes, which are then part of the training again. What they reach on the
test states is a lower bound of what can be known: more labels or better inputs may reach more.

Inputs are the observation ("columns"), in addition relative positions and velocities ("relative"), and, where the
observation has all joints, also where each part of the robot is beside the object, by the simulator's geometry
("geometry"), which no detector of the benchmark is given. In these tasks the test states are also labelled again by a
simulator that is set to the observation alone ("simulator"): as far as these labels agree, the label is a function of
the observation.

Writes benchmark-defaults/ceiling.json. Labelled states are kept in FOLDER and used again.
"""

import argparse
import importlib.metadata
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier
from sklearn.metrics import average_precision_score
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from butfor.benchmarks.data import alternatives, fork, label
from butfor.benchmarks.environments import TASKS, Task
from butfor.benchmarks.run import TEST_SEED, Settings
from butfor.detection.thresholds import evaluate
from butfor.runs.files import read_json, write_json
from butfor.runs.folder import versions
from butfor.runs.reading import read_arrays

OUT = Path(__file__).parent / "benchmark-defaults" / "ceiling.json"
# Training states of each seed: what a core can label in a few minutes.
STATES = {
    "hand-block": 5_000,
    "kitchen-microwave": 5_000,
    "fetch-pick-and-place": 10_000,
    "stick": 15_000,
    "panda-stack-second": 7_500,
    "ant-ball": 10_000,
    "hand-egg": 4_000,
}
# Columns of positions and of their velocities, of what may touch; the last one is the object's.
PLACES: dict[str, tuple[list[slice], list[slice]]] = {
    "fetch-pick-and-place": ([slice(0, 3), slice(3, 6)], []),  # its velocities of the object are relative
    "stick": ([slice(0, 2), slice(2, 4), slice(6, 8)], [slice(8, 10), slice(10, 12), slice(13, 15)]),
    "panda-stack-second": (
        [slice(0, 3), slice(7, 10), slice(19, 22)],
        [slice(3, 6), slice(13, 16), slice(25, 28)],
    ),
    "ant-ball": ([slice(0, 3), slice(15, 18)], [slice(22, 25), slice(36, 39)]),
}
NEAR = 0.1  # metres: larger distances between parts are not told apart
Array = NDArray[Any]
Rows = dict[str, Any]


def main(data: Path, tasks: list[str], seeds: int) -> None:
    """Label, train, measure; the file is extended by each task."""
    torch.set_num_threads(1)
    data.mkdir(parents=True, exist_ok=True)
    for name in tasks:
        task = TASKS[name]
        test = labelled(data, task, TEST_SEED, Settings().states)
        parts = [labelled(data, task, TEST_SEED + 1 + seed, STATES[name]) for seed in range(seeds)]
        result: dict[str, Any] = {
            "test_states": len(test["label"]),
            "base_rate": float(test["label"].mean()),
            "labelling_seconds": [round(float(rows["seconds"])) for rows in (test, *parts)],
            "fits": [],
        }
        began = time.perf_counter()
        inputs = [describe(task, rows["obs"]) for rows in (test, *parts)]
        result["describing_seconds"] = round(time.perf_counter() - began)
        for chosen in [*([seed] for seed in range(seeds)), list(range(seeds))]:  # each alone, and all together
            learned = join([parts[seed] for seed in chosen])
            for kind in inputs[0]:
                seen = np.concatenate([inputs[1 + seed][kind] for seed in chosen])
                fit = train(seen, learned, inputs[0][kind], test["label"])
                result["fits"].append({"seeds": chosen, "inputs": kind} | fit)
                print(name, result["fits"][-1], flush=True)
        if name in COMPLETE:
            result["simulator"] = simulate(task, test)
            print(name, result["simulator"], flush=True)
        result["versions"] = versions("cpu") | {task.package: importlib.metadata.version(task.package)}
        found: Any = read_json(OUT) if OUT.exists() else {"schema": 1, "tasks": {}}
        found["tasks"][name] = result
        write_json(OUT, found)


def labelled(data: Path, task: Task, seed: int, states: int) -> Rows:
    """Labelled states, as the benchmark makes them, from a file or new."""
    path = data / f"{task.name}-{seed}.npz"
    if not path.exists():
        began = time.perf_counter()
        rows = {name: value for name, value in vars(label(task, states, seed)).items() if value is not None}
        np.savez_compressed(path, seconds=time.perf_counter() - began, allow_pickle=False, **rows)
    return read_arrays(path)


def join(parts: list[Rows]) -> Rows:
    """Labels and episodes of several sets of states; episodes are numbered on."""
    firsts = np.cumsum([0, *(part["episode"].max() + 1 for part in parts)])
    episodes = [part["episode"] + first for part, first in zip(parts, firsts[:-1], strict=True)]
    return {"label": np.concatenate([part["label"] for part in parts]), "episode": np.concatenate(episodes)}


def train(seen: Array, learned: Rows, shown: Array, truth: Array) -> dict[str, Any]:
    """Choose a model by validation, train it on all training states, and judge it on the test states."""
    began = time.perf_counter()
    held = learned["episode"] % 10 >= 8  # a random and a scripted episode of ten
    known = learned["label"]
    guesses = {name: fit_predict(name, seen[~held], known[~held], seen[held]) for name in MODELS}
    guesses["mean of all"] = np.mean(list(guesses.values()), axis=0)
    validation = {name: float(average_precision_score(known[held], guess)) for name, guess in guesses.items()}
    best = max(validation, key=lambda name: validation[name])
    names = list(MODELS) if best == "mean of all" else [best]
    guess = np.mean([fit_predict(name, seen, known, shown) for name in names], axis=0)
    return {
        "training_states": len(known),
        "training_base_rate": float(known.mean()),
        "validation_ap": validation,
        "model": best,
        **{name: value for name, value in evaluate(guess, truth).items() if name in ("auc", "ap")},
        "seconds": round(time.perf_counter() - began),
    }


def make_model(name: str) -> Any:
    """An untrained classifier."""
    if name == "boosted trees":
        return HistGradientBoostingClassifier(
            max_iter=600, learning_rate=0.05, max_leaf_nodes=15, max_features=0.3, l2_regularization=1.0, random_state=0
        )
    if name == "extra trees":
        return ExtraTreesClassifier(300, min_samples_leaf=2, max_features=0.5, random_state=0)
    network = MLPClassifier((256, 256), alpha=1e-2, early_stopping=True, n_iter_no_change=20, random_state=0)
    return make_pipeline(StandardScaler(), network)


MODELS = ("boosted trees", "extra trees", "network")


def fit_predict(name: str, seen: Array, known: Array, shown: Array) -> Array:
    """Train a model and return the probability of influence in other states [N]."""
    probability: Array = make_model(name).fit(seen, known).predict_proba(shown)[:, 1]
    return probability


def describe(task: Task, obs: Array) -> dict[str, Array]:
    """Inputs of the models by their name: [N, F] each."""
    obs = obs.astype(np.float64)
    inputs = {"columns": obs}
    if task.name in PLACES:
        inputs["relative"] = np.concatenate([obs, relative(task, obs)], axis=1)
    if task.name in COMPLETE and task.name != "stick":  # its parts are described by its places
        base = inputs.get("relative", obs)
        inputs["geometry"] = np.concatenate([base, geometry(task, obs)], axis=1)
    return inputs


def relative(task: Task, obs: Array) -> Array:
    """Differences between places and between velocities, distances, and differences in the frame of a body: [N, F]."""
    places, velocities = PLACES[task.name]
    parts = []
    for columns in (places, velocities):
        for later, one in enumerate(columns):
            for other in columns[:later]:
                between = obs[:, other] - obs[:, one]
                turned = turn(task, obs, between)
                distance = np.linalg.norm(between, axis=1, keepdims=True)
                parts += [between, np.abs(between), turned, np.abs(turned), distance]
    return np.concatenate(parts, axis=1)


def turn(task: Task, obs: Array, between: Array) -> Array:
    """Vectors [N, 2 or 3] in the frame of the stick, of the ant's torso, or of the cube."""
    if task.name == "stick":
        along, across = obs[:, 4:6], np.stack([-obs[:, 5], obs[:, 4]], axis=1)
        return np.stack([(between * along).sum(1), (between * across).sum(1)], axis=1)
    if task.name == "ant-ball":
        frame = Rotation.from_quat(obs[:, 3:7], scalar_first=True)
    else:
        angles = {"fetch-pick-and-place": slice(11, 14), "panda-stack-second": slice(22, 25)}[task.name]
        frame = Rotation.from_euler("xyz", obs[:, angles])
    turned: Array = frame.inv().apply(between)
    return turned


# Tasks whose observation is the complete state: how positions and velocities of all joints are found in it.
COMPLETE: dict[str, Callable[[Array], tuple[Any, Any]]] = {
    "stick": lambda obs: ([*obs[:4], np.arctan2(obs[5], obs[4]), *obs[6:8]], obs[8:]),
    "ant-ball": lambda obs: (obs[:22], obs[22:]),
    "hand-block": lambda obs: ([*obs[:24], *obs[54:]], obs[24:54]),  # what follows is a picture of the goal
    "hand-egg": lambda obs: ([*obs[:24], *obs[54:]], obs[24:54]),
    "kitchen-microwave": lambda obs: ([*obs[:9], *obs[18:39]], [*obs[9:18], *obs[39:]]),
}


def place(task: Task, simulation: Any, obs: Array) -> None:
    """Set a simulation to the state that an observation [D] describes; what was before is forgotten."""
    positions, velocities = COMPLETE[task.name](obs.astype(np.float64))
    simulation.mujoco.mj_resetData(simulation.model, simulation.data)
    simulation.data.qpos[: len(positions)] = positions
    simulation.data.qvel[: len(velocities)] = velocities
    if task.name == "kitchen-microwave":
        simulation.env.robot_env._last_robot_qpos = obs[:9].astype(np.float64)
    simulation.mujoco.mj_forward(simulation.model, simulation.data)


def geometry(task: Task, obs: Array) -> Array:
    """Distance of each part of the robot to the object, at most `NEAR`, and the part's place in its frame: [N, F]."""
    simulation: Any = task.open()
    simulation.reset(0)
    mujoco, model, state = simulation.mujoco, simulation.model, simulation.data
    solid = [bool(kind or partner) for kind, partner in zip(model.geom_contype, model.geom_conaffinity, strict=True)]
    parts = [one for one in range(model.ngeom) if simulation.robot[one] and solid[one]]
    things = [one for one in range(model.ngeom) if simulation.thing[one] and solid[one]]
    rows = []
    for one in obs:
        place(task, simulation, one)
        gaps = [
            min(mujoco.mj_geomDistance(model, state, part, thing, NEAR, None) for thing in things) for part in parts
        ]
        frame = state.xmat[model.geom_bodyid[things[0]]].reshape(3, 3)
        places = (state.geom_xpos[parts] - state.xpos[model.geom_bodyid[things[0]]]) @ frame
        rows.append([*gaps, min(gaps), *places.ravel()])
    return np.array(rows)


def simulate(task: Task, test: Rows) -> dict[str, Any]:
    """Label the test states again from the observation alone, and compare: the effect is the score."""
    began = time.perf_counter()
    simulation: Any = task.open()
    simulation.reset(0)
    actions = alternatives(simulation.action_space)
    effects = []
    for obs, action in zip(test["obs"], test["action"], strict=True):
        place(task, simulation, obs)
        effects.append(np.ptp(fork(simulation, [*actions, action]), axis=0).max())
    found = {name: value for name, value in evaluate(np.array(effects), test["label"]).items() if name in ("auc", "ap")}
    same = float(((np.array(effects) > task.tolerance) == test["label"]).mean())
    return found | {"same_labels": same, "seconds": round(time.perf_counter() - began)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the labelled states")
    parser.add_argument("--tasks", nargs="+", choices=STATES, default=list(STATES), help="(default: all)")
    parser.add_argument("--seeds", type=int, default=2, help="sets of training states (default: %(default)s)")
    given = parser.parse_args()
    main(given.data, given.tasks, given.seeds)
