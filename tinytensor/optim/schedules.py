"""Learning-rate schedules: pure functions of the step, so a resumed run needs no state of theirs.

``schedule(step)`` is the factor for that step (the first is 0): ``optimizer.step(schedule(step))`` multiplies every
group's learning rate with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """The base: a linear rise over ``warmup`` steps, then ``after_warmup``."""

    warmup: int = 0

    def __call__(self, step: int) -> float:
        """The factor for step number ``step``, counted from 0."""
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        return self.after_warmup(step)

    def after_warmup(self, step: int) -> float:
        """The factor once the warm-up is over."""
        raise TypeError(f"{type(self).__name__} has no after_warmup method: write one")


@dataclass(frozen=True)
class Constant(Schedule):
    """1 after the warm-up."""

    def after_warmup(self, step: int) -> float:
        """1."""
        return 1.0


@dataclass(frozen=True)
class LinearDecay(Schedule):
    """Falls in a straight line from 1 at the end of the warm-up to ``final`` at step ``steps``, and stays there."""

    steps: int = 1000
    final: float = 0.0

    def after_warmup(self, step: int) -> float:
        """On the line, or ``final``."""
        return 1.0 + (self.final - 1.0) * _progress(step, self.warmup, self.steps)


@dataclass(frozen=True)
class Cosine(Schedule):
    """Falls along half a cosine from 1 at the end of the warm-up to ``final`` at step ``steps``, and stays there
    (Loshchilov and Hutter 2017, without restarts)."""

    steps: int = 1000
    final: float = 0.1

    def after_warmup(self, step: int) -> float:
        """On the curve, or ``final``."""
        progress = _progress(step, self.warmup, self.steps)
        return self.final + (1.0 - self.final) * 0.5 * (1.0 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class InverseSquareRoot(Schedule):
    """d_model^-0.5 * min(s^-0.5, s * warmup^-1.5) with s = step + 1 (Vaswani et al. 2017, equation 3). Use with lr=1."""

    warmup: int = 4000
    d_model: float = 512

    def __call__(self, step: int) -> float:
        """The factor, which is the learning rate itself, for step number ``step``, counted from 0."""
        s = step + 1
        rising = s * self.warmup**-1.5 if self.warmup else math.inf
        return float(self.d_model**-0.5 * min(s**-0.5, rising))


def _progress(step: int, start: int, end: int) -> float:
    """How far ``step`` is from ``start`` to ``end``, from 0 to 1."""
    return min(1.0, (step - start) / (end - start)) if end > start else 1.0
