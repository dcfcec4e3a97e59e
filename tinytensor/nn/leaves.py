"""Functions that change parameters and buffers outside a graph: their values, dtype and gradients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tinytensor import ops
from tinytensor.autograd.engine import note_change
from tinytensor.autograd.tensor import Tensor
from tinytensor.creation import zeros_like
from tinytensor.device.backend import Array, is_floating, no_warnings


def clear_gradients(tensors: Iterable[Tensor], set_to_none: bool) -> None:
    """Discard the gradients of these tensors, or set them to zero."""
    for tensor in tensors:
        tensor.grad = None if set_to_none or tensor.grad is None else zeros_like(tensor.grad)


def overwrite(tensor: Tensor, values: Any) -> None:
    """Replace the values of a parameter or buffer in place."""
    with no_warnings():  # a value may overflow the tensor's dtype
        tensor.data[...] = values
    note_change(tensor.data)


def convert_(tensor: Tensor, dtype: Any) -> None:
    """Change a leaf's dtype in place, so that modules and optimizers keep the same parameter.

    Raises TypeError, before any change, for an unknown dtype or a dtype in which parameters cannot be trained.
    """
    data = ops.astype(tensor, dtype).data
    if tensor.requires_grad and not is_floating(data.dtype):
        raise TypeError(f"a parameter of {data.dtype} cannot learn: convert it to a floating-point dtype")
    replace_data(tensor, data)


def replace_data(tensor: Tensor, data: Array) -> None:
    """Replace the array of a leaf. The leaf's gradient is discarded, and existing graphs no longer backpropagate to it."""
    requires_grad = tensor.requires_grad
    tensor.requires_grad = False  # raises for a tensor that is not a leaf
    tensor.grad = None
    tensor.data = data
    tensor.requires_grad = requires_grad
