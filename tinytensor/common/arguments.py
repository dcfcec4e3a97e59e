"""``checked`` enforces a function's type annotations.

The function body receives exactly the annotated types: a Python number for ``int`` and ``float`` (NumPy numbers are converted),
a bool for ``bool``, a valid dtype for ``DType``, and a tuple for ``Sequence[int]``. Any other argument raises TypeError. Ops
check their settings in the same way (see op.py).
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, NamedTuple, TypeVar, cast

from tinytensor.common.missing import MISPLACED, unknown_argument
from tinytensor.common.wording import a_or_an
from tinytensor.device.backend import bfloat16, host, is_array, is_floating, is_host_array, xp

Function = TypeVar("Function", bound=Callable[..., Any])


class Kind(NamedTuple):
    """The required type of an argument: its description, and a function that converts an argument or returns NotImplemented.

    Values whose type is in ``usual`` need no conversion. For most arguments this cheap test is the complete check.
    """

    words: str
    usual: set[type]
    read: Callable[[Any], Any]

    def of(self, function: str, name: str, value: Any) -> Any:
        """Convert the argument ``name`` of a function. Raises TypeError if that is impossible."""
        converted = self.read(value)
        if converted is NotImplemented:
            remedy = f": {MISPLACED[function, name]}" if (function, name) in MISPLACED else self._remedy(value)
            raise TypeError(f"{function}: {name} must be {self.words}, got {shown(value)}{remedy}")
        if converted is value and hasattr(value, "node"):
            self.usual.add(type(value))  # a tensor class, which this file cannot import
        return converted

    def _remedy(self, value: Any) -> str:
        if self.words.startswith("a tensor") and not isinstance(value, (str, type(None))):
            return ": make it one with tt.tensor(...)"
        if self.words.startswith("a dtype") and type(value) is int:
            return ": a shape is one argument, as in (2, 3)"
        if self.words == "a Parameter" and hasattr(value, "node"):
            return ": make it one with tt.nn.Parameter(x)"
        is_list = self.words.endswith("of tensors") and isinstance(value, (list, tuple))
        return ": make each of them one with tt.tensor(...)" if is_list else ""


def _scalar_kind(value: Any) -> str:
    """Return the dtype kind ("i", "f", ...) of a NumPy number or a 0-d array or tensor."""
    is_scalar = getattr(value, "shape", None) == () and not hasattr(value, "mask")  # masked numbers are rejected
    return str(getattr(getattr(value, "dtype", None), "kind", "")) if is_scalar else ""


def _integer(value: Any) -> Any:
    if isinstance(value, int):
        return NotImplemented if isinstance(value, bool) else int(value)
    return int(value) if _scalar_kind(value) in ("i", "u") else NotImplemented


def _number(value: Any) -> Any:
    if isinstance(value, (int, float)):
        number_type = next(cls for cls in (bool, int, float) if isinstance(value, cls))
        return number_type(value)
    if _scalar_kind(value) not in ("b", "i", "u", "f") or getattr(value, "requires_grad", False):
        return NotImplemented  # a number would lose the tensor's gradient
    number = value.item()
    return number if isinstance(number, (int, float)) else float(number)


def _boolean(value: Any) -> Any:
    if isinstance(value, bool) or (type(value) is int and value in (0, 1)):
        return bool(value)
    return bool(value) if _scalar_kind(value) == "b" else NotImplemented


def _text(value: Any) -> Any:
    return value if isinstance(value, str) else NotImplemented


def _nothing(value: Any) -> Any:
    return value if value is None else NotImplemented


makers: list[Callable[[Any], Any]] = []  # tt.tensor, which this file cannot import


def _or_integers(expected: Kind | None) -> Kind | None:
    """Also accept NumPy arrays of integers or booleans as tensor arguments, because they have no gradient to lose."""

    def read(value: Any) -> Any:
        converted = read_tensor(value)
        is_taken = converted is NotImplemented and is_host_array(value) and value.ndim > 0 and value.dtype.kind in "biu"
        return makers[0](value) if is_taken else converted

    if expected is None or not expected.words.startswith("a tensor"):
        return expected
    read_tensor = expected.read
    return expected._replace(read=read)


def _tensor(value: Any) -> Any:
    return value if hasattr(value, "node") else NotImplemented


def _array(value: Any) -> Any:
    return value if is_array(value) else NotImplemented


def _ids(value: Any) -> Any:
    return value if hasattr(value, "node") or is_array(value) or is_host_array(value) else NotImplemented


def _integers(value: Any) -> Any:
    if type(value) is tuple:
        for item in value:
            if type(item) is not int:
                break
        else:
            return value
    return _all_of(value, _integer)


def _nested(value: Any) -> Any:
    return _all_of(value, lambda item: _integers(item) if isinstance(item, Iterable) else _integer(item))


def _tensors(value: Any) -> Any:
    return NotImplemented if hasattr(value, "node") else _all_of(value, _tensor)


def _arrays(value: Any) -> Any:
    return NotImplemented if hasattr(value, "shape") else _all_of(value, lambda x: x if hasattr(x, "node") else _array(x))


def _all_of(value: Any, read: Callable[[Any], Any]) -> Any:
    """Convert the items of an ordered collection to a tuple."""
    if type(value) not in (list, tuple) and not _has_order(value):
        return NotImplemented
    items = []
    for item in value:
        if (converted := read(item)) is NotImplemented:
            return NotImplemented
        items.append(converted)
    return tuple(items)


def _has_order(value: Any) -> bool:
    """Return True for ordered collections other than strings. A 0-d array has no items, although it is Iterable."""
    has_none = isinstance(value, (str, bytes, bytearray, Mapping, Set)) or getattr(value, "shape", None) == ()
    return isinstance(value, Iterable) and not has_none


def _mask(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        value = host.asarray(value)
        return xp.asarray(value) if value.dtype == bool else NotImplemented
    is_mask = hasattr(value, "node") or isinstance(value, bool) or (is_array(value) and value.dtype.kind in "biuf")
    return value if is_mask else NotImplemented


def _path(value: Any) -> Any:
    return value if isinstance(value, (str, os.PathLike)) else NotImplemented


def _function(value: Any) -> Any:
    return value if callable(value) else NotImplemented


def _mapping(value: Any) -> Any:
    return value if isinstance(value, Mapping) else NotImplemented


def _parameter(value: Any) -> Any:
    return value if hasattr(value, "assign") else NotImplemented


def _dtype(value: Any) -> Any:
    try:
        dtype = NotImplemented if value is None else host.dtype(value)
    except TypeError:
        if bfloat16 is None and isinstance(value, str) and value == "bfloat16":
            raise TypeError("NumPy has no bfloat16; with CuPy it needs the package ml_dtypes: pip install ml_dtypes") from None
        return NotImplemented
    is_known = value is not None and (dtype.kind in "biu" or is_floating(dtype)) and dtype.itemsize <= 8
    return dtype if is_known else NotImplemented


_KINDS = {  # if several types are allowed, they are tried in this order
    "Tensor": Kind("a tensor", set(), _tensor),
    "Array": Kind("a tensor", {xp.ndarray}, _array),
    "Ids": Kind("a tensor", {xp.ndarray}, _ids),
    "Mask": Kind("a tensor or array of booleans", set(), _mask),
    "None": Kind("None", {type(None)}, _nothing),
    "Sequence[int]": Kind("several integers", set(), _integers),
    "Sequence[Sequence[int]]": Kind("lists of integers", set(), _nested),
    "Sequence[Tensor]": Kind("a list or tuple of tensors", set(), _tensors),
    "Sequence[Array]": Kind("a list or tuple of tensors", set(), _arrays),
    "int": Kind("an integer", {int}, _integer),
    "float": Kind("a number", {float, int, bool}, _number),
    "bool": Kind("True or False", {bool}, _boolean),
    "str": Kind("text", {str}, _text),
    "DType": Kind("a dtype of numbers or booleans, such as 'float32'", set(), _dtype),
    "PathLike": Kind("a path", {str}, _path),
    "Callable": Kind("a function", set(), _function),
    "Mapping[str, Any]": Kind("a dict of values by name, such as a state_dict()", {dict}, _mapping),
    "Parameter": Kind("a Parameter", set(), _parameter),
}
TENSOR, NUMBER = _KINDS["Tensor"], Kind("a tensor or a number", *_KINDS["float"][1:])
_SHORT = {"Axes": "int | Sequence[int] | None", "Shape": "int | Sequence[int]", "Function": "Callable"}
_OF_RULES = {"Tensor": "Tensor | Array", "Sequence[Tensor]": "Sequence[Array]"}


def kind_of(annotation: Any, takes_arrays: bool = False) -> Kind | None:
    """Return the ``Kind`` for an annotation, or None for an unchecked annotation such as Any."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    short = _SHORT | _OF_RULES if takes_arrays else _SHORT
    parts = [name for part in text.split(" | ") for name in short.get(part, part).split(" | ")]
    names = ["Callable" if part.startswith("Callable[") else part for part in parts]
    if any(name not in _KINDS for name in names):
        return None
    allowed = [_KINDS[name] for name in names]
    readers = [each.read for name, each in _KINDS.items() if name in names]

    def read(value: Any) -> Any:
        for read_one in readers:
            if (converted := read_one(value)) is not NotImplemented:
                return converted
        return NotImplemented

    words = list(dict.fromkeys([each.words for each in allowed]))
    in_words = " or ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)
    return Kind(in_words, set().union(*[each.usual for each in allowed]), read)


