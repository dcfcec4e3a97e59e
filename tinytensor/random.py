"""Random numbers. They come from one generator on the CPU, on either backend, so that a seed gives the same weights everywhere.

A thread may use a generator of its own (see ``using``). That makes parallel work exactly repeatable.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tinytensor import capturing
from tinytensor.backend import host
from tinytensor.kernels.numpy.dropout import RandomKey
from tinytensor.modes import modes
from tinytensor.tensor import Tensor

Shape = int | Sequence[int]


class _Current(threading.local):
    generator: host.random.Generator | None = None


_shared = host.random.default_rng()
_current = _Current()


def seed(value: int) -> None:
    """Restart the generator from ``value``: from here on the same random numbers follow each time.

    >>> tt.seed(0)
    >>> first = tt.random.normal((3,))
    >>> tt.seed(0)
    >>> bool((tt.random.normal((3,)) == first).all())
    True
    """
    global _shared
    _shared = host.random.default_rng(value)


def generator() -> host.random.Generator:
    """The generator that this thread draws from. Raises RuntimeError inside a function that is being traced or captured."""
    if modes.tracer is not None:
        raise RuntimeError("a traced function would draw the same random numbers in each call: pass them in as a tensor")
    capturing.refuse("the same random numbers", "draw them before, and pass them in")
    return _current.generator or _shared


@contextmanager
def using(own: host.random.Generator | None) -> Iterator[None]:
    """A context in which this thread draws from ``own``, or for None from the generator that ``seed`` restarts."""
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
    """Continue from a state that ``get_state`` returned."""
    generator().bit_generator.state = state


def normal(shape: Shape, mean: float = 0.0, std: float = 1.0, requires_grad: bool = False) -> Tensor:
    """float32 numbers from the normal distribution."""
    values = generator().standard_normal(shape, dtype=host.float32)
    return Tensor(values * host.float32(std) + host.float32(mean), requires_grad=requires_grad)


def uniform(shape: Shape, low: float = 0.0, high: float = 1.0, requires_grad: bool = False) -> Tensor:
    """float32 numbers from the uniform distribution over ``low`` (included) to ``high`` (excluded)."""
    values = generator().random(shape, dtype=host.float32) * host.float32(high - low) + host.float32(low)
    below = host.nextafter(host.float32(high), host.float32(low))  # rounding may give ``high`` itself
    return Tensor(host.minimum(values, below), requires_grad=requires_grad)


def integers(low: int, high: int, shape: Shape) -> Tensor:
    """int64 numbers from ``low`` (included) to ``high`` (excluded)."""
    return Tensor(generator().integers(low, high, shape))


def permutation(n: int) -> Tensor:
    """The numbers 0 to n - 1 in random order.

    >>> sorted(tt.random.permutation(4).tolist())
    [0, 1, 2, 3]
    """
    return Tensor(generator().permutation(n))


def random_key() -> RandomKey:
    """128 random bits as two words. They determine a whole dropout mask, which ``kernels.keep_mask`` computes from them."""
    own = _current.generator

    def draw() -> RandomKey:
        with using(own):
            high = host.iinfo(host.uint64).max
            first, second = generator().integers(0, high, 2, dtype=host.uint64, endpoint=True).tolist()
        return first, second

    key: RandomKey = capturing.numbers(draw, host.uint64)
    return key
