"""The slot for hand-written kernels: every backend fills it with the same functions and signatures.

Kernels take and return raw arrays, never tensors. Of the rest of the library they import only what lies below them, which is
``backend``, ``precision`` and ``summation``. ``numpy`` holds the readable kernels and ``cupy`` the GPU kernels. What both need
is in the files of this folder, or ``cupy`` imports it from ``numpy``.
"""

from tinytensor import backend

if backend.name == "numpy":
    from tinytensor.kernels.numpy import *
else:
    from tinytensor.kernels.cupy import *
