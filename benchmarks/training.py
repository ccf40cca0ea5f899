"""Environment steps per second of training on FetchPickAndPlace, against Stable-Baselines3's DDPG with hindsight.

python -m benchmarks.training [cuda] [--quick]
"""

import importlib.metadata
import multiprocessing
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise, product
from multiprocessing.connection import Connection

import gymnasium
import numpy as np
import torch
from stable_baselines3 import DDPG, HerReplayBuffer
from stable_baselines3.common.noise import NormalActionNoise

from benchmarks._timing import describe, gradient_products, layer_products, matrix_products, medians, note
from benchmarks.fetch_stepping import CORES, PEER
from butfor.envs import ENVS, fix_gymnasium_robotics
from butfor.training.goal_env import open_goal_env
from butfor.training.loop import Trainer
from butfor.training.settings import Use, preset

CONFIG = preset("pick-and-place")
OWN = ENVS[CONFIG.env]
STEPS = 50  # of an episode
WARMUP = 20  # random episodes before the first update, on both sides
BATCHES = 100  # of the influence model per episode: 10,000 every 100 episodes
RESCORED = 2  # episodes scored again per episode: 200 every 100 episodes
PARTS = {"simulation": "simulation with acting", "updates": "updates", "model": "model", "scoring": "scoring"}


class Seeds:
    """R seeds of butfor after their warm-up; each call trains them for some more episodes, in the order of `train`."""

    def __init__(self, replicas: int, use: tuple[Use, ...], device: str, episodes: int) -> None:
        config = replace(CONFIG, use=use, seeds=replicas, warmup=WARMUP)
        goal_env = open_goal_env(config.env, config.entities, config.cai.network.target_scale)
        assert goal_env.steps == STEPS
        self.trainer = Trainer(config, goal_env, device)
        self.replicas = replicas
        self.episodes = episodes
        self.spent = 0.0
        self.played = 0
        torch.set_num_threads(CORES)
        self.trainer.store(self.trainer.play_random())
        self._fit_and_score(WARMUP)
        self._update()
        for _ in range(2):  # what is made on first use, on a GPU the recorded graphs
            self._episode()
        self.trainer.seconds.clear()

    def __call__(self) -> None:
        torch.set_num_threads(CORES)
        began = time.perf_counter()
        for _ in range(self.episodes):
            self._episode()
        self.spent += time.perf_counter() - began
        self.played += self.episodes * self.replicas

    def _episode(self) -> None:
        self.trainer.store(self.trainer.play())
        self._fit_and_score(RESCORED)
        self._update()

    def _fit_and_score(self, episodes: int) -> None:
        trainer = self.trainer
        if trainer.signal is not None:
            with trainer.clock("model"):
                trainer.signal.fit(BATCHES, trainer.generators["model"], trainer.config.tf32)
            with trainer.clock("scoring"):
                trainer.signal.score(trainer.replay.slots(episodes), trainer.generators["scores"])

    def _update(self) -> None:
        self.trainer.update()
        self.trainer.refresh_explorers()

    @property
    def steps(self) -> int:
        return self.replicas * self.episodes * STEPS

    def parts(self) -> dict[str, float]:
        """Milliseconds per episode of one seed, by kind of work."""
        scale = 1000 / self.played
        result = {text: self.trainer.seconds.get(name, 0.0) * scale for name, text in PARTS.items()}
        return result | {"rest": self.spent * scale - sum(result.values())}


