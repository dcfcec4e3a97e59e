"""GGUF files beside transformers, and their tokenizers beside SentencePiece and the package tokenizers, too."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf_files import Kind, tokenizer_metadata, write_gguf
from parity import published_tokenizers
from parity.compare import assert_close
from parity.difficult_strings import strings
from parity.test_pretrained import llama
from parity.test_pretrained_tokenizers import training_text

import tinytensor as tt
from tinyformer import GPT, GPTConfig, Sampling, from_pretrained, generate, pretrained_tokenizer, save_pretrained
from tinyformer.models.quantizing import dtype_of
from tinyformer.pretrained.gguf_tokenizers import WORDS

transformers = pytest.importorskip("transformers")
sentencepiece = pytest.importorskip("sentencepiece")
pytest.importorskip("accelerate")

IDS = np.random.default_rng(0).integers(0, 54, (2, 17))
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
K_SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
MODELS: dict[str, tuple[str, Kind, dict[str, Any]]] = {
    "Llama": ("Llama", Kind.F32, SIZES),
    "Llama in Q4_0": ("Llama", Kind.Q4_0, {**SIZES, "tie_word_embeddings": True}),
    "Llama in Q4_K": ("Llama", Kind.Q4_K, K_SIZES),
    "Llama in Q4_K_M": ("Llama", Kind.Q4_K, K_SIZES),
    "Qwen2 in Q8_0": ("Qwen2", Kind.Q8_0, SIZES),
    "Qwen2 in Q6_K": ("Qwen2", Kind.Q6_K, {**K_SIZES, "tie_word_embeddings": True}),
    "Qwen3 in BF16": ("Qwen3", Kind.BF16, {**SIZES, "head_dim": 128}),
    "Qwen2 in Q4_K_M": ("Qwen2", Kind.Q4_K, {**K_SIZES, "tie_word_embeddings": True}),
    "Qwen3 in Q4_1": ("Qwen3", Kind.Q4_1, {**SIZES, "head_dim": 128, "tie_word_embeddings": True}),
}


Q4_K_M = {"attn_v": Kind.Q6_K, "ffn_down": Kind.Q6_K, "token_embd": Kind.Q6_K}  # and Q4_K for all other matrices


@pytest.mark.parametrize("name", MODELS)
def test_the_models(tmp_path: Path, name: str) -> None:
    family, kind, sizes = MODELS[name]
    kinds = Q4_K_M if "Q4_K_M" in name else {}
    llama(family, **sizes).save_pretrained(tmp_path)
    vocabulary = {"ggml.tokens": [f"t{i}" for i in range(54)], "ggml.model": "gpt2"}  # which transformers counts
    path = write_gguf(tmp_path, tmp_path / "model.gguf", kind, vocabulary, kinds, general__name=family)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32).eval()
    ours = from_pretrained(path)
    assert isinstance(ours, GPT)
    if kind not in (Kind.F32, Kind.BF16):
        assert dtype_of(ours) == ("int8" if kind == Kind.Q8_0 else "int4")
    with torch.no_grad():
        expected = theirs(torch.tensor(IDS)).logits.numpy()
    np.testing.assert_allclose(ours(tt.tensor(IDS)).numpy(), expected, rtol=0, atol=2e-3)  # inputs have 16 bits
    prompt = torch.tensor(IDS[:1, :3])
    mask = torch.ones_like(prompt)
    written = theirs.generate(
        prompt, attention_mask=mask, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert list(generate(ours, IDS[0, :3].tolist(), 12, Sampling(temperature=0))) == written[0, 3:].tolist()


def test_a_gemma_is_that_of_its_folder(tmp_path: Path) -> None:
    """transformers reads no GGUF file of a Gemma, whose norms have 1 more there than in a folder."""
    theirs = llama("Gemma", **SIZES)
    theirs.save_pretrained(tmp_path)
    ours = from_pretrained(write_gguf(tmp_path, tmp_path / "model.gguf"))
    assert isinstance(ours, GPT)
    with torch.no_grad():
        assert_close(ours(tt.tensor(IDS)), theirs(torch.tensor(IDS)).logits)
    low = from_pretrained(write_gguf(tmp_path, tmp_path / "low.gguf", Kind.Q8_0))
    assert dtype_of(low) == "int8"
    np.testing.assert_allclose(low(tt.tensor(IDS)).numpy(), ours(tt.tensor(IDS)).numpy(), rtol=0, atol=0.15)


# ----------------------------------------------------------------------------------------------------------- tokenizers


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a Llama."""
    sizes = {
        "num_layers": 1,
        "num_heads": 2,
        "d_model": 32,
        "d_ff": 32,
        "positions": "rotary",
        "norm": "rms",
        "activation": "swiglu",
    }
    save_pretrained(GPT(GPTConfig(54, **sizes)), tmp_path / "llama")
    return tmp_path / "llama"


