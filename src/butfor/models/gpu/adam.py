"""The steps of `torch.optim.Adam` as a formula, which a compiler fuses with the gradients before and what follows.

torch's fused optimisers cut parameters into few, long pieces, which leaves most of a GPU idle with small networks. A
compiler turns this formula into one launch with many short pieces. The state stays that of `torch.optim.Adam`, so
checkpoints are the same with and without a compiler.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class AdamState(NamedTuple):
    """The moments and settings of Adam; the lists have one tensor per parameter and are updated in place."""

    first: list[Tensor]  # running mean of the gradient
    second: list[Tensor]  # running mean of its square
    steps: list[Tensor]  # steps taken, []
    rate: float | Tensor  # learning rate
    betas: tuple[float, float]
    epsilon: float


def adam_state(optimizer: torch.optim.Adam) -> AdamState:
    """The state of an optimiser, made if it has none yet. Read it at each step: `load_state_dict` replaces it."""
    (group,) = optimizer.param_groups
    for parameter in group["params"]:
        state = optimizer.state[parameter]
        if not state:  # as torch makes it in the first step
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
    states = [optimizer.state[parameter] for parameter in group["params"]]
    first, second, steps = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step"))
    return AdamState(first, second, steps, group["lr"], tuple(group["betas"]), group["eps"])


def adam_step(parameters: list[Tensor], gradients: list[Tensor], state: AdamState) -> None:
    """Take a step in place, as `torch.optim.Adam` without weight decay (Kingma and Ba, 2015, algorithm 1)."""
    torch._foreach_add_(state.steps, 1)
    counts = [step.to(value.dtype) for step, value in zip(state.steps, parameters, strict=True)]
    torch._foreach_lerp_(state.first, gradients, 1 - state.betas[0])
    torch._foreach_mul_(state.second, state.betas[1])
    torch._foreach_add_(state.second, torch._foreach_mul(gradients, gradients), alpha=1 - state.betas[1])
    sizes = [state.rate / _seen(state.betas[0], count) for count in counts]
    scales = [_seen(state.betas[1], count).sqrt() for count in counts]
    deviations = torch._foreach_add(torch._foreach_div(torch._foreach_sqrt(state.second), scales), state.epsilon)
    moves = torch._foreach_mul(torch._foreach_div(state.first, deviations), sizes)
    torch._foreach_add_(parameters, moves, alpha=-1)


def _seen(beta: float, count: Tensor) -> Tensor:
    """1 - beta^count, to all digits of single precision."""
    return -torch.expm1(count * (math.log(beta) if beta else -math.inf))
