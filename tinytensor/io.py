"""Tensors in files of the safetensors format, which is simple, fast, safe to open, and readable in every framework.

Files that are written here also contain the SHA-256 checksum of their content, so that damage is found.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from tinytensor.autograd.tensor import Tensor
from tinytensor.common.arguments import checked
from tinytensor.common.wording import a_or_an, counted
from tinytensor.device.backend import Array, bfloat16, from_numpy, host
from tinytensor.device.disk import FileError, PathLike, atomic_write, open_regular
from tinytensor.device.memory import host_memory
from tinytensor.kernels.numpy.quantized import from_bfloat16

# ------------------------------------------------------------------------------------------------------------ checksum

# The SHA-256 of the whole file, computed with zeros in place of the checksum's digits. It is part of the metadata in the file's
# header, which consists of eight bytes with the header's length, and JSON.
_CHECKSUM = "tinytensor.sha256"
_NO_DIGITS = b"0" * 64
_DIGITS = re.compile(rb'"tinytensor\.sha256":"([0-9a-f]{64})"')
_LONGEST_HEADER = 100_000_000  # the format's own limit
_PIECE = 1 << 20  # bytes that are hashed at a time


def _read_header(path: PathLike, file: BinaryIO) -> bytes:
    """The file's header, with the eight bytes of its length."""
    beginning = file.read(8)
    length = int.from_bytes(beginning, "little")
    size = os.fstat(file.fileno()).st_size
    if size > (host_memory() or size):
        raise FileError(f"{path} does not fit in memory: it has {counted(size, 'byte')}")
    if size < 8 or length > min(size - 8, _LONGEST_HEADER):
        raise _not_whole(path, f"a header of {counted(length, 'byte')} cannot be in a file of {size:,}")
    return beginning + file.read(length)


def _verify(path: PathLike, header: bytes, file: BinaryIO) -> None:
    """Raise FileError unless the checksum in the header is right for the header and the rest of the file."""
    found = _DIGITS.search(header)
    if found:
        content = hashlib.sha256(header[: found.start(1)] + _NO_DIGITS + header[found.end(1) :])
        while piece := file.read(_PIECE):
            content.update(piece)
    if not found or content.hexdigest().encode() != found[1]:
        raise FileError(f"{path} is damaged: its checksum is not that of its content")


def _not_whole(path: PathLike, reason: object) -> FileError:
    return FileError(f"{path} is not a whole safetensors file (damaged, cut short, or another format): {_short(str(reason))}")


def _short(text: str) -> str:
    """Text from a file, shortened and escaped for a message of one line."""
    text = text.encode("unicode_escape", "backslashreplace").decode("ascii")
    return text if len(text) <= 100 else text[:97] + "..."


# --------------------------------------------------------------------------------------------------------------- writing


@checked
def save(tensors: Mapping[str, Tensor], path: PathLike, metadata: Mapping[str, str] | None = None) -> None:
    """Write named tensors, such as a ``state_dict()``, and optional ``metadata`` (text by name) to a safetensors file.

    An existing file is not touched until the new one is complete. Raises OSError if the file cannot be written, TypeError
    unless the tensors are tensors by name, of a dtype that files can have, and ValueError for text that no file can have.

    >>> tt.save({"weight": tt.eye(2)}, "weights.safetensors", {"step": "3"})
    >>> tt.load("weights.safetensors")
    {'weight': tensor([[1., 0.],
            [0., 1.]])}
    """
    from safetensors.numpy import save as as_bytes

    _check(tensors, metadata or {})
    arrays = {name: _storable(name, tensor.numpy()) for name, tensor in tensors.items()}
    content = memoryview(as_bytes(arrays))
    end = 8 + int.from_bytes(content[:8], "little")
    described, values = json.loads(bytes(content[8:end])), content[end:]
    # The metadata are added here, because the safetensors library writes them in a different order each time.
    header = _packed({"__metadata__": {_CHECKSUM: _NO_DIGITS.decode(), **(metadata or {})}, **described})
    checksum = hashlib.sha256(header)
    checksum.update(values)
    with atomic_write(path) as file:
        file.write(header.replace(_NO_DIGITS, checksum.hexdigest().encode(), 1))
        file.write(values)


