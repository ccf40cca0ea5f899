"""What the results say is what docs/results.md says; the README's code runs in test_docs.py."""

from pathlib import Path

from results_page import write_results_page
from support.project import ROOT


def test_the_page_of_results_is_up_to_date(tmp_path: Path) -> None:
    """After new results: python results/name_studies.py."""
    (tmp_path / "results").symlink_to(ROOT / "results")
    page = write_results_page(tmp_path / "results", tmp_path / "docs" / "results.md")
    assert page.read_text(encoding="utf-8") == (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
