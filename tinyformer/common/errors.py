"""User-correctable errors, shown in one or two lines, and safe standard streams.

This file imports only fast standard library modules, because it reports packages that fail to load. Until it is loaded, an
error or Ctrl-C prints a traceback.
"""

from __future__ import annotations

import _signal  # already loaded by Python, unlike signal
import atexit
import codecs
import errno
import io
import os
import sys
import warnings
from contextlib import contextmanager, suppress

TYPE_CHECKING = False  # for type checkers; importing typing is slow
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import FrameType, TracebackType
    from typing import NoReturn, TextIO


class UserError(ValueError):
    """A setting, file or text cannot be used. The message says which one, why, and how to fix it.

    A two-line message is passed as two strings. External text in them is ``escaped``, and lines have a maximum length.
    """

    needs_no_traceback = True  # also if another MPI rank raises it

    def __str__(self) -> str:
        lines = map(escaped, self.args)  # a long one loses its middle: the fix is at its end
        return "\n".join(line if len(line) <= 800 else f"{line[:495]} ... {line[-300:]}" for line in lines)


class UnknownField(UserError):
    """A file is not damaged, but has a field unknown to this version."""


class SettingError(UserError):
    """A setting has an invalid value. The message uses the dataclass name, such as batch_size. A command replaces it with its
    flag, --batch-size."""

    def __init__(self, message: str, *names: str):
        """``names`` are the settings in the message (default: its first word)."""
        super().__init__(message)
        self.names = names or (message.split(" ", 1)[0],)

    def renamed(self, names: Mapping[str, str]) -> SettingError:
        """Return the error with renamed settings."""
        import re

        known = {name: names.get(name, name) for name in self.names}
        # "at most" is not a name, though it is also a task setting.
        message = re.sub(r"(?<!at )\b\w+", lambda match: known.get(match[0], match[0]), str(self))
        return SettingError(message, *known.values())


@contextmanager
def renamed_settings(**names: str) -> Iterator[None]:
    """Context manager that renames settings in errors: ``vocab_size="bpe_tokens"``."""
    try:
        yield
    except SettingError as error:
        raise error.renamed(names) from None


def shortened(text: str, limit: int = 400) -> str:
    """Truncate external text in a message to ``limit`` characters."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def print_line(text: object, file: TextIO | None = None) -> None:
    """Print one line of a message, ``escaped``, to ``file`` (default: standard output)."""
    print(escaped(text), file=file, flush=True)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Context manager for scripts. It prints user errors as ``error: ...`` to standard error, without a traceback, and exits
    with status 2.

    These errors are UserError, unreadable or unwritable files (OSError), missing packages or devices (ImportError), and sizes
    that do not fit in memory (MemoryError). Any other exception is a bug and shows its traceback. If output is lost, the status
    is 1: without a message if the reader has left, as in ``| head``, and with one if the disk is full. Ctrl-C exits with status
    130. These rules, and ``mend_streams``, stay in effect after the context.
    """
    tell_errors_plainly()
    try:
        yield
    except (KeyboardInterrupt, Exception) as error:
        _end_by(error)
        raise


def tell_errors_plainly() -> None:
    """Apply ``plain_errors`` permanently, for scripts without a function to wrap in the context."""
    if sys.excepthook is not _show:
        sys.excepthook, sys.unraisablehook = _show, _end_if_interrupted
        atexit.register(_flush)  # registered before all others, and so called last
        if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
            with suppress(ValueError):  # allowed only in the main thread
                _signal.signal(_signal.SIGINT, _interrupt)
        if not sys.warnoptions:  # such as overflow: training itself reports a NaN loss
            warnings.filterwarnings("ignore", category=RuntimeWarning)
    mend_streams()
    if _interrupted:  # and lost, in an import
        _end("\ninterrupted", 130)


def stop_script(by: str, message: str) -> NoReturn:
    """End a script whose work was stopped. Print the message and exit with a status that tells the shell, make or Slurm that
    the work is incomplete.

    ``by`` is what stopped it, as in ``Trainer.stopped_by``. The status is 130 after Ctrl-C, 143 after SIGTERM and 129 after
    SIGHUP, as if the signal had killed the script. It is 1 in all other cases, such as lost output.
    """
    _end("", {"Ctrl-C": 130, "SIGTERM": 143, "SIGHUP": 129}.get(by, 1), printed=message)


_interrupted = False  # True after Ctrl-C: a package interrupted during its import may ignore it, or seem damaged


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _interrupted
    _interrupted = True
    _signal.default_int_handler(number, frame)


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    _end_by(error)
    sys.__excepthook__(kind, error, trace)


