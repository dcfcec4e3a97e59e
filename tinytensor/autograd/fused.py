"""Fused ops: defined by a composite of ops, computed by a pair of handwritten kernels."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from tinytensor.autograd.engine import Node, backpropagate
from tinytensor.autograd.inputs import explain
from tinytensor.autograd.op import Function, Op, op
from tinytensor.autograd.tensor import wrap
from tinytensor.common.missing import names_of as _names_of
from tinytensor.device.backend import Array, DType, converted, default_dtype, host, is_array, is_floating, xp

__all__ = ["FusedOp", "alias", "fused"]

float16 = host.dtype(host.float16)


def fused(
    forward: Callable[..., tuple[Any, Any]],
    backward: Callable[..., Sequence[Any]],
    inputs: tuple[str, ...],
    is_loss: bool = False,
    check: Callable[..., None] | None = None,
) -> Callable[[Function], Function]:
    """Declare the decorated composite as a fused op, computed by the kernels ``forward`` and ``backward``.

    ``inputs`` names the parameters that get gradients. If ``is_loss`` is set, the output for half-precision inputs stays
    float32. ``check`` is called with the inputs and raises ValueError for mismatched shapes. See ``FusedOp`` for the kernels.
    """

    def declare(reference: Function) -> Function:
        return cast(Function, FusedOp(reference, inputs, forward, backward, is_loss, check))

    return declare


class _Zeros(NamedTuple):
    """A placeholder in a node for an input that is not saved."""

    shape: tuple[int, ...]
    dtype: DType


class FusedOp(Op):
    """An op defined by a composite of ops (its ``reference``) and computed by one forward and one backward kernel.

    ``kernel_forward(needed, *arguments)`` returns the output and the residuals: values that the backward pass needs besides the
    arguments. ``kernel_backward(g, residuals, needed, **arguments)`` returns one gradient for each input. ``needed`` marks the
    inputs that need a gradient. If none does, the forward kernel may omit the residuals. A backward kernel may accept
    ``before``: a gradient of the first input from other ops, or None. It returns the sum of both in a new array.

    The kernels compute first-order gradients. For higher orders, the reference runs again and is differentiated like any
    expression. The kernels and the reference receive all inputs in one floating-point dtype. float16 inputs are converted to
    float32, because their squares and sums easily overflow.

    As in every op, the NAMES of the backward kernel's parameters determine what is saved. It omits inputs on which no gradient
    of any order depends, such as a term that is only added. The reference then receives zeros instead.
    """

    converts = True

    def __init__(
        self,
        reference: Callable[..., Any],
        inputs: tuple[str, ...],
        kernel_forward: Callable[..., tuple[Array, Any]],
        kernel_backward: Callable[..., Sequence[Array | None]],
        is_loss: bool = False,
        check: Callable[..., None] | None = None,
    ):
        super().__init__(reference, {}, inputs)
        self.reference = reference
        self.differentiable = True
        self.kernel_forward = kernel_forward
        self.kernel_backward = kernel_backward
        named = inspect.signature(kernel_backward).parameters
        self.adds_to_first = "before" in named
        self.not_saved = [(name, self.positions[name]) for name in inputs if name not in named]
        self.passed_back = [name for name in self.names if name in named]
        self.is_loss = is_loss
        self.check = check
        self.usual_dtypes = [default_dtype] * len(inputs)

    def compute(self, arguments: list[Any], needed: Sequence[bool]) -> tuple[Any, Any]:
        dtype = self._convert(arguments)
        try:
            if self.check is not None:
                self.check(*[arguments[i] for i in self.input_positions])
            out, residuals = self.kernel_forward(needed, *arguments)
        except (ValueError, IndexError, TypeError, OverflowError) as error:
            raise explain(self, arguments, error) from error
        return converted(out, float16) if dtype == float16 and not self.is_loss else out, residuals

    def _convert(self, arguments: list[Any]) -> DType:
        """Convert the inputs to the dtype in which the kernels compute. Also return the dtype to which the inputs promote."""
        if [getattr(arguments[i], "dtype", default_dtype) for i in self.input_positions] == self.usual_dtypes:
            return default_dtype
        arrays = {i: arguments[i] for i in self.input_positions if is_array(arguments[i])}
        floating = [x.dtype for x in arrays.values() if is_floating(x.dtype)]
        common = functools.reduce(xp.promote_types, floating) if floating else default_dtype
        common = common.newbyteorder("=")  # in native byte order: arrays from a file may be byte-swapped
        computed_in = default_dtype if common == float16 else common
        for i, x in arrays.items():
            arguments[i] = x if x.dtype == computed_in else converted(x, computed_in)
        return common

    def saved(self, arguments: Sequence[Any], out: Array, residuals: Any, needed: tuple[bool, ...]) -> Any:
        values = dict(zip(self.names, arguments))
        for name, i in self.not_saved:
            if is_array(arguments[i]):
                values[name] = _Zeros(arguments[i].shape, arguments[i].dtype)
        return values, residuals

    def backward(self, node: Node, g: Any, create_graph: bool, before: Any = None) -> Sequence[Any]:
        values, residuals = node.saved
        needed = [parent is not None for parent in node.parents]
        if not create_graph:
            g = converted(g, default_dtype) if g.dtype == float16 else g
            added = {} if before is None else {"before": before}
            return self.kernel_backward(g, residuals, needed, **{name: values[name] for name in self.passed_back}, **added)
        # Gradients are collected at a new alias of each input. If one input was computed from another, the latter then does not
        # also receive the gradient that flows through the former.
        values = {name: xp.zeros(*value) if type(value) is _Zeros else value for name, value in values.items()}
        for name, parent in zip(self.inputs, node.parents):
            if parent is not None:
                values[name] = alias(wrap(values[name], parent))
            elif is_array(values[name]):
                values[name] = wrap(values[name], None)
        wanted = [values[name].node for name, parent in zip(self.inputs, node.parents) if parent is not None]
        out = self.reference(**values)
        gradients = backpropagate(out.node, g, wanted, retain_graph=True, create_graph=True)
        return [parent and gradients.get(values[name].node) for name, parent in zip(self.inputs, node.parents)]


@op(x=lambda g: g)
def alias(x: Any) -> Any:
    """Return x as a new node of the graph."""
    return x


if not TYPE_CHECKING:
    __getattr__, __dir__ = _names_of(__name__)
