"""Published tokenizers: the code around the package ``tokenizers``. tests/parity compares them with transformers."""

from __future__ import annotations

import base64
import json
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tinyformer import PipelineTokenizer, UserError, load_tokenizer, pretrained_tokenizer, token_texts
from tinyformer.decoding.streaming import stream_text
from tinyformer.tokenizers import BPETokenizer, WordPieceTokenizer
from tinyformer.tokenizers.tokenizer_json import added_token, tokenizer_json

Json = dict[str, Any]
Change = Callable[[Json], object]
SPECIAL = ("<unk>", "<s>", "</s>")


def llama2(**changes: Any) -> Json:
    """A small file as Llama 2's."""
    bytes_of = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *bytes_of, "▁", "h", "i", "e", "hi", "▁hi", "he", "▁▁"]
    decoders = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    normalizers = [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    return {
        "added_tokens": [added_token(tokens[i]) | {"id": i} for i in range(3)],
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [["h", "i"], ["▁", "hi"], ["h", "e"], ["▁", "▁"]],
            **changes,
        },
    }


def unigram(**changes: Any) -> Json:
    """A small file as T5's. To the model, its special tokens are the likeliest pieces."""
    scores = {**dict.fromkeys(SPECIAL, 0.0), "▁": -3.0, "ab": -3.5, **dict.fromkeys("ab<s>", -2.0)}
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    model = {"type": "Unigram", "unk_id": 0, "vocab": list(map(list, scores.items())), **changes}
    return {**llama2(), "normalizer": None, "pre_tokenizer": metaspace, "decoder": metaspace, "model": model}