def kinds_of(function: Callable[..., Any], takes_arrays: bool = False) -> dict[str, Kind | None]:
    """Return the ``Kind`` of each parameter of a function. If the default is None, the argument may be None."""
    expected = {}
    for name, parameter in inspect.signature(function).parameters.items():
        annotation = parameter.annotation
        optional = parameter.default is None and isinstance(annotation, str) and "None" not in annotation
        expected[name] = kind_of(f"{annotation} | None" if optional else annotation, takes_arrays)
    return expected


def checked(function: Function, takes_arrays: bool = False) -> Function:
    """Declare a function (or ``__init__``) that accepts only the annotated types."""
    by_name = {name: _or_integers(expected) for name, expected in kinds_of(function, takes_arrays).items()}
    forms = {name: p.kind for name, p in inspect.signature(function).parameters.items() if p.kind is not p.KEYWORD_ONLY}
    names, by_position = list(forms), [by_name[name] for name in forms]
    takes_more = inspect.Parameter.VAR_POSITIONAL in forms.values()
    takes_any_name = inspect.Parameter.VAR_KEYWORD in forms.values()
    called = "" if function.__name__ == "__init__" else function.__qualname__  # messages name the class instead of ``__init__``

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        each = by_position + by_position[-1:] * (len(args) - len(by_position)) if takes_more else by_position
        for position, (value, expected) in enumerate(zip(args, each)):
            if expected is not None and type(value) not in expected.usual:
                converted = expected.of(called or type(args[0]).__name__, names[min(position, len(names) - 1)], value)
                if converted is not value:
                    args = (*args[:position], converted, *args[position + 1 :])
        for key, value in kwargs.items():
            if key not in by_name and not takes_any_name:
                raise unknown_argument(called or type(args[0]).__name__, key, [n for n in by_name if n != "self"])
            expected = by_name.get(key)
            if expected is not None and type(value) not in expected.usual:
                kwargs[key] = expected.of(called or type(args[0]).__name__, key, value)
        return function(*args, **kwargs)

    return cast(Function, call)


