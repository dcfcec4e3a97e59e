"""Models in GGUF files: their metadata as the settings of a config.json, and their tensors by Hugging Face's names."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from tinyformer.common.errors import shortened
from tinyformer.models.positions import RotaryPositions, RotaryScaling
from tinyformer.pretrained.gguf_file import GGUFFile, read_gguf
from tinyformer.pretrained.kept import PackedArray
from tinyformer.pretrained.settings import PretrainedSettings
from tinytensor.device.backend import host

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma")  # each has Hugging Face's name, and all have the same tensors
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TENSOR = re.compile(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)")
_ROTARY_FACTORS = "rope_freqs.weight"  # by which each rotary frequency is divided
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
# The keys of an architecture that are read here, or change nothing in the models above. All others must be 0, or the value that
# llama.cpp takes where the file says nothing.
_KNOWN = {
    "context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count", "expert_used_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon",
    "rope.dimension_count", "rope.freq_base", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.finetuned",
    "rope.scaling.original_context_length", "vocab_size", "tensor_data_layout", "pooling_type",
}  # fmt: skip
_USUAL = {"rope.scale_linear": 1.0, "rope.scaling.attn_factor": 1.0, "attention.causal": True}


def gguf_settings(path: Path) -> PretrainedSettings:
    """The settings of the model in a GGUF file, as a config.json has them. Raises UserError, which names the file, as
    ``read_gguf``, and for another architecture and settings that cannot be had here."""
    file = read_gguf(path)
    said = _settings(file)
    kind = said.read(str, "general.architecture")
    if kind not in ARCHITECTURES:
        raise said.error(
            f"the architecture {shortened(repr(kind), 40)} is not known in a GGUF file; there are {', '.join(ARCHITECTURES)}. "
            "Of others take the folder in Hugging Face's layout"
        )
    names = [name.removeprefix(f"{kind}.") for name in said.values if name.startswith(f"{kind}.")]
    said.refuse(**{f"{kind}.{name}": _USUAL.get(name, 0) for name in names if name not in _KNOWN})
    said.refuse(**{"general.type": "model"})
    heads, width = said.read(int, f"{kind}.attention.head_count"), said.read(int, f"{kind}.embedding_length")
    d_head = said.read(int, f"{kind}.attention.key_length", width // max(heads, 1))
    said.refuse(**{f"{kind}.{name}": d_head for name in ("attention.value_length", "rope.dimension_count")})
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise said.error("it has no matrix token_embd.weight: is it the file of a language model?")
    values = {
        "model_type": kind,
        "vocab_size": embedding.shape[0],
        "max_position_embeddings": said.read(int, f"{kind}.context_length"),
        "num_hidden_layers": said.read(int, f"{kind}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": said.read(int, f"{kind}.attention.head_count_kv", heads),
        "head_dim": d_head,
        "hidden_size": width,
        "intermediate_size": said.read(int, f"{kind}.feed_forward_length"),
        "rms_norm_eps": said.read(float, f"{kind}.attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "rope_parameters": _rotary(file, said, kind, d_head),
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": [file.metadata[name] for name in _ENDS if name in file.metadata],
    }
    return PretrainedSettings(path, values)


def _settings(file: GGUFFile) -> PretrainedSettings:
    """The metadata of a file. A list with a number for each block is that number where all are equal."""
    arrays = {name: value for name, value in file.metadata.items() if isinstance(value, host.ndarray)}
    numbers = {name: array.tolist() for name, array in arrays.items() if not name.startswith("tokenizer.")}
    equal = {name: values[0] for name, values in numbers.items() if len(set(values)) == 1}
    return PretrainedSettings(file.path, {**file.metadata, **numbers, **equal})


_ENDS = tuple(f"tokenizer.ggml.{end}_token_id" for end in ("eos", "eot", "eom"))  # of a text, of a turn and of a message


def _rotary(file: GGUFFile, said: PretrainedSettings, kind: str, d_head: int) -> dict[str, Any]:
    """The base and the scaling of rotary positions, as config.json has them."""
    base = said.read(float, f"{kind}.rope.freq_base", 10000.0)
    scaling = said.read(str, f"{kind}.rope.scaling.type", "none")
    if scaling != "none":
        factor = said.read(float, f"{kind}.rope.scaling.factor", 1.0)
        return {"rope_type": scaling, "rope_theta": base, "factor": factor}
    if _ROTARY_FACTORS not in file.tensors:
        return {"rope_type": "default", "rope_theta": base}
    factors = file.tensors[_ROTARY_FACTORS].numbers()
    if 2 * factors.size == d_head and base > 0 and (factors >= 1).all() and host.isfinite(factors).all():
        largest = float(factors.max())
        plain = RotaryPositions(d_head, base).frequencies
        if host.allclose(plain / RotaryScaling("llama3", largest)(plain), factors, rtol=1e-4):
            return {"rope_type": "llama3", "rope_theta": base, "factor": largest, **_LLAMA3}
    raise said.error(f"the rotary scaling of {_ROTARY_FACTORS} is not that of Llama 3.1, the only one that is known")


def gguf_weights(path: Path) -> dict[str, PackedArray]:
    """The tensors of the model in a GGUF file, by Hugging Face's names. Those that are not known keep theirs."""
    file = read_gguf(path)
    said = _settings(file)
    kind = said.read(str, "general.architecture")
    heads = {"attn_q": said.read(int, f"{kind}.attention.head_count")}
    heads["attn_k"] = said.read(int, f"{kind}.attention.head_count_kv", heads["attn_q"])
    found = {}
    for name, array in file.tensors.items():
        parts = _TENSOR.fullmatch(name)
        if parts is not None and parts[2] in NAMES:
            layer = "" if parts[1] is None else f"model.layers.{parts[1]}."
            is_shuffled = kind == "llama" and parts[2] in heads
            found[f"{layer}{NAMES[parts[2]]}.{parts[3]}"] = replace(array, heads=heads[parts[2]]) if is_shuffled else array
        elif name != _ROTARY_FACTORS:
            found[name] = array
    return found
