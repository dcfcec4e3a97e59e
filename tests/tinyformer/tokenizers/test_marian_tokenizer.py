"""Marian's ids and special tokens, with a stand-in for SentencePiece that cuts at spaces. The real one is in tests/parity."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tinyformer.common.errors import UserError
from tinyformer.pretrained.tokenizers import pretrained_tokenizer
from tinyformer.tokenizers import MarianTokenizer, load_tokenizer, marian

VOCABULARY = {"</s>": 0, "<unk>": 1, "▁a": 2, "▁b": 3, ">>fra<<": 4, "▁c": 5, "<pad>": 6}
TARGET = {"</s>": 0, "<unk>": 1, "▁x": 2, "▁y": 3, "▁z": 4, "▁w": 5, "<pad>": 6, "▁v": 7}


class Processor:
    """Words are pieces. The model is its name in bytes."""

    def __init__(self, model: bytes):
        self.name = model.decode()

    def encode(self, text: str, out_type: type) -> list[str]:
        assert out_type is str
        return ["▁" + word for word in text.split()]

    def decode_pieces(self, pieces: list[str]) -> str:
        return "".join(pieces).replace("▁", " ").strip()


@pytest.fixture
def cut_at_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marian, "_processor", lambda model, language: Processor(model))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "vocab.json").write_text(json.dumps(VOCABULARY))
    (tmp_path / "target_vocab.json").write_text(json.dumps(TARGET))
    (tmp_path / "source.spm").write_bytes(b"source")
    (tmp_path / "target.spm").write_bytes(b"target")
    return tmp_path


@pytest.mark.usefixtures("cut_at_spaces")
def test_custom_ids(folder: Path) -> None:
    tokenizer = pretrained_tokenizer(folder)
    assert isinstance(tokenizer, MarianTokenizer)
    assert tokenizer.special == {"<unk>": 1, "</s>": 0, "<pad>": 6}
    assert (tokenizer.vocab_size, tokenizer.before, tokenizer.after) == (7, (), (0,))
    assert tokenizer.encode("a c x").tolist() == [2, 5, 1]
    assert tokenizer.encode_target("b").tolist() == [3]
    assert tokenizer.encode(">>fra<< a").tolist() == [4, 2]
    assert tokenizer.encode(">>deu<<a").tolist() == [1, 2]
    assert tokenizer.decode([2, 5, 0, 6]) == "a c</s> <pad>"
    assert tokenizer.decode([6, 2, 1, 5, 0], skip_special=True) == "a<unk> c"
    for i in (-1, 7):
        with pytest.raises(UserError, match=f"id {i} is out of range: the ids are 0 to 6"):
            tokenizer.decode([i])


@pytest.mark.usefixtures("cut_at_spaces")
def test_names_of_special_tokens(folder: Path) -> None:
    tokenizer = pretrained_tokenizer(folder)
    assert tokenizer.encode("a</s> b<pad>", allow_special=True).tolist() == [2, 0, 3, 6]
    assert tokenizer.encode("a </s> <pad>").tolist() == [2, 1, 1]
    with pytest.raises(UserError, match="half of a surrogate pair"):
        tokenizer.encode("\ud800")


@pytest.mark.usefixtures("cut_at_spaces")
def test_a_vocabulary_for_each_language(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text('{"separate_vocabs": true}')
    tokenizer = pretrained_tokenizer(folder)
    assert isinstance(tokenizer, MarianTokenizer)
    assert tokenizer.encode("a x").tolist() == [2, 1]
    assert tokenizer.encode_target("a x").tolist() == [1, 2]
    assert tokenizer.decode([2, 7]) == "x v"
    tokenizer.save(folder / "t.json")
    loaded = load_tokenizer(folder / "t.json", 7)
    assert isinstance(loaded, MarianTokenizer)
    assert loaded.encode_target("a x").tolist() == [1, 2]
    assert (loaded.source, loaded.target) == (b"source", b"target")


@pytest.mark.usefixtures("cut_at_spaces")
def test_save_and_load(folder: Path) -> None:
    tokenizer = pretrained_tokenizer(folder)
    tokenizer.save(folder / "t.json")
    loaded = load_tokenizer(folder / "t.json")
    assert isinstance(loaded, MarianTokenizer)
    assert loaded.target_vocabulary is loaded.vocabulary
    assert loaded.encode("a c").tolist() == [2, 5]
    content = json.loads((folder / "t.json").read_text())
    changed: list[tuple[dict[str, object], str]] = [
        ({"source": "*"}, "is damaged"),
        ({"tokens": [*content["tokens"], "▁a"]}, "a token occurs twice"),
        ({"tokens": content["tokens"][:-1]}, "lacks <pad>"),
        ({"target": None}, "target must be text"),
    ]
    for changes, message in changed:
        (folder / "t.json").write_text(json.dumps({**content, **changes}))
        with pytest.raises(UserError, match=message):
            load_tokenizer(folder / "t.json")


@pytest.mark.usefixtures("cut_at_spaces")
@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        ({"</s>": 0, "<unk>": 1}, "lacks <pad>"),
        ({**VOCABULARY, "x": 9}, "must be the numbers from 0 to 7"),
        ({**VOCABULARY, "x": "7"}, "must be an integer"),
        ([], "no JSON object"),
    ],
)
def test_a_damaged_vocabulary(folder: Path, vocabulary: object, message: str) -> None:
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    with pytest.raises(UserError, match=message) as caught:
        pretrained_tokenizer(folder)
    assert str(folder / "vocab.json") in str(caught.value)


@pytest.mark.usefixtures("cut_at_spaces")
def test_special_tokens_with_two_ids(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text('{"separate_vocabs": true}')
    (folder / "target_vocab.json").write_text(json.dumps({"</s>": 0, "<pad>": 1, "<unk>": 2}))
    with pytest.raises(UserError, match="have different ids"):
        pretrained_tokenizer(folder)


@pytest.mark.parametrize("name", ["target.spm", "vocab.json"])
def test_missing_files(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(UserError, match=f"{name} does not exist"):
        pretrained_tokenizer(folder)


def test_without_sentencepiece(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(ImportError, match=r'needs the package sentencepiece: pip install "tinyformer\[sentencepiece\]"'):
        pretrained_tokenizer(folder)
