"""RAM of one seed on a CPU, with 10,000 episodes of FetchPickAndPlace and all three uses of influence.

python -m benchmarks.memory
"""

import resource
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks._timing import describe
from butfor.runs.checkpoints import save_checkpoint_in
from butfor.training.goal_env import open_goal_env
from butfor.training.loop import Trainer
from butfor.training.settings import preset


def peak() -> float:
    """The largest memory of this process so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    print(describe("cpu"))
    config = replace(preset("pick-and-place"), episodes=10_000, use=("priority", "bonus", "active"))
    trainer = Trainer(config, open_goal_env(config.env, config.entities, config.cai.network.target_scale), "cpu")
    replay = trainer.replay
    signal = trainer.signal
    assert signal is not None
    for name in ("observation", "action", "achieved_goal", "desired_goal", "score"):
        getattr(replay, name).uniform_()
    replay.length.fill_(replay.steps)
    replay.stored = replay.capacity
    print(f"{replay.size:,} episodes: {peak():.2f} GiB in all")
    trainer.update()
    signal.fit(20, trainer.generators["model"])
    signal.score(replay.slots(1000), trainer.generators["scores"])
    print(f"after updates, 20 batches of the influence model and scoring 1,000 episodes: {peak():.2f} GiB")
    with tempfile.TemporaryDirectory() as folder:
        size = save_checkpoint_in(Path(folder), replay.stored, trainer.state()).stat().st_size / 2**20
    print(f"after a checkpoint of {size:.0f} MiB: {peak():.2f} GiB")


if __name__ == "__main__":
    main()
