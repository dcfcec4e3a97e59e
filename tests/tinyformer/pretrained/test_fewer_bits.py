"""Folders and models whose weights are int8 or bfloat16: what becomes of them, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
from tinytensor.io import save
from tinytensor.nn.quantization import quantized_weights

SHAPE = {"vocab_size": 11, "block_size": 8, "num_layers": 2, "num_heads": 4, "d_model": 16}
ROTARY = {**SHAPE, "positions": "rotary", "norm": "rms", "activation": "swiglu"}
ENCODER = {"vocab_size": 11, "max_length": 8, "num_layers": 1, "num_heads": 2, "d_model": 16, "d_ff": 24}
BOTH: dict[str, Any] = {"source_vocab_size": 11, "target_vocab_size": 11, "source_pad": 0, "d_model": 16, "num_heads": 2}
BOTH |= {"encoder_layers": 1, "decoder_layers": 1, "d_ff": 24, "positions": "sinusoidal_halves", "output_bias": True}
KINDS: dict[str, Any] = {
    "gpt2": lambda: GPT(GPTConfig(**SHAPE, bias=True)),
    "llama": lambda: GPT(GPTConfig(**ROTARY, num_key_value_heads=2, tie_output=False)),
    "qwen3": lambda: GPT(GPTConfig(**ROTARY, query_key_norm=True)),
    "bert": lambda: BertForMaskedLM(BertConfig(**ENCODER)),
    "marian": lambda: Transformer(TransformerConfig(**BOTH, share_embeddings=True)),
    "marian separate": lambda: Transformer(TransformerConfig(**BOTH, share_embeddings=False)),
}
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


def in_numbers(model: Any) -> dict[str, np.ndarray]:
    """The state with what quantized weights stand for."""
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    for name, weight in quantized_weights(model):
        state = {key: value for key, value in state.items() if not key.startswith(f"{name}.")} | {name: weight.numpy()}
    return state


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_is_rounded_while_it_is_read(kind: str, dtype: str, tmp_path: Path) -> None:
    model = made(kind)
    save_pretrained(model, tmp_path)
    rounded, again = from_pretrained(tmp_path, dtype=dtype), quantize(from_pretrained(tmp_path), dtype)
    assert dtype_of(rounded) == dtype and not rounded.training
    np.testing.assert_array_equal(logits(rounded), logits(again))
    assert num_weights(rounded) == model.num_parameters()
    found, size = logits(model), np.abs(logits(model)).max()
    assert 0 < np.abs(logits(rounded) - found).max() < 0.1 * size
    for name, values in in_numbers(rounded).items():
        step = np.abs(model.state_dict()[name].numpy()).max() / (127 if dtype == "int8" else 128)
        assert np.abs(values - model.state_dict()[name].numpy()).max() <= 0.51 * step


@pytest.mark.parametrize("kind", KINDS)
def test_an_int8_model_is_written_and_read(kind: str, tmp_path: Path) -> None:
    model = quantize(made(kind))
    save_pretrained(model, tmp_path)
    again: Any = from_pretrained(tmp_path)
    assert dtype_of(again) == "int8"
    for name, values in model.state_dict().items():
        np.testing.assert_array_equal(again.state_dict()[name].numpy(), values.numpy())
    np.testing.assert_array_equal(logits(again), logits(model))
    assert dtype_of(from_pretrained(tmp_path, dtype="int8")) == "int8"


def test_a_bfloat16_model_is_written_as_the_numbers_that_it_has(tmp_path: Path) -> None:
    model = quantize(made("gpt2"), "bfloat16")
    save_pretrained(model, tmp_path)
    assert dtype_of(from_pretrained(tmp_path)) == "float32"
    np.testing.assert_array_equal(logits(from_pretrained(tmp_path, dtype="bfloat16")), logits(model))


def test_a_folder_in_bfloat16_can_be_read_in_each_dtype(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

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
    for dtype in ("float32", "int8", "bfloat16"):
        again = quantize(from_pretrained(tmp_path), dtype) if dtype != "float32" else whole
        np.testing.assert_array_equal(logits(from_pretrained(tmp_path, dtype=dtype)), logits(again))


def test_a_tied_weight_stays_one(tmp_path: Path) -> None:
    save_pretrained(made("marian"), tmp_path)
    model: Any = from_pretrained(tmp_path, dtype="int8")
    assert model.output_weight() is model.source_embedding.tokens.weight is model.target_embedding.tokens.weight


# ---------------------------------------------------------------------------------------------------- what is refused


def test_an_unknown_dtype_is_refused_and_the_known_ones_named(tmp_path: Path) -> None:
    save_pretrained(made("gpt2"), tmp_path)
    with pytest.raises(UserError, match="dtype must be one of float32, int8, bfloat16, not 'int4'"):
        from_pretrained(tmp_path, dtype="int4")
    with pytest.raises(UserError, match="can be quantized to int8 or bfloat16, not to 'float16'"):
        quantize(made("gpt2"), "float16")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_weights_that_are_not_finite_are_refused(value: float, dtype: str, tmp_path: Path) -> None:
    model = made("gpt2")
    model.blocks[1].feed_forward.down.weight.data[3, 2] = value
    save_pretrained(model, tmp_path)
    with pytest.raises(UserError, match=r"blocks\.1\.feed_forward\.down\.weight has NaN or infinite numbers"):
        from_pretrained(tmp_path, dtype=dtype)
    with pytest.raises(UserError, match=r"^blocks\.1\.feed_forward\.down\.weight has NaN or infinite numbers"):
        quantize(model, dtype)


def test_a_model_with_other_layers_is_refused_by_their_name() -> None:
    with pytest.raises(UserError, match=r"is a weight of an LSTM, which cannot be quantized"):
        quantize(RecurrentLM(RecurrentConfig(11, "lstm", num_layers=1, d_model=8)))


def test_int8_weights_become_nothing_else(tmp_path: Path) -> None:
    save_pretrained(quantize(made("gpt2")), tmp_path)
    for dtype in ("float32", "bfloat16"):
        with pytest.raises(UserError, match=f"in int8, and cannot become {dtype}: leave the dtype out"):
            from_pretrained(tmp_path, dtype=dtype)


def test_what_others_quantized_is_refused(tmp_path: Path) -> None:
    save_pretrained(made("gpt2"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for described in ({"quant_method": "gptq"}, {"quant_method": "tinyformer", "dtype": "int2"}, True, [1]):
        (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": described}))
        with pytest.raises(UserError, match="quantized weights cannot be read"):
            from_pretrained(tmp_path)


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The tensors of an int8 folder; what is left in them is written to the folder ``tmp_path / "folder"``."""
    save_pretrained(quantize(made("llama")), tmp_path / "folder")
    yield tt.load(tmp_path / "folder" / "model.safetensors")
    shutil.rmtree(tmp_path / "folder")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x.pop("lm_head.weight_scale"), r"lm_head\.weight_scale is missing, or not of shape \(11,\)"),
        (lambda x: x.update({"lm_head.weight_scale": tt.ones(10)}), r"lm_head\.weight_scale is missing, or not of shape"),
        (lambda x: x.update({"lm_head.weight": tt.ones((11, 16))}), r"lm_head\.weight has float32 values instead of int8"),
        (lambda x: x.update({"lm_head.weight": tt.zeros((3, 16), dtype="int8")}), r"lm_head\.weight has shape \(3, 16\)"),
        (lambda x: x.update({"model.norm.weight_scale": tt.ones(16)}), r"model\.norm\.weight_scale is not known"),
    ],
)
def test_a_damaged_int8_folder_is_refused(damaged: dict[str, Any], change: Any, said: str, tmp_path: Path) -> None:
    change(damaged)
    save(damaged, tmp_path / "folder" / "model.safetensors")
    with pytest.raises(UserError, match=said):
        from_pretrained(tmp_path / "folder")


def test_a_model_of_fewer_bits_is_neither_trained_nor_exported(tmp_path: Path) -> None:
    model = quantize(made("gpt2"))
    with pytest.raises(UserError, match="a model in int8 cannot be trained: train it in float32 and quantize it afterwards"):
        Trainer(model, [], TrainingConfig(), RunFolder(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="a model in int8 cannot be exported: export it in float32"):
        export_onnx(model, tmp_path / "model.onnx")


# --------------------------------------------------------------------------------------------------------- memory


@pytest.mark.skipif(sys.platform != "linux" or tt.backend_name != "numpy", reason="the peak is that of /proc")
def test_a_large_folder_is_never_in_memory_in_float32(tmp_path: Path) -> None:
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
        model = from_pretrained(sys.argv[1], dtype="int8")
        print(status("VmHWM") - before)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    in_float32 = 4e-6 * from_pretrained(tmp_path).num_parameters()
    assert float(done.stdout) < 0.7 * in_float32  # a quarter of it stays; the rest is the largest matrix, and what is imported
