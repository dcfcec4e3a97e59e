"""Optimizer steps on raw arrays, in place, with one scratch array each."""

from __future__ import annotations

import math
from typing import Any

from tinytensor.backend import xp


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
    if weight_decay and decoupled:
        parameter *= 1.0 - lr * weight_decay
    elif weight_decay:
        gradient = gradient + parameter * weight_decay
    scratch = gradient * (1.0 - beta1)
    first *= beta1
    first += scratch
    xp.multiply(gradient, gradient, out=scratch)
    scratch *= 1.0 - beta2
    second *= beta2
    second += scratch
    xp.sqrt(second, out=scratch)
    scratch *= 1.0 / math.sqrt(1.0 - beta2**step)
    scratch += eps
    xp.divide(first, scratch, out=scratch)
    scratch *= lr / (1.0 - beta1**step)
    parameter -= scratch


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
