"""Hidden words that a small BERT fills in, trained or not."""

from __future__ import annotations

import pytest

import tinytensor as tt
from tinyformer import (
    BertConfig,
    BertForMaskedLM,
    BPETokenizer,
    CharTokenizer,
    WordPieceTokenizer,
    fill_masks,
    hide_words,
    with_wordpieces,
)
from tinyformer.common.errors import SettingError, UserError
from tinyformer.decoding.filling import with_mask


@pytest.fixture(scope="module")
def tokenizer() -> WordPieceTokenizer:
    return WordPieceTokenizer.train("the quick brown fox and the lazy dog " * 9, 60)


@pytest.fixture(scope="module")
def model(tokenizer: WordPieceTokenizer) -> BertForMaskedLM:
    tt.seed(0)
    shape = {"num_layers": 1, "num_heads": 2, "d_model": 8, "d_ff": 16, "max_length": 12}
    return BertForMaskedLM(BertConfig(tokenizer.vocab_size, tokenizer.special["[PAD]"], **shape))


def test_the_likeliest_tokens_of_each_mask(model: BertForMaskedLM, tokenizer: WordPieceTokenizer) -> None:
    found = fill_masks(model, tokenizer, "the [MASK] fox [MASK]", best=tokenizer.vocab_size)
    ids = [tokenizer.special["[CLS]"], *tokenizer.encode("the [MASK] fox [MASK]", True), tokenizer.special["[SEP]"]]
    places = [i for i, token in enumerate(ids) if token == tokenizer.special["[MASK]"]]
    with tt.no_grad():
        probabilities = tt.softmax(model.eval()(tt.tensor([ids])), axis=-1).numpy()[0]
    assert len(found) == len(places) == 2
    for place, row in zip(places, found):
        assert dict(row) == pytest.approx(dict(zip(tokenizer.tokens, probabilities[place].tolist())), rel=1e-4)
        assert [probability for _, probability in row] == sorted((p for _, p in row), reverse=True)
    assert fill_masks(model, tokenizer, "the [MASK] fox [MASK]", best=2) == [row[:2] for row in found]


def test_outputs_that_are_no_tokens_are_left_out(model: BertForMaskedLM, tokenizer: WordPieceTokenizer) -> None:
    fewer = WordPieceTokenizer(tokenizer.tokens[:-3])
    everything = fill_masks(model, tokenizer, "the [MASK]", tokenizer.vocab_size)
    left = [[pair for pair in row if pair[0] in fewer.tokens] for row in everything]
    expected = [[(token, pytest.approx(p / sum(p for _, p in row))) for token, p in row] for row in left]
    assert fill_masks(model, fewer, "the [MASK]", fewer.vocab_size) == expected


def test_what_cannot_be_filled(model: BertForMaskedLM, tokenizer: WordPieceTokenizer) -> None:
    with pytest.raises(UserError, match=r"there is no \[MASK\] to fill in: 'the fox'"):
        fill_masks(model, tokenizer, "the fox")
    with pytest.raises(UserError, match="the sentence has 11 tokens, more than the 10 that this model reads"):
        fill_masks(model, tokenizer, "[MASK] " * 11)
    for best in (0, tokenizer.vocab_size + 1):
        with pytest.raises(SettingError, match=f"best must be from 1 to {tokenizer.vocab_size}, got {best}"):
            fill_masks(model, tokenizer, "the [MASK]", best)


def test_another_kind_of_tokenizer(tokenizer: WordPieceTokenizer) -> None:
    assert with_wordpieces(tokenizer, "run/tokenizer.json") is tokenizer
    with pytest.raises(UserError, match=r"run/tokenizer\.json has no WordPieces: it is not the tokenizer of a BERT"):
        with_wordpieces(CharTokenizer("abc"), "run/tokenizer.json")


def test_a_mask_of_another_name(model: BertForMaskedLM) -> None:
    tokenizer = BPETokenizer.train("the fox", 260, ["<s>", "</s>", "<mask>"])
    assert with_mask(tokenizer, "folder") is tokenizer
    with pytest.raises(UserError, match="there is no <mask> to fill in: 'the fox'"):
        fill_masks(model, tokenizer, "the fox")
    with pytest.raises(UserError, match=r"the tokenizer of folder has no special token \[MASK\] or <mask>"):
        with_mask(CharTokenizer("abc"), "folder")


def test_passages_with_a_hidden_word() -> None:
    words = [f"w{i}" for i in range(30)]
    assert hide_words(" ".join(words), 2) == ["w0 w1 w2 [MASK] w4 w5 w6", "w7 w8 w9 [MASK] w11 w12 w13"]
    assert len(hide_words("\n".join(words))) == 4
    assert hide_words(" ".join(words[:8])) == ["w0 w1 w2 [MASK] w4 w5 w6"]
    assert hide_words("too few words") == []
