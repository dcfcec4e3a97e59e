"""The GPU kernels: CUDA C++ in ``.cu`` files, each with a thin wrapper in Python. See ``common.cuh`` for how to add one.

What has no kernel of its own yet is served by the portable array versions, but for what NumPy alone has, and in float32 for
bfloat16. Of bfloat16 inputs a forward kernel's output is bfloat16, but that of cross-entropy, a loss, float32; statistics are
float32. Gradients may be either: the engine gives each its tensor's dtype.
"""

from __future__ import annotations

from typing import Any

from tinytensor.backend import scatter_add, xp
from tinytensor.kernels import numpy as portable
from tinytensor.kernels.cupy.attention import attention_backward, attention_forward
from tinytensor.kernels.cupy.dropout import dropout_backward, dropout_forward, keep_mask
from tinytensor.kernels.cupy.erf import erf
from tinytensor.kernels.cupy.gelu import gelu_backward, gelu_exact_backward, gelu_exact_forward, gelu_forward
from tinytensor.kernels.cupy.normalization import (
    layer_norm_backward,
    layer_norm_forward,
    rms_norm_backward,
    rms_norm_forward,
)
from tinytensor.kernels.cupy.optimizers import adam_step, global_norm, scale_all, sgd_step
from tinytensor.kernels.cupy.products import matmul
from tinytensor.kernels.cupy.widening import widened
from tinytensor.kernels.numpy import survivors_scale

__all__ = [
    "adam_step",
    "attention_backward",
    "attention_forward",
    "cross_entropy_backward",
    "cross_entropy_forward",
    "dropout_backward",
    "dropout_forward",
    "erf",
    "gelu_backward",
    "gelu_exact_backward",
    "gelu_exact_forward",
    "gelu_forward",
    "global_norm",
    "keep_mask",
    "layer_norm_backward",
    "layer_norm_forward",
    "linear_cross_entropy_backward",
    "linear_cross_entropy_forward",
    "matmul",
    "rms_norm_backward",
    "rms_norm_forward",
    "scale_all",
    "sgd_step",
    "sum_rows",
    "survivors_scale",
]

cross_entropy_forward = widened(portable.cross_entropy_forward)
cross_entropy_backward = widened(portable.cross_entropy_backward)
linear_cross_entropy_forward = widened(portable.linear_cross_entropy_forward)
linear_cross_entropy_backward = widened(portable.linear_cross_entropy_backward)


@widened
def sum_rows(rows: Any, ids: Any, num_rows: int) -> Any:
    """For each i below num_rows, the sum of the rows (..., width) whose id is i: (num_rows, width)."""
    out = xp.zeros((num_rows, rows.shape[-1]), dtype=rows.dtype)
    scatter_add(out, ids.reshape(-1), rows.reshape(-1, rows.shape[-1]))
    return out