def _packed(described: Mapping[str, Any]) -> bytes:
    """A header with the eight bytes of its length, padded to a multiple of 8 bytes as the format requires."""
    text = json.dumps(described, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    if len(text) > _LONGEST_HEADER:
        raise ValueError(
            f"names and metadata of {counted(len(text), 'byte')} are too long: a file can have {_LONGEST_HEADER:,}"
        )
    return len(text).to_bytes(8, "little") + text


def _storable(name: str, values: Array) -> Array:
    """The values, contiguous and in this processor's order of bytes. Raises TypeError for a dtype that files cannot have."""
    dtype = values.dtype.newbyteorder("=")
    if dtype.name != "bfloat16" and dtype not in map(host.dtype, _NUMPYS.values()):
        raise TypeError(f"save: {name!r} is of {values.dtype}, which a file cannot have: convert it with .astype(...)")
    if dtype.kind == "b":
        values = values.view(host.uint8) != 0  # a byte may be neither 0 nor 1 in memory that is not NumPy's
    return host.ascontiguousarray(values, dtype).reshape(values.shape)


def _check(tensors: Any, metadata: Any) -> None:
    if not isinstance(tensors, Mapping):
        raise TypeError(f"save takes tensors by name, such as model.state_dict(), not {a_or_an(type(tensors).__name__)}")
    for name, tensor in tensors.items():
        if not isinstance(name, str) or name == "__metadata__":
            raise TypeError(f"save takes tensors by name, and {name!r} cannot be a name")
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"save takes tensors, but {name!r} is {a_or_an(type(tensor).__name__)}: make it one with tt.tensor(...)"
            )
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata must be text by name, not {a_or_an(type(metadata).__name__)}")
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"metadata must be text by name, but {key!r} is {value!r}")
    if _CHECKSUM in metadata:
        raise ValueError(f"the metadata cannot have {_CHECKSUM!r}, which is the checksum's own name: leave it out")
    for text in (*tensors, *metadata, *metadata.values()):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(
                f"save: {text[:40]!r} has half of a surrogate pair, which no file can have: leave it out"
            ) from None


# --------------------------------------------------------------------------------------------------------------- reading


@checked
def load(path: PathLike) -> dict[str, Tensor]:
    """The tensors of a safetensors file, by name.

    Raises FileError if the file is missing, damaged or of another kind, and if a tensor in it has a dtype that tensors here
    cannot have, such as float8. On NumPy, which has no bfloat16, such values come back as float32, without any loss.
    """
    return load_with_metadata(path)[0]


