"""Strings from elsewhere on a terminal: they clear no screen, write over no line and forge none."""

from __future__ import annotations

import codecs
import io
import os
import sys

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
