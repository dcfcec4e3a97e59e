"""Check gradients against finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tinytensor import random
from tinytensor.autograd.modes import full_precision
from tinytensor.autograd.tensor import Tensor, is_differentiable
from tinytensor.common.arguments import checked
from tinytensor.device.backend import host
from tinytensor.transforms.derivatives import grad


class GradcheckError(AssertionError):
    """A gradient disagrees with its finite difference. The message reports where and by how much."""


@checked
def gradcheck(
    f: Callable[..., Tensor],
    inputs: Tensor | Sequence[Tensor],
    order: int = 1,
    *,
    eps: float = 1e-6,
    rtol: float = 1e-6,
    atol: float = 1e-6,
) -> bool:
    """Compare the gradients of f with central differences. Return True, or raise GradcheckError for the worst element.

    ``inputs`` are float64 tensors. All inputs that require gradients are checked. The cotangent is RANDOM: a plain sum of the
    output would hide faults in softmax and the norms, because their gradients would vanish.

    ``order=2`` checks the gradient of the gradient against differences of first-order gradients. These are computed without a
    graph, and so by kernels if the function has any. A missing graph counts as a gradient of 0 and fails the check. An element
    passes if it is within ``atol + rtol * the largest element`` of its difference.

    >>> x = tt.tensor([0.5, -1.0], dtype="float64", requires_grad=True)
    >>> tt.gradcheck(lambda x: x.softmax().log(), x, order=2)
    True
    """
    if order not in (1, 2):
        raise ValueError(f"gradcheck: order must be 1 or 2, got {order}")
    tensors = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    checked = [i for i, x in enumerate(tensors) if is_differentiable(x) and x.requires_grad]
    if not checked:
        raise ValueError("gradcheck: no input requires gradients: make one with requires_grad=True")
    if any(tensors[i].dtype != "float64" for i in checked):
        raise TypeError("gradcheck needs float64: finite differences of float32 are too coarse")
    with full_precision():
        cotangent = _random_like(f(*tensors))

        def pulled_back(*point: Tensor, create_graph: bool = False) -> list[Tensor]:
            return _gradients(f(*point), [point[i] for i in checked], cotangent, create_graph)

        if order == 1:
            analytic = pulled_back(*tensors)
            numeric = [_differences(lambda *p: [(f(*p), cotangent)], tensors, i, eps) for i in checked]
        else:
            second = [_random_like(g) for g in pulled_back(*tensors)]
            pairs = [(g, c) for g, c in zip(pulled_back(*tensors, create_graph=True), second) if g.requires_grad]
            total = sum((g * c).sum() for g, c in pairs) if pairs else None
            points = [tensors[i] for i in checked]
            analytic = _gradients(total, points, None, False) if isinstance(total, Tensor) else [_zeros(x) for x in points]
            numeric = [_differences(lambda *p: list(zip(pulled_back(*p), second)), tensors, i, eps) for i in checked]
    for i, a, n in zip(checked, analytic, numeric):
        _compare(a.numpy(), n, i, order, rtol, atol)
    return True


def _gradients(output: Tensor, inputs: list[Tensor], cotangent: Tensor | None, create_graph: bool) -> list[Tensor]:
    if not output.requires_grad:
        return [_zeros(x) for x in inputs]
    gradients = grad(output, inputs, cotangent, create_graph=create_graph, allow_unused=True)
    return [_zeros(x) if g is None else g for g, x in zip(gradients, inputs)]


def _zeros(x: Tensor) -> Tensor:
    return Tensor(host.zeros(x.shape))


def _random_like(x: Tensor) -> Tensor:
    return Tensor(random.generator().standard_normal(x.shape))


def _differences(outputs: Callable[..., Any], inputs: Sequence[Tensor], index: int, eps: float) -> Any:
    """Return central differences of sum(output * cotangent) with respect to the elements of input ``index``."""
    centre = inputs[index].numpy()
    slopes = host.zeros(centre.shape)
    for position in host.ndindex(*centre.shape):
        ends = []
        for step in (eps, -eps):
            moved = centre.copy()
            moved[position] += step
            point = [Tensor(moved, requires_grad=True) if i == index else x for i, x in enumerate(inputs)]
            ends.append(sum(float((out.numpy() * c.numpy()).sum()) for out, c in outputs(*point)))
        slopes[position] = (ends[0] - ends[1]) / (2 * eps)
    return slopes


def _compare(analytic: Any, numeric: Any, index: int, order: int, rtol: float, atol: float) -> None:
    if analytic.size == 0:
        return
    error = host.abs(analytic - numeric)
    allowed = atol + rtol * float(host.abs(numeric).max())
    if not (error <= allowed).all():  # not (error > allowed).any(), because NaN would pass
        worst = int(host.argmax(host.where(host.isnan(error), host.inf, error)))
        position = tuple([int(i) for i in host.unravel_index(worst, error.shape)])
        raise GradcheckError(
            f"gradient of order {order} of input {index} at {position}: {analytic[position]:.8g}, "
            f"but differences give {numeric[position]:.8g} (off by {error[position]:.2g}, allowed {allowed:.2g})"
        )
