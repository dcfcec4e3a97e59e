"""The functions of neural networks: attention, losses, normalisation and dropout, written as compositions of ops.

If a function is declared with ``@fused``, its body is the definition, and hand-written kernels do the work. Tests check that
the two are equal. Higher derivatives are computed through the body, and ``function.reference`` calls it.

Each file lists its public functions in ``__all__``. Activations, ``embedding``, ``linear``, ``one_hot`` and other ops of neural
networks are defined in ops/, and are also available from here.
"""

import sys
from typing import TYPE_CHECKING, Any

from tinytensor.functional.attention import *
from tinytensor.functional.classification import *
from tinytensor.functional.losses import *
from tinytensor.functional.normalization import *
from tinytensor.functional.recurrence import *
from tinytensor.functional.regularization import *
from tinytensor.functional.rotation import *
from tinytensor.functional.similarity import *
from tinytensor.missing import missing as _missing
from tinytensor.ops.activations import *
from tinytensor.ops.elementwise import sigmoid, tanh
from tinytensor.ops.indexing import embedding, one_hot
from tinytensor.ops.linear_algebra import linear
from tinytensor.ops.reductions import logsumexp

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise _missing("tinytensor.functional", name, sys.modules[__name__])
