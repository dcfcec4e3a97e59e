"""``@fused``: a composite of ops whose body is the definition, and whose work a pair of kernels does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from tinytensor.engine import Function, FusedOp


def fused(
    forward: Callable[..., tuple[Any, Any]], backward: Callable[..., Sequence[Any]], inputs: tuple[str, ...]
) -> Callable[[Function], Function]:
    """Declare the decorated composite as a fused op; ``inputs`` are the parameters that get gradients.

    The kernels' contract stands with ``FusedOp``: forward(**arguments) -> (out, statistics), backward(g, statistics,
    needed, **arguments) -> one gradient an input.
    """

    def declare(reference: Function) -> Function:
        return cast(Function, FusedOp(reference, inputs, forward, backward))

    return declare
