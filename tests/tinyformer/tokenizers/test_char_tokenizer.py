"""Characters to ids and back, and errors about unknown characters, ids and files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tinyformer.common.errors import UserError
from tinyformer.tokenizers import CharTokenizer

# Every character that UTF-8 can hold: surrogates are halves of one, and no text.
real_text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


def test_ids_follow_the_order_of_code_points() -> None:
    tokenizer = CharTokenizer.train("hello wörld")
    assert tokenizer.characters == [" ", "d", "e", "h", "l", "o", "r", "w", "ö"]
    assert tokenizer.vocab_size == 9
    ids = tokenizer.encode("how")
    assert isinstance(ids, np.ndarray)
    assert ids.dtype == np.int64
    assert ids.tolist() == [3, 5, 7]


@pytest.mark.parametrize("text", ["plain", "naïve\r\n\tcafé", "日本語", "😀👩‍👩‍👧", "\x00\x7f\uffff", "\U0010ffff", "e\u0301é"])
def test_round_trip(text: str) -> None:
    tokenizer = CharTokenizer.train(text)
    ids = tokenizer.encode(text)
    assert len(ids) == len(text)  # a code point a token, those beyond the basic plane too
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids.tolist()) == text


@given(real_text)
def test_round_trip_of_any_text(text: str) -> None:
    tokenizer = CharTokenizer.train(text)
    ids = tokenizer.encode(text)
    assert ids.min() >= 0
    assert ids.max() < tokenizer.vocab_size == len(set(text))
    assert tokenizer.decode(ids) == text


@given(real_text, real_text)
def test_encode_finds_the_first_stranger_or_none(known: str, text: str) -> None:
    tokenizer = CharTokenizer.train(known)
    strangers = [i for i, character in enumerate(text) if character not in known]
    if not strangers:
        assert tokenizer.decode(tokenizer.encode(text)) == text
        return
    with pytest.raises(UserError) as caught:
        tokenizer.encode(text)
    assert f"U+{ord(text[strangers[0]]):04X}) at position {strangers[0]}:" in str(caught.value)


def test_nothing_to_encode() -> None:
    tokenizer = CharTokenizer.train("ab")
    assert tokenizer.encode("").tolist() == []
    assert tokenizer.decode([]) == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("abXa", "'X' (U+0058) at position 2"),  # between the known ones
        ("ab😀", "'😀' (U+1F600) at position 2"),  # above them all
        (" ab", "' ' (U+0020) at position 0"),  # below them all
        ("a\nb", "'\\n' (U+000A) at position 1"),  # visible in a line of output
    ],
)
def test_an_unknown_character_is_named(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        CharTokenizer.train("abcé").encode(text)
    assert message in str(caught.value)
    assert "it knows 4 characters" in str(caught.value)


@pytest.mark.parametrize("ids", [[2], [-1], [0, 1, 99], [-3]])
def test_ids_out_of_range(ids: list[int]) -> None:
    # -1 must not quietly count from the end.
    with pytest.raises(UserError, match="out of range: the ids are 0 to 1"):
        CharTokenizer.train("ab").decode(ids)


def test_no_characters() -> None:
    with pytest.raises(UserError, match="empty"):
        CharTokenizer.train("")


# ------------------------------------------------------------------------------------------------- special tokens


def test_special_tokens_come_after_the_characters() -> None:
    tokenizer = CharTokenizer.train("hello", ["<s>", "h"])
    assert tokenizer.characters == ["e", "h", "l", "o"]  # the names add none
    assert tokenizer.special == {"<s>": 4, "h": 5}
    assert tokenizer.vocab_size == 6
    assert tokenizer.encode("hello").tolist() == [1, 0, 2, 2, 3]
    assert tokenizer.encode("<s>hello", allow_special=True).tolist() == [4, 5, 0, 2, 2, 3]
    assert tokenizer.decode([4, 1, 0], skip_special=True) == "he"


def test_lines_are_a_text() -> None:
    assert CharTokenizer.train(iter(["ab", "", "bc"])).characters == ["a", "b", "c"]


def test_positions_after_a_special_token_are_those_of_the_whole_text() -> None:
    tokenizer = CharTokenizer.train("ab", ["<s>"])
    with pytest.raises(UserError, match=r"'X' \(U\+0058\) at position 5: .*knows 2 characters"):
        tokenizer.encode("a<s>bX", allow_special=True)
    with pytest.raises(UserError, match=r"'<' \(U\+003C\) at position 1:"):
        tokenizer.encode("a<s>bX")


# ---------------------------------------------------------------------------------------------------------- files


def test_save_and_load(tmp_path: Path) -> None:
    text = 'tab\tline\n😀\x00\u2028é"\\'
    tokenizer = CharTokenizer.train(text)
    tokenizer.save(tmp_path / "t.json")
    loaded = CharTokenizer.load(tmp_path / "t.json")
    assert loaded.characters == tokenizer.characters
    assert loaded.encode(text).tolist() == tokenizer.encode(text).tolist()
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]  # and no temporary file


def good_file() -> dict[str, object]:
    return {"kind": "char", "characters": ["a", "b"]}


def test_the_file_that_the_next_test_damages_is_good(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(good_file()))
    assert CharTokenizer.load(tmp_path / "t.json").characters == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is damaged"),
        ('{"kind": "char", "charac', "is damaged"),  # cut short
        ("[1, 2]", "no JSON object"),
        ("{}", "not a character tokenizer's file"),
        (json.dumps({**good_file(), "kind": "bpe"}), "not a character tokenizer's file"),
        (json.dumps({"kind": "char"}), "is damaged: characters must be a list, got None"),
        (json.dumps({**good_file(), "characters": "ab"}), "is damaged: characters must be a list, got 'ab'"),
        (json.dumps({**good_file(), "characters": ["a", "bc"]}), "is damaged"),
        (json.dumps({**good_file(), "characters": ["a", 3]}), "is damaged: characters[1] must be text, got 3"),
        (json.dumps({**good_file(), "version": 2}), "version is 2, a field that this version does not know"),
        (json.dumps({**good_file(), "characters": []}), "is damaged"),
        # Sorted again, these would quietly give other ids than the model was trained with.
        (json.dumps({**good_file(), "characters": ["b", "a"]}), "is damaged"),
        (json.dumps({**good_file(), "characters": ["a", "a"]}), "is damaged"),
        (json.dumps({**good_file(), "special": "<s>"}), "is damaged: special must be a list or null, got '<s>'"),
        (json.dumps({**good_file(), "special": ["<s>", 3]}), "is damaged: special[1] must be text, got 3"),
        (json.dumps({**good_file(), "special": ["<s>", "<s>"]}), "is damaged: two special tokens have the same name"),
    ],
)
def test_a_foreign_or_damaged_file(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(content)
    with pytest.raises(UserError) as caught:
        CharTokenizer.load(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="is damaged"):
        CharTokenizer.load(tmp_path / "t.json")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"t\.json does not exist"):
        CharTokenizer.load(tmp_path / "t.json")
