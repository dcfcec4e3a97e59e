"""Neural network functions: attention, losses, normalization and dropout, written as compositions of ops.

The body of a ``@fused`` function is its definition. Kernels do the work, and tests check that both agree. Higher derivatives
are computed through the body, and ``function.reference`` calls it.

Each file lists its public functions in ``__all__``. Activations, ``embedding``, ``linear``, ``one_hot`` and similar ops are
defined in ops/ and also available here.
"""

import typing

from tinytensor.common.missing import names_of as _names_of, public as _public
from tinytensor.functional.attention import *
from tinytensor.functional.classification import *
from tinytensor.functional.losses import *
from tinytensor.functional.normalization import *
from tinytensor.functional.recurrence import *
from tinytensor.functional.regularization import *
from tinytensor.functional.similarity import *
from tinytensor.ops.activations import *
from tinytensor.ops.elementwise import sigmoid as sigmoid, tanh as tanh
from tinytensor.ops.indexing import embedding as embedding, one_hot as one_hot
from tinytensor.ops.linear_algebra import linear as linear
from tinytensor.ops.reductions import logsumexp as logsumexp

if not typing.TYPE_CHECKING:
    __all__ = _public(globals(), "")
    __getattr__, __dir__ = _names_of(__name__)
