"""Addresses in loops: arrays of which a loop knows only the address, and integers that several threads change.

Only the programs need them (program_loops.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinytensor.kernels.numba.compiling import ByNumba


@ByNumba
def array_at(dtype: Any) -> Callable[..., Any]:
    """``array_at(address, size)``: the array (size,) of the loop's dtype that lies there. The loop's caller keeps it alive."""
    import numba
    from numba.extending import intrinsic

    @intrinsic  # type: ignore[untyped-decorator]
    def pointer(context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return numba.types.CPointer(numba.from_dtype(dtype))(numba.types.int64), generate

    @numba.njit
    def array_at(address, size):  # type: ignore[no-untyped-def]
        return numba.carray(pointer(address), (size,))

    return array_at


def _atomic(name: str, num_arguments: int) -> ByNumba:
    """A function for loops that reads or changes the integer at an address, in one step for all threads. What a thread wrote
    before is seen by a thread that reads the integer after it."""

    def make(dtype: Any) -> Callable[..., Any]:
        from llvmlite import ir
        from numba import types
        from numba.extending import intrinsic

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            address, *value = arguments
            place = builder.inttoptr(address, ir.IntType(64).as_pointer())
            if name == "load":
                return builder.load_atomic(place, "seq_cst", 8)
            return builder.atomic_rmw(name, place, *value, "seq_cst")

        if num_arguments == 1:
            return intrinsic(lambda context, address: (types.int64(types.int64), generate))
        return intrinsic(lambda context, address, value: (types.int64(types.int64, types.int64), generate))

    return ByNumba(make)


atomic_load = _atomic("load", 1)  # (address): the integer there
atomic_add = _atomic("add", 2)  # (address, value): adds to it, and returns what it was
atomic_exchange = _atomic("xchg", 2)  # (address, value): replaces it, and returns what it was
