"""What a user installs: the declared dependencies, the wheel, and the wheel in an empty environment."""

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.project import PACKAGE, ROOT, Import

import butfor

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CORE = [Requirement(text) for text in PROJECT["dependencies"]]
EXTRAS = {extra: list(map(Requirement, texts)) for extra, texts in PROJECT["optional-dependencies"].items()}
EXTRAS_OF_PACKAGE = {  # only these packages may import what an extra installs
    "benchmarks": ("benchmark",),
    "datasets": ("data", "minari"),
    "detection": ("fetch",),
    "envs": ("fetch", "warp"),
    "integrations": ("sb3", "torchrl"),
    "reporting": ("fetch", "figures", "video"),
    "runs": ("tensorboard",),
    "studies": ("ray",),
}
# where the import has another name than the distribution, or comes with another one (Triton with torch for a GPU)
DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit-learn", "triton": "torch", "warp": "warp-lang"}

# The library comes from the environment; the entropy of a unit Gaussian is log(2 pi e) / 2 per dimension.
FIRST_LINES = """
import math, sys, torch, butfor, butfor.influence.gaussian
assert butfor.__file__.startswith(sys.prefix), butfor.__file__
assert isinstance(butfor.Influence, type)
entropy = float(butfor.influence.gaussian.entropy(torch.ones(3)))
assert math.isclose(entropy, 1.5 * math.log(2 * math.pi * math.e), rel_tol=1e-6), entropy
"""


def names(requirements: list[Requirement]) -> set[str]:
    """The distributions that requirements name."""
    return {canonicalize_name(requirement.name) for requirement in requirements}


def third_party(imports: list[Import]) -> Iterator[tuple[Import, str]]:
    """Each import from outside the library and the standard library, with the distribution that provides it."""
    for found in imports:
        top = found.target.split(".")[0]
        if top != "butfor" and top not in sys.stdlib_module_names:
            yield found, canonicalize_name(DISTRIBUTIONS.get(top, top))


def test_every_import_is_declared(library_imports: list[Import]) -> None:
    """An extra's distributions are imported only by the packages that the extra belongs to."""
    wrong = []
    for found, distribution in third_party(library_imports):
        extras = EXTRAS_OF_PACKAGE.get(found.file.split("/")[0], ())
        allowed = names(CORE + [requirement for extra in extras for requirement in EXTRAS[extra]])
        if distribution not in allowed:
            wrong.append(f"{found}, but {distribution} is not a dependency of that package")
    assert not wrong, "\n".join(wrong)


def test_every_package_is_imported_without_extras(library_imports: list[Import]) -> None:
    """`import butfor.reporting` works where only the core dependencies are installed."""
    extras = {found.target.split(".")[0] for found, name in third_party(library_imports) if name not in names(CORE)}
    packages = sorted(f"butfor.{path.parent.name}" for path in PACKAGE.glob("*/__init__.py"))
    lines = f"import importlib, sys\nsys.modules.update(dict.fromkeys({sorted(extras)}))\n"
    lines += "".join(f"importlib.import_module({name!r})\n" for name in packages)
    ended = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_every_dependency_is_used(library_imports: list[Import]) -> None:
    used = {distribution for _, distribution in third_party(library_imports)}
    assert names(CORE) <= used


def test_constraints_pin_every_dependency() -> None:
    """Exact versions within the declared ranges, without addresses, paths or options."""
    pins = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            pin = re.fullmatch(r"([A-Za-z0-9._-]+)==([0-9][0-9a-z.]*)", line)
            assert pin, f"constraints.txt: {line!r} is not `name==version`"
            pins[canonicalize_name(pin[1])] = pin[2]
    for requirement in [*CORE, *(one for extra in EXTRAS.values() for one in extra)]:
        assert pins[canonicalize_name(requirement.name)] in requirement.specifier, requirement


def test_version_is_repeated_correctly() -> None:
    """`__version__` is the source; the citation and the changelog name the same version."""
    assert f"\nversion: {butfor.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## [{butfor.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this tree without downloading anything."""
    folder = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)])
    (built,) = folder.glob("*.whl")
    return built


def run(command: list[str]) -> str:
    """Run a command outside the source tree and return what it printed; show that on failure."""
    environment = {name: os.environ[name] for name in os.environ if name not in ("PYTHONPATH", "PYTHONHOME")}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=sys.prefix)
    assert ended.returncode == 0, f"{' '.join(command)}\n{ended.stdout}{ended.stderr}"
    return ended.stdout


def read_metadata(archive: zipfile.ZipFile, name: str) -> str:
    """One file of a wheel's dist-info folder."""
    return archive.read(f"butfor-{butfor.__version__}.dist-info/{name}").decode()


def test_wheel_contents(wheel: Path) -> None:
    """All modules, the type marker, the templates, the command and the licence, but no tests."""
    with zipfile.ZipFile(wheel) as archive:
        packed = {name.removeprefix("butfor/") for name in archive.namelist() if name.startswith("butfor/")}
        others = {name.split("/")[0] for name in archive.namelist()} - {"butfor"}
        metadata: Message = Parser().parsestr(read_metadata(archive, "METADATA"))
        scripts = read_metadata(archive, "entry_points.txt")
        licence = read_metadata(archive, "licenses/LICENSE")
    files = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*") if path.is_file()}
    assert packed == {name for name in files if "__pycache__" not in name}
    assert "py.typed" in packed
    assert any(name.startswith("reporting/templates/") for name in packed)
    assert others == {f"butfor-{butfor.__version__}.dist-info"}
    assert metadata["Version"] == butfor.__version__
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Requires-Python"] == ">=3.11"
    assert set(metadata.get_all("Provides-Extra", [])) == set(EXTRAS)
    assert "butfor = butfor.cli:main" in scripts
    assert licence.startswith("MIT License")


def check_installed(environment: Path) -> None:
    """The command and the library work in an environment, and come from it."""
    command = str(environment / "bin" / "butfor")
    assert butfor.__version__ in run([command, "--version"])
    assert "detect" in run([command, "--help"])
    run([str(environment / "bin" / "python"), "-c", FIRST_LINES])


def test_wheel_works_beside_its_dependencies(wheel: Path, tmp_path: Path) -> None:
    """The wheel alone in a new environment that uses the dependencies of the present one."""
    environment = tmp_path / "environment"
    run([sys.executable, "-m", "venv", "--without-pip", str(environment)])
    python = str(environment / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    run([*pip, "--no-deps", "--no-index", str(wheel)])
    (site,) = (environment / "lib").glob("python*/site-packages")
    borrowed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    # A folder named in a .pth file only joins the path; its own .pth files (an editable butfor) are not read.
    (site / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    check_installed(environment)


@pytest.mark.long
def test_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """The wheel with the dependencies that it declares, and no others."""
    environment = tmp_path / "environment"
    run([sys.executable, "-m", "venv", str(environment)])
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    run([*pip, "-c", str(ROOT / "constraints.txt"), str(wheel)])
    check_installed(environment)
