"""Matrix products and rotations. Product gradients follow two rules of matrix calculus: d(AB)/dA = G Bᵀ, d(AB)/dB = Aᵀ G."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinytensor import kernels
from tinytensor.autograd.op import op
from tinytensor.common.arguments import TENSOR, composite
from tinytensor.common.wording import counted
from tinytensor.device.backend import xp
from tinytensor.device.summation import sum_of_products, widened
from tinytensor.kernels.numpy.products import as_rows
from tinytensor.ops.elementwise import is_number, multiply
from tinytensor.ops.indexing import diagonal
from tinytensor.ops.shapes import broadcast_to, expand_dims, normalize_axes, reshape, swapaxes, transpose

if TYPE_CHECKING:
    from tinytensor.autograd.tensor import Tensor

__all__ = [
    "dot", "einsum", "linear", "matmul", "outer", "rotate_pairs", "tensordot",
]  # fmt: skip


SHORT_VECTOR = 1 << 16  # the product of longer vectors is summed in blocks


def T(x: Any) -> Any:
    """Swap the last two axes."""
    return swapaxes(x, -1, -2)


def _product(x: Any, y: Any) -> Any:
    """Return x @ y. A batch times one matrix is computed as one large product, faster than many small ones.

    Outer products use an elementwise multiplication: BLAS takes four times as long.
    """
    if x.shape[-1] == 1:
        return x * y
    if y.ndim == 2 and x.ndim != 2:
        flat = kernels.matmul(as_rows(x), y)
        return flat.reshape((*x.shape[:-1], y.shape[-1]))
    return kernels.matmul(x, y)


def _matmul_gradient_of_y(g: Any, x: Any, y_shape: tuple[int, ...]) -> Any:
    return _rows_matmul(x, g) if len(y_shape) == 2 else _matmul(T(x), g)


@op(x=lambda g, y: _matmul(g, T(y)), y=_matmul_gradient_of_y)
def _matmul(x: Any, y: Any) -> Any:
    return _product(x, y)


@op(x=lambda g, y: _matmul(y, T(g)), y=lambda g, x: _matmul(x, g))
def _rows_matmul(x: Any, y: Any) -> Any:
    """Return xᵀ y with the leading axes flattened: the gradient of a matrix that multiplies a batch, as one product."""
    return kernels.matmul(as_rows(x).T, as_rows(y))


@op(x=lambda g, y: g * y, y=lambda g, x: g * x)
def _inner(x: Any, y: Any) -> Any:
    if len(x) > SHORT_VECTOR:
        return _product(x[None], y[:, None])[0, 0]
    return widened(x).dot(widened(y))


def matmul(x: Any, y: Any) -> Tensor:
    """Return the matrix product x @ y: (..., n, k) @ (..., k, m) -> (..., n, m). Leading axes broadcast.

    A 1-d x is treated as a row and a 1-d y as a column; the added axis is removed from the result. Raises ValueError for a
    scalar and for mismatched lengths.

    >>> tt.matmul(tt.zeros((5, 2, 3)), tt.zeros((3, 4))).shape
    (5, 2, 4)
    """
    if not hasattr(x, "ndim") or not hasattr(y, "ndim") or x.ndim == 0 or y.ndim == 0:
        for name, value in {"x": x, "y": y}.items():
            if not hasattr(value, "ndim") and not is_number(value):
                TENSOR.of("matmul", name, value)  # raises
        raise ValueError("matmul needs tensors of at least one dimension: use * for a scalar")
    if x.shape[-1] != y.shape[max(y.ndim - 2, 0)]:
        which = "only" if y.ndim == 1 else "second-last"
        raise ValueError(
            f"matmul of shapes {x.shape}, {y.shape}: the last axis of the first ({x.shape[-1]}) must equal the {which} axis of "
            f"the second ({y.shape[max(y.ndim - 2, 0)]})"
        )
    if x.ndim == y.ndim == 1:
        return _inner(x, y)
    out = _matmul(reshape(x, (1, -1)) if x.ndim == 1 else x, reshape(y, (-1, 1)) if y.ndim == 1 else y)
    shape = list(out.shape)
    if y.ndim == 1:
        del shape[-1]
    if x.ndim == 1:
        del shape[-2]
    return out if len(shape) == out.ndim else reshape(out, shape)


@composite
def dot(x: Tensor | float, y: Tensor | float) -> Tensor:
    """Sum products over the last axis of x and the second-to-last (or only) axis of y.

    For vectors this is the inner product, for matrices the matrix product. Scalars multiply every element. Unlike ``matmul``,
    it multiplies each matrix of a stack x with each matrix of a stack y.

    >>> tt.dot(tt.tensor([1.0, 2.0]), tt.tensor([3.0, 4.0]))
    tensor(11.)
    >>> tt.dot(tt.ones((5, 2, 3)), tt.ones((4, 3, 6))).shape
    (5, 2, 4, 6)
    """
    if isinstance(x, (int, float)) or isinstance(y, (int, float)) or not x.ndim or not y.ndim:
        return multiply(x, y)
    axis = -1 if y.ndim == 1 else -2
    if x.shape[-1] != y.shape[axis]:
        raise ValueError(f"dot of shapes {x.shape}, {y.shape}: axis -1 of x must be as long as axis {axis} of y")
    return matmul(x, y) if y.ndim < 3 else tensordot(x, y, [[-1], [-2]])


@composite
def tensordot(x: Tensor, y: Tensor, axes: int | Sequence[int] | Sequence[Sequence[int]] = 2) -> Tensor:
    """Sum products over pairs of axes.

    ``axes`` is an integer n (pair the last n axes of x with the first n of y) or two lists: the axes of x and of y.

    >>> tt.tensordot(tt.ones((2, 3)), tt.ones((3, 4)), axes=1).shape
    (2, 4)
    """
    if isinstance(axes, int):
        if not 0 <= axes <= min(x.ndim, y.ndim):
            raise ValueError(f"tensordot of shapes {x.shape}, {y.shape}: they do not have {counted(axes, 'axis')} to multiply")
        axes = (range(x.ndim - axes, x.ndim), range(axes))
    if len(axes) != 2:
        raise ValueError(f"tensordot: axes must be a number, or axes of x and axes of y, got {axes}")
    left, right = normalize_axes(axes[0], x.ndim, "tensordot: axes"), normalize_axes(axes[1], y.ndim, "tensordot: axes")
    lengths = [x.shape[a] for a in left]
    if lengths != [y.shape[a] for a in right]:
        raise ValueError(f"tensordot of shapes {x.shape}, {y.shape}: the axes {left} and {right} differ in length")
    rows, columns = [a for a in range(x.ndim) if a not in left], [a for a in range(y.ndim) if a not in right]
    shape = [x.shape[a] for a in rows], [y.shape[a] for a in columns]
    x = reshape(transpose(x, [*rows, *left]), (math.prod(shape[0]), math.prod(lengths)))
    y = reshape(transpose(y, [*right, *columns]), (math.prod(lengths), math.prod(shape[1])))
    return reshape(_matmul(x, y), (*shape[0], *shape[1]))


@composite
def outer(x: Tensor, y: Tensor) -> Tensor:
    """Return the outer product (x.size, y.size) of the flattened x and y.

    >>> tt.outer(tt.tensor([1, 2]), tt.tensor([3, 4, 5]))
    tensor([[ 3,  4,  5],
            [ 6,  8, 10]])
    """
    return reshape(x, (-1, 1)) * reshape(y, (1, -1))


@op(x=lambda g, weight: _matmul(g, weight), weight=lambda g, x: _rows_matmul(g, x), bias=lambda g: g)
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Apply a linear layer: x @ weight.T + bias.

    Shapes: x (..., inputs), weight (outputs, inputs), bias (outputs,) -> (..., outputs).

    >>> x, weight = tt.tensor([[1.0, 2.0]]), tt.tensor([[3.0, 4.0], [5.0, 6.0]])
    >>> tt.linear(x, weight, tt.tensor([0.0, 1.0]))
    tensor([[11., 18.]])
    """
    if weight.ndim != 2 or x.shape[-1:] != weight.shape[1:]:
        raise ValueError("x (..., inputs) must end in as many inputs as weight (outputs, inputs) takes")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError("bias must be (outputs,) for a weight (outputs, inputs)")
    return kernels.linear(x, weight, bias)


