"""Places in a row that a user's numbers name. A compiled loop reads and writes wherever it is told, so they are checked."""

from __future__ import annotations

from typing import Any

from tinytensor.kernels.numba.compiling import loop


@loop
def place(index: Any, length: Any) -> Any:
    """Where NumPy finds an index: a negative one counts from the end. Raises IndexError if that is outside."""
    found = index + length if index < 0 else index
    if found < 0 or found >= length:
        raise IndexError("an index is out of bounds: there are fewer rows or classes")
    return found
