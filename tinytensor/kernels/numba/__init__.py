"""The CPU kernels as loops that Numba compiles. Other threads run while a loop does.

Each function here replaces the one of kernels/numpy that has the same name and signature. Those are what to read first: this
folder says how the same is computed in loops. What it does not replace, such as matrix products by several cores, remains
NumPy's.

In this order:

1. ``compiling``: how a loop is declared and compiled. ``cache`` and ``display``: where compiled code is kept, and what the user
   sees of it.
2. ``functions``: exp, log and tanh in forms that are vectorised, and other functions that loops call. ``half``: float16.
3. ``gelu``, then ``silu``, ``erf`` and ``dropout``: loops over elements. ``elementwise``: the same for other ops, compiled from
   their own text.
4. ``normalization``, then ``softmax``, ``cross_entropy``, ``rotation`` and ``sum_rows``: loops over rows.
5. ``optimizers``: loops over parameters. ``negative_sampling``: a step of word2vec, which changes a few rows of them.
6. ``tiles``: matrix products that fit the registers. ``products``: large ones, of such tiles, and when they are
   used. ``attention_blocks``, with smaller ones; then ``attention``, which decides when it is used.
7. ``recurrence_loops``: recurrent layers, with the same products; then ``recurrence``, which decides when they are used.
8. ``block_dots``: products with low-precision weights, by the processor's own instructions. ``quantized``: linear layers
   with such weights.
9. ``programs``: a whole traced program as one call. ``instructions`` writes it, ``program_loops`` runs it, with the loops of
   ``program_kernels``; ``pointers`` and ``helper`` have what that needs of addresses and of a second thread.
"""

from tinytensor.kernels.numba.attention import (
    attention_backward,
    attention_forward,
    multi_head_attention_backward,
    multi_head_attention_forward,
)
from tinytensor.kernels.numba.cross_entropy import cross_entropy_backward, cross_entropy_forward, linear_cross_entropy_forward
from tinytensor.kernels.numba.dropout import dropout_backward, dropout_forward
from tinytensor.kernels.numba.elementwise import elementwise
from tinytensor.kernels.numba.gelu import gelu_exact_backward, gelu_exact_forward, gelu_tanh_backward, gelu_tanh_forward
from tinytensor.kernels.numba.negative_sampling import negative_sampling_step
from tinytensor.kernels.numba.normalization import layer_norm_backward, layer_norm_forward, rms_norm_backward, rms_norm_forward
from tinytensor.kernels.numba.optimizers import adam_step, sgd_step
from tinytensor.kernels.numba.products import linear, matmul
from tinytensor.kernels.numba.programs import fuse
from tinytensor.kernels.numba.quantized import block_rows, linear_blocks, times_quantized
from tinytensor.kernels.numba.recurrence import (
    gru_backward,
    gru_forward,
    lstm_backward,
    lstm_forward,
    rnn_backward,
    rnn_forward,
)
from tinytensor.kernels.numba.rotation import norm_and_rotate_backward, norm_and_rotate_forward, rotate_pairs
from tinytensor.kernels.numba.silu import silu_backward, silu_forward
from tinytensor.kernels.numba.softmax import log_softmax, log_softmax_gradient, softmax, softmax_gradient
from tinytensor.kernels.numba.sum_rows import sum_rows
