"""The ops: forward functions and their gradient rules, by kind.

Read ``elementwise`` first. A function with ``@op`` has gradient rules, unless it is declared with ``@op()``. A ``@composite``
function is made of other ops, and gets its gradient from them. Each file lists its public functions in ``__all__``; users find
them in ``tinytensor``.
"""

from tinytensor.ops import compiled as compiled  # which ops kernels may compile
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
