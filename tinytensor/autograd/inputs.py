"""The inputs of ops and tensors: order arguments, convert numbers and nested lists to arrays, and promote dtypes.

Invalid inputs raise an error with the op or value and the fix.
"""

from __future__ import annotations

import copy
import functools
import os
import traceback
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinytensor.autograd.modes import modes
from tinytensor.autograd.replaying import current_step, read_values
from tinytensor.common.arguments import NUMBER, TENSOR, shown
from tinytensor.common.missing import unknown_argument
from tinytensor.common.wording import counted
from tinytensor.device.backend import (
    Array,
    DType,
    bool_dtype,
    converted,
    default_dtype,
    from_numpy,
    host,
    index_dtype,
    is_array,
    is_floating,
    is_host_array,
    wide,
    xp,
)

if TYPE_CHECKING:
    from tinytensor.autograd.op import Op

PLAIN = {type(None), bool, int, float, str}


# --------------------------------------------------------------------------------------------- the arguments of a call


def bind(op: Op, args: tuple[Any, ...], settings: dict[str, Any]) -> list[Any]:
    """Return the arguments in the order of the function's parameters, with defaults and with settings of the annotated types.

    Raises TypeError for too many arguments, an unknown or repeated name, or a missing or mistyped setting.
    """
    arguments = list(args) if len(args) == len(op.names) and not settings else _in_order(op, args, settings)
    for position, name, setting_type in op.setting_kinds:
        if type(arguments[position]) not in setting_type.usual:
            arguments[position] = setting_type.of(op.name, name, arguments[position])
    return arguments


def _in_order(op: Op, args: tuple[Any, ...], settings: dict[str, Any]) -> list[Any]:
    count = len(args)
    if count > len(op.names):
        raise TypeError(f"{op.name}() takes {counted(len(op.names), 'argument')}, but {count} were given")
    arguments = [*args, *op.defaults[count:]]
    for name, value in settings.items():
        position = op.positions.get(name, -1)
        if position < 0:
            raise unknown_argument(op.name, name, op.names)
        if position < count:
            raise explain(op, args, TypeError(f"it got {name!r} twice"))
        arguments[position] = value
    if missing := [name for name in op.required[count:] if name not in settings and name not in op.inputs]:
        raise explain(op, args, TypeError(f"it also needs {', '.join(missing)}"))
    return arguments


def operand(op: Op, position: int, value: Any) -> Any:
    """Check an operand that is not a tensor. Raises TypeError unless it is a Python number, or None for an omitted input."""
    expected, name = (TENSOR, f"operand {position}") if op.several else (op.input_kinds[position], op.names[position])
    if expected is None:
        return value if value is None else NUMBER.of(op.name, name, value)
    return value if type(value) in expected.usual else expected.of(op.name, name, value)


def setting(op: Op, position: int, value: Any, recording: bool) -> Any:
    """Return the array of a setting that is a tensor. If the call is recorded, copy the caller's arrays, which may change
    before a gradient rule needs them.

    Settings get no gradient: raise TypeError if the setting requires gradients.
    """
    if hasattr(value, "node"):  # a tensor
        if value.node is not None and op.differentiable and modes().recording:
            name = op.names[position]
            raise TypeError(f"{op.name} gives no gradient to {name!r}, but it requires one: pass {name}.detach()")
        return value.data
    check_not_masked(value)
    return owned(value) if recording else value


# Fragments of NumPy's and CuPy's error messages, and the fix that our messages put before them.
_REMEDIES = {
    "could not be broadcast|not broadcastable|non-broadcastable|shape mismatch|axis remapping": (
        "these do not broadcast; compare them from the last axis: each pair must be equal, or one of them 1"
    ),
    "is out of bounds for array of dimension": "axes run from -ndim to ndim - 1",
    "zero-size array to reduction": "there is nothing to choose from, because an axis has length 0",
}


def explain(op: Op, arguments: Sequence[Any], error: Exception) -> Exception:
    """Return a one-line error of the same type: the op, the shapes, a common fix if there is one, and the original message."""
    operands = [x for value in arguments for x in (value if isinstance(value, (tuple, list)) else [value])]
    shapes = ", ".join(f"{tuple(v.shape)}" for v in operands if hasattr(v, "shape"))
    reason = " ".join(str(error).split())
    remedy = next((fix for parts, fix in _REMEDIES.items() if any(part in reason for part in parts.split("|"))), "")
    reason = f"{remedy} ({reason})" if remedy else reason
    error_type = next(t for t in (IndexError, TypeError, OverflowError, ValueError) if isinstance(error, t))
    return error_type(f"{op.name} of shapes {shapes}: {reason}" if shapes else f"{op.name}: {reason}")


