"""Checks of arguments that several functions share, and the line of the user's code for their messages."""

from __future__ import annotations

import functools
import os
import traceback
from typing import Any

from tinytensor.common.arguments import shown
from tinytensor.device.backend import bool_dtype, host, xp

iinfo = functools.cache(host.iinfo)  # the smallest and the largest number of an integer dtype


def check_not_masked(value: Any) -> None:
    """Raise TypeError for NumPy's masked array, of which the masked values would be used."""
    if hasattr(value, "mask"):
        raise TypeError("a masked array has values that are not to be used: pass its .filled(...), or its .data")


def check_fits(number: float, dtype: Any) -> None:
    """Raise OverflowError for a Python number that an integer dtype cannot hold. NumPy would often drop bits instead."""
    if dtype.kind in "iu" and not iinfo(dtype).min - 1 < number < iinfo(dtype).max + 1:
        raise OverflowError(f"{dtype} cannot hold {shown(number)}: use a dtype that can")


def check_divisor(x: Any, y: Any) -> None:
    """Raise ZeroDivisionError where integers or booleans are divided by 0, as Python does. A GPU's numbers are not read."""
    are_integers = not any(type(v) is float or getattr(v, "dtype", bool_dtype).kind not in "biu" for v in (x, y))
    if are_integers and xp is host and not host.all(y):
        raise ZeroDivisionError("an integer is divided by 0: divide floats, or put another number in its place with tt.where")


def check_not_negative(name: str, value: float) -> None:
    """Raise ValueError for a setting that is negative or NaN."""
    if not value >= 0:
        raise ValueError(f"{name} must be at least 0, not {value}")


def check_dtype(dtype: Any, data: Any = None) -> None:
    """Raise TypeError for a dtype that tensors cannot have, with the data that have it."""
    if dtype.kind not in "biuf" and dtype.name != "bfloat16":
        raise TypeError(f"a tensor holds numbers or booleans, not {dtype}" + ("" if data is None else f": {str(data)[:60]!r}"))
    if dtype.itemsize > 8:
        raise TypeError(f"a tensor holds numbers of at most 64 bits, not {dtype}: give a dtype, such as 'float64'")


def check_probability(p: float) -> None:
    """Raise ValueError unless 0 <= p <= 1."""
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"a dropout probability must lie between 0 and 1, not at {p}")


def calling_line() -> str:
    """The line of the user's code that led here: the innermost one outside of this package."""
    package = os.path.dirname(os.path.dirname(__file__)) + os.sep
    frames = [f for f in traceback.extract_stack() if not f.filename.startswith(package)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown line"