# ------------------------------------------------------------------------------------------------------------ einsum


def _einsum_gradients(
    g: Any, arrays: Any, arrays_shape: list[tuple[int, ...]], terms: tuple[str, ...], output: str
) -> list[Any]:
    """Return the gradient of each operand: the einsum of g with the other operands.

    The einsum omits letters that only this operand has and axes of length 1. The result is broadcast along them.
    """
    gradients = []
    for i, (term, shape) in enumerate(zip(terms, arrays_shape)):
        other_terms = [t for j, t in enumerate(terms) if j != i]
        known = set(output).union(*other_terms)
        omitted = [axis for axis, letter in enumerate(term) if letter not in known or shape[axis] == 1]
        kept = "".join([letter for axis, letter in enumerate(term) if axis not in omitted])
        part = _einsum([g, *[a for j, a in enumerate(arrays) if j != i]], (output, *other_terms), kept)
        part = expand_dims(part, omitted) if omitted else part
        gradients.append(part if tuple(part.shape) == tuple(shape) else broadcast_to(part, shape))
    return gradients


@op(several=True, arrays=_einsum_gradients)
def _einsum(arrays: Sequence[Any], terms: tuple[str, ...], output: str) -> Any:
    dtype = functools.reduce(xp.promote_types, [x.dtype for x in arrays])  # einsum may multiply before promoting dtypes
    return sum_of_products(terms, output, *[widened(x.astype(dtype, copy=False)) for x in arrays])


