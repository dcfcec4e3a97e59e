"""Files on the disk: whether they can be read, and what they hold."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tinyformer.common.encodings import how_to_read
from tinyformer.common.errors import UserError

READING = 3  # bytes of memory for each byte of a file, at least: the bytes, the text, and what is made of the text


def status(path: str | Path, wanted: str) -> os.stat_result:
    """The status of the file or folder at a path. Links are followed. Raises UserError if there is none; ``wanted`` is the end
    of the message and says what to do."""
    if not os.fspath(path):
        raise UserError(f"an empty name is not a path: {wanted}")
    try:
        return os.stat(path)
    except FileNotFoundError:
        if os.path.islink(path):
            raise UserError(f"{path} is a link to {os.readlink(path)}, which does not exist: {wanted}") from None
        raise UserError(f"{path} does not exist: {wanted}") from None
    except ValueError:
        raise UserError(f"{os.fspath(path)!r} cannot be a path: {wanted}") from None


def check_file(path: str | Path, wanted: str, *like: str) -> int:
    """The size of a regular file. Raises UserError for anything else: reading from a pipe or a device may never end. Of a
    folder, the message names a file in it whose name is ``like`` those that are wanted, as in "*.wav", if there is one."""
    found = status(path, wanted)
    if not stat.S_ISREG(found.st_mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        inside = _file_in(path, like) if stat.S_ISDIR(found.st_mode) else None
        hint = f", such as {inside}" if inside else ""
        raise UserError(f"{path} is not a regular file but {kinds.get(stat.S_IFMT(found.st_mode), 'a device')}: {wanted}{hint}")
    return found.st_size


def _file_in(folder: str | Path, patterns: Sequence[str]) -> Path | None:
    """A file in a folder with a name like the first of these patterns for which there is one. Hidden files do not count."""
    with suppress(OSError):
        for pattern in patterns:
            if found := sorted(path for path in Path(folder).glob(pattern) if path.is_file() and path.name[0] != "."):
                return found[0]
    return None


def decoded(path: str | Path, content: bytes | bytearray) -> str:
    """The text in the content of a UTF-8 file, without a byte order mark, and with ``\\n`` at the end of each line.

    Raises UserError if it is not UTF-8. The message names the file and the byte, and tells how to convert this very file.
    """
    try:
        text = content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}): {how_to_read(path, content)}") from None
    if 5 * content.count(0) > len(content):  # what UTF-16 without its mark has for ASCII
        raise UserError(f"{path} is not UTF-8 text (byte {content.index(0)}): {how_to_read(path, content)}")
    return with_newlines(text)


def with_newlines(text: str) -> str:
    r"""The text with ``\n`` at the end of each line, where Windows has ``\r\n``, and a Mac once had ``\r``.

    A lone ``\r`` ends a line only where nothing else does: in other files it is a part of the line.
    """
    text = text.replace("\r\n", "\n")
    return text if "\n" in text.rstrip("\r\n") else text.replace("\r", "\n")