# ------------------------------------------------------------------------------------------------ values that are kept


def owned(value: Any) -> Any:
    """Copy the arrays, lists, dicts and sets in a value, because its owner may change them. Other objects are not copied."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, (xp.ndarray, host.ndarray)):
        return value.copy()
    if isinstance(value, tuple):
        if PLAIN.issuperset(map(type, value)):
            return value
        return getattr(type(value), "_make", type(value))([owned(item) for item in value])
    if isinstance(value, (list, deque, dict)):
        value = copy.copy(value)
        for key in value if isinstance(value, dict) else range(len(value)):
            value[key] = owned(value[key])
    return copy.copy(value) if isinstance(value, (set, bytearray)) else value


def arrays_in(value: Any) -> list[Array]:
    """Return all arrays in a value, including nested dicts, tuples and lists."""
    return arrays_and_plain_in(value)[0]


def arrays_and_plain_in(value: Any) -> tuple[list[Array], list[Any]]:
    """Return the arrays, and the numbers, strings and Nones, in a value, including nested dicts, tuples and lists."""
    arrays, plain, waiting = [], [], [value]
    for value in waiting:  # the list grows
        if type(value) is xp.ndarray:
            arrays.append(value)
        elif type(value) in PLAIN:  # a quick check that covers most values
            plain.append(value)
        elif isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, (tuple, list)):
            waiting.extend(value)
    return arrays, plain


# -------------------------------------------------------------------------------------------------------------- dtypes


def promoted(op: Op, arrays: list[Any]) -> list[Any]:
    """Convert the integers among the operands if needed.

    If there are floating-point operands, integers take their dtype (NumPy would promote int64 and float32 to float64).
    Otherwise, integers become float32 if the op needs floating-point numbers or if an operand is a Python float.
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
    """Convert the output to half precision if all floating-point operands are half precision.

    For such operands, sums and bfloat16 arithmetic with a Python number return float32.
    """
    floating = {x.dtype for x in arrays if hasattr(x, "dtype") and is_floating(x.dtype)}
    if op.converts or len(floating) != 1 or "dtype" in op.positions or not is_floating(out.dtype):
        return out
    (dtype,) = floating
    return out if wide(dtype) is None or out.dtype == dtype else converted(out, dtype)


# ---------------------------------------------------------------------------------------------------------- new arrays


def as_array(data: Any, dtype: DType = None) -> Array:
    """Create an array of the backend from a tensor, an array, a number or a nested list.

    If you omit ``dtype``, Python floats become float32 and arrays keep their dtype. Raises TypeError unless the data are
    numbers or booleans, ValueError for ragged nested lists, and OverflowError if a number does not fit the dtype.
    """
    is_plain = type(data) is host.ndarray and data.dtype.kind in "biuf" and data.itemsize <= 8
    is_plain = is_plain and dtype in (None, data.dtype)
    data = read_values(data.data if not is_plain and hasattr(data, "node") else data)
    if is_array(data) and not is_host_array(data):
        return xp.array(data, dtype=dtype)
    # Allowed before a capture, to build cached tables.
    current_step().refuse("the numbers that a tensor is made of", "make it before, and pass it in", before=False)
    return from_numpy(data if is_plain else on_host(data, dtype))


def on_host(data: Any, dtype: DType = None) -> Any:
    """Like ``as_array``, but return a NumPy array, possibly ``data`` itself."""
    try:
        unwrapped = _unwrapped(data)
        array = host.asarray(unwrapped)
    except ValueError:
        raise ValueError(f"a tensor needs nested lists of equal lengths at each level: {str(data)[:60]}") from None
    if array.size and array.dtype.kind in "fO" and _are_all(unwrapped, "iub"):  # NumPy rounds integers too large for a dtype
        array = _of_integers(host.array(unwrapped, object), dtype, data)
    elif array.dtype.kind == "O" and _are_all(unwrapped, "iubf"):
        raise _too_large(data)
    check_dtype(array.dtype if dtype is None or array.dtype.kind != "f" else host.dtype(dtype), data)
    if not is_host_array(data):
        return _of_python(array, dtype, data)
    with host.errstate(all="ignore"):  # a number may overflow a narrower dtype
        return array.astype(dtype or array.dtype, copy=False)


