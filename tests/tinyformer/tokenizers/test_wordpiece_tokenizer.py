"""WordPiece: BERT's normalising and cutting, the longest piece first, training, and BERT's vocabulary format."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tinyformer.common.errors import UserError
from tinyformer.tokenizers import WordPieceTokenizer
from tinyformer.tokenizers.wordpiece import SPECIAL, words_of

TEXTBOOK = "low low low low low lower lower" + 6 * " newest" + 3 * " widest"

# The example of the BERT paper's code: un ##aff ##able.
PIECES = [*SPECIAL, "want", "##want", "##ed", "wa", "un", "runn", "##ing", "##aff", "##able", ",", "[", "]", "cls", "a"]


def pieces(tokenizer: WordPieceTokenizer, text: str, allow_special: bool = False) -> list[str]:
    return [tokenizer.tokens[i] for i in tokenizer.encode(text, allow_special)]


# -------------------------------------------------------------------------------------------------------------- encoding


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("unwanted running", ["un", "##want", "##ed", "runn", "##ing"]),
        ("UNAFFABLE,", ["un", "##aff", "##able", ","]),
        ("wa want", ["wa", "want"]),  # the longest piece, not the first
        ("unwantedX running", ["[UNK]", "runn", "##ing"]),  # all of the word, not its rest
        ("want able", ["want", "[UNK]"]),  # ##able does not begin a word
        ("", []),
        (" \t\n", []),
    ],
)
def test_the_longest_piece_from_the_left(text: str, expected: list[str]) -> None:
    tokenizer = WordPieceTokenizer(PIECES)
    assert pieces(tokenizer, text) == expected
    assert tokenizer.encode(text).dtype == np.int64


def test_a_word_too_long_is_unknown() -> None:
    tokenizer = WordPieceTokenizer([*SPECIAL, "a", "##a"], longest_word=4)
    assert pieces(tokenizer, "aaaa aaaaa") == ["a", "##a", "##a", "##a", "[UNK]"]
    assert pieces(WordPieceTokenizer([*SPECIAL, "a", "##a"]), "a" * 100 + " " + "a" * 101)[99:] == ["##a", "[UNK]"]


def test_decode() -> None:
    tokenizer = WordPieceTokenizer(PIECES)
    ids = tokenizer.encode("[CLS] unwanted, xyz[SEP]", allow_special=True)
    assert tokenizer.decode(ids) == "[CLS] unwanted , [UNK] [SEP]"
    assert tokenizer.decode(ids, skip_special=True) == "unwanted , [UNK]"
    assert tokenizer.decode([PIECES.index("##ed")]) == "##ed"  # nothing before it to belong to


# ------------------------------------------------------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("text", "lowered", "as_it_is"),
    [
        ("Hello, World!", ["hello", ",", "world", "!"], ["Hello", ",", "World", "!"]),
        ("don't $5^2", ["don", "'", "t", "$", "5", "^", "2"], ["don", "'", "t", "$", "5", "^", "2"]),
        ("Café CAFE\u0301", ["cafe", "cafe"], ["Café", "CAFE\u0301"]),
        ("東京 kyoto都x", ["東", "京", "kyoto", "都", "x"], ["東", "京", "kyoto", "都", "x"]),
        ("a\u9fffb\U0002ceafc", ["a", "\u9fff", "b", "\U0002ceaf", "c"], ["a", "\u9fff", "b", "\U0002ceaf", "c"]),  # last ones
        ("a\ua000b\U0002ceb0c", ["a\ua000b\U0002ceb0c"], ["a\ua000b\U0002ceb0c"]),  # the first after them
        ("ひらがな カタ", ["ひらかな", "カタ"], ["ひらがな", "カタ"]),  # not cut: no Chinese characters. が is か and a mark
        ("a\x00b\x07c\u200dd\ufffde\x7f", ["abcde"], ["abcde"]),
        ("a\tb\nc\rd\u00a0e\u2028f\u3000g", list("abcdefg"), list("abcdefg")),
        ("«¿a—b»…", ["«", "¿", "a", "—", "b", "»", "…"], ["«", "¿", "a", "—", "b", "»", "…"]),
        ("€5 ©x 👋a", ["€5", "©x", "👋a"], ["€5", "©x", "👋a"]),  # symbols beyond ASCII are no punctuation
        ("İI ΟΔΟΣ ẞ", ["ii", "οδοσ", "ß"], ["İI", "ΟΔΟΣ", "ẞ"]),
        ("\u037e", [";"], ["\u037e"]),  # the Greek question mark: a semicolon once normalised
        ("\ud83d", [], []),  # half a surrogate pair
    ],
)
def test_words(text: str, lowered: list[str], as_it_is: list[str]) -> None:
    assert words_of(text) == lowered
    assert words_of(text, lowercase=False) == as_it_is


@given(st.text())
def test_words_of_any_text(text: str) -> None:
    for lowercase in (True, False):
        words = words_of(text, lowercase)
        assert all(words)
        assert words == words_of(" ".join(words), lowercase)


# ------------------------------------------------------------------------------------------------------------ training


def test_the_textbook_example() -> None:
    # By hand. The pieces of one character are in alphabetical order, those with ## first. ##e ##s and ##s ##t occur
    # 9 times; ##e is before ##s. Then ##es ##t: 9. Then 7 for ##o ##w and l ##o; ## is before l. Then l ##ow: 7.
    characters = ["##d", "##e", "##i", "##o", "##r", "##s", "##t", "##w", "l", "n", "w"]
    tokenizer = WordPieceTokenizer.train(TEXTBOOK, 5 + len(characters) + 4)
    assert tokenizer.tokens == [*SPECIAL, *characters, "##es", "##est", "##ow", "low"]
    assert pieces(tokenizer, "lowest slow") == ["low", "##est", "[UNK]"]  # no s begins a word here


def test_learning_continues_until_nothing_occurs_twice() -> None:
    assert WordPieceTokenizer.train("abc abc ad", 1000).tokens[5:] == ["##b", "##c", "##d", "a", "##bc", "abc"]


@given(st.lists(st.text("ab", min_size=1, max_size=12), min_size=1, max_size=20))
def test_no_piece_is_made_in_two_ways_whatever_the_order_of_lines(lines: list[str]) -> None:
    tokenizer = WordPieceTokenizer.train(lines, 400)
    assert len(set(tokenizer.tokens)) == len(tokenizer.tokens)
    assert WordPieceTokenizer.train(lines[::-1], 400).tokens == tokenizer.tokens


def test_a_vocabulary_too_small() -> None:
    assert WordPieceTokenizer.train("ab", 7).tokens[5:] == ["##b", "a"]
    with pytest.raises(UserError, match="vocab_size must be 7 or more for the characters of this text, got 6"):
        WordPieceTokenizer.train("ab", 6)
    with pytest.raises(UserError, match="8 or more"):
        WordPieceTokenizer.train("ab", 7, ["[BOS]"])


@pytest.mark.parametrize("text", ["", " \n\x00"])
def test_a_text_without_words(text: str) -> None:
    with pytest.raises(UserError, match="no words"):
        WordPieceTokenizer.train(text, 100)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=80))
def test_every_word_of_the_training_text_can_be_written(text: str) -> None:
    if not (words := words_of(text)):
        return
    tokenizer = WordPieceTokenizer.train(text, 10_000, ["[BOS]"])
    assert tokenizer.decode(tokenizer.encode(text)) == " ".join(words)


def test_case_and_accents_are_kept_if_asked() -> None:
    tokenizer = WordPieceTokenizer.train("Été été", 100, lowercase=False)
    assert tokenizer.decode(tokenizer.encode("Été été")) == "Été été"
    tokenizer = WordPieceTokenizer.train("Été été", 100)
    assert tokenizer.decode(tokenizer.encode("Été été")) == "ete ete"


# ------------------------------------------------------------------------------------------------------------- files


def test_save_and_load(tmp_path: Path) -> None:
    tokenizer = WordPieceTokenizer([*PIECES, "[BOS]", "\u2028"], ["[BOS]"], lowercase=False, longest_word=7)
    tokenizer.save(tmp_path / "t.json")
    loaded = WordPieceTokenizer.load(tmp_path / "t.json")
    assert loaded.tokens == tokenizer.tokens
    assert loaded.special == tokenizer.special
    assert (loaded.lowercase, loaded.longest_word) == (False, 7)
    text = "[BOS] unwanted Unwant want"
    assert pieces(loaded, text, True) == pieces(tokenizer, text, True) == ["[BOS]", "[UNK]", "[UNK]", "want"]


def good_file() -> dict[str, object]:
    return {"kind": "wordpiece", "lowercase": True, "longest_word": 100, "special": [], "tokens": [*SPECIAL, "a"]}


def test_the_file_that_the_next_test_damages_is_good(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(good_file()))
    assert WordPieceTokenizer.load(tmp_path / "t.json").vocab_size == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "bpe"}, "not a WordPiece tokenizer's file"),
        ({"tokens": "abc"}, "tokens must be a list, got 'abc'"),
        ({"tokens": [*SPECIAL, 3]}, "tokens[5] must be text, got 3"),
        ({"tokens": [*SPECIAL[1:], "a"]}, "lacks the special tokens [PAD]"),
        ({"tokens": [*SPECIAL, "a", "a"]}, "occurs twice"),
        ({"tokens": [*SPECIAL, "a", ""]}, "is empty"),
        ({"special": ["[BOS]"]}, "lacks the special tokens [BOS]"),
        ({"special": ["[CLS]"]}, "have the same name"),
        ({"special": None}, "special must be a list, got None"),
        ({"lowercase": "false"}, "lowercase must be true or false, got 'false'"),
        ({"longest_word": "100"}, "longest_word must be an integer, got '100'"),
        ({"longest_word": True}, "longest_word must be an integer, got True"),
        ({"size": 6}, "size is 6, a field that this version"),
    ],
)
def test_a_foreign_or_damaged_file(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({**good_file(), **changes}))
    with pytest.raises(UserError) as caught:
        WordPieceTokenizer.load(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
