"""A text as rows of word ids."""

from __future__ import annotations

import numpy as np
import pytest

from tinyformer.common.errors import SettingError, UserError
from tinyformer.word_vectors.corpus import Corpus, check_known, passages, words_of

TEXT = "The cat sat.\nThe dog sat, too!\n\nDon't sit, cat;\n \nthe end"


def test_words_are_lower_case_and_without_marks() -> None:
    assert list(words_of("Don’t stop: it's 5 o'clock -- \"Ça va\"? 'Tis e\u0301t\u00e9, l'")) == [
        "don't", "stop", "it's", "5", "o'clock", "ça", "va", "tis", "\u00e9t\u00e9", "l",
    ]  # fmt: skip


def test_joiners_inside_a_word_belong_to_it() -> None:
    persian, sinhala = "می\u200cخواهم", "ශ්\u200dරී"  # I want; Sri
    assert list(words_of(f"{persian} {sinhala}\u200d, \u200cx")) == [persian, sinhala, "x"]


def test_words_are_those_of_unicode() -> None:
    text = "co\u00adop wo\u2060rd don\u00ad't l·l 3.14 x_1 _it_ e.g. 日本語 日本.語 צה״ל a\u200bb a-b 👍🏽 \ufeffend\u200e"
    assert list(words_of(text)) == [
        "co\u00adop", "wo\u2060rd", "don\u00ad't", "l·l", "3.14", "x_1", "it", "e.g", "日本語", "日本", "語", "צה״ל", "a", "b",
        "a", "b", "end",
    ]  # fmt: skip


def test_passages_end_at_an_empty_line_or_at_every_line() -> None:
    assert [list(words) for words in passages(TEXT)] == [
        ["the", "cat", "sat", "the", "dog", "sat", "too"],
        ["don't", "sit", "cat"],
        ["the", "end"],
    ]
    assert [list(words) for words in passages("a b\nc\n\nd", "line")] == [["a", "b"], ["c"], [], ["d"]]
    with pytest.raises(SettingError, match="end must be one of paragraph, line, got 'word'"):
        passages(TEXT, "word")


def test_ids_follow_the_counts_and_then_the_alphabet() -> None:
    corpus = Corpus.of(passages(TEXT), 1)
    assert corpus.vocabulary.words == ["the", "cat", "sat", "dog", "don't", "end", "sit", "too"]
    assert corpus.vocabulary.counts.tolist() == [3, 2, 2, 1, 1, 1, 1, 1]
    assert corpus.vocabulary.ids["sat"] == 2
    assert corpus.ids.tolist() == [0, 1, 2, 0, 3, 2, 7, 4, 6, 1, 0, 5]
    assert corpus.starts.tolist() == [0, 7, 10, 12]
    assert corpus.passage_of.tolist() == [0] * 7 + [1] * 3 + [2] * 2
    assert corpus.num_words == 12


def test_rare_words_are_left_out_and_so_are_passages_without_others() -> None:
    corpus = Corpus.of([["a", "x", "b"], ["y"], [], ["b", "a", "b"]], 2)
    assert corpus.vocabulary.words == ["b", "a"]
    assert corpus.ids.tolist() == [1, 0, 0, 1, 0]  # a and b stand side by side now
    assert corpus.starts.tolist() == [0, 2, 5]
    assert corpus.num_words == 7


@pytest.mark.parametrize(
    ("words", "min_count", "message"),
    [
        ([], 1, "the text has no words: vectors need at least two different words"),
        ([[], []], 1, "the text has no words"),
        ([["one"] * 1000], 1, "the text has only one word, 1,000 times: vectors need at least two"),
        ([["one"]], 1, "the text has only one word, once: vectors need at least two"),
        ([["one"] * 9, ["two"] * 4], 5, "min_count=5 leaves 1 of 2 different words in the text"),
        ([["one", "two"]], 2, "min_count=2 leaves 0 of 2 different words in the text"),
        ([["one"], ["two"]], 1, "no passage of the text has two words that occur often enough"),
        ([["one", "two"]], 0, "min_count must be at least 1, got 0"),
    ],
)
def test_too_little_to_learn_from(words: list[list[str]], min_count: int, message: str) -> None:
    with pytest.raises(UserError) as error:
        Corpus.of(words, min_count)
    assert message in str(error.value)


def test_a_text_without_spaces() -> None:
    clauses = [f"{word}天气很好我们去" for word in "一二三四五六七八九十"]
    with pytest.raises(UserError, match=r"of book\.txt are too long for words: separate the words by spaces"):
        Corpus.of([[*clauses, *["他说"] * 3]], 3, "book.txt")
    for words in (["天气", "很", "好", "我们"] * 3, clauses * 3):  # separated words, and clauses that are repeated
        assert len(Corpus.of([[*words, "图书馆管理员"]], 3).vocabulary) == len(set(words))
    long = [f"donaudampfschifffahrt{number}" for number in range(30)]
    assert Corpus.of([[*long, *["die", "der"] * 3]], 3).vocabulary.words == ["der", "die"]


def test_similar_spellings_are_offered() -> None:
    words = ["king", "kings", "queen", "xylophone"]
    check_known("king", words, words)
    with pytest.raises(UserError, match=r"^unknown word 'kingg': did you mean king, kings\?$"):
        check_known("kingg", words, words)
    with pytest.raises(UserError, match=r"unknown word 'Queen': did you mean queen\?"):
        check_known("Queen", words, words)
    with pytest.raises(UserError, match=r"unknown word 'nasa' in b\.txt: did you mean NASA\?"):
        check_known("nasa", [*words, "NASA"], [*words, "NASA"], " in b.txt")
    long = ["z" * 150]
    with pytest.raises(UserError, match=r"did you mean z{57}\.\.\.\?"):
        check_known("z" * 155, long, long)
    with pytest.raises(UserError, match="unknown word 'zzz': no word is spelled like it"):
        check_known("zzz", words, words)
    with pytest.raises(UserError) as error:
        check_known("z" * 10_000, words, words)
    assert len(str(error.value)) < 150


def test_many_words() -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 50, 2000)
    corpus = Corpus.of([[f"w{i}" for i in row] for row in ids.reshape(40, 50)], 1)
    assert [corpus.vocabulary.words[i] for i in corpus.ids] == [f"w{i}" for i in ids]
    assert corpus.vocabulary.counts.sum() == 2000
    assert (np.diff(corpus.vocabulary.counts) <= 0).all()
