"""Fetch environments stepped by MuJoCo Warp beside MuJoCo's own code: speed, agreement, exact labels, horizons.

python -m benchmarks.warp_physics [--device cuda] [--seconds 280] [--small] [--sections "Labels without sizes" Horizons]
"""

import argparse
import importlib
import importlib.util
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from benchmarks._timing import PROCESSORS, describe
from butfor.envs.experts import scripted_action
from butfor.envs.facts import BUILT_IN
from butfor.envs.fetch import FetchVectorEnv, make_physics
from butfor.envs.fetch_physics import SUBSTEPS, FetchPhysics
from butfor.envs.several.edges import action_effects
from butfor.envs.several.fetch_world import FetchWorld
from butfor.envs.truth import TOLERANCE, WARP_TOLERANCE, Forker, exact_label

TASKS = ("pick-and-place", "push")
POLICIES = {"random": (0.0, 1.0), "noisy expert": (0.3, 0.3), "expert": (0.0, 0.0)}  # noise, share of uniform actions
EPISODE = 50
HORIZONS = (1, 5, 10)
TOLERANCES = (1e-7, 3e-7, 1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 1e-3)


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    counts: tuple[int, ...] = (32, 128, 512, 2048, 8192)
    slots: int = 8192
    envs: int = 128  # that play while states are recorded, and over an episode
    every: int = 4  # steps between two recorded states
    episodes: int = 512  # of the expert
    horizon_states: int = 480  # times 17 actions: just fills the slots
    seeds: int = 100


SMALL = Sizes((2, 8), 256, 8, 16, 4, 6, 4)


@dataclass(frozen=True)
class Sample:
    """States of one task and policy, the actions taken there, what became of them, and whether a finger touched."""

    task: str
    policy: str
    state: Any
    action: Any
    following: Any
    contact: Any


class Bench:
    """What the sections share; each is made when a section first needs it."""

    def __init__(self, device: str, sizes: Sizes) -> None:
        self.device = device
        self.sizes = sizes
        self._forkers: dict[tuple[str, bool], Forker] = {}

    def forker(self, task: str, on_device: bool) -> Forker:
        """A forker of MuJoCo's own code, or on the device."""
        key = (task, on_device)
        if key not in self._forkers:
            slots = self.sizes.slots if on_device else 256
            self._forkers[key] = Forker(task, slots, warp_device=self.device if on_device else None)
        return self._forkers[key]

    @cached_property
    def samples(self) -> list[Sample]:
        """Recorded states of each task and policy."""
        return [record(task, policy, self.sizes) for task in TASKS for policy in POLICIES]


def record(task: str, policy: str, sizes: Sizes) -> Sample:
    """Play episodes in MuJoCo's own code and keep some states."""
    envs = FetchVectorEnv(task, sizes.envs, max_episode_steps=None, labels=("contact",))
    obs, _ = envs.reset(seed=1000)
    generator = np.random.default_rng(0)
    noise, share = POLICIES[policy]
    kept = []
    for step in range(EPISODE):
        action, _ = scripted_action(BUILT_IN[task].expert, obs, generator, noise, share)
        before = envs.save_state()
        obs, _, _, _, info = envs.step(action)
        if step % sizes.every == sizes.every // 2:
            kept.append((before, action, envs.save_state(), info["contact"]))
    return Sample(task, policy, *(np.concatenate(part) for part in zip(*kept, strict=True)))


def measure_compilation(bench: Bench) -> None:
    """Seconds until the first environments can be stepped."""
    for task in TASKS:
        began = time.perf_counter()
        physics = make_physics(task, bench.sizes.counts[0], warp_device=bench.device)
        physics.batch.forward()
        physics.batch.step(nstep=SUBSTEPS)
        print(f"{task}: {time.perf_counter() - began:.1f} s until the first step", flush=True)


def measure_stepping(bench: Bench) -> None:
    """Env steps per second of random actions."""
    print(f"pick-and-place, random actions; env steps/s; MuJoCo on {PROCESSORS} processors")
    print(f"{'N':>6}{'warp':>12}{'physics alone':>15}{'MuJoCo':>12}{'warp / MuJoCo':>15}")
    for count in bench.sizes.counts:
        ours, alone = stepping_rate(make_physics("pick-and-place", count, warp_device=bench.device))
        theirs, _ = stepping_rate(make_physics("pick-and-place", count))
        print(f"{count:>6}{ours:>12,.0f}{alone:>15,.0f}{theirs:>12,.0f}{ours / theirs:>15.2f}", flush=True)


