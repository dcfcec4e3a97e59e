"""Hand-written kernels. Every backend has the same functions with the same signatures.

Kernels take and return raw arrays, never tensors. They import nothing of the library but ``backend``, ``precision`` and
``summation``. ``numpy`` holds the readable kernels and ``cupy`` the GPU kernels. What both need is in the files of this folder,
or ``cupy`` imports it from ``numpy``.
"""

from tinytensor import backend

if backend.name == "numpy":
    from tinytensor.kernels.numpy import *
else:
    from tinytensor.kernels.cupy import *
