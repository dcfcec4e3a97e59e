"""Indexing and its adjoint: ``x[index]`` gathers elements and ``scatter`` adds them back. Each is the other's gradient.

All ops that select elements (take, sort, topk, ...) use these two. Only ``embedding`` has its own, faster rules.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinytensor import kernels
from tinytensor.autograd.engine import Part
from tinytensor.autograd.inputs import PLAIN, check_not_masked
from tinytensor.autograd.modes import modes
from tinytensor.autograd.op import op
from tinytensor.autograd.replaying import array_of, current_step
from tinytensor.common.arguments import composite, shown
from tinytensor.common.wording import counted
from tinytensor.device.backend import host, index_dtype, is_array, is_floating, is_host_array, scatter_add, xp
from tinytensor.ops.shapes import moveaxis, normalize_axis, reshape

if TYPE_CHECKING:
    from tinytensor.autograd.tensor import Tensor

Ids = Any  # a tensor or an array of integers, of NumPy or of the backend

__all__ = [
    "diag", "diagonal", "embedding", "getitem", "index_add", "one_hot", "scatter", "sum_rows", "take", "take_along_axis",
]  # fmt: skip


def _is_basic(index: Any) -> bool:
    """Return True for an index of ints, slices, None and ellipsis. Such an index gives a view and repeats no element."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(part is None or part is Ellipsis or isinstance(part, (int, slice, host.integer)) for part in parts)


def _is_all(index: Any, shape: tuple[int, ...]) -> bool:
    """Return True for slices that together select every element, in order."""
    parts = index if isinstance(index, tuple) else (index,)
    return len(parts) <= len(shape) and all(
        isinstance(part, slice) and part.indices(n) == (0, n, 1) for part, n in zip(parts, shape)
    )


def as_index(index: Any) -> Any:
    """Convert the tensors, lists and NumPy arrays in an index to arrays of the backend.

    Raises IndexError for floats.
    """
    if type(index) is int or index is None or index is Ellipsis:
        return index
    if isinstance(index, tuple):
        return tuple([as_index(part) for part in index])
    if type(index) is slice:
        for end in (index.start, index.stop, index.step):
            if type(end) not in PLAIN:
                return _without_arrays(index)
        return index
    index = _of_backend(index)
    if isinstance(index, float) or (hasattr(index, "dtype") and index.dtype.kind not in "iub"):  # CuPy truncates a float
        dtype = getattr(index, "dtype", "float")
        raise IndexError(f"an index must be of integers or booleans, got {dtype}: convert it with .astype('int64')")
    return index


def _without_arrays(index: slice) -> slice:
    return slice(*[end if end is None else operator.index(end) for end in (index.start, index.stop, index.step)])


def _of_backend(index: Any) -> Any:
    """Convert a tensor, list or NumPy array to an array of the backend. Return any other index unchanged."""
    if hasattr(index, "node"):
        return array_of(index)
    if isinstance(index, (list, range)):
        index = host.asarray(index, dtype=None if len(index) else index_dtype)
    if isinstance(index, host.ndarray):
        check_not_masked(index)
        current_step().refuse("the places of an index", "make it a tensor before, and pass it in", before=False)
        return xp.asarray(index)
    return index


def as_integers(caller: str, indices: Any) -> Any:
    """Return indices as an integer array. Raises TypeError for other dtypes, including booleans (use x[mask])."""
    index = _of_backend(list(indices) if isinstance(indices, tuple) else indices)
    if type(index) is int or isinstance(index, host.integer):
        return xp.full((), index, index_dtype)
    if not is_array(index) or index.dtype.kind not in "iu":
        actual = index.dtype if is_array(index) else shown(indices)
        raise TypeError(f"{caller} needs integer indices, got {actual}: convert them with .astype('int64'), or use x[mask]")
    return index


def _getitem_gradient(g: Any, x_shape: tuple[int, ...], index: Any) -> Any:
    """Return the gradient of x[index]: 0 except for the selected elements.

    If no graph is recorded and no element repeats, return a ``Part``. The engine adds it in place, so the pieces of a split
    tensor need no arrays of zeros. If x[index] is all of x, return g.
    """
    if _is_all(index, x_shape):
        return g
    return Part(index, g) if is_array(g) and _is_basic(index) else _scatter(g, index, x_shape)


@op(x=_getitem_gradient)
def _getitem(x: Any, index: Any) -> Any:
    if type(index) is tuple and len(index) == x.ndim > 1 and _are_ids(index) and max(part.size for part in index) >= _MANY:
        return host.take(x, _flat(index, x.shape), mode="clip")
    return x[index]


_MANY = 4096  # from this size, NumPy gathers from a flat array twice as fast as by several indices


def _are_ids(parts: tuple[Any, ...]) -> bool:
    return xp is host and all(is_array(part) and part.dtype.kind in "iu" for part in parts)


def _flat(parts: Sequence[Any], shape: tuple[int, ...]) -> Any:
    """Return indices into the flattened array. Raises IndexError if an index is out of bounds."""
    flat: Any = 0
    for axis, (part, n) in enumerate(zip(parts, shape)):
        flat = flat * n + _from_zero(part, n, axis).astype(index_dtype, copy=False)
    return flat


