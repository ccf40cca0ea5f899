"""Fixtures of all tests."""

import signal

import pytest
from support.project import PACKAGE, Import, imports_of

signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell and their children ignore it


@pytest.fixture(scope="session")
def library_imports() -> list[Import]:
    """The imports of every module of the library."""
    files = sorted(PACKAGE.rglob("*.py"))
    assert files, f"no module under {PACKAGE}"
    return [found for path in files for found in imports_of(path)]
