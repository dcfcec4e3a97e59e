"""Fused kernels. Each updates many parameters in one call and matches an optimizer's rule up to rounding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tinytensor import kernels
from tinytensor.optim.state import State

Arrays = Sequence[Any]
States = Sequence[State]
Rule = Callable[[Any, Any, State, Any], None]
Marked = TypeVar("Marked", bound=Callable[..., None])


@dataclass(frozen=True)
class Fused:
    """A kernel that replaces a rule, except in groups where the setting ``unless`` is on."""

    step: Callable[[Any, Arrays, Arrays, States, Any], None]  # (optimizer, parameters, gradients, states, settings)
    unless: str = ""
    reads_gradient_scale: bool = False  # True: the kernel scales gradients by ``settings.gradient_scale``

    def __call__(self, rule: Marked) -> Marked:
        """Mark the rule that the kernel computes. Subclasses with their own rule do not use the kernel."""
        rule.fused = self  # type: ignore[attr-defined]
        return rule


def fused_of(rule: Rule, group: Mapping[str, Any]) -> Fused | None:
    """Return the kernel that replaces the rule for this group, or None."""
    fused: Fused | None = getattr(rule, "fused", None)
    return None if fused is None or group.get(fused.unless) else fused


def _masters(states: States) -> Arrays:
    return [state["master"] for state in states if "master" in state]


def _sgd(optimizer: Any, parameters: Arrays, gradients: Arrays, states: States, settings: Any) -> None:
    velocities = [state["velocity"] for state in states] if settings.momentum else []
    numbers = settings.lr, settings.momentum, settings.dampening, settings.nesterov, settings.weight_decay
    kernels.sgd_step(parameters, gradients, velocities, _masters(states), settings.is_first, *numbers)


def _adam(optimizer: Any, parameters: Arrays, gradients: Arrays, states: States, settings: Any) -> None:
    moments = [state["first"] for state in states], [state["second"] for state in states]
    (beta1, beta2), t = settings.betas, settings.t
    numbers = t, settings.lr, beta1, beta2, settings.eps, settings.weight_decay, optimizer.decoupled, settings.gradient_scale
    kernels.adam_step(parameters, gradients, *moments, _masters(states), *numbers)


SGD = Fused(_sgd)
ADAM = Fused(_adam, unless="amsgrad", reads_gradient_scale=True)
