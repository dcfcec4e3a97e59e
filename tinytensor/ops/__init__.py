"""Ops: forward functions and their gradient rules. Start with ``elementwise``.

``@op`` declares a function with gradient rules, and ``@op()`` a function without a gradient. A ``@composite`` function calls
other ops and gets its gradient from them. Each file lists its public functions in ``__all__``; users import them from
``tinytensor``.
"""

from tinytensor.ops import compiled as compiled  # ops that kernels may compile
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
