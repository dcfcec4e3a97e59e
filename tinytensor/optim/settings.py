"""Settings of optimizers and schedules, and checks of their values."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any

from tinytensor.common.arguments import shown
from tinytensor.device.backend import host


def settings_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a group's settings as Python numbers, because a tensor or NumPy number could change the dtype of results."""
    return {name: plain(value) for name, value in group.items() if name != "params"}


def plain(value: Any) -> Any:
    """Convert a number of any type, or a tuple of numbers, to Python numbers. Return other values unchanged."""
    if isinstance(value, (tuple, list)):
        return tuple([plain(x) for x in value])
    return value.item() if getattr(value, "size", 0) == 1 else value


def check_number(name: str, value: Any, below: float = math.inf) -> None:
    """Raise TypeError unless a setting is a number, and ValueError unless 0 <= value < ``below``."""
    if not isinstance(value, (int, float, host.integer, host.floating)) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {shown(value)}")
    if not (0 <= value < below and value <= sys.float_info.max):
        limit = "finite" if below == math.inf else f"below {below}"
        raise ValueError(f"{name} must be {limit} and not negative, got {shown(value)}")


def check_decay(name: str, value: Any) -> None:
    """Raise TypeError unless the decay rate of a running mean is a number, and ValueError unless it is in [0, 1]."""
    check_number(name, value)
    if value > 1:
        raise ValueError(f"{name} must be at most 1, got {shown(value)}")


def check_betas(name: str, value: Any) -> None:
    """Raise TypeError or ValueError unless a setting is a pair of decay rates in [0, 1)."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ValueError(f"{name} must be two numbers, got {value!r}")
    for beta in value:
        check_number(f"each of the {name}", beta, below=1)


def check_positive(name: str, value: Any) -> None:
    """Raise TypeError unless a setting is a number, and ValueError unless it is positive and finite."""
    check_number(name, value)
    if value == 0:
        raise ValueError(f"{name} must be above 0")


def check_count(name: str, value: Any, least: int) -> None:
    """Raise TypeError unless a setting is an integer, and ValueError if it is below ``least``."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {shown(value)}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def check_flag(name: str, value: Any) -> None:
    """Raise TypeError unless a setting is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {shown(value)}")


CHECKS: dict[str, Callable[[str, Any], None]] = {  # checks of settings that most optimizers have
    **dict.fromkeys(("lr", "weight_decay", "eps", "momentum"), check_number),
    "maximize": check_flag,
}
