"""GGUF files with weights in blocks of 8 to 4 bits: which stay in their blocks, what they compute, and other dtypes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from blocks import random_blocks
from gguf_files import Kind, packed, tokenizer_metadata, write_gguf, write_model

import tinytensor as tt
from tinyformer import GPT, BPETokenizer, Sampling, from_pretrained, generate, pretrained_tokenizer, quantize, save_pretrained
from tinyformer.explore.views.subjects import Subjects
from tinyformer.models.quantizing import dtype_of
from tinyformer.pretrained import loading
from tinyformer.pretrained.loading import load_differentiable
from tinyformer.tokenizers.tokenizer_json import tokenizer_json
from tinyformer.training.opening import open_pretrained
from tinytensor import nn, optim
from tinytensor.device.backend import host
from tinytensor.nn.quantization import quantized_weights
from tinytensor.nn.weights import BlockWeight

KINDS = [Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q4_K, Kind.Q6_K]
# The types of matrices, by their names, in a file that llama.cpp calls Q4_K_M.
Q4_K_M = {"attn_v": Kind.Q6_K, "ffn_down": Kind.Q6_K, "output": Kind.Q6_K}
FILES: dict[str, tuple[Kind, Mapping[str, Kind], dict[str, Any]]] = {
    **{kind.name: (kind, {}, {"tie_output": False}) for kind in KINDS},
    "Q8_0, tied": (Kind.Q8_0, {}, {"tie_output": True}),
    "Q4_0, embeddings in Q6_K": (Kind.Q4_0, {"token_embd": Kind.Q6_K}, {"tie_output": True}),
    "Q4_K_M": (Kind.Q4_K, Q4_K_M, {"tie_output": False}),
    "Q4_K_M, Qwen2": (Kind.Q4_K, Q4_K_M, {"tie_output": False, "query_key_value_bias": True}),
    "Q4_K_M, Qwen3": (Kind.Q4_K, Q4_K_M, {"tie_output": False, "query_key_norm": True, "d_head": 128}),
    "a type for each of q, k and v": (Kind.Q4_1, {"attn_q": Kind.Q4_0, "attn_k": Kind.Q8_0, "attn_v": Kind.Q4_K}, {}),
}
IDS = np.random.default_rng(0).integers(0, 61, (2, 20))
_FUSED = "query_key_value"  # the layer here whose weight is several tensors in a file


def write(folder: Path, name: str, **options: Any) -> Path:
    """Write one of FILES, with rows of whole blocks of each type."""
    kind, kinds, settings = FILES[name]
    model = write_model(folder / "model", d_model=256, d_ff=512, **settings)
    return write_gguf(model, folder / "model.gguf", kind, kinds=kinds, **options)


def tensors_of_file(path: Path) -> dict[str, np.ndarray]:
    """The values of each tensor of a file, as the package gguf dequantizes them, by llama.cpp's names."""
    tensors = gguf.GGUFReader(path).tensors
    return {tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in tensors}


