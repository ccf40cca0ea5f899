"""`butfor report`: the page of a finished run."""

from butfor.cli.console import print_next
from butfor.cli.options import File, Flag, Run
from butfor.runs.files import check_writable
from butfor.runs.reading import find_run


def report(run: Run, /, figures: Flag = False, out: File = None) -> None:
    """Write the report of a run.

    Args:
        figures: also write figures for papers, as SVG and PNG
        out: report file, .html (default: report.html in the run folder); figures go to NAME-figures beside it
    """
    from butfor.reporting.study_page import write_report

    folder = find_run(run)
    check_writable(out or folder / "report.html")
    page = write_report(folder, out)
    print(f"Report: {page}")
    if figures:
        from butfor.reporting.figures import write_figures

        print(f"Figures: {write_figures(folder, out and out.with_name(f'{out.stem}-figures'))[0].parent}")
    print_next(f"open {page} in a browser")
