"""The tokenizer protocol and shared code: checks of text and ids, and loading saved files."""

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
    """Protocol for tokenizers. Ids range from 0 to ``vocab_size`` - 1. ``special`` maps special-token names to ids.

    ``before`` and ``after`` are the ids that a model expects around a sequence. ``encode`` does not add them.
    """

    kind: str
    special: dict[str, int]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def vocab_size(self) -> int:
        """The number of tokens, including special tokens."""
        ...

    def encode(self, text: str, allow_special: bool = False) -> Any:
        """Return the ids of the text as a NumPy int64 array.

        Unless ``allow_special``, special-token names in the text are encoded as plain text. Untrusted text therefore cannot end
        a sequence, for example. Raises UserError for invalid text (see ``checked_text``) or text that the tokenizer cannot
        encode.
        """
        ...

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Return the decoded text. If ``skip_special``, omit all special tokens except [UNK], which represents a word. Raises
        UserError for an invalid id."""
        ...

    def stream(self, ids: Iterable[int], skip_special: bool = False) -> Iterator[str]:
        """Yield the text of ``decode`` in pieces, each as soon as it is final."""
        ...

    def save(self, path: str | Path) -> None:
        """Save the tokenizer as a JSON file for ``load`` and ``load_tokenizer``."""
        ...


def checked_text(text: str) -> str:
    """Return the text. Raises UserError if it is not a string or contains an unpaired surrogate, which UTF-8 cannot encode."""
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
    """Iterate over one string or several, checking each."""
    return map(checked_text, [text] if isinstance(text, str) else text)


def checked(ids: Iterable[int], vocab_size: int, leave_out: Container[int] = ()) -> Iterator[int]:
    """Yield the ids that are not in ``leave_out``. Raises UserError for an invalid id, such as a negative number."""
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
    """Call ``make`` with the values from a tokenizer file. ``types`` are their names and type hints.

    ``name`` is the "kind" entry of the file, and ``label`` the tokenizer's name in messages. Raises UserError for a different
    tokenizer's file or a value of the wrong type.
    """
    saved = read_json(Path(path))
    if saved.get("kind") != name:
        raise UserError(f"{path} is not {a_or_an(label)} tokenizer's file")
    with damaged(path):
        check_known(saved, {*types, "kind"})
        return make(**{key: read_value(types[key], saved.get(key), key) for key in types})
