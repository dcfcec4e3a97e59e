"""The CPU kernels as loops that Numba compiles: one pass over memory each, during which other threads run."""

from tinytensor.kernels.numba.attention import (
    attention_backward,
    attention_forward,
    multi_head_attention_backward,
    multi_head_attention_forward,
)
from tinytensor.kernels.numba.cross_entropy import (
    cross_entropy_backward,
    cross_entropy_forward,
    linear_cross_entropy_forward,
)
from tinytensor.kernels.numba.dropout import dropout_backward, dropout_forward
from tinytensor.kernels.numba.erf import erf
from tinytensor.kernels.numba.gelu import gelu_exact_backward, gelu_exact_forward, gelu_tanh_backward, gelu_tanh_forward
from tinytensor.kernels.numba.normalization import (
    layer_norm_backward,
    layer_norm_forward,
    rms_norm_backward,
    rms_norm_forward,
)
from tinytensor.kernels.numba.optimizers import adam_step, sgd_step
from tinytensor.kernels.numba.programs import fuse
from tinytensor.kernels.numba.rotation import rotate_pairs
from tinytensor.kernels.numba.silu import sigmoid, silu_backward, silu_forward
from tinytensor.kernels.numba.softmax import log_softmax, log_softmax_gradient, softmax, softmax_gradient
from tinytensor.kernels.numba.sum_rows import sum_rows

__all__ = [
    "adam_step",
    "attention_backward",
    "attention_forward",
    "cross_entropy_backward",
    "cross_entropy_forward",
    "dropout_backward",
    "dropout_forward",
    "erf",
    "fuse",
    "gelu_exact_backward",
    "gelu_exact_forward",
    "gelu_tanh_backward",
    "gelu_tanh_forward",
    "layer_norm_backward",
    "layer_norm_forward",
    "linear_cross_entropy_forward",
    "log_softmax",
    "log_softmax_gradient",
    "multi_head_attention_backward",
    "multi_head_attention_forward",
    "rms_norm_backward",
    "rms_norm_forward",
    "rotate_pairs",
    "sgd_step",
    "sigmoid",
    "silu_backward",
    "silu_forward",
    "softmax",
    "softmax_gradient",
    "sum_rows",
]
