"""Checks of arguments that several functions share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tinytensor.modes import modes


def check_tensors(operation: str, **operands: Any) -> None:
    for name, value in operands.items():
        if not hasattr(value, "node"):
            raise TypeError(
                f"{operation}: {name} must be a tensor, not {type(value).__name__}: make it one with tt.tensor(...)"
            )


def check_probability(p: float) -> None:
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"a dropout probability lies between 0 and 1, not at {p}")


def each_time(check: Callable[..., None]) -> Callable[..., None]:
    """Declare a check of arrays' values, which a traced function makes in each of its calls, and not in the first alone."""

    @functools.wraps(check)
    def checked(*given: Any) -> None:
        check(*given)
        if modes.tracer is not None:
            modes.tracer.write_check(check, given)

    return checked
