"""GGUF files: reading, and errors."""

from __future__ import annotations

import json
import os
import re
import struct
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_files import Kind, packed, tokenizer_metadata, write_gguf, write_model

import tinytensor as tt
from tinyformer import (
    GPT,
    BPETokenizer,
    PipelineTokenizer,
    UserError,
    find_folder,
    from_pretrained,
    pretrained_tokenizer,
    read_writing,
    save_pretrained_tokenizer,
)
from tinyformer.chat.template import ChatTemplate, find_chat_template
from tinyformer.explore.views.subjects import Subjects
from tinyformer.models.positions import RotaryScaling
from tinyformer.pretrained.gguf import _Reader, read_gguf
from tinyformer.pretrained.gguf_tokenizers import WORDS
from tinyformer.tokenizers.tokenizer_json import split_by
from tinyformer.training.opening import open_pretrained

MODELS: dict[str, dict[str, Any]] = {
    "Llama": {"tie_output": False},
    "a tied Llama": {"tie_output": True, "rotary_base": 5e5},
    "Qwen2": {"tie_output": False, "query_key_value_bias": True},
    "Qwen3": {"tie_output": True, "query_key_norm": True, "d_head": 12},
}
IDS = tt.tensor(np.random.default_rng(0).integers(0, 61, (2, 20)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "llama", tie_output=True)


@pytest.fixture
def file(folder: Path) -> Path:
    return write_gguf(folder, folder.parent / "llama.gguf")


def refused(path: Any, use: Callable[[Any], object] = from_pretrained) -> str:
    """Return the error about a file: one or two lines that name it."""
    with pytest.raises(UserError) as caught:
        use(path)
    message = str(caught.value)
    assert str(path) in message and message.count(str(path)) == 1
    assert len(message) < 600 and "\n" not in message
    return message


# --------------------------------------------------------------------------------------------------------------- models


@pytest.mark.parametrize("name", MODELS)
def test_the_models(tmp_path: Path, name: str) -> None:
    folder = write_model(tmp_path / "model", **MODELS[name])
    path = write_gguf(folder, tmp_path / "model.gguf")
    expected, found = from_pretrained(folder), from_pretrained(path)
    assert isinstance(found, GPT) and not found.training
    assert {**vars(found.config), "norm_eps": 0, "rotary_base": 0} == {**vars(expected.config), "norm_eps": 0, "rotary_base": 0}
    np.testing.assert_allclose(found(IDS).numpy(), expected(IDS).numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q5_0], ids=str)
def test_types_that_are_not_blocks(tmp_path: Path, kind: Kind) -> None:
    folder = write_model(tmp_path / "llama", tie_output=True)
    model = from_pretrained(write_gguf(folder, tmp_path / "llama.gguf", kind))
    given = tt.load(folder / "model.safetensors")
    for name, layer in (
        ("mlp.down_proj", model.blocks[0].feed_forward.down),
        ("self_attn.o_proj", model.blocks[0].attention.output),
    ):
        matrix = given[f"model.layers.0.{name}.weight"].numpy()
        expected = gguf.quants.dequantize(packed(matrix, kind), kind)
        np.testing.assert_array_equal(layer.weight.numpy(), expected)
    assert np.isfinite(model(IDS).numpy()).all()


@pytest.mark.needs("numpy")
def test_weights_in_float32_stay_in_the_file(file: Path) -> None:
    model = from_pretrained(file)
    before = file.read_bytes()
    weight = model.blocks[0].feed_forward.down.weight
    assert not weight.data.flags.owndata
    weight.data[...] = 0  # as training changes it
    assert file.read_bytes() == before


SCALINGS = {
    "llama3": RotaryScaling("llama3", 8.0, 1.0, 4.0, 8192),
    "llama3 by another factor": RotaryScaling("llama3", 32.0, 1.0, 4.0, 8192),
}


@pytest.mark.parametrize("name", SCALINGS)
def test_rotary_scaling_of_llama_3(tmp_path: Path, name: str) -> None:
    folder = write_model(tmp_path / "llama", rotary_scaling=SCALINGS[name], rotary_base=5e5, d_head=16)
    path = write_gguf(folder, tmp_path / "llama.gguf")
    found = from_pretrained(path)
    assert found.config.rotary_scaling == SCALINGS[name]
    np.testing.assert_allclose(found(IDS).numpy(), from_pretrained(folder)(IDS).numpy(), rtol=0, atol=1e-5)


