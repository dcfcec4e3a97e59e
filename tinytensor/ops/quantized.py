"""Linear layers with a weight of fewer bits, and the rows of such a weight; see ``nn.weights``.

What is rounded to integers is not learned. A gradient flows only through such a weight, and only where the model has something
else to learn, such as additions to its weights (``nn.lora``).
"""

from __future__ import annotations

from typing import Any

from tinytensor import kernels
from tinytensor.autograd.op import op


@op(x=lambda g, weight, scale, transposed: times_quantized(g, weight, scale, not transposed))
def times_quantized(x: Any, weight: Any, scale: Any = None, transposed: bool = False) -> Any:
    """x @ w, or with ``transposed`` x @ w.T, for the numbers w (outputs, inputs) that a weight of fewer bits stands for: those
    of bfloat16 bits, or with a scale for each row scale * weight. x is not rounded."""
    return kernels.times_quantized(x, weight, scale, transposed)


def _passed(g: Any, passes_gradient: bool) -> Any:
    if not passes_gradient:
        raise RuntimeError(
            "no gradient flows through a quantized weight: train the model in float32, and quantize it afterwards, or train "
            "additions to its weights with tt.nn.add_lora(model)"
        )
    return g


def _through_int8(g: Any, weight: Any, scale: Any, passes_gradient: bool) -> Any:
    """The gradient of x as if x were not rounded: rounding counts as a function of slope 1 (Bengio et al. 2013)."""
    return times_quantized(_passed(g, passes_gradient), weight, scale)


@op(x=_through_int8, bias=_passed)
def linear_int8(x: Any, weight: Any, scale: Any, bias: Any = None, passes_gradient: bool = False) -> Any:
    """x @ (scale * weight).T + bias: x (..., inputs), weight (outputs, inputs) int8, scale and bias (outputs,)."""
    _check(x, weight, bias)
    return kernels.linear_int8(x, weight, scale, bias)


@op(x=lambda g, weight, passes_gradient: times_quantized(_passed(g, passes_gradient), weight), bias=_passed)
def linear_bfloat16(x: Any, weight: Any, bias: Any = None, passes_gradient: bool = False) -> Any:
    """x @ weight.T + bias: x (..., inputs), weight (outputs, inputs) as the bits of bfloat16 numbers, bias (outputs,)."""
    _check(x, weight, bias)
    return kernels.linear_bfloat16(x, weight, bias)


@op()
def widened_bfloat16(bits: Any) -> Any:
    """The float32 numbers of bfloat16 bits."""
    return kernels.from_bfloat16(bits)


def _check(x: Any, weight: Any, bias: Any) -> None:
    """Raise ValueError for shapes of which there is no product, as ``linear`` does."""
    if weight.ndim != 2 or x.shape[-1:] != weight.shape[1:]:
        raise ValueError("x (..., inputs) must end in as many inputs as weight (outputs, inputs) takes")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError("bias must be (outputs,) for a weight (outputs, inputs)")
