"""GGUF, the llama.cpp format: a single file with a model's settings, tokenizer and (mostly quantized) weights.

The header is parsed here, quickly and within the file's size. The gguf package's reader creates an object per value. The
package dequantizes the weights.
"""

from __future__ import annotations

import functools
import math
import mmap
import os
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tinyformer.common.errors import UserError, shortened
from tinyformer.common.files import damaged, open_file
from tinyformer.models.positions import RotaryPositions, RotaryScaling
from tinyformer.pretrained.families import PretrainedSettings
from tinyformer.pretrained.weights import PackedArray
from tinytensor.common.wording import counted
from tinytensor.device.backend import Array, host

_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_NUMBERS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}
_ALIGNMENT = 32  # default, in bytes
_MOST_DIMENSIONS = 4
_TYPES = "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K_M and most others of fewer bits"

_Described = tuple[str, tuple[int, ...], int, int]  # name, shape, type and offset of a tensor


@dataclass(frozen=True)
class GGUFFile:
    """The content of a GGUF file: its ``metadata``, such as "general.architecture", and its ``tensors``, by llama.cpp names.

    In the metadata, lists of numbers are NumPy arrays. All other values are Python objects.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, PackedArray]


def read_gguf(path: str | Path) -> GGUFFile:
    """Read a GGUF file. Tensors are read on use, so the file must not change in the meantime.

    Raises UserError, with the file name, if it is missing, damaged, split into several files or has an unknown weight type, or
    if the gguf package is not installed.
    """
    path = Path(path)
    try:
        from gguf import quants
    except ImportError:
        raise UserError(f'{path} is a GGUF file, which needs the package gguf: pip install "tinyformer[gguf]"') from None
    with plain_errors(path):
        try:
            with open_file(path) as file:
                about = os.fstat(file.fileno())
                if not about.st_size:  # an empty file cannot be mapped
                    raise struct.error
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except FileNotFoundError:
            raise UserError(f"file not found: {path}") from None
        metadata, described, start = _header(path, (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns))
        return GGUFFile(path, metadata, _tensors(path, content, quants, described, start))


@contextmanager
def plain_errors(path: Path) -> Iterator[None]:
    """Turn errors from damaged content into a UserError with the file name. UserErrors pass unchanged and must include it."""
    try:
        yield
    except UserError:
        raise
    except struct.error:
        raise UserError(f"{path} ends too early: is it a partial download?") from None
    except Exception:
        with damaged(path):
            raise


@functools.lru_cache(maxsize=1)  # opening a model needs it five times
def _header(path: Path, stamp: tuple[int, ...]) -> tuple[Mapping[str, Any], list[_Described], int]:
    """Return the metadata of the file with this ``stamp``, its tensor descriptions, and the tensors' start offset. The metadata
    is not part of the tensor mapping, which training may write to."""
    with open_file(path) as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    reader = _Reader(content)
    if content[:4] != b"GGUF":
        raise ValueError("it does not start with b'GGUF'")
    reader.offset = 4
    version, num_tensors, num_entries = (reader.number(type_number) for type_number in (4, 10, 10))
    if version not in _VERSIONS:
        raise ValueError(f"its version must be {_VERSIONS[0]} or {_VERSIONS[1]}, got {version}")
    metadata: dict[str, Any] = {}
    for _ in range(num_entries):
        name = reader.string()
        if name in metadata:
            raise ValueError(f"it has {shortened(repr(name), 60)} twice")
        metadata[name] = reader.value(reader.number(4))
    if metadata.get("split.count", 0) not in (0, 1):
        raise UserError(f"{path} is one of several parts: merge them with llama.cpp's llama-gguf-split")
    described = [reader.tensor() for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"its alignment is {shortened(repr(alignment), 40)}")
    return metadata, described, -(-reader.offset // alignment) * alignment


def _tensors(path: Path, content: mmap.mmap, quants: Any, described: list[_Described], start: int) -> Mapping[str, PackedArray]:
    blocks = {number: _block(path, quants, number) for number in {number for _, _, number, _ in described}}
    tensors: dict[str, PackedArray] = {}
    for name, shape, type_number, offset in described:
        if name in tensors:
            raise ValueError(f"it has the tensor {shortened(repr(name), 60)} twice")
        tensors[name] = _tensor(content, quants, shape, *blocks[type_number], start + offset)
    if sum(tensor.stored.nbytes for tensor in tensors.values()) > len(content):
        raise ValueError("its tensors overlap")
    return tensors


class _Reader:
    """Parses the header from left to right. Raises struct.error or ValueError at the end of the file."""

    def __init__(self, content: mmap.mmap):
        self.content = content
        self.offset = 0

    def number(self, type_number: int) -> Any:
        """Read a number of this type."""
        return self.numbers(type_number, 1)[0].item()

    def numbers(self, type_number: int, count: int) -> Array:
        """Read ``count`` numbers of this type as an array."""
        if type_number not in _NUMBERS:
            raise ValueError(f"it has a value of unknown type {type_number:,}")
        dtype = host.dtype(_NUMBERS[type_number])
        if count * dtype.itemsize > len(self.content) - self.offset:
            raise struct.error
        numbers = host.frombuffer(self.content, dtype, count, self.offset) if count else host.empty(0, dtype)
        self.offset += numbers.nbytes
        return numbers

    def string(self) -> str:
        return self.strings(1)[0]

    def strings(self, count: int) -> list[str]:
        """Read ``count`` strings."""
        content, offset, strings = self.content, self.offset, list[str]()
        for _ in range(count):
            (length,) = struct.unpack_from("<Q", content, offset)
            offset += 8
            if length > len(content) - offset:
                raise struct.error
            strings.append(content[offset : offset + length].decode("utf-8"))
            offset += length
        self.offset = offset
        return strings

    def value(self, type_number: int) -> Any:
        """Read a metadata value."""
        if type_number == _STRING:
            return self.string()
        if type_number != _ARRAY:
            return self.number(type_number)
        inner, count = self.number(4), self.number(10)
        return self.strings(count) if inner == _STRING else self.numbers(inner, count).copy()

    def tensor(self) -> _Described:
        """Read a tensor's name, shape, type and offset."""
        name, dimensions = self.string(), self.number(4)
        if dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"the tensor {shortened(repr(name), 60)} has {counted(dimensions, 'dimension')}")
        shape = tuple(self.numbers(10, dimensions)[::-1].tolist())
        return name, shape, self.number(4), self.number(10)


