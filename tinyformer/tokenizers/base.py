"""The interface of every tokenizer, and what the tokenizers share: checks of texts and ids, and reading saved files."""

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
    """Text to ids and back. The ids are 0 to ``vocab_size`` - 1. ``special`` maps the name of each special token to its id.

    ``before`` and ``after`` are the ids that a model expects around a whole text. ``encode`` leaves them to the caller.
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
        """The ids of the text, a NumPy int64 array.

        The name of a special token in the text is plain text unless ``allow_special``: a text from elsewhere should not be
        able to end a sequence, for example. Raises UserError for anything but text (see ``checked_text``), and for text that
        the tokenizer cannot encode.
        """
        ...

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The text of the ids. With ``skip_special`` the special tokens are left out, except for [UNK], which stands for a word
        of the text. Raises UserError for a number that is not an id."""
        ...

    def stream(self, ids: Iterable[int], skip_special: bool = False) -> Iterator[str]:
        """The text of ids in pieces, each as soon as it is certain. Together they are what ``decode`` returns."""
        ...

    def save(self, path: str | Path) -> None:
        """Write the tokenizer to a JSON file, which ``load`` and ``load_tokenizer`` read."""
        ...


def checked_text(text: str) -> str:
    """The text itself. Raises UserError if it is not a string, or has half of a surrogate pair in it: that is not a character,
    UTF-8 cannot encode it, and so no ids could give it back."""
    if not isinstance(text, str):
        raise UserError(f"a tokenizer needs text, a string, not {type(text).__name__}")
    try:
        if not text.isascii():
            text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"{text[error.start]!r} at position {error.start} is half of a surrogate pair, which is no text: leave it out, "
            "or join both halves with text.encode('utf-16', 'surrogatepass').decode('utf-16')"
        ) from None
    return text


def texts_of(text: str | Iterable[str]) -> Iterable[str]:
    """A text, or several, as an iterable of checked texts."""
    return map(checked_text, [text] if isinstance(text, str) else text)


def checked(ids: Iterable[int], vocab_size: int, leave_out: Container[int] = ()) -> Iterator[int]:
    """The ids, without those in ``leave_out``. Raises UserError for a number that is not an id; negative ones are not."""
    for given in ids:
        try:
            i = operator.index(given)
        except TypeError:
            raise UserError(f"an id is an integer, not {given!r}") from None
        if not 0 <= i < vocab_size:
            raise UserError(f"the id {i} is not between 0 and {vocab_size - 1}")
        if i not in leave_out:
            yield i


def load_saved(make: Callable[..., Made], path: str | Path, kind: str, name: str, **kinds: Any) -> Made:
    """Read a tokenizer's file, and call ``make`` with the values that it holds.

    ``kinds`` are the names of the values and their type hints; ``name`` is the kind of tokenizer for messages. Raises UserError
    for a file of another kind of tokenizer, and for a value of another type.
    """
    saved = read_json(Path(path))
    if saved.get("kind") != kind:
        raise UserError(f"{path} is not {a_or_an(name)} tokenizer's file")
    with damaged(path):
        check_known(saved, {*kinds, "kind"})
        return make(**{key: read_value(kinds[key], saved.get(key), key) for key in kinds})
