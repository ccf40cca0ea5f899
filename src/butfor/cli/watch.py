"""`butfor watch`: a video of a trained agent."""

from butfor.cli.console import print_next
from butfor.cli.options import File, Run, Seed
from butfor.runs.reading import find_run


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
