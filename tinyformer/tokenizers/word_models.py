"""The models of tokenizer.json: each makes the ids of one word. Another one is a row of the table."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from tinyformer.common.errors import UserError
from tinyformer.common.schema import read_value
from tinyformer.tokenizers.merging import Pair, apply_merges
from tinyformer.tokenizers.sections import Section, Unsupported, allow, shown
from tinyformer.tokenizers.unigram import lengths_of, likeliest_pieces
from tinyformer.tokenizers.wordpiece import longest_pieces
from tinytensor.common.wording import counted

WordModel = Callable[[str], Sequence[int]]

_SWITCH = (None, False, True)
_UNKNOWN_PENALTY = 10.0  # by which an unknown character is less likely than the least likely piece of Unigram
_SETTINGS: Mapping[str, Mapping[str, Any]] = {  # besides the vocabulary
    "BPE": {
        "unk_token": ..., "merges": ..., "fuse_unk": _SWITCH, "byte_fallback": _SWITCH, "ignore_merges": _SWITCH,
        "dropout": (None, 0.0, 0), "continuing_subword_prefix": (None, ""), "end_of_word_suffix": (None, ""),
    },
    "WordPiece": {"unk_token": ..., "continuing_subword_prefix": ..., "max_input_chars_per_word": ...},
    "WordLevel": {"unk_token": ...},
    "Unigram": {"unk_id": ..., "byte_fallback": _SWITCH},
}  # fmt: skip


def check_model(model: Section) -> None:
    """Raise Unsupported for a model, or a setting of one, that is not supported."""
    if (kind := kind_of(model)) not in _SETTINGS:
        raise Unsupported(f"the model {shown(kind)}; there are BPE, WordPiece and Unigram")
    allow(model, "the model", vocab=..., **_SETTINGS[kind])


def word_model_of(model: Section, special: Collection[int]) -> WordModel:
    """What a section makes of a word. No word becomes one of the ``special`` ids as a whole."""
    made: Mapping[str, Callable[[Section, Collection[int]], WordModel]] = {"BPE": _BytePairs, "Unigram": _Unigram}
    return made.get(kind_of(model), _word_pieces)(model, special)


def kind_of(model: Section) -> Any:
    """The kind of a model, which files from before 2022 do not say."""
    signs = {"BPE": "merges", "WordPiece": "max_input_chars_per_word", "Unigram": "unk_id"}
    return model.get("type", next((kind for kind, setting in signs.items() if setting in model), None))


def vocabulary_of(model: Section) -> dict[str, int]:
    """The ids of a model's tokens. Unigram has pairs of a token and its score, in the order of the ids."""
    if kind_of(model) != "Unigram":
        return model["vocab"]
    tokens = read_value(list[str], [token for token, _ in model["vocab"]], "vocab")
    ids = {token: i for i, token in enumerate(tokens)}
    if len(ids) < len(tokens):
        twice = next(token for i, token in enumerate(tokens) if ids[token] != i)
        raise UserError(f"the token {shown(twice)} is in the vocabulary twice")
    return ids


def merges_of(model: Section) -> list[Sequence[str]]:
    """The merges of BPE as pairs of tokens. Older files have "a b" for the merge of a and b, newer ones ["a", "b"]."""
    merges = model["merges"]
    if not isinstance(merges, list) or not all(isinstance(merge, str | list) for merge in merges):
        raise UserError("the merges are not a list of pairs")
    return [merge.split(" ") if isinstance(merge, str) else merge for merge in merges]


def unknown_of(model: Section) -> int | None:
    """The id that stands for what a model does not know; None if that is left out."""
    name = model.get("unk_token")
    if name is not None and name not in model["vocab"]:
        raise UserError(f"the unknown token {shown(name)} is not in the vocabulary")
    return None if name is None else read_value(int, model["vocab"][name], "the id of the unknown token")


