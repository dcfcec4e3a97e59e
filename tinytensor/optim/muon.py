"""Muon: momentum that is made orthogonal before each step."""

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

# Jordan's a s + b s^3 + c s^5, for singular values s from 0 to 1. It lifts small ones fast, as its slope at 0 is a. After five
# rounds all from 0.002 on lie between 0.68 and 1.21: not at 1, but near enough.
POLYNOMIAL = (3.4445, -4.7750, 2.0315)
ROUNDS = 5
TINY = 1e-7  # instead of a smaller norm, so that a matrix of zeros stays one


def orthogonalised(matrices: Any) -> Any:
    """Of arrays (..., rows, columns) with the singular value decomposition U S V^T nearly U V^T: the nearest orthogonal ones.

    A Newton-Schulz iteration. A round applies the polynomial to the singular values without knowing them: where X is at least
    as wide as high, and G is X X^T, the next X is P X with P = a I + b G + c G^2. Here the product of all P is computed first,
    and the next G as P G P. So only two products are as large as the matrix itself. The singular values must be at most 1 in
    the beginning; therefore each matrix is divided by its Frobenius norm.
    """
    rows, columns = matrices.shape[-2:]
    x = matrices.swapaxes(-1, -2) if rows > columns else matrices
    length = xp.maximum(root_of_squares(x, (x.ndim - 2, x.ndim - 1), keepdims=True), TINY)
    x = (x / length).astype(x.dtype)  # a length of float64, which float32 may not hold
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
    """Muon for weight matrices, and AdamW for the rest (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/).

    A gradient is large along a few directions of a matrix, and small along most. Muon goes as far along all of them. Where
    U S V^T is the singular value decomposition of the momentum, it goes along U V^T, and by ``lr`` times
    max(1, rows / columns)^0.5.

    Embeddings, output layers, gains and biases are better left to AdamW: as a group with ``"orthogonal": False`` and a learning
    rate of its own. ``betas`` and ``eps`` are for such groups, ``momentum`` and ``parts`` for orthogonal ones. A parameter may
    hold several matrices of one shape, one above another, as a layer does that makes queries, keys and values at once. Each
    of these ``parts`` is then made orthogonal by itself.

    Raises ValueError for a setting out of its range, and if a parameter of an orthogonal group is not so many matrices.

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
        """Take a step along the orthogonalised momentum of each part, where the gradient counts once more, as Nesterov's."""
        momentum, v = settings.momentum, state["velocity"]
        fresh = (1 - momentum) * g
        v *= momentum
        v += fresh
        rows, columns = len(p) // settings.parts, p.shape[1]
        step = orthogonalised((momentum * v + fresh).reshape(settings.parts, rows, columns)).reshape(p.shape)
        # Longer where there are more outputs than inputs, so that the outputs of all layers change by about as much.
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
        # Not Adam's own, which takes none of these settings.
        Optimizer.__init__(
            self, parameters, lr=lr, weight_decay=weight_decay, betas=betas, eps=eps, maximize=maximize, **of_matrices
        )

    def check_group(self, group: Mapping[str, Any]) -> None:
        """Raise TypeError or ValueError if a group that is added is not valid."""
        super().check_group(group)
        for p in group["params"] if group["orthogonal"] else ():
            if p.ndim != 2:
                raise ValueError(
                    f'Muon got a parameter of shape {p.shape}, not a matrix: put it into a group with "orthogonal": False'
                )
            if p.shape[0] % group["parts"]:
                raise ValueError(
                    f"Muon got a parameter of shape {p.shape}, whose {counted(p.shape[0], 'row')} cannot be divided into "
                    f"{counted(group['parts'], 'part')}: put it into a group with other parts"
                )

    def names_of_state(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """The momentum of orthogonal groups, and AdamW's state of the others."""
        return ("velocity",) if group["orthogonal"] else Adam.state_names

    def rule_for(self, group: Mapping[str, Any]) -> Rule:
        """AdamW's for groups that are not orthogonal."""
        return self.rule if group["orthogonal"] else super().rule
