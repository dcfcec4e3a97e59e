"""Hand-written kernels. Every backend has the same functions with the same signatures.

Kernels take and return raw arrays, never tensors. They import nothing of the library but device/, ``autograd.modes`` and
``autograd.replaying``. ``numpy`` holds the readable kernels, ``numba`` compiled loops that replace most of them, and ``cupy``
the GPU kernels. What several of them need is in the files of this folder, or is imported from ``numpy``.

On the CPU the compiled loops are used where Numba is installed. TINYTENSOR_KERNELS=numpy or numba chooses.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tinytensor.device import backend


def _choose() -> str:
    """The folder of the kernels. Raises BackendError for a choice that does not exist, or is not installed."""
    if backend.name != "numpy":
        return backend.name
    choice = os.environ.get("TINYTENSOR_KERNELS", "")
    if choice not in ("", "numpy", "numba"):
        raise backend.BackendError(f"TINYTENSOR_KERNELS={choice!r} must be 'numpy' or 'numba'")
    is_installed = choice != "numpy" and importlib.util.find_spec("numba") is not None
    if choice == "numba" and not is_installed:
        raise backend.BackendError("TINYTENSOR_KERNELS=numba, but Numba is not installed: pip install 'tinyformer[fast]'")
    return "numba" if is_installed else "numpy"


name = _choose()


def functions_of(folder: str) -> dict[str, Callable[..., Any]]:
    """The kernels of a backend: the functions that its ``__init__.py`` imports."""
    module = importlib.import_module(f"tinytensor.kernels.{folder}")
    return {name: value for name, value in vars(module).items() if callable(value)}


if TYPE_CHECKING:
    from tinytensor.kernels.numpy import *
elif name == "cupy":
    globals().update(functions_of("cupy"))
else:
    globals().update(functions_of("numpy"))

if name == "numba":
    from tinytensor.kernels.numba.half import CONVERSIONS

    globals().update(functions_of("numba"))  # which has some of them
    backend.conversions.update(CONVERSIONS)


def load() -> None:
    """Import what the kernels import only when the first of them runs. After that, forked processes need not import it."""
    if name == "numba":
        from tinytensor.kernels.numba.compiling import load_numba

        load_numba()
