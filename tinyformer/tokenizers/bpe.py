"""Byte-level byte-pair encoding (Sennrich et al. 2016; over bytes as in GPT-2, Radford et al. 2019).

A text is cut into words, where a word keeps the space before it, and a word into its UTF-8 bytes. Then the pair of neighbours
that training merged first is merged, again and again. Every text can be encoded if every byte is a token, as after training.
"""

from __future__ import annotations

import codecs
import functools
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tinyformer.common.errors import SettingError, UserError
from tinyformer.common.files import damaged, read_json, read_utf8, write_json
from tinyformer.tokenizers.added import AddedToken, AddedTokens
from tinyformer.tokenizers.base import checked, checked_text, load_saved, texts_of
from tinyformer.tokenizers.byte_letters import BYTES, hidden, shown
from tinyformer.tokenizers.cutting import CuttingRules
from tinyformer.tokenizers.merging import Pair, apply_merges, learn_merges
from tinyformer.tokenizers.patterns import TooSlow
from tinyformer.tokenizers.special import skippable, special_names
from tinytensor.common.wording import counted
from tinytensor.device.backend import host

MOST_AROUND = 1000  # ids before and after a text, which is far more than published tokenizers have


class BPETokenizer:
    """Byte-level BPE. ``tokens[i]`` are the bytes of id i. ``merges`` are pairs of ids, in the order they were learned.

    ``special`` tokens, such as "<|endoftext|>", are never cut, and no merge makes one. ``encode`` treats their names as plain
    text unless ``allow_special``, so that a text cannot smuggle them in.

    What other models than GPT-2 have besides: ``rules`` that cut a text into words; ``added`` tokens with rules of their own;
    ``ignore_merges``, with which a word that is a token is never built from merges; the ids ``before`` and ``after`` that the
    model expects around a whole text, such as Llama 3's <|begin_of_text|>, which ``encode`` leaves to the caller; and tokens
    that lack some bytes, such as SmolLM2's. Such a byte becomes the id ``unknown``, with ``fuse_unknown`` one id for all that
    stand together; without an id it is left out.

    Raises UserError if all these do not fit together.

    >>> from tinyformer import BPETokenizer
    >>> tokenizer = BPETokenizer.train("low lower lowest " * 10, vocab_size=260)
    >>> [tokenizer.decode_bytes(i) for i in tokenizer.encode("lower").tolist()]
    [b'low', b'e', b'r']
    """

    kind = "bpe"
    file: str | Path = ""  # that it was read from, for messages

    def __init__(
        self,
        tokens: Sequence[bytes],
        merges: Iterable[Pair],
        special: Mapping[str, int] | None = None,
        *,
        rules: CuttingRules | None = None,
        added: Iterable[AddedToken] = (),
        ignore_merges: bool = False,
        before: Iterable[int] = (),
        after: Iterable[int] = (),
        unknown: int | None = None,
        fuse_unknown: bool = False,
    ):
        self.tokens = list(tokens)
        self.merges = list(merges)
        self.rules = rules or CuttingRules()
        self.added = list(added)
        self.ignore_merges = ignore_merges
        self.before, self.after = tuple(before), tuple(after)
        self.unknown, self.fuse_unknown = unknown, fuse_unknown
        self.special = {**(special or {}), **{token.content: token.id for token in self.added if token.special}}
        named = [AddedToken(name, i, special=True) for name, i in (special or {}).items()] + self.added
        self._added = AddedTokens(named, self.rules.normalized)
        self._check_ids(named)
        reserved = {token.id for token in named if not token.in_vocabulary}
        self._id_of = {token: i for i, token in enumerate(self.tokens) if i not in reserved}
        if len(self._id_of) + len(reserved) < len(self.tokens):
            raise UserError("a token occurs twice")
        self._bytes = [self._id_of.get(bytes([b])) for b in range(256)]
        if self._bytes.count(None) == 256:
            raise UserError("a byte-level tokenizer needs bytes as tokens, and this one has none of them")
        self._merged = self._numbered_merges()
        self._encode_word = functools.lru_cache(maxsize=65536)(self._merge_word)

    def _check_ids(self, named: list[AddedToken]) -> None:
        for token in named:
            content = hidden([token.content])[0] if token.in_vocabulary else token.content.encode()
            if not 0 <= token.id < len(self.tokens) or self.tokens[token.id] != content:
                kind = "special" if token.special else "added"
                raise UserError(f"the {kind} token {token.content!r} is not the token of its id, {token.id}")
        if len({token.id for token in named}) < len(named):
            raise UserError("two special or added tokens have the same id")
        check_around(self.before, self.after, len(self.tokens))
        if self.unknown is not None and not 0 <= self.unknown < len(self.tokens):
            raise UserError(f"the unknown token has the id {self.unknown}, which is not an id")

    def _numbered_merges(self) -> dict[Pair, tuple[int, int]]:
        """For each pair that merges, the rank of the merge and the id of the two together. Of two merges of one pair the last
        counts, as in GPT-2's own code."""
        id_of = self._id_of
        ordinary = {i: token for token, i in id_of.items()}
        merged: dict[Pair, tuple[int, int]] = {}
        for rank, pair in enumerate(self.merges):
            left, right = pair
            try:
                merged[pair] = (rank, id_of[ordinary[left] + ordinary[right]])
            except KeyError:
                if left in ordinary and right in ordinary:
                    raise UserError(f"the merge of {ordinary[left]!r} and {ordinary[right]!r} makes no token") from None
                wrong = left if left not in ordinary else right
                raise UserError(f"a merge joins the id {wrong}, which is special or not an id") from None
        return merged

    @property
    def vocab_size(self) -> int:
        """The number of tokens, special ones included."""
        return len(self.tokens)

    def num_made(self) -> int:
        """How many of the tokens merging makes."""
        return len({made for _, made in self._merged.values()})

    # ---------------------------------------------------------------------------------------------- both directions

    def encode(self, text: str, allow_special: bool = False) -> Any:
        """The ids of the text, a NumPy int64 array. Raises UserError for anything but text."""
        ids: list[int] = []
        for part, added in self._added.cut(checked_text(text), allow_special):
            if added is not None:
                ids.append(added)
            else:
                for word in self._words(part):
                    ids.extend(self._encode_word(word))
        return host.array(ids, dtype=host.int64)

    def _words(self, text: str) -> list[str]:
        try:
            return self.rules.words(text)
        except TooSlow as error:
            raise UserError(f"{self.file}: {error}" if self.file else str(error)) from None

    def _merge_word(self, word: str) -> tuple[int, ...]:
        content = word.encode()
        if self.ignore_merges and content in self._id_of:
            return (self._id_of[content],)
        return tuple(apply_merges(list(self._ids_of_bytes(content)), self._merged))

    def _ids_of_bytes(self, content: bytes) -> Iterator[int]:
        was_missing = False
        for byte in content:
            i = self._bytes[byte]
            if i is not None:
                yield i
            elif self.unknown is not None and not (was_missing and self.fuse_unknown):
                yield self.unknown
            was_missing = i is None

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The text of the ids. Bytes that are not UTF-8, such as those of half a character, become U+FFFD. Raises UserError for
        a number that is not an id."""
        leave_out = skippable(self.special) if skip_special else ()
        return b"".join(self.tokens[i] for i in checked(ids, self.vocab_size, leave_out)).decode("utf-8", "replace")

    def stream(self, ids: Iterable[int], skip_special: bool = False) -> Iterator[str]:
        """What ``decode`` returns, a piece for each id. A piece is empty where a character is not whole; a last one says what
        was not finished."""
        leave_out = skippable(self.special) if skip_special else ()
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for i in checked(ids, self.vocab_size, leave_out):
            yield decoder.decode(self.tokens[i])
        yield decoder.decode(b"", final=True)

    def decode_bytes(self, i: int) -> bytes:
        """The bytes of one id, which may be a part of a character. Raises UserError for a number that is not an id."""
        return b"".join(self.tokens[i] for i in checked([i], self.vocab_size))

    # ---------------------------------------------------------------------------------------------------- training

    @classmethod
    def train(
        cls,
        text: str | Iterable[str],
        vocab_size: int,
        special: Iterable[str] = (),
        progress: bool = False,
        rules: CuttingRules | None = None,
    ) -> BPETokenizer:
        """Learn merges from a text, or several, until there are ``vocab_size`` tokens, or no pair occurs twice.

        Each step merges the most frequent pair; of equally frequent ones, that with the smaller ids. The ids are: first the
        bytes, then the tokens that merging made, then the ``special`` tokens. The text is cut by GPT-2's rules, or by other
        ``rules``. Raises UserError if the vocabulary is too small for the bytes and the special tokens.
        """
        rules = rules or CuttingRules()
        names = special_names(special)
        if vocab_size < 256 + len(names):
            special_tokens = f" and {counted(len(names), 'special token')}" if names else ""
            raise SettingError(
                f"vocab_size must be at least {256 + len(names)}, for the 256 bytes{special_tokens}, not {vocab_size}"
            )
        tokens = [bytes([b]) for b in BYTES]
        merges: list[Pair] = []

        def merge(pair: Pair) -> int | None:
            if len(tokens) + len(names) == vocab_size:
                return None
            merges.append(pair)
            tokens.append(tokens[pair[0]] + tokens[pair[1]])
            return len(tokens) - 1

        words = Counter(word for part in texts_of(text) for word in rules.words(rules.normalized(part)))
        place = {b: i for i, b in enumerate(BYTES)}
        learn_merges([[place[b] for b in word.encode()] for word in words], list(words.values()), merge, progress)
        ids = {name: len(tokens) + i for i, name in enumerate(names)}
        return cls([*tokens, *(name.encode() for name in names)], merges, ids, rules=rules)

    # ------------------------------------------------------------------------------------------------------- files

    def save(self, path: str | Path) -> None:
        """Write the tokenizer to a JSON file. Bytes are written as in GPT-2's files."""
        added = {token.content for token in self.added}
        plain = {name: i for name, i in self.special.items() if name not in added}
        tokens = self.shown_tokens()
        merges = [f"{tokens[left]} {tokens[right]}" for left, right in self.merges]
        saved: dict[str, Any] = {"kind": self.kind, "special": plain, "merges": merges, "tokens": tokens}
        more = {
            "rules": None if self.rules == CuttingRules() else self.rules,
            "added": self.added,
            "ignore_merges": self.ignore_merges,
            "before": self.before,
            "after": self.after,
            "fuse_unknown": self.fuse_unknown,
        }
        unknown = {} if self.unknown is None else {"unknown": self.unknown}
        write_json(Path(path), saved | unknown | {key: value for key, value in more.items() if value})

    def shown_tokens(self) -> list[str]:
        """The tokens as GPT-2's files show them: bytes as visible characters, and the names of special and added tokens."""
        names = {i: name for name, i in self.special.items()}
        names |= {token.id: token.content for token in self.added if not token.in_vocabulary}
        return [names[i] if i in names else shown(token) for i, token in enumerate(self.tokens)]

    @classmethod
    def load(cls, path: str | Path) -> BPETokenizer:
        """The tokenizer that ``save`` wrote. Raises UserError for any other file."""
        # Only tokenizers that differ from GPT-2's in more than the tokens have the later entries.
        tokenizer = load_saved(
            cls._from_shown,
            path,
            cls.kind,
            "byte-pair",
            tokens=list[str],
            merges=list[str],
            special=dict[str, int],
            rules=CuttingRules | None,
            added=list[AddedToken] | None,
            ignore_merges=bool | None,
            before=list[int] | None,
            after=list[int] | None,
            unknown=int | None,
            fuse_unknown=bool | None,
        )
        tokenizer.file = path
        return tokenizer

    @classmethod
    def from_gpt2_files(cls, encoder: str | Path, vocab: str | Path, rules: CuttingRules | None = None) -> BPETokenizer:
        """GPT-2's own tokenizer from its two files: ``encoder.json`` or ``vocab.json`` (tokens to ids), and ``vocab.bpe`` or
        ``merges.txt`` (one merge a line, in order). "<|endoftext|>" is special. Raises UserError if a file is missing or
        damaged, or if they do not fit together."""
        ids = read_json(Path(encoder))
        lines = read_utf8(vocab, f"pass the file of merges that belongs to {encoder}").split("\n")
        with damaged(f"{encoder} or {vocab} (or they do not belong together)"):
            unused = gaps_in(ids)
            ids = {**ids, **unused}
            tokens = tokens_in_order(ids)
            if lines[0].startswith("#version"):
                del lines[0]
            special = {name: i for name, i in ids.items() if name == "<|endoftext|>" or name in unused}
            return cls._from_shown(tokens, [line for line in lines if line], special, rules)

    @classmethod
    def _from_shown(
        cls,
        tokens: Sequence[str],
        merges: Iterable[str],
        special: Mapping[str, int],
        rules: CuttingRules | None = None,
        added: Sequence[AddedToken] | None = None,
        **more: Any,
    ) -> BPETokenizer:
        """A tokenizer from tokens as GPT-2's files write them, and from merges: two tokens with a space between them."""
        added = added or ()
        named = {*special.values(), *(token.id for token in added if not token.in_vocabulary)}
        return cls(
            bytes_of_tokens(tokens, named),
            pairs_of_ids((line.split(" ") for line in merges), tokens, named),
            special,
            rules=rules,
            added=added,
            **{key: value for key, value in more.items() if value is not None},
        )


