"""`butfor evaluate`, `butfor watch` and `butfor view`: the success of a trained agent, a video, and the player."""

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import tyro

from butfor.cli.console import live_progress, print_next
from butfor.cli.options import Device, File, Flag, Run, Seed, choose_device
from butfor.runs.files import check_writable
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


def view(
    what: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|FILE")],
    /,
    episodes: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N")] = (0,),
    hold: Annotated[int, tyro.conf.arg(metavar="STEPS")] = 5,
    influence: File = None,
    seed: Seed = None,
    skip_outcomes: Flag = False,
    out: File = None,
    no_browser: Flag = False,
) -> None:
    """Write and open a page that plays episodes, with ghosts of the actions that were not taken.

    In each state the ghosts show where the object would have gone under other actions. Built-in environments are
    forked in the simulator.

    Args:
        what: training run (folder, the beginning of its name in runs/, or latest), or an episode file (.npz)
        episodes: numbers of the episodes to show
        hold: number of steps for which another action is held
        influence: saved Influence that scores the states of an episode file
        seed: which seed of a run acts
        skip_outcomes: do not search the step that decided the outcome, which takes most of the time
        out: page, .html (default: view.html in the run folder or beside the file)
        no_browser: do not open the page
    """
    is_file = Path(what).suffix == ".npz"
    source = Path(what) if is_file else find_run(what)
    page = out or (source.with_suffix(".view.html") if is_file else source / "view.html")
    check_writable(page)

    from butfor.reporting.player import write_player
    from butfor.scenes.view import view_episodes, view_run

    with live_progress() as progress:
        if is_file:
            from butfor.influence.influence import Influence
            from butfor.rollouts.episodes import Episodes

            model = None if influence is None else Influence.load(influence)
            stored = Episodes.load(source)
            scene = view_episodes(stored, episodes, model, hold, not skip_outcomes, progress)
        else:
            if influence is not None:
                raise ValueError("--influence is for an episode file; a run has a model of its own. Remove it.")
            scene = view_run(source, episodes, seed, hold, not skip_outcomes, progress)
    write_player(page, scene)
    print(f"Player: {page}")
    if sys.stdout.isatty() and not no_browser:
        webbrowser.open(page.absolute().as_uri())
    print_next(f"open {page} in a browser")
