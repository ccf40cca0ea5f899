"""`butfor benchmark influence`: detectors of who moves whom, against exact labels by removal.

The tasks are `pucks`, `push-two` and `stack-two`. Also measured: the influence of the action within several steps.

The folder holds `results.jsonl`, a line for each task, seed and detector, and `data/`. The same call resumes.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

from butfor.benchmarks.edge_detectors import DETECTORS, EdgeProblem, Floats
from butfor.envs import facts_of, make_vector_env
from butfor.envs.experts import scripted_action
from butfor.envs.several import action_effects, make_world, removal_effects
from butfor.rollouts.play import Progress
from butfor.runs.digests import digest_of_tensors
from butfor.runs.files import atomic_write, read_json, write_json
from butfor.runs.folder import append_metrics, versions
from butfor.runs.locks import locked
from butfor.runs.reading import read_arrays, read_metrics

TASKS = ("pucks", "push-two", "stack-two")
RESULTS = "results.jsonl"
DATA_VERSION = 2  # of the data files; others are made again
TEST_SEED = 1_000
LABEL_SEED = 1_000_000  # of the first file of labelled states alone
PART = 10_000  # states in each of these files
LABELS = "labels.json"
RANDOM = 0.5  # share of the episodes with random actions
NOISE = 0.2  # of the script in the others, and its share of random actions
LABEL = {"pucks": 1e-6, "push-two": 1e-3, "stack-two": 1e-3}  # effect from which on a label is true, in metres
COUNTED = {"pucks": 4, "push-two": 3, "stack-two": 3}  # columns of an entity: position and velocity, or position
LEAST_RATE = 0.003  # of true labels: rarer edges are not measured
HORIZONS = (5, 10)
HORIZON_STATES = {"pucks": 1_000, "push-two": 300, "stack-two": 300}  # labelled for them: the first of each file
CONTINUATIONS = 4


def run_edges(
    folder: Path | str,
    tasks: Sequence[str] = TASKS,
    transitions: int = 15_000,
    states: int = 3_000,
    seeds: int = 5,
    detectors: Mapping[str, Callable[[EdgeProblem], Floats]] | None = None,
    progress: Progress = lambda stage, done, total, text: None,
) -> list[dict[str, Any]]:
    """Measure every detector on every task and seed.

    Args:
        folder: of the results and the data; an interrupted benchmark in it is resumed.
        tasks: any of `TASKS`.
        transitions: to learn from.
        states: to label.
        seeds: how many; each has its own training data.
        detectors: functions by name; default: `DETECTORS`.
        progress: called with the stage, how much of it is done, its size, and a text.

    Returns:
        One row for each task, seed and detector: average precision and AUC over all edges together (`ap`, `auc`), the
        mean over edges (`mean_ap`), and for horizons the AUC of the action's influence (`auc_5`, `auc_10`).
    """
    _check_tasks(tasks)
    if min(transitions, states, seeds) < 1:
        raise ValueError(f"transitions, states and seeds must be at least 1; got {transitions}, {states}, {seeds}.")
    chosen = DETECTORS if detectors is None else detectors
    folder = Path(folder)
    with locked(folder):
        rows = read_metrics(folder, RESULTS) if (folder / RESULTS).is_file() else []
        if other := {row["states"] for row in rows if "states" in row} - {states}:
            raise ValueError(
                f"{folder} has results on {min(other):,} labelled states; got {states:,}. Give the same number, or "
                "another folder."
            )
        done = {(row["task"], row["transitions"], row["seed"], row["detector"]) for row in rows}
        commit = versions("cpu")["commit"]
        units = [(task, seed) for seed in range(seeds) for task in tasks]
        for number, (task, seed) in enumerate(units):
            due = [name for name in chosen if (task, transitions, seed, name) not in done]
            progress("tasks and seeds", number, len(units), f"{task}, seed {seed}")
            if not due:
                continue
            train = _stored(folder / "data" / f"{task}-{transitions}-{seed}.npz", task, transitions, seed)
            test = _stored(folder / "data" / f"{task}-test-{states}.npz", task, states, TEST_SEED, labelled=True)
            problem = make_problem(task, train, test, seed)
            for name in due:
                progress("tasks and seeds", number, len(units), f"{task}, seed {seed}, {name}")
                facts = {"task": task, "transitions": transitions, "seed": seed, "detector": name, "states": states}
                begun = time.perf_counter()
                scores = chosen[name](problem)
                facts |= {"seconds": round(time.perf_counter() - begun, 1), "commit": commit}
                row = facts | judge_edges(scores, test["effect"] > LABEL[task])
                if name == "effects":
                    row |= judge_horizons(problem, test)
                append_metrics(folder, [row], RESULTS)
                rows.append(row)
        progress("tasks and seeds", len(units), len(units), "finished")
    return rows


def write_labels(
    folder: Path | str,
    tasks: Sequence[str] = TASKS,
    states: int = PART,
    progress: Progress = lambda stage, done, total, text: None,
) -> dict[str, Any]:
    """Write labelled states in files of `PART` states each, and list them with counts and digests in labels.json.

    A file is made by its task and number alone, so that the same call resumes, and more states add files. A file whose
    content is not as listed is made again.

    Args:
        folder: the files are in its folder labels/.
        tasks: any of `TASKS`.
        states: of each task, rounded up to whole files.
        progress: called with the stage, how much of it is done, its size, and a text.

    Returns:
        What labels.json contains: by file, its task, its number of states, how many labels are true by source and
        target, and a digest of its arrays.
    """
    _check_tasks(tasks)
    if states < 1:
        raise ValueError(f"states must be at least 1; got {states}.")
    place = Path(folder) / "labels"
    units = [(task, number) for task in tasks for number in range(-(-states // PART))]
    with locked(Path(folder)):
        listed = read_json(place / LABELS) if (place / LABELS).is_file() else {}
        for done, (task, number) in enumerate(units):
            name = f"{task}-{number:04d}.npz"
            progress("files of labelled states", done, len(units), name)
            data = _stored(place / name, task, PART, LABEL_SEED + number, labelled=True)
            if listed.get(name, {}).get("digest") not in (None, digest_of_arrays(data)):
                (place / name).unlink()
                data = _stored(place / name, task, PART, LABEL_SEED + number, labelled=True)
            true = np.count_nonzero(data["effect"] > LABEL[task], axis=0).tolist()
            listed[name] = {"task": task, "states": PART, "true": true, "digest": digest_of_arrays(data)}
            write_json(place / LABELS, listed)
        progress("files of labelled states", len(units), len(units), "finished")
    return {name: listed[name] for name in sorted(listed)}


def digest_of_arrays(arrays: Mapping[str, Any]) -> str:
    """A digest of names, types, shapes and bytes of arrays."""
    return digest_of_tensors({name: torch.from_numpy(np.asarray(value)) for name, value in arrays.items()}, {})


def _check_tasks(tasks: Sequence[str]) -> None:
    if unknown := [task for task in tasks if task not in TASKS]:
        raise ValueError(f"There is no task {', '.join(unknown)}; the tasks are {', '.join(TASKS)}.")


def play_task(task: str, transitions: int, seed: int) -> dict[str, Any]:
    """Play whole episodes, half with random actions, half with the noisy script: states, obs, action, next_obs."""
    facts: Any = facts_of(task)
    episodes = -(-transitions // facts.max_episode_steps)
    env: Any = make_vector_env(task, episodes)
    starts = np.random.SeedSequence((seed, 7)).generate_state(episodes)
    obs, _ = env.reset(seed=[int(start) for start in starts])
    generator = np.random.default_rng(seed)
    is_random = np.arange(episodes) < RANDOM * episodes
    rows: dict[str, list[Any]] = {"states": [], "obs": [], "action": [], "next_obs": []}
    for _ in range(facts.max_episode_steps):
        scripted, _ = scripted_action(facts.expert, obs, generator, NOISE, NOISE)
        uniform = generator.uniform(-1, 1, scripted.shape).astype(np.float32)
        action = np.where(is_random[:, None], uniform, scripted)
        rows["states"].append(obs["observation"] if task == "pucks" else env.save_state())
        rows["obs"].append(obs["observation"].astype(np.float32))
        rows["action"].append(action)
        obs = env.step(action)[0]
        rows["next_obs"].append(obs["observation"].astype(np.float32))
    env.close()
    order = np.random.default_rng(seed + 1).permutation(episodes * facts.max_episode_steps)[:transitions]
    return {name: np.concatenate(parts)[order] for name, parts in rows.items()}


def make_problem(task: str, train: Mapping[str, Any], test: Mapping[str, Any], seed: int) -> EdgeProblem:
    """What the detectors are given."""
    facts: Any = facts_of(task)
    env = make_vector_env(task, 1)
    space = env.single_action_space
    env.close()
    entities = {name: list(columns) for name, columns in facts.entities.items()}
    return EdgeProblem(
        obs=train["obs"],
        action=train["action"],
        next_obs=train["next_obs"],
        test_obs=test["obs"],
        test_action=test["action"],
        test_next=test["next_obs"],
        test_contact=test.get("contact"),
        counted=COUNTED[task],
        entities=entities,
        position_size=len(facts.agent_position),
        action_space=space,
        seed=seed,
    )


def judge_edges(scores: Floats, label: Any) -> dict[str, Any]:
    """Average precision and AUC of scores [N, E, E], over the edges whose labels are true often enough."""
    count = label.shape[1]
    edges = [
        (source, target)
        for source in range(count)
        for target in range(count)
        if source != target and LEAST_RATE <= label[:, source, target].mean() < 1
    ]
    truth, found = (np.stack([part[:, i, j] for i, j in edges], 1) for part in (label, scores))
    each = [float(average_precision_score(truth[:, place], found[:, place])) for place in range(len(edges))]
    return {
        "ap": float(average_precision_score(truth.ravel(), found.ravel())),
        "auc": float(roc_auc_score(truth.ravel(), found.ravel())),
        "mean_ap": float(np.mean(each)),
        "edges": [[*edge, ap] for edge, ap in zip(edges, each, strict=True)],
        "rate": float(truth.mean()),
    }


def judge_horizons(problem: EdgeProblem, test: Mapping[str, Any]) -> dict[str, float]:
    """AUC of the action's influence within several steps on the objects, against exact labels."""
    count = len(test["share"])
    found = {}
    for place, horizon in enumerate(HORIZONS):
        graph = problem.pair_model().graph(
            problem.test_obs[:count], horizon=horizon, following=test["following"][:, :, : horizon - 1]
        )
        label = test["share"][:, place, 1:] >= 0.5
        found[f"auc_{horizon}"] = float(roc_auc_score(label.ravel(), graph.values[:, 0, 1:].ravel()))
    return found


def _stored(path: Path, task: str, transitions: int, seed: int, labelled: bool = False) -> dict[str, Any]:
    """Read a data file, or play, label and write it."""
    if path.is_file():
        stored = read_arrays(path)
        complete = not labelled or "share" in stored  # files of cubes had none before
        if complete and int(stored.get("version", 1)) == DATA_VERSION:
            return stored
    data = {"version": np.array(DATA_VERSION)} | play_task(task, transitions, seed)
    if labelled:
        world = make_world(task)
        data["effect"] = removal_effects(world, data["states"], data["action"])
        data["contact"] = world.contacts(data["states"])
        states = data["states"][: HORIZON_STATES[task]]
        shape = (len(states), CONTINUATIONS, max(HORIZONS) - 1, world.action_size)
        following = np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)
        data["share"] = action_effects(world, states, HORIZONS, following)[1]
        data["following"] = following
    del data["states"]
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **data)
    return data
