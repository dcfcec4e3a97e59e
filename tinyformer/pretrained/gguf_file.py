"""GGUF, llama.cpp's format: one file with the settings of a model, its tokenizer and its weights, mostly of few bits.

What stands before the weights is read here, within the file's own size and in a moment. The package gguf, whose reader makes
an object of every number, says how weights of each type are stored, and makes numbers of them.
"""

from __future__ import annotations

import functools
import math
import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyformer.common.errors import UserError, shortened
from tinyformer.common.files import damaged, open_file
from tinyformer.pretrained.kept import PackedArray
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
