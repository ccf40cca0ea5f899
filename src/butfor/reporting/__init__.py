"""Show what run folders contain: pages, figures for papers, videos and pictures.

Read `charts/chart.py` first: every chart in `charts/` is described as data. `plotly_renderer.py` draws it on a page or
in a notebook (`butfor.plot`) and `matplotlib_renderer.py` in a figure for a paper. The pages are in
`detection_page.py`, `study_page.py`, `benchmark_page.py` and `file_pages.py`, their templates in `templates/`.
`write_report` picks the page of a run folder. Pages and figures need no torch; videos, pictures and heat maps play
episodes again and do.
"""

from butfor.reporting.study_page import (
    write_comparison,
    write_report,
    write_rliable,
    write_study_index,
    write_study_report,
)

__all__ = ["write_comparison", "write_report", "write_rliable", "write_study_index", "write_study_report"]