def test_linear_rotary_scaling(folder: Path, tmp_path: Path) -> None:
    said = {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 2.0}
    found = from_pretrained(write_gguf(folder, tmp_path / "a.gguf", **said))
    assert found.config.rotary_scaling == RotaryScaling("linear", 2.0)


def test_other_rotary_scalings_are_refused(folder: Path, tmp_path: Path) -> None:
    path = write_gguf(folder, tmp_path / "a.gguf", llama__rope__scaling__type="yarn")
    assert "rope_type must be default, linear or llama3, got 'yarn'" in refused(path)
    odd = write_model(tmp_path / "odd", rotary_scaling=RotaryScaling("llama3", 8.0, 1.0, 4.0, 100), d_head=16)
    path = write_gguf(odd, tmp_path / "odd.gguf")
    assert "rope_freqs.weight is not supported" in refused(path)


def test_by_which_paths_it_is_found(file: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "model.GGUF").write_bytes(file.read_bytes())
    expected = from_pretrained(file)(IDS).numpy()
    for path in (str(file), alone, alone / "model.GGUF"):
        np.testing.assert_array_equal(from_pretrained(path)(IDS).numpy(), expected)
    (alone / "other.gguf").write_bytes(b"")
    with pytest.raises(UserError, match=f"2 GGUF files: pass one of them, such as {alone}"):
        from_pretrained(alone)
    assert "or a GGUF file" in refused(tmp_path / "missing.gguf", find_folder)


# ----------------------------------------------------------------------------------------------------------- tokenizers

TEXT = "The quick brown fox, 1234 of them: don't jump over  12 lazy dogs.\n\nDON'T e\u0301 <think> <|end|>"


def trained() -> BPETokenizer:
    return BPETokenizer.train(TEXT * 3, 330, special=["<|end|>"])


def content_of(tokenizer: BPETokenizer, folder: Path) -> dict[str, Any]:
    """The tokenizer.json of a tokenizer, to which an added token comes after a gap."""
    save_pretrained_tokenizer(tokenizer, folder)
    content: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    added = {"id": tokenizer.vocab_size + 2, "content": "<think>", "special": False}
    content["added_tokens"].append(added | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False))
    return content


@pytest.mark.parametrize("pre", WORDS)
def test_tokenizers_of_bytes(folder: Path, tmp_path: Path, pre: str) -> None:
    words, tokenizer = WORDS[pre], trained()
    content = content_of(tokenizer, tmp_path / "tokenizer")
    path = write_gguf(folder, tmp_path / "a.gguf", tokenizer=tokenizer_metadata(content, pre))
    found = pretrained_tokenizer(path)
    content["model"]["ignore_merges"] = words.ignore_merges
    content |= {"pre_tokenizer": split_by(*words.patterns), "normalizer": {"type": "NFC"} if words.normal_form else None}
    expected = PipelineTokenizer(content)
    for allow in (False, True):
        assert found.encode(TEXT, allow_special=allow).tolist() == expected.encode(TEXT, allow_special=allow).tolist()
    assert tokenizer.special["<|end|>"] not in found.encode(TEXT)
    assert found.vocab_size == tokenizer.vocab_size + 3
    text = TEXT.replace("e\u0301", "é") if words.normal_form else TEXT
    assert found.decode(found.encode(TEXT)) == text


AROUND = [
    ("gpt-2", {}, (), ()),
    ("gpt-2", {"add_bos_token": True, "add_eos_token": True}, (5,), (7,)),
    ("llama-bpe", {}, (5,), ()),
    ("llama-bpe", {"add_bos_token": False}, (), ()),
    ("tekken", {}, (5,), ()),
    ("qwen2", {}, (), ()),
]


