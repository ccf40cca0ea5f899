"""The training loop: play, store, fit, rescore, sample, add the bonus, update.

`learn` is the loop; the methods of `Trainer` are its steps, in the same order.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from butfor.models.fitting import check_finite
from butfor.models.gpu import SideStream, can_compile, captured, matrix_precision
from butfor.models.networks import draw_uniform, make_generators, single_thread
from butfor.rollouts.play import Played, Progress, Stream, episode_seed, play
from butfor.runs.stopping import Stop
from butfor.spaces.actions import to_unit
from butfor.training import priorities
from butfor.training.agents import AGENTS
from butfor.training.bonus import add_bonus
from butfor.training.evaluation import Evaluation, Phases
from butfor.training.exploration import Explorer, random_actions
from butfor.training.goal_env import GoalEnv
from butfor.training.relay import Relay
from butfor.training.replay import Batch, ReplayBuffer, Weights, sample
from butfor.training.settings import Config
from butfor.training.signals import OF_CAI, SIGNALS, Signal
from butfor.training.signals.transitions import TransitionTable
from butfor.training.swapping import Swapper
from butfor.training.symmetry import Symmetry

STREAMS = ("networks", "actions", "updates", "model", "scores")  # each replica has one random stream for each
RECENT = 50  # episodes over which the success in training is averaged, with exponentially falling weights
CHUNK = 500  # batches of the signal's model between two checks whether to stop
RECORDED = 20  # updates of the agent that a graph contains, at most: the time to record one grows faster than they do


def learn(
    trainer: "Trainer",
    stop: Stop,
    progress: Progress,
    after_playing: Callable[[Played], None] = lambda played: None,
    after_updating: Callable[[], None] = lambda: None,
    after_episode: Callable[[], None] = lambda: None,
) -> None:
    """Train until all episodes are played or `stop` is true; called again, it resumes.

    The three functions keep the episodes just played, evaluate the updated agents, and report and save.
    """
    config = trainer.config
    replay = trainer.replay
    while replay.stored < config.episodes or trainer.interrupted:
        if replay.stored >= config.warmup:  # random episodes need nothing that is compiled
            trainer.prepare(progress)
        if not trainer.interrupted:
            played = trainer.play_random() if replay.stored < config.warmup else trainer.play()
            trainer.store(played)
            after_playing(played)
            if "updates" in config.overlap:
                trainer.refresh_explorers()  # the next episode is played by the policy from before these updates
        if replay.stored >= config.warmup:  # and fitting needs it right after them
            trainer.prepare(progress)
        trainer.fit_and_rescore(stop, progress)
        if trainer.interrupted:
            break
        if replay.stored >= config.warmup:
            trainer.update()
            if "updates" not in config.overlap:
                trainer.refresh_explorers()
            after_updating()
        after_episode()
        if stop():
            break


class Trainer:
    """R agents with their replay buffer, signal and environments; `state` returns all that a checkpoint needs."""

    def __init__(
        self, config: Config, goal_env: GoalEnv, device: torch.device | str, capacity: int | None = None
    ) -> None:
        """Draw the first weights and make the environments; `capacity` is the number of recorded episodes."""
        self.config = config
        self.goal_env = goal_env
        self.device = torch.device(device)
        self.seeds = [config.first_seed + replica for replica in range(config.seeds)]
        streams = {
            name: [int(np.random.SeedSequence((seed, index)).generate_state(1)[0]) for seed in self.seeds]
            for index, name in enumerate(STREAMS)
        }
        first = make_generators(streams.pop("networks"))  # weights start on the CPU, alike on every device
        self.generators = {name: make_generators(seeds, self.device) for name, seeds in streams.items()}

        capacity = capacity or min(config.replay.capacity, config.episodes)
        labelled = bool(goal_env.labels)
        self.replay = ReplayBuffer(config.seeds, capacity, goal_env.steps, goal_env.sizes, self.device, labelled)
        obs_size, action_size, goal_size = goal_env.sizes
        self.input_size = obs_size + goal_size * (2 if config.replay.relative_goals else 1)
        self.agent = AGENTS[config.algorithm](config, self.input_size, action_size, first, self.device)
        self.updates = config.agent.updates * config.num_envs  # after each round of episodes
        # those that are recorded as one graph
        self.block = self.updates if self.device.type == "cpu" else recorded_updates(self.updates, self.agent.period)
        self.swapper: Swapper | None = None
        if config.swap.share:
            if goal_env.facts is None or not goal_env.facts.bodies:
                raise ValueError(f"swap.share needs an environment whose entities are known; {goal_env.name} is not.")
            self.swapper = Swapper(config.swap, self.replay, goal_env.facts)
        self.relay: Relay | None = None
        if "relay" in config.use:
            self.relay = Relay(config.relay, config.agent, obs_size, action_size, first, self.device)
        self._beside = SideStream(self.device)
        self.signal: Signal | None = None
        if config.use:
            known = (goal_env.law, goal_env.entities, goal_env.scale, goal_env.partners)
            horizon = config.cai.horizon if config.signal in OF_CAI else 1
            table = TransitionTable(self.replay, *known, horizon=horizon)
            self.signal = SIGNALS[config.signal](config, table, goal_env, first)

        self.symmetry: Symmetry | None = None
        if config.replay.mirror or config.replay.shift:
            self.symmetry = Symmetry(goal_env.mirrors, config.replay, goal_env.sizes, self.device)

        by_step = "priority" in config.use and config.priority.step_share > 0
        self.weights = Weights(self.replay, even=config.priority.kind != "per" and not by_step)
        self.error = torch.zeros_like(self.replay.score)  # absolute TD errors, for PER
        self.largest_error = torch.ones(config.seeds, device=self.device)
        self.recent_success = torch.zeros(config.seeds, device=self.device)  # of the exploring agents
        self.bounds = goal_env.law.bounds(self.device)
        self.importance = torch.zeros((), device=self.device)  # read by a recorded graph, refilled between episodes
        self._recorded: Callable[[Tensor], Tensor] | None = None

        compares = bool({"active", "relay"} & set(config.use))
        active = self.signal.action_model() if self.signal is not None and compares else None
        model, *compare = active or (None,)
        exploring = config.explore if "active" in config.use else replace(config.explore, active=0.0)
        more: dict[str, Any] = {"relay": self.relay, "relative_goals": config.replay.relative_goals}
        edges = [0, (config.seeds + 1) // 2, config.seeds] if "acting" in config.overlap else [0, config.seeds]
        self.explorers = [
            Explorer(self.agent.policy, model, slice(*edge), config.num_envs, goal_env.law, exploring, *compare, **more)
            for edge in pairwise(edges)
            if edge[0] < edge[1]
        ]
        self.envs = [goal_env.make(part.replicas * part.envs) for part in self.explorers]
        relative = config.replay.relative_goals
        self.evaluation = Evaluation(goal_env, self.seeds, self.agent, config.agent.discount, relative)

        self.prepared = False  # everything is compiled and recorded
        self.rounds = 0  # rounds of updates on recorded episodes
        self.interrupted = False  # stopped within a round of fitting, before the updates
        self.round = 0  # batches of the present round of fitting
        self.pending = 0  # batches left of it
        self.quota = 0  # batches of it per episode, where the round is spread
        self.fitted = 0  # batches since the last report
        self.model_loss = torch.zeros(config.seeds, device=self.device)
        self.statistics = torch.zeros(config.seeds, 3, device=self.device)  # critic loss, actor loss, value
        self.count = 0  # updates that the statistics sum up
        self.normalized = False
        self.phases = Phases(goal_env, config.seeds)
        self.seconds: dict[str, float] = {}

    @property
    def done(self) -> int:
        """How far training is: episodes played, or rounds of updates on recorded ones."""
        return self.rounds if self.config.data else self.replay.stored

    # ------------------------------------------------------------------------------------------------ play

    def play_random(self) -> Played:
        """Play episodes of the warm-up with uniform actions, many at once."""
        config = self.config
        count = min(config.warmup - self.replay.stored, self.goal_env.evaluation_envs, self.replay.capacity)
        steps = self.goal_env.steps
        # the random numbers of each episode in turn, as if they were played one after the other
        actions = [random_actions(steps, 1, self.goal_env.law, self.generators["actions"]) for _ in range(count)]
        table = torch.stack(actions, 2).flatten(1, 2).cpu().numpy()  # [T, R x count, A]
        flags = np.ones(config.seeds * count, dtype=bool)
        what = f"the random episodes {self.replay.stored + 1} to {self.replay.stored + count}"
        env = self.goal_env.make(config.seeds * count)
        with self.clock("simulation"):
            played = play([env], lambda group, at, obs: (table[at], flags), self._reset_seeds(count), steps, what)
        env.close()
        return played

    def play(self) -> Played:
        """Play one episode in each environment by the exploring agents."""
        for part in self.explorers:
            part.begin(self.goal_env.steps, self.generators["actions"])
        seeds = self._reset_seeds(self.config.num_envs)
        what = f"episode {self.replay.stored + 1}"
        with self.clock("simulation"), single_thread():
            act = lambda group, at, obs: self.explorers[group](at, obs)  # noqa: E731
            return play(self.envs, act, seeds, self.goal_env.steps, what)

    def _reset_seeds(self, count: int) -> list[int]:
        """Seeds of the next `count` resets of each replica; they depend on (seed, episode) alone."""
        stored = self.replay.stored
        return [episode_seed(seed, Stream.TRAINING, stored + index) for seed in self.seeds for index in range(count)]

    # ----------------------------------------------------------------------------------------------- store

    def store(self, played: Played) -> None:
        """Put the episodes into the replay buffer, score them with the signal as it is, and plan its fitting."""
        before = self.replay.stored
        episodes = played.episodes
        names = ("observation", "action", "achieved_goal", "desired_goal", "sampled", "length")
        arrays = {name: getattr(episodes, name) for name in names} | {"terminated": played.terminated}
        if self.replay.label is not None:
            arrays["label"] = episodes.labels()[self.goal_env.labels[0]]
        by_replica = {  # [R x W, ...] -> [R, W, ...]: environment i belongs to replica i // W
            name: value.reshape(self.config.seeds, -1, *value.shape[1:]) for name, value in arrays.items()
        }
        slots = self.replay.store(by_replica)
        self.error[:, slots] = self.largest_error[:, None, None]  # so that each new transition is drawn soon
        self.phases.add(before, played)
        if before >= self.config.warmup:
            success = torch.from_numpy(self.goal_env.succeeded(played).reshape(self.config.seeds, -1)).float()
            self._follow_success(success.to(self.device, non_blocking=True))
            if self.config.agent.caution_rate is not None:
                values = self.evaluation.values(episodes)
                excess = torch.from_numpy(values["value_predicted"] - values["value_reached"]).view(success.shape)
                self.agent.adjust_caution(excess.to(self.device, torch.float32), self._practised())
        if self.signal is None:
            return
        if self.config.needs_scores and (before >= self.config.warmup or not self.signal.learns):
            with self.clock("scoring"):
                self.signal.score(slots, self.generators["scores"])
        if self.signal.learns:
            self._plan_round(before)

    def _follow_success(self, success: Tensor) -> None:
        """Average the success [R, W] of the episodes just played into the recent one: of practice alone if there is."""
        recent = self.recent_success
        counts = self._practised() if self.config.explore.practice else torch.ones_like(success, dtype=torch.bool)
        for one, count in zip(success.T, counts.T, strict=True):
            recent.copy_(torch.where(count, recent.lerp(one, 1 / RECENT), recent))

    def _practised(self) -> Tensor:
        """Which of the episodes just played were practice: [R, W]."""
        return torch.cat([part.practises for part in self.explorers])[..., 0]

    def _plan_round(self, before: int) -> None:
        """Set how many batches of the signal's model are due after the episodes since `before`."""
        config = self.config
        due = sum(batches_due(config, episode) for episode in range(before + 1, self.replay.stored + 1))
        if due:
            self.pending += due
            self.round = self.pending
            spread = "model" in config.overlap and self.replay.stored > config.warmup
            self.quota = -(-due * config.num_envs // config.fit_every) if spread else 0

    # ------------------------------------------------------------------------------------- fit and rescore

    def fit_and_rescore(self, stop: Stop, progress: Progress) -> None:
        """Fit the signal's model where that is due, then score the replay buffer again; `stop` interrupts it."""
        self.interrupted = False
        while self.pending and self.signal is not None:
            batches = min(self.pending, self.quota or CHUNK)
            with self.clock("model"):
                self.model_loss += self.signal.fit(batches, self.generators["model"], self.config.tf32)
            self.pending -= batches
            self.fitted += batches
            if not self.pending and self.config.needs_scores and len(slots := self.signal.stale()):
                with self.clock("scoring"):
                    self.signal.score(slots, self.generators["scores"])
            if self.quota:  # a spread round: this was the episode's share
                break
            if stop():
                self.interrupted = True
                break
            progress("model", self.round - self.pending, self.round, f"after episode {self.replay.stored}")

    # ------------------------------------------------------------------------- sample, add the bonus, update

    def update(self) -> None:
        """Update the agents after an episode."""
        if self.swapper is not None and self.swapper.is_due():
            with self.clock("swaps"):
                self.swapper.learn(self.seeds)
        with self.clock("updates"):
            self.set_weights()
            if not self.normalized:
                for _ in range(self.config.agent.normalizer_batches):
                    self.agent.policy.normalizer.update(self.draw_batch(self._noise(1)).inputs)
                self.normalized = True
            for noise in self._noise(self.updates).split(self.block * self.config.agent.batch_size, 1):
                self.statistics += self._recorded_updates()(noise)
            self.count += self.updates

    def set_weights(self) -> None:
        """Set how likely each stored step is to be drawn, and what else the updates read."""
        self.importance.fill_(priorities.beta_at(self.config.priority, self.done))
        self.weights.fill(self._priority())

    def _priority(self) -> Tensor:
        """Weights [R, E, T] by which steps are drawn."""
        replay = self.replay
        config = self.config.priority
        if "priority" in self.config.use:
            return priorities.by_score(replay.score, replay.length, config.rank_exponent, config.step_share)
        if config.kind == "per":
            return priorities.by_error(self.error, replay.length, config.alpha)
        if config.kind == "ebp":
            return priorities.by_energy(replay.achieved_goal, replay.length)
        return replay.valid().float()

    def draw_batch(self, noise: Tensor) -> Batch:
        """Draw transitions with hindsight goals, rewards with the bonus and importance weights: noise [R, B, n]."""
        config = self.config
        used = config.replay.noise + config.swap.noise
        reward = self.goal_env.reward
        batch = sample(self.replay, self.weights, noise[..., :used], reward, config.replay, self.swapper)
        batch.action = to_unit(batch.action, self.bounds)
        own = used + self.agent.noise_size
        batch.noise = noise[..., used:own] if self.agent.noise_size else None
        if self.symmetry is not None:
            batch = self.symmetry(batch, noise[..., own:])
        if "intrinsic" in config.use:
            batch.reward = batch.score.clamp(0, config.bonus.cap)
        elif "bonus" in config.use:
            batch.reward = add_bonus(batch.reward, batch.score, config.bonus)
        if config.priority.kind == "per":
            drawn = self.weights.step[self.replay.rows, batch.episode, batch.time]
            batch.weight = priorities.importance_weights(self.weights.step, drawn, self.importance)
        return batch

    def update_agent(self, noise: Tensor) -> Tensor:
        """Update the agents on batches drawn with noise [R, updates x B, n]; summed statistics [R, 3]."""
        total = torch.zeros_like(self.statistics)
        size = self.config.agent.batch_size
        by_error = self.config.priority.kind == "per"  # then each batch depends on the errors of the one before
        batches = map(self.draw_batch, noise.split(size, 1)) if by_error else iter(self.draw_batch(noise).split(size))
        kept = []  # the relay may still read a batch when the agent has finished with it
        for index, batch in enumerate(batches):
            if self.relay is not None:
                kept.append(batch)
                with self._beside():
                    self.relay.update(batch, index)
            statistics, error = self.agent.update(batch, index)
            total += statistics
            if by_error:
                self.error[self.replay.rows, batch.episode, batch.time] = error.abs()
                self.largest_error.copy_(torch.maximum(self.largest_error, error.abs().amax(-1)))
                self.weights.fill(self._priority())
        if kept:
            self._beside.join()
        return total

    def _noise(self, batches: int) -> Tensor:
        rows = batches * self.config.agent.batch_size
        return draw_uniform(self.generators["updates"], rows, self._noise_size)

    @property
    def _noise_size(self) -> int:
        """Uniform numbers per transition of a batch."""
        symmetry = 0 if self.symmetry is None else self.symmetry.noise_size
        return self.config.replay.noise + self.config.swap.noise + self.agent.noise_size + symmetry

    def _recorded_updates(self) -> Callable[[Tensor], Tensor]:
        """`update_agent`, on a GPU and with a built-in environment as a graph that is recorded once."""
        if self._recorded is None and self.goal_env.facts is not None:  # whose rewards are tensor operations
            config = self.config
            rows = self.block * config.agent.batch_size
            noise = torch.zeros(config.seeds, rows, self._noise_size, device=self.device)
            relay = [] if self.relay is None else self.relay.changes()
            tensors = [self.error, self.largest_error, self.weights.step, self.weights.running]
            changes = [*self.agent.changes(), *relay, *tensors]
            with matrix_precision("high" if config.tf32 else "highest"):
                self._recorded = captured(self.update_agent, [noise], changes)
        return self._recorded or self.update_agent

    def refresh_explorers(self) -> None:
        """Let the next episode be played with the present policies and models."""
        for part in self.explorers:
            part.refresh(self.recent_success)

    def prepare(self, progress: Progress) -> None:
        """On a GPU, compile and record everything that the agents play and learn with; the first call does."""
        if self.device.type == "cuda" and not self.prepared:
            if can_compile(self.device):
                progress("start-up", 0, 1, "compiling for the GPU; what was compiled before is found on the disk")
            self.prepared = True
            with self.clock("start-up"):
                self._recorded_updates()
                if self.signal is not None:
                    self.signal.prepare(self.config.tf32)
                for part in self.explorers:
                    part.prepare(self.input_size)

    # ----------------------------------------------------------------------------- evaluate, report, check

    def evaluate(self, episodes: int, number: int = 0) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
        """Share of deterministic episodes, reset by seeds of this `number`, that succeed [R]; see `Evaluation.play`."""
        with self.clock("evaluation"):
            return self.evaluation.play(episodes, number, f"the evaluation after episode {self.done}")

    def report(self) -> list[dict[str, float]]:
        """Losses and scores since the last report, one row per replica."""
        self.check()
        critic, actor, value = (self.statistics / max(self.count, 1)).T.tolist()
        model = (self.model_loss / max(self.fitted, 1)).tolist()
        newest = self.replay.slots(100)
        steps = self.replay.length[:, newest].sum(1).clamp(min=1)
        score = (self.replay.score[:, newest].sum((1, 2)) / steps).tolist()
        phases = self.phases.report()
        if self.relay is not None:
            explore = self.config.explore
            epsilon = explore.epsilon * torch.cat([part.amount for part in self.explorers]).flatten()
            stored = (self.replay.score[:, newest], self.replay.length[:, newest])
            use = self.relay.use(*stored, epsilon, explore.practice)
            phases = [one | other for one, other in zip(phases, use, strict=True)]
        self.statistics.zero_()
        self.count = 0
        self.model_loss.zero_()
        self.fitted = 0
        return [
            {"critic_loss": critic[r], "actor_loss": actor[r], "value": value[r]}
            | ({"model_loss": model[r], "score": score[r]} if self.signal is not None else {})
            | phases[r]
            | ({"swaps": float(self.swapper.count[r])} if self.swapper is not None else {})
            for r in range(self.config.seeds)
        ]

    def check(self) -> None:
        """Raise where a loss has become NaN or infinite."""
        check_finite(self.model_loss, "signal's loss")  # first, since its scores break the agent, too
        check_finite(self.statistics.sum(-1), "agent's loss")

    # --------------------------------------------------------------------------------------------- checkpoint

    NUMBERS = ("interrupted", "round", "pending", "quota", "fitted")

    def state(self) -> dict[str, Any]:
        """Everything that a later process needs to resume as if never interrupted."""
        learner = self.agent.state() | {
            "error": self.error[:, : self.replay.size].clone(),
            "largest_error": self.largest_error,
            "recent_success": self.recent_success,
            "statistics": self.statistics,
            "count": self.count,
            "normalized": self.normalized,
        }
        return {
            "learner": learner,
            "replay": self.replay.state(),
            "law": asdict(self.goal_env.law),
            "touching": self.goal_env.touching(),
            "model": None if self.signal is None else self.signal.state(),
            "relay": None if self.relay is None else self.relay.state(),
            "phases": self.phases.state(),
            "swaps": None if self.swapper is None else self.swapper.state(),
            "rounds": self.rounds,
            "acting": [
                [{} if module is None else module.state_dict() for module in part.copies] for part in self.explorers
            ],
            "generators": {name: [g.get_state() for g in streams] for name, streams in self.generators.items()},
            "model_loss": self.model_loss,
            "seconds": self.seconds,
            **{name: getattr(self, name) for name in self.NUMBERS},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put back what `state` returned, before anything is recorded."""
        self.replay.restore(state["replay"])
        learner = state["learner"]
        self.agent.restore(learner)
        self.error[:, : self.replay.size] = learner["error"].to(self.device)
        self.largest_error.copy_(learner["largest_error"])
        self.recent_success.copy_(learner.get("recent_success", self.recent_success))  # older files have none
        for part in self.explorers:
            part.set_amount(self.recent_success)
        self.statistics.copy_(learner["statistics"])
        self.count = learner["count"]
        self.normalized = learner["normalized"]
        if self.signal is not None:
            self.signal.restore(state["model"])
        if self.relay is not None:
            self.relay.restore(state["relay"])
        if "phases" in state:  # older files have none
            self.phases.restore(state["phases"])
        if self.swapper is not None:
            self.swapper.restore(state["swaps"])
        self.rounds = state.get("rounds", 0)  # older files have none
        for part, saved_copies in zip(self.explorers, state["acting"], strict=True):
            for module, saved in zip(part.copies, saved_copies, strict=False):  # older files have no relay
                if module is not None:
                    module.load_state_dict(saved)
        for name, streams in self.generators.items():
            for generator, saved in zip(streams, state["generators"][name], strict=True):
                generator.set_state(saved)
        for name in self.NUMBERS:
            setattr(self, name, state[name])
        self.model_loss.copy_(state["model_loss"])
        self.seconds = dict(state["seconds"])

    @contextmanager
    def clock(self, name: str) -> Iterator[None]:
        """Add up the seconds of a kind of work; without overlap a GPU's work is waited for."""
        began = time.perf_counter()
        yield
        if self.device.type == "cuda" and not self.config.overlap:
            torch.cuda.synchronize()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

    def close(self) -> None:
        """Close the environments."""
        for env in self.envs:
            env.close()
        self.evaluation.close()


def recorded_updates(updates: int, period: int) -> int:
    """How many of the updates after an episode one graph contains: a divisor of them, a multiple of the period."""
    sizes = (size for size in range(RECORDED, 0, -1) if updates % size == 0 and size % period == 0)
    return next(sizes, updates)


def batches_due(config: Config, episode: int) -> int:
    """Batches of the round of fitting that follows the episode with this number (from 1); 0 where none is due."""
    if episode < config.warmup or (episode - config.warmup) % config.fit_every:
        return 0
    return next((batches for limit, batches in config.fit_schedule if episode <= limit), 0)
