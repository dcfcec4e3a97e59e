"""Arrays of which a loop knows only the address."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tinytensor.kernels.numba.compiling import Compilable


class _ArrayAt(Compilable):
    """``array_at(address, size)`` in a loop: the array (size,) of the loop's dtype at this address. The caller keeps it alive."""

    @functools.cache  # noqa: B019 (there is only one)
    def compile(self, dtype: Any) -> Callable[..., Any]:
        """The machine code for this dtype."""
        import numba
        from numba.extending import intrinsic

        @intrinsic
        def pointer(context: Any, address: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

            return numba.types.CPointer(numba.from_dtype(dtype))(numba.types.int64), generate

        @numba.njit
        def array_at(address, size):  # type: ignore[no-untyped-def]
            return numba.carray(pointer(address), (size,))

        return array_at


array_at: Any = _ArrayAt()
