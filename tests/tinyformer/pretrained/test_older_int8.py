"""Folders of older versions, which have int8 values by the usual names, and a float32 scale for each row."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import tinytensor as tt
from tinyformer import GPT, BertConfig, BertForMaskedLM, GPTConfig, UserError, from_pretrained, quantize, save_pretrained
from tinyformer.models.quantizing import dtype_of
from tinytensor import nn
from tinytensor.nn.quantization import quantized_weights
from tinytensor.nn.weights import BlockWeight

SHAPE = {"vocab_size": 23, "block_size": 12, "num_layers": 2, "num_heads": 4, "d_model": 48}
LLAMA = {**SHAPE, "positions": "rotary", "norm": "rms", "activation": "swiglu", "num_key_value_heads": 2, "tie_output": False}
MODELS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: GPT(GPTConfig(**SHAPE, bias=True)),
    "llama": lambda: GPT(GPTConfig(**LLAMA)),
    "bert": lambda: BertForMaskedLM(BertConfig(23, max_length=12, num_layers=2, num_heads=4, d_model=48, d_ff=64)),
}
IDS = tt.tensor(np.random.default_rng(0).integers(0, 23, (2, 12)))
Tensors = dict[str, np.ndarray]


def write_older(folder: Path, name: str) -> Any:
    """Write a model as older versions wrote it in int8: embeddings too, but only those that are also the output layer.

    Returns the model in float32, with the values of the file.
    """
    tt.seed(1)
    model = MODELS[name]()
    for tensor in model.state_dict().values():
        tensor.data[...] += 0.1 * tt.random.normal(tensor.shape).data
    save_pretrained(model, folder)
    intact = load_file(folder / "model.safetensors")
    tensors, values = dict(intact), dict(intact)
    for theirs, weight in intact.items():
        if weight.ndim == 2 and not any(part in theirs for part in ("wpe", "position", "token_type", "embed_tokens")):
            inputs = 0 if name == "gpt2" and ".h." in theirs else 1  # the axis of the inputs
            scale = np.abs(weight).max(inputs) / np.float32(127)
            integers = np.rint(weight / np.expand_dims(scale, inputs)).astype(np.int8)
            tensors |= {theirs: integers, f"{theirs}_scale": scale}
            values[theirs] = integers * np.expand_dims(scale, inputs)
    save_file(values, folder / "model.safetensors", {"format": "pt"})
    model = from_pretrained(folder)
    for tensor in model.state_dict().values():  # the file is written again
        tensor.data = tensor.data.copy()
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "tinyformer", "dtype": "int8"}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return model


def logits(model: Any) -> np.ndarray:
    with tt.no_grad():
        return model(IDS).numpy()


@pytest.mark.parametrize("name", MODELS)
def test_it_opens_in_int8(name: str, tmp_path: Path) -> None:
    in_float32 = write_older(tmp_path, name)
    state, expected = in_float32.state_dict(), logits(in_float32)
    for dtype in (None, "int8"):
        model: Any = from_pretrained(tmp_path, dtype=dtype)
        assert dtype_of(model) == "int8" and not model.training
        assert all(isinstance(layer.weight, BlockWeight) for layer in model.modules() if isinstance(layer, nn.Linear))
        for each, weight in quantized_weights(model):
            values = state[each].numpy()
            assert np.abs(weight.numpy() - values).max() <= 0.51 / 127 * np.abs(values).max()
        assert np.abs(logits(model) - expected).max() <= 0.05 * np.abs(expected).max()


@pytest.mark.parametrize("name", MODELS)
def test_it_opens_in_each_dtype(name: str, tmp_path: Path) -> None:
    in_float32 = write_older(tmp_path, name)
    model: Any = from_pretrained(tmp_path, dtype="float32")
    for each, values in in_float32.state_dict().items():
        np.testing.assert_array_equal(model.state_dict()[each].numpy(), values.numpy())
    for dtype in ("int8", "int4", "bfloat16"):
        np.testing.assert_array_equal(logits(from_pretrained(tmp_path, dtype=dtype)), logits(quantize(_again(model), dtype)))


def _again(model: Any) -> Any:
    """A model with the same values."""
    other = type(model)(model.config)
    other.load_state_dict(model.state_dict())
    return other.eval()


def test_it_is_saved_in_blocks(tmp_path: Path) -> None:
    write_older(tmp_path / "older", "gpt2")
    model = from_pretrained(tmp_path / "older", dtype="int8")
    save_pretrained(model, tmp_path / "newer")
    tensors = load_file(tmp_path / "newer" / "model.safetensors")
    assert "transformer.h.0.mlp.c_fc.weight.Q8_0" in tensors and not any(each.endswith("_scale") for each in tensors)
    np.testing.assert_array_equal(logits(from_pretrained(tmp_path / "newer")), logits(model))


# ---------------------------------------------------------------------------------------------------------- damages

HEAD, QUERIES, NORM = "lm_head.weight", "model.layers.0.self_attn.q_proj.weight", "model.norm.weight"


def changed(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Tensors], None]:
    """Return a function that changes one tensor of a file."""
    return lambda tensors: tensors.update({name: np.ascontiguousarray(change(tensors[name]))})


DAMAGES: dict[str, tuple[Callable[[Tensors], object], str]] = {
    "no values": (lambda x: x.pop(HEAD), r"lm_head\.weight is missing"),
    "no scales": (lambda x: x.pop(f"{HEAD}_scale"), r"lm_head\.weight must be floating-point, got int8"),
    "too few scales": (changed(f"{HEAD}_scale", lambda x: x[:-1]), r"lm_head\.weight_scale must be int8 values and a scale"),
    "scales of columns": (changed(f"{HEAD}_scale", lambda x: x[:, None]), r"lm_head\.weight_scale must be int8 values"),
    "scales that are integers": (changed(f"{HEAD}_scale", lambda x: (9 * x).astype(np.int8)), r"lm_head\.weight_scale"),
    "scales that are NaN": (changed(f"{HEAD}_scale", lambda x: x * np.float32("nan")), r"has NaN or infinite values"),
    "values in float32": (changed(HEAD, lambda x: x.astype(np.float32)), r"lm_head\.weight_scale must be int8 values"),
    "bytes without a sign": (changed(HEAD, lambda x: x.view(np.uint8)), r"lm_head\.weight_scale must be int8 values"),
    "too few rows": (changed(HEAD, lambda x: x[:3]), r"lm_head\.weight must have shape \(23, 48\), got \(3, 48\)"),
    "scales of a norm": (lambda x: x.update({f"{NORM}_scale": np.ones(48, np.float32)}), r"model\.norm\.weight_scale"),
    "scales of nothing": (lambda x: x.update({"x.weight_scale": np.ones(48, np.float32)}), r"x\.weight_scale is not expected"),
    "queries without scales": (lambda x: x.pop(f"{QUERIES}_scale"), r"q_proj\.weight must be floating-point"),
}


@pytest.mark.parametrize("change, message", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_folder_is_refused(change: Any, message: str, tmp_path: Path) -> None:
    write_older(tmp_path, "llama")
    tensors = load_file(tmp_path / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    for dtype in (None, "int8"):
        with pytest.raises(UserError, match=message) as caught:
            from_pretrained(tmp_path, dtype=dtype)
        assert "\n" not in str(caught.value) and str(caught.value).count(str(tmp_path)) == 1
