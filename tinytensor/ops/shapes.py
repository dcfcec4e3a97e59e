"""Ops that rearrange elements without changing their values. Most return views."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinytensor.autograd.inputs import check_fits
from tinytensor.autograd.op import op
from tinytensor.autograd.replaying import current_step
from tinytensor.autograd.tensor import wrap
from tinytensor.common.arguments import composite
from tinytensor.common.wording import counted
from tinytensor.device.backend import host, is_array, is_floating, xp

if TYPE_CHECKING:
    from tinytensor.autograd.tensor import Tensor

__all__ = [
    "broadcast_to", "concatenate", "expand_dims", "flip", "hstack", "moveaxis", "pad", "repeat", "reshape", "roll", "split",
    "squeeze", "stack", "swapaxes", "tile", "transpose", "tril", "triu", "vstack",
]  # fmt: skip

Axes = int | Sequence[int] | None


def normalize_axes(axes: Axes, ndim: int, name: str = "axis") -> tuple[int, ...]:
    """Return axes as nonnegative integers, in the same order (None: all axes).

    Raises IndexError for an axis out of range, with ``name`` in the message, and ValueError for a repeated axis. A 0-d tensor
    accepts the axes 0 and -1; the result is () because it has no axes.
    """
    if axes is None:
        return tuple(range(ndim))
    several = [axes] if isinstance(axes, int) or not isinstance(axes, Sequence) else axes  # the second test is far slower
    if ndim == 0 and list(several) in ([0], [-1]):
        return ()
    positive = tuple([normalize_axis(a, ndim, name) for a in several])
    if len(positive) > 1 and len(set(positive)) < len(positive):
        raise ValueError(f"{name} {axes} names the same axis twice: give each once")
    return positive


def normalize_axis(axis: int, ndim: int, name: str) -> int:
    """Return an axis as a nonnegative integer. Raises IndexError if it is out of range, and always for a 0-d tensor."""
    if -ndim <= axis < ndim:
        return axis % ndim
    valid = f"use {-ndim} to {ndim - 1}" if ndim else "it has no axes"
    raise IndexError(f"{name} {axis} is out of range for a tensor of {counted(ndim, 'dimension')}: {valid}")


@op(x=lambda g, x_shape: reshape(g, x_shape))
def reshape(x: Tensor, shape: int | Sequence[int]) -> Tensor:
    """Return the same elements in the same order with another shape. One length may be -1.

    >>> tt.reshape(tt.arange(6), (2, -1))
    tensor([[0, 1, 2],
            [3, 4, 5]])
    """
    return x.reshape(shape)


def _inverse_order(axes: Sequence[int] | None) -> list[int] | None:
    return None if axes is None else sorted(range(len(axes)), key=[a % len(axes) for a in axes].__getitem__)


@op(x=lambda g, axes: transpose(g, _inverse_order(axes)))
def transpose(x: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    """Permute the axes of x into the order ``axes`` (None: reverse the order).

    >>> tt.transpose(tt.zeros((2, 3, 4)), (0, 2, 1)).shape
    (2, 4, 3)
    """
    try:
        return x.transpose(axes)
    except ValueError as error:
        if isinstance(error, IndexError):  # an axis out of range
            raise
        raise ValueError(f"axes must have each of {counted(x.ndim, 'axis')} once, got {axes}; swapaxes swaps two") from None


@op(x=lambda g, axis1, axis2: swapaxes(g, axis1, axis2))
def swapaxes(x: Tensor, axis1: int, axis2: int) -> Tensor:
    """Swap two axes."""
    return x.swapaxes(axis1, axis2)


@composite
def moveaxis(x: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Move the axes ``source`` to the positions ``destination``. The other axes keep their order.

    >>> tt.moveaxis(tt.zeros((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    sources = normalize_axes(source, x.ndim, "moveaxis: source")
    destinations = normalize_axes(destination, x.ndim, "moveaxis: destination")
    if len(sources) != len(destinations):
        raise ValueError(f"moveaxis: {counted(len(sources), 'source axis')} but {counted(len(destinations), 'destination')}")
    order = [a for a in range(x.ndim) if a not in sources]
    for position, axis in sorted(zip(destinations, sources)):
        order.insert(position, axis)
    return transpose(x, order)


@composite
def squeeze(x: Tensor, axis: Axes = None) -> Tensor:
    """Remove all axes of length 1, or only the axes in ``axis``. Raises ValueError if one of these is longer.

    >>> tt.squeeze(tt.zeros((1, 3, 1))).shape
    (3,)
    """
    shape = x.shape
    if axis is None:
        return reshape(x, tuple([n for n in shape if n != 1]))
    axes = normalize_axes(axis, len(shape), "squeeze: axis")
    if any(shape[a] != 1 for a in axes):
        raise ValueError(f"squeeze of shape {shape}: axis {axis} is not of length 1")
    return reshape(x, tuple([n for a, n in enumerate(shape) if a not in axes]))


@composite
def expand_dims(x: Tensor, axis: int | Sequence[int]) -> Tensor:
    """Insert axes of length 1. ``axis`` gives their positions in the result.

    >>> tt.expand_dims(tt.zeros((2, 3)), 1).shape
    (2, 1, 3)
    """
    shape = list(x.shape)
    count = 1 if isinstance(axis, int) else len(axis)
    for position in sorted(normalize_axes(axis, len(shape) + count, "expand_dims: axis")):
        shape.insert(position, 1)
    return reshape(x, tuple(shape))


@op(x=lambda g: g)
def broadcast_to(x: Tensor, shape: int | Sequence[int]) -> Tensor:
    """Broadcast x to ``shape`` without copying. Axes of length 1 are repeated, and leading axes may be added.

    >>> tt.broadcast_to(tt.tensor([1, 2]), (2, 2))
    tensor([[1, 2],
            [1, 2]])
    """
    return xp.broadcast_to(x, shape)


@composite
def split(x: Tensor, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """Split x along ``axis`` into equal parts (an integer) or, as in NumPy, before each index in a list.

    >>> tt.split(tt.arange(6), 3)
    [tensor([0, 1]), tensor([2, 3]), tensor([4, 5])]
    >>> tt.split(tt.arange(6), [1, 4])
    [tensor([0]), tensor([1, 2, 3]), tensor([4, 5])]
    """
    axis = normalize_axis(axis, x.ndim, "split: axis")
    length, cuts = x.shape[axis], indices_or_sections
    if isinstance(cuts, int):
        parts = cuts
        if parts < 1 or length % parts:
            raise ValueError(
                f"split of shape {x.shape}: axis {axis} of length {length} does not divide into {counted(parts, 'part')}"
            )
        cuts = range(length // parts, length, length // parts) if length else [0] * (parts - 1)
    return [x[(slice(None),) * axis + (slice(a, b),)] for a, b in zip([0, *cuts], [*cuts, length])]


def _concatenate_gradients(g: Any, shapes: list[tuple[int, ...]], axis: int) -> list[Any]:
    return split(g, tuple(itertools.accumulate([shape[axis] for shape in shapes[:-1]])), axis)


@op(several=True, arrays=lambda g, arrays_shape, axis: _concatenate_gradients(g, arrays_shape, axis))
def _concatenate(arrays: Sequence[Any], axis: int = 0) -> Tensor:
    return xp.concatenate(arrays, axis)


@composite
def concatenate(tensors: Sequence[Tensor], axis: int | None = 0) -> Tensor:
    """Join tensors along an existing axis (None: flatten them first). The lengths of the other axes must match.

    >>> x, y = tt.tensor([[1, 2]]), tt.tensor([[3, 4]])
    >>> tt.concatenate([x, y])
    tensor([[1, 2],
            [3, 4]])
    >>> tt.concatenate([x, y], axis=1)
    tensor([[1, 2, 3, 4]])
    """
    if axis is None:
        tensors, axis = [t.reshape(-1) for t in tensors], 0
    if not tensors:
        raise ValueError("concatenate needs at least one tensor")
    return _concatenate(tensors, axis)


@composite
def stack(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Join tensors of the same shape along a new axis.

    >>> tt.stack([tt.tensor([1, 2]), tt.tensor([3, 4])], axis=1)
    tensor([[1, 3],
            [2, 4]])
    """
    if not tensors:
        raise ValueError("stack needs at least one tensor")
    if len({t.shape for t in tensors}) > 1:
        raise ValueError(f"stack needs tensors of one shape, got {sorted({t.shape for t in tensors})}")
    shape = tensors[0].shape
    axis = normalize_axis(axis, len(shape) + 1, "stack: axis")
    parts = [reshape(t, (*shape, 1)) for t in tensors] if axis == len(shape) else tensors
    return reshape(_concatenate(parts, axis), (*shape[:axis], len(tensors), *shape[axis:]))