def check_around(before: Sequence[int], after: Sequence[int], vocab_size: int) -> None:
    """Raise UserError for ids around a whole text that are not ids, or too many."""
    if (around := len(before) + len(after)) > MOST_AROUND:
        raise UserError(f"a whole text has {around:,} ids before and after it; there can be {MOST_AROUND}")
    for i in (*before, *after):
        if not 0 <= i < vocab_size:
            raise UserError(f"a whole text has the id {i} before or after it, which is not an id")


def tokens_in_order(ids: Mapping[str, int]) -> list[str]:
    """The tokens of a vocabulary in the order of their ids. Raises UserError if these are not 0, 1, 2 and so on."""
    if any(type(i) is not int for i in ids.values()) or sorted(ids.values()) != list(range(len(ids))):
        raise UserError(f"the ids are not the numbers from 0 to {len(ids) - 1}")
    return sorted(ids, key=ids.__getitem__)


def gaps_in(ids: Mapping[str, int]) -> dict[str, int]:
    """Names for the ids between 0 and the highest one that no token has: published vocabularies may leave some out. Empty where
    there are more of them than tokens, which ``tokens_in_order`` refuses."""
    taken = {i for i in ids.values() if type(i) is int and i >= 0}
    if not taken or max(taken) >= 2 * len(taken):
        return {}
    return {f"[unused{i}]": i for i in range(max(taken)) if i not in taken}


def bytes_of_tokens(tokens: Sequence[str], named: Container[int]) -> list[bytes]:
    """The bytes of tokens as GPT-2's files write them. The ids in ``named`` are names, which are written as they are."""
    found = hidden(["" if i in named else token for i, token in enumerate(tokens)])
    return [checked_text(tokens[i]).encode() if i in named else token for i, token in enumerate(found)]


def pairs_of_ids(merges: Iterable[Sequence[str]], tokens: Sequence[str], named: Container[int]) -> list[Pair]:
    """Merges of tokens as merges of ids. Raises UserError for a merge that is not of two tokens, or has a name in it."""
    id_of = {token: i for i, token in enumerate(tokens) if i not in named}
    pairs: list[Pair] = []
    for merge in merges:
        try:
            left, right = merge
            pairs.append((id_of[left], id_of[right]))
        except (KeyError, ValueError):
            raise UserError(f"the merge {' '.join(merge)!r} is not two tokens with a space between them") from None
    return pairs
