"""Gradient clipping by norm."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tinytensor import kernels
from tinytensor.backend import is_host_array, no_warnings, xp
from tinytensor.changes import note_change
from tinytensor.optim.optimizer import tensors_in
from tinytensor.tensor import Tensor


def clip_grad_norm(parameters: Tensor | Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale all gradients in place so that their norm, taken as one vector, is at most ``max_norm`` (Pascanu et al. 2013).

    An infinite ``max_norm`` changes nothing. ``parameters`` is one tensor or several. Those without a gradient, such as frozen
    ones, do not count. Returns the norm before scaling as a tensor of one element, because reading it would make a GPU wait.
    A norm that is NaN or infinite is returned like any other, for the caller to look at.

    >>> x = tt.nn.Parameter([0.0, 0.0])
    >>> x.grad = tt.tensor([3.0, 4.0])
    >>> before = tt.optim.clip_grad_norm([x], 1.0)
    >>> round(float(before), 4), round(x.grad.norm().item(), 4)
    (5.0, 1.0)
    """
    max_norm = float(max_norm)
    if not max_norm > 0:
        raise ValueError(f"clip_grad_norm: max_norm must be positive, not {max_norm}")
    gradients = [p.grad.data for p in tensors_in("clip_grad_norm", parameters) if p.grad is not None]
    if not gradients:
        return Tensor(0.0)
    with no_warnings():
        norm = kernels.global_norm(gradients)
        if max_norm < math.inf:
            scale = xp.minimum(max_norm / (norm + 1e-6), 1.0)
            if not is_host_array(scale) or scale != 1.0:  # reading a GPU's number would wait for it
                each_once = list({id(g): g for g in gradients}.values())  # two parameters may share a gradient
                kernels.scale_all(each_once, scale)
                for gradient in gradients:
                    note_change(gradient)
    return Tensor._wrap(xp.asarray(norm))
