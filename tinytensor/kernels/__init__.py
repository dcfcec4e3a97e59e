"""The slot behind which hand-written kernels live: the same functions and signatures for every backend.

Kernels take and return raw arrays, never tensors. ``numpy`` holds the readable versions; they use only what NumPy and
CuPy share, so ``cupy`` can take any of them over until it has a faster one.
"""

from tinytensor import backend

if backend.name == "numpy":
    from tinytensor.kernels.numpy import *
else:
    from tinytensor.kernels.cupy import *
