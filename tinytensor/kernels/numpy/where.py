"""A choice between two arrays that is fast if one of them is the number 0, as in a gradient rule with a mask."""

from __future__ import annotations

import math
from typing import Any

import numpy

_BITS = {"float16": numpy.int16, "float32": numpy.int32, "float64": numpy.int64}
_MANY = 4096  # elements; with fewer, NumPy's single call is as fast


def where(condition: Any, x: Any, y: Any) -> Any:
    """x where ``condition`` is true, else y.

    NumPy's ``where`` branches for each element. If the condition is irregular, as in relu, the processor mispredicts half of
    the branches. Keeping or clearing all bits takes no branch and is 10 times as fast. So is multiplying by the mask, but
    infinity times 0 is NaN.
    """
    if _is_zero(y) and _is_many(condition, x):
        return _kept(numpy.negative(condition.view(numpy.int8)), x)
    if _is_zero(x) and _is_many(condition, y):
        return _kept(numpy.subtract(condition.view(numpy.int8), numpy.int8(1)), y)
    return numpy.where(condition, x, y)


def _is_zero(value: Any) -> bool:
    return type(value) in (int, float) and value == 0 and math.copysign(1.0, value) > 0  # -0.0 has a bit set


def _is_many(condition: Any, values: Any) -> bool:
    return (
        type(values) is type(condition) is numpy.ndarray
        and values.size >= _MANY
        and condition.dtype == bool
        and condition.shape == values.shape
        and values.dtype.name in _BITS
    )


def _kept(mask: Any, values: Any) -> Any:
    """Return the values where the mask is -1 (all bits set), else 0."""
    kept = mask.astype(_BITS[values.dtype.name])
    kept &= values.view(kept.dtype)
    return kept.view(values.dtype)
