"""Launches and time of an agent's update on a GPU: by kernels, against operation by operation with autograd.

python -m benchmarks.launches [replicas]
"""

import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import DeviceType

from benchmarks._timing import describe, medians, note
from butfor.models.gpu import SideStream, captured, matrix_precision
from butfor.models.networks import make_generators
from butfor.models.passes import AutogradPass
from butfor.training.agents.ddpg import DDPG
from butfor.training.agents.policy import AgentConfig
from butfor.training.relay import Relay, RelayConfig
from butfor.training.replay import Batch

INPUTS, OBS, ACTIONS, ROWS = 31, 25, 4, 512  # of FetchPickAndPlace with the preset `record`
AGENT = AgentConfig(critic_layer_norm=True)
UPDATES = 20  # in a recorded graph
SHOWN = 25  # kernels, those that take longest


def make_agent(replicas: int, has_kernels: bool) -> DDPG:
    """The agent of the preset `record`; without kernels the gradients are autograd's, and the steps torch's."""
    agent = DDPG(INPUTS, ACTIONS, AGENT, make_generators(range(replicas)), "cuda")
    if not has_kernels:
        networks = (agent.policy.actor, agent.target_actor, *agent.critics, *agent.target_critics)
        agent._passes = {network: AutogradPass(network) for network in networks}  # type: ignore[arg-type]
        settings: dict[str, Any] = {"lr": AGENT.learning_rate, "fused": True, "capturable": True}
        agent.actor_optimizer = torch.optim.Adam(agent.policy.actor.parameters(), **settings)
        agent.critic_optimizer = torch.optim.Adam(agent.critics.parameters(), **settings)
    return agent


def make_batch(replicas: int) -> Batch:
    def draw(*shape: int) -> Tensor:
        return torch.rand(replicas, ROWS, *shape, device="cuda")

    place = torch.zeros(replicas, ROWS, dtype=torch.long, device="cuda")
    ones = torch.ones(replicas, ROWS, device="cuda")
    return Batch(draw(INPUTS), draw(ACTIONS), draw(INPUTS), -draw(), ones, draw(), place, place)


def launches(function: Callable[[], object]) -> tuple[Counter[str], Counter[str]]:
    """How often each kernel or copy is launched by a call, and the nanoseconds that it takes."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        function()
        torch.cuda.synchronize()
    counts: Counter[str] = Counter()
    nanoseconds: Counter[str] = Counter()
    for event in profile.events():
        if event.device_type == DeviceType.CUDA:
            counts[event.name] += 1
            nanoseconds[event.name] += round(1000 * event.time_range.elapsed_us())
    return counts, nanoseconds


def record(agent: DDPG, batch: Batch, relay: Relay | None = None) -> Callable[[], object]:
    """Record updates of an agent, beside those of a relay if one is given, as in the training loop."""
    beside = SideStream("cuda")

    def updates(inputs: Tensor) -> Tensor:
        found = []
        for index in range(UPDATES):
            if relay is not None:
                with beside():
                    relay.update(batch, index)
            found.append(agent.update(batch, index)[0])
        if relay is not None:
            beside.join()
        return torch.stack(found).sum(0)

    changes = [*agent.changes(), *([] if relay is None else relay.changes())]
    recorded = captured(updates, [batch.inputs], changes)
    # a graph does not keep what it reads and writes alive
    return lambda kept=(agent, relay, beside): recorded(batch.inputs)  # type: ignore[misc]


def seconds_of(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def main(replicas: int) -> None:
    if not torch.cuda.is_available():
        print("launches are counted on a GPU; there is none")
        return
    print(describe("cuda"))
    print(f"update of an agent: 3x256, layer normalisation in the critic, batch {ROWS}, R = {replicas}")
    batch = make_batch(replicas)
    rivals: dict[str, Callable[[], object]] = {}
    with matrix_precision("high"):
        for name in ("autograd", "kernels"):
            agent = make_agent(replicas, name == "kernels")
            first = seconds_of(lambda agent=agent: agent.update(batch, 0))  # type: ignore[misc]
            counts, nanoseconds = launches(lambda agent=agent: agent.update(batch, 0))  # type: ignore[misc]
            began = time.perf_counter()
            # a new one: autograd's last graph belongs to the stream that it was computed on
            rivals[name] = record(make_agent(replicas, name == "kernels"), batch)
            recording = time.perf_counter() - began
            print(
                f"{name}: {counts.total()} launches, {nanoseconds.total() / 1000:.0f} us busy, "
                f"first update {first:.1f} s, recording {UPDATES} updates {recording:.1f} s",
                flush=True,
            )
        print(f"{'launches':>8}{'us':>8}  kernel of the update by kernels")
        for kernel, duration in nanoseconds.most_common(SHOWN):
            print(f"{counts[kernel]:>8}{duration / 1000:>8.1f}  {kernel[:90]}")
        relay = Relay(RelayConfig(), AGENT, OBS, ACTIONS, make_generators(range(replicas)), torch.device("cuda"))
        rivals["kernels, beside a relay"] = record(make_agent(replicas, has_kernels=True), batch, relay)
        seconds = {name: 1000 * value / UPDATES for name, value in medians(rivals, "cuda").items()}
    for name, value in seconds.items():
        print(f"{name}: {value:.3f} ms per recorded update")
    note(f"update of an agent, R = {replicas}", seconds["kernels"], seconds["autograd"], "ms", "autograd")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