@pytest.mark.parametrize("pre, said, before, after", AROUND)
def test_tokens_around_a_text(folder: Path, tmp_path: Path, pre: str, said: dict[str, Any], before: Any, after: Any) -> None:
    content = content_of(trained(), tmp_path / "tokenizer")
    path = write_gguf(
        folder, tmp_path / "a.gguf", tokenizer=tokenizer_metadata(content, pre, bos_token_id=5, eos_token_id=7, **said)
    )
    found = pretrained_tokenizer(path)
    assert (found.before, found.after) == (before, after)
    writing = read_writing(path)
    assert (writing.start, writing.ends) == (5, (7,))


def sentencepiece(**said: Any) -> dict[str, Any]:
    """What llama.cpp's converter makes of a tokenizer of SentencePiece. The merges of "abc" follow the scores."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abc", "ab", "bc", "abc", "▁a"]
    scores = [0.0] * 259 + [-10.0, -11.0, -12.0, -13.0, -3.0, -2.0, -1.0, -4.0]
    types = [2, 3, 3, *[6] * 256, *[1] * 8]
    metadata = {"model": "llama", "tokens": tokens, "scores": scores, "token_type": types}
    metadata |= {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, **said}
    return {f"ggml.{name}": value for name, value in metadata.items()}


def test_a_tokenizer_of_sentencepiece(folder: Path, tmp_path: Path) -> None:
    tokenizer = pretrained_tokenizer(write_gguf(folder, tmp_path / "a.gguf", tokenizer=sentencepiece()))
    a, b, c, ab, bc, abc, space_a = (260, 261, 262, 263, 264, 265, 266)
    assert tokenizer.before == (1,) and tokenizer.after == ()
    for text, ids in {
        "abc": [259, abc],
        "ab c": [259, ab, 259, c],
        "a bcb": [space_a, 259, bc, b],
        " aé": [259, space_a, 3 + 0xC3, 3 + 0xA9],
        "a<s>": [space_a, *(3 + byte for byte in b"<s>")],
    }.items():
        assert tokenizer.encode(text).tolist() == ids
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("a</s>", allow_special=True).tolist() == [space_a, 2]
    bare = sentencepiece(add_space_prefix=False, add_bos_token=False)
    other = pretrained_tokenizer(write_gguf(folder, tmp_path / "b.gguf", tokenizer=bare))
    assert other.encode("abc a").tolist() == [abc, space_a] and other.before == ()
    assert a not in other.encode("abc")


def test_a_tokenizer_json_beside_the_file_counts(folder: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    write_gguf(folder, alone / "a.gguf", tokenizer=tokenizer_metadata(content_of(trained(), tmp_path / "t"), "unheard-of"))
    assert "unknown tokenizer.ggml.pre 'unheard-of': only gpt-2, " in refused(alone / "a.gguf", pretrained_tokenizer)
    save_pretrained_tokenizer(trained(), alone)
    assert pretrained_tokenizer(alone).encode(TEXT).tolist() == trained().encode(TEXT).tolist()


MANY = ["<unk>", *("a" * length for length in range(1, 3000))]
DIVISIBLE = sentencepiece(tokens=MANY, scores=[1.0] * len(MANY), token_type=[2] + [1] * (len(MANY) - 1))
TOKENIZERS = {
    "none": ({}, "tokenizer.ggml.model is missing"),
    "of another kind": ({"ggml.model": "t5"}, "unknown tokenizer 't5': only gpt2, llama"),
    "without words": (
        {"ggml.model": "gpt2", "ggml.tokens": ["a"], "ggml.merges": ["a a"]},
        "unknown tokenizer.ggml.pre 'default'",
    ),
    "without merges": ({"ggml.model": "gpt2", "ggml.pre": "gpt-2", "ggml.tokens": ["a"]}, "tokenizer.ggml.merges is missing"),
    "twice": ({"ggml.model": "gpt2", "ggml.pre": "gpt-2", "ggml.tokens": ["a", "a"]}, "must be distinct"),
    "without scores": ({"ggml.model": "llama", "ggml.tokens": ["a"]}, "tokenizer.ggml.scores"),
    "of tokens divided in millions of ways": (DIVISIBLE, "its tokens can be split in more than 3,000,000 ways"),
    "of ids that are none": (sentencepiece(bos_token_id=5000), "is damaged"),
    "of other types": (sentencepiece(token_type=[1]), "have one type each"),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizers_that_are_refused(folder: Path, tmp_path: Path, name: str) -> None:
    metadata, said = TOKENIZERS[name]
    assert said in refused(write_gguf(folder, tmp_path / "a.gguf", tokenizer=metadata), pretrained_tokenizer)


def test_long_tokens_take_no_long_time(folder: Path, tmp_path: Path) -> None:
    letters = "".join(chr(ord("a") + i % 26) for i in range(1000))
    tokens = ["<unk>", *(f"{i:05}{letters}" for i in range(5000)), "ab", "a", "b"]
    types, scores = [2] + [1] * (len(tokens) - 1), [0.0] * len(tokens)
    path = write_gguf(folder, tmp_path / "a.gguf", tokenizer=sentencepiece(tokens=tokens, scores=scores, token_type=types))
    start = time.process_time()
    tokenizer = pretrained_tokenizer(path)
    assert time.process_time() - start < 10  # as it would with a look at every division
    assert tokenizer.encode("xab").tolist()[-1:] == [5001]


def test_the_template_of_a_chat(folder: Path, tmp_path: Path) -> None:
    said = {**sentencepiece(), "chat_template": "{{ messages }}"}
    with_one = write_gguf(folder, tmp_path / "a.gguf", tokenizer=said)
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    assert find_chat_template(with_one) == ChatTemplate("{{ messages }}", tokens, with_one)
    assert find_chat_template(write_gguf(folder, tmp_path / "b.gguf")) is None


def test_it_is_opened_as_other_pretrained_models(tmp_path: Path) -> None:
    tokenizer = trained()
    folder = write_model(tmp_path / "llama", vocab_size=tokenizer.vocab_size + 3)
    metadata = tokenizer_metadata(content_of(tokenizer, tmp_path / "t"), "gpt-2", eos_token_id=256)
    path = write_gguf(folder, tmp_path / "a.gguf", tokenizer=metadata)
    opened = open_pretrained(path)
    assert opened.kind == "language" and list(opened.ends) == [256]
    subjects = Subjects([path])
    subject = subjects.get("pretrained")
    assert subject.texts(subject.encode("the fox"))[0] == "the"
    assert subjects.get("pretrained") is subject


# ------------------------------------------------------------------------------------------------------------ refusals


def test_files_that_others_read(folder: Path, tmp_path: Path) -> None:
    path = write_gguf(folder, tmp_path / "a.gguf", general__architecture=None)
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0mamba", 1))
    assert "unknown GGUF architecture 'mamba': only llama, qwen2, qwen3, gemma can be loaded. For others" in refused(path)
    path = write_gguf(folder, tmp_path / "b.gguf", llama__expert_count=8)
    assert "llama.expert_count 8 is not supported: it must be 0" in refused(path)
    path = write_gguf(folder, tmp_path / "c.gguf", llama__rope__dimension_count=4)
    assert "llama.rope.dimension_count 4 is not supported: it must be 8" in refused(path)
    path = write_gguf(folder, tmp_path / "d.gguf", llama__feed_forward_length=None)
    assert "llama.feed_forward_length is missing" in refused(path)
    path = write_gguf(folder, tmp_path / "e.gguf", split__count=2)
    assert "is one of several parts: merge them with llama.cpp's llama-gguf-split" in refused(path)
    path = write_gguf(folder, tmp_path / "f.gguf", llama__block_count=3)
    assert "model.layers.2.input_layernorm.weight is missing" in refused(path)
    path = write_gguf(folder, tmp_path / "g.gguf", llama__block_count=10**9)
    assert "a model of this size needs at least" in refused(path)


HARMLESS = {"vocab_size": 61, "tensor_data_layout": "Meta AI original pth", "pooling_type": 3, "expert_used_count": 2}
HARMLESS |= {"rope.scaling.finetuned": True, "rope.scaling.original_context_length": 32}
# What llama.cpp takes for models like these where a file says nothing.
USUAL = {"expert_count": 0, "attention.sliding_window": 0, "logit_scale": 0.0, "attention.causal": True, "swin_norm": False}
USUAL |= {"rope.scale_linear": 1.0, "rope.scaling.attn_factor": 1.0}


def test_settings_that_change_nothing(folder: Path, tmp_path: Path) -> None:
    said = {f"llama.{name}": value for name, value in (HARMLESS | USUAL).items()}
    said |= {"general.type": "model", "general.sampling.top_k": 5, "split.count": 1, "quantize.imatrix.file": "a", "me.by": "b"}
    found = from_pretrained(write_gguf(folder, tmp_path / "a.gguf", **said))
    np.testing.assert_allclose(found(IDS).numpy(), from_pretrained(folder)(IDS).numpy(), rtol=0, atol=1e-5)


def keys_of_llama_cpp() -> set[str]:
    """The keys of any architecture that the package gguf knows, without the name of the architecture."""
    keys, classes = set[str](), [gguf.constants.Keys]
    while classes:
        for value in vars(classes.pop()).values():
            if isinstance(value, type):
                classes.append(value)
            elif isinstance(value, str) and value.startswith("{arch}."):
                keys.add(value.removeprefix("{arch}."))
    return keys


def test_every_setting_of_llama_cpp_is_read_or_harmless_or_refused(folder: Path, tmp_path: Path) -> None:
    with_it = tmp_path / "a.gguf"
    said = {name: value for name, value in read_gguf(write_gguf(folder, with_it)).metadata.items() if name.startswith("llama.")}
    read = {name.removeprefix("llama.") for name in said} | {"rope.scaling.type", "rope.scaling.factor", "attention.key_length"}
    assert {"attention.sliding_window", "attention.clamp_kqv"} < keys_of_llama_cpp()
    for key in keys_of_llama_cpp() - read - set(HARMLESS) | {"attention.made_up", "rope.scale_linear"}:
        write_gguf(folder, with_it, **{f"llama.{key}": 7})
        assert re.search(rf"llama\.{re.escape(key)} 7 is not supported: it must be \S+", refused(with_it))
    write_gguf(folder, with_it, **{"general.type": "adapter"})
    assert "general.type 'adapter' is not supported: it must be 'model'" in refused(with_it)


def test_numbers_for_each_block(folder: Path, tmp_path: Path) -> None:
    lists = {"attention.head_count": [4, 4], "attention.head_count_kv": [2, 2], "feed_forward_length": [64, 64]}
    found = from_pretrained(write_gguf(folder, tmp_path / "a.gguf", **{f"llama.{name}": v for name, v in lists.items()}))
    np.testing.assert_allclose(found(IDS).numpy(), from_pretrained(folder)(IDS).numpy(), rtol=0, atol=1e-5)
    for name, values in lists.items():
        path = write_gguf(folder, tmp_path / "b.gguf", **{f"llama.{name}": [values[0], 1]})
        assert f"llama.{name} must be an integer, got [{values[0]}, 1]" in refused(path)


def test_the_header_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a model reads it once. A new or replaced file is read again, and training does not change the cache."""
    read: list[Any] = []
    inner = _Reader.value
    monkeypatch.setattr(_Reader, "value", lambda self, kind: (read.append(kind), inner(self, kind))[1])
    folders = [write_model(tmp_path / str(size), tie_output=True, d_ff=size) for size in (32, 64)]
    path = write_gguf(folders[0], tmp_path / "a.gguf", tokenizer=tokenizer_metadata(content_of(trained(), tmp_path), "gpt-2"))
    opened = open_pretrained(path)
    assert len(read) == len(read_gguf(path).metadata) > 10
    changed: Any = opened.model
    changed.token_embedding.weight.data[...] += 1.0
    again: Any = from_pretrained(path)
    np.testing.assert_allclose(again.token_embedding.weight.numpy() + 1.0, changed.token_embedding.weight.numpy(), atol=1e-6)
    os.replace(write_gguf(folders[1], tmp_path / "b.gguf"), path)
    assert from_pretrained(path).config.d_ff == 64


