"""`butfor evaluate`: the success of a trained agent."""

from butfor.cli.console import live_progress, print_evaluation, print_next
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
    print_evaluation(success, episodes)
    print_next(f"butfor watch {folder}")
