"""Checks of arguments that several functions share, and the line of the user's code for their messages."""

from __future__ import annotations

import functools
import os
import traceback
from collections.abc import Callable
from typing import Any

from tinytensor.modes import modes


def check_tensors(operation: str, **operands: Any) -> None:
    """Raise TypeError for an operand that is not a tensor."""
    for name, value in operands.items():
        if not hasattr(value, "node"):
            raise TypeError(
                f"{operation}: {name} must be a tensor, not {type(value).__name__}: make it one with tt.tensor(...)"
            )


def check_probability(p: float) -> None:
    """Raise ValueError unless 0 <= p <= 1."""
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"a dropout probability must lie between 0 and 1, not at {p}")


def value_check(check: Callable[..., None]) -> Callable[..., None]:
    """Declare a function that checks the values of arrays. A traced function repeats such a check in every call.

    (Every other check, such as one of shapes, runs only while the function is traced.)
    """

    @functools.wraps(check)
    def check_and_trace(*given: Any) -> None:
        check(*given)
        if modes().tracer is not None:
            modes().tracer.write_check(check, given)

    return check_and_trace


def calling_line() -> str:
    """The line of the user's code that led here: the innermost one outside of this package."""
    package = os.path.dirname(__file__) + os.sep
    frames = [f for f in traceback.extract_stack() if not f.filename.startswith(package)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown line"
