"""Initialisers: each fills a parameter in place, from tinytensor's generator, and returns it."""

from __future__ import annotations

import math

from tinytensor import random
from tinytensor.nn.module import Parameter, overwrite


def zeros_(parameter: Parameter) -> Parameter:
    """All 0."""
    return constant_(parameter, 0.0)


def ones_(parameter: Parameter) -> Parameter:
    """All 1."""
    return constant_(parameter, 1.0)


def constant_(parameter: Parameter, value: float) -> Parameter:
    """All ``value``."""
    overwrite(parameter, value)
    return parameter


def normal_(parameter: Parameter, mean: float = 0.0, std: float = 1.0) -> Parameter:
    """From the normal distribution."""
    parameter.assign(random.normal(parameter.shape, mean, std))
    return parameter


def uniform_(parameter: Parameter, low: float = 0.0, high: float = 1.0) -> Parameter:
    """Evenly between ``low`` and ``high``."""
    parameter.assign(random.uniform(parameter.shape, low, high))
    return parameter


def _fans(parameter: Parameter) -> tuple[int, int]:
    """How many inputs and outputs a weight (outputs, inputs) connects, as numbers to divide by: a weight without inputs has no
    elements to fill, so that any number does."""
    if parameter.ndim != 2:
        raise ValueError(f"this initialiser needs a weight of shape (outputs, inputs), not {parameter.shape}")
    outputs, inputs = parameter.shape
    return max(inputs, 1), outputs


def xavier_uniform_(parameter: Parameter, gain: float = 1.0) -> Parameter:
    """Evenly within gain * sqrt(6 / (inputs + outputs)) (Glorot and Bengio 2010, equation 16)."""
    bound = gain * math.sqrt(6.0 / sum(_fans(parameter)))
    return uniform_(parameter, -bound, bound)


def xavier_normal_(parameter: Parameter, gain: float = 1.0) -> Parameter:
    """Normal with the standard deviation gain * sqrt(2 / (inputs + outputs))."""
    return normal_(parameter, 0.0, gain * math.sqrt(2.0 / sum(_fans(parameter))))


def kaiming_uniform_(parameter: Parameter, gain: float = math.sqrt(2.0)) -> Parameter:
    """Evenly within gain * sqrt(3 / inputs) (He et al. 2015); the default gain is relu's."""
    bound = gain * math.sqrt(3.0 / _fans(parameter)[0])
    return uniform_(parameter, -bound, bound)


def kaiming_normal_(parameter: Parameter, gain: float = math.sqrt(2.0)) -> Parameter:
    """Normal with the standard deviation gain / sqrt(inputs) (He et al. 2015); the default gain is relu's."""
    return normal_(parameter, 0.0, gain / math.sqrt(_fans(parameter)[0]))