@checked
def load_with_metadata(path: PathLike) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a safetensors file, by name, and its metadata. Raises FileError as ``load`` does."""
    with _readable(path) as file:
        return _load(path, file)


@checked
def read_metadata(path: PathLike) -> dict[str, str]:
    """The metadata of a safetensors file, of which no tensor is read. Raises FileError as ``load`` does."""
    with _readable(path) as file:
        metadata = _described(path, _read_header(path, file)[8:])[1]
    metadata.pop(_CHECKSUM, None)
    return metadata


@checked
def load_mapped(path: PathLike) -> dict[str, Array]:
    """The tensors of a safetensors file, by name, as arrays on the CPU whose values are read from the file when they are used.

    So opening a large file takes no time, and its values are not held twice. What is written to an array changes only this
    process's memory, never the file. bfloat16 values are arrays of ``HALVES``, as NumPy has no such numbers: ``as_numbers``
    makes float32 of them. A file with a checksum, as ``save`` writes it, is read once to compare it. Nobody may write into the
    file meanwhile; it may be replaced by another. Raises FileError as ``load``.
    """
    from safetensors import SafetensorError, safe_open

    with _readable(path) as file:
        header = _read_header(path, file)
        dtypes, metadata = _described(path, header[8:])
        try:
            with safe_open(path, framework="numpy"):  # which checks that shapes and places fit together
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (SafetensorError, OverflowError) as error:
            raise _not_whole(path, error) from None
        if _CHECKSUM in metadata:
            _verify(path, header, file)
        about = json.loads(header[8:])
        return {name: _mapped(content, len(header), about[name]) for name in dtypes}


def _mapped(content: mmap.mmap, start: int, about: Mapping[str, Any]) -> Array:
    """The array that a header describes, in a file whose values begin at ``start``."""
    dtype = HALVES if about["dtype"] == "BF16" else host.dtype(_NUMPYS[about["dtype"]])
    first, last = about["data_offsets"]
    flat = host.frombuffer(content, dtype, (last - first) // dtype.itemsize, start + first)
    return flat.reshape(about["shape"])


HALVES = host.dtype([("bfloat16", "<u2")])  # of arrays with the upper halves of float32 numbers


def as_numbers(array: Array) -> Array:
    """An array of ``load_mapped`` as numbers: float32 in place of ``HALVES``."""
    return from_bfloat16(array["bfloat16"]) if array.dtype == HALVES else array


def give_back(array: Array) -> None:
    """Give the system back the memory of an array of ``load_mapped`` that nobody has written to. If its values are used again,
    they are read from the file again."""
    content = array
    while isinstance(content, host.ndarray):
        content = content.base
    content = content.obj if isinstance(content, memoryview) else content
    if not isinstance(content, mmap.mmap) or not hasattr(content, "madvise"):  # numbers of ``as_numbers``; Windows
        return
    start = array.ctypes.data - host.frombuffer(content, host.uint8).ctypes.data
    first, last = -(-start // mmap.PAGESIZE), (start + array.nbytes) // mmap.PAGESIZE  # whole pages only
    if last > first:
        content.madvise(mmap.MADV_DONTNEED, first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE)


@contextlib.contextmanager
def _readable(path: PathLike) -> Iterator[BinaryIO]:
    """A context that gives the opened file. Every failure to read it is a FileError."""
    try:
        with open_regular(path, "a safetensors file") as file:
            yield file
    except FileError:
        raise
    except FileNotFoundError:
        raise FileError(f"{path} does not exist") from None
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from None
    except MemoryError:
        raise FileError(f"{path} does not fit in memory: it has {counted(os.path.getsize(path), 'byte')}") from None


# The dtypes that tensors here can have, as headers name them, and their NumPy names.
_NUMPYS = {f"{kind}{8 * size}": f"<{kind.lower()}{size}" for kind in "FIU" for size in (8, 4, 2, 1) if (kind, size) != ("F", 1)}
_NUMPYS["BOOL"] = "?"
_DTYPES = (*_NUMPYS, "BF16")
_MOST_TENSORS = 50_000  # each takes time, even an empty one; published files have some thousand
_MOST_AXES = 64  # that NumPy's arrays can have


def _described(path: PathLike, header: bytes) -> tuple[dict[str, str], dict[str, str]]:
    """The dtype of each tensor, as the header names it, and the metadata."""
    try:
        described = json.loads(header, object_pairs_hook=_without_repeats)
        metadata = described.pop("__metadata__", {})
        dtypes = {name: about["dtype"] for name, about in described.items()}
        axes = {name: len(about["shape"]) for name, about in described.items()}
        for text in (*dtypes, *dtypes.values(), *metadata, *metadata.values()):
            text.encode("utf-8")  # fails for half of a surrogate pair, which JSON may contain and nobody could print
    except (ValueError, RecursionError, AttributeError, TypeError, KeyError) as error:
        raise _not_whole(path, f"its header does not say what its tensors are ({type(error).__name__})") from None
    if len(dtypes) > _MOST_TENSORS:
        raise FileError(f"{path} has {len(dtypes):,} tensors; a file can have {_MOST_TENSORS:,}")
    for name, dtype in dtypes.items():
        if dtype not in _DTYPES:
            raise FileError(
                f"{path}: the tensor {_short(name)!r} has the dtype {_short(dtype)}, which tensors here cannot have: convert "
                "it to float32, for example, with the program that wrote the file"
            )
        if axes[name] > _MOST_AXES:
            raise _not_whole(path, f"{_short(name)!r} has {axes[name]} axes, and tensors have at most {_MOST_AXES}")
    return dtypes, metadata


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _load(path: PathLike, file: BinaryIO) -> tuple[dict[str, Tensor], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    header = _read_header(path, file)
    dtypes, metadata = _described(path, header[8:])
    try:
        with safe_open(path, framework="numpy") as tensors:
            if metadata.pop(_CHECKSUM, None) is not None:
                _verify(path, header, file)
            others = [name for name, dtype in dtypes.items() if dtype != "BF16"]
            found = {name: Tensor._wrap(from_numpy(_checked_booleans(tensors.get_tensor(name)))) for name in others}
    except (SafetensorError, ValueError, OverflowError) as error:
        raise error if isinstance(error, FileError) else _not_whole(path, error) from None
    if "BF16" in dtypes.values():
        found |= _load_bfloat16(path)
    return found, metadata


def _checked_booleans(values: Any) -> Any:
    """The values. Raises ValueError for booleans whose byte is neither 0 nor 1."""
    if values.dtype == bool and (values.view(host.uint8) > 1).any():
        raise ValueError("it contains a boolean that is neither true nor false")
    return values


def _load_bfloat16(path: PathLike) -> dict[str, Tensor]:
    """The file's bfloat16 tensors. A bfloat16 number is the upper half of a float32."""
    from safetensors import deserialize

    found = {}
    with open_regular(path, "a safetensors file") as file:
        content = file.read()
    for name, entry in deserialize(content):  # type: ignore[no-untyped-call]
        if entry["dtype"] == "BF16":
            halves = host.frombuffer(entry["data"], dtype="<u2")
            values = from_bfloat16(halves) if bfloat16 is None else halves.view(bfloat16)
            found[name] = Tensor._wrap(from_numpy(values.reshape(entry["shape"])))
    return found
