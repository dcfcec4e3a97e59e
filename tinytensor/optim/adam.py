"""Adam and AdamW."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tinytensor.autograd.tensor import Tensor
from tinytensor.common.arguments import checked
from tinytensor.device.backend import xp
from tinytensor.optim import fused
from tinytensor.optim.optimizer import Optimizer
from tinytensor.optim.settings import CHECKS, check_betas, check_flag
from tinytensor.optim.state import State


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015). Weight decay adds ``weight_decay`` times the parameter to the gradient, as in PyTorch.

    ``betas`` are the decay rates of the running means of the gradient and its square. ``eps`` is added to the square root of
    the second mean. ``amsgrad`` uses the largest second mean so far (Reddi, Kale and Kumar 2018).

    Raises ValueError if a setting is out of range.
    """

    state_names: tuple[str, ...] = ("first", "second", "steps")
    checks = CHECKS | {"betas": check_betas, "amsgrad": check_flag}
    decoupled = False  # True: weight decay shrinks the parameter directly, as in AdamW

    # ``rule`` is the definition. The kernels of ``fused.ADAM`` compute the same step (up to rounding) faster, and are tested
    # against it.
    @fused.ADAM
    def rule(self, p: Any, g: Any, state: State, settings: Any) -> None:
        """Apply algorithm 1 of the paper or, if ``decoupled``, algorithm 2 of Loshchilov and Hutter."""
        (beta1, beta2), decay, m, v = settings.betas, settings.weight_decay, state["first"], state["second"]
        if decay and not self.decoupled:
            g = g + decay * p
        m[...] = beta1 * m + (1 - beta1) * g
        v[...] = beta2 * v + (1 - beta2) * g**2
        if "largest" in state:  # with amsgrad
            v = xp.maximum(state["largest"], v, out=state["largest"])
        m_hat = m / (1 - beta1**settings.t)  # corrects the bias of means that start at 0
        v_hat = v / (1 - beta2**settings.t)
        if decay and self.decoupled:
            p -= settings.lr * decay * p
        p -= settings.lr * m_hat / (xp.sqrt(v_hat) + settings.eps)

    @checked
    def __init__(
        self,
        parameters: Iterable[Tensor | dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        maximize: bool = False,
    ):
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
        super().__init__(parameters, maximize=maximize, **settings)

    def names_of_state(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names of the moments and the step count and, for ``amsgrad``, of the largest second moment."""
        return (*self.state_names, "largest") if group["amsgrad"] else self.state_names


class AdamW(Adam):
    """Adam with decoupled weight decay: it shrinks the parameters directly (Loshchilov and Hutter 2019). The default is 0.01.

    See ``Adam`` for the other settings and ``Optimizer`` for parameter groups.

    >>> model = tt.nn.Linear(2, 1)
    >>> optimizer = tt.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    >>> for step in range(3):
    ...     optimizer.zero_grad()
    ...     model(tt.ones((4, 2))).mean().backward()
    ...     optimizer.step()
    """

    decoupled = True

    @checked
    def __init__(
        self,
        parameters: Iterable[Tensor | dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        amsgrad: bool = False,
        maximize: bool = False,
    ):
        super().__init__(parameters, lr, betas, eps, weight_decay, amsgrad, maximize)
