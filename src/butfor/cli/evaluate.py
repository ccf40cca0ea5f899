"""`butfor evaluate` and `butfor watch`: the success of a trained agent, and a video of it."""

from butfor.cli.console import live_progress, print_next
from butfor.cli.options import Device, File, Run, Seed, choose_device
from butfor.runs.reading import find_run


def evaluate(run: Run, /, episodes: int = 100, device: Device = "auto") -> None:
    """Play new episodes with every seed of a training run and print how many succeed.

    Args:
        episodes: episodes of each seed
    """
    from butfor.training.run import evaluate_run

    folder = find_run(run)
    with live_progress() as progress:
        success = evaluate_run(folder, episodes, choose_device(device), progress)
    for seed, share in success.items():
        print(f"seed {seed}: {share:.3f}")
    mean = sum(success.values()) / len(success)
    print(f"success {mean:.3f}, mean over {len(success)} seed(s), {episodes} episodes each")
    print_next(f"butfor watch {folder}")


def watch(run: Run, /, out: File = None, seed: Seed = None, episodes: int = 1, first: int = 0) -> None:
    """Render episodes of a trained agent to a video that shows the influence of each step.

    Args:
        out: video file, .mp4 or .gif (default: watch.mp4 in the run folder)
        seed: which seed of the run acts
        episodes: number of episodes, one after the other
        first: number of the first episode
    """
    from butfor.reporting.video import watch as render

    folder = find_run(run)
    print(f"Video: {render(folder, out, seed, episodes, first)}")
    print_next(f"butfor evaluate {folder}")
