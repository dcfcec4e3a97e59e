"""grad: the derivative of a tensor by others, without a change of any ``.grad``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, overload

from tinytensor.autograd import engine
from tinytensor.autograd.tensor import Tensor, start_of_backward, with_own_memory
from tinytensor.common.arguments import checked


@overload
def grad(
    output: Tensor,
    inputs: Tensor,
    gradient: Tensor | None = None,
    *,
    create_graph: bool = False,
    retain_graph: bool | None = None,
    allow_unused: Literal[False] = False,
) -> Tensor: ...


@overload
def grad(
    output: Tensor,
    inputs: Sequence[Tensor],
    gradient: Tensor | None = None,
    *,
    create_graph: bool = False,
    retain_graph: bool | None = None,
    allow_unused: Literal[False] = False,
) -> list[Tensor]: ...


@overload
def grad(
    output: Tensor,
    inputs: Tensor | Sequence[Tensor],
    gradient: Tensor | None = None,
    *,
    create_graph: bool = False,
    retain_graph: bool | None = None,
    allow_unused: bool,
) -> Any: ...


@checked
def grad(
    output: Tensor,
    inputs: Tensor | Sequence[Tensor],
    gradient: Tensor | None = None,
    *,
    create_graph: bool = False,
    retain_graph: bool | None = None,
    allow_unused: bool = False,
) -> Any:
    """The gradients of ``output`` with respect to ``inputs``, one tensor or several. No ``.grad`` changes.

    Returns a tensor for a tensor and a list for a sequence. Each gradient has its input's shape and dtype. With
    ``create_graph`` the gradients are themselves differentiable. An input that the output does not depend on raises
    RuntimeError, or gives None with ``allow_unused``.

    >>> x = tt.tensor(3.0, requires_grad=True)
    >>> slope = tt.grad(x**3, x, create_graph=True)
    >>> slope, tt.grad(slope, x)
    (tensor(27., op=multiply), tensor(18.))
    """
    several = not isinstance(inputs, Tensor)
    targets: list[Tensor] = list(inputs) if several else [inputs]  # type: ignore[list-item]
    for i, x in enumerate(targets):
        if x.node is None:
            raise RuntimeError(f"input {i} of shape {x.shape} does not require gradients: make it with requires_grad=True")
    node, g = start_of_backward(output, gradient, create_graph)
    retain = create_graph if retain_graph is None else retain_graph
    wanted = [x.node for x in targets if x.node is not None]
    found = engine.backpropagate(node, g, wanted, retain_graph=retain, create_graph=create_graph)
    results: list[Tensor | None] = []
    given: set[engine.Node] = set()
    for i, n in enumerate(wanted):
        if n not in found and not allow_unused:
            raise RuntimeError(
                f"the output does not depend on input {i} of shape {n.shape}: with allow_unused=True its gradient is None"
            )
        value = found.get(n)
        results.append(None if value is None else with_own_memory(value.copy() if n in given else value))
        given.add(n)
    return results if several else results[0]
