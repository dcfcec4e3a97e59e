"""Tensors in files, in the safetensors format: plain, fast, readable from every framework, and safe to open.

Eight bytes say how long the header is; the header says in JSON each tensor's dtype, shape and place; their values follow, one
after the other. Files that are written here also hold the SHA-256 of their content, so that damage is found.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from tinytensor.backend import bfloat16, host, xp
from tinytensor.tensor import Tensor

PathLike = str | os.PathLike[str]


class FileError(ValueError):
    """A file is missing, damaged or of another kind; the message names it and says what to do."""


# --------------------------------------------------------------------------------------------------- whole files only


@contextlib.contextmanager
def atomic_write(path: PathLike) -> Iterator[Path]:
    """A temporary path beside ``path`` to write to; renamed to it at the end, removed if anything went wrong.

    So a file of this name is always whole: the previous one, or the new one. Of several that write to it at once, in threads
    or processes, each has a temporary path of its own, and the last one stays. Where the system does not say which file it
    could not write, as with a full disk, the OSError gets the name ``path``.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        if error.errno is None or error.filename not in (None, temporary, str(temporary)):
            raise
        raise OSError(error.errno, error.strerror, str(target)) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def write_text(path: PathLike, text: str) -> None:
    """Write a UTF-8 file; an existing one stays as it is until the new one is whole. Raises OSError that names ``path``."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp", re.DOTALL)


def remove_stale(folder: PathLike) -> list[Path]:
    """Remove the temporary files that killed processes left in a folder, and return them; files of other names, and folders,
    stay. Only for a folder that nobody writes to at this time: what is being written looks the same."""
    removed = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)
                    removed.append(Path(entry.path))
    return sorted(removed)


# ------------------------------------------------------------------------------------------------------------ the format


_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool"}
_DTYPES |= {f"{kind}{bits}": f"{name}{bits}" for kind, name in (("I", "int"), ("U", "uint")) for bits in (64, 32, 16, 8)}
_CODES = {name: code for code, name in _DTYPES.items()}
_LONGEST_HEADER = 100_000_000  # the format's own limit
_MOST_AXES = 64  # NumPy's limit
_CHECKSUM = "tinytensor.sha256"
_NO_DIGITS = b"0" * 64
_DIGITS = re.compile(rb'"tinytensor\.sha256":"([0-9a-f]{64})"')
_PIECE = 1 << 20  # bytes that are hashed while they are still in the processor's cache


class _Entry(NamedTuple):
    """Where a tensor stands, counted from the header's end, and what it is."""

    start: int
    stop: int
    name: str
    dtype: str
    shape: tuple[int, ...]


