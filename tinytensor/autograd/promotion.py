"""Which dtype an op computes in, and which its output has, where its operands are not all of float32."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinytensor.device.backend import Array, converted, default_dtype, is_floating, wide, xp

if TYPE_CHECKING:
    from tinytensor.autograd.op import Op


def promoted(op: Op, arrays: list[Any]) -> list[Any]:
    """The operands, with the integers among them converted where they must be.

    Next to floating-point operands they get the dtype of those (NumPy would make float64 of int64 and float32). Alone they
    become float32 if the op needs floating-point numbers, or if a Python number among the operands is a float.
    """
    dtypes = {x.dtype for x in arrays if hasattr(x, "dtype")}
    floating = [d for d in dtypes if is_floating(d)]
    if op.converts or len(floating) == len(dtypes):
        return arrays
    if floating:
        dtype = functools.reduce(xp.promote_types, floating)
    elif op.floating or (op.differentiable and any(type(x) is float for x in arrays)):
        dtype = default_dtype
    else:
        return arrays
    return [x.astype(dtype) if hasattr(x, "dtype") and not is_floating(x.dtype) else x for x in arrays]


def rounded(op: Op, out: Array, arrays: Sequence[Any]) -> Array:
    """The output, converted to half precision if all floating-point operands have it.

    Some functions return float32 for such operands: sums do, and so does arithmetic of bfloat16 with a Python number.
    """
    floating = {x.dtype for x in arrays if hasattr(x, "dtype") and is_floating(x.dtype)}
    if op.converts or len(floating) != 1 or "dtype" in op.places or not is_floating(out.dtype):
        return out
    (dtype,) = floating
    return out if wide(dtype) is None or out.dtype == dtype else converted(out, dtype)
