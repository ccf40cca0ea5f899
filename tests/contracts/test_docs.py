"""The docs build without a warning, their links exist, their code runs and prints the output that they show.

Before a block of Python, `<!-- long: why -->` moves it to the long tests and `<!-- not run: why -->` excludes it; a
`text` block after it is its output.
"""

import os
import pkgutil
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser
from importlib import import_module
from inspect import isclass, isfunction
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from results_page import anchor
from support.markdown import fenced_blocks, shell_commands
from support.project import ROOT

import butfor
import butfor.cli

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
MARKDOWN = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "results" / "README.md"]
OPTIONAL = (
    "gymnasium_robotics",
    "imageio",
    "matplotlib",
    "minari",
    "mujoco",
    "PIL",
    "ray",
    "stable_baselines3",
    "torchrl",
)
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARKER = re.compile(r"<!-- (long|not run): [^\n]*\S -->\s*")
NUMBER = re.compile(r"-?\d+\.\d+|-?\d+")
WORK = (  # what the commands call
    "butfor.benchmarks.edges.run_edges",
    "butfor.benchmarks.edges.write_labels",
    "butfor.benchmarks.run.choose_tasks",
    "butfor.datasets.augment.augment_file",
    "butfor.datasets.curate.curate_file",
    "butfor.datasets.formats.open_dataset",
    "butfor.datasets.score.score_file",
    "butfor.datasets.view.view_anything",
    "butfor.detection.collect.collect_file",
    "butfor.detection.experiment.run_detection",
    "butfor.studies.paper.make_study",
    "butfor.training.run.resume",
    "butfor.training.run.train",
)
SMALLEST_GAP = 0.1  # nats or shares, between what a page shows and what another machine computes


@dataclass(frozen=True)
class Block:
    """A block of Python in a page, its marker, and its output as shown in the page."""

    code: str
    marker: str = ""
    output: str | None = None


def python_blocks(text: str) -> list[Block]:
    """Return the blocks of Python of a page, in order."""
    found = list(FENCE.finditer(text))
    blocks = []
    for block, following in pairwise([*found, None]):
        if block is None or block[1] != "python":
            continue
        shown = following is not None and following[1] == "text" and not text[block.end() : following.start()].strip()
        before = re.search(f"(?:{MARKER.pattern})$", text[: block.start()])
        blocks.append(Block(block[2], before[1] if before else "", following[2] if shown and following else None))
    return blocks


def alike(printed: str, shown: str) -> bool:
    """Compare words exactly and numbers roughly: models differ between processors."""
    words = [" ".join(NUMBER.sub("#", text).split()) for text in (printed, shown)]
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in (printed, shown)]
    return words[0] == words[1] and all(
        abs(one - other) <= max(SMALLEST_GAP, 0.1 * abs(other)) for one, other in zip(*numbers, strict=True)
    )


def cases() -> list[Any]:
    """Return each page with code, and again for the long tests if it has long blocks."""
    found = []
    for page in PAGES:
        markers = [block.marker for block in python_blocks(page.read_text(encoding="utf-8"))]
        if "" in markers:
            found.append(pytest.param(page, False, id=page.stem))
        if "long" in markers:
            found.append(pytest.param(page, True, id=f"{page.stem}-long", marks=pytest.mark.long))
    return found


