"""Hand-written kernels. Every backend has the same functions with the same signatures.

Kernels take and return raw arrays, never tensors. Of the rest of the library they import only device/, ``autograd.modes`` and
``autograd.replaying``. ``numpy/__init__.py`` lists the kernels, and ``numpy`` has the readable ones. ``numba`` (compiled loops)
and ``cupy`` (the GPU) replace those that their file of the same name defines.

On the CPU the compiled loops are used if Numba is installed. TINYTENSOR_KERNELS=numpy or numba chooses.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tinytensor.device import backend


def _choose() -> str:
    """Return the folder of the kernels. Raises BackendError for a choice that does not exist or is not installed."""
    if backend.name != "numpy":
        return backend.name
    choice = os.environ.get("TINYTENSOR_KERNELS", "")
    if choice not in ("", "numpy", "numba"):
        raise backend.BackendError(f"TINYTENSOR_KERNELS must be 'numpy' or 'numba', got {choice!r}")
    is_installed = choice != "numpy" and importlib.util.find_spec("numba") is not None
    if choice == "numba" and not is_installed:
        raise backend.BackendError("TINYTENSOR_KERNELS=numba, but Numba is not installed: pip install 'tinyformer[fast]'")
    return "numba" if is_installed else "numpy"


name = _choose()


def functions_of(folder: str) -> dict[str, Callable[..., Any]]:
    """Return the kernels of a backend by name: its own, and NumPy's where it has none."""
    package = importlib.import_module(f"tinytensor.kernels.{folder}")
    kernels = {}
    for name, function in vars(importlib.import_module("tinytensor.kernels.numpy")).items():
        if callable(function):
            module = getattr(package, function.__module__.rpartition(".")[2], None)
            kernels[name] = vars(package).get(name) or getattr(module, name, function)
    return kernels


if TYPE_CHECKING:
    from tinytensor.kernels.numpy import *
else:
    globals().update(functions_of(name))

if name == "numba":
    from tinytensor.kernels.numba.elementwise import CONVERSIONS

    backend.conversions.update(CONVERSIONS)


def load() -> None:
    """Import what the kernels import only when the first of them runs. Processes forked afterwards need not import it."""
    if name == "numba":
        from tinytensor.kernels.numba.compiling import load_numba

        load_numba()
