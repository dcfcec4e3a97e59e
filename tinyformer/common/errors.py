"""Errors that a user can correct, shown in a line or two.

This file imports only the standard library, so that it can report that another package does not load, and of that only what
loads at once: an error or Ctrl-C before it is ready has a traceback.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
import warnings
from contextlib import contextmanager, suppress

TYPE_CHECKING = False  # for type checkers; to import typing takes a while
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import FrameType, TracebackType
    from typing import Any, NoReturn, TextIO

# Characters that do something instead of being seen: the controls of a terminal, of which Escape begins the commands that clear
# the screen; and the marks that reverse the order in which letters are shown.
_CONTROLS = [*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_AS_ESCAPES = {code: ascii(chr(code))[1:-1] for code in [*_CONTROLS, 0x2028, 0x2029]}  # two end a line
_LONGEST_LINE = 800  # characters
_LEFT_OUT = dict.fromkeys(code for code in _CONTROLS if chr(code) not in "\n\t")


def escaped(text: object) -> str:
    """A text from elsewhere for a line of a message: what a terminal would obey is shown as Python writes it, as in ``\\x1b``.

    UserError and ``print_line`` do so with all that they are given. Files, their keys and tokens cannot forge lines, then.
    """
    return str(text).translate(_AS_ESCAPES)


def _bounded(line: str) -> str:
    """A line of a message without its middle where that is long, as a file's may be. The remedy at its end stays."""
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 305]} ... {line[-300:]}"


def print_line(text: object, file: TextIO | None = None) -> None:
    """Print a line of a message. It is ``escaped``, as names in it may be from elsewhere. ``file``: by default standard
    output."""
    print(escaped(text), file=file, flush=True)


class UserError(ValueError):
    """A setting, file or text cannot be used. The message says which, why, and what to do about it.

    A message of two lines is given as two texts. What comes from elsewhere in them is ``escaped``, and lines have a limit.
    """

    needs_no_traceback = True  # also where another rank of MPI raises it

    def __str__(self) -> str:
        return "\n".join(_bounded(escaped(line)) for line in self.args)


class UnknownField(UserError):
    """A file is not damaged, but has a field that this version does not know."""


class SettingError(UserError):
    """A setting has a value that is not allowed. The message uses the name in the dataclass, such as batch_size; ``as_flags``
    uses the flag."""

    def __init__(self, message: str, *names: str):
        """``names`` are the settings that the message names. Without any, it is the first word of the message."""
        super().__init__(message)
        self.names = names or (message.split(" ", 1)[0],)

    def as_flags(self) -> str:
        """The message with flags instead of names: --batch-size for batch_size. Names stay where the command has no such
        flag."""
        known = [name for name in self.names if _command is None or name in _command]
        return self._with_others({name: as_flag(name) for name in known})

    def renamed(self, names: Mapping[str, str]) -> SettingError:
        """The same error, with other names for settings."""
        return SettingError(self._with_others(names), *(names.get(name, name) for name in self.names))

    def _with_others(self, names: Mapping[str, str]) -> str:
        import re

        words = "|".join(map(re.escape, names))
        # "at most" is no name, though it is also a setting of a task.
        return re.sub(rf"(?<!at )\b({words})\b", lambda found: names[found[0]], str(self)) if names else str(self)


@contextmanager
def renamed_settings(**names: str) -> Iterator[None]:
    """A context in which settings have other names than where their errors are raised: ``vocab_size="bpe_tokens"``."""
    try:
        yield
    except SettingError as error:
        raise error.renamed(names) from None


def as_flag(name: str) -> str:
    """The flag of a setting: --batch-size for batch_size."""
    return "--" + name.replace("_", "-")


