"""Lion, which steps along the sign of the momentum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tinytensor.autograd.tensor import Tensor
from tinytensor.common.arguments import checked
from tinytensor.device.backend import xp
from tinytensor.optim.optimizer import Optimizer
from tinytensor.optim.settings import CHECKS, check_betas
from tinytensor.optim.state import State


class Lion(Optimizer):
    """Lion (Chen et al. 2023, https://arxiv.org/abs/2302.06675): every element moves by ``lr``, up or down.

    The direction is the sign of an average of the momentum and the gradient. ``betas`` are the weight of the momentum in this
    average and its decay rate. Lion stores one array per parameter; AdamW stores two. Weight decay is decoupled, as in AdamW.
    The paper divides AdamW's learning rate by 3 to 10 and multiplies its weight decay by the same factor.

    >>> x = tt.nn.Parameter([1.0, -2.0])
    >>> optimizer = tt.optim.Lion([x], lr=0.5)
    >>> (x * x).sum().backward()
    >>> optimizer.step()
    >>> x.tolist()
    [0.5, -1.5]
    """

    state_names = ("first",)
    checks = CHECKS | {"betas": check_betas}

    def rule(self, p: Any, g: Any, state: State, settings: Any) -> None:
        """Apply algorithm 2 of the paper."""
        (beta1, beta2), m = settings.betas, state["first"]
        step = xp.sign(beta1 * m + (1 - beta1) * g)
        if settings.weight_decay:
            step = step + settings.weight_decay * p
        p -= settings.lr * step
        m[...] = beta2 * m + (1 - beta2) * g

    @checked
    def __init__(
        self,
        parameters: Iterable[Tensor | dict[str, Any]],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        maximize: bool = False,
    ):
        super().__init__(parameters, lr=lr, betas=betas, weight_decay=weight_decay, maximize=maximize)
