"""What a finished detection run is looked at by: pictures where its world can be drawn, and the report."""

from pathlib import Path

from butfor.rollouts.play import Progress


def illustrate(
    run: Path, pictures: bool = True, progress: Progress = lambda stage, done, total, text: None
) -> tuple[Path | None, list[str]]:
    """Draws the pictures if they are wanted, then writes the report: its path, and what could not be made and why.

    A machine that computes need not draw: without a screen, MuJoCo or plotly the run is as finished as with them.
    """
    lacking = []
    if pictures:
        try:
            from butfor.reporting.pictures import write_pictures

            write_pictures(run, progress)
        except (ImportError, ValueError, RuntimeError, OSError) as error:
            lacking.append(f"No pictures were made: {error}")
    try:
        from butfor.reporting.report import write_report

        return write_report(run), lacking
    except ImportError as error:
        again = f"Write it elsewhere with: butfor report {run}"
        return None, [*lacking, f"No report was written: {error}. {again}"]


def is_illustrated(run: Path, pictures: bool = True) -> bool:
    """Whether a run has its report, and its pictures if they are wanted."""
    return (run / "report.html").is_file() and not (pictures and not (run / "pictures" / "index.json").is_file())