def stepping_rate(physics: FetchPhysics, seconds: float = 2.0) -> tuple[float, float]:
    """Env steps per second with observations and copies, and of the batch alone."""
    generator = np.random.default_rng(0)
    starts = [physics.draw_start(generator)[0] for _ in range(physics.count)]
    physics.place(np.arange(physics.count), np.stack(starts))
    actions = generator.uniform(-1, 1, (8, physics.count, 4)).astype(np.float32)
    physics.advance(actions[0])
    rates = []
    for call in (lambda step: physics.advance(actions[step % 8]), lambda _: physics.batch.step(nstep=SUBSTEPS)):
        began = time.perf_counter()
        steps = 0
        while steps < 2 or (time.perf_counter() - began < seconds and steps < EPISODE):
            call(steps)
            steps += 1
        rates.append(steps * physics.count / (time.perf_counter() - began))
    return rates[0], rates[1]


def measure_one_step(bench: Bench) -> None:
    """Differences to MuJoCo after one env step from the same state."""
    print("distance to MuJoCo's result after one env step, metres: median, 99 %, largest")
    print(f"{'task':<16}{'states':<22}{'n':>6}{'object':>34}{'gripper':>34}{'repeated: object':>20}")
    for sample in bench.samples:
        forker = bench.forker(sample.task, on_device=True)
        found = forker.fork(sample.state, sample.action[:, None])[:, 0]
        again = forker.fork(sample.state, sample.action[:, None])[:, 0]
        place, grip = forker.object_position, forker.layout.gripper
        thing = np.linalg.norm(found[:, place] - sample.following[:, place], axis=1)
        gripper = np.linalg.norm((found - sample.following)[:, grip][:, :3], axis=1)
        repeated = np.abs(found - again)[:, place].max()
        for kind, mask in (("", ~sample.contact), (", contact", sample.contact)):
            if mask.any():
                row = f"{sample.task:<16}{sample.policy + kind:<22}{mask.sum():>6}"
                print(f"{row}{spread(thing[mask]):>34}{spread(gripper[mask]):>34}{repeated:>20.1e}", flush=True)


def spread(values: Any) -> str:
    """Median, 99 % quantile and maximum."""
    return "  ".join(f"{value:.1e}" for value in np.nanquantile(values, [0.5, 0.99, 1.0]))


def measure_episode(bench: Bench) -> None:
    """Differences to MuJoCo within an episode of the same actions, beside those that rounding the start makes."""
    count = bench.sizes.envs
    for task, policy in (("pick-and-place", "random"), ("pick-and-place", "expert"), ("push", "expert")):
        envs = FetchVectorEnv(task, count, max_episode_steps=None)
        obs, _ = envs.reset(seed=3000)
        start = envs.save_state()
        rounded = FetchVectorEnv(task, count, max_episode_steps=None)
        ours = FetchVectorEnv(task, count, max_episode_steps=None, warp_device=bench.device)
        for other in (rounded, ours):
            other.restore_state(None, start.astype(np.float32))
        generator = np.random.default_rng(1)
        noise, share = POLICIES[policy]
        print(f"{task}, {policy}, {count} episodes of the same actions: distance of the object, metres")
        print(f"{'step':>6}{'warp to MuJoCo':>34}{'MuJoCo, start rounded to float32':>36}")
        for step in range(1, EPISODE + 1):
            action, _ = scripted_action(BUILT_IN[task].expert, obs, generator, noise, share)
            obs, *_ = envs.step(action)
            others = [other.step(action)[0]["achieved_goal"] for other in (ours, rounded)]
            if step in (1, 2, 5, 10, 25, EPISODE):
                cells = [spread(np.linalg.norm(other - obs["achieved_goal"], axis=1)) for other in others]
                print(f"{step:>6}{cells[0]:>34}{cells[1]:>36}", flush=True)


