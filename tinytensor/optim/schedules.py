"""Learning-rate schedules. All except ``Plateau`` are pure functions of the step, so resuming needs no saved state.

``schedule(step)`` returns the factor for a step, counted from 0. ``optimizer.step(schedule(step))`` multiplies all learning
rates by this factor. Any function from a step to a factor is a schedule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from tinytensor.autograd.tensor import Tensor
from tinytensor.common.arguments import checked
from tinytensor.creation import tensor
from tinytensor.optim.settings import check_count, check_number, check_positive

_CHECKS: dict[str, Callable[..., None]] = {
    "warmup": partial(check_count, least=0),
    "steps": partial(check_count, least=0),
    "final": check_number,
    "d_model": check_positive,
    "every": partial(check_count, least=1),
    "factor": check_number,
    "initial": check_number,
}


@dataclass(frozen=True)
class Schedule:
    """The base class of schedules: the factor rises linearly for ``warmup`` steps, then follows ``after_warmup(step)``."""

    warmup: int = 0

    def __post_init__(self) -> None:
        """Raise TypeError or ValueError for an invalid setting."""
        for name, check in _CHECKS.items():
            if hasattr(self, name):
                check(name, getattr(self, name))

    def __call__(self, step: int) -> float:
        """Return the factor for this step, counted from 0."""
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        return self.after_warmup(step)

    def after_warmup(self, step: int) -> float:
        """Return the factor for a step after the warm-up. Every subclass defines it."""
        raise TypeError(f"{type(self).__name__} has no after_warmup method: write one")


@dataclass(frozen=True)
class Constant(Schedule):
    """A schedule whose factor is 1 after the warm-up."""

    def after_warmup(self, step: int) -> float:
        """Return 1."""
        return 1.0


@dataclass(frozen=True)
class LinearDecay(Schedule):
    """A linear decay from 1 at the end of the warm-up to ``final`` at step ``steps``, and constant afterward."""

    steps: int = 1000
    final: float = 0.0

    def after_warmup(self, step: int) -> float:
        """Return the factor on the line, or ``final`` after its end."""
        return 1.0 + (self.final - 1.0) * _progress(step, self.warmup, self.steps)


@dataclass(frozen=True)
class Cosine(Schedule):
    """A cosine decay from 1 at the end of the warm-up to ``final`` at step ``steps``, and constant afterward (Loshchilov and
    Hutter 2017, without restarts).

    >>> schedule = tt.optim.Cosine(warmup=10, steps=110)
    >>> [round(schedule(step), 3) for step in (0, 9, 60, 110)]
    [0.091, 0.909, 0.55, 0.1]
    """

    steps: int = 1000
    final: float = 0.1

    def after_warmup(self, step: int) -> float:
        """Return the factor on the curve, or ``final`` after its end."""
        return _along_cosine(1.0, self.final, _progress(step, self.warmup, self.steps))


@dataclass(frozen=True)
class Step(Schedule):
    """A step decay: after the warm-up the factor is 1, multiplied by ``factor`` every ``every`` steps.

    >>> [round(tt.optim.Step(every=30)(step), 3) for step in (0, 29, 30, 60)]
    [1.0, 1.0, 0.1, 0.01]
    """

    every: int = 1000
    factor: float = 0.1

    def after_warmup(self, step: int) -> float:
        """Return ``factor`` to the power of the number of decays so far."""
        return float(self.factor ** ((step - self.warmup) // self.every))


@dataclass(frozen=True)
class OneCycle(Schedule):
    """A rise from ``initial`` to 1 during the first ``warmup`` of ``steps``, then a fall to ``final``. Both follow half a
    cosine (Smith and Topin 2017)."""

    warmup: int = 300
    steps: int = 1000
    initial: float = 1 / 25
    final: float = 1 / 250_000

    def __call__(self, step: int) -> float:
        """Return the factor for this step, counted from 0."""
        peak, last = self.warmup - 1, self.steps - 1
        if step < peak:
            return _along_cosine(self.initial, 1.0, _progress(step, 0, peak))
        return _along_cosine(1.0, self.final, _progress(step, max(0, peak), last))


@dataclass(frozen=True)
class InverseSquareRoot(Schedule):
    """The schedule d_model^-0.5 * min(s^-0.5, s * warmup^-1.5), where s = step + 1 (Vaswani et al. 2017, equation 3).

    The factor is the learning rate itself, so use lr=1.
    """

    warmup: int = 4000
    d_model: float = 512

    def __call__(self, step: int) -> float:
        """Return the factor for this step, counted from 0."""
        s = step + 1
        rising = s * self.warmup**-1.5 if self.warmup else math.inf
        return float(self.d_model**-0.5 * min(s**-0.5, rising))


def _along_cosine(first: float, last: float, progress: float) -> float:
    """Interpolate from ``first`` to ``last`` along half a cosine. ``progress`` is a fraction."""
    return last + (first - last) * 0.5 * (1.0 + math.cos(math.pi * progress))


def _progress(step: int, start: int, end: int) -> float:
    """Return the fraction of the way from ``start`` to ``end`` at ``step``, at most 1."""
    return min(1.0, (step - start) / (end - start)) if end > start else 1.0


class Plateau:
    """A factor that starts at 1 and is multiplied by ``factor`` after more than ``patience`` values without a new best value.

    A value is better if it is lower (higher if ``mode="max"``) by more than ``threshold`` times the best value, or by more than
    ``threshold`` if ``threshold_mode="abs"``. After a reduction, ``cooldown`` values do not count. The factor never falls below
    ``final``. It depends on the values, so a resumed run needs its ``state_dict``.

    >>> plateau = tt.optim.Plateau(factor=0.5, patience=1)
    >>> for loss in (3.0, 2.0, 2.0, 2.0):
    ...     plateau.measure(loss)
    >>> plateau()  # optimizer.step(plateau()) takes half the learning rate
    0.5
    """

    @checked
    def __init__(
        self,
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        final: float = 0.0,
        mode: str = "min",
    ):
        check_number("factor", factor, below=1)
        check_number("threshold", threshold)
        check_number("final", final)
        check_count("patience", patience, least=0)
        check_count("cooldown", cooldown, least=0)
        if mode not in ("min", "max") or threshold_mode not in ("rel", "abs"):
            raise ValueError(f"mode must be 'min' or 'max', threshold_mode 'rel' or 'abs', got {mode!r} and {threshold_mode!r}")
        self.factor, self.patience, self.cooldown, self.final = factor, patience, cooldown, final
        self.threshold, self.threshold_mode, self.mode = threshold, threshold_mode, mode
        self.scale = 1.0
        self.best = math.inf if mode == "min" else -math.inf
        self.bad = 0  # values since the best one
        self.waiting = 0  # remaining values that do not count

    def __call__(self, step: int = 0) -> float:
        """Return the current factor. ``step`` is accepted, as in other schedules, but ignored."""
        return self.scale

    @checked
    def measure(self, value: float) -> None:
        """Record a value, such as the loss of an epoch. NaN is never better."""
        self.bad += 1
        if self._is_better(value):
            self.best, self.bad = value, 0
        if self.waiting:
            self.waiting, self.bad = self.waiting - 1, 0
        if self.bad > self.patience:
            self.scale = max(self.scale * self.factor, self.final)
            self.waiting, self.bad = self.cooldown, 0

    def _is_better(self, value: float) -> bool:
        sign = 1 if self.mode == "max" else -1
        if self.threshold_mode == "abs":
            return sign * value > sign * self.best + self.threshold
        return sign * value > sign * self.best * (1 + sign * self.threshold)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the factor and the values it depends on, by name, without the settings."""
        return {name: tensor(getattr(self, name), "float64") for name in ("scale", "best", "bad", "waiting")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a ``state_dict()``. Raises ValueError, before any change, if the names differ."""
        if state.keys() != self.state_dict().keys():
            expected = ", ".join(self.state_dict())
            raise ValueError(f"the state of a Plateau must have {expected}, got {', '.join(map(str, state))}")
        for name, value in state.items():
            setattr(self, name, type(getattr(self, name))(value))
