"""`butfor evaluate`, `butfor watch` and `butfor view`: the success of a trained agent, a video, and the player."""

import sys
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import tyro

from butfor.cli.console import live_progress, print_next
from butfor.cli.options import Device, File, Flag, ImportModule, Run, Seed, choose_device
from butfor.runs.files import check_writable
from butfor.runs.modules import module_imports
from butfor.runs.reading import find_run


def evaluate(run: Run, /, episodes: int = 100, device: Device = "auto", import_module: ImportModule = False) -> None:
    """Play new episodes with every seed of a training run and print how many succeed.

    Args:
        episodes: episodes of each seed
    """
    from butfor.training.run import evaluate_run

    folder = find_run(run)
    with live_progress() as progress, module_imports(import_module):
        success = evaluate_run(folder, episodes, choose_device(device), progress)
    for seed, share in success.items():
        print(f"seed {seed}: {share:.3f}")
    mean = sum(success.values()) / len(success)
    print(f"success {mean:.3f}, mean over {len(success)} seed(s), {episodes} episodes each")
    print_next(f"butfor watch {folder}")


def watch(
    run: Run,
    /,
    out: File = None,
    seed: Seed = None,
    episodes: int = 1,
    first: int = 0,
    import_module: ImportModule = False,
) -> None:
    """Render episodes of a trained agent to a video that shows the influence of each step.

    Args:
        out: video file, .mp4 or .gif (default: watch.mp4 in the run folder)
        seed: which seed of the run acts
        episodes: number of episodes, one after the other
        first: number of the first episode
    """
    from butfor.reporting.video import watch as render

    folder = find_run(run)
    with module_imports(import_module):
        print(f"Video: {render(folder, out, seed, episodes, first)}")
    print_next(f"butfor evaluate {folder}")


def view(
    what: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|DATA|MODEL")],
    /,
    episodes: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N")] = (0,),
    hold: Annotated[int, tyro.conf.arg(metavar="STEPS")] = 5,
    influence: File = None,
    data: Annotated[str | None, tyro.conf.arg(metavar="DATA", help_behavior_hint="")] = None,
    positions: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=COLUMNS", help_behavior_hint="")] = (),
    agent: Annotated[str | None, tyro.conf.arg(metavar="NAME=COLUMNS", help_behavior_hint="")] = None,
    seed: Seed = None,
    skip_outcomes: Flag = False,
    out: File = None,
    gif: File = None,
    mp4: File = None,
    no_browser: Flag = False,
    import_module: ImportModule = False,
) -> None:
    """Write and open a page that plays episodes, with ghosts of the actions that were not taken.

    In each state the ghosts show where the object would have gone under other actions: by forks of the simulator for
    runs and episode files of built-in and MuJoCo environments, else by the prediction of a model one step ahead.

    Args:
        what: run (folder, the beginning of its name in runs/, or latest), episode file or other dataset, or a saved
            Influence (.safetensors) with --data
        episodes: numbers of the episodes to show
        hold: number of steps for which another action is held, where the simulator is forked
        influence: saved Influence that scores the states of a dataset, and predicts ghosts that cannot be forked
        data: dataset to show with the model
        positions: columns of the observation that are drawn as positions, such as cube=3:6, for a dataset that cannot
            be forked (default: the first columns of the model's entities)
        agent: columns of the agent's position, such as hand=0:3 (default: what the model found to touch the entities)
        seed: which seed of a training run acts
        skip_outcomes: do not search the step that decided the outcome, which takes most of the time
        out: page, .html (default: view.html in the run folder, or NAME-view.html beside the data)
        gif: film of the first of the episodes, .gif, instead of the page
        mp4: the same as .mp4
        no_browser: do not open the page
    """
    if Path(what).suffix == ".safetensors":
        if data is None or influence is not None:
            raise ValueError(f"{what} is a model. Give the data to show it on with --data, and no --influence.")
        influence = Path(what)
        what = data
    elif data is not None:
        raise ValueError("--data is for a saved Influence; give the data themselves as the first argument.")
    source = Path(what)
    if not source.exists():
        with suppress(FileNotFoundError):  # an id of a Minari dataset is not a run
            source = find_run(what)
    page = out or (source / "view.html" if source.is_dir() else source.with_name(f"{source.stem}-view.html"))
    films = {".gif": gif, ".mp4": mp4}
    if wrong := [film for suffix, film in films.items() if film is not None and film.suffix.lower() != suffix]:
        raise ValueError(f"{wrong[0]} does not end in .gif for --gif or in .mp4 for --mp4; give another name.")
    wanted = [film for film in films.values() if film is not None]
    for path in wanted or [page]:
        check_writable(path)

    from butfor.datasets.view import ViewOptions, view_anything
    from butfor.reporting.player import write_player

    options = ViewOptions(episodes, hold, not skip_outcomes, seed, positions, agent or ())
    with live_progress() as progress, module_imports(import_module):
        scene = view_anything(source, options, influence, progress)
    if wanted:
        from butfor.reporting.player.film import write_film

        for film in wanted:
            print(f"Film: {write_film(film, scene)}")
        return
    write_player(page, scene)
    print(f"Player: {page}")
    if sys.stdout.isatty() and not no_browser:
        webbrowser.open(page.absolute().as_uri())
    print_next(f"open {page} in a browser")