def words(**changes: Any) -> Json:
    """Whole words, among them a special token's name."""
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, "a"])}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>", **changes}
    return {**llama2(), "normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}, "decoder": None, "model": model}


def with_merges_to_a_special_token() -> Json:
    content = llama2()
    for token in ("<", "s", ">", "<s"):
        content["model"]["vocab"][token] = len(content["model"]["vocab"])
    content["model"]["merges"] += [["<", "s"], ["<s", ">"]]
    return content


def test_llama2() -> None:
    tokenizer = PipelineTokenizer(llama2())
    assert token_texts(tokenizer, tokenizer.encode("hi  he")) == [" hi", "  ", "he"]
    assert token_texts(tokenizer, tokenizer.encode("hi<s>hi", allow_special=True)) == [" hi", "<s>", " hi"]
    assert tokenizer.encode("").tolist() == []
    for text in ("hi", " hi", "é\nhi", "日本 hi  ", "\x00"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode("hi</s>", allow_special=True), skip_special=True) == "hi"
    with pytest.raises(UserError, match="id 267 is out of range: the ids are 0 to 266"):
        tokenizer.decode([267])
    for wrong in ("\ud800", b"hi", 5):
        with pytest.raises(UserError):
            tokenizer.encode(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [llama2, unigram, words, with_merges_to_a_special_token, lambda: llama2(ignore_merges=True)])
def test_the_name_of_a_special_token_in_a_text_is_plain_text(make: Callable[[], Json]) -> None:
    tokenizer = PipelineTokenizer(make())
    ends = {tokenizer.special["<s>"], tokenizer.special["</s>"]}
    for text in ("<s>", "a <s> a", "</s>", " <s></s>", "<s>" * 20):
        assert ends & {*tokenizer.encode(text, allow_special=True).tolist()}
        assert not ends & {*tokenizer.encode(text).tolist()}
    assert tokenizer.encode("a a").tolist() == tokenizer.encode("a a", allow_special=True).tolist()


def test_unknown_is_no_secret() -> None:
    tokenizer = PipelineTokenizer(words())
    assert tokenizer.encode("a zz").tolist() == [3, 0]
    assert tokenizer.decode([3, 1, 0], skip_special=True) == "a"
    bert = PipelineTokenizer(tokenizer_json(WordPieceTokenizer.train("low lower lowest", 60)))
    ids = [bert.special["[CLS]"], *bert.encode("low 日"), bert.special["[SEP]"]]
    assert bert.decode(ids, skip_special=True) == "low [UNK]"  # it stands for a word


def test_a_text_is_shown_while_it_is_written() -> None:
    tokenizer = PipelineTokenizer(llama2())
    ids = tokenizer.encode("hi é hi").tolist()
    asked = 0

    def all_ids() -> Any:
        nonlocal asked
        for i in ids:
            asked += 1
            yield i

    pieces = [(piece, asked) for piece in tokenizer.stream(all_ids()) if piece]
    assert pieces == [("hi", 1), (" ", 2), ("é hi", 5)]  # the bytes are certain where something else comes
    prompt = tokenizer.encode("hi").tolist()
    assert "".join(stream_text(tokenizer, prompt, after=prompt)) == " hi"  # only the text's first space is none


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
DECODERS: dict[str, Json | None] = {
    "none": None,
    "Llama's": llama2()["decoder"],
    "bytes": BYTES,
    "marks": unigram()["decoder"],
    "all at the end": {
        "type": "Sequence",
        "decoders": [{"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "hh"}, "content": "!"}],
    },
    "two spaces": {
        "type": "Sequence",
        "decoders": [{"type": "Fuse"}, {"type": "Strip", "content": "h", "start": 2, "stop": 0}],
    },
    "WordPieces": {"type": "WordPiece", "prefix": "h", "cleanup": True},
    "words with ends": {"type": "BPEDecoder", "suffix": "i"},
}


@pytest.mark.parametrize("name", DECODERS)
def test_the_pieces_of_a_stream_are_the_text(name: str) -> None:
    tokenizer = PipelineTokenizer({**llama2(), "decoder": DECODERS[name]})
    start = 3 + 0xC3  # of the bytes from there on
    several = [
        [],
        [5],
        [259, 259, 260],
        [263, 260, 261],
        [260, 260, 264, 259],
        [start, 3 + 0xA9, 260],
        [start],
        [start, 260, start],
    ]
    several += [[start, 3 + 0xA9, start, 264], [1, 264, 2], [266, 266, 263]]
    for ids in several:
        for skip in (False, True):
            assert "".join(tokenizer.stream(ids, skip)) == tokenizer.decode(ids, skip)


def test_a_stream_of_bytes_shows_whole_characters() -> None:
    tokenizer = PipelineTokenizer(tokenizer_json(BPETokenizer.train("", 256)))
    pieces = list(tokenizer.stream(tokenizer.encode("a日é")))
    assert [piece for piece in pieces if piece] == ["a", "日", "é"]
    assert list(tokenizer.stream(tokenizer.encode("a日")[:-1])) == ["a", "\ufffd"]
    assert token_texts(tokenizer, tokenizer.encode("aé")) == ["a", "\\xc3", "\\xa9"]


def test_it_survives_saving(tmp_path: Path) -> None:
    more = [added_token("<t>", special=False, lstrip=True)]
    tokenizer = PipelineTokenizer({**llama2(), "truncation": {"max_length": 5}}, more, (["<s>"], ["</s>", "<t>"]))
    assert (tokenizer.before, tokenizer.after) == ((1,), (2, 267))
    tokenizer.save(tmp_path / "t.json")
    again = load_tokenizer(tmp_path / "t.json", 268)
    assert isinstance(again, PipelineTokenizer)
    assert again.content == tokenizer.content
    assert (again.special, again.added, again.before, again.after) == (
        tokenizer.special, tokenizer.added, tokenizer.before, tokenizer.after
    )  # fmt: skip
    assert again.encode("hi hi hi é <t>").tolist() == tokenizer.encode("hi hi hi é <t>").tolist()


def test_ids_that_no_token_has() -> None:
    content = llama2()
    content["model"]["vocab"]["xy"] = 300
    content["added_tokens"].append(added_token("<t>", special=False) | {"id": 305})
    tokenizer = PipelineTokenizer(content)
    assert tokenizer.vocab_size == 306
    assert tokenizer.encode("hi<t>").tolist() == [264, 305]
    assert tokenizer.decode([264, 280, 300, 305]) == "hixy<t>"
    assert token_texts(tokenizer, [280]) == [""]


# --------------------------------------------------------------------------------------------- what is wrong or too much


def top(**changes: Any) -> Change:
    return lambda content: content.update(changes)


def model(**changes: Any) -> Change:
    return lambda content: content["model"].update(changes)


def cutters(part: Json, times: int = 1) -> Change:
    return top(pre_tokenizer={"type": "Sequence", "pretokenizers": [part] * times})


def added(i: int, content: str) -> Change:
    return lambda whole: whole["added_tokens"].append(added_token(content) | {"id": i})


def nested(depth: int) -> Json:
    section: Json = {"type": "NFC"}
    for _ in range(depth):
        section = {"type": "Sequence", "normalizers": [section]}
    return section


def charsmap(longest: int) -> str:
    trie = struct.pack("<I", 0) * 4
    return base64.b64encode(struct.pack("<I", len(trie)) + trie + b"a" * longest + b"\0").decode()


SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}
TEMPLATE = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}], "pair": [], "special_tokens": {}}
DOUBLING = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
HOSTILE: dict[str, tuple[Change, str]] = {
    "a long mark": (
        cutters({"type": "Metaspace", "replacement": "x" * 3000, "prepend_scheme": "always"}),
        "3,000 characters; the limit is 200",
    ),
    "a long literal": (cutters({**SPLIT, "pattern": {"String": "a" * 3000}}), "String of Split in the pre_tokenizer has 3,000"),
    "a long pattern": (
        cutters({**SPLIT, "pattern": {"Regex": "a" * 30_000}}),
        "Regex of Split in the pre_tokenizer has 30,000",
    ),
    "many parts": (cutters({"type": "Punctuation", "behavior": "Isolated"}, 90), "too many pretokenizers: the limit is 20"),
    "many sequences": (top(normalizer=nested(90)), "too many normalizers: the limit is 20"),
    "bytes of bytes": (cutters(BYTES, 18), "up to 2.62e+05x as long; the limit is 100x"),
    "longer and longer": (top(normalizer={"type": "Sequence", "normalizers": [DOUBLING] * 8}), "up to 256x as long"),
    "long texts": (top(decoder={"type": "Sequence", "decoders": [DOUBLING] * 8}), "up to 256x as long"),
    "a map to long texts": (top(normalizer={"type": "Precompiled", "precompiled_charsmap": charsmap(500)}), "up to 500x"),
    "dropout": (model(dropout=0.1), "dropout = 0.1 is not supported"),
    "long words": (
        model(max_input_chars_per_word=10**6, unk_token="<unk>"),
        "max_input_chars_per_word must be at most 1,000, got 1,000,000",
    ),
    "a long name": (added(267, "a" * 600), "has 600 characters; the limit is 500"),
}
NO_UNKNOWN = {"type": "WordPiece", "unk_token": "[UNK]", "vocab": {"a": 0}, "max_input_chars_per_word": 9}
WRONG: dict[str, tuple[Change, str]] = {
    "no unknown token": (top(model=NO_UNKNOWN), "the unknown token '[UNK]' is not in the vocabulary"),
    "no model": (lambda content: content.pop("model"), "is damaged: 'model'"),
    "an unknown model": (model(type="Other"), "the package tokenizers reports: "),
    "an unknown part": (top(normalizer={"type": "Other"}), "the package tokenizers reports: "),
    "a part without a type": (top(normalizer={}), "the package tokenizers reports: "),
    "a merge of nothing": (model(merges=[["h", "xyz"]]), "the package tokenizers reports: "),
    "merges that are none": (model(merges=5), "the package tokenizers reports: "),
    "an id far off": (lambda content: content["model"]["vocab"].update(xy=10**9), "many ids have no token"),
    "an id twice": (lambda content: content["model"]["vocab"].update(xy=5), "two tokens share an id"),
    "an added id twice": (added(2, "<t>"), "two tokens share an id"),
    "another id": (added(400, "hi"), "added token 'hi' has id 400, but 263 in the vocabulary"),
    "the same name twice": (lambda content: content["added_tokens"].append("<s>"), "is damaged"),
    "a wrong pattern": (cutters({**SPLIT, "pattern": {"Regex": "(a"}}), "the package tokenizers reports: "),
    "a template with two texts": (
        top(post_processor={**TEMPLATE, "single": TEMPLATE["single"] * 2}),
        "must keep the text once",
    ),
    "a template with names": (
        top(post_processor={**TEMPLATE, "single": [{"SpecialToken": {"id": "<q>", "type_id": 0}}, *TEMPLATE["single"]]}),
        "the post-processor has no ids for <q>",
    ),
    "a map of characters that is none": (top(normalizer={"type": "Precompiled", "precompiled_charsmap": "?"}), "Precompiled"),
}


