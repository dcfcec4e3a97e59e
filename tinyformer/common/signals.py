"""Signals such as Ctrl-C: training finishes its step before it stops."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any


def write_or_stop(stop: Callable[[str], None], write: Callable[..., object], *what: object) -> None:
    """Call ``write``, which shows something on a standard stream. If that fails, as when the terminal was closed, call ``stop``
    with the reason."""
    try:
        write(*what)
    except OSError as error:
        stop(f"the end of its output ({error.strerror})")


@contextmanager
def stop_on_signals(stop: Callable[[str], None]) -> Iterator[None]:
    """A context that calls ``stop`` with the signal's name at Ctrl-C, SIGTERM and SIGHUP, so that training can finish its step.

    A second Ctrl-C interrupts at once. The other two wake workers that were stopped, so that the step can end. A signal that
    was ignored before, such as SIGHUP under nohup, stays ignored. In any other than the main thread this does nothing, because
    Python delivers signals only to the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    names = {"SIGINT": "Ctrl-C", "SIGTERM": "SIGTERM", "SIGHUP": "SIGHUP"}
    signals = {getattr(signal, name): said for name, said in names.items() if hasattr(signal, name)}  # Windows has no SIGHUP
    process = os.getpid()
    previous = {number: signal.getsignal(number) or signal.SIG_DFL for number in signals}

    def handle(number: int, frame: Any) -> None:
        if os.getpid() != process:  # a forked child does not train: the signal does to it what it did before
            signal.signal(number, previous[signal.Signals(number)])
            signal.raise_signal(number)
            return
        stop(signals[signal.Signals(number)])
        if number == signal.SIGINT:
            signal.signal(number, previous[signal.SIGINT])
        elif hasattr(signal, "SIGCONT"):
            # A worker that is stopped, as by SIGSTOP, would not finish the step, and nobody is there to press Ctrl-C again.
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
