"""The GPU kernels: CUDA C++ in ``.cu`` files, each with a thin wrapper in Python. ``common.cuh`` says how to add one.

From bfloat16 inputs a forward kernel makes a bfloat16 output; only the cross-entropy, a loss, is float32. Residuals are
float32. Gradients may have either dtype: the engine converts each to its tensor's dtype.
"""

from cupy import where

from tinytensor.kernels.cupy import (
    activations,
    attention,
    cross_entropy,
    dropout,
    embedding,
    normalization,
    optimizers,
    products,
    recurrence,
)
from tinytensor.kernels.cupy.normalization import norm_and_rotate_backward, norm_and_rotate_forward
