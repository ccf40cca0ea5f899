"""The rules that keep the library readable: import direction, file names and sizes, a README that is true."""

import re
import shlex
import sys
from itertools import groupby

import pytest
from conftest import PACKAGE, ROOT, Import

# An import must go to a strictly lower rank. `sb3` stands above all, so nobody can import it.
RANKS = {
    "actions": 0,
    "arrays": 0,
    "capture": 0,
    "decisions": 0,
    "diagnosis": 0,
    "entities": 0,
    "files": 0,
    "gaussian": 0,
    "locks": 0,
    "networks": 0,
    "statistics": 0,
    "stopping": 0,
    "world_errors": 0,
    "world_units": 0,
    "action_checks": 1,
    "attention": 1,
    "checkpoints": 1,
    "claims": 1,
    "dynamics": 1,
    "episodes": 1,
    "fitting": 1,
    "observation_parts": 1,
    "report_page": 1,
    "bayesian": 2,
    "recording": 2,
    "replay": 2,
    "scoring": 2,
    "study_claims": 2,
    "choosing": 3,
    "agent": 4,
    "explore": 4,
    "influence": 4,
    "priority": 4,
    "transitions": 4,
    "curiosity": 5,
    "data": 5,
    "detect": 5,
    "detection_settings": 5,
    "disagreement": 5,
    "learning_along": 5,
    "online": 5,
    "record": 6,
    "rollout": 6,
    "settings": 6,
    "wrappers": 6,
    "acting": 7,
    "collect": 7,
    "console": 7,
    "worlds": 7,
    "evaluation": 8,
    "learner": 8,
    "pictures": 8,
    "report_figures": 8,
    "report_reading": 9,
    "trainer": 9,
    "report_arms": 10,
    "report_detection": 10,
    "train": 10,
    "watch": 10,
    "report_rows": 11,
    "report_study_detection": 11,
    "agreement": 12,
    "detection_data": 12,
    "films": 12,
    "heatmap": 12,
    "report_scores": 12,
    "report_study": 12,
    "results_page": 12,
    "detection_studies": 13,
    "report": 13,
    "detection_decisions": 14,
    "figures": 14,
    "score_data": 14,
    "detection": 15,
    "figures_study": 15,
    "illustrate": 15,
    "units": 16,
    "cluster": 17,
    "study": 18,
    "cli_train": 19,
    "cli_score": 20,
    "cli_study": 20,
    "cli": 21,
    "sb3_buffer": 21,
    "__init__": 22,
    "__main__": 22,
    "sb3": 22,
}
ENVS_IMPORTERS = {
    "agreement",
    "cli",
    "cli_train",
    "collect",
    "detection_data",
    "evaluation",
    "heatmap",
    "pictures",
    "settings",
    "rollout",
    "train",
    "watch",
    "worlds",
    "units",
}


def room_of_file(file: str) -> str:
    """The module, or for a subpackage its name: `envs/slide.py` -> `envs`."""
    return file.split("/")[0].removesuffix(".py")


def room_of_target(target: str) -> str | None:
    """The room an import reaches: `butfor.envs.slide` -> `envs`, `butfor.Name` -> `__init__`, else None."""
    parts = target.split(".")
    if parts[0] != "butfor":
        return None
    named = parts[1] if len(parts) > 1 else "__init__"
    return named if named in RANKS or named == "envs" or (PACKAGE / f"{named}.py").exists() else "__init__"


def breaks_direction(found: Import) -> bool:
    """Whether an import goes up or sideways, or crosses the border of `envs`."""
    source, target = room_of_file(found.file), room_of_target(found.target)
    if target is None or found.target == "butfor.__version__":
        return False
    if source == "envs" or target == "envs":
        return source != target and source not in ENVS_IMPORTERS
    return RANKS.get(target, 0) >= RANKS.get(source, 9)  # test_every_module_has_a_rank reports the unranked


def fenced_blocks(markdown: str) -> list[tuple[str, str, list[str]]]:
    """Every fenced block as (the heading it stands under, its language, its lines)."""
    blocks: list[tuple[str, str, list[str]]] = []
    heading, fence = "", ""
    for line in markdown.splitlines():
        mark = re.match(r"\s*(```+|~~~+)\s*(\w*)", line)
        if fence:
            if mark and mark[1].startswith(fence) and not mark[2]:
                fence = ""
            else:
                blocks[-1][2].append(line)
        elif mark:
            fence = mark[1]
            blocks.append((heading, mark[2], []))
        elif line.startswith("#"):
            heading = line.lstrip("# ")
    return blocks


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


