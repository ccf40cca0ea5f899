"""Exploration: random, noisy and active actions, played from a copy of the policy that stays fixed in an episode."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from butfor.influence.gaussian import kl_to_mixture
from butfor.influence.scoring import Dynamics
from butfor.models.gpu import captured
from butfor.models.networks import Generators, copy_replicas, draw_uniform, refresh_replicas
from butfor.rollouts.play import Observation
from butfor.runs.config import check_between, check_least
from butfor.spaces.actions import ActionLaw, Bounds, from_unit
from butfor.training.agents.policy import Policy
from butfor.training.relay import Relay

PRACTISED = 0.1  # factor on epsilon and noise in an episode of practice


@dataclass(frozen=True)
class ExploreConfig:
    """Which actions an agent tries while it learns. Defaults are the paper's."""

    epsilon: float = 0.3
    """share of exploratory actions: uniform, or active where that is a use of the signal"""
    noise: float = 0.2
    """standard deviation of the Gaussian noise on the policy's own actions and the relay's, in units of half the action
    range; SAC draws its own instead"""
    active: float = 1.0
    """share of the exploratory actions that are active"""
    candidates: int = 32
    """K, the actions compared for an active choice"""
    threshold: float = 0.0
    """where the candidates' mean influence is below it, in nats, the exploratory action is uniform instead"""
    success_factor: float = 1.0
    """factor on epsilon and noise where all recent episodes of training succeed (with practice: all recent episodes of
    practice); between that and 1 in proportion to their success; 1: exploration stays as it is (not in the paper)"""
    practice: float = 0.0
    """share of the episodes in which the policy acts nearly alone: a tenth of epsilon and noise, no relay (not in the
    paper)"""

    def __post_init__(self) -> None:
        check_between(self, 0, 1, "epsilon", "active", "success_factor", "practice")
        check_least(self, 0, "noise", "threshold")
        check_least(self, 2, "candidates")


def noise_size(law: ActionLaw, candidates: int, relay: bool = False) -> int:
    """Count the random numbers of one exploratory action; `candidates` is 0 where no actions are compared."""
    return 1 + 2 * law.size + candidates * (law.size + 1) + relay


def draw_noise(
    steps: int, envs: int, law: ActionLaw, candidates: int, generator: torch.Generator, relay: bool = False
) -> Tensor:
    """Draw all random numbers of an episode: [T, W, noise_size], normal for the Gaussian noise, else uniform."""
    device = generator.device
    noise = torch.rand(steps, envs, noise_size(law, candidates, relay), generator=generator, device=device)
    noise[..., 1 : 1 + law.size] = torch.randn(steps, envs, law.size, generator=generator, device=device)
    return noise


def random_actions(steps: int, envs: int, law: ActionLaw, generators: Generators) -> Tensor:
    """Draw the uniform actions of an episode, as an agent that always explores takes them: [T, R x W, A]."""
    noise = torch.stack([draw_noise(steps, envs, law, 0, generator) for generator in generators], 1)  # [T, R, W, n]
    uniform = noise[..., 1 + law.size : 1 + 2 * law.size].flatten(1, 2)
    low, high = law.bounds(uniform.device)
    return low + (high - low) * uniform


