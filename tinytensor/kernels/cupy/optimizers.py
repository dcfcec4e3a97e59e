"""Optimizer steps and gradient norms over lists of arrays, each in one launch, the norm in two; the formulas stand in
``kernels/numpy/optimizers.py``.

A kernel finds the arrays by a table of their addresses, and its blocks share them out by a list of chunks. Both are small, and
copied to the GPU without waiting for it. The chunks follow from the arrays' sizes and are copied once. The addresses are copied
when they change: not in every step, where CuPy's memory pool gives the gradients the places that the last step's had.

Arrays may have any layout: what is not C-contiguous goes by way of a copy.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy

from tinytensor.backend import default_dtype, from_numpy, xp
from tinytensor.kernels.cupy.loader import accumulator, contiguous, kernel

_CHUNK = 4096  # elements: so few that a small model's fill a GPU, so many that finding them costs little. A multiple of a pack
_THREADS = 256  # as in optimizers.cu
_MOST_BLOCKS = 1 << 16
_MOST_SUMS = 1024  # blocks that sum squares, whose sums one block adds up
_TABLES = 64  # the tables kept: some for each group of parameters

Arrays = Sequence[Any]


def adam_step(
    parameters: Arrays,
    gradients: Arrays,
    firsts: Arrays,
    seconds: Arrays,
    masters: Arrays,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
) -> None:
    """One step of Adam, or with ``decoupled`` of AdamW, with the masters brought up to date first where there are any."""
    _step(
        "adam_step",
        (parameters, gradients, firsts, seconds, masters),
        1.0 - lr * weight_decay if decoupled else 1.0,
        0.0 if decoupled else float(weight_decay),
        float(beta1),
        1.0 - beta1,
        float(beta2),
        1.0 - beta2,
        1.0 / math.sqrt(1.0 - beta2**step),
        float(eps),
        lr / (1.0 - beta1**step),
    )


def sgd_step(
    parameters: Arrays,
    gradients: Arrays,
    velocities: Arrays,
    masters: Arrays,
    is_first: bool,
    lr: float,
    momentum: float,
    dampening: float,
    nesterov: bool,
    weight_decay: float,
) -> None:
    """One step of gradient descent with PyTorch's momentum, with the masters brought up to date first where there are any."""
    _step(
        "sgd_step",
        (parameters, gradients, velocities if momentum else (), masters),
        int(is_first),
        float(lr),
        float(momentum),
        1.0 - dampening,
        int(nesterov),
        float(weight_decay),
    )


def _step(name: str, lists: Sequence[Arrays], *settings: float) -> None:
    """Launch a step on the parameters, with their gradients and the lists of their state: moments or velocity, and masters."""
    parameters, gradients, *state = lists
    if not parameters:
        return
    dtype = parameters[0].dtype
    _check(name, parameters, dtype)
    for arrays in state:
        _check(name, arrays, accumulator(dtype))
    gradients = [g if g.dtype == dtype else g.astype(dtype) for g in gradients]
    changed = [i for i in range(len(lists)) if i != 1]
    _launch(name, dtype, (parameters, gradients, *state), changed, _MOST_BLOCKS, *settings)


def _check(name: str, arrays: Arrays, dtype: Any) -> None:
    """The kernel is told addresses alone: it would take other arrays for what they are not."""
    for a in arrays:
        if a.dtype != dtype:
            raise TypeError(f"{name} takes parameters of one dtype, their state at least float32: {a.dtype} for {dtype}")


def global_norm(arrays: Arrays) -> Any:
    """The Euclidean norm of all the arrays' elements together, as an array without dimensions, float32 or wider.

    The order of the sum follows from the arrays' sizes and alignment.
    """
    groups = _by_dtype(arrays)
    dtype = numpy.result_type(default_dtype, *map(accumulator, groups))
    counts = [min(len(_chunks(_sizes(members))), _MOST_SUMS) for members in groups.values()]
    sums, norm = xp.empty(sum(counts), dtype), xp.empty((), dtype)
    first = 0
    for (kind, members), count in zip(groups.items(), counts):
        if accumulator(kind) != dtype:  # float32 beside float64
            kind, members = dtype, [a.astype(dtype) for a in members]
        _launch("sum_squares", kind, [members], [], _MOST_SUMS, sums[first : first + count])
        first += count
    kernel("optimizers.cu", "root_of_sum", dtype)(1, _THREADS, sums, norm, first)
    return norm


def scale_all(arrays: Arrays, factor: Any) -> None:
    """Multiply each array in place with ``factor``, an array of one element or a scalar; each keeps its dtype."""
    for dtype, members in _by_dtype(arrays).items():
        _launch("scale_all", dtype, [members], [0], _MOST_BLOCKS, xp.asarray(factor, accumulator(dtype)))


def _by_dtype(arrays: Arrays) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for a in arrays:
        groups.setdefault(a.dtype, []).append(a)
    return groups


# -------------------------------------------------------------------------------------------------------- launching


def _launch(name: str, dtype: Any, lists: Sequence[Arrays], changed: Sequence[int], most_blocks: int, *arguments: Any) -> None:
    """Launch a kernel on the lists of arrays, of which it changes those in the places ``changed``. A list may be empty."""
    held = [[contiguous(a) for a in arrays] for arrays in lists]
    addresses = [a.data.ptr if arrays else 0 for arrays in held for a in arrays or lists[0]]
    table = _on_device(numpy.array(addresses, numpy.uint64).tobytes())
    chunks = _chunks(_sizes(lists[0]))
    launch = kernel("optimizers.cu", name, dtype)
    launch(min(len(chunks), most_blocks), _THREADS, table, chunks, len(lists[0]), len(chunks), *arguments)
    for i in changed:
        for array, copy in zip(lists[i], held[i]):
            if copy is not array:
                array[...] = copy


def _sizes(arrays: Arrays) -> tuple[int, ...]:
    return tuple([a.size for a in arrays])


@functools.lru_cache(_TABLES)
def _chunks(sizes: tuple[int, ...]) -> Any:
    """Arrays of these sizes in pieces of at most _CHUNK elements: (pieces, 3), a piece's array, first element and size."""
    pieces = [(i, first, min(_CHUNK, size - first)) for i, size in enumerate(sizes) for first in range(0, size, _CHUNK)]
    return from_numpy(numpy.array(pieces, numpy.int64).reshape(-1, 3))


@functools.lru_cache(_TABLES)
def _on_device(addresses: bytes) -> Any:
    """The table of addresses on the GPU. Equal addresses make equal tables, so an old one is never wrong."""
    return from_numpy(numpy.frombuffer(addresses, numpy.uint64))
