"""Exploratory acting for some of the replicas, from a copy of policy and model that stays fixed within an episode."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from butfor.influence.gaussian import kl_to_mixture
from butfor.models.capture import captured, compiled
from butfor.models.dynamics import GaussianDynamics
from butfor.models.networks import refresh_replicas, some_replicas
from butfor.rollouts.play import Observation
from butfor.spaces.actions import ActionLaw, from_unit
from butfor.training.agents.ddpg import Policy
from butfor.training.exploration import ExploreConfig, draw_noise, explore, noise_size


def stack_inputs(obs: Observation) -> NDArray[np.float32]:
    """What the policy sees of W worlds: observation and goal, [W, D + G]."""
    parts = [obs["observation"], obs["desired_goal"]]
    return np.concatenate(parts, axis=1, dtype=np.float32, casting="unsafe")


class Acting:
    """The actions of `part` of the replicas, `worlds` each; on a GPU one recorded graph on a stream of its own."""

    def __init__(
        self,
        policy: Policy,
        model: GaussianDynamics | None,
        part: slice,
        worlds: int,
        law: ActionLaw,
        config: ExploreConfig,
        compare: Callable[[Tensor, Tensor], Tensor] = kl_to_mixture,
    ) -> None:
        """`model` is given where actions are chosen for their influence.

        `compare` scores K actions by what it predicts for them: mean and variance [..., K, d] -> [..., K].
        """
        self.sources = (policy, model)
        self.policy = some_replicas(policy, part)
        self.model = None if model is None else some_replicas(model, part).eval()
        self.part, self.worlds, self.law, self.config, self.compare = part, worlds, law, config, compare
        self.candidates = 0 if model is None else config.candidates
        weight = self.policy.normalizer.mean
        self.device, self.replicas = weight.device, len(weight)
        self.bounds = law.bounds(self.device)
        self.noise = torch.empty(0)
        self._recorded: Any = None
        self._ready: torch.cuda.Event | None = None
        self._stream = torch.cuda.Stream(priority=-1) if self.device.type == "cuda" else None

    def refresh(self) -> None:
        """Takes over the present policy and model."""
        refresh_replicas(self.policy, self.sources[0], self.part)
        if self.model is not None and self.sources[1] is not None:
            refresh_replicas(self.model, self.sources[1], self.part)
        if self._stream is not None:  # acting waits for this, and not for what the learning stream does afterwards
            self._ready = torch.cuda.current_stream().record_event()

    def begin(self, steps: int, generators: list[torch.Generator]) -> None:
        """Draws all random numbers of an episode, from each replica's own stream."""
        with torch.cuda.stream(self._stream):  # None: no stream
            draws = [draw_noise(steps, self.worlds, self.law, self.candidates, g) for g in generators[self.part]]
            self.noise = torch.stack(draws, 1)  # [T, R, W, n]
            if self._stream is not None and self._ready is not None:
                self._stream.wait_event(self._ready)

    def __call__(self, time: int, obs: Observation) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Actions [R x W, A] at a time of the episode, and which of them were drawn uniformly."""
        inputs = torch.from_numpy(stack_inputs(obs)).view(self.replicas, self.worlds, -1)
        if self._stream is None:
            noise = self.noise[time]
            active = self.config.epsilon * self.config.active
            needed = self.model is not None and bool((noise[..., 0] < active).any())
            output = self._act(inputs, noise, needed)
        else:
            output = self._act_on_gpu(inputs, time)
        result = output.flatten(0, 1).numpy()
        return result[:, :-1], result[:, -1] > 0.5

    @torch.no_grad()
    def _act(self, inputs: Tensor, noise: Tensor, active: bool = True) -> Tensor:
        """Inputs [R, W, D + G] and noise [R, W, n] -> actions and the flag, [R, W, A + 1]."""
        model = self.model if active else None
        inputs = inputs.to(noise.device)  # recorded, they are there already

        def score(candidates: Tensor) -> Tensor:
            assert model is not None
            obs = inputs[..., : model.obs_size]
            return self.compare(*model.predictor()(obs, self.law.encode(candidates)))  # [R, W, K]

        action = from_unit(self.policy(inputs), self.bounds)
        chosen, sampled = explore(action, noise, self.bounds, self.config, score if model is not None else None)
        return torch.cat([chosen, sampled[..., None]], -1)

    def prepare(self, features: int) -> None:
        """On a GPU, compiles and records one action."""
        if self._stream is None or self._recorded is not None:
            return
        shape = (self.replicas, self.worlds)
        self._input = torch.zeros(*shape, features).pin_memory()
        self._output = torch.zeros(*shape, self.law.size + 1).pin_memory()
        with torch.cuda.stream(self._stream):
            noise = torch.zeros(*shape, noise_size(self.law, self.candidates), device=self.device)
            act = compiled(self._act, self.device)
            self._recorded = captured(act, [self._input.to(self.device), noise], [])
            self._stream.synchronize()

    def _act_on_gpu(self, inputs: Tensor, time: int) -> Tensor:
        """The same through pinned memory and a recorded graph."""
        self.prepare(inputs.shape[-1])
        with torch.cuda.stream(self._stream):
            self._input.copy_(inputs)
            self._output.copy_(self._recorded(self._input, self.noise[time]), non_blocking=True)
        assert self._stream is not None
        self._stream.synchronize()
        return self._output.clone()
