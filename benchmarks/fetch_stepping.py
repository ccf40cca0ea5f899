"""Environment steps per second of FetchPickAndPlace: the batched environments, other implementations, physics alone.

python -m benchmarks.fetch_stepping [N ...]
"""

import importlib
import importlib.metadata
import os
import resource
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from mujoco.batch import Batch

from benchmarks._timing import PROCESSORS, medians, note
from butfor.envs import fix_gymnasium_robotics
from butfor.envs.fetch import FetchVectorEnv
from butfor.envs.fetch_physics import SUBSTEPS

CORES = PROCESSORS
RUNS = 5
TASK, PEER = "pick-and-place", "FetchPickAndPlace-v4"
INPUTS = ("mocap_pos", "mocap_quat", "ctrl")
ROWS = ("physics floor", "butfor", "butfor, contacts", "AsyncVectorEnv", "SyncVectorEnv", "EnvPool")


def batched(count: int, steps: int, contacts: bool, actions: np.ndarray) -> Callable[[], None]:
    """The library's environments, from the same start in every run."""
    env = FetchVectorEnv(TASK, count, labels=("contact",) if contacts else ())
    env.reset(seed=0)
    start = env.save_state()

    def run() -> None:
        env.restore_state(None, start)
        for step in range(steps):
            env.step(actions[step])

    return run


def floor(count: int, steps: int, actions: np.ndarray) -> Callable[[], None]:
    """The same substeps from recorded inputs: no observations, rewards, checks or copies."""
    env = FetchVectorEnv(TASK, count)
    env.reset(seed=0)
    start = env.physics.batch.state.copy()
    records = []
    for step in range(steps):
        env.step(actions[step])
        records.append([env.physics.field[name].copy() for name in INPUTS])
    batch = Batch(env.physics.model.mj, count, min(CORES, count))
    fields = [batch.bind(name) for name in INPUTS]

    def run() -> None:
        batch.state[:] = start
        for record in records:
            for field, values in zip(fields, record, strict=True):
                field[:] = values
            batch.step(nstep=SUBSTEPS)

    return run


def stepping(env: Any, steps: int, actions: np.ndarray) -> Callable[[], None]:
    """Other environments, which continue from run to run and reset themselves."""
    env.reset()

    def run() -> None:
        for step in range(steps):
            env.step(actions[step])

    return run


def envpool(count: int, steps: int, actions: np.ndarray) -> Callable[[], None] | None:
    """EnvPool's environments, where it is installed and works."""
    try:
        pool = importlib.import_module("envpool")

        env = pool.make(PEER, env_type="gymnasium", num_envs=count, num_threads=min(CORES, count), seed=0)
    except Exception:
        return None
    return stepping(env, steps, actions.astype(np.float64))


def processor_seconds() -> tuple[float, float] | None:
    """Busy seconds of all processors, and of this process with its ended children; None without /proc/stat."""
    try:
        with open("/proc/stat") as file:
            user, nice, system, _, _, *interrupts = (int(word) for word in file.readline().split()[1:8])
    except OSError:
        return None
    own = os.times()
    busy = (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")
    return busy, own.user + own.system + own.children_user + own.children_system


def memory_per_env() -> float:
    """KiB that one more environment adds to the process."""
    few, many = 64, 2112
    kept = [FetchVectorEnv(TASK, few)]
    kept[0].reset(seed=0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kept.append(FetchVectorEnv(TASK, many))
    kept[1].reset(seed=0)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / (many - few)


def main(counts: list[int]) -> None:
    warnings.simplefilter("ignore")
    gymnasium.logger.min_level = gymnasium.logger.ERROR
    import gymnasium_robotics

    gymnasium.register_envs(gymnasium_robotics)
    fix_gymnasium_robotics()
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("mujoco", "gymnasium", "gymnasium-robotics")]
    print(f"{PEER}, random actions, {CORES} processors; {', '.join(versions)}")
    began, before = time.perf_counter(), processor_seconds()
    # Worker processes are forked before the batches start their threads.
    peers = {
        count: {
            "AsyncVectorEnv": gymnasium.make_vec(PEER, count, "async"),
            "SyncVectorEnv": gymnasium.make_vec(PEER, count, "sync"),
        }
        for count in counts
    }
    rates: dict[str, dict[int, float]] = {name: {} for name in ROWS}
    for count in counts:
        steps = max(10, min(100, 1600 // count))
        slow = max(4, steps // 3)  # the peers are measured on fewer steps, because they take longer
        actions = np.random.default_rng(0).uniform(-1, 1, (steps, count, 4)).astype(np.float32)
        rivals: dict[str, tuple[int, Callable[[], None] | None]] = {
            "physics floor": (steps, floor(count, steps, actions)),
            "butfor": (steps, batched(count, steps, False, actions)),
            "butfor, contacts": (steps, batched(count, steps, True, actions)),
            "EnvPool": (slow, envpool(count, slow, actions)),
        }
        rivals |= {name: (slow, stepping(env, slow, actions)) for name, env in peers[count].items()}
        running = {name: run for name, (_, run) in rivals.items() if run is not None}
        for name, seconds in medians(running, "cpu", RUNS).items():
            rates[name][count] = count * rivals[name][0] / seconds
        for env in peers[count].values():
            env.close()
    report(rates, counts)
    print(f"memory: {memory_per_env():.1f} KiB per environment")
    if before is not None and (after := processor_seconds()) is not None:
        others = (after[0] - before[0]) - (after[1] - before[1])
        share = max(0.0, others) / (CORES * (time.perf_counter() - began))
        print(f"other processes used {share:.0%} of the processors; that favours many worker processes")


def report(rates: dict[str, dict[int, float]], counts: list[int]) -> None:
    """Print steps per second, then the ratios."""
    print(f"{'env steps/s, N =':<32}" + "".join(f"{count:>9}" for count in counts))
    for name, row in rates.items():
        cells = [f"{row[count]:>9.0f}" if count in row else f"{'-':>9}" for count in counts]
        print(f"{name:<32}" + "".join(cells))
    pairs = [("butfor", "AsyncVectorEnv"), ("butfor", "SyncVectorEnv"), ("butfor", "EnvPool")]
    pairs += [("butfor", "physics floor"), ("butfor, contacts", "butfor")]
    for one, other in pairs:
        if rates[other]:
            print(f"{f'{one} / {other}':<32}" + "".join(f"{rates[one][n] / rates[other][n]:>9.2f}" for n in counts))
    goals = {"AsyncVectorEnv": 3.0, "physics floor": 0.9}
    for other, goal in goals.items():
        for n in {32, 128} & set(counts):
            note(f"Fetch stepping, N = {n}, {other}", rates["butfor"][n], rates[other][n], "env steps/s", other, goal)


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [1, 8, 32, 128])