def explore(
    action: Tensor,
    noise: Tensor,
    bounds: Bounds,
    config: ExploreConfig,
    score: Callable[[Tensor], Tensor] | None,
    relay: tuple[Tensor, Callable[[Tensor, Tensor], Tensor]] | None = None,
    amount: Tensor | float = 1.0,
    drawn: bool = False,
    practises: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Make the policy's actions [R, W, A] exploratory by `noise` [R, W, n].

    With probability epsilon the action is exploratory: active in the share `config.active`, which means chosen among
    candidates by `score` ([R, W, K, A] -> [R, W, K]), else uniform. Otherwise it is the policy's with Gaussian
    noise, or the relay's with such noise, given its actions and when it has its turn. `amount` multiplies epsilon and
    noise. Actions of a policy that draws them (`drawn`) stay without noise. In environments [R, W, 1] where the agent
    `practises` there is a tenth of all this, and no relay. The result is actions [R, W, A], and which of them were
    drawn uniformly [R, W].
    """
    if practises is not None:
        amount = torch.where(practises, PRACTISED * amount, amount)
    epsilon = config.epsilon * amount
    low, high = bounds
    size = action.shape[-1]
    lot = noise[..., :1]
    normal = noise[..., 1 : 1 + size]
    uniform = noise[..., 1 + size : 1 + 2 * size]
    added = config.noise * amount * (high - low) / 2 * normal
    noisy = (action if drawn else action + added).clamp(low, high)
    if score is not None:
        rest = noise[..., 1 + 2 * size :]
        count = rest.shape[-1] // (size + 1)
        candidates = low + (high - low) * rest[..., : count * size].unflatten(-1, (count, size))  # [R, W, K, A]
        scores = score(candidates)  # [R, W, K]
        if relay is not None:
            other, turn = relay
            has_turn = turn(scores.mean(-1, keepdim=True), noise[..., -1:])
            if practises is not None:
                has_turn = has_turn & ~practises
            noisy = torch.where(has_turn, (other + added).clamp(low, high), noisy)
    sampled = lot < epsilon
    result = torch.where(sampled, low + (high - low) * uniform, noisy)
    if score is not None and config.active:
        chosen = choose(scores, candidates, rest[..., count * size : count * (size + 1)])
        active = lot < epsilon * config.active
        if config.threshold:
            active = active & (scores.mean(-1, keepdim=True) >= config.threshold)
        result = torch.where(active, chosen, result)
        sampled = sampled & ~active
    return result, sampled[..., 0]


def choose(score: Tensor, candidates: Tensor, noise: Tensor) -> Tensor:
    """Choose the candidate [R, W, A] with the highest score [R, W, K], ties at random (equation 5)."""
    index = torch.where(score == score.amax(-1, keepdim=True), noise, -1.0).argmax(-1)
    return candidates.gather(2, index[..., None, None].expand(-1, -1, 1, candidates.shape[-1])).squeeze(2)


def stack_inputs(obs: Observation, relative_goals: bool = False) -> NDArray[np.float32]:
    """What the policy sees of W environments: observation, goal and perhaps what is left to it, [W, D + G (+ G)]."""
    parts = [obs["observation"], obs["desired_goal"]]
    if relative_goals:
        parts.append(obs["desired_goal"] - obs["achieved_goal"])
    return np.concatenate(parts, axis=1, dtype=np.float32, casting="unsafe")


class Explorer:
    """Exploratory actions of `part` of the replicas; on a GPU one recorded graph on a stream of its own."""

    def __init__(
        self,
        policy: Policy,
        model: Dynamics | None,
        part: slice,
        envs: int,
        law: ActionLaw,
        config: ExploreConfig,
        compare: Callable[[Any], Tensor] = lambda predicted: kl_to_mixture(*predicted),
        *,
        relay: Relay | None = None,
        relative_goals: bool = False,
    ) -> None:
        """Copy the policy, and for active choice the model; `compare` scores its predictions of K actions: [..., K]."""
        self.sources = (policy, model)
        self.policy = copy_replicas(policy, part)
        self.model = None if model is None else copy_replicas(model, part).eval()
        self.part = part
        self.envs = envs
        self.law = law
        self.config = config
        self.compare = compare
        self.relay = relay
        self.relay_policy = None if relay is None else copy_replicas(relay.policy, part)
        self.relative_goals = relative_goals
        self.candidates = 0 if model is None else config.candidates
        weight = self.policy.normalizer.mean
        self.device = weight.device
        self.replicas = len(weight)
        self.bounds = law.bounds(self.device)
        self.amount = torch.ones(self.replicas, 1, 1, device=self.device)  # of exploration
        # environments in which the present episode is one of practice; a recorded graph reads it
        self.practises = torch.zeros(self.replicas, envs, 1, dtype=torch.bool, device=self.device)
        self.noise = torch.empty(0)
        self._recorded: Any = None
        self._ready: torch.cuda.Event | None = None
        self._stream = torch.cuda.Stream(priority=-1) if self.device.type == "cuda" else None

    @property
    def copies(self) -> list[nn.Module | None]:
        """The copies of policy, model and relay that act."""
        return [self.policy, self.model, self.relay_policy]

    def refresh(self, success: Tensor | None = None) -> None:
        """Copy the present policy and model; exploration falls with the recent `success` [R] of all replicas."""
        self.set_amount(success)
        refresh_replicas(self.policy, self.sources[0], self.part)
        if self.model is not None and self.sources[1] is not None:
            refresh_replicas(self.model, self.sources[1], self.part)
        if self.relay is not None and self.relay_policy is not None:
            refresh_replicas(self.relay_policy, self.relay.policy, self.part)
        if self._stream is not None:  # acting waits for this, and not for what the learning stream does afterwards
            self._ready = torch.cuda.current_stream().record_event()

    def set_amount(self, success: Tensor | None) -> None:
        """Set how much is explored, by the recent success [R] of all replicas; None: nothing changes."""
        if success is not None:
            self.amount.copy_((1 - (1 - self.config.success_factor) * success[self.part])[:, None, None])

    def begin(self, steps: int, generators: Generators) -> None:
        """Draw all random numbers of an episode, from each replica's own stream."""
        with torch.cuda.stream(self._stream):  # None: no stream
            if self._stream is not None and self._ready is not None:  # also: `practises` was read by then
                self._stream.wait_event(self._ready)
            relay = self.relay is not None
            draws = [draw_noise(steps, self.envs, self.law, self.candidates, g, relay) for g in generators[self.part]]
            self.noise = torch.stack(draws, 1)  # [T, R, W, n]
            if self.config.practice:
                lots = draw_uniform(generators[self.part], self.envs, 1)  # [R, W, 1]
                self.practises.copy_(lots < self.config.practice)

    def __call__(self, time: int, obs: Observation) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Actions [R x W, A] at a step of the episode, and which of them were drawn uniformly."""
        inputs = torch.from_numpy(stack_inputs(obs, self.relative_goals)).view(self.replicas, self.envs, -1)
        noise = self.noise[time]
        if self._stream is None:
            active = self.config.epsilon * self.config.active * self.amount
            needed = self.relay is not None or bool((noise[..., :1] < active).any())
            output = self._act(inputs, noise, needed)
        else:  # through pinned memory and the recorded graph
            self.prepare(inputs.shape[-1])
            with torch.cuda.stream(self._stream):
                self._input.copy_(inputs)
                self._output.copy_(self._recorded(self._input, noise), non_blocking=True)
            self._stream.synchronize()
            output = self._output.clone()
        result = output.flatten(0, 1).numpy()
        return result[:, :-1], result[:, -1] > 0.5

    @torch.no_grad()
    def _act(self, inputs: Tensor, noise: Tensor, active: bool = True) -> Tensor:
        """Inputs [R, W, D + G] and noise [R, W, n] -> actions and the flag, [R, W, A + 1]."""
        inputs = inputs.to(noise.device)  # a recorded graph has them there already
        score = None
        relay = None
        if self.model is not None and active:
            predict = self.model.predictor()
            seen = inputs[..., : self.model.obs_size]
            score = lambda candidates: self.compare(predict(seen, self.law.encode(candidates)))  # noqa: E731
            if self.relay is not None and self.relay_policy is not None:
                relay = (from_unit(self.relay_policy(seen), self.bounds), self.relay.turn)
        normal = noise[..., 1 : 1 + self.law.size]
        action = from_unit(self.policy.draw(inputs, normal), self.bounds)
        drawn = self.policy.random
        chosen, sampled = explore(
            action, noise, self.bounds, self.config, score, relay, self.amount, drawn,
            self.practises if self.config.practice else None,
        )  # fmt: skip
        return torch.cat([chosen, sampled[..., None]], -1)

    def prepare(self, features: int) -> None:
        """On a GPU, record one action."""
        if self._stream is None or self._recorded is not None:
            return
        shape = (self.replicas, self.envs)
        self._input = torch.zeros(*shape, features).pin_memory()
        self._output = torch.zeros(*shape, self.law.size + 1).pin_memory()
        with torch.cuda.stream(self._stream):
            size = noise_size(self.law, self.candidates, self.relay is not None)
            noise = torch.zeros(*shape, size, device=self.device)
            self._recorded = captured(self._act, [self._input.to(self.device), noise], [])
            self._stream.synchronize()
