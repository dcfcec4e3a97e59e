"""Tokenizers that a tokenizer.json describes. What other libraries make of the same files is in tests/parity."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from tinyformer import BPETokenizer, PipelineTokenizer, UserError, load_tokenizer, token_texts
from tinyformer.decoding.streaming import stream_text
from tinyformer.tokenizers.pre_tokenizers import BEHAVIORS, split
from tinyformer.tokenizers.tokenizer_json import read_tokenizer_json

Json = dict[str, Any]


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
    normalizers = [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ]
    return {
        "added_tokens": [{"id": i, "content": tokens[i], "special": True} for i in range(3)],
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


def tokens_of(tokenizer: PipelineTokenizer, text: str, allow_special: bool = False) -> list[str]:
    return [tokenizer.tokens[i] for i in tokenizer.encode(text, allow_special)]


def test_llama2() -> None:
    tokenizer = PipelineTokenizer(llama2())
    assert tokens_of(tokenizer, "hi  he") == ["▁hi", "▁▁", "he"]
    assert tokens_of(tokenizer, "é\n") == ["▁", "<0xC3>", "<0xA9>", "<0x0A>"]
    assert tokens_of(tokenizer, "hi<s>hi", allow_special=True) == ["▁hi", "<s>", "▁hi"]
    assert "<s>" not in tokens_of(tokenizer, "<s>")
    assert tokenizer.encode("").tolist() == []
    for text in ("hi", " hi", "é\nhi", "日本 hi  ", "\x00"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode("hi</s>", allow_special=True), skip_special=True) == "hi"
    with pytest.raises(UserError, match="the id 267 is not between 0 and 266"):
        tokenizer.decode([267])


def test_bytes_that_are_no_text_together() -> None:
    tokenizer = PipelineTokenizer(llama2())
    start = tokenizer.tokens.index("<0x00>")
    assert tokenizer.decode([start + 0xC3, start + 0xA9, start + 0xC3]) == "\ufffd\ufffd\ufffd"
    assert tokenizer.decode([start + 0xC3, start + 0xA9]) == "é"


def test_bytes_that_are_no_text_are_a_token_each() -> None:
    decoders = [{"type": "ByteFallback"}, {"type": "WordPiece", "prefix": "##", "cleanup": False}]
    tokenizer = PipelineTokenizer({**llama2(), "decoder": {"type": "Sequence", "decoders": decoders}})
    start = tokenizer.tokens.index("<0x00>")
    assert tokenizer.decode([start + 0xC3, start + 0xC3]) == "\ufffd \ufffd"
    assert tokenizer.decode([start + 0xC3, start + 0xA9]) == "é"


def test_what_the_vocabulary_lacks_is_unknown_or_left_out() -> None:
    plain = {"byte_fallback": False}
    assert tokens_of(PipelineTokenizer(llama2(**plain)), "hixyhix") == ["▁hi", "<unk>", "hi", "<unk>"]
    separate = PipelineTokenizer(llama2(**plain, fuse_unk=False))
    assert tokens_of(separate, "hixyhix") == ["▁hi", "<unk>", "<unk>", "hi", "<unk>"]
    assert tokens_of(PipelineTokenizer(llama2(**plain, unk_token=None)), "hixyhix") == ["▁hi", "hi"]


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
    assert [piece for piece, _ in pieces] == ["hi", " ", "é", " hi"]
    assert [count for _, count in pieces] == [1, 2, 5, 5]  # the bytes are certain where something else comes
    prompt = tokenizer.encode("hi").tolist()
    assert "".join(stream_text(tokenizer, prompt, after=prompt)) == " hi"  # only the text's first space is none


def test_the_text_of_each_token() -> None:
    tokenizer = PipelineTokenizer(llama2())
    ids = [tokenizer.tokens.index(token) for token in ("▁hi", "hi", "<0x0A>", "<0xC3>", "</s>")]
    assert token_texts(tokenizer, ids) == [" hi", "hi", "\n", "\\xc3", "</s>"]


def test_it_survives_saving(tmp_path: Path) -> None:
    tokenizer = PipelineTokenizer({**llama2(), "truncation": {"max_length": 5}})
    tokenizer.save(tmp_path / "t.json")
    again = load_tokenizer(tmp_path / "t.json", 267)
    assert isinstance(again, PipelineTokenizer)
    assert again.content == tokenizer.content == {**llama2(), "truncation": None, "padding": None}
    assert again.encode("hi é").tolist() == tokenizer.encode("hi é").tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"content": None}, "is damaged: content must be an object"),
        ({"content": {}}, "is damaged: 'model'"),
        ({"content": {**llama2(), "version": "\ud800"}}, "half of a surrogate pair"),
        ({"content": llama2(fuse_unk=0)}, "fuse_unk = 0 of the model; it can be False or True"),
        ({"content": {**llama2(), "decoder": {"type": "CTC"}}}, "not supported: the decoder 'CTC'"),
        ({"more": 1}, "more is 1, a field that this version"),
    ],
)
def test_a_file_that_was_changed(tmp_path: Path, changes: Json, message: str) -> None:
    (tmp_path / "t.json").write_text(json.dumps({"kind": "pipeline", "content": llama2(), **changes}))
    with pytest.raises(UserError) as caught:
        load_tokenizer(tmp_path / "t.json")
    assert message in str(caught.value)


def test_a_long_word_takes_no_memory_afterwards() -> None:
    tokenizer = PipelineTokenizer(llama2())  # it takes a whole text for one word
    assert len(tokenizer.encode("hi " * 50_000)) == 50_001
    assert tokenizer._ids_kept.cache_info().currsize == 0


def charsmap(replacements: dict[str, str]) -> str:
    """A map of characters as SentencePiece compiles it: each node of the trie has its children 256 places further on."""
    units, texts, bases = [0] * (256 * 2 * sum(len(key.encode()) + 1 for key in replacements)), b"", {b"": 256}
    units[0] = 256 << 10
    for key, text in replacements.items():
        code = key.encode()
        for end in range(1, len(code) + 1):
            place = bases[code[: end - 1]] ^ code[end - 1]
            base = bases.setdefault(code[:end], 256 * (len(bases) + 1))
            units[place] = (place ^ base) << 10 | (units[place] & 256) | code[end - 1]
        units[place] |= 256
        units[base] = len(texts)
        texts += text.encode() + b"\0"
    trie = struct.pack(f"<{len(units)}I", *units)
    return base64.b64encode(struct.pack("<I", len(trie)) + trie + texts).decode()


def unigram(**changes: Any) -> Json:
    """A small file as T5's."""
    scores = {"<unk>": 0.0, "▁": -3.0, "a": -2.0, "b": -2.0, "ab": -3.5, "▁ab": -6.0, "abc": -4.0, "c": -9.0}
    content = llama2()
    content |= {"added_tokens": content["added_tokens"][:1], "normalizer": None}
    content["pre_tokenizer"] = content["decoder"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}
    return {**content, "model": {"type": "Unigram", "unk_id": 0, "vocab": list(map(list, scores.items())), **changes}}