class Peer:
    """Stable-Baselines3's agent with the same networks and update ratio, after its warm-up."""

    def __init__(self, env: str, device: str, threads: int, episodes: int) -> None:
        agent = CONFIG.agent
        self.threads = threads
        self.steps = episodes * STEPS
        self.updates = episodes * agent.updates
        torch.set_num_threads(threads)
        size = 4  # of an action
        self.model = DDPG(
            "MultiInputPolicy",
            gymnasium.make(env),
            learning_rate=agent.learning_rate,
            buffer_size=CONFIG.episodes * STEPS,
            learning_starts=WARMUP * STEPS,
            batch_size=agent.batch_size,
            tau=1 - agent.polyak,
            gamma=agent.discount,
            train_freq=(1, "episode"),
            gradient_steps=agent.updates,
            action_noise=NormalActionNoise(np.zeros(size), np.full(size, 0.2)),
            replay_buffer_class=HerReplayBuffer,
            replay_buffer_kwargs={"n_sampled_goal": 4, "goal_selection_strategy": "future"},
            policy_kwargs={"net_arch": [agent.width] * agent.layers},
            device=device,
        )
        self.model.learn((WARMUP + 2) * STEPS, log_interval=None)

    def __call__(self) -> None:
        torch.set_num_threads(self.threads)
        before = self.model._n_updates
        self.model.learn(self.steps, log_interval=None, reset_num_timesteps=False)
        assert self.model._n_updates - before == self.updates, "the peer must learn while it is timed"


class Processes:
    """The same agent in one process of one thread per processor, all at once."""

    def __init__(self, env: str, episodes: int) -> None:
        context = multiprocessing.get_context("spawn")
        pairs = [context.Pipe() for _ in range(CORES)]
        self.ends = [here for here, _ in pairs]
        self.processes = [context.Process(target=serve, args=(end, env, episodes), daemon=True) for _, end in pairs]
        for process, (_, end) in zip(self.processes, pairs, strict=True):
            process.start()
            end.close()  # so that a process that dies is noticed
        for end in self.ends:
            end.recv()
        self.steps = CORES * episodes * STEPS

    def __call__(self) -> None:
        for end in self.ends:
            end.send(True)
        for end in self.ends:
            end.recv()

    def close(self) -> None:
        for end in self.ends:
            end.send(False)
        for process in self.processes:
            process.join()


def serve(end: Connection, env: str, episodes: int) -> None:
    """Train whenever asked to, in a process of its own."""
    silence()
    peer = Peer(env, "cpu", 1, episodes)
    end.send(True)
    while end.recv():
        peer()
        end.send(True)


def silence() -> None:
    """Register gymnasium-robotics' environments, without warnings."""
    warnings.simplefilter("ignore")
    gymnasium.logger.min_level = gymnasium.logger.ERROR
    import gymnasium_robotics

    gymnasium.register_envs(gymnasium_robotics)
    fix_gymnasium_robotics()


def fastest_peer(device: str, episodes: int, turns: int) -> tuple[str, str, int]:
    """Environment, device and threads with which Stable-Baselines3 trains fastest."""
    places = [("cpu", 1), ("cpu", min(2, CORES)), *([("cuda", min(2, CORES))] if device == "cuda" else [])]
    variants = list(dict.fromkeys(product((OWN, PEER), places)))
    peers = {str(variant): Peer(variant[0], *variant[1], episodes) for variant in variants}
    seconds = medians(peers, device, turns)
    version = importlib.metadata.version("stable-baselines3")
    print(f"Stable-Baselines3 {version} (SB3), DDPG with HerReplayBuffer, env steps/s:")
    for variant in variants:
        env, (place, threads) = variant
        rate = episodes * STEPS / seconds[str(variant)]
        print(f"  {env:<30}{place:>5}, torch threads: {threads}{rate:>10.0f}")
    env, (place, threads) = min(variants, key=lambda variant: seconds[str(variant)])
    print(f"  used below, as the fastest: {env} on {place}, torch threads: {threads}", flush=True)
    return env, place, threads


def update_products(replicas: int, device: str) -> Callable[[], None]:
    """The matrix products of the updates of an episode, and nothing else."""
    agent = CONFIG.agent
    goal_env = open_goal_env(CONFIG.env, CONFIG.entities, CONFIG.cai.network.target_scale)
    obs, action, goal = goal_env.sizes
    hidden = [agent.width] * agent.layers
    actor = [obs + goal, *hidden, action]
    critic = [obs + goal + action, *hidden, 1]
    rows = agent.batch_size
    # both targets, critic, actor, and critic of its action; gradients of critic, action and actor
    forward = [layer_products(rows, sizes) for sizes in (actor, critic, critic, actor, critic)]
    in_action = [(rows, other, one) for one, other in pairwise([action, *hidden, 1])]
    backward = [gradient_products(rows, critic), in_action, gradient_products(rows, actor)]
    once = matrix_products(replicas, [shape for shapes in [*forward, *backward] for shape in shapes], device)

    def run() -> None:
        torch.set_num_threads(CORES)
        for _ in range(agent.updates):
            once()

    return run


