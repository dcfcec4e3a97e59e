"""GGUF, llama.cpp's format: one file with the settings of a model, its tokenizer and its weights, mostly of few bits.

What stands before the weights is read here, within the file's own size and in a moment. The package gguf, whose reader makes
an object of every number, says how weights of each type are stored, and makes numbers of them.
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
_ALIGNMENT = 32  # bytes, where the file says nothing
_MOST_DIMENSIONS = 4
_TYPES = "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K_M and most others of fewer bits"

_Described = tuple[str, tuple[int, ...], int, int]  # of a tensor its name, shape, type and place


@dataclass(frozen=True)
class GGUFFile:
    """What a GGUF file holds: its ``metadata``, such as "general.architecture", and its ``tensors``, by llama.cpp's names.

    Strings, numbers and lists of strings of the metadata are Python's; lists of numbers are NumPy arrays.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, PackedArray]


def read_gguf(path: str | Path) -> GGUFFile:
    """The content of a GGUF file. Its tensors are read when they are used, and nobody may write into the file meanwhile.

    Raises UserError, which names the file, if it is missing, damaged or one of several parts, if it has weights of a type that
    is not known, and if the package gguf is not installed.
    """
    path = Path(path)
    try:
        from gguf import quants
    except ImportError:
        raise UserError(f'{path} is a GGUF file, which the package gguf reads: pip install "tinyformer[gguf]"') from None
    with whole(path):
        try:
            with open_file(path) as file:
                about = os.fstat(file.fileno())
                if not about.st_size:  # nothing cannot be mapped
                    raise struct.error
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except FileNotFoundError:
            raise UserError(f"{path} does not exist") from None
        metadata, described, start = _header(path, (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns))
        return GGUFFile(path, metadata, _tensors(path, content, quants, described, start))


@contextmanager
def whole(path: Path) -> Iterator[None]:
    """A context in which what no GGUF file can hold is a UserError that names the file. Others pass, and must name it, too."""
    try:
        yield
    except UserError:
        raise
    except struct.error:
        raise UserError(f"{path} ends too early: is it a download that was cut off?") from None
    except Exception:
        with damaged(path):
            raise


@functools.lru_cache(maxsize=1)  # to open a model asks five times for it
def _header(path: Path, stamp: tuple[int, ...]) -> tuple[Mapping[str, Any], list[_Described], int]:
    """The metadata of the file that has this ``stamp``, what is said of each tensor, and where the tensors begin. None of
    it lies in the mapping of the tensors, in which training writes."""
    with open_file(path) as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    reader = _Reader(content)
    if content[:4] != b"GGUF":
        raise ValueError("it does not begin as a GGUF file")
    reader.place = 4
    version, num_tensors, num_entries = (reader.number(kind) for kind in (4, 10, 10))
    if version not in _VERSIONS:
        raise ValueError(f"it is of version {version}, and versions {_VERSIONS[0]} and {_VERSIONS[1]} can be read")
    metadata: dict[str, Any] = {}
    for _ in range(num_entries):
        name = reader.string()
        if name in metadata:
            raise ValueError(f"it has {shortened(repr(name), 60)} twice")
        metadata[name] = reader.value(reader.number(4))
    if metadata.get("split.count", 0) not in (0, 1):
        raise UserError(f"{path} is one of several parts: join them with llama.cpp's llama-gguf-split, and pass the whole")
    described = [reader.tensor() for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"its alignment is {shortened(repr(alignment), 40)}")
    return metadata, described, -(-reader.place // alignment) * alignment


def _tensors(path: Path, content: mmap.mmap, quants: Any, described: list[_Described], start: int) -> Mapping[str, PackedArray]:
    blocks = {number: _block(path, quants, number) for number in {number for _, _, number, _ in described}}
    tensors: dict[str, PackedArray] = {}
    for name, shape, type_number, offset in described:
        if name in tensors:
            raise ValueError(f"it has the tensor {shortened(repr(name), 60)} twice")
        tensors[name] = _tensor(content, quants, shape, *blocks[type_number], start + offset)
    if sum(tensor.stored.nbytes for tensor in tensors.values()) > len(content):
        raise ValueError("its tensors lie over one another")
    return tensors


class _Reader:
    """Reads what stands before the weights, from left to right. Raises struct.error or ValueError where the file ends."""

    def __init__(self, content: mmap.mmap):
        self.content = content
        self.place = 0

    def number(self, kind: int) -> Any:
        """A number of this kind."""
        return self.numbers(kind, 1)[0].item()

    def numbers(self, kind: int, count: int) -> Array:
        """So many numbers of this kind, as an array."""
        if kind not in _NUMBERS:
            raise ValueError(f"it has a value of kind {kind:,}, which is not known")
        dtype = host.dtype(_NUMBERS[kind])
        if count * dtype.itemsize > len(self.content) - self.place:
            raise struct.error
        found = host.frombuffer(self.content, dtype, count, self.place) if count else host.empty(0, dtype)
        self.place += found.nbytes
        return found

    def string(self) -> str:
        return self.strings(1)[0]

    def strings(self, count: int) -> list[str]:
        """So many strings."""
        content, place, found = self.content, self.place, list[str]()
        for _ in range(count):
            (length,) = struct.unpack_from("<Q", content, place)
            place += 8
            if length > len(content) - place:
                raise struct.error
            found.append(content[place : place + length].decode("utf-8"))
            place += length
        self.place = place
        return found

    def value(self, kind: int) -> Any:
        """A value of the metadata."""
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.number(kind)
        inner, count = self.number(4), self.number(10)
        return self.strings(count) if inner == _STRING else self.numbers(inner, count).copy()

    def tensor(self) -> _Described:
        """What is said of a tensor: its name, shape, type and place."""
        name, dimensions = self.string(), self.number(4)
        if dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"the tensor {shortened(repr(name), 60)} has {counted(dimensions, 'dimension')}")
        shape = tuple(self.numbers(10, dimensions)[::-1].tolist())
        return name, shape, self.number(4), self.number(10)


def _tensor(
    content: mmap.mmap, quants: Any, shape: tuple[int, ...], kind: Any, block: int, size: int, start: int
) -> PackedArray:
    """The tensor that begins at ``start``, in blocks of so many numbers and bytes. Raises ValueError and struct.error where the
    file does not have it."""
    *rows, width = shape or (1,)
    if width % block:
        raise ValueError(f"a row, {width:,} wide, is no whole number of blocks of {block}")
    stored = (*rows, width // block * size)
    length = math.prod(stored)
    if start + length > len(content):
        raise struct.error
    array = host.frombuffer(content, host.uint8, length, start) if length else host.empty(0, host.uint8)
    return PackedArray(array.reshape(stored), shape, kind.name, lambda stored: quants.dequantize(stored, kind))


def _block(path: Path, quants: Any, type_number: int) -> tuple[Any, int, int]:
    """A type of weights, of how many numbers its blocks are, and of how many bytes. Raises UserError for one that is not
    known, or that holds no numbers in floating point."""
    try:
        kind = quants.GGMLQuantizationType(type_number)
        block, size = quants.GGML_QUANT_SIZES[kind]
        quants.dequantize(host.zeros((1, size), host.uint8), kind)
    except (ValueError, KeyError, NotImplementedError):
        names = [kind.name for kind in quants.GGMLQuantizationType if kind == type_number]
        what = " ".join([f"type {type_number}", *names])
        raise UserError(f"{path} has weights of {what}; {_TYPES} can be read: take a file of such a type") from None
    return kind, block, size


# ---------------------------------------------------------------------------------------- as a folder in Hugging Face's layout

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
