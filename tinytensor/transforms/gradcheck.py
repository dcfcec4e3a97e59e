"""gradcheck: are the gradients right? It compares them with finite differences."""

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
    """A gradient and its finite difference disagree; the message says where and by how much."""


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
    """Compare f's gradients with central differences. Return True, or raise GradcheckError, which names the worst element.

    ``inputs`` are float64 tensors; those that require gradients are checked. The gradient is taken with a RANDOM cotangent,
    because the sum of f's output would hide faults in softmax and the norms, whose gradients then vanish.

    ``order=2`` checks the gradient of the gradient in the same way, with differences of first-order gradients. Those are
    computed without a graph, so by kernels if the function has any. A missing graph counts as a gradient of 0, and the check
    fails. An element passes if it is within ``atol + rtol * the largest element`` of its difference.

    >>> x = tt.tensor([0.5, -1.0], dtype="float64", requires_grad=True)
    >>> tt.gradcheck(lambda x: x.softmax().log(), x, order=2)
    True
    """
    if order not in (1, 2):
        raise ValueError(f"gradcheck can check order 1 or 2, not {order}")
    given = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    checked = [i for i, x in enumerate(given) if is_differentiable(x) and x.requires_grad]
    if not checked:
        raise ValueError("gradcheck: no input requires gradients: make one with requires_grad=True")
    if any(given[i].dtype != "float64" for i in checked):
        raise TypeError("gradcheck needs float64: finite differences of float32 are too coarse")
    with full_precision():
        cotangent = _random_like(f(*given))

        def pulled_back(*point: Tensor, create_graph: bool = False) -> list[Tensor]:
            return _gradients(f(*point), [point[i] for i in checked], cotangent, create_graph)

        if order == 1:
            analytic = pulled_back(*given)
            numeric = [_differences(lambda *p: [(f(*p), cotangent)], given, i, eps) for i in checked]
        else:
            second = [_random_like(g) for g in pulled_back(*given)]
            pairs = [(g, c) for g, c in zip(pulled_back(*given, create_graph=True), second) if g.requires_grad]
            total = sum((g * c).sum() for g, c in pairs) if pairs else None
            points = [given[i] for i in checked]
            analytic = _gradients(total, points, None, False) if isinstance(total, Tensor) else [_zeros(x) for x in points]
            numeric = [_differences(lambda *p: list(zip(pulled_back(*p), second)), given, i, eps) for i in checked]
    for i, a, n in zip(checked, analytic, numeric):
        _compare(a.numpy(), n, i, order, rtol, atol)
    return True


def _gradients(output: Tensor, inputs: list[Tensor], cotangent: Tensor | None, create_graph: bool) -> list[Tensor]:
    if not output.requires_grad:
        return [_zeros(x) for x in inputs]
    found = grad(output, inputs, cotangent, create_graph=create_graph, allow_unused=True)
    return [_zeros(x) if g is None else g for g, x in zip(found, inputs)]


def _zeros(x: Tensor) -> Tensor:
    return Tensor(host.zeros(x.shape))


def _random_like(x: Tensor) -> Tensor:
    return Tensor(random.generator().standard_normal(x.shape))


def _differences(outputs: Callable[..., Any], inputs: Sequence[Tensor], index: int, eps: float) -> Any:
    """The derivative of the sum of output * cotangent by each element of input ``index``, as central differences."""
    centre = inputs[index].numpy()
    slopes = host.zeros(centre.shape)
    for place in host.ndindex(*centre.shape):
        ends = []
        for step in (eps, -eps):
            moved = centre.copy()
            moved[place] += step
            point = [Tensor(moved, requires_grad=True) if i == index else x for i, x in enumerate(inputs)]
            ends.append(sum(float((out.numpy() * c.numpy()).sum()) for out, c in outputs(*point)))
        slopes[place] = (ends[0] - ends[1]) / (2 * eps)
    return slopes


def _compare(analytic: Any, numeric: Any, index: int, order: int, rtol: float, atol: float) -> None:
    if analytic.size == 0:
        return
    error = host.abs(analytic - numeric)
    allowed = atol + rtol * float(host.abs(numeric).max())
    if not (error <= allowed).all():  # not (error > allowed).any(), because NaN would pass
        worst = int(host.argmax(host.where(host.isnan(error), host.inf, error)))
        place = tuple([int(i) for i in host.unravel_index(worst, error.shape)])
        raise GradcheckError(
            f"gradient of order {order} of input {index} at {place}: {analytic[place]:.8g}, "
            f"but differences give {numeric[place]:.8g} (off by {error[place]:.2g}, allowed {allowed:.2g})"
        )