def main(arguments: Sequence[str]) -> None:
    device = "cuda" if "cuda" in arguments else "cpu"
    turns, episodes, few = (1, 2, 1) if "--quick" in arguments else (5, 5, 2)
    silence()
    torch.set_num_threads(CORES)
    print(describe(device))
    agent = CONFIG.agent
    print(
        f"FetchPickAndPlace, {STEPS} steps per episode; actor and critic {agent.layers}x{agent.width}, "
        f"{agent.updates} updates per episode of batch {agent.batch_size}; replay buffer of {CONFIG.episodes} episodes"
    )
    print(f"butfor: torch threads: {torch.get_num_threads()}, processors: {CORES}", flush=True)
    env, place, threads = fastest_peer(device, episodes, max(1, turns // 2))
    processes = Processes(env, episodes)
    own = {f"butfor, R = {replicas}": Seeds(replicas, (), device, episodes) for replicas in (1, 4)}
    own |= {f"butfor with CAI-P, R = {r}": Seeds(r, ("priority",), device, few) for r in (1, 4)}
    together = f"SB3, {CORES} processes of 1 thread"
    rivals = {"SB3": Peer(env, place, threads, episodes), together: processes, **own}
    floors = {f"products, R = {replicas}": update_products(replicas, device) for replicas in (1, 4)}
    seconds = medians({**rivals, **floors}, device, turns)
    processes.close()
    rates = {name: rival.steps / seconds[name] for name, rival in rivals.items()}
    print(f"{'summed over replicas':<34}{'env steps/s':>12}{'/ SB3':>8}{'/ SB3 processes':>17}")
    for name, rate in rates.items():
        print(f"{name:<34}{rate:>12.0f}{rate / rates['SB3']:>8.2f}{rate / rates[together]:>17.2f}")
    report(own)
    for replicas in (1, 4):
        name = f"butfor, R = {replicas}"
        parts = own[name].parts()
        products = 1000 * seconds[f"products, R = {replicas}"] / replicas
        allowed = parts["simulation with acting"] + products
        print(f"R = {replicas}: {products:.1f} ms of matrix products; ", end="")
        print(f"{allowed / sum(parts.values()):.0%} of what simulation and products allow", flush=True)
        item = f"training on {device}, R = {replicas}"
        note(item, rates[name], rates["SB3"], "env steps/s", "SB3", 1.9 if replicas == 1 else 2.4)
        note(f"{item}, an episode", sum(parts.values()), allowed, "ms", "simulation and products", 0.85)
        note(f"{item}, updates", parts["updates"], products, "ms", "matrix products")


def report(own: dict[str, Seeds]) -> None:
    """Print where the time of an episode of one seed goes."""
    parts = {name.removeprefix("butfor").lstrip(", ").removeprefix("with "): one.parts() for name, one in own.items()}
    print(f"{'ms/episode of one seed':<26}" + "".join(f"{name:>15}" for name in parts))
    for row in [*PARTS.values(), "rest"]:
        print(f"{row:<26}" + "".join(f"{values[row]:>15.1f}" for values in parts.values()))
    print(f"{'together':<26}" + "".join(f"{sum(values.values()):>15.1f}" for values in parts.values()))
    print(f"{'share of the model':<26}" + "".join(f"{v['model'] / sum(v.values()):>15.0%}" for v in parts.values()))
    print(f"with CAI-P: {BATCHES} batches of the model and 1 + {RESCORED} scored episodes per episode")


if __name__ == "__main__":
    main(sys.argv[1:])
