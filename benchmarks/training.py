"""Environment steps a second of training on FetchPickAndPlace, beside Stable-Baselines3's DDPG with hindsight.

python -m benchmarks.training [cuda] [--quick]
"""

import importlib.metadata
import multiprocessing
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from multiprocessing.connection import Connection

import gymnasium
import numpy as np
import torch
from stable_baselines3 import DDPG, HerReplayBuffer
from stable_baselines3.common.noise import NormalActionNoise

from benchmarks._timing import describe, medians
from benchmarks.fetch_stepping import CORES, PEER
from butfor.envs import ENVS, fix_gymnasium_robotics
from butfor.training.goal_env import open_goal_env
from butfor.training.loop import Trainer
from butfor.training.settings import Use, preset

CONFIG = preset("pick-and-place")
OWN = ENVS[CONFIG.world]
STEPS = 50  # of an episode
WARMUP = 20  # random episodes before the first update, on both sides
ROUNDS = 100  # batches of the model for an episode: 10,000 every 100 episodes
RESCORED = 2  # episodes scored anew for an episode: 200 in memory every 100 episodes
PARTS = {"simulation": "simulation with acting", "updates": "updates", "model": "model", "scoring": "scoring"}


class Seeds:
    """R seeds of butfor past their warm-up; each call trains them for some episodes more, in the order of `train`."""

    def __init__(self, replicas: int, influence: tuple[Use, ...], device: str, episodes: int) -> None:
        config = replace(CONFIG, influence=influence, seeds=replicas, warmup=WARMUP)
        world = open_goal_env(config.env, config.entity, config.model.network.target_scale)
        self.trainer, self.replicas, self.episodes = Trainer(config, world, device), replicas, episodes
        assert world.steps == STEPS
        self.threads, self.spent, self.played = CORES, 0.0, 0
        torch.set_num_threads(self.threads)
        self.trainer.store(self.trainer.play_random(WARMUP))
        self._fit()
        self.trainer.rescore()
        self._learn()
        for _ in range(2):  # what is made on first use, on a GPU the recorded graphs
            self._episode()
        self.trainer.seconds.clear()

    def __call__(self) -> None:
        torch.set_num_threads(self.threads)
        began = time.perf_counter()
        for _ in range(self.episodes):
            self._episode()
        self.spent += time.perf_counter() - began
        self.played += self.episodes * self.replicas

    def _episode(self) -> None:
        trainer = self.trainer
        trainer.store(trainer.play())
        self._fit()
        if trainer.model is not None:
            with trainer.clock("scoring"):
                trainer.model.score(trainer.replay.slots(RESCORED), trainer.generators["scores"])
        self._learn()

    def _fit(self) -> None:
        if self.trainer.model is not None:
            self.trainer.round = self.trainer.pending = ROUNDS
            self.trainer.fit_model()

    def _learn(self) -> None:
        self.trainer.update()
        self.trainer.refresh_acting()

    @property
    def steps(self) -> int:
        return self.replicas * self.episodes * STEPS

    def parts(self) -> dict[str, float]:
        """Milliseconds that an episode of one seed took, by kind of work."""
        scale = 1000 / self.played
        result = {text: self.trainer.seconds.get(name, 0.0) * scale for name, text in PARTS.items()}
        return result | {"rest": self.spent * scale - sum(result.values())}


