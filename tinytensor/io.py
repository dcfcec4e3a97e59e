"""Save and load tensors in the safetensors format, which is simple, fast, safe to open and supported by every framework.

Saved files also contain a SHA-256 checksum that detects corruption.
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

# The SHA-256 of the file, computed with zeros in place of its digits. It is part of the metadata in the header, which consists
# of eight bytes (its length) and JSON.
_CHECKSUM = "tinytensor.sha256"
_NO_DIGITS = b"0" * 64
_DIGITS = re.compile(rb'"tinytensor\.sha256":"([0-9a-f]{64})"')
_LONGEST_HEADER = 100_000_000  # the format's limit
_PIECE = 1 << 20  # bytes hashed at a time


def _read_header(path: PathLike, file: BinaryIO) -> bytes:
    """Read the header of the file, including the eight bytes of its length."""
    beginning = file.read(8)
    length = int.from_bytes(beginning, "little")
    size = os.fstat(file.fileno()).st_size
    if size > (host_memory() or size):
        raise FileError(f"{path} does not fit in memory: it has {counted(size, 'byte')}")
    if size < 8 or length > min(size - 8, _LONGEST_HEADER):
        raise _incomplete(path, f"a header of {counted(length, 'byte')} cannot be in a file of {size:,}")
    return beginning + file.read(length)


def _verify(path: PathLike, header: bytes, file: BinaryIO) -> None:
    """Raise FileError unless the checksum in the header matches the file."""
    match = _DIGITS.search(header)
    if match:
        content = hashlib.sha256(header[: match.start(1)] + _NO_DIGITS + header[match.end(1) :])
        while piece := file.read(_PIECE):
            content.update(piece)
    if not match or content.hexdigest().encode() != match[1]:
        raise FileError(f"{path} is damaged: its checksum is not that of its content")


def _incomplete(path: PathLike, reason: object) -> FileError:
    return FileError(f"{path} is not a whole safetensors file (damaged, cut short, or another format): {_short(str(reason))}")


def _short(text: str) -> str:
    """Shorten and escape a string from a file so that it fits in a one-line message."""
    text = text.encode("unicode_escape", "backslashreplace").decode("ascii")
    return text if len(text) <= 100 else text[:97] + "..."


# --------------------------------------------------------------------------------------------------------------- writing


@checked
def save(tensors: Mapping[str, Tensor], path: PathLike, metadata: Mapping[str, str] | None = None) -> None:
    """Save named tensors, such as a ``state_dict()``, and optional ``metadata`` (a dict of strings) to a safetensors file.

    An existing file is replaced only when the new one is complete. Raises OSError if the file cannot be written, TypeError
    unless ``tensors`` maps names to tensors of a supported dtype, and ValueError for strings that UTF-8 cannot encode.

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
    # The safetensors library writes metadata in a different order each time, so it is added here.
    header = _packed({"__metadata__": {_CHECKSUM: _NO_DIGITS.decode(), **(metadata or {})}, **described})
    checksum = hashlib.sha256(header)
    checksum.update(values)
    with atomic_write(path) as file:
        file.write(header.replace(_NO_DIGITS, checksum.hexdigest().encode(), 1))
        file.write(values)