def test_the_likeliest_pieces() -> None:
    tokenizer = PipelineTokenizer(unigram())
    assert tokens_of(tokenizer, "ab") == ["▁ab"]  # -6, before -6.5
    assert tokens_of(tokenizer, "abc aab") == ["▁", "abc", "▁", "a", "ab"]
    assert tokens_of(tokenizer, "axyb") == ["▁", "a", "<unk>", "b"]
    assert "<unk>" in tokens_of(tokenizer, "<unk>")  # its letters
    assert tokenizer.encode("<unk>", allow_special=True).tolist() == [0]
    assert tokenizer.decode(tokenizer.encode("abc aab ")) == "abc aab "
    assert tokenizer.encode("").tolist() == []
    assert tokens_of(PipelineTokenizer(unigram(unk_id=None)), "axyb") == ["▁", "a", "b"]
    del (content := unigram())["model"]["type"]  # as older files
    assert tokens_of(PipelineTokenizer(content), "ab") == ["▁ab"]


def test_characters_that_are_no_piece_become_bytes() -> None:
    model = unigram()["model"]
    bytes_of = [[f"<0x{byte:02X}>", 0.0] for byte in range(256)]
    tokenizer = PipelineTokenizer(unigram(vocab=model["vocab"] + bytes_of, byte_fallback=True))
    assert tokens_of(tokenizer, "aéb") == ["▁", "a", "<0xC3>", "<0xA9>", "b"]
    some = PipelineTokenizer(unigram(vocab=model["vocab"] + bytes_of[:0xC4], byte_fallback=True))
    assert tokens_of(some, "aéb日") == ["▁", "a", "<0xC3>", "<0xA9>", "b", "<unk>"]


def test_a_long_word_of_pieces() -> None:
    tokenizer = PipelineTokenizer(unigram())
    assert len(tokenizer.encode("ab" * 50_000)) == 50_000  # ▁ab, then ab


