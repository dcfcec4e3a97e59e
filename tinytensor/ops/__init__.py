"""The ops: forward functions with their gradient rules, by kind.

Read ``elementwise`` first. A function with ``@op`` has gradient rules; a function without is made of other ops, and so has a
gradient, too. Each file lists its public functions in ``__all__``: these are functions of tinytensor.
"""

from tinytensor.ops.activations import *
from tinytensor.ops.comparisons import *
from tinytensor.ops.elementwise import *
from tinytensor.ops.indexing import *
from tinytensor.ops.linear_algebra import *
from tinytensor.ops.reductions import *
from tinytensor.ops.shapes import *
