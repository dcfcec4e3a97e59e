"""Tensors in files, in the safetensors format: plain, fast, readable from every framework, and safe to open."""

from __future__ import annotations

import contextlib
import os
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

    So a file of this name is always whole: the previous one, or the new one.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
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

    An existing file stays as it is until the new one is whole. Raises OSError where it cannot be written.
    """
    from safetensors.numpy import save as as_bytes

    arrays = {name: _contiguous(tensor) for name, tensor in tensors.items()}
    content = as_bytes(arrays, metadata=dict(metadata) if metadata else None)
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


def _contiguous(tensor: Tensor) -> Any:
    array = tensor.numpy()
    return array if array.flags.c_contiguous else array.copy()


def load(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The named tensors of a safetensors file. Raises FileError where it is missing, truncated or something else.

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
            narrow = {name for name in file.keys() if file.get_slice(name).get_dtype() == "BF16"}  # noqa: SIM118
            others = [name for name in file.keys() if name not in narrow]  # noqa: SIM118
            found = {name: Tensor._wrap(from_numpy(file.get_tensor(name))) for name in others}  # one copy at a time
            metadata = dict(file.metadata() or {})
        return {**found, **(_load_bfloat16(path) if narrow else {})}, metadata
    except (SafetensorError, OSError) as error:
        raise FileError(f"{path} is not a whole safetensors file (damaged, cut short, or another format): {error}") from None


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
