"""Fused ops: a composite of ops whose body is the definition, and whose work a pair of hand-written kernels does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from tinytensor.backend import Array, is_array, xp
from tinytensor.engine import Node, backpropagate
from tinytensor.op import Function, Op, explain, op, wrap


def fused(
    forward: Callable[..., tuple[Any, Any]], backward: Callable[..., Sequence[Any]], inputs: tuple[str, ...]
) -> Callable[[Function], Function]:
    """Declare the decorated composite as a fused op; ``inputs`` are the parameters that get gradients.

    The kernels' contract stands with ``FusedOp``.
    """

    def declare(reference: Function) -> Function:
        return cast(Function, FusedOp(reference, inputs, forward, backward))

    return declare


class FusedOp(Op):
    """A composite of ops, its ``reference``, that hand-written kernels compute in one pass each way.

    ``kernel_forward(needed, **arguments) -> (out, statistics)`` and ``kernel_backward(g, statistics, needed, **arguments) ->
    gradients``, one for each input, where ``needed`` says which are wanted: without any, forward need keep no statistics.
    First-order gradients come from the kernels; for higher orders the reference is replayed, and differentiated like any
    other expression.
    """

    def __init__(
        self,
        reference: Callable[..., Any],
        inputs: tuple[str, ...],
        kernel_forward: Callable[..., tuple[Array, Any]],
        kernel_backward: Callable[..., Sequence[Array | None]],
    ):
        super().__init__(reference, {}, inputs)
        self.reference = reference
        self.differentiable = True
        self.kernel_forward = kernel_forward
        self.kernel_backward = kernel_backward

    def _compute(self, values: dict[str, Any], needed: Sequence[bool]) -> tuple[Array, Any]:
        try:
            out, statistics = self.kernel_forward(needed, **values)
            return xp.asarray(out), statistics
        except (ValueError, IndexError, TypeError) as error:
            raise explain(self, values, error) from None

    def _forward_only(self, *arrays: Any) -> Any:
        return self.kernel_forward(self.nothing, *arrays)[0]

    def _run(self, values: dict[str, Any]) -> Any:
        return self._compute(values, self.nothing)[0]

    def _saved(self, values: dict[str, Any], out: Array, kept: Any, parents: tuple[Node | None, ...]) -> Any:
        return values, kept

    def backward(self, node: Node, g: Any, create_graph: bool) -> Sequence[Any]:
        values, statistics = node.saved
        needed = [parent is not None for parent in node.parents]
        if not create_graph:
            return self.kernel_backward(g, statistics, needed, **values)
        # Fresh aliases of the inputs: where one input was computed from another, each still gets its own gradient only.
        values = dict(values)
        for name, parent in zip(self.inputs, node.parents):
            if parent is not None:
                values[name] = alias(wrap(values[name], parent))
            elif is_array(values[name]):
                values[name] = wrap(values[name], None)
        wanted = [values[name].node for name, parent in zip(self.inputs, node.parents) if parent is not None]
        out = self.reference(**values)
        found = backpropagate(out.node, g, wanted, retain_graph=True, create_graph=True)
        return [found.get(values[name].node) if parent is not None else None for name, parent in zip(self.inputs, node.parents)]


@op(x=lambda g: g)
def alias(x: Any) -> Any:
    """x itself, as a new node of the graph."""
    return x
