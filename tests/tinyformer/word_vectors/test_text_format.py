"""Files of word vectors: reading restores what was written, and errors name the line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tinyformer.common.errors import SettingError, UserError
from tinyformer.word_vectors.text_format import load_vectors, save_vectors
from tinyformer.word_vectors.vectors import WordVectors

WORDS = ["the", "don't", "中文", "e\u0301", "no\u00adbreak", "1", "2"]


def floats(count: int) -> np.ndarray:
    """Floats of all sizes whose squares are finite, subnormal ones and zeros, too."""
    bits = np.random.default_rng(0).integers(0, 1 << 32, 2 * count, dtype=np.uint32).view(np.float32)
    bits = bits[np.isfinite(bits)]
    odd = np.array([0.0, -0.0, 1e-45, -1e-38, 1 / 3, 16777217], np.float32)
    return np.concatenate([odd, bits[abs(bits) < 1e17]])[:count]


def test_reading_restores_what_was_written(tmp_path: Path) -> None:
    vectors = WordVectors(WORDS, floats(7 * 300).reshape(7, 300))
    path = tmp_path / "vectors.txt"
    save_vectors(vectors, path)
    again = load_vectors(path)
    assert again.words == WORDS
    assert again.matrix.tobytes() == vectors.matrix.tobytes()
    assert path.read_text(encoding="utf-8").split("\n")[0] == "7 300"
    assert [p.name for p in tmp_path.iterdir()] == ["vectors.txt"]
    save_vectors(again, tmp_path / "again.txt")
    assert (tmp_path / "again.txt").read_bytes() == path.read_bytes()


def test_short_numbers_are_written_shortly(tmp_path: Path) -> None:
    save_vectors(WordVectors(["a", "b"], [[0.1, -2], [1e-30, 3]]), tmp_path / "v.txt")
    assert (tmp_path / "v.txt").read_text() == "2 2\na 0.1 -2.0\nb 1e-30 3.0\n"


@pytest.mark.parametrize("word", ["", "two words", "a\tb", "line\n", "no\u00a0break"])
def test_words_that_the_format_cannot_hold(tmp_path: Path, word: str) -> None:
    path = tmp_path / "v.txt"
    path.write_text("what was there")
    with pytest.raises(UserError, match="as white space ends a word in"):
        save_vectors(WordVectors(["a", word], [[1], [2]]), path)
    assert path.read_text() == "what was there"


@pytest.mark.parametrize(
    "content",
    [
        b"2 2\nthe 1 2\nof 3 4\n",
        b"2 2\nthe 1 2 \r\nof 3 4\r\n",  # as fastText and Windows write
        b"\xef\xbb\xbf2 2\nthe 1 2\nof 3 4\n\n",
        b"the 1 2\nof 3 4\n",  # as GloVe writes
        b"the 1 2\nof 3 4",
        b"2 2\nthe 1e0 2.000\nof +3 4\n",
    ],
)
def test_files_as_other_programs_write_them(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "v.txt"
    path.write_bytes(content)
    vectors = load_vectors(path)
    assert vectors.words == ["the", "of"]
    assert vectors.matrix.tolist() == [[1, 2], [3, 4]]


def test_a_word_with_spaces_of_a_published_file(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("2 2\n. . . 1 2\nat name@domain.com 3 4\n")
    assert load_vectors(tmp_path / "v.txt").words == [". . .", "at name@domain.com"]


def test_the_first_words_only(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("3 1\na 1\nb 2\nbroken\n")
    assert load_vectors(tmp_path / "v.txt", limit=2).words == ["a", "b"]
    with pytest.raises(UserError, match="line 4"):
        load_vectors(tmp_path / "v.txt", limit=3)
    for limit in (0, -1):
        with pytest.raises(SettingError, match=f"limit must be at least 1, got {limit}"):
            load_vectors(tmp_path / "v.txt", limit)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no vectors: give a file of word vectors in word2vec's text format"),
        (b"\n\n", "has no vectors"),
        (b"word\n", "line 1: no numbers"),
        (b"0 5\n", "line 1: it announces 0 words with 5 numbers each"),
        (b"2 0\na\nb\n", "line 1: it announces 2 words with 0 numbers each"),
        (b"2 2\na 1 2\nb 3\n", "line 3: expected a word and 2 numbers, a space apart, got 'b 3'"),
        (b"2 2\na 1 2\n\n", "line 3: expected a word and 2 numbers, a space apart, got ''"),
        (b"2 2\nking 0.1 0.2 0.3\n", "line 2: expected a word and 2 numbers, a space apart, got 'king 0.1 0.2 0.3'"),
        (b"2 2\na 1 2\nb  3 4\n", "line 3: expected a word and 2 numbers, a space apart, got 'b  3 4'"),
        (b"2 2\na 1 2\nb 3  4\n", "line 3: expected a word and 2 numbers, a space apart, got 'b 3  4'"),
        (b"2 2\na 1 2\nb 3 x4\n", "line 3: '3 x4' are not 2 numbers"),
        (b"2 2\na 1 2\nb 3 1_0\n", "line 3: '3 1_0' are not 2 numbers"),
        (b"2 2\na 1 2\nb 3 nan\n", "line 3: a number of 'b' is not finite"),
        (b"2 2\na 1 2\nb 3 1e39\n", "line 3: a number of 'b' is not finite"),
        (b"2 2\na 1 2\nb 3 1e20\n", "line 3: a number of 'b' is not finite, or its square overflows float32"),
        (b"3 2\na 1 2\nb 3", "line 3: the line has no newline: the file is truncated"),
        (b"3 2\na 1 2\na 3 4\n", "line 3: the file ends after 2 of 3 words: it is truncated"),
        (b"2 2\na 1 2\na 3 4\nb 5 6\n", "line 4: there are more words than the 2"),
        (b"3 2\na 1 2\nb 3 4\n", "line 3: the file ends after 2 of 3 words: it is truncated"),
        (b"1 2\na 1 2\nb 3 4\n", "line 3: there are more words than the 1 that line 1 announces"),
        (b"a 1 2\nb 3\n", "line 2: expected a word and 2 numbers, a space apart, got 'b 3'"),
        (b"2 2\na 1 2\n\xff 3 x\n", "line 3: not UTF-8 text"),
        (b"3 2\na 1 2\n\xff 3 4\n", "line 3: the file ends after 2 of 3 words: it is truncated"),
        (b"some words of a text\n", "line 1: 'words of a text' are not 4 numbers: give a file of word vectors in word2vec's"),
        (b"\x93NUMPY\x01\x00", "line 1: not UTF-8 text: give a file of word vectors in word2vec's text format, neither"),
    ],
)
def test_what_is_wrong_is_found_with_its_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "v.txt"
    path.write_bytes(content)
    with np.errstate(over="ignore"), pytest.raises(UserError) as error:
        load_vectors(path)
    assert message in str(error.value)
    assert str(error.value).startswith(str(path))


@pytest.mark.parametrize("header", [b"3 2\n", b""])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_words_that_are_not_utf8_are_left_out_and_counted(header: bytes, place: int, tmp_path: Path, capsys) -> None:
    lines = [b"a 1 2\n", b"b 3 4\n"]
    (tmp_path / "v.txt").write_bytes(header + b"".join([*lines[:place], b"\xe9t\xe9 5 6\n", *lines[place:]]))
    vectors = load_vectors(tmp_path / "v.txt")
    assert list(vectors.words) == ["a", "b"] and vectors.matrix.tolist() == [[1, 2], [3, 4]]
    assert capsys.readouterr().out == f"{tmp_path / 'v.txt'}: left out 1 line with words that are not UTF-8 text\n"


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist: give a file of word vectors"):
        load_vectors(tmp_path / "v.txt")
    with pytest.raises(UserError, match=r"is a folder, not a regular file: give a file of word vectors in [^,]* format$"):
        load_vectors(tmp_path)
    for name in (".vectors.txt", "map.png", "notes.txt", "vectors.txt"):
        (tmp_path / name).write_text("word 1 2\n")
    with pytest.raises(UserError, match=r"is a folder, not a regular file: give .* format, such as .*/vectors\.txt$"):
        load_vectors(tmp_path)


@pytest.mark.parametrize("head", [b"4 2\n", b""])
def test_of_a_word_that_is_there_twice_the_first_vector_counts(head: bytes, tmp_path: Path, capsys) -> None:
    """As in gensim: published files of large vocabularies have a few such words."""
    path = tmp_path / "v.txt"
    path.write_bytes(head + b"a 1 2\nb 3 4\na 5 6\nc 7 8\n")
    vectors = load_vectors(path)
    assert (list(vectors.words), vectors.matrix.tolist()) == (["a", "b", "c"], [[1, 2], [3, 4], [7, 8]])
    assert capsys.readouterr().out == f"{path}: left out 1 line with repeated words\n"
    assert list(load_vectors(path, limit=3).words) == ["a", "b", "c"]
    assert list(load_vectors(path, limit=2).words) == ["a", "b"]


def test_a_last_line_without_a_newline_is_read_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "v.txt").write_text("2 2\na 1 2\nb 3 4.1")
    assert load_vectors(tmp_path / "v.txt").words == ["a", "b"]
    assert "the last line does not end with a newline, so its last number may be truncated" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text", ["the\t1\t2\nof\t3\t4\n", "the\t1 2\nof\t3 4\n", "2\t2\nthe\t1 2\nof\t3 4\n", "the 1 2\nof 3 4\n\n\n"]
)
def test_tabs_between_the_numbers_and_empty_lines_at_the_end(text: str, tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text(text)
    vectors = load_vectors(tmp_path / "v.txt")
    assert list(vectors.words) == ["the", "of"] and vectors.matrix.tolist() == [[1, 2], [3, 4]]


def test_an_empty_line_between_words_is_named(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("the 1 2\n\nof 3 4\n")
    with pytest.raises(UserError, match=r"v\.txt, line 2: expected a word and 2 numbers"):
        load_vectors(tmp_path / "v.txt")