class Peer:
    """Stable-Baselines3's agent with the same networks and update ratio, past its warm-up."""

    def __init__(self, world: str, device: str, threads: int, episodes: int) -> None:
        agent = CONFIG.agent
        self.threads, self.steps, self.updates = threads, episodes * STEPS, episodes * agent.updates
        torch.set_num_threads(threads)
        size = 4  # of an action
        self.model = DDPG(
            "MultiInputPolicy",
            gymnasium.make(world),
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
    """The same agent in one process of one thread for each processor, all at once."""

    def __init__(self, world: str, episodes: int) -> None:
        context = multiprocessing.get_context("spawn")
        pairs = [context.Pipe() for _ in range(CORES)]
        self.ends = [here for here, _ in pairs]
        self.processes = [context.Process(target=serve, args=(end, world, episodes), daemon=True) for _, end in pairs]
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


def serve(end: Connection, world: str, episodes: int) -> None:
    """What each of the processes does: train whenever asked to."""
    silence()
    peer = Peer(world, "cpu", 1, episodes)
    end.send(True)
    while end.recv():
        peer()
        end.send(True)


def silence() -> None:
    """Makes the peer's worlds known, without the warnings of their package."""
    warnings.simplefilter("ignore")
    gymnasium.logger.min_level = gymnasium.logger.ERROR
    import gymnasium_robotics

    gymnasium.register_envs(gymnasium_robotics)
    fix_gymnasium_robotics()


def fastest_peer(device: str, episodes: int, turns: int) -> tuple[str, str, int]:
    """World, device and threads with which Stable-Baselines3 trains fastest."""
    places = [("cpu", 1), ("cpu", min(2, CORES)), *([("cuda", min(2, CORES))] if device == "cuda" else [])]
    variants = list(dict.fromkeys(product((OWN, PEER), places)))
    peers = {str(variant): Peer(variant[0], *variant[1], episodes) for variant in variants}
    seconds = medians(peers, device, turns)
    version = importlib.metadata.version("stable-baselines3")
    print(f"Stable-Baselines3 {version} (SB3), DDPG with HerReplayBuffer, env steps/s:")
    for variant in variants:
        world, (place, threads) = variant
        rate = episodes * STEPS / seconds[str(variant)]
        print(f"  {world:<30}{place:>5}, torch threads: {threads}{rate:>10.0f}")
    world, (place, threads) = min(variants, key=lambda variant: seconds[str(variant)])
    print(f"  used below, as the fastest: {world} on {place}, torch threads: {threads}", flush=True)
    return world, place, threads


def main(arguments: Sequence[str]) -> None:
    device = "cuda" if "cuda" in arguments else "cpu"
    turns, episodes, few = (1, 2, 1) if "--quick" in arguments else (5, 5, 2)
    silence()
    torch.set_num_threads(CORES)
    print(describe(device))
    agent = CONFIG.agent
    print(
        f"FetchPickAndPlace, {STEPS} steps an episode; actor and critic {agent.layers}x{agent.width}, "
        f"{agent.updates} updates an episode of batch {agent.batch_size}; memory of {CONFIG.episodes} episodes"
    )
    print(f"butfor: torch threads: {torch.get_num_threads()}, processors: {CORES}", flush=True)
    world, place, threads = fastest_peer(device, episodes, max(1, turns // 2))
    processes = Processes(world, episodes)
    own = {f"butfor, R = {replicas}": Seeds(replicas, (), device, episodes) for replicas in (1, 4)}
    own |= {f"butfor with CAI-P, R = {r}": Seeds(r, ("priority",), device, few) for r in (1, 4)}
    together = f"SB3, {CORES} processes of 1 thread"
    rivals = {"SB3": Peer(world, place, threads, episodes), together: processes, **own}
    seconds = medians(rivals, device, turns)
    processes.close()
    rates = {name: rival.steps / seconds[name] for name, rival in rivals.items()}
    print(f"{'summed over replicas':<34}{'env steps/s':>12}{'/ SB3':>8}{'/ SB3 processes':>17}")
    for name, rate in rates.items():
        print(f"{name:<34}{rate:>12.0f}{rate / rates['SB3']:>8.2f}{rate / rates[together]:>17.2f}")
    report(own)


def report(own: dict[str, Seeds]) -> None:
    """Where the time goes, an episode of one seed."""
    parts = {name.removeprefix("butfor").lstrip(", ").removeprefix("with "): one.parts() for name, one in own.items()}
    print(f"{'ms an episode of one seed':<26}" + "".join(f"{name:>15}" for name in parts))
    for row in [*PARTS.values(), "rest"]:
        print(f"{row:<26}" + "".join(f"{values[row]:>15.1f}" for values in parts.values()))
    print(f"{'together':<26}" + "".join(f"{sum(values.values()):>15.1f}" for values in parts.values()))
    print(f"{'share of the model':<26}" + "".join(f"{v['model'] / sum(v.values()):>15.0%}" for v in parts.values()))
    print(f"with CAI-P: {ROUNDS} batches of the model an episode, 1 + {RESCORED} episodes scored an episode")


if __name__ == "__main__":
    main(sys.argv[1:])
