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
