"""Tensors in files, in the safetensors format: plain, fast, readable from every framework, and safe to open."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tinytensor.backend import bfloat16, from_numpy, host
from tinytensor.tensor import Tensor


class FileError(ValueError):
    """A file is missing, damaged or of another kind; the message names it and says what to do."""


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside ``path`` to write to; renamed to it at the end, removed if anything went wrong.

    So a file of this name is always whole: the previous one, or the new one. Of several that write to it at once, in threads
    or processes, each has a temporary path of its own, and the last one stays.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def save(tensors: Mapping[str, Tensor], path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None) -> None:
    """Write named tensors, such as a ``state_dict()``, with optional text ``metadata``, to a safetensors file.

    An existing file stays as it is until the new one is whole. Raises OSError where it cannot be written, and TypeError for
    what is not named tensors.
    """
    from safetensors.numpy import save as as_bytes

    if not isinstance(tensors, Mapping):
        raise TypeError(f"save takes tensors by name, such as model.state_dict(), not a {type(tensors).__name__}")
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"save takes tensors, but {name!r} is a {type(tensor).__name__}: make it one with tt.tensor(...)")
    arrays = {name: _contiguous(tensor) for name, tensor in tensors.items()}
    content = as_bytes(arrays, metadata=dict(metadata) if metadata else None)
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


def _contiguous(tensor: Tensor) -> Any:
    array = tensor.numpy()
    return array if array.flags.c_contiguous else array.copy()


def load(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The named tensors of a safetensors file. Raises FileError where it is missing, truncated or something else, or where a
    tensor in it has a dtype that there is not here, such as float8.

    Values in bfloat16 come back as float32 on NumPy, which has no such dtype: exactly, as float32 holds them all.
    """
    return load_with_metadata(path)[0]


def load_with_metadata(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The named tensors of a safetensors file, and its metadata."""
    from safetensors import SafetensorError, safe_open

    if not os.path.isfile(path):
        raise FileError(f"{path} does not exist, or is not a file")
    try:
        with safe_open(path, framework="numpy") as file:
            dtypes = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
            _check_dtypes(path, dtypes)
            others = [name for name, dtype in dtypes.items() if dtype != "BF16"]
            found = {name: Tensor._wrap(from_numpy(file.get_tensor(name))) for name in others}  # one copy at a time
            metadata = dict(file.metadata() or {})
        return {**found, **(_load_bfloat16(path) if "BF16" in dtypes.values() else {})}, metadata
    except (SafetensorError, OSError) as error:
        raise FileError(f"{path} is not a whole safetensors file (damaged, cut short, or another format): {error}") from None


_DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL")


def _check_dtypes(path: str | os.PathLike[str], dtypes: Mapping[str, str]) -> None:
    for name, dtype in dtypes.items():
        if dtype not in _DTYPES:
            raise FileError(
                f"{path}: the tensor {name!r} has the dtype {dtype}, which tensors here cannot hold: convert it to float32, "
                "or another of theirs, where the file was written"
            )


def _load_bfloat16(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The file's tensors in bfloat16, which is the first half of a float32."""
    from safetensors import deserialize

    found = {}
    for name, entry in deserialize(Path(path).read_bytes()):  # type: ignore[no-untyped-call]
        if entry["dtype"] == "BF16":
            halves = host.frombuffer(entry["data"], dtype="<u2")
            wide = (halves.astype(host.uint32) << 16).view(host.float32)
            values = wide if bfloat16 is None else halves.view(bfloat16)
            found[name] = Tensor._wrap(from_numpy(values.reshape(entry["shape"])))
    return found
