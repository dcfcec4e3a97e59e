"""Read text from standard input: typed lines, piped lines, or everything."""

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
    """Print the ``prompt`` to standard error, then yield typed lines until an empty one. Raises UserError for bytes that are
    not text."""
    print(prompt, file=sys.stderr)
    while line := text_of_input(sys.stdin.readline).strip():
        yield line


def piped_lines() -> list[str] | None:
    """Return all lines of a pipe or file, stripped, or None if the input is a terminal. Raises UserError for bytes that are not
    text."""
    if sys.stdin.isatty():
        return None
    lines = text_of_input(sys.stdin.readlines)
    return [line.removeprefix("\ufeff").strip() for line in lines]  # Windows starts text with this mark


def text_of_input(read: Callable[[], _Text]) -> _Text:
    """Return the result of ``read``, which reads standard input. Raises UserError for bytes that are not text."""
    try:
        return read()
    except UnicodeDecodeError as error:
        name, wanted = encoding_of(error.object), codecs.lookup(error.encoding).name
        how = f": convert it, as in iconv -f {name} -t UTF-8"
        if wanted != "utf-8":  # set by PYTHONIOENCODING or the locale: input converted to UTF-8 would also fail
            how = f": it seems to be {name}, so set PYTHONIOENCODING={name}"
        elif name == "UTF-8":
            how = ", or is damaged"
        raise UserError(f"the input is not {error.encoding} text{how if name else ', or is damaged'}") from None


def text_at(path: str) -> str:
    """Return the text of a UTF-8 file (- for standard input) without the final line end. Raises UserError if it cannot be read
    or is not text."""
    if path == "-":
        text = with_newlines(text_of_input(sys.stdin.read).removeprefix("\ufeff"))
    else:
        check_file(path, "pass a text file, or - for standard input")
        text = decoded(path, read_file(path, None))
    return text.removesuffix("\n")
