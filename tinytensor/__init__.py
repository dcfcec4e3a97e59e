"""tinytensor: tensors with reverse-mode automatic differentiation on NumPy or CuPy.

Packages, from the ground up: ``device``, ``common``, ``autograd`` (start there: engine, op, tensor), ``kernels``, ``ops``,
``functional``, ``nn``, ``parallel``, ``optim``, ``transforms``, ``replay``, ``display``, ``distributed``. Each package imports
only earlier ones. docs/guides/reading_the_source.md shows a map and traces one call.

``distributed`` is not imported here. To train on several processes, use ``from tinytensor import distributed``.
"""

import typing

from tinytensor import (
    functional as functional,
    linalg as linalg,
    nn as nn,
    optim as optim,
    parallel as parallel,
    random as random,
)
from tinytensor.device.backend import BackendError as BackendError, name as _backend_name
from tinytensor.replay.capture import CaptureError as CaptureError, capture as capture
from tinytensor.transforms.checkpoint import checkpoint as checkpoint
from tinytensor.creation import *
from tinytensor.transforms.derivatives import grad as grad, hessian as hessian, hvp as hvp, jacobian as jacobian
from tinytensor.device.disk import FileError as FileError
from tinytensor.common.missing import CalledModule as _CalledModule, names_of as _names_of, public as _public
from tinytensor.autograd.modes import (
    detect_anomaly as detect_anomaly,
    enable_grad as enable_grad,
    full_precision as full_precision,
    keep_values as keep_values,
    no_grad as no_grad,
)
from tinytensor.functional.attention import *
from tinytensor.functional.classification import *
from tinytensor.functional.losses import *
from tinytensor.functional.normalization import *
from tinytensor.functional.recurrence import *
from tinytensor.functional.regularization import *
from tinytensor.functional.similarity import *
from tinytensor.transforms.gradcheck import GradcheckError as GradcheckError, gradcheck as gradcheck
from tinytensor.display.graph import draw_graph as draw_graph
from tinytensor.io import load as load, save as save
from tinytensor.kernels import name as _kernels_name
from tinytensor.ops import methods as _methods  # adds the operators to Tensor
from tinytensor.ops.activations import *
from tinytensor.ops.angles import *
from tinytensor.ops.comparisons import *
from tinytensor.ops.elementwise import *
from tinytensor.ops.indexing import *
from tinytensor.ops.linear_algebra import *
from tinytensor.ops.reductions import *
from tinytensor.ops.running import *
from tinytensor.ops.sequences import *
from tinytensor.ops.shapes import *
from tinytensor.ops.sorting import *
from tinytensor.random import seed as seed
from tinytensor.autograd.tensor import Tensor as Tensor
from tinytensor.replay.trace import opaque as opaque, trace as trace

backend_name: str = _backend_name
kernels_name: str = _kernels_name

if not typing.TYPE_CHECKING:  # otherwise type checkers would accept any name
    __all__ = _public(globals(), "functional linalg nn optim parallel random")
    __getattr__, __dir__ = _names_of(__name__)
    globals()["device"].__class__ = _CalledModule


__version__ = "0.3.0"
