"""Mistakes that a user can mend, told in a line or two. Imports nothing, so that it works when nothing else does."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager


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


@contextmanager
def plain_errors() -> Iterator[None]:
    """For a script: show a user's mistake as ``error: ...`` on standard error and exit with status 2, without a traceback.

    That covers UserError, files that cannot be read or written (OSError), packages or devices that are missing
    (ImportError), and sizes that do not fit in memory (MemoryError). Anything else is a fault of the program and keeps its
    traceback. Ctrl-C exits with status 130; where nobody reads the output any more (``| head``), the script just ends.
    """
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it closes it at exit
        raise SystemExit(1) from None
    except (UserError, OSError, ImportError, MemoryError) as error:
        print(f"error: {_in_words(error)}", file=sys.stderr)
        raise SystemExit(2) from None


def _in_words(error: BaseException) -> str:
    if isinstance(error, SettingError):
        return error.as_flags()
    if isinstance(error, ModuleNotFoundError):
        return f"the package {error.name!r} is not installed: pip install {error.name}"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return _out_of_memory(error)
    return str(error)


def _out_of_memory(error: MemoryError) -> str:
    """What was asked for; where a GPU ran out, what is free; and what needs less."""
    backend = sys.modules.get("tinytensor.backend")  # not imported here: it may be what does not load
    what = backend.out_of_memory(error) if backend else str(error)
    return (
        f"there is not enough memory for this{f': {what}' if what else ''}\n"
        "A lower --batch-size (more --accumulation makes up for it), --block-size or a smaller model needs less; no checkpoint "
        "was touched."
    )