@composite
def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Join tensors horizontally: along the second axis, or the first for 1-d tensors. A 0-d tensor counts as one element."""
    if not tensors:
        raise ValueError("hstack needs at least one tensor")
    rows = [reshape(t, 1) if t.ndim == 0 else t for t in tensors]
    return concatenate(rows, 0 if rows[0].ndim == 1 else 1)


@composite
def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Join tensors vertically, along the first axis. A 1-d tensor counts as a row."""
    if not tensors:
        raise ValueError("vstack needs at least one tensor")
    return concatenate([reshape(t, (1, -1)) if t.ndim < 2 else t for t in tensors], 0)


@op(x=lambda g, by, axis: _roll(g, -by, axis))
def _roll(x: Tensor, by: int, axis: int | None) -> Tensor:
    """Shift a nonempty x along one axis (None: flattened)."""
    moved, axis, shape = (x.reshape(-1), 0, x.shape) if axis is None else (x, axis, x.shape)
    cut = -by % moved.shape[axis]
    parts = [moved[(slice(None),) * axis + (part,)] for part in (slice(cut, None), slice(cut))]
    return xp.concatenate(parts, axis).reshape(shape)


@composite
def roll(x: Tensor, shift: int | Sequence[int], axis: Axes = None) -> Tensor:
    """Roll the elements of x along ``axis`` (None: flattened). Elements shifted past the end reappear at the front.

    As in NumPy, several shifts along one axis add up.

    >>> tt.roll(tt.arange(4), 1)
    tensor([3, 0, 1, 2])
    """
    axes = [None] if axis is None else normalize_axes(axis, x.ndim, "roll: axis")
    shifts = (shift,) if isinstance(shift, int) else tuple(shift)
    shifts = (sum(shifts),) if len(axes) == 1 else shifts
    if len(shifts) not in (1, len(axes)):
        raise ValueError(
            f"roll: {counted(len(shifts), 'shift')} for {counted(len(axes), 'axis', 'axes')}: give one for each "
            "axis, or one for all"
        )
    for a, by in zip(axes, shifts if len(shifts) > 1 else shifts * len(axes)):
        x = _roll(x, by, a) if x.size else x
    return x