def measure_success(bench: Bench) -> None:
    """Success rates of the scripted expert, which stands for a trained policy."""
    print(f"scripted expert, {bench.sizes.episodes} episodes, success at the last step, and env steps/s with acting")
    for task in TASKS:
        for name, device in (("warp", bench.device), ("MuJoCo", None)):
            envs = FetchVectorEnv(task, bench.sizes.episodes, warp_device=device)
            obs, _ = envs.reset(seed=5000)
            generator = np.random.default_rng(2)
            began = time.perf_counter()
            for _ in range(EPISODE):
                action, _ = scripted_action(BUILT_IN[task].expert, obs, generator)
                obs, _, _, _, info = envs.step(action)
            rate = EPISODE * envs.num_envs / (time.perf_counter() - began)
            blown = int(info["blow_ups"].sum())
            print(f"{task:<16}{name:<8}{info['is_success'].mean():>8.3f}{rate:>12,.0f} {blown} blow-ups", flush=True)


def measure_labels(bench: Bench) -> None:
    """States per second and agreement of exact labels."""
    print(f"exact labels, 17 actions a state (9 on push), {bench.sizes.slots} slots; tolerance {WARP_TOLERANCE:.0e} m")
    head = f"{'task':<16}{'states':<14}{'n':>6}{'reach':>7}{'positive':>10}{'states/s':>10}{'MuJoCo':>9}"
    print(head + f"{'agree':>9}{'reach agrees':>14}{'reach states/s':>16}{'noise in negatives':>34}")
    ours: list[Any] = []
    truth: list[Any] = []
    seconds = dict.fromkeys(("warp", "MuJoCo"), 0.0)
    for sample in bench.samples:
        device, plain = bench.forker(sample.task, on_device=True), bench.forker(sample.task, on_device=False)
        spent, (label, effect) = timed(lambda s=sample, f=device: exact_label(f, s.state, s.action))
        other_spent, (right, true_effect) = timed(lambda s=sample, f=plain: exact_label(f, s.state, s.action))
        reach_spent, reach = timed(lambda s=sample, f=device: f.within_reach(s.state))
        same_reach = (reach == plain.within_reach(sample.state)).mean()
        count = len(sample.state)
        seconds["warp"] += spent
        seconds["MuJoCo"] += other_spent
        ours.append(effect)
        truth.append(true_effect)
        row = f"{sample.task:<16}{sample.policy:<14}{count:>6}{reach.mean():>7.0%}{right.mean():>10.1%}"
        row += f"{count / spent:>10,.0f}{count / other_spent:>9,.0f}{(label == right).mean():>9.2%}"
        untouched = effect[reach & ~right]
        noise = spread(untouched) if len(untouched) else "-"
        print(f"{row}{same_reach:>14.2%}{count / reach_spent:>16,.0f}{noise:>34}", flush=True)
    effect, true_effect = np.concatenate(ours), np.concatenate(truth)
    print(f"all {len(effect)} states: {len(effect) / seconds['warp']:,.0f} states/s, MuJoCo ", end="")
    print(f"{len(effect) / seconds['MuJoCo']:,.0f}; agreement by tolerance in warp:")
    for tolerance in TOLERANCES:
        print(f"  {tolerance:.0e}: {((effect > tolerance) == (true_effect > TOLERANCE)).mean():.3%}", end="")
    print(flush=True)
    wrong = np.flatnonzero((effect > WARP_TOLERANCE) != (true_effect > TOLERANCE))[:10]
    print("  where they differ, MuJoCo and warp: ", end="")
    print(", ".join(f"{true_effect[i]:.1e} {effect[i]:.1e}" for i in wrong) or "nowhere", flush=True)