@pytest.mark.parametrize(("page", "long"), cases())
def test_the_code_of_a_page_runs(
    page: Path, long: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The blocks of a page share their names; blocks that README.md also contains run only there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    readme = [block.code for block in python_blocks((ROOT / "README.md").read_text(encoding="utf-8"))]
    names: dict[str, Any] = {"__name__": page.stem}
    for block in python_blocks(page.read_text(encoding="utf-8")):
        known = page.name != "README.md" and block.code in readme
        if known or block.marker == "not run" or (block.marker == "long" and not long):
            continue
        exec(compile(block.code, str(page.relative_to(ROOT)), "exec"), names)
        printed = capsys.readouterr().out
        assert block.output is None or alike(printed, block.output), printed
    if page.name == "README.md" and not long:
        touching, apart = (float(names["cai"][chosen].mean()) for chosen in (names["touching"], ~names["touching"]))
        # the true influence of two uniform actions of 0.1 against noise of 0.01 is about 2 x 1.6 nats where they touch
        assert touching > 1.5
        assert apart < touching / 4


def test_markers_and_outputs_are_recognised() -> None:
    page = (
        "```python\na\n```\n\n```text\n1\n```\n<!-- long: a minute -->\n\n```python\nb\n```\nWords.\n```text\n2\n```\n"
    )
    assert python_blocks(page) == [Block("a\n", "", "1\n"), Block("b\n", "long", None)]
    assert python_blocks("<!-- not run: it needs\n-->\n```python\na\n```\n") == [Block("a\n")]
    assert alike("found 0.52 of 10\n", "found 0.50 of 10")
    assert not alike("found 0.72", "found 0.50")
    assert not alike("found 0.50", "lost 0.50")


def test_the_first_example_has_ten_lines() -> None:
    first = python_blocks((ROOT / "README.md").read_text(encoding="utf-8"))[0]
    assert len([line for line in first.code.splitlines() if line.strip()]) <= 11  # with the one that prints


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_of_the_library_exist(page: Path) -> None:
    """Names in inline code, such as `butfor.models.dynamics.STEEP`; the changelog may mention old ones."""
    if page.name == "CHANGELOG.md":
        return
    for name in set(re.findall(r"`(butfor(?:\.\w+)+)[`(]", page.read_text(encoding="utf-8"))):
        pkgutil.resolve_name(name)


def test_few_blocks_are_not_run() -> None:
    markers = [block.marker for page in PAGES for block in python_blocks(page.read_text(encoding="utf-8"))]
    assert markers.count("not run") <= len(markers) / 5


def with_variables(lines: list[str]) -> list[str]:
    """Return the lines of a shell block with its variables, as in A="--seeds 10", replaced by their values."""
    values: dict[str, str] = {}
    replaced = []
    for line in lines:
        full = re.sub(r"\$(\w+)", lambda found: values.get(found[1], found[0]), line)
        values.update(re.findall(r'^(\w+)="([^"]*)"$', full))
        replaced.append(full)
    return replaced


def butfor_commands(page: Path) -> list[list[str]]:
    """Return the arguments of each `butfor` command in the shell blocks of a page."""
    blocks = fenced_blocks(page.read_text(encoding="utf-8"))
    shells = [with_variables(lines) for _, language, lines in blocks if language == "sh"]
    commands = [words for lines in shells for words in shell_commands(lines)]
    return [words[1:] for words in commands if words[0].rsplit("/", 1)[-1] == "butfor"]


def test_commands_are_found() -> None:
    assert len([words for page in MARKDOWN for words in butfor_commands(page)]) > 50


@pytest.mark.parametrize("page", [page for page in MARKDOWN if butfor_commands(page)], ids=lambda page: page.stem)
def test_the_commands_of_a_page_parse(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command gets as far as the library, or to a run or file that is not there."""

    def stop(*_: Any, **__: Any) -> None:
        raise ValueError("parsed")

    for name in WORK:
        monkeypatch.setattr(name, stop)
    monkeypatch.chdir(tmp_path)
    for words in butfor_commands(page):
        monkeypatch.setattr(sys, "argv", ["butfor", *words])
        error: Any = None
        try:
            butfor.cli.main()
        except SystemExit as ended:
            error = ended.code
        told = capsys.readouterr().err
        assert not error or re.search("parsed|RUN|[Nn]o (run|episode|stud)", told), f"{shlex.join(words)}: {told}"


# ---------------------------------------------------------------------------------------- links, on GitHub


def prose(text: str) -> str:
    """Return a page without its code."""
    return re.sub(r"`[^`\n]+`", "", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL))


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {anchor(re.sub(r"[`*]", "", title)) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_files_exist(page: Path) -> None:
    links = re.findall(r"\[[^\]\[]*\]\(([^)\s]+)\)", prose(page.read_text(encoding="utf-8")))
    for link in links:
        scheme, _, path, _, fragment = urlsplit(link)
        if scheme:
            continue
        target = page.parent / unquote(path) if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert not fragment or fragment in anchors(target), f"{page.name}: {link}: no such heading"


# ---------------------------------------------------------------------------------------- the site


def build(folder: Path, before: str = "") -> None:
    """Build the site with warnings as errors; `before` is Python code that runs first."""
    arguments = ["-W", "--keep-going", "-q", "-E", "-b", "html", str(DOCS), str(folder)]
    code = f"{before}\nimport sys\nfrom sphinx.cmd.build import main\nsys.exit(main({arguments!r}))"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=280)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "html"
    build(folder)
    return folder


class Parts(HTMLParser):
    """The links, loaded files and ids of an HTML page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids |= {given["id"] or ""} if "id" in given else set()
        self.links += [given["href"] or ""] if tag == "a" and "href" in given else []
        if tag != "a":
            self.loaded += [given[key] or "" for key in ("src", "href") if given.get(key)]


def test_the_site_has_every_page_and_no_dead_link(site: Path) -> None:
    pages = {path.name: Parts(path) for path in site.glob("*.html")}
    assert {f"{page.stem}.html" for page in DOCS.glob("*.md")} <= set(pages)
    for name, page in pages.items():
        for link in [*page.links, *page.loaded]:
            scheme, host, path, _, fragment = urlsplit(link)
            if scheme in ("http", "https", "mailto", "data") or host:
                continue
            target = site / unquote(path) if path else site / name
            assert target.exists(), f"{name}: {link}"
            if fragment and target.parent == site and target.suffix == ".html":
                assert fragment in pages[target.name].ids, f"{name}: {link}: no such id"


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loaded = [link for path in site.glob("*.html") for link in Parts(path).loaded]
    assert loaded
    assert not [link for link in loaded if urlsplit(link).netloc]


def test_the_reference_has_every_public_name(site: Path) -> None:
    """Functions and classes that `butfor` and its packages export, and the methods of `Influence`."""
    ids = Parts(site / "api.html").ids
    names = {id.rpartition(".")[2] for id in ids if id.startswith("butfor.")}
    folders = [found.name for found in pkgutil.iter_modules(butfor.__path__) if found.ispkg]
    for package in [butfor, *(import_module(f"butfor.{folder}") for folder in folders)]:
        exported = {name: getattr(package, name) for name in getattr(package, "__all__", [])}
        public = {name for name, item in exported.items() if isclass(item) or isfunction(item)}
        if package.__name__ != "butfor.cli":
            assert not public - names, package.__name__
    inner = {"dims", "model_obs"}  # for other modules of the library
    methods = {name for name in vars(butfor.Influence) if not name.startswith("_")} - inner
    assert not methods - {id.rpartition(".")[2] for id in ids if ".Influence." in id}


@pytest.mark.long
def test_the_site_builds_without_the_extras(tmp_path: Path) -> None:
    absent = f"""
import importlib.abc, importlib.util, sys
ABSENT, find_spec = {OPTIONAL!r}, importlib.util.find_spec

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

importlib.util.find_spec = lambda name, package=None: None if name in ABSENT else find_spec(name, package)
sys.meta_path.insert(0, Absent())
"""
    build(tmp_path / "html", absent)
    assert any(id.endswith(".Influence.fit") for id in Parts(tmp_path / "html" / "api.html").ids)


# ---------------------------------------------------------------------------------------- pictures


def test_pictures_are_small_and_shown() -> None:
    pictures = [path for path in (DOCS / "pictures").iterdir() if path.suffix in (".svg", ".png")]
    text = "".join(page.read_text(encoding="utf-8") for page in DOCS.glob("*.md"))
    assert pictures
    assert [path.name for path in pictures if path.stat().st_size > 200_000] == []
    assert [path.name for path in pictures if f"pictures/{path.name}" not in text] == []
    described: Callable[[str], list[str]] = re.compile(r"!\[([^\]]*)\]\(pictures/").findall
    assert all(len(words) > 20 for words in described(text))


@pytest.mark.long
def test_the_pictures_can_be_drawn_again(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    for command in (
        [DOCS / "pictures" / "make_pictures.py", tmp_path],
        [ROOT / "results" / "draw_record.py", tmp_path / "record.svg"],
    ):
        arguments = [sys.executable, *map(str, command)]
        subprocess.run(arguments, env=environment, check=True, timeout=280, capture_output=True)
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn == {path.name for path in (DOCS / "pictures").glob("*.svg")}