def _unwrapped(data: Any) -> Any:
    """Replace tensors in nested lists with NumPy arrays."""
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
    """Convert NumPy's array of Python numbers to ``dtype``, by default from float64 to float32. NumPy numbers, arrays and
    tensors keep their dtype, even inside lists."""
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
    """Return True if a nested list contains an array, a tensor or a NumPy number."""
    return any(map(_has_dtype, data)) if isinstance(data, (list, tuple)) else hasattr(data, "dtype")


def _too_large(data: Any) -> OverflowError:
    return OverflowError(f"no integer dtype holds {str(data)[:60]}: use floats, such as float(x)")


def _of_integers(numbers: Any, dtype: DType, data: Any) -> Any:
    """Convert integers to ``dtype`` (default: int64 or uint64). Raises OverflowError if an integer does not fit."""
    smallest, largest = int(numbers.min()), int(numbers.max())
    if dtype is None:
        dtype = index_dtype if largest < 2**63 else host.dtype("uint64")
        if not iinfo(dtype).min <= smallest <= largest <= iinfo(dtype).max:
            raise _too_large(data)
    for number in (smallest, largest):
        check_fits(number, host.dtype(dtype))
    return numbers.astype(dtype)


def _are_all(data: Any, letters: str) -> bool:
    """Return True if all numbers in nested lists and arrays have dtypes whose ``kind`` is one of these letters."""
    if isinstance(data, (list, tuple)):
        return all(_are_all(item, letters) for item in data)
    letter = getattr(getattr(data, "dtype", None), "kind", None)  # None for Python numbers and PyTorch tensors
    return isinstance(data, (int, float)[: 1 + ("f" in letters)]) if letter is None else letter in letters


# -------------------------------------------------------------------------------------------------------------- checks


iinfo = functools.cache(host.iinfo)  # the range of an integer dtype


def check_not_masked(value: Any) -> None:
    """Raise TypeError for a NumPy masked array, because the masked values would be used."""
    if hasattr(value, "mask"):
        raise TypeError("cannot use a masked array: pass its .filled(...), or its .data")


def check_fits(number: float, dtype: Any) -> None:
    """Raise OverflowError if a Python number does not fit an integer dtype. NumPy would often drop bits."""
    if dtype.kind in "iu" and not iinfo(dtype).min - 1 < number < iinfo(dtype).max + 1:
        raise OverflowError(f"{dtype} cannot hold {shown(number)}: use a dtype that can")


def check_divisor(x: Any, y: Any) -> None:
    """Raise ZeroDivisionError for integers or booleans divided by 0, as in Python. Values on a GPU are not read."""
    are_integers = not any(type(v) is float or getattr(v, "dtype", bool_dtype).kind not in "biu" for v in (x, y))
    if are_integers and xp is host and not host.all(y):
        raise ZeroDivisionError("an integer is divided by 0: divide floats, or replace the 0 with tt.where")


def check_not_negative(name: str, value: float) -> None:
    """Raise ValueError if a setting is negative or NaN."""
    if not value >= 0:
        raise ValueError(f"{name} must be at least 0, got {value}")


def check_dtype(dtype: Any, data: Any = None) -> None:
    """Raise TypeError for a dtype that tensors do not support. The message shows the data."""
    if dtype.kind not in "biuf" and dtype.name != "bfloat16":
        raise TypeError(f"a tensor holds numbers or booleans, not {dtype}" + ("" if data is None else f": {str(data)[:60]!r}"))
    if dtype.itemsize > 8:
        raise TypeError(f"a tensor holds numbers of at most 64 bits, not {dtype}: give a dtype, such as 'float64'")


def check_probability(p: float) -> None:
    """Raise ValueError unless 0 <= p <= 1."""
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"a dropout probability must be between 0 and 1, got {p}")


def calling_line() -> str:
    """Return the user's line: the innermost line of the call stack outside this package."""
    package = os.path.dirname(os.path.dirname(__file__)) + os.sep
    frames = [f for f in traceback.extract_stack() if not f.filename.startswith(package)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown line"
