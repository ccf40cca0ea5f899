"""`butfor demo`: a robot and a cube in two minutes."""

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import tyro

from butfor.cli.console import live_progress, print_demo, print_next
from butfor.cli.options import Device, Flag, choose_device
from butfor.runs.files import check_writable


def demo(
    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs/demo-robot"),
    skip_film: Flag = False,
    no_browser: Flag = False,
    device: Device = "auto",
) -> None:
    """Show on a robot what butfor measures: fit a model to recorded episodes, and compare it with the exact answer.

    The episodes of FetchPickAndPlace ship with the package. Takes one or two minutes on two CPU cores. With the extra
    `fetch` the page opens with the player: episodes in 3-D with ghosts of other actions.

    Args:
        out: folder for the page, the model and the numbers; those of an earlier demo are replaced
        skip_film: leave out the player, which takes about half of the time
        no_browser: do not open the page
    """
    page = out / "report.html"
    out.mkdir(parents=True, exist_ok=True)
    check_writable(page)

    from butfor.datasets.demo import run_demo

    with live_progress() as progress:
        summary = run_demo(out, not skip_film, choose_device(device), progress)
    print_demo(summary)
    if not summary["film"] and not skip_film:
        print("The page has no player: that needs MuJoCo (pip install 'butfor[fetch]').")
    print(f"Report: {page}")
    if sys.stdout.isatty() and not no_browser:
        webbrowser.open(page.absolute().as_uri())
    print_next(f"open {page} in a browser", "butfor detect slide --preset demo (a small environment, six detectors)")