def in_order(rows: np.ndarray, heads: int) -> np.ndarray:
    """The rows of a Llama's queries or keys, which llama.cpp's converter reorders, in their original order."""
    return rows.reshape(heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def blocks_of(model: Any) -> dict[str, BlockWeight]:
    weights = dict(quantized_weights(model))
    assert all(isinstance(weight, BlockWeight) for weight in weights.values())
    return weights  # type: ignore[return-value]


def same_state(model: Any, other: Any) -> bool:
    """Return True if two models have the same tensors: of weights in blocks, the same bytes."""
    states = [{name: tensor.numpy() for name, tensor in each.state_dict().items()} for each in (model, other)]
    return states[0].keys() == states[1].keys() and all(np.array_equal(x, states[1][name]) for name, x in states[0].items())


# ------------------------------------------------------------------------------------------------------- without a dtype


@pytest.mark.parametrize("bytes_", ["random", "packed"])
@pytest.mark.parametrize("name", FILES)
def test_weights_equal_those_of_the_package_gguf(tmp_path: Path, name: str, bytes_: str) -> None:
    """Also for blocks that are not packed here, such as those with negative scales."""
    pack = packed if bytes_ == "packed" else lambda values, kind: random_blocks(kind.name, *values.shape, seed=values.size)
    path = write(tmp_path, name, pack=pack)
    model: Any = from_pretrained(path)
    theirs, weights = tensors_of_file(path), blocks_of(model)
    assert len(weights) == 11 + ("output.weight" in theirs)
    is_llama = not (model.config.query_key_value_bias or model.config.query_key_norm)
    for layer, block in enumerate(model.blocks):
        parts = [theirs[f"blk.{layer}.attn_{part}.weight"] for part in "qkv"]
        if is_llama:
            parts[:2] = in_order(parts[0], 4), in_order(parts[1], 2)
        np.testing.assert_array_equal(weights[f"blocks.{layer}.attention.{_FUSED}.weight"].numpy(), np.concatenate(parts))
        np.testing.assert_array_equal(block.attention.output.weight.numpy(), theirs[f"blk.{layer}.attn_output.weight"])
        for part in ("gate", "up", "down"):
            matrix = getattr(block.feed_forward, part).weight
            np.testing.assert_array_equal(matrix.numpy(), theirs[f"blk.{layer}.ffn_{part}.weight"])
    np.testing.assert_array_equal(model.token_embedding.weight.numpy(), theirs["token_embd.weight"])
    np.testing.assert_array_equal(model.output_weight().numpy(), theirs.get("output.weight", theirs["token_embd.weight"]))


@pytest.mark.parametrize("name", FILES)
def test_logits_equal_those_in_float32(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, name)
    model, in_float32 = from_pretrained(path), from_pretrained(path, dtype="float32")
    assert isinstance(model, GPT) and not model.training and model.config == in_float32.config
    assert dtype_of(model) == ("int8" if name.startswith("Q8_0") else "int4") and dtype_of(in_float32) == "float32"
    # Compiled kernels round the inputs of few rows to 16 bits.
    for ids, most in ((np.tile(IDS, (9, 1)), 1e-4), (IDS, 5e-4), (IDS[:1, :1], 5e-4)):
        with tt.no_grad():
            logits, expected = model(tt.tensor(ids)).numpy(), in_float32(tt.tensor(ids)).numpy()
        assert np.abs(logits - expected).max() <= most * np.abs(expected).max()


@pytest.mark.parametrize("name", FILES)
def test_tokens_are_generated(tmp_path: Path, name: str) -> None:
    """By a traced program, which reads one token at a time. The tokens are those of whole passes."""
    model = from_pretrained(write(tmp_path, name))
    assert isinstance(model, GPT)
    ids = [1, 2, 3]
    for _ in range(12):
        with tt.no_grad():
            ids.append(int(model(tt.tensor([ids])).numpy()[0, -1].argmax()))
    assert list(generate(model, ids[:3], 12, Sampling(temperature=0))) == ids[3:]


def test_parts_keep_their_types(tmp_path: Path) -> None:
    weights = blocks_of(from_pretrained(write(tmp_path, "Q4_K_M")))
    assert weights[f"blocks.1.attention.{_FUSED}.weight"].parts == (("Q4_K", 384), ("Q6_K", 128))
    assert weights["blocks.1.feed_forward.down.weight"].parts == (("Q6_K", 256),)
    assert weights["blocks.1.feed_forward.up.weight"].parts == (("Q4_K", 512),)
    weights = blocks_of(from_pretrained(write(tmp_path, "a type for each of q, k and v")))
    assert weights[f"blocks.0.attention.{_FUSED}.weight"].parts == (("Q4_0", 256), ("Q8_0", 128), ("Q4_K", 128))


def test_a_part_in_another_type_makes_a_weight_float32(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    path = write_gguf(folder, tmp_path / "model.gguf", Kind.Q4_0, kinds={"attn_k": Kind.F16, "ffn_up": Kind.Q5_0})
    model: Any = from_pretrained(path)
    block = model.blocks[0]
    for layer in (block.attention.query_key_value, block.feed_forward.up):
        assert isinstance(layer.weight, tt.Tensor) and layer.weight.dtype == "float32"
    for layer in (block.attention.output, block.feed_forward.down, block.feed_forward.gate, model.token_embedding):
        assert isinstance(layer.weight, BlockWeight)
    expected: Any = from_pretrained(path, dtype="float32")
    with tt.no_grad():
        logits, in_float32 = model(tt.tensor(IDS)).numpy(), expected(tt.tensor(IDS)).numpy()
    assert np.abs(logits - in_float32).max() <= 5e-4 * np.abs(in_float32).max()


@pytest.mark.needs("numpy")
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_weight_of_one_tensor_stays_in_the_file(tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_model(tmp_path / "model", d_model=256, d_ff=2048)
    path = write_gguf(folder, tmp_path / "model.gguf", kind)
    from_pretrained(path)  # which imports what it needs
    tensors: dict[str, Any] = {}
    read = loading.read_weights
    monkeypatch.setattr(loading, "read_weights", lambda path: tensors.update(read(path)) or {**tensors})
    tracemalloc.start()
    model: Any = from_pretrained(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    block, theirs = model.blocks[0], "model.layers.0."
    for name, weight in {
        "model.embed_tokens": model.token_embedding.weight,
        f"{theirs}self_attn.o_proj": block.attention.output.weight,
        f"{theirs}mlp.gate_proj": block.feed_forward.gate.weight,
        f"{theirs}mlp.up_proj": block.feed_forward.up.weight,
        f"{theirs}mlp.down_proj": block.feed_forward.down.weight,
    }.items():
        assert host.may_share_memory(weight.values.data, tensors[f"{name}.weight"].stored)
    fused = block.attention.query_key_value.weight.values.data
    assert not host.may_share_memory(fused, tensors[f"{theirs}self_attn.v_proj.weight"].stored)
    assert peak < block.feed_forward.up.weight.numpy().nbytes / 3  # one matrix of the twelve in float32


# ------------------------------------------------------------------------------------------------------ with a dtype


@pytest.mark.parametrize("dtype", ["int8", "int4", "bfloat16"])
@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_K_M", "Q6_K"])
def test_another_dtype_rounds_the_values(tmp_path: Path, name: str, dtype: str) -> None:
    path = write(tmp_path, name)
    model = from_pretrained(path, dtype=dtype)
    stays = dtype == ("int8" if name == "Q8_0" else "int4")
    expected = from_pretrained(path) if stays else quantize(from_pretrained(path, dtype="float32"), dtype)
    assert dtype_of(model) == dtype and same_state(model, expected)


def test_float32_is_what_the_package_gguf_dequantizes(tmp_path: Path) -> None:
    path = write(tmp_path, "Q4_K_M")
    model: Any = from_pretrained(path, dtype="float32")
    theirs = tensors_of_file(path)
    np.testing.assert_array_equal(model.blocks[0].feed_forward.down.weight.numpy(), theirs["blk.0.ffn_down.weight"])
    np.testing.assert_array_equal(model.token_embedding.weight.numpy(), theirs["token_embd.weight"])
    fused = model.blocks[0].attention.query_key_value.weight.numpy()
    np.testing.assert_array_equal(fused[384:], theirs["blk.0.attn_v.weight"])
    np.testing.assert_array_equal(fused[:256], in_order(theirs["blk.0.attn_q.weight"], 4))


@pytest.mark.needs("numpy")  # the mock of CuPy records what it computes, in memory
@pytest.mark.parametrize("kind", [Kind.F16, Kind.Q5_0], ids=str)
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_weights_are_rounded_one_after_the_other(tmp_path: Path, kind: Kind, dtype: str) -> None:
    folder = write_model(tmp_path / "llama", num_layers=12, d_model=128, d_ff=256, tie_output=True)
    path = write_gguf(folder, tmp_path / "llama.gguf", kind)
    in_float32 = from_pretrained(path)
    tracemalloc.start()
    model = from_pretrained(path, dtype=dtype)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 0.6 * sum(tensor.size * 4 for tensor in in_float32.state_dict().values())
    assert same_state(model, quantize(in_float32, dtype))


# ---------------------------------------------------------------------------------------------------- what else is done


@pytest.mark.parametrize("name", ["Q8_0, tied", "Q4_K_M", "a type for each of q, k and v"])
def test_a_folder_has_the_same_blocks(tmp_path: Path, name: str) -> None:
    model: Any = from_pretrained(write(tmp_path, name))
    save_pretrained(model, tmp_path / "saved")
    again: Any = from_pretrained(tmp_path / "saved")
    assert same_state(model, again)
    assert {name: weight.parts for name, weight in blocks_of(again).items()} == {
        name: weight.parts for name, weight in blocks_of(model).items()
    }
    if name == "Q4_K_M":
        attention = "model.layers.0.self_attn."
        saved = {each for each in tt.load(tmp_path / "saved" / "model.safetensors") if each.startswith(attention)}
        types = {"q": "Q4_K", "k": "Q4_K", "v": "Q6_K", "o": "Q4_K"}
        assert saved == {f"{attention}{part}_proj.weight.{block_type}" for part, block_type in types.items()}


def test_additions_are_trained(tmp_path: Path) -> None:
    path = write(tmp_path, "Q4_K_M")
    tt.seed(0)
    model: Any = nn.add_lora(from_pretrained(path), rank=2)
    ids, targets = tt.tensor(IDS[:, :-1]), tt.tensor(IDS[:, 1:])
    optimizer = optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)
    losses = []
    for _ in range(5):
        loss = model.loss(ids, targets)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 0.1


def test_a_model_for_training_and_for_the_explorer_is_float32(tmp_path: Path) -> None:
    tokenizer = BPETokenizer.train("the quick brown fox " * 3, 270)
    folder = write_model(tmp_path / "model", vocab_size=tokenizer.vocab_size)
    path = write_gguf(folder, tmp_path / "model.gguf", Kind.Q4_0, tokenizer_metadata(tokenizer_json(tokenizer)))
    assert dtype_of(from_pretrained(path)) == "int4" and pretrained_tokenizer(path).vocab_size == tokenizer.vocab_size
    for model in (load_differentiable(path), open_pretrained(path).model, Subjects([path]).get("pretrained").model):
        assert isinstance(model, GPT) and dtype_of(model) == "float32"
        ids = tt.tensor(IDS)
        model.loss(ids, ids).backward()
        assert model.blocks[0].feed_forward.up.weight.grad is not None
