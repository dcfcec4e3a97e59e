"""Optimizer steps and gradient norms over lists of arrays. A step takes one launch, and the norm with the scale for clipping
two. ``kernels/numpy/optimizers.py`` has the formulas.

A kernel finds the arrays by a table of their addresses, and a list of chunks divides the work among its blocks. Both are small
and copied to the GPU without waiting for it. The chunks depend only on the arrays' sizes and are copied once. The addresses are
copied when they change, which is not in every step, because CuPy's memory pool often reuses the gradients' memory.

Arrays may have any layout. An array that is not C-contiguous is copied first, and copied back if it was changed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy

from tinytensor.autograd.replaying import current_step
from tinytensor.device.backend import default_dtype, xp
from tinytensor.kernels.cupy.loader import accumulator, contiguous, kernel
from tinytensor.kernels.numpy import optimizers as in_numpy

_CHUNK = 4096  # elements: few, so that a small model fills a GPU; many, so that lookups cost little; a multiple of a pack
_THREADS = 256  # as in optimizers.cu
_MOST_BLOCKS = 1 << 16
_MOST_SUMS = 1024  # maximum blocks that sum squares; one more block adds up their sums
_TABLES = 64  # maximum cached tables; each group of parameters has a few

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
    gradient_scale: Any = None,
) -> None:
    """One step of Adam, or with ``decoupled`` of AdamW. Masters, if any, are updated first (``current`` of kernels/numpy).

    The kernel reads ``gradient_scale`` on the GPU, without waiting. In a captured step, ``step`` and ``lr`` may each be a
    ``Number`` of ``replay/capture.py``; then the kernel also reads everything that depends on them on the GPU.
    """
    if not parameters:
        return
    dtype, scale = accumulator(parameters[0].dtype), gradient_scale

    def factors() -> list[float]:
        return [
            1.0 - float(lr) * weight_decay if decoupled else 1.0,
            0.0 if decoupled else float(weight_decay),
            float(beta1),
            1.0 - beta1,
            float(beta2),
            1.0 - beta2,
            1.0 / math.sqrt(1.0 - beta2 ** float(step)),
            float(eps),
            float(lr) / (1.0 - beta1 ** float(step)),
        ]

    numbers = current_step().numbers(factors, dtype)
    on_gpu, by_value = (numbers, [0.0] * 9) if isinstance(numbers, xp.ndarray) else (None, numbers)
    lists = (parameters, gradients, firsts, seconds, masters)
    _step("adam_step", lists, None if scale is None else xp.asarray(scale, "float64"), on_gpu, *by_value)


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
    """One step of gradient descent with PyTorch's momentum. Masters, if any, are updated first."""
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


def _step(name: str, lists: Sequence[Arrays], *settings: Any) -> None:
    """Launch a step. The lists are the parameters, their gradients, and their state: moments or velocities, and masters."""
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
    """Raise TypeError for a wrong dtype: given only addresses, the kernel would misread such arrays."""
    for a in arrays:
        if a.dtype != dtype:
            raise TypeError(f"{name} needs parameters of one dtype and float32 state or wider: expected {dtype}, got {a.dtype}")


def norm_and_scale(arrays: Arrays, max_norm: float) -> tuple[Any, Any]:
    """Return the norm of all elements, float32 or wider, and the factor, at most 1, that limits it to ``max_norm``, in float64.

    Both are arrays without dimensions. The order of summation depends only on the arrays' sizes and alignment.
    """
    groups = _by_dtype(arrays)
    if numpy.dtype("float64") in groups:
        return in_numpy.norm_and_scale(arrays, max_norm)
    counts = [min(len(_chunks(_sizes(members))), _MOST_SUMS) for members in groups.values()]
    sums, norm, scale = xp.empty(sum(counts), "float64"), xp.empty((), default_dtype), xp.empty((), "float64")
    first = 0
    for (dtype, members), count in zip(groups.items(), counts):
        _launch("sum_squares", dtype, [members], [], _MOST_SUMS, sums[first : first + count])
        first += count
    kernel("optimizers.cu", "root_of_sum", default_dtype)(1, _THREADS, sums, norm, scale, float(max_norm), first)
    return norm, scale


def scale_all(arrays: Arrays, factor: Any) -> None:
    """Multiply each array in place by ``factor``, an array of one element or a scalar. Dtypes are kept."""
    for dtype, members in _by_dtype(arrays).items():
        _launch("scale_all", dtype, [members], [0], _MOST_BLOCKS, xp.asarray(factor, "float64"))


def _by_dtype(arrays: Arrays) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for a in arrays:
        groups.setdefault(a.dtype, []).append(a)
    return groups


# -------------------------------------------------------------------------------------------------------- launching


def _launch(name: str, dtype: Any, lists: Sequence[Arrays], changed: Sequence[int], most_blocks: int, *arguments: Any) -> None:
    """Launch a kernel on lists of arrays, which may be empty. It changes the lists at the indices ``changed``."""
    held = [[contiguous(a) for a in arrays] for arrays in lists]
    addresses = [a.data.ptr if arrays else 0 for arrays in held for a in arrays or lists[0]]
    table = current_step().constant(_on_device, numpy.array(addresses, numpy.uint64).tobytes())
    chunks = current_step().constant(_chunks, _sizes(lists[0]))
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
    """Return arrays of these sizes in chunks of at most _CHUNK elements: (chunks, 3), the array, first element and size."""
    chunks = [(i, first, min(_CHUNK, size - first)) for i, size in enumerate(sizes) for first in range(0, size, _CHUNK)]
    return current_step().table(numpy.array(chunks, numpy.int64).reshape(-1, 3))


@functools.lru_cache(_TABLES)
def _on_device(addresses: bytes) -> Any:
    """Return the table of addresses on the GPU. Equal addresses share a cached table."""
    return current_step().table(numpy.frombuffer(addresses, numpy.uint64))
