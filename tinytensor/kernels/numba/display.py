"""What the user sees while loops are compiled for the first time."""

from __future__ import annotations

import functools
import sys
from contextlib import suppress
from typing import Any

_ONCE = "tinytensor compiles its kernels for this processor; this happens once"


@functools.cache
def show_compiling() -> None:
    """From now on, say on standard error that loops are compiled: in a file once, on a terminal with the name of each.

    The terminal's line disappears when the loop is ready.
    """
    from numba.core import event

    class Display(event.Listener):  # type: ignore[misc]
        def __init__(self) -> None:
            self.done = self.depth = 0  # a loop compiles those that it calls

        def on_start(self, event: Any) -> None:
            function = event.data["dispatcher"].py_func
            if not function.__module__.startswith(__package__):
                return
            self.depth += 1
            if self.depth == 1:
                _show(f"{_ONCE}: {function.__name__.strip('_')} (ready: {self.done})", "" if self.done else _ONCE)

        def on_end(self, event: Any) -> None:
            if not event.data["dispatcher"].py_func.__module__.startswith(__package__):
                return
            self.depth -= 1
            self.done += 1
            if not self.depth:
                _show("", "")

    event.register("numba:compile", Display())


def _show(on_terminal: str, in_file: str) -> None:
    with suppress(OSError, ValueError, AttributeError):  # standard error may be closed, or None
        if sys.stderr.isatty():
            print(f"\r\x1b[2K{on_terminal}", end="", file=sys.stderr, flush=True)
        elif in_file:
            print(in_file, file=sys.stderr, flush=True)
