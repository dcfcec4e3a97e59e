"""A copy of a row, for loops."""

from __future__ import annotations

from typing import Any

from tinytensor.kernels.numba.compiling import loop


@loop
def copy_row(x: Any, out: Any) -> None:
    """Copy x (n,) to out (n,). ``out[:] = x`` does the same, but takes a second longer to compile: Numba then also
    compiles how an error's message is put together."""
    for j in range(x.size):
        out[j] = x[j]