def shortened(text: str, limit: int = 400) -> str:
    """A text from elsewhere for a message, cut to at most ``limit`` characters."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


# ------------------------------------------------------------------------------------------------ what the user can change

# The flags of the command that runs, by their names in Python, with the values that are in force, as far as they are known.
# None where no command line was read: then nobody knows what the user can change.
_command: dict[str, Any] | None = None
_refused: set[str] = set()  # those of its flags that it refuses here


def note_command(flags: Mapping[str, Any] | None) -> None:
    """Note the flags of the command that runs: messages offer no others."""
    global _command
    _command = None if flags is None else {**(_command or {}), **flags}
    _refused.clear()


def note_values(values: Mapping[str, Any]) -> None:
    """Note the values of settings that are in force, as far as the command has flags for them."""
    if _command is not None:
        _command.update({name: value for name, value in values.items() if name in _command})


def note_refused(names: Iterable[str]) -> None:
    """Note flags that the command refuses, as one that resumes a run does: messages offer them no more."""
    _refused.update(names)


def has_flag(name: str) -> bool:
    """Whether the command that runs takes the flag with this name in Python, such as batch_size. True without a command
    line."""
    return _command is None or (name in _command and name not in _refused)


def given(name: str) -> Any:
    """The value of a flag that the command takes. None where it has none, and without a command line."""
    return _command[name] if _command is not None and has_flag(name) else None


def can_be_lower(name: str, least: int = 1) -> bool:
    """Whether a lower value of a flag, of which ``least`` is the least, can be offered."""
    return has_flag(name) and (_command is None or _command[name] != least)


def if_changed() -> str:
    """What to add to the offer of another value of a setting where a run is resumed, which takes it only so."""
    return " with --resume-changed" if _command is not None and _command.get("resume") is True else ""


def for_programmers(hint: str) -> str:
    """A hint that only a programmer can follow; "" where a command line was read."""
    return hint if _command is None else ""


def another_out() -> str:
    """The offer of another --out, if there is that flag."""
    return ": choose another --out" if has_flag("out") else ""


# --------------------------------------------------------------------------------------------------------- at the end


@contextmanager
def plain_errors() -> Iterator[None]:
    """A context for scripts: it shows an error of the user as ``error: ...`` on standard error, without a traceback, and exits
    with status 2.

    These errors are UserError, files that cannot be read or written (OSError), missing packages or devices (ImportError), and
    sizes that do not fit in memory (MemoryError). Any other exception is a fault of the program and keeps its traceback. Where
    the output is lost, the status is 1: with no message if nobody reads it any more, as in ``| head``, and with one if its disk
    is full. Ctrl-C exits with status 130, from now on also outside the context: a script imports in one of them and runs in
    another.

    Inside the context, a standard stream that was closed is replaced by an empty one, input that is no text is an error, and a
    character that the console cannot show is printed as ``?``. Where the locale is ASCII, files and pipes are UTF-8. On a
    terminal, texts lose the characters that it would obey. Files and pipes get them as they are.
    """
    _begin_telling()
    try:
        try:
            yield
        except SystemExit:  # as after --help
            sys.stdout.flush()
            raise
        sys.stdout.flush()
    except (KeyboardInterrupt, Exception) as error:
        _end_by(error)
        raise


def tell_errors_plainly() -> None:
    """Do from now on, to the end of the process, what ``plain_errors`` does inside its block: for a script that is read from
    top to bottom, without a function that a block could call."""
    import atexit

    _begin_telling()
    show = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        _end_by(error)
        show(kind, error, trace)

    def flush() -> None:
        try:
            sys.stdout.flush()
        except OSError as error:  # no exception changes the status any more
            with suppress(SystemExit):
                _end_by(error)
            os._exit(1)

    tell.ends = _end  # type: ignore[attr-defined]
    sys.excepthook = tell
    atexit.register(flush)  # before all others, and so called after them


def _begin_telling() -> None:
    _watch_interrupts()
    _mend_streams()
    if _interrupted:  # and lost, in an import
        _end("\ninterrupted", 130)


def _end_by(error: BaseException) -> None:
    """End the script where the error is of those that ``plain_errors`` tells."""
    if isinstance(error, KeyboardInterrupt) or (_interrupted and isinstance(error, ImportError)):
        _end("\ninterrupted", 130)
    if isinstance(error, BrokenPipeError):
        _end("", 1)
    if isinstance(error, (UserError, OSError, ImportError, MemoryError)):
        _end(f"error: {_in_words(error)}", 1 if _is_of_output(error) else 2)


def stop_script(by: str, message: str) -> NoReturn:
    """End a script whose work was stopped: print the message, and exit with the status that tells the shell, make or Slurm that
    the work is not done.

    ``by``: what stopped it, as ``Trainer.stopped_by`` says. The status is 130 after Ctrl-C, 143 after SIGTERM and 129 after
    SIGHUP, as if the signal had killed the script; and 1 after anything else, such as the end of its output.
    """
    _end("", _STOPPED.get(by, 1), printed=message)


# Whether Ctrl-C came, as packages that are interrupted while they are imported may forget it, or say that they do not work.
_interrupted = False


def _watch_interrupts() -> None:
    """End with status 130 where Ctrl-C comes outside of ``plain_errors``, and pass it on where Python would print it and go on:
    in a callback that cannot raise, such as those of its imports."""
    if getattr(sys.excepthook, "ends", None) is _end:
        return
    import _signal  # which Python has loaded, unlike signal

    show, show_ignored = sys.excepthook, sys.unraisablehook

    def end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            _end("\ninterrupted", 130)
        show(kind, error, trace)

    def pass_on(ignored: sys.UnraisableHookArgs) -> None:
        if not issubclass(ignored.exc_type, KeyboardInterrupt):
            show_ignored(ignored)
        elif not sys.is_finalizing():  # from a thread, as it would be lost in this function, too
            import threading

            threading.Timer(0.01, _signal.raise_signal, [_signal.SIGINT]).start()

    def note(number: int, frame: FrameType | None) -> None:
        global _interrupted
        _interrupted = True
        _signal.default_int_handler(number, frame)

    end.ends = _end  # type: ignore[attr-defined]
    sys.excepthook, sys.unraisablehook = end, pass_on
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        with suppress(ValueError):  # only the main thread may
            _signal.signal(_signal.SIGINT, note)


def _mend_streams() -> None:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding=_encoding(sys.stdin), errors="strict")  # C.UTF-8 lets bytes pass that are no text
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding=_encoding(sys.stdout), errors="replace")
    for name, moves in (("stdout", False), ("stderr", True)):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and not isinstance(stream, _Terminal) and stream.isatty():
            setattr(sys, name, _Terminal(stream, moves))
    if not sys.warnoptions:  # such as overflow: if a loss becomes NaN, training says so itself
        warnings.filterwarnings("ignore", category=RuntimeWarning)


class _Terminal(io.TextIOWrapper):
    """A stream to a terminal. Of a text it writes the letters, tabs and ends of lines, and leaves out what would clear the
    screen or write over other lines. With ``moves``, a text may begin so, as the texts of a progress bar do."""

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


def _encoding(stream: io.TextIOWrapper) -> str:
    """The encoding of a standard stream. A locale of ASCII tells what the terminal can show, but files and pipes are UTF-8
    there, too, as all our files are."""
    if codecs.lookup(stream.encoding).name == "ascii" and not stream.isatty() and "PYTHONIOENCODING" not in os.environ:
        return "utf-8"
    return stream.encoding


_STOPPED = {"Ctrl-C": 130, "SIGTERM": 143, "SIGHUP": 129}  # 128 and the signal's number, as shells have it
# Errors that name no file, and so are those of a standard stream: its disk or its quota is full, or it is closed.
_LOST = {getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EFBIG", "EIO", "EBADF") if hasattr(errno, name)}


def _is_of_output(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.filename is None and error.errno in _LOST


def _end(message: str, status: int, printed: str = "") -> NoReturn:
    """Print a last message on standard error, and one on standard output; and exit. Either stream may be gone by now; Python
    would complain about that when it closes them, so a broken stream is replaced."""
    for stream, text in ((sys.stdout, printed), (sys.stderr, message)):
        try:
            print(text, file=stream, end="\n" if text else "", flush=True)
        except OSError:
            with suppress(OSError, ValueError):  # not every stream is a file
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    raise SystemExit(status) from None


_OF_DATA = ("tinyformer.data.", "tinyformer.tokenizers.")
_OF_WORK = ("tinyformer.training.", "tinyformer.decoding.", "tinyformer.models.")


def _in_words(error: BaseException) -> str:
    if isinstance(error, SettingError):
        return error.as_flags()
    if isinstance(error, ModuleNotFoundError):
        return f"the package {error.name!r} is not installed: pip install {error.name}"
    if isinstance(error, OSError) and error.strerror:
        where = error.filename or ("standard output" if _is_of_output(error) else None)
        return escaped(f"{where}: {error.strerror}" if where else error.strerror)
    if isinstance(error, MemoryError):
        return _out_of_memory(error)
    if isinstance(error, ImportError):  # of a package, which may tell it in several lines
        return "\n".join(map(escaped, str(error).split("\n")))
    return str(error) if isinstance(error, UserError) else escaped(error)


def _reads_data(error: BaseException) -> bool:
    """Whether the error arose while data were read or made tokens, before the work began whose size the flags tell."""
    modules, frames = [], error.__traceback__
    while frames is not None:
        modules.append(frames.tb_frame.f_globals.get("__name__", ""))
        frames = frames.tb_next
    return any(name.startswith(_OF_DATA) for name in modules) and not any(name.startswith(_OF_WORK) for name in modules)


# Settings that decide how much memory is needed, with their least values.
_LARGE = {"batch_size": 1, "block_size": 1, "window": 1, "beam": 1, "max_tokens": 1, "width": 1, "limit": 2, "order": 0}


def _out_of_memory(error: MemoryError) -> str:
    """The message for a lack of memory: how much was asked for, how much a GPU has free, and what needs less."""
    backend = sys.modules.get("tinytensor.device.backend")  # not imported here, as it may be the module that does not load
    what = backend.out_of_memory(error) if backend else str(error)
    lower = [as_flag(name) for name, least in _LARGE.items() if can_be_lower(name, least)]
    if "--batch-size" in lower and has_flag("gradient_accumulation_steps"):
        lower[lower.index("--batch-size")] += " (more --gradient-accumulation-steps make up for it)"
    ways = [f"a lower {', '.join(lower)}{if_changed()}"] if lower else []
    ways += ["a smaller model"] if has_flag("d_model") or given("model") or given("init_from") else []
    ways = ways if _command is not None else ["a smaller batch", "a smaller model"]
    ways = ["less data"] if _reads_data(error) else ways
    less = " or ".join(ways).capitalize()
    return (
        f"there is not enough memory for this{f': {escaped(what)}' if what else ''}\n"
        f"{less or 'Fewer other programs at the same time'} may help; no checkpoint was touched."
    )
