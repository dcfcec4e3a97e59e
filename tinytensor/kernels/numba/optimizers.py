"""Optimizer steps, one pass over parameter, gradient and moments; kernels/numpy/optimizers.py has the contracts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tinytensor.kernels.numba.compiling import loop, real
from tinytensor.kernels.numpy import optimizers as in_numpy

_PART = 1 << 16  # elements

Arrays = Sequence[Any]


@loop
def _adam(
    parameter: Any,
    gradient: Any,
    first: Any,
    second: Any,
    beta1: float,
    rest1: float,
    beta2: float,
    rest2: float,
    rate: float,
    root_factor: float,
    eps: float,
    kept: float,
    added: float,
) -> None:
    """``rest1`` is 1 - beta1. Weight decay is either in ``kept``, the factor of a parameter, or in ``added``, the part of it
    that is added to its gradient."""
    for i in range(parameter.size):
        p = parameter[i]  # read before it is written: reading a value just written is slow
        slope = gradient[i] + p * added if added != real(0) else gradient[i]  # 0 times an infinite p would be NaN
        m = first[i] * beta1 + slope * rest1
        v = second[i] * beta2 + slope * slope * rest2
        parameter[i] = p * kept - rate * (m / (math.sqrt(v) * root_factor + eps))
        first[i], second[i] = m, v


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
    """``adam_step`` of kernels/numpy."""
    rate, root_factor = lr / (1.0 - beta1**step), 1.0 / math.sqrt(1.0 - beta2**step)
    kept, added = (1.0 - lr * weight_decay, 0.0) if decoupled else (1.0, float(weight_decay))
    settings = (step, lr, beta1, beta2, eps, weight_decay, decoupled)
    if masters:  # round the scaled gradients before they are converted to float32
        gradients, gradient_scale = [in_numpy.scaled(g, gradient_scale) for g in gradients], None
    changed, gradients = _current(parameters, gradients, masters)
    numbers = _of_dtype(changed, beta1, 1.0 - beta1, beta2, 1.0 - beta2, rate, root_factor, eps, kept, added)
    for p, g, m, v in zip(changed, gradients, firsts, seconds):
        if _are_plain([p, g, m, v]):
            flat = [a.reshape(-1) for a in (p, g, m, v)]
            for part in _parts(p.size, is_whole=gradient_scale is None):
                p, g, m, v = [a[part] for a in flat]
                _adam(p, in_numpy.scaled(g, gradient_scale), m, v, *numbers)
        else:
            in_numpy.adam_step([p], [g], [m], [v], [], *settings, gradient_scale)
    _round(masters, parameters)


def _parts(size: int, is_whole: bool) -> list[slice]:
    """Return slices of an array: all of it, or parts that stay in the processor's cache from one pass to the next."""
    step = max(1, size) if is_whole else _PART
    return [slice(first, first + step) for first in range(0, size, step)]


def _current(parameters: Arrays, gradients: Arrays, masters: Arrays) -> tuple[Arrays, Arrays]:
    """Return the arrays that a step changes, parameters or their masters, and the gradients in the same dtype."""
    if not masters:
        return parameters, gradients
    return [in_numpy.current(m, p) for m, p in zip(masters, parameters)], [g.astype(masters[0].dtype) for g in gradients]


def _of_dtype(arrays: Arrays, *numbers: float) -> list[Any]:
    """Convert numbers to the arrays' dtype, once for all arrays."""
    return [arrays[0].dtype.type(x) for x in numbers] if arrays else []


def _round(masters: Arrays, parameters: Arrays) -> None:
    """Round the masters, if any, to their parameters."""
    for master, parameter in zip(masters, parameters):
        parameter[...] = master.astype(parameter.dtype)


def _are_plain(arrays: Arrays) -> bool:
    """Return True if loops can change these arrays: one shape and dtype, contiguous, writable."""
    shape, dtype = arrays[0].shape, arrays[0].dtype
    return dtype.isnative and all(a.flags.carray and a.shape == shape and a.dtype == dtype for a in arrays)


@loop
def _sgd(
    parameter: Any, gradient: Any, velocity: Any, lr: float, momentum: float, fresh: float, added: float, ahead: bool
) -> None:
    for i in range(parameter.size):
        p = parameter[i]
        slope = gradient[i] + p * added if added != real(0) else gradient[i]
        v = velocity[i] * momentum + slope * fresh
        parameter[i] = p - lr * (slope + momentum * v if ahead else v)
        velocity[i] = v


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
    """``sgd_step`` of kernels/numpy."""
    settings = (is_first, lr, momentum, dampening, nesterov, weight_decay)
    if is_first or not momentum:
        in_numpy.sgd_step(parameters, gradients, velocities, masters, *settings)
        return
    changed, gradients = _current(parameters, gradients, masters)
    numbers = _of_dtype(changed, lr, momentum, 1.0 - dampening, weight_decay)
    for p, g, v in zip(changed, gradients, velocities):
        if _are_plain([p, g, v]):
            _sgd(*[a.reshape(-1) for a in (p, g, v)], *numbers, bool(nesterov))
        else:
            in_numpy.sgd_step([p], [g], [v], [], *settings)
    _round(masters, parameters)
