"""What holds of every tokenizer: special tokens, ids out of range, and the files."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tinyformer.common.errors import UserError
from tinyformer.tokenizers import BPETokenizer, CharTokenizer, Tokenizer, WordPieceTokenizer, WordTokenizer, load_tokenizer

# The names are made of characters and words that the tokenizers know, so that they can be plain text, too.
NAMES = ["<go>", "<go>>", "stop"]
TEXT = " a < go > stop <> b [ PAD UNK BOS EOS CLS SEP MASK ] pad unk bos eos cls sep mask | a < go > stop"

TRAIN: dict[str, Callable[[list[str]], Tokenizer]] = {
    "char": lambda special: CharTokenizer.train(TEXT, special),
    "word": lambda special: WordTokenizer.train(TEXT, special=special),
    "bpe": lambda special: BPETokenizer.train(TEXT, 300, special),
    "wordpiece": lambda special: WordPieceTokenizer.train(TEXT, 200, special),
}
TRAINED: dict[str, Tokenizer] = {kind: train(NAMES) for kind, train in TRAIN.items()}


@pytest.fixture(params=sorted(TRAINED))
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_special_names_have_their_own_ids(kind: str) -> None:
    tokenizer = TRAINED[kind]
    assert tokenizer.kind == kind
    assert set(NAMES) <= set(tokenizer.special)
    ids = list(tokenizer.special.values())
    assert len(set(ids)) == len(ids)
    assert all(0 <= i < tokenizer.vocab_size for i in ids)
    for name, i in tokenizer.special.items():
        assert tokenizer.decode([i]) == name


def test_the_usual_special_names() -> None:
    plain = {kind: set(train([]).special) for kind, train in TRAIN.items()}
    assert plain == {
        "char": set(),
        "word": {"[PAD]", "[UNK]", "[BOS]", "[EOS]"},
        "bpe": set(),
        "wordpiece": {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"},
    }


@pytest.mark.parametrize("where", ["{}", "a {} b", "a{}b", "{0}{0}", " {} "])
def test_a_name_in_the_text_is_plain_text(kind: str, where: str) -> None:
    tokenizer = TRAINED[kind]
    for name, i in tokenizer.special.items():
        text = where.format(name)
        assert not set(tokenizer.encode(text).tolist()) & (set(tokenizer.special.values()) - {tokenizer.special.get("[UNK]")})
        assert tokenizer.encode(text, allow_special=True).tolist().count(i) == text.count(name)


def test_unknown_in_the_text_is_not_the_unknown_token() -> None:
    for kind in ("word", "wordpiece"):
        tokenizer = TRAINED[kind]
        assert tokenizer.special["[UNK]"] not in tokenizer.encode("a [UNK] b")
        assert tokenizer.special["[UNK]"] in tokenizer.encode("a [UNK] b", allow_special=True)


pieces = st.lists(st.sampled_from([*NAMES, "[PAD]", "[UNK]", "[CLS]", "[EOS]", "a", " ", "<", ">", "go", "PAD", "b"]))


@given(pieces)
def test_no_text_smuggles_a_special_token_in(parts: list[str]) -> None:
    text = "".join(parts)
    for tokenizer in TRAINED.values():
        reserved = {i for name, i in tokenizer.special.items() if name != "[UNK]"}
        assert not reserved & set(tokenizer.encode(text).tolist())


def test_the_longest_of_two_names_counts(kind: str) -> None:
    tokenizer = TRAINED[kind]
    longest, shorter = tokenizer.special["<go>>"], tokenizer.special["<go>"]
    assert tokenizer.encode("<go>><go>", allow_special=True).tolist() == [longest, shorter]
    assert tokenizer.encode("", allow_special=True).tolist() == []
    assert tokenizer.encode("<go>a<go>", allow_special=True).dtype == np.int64


def test_skipping_special_tokens(kind: str) -> None:
    tokenizer = TRAINED[kind]
    plain = tokenizer.encode("a stop").tolist()
    go = tokenizer.special["<go>"]
    assert tokenizer.decode([go, *plain, go]) != tokenizer.decode(plain)
    assert tokenizer.decode([go, *plain, go], skip_special=True) == tokenizer.decode(plain) == "a stop"


@pytest.mark.parametrize("names", [["<a>", "<a>"], [""], ["<a>", ""], "<a>"])
def test_names_that_cannot_be(kind: str, names: list[str]) -> None:
    with pytest.raises(UserError, match="special token"):
        TRAIN[kind](names)


def test_ids_out_of_range(kind: str) -> None:
    tokenizer = TRAINED[kind]
    last = tokenizer.vocab_size - 1
    assert tokenizer.decode([last])
    for i in (-1, last + 1, -last - 1):
        with pytest.raises(UserError, match=f"id {i} is out of range: the ids are 0 to {last}$"):
            tokenizer.decode([0, i])


@pytest.mark.parametrize("i", [1.0, 0.5, np.float64(1), "1", None])
def test_not_a_valid_id(kind: str, i: object) -> None:
    with pytest.raises(UserError, match="ids must be integers, got"):
        TRAINED[kind].decode([0, i])  # type: ignore[list-item]


# ------------------------------------------------------------------------------------------------------------ no texts

HALVES = ["\ud83d", "\ude00", "a \ud83d\ude00", "a stop\udfff", "é\ud800<go>"]  # two halves, too, are no character in Python


def halved(text: str) -> str:
    """The start of the error for a text with half of a surrogate pair."""
    place = next(i for i, c in enumerate(text) if "\ud800" <= c <= "\udfff")
    return re.escape(f"{text[place]!r} at position {place} is half of a surrogate pair")


@pytest.mark.parametrize("text", HALVES, ids=ascii)
@pytest.mark.parametrize("allow_special", [True, False])
def test_half_of_a_surrogate_pair_is_not_encoded(kind: str, text: str, allow_special: bool) -> None:
    with pytest.raises(UserError, match=halved(text)):
        TRAINED[kind].encode(text, allow_special)


@pytest.mark.parametrize("text", HALVES, ids=ascii)
def test_half_of_a_surrogate_pair_is_not_learned(kind: str, text: str) -> None:
    learn: dict[str, Callable[[list[str]], object]] = {
        "char": CharTokenizer.train,
        "word": WordTokenizer.train,
        "bpe": lambda lines: BPETokenizer.train(lines, 300),
        "wordpiece": lambda lines: WordPieceTokenizer.train(lines, 300),
    }
    for lines in ([text], ["a line before", text]):
        with pytest.raises(UserError, match=halved(text)):
            learn[kind](lines)
    with pytest.raises(UserError, match=halved(text)):
        TRAIN[kind]([text])  # as the name of a special token


def test_half_of_a_surrogate_pair_is_not_made_a_token() -> None:
    tokens = [bytes([b]) for b in range(256)]
    makers: list[Callable[[str], object]] = [
        lambda text: CharTokenizer(["a", text]),
        lambda text: WordTokenizer(["a", text]),
        lambda text: WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", text]),
        lambda text: BPETokenizer([*tokens, text.encode("utf-8", "surrogatepass")], [], {text: 256}),
    ]
    for make in makers:
        with pytest.raises(UserError, match="half of a surrogate pair"):
            make("\ud83d")


@pytest.mark.parametrize("text", [b"a", None, 5, ["a"]], ids=str)
def test_not_a_valid_text(kind: str, text: object) -> None:
    with pytest.raises(UserError, match="a tokenizer encodes strings, got"):
        TRAINED[kind].encode(text)  # type: ignore[arg-type]


@given(st.text(st.characters(categories=["Cs", "L", "P", "Zs", "Cc"])))
def test_decoding_restores_the_text(text: str) -> None:
    """A lossless tokenizer rejects a text, or decoding its ids restores it."""
    bpe = TRAINED["bpe"]
    whole = not any("\ud800" <= c <= "\udfff" for c in text)
    try:
        assert bpe.decode(bpe.encode(text)) == text
        assert whole
        if text:
            characters = CharTokenizer.train(text)
            assert characters.decode(characters.encode(text)) == text
    except UserError:
        assert not whole


# ------------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("escaped", [r"\ud83d", r"a\udfff"])
def test_half_of_a_surrogate_pair_is_not_loaded(tmp_path: Path, kind: str, escaped: str) -> None:
    TRAINED[kind].save(tmp_path / "t.json")
    saved = (tmp_path / "t.json").read_text()
    (tmp_path / "t.json").write_text(saved.replace('"stop"', f'"{escaped}"'))  # a special token's name, or a word's
    with pytest.raises(UserError, match=r"t\.json is damaged: .* is half of a surrogate pair"):
        load_tokenizer(tmp_path / "t.json")


def test_load_tokenizer(tmp_path: Path, kind: str) -> None:
    tokenizer = TRAINED[kind]
    tokenizer.save(tmp_path / "t.json")
    loaded = load_tokenizer(tmp_path / "t.json")
    assert type(loaded) is type(tokenizer)
    assert loaded.special == tokenizer.special
    assert loaded.vocab_size == tokenizer.vocab_size
    text = "<go>a stop<go>> b"
    for allow_special in (True, False):
        assert loaded.encode(text, allow_special).tolist() == tokenizer.encode(text, allow_special).tolist()
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "t.json").read_bytes()
    size = tokenizer.vocab_size
    assert load_tokenizer(tmp_path / "t.json", size).vocab_size == size
    with pytest.raises(UserError, match=rf"t\.json has {size} tokens, but the model has {size + 1}"):
        load_tokenizer(tmp_path / "t.json", size + 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is damaged"),
        ("[1]", "no JSON object"),
        ("{}", "pipeline, got None"),
        (
            '{"kind": "sentencepiece"}',
            "its kind must be one of char, word, bpe, wordpiece, marian, pipeline, got 'sentencepiece'",
        ),
        ('{"kind": ["bpe"]}', "pipeline, got ['bpe']"),
        ('{"kind": "word"}', "is damaged"),
    ],
)
def test_load_tokenizer_refuses_other_files(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(content)
    with pytest.raises(UserError) as caught:
        load_tokenizer(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_each_load_refuses_the_others_files(tmp_path: Path, kind: str) -> None:
    TRAINED[kind].save(tmp_path / "t.json")
    for other in (CharTokenizer, WordTokenizer, BPETokenizer, WordPieceTokenizer):
        if other.kind != kind:
            with pytest.raises(UserError, match=r"is not a .* tokenizer's file"):
                other.load(tmp_path / "t.json")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"t\.json does not exist"):
        load_tokenizer(tmp_path / "t.json")