def _tensor(
    content: mmap.mmap, quants: Any, shape: tuple[int, ...], tensor_type: Any, block: int, size: int, start: int
) -> PackedArray:
    """Return the tensor at ``start``, in blocks of ``block`` values and ``size`` bytes. Raises ValueError or struct.error if it
    exceeds the file."""
    *rows, width = shape or (1,)
    if width % block:
        raise ValueError(f"its rows, {width:,} wide, do not divide into blocks of {block}")
    stored = (*rows, width // block * size)
    length = math.prod(stored)
    if start + length > len(content):
        raise struct.error
    array = host.frombuffer(content, host.uint8, length, start) if length else host.empty(0, host.uint8)
    return PackedArray(array.reshape(stored), shape, tensor_type.name, lambda stored: quants.dequantize(stored, tensor_type))


def _block(path: Path, quants: Any, type_number: int) -> tuple[Any, int, int]:
    """Return a weight type and the number of values and bytes per block. Raises UserError for an unknown type or a type without
    floating-point values."""
    try:
        tensor_type = quants.GGMLQuantizationType(type_number)
        block, size = quants.GGML_QUANT_SIZES[tensor_type]
        quants.dequantize(host.zeros((1, size), host.uint8), tensor_type)
    except (ValueError, KeyError, NotImplementedError):
        names = [tensor_type.name for tensor_type in quants.GGMLQuantizationType if tensor_type == type_number]
        shown = " ".join([f"type {type_number}", *names])
        raise UserError(f"{path} has weights of {shown}, which is not supported: choose {_TYPES}") from None
    return tensor_type, block, size


# ------------------------------------------------------------------------------------------- conversion to Hugging Face format

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma")  # Hugging Face names; all have the same tensors
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
_ROTARY_FACTORS = "rope_freqs.weight"  # divisors of the rotary frequencies
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
# Architecture keys that are read here or do not affect these models. Others must be 0 or llama.cpp's default.
_KNOWN = {
    "context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count", "expert_used_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon",
    "rope.dimension_count", "rope.freq_base", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.finetuned",
    "rope.scaling.original_context_length", "vocab_size", "tensor_data_layout", "pooling_type",
}  # fmt: skip
_USUAL = {"rope.scale_linear": 1.0, "rope.scaling.attn_factor": 1.0, "attention.causal": True}


def gguf_settings(path: Path) -> PretrainedSettings:
    """Return the settings of a GGUF model in config.json form. Raises UserError, with the file name, as ``read_gguf`` does, and
    for an unsupported architecture or setting."""
    file = read_gguf(path)
    settings = _settings(file)
    architecture = settings.read(str, "general.architecture")
    if architecture not in ARCHITECTURES:
        raise settings.error(
            f"unknown GGUF architecture {shortened(repr(architecture), 40)}: only {', '.join(ARCHITECTURES)} can be loaded. "
            "For others, pass a folder in Hugging Face's layout"
        )
    names = [name.removeprefix(f"{architecture}.") for name in settings.values if name.startswith(f"{architecture}.")]
    settings.refuse(**{f"{architecture}.{name}": _USUAL.get(name, 0) for name in names if name not in _KNOWN})
    settings.refuse(**{"general.type": "model"})
    heads, width = (
        settings.read(int, f"{architecture}.attention.head_count"),
        settings.read(int, f"{architecture}.embedding_length"),
    )
    d_head = settings.read(int, f"{architecture}.attention.key_length", width // max(heads, 1))
    settings.refuse(**{f"{architecture}.{name}": d_head for name in ("attention.value_length", "rope.dimension_count")})
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise settings.error("token_embd.weight is missing: pass the GGUF file of a language model")
    values = {
        "model_type": architecture,
        "vocab_size": embedding.shape[0],
        "max_position_embeddings": settings.read(int, f"{architecture}.context_length"),
        "num_hidden_layers": settings.read(int, f"{architecture}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": settings.read(int, f"{architecture}.attention.head_count_kv", heads),
        "head_dim": d_head,
        "hidden_size": width,
        "intermediate_size": settings.read(int, f"{architecture}.feed_forward_length"),
        "rms_norm_eps": settings.read(float, f"{architecture}.attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "rope_parameters": _rotary(file, settings, architecture, d_head),
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": [file.metadata[name] for name in _ENDS if name in file.metadata],
    }
    return PretrainedSettings(path, values)


def _settings(file: GGUFFile) -> PretrainedSettings:
    """Return a file's metadata. A list with the same number for every block becomes that number."""
    arrays = {name: value for name, value in file.metadata.items() if isinstance(value, host.ndarray)}
    numbers = {name: array.tolist() for name, array in arrays.items() if not name.startswith("tokenizer.")}
    equal = {name: values[0] for name, values in numbers.items() if len(set(values)) == 1}
    return PretrainedSettings(file.path, {**file.metadata, **numbers, **equal})


_ENDS = tuple(f"tokenizer.ggml.{end}_token_id" for end in ("eos", "eot", "eom"))  # end of sequence, turn and message


def _rotary(file: GGUFFile, settings: PretrainedSettings, architecture: str, d_head: int) -> dict[str, Any]:
    """Return the rotary base and scaling in config.json form."""
    base = settings.read(float, f"{architecture}.rope.freq_base", 10000.0)
    scaling = settings.read(str, f"{architecture}.rope.scaling.type", "none")
    if scaling != "none":
        factor = settings.read(float, f"{architecture}.rope.scaling.factor", 1.0)
        return {"rope_type": scaling, "rope_theta": base, "factor": factor}
    if _ROTARY_FACTORS not in file.tensors:
        return {"rope_type": "default", "rope_theta": base}
    factors = file.tensors[_ROTARY_FACTORS].numbers()
    if 2 * factors.size == d_head and base > 0 and (factors >= 1).all() and host.isfinite(factors).all():
        largest = float(factors.max())
        plain = RotaryPositions(d_head, base).frequencies
        if host.allclose(plain / RotaryScaling("llama3", largest)(plain), factors, rtol=1e-4):
            return {"rope_type": "llama3", "rope_theta": base, "factor": largest, **_LLAMA3}
    raise settings.error(f"{_ROTARY_FACTORS} is not supported: only the rotary scaling of Llama 3.1 can be loaded")


def gguf_weights(path: Path) -> dict[str, PackedArray]:
    """Return the tensors of a GGUF model by Hugging Face names. Unknown tensors keep their names."""
    file = read_gguf(path)
    settings = _settings(file)
    architecture = settings.read(str, "general.architecture")
    heads = {"attn_q": settings.read(int, f"{architecture}.attention.head_count")}
    heads["attn_k"] = settings.read(int, f"{architecture}.attention.head_count_kv", heads["attn_q"])
    tensors = {}
    for name, array in file.tensors.items():
        parts = _TENSOR.fullmatch(name)
        if parts is not None and parts[2] in NAMES:
            layer = "" if parts[1] is None else f"model.layers.{parts[1]}."
            is_shuffled = architecture == "llama" and parts[2] in heads
            tensors[f"{layer}{NAMES[parts[2]]}.{parts[3]}"] = replace(array, heads=heads[parts[2]]) if is_shuffled else array
        elif name != _ROTARY_FACTORS:
            tensors[name] = array
    return tensors
