"""Write the page of a run folder, whatever its kind."""

from pathlib import Path

from butfor.analysis.arms import read_run_folder
from butfor.reporting.detection_page import read_detection_run, render_detection
from butfor.reporting.page import write_page
from butfor.reporting.study_page import render_arms
from butfor.runs.reading import read_run


def write_report(run: Path, out: Path | None = None) -> Path:
    """Write the report of a detection or training run as one self-contained HTML page.

    Args:
        run: the run folder
        out: the page, a name that ends in .html (default: report.html in the run folder)

    Returns:
        the path of the page

    Raises:
        FileNotFoundError: `run` is not a run folder, or a file is missing in it
        ValueError: a file of the run cannot be read, or `out` does not end in .html
    """
    target = Path(out or Path(run) / "report.html")
    if target.suffix != ".html":
        raise ValueError(f"The report {target} ends in {target.suffix!r}; expected a name that ends in .html.")
    if read_run(run)["kind"] == "training":
        return write_page(target, render_arms([read_run_folder(Path(run))], target.parent, None))
    return write_page(target, render_detection(read_detection_run(Path(run))))
