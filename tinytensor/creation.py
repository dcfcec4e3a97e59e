"""New tensors, from a shape or from the values of Python and NumPy. They are float32 where nothing else is said."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tinytensor.autograd.inputs import as_array, check_dtype, check_fits, check_not_masked, on_host
from tinytensor.autograd.tensor import Tensor
from tinytensor.common.arguments import checked, makers
from tinytensor.common.wording import a_or_an
from tinytensor.device.backend import DType, bool_dtype, default_dtype, host, index_dtype, no_warnings, xp

__all__ = [
    "arange", "eye", "from_dlpack", "full", "full_like", "linspace", "ones", "ones_like", "tensor", "zeros", "zeros_like",
]  # fmt: skip

Shape = int | Sequence[int]


def _leaf(array: Any, requires_grad: bool) -> Tensor:
    out = Tensor._wrap(array)
    if requires_grad:
        out.requires_grad = True
    return out


@checked
def tensor(data: Any, dtype: DType | None = None, requires_grad: bool = False) -> Tensor:
    """A tensor with a copy of ``data``: a number, a nested list, a NumPy or CuPy array, or a tensor.

    Python floats become float32, and arrays keep their dtype. Raises TypeError for data that are not numbers or booleans, and
    for integers with ``requires_grad``.

    >>> x = tt.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> x.shape, str(x.dtype)
    ((2, 2), 'float32')
    """
    return _leaf(as_array(data, dtype), requires_grad)


makers.append(tensor)


@checked
def from_dlpack(x: Any) -> Tensor:
    """A tensor that shares the memory of ``x``: an array or tensor of any library that knows DLPack, on this backend's device.

    A change in place of the one is a change of the other, and ``backward`` does not notice it. ``tt.tensor(x)`` copies instead.
    Raises TypeError for a dtype that tensors do not have, and for what does not know DLPack; and BufferError if the memory
    cannot be shared, as that of a PyTorch tensor that requires gradients, or of bfloat16 with NumPy.
    """
    check_not_masked(x)
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"from_dlpack: {a_or_an(type(x).__name__)} has no __dlpack__: copy it with tt.tensor(...)")
    try:
        array = xp.from_dlpack(x)
    except (BufferError, RuntimeError, ValueError) as error:
        raise BufferError(f"from_dlpack cannot share this memory ({error}): detach, convert or move it first") from None
    check_dtype(array.dtype)
    return Tensor._wrap(array)


def _filled(make: Callable[..., Any], shape: Any, *given: Any, **named: Any) -> Any:
    """``make(shape, *given, **named)``. Raises ValueError for a length below 0, and for a shape that is too large."""
    try:
        return make(shape, *given, **named)
    except ValueError as error:
        raise ValueError(f"a tensor cannot have the shape {shape}: {error}") from None


@checked
def zeros(shape: Shape, dtype: DType | None = None, requires_grad: bool = False) -> Tensor:
    """A tensor of zeros."""
    return _leaf(_filled(xp.zeros, shape, dtype or default_dtype), requires_grad)


@checked
def ones(shape: Shape, dtype: DType | None = None, requires_grad: bool = False) -> Tensor:
    """A tensor of ones."""
    return _leaf(_filled(xp.ones, shape, dtype or default_dtype), requires_grad)


@checked
def full(shape: Shape, fill_value: float, dtype: DType | None = None, requires_grad: bool = False) -> Tensor:
    """A tensor filled with ``fill_value``. Without a dtype it is bool, int64 or float32, as the value is."""
    if dtype is None:
        dtype = {bool: bool_dtype, float: default_dtype}.get(type(fill_value)) or on_host(fill_value).dtype
    check_fits(fill_value, dtype)
    with no_warnings():  # a number may be infinite in the dtype
        return _leaf(_filled(xp.full, shape, fill_value, dtype), requires_grad)


@checked
def arange(
    start: float, stop: float | None = None, step: float = 1, dtype: DType | None = None, requires_grad: bool = False
) -> Tensor:
    """start, start + step, ... up to but without ``stop``; ``arange(n)`` counts from 0. Integers give int64, else float32.

    Element i is start + i * step, computed in 64 bits and then rounded to the dtype.

    >>> tt.arange(2, 10, 3)
    tensor([2, 5, 8])
    """
    start, stop = (0, start) if stop is None else (start, stop)
    integers = float not in map(type, (start, stop, step))
    if integers and step and dtype is None and max(abs(start), abs(stop), abs(step)) < 2**31:  # nothing is too large
        return _leaf(_filled(xp.arange, int(start), stop, step, dtype=index_dtype), requires_grad)
    steps = -((start - stop) // step) if step and integers else (stop - start) / (step or math.nan)
    if not step or not (integers or math.isfinite(steps)):
        raise ValueError(f"arange from {start} to {stop} by {step} has no finite number of steps")
    count = max(0, math.ceil(steps))
    last = start + (count - 1) * step
    dtype = dtype or (index_dtype if integers else default_dtype)
    check_fits(count, index_dtype)
    for end in (start, last) if count else ():
        check_fits(end, dtype)
    exact = host.asarray([start, last]).dtype  # int64, uint64 or float64; or object, if no integer dtype holds both
    places = _filled(xp.arange, count, dtype=index_dtype if exact.kind in "iu" else "float64")
    if step != 1 and count > 1:
        places = places * step
    if start:
        places = (places.astype(exact) if exact.kind == "u" else places) + start
    if places.dtype != dtype:
        with no_warnings():
            places = places.astype(dtype)
    return _leaf(places, requires_grad)


@checked
def linspace(
    start: float, stop: float, num: int = 50, endpoint: bool = True, dtype: DType | None = None, requires_grad: bool = False
) -> Tensor:
    """``num`` evenly spaced numbers from ``start`` to ``stop``. With ``endpoint=False`` they end before ``stop``.

    >>> tt.linspace(0, 1, 5)
    tensor([0.  , 0.25, 0.5 , 0.75, 1.  ])
    """
    if num < 0:
        raise ValueError(f"linspace: num must be at least 0, not {num}")
    if dtype is not None and dtype.kind in "iu":
        check_fits(start, dtype)
        check_fits(stop, dtype)
        if float not in (type(start), type(stop)):  # floats could not count all integers of 64 bits
            parts = max(1, num - 1 if endpoint else num)
            return tensor([start + i * (stop - start) // parts for i in range(num)], dtype, requires_grad)
    with no_warnings():
        values = xp.linspace(float(start), float(stop), num, endpoint=endpoint, dtype=dtype or default_dtype)
    return _leaf(values, requires_grad)


@checked
def eye(N: int, M: int | None = None, k: int = 0, dtype: DType | None = None, requires_grad: bool = False) -> Tensor:
    """The matrix (N, M), or (N, N) without M, with 1 on diagonal k (0 is the main one) and 0 elsewhere.

    >>> tt.eye(2)
    tensor([[1., 0.],
            [0., 1.]])
    """
    if min(N, N if M is None else M) < 0:
        raise ValueError(f"eye: the lengths must be at least 0, not {N} and {M}")
    return _leaf(xp.eye(N, M, k, dtype=dtype or default_dtype), requires_grad)


@checked
def zeros_like(x: Tensor, dtype: DType | None = None) -> Tensor:
    """Zeros in the shape of x, and in its dtype unless another is given."""
    return zeros(x.shape, dtype or x.dtype)


@checked
def ones_like(x: Tensor, dtype: DType | None = None) -> Tensor:
    """Ones in the shape of x, and in its dtype unless another is given."""
    return ones(x.shape, dtype or x.dtype)


@checked
def full_like(x: Tensor, fill_value: float, dtype: DType | None = None) -> Tensor:
    """A tensor filled with ``fill_value``, in the shape of x, and in its dtype unless another is given."""
    return full(x.shape, fill_value, dtype or x.dtype)
