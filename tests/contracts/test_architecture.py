"""The rules that keep the library readable: import direction, file names and sizes, a README that is true."""

import re
import shlex
import sys

import pytest
from support.markdown import fenced_blocks, shell_commands
from support.project import PACKAGE, ROOT, Import

# A package imports only those before it; `envs` needs nothing of the library.
PACKAGES = (
    "runs", "spaces", "envs", "models", "influence", "rollouts", "training", "detection", "analysis", "reporting",
    "datasets", "studies", "integrations", "cli",
)  # fmt: skip


def package_of_file(file: str) -> str:
    """`envs/slide.py` -> `envs`; the files beside the packages belong to none of them."""
    return file.split("/")[0] if "/" in file else ""


def package_of_target(target: str) -> str | None:
    """The package that an import reaches: `butfor.envs.slide` -> `envs`, `butfor.Name` -> "", else None."""
    parts = target.split(".")
    if parts[0] != "butfor":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in PACKAGES else ""


def breaks_direction(found: Import) -> bool:
    """Whether an import goes up, or to the names that `butfor` itself offers to users."""
    source, target = package_of_file(found.file), package_of_target(found.target)
    if target is None or not source or found.target == "butfor.__version__" or source == target:
        return False
    return not target or PACKAGES.index(target) > PACKAGES.index(source)


def tree_paths(lines: list[str]) -> set[str]:
    """The paths of an indented file tree; a folder's line may name its files: `envs/  slide.py, fetch.py`."""
    paths: set[str] = set()
    folders: list[tuple[int, str]] = []  # (column, path) of the folders that the line stands in
    for line in lines:
        drawn = re.match(r"[\s│├└─|`+-]*", line)
        column = drawn.end() if drawn else 0
        if column == len(line):
            continue
        name, _, description = line[column:].partition(" ")
        folders = [folder for folder in folders if folder[0] < column]
        path = (folders[-1][1] if folders else "") + name
        paths.add(path)
        if name.endswith("/"):
            folders.append((column, path))
            paths.update(path + inner for inner in re.findall(r"\b\w+\.py\b", description))
    return paths


def readme_blocks() -> list[tuple[str, str, list[str]]]:
    """The fenced blocks of the README, which must exist."""
    readme = ROOT / "README.md"
    assert readme.is_file(), "README.md does not exist"
    return fenced_blocks(readme.read_text(encoding="utf-8"))


def readme_commands(program: str) -> list[list[str]]:
    """The README's shell commands that call a program, by name or by path."""
    shells = {"sh", "bash", "shell", "console"}
    blocks = [lines for _, language, lines in readme_blocks() if language in shells]
    commands = [command for lines in blocks for command in shell_commands(lines)]
    return [command for command in commands if command[0].rsplit("/", 1)[-1] == program]


def test_every_package_has_its_place() -> None:
    """A new package must be given its place in the order."""
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(PACKAGES)


def test_imports_point_one_way(library_imports: list[Import]) -> None:
    """Also those inside functions."""
    wrong = [str(found) for found in library_imports if breaks_direction(found)]
    assert not wrong, "imports must go to an earlier package:\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("file", "target", "wrong"),
    [
        ("influence/influence.py", "butfor.models.dynamics.fit", False),
        ("models/dynamics.py", "butfor.influence.influence.Influence", True),
        ("models/networks.py", "butfor.models.fitting", False),
        ("training/loop.py", "butfor.envs.slide", False),
        ("envs/truth.py", "butfor.influence.gaussian", True),
        ("cli/train.py", "butfor.integrations.sb3", False),
        ("runs/folder.py", "butfor.__version__", False),
        ("runs/folder.py", "butfor.Influence", True),
        ("runs/folder.py", "torch.nn", False),
        ("__main__.py", "butfor.cli.main", False),
    ],
)
def test_the_direction_rule_itself(file: str, target: str, wrong: bool) -> None:
    """The rule tells right imports from wrong ones."""
    assert breaks_direction(Import(file, 1, target, lazy=False)) == wrong


def test_folders_are_small_enough_to_take_in() -> None:
    """The aim is a dozen files; 14 is the limit."""
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    counts = {str(folder.relative_to(ROOT)): len(list(folder.glob("*.py"))) for folder in folders}
    assert not {folder: count for folder, count in counts.items() if count > 14}


def test_reporting_is_imported_lazily(library_imports: list[Import]) -> None:
    """Nobody pays for the plotting libraries before a page or figures are written."""
    eager = [found for found in library_imports if not found.lazy and package_of_file(found.file) != "reporting"]
    wrong = [str(found) for found in eager if package_of_target(found.target) == "reporting"]
    assert not wrong, "import from butfor.reporting inside the function that needs it:\n" + "\n".join(wrong)


def test_only_the_command_line_knows_its_library(library_imports: list[Import]) -> None:
    """`tyro` can be exchanged by changing the files of the command line."""
    users = {found.file for found in library_imports if found.target.split(".")[0] == "tyro"}
    assert {package_of_file(file) for file in users} <= {"cli"}


def test_files_have_names_that_say_something() -> None:
    """No drawer for everything."""
    drawers = {"utils.py", "util.py", "common.py", "helpers.py", "misc.py"}
    found = [str(path.relative_to(ROOT)) for path in PACKAGE.rglob("*.py") if path.name in drawers]
    assert not found, "name these after their subject"


def test_readme_make_commands_exist() -> None:
    """The README's two commands among them."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):(?!=)", makefile, re.MULTILINE))
    words = {word for command in readme_commands("make") for word in command[1:]}
    used = {word for word in words if not word.startswith("-") and "=" not in word}
    assert {"demo", "test"} <= used, "the README must show `make demo` and `make test`"
    assert used <= targets


def test_readme_butfor_commands_parse(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command's help opens, and it lists every option that the README uses."""
    from butfor.cli import main

    commands = readme_commands("butfor")
    assert commands, "the README shows no `butfor` command"
    monkeypatch.setenv("COLUMNS", "200")
    for words in commands:
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        subcommand = [word for word in words[1:2] if not word.startswith("-")]
        monkeypatch.setattr(sys, "argv", ["butfor", *subcommand, "--help"])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        assert ended.value.code in (0, None), f"{shlex.join(words)}: {shown.err}"
        unknown = {option for option in options if not re.search(re.escape(option) + r"(?![\w-])", shown.out)}
        assert not unknown, f"{shlex.join(words)}: the help does not list {unknown}"


def test_readers_of_the_readme_understand_its_notation() -> None:
    """The tree with or without drawn branches, and the shell blocks with prompts and continued lines."""
    plain = [
        "src/butfor/",
        "  gaussian.py  entropy",
        "  envs/  slide.py, fetch.py (push)",
        "tests/  one a file",
    ]
    drawn = ["src/butfor/", "├── gaussian.py", "└── envs/", "    ├── slide.py", "    └── fetch.py", "tests/"]
    folders = {"src/butfor/", "src/butfor/envs/", "tests/"}
    files = {"src/butfor/gaussian.py", "src/butfor/envs/slide.py", "src/butfor/envs/fetch.py"}
    assert tree_paths(plain) == tree_paths(drawn) == folders | files
    block = "## Use\n```sh\n$ cd here && make demo  # first\nA=1 butfor detect slide \\\n  --seeds 2\n```\n"
    assert fenced_blocks(block)[0][:2] == ("Use", "sh")
    expected = [["cd", "here"], ["make", "demo"], ["butfor", "detect", "slide", "--seeds", "2"]]
    assert shell_commands(fenced_blocks(block)[0][2]) == expected
