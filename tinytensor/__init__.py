"""tinytensor: tensors with reverse-mode automatic differentiation on NumPy or CuPy.

Read the source in this order, as the README says: engine, op, calling, ops (elementwise first), tensor, functional, fused,
kernels/numpy, trace.

``from tinytensor import distributed`` is for several processes. It is not imported here, as most programs are one.
"""

import sys
import typing

from tinytensor import functional, linalg, nn, optim, parallel, random
from tinytensor.backend import BackendError
from tinytensor.backend import name as backend_name
from tinytensor.capture import capture
from tinytensor.capturing import CaptureError
from tinytensor.checkpoint import checkpoint
from tinytensor.creation import arange, eye, from_dlpack, full, full_like, linspace, ones, ones_like, tensor, zeros, zeros_like
from tinytensor.derivatives import hessian, hvp, jacobian
from tinytensor.modes import detect_anomaly, enable_grad, full_precision, keep_values, no_grad
from tinytensor.functional.attention import *
from tinytensor.functional.classification import *
from tinytensor.functional.losses import *
from tinytensor.functional.normalization import *
from tinytensor.functional.recurrence import *
from tinytensor.functional.regularization import *
from tinytensor.functional.rotation import *
from tinytensor.functional.similarity import *
from tinytensor.gradcheck import GradcheckError, gradcheck
from tinytensor.graph import draw_graph
from tinytensor.io import FileError, load, save
from tinytensor.kernels import name as kernels_name
from tinytensor.missing import missing as _missing
from tinytensor.ops.activations import *
from tinytensor.ops.angles import *
from tinytensor.ops.comparisons import *
from tinytensor.ops.elementwise import *
from tinytensor.ops.indexing import *
from tinytensor.ops.linear_algebra import *
from tinytensor.ops.reductions import *
from tinytensor.ops.sequences import *
from tinytensor.ops.shapes import *
from tinytensor.random import seed
from tinytensor.tensor import Tensor, grad
from tinytensor.trace import opaque, trace

if not typing.TYPE_CHECKING:  # a type checker would take every name for one that is here

    def __getattr__(name: str) -> object:
        raise _missing("tinytensor", name, sys.modules[__name__])


__version__ = "0.1.0"
