"""The README's example does what it says."""

import re
from pathlib import Path

import pytest
from conftest import ROOT

from butfor.results_page import write_results_page


def test_the_example_runs_and_tells_touching_from_apart(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len([line for line in example.splitlines() if line.strip()]) <= 11
    exec(compile(example, "README.md", "exec"), {})
    printed = re.fullmatch(r"touching ([\d.]+), apart ([\d.]+)\n", capsys.readouterr().out)
    assert printed is not None
    touching, apart = map(float, printed.groups())
    # the true influence of two uniform actions of 0.1 against noise of 0.01 is about 2 x 1.6 nats where they touch
    assert touching > 1.5
    assert apart < touching / 4


BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{index}")
    for page in sorted((ROOT / "docs").glob("*.md"))
    for index, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_the_examples_of_the_docs_run(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "docs", "exec"), {})


def test_the_page_of_results_is_up_to_date(tmp_path: Path) -> None:
    """After new results: python results/name_studies.py."""
    (tmp_path / "results").symlink_to(ROOT / "results")
    page = write_results_page(tmp_path / "results", tmp_path / "docs" / "results.md")
    assert page.read_text(encoding="utf-8") == (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
