"""RMSprop, Adagrad and Adadelta, which divide gradients by the magnitude of earlier gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tinytensor.autograd.tensor import Tensor
from tinytensor.common.arguments import checked
from tinytensor.device.backend import xp
from tinytensor.optim.optimizer import Optimizer
from tinytensor.optim.settings import CHECKS, check_decay, check_flag, check_number
from tinytensor.optim.state import State


class RMSprop(Optimizer):
    """RMSprop (Tieleman and Hinton 2012), as in PyTorch: gradients divided by the root of their running mean square.

    ``alpha`` is the decay rate of the mean, and ``eps`` is added to the root. ``centered`` divides by the standard deviation
    (Graves 2013). A nonzero ``momentum`` accumulates steps: v = momentum v + quotient.
    """

    state_names = ("second", "first", "velocity")
    checks = CHECKS | {"alpha": check_decay, "centered": check_flag}

    def rule(self, p: Any, g: Any, state: State, settings: Any) -> None:
        """Divide the gradient by its root mean square. If there is momentum, accumulate the quotients."""
        alpha, s = settings.alpha, state["second"]
        if settings.weight_decay:
            g = g + settings.weight_decay * p
        s[...] = alpha * s + (1 - alpha) * g**2
        variance = s
        if settings.centered:
            m = state["first"]
            m[...] = alpha * m + (1 - alpha) * g
            variance = xp.maximum(s - m**2, 0.0)  # rounding could make the variance negative
        step = g / (xp.sqrt(variance) + settings.eps)
        if settings.momentum:
            v = state["velocity"]
            step = v[...] = settings.momentum * v + step
        p -= settings.lr * step

    @checked
    def __init__(
        self,
        parameters: Iterable[Tensor | dict[str, Any]],
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        maximize: bool = False,
    ):
        settings = {"alpha": alpha, "momentum": momentum, "centered": centered}
        super().__init__(parameters, lr=lr, eps=eps, weight_decay=weight_decay, maximize=maximize, **settings)

    def names_of_state(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names of the mean square, the mean (if ``centered``) and the velocity (if there is momentum)."""
        needed = {"second": True, "first": group["centered"], "velocity": group["momentum"]}
        return tuple([name for name in self.state_names if needed[name]])


class Adagrad(Optimizer):
    """Adagrad (Duchi, Hazan and Singer 2011), as in PyTorch: gradients divided by the root of the sum of their squares.

    The sum starts from ``initial_accumulator_value``, and ``eps`` is added to the root. The learning rate is
    lr / (1 + (step - 1) lr_decay), where steps count from 1.
    """

    state_names = ("squares", "steps")
    checks = CHECKS | {"lr_decay": check_number, "initial_accumulator_value": check_number}

    def rule(self, p: Any, g: Any, state: State, settings: Any) -> None:
        """Divide the gradient by the root of the sum of its squares."""
        s = state["squares"]
        if settings.weight_decay:
            g = g + settings.weight_decay * p
        s += g**2
        rate = settings.lr / (1 + (settings.t - 1) * settings.lr_decay)
        p -= rate * (g / (xp.sqrt(s + settings.initial_accumulator_value) + settings.eps))

    @checked
    def __init__(
        self,
        parameters: Iterable[Tensor | dict[str, Any]],
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        maximize: bool = False,
    ):
        settings = {"lr_decay": lr_decay, "initial_accumulator_value": initial_accumulator_value}
        super().__init__(parameters, lr=lr, eps=eps, weight_decay=weight_decay, maximize=maximize, **settings)


class Adadelta(Optimizer):
    """Adadelta (Zeiler 2012), as in PyTorch: gradients times the root mean square (RMS) of recent steps, over their own RMS.

    ``rho`` is the decay rate of both means. ``eps`` is added to each mean under the root.
    """

    state_names = ("second", "changes")
    checks = CHECKS | {"rho": check_decay}

    def rule(self, p: Any, g: Any, state: State, settings: Any) -> None:
        """Apply algorithm 1 of the paper, with steps multiplied by ``lr``."""
        rho, eps, s, changes = settings.rho, settings.eps, state["second"], state["changes"]
        if settings.weight_decay:
            g = g + settings.weight_decay * p
        s[...] = rho * s + (1 - rho) * g**2
        step = g * (xp.sqrt(changes + eps) / xp.sqrt(s + eps))
        changes[...] = rho * changes + (1 - rho) * step**2
        p -= settings.lr * step

    @checked
    def __init__(
        self,
        parameters: Iterable[Tensor | dict[str, Any]],
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        maximize: bool = False,
    ):
        super().__init__(parameters, lr=lr, rho=rho, eps=eps, weight_decay=weight_decay, maximize=maximize)