def shell_commands(lines: list[str]) -> list[list[str]]:
    """The commands of a shell block as lists of words, without prompts, comments and variable settings."""
    commands: list[list[str]] = []
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        for separator, words in groupby(lexer, key=lambda word: set(word) <= set("&|;()<>")):
            command = list(words)
            while command and re.match(r"\w+=", command[0]):
                del command[0]
            if command and not separator:
                commands.append(command)
    return commands


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


def test_every_module_has_a_rank() -> None:
    """A new module must be given its place."""
    rooms = {room_of_file(str(path.relative_to(PACKAGE))) for path in PACKAGE.rglob("*.py")}
    assert rooms - {"envs"} <= set(RANKS), "give each new module a rank in tests/test_architecture.py"


def test_imports_point_one_way(library_imports: list[Import]) -> None:
    """Also those inside functions."""
    wrong = [str(found) for found in library_imports if breaks_direction(found)]
    assert not wrong, "imports must go to a lower rank:\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("file", "target", "wrong"),
    [
        ("influence.py", "butfor.dynamics.fit", False),
        ("dynamics.py", "butfor.influence.Influence", True),
        ("networks.py", "butfor.gaussian.entropy", True),
        ("train.py", "butfor.envs.slide", False),
        ("replay.py", "butfor.envs.slide", True),
        ("envs/truth.py", "butfor.envs.slide", False),
        ("envs/truth.py", "butfor.gaussian", True),
        ("cli.py", "butfor.sb3", True),
        ("record.py", "butfor.__version__", False),
        ("record.py", "butfor.Influence", True),
        ("record.py", "torch.nn", False),
    ],
)
def test_the_direction_rule_itself(file: str, target: str, wrong: bool) -> None:
    """The rule tells right imports from wrong ones."""
    assert breaks_direction(Import(file, 1, target, lazy=False)) == wrong


def test_report_is_imported_lazily(library_imports: list[Import]) -> None:
    """Nobody pays for the plotting libraries before a report or figures are written."""
    drawing = {"report", "report_study", "results_page", "figures", "figures_study"}
    eager = [found for found in library_imports if not found.lazy and room_of_file(found.file) not in drawing]
    wrong = [str(found) for found in eager if room_of_target(found.target) in drawing]
    assert not wrong, "import report and figures inside the function that needs them:\n" + "\n".join(wrong)


def test_report_needs_no_torch(library_imports: list[Import]) -> None:
    """Neither itself nor through a module of the library that it imports."""
    reached = {"report", "results_page"}
    while True:
        here = [found for found in library_imports if room_of_file(found.file) in reached]
        rooms = {room_of_target(found.target) for found in here} - {None, "__init__"}
        if rooms <= reached:
            break
        reached |= {room for room in rooms if room}
    torch = [str(found) for found in here if found.target.split(".")[0] == "torch"]
    assert not torch, "report reads files only:\n" + "\n".join(torch)


def test_only_the_command_line_knows_its_library(library_imports: list[Import]) -> None:
    """`tyro` can be exchanged by changing the files of the command line."""
    users = {found.file for found in library_imports if found.target.split(".")[0] == "tyro"}
    assert users <= {"cli.py", "cli_score.py", "cli_study.py", "cli_train.py"}


def test_files_have_names_that_say_something() -> None:
    """No drawer for everything."""
    drawers = {"utils.py", "util.py", "common.py", "helpers.py", "misc.py"}
    found = [str(path.relative_to(ROOT)) for path in PACKAGE.rglob("*.py") if path.name in drawers]
    assert not found, "name these after their subject"


def test_files_are_short_enough_to_read() -> None:
    """The aim is 300 lines; 350 is the limit."""
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}
    long = {str(path.relative_to(ROOT)): length for path, length in lengths.items() if length > 350}
    assert not long, "split these by subject"


def test_readme_tree_is_the_tree_on_disk() -> None:
    """Both ways for the library's modules; other paths that it names must exist."""
    about = re.compile(r"\b(files|tree)\b", re.IGNORECASE)
    trees = [lines for heading, _, lines in readme_blocks() if about.search(heading)]
    assert trees, "README.md has no fenced file tree under a heading with the word 'files' or 'tree'"
    named = tree_paths(trees[0])
    missing = sorted(path for path in named if not (ROOT / path).exists())
    assert not missing, "the README's tree names what does not exist"
    on_disk = {str(path.relative_to(ROOT)) for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"}
    in_tree = {path for path in named if path.startswith("src/butfor/") and path.endswith(".py")}
    assert {path for path in in_tree if not path.endswith("/__init__.py")} == on_disk


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
