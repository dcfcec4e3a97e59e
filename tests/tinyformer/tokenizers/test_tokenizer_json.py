"""tokenizer.json: what is read, and what is refused. The files of other libraries are read in tests/parity."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tinyformer.common.errors import UserError
from tinyformer.tokenizers import (
    BPETokenizer,
    CharTokenizer,
    PipelineTokenizer,
    Tokenizer,
    WordPieceTokenizer,
    WordTokenizer,
    load_tokenizer,
)
from tinyformer.tokenizers.byte_letters import BYTES, shown
from tinyformer.tokenizers.patterns import GPT2_WORDS
from tinyformer.tokenizers.tokenizer_json import read_tokenizer_json
from tinyformer.tokenizers.tokenizer_json_writing import tokenizer_json

Json = dict[str, Any]


def added(i: int, content: str, **rules: bool) -> Json:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": i, "content": content, **plain, **rules}


def byte_pairs() -> Json:
    """A file as those of Llama 3, with two merges."""
    letters = [shown(bytes([b])) for b in BYTES]
    split = {"type": "Split", "pattern": {"Regex": r"\p{N}{1,3}| ?\p{L}+|\s+"}, "behavior": "Isolated", "invert": False}
    ends = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [258], "tokens": ["<s>"]}},
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added(258, "<s>", special=True), added(259, "<t>", normalized=True)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                split,
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        },
        "post_processor": {"type": "Sequence", "processors": [ends, template]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,
            "vocab": {token: i for i, token in enumerate([*letters, "hi", "Ġhi"])},
            "merges": [["h", "i"], ["Ġ", "hi"]],
        },
    }


def word_pieces() -> Json:
    return tokenizer_json(WordPieceTokenizer.train("low lower lowest", 60))


def characters() -> Json:
    return tokenizer_json(CharTokenizer("abc \n", ["<go>"]))


def read(content: Json, folder: Path) -> Any:
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    return read_tokenizer_json(folder / "tokenizer.json")


def test_byte_pairs(tmp_path: Path) -> None:
    tokenizer = read(byte_pairs(), tmp_path)
    assert isinstance(tokenizer, BPETokenizer)
    assert tokenizer.vocab_size == 260
    assert tokenizer.special == {"<s>": 258}
    assert (tokenizer.before, tokenizer.after) == ((258,), ())
    assert tokenizer.ignore_merges
    assert tokenizer.rules.normal_form == "NFC"
    assert tokenizer.encode("hi hi<t>").tolist() == [256, 257, 259]
    assert tokenizer.encode("e\u0301").tolist() == tokenizer.encode("é").tolist()
    assert 258 not in tokenizer.encode("<s>")
    assert tokenizer.decode(tokenizer.encode("<s>hi 1234\n", allow_special=True)) == "<s>hi 1234\n"


def test_files_of_earlier_versions(tmp_path: Path) -> None:
    content = byte_pairs()
    content["model"] = {"vocab": content["model"]["vocab"], "merges": ["h i", "Ġ hi"], "continuing_subword_prefix": ""}
    content["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
    content["normalizer"] = content["post_processor"] = None
    tokenizer = read(content, tmp_path)
    assert not tokenizer.ignore_merges
    assert tokenizer.rules.patterns == [GPT2_WORDS]
    assert tokenizer.encode("hi<t>hi").tolist() == [257, 259, 257]  # a space is put before each piece
    content = word_pieces()
    del content["model"]["type"]
    assert isinstance(read(content, tmp_path), WordPieceTokenizer)


def test_digits_and_ends_as_roberta_has_them(tmp_path: Path) -> None:
    content = byte_pairs()
    content["pre_tokenizer"]["pretokenizers"][0] = {"type": "Digits", "individual_digits": True}
    content["post_processor"] = {"type": "RobertaProcessing", "sep": ["<t>", 259], "cls": ["<s>", 258], "trim_offsets": True}
    tokenizer = read(content, tmp_path)
    assert tokenizer.rules.words("ab12") == ["ab", "1", "2"]
    assert (tokenizer.before, tokenizer.after) == ((258,), (259,))
    content["pre_tokenizer"]["pretokenizers"][0]["individual_digits"] = False
    assert read(content, tmp_path).rules.words("ab12") == ["ab", "12"]


def test_special_tokens_that_are_ordinary_ones_as_well(tmp_path: Path) -> None:
    # A byte or the result of a merge stays one; another name in the vocabulary is no plain text.
    content = byte_pairs()
    content["model"]["vocab"]["<u>"] = 258
    content["added_tokens"] = [added(0, "!", special=True), added(256, "hi", special=True), added(258, "<u>", special=True)]
    content["post_processor"] = None
    tokenizer = read(content, tmp_path)
    assert tokenizer.special == {"!": 0, "hi": 256, "<u>": 258}
    assert tokenizer.encode("!hi hi").tolist() == [0, 256, 257]
    assert not {258} & set(tokenizer.encode("<u>").tolist())
    assert tokenizer.encode("<u>", allow_special=True).tolist() == [258]
    assert tokenizer.decode([0, 256, 257], skip_special=True) == " hi"


def test_word_pieces_and_characters(tmp_path: Path) -> None:
    tokenizer = read(word_pieces(), tmp_path)
    assert isinstance(tokenizer, WordPieceTokenizer)
    assert (tokenizer.before, tokenizer.after) == ((tokenizer.special["[CLS]"],), (tokenizer.special["[SEP]"],))
    assert tokenizer.decode(tokenizer.encode("low lowest")) == "low lowest"
    content = word_pieces()
    content["decoder"]["cleanup"] = True
    assert read(content, tmp_path).cleanup
    tokenizer = read(characters(), tmp_path)
    assert isinstance(tokenizer, CharTokenizer)
    assert tokenizer.encode("ab<go>\n", allow_special=True).tolist() == [2, 3, 5, 0]


Change = Callable[[Json], object]


def nested(kind: str, depth: int) -> Json | None:
    section = None
    for _ in range(depth):
        section = {"type": "Sequence", kind: [section] if section else []}
    return section


def replacing(times: int, within: str = "normalizers") -> Json:
    return {"type": "Sequence", within: [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * times}


def nothing_left(content: Json) -> None:
    content["normalizer"] = {"type": "Replace", "pattern": {"String": "<t>"}, "content": ""}


def metaspace_first(normalizer: str = "NFC", before: list[Json] | None = None) -> Change:
    cutters = [*(before or []), {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}]
    change = top(normalizer={"type": normalizer, "prepend": "x"} if normalizer == "Prepend" else {"type": normalizer})
    other = top(pre_tokenizer={"type": "Sequence", "pretokenizers": cutters})
    return lambda content: (change(content), other(content))


def model(**changes: Any) -> Change:
    return lambda content: content["model"].update(changes)


def top(**changes: Any) -> Change:
    return lambda content: content.update(changes)


def first_cutter(**changes: Any) -> Change:
    return lambda content: content["pre_tokenizer"]["pretokenizers"][0].update(changes)


def last_cutter(**changes: Any) -> Change:
    return lambda content: content["pre_tokenizer"]["pretokenizers"][1].update(changes)


def template(**changes: Any) -> Change:
    return lambda content: content["post_processor"]["processors"][1].update(changes)


def one_template(content: Json) -> Json:
    found: Json = content["post_processor"]["processors"][1]
    return found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (model(type="Other"), "the model 'Other'; there are BPE, WordPiece and Unigram"),
        (model(type="WordLevel"), "of the model"),
        (model(dropout=0.1), "dropout = 0.1 of the model; it can be 0.0"),
        (model(continuing_subword_prefix="##"), "continuing_subword_prefix = '##' of the model"),
        (model(end_of_word_suffix="</w>"), "end_of_word_suffix = '</w>' of the model"),
        (model(new_option=1), "new_option = 1 of the model"),
        (top(new_section={}), "new_section = {} of the file"),
        (top(decoder={"type": "CTC"}), "the decoder 'CTC'; there are ByteLevel, ByteFallback, Fuse"),
        (top(normalizer={"type": "Nmt"}), "the normalizer 'Nmt'; there are NFC, NFD"),
        (top(pre_tokenizer={"type": "UnicodeScripts"}), "the pre-tokenizer 'UnicodeScripts'; there are ByteLevel, Metaspace"),
        (top(normalizer=nested("normalizers", 30)), "more than 20 sequences of normalizers in one another"),
        (first_cutter(behavior="Other"), "behavior = 'Other' of Split; it can be 'Removed' or 'Isolated'"),
        (first_cutter(new=1), "new = 1 of Split"),
        (last_cutter(other=1), "other = 1 of ByteLevel"),
        (top(normalizer=replacing(7)), "normalizers that may make a text more than 100 times as long"),
        (top(normalizer={"type": "Prepend", "prepend": "x" * 101}), "more than 100 times as long"),
        (top(decoder={**replacing(7, "decoders")}), "more than 100 times as long"),
        (top(pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "Digits"}] * 101}), "101 pretokenizers one after"),
        (top(decoder={"type": "Replace", "pattern": {"Regex": "x"}, "content": ""}), "Regex = 'x' of the decoder Replace"),
        (metaspace_first(normalizer="Prepend"), "prepend_scheme = 'first' of Metaspace after a normalizer other than one of"),
        (metaspace_first(before=[{"type": "Whitespace"}]), "prepend_scheme = 'first' of a later Metaspace after NFC"),
        (nothing_left, "an added token of which normalising leaves nothing"),
        (top(post_processor={"type": "Other"}), "the post-processor 'Other'; there are TemplateProcessing"),
        (template(single=[]), "the template [], which does not have the text once"),
        (template(single=[{"Sequence": {"id": "A"}}] * 2), "which does not have the text once"),
        (template(other=1), "other = 1 of the post-processor"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_named(tmp_path: Path, change: Change, message: str) -> None:
    content = byte_pairs()
    change(content)
    with pytest.raises(UserError) as caught:
        read(content, tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'tokenizer.json'} asks for something that is not supported: ")
    assert message in str(caught.value)
    assert "the package tokenizers reads it" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (model(type=["BPE"]), "damaged"),
        (model(merges=[["h", "x", "i"]]), "the merge 'h x i' is not two tokens"),
        (model(merges=["h xyz"]), "the merge 'h xyz' is not two tokens"),
        (model(merges=["h <s>"]), "the merge 'h <s>' is not two tokens"),
        (model(merges=[["h", "x"]]), "makes no token"),
        (model(merges=[5]), "damaged"),
        (model(merges=[[5, 6]]), "damaged"),
        (model(merges=[[["h"], "i"]]), "damaged"),
        (model(merges=None), "damaged"),
        (model(vocab=[]), "damaged"),
        (model(vocab={"a": "b"}), "damaged"),
        (lambda c: c["model"]["vocab"].update(xy=10**9), "not the numbers from 0 to 260"),
        (model(unk_token="<unk>", byte_fallback=True), "the unknown token '<unk>' is not in the vocabulary"),
        (top(normalizer={"type": "Prepend", "prepend": 5}), "damaged"),
        (top(normalizer={"type": "Strip"}), "'strip_left'"),
        (top(decoder={"type": "Strip", "content": " ", "start": "x", "stop": 0}), "damaged"),
        (first_cutter(pattern={"String": ""}), "{'String': ''} is no pattern"),
        (first_cutter(pattern={"Other": "x"}), "{'Other': 'x'} is no pattern"),
        (lambda c: c["model"]["vocab"].update({"<s>": 260}), "'<s>' has the id 258, but another one in the vocabulary"),
        (lambda c: c["added_tokens"].append(added(258, "<u>")), "not the numbers from 0 to"),
        (lambda c: c["added_tokens"].append(added(260, "<s>")), "the same name twice"),
        (lambda c: c["model"]["vocab"].update({"xy": 262, "[unused260]": 261}), "its name would be that of another one"),
        (lambda c: c["added_tokens"][0].pop("content"), "added_tokens.content is missing"),
        (lambda c: c["added_tokens"][0].update(id="7"), "added_tokens.id must be an integer"),
        (lambda c: c["added_tokens"][0].update(strip=True), "added_tokens.strip is True, a field that this"),
        (lambda c: c["added_tokens"].append(5), "added_tokens must be an object"),
        (lambda c: c.pop("model"), "'model'"),
        (top(model=[]), "damaged"),
        (top(pre_tokenizer=5), "damaged"),
        (top(pre_tokenizer={}), "'type'"),
        (first_cutter(pattern={"Regex": "a{1,2}+"}), "at position 1 of the regular expression"),
        (first_cutter(pattern={"Regex": 5}), "damaged"),
        (first_cutter(pattern="x"), "damaged"),
        (template(special_tokens={}), "'<s>'"),
        (lambda c: one_template(c)["special_tokens"]["<s>"].update(ids=[999]), "the id 999 before or after it"),
    ],
)  # fmt: skip
def test_damaged_files(tmp_path: Path, change: Change, message: str) -> None:
    content = byte_pairs()
    change(content)
    with pytest.raises(UserError) as caught:
        read(content, tmp_path)
    path = tmp_path / "tokenizer.json"
    assert str(caught.value).startswith((f"{path} is ", f"{path}: "))  # damaged; of another version
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["model"].update(unk_token="<u>", vocab={**c["model"]["vocab"], "<u>": len(c["model"]["vocab"])}),
        model(continuing_subword_prefix="@@"),
        top(normalizer=None),
        top(pre_tokenizer={"type": "Whitespace"}),
        top(decoder={"type": "Fuse"}),
        lambda c: c["normalizer"].update(strip_accents=False),
        lambda c: c["normalizer"].update(handle_chinese_chars=False),
        lambda c: c["normalizer"].update(clean_text=False),
        lambda c: c["added_tokens"][4].update(lstrip=True),
        lambda c: c["added_tokens"][0].update(special=False),
        lambda c: c["added_tokens"].pop(),
        lambda c: c["post_processor"]["single"].pop(),
    ],
)  # fmt: skip
def test_word_pieces_that_are_not_berts(tmp_path: Path, change: Change) -> None:
    content = word_pieces()
    change(content)
    tokenizer = read(content, tmp_path)
    assert isinstance(tokenizer, PipelineTokenizer)
    assert tokenizer.decode(tokenizer.encode("low")).replace("##", "") == "low"


@pytest.mark.parametrize(
    "change",
    [
        model(byte_fallback=True),
        top(decoder={"type": "Fuse"}),
        top(decoder=None),
        top(normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFD"}]}),
        top(normalizer={"type": "Lowercase"}),
        top(pre_tokenizer=None),
        first_cutter(behavior="Removed"),
        first_cutter(pattern={"String": " "}),
        last_cutter(add_prefix_space=True),
        lambda c: c["model"]["vocab"].update({"x y": 260}),  # a token that is no bytes
    ],
)  # fmt: skip
def test_byte_pairs_with_more_than_gpt2_has(tmp_path: Path, change: Change) -> None:
    content = byte_pairs()
    change(content)
    tokenizer = read(content, tmp_path)
    assert isinstance(tokenizer, PipelineTokenizer)
    assert len(tokenizer.encode("hi!"))
    assert tokenizer_json(tokenizer) == content


def test_bytes_that_are_missing(tmp_path: Path) -> None:
    content = byte_pairs()
    for byte in range(40):  # of GPT-2's order: ! to H
        del content["model"]["vocab"][shown(bytes([BYTES[byte]]))]
    vocabulary = {token: i for i, token in enumerate(content["model"]["vocab"])}
    content["model"] |= {"vocab": vocabulary, "unk_token": "a", "fuse_unk": True}
    content["added_tokens"], content["post_processor"] = [], None
    tokenizer = read(content, tmp_path)
    assert isinstance(tokenizer, BPETokenizer)
    assert tokenizer.decode(tokenizer.encode("hi!!")) == "hia"
    again = tokenizer_json(tokenizer)["model"]
    assert (again["unk_token"], again["fuse_unk"], again["vocab"]) == ("a", True, vocabulary)
    content["model"]["unk_token"] = "xyz"
    with pytest.raises(UserError, match="the unknown token 'xyz' is not in the vocabulary"):
        read(content, tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["pre_tokenizer"]["pattern"].update(Regex=r"\p{L}+"),
        top(pre_tokenizer={"type": "Whitespace"}),
        top(normalizer={"type": "Lowercase"}),
        top(decoder=None),
        model(unk_token="a"),
        lambda c: c["model"]["vocab"].update({"a": 3, "b": 2}),
        lambda c: c["model"]["vocab"].update({"zz": 6}),
    ],
)  # fmt: skip
def test_other_words_than_characters_are_not_supported(tmp_path: Path, change: Change) -> None:
    content = copy.deepcopy(characters())
    change(content)
    with pytest.raises(UserError):
        read(content, tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model": NaN}', '{"a": 1, "a": 2}', "[" * 100_000, "\x00", '{"model": 1}'])
def test_what_is_no_tokenizer_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(UserError, match=r"tokenizer\.json is damaged"):
        read_tokenizer_json(tmp_path / "tokenizer.json")


# ------------------------------------------------------------------------------------------------------------ writing


@pytest.mark.parametrize(
    "tokenizer",
    [
        BPETokenizer.train("low lower lowest", 270, ["<go>", "Ġ<t>"]),
        WordPieceTokenizer.train("low lower lowest", 60, ["<go>"], lowercase=False),
        CharTokenizer.train("low lower", ["<go>"]),
    ],
    ids=lambda tokenizer: tokenizer.kind,
)
def test_what_is_written_is_read(tmp_path: Path, tokenizer: Tokenizer) -> None:
    again = read(tokenizer_json(tokenizer), tmp_path)
    assert type(again) is type(tokenizer)
    assert (again.special, again.vocab_size) == (tokenizer.special, tokenizer.vocab_size)
    ids = tokenizer.encode("low<go> lower", allow_special=True)
    assert again.encode("low<go> lower", allow_special=True).tolist() == ids.tolist()
    assert again.decode(ids) == tokenizer.decode(ids)
    assert tokenizer_json(again) == tokenizer_json(tokenizer)


def test_rules_are_written(tmp_path: Path) -> None:
    first = read(byte_pairs(), tmp_path)
    again = read(tokenizer_json(first), tmp_path)
    for attribute in ("tokens", "merges", "special", "rules", "added", "ignore_merges", "before", "after"):
        assert getattr(again, attribute) == getattr(first, attribute), attribute


def test_what_cannot_be_written() -> None:
    with pytest.raises(UserError, match="kind 'word' cannot be written for transformers"):
        tokenizer_json(WordTokenizer.train("a b"))
    with pytest.raises(UserError, match="cannot tell the special token 'lo' from an ordinary token"):
        tokenizer_json(BPETokenizer.train("lolo lolo", 258, ["lo"]))
    with pytest.raises(UserError, match="a special token of one character"):
        tokenizer_json(CharTokenizer("ab", ["a"]))


def test_ids_that_no_token_has(tmp_path: Path) -> None:
    """Published vocabularies leave some out. The tokens after a gap keep their ids, and no text has the ids in it."""
    content = byte_pairs()
    content["model"]["vocab"]["xy"] = 300
    tokenizer = read(content, tmp_path)
    assert tokenizer.vocab_size == 301
    assert tokenizer.decode([300, *range(260, 300)], skip_special=True) == "xy"
    assert max(tokenizer.encode("[unused270] xy")) < 258
    tokenizer.save(tmp_path / "saved.json")
    assert load_tokenizer(tmp_path / "saved.json").decode([300]) == "xy"
    assert read(tokenizer_json(tokenizer), tmp_path).decode([300, 258]) == tokenizer.decode([300, 258])
