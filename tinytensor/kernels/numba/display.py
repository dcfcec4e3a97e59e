"""What the user sees while loops are compiled for the first time."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
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
                shown = f"{_ONCE}: {function.__name__.strip('_')} (ready: {self.done})"
                _show([shown, _ONCE, f"compiling (ready: {self.done})"], "" if self.done else _ONCE)

        def on_end(self, event: Any) -> None:
            if not event.data["dispatcher"].py_func.__module__.startswith(__package__):
                return
            self.depth -= 1
            self.done += 1
            if not self.depth:
                _show([""], "")

    event.register("numba:compile", Display())


def _show(on_terminal: Sequence[str], in_file: str) -> None:
    """Show the first of these texts that fits into a line of the terminal, the last one if none does; or a line in a file."""
    with suppress(OSError, ValueError, AttributeError):  # standard error may be closed, or None
        if sys.stderr.isatty():
            width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
            text = next((text for text in on_terminal if len(text) < width), on_terminal[-1])
            print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)
        elif in_file:
            print(in_file, file=sys.stderr, flush=True)