def composite(function: Function) -> Function:
    """Declare a function composed of ops. It is ``checked``, but like an op it also accepts arrays as tensors, because gradient
    rules call it with arrays."""
    return checked(function, takes_arrays=True)


def shown(value: Any) -> str:
    """Describe a wrong argument: show plain values and lists, and describe others by type, package and dtype."""
    text = _as_text(value)
    text = text if len(text) <= 60 else text[:57] + "..."
    return f"the {type(value).__name__} {text}" if type(value) in (list, tuple) else text


def _as_text(value: Any) -> str:
    if type(value) in (list, tuple):
        items = ", ".join([_as_text(item) for item in value[:20]])
        return f"[{items}]" if isinstance(value, list) else f"({items}{',' * (len(value) == 1)})"
    if isinstance(value, (bool, int, float, str, type(None), host.generic)):
        return repr(value)
    if isinstance(value, type):
        return value.__name__
    return a_or_an(kind_name(value)) + (f" of {value.dtype}" if hasattr(value, "dtype") else "")


def kind_name(value: Any) -> str:
    """Return the name of a value's type, with its package unless it is built in: other libraries also have a Tensor."""
    package = type(value).__module__.partition(".")[0]
    return type(value).__name__ if package == "builtins" else f"{package}.{type(value).__name__}"
