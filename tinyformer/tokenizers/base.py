"""The interface of every tokenizer, and their shared parts: checks of texts and ids, and reading saved files."""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tinyformer.common.errors import UserError
from tinyformer.common.files import damaged, read_json
from tinyformer.common.settings import check_known, read_value
from tinytensor.common.wording import a_or_an

Made = TypeVar("Made")


class Tokenizer(Protocol):
    """Text to ids, 0 to ``vocab_size`` - 1, and back. ``special`` maps the names of special tokens to their ids.

    ``before`` and ``after`` are the ids that a model expects around a text. ``encode`` leaves them to the caller.
    """

    kind: str
    special: dict[str, int]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def vocab_size(self) -> int:
        """The number of tokens, special ones included."""
        ...

    def encode(self, text: str, allow_special: bool = False) -> Any:
        """Return the ids of the text, a NumPy int64 array.

        The name of a special token in the text is plain text unless ``allow_special``, so that untrusted text cannot end a
        sequence, for example. Raises UserError for anything but text (see ``checked_text``), and for text that the tokenizer
        cannot encode.
        """
        ...

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Return the text of the ids. With ``skip_special``, leave out all special tokens but [UNK], which stands for a word.
        Raises UserError for a number that is not an id."""
        ...

    def stream(self, ids: Iterable[int], skip_special: bool = False) -> Iterator[str]:
        """Yield the text that ``decode`` returns in pieces, each as soon as it is final."""
        ...

    def save(self, path: str | Path) -> None:
        """Write the tokenizer to a JSON file, which ``load`` and ``load_tokenizer`` read."""
        ...


def checked_text(text: str) -> str:
    """Return the text. Raises UserError if it is not a string, or contains half of a surrogate pair, which UTF-8 cannot
    encode."""
    if not isinstance(text, str):
        raise UserError(f"a tokenizer encodes strings, got {type(text).__name__}")
    try:
        if not text.isascii():
            text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"{text[error.start]!r} at position {error.start} is half of a surrogate pair: remove it, or join both halves "
            "with text.encode('utf-16', 'surrogatepass').decode('utf-16')"
        ) from None
    return text


def texts_of(text: str | Iterable[str]) -> Iterable[str]:
    """Iterate over the checked texts of one string or several."""
    return map(checked_text, [text] if isinstance(text, str) else text)


def checked(ids: Iterable[int], vocab_size: int, leave_out: Container[int] = ()) -> Iterator[int]:
    """Yield the ids that are not in ``leave_out``. Raises UserError for a number that is not an id, such as a negative one."""
    for value in ids:
        try:
            i = operator.index(value)
        except TypeError:
            raise UserError(f"ids must be integers, got {value!r}") from None
        if not 0 <= i < vocab_size:
            raise UserError(f"id {i} is out of range: the ids are 0 to {vocab_size - 1}")
        if i not in leave_out:
            yield i


def load_saved(make: Callable[..., Made], path: str | Path, name: str, label: str, **types: Any) -> Made:
    """Call ``make`` with the values in a tokenizer's file, whose names and type hints are ``types``.

    ``name`` is the file's "kind", and ``label`` its name in messages. Raises UserError for another tokenizer's file, and for a
    value of another type.
    """
    saved = read_json(Path(path))
    if saved.get("kind") != name:
        raise UserError(f"{path} is not {a_or_an(label)} tokenizer's file")
    with damaged(path):
        check_known(saved, {*types, "kind"})
        return make(**{key: read_value(types[key], saved.get(key), key) for key in types})
