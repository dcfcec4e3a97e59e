"""Show the progress of a long task, and stop it on signals.

Progress is a bar on a terminal or in a notebook, and separate lines in a file or pipe.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Protocol

from tqdm import tqdm
from tqdm.std import TqdmDefaultWriteLock

from tinyformer.common.errors import escaped
from tinytensor.device.forks import free_in_forks

SECONDS_BETWEEN_LINES = 10.0
WIDEST_LINE = 79  # columns per line in a file
TQDM_BAR = 10  # columns of its bar if the terminal width is unknown
LEAST_BAR = 4  # minimum columns of the bar; otherwise it is omitted
MARKED = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
SHORT = "{n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
COUNT = "{n_fmt}/{total_fmt}"
OPEN = "{n_fmt}{unit} [{elapsed}{postfix}]"  # if the total is unknown


class Progress(Protocol):
    """Protocol for displays of a task's steps, results and messages. As a context manager, it closes itself."""

    def update(self, n: float = 1) -> object:
        """Report ``n`` more steps."""

    def set_postfix_str(self, s: str) -> object:
        """Show this text next to the steps until the next call."""

    def write(self, s: str) -> object:
        """Print a line to standard output without breaking the bar."""

    def unpause(self) -> object:
        """Exclude the time since the last step from the estimate of remaining time."""

    def __enter__(self) -> Progress: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> object: ...


def show_progress(what: str, total: int | None, unit: str, initial: int = 0, quiet: bool = False) -> Progress:
    """Return a progress display for ``total`` steps (None: unknown), starting after ``initial`` steps. If ``quiet``, it shows
    nothing."""
    what = escaped(what)
    bar_class = TerminalBar if quiet or (sys.stderr is not None and sys.stderr.isatty()) else _notebook_bar()
    if bar_class is None:
        return Lines(what, total, unit, initial)
    bar: Progress = bar_class(
        total=total, initial=initial, desc=what, unit=unit, dynamic_ncols=True, smoothing=0.1, disable=quiet
    )
    return bar


@contextmanager
def lasting_progress(what: str, total: int | None, unit: str, initial: int = 0, quiet: bool = False) -> Iterator[Progress]:
    """Context manager with a progress display that can be closed after its terminal is gone."""
    shown = show_progress(what, total, unit, initial, quiet)
    try:
        yield shown
    finally:
        with suppress(OSError):
            shown.__exit__(None, None, None)


def _notebook_bar() -> Any:
    """Return tqdm's notebook bar if this is a notebook with ipywidgets, otherwise None. (tqdm.auto warns if ipywidgets is
    missing, then draws a bar where only lines are readable.)"""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)  # already imported in a notebook
    if get_shell is None or not hasattr(get_shell(), "kernel") or find_spec("ipywidgets") is None:
        return None
    from tqdm.notebook import tqdm as notebook_bar

    return notebook_bar


def _after_fork() -> None:
    """In a forked child, release tqdm's second lock. All processes share it, and another thread may have held it.
    (multiprocessing does this only in its own children.)"""
    shared = getattr(TqdmDefaultWriteLock, "mp_lock", None)
    if shared is not None:
        shared._semlock._after_fork()


free_in_forks(TqdmDefaultWriteLock.th_lock)  # held while drawing a bar
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_after_fork)


class TerminalBar(tqdm):  # type: ignore[misc, type-arg, unused-ignore]
    """tqdm's bar, except that a narrow terminal drops less important values instead of cutting through one."""

    @staticmethod
    def format_meter(
        n: float, total: float, elapsed: float, ncols: int | None = None, postfix: Any = None, **options: Any
    ) -> str:
        """Format the bar. ``postfix`` lists results separated by ", ", most important first. ``ncols`` is 0 if the terminal's
        width is unknown."""
        if ncols == 0:
            ncols = shutil.get_terminal_size().columns - 1  # from COLUMNS, or 80
        options["prefix"] = (options.get("prefix") or "").removesuffix(": ")  # both tqdm's format and MARKED add it
        parts = str(postfix).split(", ") if postfix else []
        forms: list[tuple[str | None, int]] = [(options.pop("bar_format", None), len(parts))]
        if total is None:
            forms += [(OPEN, kept) for kept in range(len(parts), -1, -1)]
        else:
            forms += [(MARKED, kept) for kept in range(len(parts), 1, -1)]
            forms += [(SHORT, kept) for kept in range(min(len(parts), 2), -1, -1)] + [(COUNT, 0)]
        for form, kept in forms:
            shown = {**options, "bar_format": form, "postfix": ", ".join(parts[:kept]) or None}
            text = tqdm.format_meter(n, total, elapsed, None, **shown)
            marks = form in (None, MARKED) and total is not None
            if not ncols or len(text) - (TQDM_BAR - LEAST_BAR if marks else 0) <= ncols:
                break
        return str(tqdm.format_meter(n, total, elapsed, ncols, **shown))