def _item_size(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else host.dtype(dtype).itemsize


def _short(name: str) -> str:
    """A name from a file, for a message of one line."""
    return repr(name if len(name) <= 100 else name[:100] + "...")


# --------------------------------------------------------------------------------------------------------------- writing


def save(tensors: Mapping[str, Tensor], path: PathLike, metadata: Mapping[str, str] | None = None) -> None:
    """Write named tensors, such as a ``state_dict()``, with optional text ``metadata``, to a safetensors file.

    An existing file stays as it is until the new one is whole. Raises OSError where it cannot be written, and TypeError or
    ValueError for what is not named tensors and text.
    """
    _check_tensors(tensors)
    # The largest numbers first: so each begins at a multiple of its size, as the header's length is one of 8.
    ordered = sorted(tensors.items(), key=lambda item: -_item_size(item[1].dtype.name))
    header = _header(ordered, metadata or {})
    content = hashlib.sha256(header)
    with atomic_write(path) as temporary, open(temporary, "wb") as file:
        file.write(header)
        for _, tensor in ordered:
            values = _bytes_of(tensor)
            for start in range(0, len(values), _PIECE):
                content.update(values[start : start + _PIECE])
                file.write(values[start : start + _PIECE])
        file.seek(_digits_in(header)[0])
        file.write(content.hexdigest().encode())


def _check_tensors(tensors: Any) -> None:
    if not isinstance(tensors, Mapping):
        raise TypeError(f"save takes tensors by name, such as model.state_dict(), not a {type(tensors).__name__}")
    for name, tensor in tensors.items():
        if not isinstance(name, str) or name == "__metadata__":
            raise TypeError(f"save takes tensors by name, and {name!r} cannot be one")
        if not isinstance(tensor, Tensor):
            raise TypeError(f"save takes tensors, but {name!r} is a {type(tensor).__name__}: make it one with tt.tensor(...)")
        if tensor.dtype.name not in _CODES:
            raise TypeError(f"save cannot write {name!r}: a file holds no {tensor.dtype}, so convert it with astype")


def _header(tensors: list[tuple[str, Tensor]], metadata: Mapping[str, str]) -> bytes:
    """The header with its length before it, and zeros for the checksum's digits."""
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"metadata is text by name, but {key!r} is {value!r}")
    described: dict[str, Any] = {"__metadata__": {**metadata, _CHECKSUM: _NO_DIGITS.decode()}}
    end = 0
    for name, tensor in tensors:
        start, end = end, end + tensor.size * _item_size(tensor.dtype.name)
        described[name] = {"dtype": _CODES[tensor.dtype.name], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(described, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    if len(text) > _LONGEST_HEADER:
        raise ValueError(f"names and metadata of {len(text):,} bytes are more than a safetensors file can hold")
    return len(text).to_bytes(8, "little") + text


def _digits_in(header: bytes) -> tuple[int, int]:
    """Where the checksum's digits stand; an empty place where there are none."""
    found = _DIGITS.search(header)
    return found.span(1) if found else (0, 0)


def _bytes_of(tensor: Tensor) -> Any:
    """The values in the order and form of the file, as a one-dimensional array of bytes."""
    values = host.ascontiguousarray(tensor.numpy())
    if values.dtype.name != "bfloat16":
        values = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return values.reshape(-1).view(host.uint8)


# --------------------------------------------------------------------------------------------------------------- reading


def load(path: PathLike) -> dict[str, Tensor]:
    """The named tensors of a safetensors file. Raises FileError where it is missing, damaged or something else, or where a
    tensor in it has a dtype that there is not here, such as float8.

    Values in bfloat16 come back as float32 on NumPy, which has no such dtype: exactly, as float32 holds them all.
    """
    return load_with_metadata(path)[0]


def load_with_metadata(path: PathLike) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The named tensors of a safetensors file, and its metadata."""
    try:
        with _open(path) as file:
            return _read(path, file, os.fstat(file.fileno()).st_size)
    except FileError:
        raise
    except (ValueError, RecursionError) as error:  # such as JSON that is none, or is nested without end
        reason = "its header is nested too deeply" if isinstance(error, RecursionError) else _short(str(error))[1:-1]
        raise FileError(f"{path} is not a whole safetensors file (damaged, cut short, or another format): {reason}") from None
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from None
    except MemoryError:
        raise FileError(f"{path} does not fit in memory: it has {os.path.getsize(path):,} bytes") from None


def _open(path: PathLike) -> BinaryIO:
    """The file, if it is a regular one: to open a FIFO would mean to wait for a writer."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        raise FileError(f"{path} does not exist") from None
    except ValueError:
        raise FileError(f"{os.fspath(path)!r} cannot be the name of a file") from None
    if not stat.S_ISREG(mode):
        raise FileError(f"{path} is {'a folder' if stat.S_ISDIR(mode) else 'a device, pipe or socket'}, not a safetensors file")
    return open(path, "rb")


def _read(path: PathLike, file: BinaryIO, size: int) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Raises ValueError with the reason where the content is none of the format's."""
    beginning = file.read(8)
    length = int.from_bytes(beginning, "little")
    if size < 8 or length > min(size - 8, _LONGEST_HEADER):
        raise ValueError(f"a header of {length:,} bytes cannot be in a file of {size:,}")
    header = beginning + file.read(length)
    described, metadata = _described(header[8:])
    entries = _entries(path, described, size - 8 - length)
    start, stop = _digits_in(header)
    content = hashlib.sha256(header[:start] + _NO_DIGITS + header[stop:]) if stop else None
    found = {entry.name: _read_tensor(file, entry, content) for entry in entries}
    stated = metadata.pop(_CHECKSUM, None)
    if stated is not None and (content is None or content.hexdigest() != stated):
        raise FileError(f"{path} is damaged: its checksum is not that of its content")
    return found, metadata


def _described(header: bytes) -> tuple[dict[str, Any], dict[str, str]]:
    """What the header says of each tensor, and the metadata."""
    described = json.loads(header.decode("utf-8"), object_pairs_hook=_without_repetition)
    if not isinstance(described, dict):
        raise ValueError("its header is no JSON object")
    metadata = described.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its metadata is not text by name")
    for text in (*described, *metadata, *metadata.values()):
        text.encode("utf-8")  # half of a character, which JSON can hold, could not even be printed
    return described, metadata


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("its header has a name twice")
    return found


def _entries(path: PathLike, described: Mapping[str, Any], size: int) -> list[_Entry]:
    """The tensors in the order of their places, which must be the whole of the ``size`` bytes after the header."""
    entries = sorted(_entry(path, name, about) for name, about in described.items())
    end = 0
    for entry in entries:
        if entry.start != end:
            raise ValueError(f"the tensor {_short(entry.name)} does not begin where the one before it ends")
        end = entry.stop
    if end != size:
        raise ValueError(f"its tensors have {end:,} bytes, and {size:,} follow the header")
    return entries


def _entry(path: PathLike, name: str, about: Any) -> _Entry:
    if not isinstance(about, dict) or about.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"its header does not say what the tensor {_short(name)} is")
    code, shape, offsets = about["dtype"], about["shape"], about["data_offsets"]
    if not (_are_counts(shape) and _are_counts(offsets) and len(offsets) == 2 and isinstance(code, str)):
        raise ValueError(f"the tensor {_short(name)} has no shape and place that can be")
    if code not in _DTYPES:
        raise FileError(
            f"{path}: the tensor {_short(name)} has the dtype {_short(code)[1:-1]}, which tensors here cannot hold: convert it "
            "to float32, or another of theirs, where the file was written"
        )
    dtype, (start, stop) = _DTYPES[code], offsets
    if stop - start != math.prod(shape) * _item_size(dtype):
        raise ValueError(f"the tensor {_short(name)} has another size than its shape says")
    return _Entry(start, stop, name, dtype, tuple(shape))


def _are_counts(values: Any) -> bool:
    """True for a list of numbers, not too many and not too large to be a shape: their product is soon found."""
    return isinstance(values, list) and len(values) <= _MOST_AXES and all(type(n) is int and 0 <= n < 1 << 63 for n in values)


def _read_tensor(file: BinaryIO, entry: _Entry, content: Any) -> Tensor:
    """The next tensor of the file, of which ``content``, a hash unless None, takes note."""
    half = entry.dtype == "bfloat16"
    values = host.empty(entry.shape, "<u2" if half else host.dtype(entry.dtype).newbyteorder("<"))
    there = values.reshape(-1).view(host.uint8)
    for start in range(0, len(there), _PIECE):
        piece = there[start : start + _PIECE]
        if file.readinto(piece) != len(piece):  # type: ignore[attr-defined]
            raise ValueError("it ends too soon")
        if content is not None:
            content.update(piece)
    if entry.dtype == "bool" and (there > 1).any():
        raise ValueError(f"the tensor {_short(entry.name)} holds what is neither true nor false")
    values = _from_bfloat16(values) if half else values.astype(entry.dtype, copy=False)
    return Tensor._wrap(xp.asarray(values))


def _from_bfloat16(halves: Any) -> Any:
    """Numbers in bfloat16 from the halves of float32 that they are; as float32 where there is no such dtype."""
    if bfloat16 is not None:
        return halves.view(bfloat16)
    return (halves.reshape(-1).astype(host.uint32) << 16).view(host.float32).reshape(halves.shape)