@composite
def getitem(x: Tensor, index: Any) -> Tensor:
    """Return x[index]. As in NumPy, the index may combine ints, slices, None, ellipsis, and integer and boolean arrays."""
    return _getitem(x, as_index(index))


@op(values=lambda g, index: _getitem(g, index))
def _scatter(values: Any, index: Any, shape: int | Sequence[int]) -> Tensor:
    out = xp.zeros(shape, dtype=values.dtype)
    if _is_basic(index):
        out[index] = xp.broadcast_to(values, out[index].shape)  # raises for values with more axes, even of length 1
    else:
        _add_at(out, index, values)
    return out


def _add_at(out: Any, index: Any, values: Any) -> None:
    """Add the values to out[index]. Values at a repeated index add up."""
    parts = index if isinstance(index, tuple) else (index,)
    if is_floating(out.dtype) and _are_ids(parts):
        if len(parts) == 1 and out.ndim > 1 and out.size and parts[0].size:
            ids = _from_zero(parts[0], len(out), 0)
            rows = xp.broadcast_to(values, (*ids.shape, *out.shape[1:])).reshape(ids.size, -1)
            return kernels.sum_rows(rows, ids, out.reshape(len(out), -1))
        if len(parts) == out.ndim and 4 * values.size > out.size:
            indices = _flat(parts, out.shape)
            values = xp.broadcast_to(values, indices.shape).reshape(-1)
            out += xp.bincount(indices.reshape(-1), values, out.size).reshape(out.shape).astype(out.dtype)
            return
    scatter_add(out, index, values)


def _from_zero(ids: Any, length: int, axis: int) -> Any:
    """Convert indices to nonnegative ones. Raises IndexError if an index is out of bounds."""
    low, high = (ids.min(), ids.max()) if ids.size else (0, -1)
    if low < -length or high >= length:
        raise IndexError(f"index {low if low < -length else high} is out of bounds for axis {axis} with size {length}")
    return xp.where(ids < 0, ids + length, ids) if low < 0 else ids


@composite
def scatter(values: Tensor, index: Any, shape: int | Sequence[int]) -> Tensor:
    """Return zeros of ``shape`` with ``values`` added at ``index``. Values at a repeated index add up.

    >>> tt.scatter(tt.tensor([1.0, 2.0, 3.0]), [0, 2, 2], (4,))
    tensor([1., 0., 5., 0.])
    """
    return _scatter(values, as_index(index), shape)


@composite
def take(x: Tensor, indices: Any, axis: int | None = None) -> Tensor:
    """Return the elements of x at ``indices`` (integers, any shape) along ``axis`` (None: flattened).

    >>> x = tt.tensor([[1, 2, 3], [4, 5, 6]])
    >>> tt.take(x, [2, 0], axis=1)
    tensor([[3, 1],
            [6, 4]])
    """
    if axis is None or x.ndim == 0:
        x, axis = reshape(x, -1), axis or 0
    axis = normalize_axis(axis, x.ndim, "take: axis")
    return getitem(x, (slice(None),) * axis + (as_integers("take", indices),))


