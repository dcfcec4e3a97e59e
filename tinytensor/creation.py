"""New tensors, from a shape or from the values of Python and NumPy. They are float32 where nothing else is said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinytensor.backend import DType, default_dtype, no_warnings, xp
from tinytensor.tensor import Tensor

Shape = int | Sequence[int]


def _leaf(array: Any, requires_grad: bool) -> Tensor:
    out = Tensor._wrap(array)
    out.requires_grad = requires_grad
    return out


def tensor(data: Any, dtype: DType = None, requires_grad: bool = False) -> Tensor:
    """A tensor with a copy of ``data``: a number, a nested list, a NumPy or CuPy array, or a tensor.

    Python floats become float32, and arrays keep their dtype. Raises TypeError for data that are not numbers or booleans, and
    for integers with ``requires_grad``.

    >>> x = tt.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> x.shape, str(x.dtype)
    ((2, 2), 'float32')
    """
    return Tensor(data, dtype, requires_grad)


def from_dlpack(x: Any) -> Tensor:
    """A tensor that shares the memory of ``x``: an array or tensor of any library that knows DLPack, on this backend's device.

    A change in place of the one is a change of the other, and ``backward`` does not notice it. ``tt.tensor(x)`` copies instead.
    Raises TypeError for a dtype that tensors do not have, and for what does not know DLPack; and BufferError if the memory
    cannot be shared, as that of a PyTorch tensor that requires gradients, or of bfloat16 with NumPy.
    """
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"from_dlpack: a {type(x).__name__} has no __dlpack__: copy it with tt.tensor(...)")
    try:
        array = xp.from_dlpack(x)
    except (BufferError, RuntimeError, ValueError) as error:
        raise BufferError(f"from_dlpack cannot share this memory ({error}): detach, convert or move it first") from None
    if array.dtype.kind not in "biuf":
        raise TypeError(f"a tensor holds numbers or booleans, not {array.dtype}")
    return Tensor._wrap(array)


def zeros(shape: Shape, dtype: DType = default_dtype, requires_grad: bool = False) -> Tensor:
    """A tensor of zeros."""
    return _leaf(xp.zeros(shape, dtype), requires_grad)


def ones(shape: Shape, dtype: DType = default_dtype, requires_grad: bool = False) -> Tensor:
    """A tensor of ones."""
    return _leaf(xp.ones(shape, dtype), requires_grad)


def full(shape: Shape, value: float, dtype: DType = None, requires_grad: bool = False) -> Tensor:
    """A tensor filled with ``value``. Without a dtype it is bool, int64 or float32, as the value is."""
    with no_warnings():
        return _leaf(xp.full(shape, value, dtype or _dtype_of(value)), requires_grad)


def arange(
    start: float, stop: float | None = None, step: float = 1, dtype: DType = None, requires_grad: bool = False
) -> Tensor:
    """start, start + step, ... up to but without ``stop``; ``arange(n)`` counts from 0. Integers give int64, else float32.

    >>> tt.arange(2, 10, 3)
    tensor([2, 5, 8])
    """
    start, stop = (0, start) if stop is None else (start, stop)
    with no_warnings():
        return _leaf(xp.arange(start, stop, step, dtype or _dtype_of(start + stop + step)), requires_grad)


def linspace(
    start: float, stop: float, num: int = 50, endpoint: bool = True, dtype: DType = default_dtype, requires_grad: bool = False
) -> Tensor:
    """``num`` evenly spaced numbers from ``start`` to ``stop``. With ``endpoint=False`` they end before ``stop``.

    >>> tt.linspace(0, 1, 5)
    tensor([0.  , 0.25, 0.5 , 0.75, 1.  ])
    """
    with no_warnings():
        return _leaf(xp.linspace(start, stop, num, endpoint=endpoint, dtype=dtype), requires_grad)


def eye(n: int, m: int | None = None, dtype: DType = default_dtype, requires_grad: bool = False) -> Tensor:
    """The matrix (n, m), or (n, n) without m, with 1 on the diagonal and 0 elsewhere.

    >>> tt.eye(2)
    tensor([[1., 0.],
            [0., 1.]])
    """
    return _leaf(xp.eye(n, m, dtype=dtype), requires_grad)


def zeros_like(x: Tensor, dtype: DType = None) -> Tensor:
    """Zeros in the shape of x, and in its dtype unless another is given."""
    return zeros(x.shape, dtype or x.dtype)


def ones_like(x: Tensor, dtype: DType = None) -> Tensor:
    """Ones in the shape of x, and in its dtype unless another is given."""
    return ones(x.shape, dtype or x.dtype)


def full_like(x: Tensor, value: float, dtype: DType = None) -> Tensor:
    """A tensor filled with ``value``, in the shape of x, and in its dtype unless another is given."""
    return full(x.shape, value, dtype or x.dtype)


def _dtype_of(value: Any) -> DType:
    return {bool: "bool", int: "int64"}.get(type(value), default_dtype)
