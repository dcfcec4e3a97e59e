"""Errors that a user can correct, shown in a line or two, and safe standard streams.

This file imports only parts of the standard library that load immediately, because it reports packages that do not load. Before
it is ready, an error or Ctrl-C has a traceback.
"""

from __future__ import annotations

import _signal  # which Python has loaded, unlike signal
import atexit
import codecs
import errno
import io
import os
import sys
import warnings
from contextlib import contextmanager, suppress

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


# ------------------------------------------------------------------------------------------------------ the terminal

# Characters that do something instead of being seen: the controls of a terminal, of which Escape begins the commands that clear
# the screen; and the marks that reverse the order in which letters are shown.
_CONTROLS = [*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_AS_ESCAPES = {code: ascii(chr(code))[1:-1] for code in [*_CONTROLS, 0x2028, 0x2029]}  # two end a line
_LEFT_OUT = dict.fromkeys(code for code in _CONTROLS if chr(code) not in "\n\t")


def escaped(text: object) -> str:
    """Return a string for a line of a message, with what a terminal would obey as Python writes it, such as ``\\x1b``.

    UserError and ``print_line`` escape all that they are given, so files, their keys and tokens cannot forge lines.
    """
    return str(text).translate(_AS_ESCAPES)


def mend_streams() -> None:
    """Make the standard streams safe to use.

    A closed stream becomes an empty one. Input that is not text raises UnicodeDecodeError, and a character that the console
    cannot show is printed as ``?``. In an ASCII locale, files and pipes are UTF-8. A terminal gets no characters that it would
    obey; files and pipes get every character.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    for stream, errors in ((sys.stdin, "strict"), (sys.stdout, "replace")):  # C.UTF-8 accepts bytes that are not text
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=_encoding(stream), errors=errors)
    for name, moves in (("stdout", False), ("stderr", True)):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and not isinstance(stream, _Terminal) and stream.isatty():
            setattr(sys, name, _Terminal(stream, moves))


def _encoding(stream: io.TextIOWrapper) -> str:
    """Return the encoding of a standard stream. An ASCII locale tells what the terminal can show, but files and pipes are UTF-8
    there, too, as all our files are."""
    if codecs.lookup(stream.encoding).name == "ascii" and not stream.isatty() and "PYTHONIOENCODING" not in os.environ:
        return "utf-8"
    return stream.encoding


class _Terminal(io.TextIOWrapper):
    """A stream to a terminal, without the characters that would clear the screen or write over other lines. With ``moves``, a
    string may begin with such characters, as those of a progress bar do."""

    def __init__(self, stream: io.TextIOWrapper, moves: bool):
        stream.flush()
        binary = open(stream.fileno(), "wb", closefd=False)  # noqa: SIM115
        super().__init__(binary, stream.encoding, stream.errors, line_buffering=True, write_through=stream.write_through)
        self._moves = moves

    def write(self, text: str) -> int:
        rest = text
        while self._moves and rest.startswith(("\r", "\n", "\x1b[A", "\x1b[2K")):
            rest = rest.removeprefix("\x1b[A").removeprefix("\x1b[2K").lstrip("\r\n")
        super().write(text[: len(text) - len(rest)] + rest.translate(_LEFT_OUT))
        return len(text)
