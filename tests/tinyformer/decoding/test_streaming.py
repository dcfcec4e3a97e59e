"""Streaming: a text that is shown while it is written is the text that decoding gives, for every tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tinyformer import (
    BPETokenizer,
    CharTokenizer,
    MarianTokenizer,
    PipelineTokenizer,
    UserError,
    WordPieceTokenizer,
    WordTokenizer,
    stream_text,
)
from tinyformer.tokenizers import TOKENIZERS, marian
from tinyformer.tokenizers.tokenizer_json import tokenizer_json

TEXT = """The cater, don't: "no" (3.14 or 10:30) - l'uomo; «ça» ☃ 😀 日本 e\u0301. A cat's cater; well-known / x_1? ... """
PIECES = ["the", "cat", "##er", ",", ".", "?", "n't", "'s", "##", "###", "a", "##日"]


class Processor:
    """A stand-in for SentencePiece, whose pieces may be single bytes of characters."""

    def decode_pieces(self, pieces: list[str]) -> str:
        return b"".join(map(self.content, pieces)).decode("utf-8", "replace").removeprefix(" ")

    def content(self, piece: str) -> bytes:
        return bytes([int(piece[3:-1], 16)]) if piece.startswith("<0x") else piece.replace("▁", " ").encode()


def make_marian() -> MarianTokenizer:
    pieces = [
        "</s>",
        "<unk>",
        "<pad>",
        "▁the",
        "▁",
        "er",
        "▁▁",
        ",",
        "\u00a0",
        "<0xE2>",
        "<0x98>",
        "<0x83>",
        "<0x20>",
        "\ufffd",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(marian, "_processor", lambda model, language: Processor())
        return MarianTokenizer({piece: i for i, piece in enumerate(pieces)}, b"", b"")


TOKENS = ["<unk>", "▁", "▁▁", "<0xE2>", "<0x98>", "<0x83>", "<0x20>", "▁the", "cat", "日", "▁ ", "\ufffd", ""]


def make_pipeline() -> PipelineTokenizer:
    """Llama 2's rules, with some bytes, and others that follow them."""
    decoders = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    model = {"type": "BPE", "vocab": {token: i for i, token in enumerate(TOKENS)}, "merges": []}
    return PipelineTokenizer({"model": model, "decoder": {"type": "Sequence", "decoders": decoders}})


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CLEANUP = {"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}}
EVERY: dict[str, Any] = {
    "char": CharTokenizer.train(TEXT, ["<go>"]),
    "word": WordTokenizer.train(TEXT, special=["<go>"]),
    "bpe": BPETokenizer.train(TEXT * 3, 300, ["<go>"]),
    "wordpiece": WordPieceTokenizer([*SPECIAL, *PIECES]),
    "wordpiece with cleanup": PipelineTokenizer(
        {
            **tokenizer_json(WordPieceTokenizer([*SPECIAL, *PIECES])),
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        }
    ),
    "marian": make_marian(),
    "pipeline": make_pipeline(),
}
kinds = st.sampled_from(sorted(EVERY))
numbers = st.lists(st.integers(0, 10**6), max_size=25)


def test_every_tokenizer_is_here() -> None:
    assert {type(tokenizer) for tokenizer in EVERY.values()} == set(TOKENIZERS)


def test_the_pieces_of_a_word() -> None:
    tokenizer = EVERY["wordpiece with cleanup"]
    ids = [EVERY["wordpiece"].tokens.index(piece) for piece in ("the", "cat", "##er", ",")]
    assert list(stream_text(tokenizer, ids)) == ["the", " cat", "er", ","]
    assert list(stream_text(tokenizer, ids[2:], after=ids[:2])) == ["er", ","]
    assert list(stream_text(EVERY["wordpiece"], ids)) == ["the", " cat", "er", " ,"]


@given(kinds, numbers, st.booleans())
def test_together_the_pieces_are_what_decoding_gives(kind: str, drawn: list[int], skip_special: bool) -> None:
    tokenizer = EVERY[kind]
    ids = [i % tokenizer.vocab_size for i in drawn]
    assert "".join(tokenizer.stream(ids, skip_special)) == tokenizer.decode(ids, skip_special)
    for cut in range(len(ids) + 1):
        shown, rest = tokenizer.decode(ids[:cut]), "".join(stream_text(tokenizer, ids[cut:], after=ids[:cut]))
        whole = tokenizer.decode(ids)
        certain = shown.rstrip("\ufffd").rstrip() if kind == "marian" else shown
        in_bytes = kind == "pipeline" and cut > 0 and TOKENS[ids[cut - 1]].startswith("<0x")  # a text together, or none
        if not in_bytes and (kind != "bpe" or "\ufffd" not in shown):
            assert certain + rest == whole


@given(st.sampled_from(sorted(set(EVERY) - {"pipeline"})), numbers)  # that one waits for the end of a run of bytes
def test_certain_results_are_shown_immediately(kind: str, drawn: list[int]) -> None:
    tokenizer = EVERY[kind]
    ids = [i % tokenizer.vocab_size for i in drawn]
    taken: list[int] = []

    def one_by_one() -> Iterator[int]:
        for i in ids:
            taken.append(i)
            yield i

    shown, stream = "", stream_text(tokenizer, one_by_one())
    for count in range(1, len(ids) + 1):
        shown += next(stream)
        assert taken == ids[:count]
        now = tokenizer.decode(taken)
        if kind == "marian":
            now = now.rstrip("\ufffd").rstrip()
        assert now.startswith(shown) and set(now[len(shown) :]) <= ({"\ufffd"} if kind == "bpe" else set())


def test_a_character_of_several_tokens_is_streamed_when_it_is_whole() -> None:
    tokenizer = BPETokenizer.train("", 256)
    text = "aä☃😀z"
    assert list(stream_text(tokenizer, tokenizer.encode(text))) == ["a", "", "ä", "", "", "☃", "", "", "", "😀", "z", ""]
    half = tokenizer.encode("a☃")[:-1]
    assert "".join(stream_text(tokenizer, half)) == tokenizer.decode(half) == "a\ufffd"


@pytest.mark.parametrize("kind", sorted(EVERY))
def test_ids_of_every_kind_of_integer_and_none_out_of_range(kind: str) -> None:
    tokenizer = EVERY[kind]
    assert "".join(stream_text(tokenizer, np.array([3, 4]))) == tokenizer.decode([3, 4])
    with pytest.raises(UserError, match="id 999999 is out of range"):
        list(stream_text(tokenizer, [3, 999999]))


@pytest.mark.parametrize("kind", sorted(set(EVERY) - {"marian"}))
def test_a_long_word_takes_no_longer_than_others(kind: str) -> None:
    assert len(EVERY[kind].decode([7] * 200_000)) >= 200_000  # several seconds, if each piece were put to all before it