@pytest.mark.parametrize("name", [*HOSTILE, *WRONG])
def test_files_that_are_rejected_immediately(tmp_path: Path, name: str) -> None:
    change, message = (HOSTILE | WRONG)[name]
    content = llama2()
    change(content)
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "saved.json").write_text(json.dumps({"kind": "pipeline", "content": content}))
    for read, path in ((pretrained_tokenizer, tmp_path / "tokenizer.json"), (load_tokenizer, tmp_path / "saved.json")):
        start = time.process_time()
        with pytest.raises(UserError) as caught:
            read(path.parent if read is pretrained_tokenizer else path)
        assert time.process_time() - start < 5
        assert str(caught.value).startswith(str(path)) and message in str(caught.value)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model": NaN}', '{"a": 1, "a": 2}', "[" * 100_000, "\x00", '{"model": 1}'])
def test_an_invalid_tokenizer_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(UserError, match=r"tokenizer\.json is damaged"):
        pretrained_tokenizer(tmp_path)


def test_a_pattern_that_may_never_end_is_stopped() -> None:
    part = {**SPLIT, "pattern": {"Regex": "(?:h|hh)+b"}}
    tokenizer = PipelineTokenizer({**llama2(), "pre_tokenizer": part})
    with pytest.raises(UserError, match=r"the package tokenizers reports: .*retry-limit"):
        tokenizer.encode("h" * 200)
    assert tokenizer.encode("hi").tolist() == [264]  # it works as before


def test_an_unknown_word_may_be_an_error() -> None:
    tokenizer = PipelineTokenizer(words(unk_token="no token"))
    with pytest.raises(UserError, match="the package tokenizers reports: WordLevel error"):
        tokenizer.encode("zz")


def test_without_the_package_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match=r'needs the package tokenizers: pip install "tinyformer\[pretrained\]"'):
        PipelineTokenizer(llama2())


