"""Derivatives: ``grad``, ``jacobian``, ``hessian`` and ``hvp`` (Hessian-vector product).

A backward pass differentiates one number, so a Jacobian takes one pass for each element of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

from tinytensor.autograd import engine
from tinytensor.autograd.modes import enable_grad
from tinytensor.autograd.tensor import Tensor, start_of_backward, with_own_memory
from tinytensor.common.arguments import checked, shown
from tinytensor.creation import zeros, zeros_like
from tinytensor.ops import copy, reshape, stack, sum

__all__ = ["grad", "hessian", "hvp", "jacobian"]


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
    """Return the gradients of ``output`` with respect to ``inputs`` without changing any ``.grad``.

    Returns a tensor for a tensor and a list for a sequence. Each gradient has the shape and dtype of its input. If
    ``create_graph`` is set, the gradients are differentiable. If the output does not depend on an input, raises RuntimeError
    or, if ``allow_unused`` is set, returns None for that input.

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
    gradients = engine.backpropagate(node, g, wanted, retain_graph=retain, create_graph=create_graph)
    results: list[Tensor | None] = []
    returned: set[engine.Node] = set()
    for i, n in enumerate(wanted):
        if n not in gradients and not allow_unused:
            raise RuntimeError(
                f"the output does not depend on input {i} of shape {n.shape}: with allow_unused=True its gradient is None"
            )
        value = gradients.get(n)
        results.append(None if value is None else with_own_memory(value.copy() if n in returned else value))
        returned.add(n)
    return results if several else results[0]


def _listed(x: Tensor | Sequence[Tensor]) -> list[Tensor]:
    return [x] if isinstance(x, Tensor) else list(x)


def _like(x: Tensor | Sequence[Tensor], results: list[Any]) -> Any:
    """Return the single result if x is one tensor, else a tuple of results."""
    return results[0] if isinstance(x, Tensor) else tuple(results)


def _point(x: Tensor, create_graph: bool) -> Tensor:
    """Return a copy of x to pass to f, so that other references to x in f are constants."""
    if create_graph and x.requires_grad:
        return copy(x)
    point = x.detach()
    point.requires_grad = True
    return point


def _call(name: str, f: Callable[..., Tensor], points: list[Tensor]) -> Tensor:
    """Call f and return its result. Raises TypeError unless the result is one tensor."""
    out = f(*points)
    if not isinstance(out, Tensor):
        raise TypeError(f"{name}: f must return one tensor, got {shown(out)}")
    return out


def _gradients(out: Tensor, points: list[Tensor], create_graph: bool) -> list[Tensor]:
    """Return the gradients of one number (zeros where it does not depend on a point). Keep the graph."""
    if not out.requires_grad:
        return [zeros_like(x) for x in points]
    gradients = grad(out, points, create_graph=create_graph, retain_graph=True, allow_unused=True)
    return [zeros_like(x) if g is None else g for g, x in zip(gradients, points)]


def _jacobians(out: Tensor, points: list[Tensor], create_graph: bool) -> list[Tensor]:
    """Return the derivatives of each element of ``out``."""
    shapes = [(*out.shape, *x.shape) for x in points]
    if out.size == 0:
        return [zeros(shape, x.dtype) for shape, x in zip(shapes, points)]
    rows = [_gradients(number, points, create_graph) for number in reshape(out, -1)]
    return [reshape(stack(column), shape) for column, shape in zip(zip(*rows), shapes)]


def _slopes(name: str, f: Callable[..., Tensor], points: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Return the value of f (one number) and its differentiable gradients."""
    out = _call(name, f, points)
    if out.size != 1:
        raise ValueError(f"{name}: f must return one number, got shape {out.shape}: sum it, or use jacobian")
    return out, _gradients(out, points, create_graph=True)


@overload
def jacobian(f: Callable[..., Tensor], x: Tensor, *, create_graph: bool = False) -> Tensor: ...
@overload
def jacobian(f: Callable[..., Tensor], x: Sequence[Tensor], *, create_graph: bool = False) -> tuple[Tensor, ...]: ...
@checked
def jacobian(f: Callable[..., Tensor], x: Tensor | Sequence[Tensor], *, create_graph: bool = False) -> Any:
    """Return the Jacobian (*f(x).shape, *x.shape): the derivatives of each element of f(x) with respect to each element of x.

    If x is a sequence of tensors, call f(*x) and return one Jacobian for each tensor (0 if f does not depend on it). If
    ``create_graph`` is set, the result is differentiable.

    >>> tt.jacobian(lambda x: x * x, tt.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """
    with enable_grad():
        points = [_point(one, create_graph) for one in _listed(x)]
        return _like(x, _jacobians(_call("jacobian", f, points), points, create_graph))


@overload
def hessian(f: Callable[..., Tensor], x: Tensor, *, create_graph: bool = False) -> Tensor: ...
@overload
def hessian(f: Callable[..., Tensor], x: Sequence[Tensor], *, create_graph: bool = False) -> tuple[tuple[Tensor, ...], ...]: ...
@checked
def hessian(f: Callable[..., Tensor], x: Tensor | Sequence[Tensor], *, create_graph: bool = False) -> Any:
    """Return the Hessian (*x.shape, *x.shape): the second derivatives of the single number f(x).

    If x is a sequence of tensors, call f(*x) and return a tuple of tuples: the derivatives of each gradient with respect to
    each tensor. If ``create_graph`` is set, the result is differentiable. Raises ValueError if f returns several numbers.

    >>> tt.hessian(lambda x: x[0] ** 2 * x[1], tt.tensor([1.0, 2.0]))
    tensor([[4., 2.],
            [2., 0.]])
    """
    with enable_grad():
        points = [_point(one, create_graph) for one in _listed(x)]
        _, slopes = _slopes("hessian", f, points)
        return _like(x, [_like(x, _jacobians(slope, points, create_graph)) for slope in slopes])


@overload
def hvp(f: Callable[..., Tensor], x: Tensor, v: Tensor, *, create_graph: bool = False) -> tuple[Tensor, Tensor]: ...
@overload
def hvp(
    f: Callable[..., Tensor], x: Sequence[Tensor], v: Sequence[Tensor], *, create_graph: bool = False
) -> tuple[Tensor, tuple[Tensor, ...]]: ...
@checked
def hvp(
    f: Callable[..., Tensor], x: Tensor | Sequence[Tensor], v: Tensor | Sequence[Tensor], *, create_graph: bool = False
) -> tuple[Tensor, Any]:
    """Return the single number f(x), and its Hessian times ``v`` (same shape as x), in two backward passes.

    If x is a sequence of tensors, call f(*x). ``v`` then holds as many tensors, and the product is a tuple.

    >>> tt.hvp(lambda x: x[0] ** 2 * x[1], tt.tensor([1.0, 2.0]), tt.tensor([1.0, 0.0]))
    (tensor(2.), tensor([4., 2.]))
    """
    shapes, wanted = [one.shape for one in _listed(v)], [one.shape for one in _listed(x)]
    if shapes != wanted:
        raise ValueError(f"hvp: v must have the shapes of x, {wanted}, got {shapes}")
    with enable_grad():
        points = [_point(one, create_graph) for one in _listed(x)]
        out, slopes = _slopes("hvp", f, points)
        along = stack([sum(slope * one) for slope, one in zip(slopes, _listed(v))]).sum()
        return out if create_graph else out.detach(), _like(x, _gradients(along, points, create_graph))
