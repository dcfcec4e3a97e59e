"""Words to ids and back: cutting, counting, unknown words, and where marks stand in a decoded line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import regex
from hypothesis import given, strategies as st

from tinyformer.common.errors import UserError
from tinyformer.common.words import WORDS_AND_MARKS
from tinyformer.tokenizers import WordTokenizer
from tinyformer.tokenizers.word import RULES, SPECIAL, spaced

TEXT = "the cat sat. the dog sat, the end"


# -------------------------------------------------------------------------------------------------------------- training


def test_the_most_frequent_words_come_first() -> None:
    tokenizer = WordTokenizer.train(TEXT)
    assert tokenizer.special == {"[PAD]": 0, "[UNK]": 1, "[BOS]": 2, "[EOS]": 3}
    assert tokenizer.words == ["the", "sat", ",", ".", "cat", "dog", "end"]  # of equals, the alphabet decides
    assert tokenizer.vocab_size == 11
    ids = tokenizer.encode("the end.")
    assert ids.dtype == np.int64
    assert ids.tolist() == [4, 10, 7]


def test_lines_are_a_text() -> None:
    lines = ["the cat sat.", "the dog sat,", "the end"]
    assert WordTokenizer.train(lines).words == WordTokenizer.train(iter(lines[::-1])).words == WordTokenizer.train(TEXT).words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"vocab_size": 5}, ["the"]),
        ({"vocab_size": 6}, ["the", "sat"]),
        ({"vocab_size": 1000}, ["the", "sat", ",", ".", "cat", "dog", "end"]),
        ({"min_count": 2}, ["the", "sat"]),
        ({"min_count": 3}, ["the"]),
        ({"vocab_size": 7, "special": ["<x>"]}, ["the", "sat"]),
    ],
)
def test_which_words_are_known(options: dict[str, object], words: list[str]) -> None:
    assert WordTokenizer.train(TEXT, **options).words == words  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "no words"),
        (" \n", {}, "no words"),
        (TEXT, {"min_count": 4}, "no word occurs 4 times"),
        (TEXT, {"min_count": 0}, "at least 1, got 0"),
        (TEXT, {"vocab_size": 4}, "vocab_size must be above 4"),
        (TEXT, {"vocab_size": -1}, "vocab_size must be above 4, the number of special tokens, got -1"),
        (TEXT, {"vocab_size": 5, "special": ["<x>"]}, "vocab_size must be above 5"),
        (TEXT, {"unknown": "ignore"}, "must be 'token' or 'error'"),
    ],
)
def test_training_that_cannot_be(text: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        WordTokenizer.train(text, **options)  # type: ignore[arg-type]


def test_lowercase() -> None:
    tokenizer = WordTokenizer.train("The the THE Cat", lowercase=True)
    assert tokenizer.words == ["the", "cat"]
    assert tokenizer.decode(tokenizer.encode("CAT the")) == "cat the"
    assert WordTokenizer.train("The the", lowercase=False).words == ["The", "the"]


# --------------------------------------------------------------------------------------------------------------- cutting


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hello, world!", ["Hello", ",", "world", "!"]),
        ("don't l’uomo rock'n'roll 'tis dogs'", ["don't", "l’uomo", "rock'n'roll", "'", "tis", "dogs", "'"]),
        ("3.14 1,000 2nd x_1 _it_ 5.", ["3.14", "1,000", "2nd", "x_1", "_", "it", "_", "5", "."]),
        ("U.S. well-known col·legi צה״ל a/b", ["U.S", ".", "well", "-", "known", "col·legi", "צה״ל", "a", "/", "b"]),
        ("... ?!", [".", ".", ".", "?", "!"]),
        ("cafe\u0301 naïve", ["cafe\u0301", "naïve"]),  # an accent that is a character of its own belongs to its letter
        ("Straße мир 日本語 ภาษา 日本.語", ["Straße", "мир", "日本語", "ภาษา", "日本", ".", "語"]),
        ("a\tb\u00a0c\u2028d\r\n", ["a", "b", "c", "d"]),
        ("hi👋🌍", ["hi", "👋", "🌍"]),
        ("a👨\u200d👩\u200d👧👍🏽🇩🇪🇫🇷❤\ufe0f", ["a", "👨\u200d👩\u200d👧", "👍🏽", "🇩🇪", "🇫🇷", "❤\ufe0f"]),
        ("می\u200cخواهم ශ්\u200dරී co\u00adop wo\u2060rd", ["می\u200cخواهم", "ශ්\u200dරී", "co\u00adop", "wo\u2060rd"]),
        ("don\u00ad't 3\u2060.\u20601", ["don\u00ad't", "3\u2060.\u20601"]),
        ("\ufeffthe cat\u200e, \u200cx a\u200bb \u200d", ["the", "cat", ",", "x", "a", "b"]),  # what nobody sees, beside words
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert WORDS_AND_MARKS.findall(text) == words


def test_unknown_words_as_a_token() -> None:
    tokenizer = WordTokenizer.train(TEXT)
    ids = tokenizer.encode("the bird sat")
    assert ids.tolist() == [4, 1, 5]
    assert tokenizer.decode(ids) == "the [UNK] sat"
    assert tokenizer.decode([2, *ids, 3, 0], skip_special=True) == "the [UNK] sat"  # a word of the text, though not known


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("the bird sat bad", "unknown word 'bird' at position 4: remove it"),
        ("Bird", "unknown word 'Bird' at position 0"),
        ("the\n\n!", "unknown word '!' at position 5"),
        ("[EOS]the bird", "unknown word 'bird' at position 9"),  # counted in the whole text
    ],
)
def test_unknown_words_as_an_error(text: str, message: str) -> None:
    tokenizer = WordTokenizer.train(TEXT, unknown="error")
    with pytest.raises(UserError) as caught:
        tokenizer.encode(text, allow_special=True)
    assert message in str(caught.value)


def test_the_position_of_an_unknown_word_is_that_of_the_text_as_given() -> None:
    # The lower case of İ is two characters long.
    with pytest.raises(UserError, match="'x' at position 3:"):
        WordTokenizer.train("İİ", lowercase=True, unknown="error").encode("İİ x")


# -------------------------------------------------------------------------------------------------------------- decoding


@pytest.mark.parametrize(
    "text",
    [
        "Hello, world! Is it you? Yes; no: maybe...",
        "I don't know the well-known l'uomo, it’s here.",
        "a (very [small]) test {here}",
        'He said "no" and "yes, of course".',
        "¿Qué? ¡No! «oui» “so” $5 50% #1 a/b",
        "it costs 3.14 at 10:30.",
        "Tom: hi",
        "the dogs'.",
        "1, 2, 3",
        "日本。",
    ],
)
@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_marks_stand_where_they_belong(text: str, rules: regex.Pattern[str]) -> None:
    assert "".join(spaced(rules.findall(text), rules)) == text


@given(
    st.lists(st.text(st.sampled_from("ab1é\u0301.,'\"-()!“’ $:\t[]日😀_\u00ad\u200c\u200dא״🇩"), max_size=6), min_size=1),
    st.booleans(),
)
def test_no_word_is_lost_or_made_by_decoding(parts: list[str], lowercase: bool) -> None:
    assert_same_after_decoding(" ".join(parts), lowercase)


@given(st.text(st.characters(exclude_categories=["Cs"])), st.booleans())
def test_no_word_of_any_text_is_lost(text: str, lowercase: bool) -> None:
    assert_same_after_decoding(text, lowercase)


def assert_same_after_decoding(text: str, lowercase: bool) -> None:
    """The spaces may differ, the words may not."""
    tokenizer = WordTokenizer.train([text, "so that there is a word"], lowercase=lowercase, unknown="error")
    ids = tokenizer.encode(text)
    assert len(ids) == len(WORDS_AND_MARKS.findall(text))
    assert tokenizer.encode(tokenizer.decode(ids)).tolist() == ids.tolist()


def test_nothing_to_decode() -> None:
    tokenizer = WordTokenizer.train(TEXT)
    assert tokenizer.encode("").tolist() == []
    assert tokenizer.decode([]) == ""


# ------------------------------------------------------------------------------------------------------------- files


def test_save_and_load(tmp_path: Path) -> None:
    tokenizer = WordTokenizer.train("Ça va? 日本 é\u0301 the", special=["<de>"], lowercase=True, unknown="error")
    tokenizer.save(tmp_path / "t.json")
    loaded = WordTokenizer.load(tmp_path / "t.json")
    assert loaded.words == tokenizer.words
    assert loaded.special == tokenizer.special == {**{name: i for i, name in enumerate(SPECIAL)}, "<de>": 4}
    assert (loaded.lowercase, loaded.unknown) == (True, "error")
    text = "<de>ÇA va the"
    assert loaded.encode(text, allow_special=True).tolist() == tokenizer.encode(text, allow_special=True).tolist()


def test_files_of_early_versions_cut_words_as_they_did(tmp_path: Path) -> None:
    words = ["don", "'", "t", "3", ".", "14", "👍", "🏽", "\u200c", "می", "خواهم"]
    (tmp_path / "old.json").write_text(json.dumps({**good_file(), "words": words}))
    old = WordTokenizer.load(tmp_path / "old.json")
    text = "don't 3.14 👍🏽 می\u200cخواهم"
    assert [old.words[i - 4] for i in old.encode(text)] == [
        "don",
        "'",
        "t",
        "3",
        ".",
        "14",
        "👍",
        "🏽",
        "می",
        "\u200c",
        "خواهم",
    ]
    assert old.decode(old.encode("don't 3.14")) == "don't 3.14"
    old.save(tmp_path / "again.json")
    assert "rules" not in json.loads((tmp_path / "again.json").read_text())
    WordTokenizer.train(text).save(tmp_path / "new.json")
    new = WordTokenizer.load(tmp_path / "new.json")
    assert [new.words[i - 4] for i in new.encode(text)] == ["don't", "3.14", "👍🏽", "می\u200cخواهم"]


def good_file() -> dict[str, object]:
    return {"kind": "word", "lowercase": False, "unknown": "token", "special": [], "words": ["a", "b"]}


def test_the_file_that_the_next_test_damages_is_good(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(good_file()))
    assert WordTokenizer.load(tmp_path / "t.json").words == ["a", "b"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "char"}, "not a word tokenizer's file"),
        ({"words": "ab"}, "words must be a list, got 'ab'"),
        ({"words": ["a", 3]}, "words[1] must be text, got 3"),
        ({"words": []}, "at least one word"),
        ({"words": ["a", "a"]}, "occurs twice"),
        ({"words": ["a", ""]}, "is empty"),
        ({"special": ["[UNK]"]}, "have the same name"),
        ({"special": [""]}, "nonempty"),
        ({"unknown": "maybe"}, "must be 'token' or 'error'"),
        ({"unknown": None}, "unknown must be text, got None"),
        ({"rules": "spaces"}, "rules must be 'unicode' or 'letters', got 'spaces'"),
        ({"rules": 1}, "rules must be text or null, got 1"),
        ({"lowercase": 1}, "lowercase must be true or false, got 1"),
        ({"size": 2}, "size is 2, a field that this version"),
    ],
)
def test_a_foreign_or_damaged_file(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({**good_file(), **changes}))
    with pytest.raises(UserError) as caught:
        WordTokenizer.load(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
