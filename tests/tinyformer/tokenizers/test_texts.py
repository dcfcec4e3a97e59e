"""The text of each token by itself."""

from __future__ import annotations

import pytest

from tinyformer import BPETokenizer, CharTokenizer, MarianTokenizer, UserError, WordPieceTokenizer, WordTokenizer, token_texts
from tinyformer.tokenizers.base import Tokenizer
from tinyformer.tokenizers.texts import opening_text


def texts(tokenizer: Tokenizer, text: str) -> list[str]:
    return token_texts(tokenizer, tokenizer.encode(text, allow_special=True))


def test_each_kind_of_tokenizer() -> None:
    assert texts(CharTokenizer.train("ab c", special=["[END]"]), "a b[END]") == ["a", " ", "b", "[END]"]
    assert texts(WordTokenizer.train('to "be"'), '"to" be or[EOS]') == ['"', "to", '"', "be", "[UNK]", "[EOS]"]
    bpe = BPETokenizer.train("low lower lowest " * 10, 262, special=["<end>"])
    assert texts(bpe, "low low é<end>") == ["low", " low", " ", "\\xc3", "\\xa9", "<end>"]


def test_wordpiece_shows_which_pieces_continue_a_word() -> None:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "run", "##ning", "."]
    assert texts(WordPieceTokenizer(tokens), "running. [MASK]") == ["run", "##ning", ".", "[MASK]"]


@pytest.mark.parametrize(
    ("tokenizer", "opening"),
    [
        (CharTokenizer.train("b\na"), "\n"),
        (CharTokenizer.train("ba"), "a"),
        (BPETokenizer.train("ab", 256), "\n"),
        (WordTokenizer.train("ab"), "."),
        (WordPieceTokenizer.train("ab", 9), "."),
    ],
)
def test_every_tokenizer_has_a_text_to_begin_with(tokenizer: Tokenizer, opening: str) -> None:
    assert opening_text(tokenizer) == opening
    assert len(tokenizer.encode(opening)) == 1


def test_a_marian_tokenizer_has_two_languages() -> None:
    tokenizer = MarianTokenizer.__new__(MarianTokenizer)  # without SentencePiece's models, which are not needed for this
    tokenizer.tokens, tokenizer.target_tokens = ["<unk>", "</s>", "<pad>", "▁dog", "s"], ["<unk>", "</s>", "<pad>", "▁perro"]
    assert token_texts(tokenizer, [3, 4, 1], is_source=True) == [" dog", "s", "</s>"]
    assert token_texts(tokenizer, [3, 1]) == [" perro", "</s>"]
    with pytest.raises(UserError, match="id 4 is out of range: the ids are 0 to 3"):
        token_texts(tokenizer, [4])