def _packed(described: Mapping[str, Any]) -> bytes:
    """Return the header, preceded by its 8-byte length and padded to a multiple of 8 bytes as the format requires."""
    text = json.dumps(described, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    if len(text) > _LONGEST_HEADER:
        raise ValueError(
            f"names and metadata of {counted(len(text), 'byte')} are too long: a file can have {_LONGEST_HEADER:,}"
        )
    return len(text).to_bytes(8, "little") + text


def _storable(name: str, values: Array) -> Array:
    """Return the values, contiguous and in native byte order. Raises TypeError for a dtype that the format does not support."""
    dtype = values.dtype.newbyteorder("=")
    if dtype.name != "bfloat16" and dtype not in map(host.dtype, _NUMPYS.values()):
        raise TypeError(f"save: {name!r} is of {values.dtype}, which a file cannot have: convert it with .astype(...)")
    if dtype.kind == "b":
        values = values.view(host.uint8) != 0  # in foreign memory, a boolean byte may be neither 0 nor 1
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
        raise TypeError(f"metadata must be text by name, got {a_or_an(type(metadata).__name__)}")
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
    """Load a safetensors file and return its tensors by name.

    Raises FileError if the file is missing, damaged or of another type, or contains an unsupported dtype such as float8. NumPy
    has no bfloat16, so those values are converted to float32 without loss.
    """
    return load_with_metadata(path)[0]


@checked
def load_with_metadata(path: PathLike) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Load a safetensors file and return its tensors by name, and its metadata. Raises FileError like ``load``."""
    with _readable(path) as file:
        return _load(path, file)


@checked
def read_metadata(path: PathLike) -> dict[str, str]:
    """Return the metadata of a safetensors file without loading the tensors. Raises FileError like ``load``."""
    with _readable(path) as file:
        metadata = _described(path, _read_header(path, file)[8:])[1]
    metadata.pop(_CHECKSUM, None)
    return metadata


@checked
def load_mapped(path: PathLike) -> dict[str, Array]:
    """Memory-map a safetensors file and return its tensors by name, as arrays on the CPU.

    Values are read on first use, so opening a large file takes no time. Writes to an array change only this process's memory.
    bfloat16 values are arrays of ``HALVES``; convert them to float32 with ``as_numbers``. A file with a checksum, as ``save``
    writes it, is read once to verify it. You may replace the file while it is mapped, but not modify it in place. Raises
    FileError like ``load``.
    """
    from safetensors import SafetensorError, safe_open

    with _readable(path) as file:
        header = _read_header(path, file)
        dtypes, metadata = _described(path, header[8:])
        try:
            with safe_open(path, framework="numpy"):  # checks shapes and offsets
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (SafetensorError, OverflowError) as error:
            raise _incomplete(path, error) from None
        if _CHECKSUM in metadata:
            _verify(path, header, file)
        about = json.loads(header[8:])
        return {name: _mapped(content, len(header), about[name]) for name in dtypes}


def _mapped(content: mmap.mmap, start: int, about: Mapping[str, Any]) -> Array:
    """Return the array that a header entry describes. The file's values begin at ``start``."""
    dtype = HALVES if about["dtype"] == "BF16" else host.dtype(_NUMPYS[about["dtype"]])
    first, last = about["data_offsets"]
    flat = host.frombuffer(content, dtype, (last - first) // dtype.itemsize, start + first)
    return flat.reshape(about["shape"])


HALVES = host.dtype([("bfloat16", "<u2")])  # the upper halves of float32 numbers


def as_numbers(array: Array) -> Array:
    """Convert an array of ``load_mapped`` from ``HALVES`` to float32. Return any other array unchanged."""
    return from_bfloat16(array["bfloat16"]) if array.dtype == HALVES else array


def give_back(array: Array) -> None:
    """Release the memory of an unmodified array of ``load_mapped``. Its values are read from the file again when used."""
    content = array
    while isinstance(content, host.ndarray):
        content = content.base
    content = content.obj if isinstance(content, memoryview) else content
    if not isinstance(content, mmap.mmap) or not hasattr(content, "madvise"):  # from ``as_numbers``, or on Windows
        return
    start = array.ctypes.data - host.frombuffer(content, host.uint8).ctypes.data
    first, last = -(-start // mmap.PAGESIZE), (start + array.nbytes) // mmap.PAGESIZE  # whole pages only
    if last > first:
        content.madvise(mmap.MADV_DONTNEED, first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE)


@contextlib.contextmanager
def _readable(path: PathLike) -> Iterator[BinaryIO]:
    """Open the file in a context that turns every failure to read it into a FileError."""
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


# The supported dtypes, spelled as in headers, and their NumPy names.
_NUMPYS = {f"{letter}{8 * n}": f"<{letter.lower()}{n}" for letter in "FIU" for n in (8, 4, 2, 1) if (letter, n) != ("F", 1)}
_NUMPYS["BOOL"] = "?"
_DTYPES = (*_NUMPYS, "BF16")
_MOST_TENSORS = 50_000  # even empty tensors take time; published files have a few thousand
_MOST_AXES = 64  # NumPy's limit


def _described(path: PathLike, header: bytes) -> tuple[dict[str, str], dict[str, str]]:
    """Return the dtype of each tensor, spelled as in the header, and the metadata."""
    try:
        described = json.loads(header, object_pairs_hook=_without_repeats)
        metadata = described.pop("__metadata__", {})
        dtypes = {name: about["dtype"] for name, about in described.items()}
        axes = {name: len(about["shape"]) for name, about in described.items()}
        for text in (*dtypes, *dtypes.values(), *metadata, *metadata.values()):
            text.encode("utf-8")  # fails for a lone surrogate, which JSON may contain
    except (ValueError, RecursionError, AttributeError, TypeError, KeyError) as error:
        raise _incomplete(path, f"its header does not describe its tensors ({type(error).__name__})") from None
    if len(dtypes) > _MOST_TENSORS:
        raise FileError(f"{path} has {len(dtypes):,} tensors; a file can have {_MOST_TENSORS:,}")
    for name, dtype in dtypes.items():
        if dtype not in _DTYPES:
            raise FileError(
                f"{path}: the tensor {_short(name)!r} has the dtype {_short(dtype)}, which tensors here cannot have: convert "
                "it to float32, for example, with the program that wrote the file"
            )
        if axes[name] > _MOST_AXES:
            raise _incomplete(path, f"{_short(name)!r} has {axes[name]} axes, and tensors have at most {_MOST_AXES}")
    return dtypes, metadata


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(by_name := dict(pairs)) < len(pairs):
        raise ValueError("a name occurs twice")
    return by_name


def _load(path: PathLike, file: BinaryIO) -> tuple[dict[str, Tensor], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    header = _read_header(path, file)
    dtypes, metadata = _described(path, header[8:])
    try:
        with safe_open(path, framework="numpy") as tensors:
            if metadata.pop(_CHECKSUM, None) is not None:
                _verify(path, header, file)
            names = [name for name, dtype in dtypes.items() if dtype != "BF16"]
            loaded = {name: Tensor._wrap(from_numpy(_checked_booleans(tensors.get_tensor(name)))) for name in names}
    except (SafetensorError, ValueError, OverflowError) as error:
        raise error if isinstance(error, FileError) else _incomplete(path, error) from None
    if "BF16" in dtypes.values():
        loaded |= _load_bfloat16(path)
    return loaded, metadata


def _checked_booleans(values: Any) -> Any:
    """Raise ValueError for booleans whose byte is neither 0 nor 1."""
    if values.dtype == bool and (values.view(host.uint8) > 1).any():
        raise ValueError("it contains a boolean that is neither true nor false")
    return values


def _load_bfloat16(path: PathLike) -> dict[str, Tensor]:
    """Load the file's bfloat16 tensors. A bfloat16 value is the upper half of a float32."""
    from safetensors import deserialize

    tensors = {}
    with open_regular(path, "a safetensors file") as file:
        content = file.read()
    for name, entry in deserialize(content):  # type: ignore[no-untyped-call]
        if entry["dtype"] == "BF16":
            halves = host.frombuffer(entry["data"], dtype="<u2")
            values = from_bfloat16(halves) if bfloat16 is None else halves.view(bfloat16)
            tensors[name] = Tensor._wrap(from_numpy(values.reshape(entry["shape"])))
    return tensors
