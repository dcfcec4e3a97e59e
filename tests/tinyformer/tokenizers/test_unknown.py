"""Words that a tokenizer does not know, and the message about them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tinyformer import BPETokenizer, CharTokenizer, WordPieceTokenizer, WordTokenizer
from tinyformer.tokenizers.texts import note_on_unknown, unknown_words

TEXT = "a red fox and a blue dog. " * 3
LONG = "fox" * 40


class Marian:
    """As Marian's tokenizer treats a piece that its vocabulary lacks, without SentencePiece."""

    def __init__(self) -> None:
        self.special = {"<unk>": 1, "</s>": 0, "<pad>": 2}

    def encode(self, text: str, allow_special: bool = False) -> Any:
        return np.array([3 if character in "abcdefox " else 1 for character in text])


@pytest.mark.parametrize(
    ("tokenizer", "text", "words"),
    [
        (WordPieceTokenizer.train(TEXT, 60), f"A fox. {LONG} {LONG} \u72d7. [MASK]", [LONG, "\u72d7."]),
        (WordPieceTokenizer.train(TEXT, 60), "A fox and a [UNK]", []),
        (WordTokenizer.train(TEXT), "a green fox; and a cat", ["green", "fox;", "cat"]),
        (Marian(), "a fox \u72d7 </s> box", ["\u72d7"]),
        (BPETokenizer.train(TEXT, 270), f"a {LONG} \u72d7", []),
        (CharTokenizer.train(TEXT), "a fox", []),
    ],
    ids=["wordpiece", "its own name", "word", "marian", "bpe", "char"],
)
def test_unknown_words(tokenizer: Any, text: str, words: list[str]) -> None:
    assert unknown_words(tokenizer, text) == words
    note = note_on_unknown(tokenizer, text)
    assert bool(note) == bool(words)
    if words:
        assert note.startswith("(1 unknown word, " if len(words) == 1 else f"({len(words)} unknown words, ")
        assert ("<unk>" if isinstance(tokenizer, Marian) else "[UNK]") in note


def test_many_are_not_all_named() -> None:
    note = note_on_unknown(WordTokenizer.train(TEXT), " ".join(f"w{i}" for i in range(2000)))
    assert note.startswith("(2,000 unknown words, ") and note.endswith(": 'w0', 'w1', 'w2', ...)")
