"""Optimizer steps on raw arrays, in place, some rows at a time: those stay in the processor's cache until they are done."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from tinytensor.backend import xp

_BLOCK = 1 << 16  # elements: with the gradient, both moments and a scratch array 1.25 MiB


def adam_step(
    parameter: Any,
    gradient: Any,
    first: Any,
    second: Any,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
) -> None:
    """One step of Adam (Kingma and Ba 2015, algorithm 1), or with ``decoupled`` of AdamW (Loshchilov and Hutter 2019).

    ``first`` and ``second`` are the moments, and ``step`` counts from 1. All arrays are changed in place but the gradient.
    """
    for rows in _blocks(parameter):
        p, g, m, v = parameter[rows], gradient[rows], first[rows], second[rows]
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


def _blocks(array: Any) -> Iterator[Any]:
    """Indices that cut an array into blocks of rows."""
    if array.ndim == 0:
        yield ...
        return
    rows = max(1, _BLOCK // max(1, math.prod(array.shape[1:])))
    for first in range(0, len(array), rows):
        yield slice(first, first + rows)


def sgd_step(
    parameter: Any,
    gradient: Any,
    velocity: Any,
    lr: float,
    momentum: float,
    dampening: float,
    nesterov: bool,
    weight_decay: float,
) -> Any:
    """One step of gradient descent with PyTorch's momentum (v = momentum v + (1 - dampening) g; the first v is g itself).

    Changes ``parameter`` in place and returns the velocity, None without momentum.
    """
    if weight_decay:
        gradient = gradient + parameter * weight_decay
    if momentum:
        if velocity is None:
            velocity = gradient.copy()
        else:
            velocity *= momentum
            velocity += gradient * (1.0 - dampening)
        gradient = gradient + velocity * momentum if nesterov else velocity
    parameter -= gradient * lr
    return velocity
