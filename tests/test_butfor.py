"""What `from butfor import ...` offers."""

import subprocess
import sys

import pytest
from support.command_line import ENVIRONMENT

import butfor


@pytest.mark.parametrize("name", butfor.__all__)
def test_every_public_name_loads(name: str) -> None:
    assert getattr(butfor, name) is not None
    assert name in dir(butfor)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="Influenza"):
        _ = butfor.Influenza


def test_the_package_alone_imports_nothing_heavy() -> None:
    code = "import sys, butfor; print(*sorted({'torch', 'numpy', 'gymnasium', 'plotly'} & set(sys.modules)))"
    child = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert child.stdout.strip() == ""


def test_datasets_are_reached_as_the_documentation_writes_it() -> None:
    """In a fresh process: in this one another test may have imported the module."""
    code = "import butfor; print(butfor.datasets.open.__name__)"
    child = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "open_dataset"
