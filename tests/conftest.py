"""Fixtures of all tests."""

import os
import signal

import pytest
import torch
from support.project import PACKAGE, Import, imports_of

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels are interpreted; read when Triton is imported
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell and their children ignore it


@pytest.fixture(scope="session")
def library_imports() -> list[Import]:
    """The imports of every module of the library."""
    files = sorted(PACKAGE.rglob("*.py"))
    assert files, f"no module under {PACKAGE}"
    return [found for path in files for found in imports_of(path)]
