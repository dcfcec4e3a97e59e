"""The CPU kernels, in NumPy: with few temporary arrays, and in place where they can be."""

from tinytensor.kernels.attention import join_heads, queries_keys_values
from tinytensor.kernels.numpy.activations import (
    erf,
    gelu_exact_backward,
    gelu_exact_forward,
    gelu_tanh_backward,
    gelu_tanh_forward,
    sigmoid,
    silu_backward,
    silu_forward,
)
from tinytensor.kernels.numpy.attention import (
    attention_backward,
    attention_forward,
    multi_head_attention_backward,
    multi_head_attention_forward,
)
from tinytensor.kernels.numpy.cross_entropy import (
    cross_entropy_backward,
    cross_entropy_forward,
    linear_cross_entropy_backward,
    linear_cross_entropy_forward,
    log_softmax,
    log_softmax_gradient,
    softmax,
    softmax_gradient,
)
from tinytensor.kernels.numpy.dropout import dropout_backward, dropout_forward, keep_mask, survivors_scale
from tinytensor.kernels.numpy.embedding import negative_sampling_step, sum_rows
from tinytensor.kernels.numpy.normalization import layer_norm_backward, layer_norm_forward, rms_norm_backward, rms_norm_forward
from tinytensor.kernels.numpy.optimizers import adam_step, norm_and_scale, scale_all, sgd_step
from tinytensor.kernels.numpy.products import linear, matmul
from tinytensor.kernels.numpy.quantized import block_rows, linear_blocks, pack_rows, times_quantized
from tinytensor.kernels.numpy.recurrence import (
    gru_backward,
    gru_forward,
    lstm_backward,
    lstm_forward,
    rnn_backward,
    rnn_forward,
)
from tinytensor.kernels.numpy.rotation import norm_and_rotate_backward, norm_and_rotate_forward, rotate_pairs
from tinytensor.kernels.numpy.where import where
from tinytensor.kernels.steps import elementwise, fuse
