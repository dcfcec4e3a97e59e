"""The slot for hand-written kernels: every backend fills it with the same functions and signatures.

Kernels take and return raw arrays, never tensors. Of the rest of the library they import only what lies below them, which is
``backend``, ``precision`` and ``summation``. ``numpy`` holds the readable kernels, ``numba`` compiled loops in the place of some
of them, and ``cupy`` the GPU kernels. What several need is in the files of this folder, or imported from ``numpy``.

On the CPU the compiled loops are used where Numba is installed; TINYTENSOR_KERNELS=numpy or numba chooses.
"""

import importlib.util
import os

from tinytensor import backend


def _choose() -> str:
    """The folder of the kernels. Raises BackendError for a choice that does not exist, or is not installed."""
    if backend.name != "numpy":
        return backend.name
    choice = os.environ.get("TINYTENSOR_KERNELS", "")
    if choice not in ("", "numpy", "numba"):
        raise backend.BackendError(f"TINYTENSOR_KERNELS={choice!r} is neither 'numpy' nor 'numba'")
    is_installed = choice != "numpy" and importlib.util.find_spec("numba") is not None
    if choice == "numba" and not is_installed:
        raise backend.BackendError("TINYTENSOR_KERNELS=numba, but Numba is not installed: pip install 'tinytensor[fast]'")
    return "numba" if is_installed else "numpy"


name = _choose()

if name == "cupy":
    from tinytensor.kernels.cupy import *
else:
    from tinytensor.kernels.numpy import *
    if name == "numba":
        from tinytensor.kernels.numba import *
