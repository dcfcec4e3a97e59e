"""Mistakes that a user can mend, told in a line or two. Imports nothing, so that it works when nothing else does."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn


class UserError(ValueError):
    """A setting, file or text that cannot be used; the message says which and what to do about it."""


class SettingError(UserError):
    """A setting that cannot be, named as in its dataclass; ``as_flags`` says it as a command line names it."""

    def __init__(self, message: str, *names: str):
        """``names``: the settings that the message names; without any, the one that it begins with."""
        super().__init__(message)
        self.names = names or (message.split(" ", 1)[0],)

    def as_flags(self) -> str:
        """The message with --batch-size for batch_size."""
        words = "|".join(map(re.escape, self.names))
        return re.sub(rf"\b({words})\b", lambda found: "--" + found[0].replace("_", "-"), str(self))


def shortened(text: str, limit: int = 400) -> str:
    """Text that came from elsewhere, for a message: not more than so many characters."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


@contextmanager
def plain_errors() -> Iterator[None]:
    """For a script: show a user's mistake as ``error: ...`` on standard error and exit with status 2, without a traceback.

    That covers UserError, files that cannot be read or written (OSError), packages or devices that are missing
    (ImportError), and sizes that do not fit in memory (MemoryError). Anything else is a fault of the program and keeps its
    traceback. Ctrl-C exits with status 130; where nobody reads the output any more (``| head``), the script just ends.

    A standard stream that was closed is an empty one meanwhile, and a character that the console lacks is shown as ``?``.
    """
    _mend_streams()
    try:
        try:
            yield
        except SystemExit:  # as after --help
            sys.stdout.flush()
            raise
        sys.stdout.flush()
    except KeyboardInterrupt:
        _end("\ninterrupted", 130)
    except BrokenPipeError:
        _end("", 1)
    except (UserError, OSError, ImportError, MemoryError) as error:
        _end(f"error: {_in_words(error)}", 2)


def _mend_streams() -> None:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if not sys.warnoptions:  # overflow, say: a loss that is no number is told in a line of its own
        warnings.filterwarnings("ignore", category=RuntimeWarning)


def _end(message: str, status: int) -> NoReturn:
    """Say a last thing, and exit. Either stream may be gone by now, and Python would complain of that when it closes them."""
    for stream, text in ((sys.stdout, ""), (sys.stderr, message)):
        try:
            print(text, file=stream, end="\n" if text else "", flush=True)
        except OSError:
            with suppress(OSError, ValueError):  # not every stream is a file
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    raise SystemExit(status) from None


def _in_words(error: BaseException) -> str:
    if isinstance(error, SettingError):
        return error.as_flags()
    if isinstance(error, ModuleNotFoundError):
        return f"the package {error.name!r} is not installed: pip install {error.name}"
    if isinstance(error, OSError) and error.strerror:
        # Where the disk is full and no file is named, it was the output that could not be written.
        where = error.filename or ("standard output" if error.errno in (errno.ENOSPC, errno.EIO) else None)
        return f"{where}: {error.strerror}" if where else error.strerror
    if isinstance(error, MemoryError):
        return _out_of_memory(error)
    return str(error)


def _out_of_memory(error: MemoryError) -> str:
    """What was asked for; where a GPU ran out, what is free; and what needs less."""
    backend = sys.modules.get("tinytensor.backend")  # not imported here: it may be what does not load
    what = backend.out_of_memory(error) if backend else str(error)
    return (
        f"there is not enough memory for this{f': {what}' if what else ''}\n"
        "A lower --batch-size (more --gradient-accumulation-steps make up for it), --block-size or a smaller model needs less; "
        "no checkpoint was touched."
    )
