"""SGD, Adam and AdamW."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from tinytensor import kernels
from tinytensor.autograd.tensor import Tensor
from tinytensor.common.arguments import checked
from tinytensor.device import capturing
from tinytensor.device.backend import xp
from tinytensor.kernels.numpy.optimizers import scaled
from tinytensor.optim.adaptive import follow, round_to, weight_of
from tinytensor.optim.optimizer import Arrays, Optimizer, States
from tinytensor.optim.settings import check_flag, check_number
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
        """Raise TypeError or ValueError if a setting of a group is not valid."""
        super().check(settings)
        check_number("dampening", settings["dampening"])
        check_flag("nesterov", settings["nesterov"])
        if settings["nesterov"] and (settings["momentum"] <= 0 or settings["dampening"] != 0):
            raise ValueError("nesterov needs a momentum above 0 and no dampening")

    def advance(self, parameter: Any, state: State, group: dict[str, Any]) -> None:
        """Add the velocity, if there is momentum."""
        if group["momentum"] and "velocity" not in state:
            state["velocity"] = state.new("velocity", state.get("master", parameter))

    def update(self, parameters: Arrays, gradients: Arrays, states: States, group: dict[str, Any], lr: float) -> None:
        """One step."""
        is_first = "velocity" not in states[0]
        for parameter, state in zip(parameters, states):
            self.advance(parameter, state, group)
        kernels.sgd_step(
            parameters,
            gradients,
            [state["velocity"] for state in states] if group["momentum"] else [],
            [state["master"] for state in states if "master" in state],
            is_first,
            lr,
            group["momentum"],
            group["dampening"],
            group["nesterov"],
            group["weight_decay"],
        )


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015). Weight decay adds ``weight_decay`` times the parameter to the gradient, as in PyTorch.

    ``betas`` are the decay rates of the running means of the gradient and of its square; ``eps`` is added to the root of the
    second. With ``amsgrad`` the root is that of the largest such mean so far (Reddi, Kale and Kumar 2018).

    Raises ValueError for a setting out of its range.
    """

    state_names: tuple[str, ...] = ("first", "second", "steps")
    decoupled = False
    reads_gradient_scale = True

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

    def check(self, settings: Mapping[str, Any]) -> None:
        """Raise TypeError or ValueError if a setting of a group is not valid."""
        super().check(settings)
        betas = settings["betas"]
        if not isinstance(betas, (tuple, list)) or len(betas) != 2:
            raise ValueError(f"betas must be two numbers, not {betas!r}")
        for beta in betas:
            check_number("each of the betas", beta, below=1)
        check_flag("amsgrad", settings.get("amsgrad", False))

    def names_of_state(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """The moments and the steps; with ``amsgrad`` also the largest second moment."""
        return (*self.state_names, "largest") if group["amsgrad"] else self.state_names

    def advance(self, parameter: Any, state: State, group: dict[str, Any]) -> None:
        """Add the moments at the first step, and count the step."""
        if "steps" not in state:
            like = state.get("master", parameter)
            state.update(first=state.new("first", like), second=state.new("second", like), steps=0)
        if group.get("amsgrad") and "largest" not in state:
            state["largest"] = state.new("largest", state["second"])
        state["steps"] += 1

    def update(self, parameters: Arrays, gradients: Arrays, states: States, group: dict[str, Any], lr: float) -> None:
        """One step."""

        def advance() -> None:
            for parameter, state in zip(parameters, states):
                self.advance(parameter, state, group)

        capturing.repeat(advance)
        if group.get("amsgrad"):
            for one in zip(parameters, gradients, states):
                self._amsgrad_step(*one, group, lr)
            return
        beta1, beta2 = group["betas"]
        kernels.adam_step(
            parameters,
            gradients,
            [state["first"] for state in states],
            [state["second"] for state in states],
            [state["master"] for state in states if "master" in state],
            capturing.changing(lambda: states[0]["steps"]),
            lr,
            beta1,
            beta2,
            group["eps"],
            group["weight_decay"],
            self.decoupled,
            group.get("gradient_scale"),
        )

    def _amsgrad_step(self, parameter: Any, gradient: Any, state: State, group: Mapping[str, Any], lr: float) -> None:
        """The formula in array operations: the kernels know nothing of the largest moment."""
        (beta1, beta2), first, second, largest = group["betas"], state["first"], state["second"], state["largest"]
        weight = weight_of(parameter, state)
        g = scaled(gradient, group.get("gradient_scale")).astype(weight.dtype, copy=False)
        kept, rate, root_factor = capturing.numbers(partial(self._factors, state, group, lr), weight.dtype)
        if self.decoupled:
            weight *= kept
        elif group["weight_decay"]:
            g = g + weight * group["weight_decay"]
        follow(first, g, beta1)
        follow(second, g * g, beta2)
        xp.maximum(largest, second, out=largest)
        weight -= first / (xp.sqrt(largest) * root_factor + group["eps"]) * rate
        round_to(parameter, weight)

    @staticmethod
    def _factors(state: State, group: Mapping[str, Any], lr: float) -> Sequence[float]:
        """What decoupled decay leaves of a weight; the learning rate, and what the root is multiplied by, both corrected for
        the start of the means at 0."""
        (beta1, beta2), steps = group["betas"], state["steps"]
        kept = 1.0 - float(lr) * group["weight_decay"]
        return kept, float(lr) / (1.0 - beta1**steps), 1.0 / math.sqrt(1.0 - beta2**steps)


class AdamW(Adam):
    """Adam with weight decay that shrinks the parameters directly (Loshchilov and Hutter 2019). It is 0.01 by default.

    The other settings are those of ``Adam``, and groups of parameters are described in ``Optimizer``.

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
