"""Ops on sequences: differences, coordinate grids, counts and splits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinytensor.autograd.tensor import wrap
from tinytensor.common.arguments import composite
from tinytensor.device.backend import default_dtype, index_dtype, is_floating, xp
from tinytensor.ops.elementwise import astype
from tinytensor.ops.indexing import scatter
from tinytensor.ops.shapes import broadcast_to, concatenate, normalize_axis, reshape, split

if TYPE_CHECKING:
    from tinytensor.autograd.tensor import Tensor

__all__ = [
    "array_split", "bincount", "diff", "meshgrid",
]  # fmt: skip


def _beside(x: Any, value: Any, axis: int) -> Any:
    """Return ``value`` as a tensor to join to x along an axis. A number is broadcast, in the dtype of x if it fits."""
    if isinstance(value, (int, float)):
        is_held = is_floating(x.dtype) or isinstance(value, bool) or (isinstance(value, int) and x.dtype != bool)
        dtype = x.dtype if is_held else default_dtype if isinstance(value, float) else index_dtype
        value = wrap(xp.full((), value, dtype))
    return value if value.ndim else broadcast_to(value, [1 if a == axis else n for a, n in enumerate(x.shape)])


@composite
def diff(
    x: Tensor, n: int = 1, axis: int = -1, prepend: Tensor | float | None = None, append: Tensor | float | None = None
) -> Tensor:
    """Return the n-th difference along ``axis``; the first is x[i + 1] - x[i]. For booleans, True means neighbors differ.

    The result is n elements shorter than x. ``prepend`` and ``append`` are numbers, or tensors with as many axes as x, that are
    first joined to x.

    >>> tt.diff(tt.tensor([1, 2, 4, 7]))
    tensor([1, 2, 3])
    >>> tt.diff(tt.tensor([1, 2, 4, 7]), n=2, prepend=0)
    tensor([0, 1, 1])
    """
    axis = normalize_axis(axis, x.ndim, "diff: axis")
    if n < 0:
        raise ValueError(f"diff: n must not be negative, got {n}")
    around = [None if value is None else _beside(x, value, axis) for value in (prepend, append)]
    if n and any(value is not None for value in around):
        x = concatenate([part for part in (around[0], x, around[1]) if part is not None], axis)
    later, earlier = [(slice(None),) * axis + (part,) for part in (slice(1, None), slice(None, -1))]
    for _ in range(n):
        x = x[later] != x[earlier] if x.dtype == bool else x[later] - x[earlier]
    return x


@composite
def meshgrid(*tensors: Tensor, indexing: str = "xy") -> tuple[Tensor, ...]:
    """Return coordinate grids: one tensor for each sequence, varying along its own axis.

    ``indexing="ij"`` keeps the axes in the order of the sequences. ``"xy"`` swaps the first two, as in an image, where rows run
    along y.

    >>> x, y = tt.meshgrid(tt.tensor([1, 2, 3]), tt.tensor([10, 20]))
    >>> x, y
    (tensor([[1, 2, 3],
            [1, 2, 3]]), tensor([[10, 10, 10],
            [20, 20, 20]]))
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: indexing must be 'xy' or 'ij', got {indexing!r}")
    axes = list(range(len(tensors)))
    if indexing == "xy":
        axes[:2] = axes[:2][::-1]
    shape = [tensors[a].size for a in axes]
    shapes = [[-1 if a == axis else 1 for a in range(len(axes))] for axis in axes]
    return tuple([broadcast_to(reshape(x, along), shape) for x, along in zip(tensors, shapes)])


@composite
def array_split(x: Tensor, indices_or_sections: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """Split x along ``axis`` like ``split``, but allow unequal parts: the first ones may be longer by one element.

    >>> tt.array_split(tt.arange(5), 3)
    [tensor([0, 1]), tensor([2, 3]), tensor([4])]
    """
    axis = normalize_axis(axis, x.ndim, "array_split: axis")
    if isinstance(indices_or_sections, int):
        parts = indices_or_sections
        if parts < 1:
            raise ValueError(f"array_split needs at least one part, got {parts}")
        length, longer = divmod(x.shape[axis], parts)
        indices_or_sections = [i * length + min(i, longer) for i in range(1, parts)]
    return split(x, indices_or_sections, axis)


@composite
def bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """Count how often 0, 1, 2, ... occur in the integers x. If ``weights`` are given, add up the weights instead.

    The length of the result is the largest value in x plus one, but at least ``minlength``.

    >>> tt.bincount(tt.tensor([1, 3, 1]))
    tensor([0, 2, 0, 1])
    >>> tt.bincount(tt.tensor([1, 3, 1]), weights=tt.tensor([0.5, 1.0, 2.0]))
    tensor([0. , 2.5, 0. , 1. ])
    """
    if x.ndim != 1 or x.dtype.kind not in "iu":
        raise TypeError(f"bincount needs a sequence of integers, got {x.dtype} of shape {x.shape}")
    if minlength < 0 or (x.size and x.min().item() < 0):
        raise ValueError("bincount counts 0, 1, 2, ...: neither x nor minlength may be negative")
    length = max(minlength, int(x.max().item()) + 1 if x.size else 0)
    if weights is None:
        weights = wrap(xp.ones(x.shape, index_dtype))
    elif weights.shape != x.shape:
        raise ValueError(f"bincount: weights must have the shape of x, got {weights.shape} and {x.shape}")
    elif not is_floating(weights.dtype):
        weights = astype(weights, default_dtype)
    return scatter(weights, x, (length,))
