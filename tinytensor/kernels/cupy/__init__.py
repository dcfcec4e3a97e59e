"""The GPU kernels: CUDA C++ in ``.cu`` files, each with a thin wrapper in Python. See ``common.cuh`` for how to add one.

From bfloat16 inputs a forward kernel makes a bfloat16 output; only the cross-entropy, a loss, is float32. Residuals are
float32. Gradients may have either dtype: the engine converts each to its tensor's dtype.
"""

from __future__ import annotations

from cupy import where

from tinytensor.kernels.cupy.attention import (
    attention_backward,
    attention_forward,
    multi_head_attention_backward,
    multi_head_attention_forward,
)
from tinytensor.kernels.cupy.cross_entropy import (
    cross_entropy_backward,
    cross_entropy_forward,
    linear_cross_entropy_backward,
    linear_cross_entropy_forward,
)
from tinytensor.kernels.cupy.dropout import dropout_backward, dropout_forward, keep_mask
from tinytensor.kernels.cupy.erf import erf
from tinytensor.kernels.cupy.gelu import gelu_exact_backward, gelu_exact_forward, gelu_tanh_backward, gelu_tanh_forward
from tinytensor.kernels.cupy.negative_sampling import negative_sampling_step
from tinytensor.kernels.cupy.normalization import layer_norm_backward, layer_norm_forward, rms_norm_backward, rms_norm_forward
from tinytensor.kernels.cupy.optimizers import adam_step, norm_and_scale, scale_all, sgd_step
from tinytensor.kernels.cupy.products import linear, matmul
from tinytensor.kernels.cupy.recurrence import gru_backward, gru_forward, lstm_backward, lstm_forward, rnn_backward, rnn_forward
from tinytensor.kernels.cupy.rotation import norm_and_rotate_backward, norm_and_rotate_forward, rotate_pairs
from tinytensor.kernels.cupy.sum_rows import sum_rows
from tinytensor.kernels.heads import join_heads, queries_keys_values
from tinytensor.kernels.numpy.blocks import pack_rows
from tinytensor.kernels.numpy.dropout import survivors_scale
from tinytensor.kernels.numpy.quantized import block_rows, linear_blocks, times_quantized
from tinytensor.kernels.numpy.silu import sigmoid, silu_backward, silu_forward
from tinytensor.kernels.numpy.softmax import log_softmax, log_softmax_gradient, softmax, softmax_gradient
from tinytensor.kernels.steps import elementwise, fuse
