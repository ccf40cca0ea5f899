"""Launches and time of an agent's update on a GPU: compiled, against operation by operation with autograd.

python -m benchmarks.launches [replicas]
"""

import sys
import time
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import DeviceType

from benchmarks._timing import describe, medians, note
from butfor.models.gpu import captured, matrix_precision
from butfor.models.networks import make_generators
from butfor.training.agents.ddpg import DDPG
from butfor.training.agents.policy import AgentConfig
from butfor.training.replay import Batch

INPUTS, ACTIONS, ROWS = 31, 4, 512  # of FetchPickAndPlace with the preset `record`
UPDATES = 20  # in a recorded graph


def make_agent(replicas: int, compiles: bool) -> DDPG:
    """The agent of the preset `record`; if not compiled, as on a machine without a compiler."""
    agent = DDPG(INPUTS, ACTIONS, AgentConfig(critic_layer_norm=True), make_generators(range(replicas)), "cuda")
    if not compiles:
        agent._compiles = False
        agent._critic_step, agent._actor_step = agent._descend_critics, agent._climb_critics
    return agent


def make_batch(replicas: int) -> Batch:
    def draw(*shape: int) -> Tensor:
        return torch.rand(replicas, ROWS, *shape, device="cuda")

    place = torch.zeros(replicas, ROWS, dtype=torch.long, device="cuda")
    ones = torch.ones(replicas, ROWS, device="cuda")
    return Batch(draw(INPUTS), draw(ACTIONS), draw(INPUTS), -draw(), ones, draw(), place, place)


def launches(function: Callable[[], object]) -> Counter[str]:
    """How often each kernel or copy is launched by a call."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        function()
        torch.cuda.synchronize()
    return Counter(event.name for event in profile.events() if event.device_type == DeviceType.CUDA)


def main(replicas: int) -> None:
    if not torch.cuda.is_available():
        print("launches are counted on a GPU; there is none")
        return
    print(describe("cuda"))
    print(f"update of an agent: 3x256, layer normalisation in the critic, batch {ROWS}, R = {replicas}")
    batch = make_batch(replicas)
    rivals: dict[str, Callable[[], object]] = {}
    counted: dict[str, Counter[str]] = {}
    with matrix_precision("high"):
        for name in ("autograd", "compiled"):
            agent = make_agent(replicas, name == "compiled")
            began = time.perf_counter()
            agent.update(batch, 0)
            torch.cuda.synchronize()
            first = time.perf_counter() - began
            counted[name] = launches(lambda agent=agent: agent.update(batch, 0))  # type: ignore[misc]

            def updates(inputs: Tensor, agent: DDPG = agent) -> Tensor:
                return torch.stack([agent.update(batch, index)[0] for index in range(UPDATES)]).sum(0)

            began = time.perf_counter()
            recorded = captured(updates, [batch.inputs], agent.changes())
            torch.cuda.synchronize()
            recording = time.perf_counter() - began
            print(
                f"{name}: {counted[name].total()} launches, first update {first:.1f} s, "
                f"recording {UPDATES} updates {recording:.1f} s"
            )
            rivals[name] = lambda recorded=recorded: recorded(batch.inputs)  # type: ignore[misc]
        seconds = {name: 1000 * value / UPDATES for name, value in medians(rivals, "cuda").items()}
    for name, value in seconds.items():
        print(f"{name}: {value:.3f} ms per recorded update")
    for kernel, count in counted["compiled"].most_common():
        print(f"{count:>6}  {kernel[:100]}")
    note(f"update of an agent, R = {replicas}", seconds["compiled"], seconds["autograd"], "ms", "autograd")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