# ------------------------------------------------------------------------------------------ what earlier versions saved


def test_byte_pairs_that_an_earlier_version_saved(tmp_path: Path) -> None:
    own = BPETokenizer.train("low lower lowest 12", 262, ["<s>", "<think>"])
    own.save(tmp_path / "t.json")
    saved = json.loads((tmp_path / "t.json").read_text())
    del saved["special"]["<think>"]
    think = {"id": 261, "content": "<think>", "special": False, "lstrip": True, "rstrip": False, "single_word": False}
    saved["added"] = [{**think, "normalized": False, "in_vocabulary": False}]
    saved["rules"] = {"patterns": [r"\p{N}", r" ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+"], "normal_form": "NFC", "space_before": False}
    saved |= {"ignore_merges": True, "before": [260], "after": [260, 261], "unknown": 260, "fuse_unknown": True}
    (tmp_path / "t.json").write_text(json.dumps(saved))
    tokenizer = load_tokenizer(tmp_path / "t.json")
    assert isinstance(tokenizer, PipelineTokenizer)
    assert (tokenizer.special, tokenizer.before, tokenizer.after) == ({"<s>": 260}, (260,), (260, 261))
    assert tokenizer.encode("low <think>").tolist() == [*own.encode("low"), 261]
    assert tokenizer.encode("e\u0301<s>").tolist() == own.encode("é<s>").tolist()
    assert len(tokenizer.encode("12")) == 2
    assert tokenizer.decode(tokenizer.encode("low 12")) == "low 12"
    (tmp_path / "t.json").write_text(json.dumps({**saved, "tokens": None}))
    with pytest.raises(UserError, match=r"t\.json is damaged"):
        load_tokenizer(tmp_path / "t.json")


def test_a_bert_that_an_earlier_version_saved(tmp_path: Path) -> None:
    own = WordPieceTokenizer.train("low lower lowest .", 60)
    own.save(tmp_path / "t.json")
    (tmp_path / "t.json").write_text(json.dumps({**json.loads((tmp_path / "t.json").read_text()), "cleanup": True}))
    tokenizer = load_tokenizer(tmp_path / "t.json")
    ids = own.encode("low lowest.")
    assert tokenizer.encode("low lowest.").tolist() == ids.tolist()
    assert (own.decode(ids), tokenizer.decode(ids)) == ("low lowest .", "low lowest.")
