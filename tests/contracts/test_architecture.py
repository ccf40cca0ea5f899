"""The rules that keep the library readable: import direction, file names, sizes of folders."""

import re

import pytest
from support.project import PACKAGE, ROOT, Import

# A package imports only those before it; `envs` needs nothing of the library.
PACKAGES = (
    "runs", "spaces", "envs", "models", "influence", "rollouts", "training", "detection", "scenes", "analysis",
    "reporting", "datasets", "benchmarks", "studies", "integrations", "cli",
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


def test_every_package_has_its_place() -> None:
    """A new package must be given its place in the order."""
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == set(PACKAGES)


def test_contributing_lists_the_packages_in_order() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert tuple(re.findall(r"^\| `(\w+)/`", text, re.MULTILINE)) == PACKAGES


def test_imports_point_one_way(library_imports: list[Import]) -> None:
    """Imports inside functions count, too."""
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
    """The rule itself separates right imports from wrong ones."""
    assert breaks_direction(Import(file, 1, target, lazy=False)) == wrong


def test_folders_are_small_enough_to_take_in() -> None:
    """The aim is a dozen files; 14 is the limit."""
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    counts = {str(folder.relative_to(ROOT)): len(list(folder.glob("*.py"))) for folder in folders}
    assert not {folder: count for folder, count in counts.items() if count > 14}


def test_reporting_is_imported_lazily(library_imports: list[Import]) -> None:
    """The plotting libraries are not loaded before a page or figures are written."""
    eager = [found for found in library_imports if not found.lazy and package_of_file(found.file) != "reporting"]
    wrong = [str(found) for found in eager if package_of_target(found.target) == "reporting"]
    assert not wrong, "import from butfor.reporting inside the function that needs it:\n" + "\n".join(wrong)


def test_tests_share_builders_through_support_alone() -> None:
    """A test file that another one imports from cannot be changed on its own."""
    folders = "|".join(("contracts", *PACKAGES))
    statement = re.compile(rf"^\s*(?:from|import) (?:{folders})\b.*", re.MULTILINE)
    found = {path.name: statement.findall(path.read_text(encoding="utf-8")) for path in (ROOT / "tests").rglob("*.py")}
    assert not {name: lines for name, lines in found.items() if lines}


def test_only_the_command_line_imports_tyro(library_imports: list[Import]) -> None:
    """The rest of the library does not depend on how the command line is parsed."""
    users = {found.file for found in library_imports if found.target.split(".")[0] == "tyro"}
    assert {package_of_file(file) for file in users} <= {"cli"}


def test_files_have_names_that_say_something() -> None:
    """A file is named after its subject."""
    vague = {"utils.py", "util.py", "common.py", "helpers.py", "misc.py"}
    found = [str(path.relative_to(ROOT)) for path in PACKAGE.rglob("*.py") if path.name in vague]
    assert not found, "name these after their subject"
