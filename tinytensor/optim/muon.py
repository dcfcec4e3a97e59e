"""Muon, which steps along the orthogonalized momentum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from tinytensor import kernels
from tinytensor.autograd.tensor import Tensor
from tinytensor.common.arguments import checked
from tinytensor.common.wording import counted
from tinytensor.device.backend import xp
from tinytensor.device.summation import root_of_squares
from tinytensor.optim.adam import Adam
from tinytensor.optim.fused import Rule
from tinytensor.optim.optimizer import Optimizer
from tinytensor.optim.settings import check_count, check_flag, check_number
from tinytensor.optim.state import State

# Jordan's a s + b s^3 + c s^5, for singular values s from 0 to 1. Its slope a at 0 raises small values fast. Five rounds move
# all values from 0.002 up into the range 0.68 to 1.21, close enough to 1.
POLYNOMIAL = (3.4445, -4.7750, 2.0315)
ROUNDS = 5
TINY = 1e-7  # minimum norm, so that a zero matrix stays zero


def orthogonalised(matrices: Any) -> Any:
    """Return approximately U V^T, the nearest orthogonal matrices, for ``matrices`` (..., rows, columns) with SVD U S V^T.

    A Newton-Schulz iteration applies the polynomial to the singular values without computing them. For X with at least as many
    columns as rows and G = X X^T, each round replaces X with P X, where P = a I + b G + c G^2. The product of all P is computed
    first, with P G P as the next G, so only two products are as large as the matrix. Each matrix is divided by its Frobenius
    norm, because the singular values must start at most 1.
    """
    rows, columns = matrices.shape[-2:]
    x = matrices.swapaxes(-1, -2) if rows > columns else matrices
    length = xp.maximum(root_of_squares(x, (x.ndim - 2, x.ndim - 1), keepdims=True), TINY)
    x = (x / length).astype(x.dtype)  # the length is float64
    a, b, c = POLYNOMIAL
    gram = kernels.matmul(x, x.swapaxes(-1, -2))
    constant = a * xp.eye(x.shape[-2], dtype=x.dtype)
    product = None
    for rounds_left in reversed(range(ROUNDS)):
        p = constant + b * gram + c * kernels.matmul(gram, gram)
        product = p if product is None else kernels.matmul(p, product)
        if rounds_left:
            gram = kernels.matmul(p, kernels.matmul(gram, p))
    x = kernels.matmul(product, x)
    return x.swapaxes(-1, -2) if rows > columns else x


class Muon(Adam):
    """Muon for weight matrices, AdamW for other parameters (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/).

    A gradient is large along a few directions of a matrix and small along most. Muon moves equally far along all of them. If U
    S V^T is the singular value decomposition of the momentum, the step is U V^T times ``lr`` times max(1, rows / columns)^0.5.

    Leave embeddings, output layers, gains and biases to AdamW: put them into a group with ``"orthogonal": False`` and its own
    learning rate. ``betas`` and ``eps`` apply to such groups, ``momentum`` and ``parts`` to orthogonal groups. A parameter may
    stack several matrices of the same shape, such as a joint projection to queries, keys and values. Each of its ``parts`` is
    orthogonalized separately.

    Raises ValueError if a setting is out of range, or if a parameter of an orthogonal group cannot be cut into ``parts``.

    >>> model = tt.nn.Sequential(tt.nn.Linear(4, 8), tt.nn.ReLU(), tt.nn.Linear(8, 2))
    >>> matrices = [p for p in model.parameters() if p.ndim == 2]
    >>> biases = [p for p in model.parameters() if p.ndim == 1]
    >>> optimizer = tt.optim.Muon([{"params": matrices}, {"params": biases, "orthogonal": False, "lr": 1e-3}], lr=0.02)
    >>> model(tt.ones((5, 4))).mean().backward()
    >>> optimizer.step()
    """

    state_names = ("velocity", *Adam.state_names)
    checks = Adam.checks | {
        "momentum": partial(check_number, below=1),
        "parts": partial(check_count, least=1),
        "orthogonal": check_flag,
    }
    decoupled = True

    def rule(self, p: Any, g: Any, state: State, settings: Any) -> None:
        """Step in the direction of the orthogonalized Nesterov momentum of each part."""
        momentum, v = settings.momentum, state["velocity"]
        fresh = (1 - momentum) * g
        v *= momentum
        v += fresh
        rows, columns = len(p) // settings.parts, p.shape[1]
        step = orthogonalised((momentum * v + fresh).reshape(settings.parts, rows, columns)).reshape(p.shape)
        # Steps are longer if there are more outputs than inputs, so that the outputs of all layers change about equally.
        longer = max(1.0, rows / columns) ** 0.5
        if settings.weight_decay:
            p -= settings.lr * settings.weight_decay * p
        p -= settings.lr * longer * step

    @checked
    def __init__(
        self,
        parameters: Iterable[Tensor | dict[str, Any]],
        lr: float = 0.02,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        parts: int = 1,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        orthogonal: bool = True,
        maximize: bool = False,
    ):
        of_matrices = {"momentum": momentum, "parts": parts, "orthogonal": orthogonal}
        Optimizer.__init__(
            self, parameters, lr=lr, weight_decay=weight_decay, betas=betas, eps=eps, maximize=maximize, **of_matrices
        )

    def check_group(self, group: Mapping[str, Any]) -> None:
        """Raise TypeError or ValueError for an invalid group."""
        super().check_group(group)
        for p in group["params"] if group["orthogonal"] else ():
            if p.ndim != 2:
                raise ValueError(
                    f'Muon expected matrices, got a parameter of shape {p.shape}: put it into a group with "orthogonal": False'
                )
            if p.shape[0] % group["parts"]:
                raise ValueError(
                    f"Muon cannot cut a parameter of shape {p.shape} into {counted(group['parts'], 'part')} of equal height: "
                    "put it into a group with other parts"
                )

    def names_of_state(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the name of the momentum for an orthogonal group, else the names in AdamW's state."""
        return ("velocity",) if group["orthogonal"] else Adam.state_names

    def rule_for(self, group: Mapping[str, Any]) -> Rule:
        """Return this class's rule for an orthogonal group, else AdamW's."""
        return self.rule if group["orthogonal"] else super().rule
