"""`butfor report` and `butfor compare`: the page of a run, and several training runs beside each other."""

from pathlib import Path
from typing import Annotated

import tyro

from butfor.cli.console import print_comparison, print_next, write_player_scene
from butfor.cli.options import File, Flag, ImportModule, Run
from butfor.runs.files import check_writable
from butfor.runs.modules import module_imports
from butfor.runs.reading import find_run


def report(
    run: Run,
    /,
    player: Flag = False,
    figures: Flag = False,
    out: File = None,
    baseline: Annotated[str | None, tyro.conf.arg(metavar="RUN", help_behavior_hint="(default: none)")] = None,
    import_module: ImportModule = False,
) -> None:
    """Write the report of a run.

    Args:
        player: first play episodes for the player of the page, as `butfor train` and `butfor detect` do at their end
        figures: also write figures for papers, as SVG and PNG
        out: report file, .html (default: report.html in the run folder); figures go to NAME-figures beside it
        baseline: training run to draw beside this one
    """
    from butfor.reporting.study_page import write_report

    folder = find_run(run)
    check_writable(out or folder / "report.html")
    if player:
        with module_imports(import_module):
            write_player_scene(folder)
    page = write_report(folder, out, baseline=None if baseline is None else find_run(baseline))
    print(f"Report: {page}")
    if figures:
        from butfor.reporting.figures import write_figures

        print(f"Figures: {write_figures(folder, out and out.with_name(f'{out.stem}-figures'))[0].parent}")
    print_next(f"open {page} in a browser")


def compare(
    runs: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        tyro.conf.arg(
            metavar="RUN", help="run folders, or beginnings of their names in runs/; the first is the baseline"
        ),
    ],
    /,
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")] = Path("runs/comparison.html"),
) -> None:
    """Compare training runs: success with intervals, episodes to a level, and the settings that differ.

    Args:
        out: page, .html
    """
    from butfor.reporting.study_page import write_comparison

    folders = [find_run(run) for run in runs]
    check_writable(out)
    page = write_comparison(folders, out)
    print_comparison(folders)
    print(f"Report: {page}")
    print_next(f"open {page} in a browser")
