"""Gradient clipping by norm."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from tinytensor import kernels
from tinytensor.autograd.tensor import Tensor
from tinytensor.common.arguments import checked
from tinytensor.device.backend import is_host_array, no_warnings, xp
from tinytensor.optim.applying import scale_gradients
from tinytensor.optim.optimizer import tensors_in


@checked
def clip_grad_norm(parameters: Tensor | Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale all gradients in place so that their total norm is at most ``max_norm`` (Pascanu et al. 2013).

    An infinite ``max_norm`` changes nothing. ``parameters`` is one tensor or several. Tensors without gradients are skipped.
    Returns the norm before scaling as a one-element tensor, because reading it would stall a GPU. It may be NaN or infinite.

    >>> x = tt.nn.Parameter([0.0, 0.0])
    >>> x.grad = tt.tensor([3.0, 4.0])
    >>> before = tt.optim.clip_grad_norm([x], 1.0)
    >>> round(float(before), 4), round(x.grad.norm().item(), 4)
    (5.0, 1.0)
    """
    tensors = tensors_in("clip_grad_norm", parameters)
    norm, scale = _norm_and_scale("clip_grad_norm", tensors, max_norm)
    if scale is not None:
        scale_gradients([p.grad.data for p in tensors if p.grad is not None], scale)
    return norm


@checked
def norm_and_scale(parameters: Tensor | Iterable[Tensor], max_norm: float) -> tuple[Tensor, Any]:
    """Return the norm that ``clip_grad_norm`` returns, and the factor for the gradients as a one-element array.

    The gradients do not change. To save a pass, ``optimizer.step(gradient_scale=...)`` scales them as it reads them. The scale
    is None if no scaling is needed: no gradients, an infinite ``max_norm``, or (on the CPU) a small norm.

    >>> x = tt.nn.Parameter([0.0, 0.0])
    >>> x.grad = tt.tensor([3.0, 4.0])
    >>> norm, scale = tt.optim.norm_and_scale([x], 1.0)
    >>> round(float(norm), 4), round(float(scale), 4)
    (5.0, 0.2)
    """
    return _norm_and_scale("norm_and_scale", tensors_in("norm_and_scale", parameters), max_norm)


def _norm_and_scale(caller: str, tensors: Iterable[Tensor], max_norm: float) -> tuple[Tensor, Any]:
    if not max_norm > 0:
        raise ValueError(f"{caller}: max_norm must be positive, got {max_norm}")
    gradients = [p.grad.data for p in tensors if p.grad is not None]
    if not gradients:
        return Tensor(0.0), None
    with no_warnings():
        norm, scale = kernels.norm_and_scale(gradients, max_norm)
    # Reading the scale would synchronize a GPU.
    changes_nothing = max_norm == math.inf or (is_host_array(scale) and scale == 1.0)
    return Tensor._wrap(xp.asarray(norm)), None if changes_nothing else scale