def test_smollm2s_tokenizer_is_that_of_its_tokenizer_json(folder: Path, tmp_path: Path) -> None:
    content = published_tokenizers.smollm2()
    reference = published_tokenizers.hugging_face.Tokenizer.from_str(json.dumps(content))
    metadata = tokenizer_metadata(content, "smollm", bos_token_id=1, eos_token_id=2)
    ours = pretrained_tokenizer(write_gguf(folder, tmp_path / "a.gguf", tokenizer=metadata))
    for text in strings(2000):
        expected = reference.encode(text, add_special_tokens=False).ids
        assert ours.encode(text, allow_special=True).tolist() == expected
        assert ours.decode(expected) == reference.decode(expected, skip_special_tokens=False)


@pytest.mark.parametrize("pre", ["gpt-2", "qwen2", "llama-bpe", "tekken"])
def test_tokenizers_of_bytes_are_those_of_transformers(folder: Path, tmp_path: Path, pre: str) -> None:
    """Except for a normal form in Qwen2's tokenizer.json, which transformers ignores here."""
    metadata = tokenizer_metadata(published_tokenizers.smollm2(), pre, bos_token_id=1, eos_token_id=2, add_bos_token=True)
    path = write_gguf(folder, tmp_path / "a.gguf", tokenizer=metadata)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    ours = pretrained_tokenizer(path)
    assert (ours.before, ours.after) == ((1,), ())
    for text in strings(2000):
        normal = unicodedata.normalize("NFC", text) if WORDS[pre].normal_form else text
        assert ours.encode(text, allow_special=True).tolist() == theirs(normal, add_special_tokens=False).input_ids, text


def test_a_tokenizer_of_sentencepiece(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text(training_text(), encoding="utf-8")
    told = {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity", "minloglevel": 2}
    told |= {"remove_extra_whitespaces": False, "split_digits": True, "allow_whitespace_only_pieces": True}
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "m"), vocab_size=2500, character_coverage=0.98, **told
    )
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    ids = range(model.get_piece_size())
    types = [2 if model.is_unknown(i) else 3 if model.is_control(i) else 6 if model.is_byte(i) else 1 for i in ids]
    metadata = {"model": "llama", "tokens": [model.id_to_piece(i) for i in ids], "scores": [model.get_score(i) for i in ids]}
    metadata |= {"token_type": types, "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    path = write_gguf(folder, tmp_path / "a.gguf", tokenizer={f"ggml.{name}": value for name, value in metadata.items()})
    ours, theirs = pretrained_tokenizer(path), transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    assert (ours.before, ours.after) == ((1,), ())
    for text in strings(2000):
        if "\0" in text or "▁" in text:  # SentencePiece stops at the first, and takes the second for a space
            continue
        found = ours.encode(text).tolist()
        assert found == model.encode(text), text
        assert ours.decode(found) == model.decode(found)
        if not text.startswith(" "):  # before which transformers puts no other
            assert found == theirs(text, add_special_tokens=False).input_ids, text
