"""Elementwise ops. Kernels may compile each op or gradient rule to one pass over memory (see kernels/numba/elementwise.py)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tinytensor import kernels
from tinytensor.autograd.op import Op
from tinytensor.device.backend import host
from tinytensor.ops import activations, angles, elementwise

_ACTIVATIONS = ("elu", "leaky_relu", "logsigmoid", "relu", "_softplus")
_NOT_COMPILED = {"astype", "copy", "power", "round", "where"}  # they inspect their arguments, as power does its exponent
_FEWEST = 2048 if kernels.name == "numba" else 1 << 62  # from this size, kernels compute half precision in float32


def _rounded_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that it computes small float16 arrays on the CPU in float32 and rounds once."""

    @functools.wraps(function)
    def call(x: Any, *settings: Any) -> Any:
        if type(x) is not host.ndarray or x.dtype != host.float16 or x.size >= _FEWEST:
            return function(x, *settings)
        return function(x.astype(host.float32), *settings).astype(x.dtype)

    return call


def compile_elementwise(op: Op) -> None:
    """Declare an op elementwise: each element of the result depends on one element of each input."""
    op.forward = kernels.elementwise(op.forward, op.name)
    op.rules = {name: kernels.elementwise(rule, f"{op.name}-{name}") for name, rule in op.rules.items()}


for file, names in ((elementwise, elementwise.__all__), (angles, angles.__all__), (activations, _ACTIVATIONS)):
    for name in names:
        if name not in _NOT_COMPILED and isinstance(getattr(file, name), Op):
            compile_elementwise(getattr(file, name))
# NumPy would round intermediate results of these functions to half precision.
for name in ("sigmoid", "rsqrt", "degrees", "radians", "leaky_relu", "logsigmoid", "_softplus", "softmax", "log_softmax"):
    op = next(getattr(file, name) for file in (elementwise, angles, activations) if hasattr(file, name))
    op.forward = _rounded_once(op.forward)
