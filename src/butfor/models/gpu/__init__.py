"""What a GPU needs to be fast with small networks: recorded steps, compiled functions, and two kernels.

On a CPU, and where the same bits are required, the same functions run as they are.
"""

from butfor.models.gpu.adam import AdamState, adam_state, adam_step
from butfor.models.gpu.execution import (
    Changed,
    SideStream,
    can_compile,
    captured,
    compiled,
    deterministic,
    has_kernels,
    matrix_precision,
    running_sum,
    start_compilers,
    tensors_of,
)

__all__ = [
    "AdamState",
    "Changed",
    "SideStream",
    "adam_state",
    "adam_step",
    "can_compile",
    "captured",
    "compiled",
    "deterministic",
    "has_kernels",
    "matrix_precision",
    "running_sum",
    "start_compilers",
    "tensors_of",
]
