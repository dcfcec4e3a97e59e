"""Indices that the user gives, such as targets and ids. A compiled loop reads and writes wherever it is told, so they are
checked."""

from __future__ import annotations

from typing import Any

from tinytensor.kernels.numba.compiling import loop


@loop
def place(index: Any, length: Any) -> Any:
    """The place from 0 to length - 1 that an index means, as in NumPy. Raises IndexError if there is none."""
    found = index + length if index < 0 else index
    if found < 0 or found >= length:
        raise IndexError("an index is out of bounds: there are fewer rows or classes")
    return found