@composite
def einsum(subscripts: str, *tensors: Tensor) -> Tensor:
    """Evaluate an Einstein summation as in ``numpy.einsum``: ``einsum("bij,bjk->bik", x, y)``.

    A repeated letter within an operand takes its diagonal. An ellipsis stands for axes that broadcast. If you omit ``->``, the
    output has the letters that occur once, in alphabetical order. Raises ValueError if the subscripts do not match the tensors.

    >>> x = tt.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> tt.einsum("ij,j->i", x, tt.tensor([1.0, 10.0]))
    tensor([21., 43.])
    >>> tt.einsum("ii", x)
    tensor(5.)
    """
    terms, output = _parse(subscripts, tensors)
    operands = []
    for i, (term, x) in enumerate(zip(terms, tensors)):
        while len(set(term)) < len(term):
            term, x = _diagonal(term, x)
        terms[i] = term
        operands.append(x)
    return _einsum(operands, tuple(terms), output)


def _parse(subscripts: str, tensors: tuple[Tensor, ...]) -> tuple[list[str], str]:
    """Return the terms and the output with each ellipsis replaced by unused capital letters."""
    text = subscripts.replace(" ", "")
    left, arrow, output = text.partition("->")
    terms = left.split(",")
    if wrong := [term for term in (*terms, output) if not re.fullmatch(r"[A-Za-z]*(\.\.\.)?[A-Za-z]*", term)]:
        raise ValueError(f"einsum {subscripts!r}: {wrong[0]!r} must have letters and at most one ellipsis, as in 'a...b'")
    if len(terms) != len(tensors):
        raise ValueError(f"einsum {subscripts!r} has {counted(len(terms), 'term')} for {counted(len(tensors), 'tensor')}")
    spare = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in text]
    hidden = max([x.ndim - len(t.replace("...", "")) for t, x in zip(terms, tensors) if "..." in t], default=0)
    for i, (term, x) in enumerate(zip(terms, tensors)):
        here = x.ndim - len(term.replace("...", ""))
        if here < 0 or (here > 0 and "..." not in term):
            raise ValueError(f"einsum {subscripts!r}: term {term!r} does not fit a tensor of shape {x.shape}")
        terms[i] = term.replace("...", "".join(spare[hidden - here : hidden]))
    ellipsis = "".join(spare[:hidden])
    if not arrow:
        letters = left.replace("...", "").replace(",", "")
        output = "..." + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    return terms, output.replace("...", ellipsis)


def _diagonal(term: str, x: Tensor) -> tuple[str, Tensor]:
    """Replace the two axes of the first repeated letter by their diagonal, which becomes the last axis."""
    letter = next(c for c in term if term.count(c) > 1)
    a = term.index(letter)
    b = term.index(letter, a + 1)
    if x.shape[a] != x.shape[b]:
        raise ValueError(f"einsum: the axes {letter!r} of a tensor of shape {x.shape} differ in length")
    kept = "".join(c for axis, c in enumerate(term) if axis not in (a, b))
    return kept + letter, diagonal(x, 0, a, b)


@op(floating=True, x=lambda g, cosine, sine: rotate_pairs(g, cosine, -sine))  # rotates back
def rotate_pairs(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate each pair of elements i and n + i along the last axis of x (..., 2 n).

    ``cosine`` and ``sine`` of the angles broadcast to (..., n) and receive no gradient. Raises ValueError if the length of the
    last axis is odd.
    """
    if not x.ndim or x.shape[-1] % 2:
        raise ValueError("x needs pairs of elements: a last axis of an even length")
    return kernels.rotate_pairs(x, cosine, sine)