@composite
def flip(x: Tensor, axis: Axes = None) -> Tensor:
    """Reverse the order of elements along ``axis`` (None: every axis)."""
    axes = normalize_axes(axis, x.ndim, "flip: axis")
    return x[tuple([slice(None, None, -1) if a in axes else slice(None) for a in range(x.ndim)])]


def _pad_pairs(pad_width: Any, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    counts = host.empty((len(shape), 2), int)
    try:
        counts[...] = pad_width
        pairs = tuple([(before, after) for before, after in counts.tolist()])
        if min(map(min, pairs)) < 0:
            raise ValueError
        return pairs
    except ValueError:
        raise ValueError(
            f"pad: pad_width for shape {shape} must be a number, (before, after), or such a pair for each axis, and not "
            f"negative, got {pad_width}"
        ) from None


def _inside(x_shape: tuple[int, ...], pairs: tuple[tuple[int, int], ...]) -> tuple[slice, ...]:
    return tuple([slice(before, before + n) for (before, _), n in zip(pairs, x_shape)])


@op(x=lambda g, x_shape, pairs: g[_inside(x_shape, pairs)])
def _pad(x: Tensor, pairs: tuple[tuple[int, int], ...], constant_values: float = 0.0) -> Tensor:
    out = xp.full([before + n + after for (before, after), n in zip(pairs, x.shape)], constant_values, x.dtype)
    out[_inside(x.shape, pairs)] = x
    return out


@composite
def pad(
    x: Tensor, pad_width: int | Sequence[int] | Sequence[Sequence[int]], mode: str = "constant", constant_values: float = 0.0
) -> Tensor:
    """Pad x. ``pad_width`` is a number, a pair (before, after), or one such pair for each axis.

    As in NumPy, ``mode`` is ``"constant"`` (``constant_values``), ``"edge"`` (the outermost element), ``"reflect"`` (x
    mirrored), ``"symmetric"`` (mirrored, with the outermost element repeated) or ``"wrap"`` (from the opposite end).

    >>> tt.pad(tt.tensor([1, 2]), (1, 2))
    tensor([0, 1, 2, 0, 0])
    """
    if mode not in ("constant", "edge", "reflect", "symmetric", "wrap"):
        raise ValueError(f"pad: mode must be constant, edge, reflect, symmetric or wrap, got {mode!r}")
    if x.ndim == 0:
        return reshape(x, ())
    pairs = _pad_pairs(pad_width, x.shape)
    if mode == "constant":
        check_fits(constant_values, x.dtype)
        return _pad(x, pairs, constant_values)
    for axis, pair in enumerate(pairs):
        if any(pair):
            indices: Any = host.pad(host.arange(x.shape[axis]), pair, mode=mode)  # type: ignore[call-overload]
            x = x[(slice(None),) * axis + (current_step().table(indices),)]
    return x


@composite
def repeat(x: Tensor, repeats: int | Sequence[int], axis: int | None = None) -> Tensor:
    """Repeat each element ``repeats`` times along ``axis`` (None: flattened).

    >>> tt.repeat(tt.tensor([1, 2]), 2)
    tensor([1, 1, 2, 2])
    """
    if axis is None or x.ndim == 0:
        x, axis = reshape(x, -1), axis or 0
    axis = normalize_axis(axis, x.ndim, "repeat: axis")
    counts = repeats if isinstance(repeats, tuple) else (repeats,)
    if min(counts, default=0) < 0:
        raise ValueError(f"repeat: repeats must not be negative, got {repeats}")
    if len(counts) not in (1, x.shape[axis]):
        raise ValueError(
            f"repeat: {counted(len(counts), 'repeat')} for axis {axis} of length {x.shape[axis]}: give one for each, or one"
        )
    indices = host.repeat(host.arange(x.shape[axis]), repeats)
    return x[(slice(None),) * axis + (current_step().table(indices),)]


@composite
def tile(x: Tensor, reps: int | Sequence[int]) -> Tensor:
    """Repeat x ``reps`` times along each axis. Raises ValueError if a count is negative.

    >>> tt.tile(tt.tensor([1, 2]), 2)
    tensor([1, 2, 1, 2])
    """
    counts = [reps] if isinstance(reps, int) else list(reps)
    if min(counts, default=0) < 0:
        raise ValueError(f"tile: reps must not be negative, got {reps}")
    ndim = max(x.ndim, len(counts))
    counts = [1] * (ndim - len(counts)) + counts
    shape = (1,) * (ndim - x.ndim) + tuple(x.shape)
    spread = reshape(x, tuple([n for length in shape for n in (1, length)]))
    spread = broadcast_to(spread, tuple([n for count, length in zip(counts, shape) for n in (count, length)]))
    return reshape(spread, tuple([count * length for count, length in zip(counts, shape)]))


@composite
def tril(x: Tensor, k: int = 0) -> Tensor:
    """Return the lower triangle of the last two axes: zeros above diagonal k (0: the main diagonal, 1: the one above).

    >>> tt.tril(tt.ones((3, 3)))
    tensor([[1., 0., 0.],
            [1., 1., 0.],
            [1., 1., 1.]])
    """
    return _triangle(x, k, lower=True)


@composite
def triu(x: Tensor, k: int = 0) -> Tensor:
    """Return the upper triangle of the last two axes: zeros below diagonal k (0: the main diagonal, 1: the one above)."""
    return _triangle(x, k, lower=False)


def _triangle(x: Tensor, k: int, lower: bool) -> Tensor:
    from tinytensor.ops.elementwise import where

    if x.ndim < 2:
        raise ValueError(f"tril and triu need a matrix, got shape {x.shape}")
    columns, ends = xp.arange(x.shape[-1]), xp.arange(k, k + x.shape[-2])
    if not is_array(x):  # let ops build the mask, so that tracing records it
        columns, ends = wrap(columns), wrap(ends)
    ends = expand_dims(ends, 1)
    return where(columns <= ends if lower else columns >= ends, x, 0.0 if is_floating(x.dtype) else False)  # x keeps its dtype


def size_along(shape: Sequence[int], axis: Axes, name: str) -> int:
    """Return how many elements a reduction over ``axis`` combines. Error messages use the reduction's ``name``."""
    return math.prod(shape[a] for a in normalize_axes(axis, len(shape), f"{name}: axis"))
