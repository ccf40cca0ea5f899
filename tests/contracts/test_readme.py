"""README, CONTRIBUTING and docs/results.md match the project; the code of the README runs in test_docs.py."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from results_page import write_results_page
from support.markdown import fenced_blocks, shell_commands
from support.project import PACKAGE, ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120


def test_make_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):(?!=)", makefile, re.MULTILINE))
    blocks = fenced_blocks(README) + fenced_blocks(CONTRIBUTING)
    commands = [command for _, language, lines in blocks if language == "sh" for command in shell_commands(lines)]
    used = {words[1] for words in commands if words[0] == "make"}
    assert {"demo", "test"} <= used <= targets


def test_files_named_in_contributing_exist() -> None:
    """Paths are relative to the package or to the repository."""
    named = re.findall(r"`([\w/.-]+\.(?:py|j2|md|toml|cff|txt))`", CONTRIBUTING)
    assert len(named) > 30
    assert not [name for name in named if not (PACKAGE / name).is_file() and not (ROOT / name).is_file()]


def test_each_change_touches_at_most_four_files() -> None:
    table = CONTRIBUTING.partition("| to add | touch |")[2].partition("\n\n")[0]
    rows = table.splitlines()[2:]
    assert len(rows) >= 10
    for row in rows:
        assert 1 <= len(re.findall(r"`[\w/.]+\.(?:py|j2)`|a new file", row)) <= 4, row


def test_blocks_and_commands_of_markdown() -> None:
    """Prompts, comments, variables, and continued lines."""
    block = "## Use\n```sh\n$ cd here && make demo  # first\nA=1 butfor detect slide \\\n  --seeds 2\n```\n"
    assert fenced_blocks(block)[0][:2] == ("Use", "sh")
    expected = [["cd", "here"], ["make", "demo"], ["butfor", "detect", "slide", "--seeds", "2"]]
    assert shell_commands(fenced_blocks(block)[0][2]) == expected


def test_the_pages_of_results_are_up_to_date_and_depend_on_no_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After new results, run: python results/name_studies.py."""
    (tmp_path / "results").symlink_to(ROOT / "results")
    draws: list[Any] = []
    for name in ("default_rng", "rand", "randn", "randint", "choice", "permutation", "seed"):
        monkeypatch.setattr(np.random, name, draws.append)
    write_results_page(tmp_path / "results", tmp_path / "docs" / "results.md")
    assert not draws  # nothing is drawn at random, so another seed cannot change a verdict
    written, kept = (sorted((folder / "docs").glob("results*.md")) for folder in (tmp_path, ROOT))
    assert [page.name for page in written] == [page.name for page in kept]
    for page, other in zip(written, kept, strict=True):
        assert page.read_text(encoding="utf-8") == other.read_text(encoding="utf-8"), page.name


def test_the_readme_counts_the_verdicts() -> None:
    """Of the paper's claims; questions of ours stand in the same table."""
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    page = "\n".join(line for line in page.splitlines() if "(our question)" not in line)
    found = Counter(re.findall(r"\| \*\*(reproduced|partly|not reproduced|undecided)\*\* \|", page))
    told = re.search(r"(\d+) of (\d+)\s+reproduce, (\d+) do not, (\d+) are partly or not decided", README)
    assert told
    opened = found["partly"] + found["undecided"]
    assert [int(number) for number in told.groups()] == [
        found["reproduced"], found.total(), found["not reproduced"], opened,
    ]  # fmt: skip


def test_each_claim_that_does_not_reproduce_says_what_was_tried() -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert "**not reproduced**" in page
    assert "Nothing else was tried" not in page