class Lines:
    """Prints progress as lines to standard error: one for every message, otherwise one every ten seconds. A wide line omits the
    last parts of the text."""

    def __init__(self, what: str, total: int | None, unit: str, initial: int = 0):
        self.what = what
        self.total = total
        self.unit = unit
        self.done = self.initial = initial
        self.spent = 0.0  # seconds spent on steps only
        self._since = self._last_line = time.monotonic()

    def update(self, n: float = 1) -> None:
        """Report ``n`` more steps."""
        self.done += int(n)
        now = time.monotonic()
        self.spent += now - self._since
        self._since = now
        if now - self._last_line > SECONDS_BETWEEN_LINES:
            self._line("")

    def set_postfix_str(self, s: str) -> None:
        """Show this text with the step count."""
        self._line(f", {s}")

    def write(self, s: str) -> None:
        """Print a line to standard output."""
        print(s, flush=True)

    def unpause(self) -> None:
        """Exclude the time since the last step from the estimate of remaining time."""
        self._since = time.monotonic()

    def _line(self, more: str) -> None:
        self._last_line = time.monotonic()
        of = f" of {self.total:,}" if self.total is not None else ""
        left = ""
        if self.total is not None and self.done > self.initial:
            seconds = self.spent / (self.done - self.initial) * (self.total - self.done)
            left = f", {tqdm.format_interval(seconds)} left"
        begin = f"{self.what}: {self.unit} {self.done:,}{of}"
        while ", " in more[2:] and len(begin + more + left) > WIDEST_LINE:
            more = more.rpartition(", ")[0]
        print(f"{begin}{more}{left}", file=sys.stderr, flush=True)

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None


def write_or_stop(stop: Callable[[str], None], write: Callable[..., object], *arguments: object) -> None:
    """Call ``write``, which prints. If that fails (for example, the terminal was closed), call ``stop`` with the reason."""
    try:
        write(*arguments)
    except OSError as error:
        stop(f"the end of its output ({error.strerror})")


@contextmanager
def stop_on_signals(stop: Callable[[str], None]) -> Iterator[None]:
    """Context manager that calls ``stop`` with the signal name on Ctrl-C, SIGTERM and SIGHUP, so that training ends its step.

    A second Ctrl-C interrupts immediately. The other two resume stopped workers, so that the step can end. Signals that were
    ignored before, such as SIGHUP under nohup, stay ignored. Outside the main thread, this does nothing, because Python
    delivers signals only there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    names = {"SIGINT": "Ctrl-C", "SIGTERM": "SIGTERM", "SIGHUP": "SIGHUP"}
    signals = {getattr(signal, name): said for name, said in names.items() if hasattr(signal, name)}  # Windows has no SIGHUP
    process = os.getpid()
    previous = {number: signal.getsignal(number) or signal.SIG_DFL for number in signals}

    def handle(number: int, frame: Any) -> None:
        if os.getpid() != process:  # a forked child does not train: call the previous handler
            signal.signal(number, previous[signal.Signals(number)])
            signal.raise_signal(number)
            return
        stop(signals[signal.Signals(number)])
        if number == signal.SIGINT:
            signal.signal(number, previous[signal.SIGINT])
        elif hasattr(signal, "SIGCONT"):
            # A worker stopped by SIGSTOP would never finish the step.
            for worker in multiprocessing.active_children():
                with suppress(ProcessLookupError, TypeError):  # it has ended
                    os.kill(worker.pid, signal.SIGCONT)  # type: ignore[arg-type]

    for number, before in previous.items():
        if before is not signal.SIG_IGN:
            signal.signal(number, handle)
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