def _along(indices: Any, axis: int, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Return an open mesh such that x[mesh] selects ``indices`` along ``axis``."""
    index, ndim = as_integers("take_along_axis", indices), len(shape)
    if index.ndim != ndim:
        raise IndexError(
            f"take_along_axis: indices of shape {index.shape} need as many dimensions as the tensor, of shape {tuple(shape)}"
        )
    mesh: list[Any] = []
    for a, length in enumerate(shape):
        mesh.append(index if a == axis else xp.arange(length).reshape([-1 if b == a else 1 for b in range(ndim)]))
    return tuple(mesh)


@composite
def take_along_axis(x: Tensor, indices: Any, axis: int) -> Tensor:
    """Take the element of x at each index in ``indices`` along ``axis``.

    The other axes of ``indices`` have the lengths of x, or length 1, which broadcasts.

    >>> x = tt.tensor([[1, 2, 3], [4, 5, 6]])
    >>> tt.take_along_axis(x, tt.tensor([[2], [0]]), axis=1)
    tensor([[3],
            [4]])
    """
    axis = normalize_axis(axis, x.ndim, "take_along_axis: axis")
    return getitem(x, _along(indices, axis, x.shape))


@composite
def index_add(x: Tensor, indices: Any, values: Tensor, axis: int = 0) -> Tensor:
    """Add ``values`` to x at ``indices`` (1-d integers) along ``axis``. Values at a repeated index add up.

    >>> tt.index_add(tt.zeros(3), [0, 0, 2], tt.tensor([1.0, 2.0, 3.0]))
    tensor([3., 0., 3.])
    """
    axis = normalize_axis(axis, x.ndim, "index_add: axis")
    index = (slice(None),) * axis + (as_integers("index_add", indices),)
    return x + scatter(values, index, tuple(x.shape))


def _diagonal_gradient(g: Any, x_shape: tuple[int, ...], offset: int) -> Any:
    along = xp.arange(g.shape[-1])
    return _scatter(g, (..., along + max(-offset, 0), along + max(offset, 0)), x_shape)


@op(x=_diagonal_gradient)
def _diagonal(x: Tensor, offset: int) -> Tensor:
    return x.diagonal(offset, -2, -1)


@composite
def diagonal(x: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """Return the elements x[i, i + offset] of two axes as the last axis of the result."""
    axes = [normalize_axis(a, x.ndim, "diagonal: axis") for a in (axis1, axis2)]
    if axes[0] == axes[1]:
        raise ValueError(f"diagonal: axis1 and axis2 must be different, got {axes[0]} twice")
    return _diagonal(x if axes == [x.ndim - 2, x.ndim - 1] else moveaxis(x, axes, (-2, -1)), offset)


@composite
def diag(x: Tensor, k: int = 0) -> Tensor:
    """Return diagonal k of a matrix x, or a square matrix with the vector x on diagonal k.

    >>> tt.diag(tt.tensor([1, 2]))
    tensor([[1, 0],
            [0, 2]])
    """
    if x.ndim == 2:
        return diagonal(x, k)
    if x.ndim != 1:
        raise ValueError(f"diag needs a vector or a matrix, got shape {x.shape}: use diagonal")
    side = x.shape[0] + abs(k)
    start = max(k, -k * side)
    flat = _scatter(x, slice(start, start + x.shape[0] * (side + 1), side + 1), (side * side,))
    return reshape(flat, (side, side))


@op()
def one_hot(indices: Tensor, num_classes: int) -> Tensor:
    """Return float32 (..., num_classes): 1 at each index, else 0. Raises IndexError unless 0 <= index < num_classes.

    >>> tt.one_hot(tt.tensor([2, 0]), 3)
    tensor([[0., 0., 1.],
            [1., 0., 0.]])
    """
    if indices.dtype.kind not in "iu":
        raise TypeError(f"indices must be integers, got {indices.dtype}: convert them with .astype('int64')")
    if indices.size and not (int(indices.min()) >= 0 and int(indices.max()) < num_classes):
        raise IndexError(f"an index is outside 0 to {num_classes - 1}: there are {counted(num_classes, 'class')}")
    return (indices[..., None] == xp.arange(num_classes)).astype("float32")


# The gradient of an embedding adds up rows. Few rows repeat often (65 characters at thousands of positions), so this sum has
# its own kernel.


class _Rows(Part):
    """The gradient of an embedding table: 0 except for the rows ``index``. Rows may repeat."""

    def add_to(self, gradient: Any) -> None:
        kernels.sum_rows(self.values, self.index, gradient)


def _embedding_gradient(g: Any, ids: Any, weight_shape: tuple[int, ...]) -> Any:
    """Add each row of g to the table row with its id.

    If no graph is recorded, the engine adds the rows in place, which saves an array if the table is also the output layer.
    Anomaly detection needs the sum itself, because finite rows may add up to infinity.
    """
    if is_array(g) and not modes().detecting_anomalies:
        return _Rows(ids, g)
    return sum_rows(g, ids, weight_shape[0])


@op(weight=_embedding_gradient)
def _embedding(weight: Any, ids: Any) -> Any:
    if is_host_array(ids):  # a check would wait for the GPU
        check_ids(ids, len(weight))
    return weight.take(ids, axis=0)


def check_ids(ids: Any, num_rows: int) -> None:
    if ids.size == 1:  # decoding one token: comparing a Python number is much faster
        inside = 0 <= ids.item() < num_rows
    else:  # as an unsigned integer a negative id is large, so one comparison is enough
        inside = not ids.size or ids.astype(host.uint64).max() < num_rows
    if not inside:
        wrong = ids[(ids < 0) | (ids >= num_rows)].flat[0]
        raise IndexError(f"id {wrong} is outside the table of {counted(num_rows, 'row')} (ids 0 to {num_rows - 1})")


@op(rows=lambda g, ids: _embedding(g, ids))
def sum_rows(rows: Any, ids: Tensor, num_rows: int) -> Tensor:
    """Sum the ``rows`` (..., width) that share an id: row i of the result (num_rows, width) is the sum for id i."""
    if rows.shape[:-1] != ids.shape:
        raise ValueError("each row needs one id: the ids must have the shape of the rows without the last axis")
    return kernels.sum_rows(rows, ids, xp.zeros((num_rows, rows.shape[-1]), rows.dtype))


@composite
def embedding(ids: Ids, weight: Tensor) -> Tensor:
    """Look up rows of ``weight`` (num_embeddings, width) by integer ``ids`` (...). Return (..., width).

    Raises TypeError unless the ids are integers, and IndexError if an id is outside the table. On a GPU, ids are not checked,
    because a check would force a synchronization.

    >>> tt.embedding(tt.tensor([1, 0, 1]), tt.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[3., 4.],
            [1., 2.],
            [3., 4.]])
    """
    if weight.ndim != 2:
        raise ValueError(f"embedding: weight must be (num_embeddings, width), got shape {weight.shape}")
    return _embedding(weight, as_integers("embedding", ids))
