"""RMSprop, Adagrad and Adadelta. Their steps are formulas of array operations, the same on every backend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from tinytensor.autograd.tensor import Tensor
from tinytensor.common.arguments import checked
from tinytensor.device import capturing
from tinytensor.device.backend import xp
from tinytensor.kernels.numpy.optimizers import current
from tinytensor.optim.optimizer import Arrays, Optimizer, States
from tinytensor.optim.settings import check_decay, check_flag, check_number
from tinytensor.optim.state import State


def weight_of(parameter: Any, state: State) -> Any:
    """What a step changes: a parameter, or the master of a narrow one."""
    return current(state["master"], parameter) if "master" in state else parameter


def round_to(parameter: Any, weight: Any) -> None:
    """Write what a step has changed to the parameter, unless it is the parameter itself."""
    if weight is not parameter:
        parameter[...] = weight.astype(parameter.dtype)


def follow(mean: Any, values: Any, decay: float) -> None:
    """Move a running mean towards new values, in place: decay mean + (1 - decay) values."""
    mean *= decay
    mean += values * (1.0 - decay)


class Adaptive(Optimizer):
    """The base of optimizers that subtract ``rate`` times ``direction`` from each parameter by itself.

    Weight decay adds ``weight_decay`` times the parameter to the gradient first, as in PyTorch.
    """

    def advance(self, parameter: Any, state: State, group: dict[str, Any]) -> None:
        """Add what the state lacks, and count the step."""
        for name in self.names_of_state(group):
            if name not in state:
                state[name] = 0 if name == "steps" else state.new(name, state.get("master", parameter))
        if "steps" in state:
            state["steps"] += 1

    def update(self, parameters: Arrays, gradients: Arrays, states: States, group: dict[str, Any], lr: float) -> None:
        """One step."""
        for parameter, gradient, state in zip(parameters, gradients, states):
            capturing.repeat(partial(self.advance, parameter, state, group))
            weight = weight_of(parameter, state)
            g = gradient.astype(weight.dtype, copy=False)
            if group["weight_decay"]:
                g = g + weight * group["weight_decay"]
            (rate,) = capturing.numbers(partial(self._rates, state, group, lr), weight.dtype)
            weight -= self.direction(g, state, group) * rate
            round_to(parameter, weight)

    def _rates(self, state: State, group: Mapping[str, Any], lr: float) -> Sequence[float]:
        return [self.rate(state, group, float(lr))]

    def rate(self, state: State, group: Mapping[str, Any], lr: float) -> float:
        """The learning rate of this step."""
        return lr

    def direction(self, g: Any, state: State, group: Mapping[str, Any]) -> Any:
        """What is subtracted from a parameter with this gradient, without the learning rate. Every subclass defines it."""
        raise TypeError(f"{type(self).__name__} has no direction method: write one")


class RMSprop(Adaptive):
    """Each gradient divided by the root of the running mean of its square (Tieleman and Hinton 2012), as in PyTorch.

    ``alpha`` is the mean's decay rate, and ``eps`` is added to the root. ``centered`` takes the variance in place of the mean
    square (Graves 2013). With ``momentum`` the step is v = momentum v + the quotient.
    """

    state_names = ("second", "first", "velocity")

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

    def check(self, settings: Mapping[str, Any]) -> None:
        """Raise TypeError or ValueError if a setting of a group is not valid."""
        super().check(settings)
        check_decay("alpha", settings["alpha"])
        check_flag("centered", settings["centered"])

    def names_of_state(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """The mean square; where they are needed the mean, and the velocity."""
        wanted = {"second": True, "first": group["centered"], "velocity": group["momentum"]}
        return tuple([name for name in self.state_names if wanted[name]])

    def direction(self, g: Any, state: State, group: Mapping[str, Any]) -> Any:
        """The gradient over its root mean square, or the velocity."""
        follow(state["second"], g * g, group["alpha"])
        variance = state["second"]
        if group["centered"]:
            follow(state["first"], g, group["alpha"])
            variance = xp.maximum(variance - state["first"] * state["first"], 0.0)  # rounding could make it negative
        quotient = g / (xp.sqrt(variance) + group["eps"])
        if not group["momentum"]:
            return quotient
        velocity = state["velocity"]
        velocity *= group["momentum"]
        velocity += quotient
        return velocity


class Adagrad(Adaptive):
    """Each gradient divided by the root of the sum of all its squares so far (Duchi, Hazan and Singer 2011), as in PyTorch.

    The sum starts from ``initial_accumulator_value``, and ``eps`` is added to the root. With ``lr_decay`` the learning rate is
    lr / (1 + (step - 1) lr_decay), and steps count from 1.
    """

    state_names = ("squares", "steps")

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

    def check(self, settings: Mapping[str, Any]) -> None:
        """Raise TypeError or ValueError if a setting of a group is not valid."""
        super().check(settings)
        for name in ("lr_decay", "initial_accumulator_value"):
            check_number(name, settings[name])

    def rate(self, state: State, group: Mapping[str, Any], lr: float) -> float:
        """The learning rate of this step."""
        return lr / (1.0 + (state["steps"] - 1) * group["lr_decay"])

    def direction(self, g: Any, state: State, group: Mapping[str, Any]) -> Any:
        """The gradient over the root of the sum of squares."""
        squares = state["squares"]
        squares += g * g
        return g / (xp.sqrt(squares + group["initial_accumulator_value"]) + group["eps"])


class Adadelta(Adaptive):
    """Steps as long as the last ones were: each gradient times the root mean square of the changes, over that of the gradients
    (Zeiler 2012), as in PyTorch.

    ``rho`` is the decay rate of both means, and ``eps`` is added to them under the roots.
    """

    state_names = ("second", "changes")

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

    def check(self, settings: Mapping[str, Any]) -> None:
        """Raise TypeError or ValueError if a setting of a group is not valid."""
        super().check(settings)
        check_decay("rho", settings["rho"])

    def direction(self, g: Any, state: State, group: Mapping[str, Any]) -> Any:
        """The change, before the learning rate."""
        follow(state["second"], g * g, group["rho"])
        change = g * (xp.sqrt(state["changes"] + group["eps"]) / xp.sqrt(state["second"] + group["eps"]))
        follow(state["changes"], change * change, group["rho"])
        return change
