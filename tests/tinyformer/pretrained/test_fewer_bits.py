"""Folders and models in int8, int4 or bfloat16: writing, reading, and errors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import tinytensor as tt
from tinyformer import (
    GPT,
    BertConfig,
    BertForMaskedLM,
    GPTConfig,
    RecurrentConfig,
    RecurrentLM,
    RunFolder,
    Trainer,
    TrainingConfig,
    Transformer,
    TransformerConfig,
    UserError,
    export_onnx,
    from_pretrained,
    quantize,
    save_pretrained,
)
from tinyformer.models.quantizing import dtype_of, num_weights
from tinytensor.device.backend import xp
from tinytensor.io import save
from tinytensor.kernels.numpy.quantized import BLOCK_TYPES, pack_rows
from tinytensor.nn.quantization import put_weight, quantized_weights
from tinytensor.nn.weights import BlockWeight

SHAPE = {"vocab_size": 11, "block_size": 8, "num_layers": 2, "num_heads": 4, "d_model": 16}
ROTARY = {**SHAPE, "positions": "rotary", "norm": "rms", "activation": "swiglu"}
ENCODER = {"vocab_size": 11, "max_length": 8, "num_layers": 1, "num_heads": 2, "d_model": 16, "d_ff": 24}
BOTH: dict[str, Any] = {"source_vocab_size": 11, "target_vocab_size": 11, "source_pad": 0, "d_model": 16, "num_heads": 2}
BOTH |= {"encoder_layers": 1, "decoder_layers": 1, "d_ff": 24, "positions": "sinusoidal_halves", "output_bias": True}
KINDS: dict[str, Any] = {  # rows of 16 values are half a block, and those of 256 are whole ones of each type
    "gpt2": lambda: GPT(GPTConfig(**SHAPE, bias=True)),
    "gpt2 without biases": lambda: GPT(GPTConfig(**SHAPE)),
    "llama": lambda: GPT(GPTConfig(**ROTARY, num_key_value_heads=2, tie_output=False)),
    "wide llama": lambda: GPT(GPTConfig(**{**ROTARY, "num_layers": 1, "d_model": 256}, num_key_value_heads=2)),
    "qwen3": lambda: GPT(GPTConfig(**ROTARY, query_key_norm=True)),
    "bert": lambda: BertForMaskedLM(BertConfig(**ENCODER)),
    "marian": lambda: Transformer(TransformerConfig(**BOTH, share_embeddings=True)),
    "marian separate": lambda: Transformer(TransformerConfig(**BOTH, share_embeddings=False)),
}
ERRORS = {
    "int8": 0.51 / 127,
    "int4": 2 / 15,
    "bfloat16": 0.51 / 128,
}  # the largest of a weight, as a share of its largest value
IDS = tt.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])


def made(kind: str) -> Any:
    tt.seed(1)
    model = KINDS[kind]()
    for tensor in model.state_dict().values():
        tensor.data[...] += 0.1 * tt.random.normal(tensor.shape).data
    return model.eval()


def logits(model: Any) -> np.ndarray:
    with tt.no_grad():
        return model(IDS, IDS).numpy() if isinstance(model, Transformer) else model(IDS).numpy()


def values_of(model: Any) -> dict[str, np.ndarray]:
    """The state with the values that quantized weights stand for."""
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    for name, weight in quantized_weights(model):
        state = {key: value for key, value in state.items() if not key.startswith(f"{name}.")} | {name: weight.numpy()}
    return state


def parts_of(model: Any) -> dict[str, Any]:
    """The types of the blocks of each weight that has some."""
    return {name: weight.parts for name, weight in quantized_weights(model) if isinstance(weight, BlockWeight)}


def assert_same(model: Any, expected: Any) -> None:
    """Two models have the same tensors, to the bit, and compute the same."""
    state, states = model.state_dict(), expected.state_dict()
    assert state.keys() == states.keys() and parts_of(model) == parts_of(expected)
    for name, values in states.items():
        np.testing.assert_array_equal(state[name].numpy(), values.numpy())
    np.testing.assert_array_equal(logits(model), logits(expected))


@pytest.mark.parametrize("dtype", ["int8", "int4", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_is_rounded_while_it_is_read(kind: str, dtype: str, tmp_path: Path) -> None:
    model = made(kind)
    save_pretrained(model, tmp_path)
    rounded = from_pretrained(tmp_path, dtype=dtype)
    assert dtype_of(rounded) == dtype and not rounded.training
    assert_same(rounded, quantize(from_pretrained(tmp_path), dtype))
    assert num_weights(rounded) == from_pretrained(tmp_path).num_parameters()
    expected = logits(model)
    assert 0 < np.abs(logits(rounded) - expected).max() < (0.4 if dtype == "int4" else 0.1) * np.abs(expected).max()
    in_float32 = model.state_dict()
    for name, values in values_of(rounded).items():
        if name in in_float32:  # GPT-2 has biases, where the model has none
            given = in_float32[name].numpy()
            assert np.abs(values - given).max() <= ERRORS[dtype] * np.abs(given).max()


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_model_in_blocks_is_written_and_read(kind: str, dtype: str, tmp_path: Path) -> None:
    model = quantize(made(kind), dtype)
    save_pretrained(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["quantization_config"] == {"quant_method": "tinyformer", "dtype": dtype}
    for name, tensor in tt.load(tmp_path / "model.safetensors").items():
        block_type = name.rpartition(".")[2]
        assert (tensor.dtype, tensor.ndim) == ("uint8", 2) if block_type in BLOCK_TYPES else tensor.dtype == "float32"
    for asked in (None, dtype):
        again: Any = from_pretrained(tmp_path, dtype=asked)
        assert dtype_of(again) == dtype and parts_of(again) == parts_of(model)
        for name, values in model.state_dict().items():
            np.testing.assert_array_equal(again.state_dict()[name].numpy(), values.numpy())
        np.testing.assert_array_equal(logits(again), logits(model))


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("kind", ["gpt2", "wide llama", "bert", "marian"])
def test_a_folder_in_blocks_can_be_read_in_each_dtype(kind: str, dtype: str, tmp_path: Path) -> None:
    model = quantize(made(kind), dtype)
    save_pretrained(model, tmp_path)
    in_float32: Any = from_pretrained(tmp_path, dtype="float32")
    assert dtype_of(in_float32) == "float32"
    for name, values in values_of(model).items():
        np.testing.assert_array_equal(in_float32.state_dict()[name].numpy(), values)
    for other in {"int8", "int4", "bfloat16"} - {dtype}:
        expected = quantize(from_pretrained(tmp_path, dtype="float32"), other)
        assert_same(from_pretrained(tmp_path, dtype=other), expected)


def test_the_types_of_blocks(tmp_path: Path) -> None:
    """Embeddings have more bits. Rows that are not whole blocks of 256 have blocks of 32."""
    for kind, types in {"llama": ("Q4_1", "Q8_0"), "wide llama": ("Q4_K", "Q6_K")}.items():
        save_pretrained(quantize(made(kind), "int4"), tmp_path / kind)
        saved = {name.removeprefix("model.") for name in tt.load(tmp_path / kind / "model.safetensors")}
        attention = {f"layers.0.self_attn.{part}_proj.weight.{types[0]}" for part in "qkvo"}
        assert saved >= attention | {f"embed_tokens.weight.{types[1]}", "norm.weight"}
        assert not any(name.endswith(".weight") and "proj" in name for name in saved)


def test_parts_of_a_weight_may_have_other_types(tmp_path: Path) -> None:
    model = made("wide llama")
    name, rng = "blocks.0.attention.query_key_value.weight", np.random.default_rng(0)
    parts = (("Q8_0", 256), ("Q4_K", 128), ("Q6_K", 128))  # the queries, keys and values
    rows = [pack_rows(xp.asarray(rng.standard_normal((count, 256)), "float32"), block_type) for block_type, count in parts]
    values = np.concatenate([tt.tensor(part).numpy().ravel() for part in rows])
    put_weight(model, name, BlockWeight(tt.tensor(values), parts, 256))
    quantize(model, "int4")
    save_pretrained(model, tmp_path)
    saved = tt.load(tmp_path / "model.safetensors")
    for part, (block_type, count), packed in zip("qkv", parts, rows):
        tensor = saved[f"model.layers.0.self_attn.{part}_proj.weight.{block_type}"]
        assert len(tensor) == count
        np.testing.assert_array_equal(tensor.numpy(), tt.tensor(packed).numpy())
    assert_same(from_pretrained(tmp_path), model)
    assert parts_of(from_pretrained(tmp_path))[name] == parts


def test_a_bfloat16_model_is_written_as_the_numbers_that_it_has(tmp_path: Path) -> None:
    model = quantize(made("gpt2"), "bfloat16")
    save_pretrained(model, tmp_path)
    assert dtype_of(from_pretrained(tmp_path)) == "float32"
    np.testing.assert_array_equal(logits(from_pretrained(tmp_path, dtype="bfloat16")), logits(model))


def test_a_folder_in_bfloat16_can_be_read_in_each_dtype(tmp_path: Path) -> None:
    model = made("llama")
    save_pretrained(quantize(model, "bfloat16"), tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    halves = {name: (array.view(np.uint32) >> 16).astype(np.uint16) for name, array in state.items()}
    content, described, start = b"", {}, 0
    for name, array in halves.items():
        described[name] = {"dtype": "BF16", "shape": list(array.shape), "data_offsets": [start, start + array.nbytes]}
        content, start = content + array.tobytes(), start + array.nbytes
    header = json.dumps(described).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + content)
    whole = from_pretrained(tmp_path)
    for dtype in ("float32", "int8", "int4", "bfloat16"):
        again = quantize(from_pretrained(tmp_path), dtype) if dtype != "float32" else whole
        np.testing.assert_array_equal(logits(from_pretrained(tmp_path, dtype=dtype)), logits(again))


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_a_tied_weight_stays_one(dtype: str, tmp_path: Path) -> None:
    save_pretrained(made("marian"), tmp_path)
    model: Any = from_pretrained(tmp_path, dtype=dtype)
    assert model.output_weight() is model.source_embedding.tokens.weight is model.target_embedding.tokens.weight


@pytest.mark.parametrize("dtype", ["int8", "int4", "bfloat16"])
def test_a_bert_whose_folder_has_no_pooler(dtype: str, tmp_path: Path) -> None:
    model = made("bert").bert
    save_pretrained(model if dtype == "bfloat16" else quantize(model, dtype), tmp_path)
    path = tmp_path / "model.safetensors"
    save_file({name: tensor for name, tensor in load_file(path).items() if "pooler" not in name}, path)
    again: Any = from_pretrained(tmp_path, dtype=dtype)
    weights = dict(quantized_weights(again))
    for name, weight in quantized_weights(quantize(model, dtype)):
        if not name.startswith("pooler"):  # it is random
            np.testing.assert_array_equal(weights[name].numpy(), weight.numpy())


# ---------------------------------------------------------------------------------------------------- what is refused


def test_an_unknown_dtype_is_refused_and_the_known_ones_named(tmp_path: Path) -> None:
    save_pretrained(made("gpt2"), tmp_path)
    with pytest.raises(UserError, match="dtype must be one of float32, int8, int4, bfloat16, got 'int2'"):
        from_pretrained(tmp_path, dtype="int2")
    with pytest.raises(UserError, match="dtype must be int8 or int4 or bfloat16, got 'float16'"):
        quantize(made("gpt2"), "float16")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["int8", "int4", "bfloat16"])
def test_weights_that_are_not_finite_are_refused(value: float, dtype: str, tmp_path: Path) -> None:
    model = made("gpt2")
    model.blocks[1].feed_forward.down.weight.data[3, 2] = value
    save_pretrained(model, tmp_path)
    with pytest.raises(UserError, match=r"blocks\.1\.feed_forward\.down\.weight has NaN or infinite values"):
        from_pretrained(tmp_path, dtype=dtype)
    with pytest.raises(UserError, match=r"^blocks\.1\.feed_forward\.down\.weight has NaN or infinite values"):
        quantize(model, dtype)


def test_a_model_with_other_layers_is_refused_by_their_name() -> None:
    with pytest.raises(UserError, match=r"is a weight of an LSTM, which cannot be quantized"):
        quantize(RecurrentLM(RecurrentConfig(11, "lstm", num_layers=1, d_model=8)))


@pytest.mark.parametrize("dtype, most", [("int8", "8.32e+06"), ("int4", "6.55e+04")])
def test_weights_that_are_too_large_for_float16_scales_are_refused(dtype: str, most: str, tmp_path: Path) -> None:
    model = made("gpt2")
    model.blocks[1].feed_forward.down.weight.data[3, 2] = 1e7
    save_pretrained(model, tmp_path)
    message = f"down.weight has values beyond {most}, which {dtype} cannot hold: use bfloat16"
    with pytest.raises(UserError, match=re.escape(message)):
        from_pretrained(tmp_path, dtype=dtype)
    assert dtype_of(from_pretrained(tmp_path, dtype="bfloat16")) == "bfloat16"


def test_weights_that_others_quantized_are_refused(tmp_path: Path) -> None:
    save_pretrained(made("gpt2"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for described in ({"quant_method": "gptq"}, {"bits": 4}, True, [1]):
        (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": described}))
        with pytest.raises(UserError, match="quantization_config is not supported"):
            from_pretrained(tmp_path)


def blocks(rows: int, width: int, block_type: str = "Q8_0") -> tt.Tensor:
    return tt.tensor(pack_rows(xp.zeros((rows, width), "float32"), block_type))


HEAD, NORM = "lm_head.weight", "model.norm.weight"
DAMAGES: dict[str, tuple[Any, str]] = {
    "missing": (lambda x: x.pop(f"{HEAD}.Q8_0"), r"lm_head\.weight is missing"),
    "too few rows": (lambda x: x.update({f"{HEAD}.Q8_0": blocks(3, 16)}), r"weight must have shape \(11, 16\), got \(3, 16\)"),
    "too wide": (lambda x: x.update({f"{HEAD}.Q8_0": blocks(11, 40)}), r"weight must have shape \(11, 16\), got \(11, 64\)"),
    "half a block": (lambda x: x.update({f"{HEAD}.Q8_0": tt.zeros((11, 33), dtype="uint8")}), r"weight\.Q8_0 is not expected"),
    "no bytes": (lambda x: x.update({f"{HEAD}.Q8_0": tt.zeros((11, 34))}), r"lm_head\.weight\.Q8_0 is not expected"),
    "signed bytes": (lambda x: x.update({f"{HEAD}.Q8_0": tt.zeros((11, 34), dtype="int8")}), r"weight\.Q8_0 is not expected"),
    "an unknown type": (lambda x: x.update({f"{HEAD}.Q2_K": x.pop(f"{HEAD}.Q8_0")}), r"lm_head\.weight\.Q2_K is not expected"),
    "an unknown tensor": (lambda x: x.update({"x.weight.Q8_0": blocks(11, 16)}), r"x\.weight is not expected"),
    "a norm": (lambda x: [x.pop(NORM), x.update({f"{NORM}.Q8_0": blocks(1, 16)})], r"shape \(16,\), got \(1, 16\)"),
    "in float32, too": (lambda x: x.update({HEAD: tt.ones((11, 16))}), r"lm_head\.weight"),
    "in two types": (lambda x: x.update({f"{HEAD}.Q4_1": blocks(11, 16, "Q4_1")}), r"lm_head\.weight"),
}


@pytest.mark.parametrize("change, message", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_folder_is_refused(change: Any, message: str, tmp_path: Path) -> None:
    save_pretrained(quantize(made("llama")), tmp_path / "intact")
    tensors = tt.load(tmp_path / "intact" / "model.safetensors")
    change(tensors)
    folder = tmp_path / "damaged"
    folder.mkdir()
    (folder / "config.json").write_bytes((tmp_path / "intact" / "config.json").read_bytes())
    save(tensors, folder / "model.safetensors")
    for dtype in (None, "float32", "int8", "int4"):
        with pytest.raises(UserError, match=message) as caught:
            from_pretrained(folder, dtype=dtype)
        assert "\n" not in str(caught.value) and str(caught.value).count(str(folder)) == 1


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_a_quantized_model_is_neither_trained_nor_exported(dtype: str, tmp_path: Path) -> None:
    model = quantize(made("gpt2"), dtype)
    with pytest.raises(
        UserError, match=f"a model in {dtype} cannot be trained: train it in float32 and quantize it afterwards"
    ):
        Trainer(model, [], TrainingConfig(), RunFolder(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=f"a model in {dtype} cannot be exported: export it in float32"):
        export_onnx(model, tmp_path / "model.onnx")


# --------------------------------------------------------------------------------------------------------- memory


@pytest.mark.skipif(sys.platform != "linux" or tt.backend_name != "numpy", reason="the peak is that of /proc")
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_a_large_folder_is_never_in_memory_in_float32(dtype: str, tmp_path: Path) -> None:
    config = GPTConfig(vocab_size=20_000, block_size=16, num_layers=4, num_heads=8, d_model=512, bias=True)
    save_pretrained(GPT(config), tmp_path)  # 23 million numbers
    code = """if True:
        import sys
        from tinyformer import from_pretrained
        def status(key):
            return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key)) / 1e3
        import tinytensor.nn
        from_pretrained  # which imports what it needs
        before = status("VmRSS")
        model = from_pretrained(sys.argv[1], dtype=sys.argv[2])
        print(status("VmHWM") - before)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, tmp_path, dtype]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    in_float32 = 4e-6 * from_pretrained(tmp_path).num_parameters()
    assert float(done.stdout) < 0.7 * in_float32  # a quarter of it stays; the rest is the largest matrix, and what is imported
