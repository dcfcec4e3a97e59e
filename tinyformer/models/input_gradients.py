"""How much the last output of a sequence depends on each of its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tinytensor as tt
from tinytensor import Tensor


def input_gradients(function: Callable[[Tensor], Tensor], inputs: Tensor) -> Any:
    """The norm of the gradient of the outputs with respect to the input of each step: a NumPy array (batch, length).

    ``function`` turns inputs (batch, length, width) into outputs (batch, n), each row by itself. The norm is that of the
    whole matrix of n * width derivatives (Frobenius), so it does not matter which of the outputs is the right one.
    """
    inputs = tt.tensor(inputs.detach(), requires_grad=True)
    outputs = function(inputs)
    squares: Any = 0.0
    for i in range(outputs.shape[1]):
        gradient = tt.grad(outputs[:, i].sum(), inputs, retain_graph=True)
        squares = squares + (gradient * gradient).sum(axis=-1)
    return tt.sqrt(squares).numpy()
