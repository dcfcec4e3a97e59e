"""Optimizer steps and gradient norms over lists of raw arrays, in place.

Lists let a GPU do all the work in one launch. Here the arrays take turns. Adam cuts them into blocks of rows that stay in the
processor's cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from tinytensor.device.backend import default_dtype, host, is_host_array, xp
from tinytensor.device.summation import root_of_squares

_BLOCK = 1 << 16  # elements at a time: 1.25 MiB with the gradient, both moments and a scratch array

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
    """One step of Adam (Kingma and Ba 2015, algorithm 1), or with ``decoupled`` of AdamW (Loshchilov and Hutter 2019).

    The lists have the same length, and arrays at the same index have the same shape. The arrays of one list have one dtype.
    ``firsts`` and ``seconds`` are the moments, and ``step`` counts from 1. All arrays but the gradients are changed in place.
    The gradients are multiplied by ``gradient_scale``, an array of one element or a scalar; None is 1.

    ``masters`` is empty if all dtypes are the same. Otherwise the parameters and gradients are low-precision, and the masters
    and moments float32. The step then changes the masters (see ``current``) and rounds them to the parameters: most steps are
    too small for low-precision parameters, but in the masters they add up (Micikevicius et al. 2018, section 3.1).
    """
    for i, (parameter, gradient, first, second) in enumerate(zip(parameters, gradients, firsts, seconds)):
        for rows in _blocks(parameter):
            p, g, m, v = parameter[rows], scaled(gradient[rows], gradient_scale), first[rows], second[rows]
            if masters:
                p, g = current(masters[i][rows], p), g.astype(m.dtype)
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


def scaled(gradient: Any, factor: Any) -> Any:
    """Return the gradient times a factor in the gradient's dtype; None is 1."""
    return gradient if factor is None else xp.asarray(gradient * factor, gradient.dtype)


def current(master: Any, parameter: Any) -> Any:
    """Update the master in place, and return it.

    Normally each element of the master rounds to the parameter's. If not, something else has written the parameter, such as
    load_state_dict or an initialiser, and the master restarts from it.
    """
    kept = master.astype(parameter.dtype) == parameter
    master[...] = xp.where(kept, master, parameter.astype(master.dtype))
    return master


def _blocks(array: Any) -> Iterator[Any]:
    """Yield the indices that cut an array into blocks of rows."""
    if array.ndim == 0:
        yield None  # adds an axis: otherwise NumPy would return a scalar, which cannot be changed in place
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
    """One step of gradient descent with PyTorch's momentum: v = momentum v + (1 - dampening) g. The first v is g.

    The lists, ``masters`` and dtypes are as in ``adam_step``. The parameters, masters and velocities are changed in place. With
    ``is_first`` the velocities are written, not read. Without momentum their list is empty.
    """
    for i, (parameter, g) in enumerate(zip(parameters, gradients)):
        p = parameter
        if masters:
            p, g = current(masters[i], p), g.astype(masters[i].dtype)
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


def norm_and_scale(arrays: Arrays, max_norm: float) -> tuple[Any, Any]:
    """Return the Euclidean norm of all elements of the arrays together, and the factor, at most 1, that limits it to
    ``max_norm``.

    Both are arrays or scalars of the backend, the norm in float32 or wider. The factor is NaN if the norm is. It is float64 on
    a GPU, and if the norm's dtype has too few digits for it, as when the norm overflows.
    """
    norms = [root_of_squares(a) for a in arrays]
    norm = root_of_squares((xp.stack if xp is not host and norms else xp.array)(norms))
    scale = xp.minimum(max_norm / (norm + 1e-6), 1.0)
    dtype = host.result_type(default_dtype, *[a.dtype for a in arrays])
    is_exact = is_host_array(scale) and not scale < host.finfo(dtype).tiny
    return norm.astype(dtype), scale.astype(dtype) if is_exact else scale


def scale_all(arrays: Arrays, factor: Any) -> None:
    """Multiply each array in place by ``factor``, an array or a scalar of the backend. Dtypes are kept."""
    for a in arrays:
        a *= factor
