"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tinytensor.autograd.tensor import Tensor
from tinytensor.common.arguments import checked
from tinytensor.optim import fused
from tinytensor.optim.optimizer import Optimizer
from tinytensor.optim.settings import CHECKS, check_flag, check_number
from tinytensor.optim.state import State


class SGD(Optimizer):
    """Stochastic gradient descent with momentum, as in PyTorch: v = momentum v + (1 - dampening) g. The first v is g.

    >>> x = tt.nn.Parameter([1.0, 2.0])
    >>> optimizer = tt.optim.SGD([x], lr=0.5)
    >>> (x * x).sum().backward()
    >>> optimizer.step()
    >>> x.tolist()
    [0.0, 0.0]
    """

    state_names = ("velocity",)
    checks = CHECKS | {"dampening": check_number, "nesterov": check_flag}

    # ``rule`` is the definition; the kernels of ``fused.SGD`` compute the same step faster, and are tested against it.
    @fused.SGD
    def rule(self, p: Any, g: Any, state: State, settings: Any) -> None:
        """Move against the gradient or, if there is momentum, against its running sum."""
        if settings.weight_decay:
            g = g + settings.weight_decay * p
        if settings.momentum:
            v = state["velocity"]
            v[...] = g if settings.is_first else settings.momentum * v + (1 - settings.dampening) * g
            g = g + settings.momentum * v if settings.nesterov else v
        p -= settings.lr * g

    @checked
    def __init__(
        self,
        parameters: Iterable[Tensor | dict[str, Any]],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        maximize: bool = False,
    ):
        settings = {"lr": lr, "momentum": momentum, "dampening": dampening, "nesterov": nesterov, "weight_decay": weight_decay}
        super().__init__(parameters, maximize=maximize, **settings)

    def check(self, settings: Mapping[str, Any]) -> None:
        """Raise TypeError or ValueError if a setting of a group is invalid."""
        super().check(settings)
        if settings["nesterov"] and (settings["momentum"] <= 0 or settings["dampening"] != 0):
            raise ValueError("nesterov needs a momentum above 0 and no dampening")

    def names_of_state(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the name of the velocity if there is momentum."""
        return self.state_names if group["momentum"] else ()
