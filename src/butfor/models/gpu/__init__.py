"""What a GPU needs to be fast with small networks: recorded steps, compiled functions, and kernels.

On a CPU, and where the same bits are required, the same functions run as they are. The kernels need Triton and are
imported where `has_kernels` is true: `chains.py` (whole networks), `inputs.py`, `gaussian.py` (heads and loss of the
transition model), `adam.py` and `kernels.py` (scoring).
"""

from butfor.models.gpu.execution import (
    MOST_ROWS,
    Changed,
    SideStream,
    can_compile,
    captured,
    compiled,
    deterministic,
    has_kernels,
    matrix_precision,
    running_sum,
    tensors_of,
)

__all__ = [
    "MOST_ROWS",
    "Changed",
    "SideStream",
    "can_compile",
    "captured",
    "compiled",
    "deterministic",
    "has_kernels",
    "matrix_precision",
    "running_sum",
    "tensors_of",
]
