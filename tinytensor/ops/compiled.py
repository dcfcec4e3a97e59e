"""Which ops are elementwise: the result for an element depends on nothing but this element. Kernels may compile what they and
their gradient rules say to one pass over memory (kernels/numba/elementwise.py)."""

from __future__ import annotations

from tinytensor import kernels
from tinytensor.autograd.op import Op
from tinytensor.ops import activations, angles, elementwise

_ACTIVATIONS = ("elu", "leaky_relu", "logsigmoid", "relu", "_softplus")
_OTHERS = {"astype", "copy", "power", "round", "where"}  # which also look at what they get, as power at its exponent


def compile_elementwise(op: Op) -> None:
    """Declare an op as elementwise."""
    op.forward = kernels.elementwise(op.forward, op.name)
    op.rules = {name: kernels.elementwise(rule, f"{op.name}-{name}") for name, rule in op.rules.items()}


for file, names in ((elementwise, elementwise.__all__), (angles, angles.__all__), (activations, _ACTIVATIONS)):
    for name in names:
        if name not in _OTHERS and isinstance(getattr(file, name), Op):
            compile_elementwise(getattr(file, name))