def measure_labels_alone(bench: Bench) -> None:
    """States per second of labels without the sizes of the effects, all states of a task together."""
    print(f"{'task':<16}{'n':>6}{'states/s':>10}{'MuJoCo':>9}{'agree':>9}")
    for task in TASKS:
        parts = [sample for sample in bench.samples if sample.task == task]
        state, action = (np.concatenate([getattr(part, name) for part in parts]) for name in ("state", "action"))
        forkers = [bench.forker(task, on_device) for on_device in (True, False)]
        calls = [partial(exact_label, forker, state, action, sizes=False) for forker in forkers]
        (spent, (label, _)), (other_spent, (right, _)) = map(timed, calls)
        rates = f"{len(state) / spent:>10,.0f}{len(state) / other_spent:>9,.0f}"
        print(f"{task:<16}{len(state):>6}{rates}{(label == right).mean():>9.2%}", flush=True)


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds and result of the second call; the first one compiles and allocates."""
    call()
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result


def measure_horizons(bench: Bench) -> None:
    """States per second and agreement of the effects of an action within several steps."""
    print(f"effects on the object within {HORIZONS} steps, 17 actions and one continuation: 170 env steps a state")
    print(f"{'task':<16}{'states':<14}{'n':>6}{'states/s':>10}{'MuJoCo':>9}   agreement and share of positives")
    count = bench.sizes.horizon_states
    for task in TASKS:
        worlds = {
            "warp": FetchWorld(task, bench.sizes.slots, warp_device=bench.device),
            "MuJoCo": FetchWorld(task, 256),
        }
        for sample in bench.samples:
            if sample.task != task or sample.policy == "expert":
                continue
            generator = np.random.default_rng(3)
            chosen = generator.permutation(len(sample.state))[:count]
            following = generator.uniform(-1, 1, (len(chosen), 1, max(HORIZONS) - 1, 4))
            shares, rates = [], []
            for world in worlds.values():
                began = time.perf_counter()
                _, share = action_effects(world, sample.state[chosen], HORIZONS, following)
                rates.append(len(chosen) / (time.perf_counter() - began))
                shares.append(share[:, :, 1])
            agree = (shares[0] == shares[1]).mean(0)
            cells = [
                f"{horizon}: {same:.2%} of {positive:.0%}"
                for horizon, same, positive in zip(HORIZONS, agree, shares[1].mean(0), strict=True)
            ]
            row = f"{task:<16}{sample.policy:<14}{len(chosen):>6}{rates[0]:>10,.0f}{rates[1]:>9,.0f}"
            print(f"{row}   {', '.join(cells)}", flush=True)


def measure_seeds(bench: Bench) -> None:
    """Env steps per second of many seeds of push, two environments each."""
    count = 2 * bench.sizes.seeds
    generator = np.random.default_rng(4)
    actions = generator.uniform(-1, 1, (EPISODE, count, 4)).astype(np.float32)
    for name, device in (("warp", bench.device), ("MuJoCo", None)):
        envs = FetchVectorEnv("push", count, warp_device=device)
        envs.reset(seed=0)
        envs.step(actions[0])
        began = time.perf_counter()
        for action in actions[1:]:
            envs.step(action)
        rate = (EPISODE - 1) * count / (time.perf_counter() - began)
        print(f"push, {bench.sizes.seeds} seeds x 2 environments, {name}: {rate:,.0f} env steps/s", flush=True)


# section, and the seconds that must be left for it to start
SECTIONS: dict[str, tuple[Callable[[Bench], None], float]] = {
    "Compilation": (measure_compilation, 0),
    "Exact labels": (measure_labels, 30),
    "Labels without sizes": (measure_labels_alone, 15),
    "One step": (measure_one_step, 10),
    "Stepping": (measure_stepping, 60),
    "Expert": (measure_success, 20),
    "Horizons": (measure_horizons, 30),
    "Episode": (measure_episode, 20),
    "100 seeds": (measure_seeds, 10),
}


def main(device: str, seconds: float, sizes: Sizes, sections: list[str]) -> None:
    if importlib.util.find_spec("mujoco_warp") is None:
        print("MuJoCo Warp is measured where the extra 'warp' is installed; it is not")
        return
    began = time.perf_counter()
    packages = [importlib.import_module(name) for name in ("mujoco", "mujoco_warp", "warp")]
    warp: Any = packages[-1]
    warp.config.log_level = warp.LOG_WARNING  # it prints a line for every kernel that it loads
    if device == "cuda" and not warp.get_cuda_devices():
        print("MuJoCo Warp is measured on a GPU; there is none")
        return
    versions = [f"{package.__name__} {package.__version__}" for package in packages]
    print(f"{describe(device)}; {', '.join(versions)}; {PROCESSORS} processors", flush=True)
    bench = Bench(device, sizes)
    for name in sections:
        section, needed = SECTIONS[name]
        left = seconds - (time.perf_counter() - began)
        if left < needed:
            print(f"\n## {name}: left out, {left:.0f} s are left", flush=True)
            continue
        print(f"\n## {name} (after {seconds - left:.0f} s)", flush=True)
        try:
            section(bench)
        except Exception:  # the other sections still count
            traceback.print_exc()
    print(f"\nended after {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="of Warp")
    parser.add_argument("--seconds", type=float, default=280.0, help="after which no section is started")
    parser.add_argument("--small", action="store_true", help="few environments and states, to try it on a CPU")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="what is measured")
    given = parser.parse_args()
    main(given.device, given.seconds, SMALL if given.small else Sizes(), given.sections)
