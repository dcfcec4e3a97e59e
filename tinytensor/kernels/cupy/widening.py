"""The portable kernels for bfloat16: they compute in float32, as its 8 bits are too few for what is in between."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tinytensor.backend import bfloat16, default_dtype, is_array


def widened(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel with its bfloat16 arguments converted to float32; so are its results."""

    @functools.wraps(kernel)
    def run(*arguments: Any, **named: Any) -> Any:
        return kernel(*[_wide(x) for x in arguments], **{name: _wide(x) for name, x in named.items()})

    return run


def narrowed(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a forward kernel whose output, though not its statistics, is bfloat16 where its inputs are."""
    wide = widened(kernel)

    @functools.wraps(kernel)
    def run(*arguments: Any, **named: Any) -> Any:
        out, statistics = wide(*arguments, **named)
        is_narrow = any(_is_narrow(x) for x in (*arguments, *named.values()))
        return out.astype(bfloat16) if is_narrow else out, statistics

    return run


def _is_narrow(x: Any) -> bool:
    return bfloat16 is not None and is_array(x) and x.dtype == bfloat16


def _wide(x: Any) -> Any:
    return x.astype(default_dtype) if _is_narrow(x) else x
