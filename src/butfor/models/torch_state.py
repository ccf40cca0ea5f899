"""What a program sets in torch globally must not change a result: default type, gradients, autocast, device, threads.

`pinned` stands at the doors of the library: methods of `Influence`, training, loading.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def pinned() -> Iterator[None]:
    """Compute in float32, on the devices that are named, with gradients where they are asked for, without autocast.

    As a decorator, `@pinned()`, it holds during each call.
    """
    before = torch.get_default_dtype()
    with ExitStack() as stack:
        if before != torch.float32:
            torch.set_default_dtype(torch.float32)
            stack.callback(torch.set_default_dtype, before)
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if not torch.is_grad_enabled():
            stack.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        yield


def _use_one_thread() -> None:
    """In a forked process the threads that its parent has started do not exist; waiting for them would last forever."""
    torch.set_num_threads(1)


os.register_at_fork(after_in_child=_use_one_thread)
