"""Checks of the settings of optimizers and schedules. A group of parameters may have any of them, so signatures do not tell."""

from __future__ import annotations

import math
import sys
from numbers import Integral
from typing import Any

from tinytensor.common.arguments import shown
from tinytensor.device.backend import host


def check_number(name: str, value: Any, below: float = math.inf) -> None:
    """Raise TypeError unless a setting is a number, and ValueError unless it is from 0 to ``below``, which is excluded."""
    if not isinstance(value, (int, float, host.integer, host.floating)) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, not {shown(value)}")
    if not (0 <= value < below and value <= sys.float_info.max):
        limit = "finite" if below == math.inf else f"below {below}"
        raise ValueError(f"{name} must be {limit} and not negative, not {shown(value)}")


def check_decay(name: str, value: Any) -> None:
    """Raise TypeError unless the decay rate of a running mean is a number, and ValueError unless it is from 0 to 1."""
    check_number(name, value)
    if value > 1:
        raise ValueError(f"{name} must be at most 1, not {shown(value)}")


def check_positive(name: str, value: Any) -> None:
    """Raise TypeError unless a setting is a number, and ValueError unless it is above 0 and finite."""
    check_number(name, value)
    if value == 0:
        raise ValueError(f"{name} must be above 0")


def check_count(name: str, value: Any, least: int) -> None:
    """Raise TypeError unless a setting is an integer, and ValueError unless it is at least ``least``."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, not {shown(value)}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")


def check_flag(name: str, value: Any) -> None:
    """Raise TypeError unless a setting is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {shown(value)}")
