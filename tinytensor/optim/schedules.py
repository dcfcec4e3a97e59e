"""Learning-rate schedules. They are pure functions of the step, so a resumed run needs no saved state for them.

``schedule(step)`` is the factor for that step, counted from 0. ``optimizer.step(schedule(step))`` multiplies the learning rate
of every group by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tinytensor.optim.settings import check_count, check_number, check_positive

_CHECKS: dict[str, Callable[..., None]] = {
    "warmup": partial(check_count, least=0),
    "steps": partial(check_count, least=0),
    "final": check_number,
    "d_model": check_positive,
}


@dataclass(frozen=True)
class Schedule:
    """The base of schedules: the factor rises linearly for ``warmup`` steps; then it is ``after_warmup(step)``."""

    warmup: int = 0

    def __post_init__(self) -> None:
        """Raise TypeError or ValueError for a setting of the wrong kind or out of its range."""
        for name, check in _CHECKS.items():
            if hasattr(self, name):
                check(name, getattr(self, name))

    def __call__(self, step: int) -> float:
        """The factor for this step, counted from 0."""
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        return self.after_warmup(step)

    def after_warmup(self, step: int) -> float:
        """The factor for a step after the warm-up. Every subclass defines it."""
        raise TypeError(f"{type(self).__name__} has no after_warmup method: write one")


@dataclass(frozen=True)
class Constant(Schedule):
    """The factor is 1 after the warm-up."""

    def after_warmup(self, step: int) -> float:
        """Always 1."""
        return 1.0


@dataclass(frozen=True)
class LinearDecay(Schedule):
    """The factor falls linearly from 1 at the end of the warm-up to ``final`` at step ``steps``, and stays there."""

    steps: int = 1000
    final: float = 0.0

    def after_warmup(self, step: int) -> float:
        """A point on the line, or ``final`` after it."""
        return 1.0 + (self.final - 1.0) * _progress(step, self.warmup, self.steps)


@dataclass(frozen=True)
class Cosine(Schedule):
    """The factor falls from 1 at the end of the warm-up to ``final`` at step ``steps``, along half a period of a cosine, and
    stays there (Loshchilov and Hutter 2017, without restarts).

    >>> schedule = tt.optim.Cosine(warmup=10, steps=110)
    >>> [round(schedule(step), 3) for step in (0, 9, 60, 110)]
    [0.091, 0.909, 0.55, 0.1]
    """

    steps: int = 1000
    final: float = 0.1

    def after_warmup(self, step: int) -> float:
        """A point on the curve, or ``final`` after it."""
        progress = _progress(step, self.warmup, self.steps)
        return self.final + (1.0 - self.final) * 0.5 * (1.0 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class InverseSquareRoot(Schedule):
    """The factor is d_model^-0.5 * min(s^-0.5, s * warmup^-1.5) with s = step + 1 (Vaswani et al. 2017, equation 3).

    It is meant as the learning rate itself, so use lr=1.
    """

    warmup: int = 4000
    d_model: float = 512

    def __call__(self, step: int) -> float:
        """The factor for this step, counted from 0."""
        s = step + 1
        rising = s * self.warmup**-1.5 if self.warmup else math.inf
        return float(self.d_model**-0.5 * min(s**-0.5, rising))


def _progress(step: int, start: int, end: int) -> float:
    """The fraction of the way from ``start`` to ``end`` that is done at ``step``, at most 1."""
    return min(1.0, (step - start) / (end - start)) if end > start else 1.0
