"""A tokenizer that a tokenizer.json describes: a normalizer, a pre-tokenizer, a model and a decoder, one after the other."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tinyformer.common.errors import UserError
from tinyformer.common.files import write_json
from tinyformer.tokenizers.added import AddedToken, AddedTokens
from tinyformer.tokenizers.base import checked, checked_text, load_saved
from tinyformer.tokenizers.bpe import check_around, tokens_in_order
from tinyformer.tokenizers.decoders import Decoder, byte_of, decoder_of
from tinyformer.tokenizers.normalizers import Normalizer, normalizer_of
from tinyformer.tokenizers.patterns import TooSlow, one_clock
from tinyformer.tokenizers.pre_tokenizers import Cutter, pre_tokenizer_of
from tinyformer.tokenizers.sections import Section, Unsupported, added_tokens, allow, ends, parts, supported
from tinyformer.tokenizers.special import skippable
from tinyformer.tokenizers.word_models import check_model, vocabulary_of, word_model_of
from tinytensor.device.backend import host

_LONGEST_KEPT = 256  # characters of a word whose ids are kept for the next time: some tokenizers take a text for one word
_SAME_START = ("NFC", "NFD", "NFKC", "NFKD", "Lowercase")  # normalizers that keep where a text begins


class PipelineTokenizer:
    """The tokenizer that the content of a tokenizer.json describes, such as that of Llama 2, Mistral or MPNet. ``tokens[i]`` is
    the token of id i as the file has it.

    What other kinds of tokenizers do always is here what the file says: byte pairs over characters or bytes, WordPieces, or the
    likeliest pieces (Unigram).
    Raises UserError for a content that does not fit together, and ``Unsupported`` for what is not supported.
    """

    kind = "pipeline"
    file: str | Path = ""  # that it was read from, for messages

    def __init__(self, content: Section):
        self._normalize, self._words, self._decode = check_sections(content)
        self.content = {**content, "truncation": None, "padding": None}
        vocabulary = vocabulary_of(content["model"])
        self.added = added_tokens(content, vocabulary)
        self.tokens = tokens_of(vocabulary, self.added)
        said = {**content, "model": {**content["model"], "vocab": self.tokens, "merges": []}}
        checked_text(json.dumps(said, ensure_ascii=False))  # else it could not be saved
        self.special = {token.content: token.id for token in self.added if token.special}
        self.before, self.after = map(tuple, ends(content))
        check_around(self.before, self.after, len(self.tokens))
        with one_clock(len(self.added)):
            self._added = AddedTokens(self.added, self._normalize)
            names = {token.id: self._normalize(token.content) for token in self.added if token.normalized}
        if "" in names.values():
            raise Unsupported("an added token of which normalising leaves nothing")
        # An added token that is found in the normalised text has taken, say, the space before it: so it gives that back.
        self._texts = [names.get(i, token) for i, token in enumerate(self.tokens)]
        self._ids_of_word = word_model_of(content["model"], set(self.special.values()))
        self._ids_kept = functools.lru_cache(maxsize=65536)(self._ids_of_word)

    @property
    def vocab_size(self) -> int:
        """The number of tokens, special ones included."""
        return len(self.tokens)

    def encode(self, text: str, allow_special: bool = False) -> Any:
        """The ids of the text, a NumPy int64 array. What the vocabulary lacks is left out, or becomes its unknown token. Raises
        UserError for anything but text."""
        ids: list[int] = []
        is_first = True
        with self._timed(len(text)):
            for part, added in self._added.cut(checked_text(text), allow_special):
                if added is not None:
                    ids.append(added)
                else:
                    for word in self._words(part, is_first):
                        ids.extend(self._ids_kept(word) if len(word) <= _LONGEST_KEPT else self._ids_of_word(word))
                is_first = False
        return host.array(ids, dtype=host.int64)

    @contextmanager
    def _timed(self, length: int) -> Iterator[None]:
        """A context in which regular expressions take no longer than they may for a text of this length."""
        try:
            with one_clock(length):
                yield
        except TooSlow as error:
            raise UserError(f"{self.file}: {error}" if self.file else str(error)) from None

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The text of the ids. Raises UserError for a number that is not an id."""
        return "".join(self.stream(ids, skip_special))

    def stream(self, ids: Iterable[int], skip_special: bool = False) -> Iterator[str]:
        """What ``decode`` returns, in pieces, each as soon as it is certain: bytes where something else follows them."""
        leave_out = skippable(self.special) if skip_special else ()
        return self._decode(self._texts[i] for i in checked(ids, self.vocab_size, leave_out))

    def text_of(self, i: int) -> str:
        """The text of one id inside a text, such as " the", to be shown; a byte that is no character as ``\\xe6``."""
        (i,) = checked([i], self.vocab_size)
        byte = byte_of(self.tokens[i])
        if byte is not None:
            return bytes([byte]).decode("utf-8", "backslashreplace")
        return self.decode([i, i])[len(self.decode([i])) :]  # the first may have lost its space

    def save(self, path: str | Path) -> None:
        """Write the tokenizer to a JSON file."""
        write_json(Path(path), {"kind": self.kind, "content": self.content})

    @classmethod
    def load(cls, path: str | Path) -> PipelineTokenizer:
        """The tokenizer that ``save`` wrote. Raises UserError for any other file."""
        with supported(path):
            tokenizer = load_saved(cls, path, cls.kind, "pipeline", content=dict[str, Any])
        tokenizer.file = path
        return tokenizer


def check_sections(content: Section) -> tuple[Normalizer, Cutter, Decoder]:
    """What the sections besides the vocabulary do. Raises Unsupported for what is not supported."""
    sections = ("version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    allow(content, "the file", model=..., **dict.fromkeys(sections, ...))
    check_model(content["model"])
    normalizers = [part["type"] for part in parts(content.get("normalizer"), "normalizers")]
    cutters = [part.get("prepend_scheme") for part in parts(content.get("pre_tokenizer"), "pretokenizers")]
    if "first" in cutters and normalizers and ("first" in cutters[1:] or not set(normalizers) <= {*_SAME_START}):
        what = "Metaspace after a normalizer other than one of" if cutters[0] == "first" else "a later Metaspace after"
        raise Unsupported(f"prepend_scheme = 'first' of {what} {', '.join(_SAME_START)}; it can be 'always' or 'never'")
    normalize = normalizer_of(content.get("normalizer"))
    return normalize, pre_tokenizer_of(content.get("pre_tokenizer")), decoder_of(content.get("decoder"))


def tokens_of(vocabulary: dict[str, int], added: Iterable[AddedToken]) -> list[str]:
    """All tokens, in the order of their ids."""
    return tokens_in_order({**vocabulary, **{token.content: token.id for token in added}})
