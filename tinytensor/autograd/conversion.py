"""What a tensor is made of: arrays, numbers and nested lists, as a new array. What a tensor cannot hold is refused."""

from __future__ import annotations

from typing import Any

from tinytensor.autograd.changes import PLAIN
from tinytensor.autograd.checks import check_dtype, check_fits, check_not_masked, iinfo
from tinytensor.autograd.modes import modes
from tinytensor.autograd.tracing import read_values
from tinytensor.device.backend import Array, DType, default_dtype, from_numpy, host, index_dtype, is_array, is_host_array, xp
from tinytensor.device.capturing import refuse


def as_array(data: Any, dtype: DType = None) -> Array:
    """A new array of the backend, from a tensor, an array, a number or a nested list.

    Without ``dtype``, Python floats become float32 and arrays keep their dtype. Raises TypeError unless the data are numbers
    or booleans, ValueError for nested lists of different lengths, and OverflowError for a Python number that the dtype cannot
    hold.
    """
    is_plain = type(data) is host.ndarray and data.dtype.kind in "biuf" and data.itemsize <= 8
    is_plain = is_plain and dtype in (None, data.dtype)
    data = read_values(data.data if not is_plain and hasattr(data, "node") else data)
    if is_array(data) and not is_host_array(data):
        return xp.array(data, dtype=dtype)
    refuse("the numbers that a tensor is made of", "make it before, and pass it in", before=False)  # for tables that are kept
    return from_numpy(data if is_plain else on_host(data, dtype))


def on_host(data: Any, dtype: DType = None) -> Any:
    """``as_array`` as a NumPy array, with either backend; it may be ``data`` itself."""
    try:
        unwrapped = _unwrapped(data)
        array = host.asarray(unwrapped)
    except ValueError:
        raise ValueError(f"a tensor needs nested lists of equal lengths at each level: {str(data)[:60]}") from None
    if array.size and array.dtype.kind in "fO" and _are_all(unwrapped, "iub"):  # NumPy rounds integers that no dtype holds
        array = _of_integers(host.array(unwrapped, object), dtype, data)
    elif array.dtype.kind == "O" and _are_all(unwrapped, "iubf"):
        raise _too_large(data)
    check_dtype(array.dtype if dtype is None or array.dtype.kind != "f" else host.dtype(dtype), data)
    if not is_host_array(data):
        return _of_python(array, dtype, data)
    with host.errstate(all="ignore"):  # a number may be infinite in a narrower dtype
        return array.astype(dtype or array.dtype, copy=False)


def _unwrapped(data: Any) -> Any:
    """Nested lists with NumPy arrays in place of tensors."""
    if isinstance(data, (list, tuple)):
        return data if PLAIN.issuperset(map(type, data)) else [_unwrapped(item) for item in data]
    if type(data) in PLAIN:
        return data
    check_not_masked(data)
    if not hasattr(data, "node"):
        return data
    if data.node is not None and modes().recording:
        raise TypeError("a list of tensors that require gradients would lose them: join them with tt.stack, or detach() them")
    return data.numpy()


def _of_python(array: Any, dtype: DType, data: Any) -> Any:
    """What NumPy made of Python's numbers, in ``dtype``, or without it with float32 in place of float64. What came from NumPy
    or is a tensor keeps its dtype in a list, too."""
    if dtype is None and array.dtype.kind == "f" and not _has_dtype(data):
        dtype = default_dtype
    if dtype is None or dtype == array.dtype:
        return array
    with host.errstate(all="ignore"):
        out = array.astype(dtype)
    if out.dtype.kind in "iu" and not (fits := host.trunc(array) == out).all():
        check_fits(array[~fits].flat[0].item(), out.dtype)
    return out


def _has_dtype(data: Any) -> bool:
    """Whether a nested list holds an array, a tensor or a number of NumPy's."""
    return any(map(_has_dtype, data)) if isinstance(data, (list, tuple)) else hasattr(data, "dtype")


def _too_large(data: Any) -> OverflowError:
    return OverflowError(f"no integer dtype holds {str(data)[:60]}: use floats, such as float(x)")


def _of_integers(numbers: Any, dtype: DType, data: Any) -> Any:
    """Integers in ``dtype``, or without it in int64 or uint64. Raises OverflowError for one that the dtype cannot hold."""
    least, most = int(numbers.min()), int(numbers.max())
    if dtype is None:
        dtype = index_dtype if most < 2**63 else host.dtype("uint64")
        if not iinfo(dtype).min <= least <= most <= iinfo(dtype).max:
            raise _too_large(data)
    for number in (least, most):
        check_fits(number, host.dtype(dtype))
    return numbers.astype(dtype)


def _are_all(data: Any, kinds: str) -> bool:
    """Whether a number, or all numbers of nested lists and of the arrays in them, are of dtypes of these kinds."""
    if isinstance(data, (list, tuple)):
        return all(_are_all(item, kinds) for item in data)
    kind = getattr(getattr(data, "dtype", None), "kind", None)  # none of Python's numbers, and of PyTorch's tensors
    return isinstance(data, (int, float)[: 1 + ("f" in kinds)]) if kind is None else kind in kinds
