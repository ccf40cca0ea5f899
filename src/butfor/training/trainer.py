"""The pieces of a training run and their verbs: play, learn, fit and score, evaluate. `train.py` puts them in order."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from butfor.influence.gaussian import kl_to_mixture
from butfor.models.fitting import check_finite
from butfor.models.networks import make_generators
from butfor.rollouts.play import Observation, Played, episode_seed, play
from butfor.spaces.actions import from_unit
from butfor.training.acting import Acting, stack_inputs
from butfor.training.exploration import random_actions
from butfor.training.goal_env import GoalEnv, behaviour, make_evaluation_env, succeeded
from butfor.training.learner import Learner
from butfor.training.replay import Replay
from butfor.training.settings import Config
from butfor.training.signals.cai import OnlineInfluence, batches_due
from butfor.training.signals.disagreement import OnlineDisagreement
from butfor.training.signals.transitions import BLOCK, Memory
from butfor.training.signals.vime import OnlineVime

STREAMS = ("networks", "actions", "updates", "model", "scores")  # each replica has one random stream for each
CHUNK = 500  # batches of the model between two looks at whether to stop


class Trainer:
    """R agents with their memory, influence models and worlds; everything that a checkpoint must hold is in `state`."""

    def __init__(self, config: Config, world: GoalEnv, device: torch.device | str) -> None:
        self.config, self.world, self.device = config, world, torch.device(device)
        self.seeds = [config.first_seed + replica for replica in range(config.seeds)]
        streams = {name: [_stream_seed(seed, index) for seed in self.seeds] for index, name in enumerate(STREAMS)}
        first = make_generators(streams.pop("networks"))  # weights start on the CPU, alike on every device
        self.generators = {name: make_generators(seeds, self.device) for name, seeds in streams.items()}
        capacity = min(config.replay.capacity, config.episodes)
        self.replay = Replay(config.seeds, capacity, world.steps, world.sizes, self.device)
        self.learner = Learner(config, world, self.replay, first, self.device)
        self.agent = self.learner.agent
        memory = Memory(self.replay, world.law, world.entities, world.scale)
        self.model: OnlineInfluence | OnlineVime | OnlineDisagreement | None = None
        if config.curiosity == "vime":
            self.model = OnlineVime(config.vime, memory, first)
        elif config.curiosity == "disagreement":
            self.model = OnlineDisagreement(config.ensemble, memory, first)
        elif config.influence:
            self.model = OnlineInfluence(config.model, memory, first, config.combine)
        self.bounds = world.law.bounds(self.device)
        self.interrupted = False  # stopped within a round of the model, before the updates
        self.round = self.pending = 0  # batches of the model's round, and those left of it
        self.quota = 0  # batches of it for each episode, where the round is spread
        self.fitted = 0  # batches since the last report of the loss
        self.model_loss = torch.zeros(config.seeds, device=self.device)
        self.seconds: dict[str, float] = {}

        explorer = self.model if "active" in config.influence else None
        active = explorer.model if isinstance(explorer, OnlineInfluence) else None
        compare = explorer.compare if isinstance(explorer, OnlineInfluence) else kl_to_mixture
        edges = [0, (config.seeds + 1) // 2, config.seeds] if "acting" in config.overlap else [0, config.seeds]
        self.acting = [
            Acting(self.agent.policy, active, slice(*edge), config.num_envs, world.law, config.explore, compare)
            for edge in pairwise(edges)
            if edge[0] < edge[1]
        ]
        self.envs = [world.make(part.replicas * part.worlds) for part in self.acting]
        self._judge: Any = None  # worlds for evaluation
        self.behaviour: dict[str, NDArray[np.float64]] = {}  # of the last evaluation, [R] each

    # ------------------------------------------------------------------------------------------------ play

    def play_random(self, count: int) -> Played:
        """`count` episodes of each replica with uniform actions, all at once."""
        steps, law, streams = self.world.steps, self.world.law, self.generators["actions"]
        # the numbers of each episode in turn, as if they were played one after the other
        actions = [random_actions(steps, 1, law, streams) for _ in range(count)]  # [T, R, A]
        table = torch.stack(actions, 2).flatten(1, 2).cpu().numpy()  # [T, R x count, A]
        env = self.world.make(self.config.seeds * count)
        flags = np.ones(self.config.seeds * count, dtype=bool)
        what = f"the random episodes {self.replay.stored + 1} to {self.replay.stored + count}"
        with self.clock("simulation"):
            played = play([env], lambda group, at, obs: (table[at], flags), self._resets(count), steps, what)
        env.close()
        return played

    def play(self) -> Played:
        """One episode in each world by the exploring agents."""
        for part in self.acting:
            part.begin(self.world.steps, self.generators["actions"])
        seeds, what = self._resets(self.config.num_envs), f"episode {self.replay.stored + 1}"
        with self.clock("simulation"), single_thread():
            return play(self.envs, lambda group, at, obs: self.acting[group](at, obs), seeds, self.world.steps, what)

    def _resets(self, count: int) -> list[int]:
        """The seeds of the next `count` resets of each replica: they depend on (seed, episode) alone."""
        stored = self.replay.stored
        return [episode_seed(seed, 0, stored + index) for seed in self.seeds for index in range(count)]

    def store(self, played: Played) -> None:
        """Puts the episodes into the memory, and scores them with the model as it is."""
        episodes, replicas = played.episodes, self.config.seeds
        names = ("observation", "action", "achieved_goal", "desired_goal", "sampled", "length")
        arrays = {name: getattr(episodes, name) for name in names} | {"terminated": played.terminated}
        slots = self.replay.store({name: _by_replica(value, replicas) for name, value in arrays.items()})
        self.learner.welcome(slots)
        warm = self.replay.stored > self.config.warmup
        if self.model is not None and self.config.needs_scores and warm:
            with self.clock("scoring"):
                self.model.score(slots, self.generators["scores"])

    # ------------------------------------------------------------------------------------------- the model

    def begin_round(self, before: int) -> None:
        """Sets how many batches of the model are due after the episodes since `before`."""
        if self.model is None:
            return
        config = self.config
        episodes = range(before + 1, self.replay.stored + 1)
        due = sum(batches_due(config.model, episode, config.warmup) for episode in episodes)
        if due:
            self.pending += due
            self.round = self.pending
            spread = "model" in config.overlap and self.replay.stored > config.warmup
            self.quota = -(-due * config.num_envs // config.model.every) if spread else 0

    def fit_model(self) -> None:
        """A chunk of the round, or an episode's share of a spread one."""
        if self.model is None:
            return
        batches = min(self.pending, self.quota or CHUNK)
        with self.clock("model"):
            self.model.choose_data()
            self.model_loss += self.model.fit(batches, self.generators["model"], self.config.tf32)
        self.pending, self.fitted = self.pending - batches, self.fitted + batches

    def rescore(self) -> None:
        """Scores the memory anew after a round."""
        if self.model is not None and self.config.needs_scores:
            slots = self.model.slots_to_score()
            if len(slots):
                with self.clock("scoring"):
                    self.model.score(slots, self.generators["scores"])

    # ------------------------------------------------------------------------------------------- the agent

    def prepare(self) -> None:
        """On a GPU, compiles and records everything before the first episode."""
        if self.device.type == "cuda":
            with self.clock("start-up"):
                self.learner.recorded()
                if self.model is not None:
                    self.model.rounds.recorded(BLOCK, self.config.tf32)
                    self.model.model.eval()
                for part in self.acting:
                    part.prepare(self.world.sizes[0] + self.world.sizes[2])

    def update(self) -> None:
        """The updates that follow the episodes just stored."""
        with self.clock("updates"):
            self.learner.update(self.generators["updates"])

    def refresh_acting(self) -> None:
        """The next episode is played by the agents, and explored by the models, as they are now."""
        for part in self.acting:
            part.refresh()

    # ------------------------------------------------------------------------------------------ evaluation

    @torch.no_grad()
    def evaluate(self, episodes: int, number: int = 0) -> NDArray[np.float64]:
        """The share of `episodes` deterministic episodes that end in success, of each replica: [R].

        What else they show is kept in `behaviour`.
        """
        wins = np.zeros(self.config.seeds)
        played, shares = 0, []
        with self.clock("evaluation"):
            while played < episodes:
                count = min(self.world.evaluation_envs, episodes - played)
                first = number * episodes + played
                seeds = [episode_seed(seed, 1, first + index) for seed in self.seeds for index in range(count)]
                if self._judge is None or self._judge.num_envs != len(seeds):
                    if self._judge is not None:
                        self._judge.close()
                    self._judge = make_evaluation_env(self.world, len(seeds))
                what = f"the evaluation after episode {self.replay.stored}"
                result = play([self._judge], lambda group, at, obs: self._best(obs), seeds, self.world.steps, what)
                wins += succeeded(self.world, result).reshape(self.config.seeds, count).sum(1)
                shares.append(behaviour(self.world, result))
                played += count
        parts = {name: [share[name].reshape(self.config.seeds, -1) for share in shares] for name in shares[0]}
        self.behaviour = {name: np.concatenate(part, 1).mean(1) for name, part in parts.items()}
        return wins / episodes

    def _best(self, obs: Observation) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The policy's own actions in W worlds."""
        inputs = torch.from_numpy(stack_inputs(obs)).to(self.device).unflatten(0, (self.config.seeds, -1))
        action = from_unit(self.agent.policy(inputs), self.bounds).flatten(0, 1).cpu().numpy()
        return action, np.zeros(len(action), dtype=bool)

    def report(self) -> list[dict[str, float]]:
        """What was learned since the last report, one row a replica; stops where a loss is no number."""
        self.check()
        critic, actor, value = self.learner.means().T.tolist()
        model = (self.model_loss / max(self.fitted, 1)).tolist()
        newest = self.replay.slots(100)
        steps = self.replay.length[:, newest].sum(1).clamp(min=1)
        score = (self.replay.score[:, newest].sum((1, 2)) / steps).tolist()
        rows = [
            {"critic_loss": critic[r], "actor_loss": actor[r], "value": value[r]}
            | ({"model_loss": model[r], "score": score[r]} if self.model is not None else {})
            for r in range(self.config.seeds)
        ]
        self.model_loss.zero_()
        self.fitted = 0
        return rows

    def check(self) -> None:
        """Stops with a sentence where a loss has become NaN or infinite."""
        check_finite(self.model_loss, "influence model's loss")  # first, for its scores break the agent, too
        check_finite(self.learner.statistics.sum(-1), "agent's loss")

    # ---------------------------------------------------------------------------------------------- state

    NUMBERS = ("interrupted", "round", "pending", "quota", "fitted")

    def state(self) -> dict[str, Any]:
        """Everything that a later process needs to go on as if never interrupted."""
        return {
            "learner": self.learner.state(),
            "replay": self.replay.state(),
            "law": asdict(self.world.law),
            "model": None if self.model is None else self.model.state(),
            "acting": [
                [part.policy.state_dict(), {} if part.model is None else part.model.state_dict()]
                for part in self.acting
            ],
            "generators": {name: [g.get_state() for g in streams] for name, streams in self.generators.items()},
            "model_loss": self.model_loss,
            "seconds": self.seconds,
            **{name: getattr(self, name) for name in self.NUMBERS},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state` gave."""
        self.replay.restore(state["replay"])
        self.learner.restore(state["learner"])
        if self.model is not None:
            self.model.restore(state["model"])
        for part, (policy, model) in zip(self.acting, state["acting"], strict=True):
            part.policy.load_state_dict(policy)
            if part.model is not None:
                part.model.load_state_dict(model)
        for name, streams in self.generators.items():
            for generator, saved in zip(streams, state["generators"][name], strict=True):
                generator.set_state(saved)
        for name in self.NUMBERS:
            setattr(self, name, state[name])
        self.model_loss.copy_(state["model_loss"])
        self.seconds = dict(state["seconds"])

    @contextmanager
    def clock(self, name: str) -> Iterator[None]:
        """Adds up the seconds of a kind of work; without overlap a GPU's work is waited for."""
        began = time.perf_counter()
        yield
        if self.device.type == "cuda" and not self.config.overlap:
            torch.cuda.synchronize()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

    def close(self) -> None:
        """Gives the worlds back."""
        for env in filter(None, [*self.envs, self._judge]):
            env.close()


@contextmanager
def single_thread() -> Iterator[None]:
    """torch with one thread: its waiting threads would take the processors that simulate."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _stream_seed(seed: int, stream: int) -> int:
    return int(np.random.SeedSequence((seed, stream)).generate_state(1)[0])


def _by_replica(array: NDArray[Any], replicas: int) -> NDArray[Any]:
    """[R x W, ...] -> [R, W, ...]: world i belongs to replica i // W."""
    return array.reshape(replicas, -1, *array.shape[1:])
