"""Where kernels are tested: on a GPU, or by Triton's interpreter on a CPU (see conftest.py)."""

import importlib.util

import pytest

from butfor.models.gpu import has_kernels

ON_GPU = has_kernels("cuda")
DEVICE = "cuda" if ON_GPU else "cpu"

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed (.ci/run installs it)"
)
