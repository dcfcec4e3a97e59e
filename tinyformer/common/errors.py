"""Errors that a user can correct, shown in a line or two.

This file and ``terminal`` import only parts of the standard library that load immediately, because they report packages that do
not load. Before they are ready, an error or Ctrl-C has a traceback.
"""

from __future__ import annotations

import _signal  # which Python has loaded, unlike signal
import atexit
import errno
import os
import sys
import warnings
from contextlib import contextmanager, suppress

from tinyformer.common.terminal import escaped, mend_streams

TYPE_CHECKING = False  # for type checkers; to import typing takes a while
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FrameType, TracebackType
    from typing import NoReturn, TextIO


class UserError(ValueError):
    """A setting, file or text cannot be used. The message says which, why, and what to do about it.

    A message of two lines is given as two texts. What comes from elsewhere in them is ``escaped``, and lines have a limit.
    """

    needs_no_traceback = True  # also where another rank of MPI raises it

    def __str__(self) -> str:
        lines = map(escaped, self.args)  # a long one loses its middle: the remedy is at its end
        return "\n".join(line if len(line) <= 800 else f"{line[:495]} ... {line[-300:]}" for line in lines)


class UnknownField(UserError):
    """A file is not damaged, but has a field that this version does not know."""


class SettingError(UserError):
    """A setting has a value that is not allowed. The message uses the name in the dataclass, such as batch_size. A command
    replaces it by its flag, --batch-size."""

    def __init__(self, message: str, *names: str):
        """``names`` are the settings that the message names. Without any, it is the first word of the message."""
        super().__init__(message)
        self.names = names or (message.split(" ", 1)[0],)

    def renamed(self, names: Mapping[str, str]) -> SettingError:
        """Return the same error with other names for its settings."""
        import re

        known = {name: names.get(name, name) for name in self.names}
        # "at most" is no name, though it is also a setting of a task.
        message = re.sub(r"(?<!at )\b\w+", lambda match: known.get(match[0], match[0]), str(self))
        return SettingError(message, *known.values())


@contextmanager
def renamed_settings(**names: str) -> Iterator[None]:
    """A context in which settings have other names than where their errors are raised: ``vocab_size="bpe_tokens"``."""
    try:
        yield
    except SettingError as error:
        raise error.renamed(names) from None


def shortened(text: str, limit: int = 400) -> str:
    """Return a text from elsewhere for a message, cut to at most ``limit`` characters."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def print_line(text: object, file: TextIO | None = None) -> None:
    """Print a line of a message, ``escaped``, to ``file`` (default: standard output)."""
    print(escaped(text), file=file, flush=True)


@contextmanager
def plain_errors() -> Iterator[None]:
    """A context for scripts that shows a user's errors as ``error: ...`` on standard error, without a traceback, and exits with
    status 2.

    These errors are UserError, files that cannot be read or written (OSError), missing packages or devices (ImportError), and
    sizes that do not fit in memory (MemoryError). Any other exception is a fault of the program and keeps its traceback. If the
    output is lost, the status is 1: without a message if its reader has left, as in ``| head``, and with one if its disk is
    full. Ctrl-C exits with status 130. All of this, and what ``mend_streams`` does, holds from now on, also after the context.
    """
    tell_errors_plainly()
    try:
        yield
    except (KeyboardInterrupt, Exception) as error:
        _end_by(error)
        raise


def tell_errors_plainly() -> None:
    """Do what ``plain_errors`` does from now on, for a script without a function that its block could call."""
    if sys.excepthook is not _show:
        sys.excepthook, sys.unraisablehook = _show, _end_if_interrupted
        atexit.register(_flush)  # before all others, and so called after them
        if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
            with suppress(ValueError):  # only the main thread may
                _signal.signal(_signal.SIGINT, _interrupt)
        if not sys.warnoptions:  # such as overflow: if a loss becomes NaN, training says so itself
            warnings.filterwarnings("ignore", category=RuntimeWarning)
    mend_streams()
    if _interrupted:  # and lost, in an import
        _end("\ninterrupted", 130)


def stop_script(by: str, message: str) -> NoReturn:
    """End a script whose work was stopped: print the message, and exit with the status that tells the shell, make or Slurm that
    the work is not done.

    ``by``: what stopped it, as ``Trainer.stopped_by`` says. The status is 130 after Ctrl-C, 143 after SIGTERM and 129 after
    SIGHUP, as if the signal had killed the script; and 1 after anything else, such as the end of its output.
    """
    _end("", {"Ctrl-C": 130, "SIGTERM": 143, "SIGHUP": 129}.get(by, 1), printed=message)


_interrupted = False  # whether Ctrl-C came: a package that it stops while it is imported may forget it, or seem damaged


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _interrupted
    _interrupted = True
    _signal.default_int_handler(number, frame)


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    _end_by(error)
    sys.__excepthook__(kind, error, trace)


def _end_if_interrupted(ignored: sys.UnraisableHookArgs) -> None:
    """End at once if Ctrl-C came in a callback that cannot raise, such as those of imports: Python would continue."""
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        with suppress(SystemExit):
            _end("\ninterrupted", 130)
        os._exit(130)
    sys.__unraisablehook__(ignored)


def _flush() -> None:
    try:
        sys.stdout.flush()
    except OSError as error:  # no exception changes the status any more
        with suppress(SystemExit):
            _end_by(error)
        os._exit(1)


def _end_by(error: BaseException) -> None:
    """End the script if the error is one that ``plain_errors`` reports."""
    if isinstance(error, KeyboardInterrupt) or (_interrupted and isinstance(error, ImportError)):
        _end("\ninterrupted", 130)
    if isinstance(error, BrokenPipeError):
        _end("", 1)
    if isinstance(error, (UserError, OSError, ImportError, MemoryError)):
        _end(f"error: {_in_words(error)}", 1 if _is_of_output(error) else 2)


def _end(message: str, status: int, printed: str = "") -> NoReturn:
    """Print a last message on standard error and one on standard output, and exit. A stream that is gone is replaced, because
    Python would complain when it closes it."""
    for stream, text in ((sys.stdout, printed), (sys.stderr, message)):
        try:
            print(text, file=stream, end="\n" if text else "", flush=True)
        except OSError:
            with suppress(OSError, ValueError):  # not every stream is a file
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    raise SystemExit(status) from None


def _is_of_output(error: BaseException) -> bool:
    """Return whether a standard stream was lost: its disk or its quota is full, or it is closed. Such errors name no file."""
    lost = {getattr(errno, name, None) for name in ("ENOSPC", "EDQUOT", "EFBIG", "EIO", "EBADF")}
    return isinstance(error, OSError) and error.filename is None and error.errno in lost - {None}


def _in_words(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"the package {error.name!r} is not installed: pip install {error.name}"
    if isinstance(error, OSError) and error.strerror:
        where = error.filename or ("standard output" if _is_of_output(error) else None)
        return escaped(f"{where}: {error.strerror}" if where else error.strerror)
    if isinstance(error, MemoryError):
        backend = sys.modules.get("tinytensor.device.backend")  # not imported here, as it may be the module that does not load
        amount = escaped(backend.out_of_memory(error) if backend else error)
        ways = (
            "Lower batch_size (gradient_accumulation_steps make up for it) or block_size, or use a smaller model or less data"
        )
        return f"there is not enough memory for this{amount and f': {amount}'}\n{ways}; no checkpoint was touched."
    if isinstance(error, ImportError):  # of a package, which may tell it in several lines
        return "\n".join(map(escaped, str(error).split("\n")))
    return str(error) if isinstance(error, UserError) else escaped(error)
