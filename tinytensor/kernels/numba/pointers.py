"""Addresses in loops: arrays known by their address, and integers that several threads change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

from tinytensor.kernels.numba.compiling import ByNumba


def _array(dtype_name: str = "") -> ByNumba:
    """``array(address, size)``: the array (size,) at an address. The loop's caller keeps it alive."""

    def make(dtype: Any) -> Callable[..., Any]:
        import numba
        from numba.extending import intrinsic

        @intrinsic  # type: ignore[untyped-decorator]
        def pointer(context: Any, address: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

            return numba.types.CPointer(numba.from_dtype(numpy.dtype(dtype_name or dtype)))(numba.types.int64), generate

        @numba.njit
        def array(address, size):  # type: ignore[no-untyped-def]
            return numba.carray(pointer(address), (size,))

        return array

    return ByNumba(make)


array_at = _array()  # of the loop's dtype
bytes_at = _array("int8")
bits_at = _array("uint16")


def _atomic(name: str, num_arguments: int) -> ByNumba:
    """A function for loops that reads or changes the integer at an address atomically. A thread that reads the integer also
    sees what the other thread wrote before changing it."""

    def make(dtype: Any) -> Callable[..., Any]:
        from llvmlite import ir
        from numba import types
        from numba.extending import intrinsic

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            address, *value = arguments
            pointer = builder.inttoptr(address, ir.IntType(64).as_pointer())
            if name == "load":
                return builder.load_atomic(pointer, "seq_cst", 8)
            return builder.atomic_rmw(name, pointer, *value, "seq_cst")

        if num_arguments == 1:
            return intrinsic(lambda context, address: (types.int64(types.int64), generate))
        return intrinsic(lambda context, address, value: (types.int64(types.int64, types.int64), generate))

    return ByNumba(make)


atomic_load = _atomic("load", 1)  # (address): the integer there
atomic_add = _atomic("add", 2)  # (address, value): adds to it, and returns the previous integer
atomic_exchange = _atomic("xchg", 2)  # (address, value): replaces it, and returns the previous integer


def write_fetch(builder: Any, address: Any, level: int) -> None:
    """Write an instruction that prefetches the cache line at this address into the first cache (``level`` 3) or the second (2).
    An invalid address does no harm."""
    from llvmlite import ir

    pointer, flag, name = ir.IntType(8).as_pointer(), ir.IntType(32), "llvm.prefetch.p0"
    signature = ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag])
    fetch = builder.module.globals.get(name) or ir.Function(builder.module, signature, name)
    builder.call(fetch, [builder.inttoptr(address, pointer), flag(0), flag(level), flag(1)])  # to read, of data
