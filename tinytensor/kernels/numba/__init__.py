"""The CPU kernels as loops that Numba compiles. Other threads run while a loop does.

Read kernels/numpy first: a function here replaces the NumPy kernel in the file of the same name and computes the same in loops.
Without one, as for matrix products by several cores, the NumPy kernel is used.

Read the files in this order:

1. ``compiling``: how loops are declared, compiled and cached.
2. ``functions``: vectorised exp, log, tanh and other functions that loops call.
3. ``activations`` and ``dropout``: loops over elements. ``elementwise``: compiles other ops from their bytecode.
4. ``normalization``, then ``rotation`` and ``cross_entropy``: loops over rows. ``embedding``: loops over rows with ids.
5. ``optimizers``: loops over parameters.
6. ``tiles``: matrix products that fit the registers. ``products``: large ones. ``attention_blocks``: attention from such
   products; ``attention`` decides when to use it.
7. ``recurrence_loops``: recurrent layers from the same products; ``recurrence`` decides when to use them.
8. ``processor``: its features and second core. ``pointers``: addresses in loops. ``block_dots`` and ``row_dots``: products with
   rows of a weight in the processor's own instructions. ``quantized``: linear layers with low-precision weights.
9. ``programs``: a whole traced program as one call. ``instructions`` writes it, and ``program_loops`` runs it with the loops of
   ``program_kernels``.
"""

from tinytensor.kernels.numba import (
    activations,
    attention,
    cross_entropy,
    dropout,
    embedding,
    normalization,
    optimizers,
    products,
    quantized,
    recurrence,
    rotation,
)
from tinytensor.kernels.numba.elementwise import elementwise
from tinytensor.kernels.numba.programs import fuse
