"""Objects that only Python's garbage collector can free."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def none_left() -> Iterator[None]:
    """Check that reference counts alone free the objects created inside."""
    gc.disable()
    gc.freeze()  # the collector is quick without the objects so far
    try:
        yield
        assert gc.collect() == 0, "there are cycles of references"
    finally:
        gc.unfreeze()
        gc.enable()
