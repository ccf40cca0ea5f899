"""`butfor evaluate`: the success of a trained agent."""

from butfor.cli.console import live_progress, print_next
from butfor.cli.options import Device, Run, choose_device
from butfor.runs.reading import find_run


def evaluate(run: Run, /, episodes: int = 100, device: Device = "auto") -> None:
    """Play new episodes with every seed of a training run and print how many succeed.

    Args:
        episodes: episodes of each seed
    """
    from butfor.training.evaluation import evaluate_run

    folder = find_run(run)
    with live_progress() as progress:
        success = evaluate_run(folder, episodes, choose_device(device), progress)
    for seed, share in success.items():
        print(f"seed {seed}: {share:.3f}")
    mean = sum(success.values()) / len(success)
    print(f"success {mean:.3f}, mean over {len(success)} seed(s), {episodes} episodes each")
    print_next(f"butfor watch {folder}")