def test_a_map_of_characters() -> None:
    section = {"type": "Precompiled", "precompiled_charsmap": charsmap({"Ａ": "a", "e\u0301": "é", "\t": " ", "ﬁ": "fi"})}
    tokenizer = PipelineTokenizer({**unigram(), "normalizer": section})
    assert tokens_of(tokenizer, "Ａb") == ["▁ab"]
    normalize = tokenizer._normalize
    assert normalize("e\u0301\té ﬁ日") == "é é fi日"
    assert normalize("Ａ\u0301") == "a"  # of what is looked up together, the first that is found
    assert normalize("Ａ\u0301\u0301") == "a\u0301\u0301"  # too long for that


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unk_id": 8}, "unk_id 8 is not in the vocabulary of 8 tokens"),
        ({"unk_id": "<unk>"}, "unk_id must be an integer, not '<unk>'"),
        ({"vocab": {"a": 0}}, "is damaged"),
        ({"vocab": [["a", 0.0], ["b"]]}, "is damaged: not enough values to unpack"),
        ({"vocab": [["a", 0.0], ["a", 0.0]], "unk_id": 0}, "the token 'a' is in the vocabulary twice"),
        ({"vocab": [["<unk>", "0"]]}, "a score in the vocabulary is not a finite number"),
        ({"alpha": 0.5}, "not supported: alpha = 0.5 of the model"),
    ],
)
def test_pieces_that_were_changed(tmp_path: Path, changes: Json, message: str) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(unigram(**changes)))
    with pytest.raises(UserError) as caught:
        read_tokenizer_json(tmp_path / "tokenizer.json")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (None, "precompiled_charsmap must be text"),
        ("?", "precompiled_charsmap cannot be read"),
        ("", "precompiled_charsmap ends too early"),
        (charsmap({"a": "b"})[:400], "precompiled_charsmap ends too early"),
        (charsmap({"a": "x" * 101}), "more than 100 times as long"),
    ],
)
def test_a_map_of_characters_that_was_changed(tmp_path: Path, block: str | None, message: str) -> None:
    content = {**unigram(), "normalizer": {"type": "Precompiled", "precompiled_charsmap": block}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UserError) as caught:
        read_tokenizer_json(tmp_path / "tokenizer.json")
    assert message in str(caught.value)


@pytest.mark.parametrize("pattern", [{"Regex": "(?:h|hh)+b"}])
@pytest.mark.parametrize("place", ["normalizer", "pre_tokenizer"])
def test_a_pattern_that_may_never_end_is_stopped(tmp_path: Path, monkeypatch: Any, pattern: Json, place: str) -> None:
    monkeypatch.setattr("tinyformer.tokenizers.patterns._LEAST_SECONDS", 0.1)
    sections = {
        "normalizer": {"type": "Replace", "pattern": pattern, "content": ""},
        "pre_tokenizer": {"type": "Split", "pattern": pattern, "behavior": "Removed", "invert": False},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps({**llama2(), place: sections[place]}))
    tokenizer = read_tokenizer_json(tmp_path / "tokenizer.json")
    with pytest.raises(UserError, match=r"tokenizer\.json: the regular expression .* takes too long"):
        tokenizer.encode("h" * 200)


def test_all_pieces_of_a_text_share_the_time(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tinyformer.tokenizers.patterns._LEAST_SECONDS", 0.2)
    monkeypatch.setattr("tinyformer.tokenizers.patterns._CHARACTERS_A_SECOND", 1e9)
    cutters = [
        {"type": "WhitespaceSplit"},
        {"type": "Split", "pattern": {"Regex": "(?:h|hh)+b"}, "behavior": "Removed", "invert": False},
    ]
    content = {**llama2(), "normalizer": None, "pre_tokenizer": {"type": "Sequence", "pretokenizers": cutters}}
    tokenizer = PipelineTokenizer(content)
    assert len(tokenizer.encode(" ".join(["h" * 18])))
    with pytest.raises(UserError, match="takes too long"):
        tokenizer.encode(" ".join(["h" * 18] * 10_000))


def test_a_roberta_is_an_ordinary_tokenizer_of_bytes(tmp_path: Path) -> None:
    trained = BPETokenizer.train("low lower", 260, ["<s>", "</s>"])
    content = read(tmp_path, trained)
    content["post_processor"] = {"type": "RobertaProcessing", "sep": ["</s>", 259], "cls": ["<s>", 258]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = read_tokenizer_json(tmp_path / "tokenizer.json")
    assert isinstance(tokenizer, BPETokenizer)
    assert (tokenizer.before, tokenizer.after) == ((258,), (259,))


def read(folder: Path, tokenizer: Any) -> Json:
    from tinyformer.tokenizers.tokenizer_json_writing import tokenizer_json

    return json.loads(json.dumps(tokenizer_json(tokenizer)))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("behavior", "pieces", "inverted"),
    [
        ("Removed", ["a", "b", "c"], ["-", "-", "-"]),
        ("Isolated", ["a", "-", "b", "-", "-", "c"], ["a", "-", "b", "-", "-", "c"]),
        ("MergedWithPrevious", ["a-", "b-", "-", "c"], ["a", "-b", "-", "-c"]),
        ("MergedWithNext", ["a", "-b", "-", "-c"], ["a-", "b-", "-", "c"]),
        ("Contiguous", ["a", "-", "b", "--", "c"], ["a", "-", "b", "--", "c"]),
    ],
)
def test_splitting(behavior: str, pieces: list[str], inverted: list[str]) -> None:
    spans = [(1, 2), (3, 4), (4, 5)]
    assert behavior in BEHAVIORS
    assert [piece for piece in split("a-b--c", spans, behavior) if piece] == pieces
    assert [piece for piece in split("a-b--c", spans, behavior, invert=True) if piece] == inverted
