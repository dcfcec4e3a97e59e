"""Random numbers. One generator, on the CPU whichever the backend is, so that a seed means the same weights everywhere.

Each thread may use a generator of its own (``using``): that is how parallel work repeats exactly.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tinytensor.backend import host
from tinytensor.modes import modes
from tinytensor.tensor import Tensor

Shape = int | Sequence[int]


class _Current(threading.local):
    generator: host.random.Generator | None = None


_shared = host.random.default_rng()
_current = _Current()


def seed(value: int) -> None:
    """Start the generator anew from ``value``: what follows repeats exactly."""
    global _shared
    _shared = host.random.default_rng(value)


def generator() -> host.random.Generator:
    """The generator that this thread draws from. Raises RuntimeError in a function that is being traced."""
    if modes.tracer is not None:
        raise RuntimeError("a traced function would draw the same random numbers in each call: pass them in as a tensor")
    return _current.generator or _shared


@contextmanager
def using(own: host.random.Generator) -> Iterator[None]:
    """A context in which this thread draws from ``own``."""
    previous = _current.generator
    _current.generator = own
    try:
        yield
    finally:
        _current.generator = previous


def get_state() -> dict[str, Any]:
    """The generator's state: plain values that JSON can hold."""
    return dict(generator().bit_generator.state)


def set_state(state: dict[str, Any]) -> None:
    """Go on from a state that ``get_state`` returned."""
    generator().bit_generator.state = state


def normal(shape: Shape, mean: float = 0.0, std: float = 1.0, requires_grad: bool = False) -> Tensor:
    """float32 numbers from the normal distribution."""
    values = generator().standard_normal(shape, dtype=host.float32)
    return Tensor(values * host.float32(std) + host.float32(mean), requires_grad=requires_grad)


def uniform(shape: Shape, low: float = 0.0, high: float = 1.0, requires_grad: bool = False) -> Tensor:
    """float32 numbers, each as likely as the next, from ``low`` up to but without ``high``."""
    values = generator().random(shape, dtype=host.float32) * host.float32(high - low) + host.float32(low)
    below = host.nextafter(host.float32(high), host.float32(low))  # rounding may reach ``high`` itself
    return Tensor(host.minimum(values, below), requires_grad=requires_grad)


def integers(low: int, high: int, shape: Shape) -> Tensor:
    """int64 numbers from ``low`` up to but without ``high``."""
    return Tensor(generator().integers(low, high, shape))


def permutation(n: int) -> Tensor:
    """0 to n - 1 in random order."""
    return Tensor(generator().permutation(n))


def dropout_key() -> tuple[int, int]:
    """128 random bits as two words: all that a dropout mask comes from, which ``kernels.keep_mask`` makes of them."""
    high = host.iinfo(host.uint64).max
    first, second = generator().integers(0, high, 2, dtype=host.uint64, endpoint=True).tolist()
    return first, second
