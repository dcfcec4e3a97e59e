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


def _wide(x: Any) -> Any:
    return x.astype(default_dtype) if bfloat16 is not None and is_array(x) and x.dtype == bfloat16 else x
