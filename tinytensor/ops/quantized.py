"""Linear layers with a quantized weight, and lookup of its rows; see ``nn.weights``.

Quantized weights are not trained. Gradients flow through them only to train other weights, such as LoRA's (``nn.lora``). The
backward pass treats rounding of the inputs as the identity (Bengio et al. 2013).
"""

from __future__ import annotations

from typing import Any

from tinytensor import kernels
from tinytensor.autograd.op import op
from tinytensor.common.arguments import composite
from tinytensor.device.backend import host, xp
from tinytensor.kernels.numpy.quantized import Parts
from tinytensor.ops.indexing import Ids, as_integers, check_ids


@op(x=lambda g, weight, parts, inputs, transposed: times_quantized(g, weight, parts, inputs, not transposed))
def times_quantized(x: Any, weight: Any, parts: Parts, inputs: int, transposed: bool = False) -> Any:
    """Return x @ w, or x @ w.T if ``transposed``, for a weight w (outputs, inputs) in blocks. x is not rounded."""
    return kernels.times_quantized(x, weight, parts, inputs, transposed)


def _passed(g: Any, passes_gradient: bool) -> Any:
    if not passes_gradient:
        raise RuntimeError(
            "no gradient flows through a quantized weight: load the model with dtype='float32' and quantize it after training, "
            "or train additions to its weights with tt.nn.add_lora(model)"
        )
    return g


def _through_blocks(g: Any, x_shape: tuple[int, ...], weight: Any, parts: Parts, passes_gradient: bool) -> Any:
    return times_quantized(_passed(g, passes_gradient), weight, parts, x_shape[-1])


@op(x=_through_blocks, bias=_passed)
def linear_blocks(x: Any, weight: Any, bias: Any, parts: Parts, passes_gradient: bool = False) -> Any:
    """Return x @ w.T + bias for x (..., inputs), the bytes of a weight w (outputs, inputs) in blocks, and bias (outputs,) or
    None.

    ``parts`` holds the types of the blocks and the number of rows of each, as in ``kernels/numpy/quantized.py``.
    """
    return kernels.linear_blocks(x, weight, bias, parts)


@op()
def _block_rows(weight: Any, ids: Any = None, parts: Parts = (), inputs: int = 0) -> Any:
    if xp is host:
        check_ids(ids, sum(rows for _, rows in parts))
    return kernels.block_rows(ids, weight, parts, inputs)


@composite
def block_rows(ids: Ids, weight: Any, parts: Parts, inputs: int) -> Any:
    """Look up rows of a weight in blocks, like ``tt.embedding``: integer ids (...) give float32 (..., inputs)."""
    return _block_rows(weight, as_integers("embedding", ids), parts, inputs)
