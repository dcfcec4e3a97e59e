"""Optimizer steps and gradient norms over lists of raw arrays, in place.

A list, so that a GPU can do all of it in one launch. Here the arrays come one by one, and some rows of each at a time: those
stay in the processor's cache until they are done.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from tinytensor.backend import default_dtype, xp

_BLOCK = 1 << 16  # elements: with the gradient, both moments and a scratch array 1.25 MiB

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
    """One step of Adam (Kingma and Ba 2015, algorithm 1), or with ``decoupled`` of AdamW (Loshchilov and Hutter 2019).

    The lists are equally long, and the arrays of a place in them equal in shape; a list's arrays have one dtype. ``firsts``
    and ``seconds`` are the moments, and ``step`` counts from 1. All arrays are changed in place but the gradients.

    ``masters`` is empty, and all dtypes are the same; or the parameters and gradients are narrower than float32, and the
    masters and moments float32. The step then changes the masters (see ``_current``), and rounds them to the parameters:
    most steps are too small to change a narrow parameter, but they add up (Micikevicius et al. 2018, section 3.1).
    """
    for i, (parameter, gradient, first, second) in enumerate(zip(parameters, gradients, firsts, seconds)):
        for rows in _blocks(parameter):
            p, g, m, v = parameter[rows], gradient[rows], first[rows], second[rows]
            if masters:
                p, g = _current(masters[i][rows], p), g.astype(m.dtype)
            if weight_decay and decoupled:
                p *= 1.0 - lr * weight_decay
            elif weight_decay:
                g = g + p * weight_decay
            scratch = g * (1.0 - beta1)
            m *= beta1
            m += scratch
            xp.multiply(g, g, out=scratch)
            scratch *= 1.0 - beta2
            v *= beta2
            v += scratch
            xp.sqrt(v, out=scratch)
            scratch *= 1.0 / math.sqrt(1.0 - beta2**step)
            scratch += eps
            xp.divide(m, scratch, out=scratch)
            scratch *= lr / (1.0 - beta1**step)
            p -= scratch
            if masters:
                parameter[rows] = p.astype(parameter.dtype)


def _current(master: Any, parameter: Any) -> Any:
    """The master, brought up to date: where it does not round to the parameter, somebody else wrote that (load_state_dict, an
    initialiser), and the master starts again from it."""
    kept = master.astype(parameter.dtype) == parameter
    master[...] = xp.where(kept, master, parameter.astype(master.dtype))
    return master


def _blocks(array: Any) -> Iterator[Any]:
    """Indices that cut an array into blocks of rows."""
    if array.ndim == 0:
        yield None  # a new axis: NumPy would give a number for it otherwise, which does not change in place
        return
    rows = max(1, _BLOCK // max(1, math.prod(array.shape[1:])))
    for first in range(0, len(array), rows):
        yield slice(first, first + rows)


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
    """One step of gradient descent with PyTorch's momentum: v = momentum v + (1 - dampening) g, where the first v is g itself.

    The lists, with the ``masters`` and their dtypes, are as in ``adam_step``. Changes the parameters, the masters and the
    velocities, which ``is_first`` only writes; without momentum these are an empty list.
    """
    for i, (parameter, g) in enumerate(zip(parameters, gradients)):
        p = parameter
        if masters:
            p, g = _current(masters[i], p), g.astype(masters[i].dtype)
        if weight_decay:
            g = g + p * weight_decay
        if momentum:
            velocity = velocities[i]
            if is_first:
                velocity[...] = g
            else:
                velocity *= momentum
                velocity += g * (1.0 - dampening)
            g = g + velocity * momentum if nesterov else velocity
        p -= g * lr
        if masters:
            parameter[...] = p.astype(parameter.dtype)


def global_norm(arrays: Arrays) -> Any:
    """The Euclidean norm of all the arrays' elements together, as an array or a scalar of the backend, float32 or wider."""
    return xp.sqrt(sum([_square_sum(a.reshape(-1)) for a in arrays]))


def _square_sum(a: Any) -> Any:
    a = a.astype(default_dtype) if a.dtype.itemsize < default_dtype.itemsize else a
    return xp.dot(a, a)


def scale_all(arrays: Arrays, factor: Any) -> None:
    """Multiply each array in place with ``factor``, an array or a scalar of the backend; each keeps its dtype."""
    for a in arrays:
        a *= factor
