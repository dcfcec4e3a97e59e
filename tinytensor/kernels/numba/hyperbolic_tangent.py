"""tanh for the loops, as ``numpy.tanh``: in float32 by polynomials, which a compiler vectorises."""

from __future__ import annotations

import math
from typing import Any

from tinytensor.kernels.numba.compiling import ByDtype, loop, real
from tinytensor.kernels.numba.exponential import exp


@loop
def tanh32(x: Any) -> Any:
    """tanh x in float32: near 0 by a polynomial (Moshier's Cephes library), as exp would lose digits there."""
    square = x * x
    p = real(-5.70498872745e-3)
    p = p * square + real(2.06390887954e-2)
    p = p * square + real(-5.37397155531e-2)
    p = p * square + real(1.33314422036e-1)
    p = p * square + real(-3.33332819422e-1)
    near = p * square * x + x
    far = real(1) - real(2) / (exp(real(2) * abs(x)) + real(1))
    far = -far if x < real(0) else far
    return near if abs(x) < real(0.625) else far


@loop
def tanh64(x: Any) -> Any:
    """tanh x in float64: the library's."""
    return math.tanh(x)


tanh = ByDtype(float32=tanh32, float64=tanh64)