def _end_if_interrupted(ignored: sys.UnraisableHookArgs) -> None:
    """Exit immediately if Ctrl-C came in a callback that cannot raise, such as import callbacks. Python would continue."""
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        with suppress(SystemExit):
            _end("\ninterrupted", 130)
        os._exit(130)
    sys.__unraisablehook__(ignored)


def _flush() -> None:
    try:
        sys.stdout.flush()
    except OSError as error:  # exceptions no longer change the status
        with suppress(SystemExit):
            _end_by(error)
        os._exit(1)


def _end_by(error: BaseException) -> None:
    """End the script if ``plain_errors`` reports this error."""
    if isinstance(error, KeyboardInterrupt) or (_interrupted and isinstance(error, ImportError)):
        _end("\ninterrupted", 130)
    if isinstance(error, BrokenPipeError):
        _end("", 1)
    if isinstance(error, (UserError, OSError, ImportError, MemoryError)):
        _end(f"error: {_in_words(error)}", 1 if _is_of_output(error) else 2)


def _end(message: str, status: int, printed: str = "") -> NoReturn:
    """Print a final message to standard error and one to standard output, and exit. Replace a lost stream, because Python would
    complain when closing it."""
    for stream, text in ((sys.stdout, printed), (sys.stderr, message)):
        try:
            print(text, file=stream, end="\n" if text else "", flush=True)
        except OSError:
            with suppress(OSError, ValueError):  # not every stream is a file
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    raise SystemExit(status) from None


def _is_of_output(error: BaseException) -> bool:
    """Return True if a standard stream was lost: its disk or quota is full, or it is closed. Such errors name no file."""
    lost = {getattr(errno, name, None) for name in ("ENOSPC", "EDQUOT", "EFBIG", "EIO", "EBADF")}
    return isinstance(error, OSError) and error.filename is None and error.errno in lost - {None}


def _in_words(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"the package {error.name!r} is not installed: pip install {error.name}"
    if isinstance(error, OSError) and error.strerror:
        where = error.filename or ("standard output" if _is_of_output(error) else None)
        return escaped(f"{where}: {error.strerror}" if where else error.strerror)
    if isinstance(error, MemoryError):
        backend = sys.modules.get("tinytensor.device.backend")  # not imported here: it may be the module that fails to load
        amount = escaped(backend.out_of_memory(error) if backend else error)
        ways = (
            "Lower batch_size (gradient_accumulation_steps make up for it) or block_size, or use a smaller model or less data"
        )
        return f"there is not enough memory for this{amount and f': {amount}'}\n{ways}; no checkpoint was touched."
    if isinstance(error, ImportError):  # a package's error may span several lines
        return "\n".join(map(escaped, str(error).split("\n")))
    return str(error) if isinstance(error, UserError) else escaped(error)


# ------------------------------------------------------------------------------------------------------ the terminal

# Characters that act on a terminal instead of being shown: control characters, including Escape, which starts commands such as
# clearing the screen, and marks that reverse the display order of letters.
_CONTROLS = [*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_AS_ESCAPES = {code: ascii(chr(code))[1:-1] for code in [*_CONTROLS, 0x2028, 0x2029]}  # the last two end a line
_LEFT_OUT = dict.fromkeys(code for code in _CONTROLS if chr(code) not in "\n\t")


def escaped(text: object) -> str:
    """Escape characters that a terminal would obey, as Python does (``\\x1b``). Return a string for one line of a message.

    UserError and ``print_line`` escape all arguments, so files, their keys and tokens cannot forge lines.
    """
    return str(text).translate(_AS_ESCAPES)


def mend_streams() -> None:
    """Make the standard streams safe to use.

    A closed stream becomes empty. Input that is not text raises UnicodeDecodeError, and a character that the console cannot
    show prints as ``?``. In an ASCII locale, files and pipes use UTF-8. Terminals get no characters that they would obey. Files
    and pipes get every character.
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
    """Return the encoding of a standard stream. An ASCII locale describes the terminal. Files and pipes still use UTF-8, like
    all our files."""
    if codecs.lookup(stream.encoding).name == "ascii" and not stream.isatty() and "PYTHONIOENCODING" not in os.environ:
        return "utf-8"
    return stream.encoding


class _Terminal(io.TextIOWrapper):
    """A terminal stream without characters that would clear the screen or overwrite other lines. If ``moves`` is True, a string
    may start with such characters, as in a progress bar."""

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
