"""Startup checks that all ranks run the same code with the same values."""

from __future__ import annotations

import functools
import hashlib
import pickle
import platform
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinytensor import kernels
from tinytensor.autograd.tensor import Tensor
from tinytensor.device import backend
from tinytensor.device.backend import host, to_numpy
from tinytensor.distributed.communicator import Communicator, RankError

_MOST_NAMED = 3  # maximum number of differences in a message


def check_same(ranks: Communicator, subject: str, values: Mapping[str, Any], remedy: str) -> None:
    """Raise RankError on every rank unless all ranks have the same values under the same names.

    Arrays and tensors are compared by a hash of their bytes, other values by a hash of their pickles. The message gives the
    rank with a different ``subject``, the differing values, and the ``remedy``.
    """
    digests = ranks.gather((socket.gethostname(), {name: _digest(value) for name, value in values.items()}))
    message = _difference(digests, subject, remedy) if digests else None
    if message := ranks.tell(message):
        raise RankError(message)


def _difference(digests: list[tuple[str, dict[str, str]]], subject: str, remedy: str) -> str | None:
    _, expected = digests[0]
    for rank, (machine, actual) in enumerate(digests):
        names = [name for name in {**expected, **actual} if expected.get(name) != actual.get(name)]
        if names:
            more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
            named = ", ".join(names[:_MOST_NAMED])
            return f"rank {rank} on {machine} has other {subject} than rank 0: {named}{more}. {remedy}"
    return None


def _digest(value: Any) -> str:
    if isinstance(value, Tensor):
        value = value.data
    if backend.is_array(value) or backend.is_host_array(value):
        array = host.ascontiguousarray(to_numpy(value) if backend.is_array(value) else value)
        value = (array.shape, str(array.dtype), hashlib.blake2b(array.tobytes()).digest())
    return hashlib.blake2b(pickle.dumps(value, 5), digest_size=16).hexdigest()


def check_same_code(ranks: Communicator) -> None:
    """Raise RankError on every rank unless all ranks run the same versions with the same settings."""
    versions = {
        "the version of Python": platform.python_version(),
        "the version of NumPy": host.__version__,
        "TINYTENSOR_BACKEND": backend.name,
        "TINYTENSOR_KERNELS": kernels.name,
        **{f"the source of {name}": _source(name) for name in ("tinytensor", "tinyformer")},
    }
    check_same(ranks, "code", versions, "Install the same on all machines.")


@functools.cache
def _source(package: str) -> str:
    """Return a hash of all source files of a package if the package is imported."""
    module = sys.modules.get(package)
    digest = hashlib.blake2b()
    if module is not None and module.__file__:
        folder = Path(module.__file__).parent
        for file in sorted(folder.rglob("*.py")):
            digest.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
