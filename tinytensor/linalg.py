"""Linear equations, inverses, determinants and Cholesky factors, named as in NumPy: ``tt.linalg.solve`` and so on.

Each function takes one matrix or a stack (..., n, n). Gradient rules: M. B. Giles, "Collected matrix derivative results for
forward and reverse mode algorithmic differentiation" (2008). Half-precision inputs are computed in float32.
"""

# Annotations describe what users pass. The function bodies receive arrays.
# mypy: disable-error-code="return-value"

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tinytensor.autograd.op import op
from tinytensor.autograd.replaying import current_step
from tinytensor.common.arguments import composite
from tinytensor.common.missing import names_of as _names_of
from tinytensor.device.backend import faults_are_errors, host, xp
from tinytensor.device.summation import widened
from tinytensor.ops import broadcast_to, expand_dims, matmul, moveaxis, reshape, stack, tril, where
from tinytensor.ops.linear_algebra import T

if TYPE_CHECKING:
    from tinytensor.autograd.tensor import Tensor

__all__ = [
    "cholesky", "det", "inv", "slogdet", "solve",
]  # fmt: skip


def _matrices(x: Any) -> Any:
    """Convert x to the dtype of the computation. Raises ValueError unless x holds square matrices."""
    current_step().refuse("what linear algebra finds out about matrices on the CPU", "compute it before, and pass it in")
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ValueError("the matrices must be square: (..., n, n)")
    return widened(x)


@contextmanager
def _explaining(problem: str) -> Iterator[None]:
    """Convert linear algebra errors of the backend to a ValueError with this message."""
    try:
        with faults_are_errors():
            yield
    except host.linalg.LinAlgError:
        raise ValueError(problem) from None


_SINGULAR = "a matrix is singular: its rows are not independent, so it has no inverse; add a small multiple of tt.eye(n) to it"


def _spread(g: Any) -> Any:
    """Reshape a gradient with one element per matrix so that it broadcasts with the matrices."""
    return expand_dims(g, (-2, -1))


@op(floating=True, x=lambda g, out: -matmul(T(out), matmul(g, T(out))))
def inv(x: Tensor) -> Tensor:
    """Return the inverse of each matrix. Raises ValueError for a singular matrix. To solve equations, use ``solve``: it is more
    accurate.

    >>> tt.linalg.inv(tt.tensor([[2.0, 0.0], [0.0, 4.0]]))
    tensor([[0.5 , 0.  ],
            [0.  , 0.25]])
    """
    x = _matrices(x)
    with _explaining(_SINGULAR):
        return xp.linalg.inv(x)


def _solve_gradient_of_y(g: Any, x: Any) -> Any:
    return _solve(T(x), g)


@op(floating=True, x=lambda g, x, out: -matmul(_solve_gradient_of_y(g, x), T(out)), y=_solve_gradient_of_y)
def _solve(x: Any, y: Any) -> Any:
    x, y = _matrices(x), widened(y)
    with _explaining(_SINGULAR):
        return xp.linalg.solve(x, y)


@composite
def solve(x: Tensor, y: Tensor) -> Tensor:
    """Solve the linear equations x @ z = y for z. Raises ValueError if x is singular.

    A 1-d y is one vector. Any other y is a stack of matrices (..., n, k), as in NumPy. Leading axes broadcast.

    >>> x = tt.tensor([[1.0, 1.0], [1.0, -1.0]])
    >>> tt.linalg.solve(x, tt.tensor([3.0, 1.0]))
    tensor([2., 1.])
    """
    n = x.shape[-1] if x.ndim else 0
    columns = expand_dims(y, -1) if y.ndim == 1 else y
    if x.ndim < 2 or x.shape[-2] != n or columns.ndim < 2 or columns.shape[-2] != n:
        raise ValueError(f"solve of shapes {x.shape}, {y.shape}: x must be (..., n, n), and y (n,) or (..., n, k)")
    try:
        lead = host.broadcast_shapes(x.shape[:-2], columns.shape[:-2])
    except ValueError:
        raise ValueError(f"solve of shapes {x.shape}, {y.shape}: the axes before the last two do not broadcast") from None
    out = _solve(broadcast_to(x, (*lead, n, n)), broadcast_to(columns, (*lead, *columns.shape[-2:])))
    return reshape(out, out.shape[:-1]) if y.ndim == 1 else out


def _cofactors(x: Any) -> Any:
    """Return the cofactors: the signed determinant of each matrix with one row and one column removed."""
    n = x.shape[-1]
    remaining = xp.arange(n - 1) + (xp.arange(n - 1) >= xp.arange(n)[:, None])  # row i: all indices but i
    rows = []
    for i in range(n):
        minors = det(moveaxis(x[..., remaining[i], :][..., remaining], -2, -3))
        rows.append(where((xp.arange(n) + i) % 2 == 0, minors, -minors))
    return stack(rows, -2)


def _det_gradient(g: Any, x: Any, out: Any) -> Any:
    """Return g times the cofactors. If x is not singular, they are det(x) times the transposed inverse."""
    if bool((_slogdet_sign(x) == 0).any()):
        return _spread(g) * _cofactors(x)
    return _spread(g * out) * T(inv(x))


@op(floating=True, x=_det_gradient)
def det(x: Tensor) -> Tensor:
    """Return the determinant of each matrix. For large matrices it easily overflows: use ``slogdet``.

    >>> tt.linalg.det(tt.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor(-2.)
    """
    return xp.linalg.det(_matrices(x))


@op(floating=True)
def _slogdet_sign(x: Any) -> Any:
    return xp.linalg.slogdet(_matrices(x))[0]


@op(floating=True, x=lambda g, x: _spread(g) * T(inv(x)))
def _slogdet_logarithm(x: Any) -> Any:
    return xp.linalg.slogdet(_matrices(x))[1]


@composite
def slogdet(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sign of each determinant and the logarithm of its absolute value (0 and -inf for a singular matrix).

    The sign has no gradient. The gradient at a singular matrix is infinite, so the backward pass raises ValueError.

    >>> sign, logarithm = tt.linalg.slogdet(tt.tensor([[0.0, 2.0], [2.0, 0.0]]))
    >>> sign, logarithm.exp()
    (tensor(-1.), tensor(4.))
    """
    return _slogdet_sign(x), _slogdet_logarithm(x)


def _cholesky_gradient(g: Any, out: Any) -> Any:
    """Return the symmetric part of out⁻ᵀ P out⁻¹, where P is the lower triangle of outᵀ g with its diagonal halved."""
    product = matmul(T(out), g)
    halved = 0.5 * (tril(product) + tril(product, -1))
    left = _solve(T(out), halved)
    both = T(_solve(T(out), T(left)))
    return 0.5 * (both + T(both))


@op(floating=True, x=_cholesky_gradient)
def cholesky(x: Tensor) -> Tensor:
    """Return the lower triangular matrix L such that L @ Lᵀ = x, for each symmetric positive definite matrix x.

    Only the lower triangle of x is read; the gradient is symmetric. Raises ValueError unless x is positive definite.

    >>> tt.linalg.cholesky(tt.tensor([[4.0, 2.0], [2.0, 5.0]]))
    tensor([[2., 0.],
            [1., 2.]])
    """
    x = _matrices(x)
    with _explaining("a matrix is not positive definite: x @ xᵀ + a small multiple of tt.eye(n) is, for every x"):
        return xp.linalg.cholesky(x)


if not TYPE_CHECKING:
    __getattr__, __dir__ = _names_of(__name__)
