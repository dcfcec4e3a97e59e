"""Initializers. Each one fills a parameter in place and returns it. Inside ``skipped`` it does nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tinytensor import random
from tinytensor.autograd.modes import Switched, modes
from tinytensor.common.arguments import checked
from tinytensor.common.missing import names_of as _names_of
from tinytensor.device.backend import host, xp
from tinytensor.nn.leaves import overwrite, replace_data
from tinytensor.nn.module import Parameter

_NEGLIGIBLE = 80.0  # where x * x exceeds its value at the peak by 80, the density is lower by e^-40


def skipped() -> Switched:
    """Return a context in which initializers do nothing and new parameters are zeros that occupy no memory.

    Use it with ``load_state_dict(..., assign=True)`` to create a large model instantly. A parameter that is not loaded cannot
    be changed in place.
    """
    return Switched("initialising", False)


@checked
def new_parameter(shape: int | Sequence[int]) -> Parameter:
    """Return a float32 parameter of zeros to be filled by an initializer."""
    parameter = Parameter(0.0)
    if modes().initialising:
        replace_data(parameter, xp.zeros(shape, parameter.dtype))
    else:
        replace_data(parameter, xp.broadcast_to(parameter.data, shape))
    return parameter


@checked
def zeros_(parameter: Parameter) -> Parameter:
    """Fill the parameter with zeros."""
    return constant_(parameter, 0.0)


@checked
def ones_(parameter: Parameter) -> Parameter:
    """Fill the parameter with ones."""
    return constant_(parameter, 1.0)


@checked
def constant_(parameter: Parameter, value: float) -> Parameter:
    """Fill the parameter with ``value``.

    >>> weight = tt.nn.Parameter(tt.zeros((2, 2)))
    >>> tt.nn.init.constant_(weight, 3.0).tolist()
    [[3.0, 3.0], [3.0, 3.0]]
    """
    if modes().initialising:
        overwrite(parameter, value)
    return parameter


@checked
def normal_(parameter: Parameter, mean: float = 0.0, std: float = 1.0) -> Parameter:
    """Draw the values from a normal distribution."""
    if modes().initialising:
        parameter.assign(random.normal(parameter.shape, mean, std))
    return parameter


@checked
def uniform_(parameter: Parameter, low: float = 0.0, high: float = 1.0) -> Parameter:
    """Draw the values uniformly from ``low`` to ``high``. If both are equal, fill with that value."""
    if low == high:
        return constant_(parameter, low)
    if modes().initialising:
        parameter.assign(random.uniform(parameter.shape, low, high))
    return parameter


@checked
def trunc_normal_(parameter: Parameter, mean: float = 0.0, std: float = 1.0, low: float = -2.0, high: float = 2.0) -> Parameter:
    """Draw the values from a normal distribution truncated to the range from ``low`` to ``high``."""
    if not (0 < std < math.inf and math.isfinite(mean) and low < high):
        arguments = f"mean={mean}, std={std}, low={low}, high={high}"
        raise ValueError(f"trunc_normal_ needs a finite mean, a std above 0 and low < high, got {arguments}")
    if modes().initialising:
        values = _truncated(parameter.size, (low - mean) / std, (high - mean) / std)
        parameter.assign(host.clip(values * std + mean, low, high).reshape(parameter.shape))
    return parameter


def _truncated(count: int, low: float, high: float) -> Any:
    """Draw from the standard normal distribution between ``low`` and ``high``, by rejection sampling.

    Uniform candidates are accepted in proportion to their density. The range excludes negligible densities.
    """
    generator = random.generator()
    peak = min(max(0.0, low), high)
    reach = math.sqrt(peak * peak + _NEGLIGIBLE)
    low, high = max(low, -reach), min(high, reach)
    accepted = host.empty(0)
    while len(accepted) < count:
        drawn = low + (high - low) * generator.random(count)
        density = host.exp((peak - drawn) * (peak + drawn) / 2)
        accepted = host.concatenate([accepted, drawn[generator.random(count) < density]])
    return accepted[:count]


def _check_gain(gain: float) -> None:
    if not 0 <= gain < math.inf:
        raise ValueError(f"gain must be finite and not negative, got {gain}")


def _fans(parameter: Parameter) -> tuple[int, int]:
    """Return the number of inputs (at least 1) and outputs of a weight. Raises ValueError unless it is (outputs, inputs)."""
    if parameter.ndim != 2:
        raise ValueError(f"this initializer needs a weight of shape (outputs, inputs), got {parameter.shape}")
    outputs, inputs = parameter.shape
    return max(inputs, 1), outputs  # avoids a division by 0


@checked
def xavier_uniform_(parameter: Parameter, gain: float = 1.0) -> Parameter:
    """Draw uniformly from [-b, b], where b = gain * sqrt(6 / (inputs + outputs)) (Glorot and Bengio 2010, equation 16)."""
    _check_gain(gain)
    bound = gain * math.sqrt(6.0 / sum(_fans(parameter)))
    return uniform_(parameter, -bound, bound)


@checked
def xavier_normal_(parameter: Parameter, gain: float = 1.0) -> Parameter:
    """Draw from a normal distribution with std = gain * sqrt(2 / (inputs + outputs))."""
    _check_gain(gain)
    return normal_(parameter, 0.0, gain * math.sqrt(2.0 / sum(_fans(parameter))))


@checked
def kaiming_uniform_(parameter: Parameter, gain: float = math.sqrt(2.0)) -> Parameter:
    """Draw uniformly from [-b, b], where b = gain * sqrt(3 / inputs) (He et al. 2015). The default gain suits relu."""
    _check_gain(gain)
    bound = gain * math.sqrt(3.0 / _fans(parameter)[0])
    return uniform_(parameter, -bound, bound)


@checked
def kaiming_normal_(parameter: Parameter, gain: float = math.sqrt(2.0)) -> Parameter:
    """Draw from a normal distribution with std = gain / sqrt(inputs) (He et al. 2015). The default gain suits relu."""
    _check_gain(gain)
    return normal_(parameter, 0.0, gain / math.sqrt(_fans(parameter)[0]))


__all__ = [
    "constant_", "kaiming_normal_", "kaiming_uniform_", "new_parameter", "normal_", "ones_", "skipped", "trunc_normal_",
    "uniform_", "xavier_normal_", "xavier_uniform_", "zeros_",
]  # fmt: skip

if not TYPE_CHECKING:
    __getattr__, __dir__ = _names_of(__name__)
