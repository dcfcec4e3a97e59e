"""Text from standard input: typed lines, piped lines, or all of it."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable, Iterator
from typing import TypeVar

from tinyformer.common.encodings import encoding_of
from tinyformer.common.errors import UserError
from tinyformer.common.files import read_file
from tinyformer.data.files import check_file, decoded, with_newlines

_Text = TypeVar("_Text", str, list[str])


def typed_lines(prompt: str) -> Iterator[str]:
    """Print the ``prompt`` on standard error, then yield each typed line up to an empty one. Raises UserError for bytes that
    are not text."""
    print(prompt, file=sys.stderr)
    while line := text_of_input(sys.stdin.readline).strip():
        yield line


def piped_lines() -> list[str] | None:
    """Return all lines of a pipe or a file, without the spaces around them, or None if the input is a terminal. Raises
    UserError for bytes that are not text."""
    if sys.stdin.isatty():
        return None
    lines = text_of_input(sys.stdin.readlines)
    return [line.removeprefix("\ufeff").strip() for line in lines]  # Windows marks the beginning of a text so


def text_of_input(read: Callable[[], _Text]) -> _Text:
    """Return what ``read`` reads of standard input. Raises UserError for bytes that are not text."""
    try:
        return read()
    except UnicodeDecodeError as error:
        name, wanted = encoding_of(error.object), codecs.lookup(error.encoding).name
        how = f": convert it, as in iconv -f {name} -t UTF-8"
        if wanted != "utf-8":  # as PYTHONIOENCODING or the locale says: what is converted to UTF-8 would be refused, too
            how = f": it seems to be {name}, so set PYTHONIOENCODING={name}"
        elif name == "UTF-8":
            how = ", or is damaged"
        raise UserError(f"the input is not {error.encoding} text{how if name else ', or is damaged'}") from None


def text_at(path: str) -> str:
    """Return the text of a UTF-8 file, or of standard input for "-", without a final line end. Raises UserError for what cannot
    be read, and for bytes that are not text."""
    if path == "-":
        text = with_newlines(text_of_input(sys.stdin.read).removeprefix("\ufeff"))
    else:
        check_file(path, "pass a text file, or - for standard input")
        text = decoded(path, read_file(path, None))
    return text.removesuffix("\n")
