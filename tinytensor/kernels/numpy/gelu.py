"""The tanh form of the Gaussian error linear unit (Hendrycks and Gimpel 2016, section 2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tinytensor.backend import xp

_SCALE = math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715


def gelu_forward(x: Any) -> tuple[Any, Any]:
    """x/2 (1 + t), and kept for the backward pass t = tanh(sqrt(2/pi) (x + 0.044715 x^3))."""
    t = x * x
    t *= _SCALE * _CUBIC
    t += _SCALE
    t *= x
    t = xp.tanh(t)
    out = t + 1.0
    out *= x
    out *= 0.5
    return out, t


def gelu_backward(g: Any, t: Any, needed: Sequence[bool], x: Any) -> Sequence[Any]:
    """g/2 (1 + t + x (1 - t^2) sqrt(2/pi) (1 + 3 * 0.044715 x^2))."""
    slope = x * x
    slope *= 3.0 * _SCALE * _CUBIC
    slope += _SCALE
    slope *= x
    slope *= 1.0 - t * t
    slope += t
    slope += 1.0
    slope *= g
    slope *= 0.5
    return (slope,)