class _BytePairs:
    """Byte-pair encoding over characters. One that is not in the vocabulary becomes its bytes where ``byte_fallback`` says so,
    or else the unknown token, or nothing."""

    def __init__(self, model: Section, special: Collection[int]):
        self.id_of: dict[str, int] = model["vocab"]
        self.unknown = unknown_of(model)
        self.fuse_unknown = bool(model.get("fuse_unk"))
        self.whole = {token: i for token, i in self.id_of.items() if i not in special} if model.get("ignore_merges") else {}
        self.bytes = _bytes_of(model, self.id_of)
        pairs = merges_of(model)
        self.merges = {pair: (rank, made) for rank, (pair, made) in enumerate(map(self._numbered, pairs))}
        # Two characters beside each other that no merge joins, nor what is around them.
        self.joined = {a + b for pair in pairs for a, b in pairwise("".join(pair))}

    def _numbered(self, merge: Sequence[str]) -> tuple[Pair, int]:
        try:
            left, right = merge
            return (self.id_of[left], self.id_of[right]), self.id_of[left + right]
        except (KeyError, ValueError):
            raise UserError(f"the merge {' '.join(merge)!r} is not two tokens that make a third one") from None

    def __call__(self, word: str) -> list[int]:
        if word in self.whole:
            return [self.whole[word]]
        return [i for run in self._runs(word) for i in apply_merges(self._first_ids(run), self.merges)]

    def _runs(self, word: str) -> Iterator[str]:
        """The word, cut where nothing can be joined: a whole text may be one word, and merging a long one takes long."""
        start = 0
        for place, pair in enumerate(pairwise(word), start=1):
            if "".join(pair) not in self.joined and pair[0] in self.id_of and pair[1] in self.id_of:
                yield word[start:place]
                start = place
        yield word[start:]

    def _first_ids(self, word: str) -> list[int]:
        """The ids of the characters, before any merge."""
        ids: list[int] = []
        waiting: list[int] = []  # the unknown token, until something known comes: bytes go before it, as in the package
        for character in word:
            known = self.id_of.get(character)
            bytes_known = [self.bytes[byte] for byte in character.encode()] if known is None and self.bytes else [None]
            if known is not None:
                ids += [*waiting, known]
                waiting = []
            elif None not in bytes_known:
                ids += bytes_known  # type: ignore[arg-type]
            elif self.unknown is not None:
                ids += [] if self.fuse_unknown else waiting
                waiting = [self.unknown]
        return ids + waiting


def _bytes_of(model: Section, id_of: Mapping[str, int]) -> list[int | None]:
    """The ids of the 256 bytes, of which characters without a token of their own are made; none if the model has no such."""
    return [id_of.get(f"<0x{byte:02X}>") for byte in range(256)] if model.get("byte_fallback") else []


class _Unigram:
    """The likeliest pieces. Characters that are in none become their bytes where ``byte_fallback`` says so, or else the unknown
    token together, or nothing."""

    def __init__(self, model: Section, special: Collection[int]):
        tokens = list(vocabulary_of(model))
        scores = [score for _, score in model["vocab"]]
        if not {*map(type, scores)} <= {float, int} or not all(map(math.isfinite, scores)):
            raise UserError("a score in the vocabulary is not a finite number")
        self.unknown = None if model.get("unk_id") is None else read_value(int, model["unk_id"], "unk_id")
        if self.unknown is not None and not 0 <= self.unknown < len(tokens):
            raise UserError(f"unk_id {self.unknown} is not in the vocabulary of {counted(len(tokens), 'token')}")
        self.name = None if self.unknown is None else tokens[self.unknown]
        self.penalty = min(scores, default=0.0) - _UNKNOWN_PENALTY
        self.id_of = {token: i for i, token in enumerate(tokens) if i not in special}
        self.scores = {token: scores[i] for token, i in self.id_of.items()}
        self.lengths = lengths_of(self.scores)
        self.bytes = _bytes_of(model, self.id_of)

    def __call__(self, word: str) -> list[int]:
        pieces = likeliest_pieces(word, self.scores, self.lengths, self.name, self.penalty)
        return [i for piece in pieces for i in self._ids(piece)]

    def _ids(self, piece: str) -> Sequence[int]:
        if piece in self.id_of:
            return [self.id_of[piece]]
        found = [i for byte in piece.encode() if (i := self.bytes[byte]) is not None] if self.bytes else []
        if len(found) == len(piece.encode()):
            return found
        return [] if self.unknown is None else [self.unknown]


def _word_pieces(model: Section, special: Collection[int]) -> WordModel:
    """A word is the unknown token if no pieces make it up, or if it is too long."""
    id_of = {token: i for token, i in model["vocab"].items() if i not in special}
    prefix = model["continuing_subword_prefix"] + ""
    most = read_value(int, model["max_input_chars_per_word"], "max_input_chars_per_word")
    longest = max(map(len, id_of), default=0)
    unknown = unknown_of(model)
    if unknown is None:
        raise UserError("unk_token of the model is missing")

    def ids_of(word: str) -> Sequence[int]:
        found = longest_pieces(word, id_of, longest, prefix) if len(word) <= most else None
        return [unknown] if found is None else found

    return ids_of