@pytest.mark.parametrize("number, name", [(24, "type 24 I8"), (9999, "type 9999")])
def test_types_of_weights_that_are_not_known(folder: Path, tmp_path: Path, number: int, name: str) -> None:
    path = write_gguf(folder, tmp_path / "a.gguf", Kind.Q8_0)
    path.write_bytes(
        re.sub(rb"(output_norm.weight.{12})\0\0\0\0", rb"\g<1>" + struct.pack("<I", number), path.read_bytes(), flags=re.S)
    )
    assert f"has weights of {name}, which is not supported: choose F32, F16, BF16, Q8_0" in refused(path)


def test_without_the_package(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert 'which needs the package gguf: pip install "tinyformer[gguf]"' in refused(file)


def test_files_that_were_cut_off(folder: Path, tmp_path: Path) -> None:
    whole = write_gguf(folder, tmp_path / "a.gguf", tokenizer=sentencepiece()).read_bytes()
    path = tmp_path / "b.gguf"
    for length in [0, 3, 4, 12, 23, 24, 30, 100, 1000, 5000, 9000, 11_000, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:length])
        assert ("does not start with b'GGUF'" if 0 < length < 4 else "ends too early") in refused(path)


def header(tensors: int, entries: int, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries) + rest


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


HUGE = 2**63 + 5
TENSOR = string("x") + struct.pack("<IQQIQ", 2, 32, 32, 0, 0)
HOSTILE = {
    "of another version": (header(0, 0, version=1), "its version must be 2 or 3, got 1"),
    "of another kind": (b"GGML" + b"\0" * 40, "does not start with b'GGUF'"),
    "many entries": (header(0, HUGE), "ends too early"),
    "many tensors": (header(HUGE, 0), "ends too early"),
    "a long name": (header(0, 1, struct.pack("<Q", HUGE) + b"a"), "ends too early"),
    "a long list": (header(0, 1, string("a") + struct.pack("<IIQ", 9, 0, HUGE) + b"\0" * 99), "ends too early"),
    "a long list of texts": (header(0, 1, string("a") + struct.pack("<IIQ", 9, 8, HUGE) + b"\0" * 999), "ends too early"),
    "lists in lists": (header(0, 1, string("a") + struct.pack("<IIQ", 9, 9, 1) + b"\0" * 99), "a value of unknown type 9"),
    "a value of no kind": (header(0, 1, string("a") + struct.pack("<I", 77) + b"\0" * 99), "a value of unknown type 77"),
    "twice the same": (header(0, 2, 2 * (string("a") + struct.pack("<IB", 0, 7))), "it has 'a' twice"),
    "no text": (header(0, 1, struct.pack("<Q", 2) + b"\xff\xfe" + struct.pack("<IB", 0, 7)), "is damaged"),
    "many dimensions": (header(1, 0, string("x") + struct.pack("<I", 2**31) + b"\0" * 999), "2,147,483,648 dimensions"),
    "a large tensor": (header(1, 0, string("x") + struct.pack("<IQQIQ", 2, 2**40, 2**40, 0, 0)), "ends too early"),
    "a tensor far away": (header(1, 0, string("x") + struct.pack("<IQIQ", 1, 32, 0, HUGE) + b"\0" * 999), "ends too early"),
    "tensors at one place": (
        header(9, 0, b"".join(string(str(i)) + struct.pack("<IQIQ", 1, 128, 0, 0) for i in range(9)) + b"\0" * 600),
        "its tensors overlap",
    ),
    "a tensor twice": (header(2, 0, 2 * TENSOR + b"\0" * 9000), "it has the tensor 'x' twice"),
    "half a block": (
        header(1, 0, string("x") + struct.pack("<IQIQ", 1, 33, 2, 0) + b"\0" * 999),
        "do not divide into blocks of 32",
    ),
    "an odd alignment": (header(0, 1, string("general.alignment") + struct.pack("<II", 4, 0)), "is damaged"),
    "a text for an alignment": (header(0, 1, string("general.alignment") + struct.pack("<I", 8) + string("a")), "is damaged"),
    "nothing": (header(0, 0), "general.architecture is missing"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_files_that_were_made_to_do_harm(tmp_path: Path, name: str) -> None:
    content, said = HOSTILE[name]
    path = tmp_path / "a.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    message = refused(path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert said in message and most < 1 << 22


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").mkdir()
    assert "has no config.json" in refused(tmp_path / "a.gguf")
    with pytest.raises(UserError, match=r"a\.gguf is a folder"):
        read_gguf(tmp_path / "a.gguf")
