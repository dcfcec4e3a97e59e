"""The functions of neural networks, written out as plain compositions of ops.

Where a function carries ``@fused``, its body is the definition and hand-written kernels do the work: the two are tested
to be equal, the body is what higher derivatives go through, and ``function.reference`` calls it.

Each file lists its public functions in ``__all__``. The activations and other ops of neural networks are in ops/, and can
be had from here, too.
"""

from tinytensor.functional.attention import *
from tinytensor.functional.classification import *
from tinytensor.functional.losses import *
from tinytensor.functional.normalization import *
from tinytensor.functional.regularization import *
from tinytensor.ops.activations import *
from tinytensor.ops.elementwise import sigmoid, tanh
from tinytensor.ops.indexing import embedding, one_hot
from tinytensor.ops.linear_algebra import linear
from tinytensor.ops.reductions import logsumexp
