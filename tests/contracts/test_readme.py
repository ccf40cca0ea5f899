"""README, CONTRIBUTING and docs/results.md match the project; the code of the README runs in test_docs.py."""

import re
from pathlib import Path

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


def test_the_page_of_results_is_up_to_date(tmp_path: Path) -> None:
    """After new results, run: python results/name_studies.py."""
    (tmp_path / "results").symlink_to(ROOT / "results")
    page = write_results_page(tmp_path / "results", tmp_path / "docs" / "results.md")
    assert page.read_text(encoding="utf-8") == (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
