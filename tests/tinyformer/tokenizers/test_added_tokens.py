"""Added tokens: where they are found in a text, and what goes with them."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest

from tinyformer.common.errors import UserError
from tinyformer.tokenizers import BPETokenizer
from tinyformer.tokenizers.added import AddedToken, AddedTokens
from tinyformer.tokenizers.byte_letters import BYTES
from tinyformer.tokenizers.cutting import CuttingRules


def cut(text: str, *tokens: AddedToken, allow_special: bool = True) -> list[str | int]:
    """Pieces of plain text, and ids of added tokens."""
    found = AddedTokens(tokens, lambda text: unicodedata.normalize("NFC", text)).cut(text, allow_special)
    return [piece if i is None else i for piece, i in found]


def one(content: str = "<a>", **rules: Any) -> AddedToken:
    return AddedToken(content, 1, **rules)


def test_plain_ones() -> None:
    assert cut("x <a><a> y", one()) == ["x ", 1, 1, " y"]
    assert cut("", one()) == []
    assert cut("x") == ["x"]
    assert cut("ab", AddedToken("a", 1), AddedToken("ab", 2)) == [2]
    assert cut("aab", AddedToken("aa", 1), AddedToken("ab", 2)) == [1, "b"]  # the leftmost, then the longest


def test_special_ones_are_plain_text_unless_allowed() -> None:
    tokens = one(special=True), AddedToken("<b>", 2)
    assert cut("<a><b>", *tokens) == [1, 2]
    assert cut("<a><b>", *tokens, allow_special=False) == ["<a>", 2]
    assert cut("<a>", tokens[0], allow_special=False) == ["<a>"]


def test_white_space_that_goes_with_them() -> None:
    assert cut("x \n<a> \ty", one(lstrip=True)) == ["x", 1, " \ty"]
    assert cut("x \n<a> \ty", one(rstrip=True)) == ["x \n", 1, "y"]
    assert cut(" <a>  <a> ", one(lstrip=True, rstrip=True)) == [1, 1]
    # A token of white space that the one before it took is none, if it may take white space in front of it.
    assert cut("<a>  x", one(rstrip=True), AddedToken("  ", 2, lstrip=True)) == [1, "x"]
    assert cut("<a>  x", one(rstrip=True), AddedToken("  ", 2)) == [1, 2, "x"]


def test_single_words() -> None:
    assert cut("of off of_ (of) 2of \u0301of of", one("of", single_word=True)) == [1, " off of_ (", 1, ") 2of \u0301of ", 1]
    assert cut("<a>b<a>", one(single_word=True)) == ["<a>b<a>"]
    assert cut("<a> b", one(single_word=True)) == [1, " b"]


def test_normalising() -> None:
    assert cut("e\u0301 é", one("é")) == ["é ", 1]
    assert cut("e\u0301 é", one("é", normalized=True)) == [1, " ", 1]
    assert cut("é e\u0301", one("e\u0301", normalized=True)) == [1, " ", 1]
    assert cut("e\u0301<a>e\u0301", one()) == ["é", 1, "é"]
    # Those that are not normalised come first.
    assert cut("ab", AddedToken("ab", 1, normalized=True), AddedToken("b", 2)) == ["a", 2]


@pytest.mark.parametrize("tokens", [[one(""), one()], [one(), one()], [one("\ud800")]])
def test_names_that_cannot_be(tokens: list[AddedToken]) -> None:
    with pytest.raises(UserError):
        AddedTokens(tokens, str)


# --------------------------------------------------------------------------------------------------- in a tokenizer

TOKENS = [bytes([b]) for b in BYTES]
LETTER_H, LETTER_I = BYTES.index(ord("h")), BYTES.index(ord("i"))


def test_byte_pairs_with_added_tokens() -> None:
    tokenizer = BPETokenizer(
        [*TOKENS, b"hi", b"<t>", b"  "],
        [(LETTER_H, LETTER_I)],
        added=[
            AddedToken("<t>", 257),
            AddedToken("  ", 258, special=True),
            AddedToken("hi", 256, single_word=True, in_vocabulary=True),
        ],
    )
    assert tokenizer.special == {"  ": 258}
    assert tokenizer.encode("hi<t>h").tolist() == [256, 257, LETTER_H]
    assert tokenizer.encode("hih  ", allow_special=True).tolist() == [256, LETTER_H, 258]
    assert tokenizer.decode([256, 257, 258, LETTER_H], skip_special=True) == "hi<t>h"
    assert tokenizer.decode([256, 257, 258, LETTER_H]) == "hi<t>  h"


def test_ignoring_merges() -> None:
    tokens = [*TOKENS, b"hi", b" hi"]
    assert BPETokenizer(tokens, [(LETTER_H, LETTER_I)], ignore_merges=True).encode("hi hi hihi").tolist()[:2] == [256, 257]
    assert BPETokenizer(tokens, [(LETTER_H, LETTER_I)]).encode("hi hi").tolist() == [256, BYTES.index(ord(" ")), 256]
    # A word that is the name of a special token is plain text, though it is a token.
    named = BPETokenizer([*TOKENS, b"hi"], [], {"hi": 256}, ignore_merges=True)
    assert named.encode("hi").tolist() == [LETTER_H, LETTER_I]
    assert named.encode("hi", allow_special=True).tolist() == [256]


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ([AddedToken("<t>", 256)], "the added token '<t>' is not the token of its id, 256"),
        ([AddedToken("<t>", 300)], "is not the token of its id"),
        ([AddedToken("<t>", -1)], "is not the token of its id"),
        ([AddedToken("ab", 256, in_vocabulary=True)], "the added token 'ab' is not the token of its id"),
        ([AddedToken("日", 256, in_vocabulary=True)], "do not stand for bytes"),
        ([AddedToken("hi", 256), AddedToken("hi", 256)], "the same name twice"),
    ],
)
def test_added_tokens_that_do_not_fit(added: list[AddedToken], message: str) -> None:
    with pytest.raises(UserError, match=message):
        BPETokenizer([*TOKENS, b"hi"], [], added=added)


def test_ids_around_a_text_that_are_none() -> None:
    assert BPETokenizer(TOKENS, [], before=[3], after=(4, 5)).after == (4, 5)
    for before, after in (([256], []), ([], [-1])):
        with pytest.raises(UserError, match="before or after it, which is not an id"):
            BPETokenizer(TOKENS, [], before=before, after=after)


def test_rules_are_saved(tmp_path: Any) -> None:
    tokenizer = BPETokenizer(
        [*TOKENS, b"hi", b"\xc4\xa0<t>", b"<s>", b"<e>"],
        [(LETTER_H, LETTER_I)],
        {"<e>": 259},
        rules=CuttingRules([r"\p{N}", r"\p{L}+"], "NFC"),
        added=[AddedToken("Ġ<t>", 257, lstrip=True), AddedToken("<s>", 258, special=True)],
        ignore_merges=True,
        before=[258],
        after=[259, 258],
    )
    tokenizer.save(tmp_path / "t.json")
    loaded = BPETokenizer.load(tmp_path / "t.json")
    for attribute in ("tokens", "merges", "special", "rules", "added", "ignore_merges", "before", "after"):
        assert getattr(loaded, attribute) == getattr(tokenizer, attribute), attribute
    text = "hi1e\u0301 Ġ<t><s>"
    assert loaded.encode(text, True).tolist() == tokenizer.encode(text, True).tolist()


def test_training_with_rules() -> None:
    rules = CuttingRules([r"\p{L}"], "NFC")
    tokenizer = BPETokenizer.train("e\u0301e\u0301 e\u0301", 400, rules=rules)
    assert tokenizer.tokens[256:] == ["é".encode()]  # letters are words of their own: only the bytes of é are merged
    assert tokenizer.rules == rules
    assert tokenizer.encode("e\u0301").tolist() == [256]
