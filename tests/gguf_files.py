"""Write models as GGUF files, as llama.cpp's converter does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

import tinytensor as tt
from tinyformer import GPT, GPTConfig, save_pretrained
from tinytensor.device.backend import xp
from tinytensor.kernels.numpy.quantized import pack_rows

Kind = gguf.GGMLQuantizationType
_OTHER_NAMES = {
    "embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm", "o_proj": "attn_output", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm",
}  # fmt: skip
_SHAPE = {"vocab_size": 61, "block_size": 64, "num_layers": 2, "num_heads": 4, "num_key_value_heads": 2, "d_model": 32}
_SHAPE |= {"d_ff": 64, "positions": "rotary", "norm": "rms", "activation": "swiglu"}


def write_model(folder: Path, **changes: Any) -> Path:
    """Write a small Llama, or a Qwen with some ``changes`` of its settings, to a folder. All its values are random."""
    tt.seed(1)
    model = GPT(GPTConfig(**{**_SHAPE, **changes}))
    for tensor in model.state_dict().values():
        tensor.data[...] += 0.1 * tt.random.normal(tensor.shape).data
    save_pretrained(model, folder)
    return folder


def packed(values: np.ndarray, kind: Kind) -> np.ndarray:
    """A matrix in the blocks of a type. The package gguf cannot pack Q4_K and Q6_K."""
    if kind in (Kind.Q4_K, Kind.Q6_K):
        assert values.shape[1] % 256 == 0, "rows in a GGUF file are whole blocks"
        return tt.tensor(pack_rows(xp.asarray(values), kind.name)).numpy()
    return gguf.quants.quantize(values, kind)


def write_gguf(
    folder: Path,
    path: Path,
    kind: Kind = Kind.F32,
    tokenizer: Mapping[str, Any] | None = None,
    kinds: Mapping[str, Kind] | None = None,
    pack: Callable[[np.ndarray, Kind], np.ndarray] = packed,
    **said: Any,
) -> Path:
    """Write the model in a folder as a GGUF file, with its matrices in this type.

    ``kinds`` are the types of some matrices, by names such as "attn_v", and ``pack`` makes their bytes. ``tokenizer`` is the
    metadata of a tokenizer, by names without "tokenizer.". ``said`` is other metadata, by names in which ``__`` stands for a
    dot; None leaves one out.
    """
    config = json.loads((folder / "config.json").read_text())
    architecture, rotary = config["model_type"], config.get("rope_parameters") or {}
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    metadata: dict[str, Any] = {
        "context_length": config["max_position_embeddings"],
        "block_count": config["num_hidden_layers"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(rotary.get("rope_theta", config.get("rope_theta", 10000.0))),
        "rope.dimension_count": config.get("head_dim") or config["hidden_size"] // heads,
    }
    if config.get("head_dim") not in (None, config["hidden_size"] // heads):
        metadata |= dict.fromkeys(("attention.key_length", "attention.value_length"), config["head_dim"])
    metadata = {f"{architecture}.{name}": value for name, value in metadata.items()}
    metadata |= {f"tokenizer.{name}": value for name, value in (tokenizer or {}).items()}
    metadata |= {name.replace("__", "."): value for name, value in said.items()}
    writer = gguf.GGUFWriter(path, architecture)
    for name, value in metadata.items():
        if value is not None:
            _add(writer, name, value)
    if rotary.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_factors(rotary, config["head_dim"]))
    for name, tensor in tt.load(folder / "model.safetensors").items():
        values = tensor.numpy()
        if architecture == "llama" and re.search("(q|k)_proj", name):
            values = _shuffled(values, heads if "q_proj" in name else kv_heads)
        if architecture == "gemma" and name.endswith("norm.weight"):
            values = values + 1
        if values.ndim == 1:
            writer.add_tensor(gguf_name(name), values)
        else:
            own = (kinds or {}).get(gguf_name(name).split(".")[-2], kind)
            writer.add_tensor(gguf_name(name), pack(values, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: Any, name: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(name, value)
    else:
        {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)](
            name, value
        )


def gguf_name(name: str) -> str:
    """llama.cpp's name of a tensor."""
    found = re.fullmatch(r"(?:model\.layers\.(\d+)\.(?:self_attn\.|mlp\.)?)?(.*)\.(weight|bias)", name)
    assert found is not None
    layer = found[2] if found[2] in _OTHER_NAMES else found[2].removeprefix("model.")
    if (ours := re.fullmatch("(q|k|v)_proj", layer)) is not None:
        layer = f"attn_{ours[1]}"
    elif (ours := re.fullmatch("(gate|up|down)_proj", layer)) is not None:
        layer = f"ffn_{ours[1]}"
    return f"{'' if found[1] is None else f'blk.{found[1]}.'}{_OTHER_NAMES.get(layer, layer)}.{found[3]}"


def _shuffled(values: np.ndarray, heads: int) -> np.ndarray:
    """Reorder the rows of each head for llama.cpp's rotary positions of a Llama, which rotates adjacent rows."""
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _llama3_factors(rotary: Mapping[str, Any], d_head: int) -> np.ndarray:
    """By how much Llama 3.1 slows each rotation, as llama.cpp's converter counts it."""
    factors = []
    low, high, length = (rotary[name] for name in ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings"))
    for i in range(0, d_head, 2):
        wave = 2 * np.pi * rotary["rope_theta"] ** (i / d_head)
        if wave < length / high:
            factors.append(1.0)
        elif wave > length / low:
            factors.append(rotary["factor"])
        else:
            smooth = (length / wave - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rotary["factor"] + smooth))
    return np.float32(factors)


def tokenizer_metadata(content: Mapping[str, Any], pre: str = "gpt-2", **said: Any) -> dict[str, Any]:
    """The metadata that llama.cpp's converter makes of a tokenizer.json of byte-level byte pairs."""
    ids = dict(content["model"]["vocab"])
    types = dict.fromkeys(ids.values(), 1)
    for token in content["added_tokens"]:
        ids[token["content"]] = token["id"]
        types[token["id"]] = 3 if token["special"] else 4
    names = {i: name for name, i in ids.items()}
    tokens = [names.get(i, f"[PAD{i}]") for i in range(max(names) + 1)]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in content["model"]["merges"]]
    metadata = {"model": "gpt2", "pre": pre, "tokens": tokens, "merges": merges}
    metadata |= {"token_type": [types.get(i, 5) for i in range(len(tokens))], **said}
    return {f"ggml.{name}": value for name, value in metadata.items()}
