"""Functions that create tensors from a shape or from Python and NumPy values. The default dtype is float32."""

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
    """Create a tensor by copying ``data``: a number, a nested list, a NumPy or CuPy array, or a tensor.

    Python floats become float32; arrays keep their dtype. Raises TypeError if the data are not numbers or booleans, or if
    ``requires_grad`` is set for integers.

    >>> x = tt.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> x.shape, str(x.dtype)
    ((2, 2), 'float32')
    """
    return _leaf(as_array(data, dtype), requires_grad)


makers.append(tensor)


@checked
def from_dlpack(x: Any) -> Tensor:
    """Return a tensor that shares memory with ``x``, an array or tensor from any library that supports DLPack.

    ``x`` must be on this backend's device. In-place changes affect both, and ``backward`` cannot detect them. Use
    ``tt.tensor(x)`` to copy. Raises TypeError if x does not support DLPack or has an unsupported dtype. Raises BufferError if
    the memory cannot be shared, as for a PyTorch tensor that requires gradients, or bfloat16 with NumPy.
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


def _filled(make: Callable[..., Any], shape: Any, *args: Any, **kwargs: Any) -> Any:
    """Call ``make(shape, ...)``. Raises ValueError if a length is negative or the shape is too large."""
    try:
        return make(shape, *args, **kwargs)
    except ValueError as error:
        raise ValueError(f"a tensor cannot have the shape {shape}: {error}") from None


@checked
def zeros(shape: Shape, dtype: DType | None = None, requires_grad: bool = False) -> Tensor:
    """Return a tensor of zeros."""
    return _leaf(_filled(xp.zeros, shape, dtype or default_dtype), requires_grad)


@checked
def ones(shape: Shape, dtype: DType | None = None, requires_grad: bool = False) -> Tensor:
    """Return a tensor of ones."""
    return _leaf(_filled(xp.ones, shape, dtype or default_dtype), requires_grad)


@checked
def full(shape: Shape, fill_value: float, dtype: DType | None = None, requires_grad: bool = False) -> Tensor:
    """Return a tensor filled with ``fill_value``. The default dtype is bool, int64 or float32, depending on the value."""
    if dtype is None:
        dtype = {bool: bool_dtype, float: default_dtype}.get(type(fill_value)) or on_host(fill_value).dtype
    check_fits(fill_value, dtype)
    with no_warnings():  # a value may overflow the dtype
        return _leaf(_filled(xp.full, shape, fill_value, dtype), requires_grad)


@checked
def arange(
    start: float, stop: float | None = None, step: float = 1, dtype: DType | None = None, requires_grad: bool = False
) -> Tensor:
    """Return evenly spaced values from ``start`` (default 0) up to but not including ``stop``.

    The dtype is int64 if all arguments are integers, else float32. Element i is start + i * step, computed in 64 bits.

    >>> tt.arange(2, 10, 3)
    tensor([2, 5, 8])
    """
    start, stop = (0, start) if stop is None else (start, stop)
    integers = float not in map(type, (start, stop, step))
    if integers and step and dtype is None and max(abs(start), abs(stop), abs(step)) < 2**31:  # all values fit in int64
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
    exact = host.asarray([start, last]).dtype  # int64, uint64, float64, or object if no integer dtype holds both
    values = _filled(xp.arange, count, dtype=index_dtype if exact.kind in "iu" else "float64")
    if step != 1 and count > 1:
        values = values * step
    if start:
        values = (values.astype(exact) if exact.kind == "u" else values) + start
    if values.dtype != dtype:
        with no_warnings():
            values = values.astype(dtype)
    return _leaf(values, requires_grad)


@checked
def linspace(
    start: float, stop: float, num: int = 50, endpoint: bool = True, dtype: DType | None = None, requires_grad: bool = False
) -> Tensor:
    """Return ``num`` evenly spaced values from ``start`` to ``stop``. ``endpoint=False`` excludes ``stop``.

    >>> tt.linspace(0, 1, 5)
    tensor([0.  , 0.25, 0.5 , 0.75, 1.  ])
    """
    if num < 0:
        raise ValueError(f"linspace: num must be at least 0, got {num}")
    if dtype is not None and dtype.kind in "iu":
        check_fits(start, dtype)
        check_fits(stop, dtype)
        if float not in (type(start), type(stop)):  # floats cannot represent all 64-bit integers
            parts = max(1, num - 1 if endpoint else num)
            return tensor([start + i * (stop - start) // parts for i in range(num)], dtype, requires_grad)
    with no_warnings():
        values = xp.linspace(float(start), float(stop), num, endpoint=endpoint, dtype=dtype or default_dtype)
    return _leaf(values, requires_grad)


@checked
def eye(N: int, M: int | None = None, k: int = 0, dtype: DType | None = None, requires_grad: bool = False) -> Tensor:
    """Return an (N, M) matrix with ones on diagonal k (0: the main diagonal) and zeros elsewhere. M defaults to N.

    >>> tt.eye(2)
    tensor([[1., 0.],
            [0., 1.]])
    """
    if min(N, N if M is None else M) < 0:
        raise ValueError(f"eye: N and M must be at least 0, got {N} and {M}")
    return _leaf(xp.eye(N, M, k, dtype=dtype or default_dtype), requires_grad)


@checked
def zeros_like(x: Tensor, dtype: DType | None = None) -> Tensor:
    """Return a tensor of zeros with the shape of x. The dtype defaults to that of x."""
    return zeros(x.shape, dtype or x.dtype)


@checked
def ones_like(x: Tensor, dtype: DType | None = None) -> Tensor:
    """Return a tensor of ones with the shape of x. The dtype defaults to that of x."""
    return ones(x.shape, dtype or x.dtype)


@checked
def full_like(x: Tensor, fill_value: float, dtype: DType | None = None) -> Tensor:
    """Return a tensor with the shape of x, filled with ``fill_value``. The dtype defaults to that of x."""
    return full(x.shape, fill_value, dtype or x.dtype)
