"""A learning rate that falls when a loss no longer does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tinytensor.autograd.tensor import Tensor
from tinytensor.common.arguments import checked
from tinytensor.creation import tensor
from tinytensor.optim.settings import check_count, check_number


class Plateau:
    """A factor of the learning rate, 1 at first, that is multiplied by ``factor`` when more than ``patience`` measured values
    in a row were no better than the best one.

    Better is lower, or with ``mode="max"`` higher, by more than ``threshold``: times the best one, or with
    ``threshold_mode="abs"`` as it is. After a reduction, ``cooldown`` values do not count. The factor is never below ``final``.
    Unlike a schedule it depends on the values, so a run that is resumed needs its ``state_dict``.

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
            raise ValueError(f"mode is 'min' or 'max', and threshold_mode 'rel' or 'abs', not {mode!r} and {threshold_mode!r}")
        self.factor, self.patience, self.cooldown, self.final = factor, patience, cooldown, final
        self.threshold, self.threshold_mode, self.mode = threshold, threshold_mode, mode
        self.scale = 1.0
        self.best = math.inf if mode == "min" else -math.inf
        self.bad = 0  # values in a row that were no better
        self.waiting = 0  # values that do not count yet

    def __call__(self, step: int = 0) -> float:
        """The factor now. It takes the step as schedules do, and does not need it."""
        return self.scale

    @checked
    def measure(self, value: float) -> None:
        """Take note of a value, such as the loss of an epoch. One that is NaN is no better."""
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
        """The factor and what it depends on, by name. Settings are not part of it."""
        return {name: tensor(getattr(self, name), "float64") for name in ("scale", "best", "bad", "waiting")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` returned. Raises ValueError, before anything is changed, for other names."""
        if state.keys() != self.state_dict().keys():
            raise ValueError(f"the state of a Plateau has {', '.join(self.state_dict())}, not {', '.join(map(str, state))}")
        for name, value in state.items():
            setattr(self, name, type(getattr(self, name))(value))
