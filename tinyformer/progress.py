"""How far a long task is: a bar on a terminal, and plain lines in a file or a pipe, where a bar would be one long line."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Protocol

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 10.0


class Progress(Protocol):
    """What a task tells of itself: steps done, what they came to, and lines to be kept. Leaving its context ends it."""

    def update(self, n: float = 1) -> object:
        """That many more steps are done."""

    def set_postfix_str(self, s: str) -> object:
        """What is shown beside the steps: now, and until there is something newer."""

    def write(self, s: str) -> object:
        """A line on standard output, with no bar through it."""

    def unpause(self) -> object:
        """Something else took its time: what is left is reckoned from the steps alone."""

    def __enter__(self) -> Progress: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> object: ...


def show_progress(what: str, total: int | None, unit: str, initial: int = 0, quiet: bool = False) -> Progress:
    """The progress of ``total`` steps (None: nobody knows how many), of which ``initial`` were done before. ``quiet`` shows
    nothing."""
    if quiet or (sys.stderr is not None and sys.stderr.isatty()):
        bar: Progress = tqdm(
            total=total, initial=initial, desc=what, unit=unit, dynamic_ncols=True, smoothing=0.1, disable=quiet
        )
        return bar
    return Lines(what, total, unit, initial)


class Lines:
    """A line on standard error whenever there is something to show, else every ten seconds."""

    def __init__(self, what: str, total: int | None, unit: str, initial: int = 0):
        self.what = what
        self.total = total
        self.unit = unit
        self.done = self.initial = initial
        self.spent = 0.0  # seconds of the steps alone
        self._since = self._last_line = time.monotonic()

    def update(self, n: float = 1) -> None:
        """That many more steps are done."""
        self.done += int(n)
        now = time.monotonic()
        self.spent += now - self._since
        self._since = now
        if now - self._last_line > SECONDS_BETWEEN_LINES:
            self._line("")

    def set_postfix_str(self, s: str) -> None:
        """Show this, with the steps done."""
        self._line(f", {s}")

    def write(self, s: str) -> None:
        """A line on standard output."""
        print(s, flush=True)

    def unpause(self) -> None:
        """The time since the last step was spent on something else."""
        self._since = time.monotonic()

    def _line(self, more: str) -> None:
        self._last_line = time.monotonic()
        of = f" of {self.total:,}" if self.total is not None else ""
        left = ""
        if self.total is not None and self.done > self.initial:
            seconds = self.spent / (self.done - self.initial) * (self.total - self.done)
            left = f", {tqdm.format_interval(seconds)} left"
        print(f"{self.what}: {self.unit} {self.done:,}{of}{more}{left}", file=sys.stderr, flush=True)

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None
