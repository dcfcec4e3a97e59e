"""Random sampling. Both backends use generators on the CPU, so a seed gives the same weights everywhere.

Each thread has its own generator, so threads do not affect each other's samples. ``using`` switches to another generator.
"""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from tinytensor.autograd.modes import Switched, modes
from tinytensor.autograd.replaying import current_step, refuse_in_trace
from tinytensor.autograd.tensor import Tensor
from tinytensor.common.arguments import checked, shown
from tinytensor.common.missing import names_of as _names_of
from tinytensor.common.wording import a_or_an, counted
from tinytensor.device.backend import from_numpy, host, is_floating, to_numpy
from tinytensor.device.forks import free_in_forks
from tinytensor.kernels.numpy.dropout import RandomKey

__all__ = [
    "bernoulli", "copied", "generator", "get_state", "integers", "multinomial", "normal", "permutation", "random_key", "seed",
    "set_state", "uniform", "using",
]  # fmt: skip

Shape = int | Sequence[int]


class _Main:
    """The generator of the main thread, and the seeds of other threads' generators."""

    def __init__(self, value: int | None = None):
        self.generator = _new(value)
        self._seeds = host.random.SeedSequence(value)
        self._threads = itertools.count()  # thread-safe

    def another(self) -> host.random.Generator:
        return _new(host.random.SeedSequence(self._seeds.entropy, spawn_key=(next(self._threads),)))


def _new(value: Any) -> host.random.Generator:
    new = host.random.default_rng(value)
    free_in_forks(new.bit_generator.lock)
    return new


class _OfThread(threading.local):
    """The generator of a thread other than the main one."""

    generator: Any = None
    made_by: _Main | None = None
    forks_main: bool = False  # True if the thread that forks is the main thread


_main = _Main()
_this_thread = _OfThread()
_LARGEST = float(host.finfo(host.float32).max)


@checked
def seed(value: int) -> None:
    """Seed the generator of this thread.

    In the main thread, this also reseeds the generators of all other threads. Their seeds differ: each depends on this seed and
    on how many threads have drawn samples before.

    >>> tt.seed(0)
    >>> first = tt.random.normal((3,))
    >>> tt.seed(0)
    >>> bool((tt.random.normal((3,)) == first).all())
    True
    """
    global _main
    if value < 0:
        raise ValueError(f"a seed must not be negative, got {value}")
    used = modes().generator
    if used is not None:
        used.bit_generator.state = type(used.bit_generator)(value).state
    elif _is_main():
        _main = _Main(value)
    else:
        _this_thread.generator, _this_thread.made_by = _new(value), _main


def generator() -> host.random.Generator:
    """Return the generator of this thread. Raises RuntimeError while a function is traced or captured."""
    refuse_in_trace("a traced function would draw the same random numbers in each call: pass them in as a tensor")
    current_step().refuse("the same random numbers", "draw them before, and pass them in")
    return modes().generator or _of_this_thread()


def _of_this_thread() -> host.random.Generator:
    return _main.generator if _is_main() else _of_another_thread()


def _of_another_thread() -> host.random.Generator:
    main = _main
    if _this_thread.made_by is not main:
        _this_thread.generator, _this_thread.made_by = main.another(), main
    current: host.random.Generator = _this_thread.generator
    return current


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def using(own: host.random.Generator | None) -> AbstractContextManager[None]:
    """Return a context (or decorator) that draws from the generator ``own``. None means this thread's generator."""
    if not (own is None or isinstance(own, host.random.Generator)):
        raise TypeError(f"using: own must be a generator, such as np.random.default_rng(0), or None, got {shown(own)}")
    if own is not None:
        free_in_forks(own.bit_generator.lock)  # other threads may draw from it
    return Switched("generator", own)


@contextmanager
def copied() -> Iterator[Callable[[], host.random.Generator]]:
    """Return a context that draws the same samples, but from a copy of the generator that no other thread uses.

    Its value is a function that makes further copies in the same state.
    """
    shared = generator()
    bit_generator, state = type(shared.bit_generator), shared.bit_generator.state

    def another() -> host.random.Generator:
        bits = bit_generator(0)  # faster than copy.deepcopy
        bits.state = state
        return host.random.Generator(bits)

    first = another()
    try:
        with using(first):
            yield another
    finally:
        shared.bit_generator.state = first.bit_generator.state


def get_state() -> dict[str, Any]:
    """Return the generator's state in a form that JSON can store."""
    return dict(generator().bit_generator.state)


def set_state(state: dict[str, Any]) -> None:
    """Restore a state returned by ``get_state``. Anything else raises ValueError and changes nothing."""
    bits = generator().bit_generator
    try:
        bits.state = state
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"set_state needs what get_state returned for {a_or_an(type(bits).__name__)}: {error}") from None


def _sizes(caller: str, shape: Shape) -> Shape:
    if any(size < 0 for size in (shape if isinstance(shape, Iterable) else [shape])):
        raise ValueError(f"{caller}: lengths must not be negative, got shape {shape}")
    return shape


def _finite(caller: str, **numbers: float) -> None:
    """Raise ValueError for a value outside the range of float32."""
    for name, value in numbers.items():
        if not abs(value) <= _LARGEST:
            raise ValueError(f"{caller}: {name} must be finite in float32, got {value}")


def _tensor(values: Any, requires_grad: bool = False) -> Tensor:
    out = Tensor._wrap(from_numpy(values))
    out.requires_grad = requires_grad
    return out


@checked
def normal(shape: Shape, mean: float = 0.0, std: float = 1.0, requires_grad: bool = False) -> Tensor:
    """Draw float32 samples from a normal distribution."""
    _finite("normal", mean=mean, std=std)
    if std < 0:
        raise ValueError(f"normal: std must not be negative, got {std}")
    values = generator().standard_normal(_sizes("normal", shape), dtype=host.float32)
    with host.errstate(all="ignore"):  # the sum may be infinite
        return _tensor(values * host.float32(std) + host.float32(mean), requires_grad)


@checked
def uniform(shape: Shape, low: float = 0.0, high: float = 1.0, requires_grad: bool = False) -> Tensor:
    """Draw float32 samples from a uniform distribution over [low, high)."""
    _finite("uniform", low=low, high=high, **{"high - low": high - low})
    if low >= high:
        raise ValueError(f"uniform: low must be below high, got {low} and {high}")
    values = generator().random(_sizes("uniform", shape), dtype=host.float32) * host.float32(high - low) + host.float32(low)
    below = host.nextafter(host.float32(high), host.float32(low))  # rounding may yield ``high`` itself
    return _tensor(host.minimum(values, below), requires_grad)


@checked
def integers(low: int, high: int, shape: Shape) -> Tensor:
    """Draw int64 samples uniformly from ``low`` (inclusive) to ``high`` (exclusive)."""
    if low >= high:
        raise ValueError(f"integers: low must be below high, got {low} and {high}")
    if low < -(2**63) or high > 2**63:
        raise ValueError(f"integers: low and high must be in the range of int64, got {low} and {high}")
    return _tensor(generator().integers(low, high, _sizes("integers", shape)))


@checked
def permutation(n: int) -> Tensor:
    """Return the integers from 0 to n - 1 in random order.

    >>> sorted(tt.random.permutation(4).tolist())
    [0, 1, 2, 3]
    """
    if n < 0:
        raise ValueError(f"permutation: n must not be negative, got {n}")
    return _tensor(generator().permutation(n))


@checked
def bernoulli(p: Tensor) -> Tensor:
    """Draw 1 with probability p, else 0, for each element of p. The result has the shape and dtype of p.

    >>> tt.random.bernoulli(tt.tensor([0.0, 1.0, 1.0]))
    tensor([0., 1., 1.])
    """
    probabilities = to_numpy(p.data)
    if not is_floating(probabilities.dtype):
        raise TypeError(f"bernoulli: p must be floating-point, got {probabilities.dtype}: use .astype('float32')")
    if not ((probabilities >= 0) & (probabilities <= 1)).all():
        raise ValueError("bernoulli: all probabilities must be between 0 and 1")
    return Tensor(generator().random(probabilities.shape) < probabilities).astype(p.dtype)


@checked
def multinomial(weights: Tensor, num_samples: int, replacement: bool = False) -> Tensor:
    """Draw indices along the last axis with probabilities proportional to the weights. Return int64 (..., num_samples).

    If ``replacement`` is False, no index repeats. Raises ValueError if a weight is negative or infinite, or if too few weights
    are positive: fewer than ``num_samples``, or none with replacement.

    >>> tt.random.multinomial(tt.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 0.5]]), 1)
    tensor([[1],
            [2]])
    """
    values = to_numpy(weights.data).astype(host.float64)
    _check_weights(values, num_samples, replacement)
    rows = values.reshape(math.prod(values.shape[:-1]), values.shape[-1])
    drawn = _with_replacement(rows, num_samples) if replacement else _without_replacement(rows, num_samples)
    return Tensor(drawn.reshape(*values.shape[:-1], num_samples))


def _check_weights(weights: Any, num_samples: int, replacement: bool) -> None:
    if num_samples < 1:
        raise ValueError(f"multinomial: num_samples must be at least 1, got {num_samples}")
    if not weights.ndim:
        raise ValueError("multinomial: weights must be (..., n), got a single number")
    if not ((weights >= 0) & (weights < math.inf)).all():
        raise ValueError("multinomial: all weights must be finite and not negative")
    needed = 1 if replacement else num_samples
    fewest = min((weights > 0).sum(-1).reshape(-1).tolist(), default=needed)
    if fewest < needed:
        remedy = "" if replacement else ": draw fewer, or with replacement=True"
        raise ValueError(f"multinomial needs {counted(needed, 'weight')} above 0 in each row, and a row has {fewest}{remedy}")


def _with_replacement(rows: Any, count: int) -> Any:
    """Draw uniform values and return the first index at which the cumulative weight exceeds each."""
    largest = host.maximum.reduce(rows, -1, keepdims=True, initial=0)
    sums = host.cumsum(rows / largest, axis=-1)  # unscaled, the sum may be infinite
    ends = sums[:, -1:]
    drawn = host.minimum(generator().random((len(rows), count)) * ends, host.nextafter(ends, 0))  # rounding may yield the end
    return host.array([host.searchsorted(*pair, side="right") for pair in zip(sums, drawn)], host.int64).reshape(drawn.shape)


def _without_replacement(rows: Any, count: int) -> Any:
    """Return the indices in order of exponential waiting times whose rates are the weights.

    Each draw is then proportional to the remaining weights.
    """
    with host.errstate(divide="ignore"):  # weights of 0 wait forever
        waits = host.log(generator().standard_exponential(rows.shape)) - host.log(rows)
    return host.argsort(waits, axis=-1)[:, :count].astype(host.int64)


def random_key() -> RandomKey:
    """Return 128 random bits as two words. ``kernels.keep_mask`` computes a dropout mask from them."""
    same_generator = Switched("generator", modes().generator)

    def draw() -> RandomKey:
        with same_generator:
            high = host.iinfo(host.uint64).max
            first, second = generator().integers(0, high, 2, dtype=host.uint64, endpoint=True).tolist()
        return first, second

    key: RandomKey = current_step().numbers(draw, host.uint64)
    return key


def _before_fork() -> None:
    _this_thread.forks_main = _is_main()


def _after_fork() -> None:
    """Make the child process's only thread continue with the generator of the thread that forked."""
    if not _this_thread.forks_main:  # the parent's main thread may hold its generator's lock
        _main.generator = _of_another_thread()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


if not TYPE_CHECKING:
    __getattr__, __dir__ = _names_of(__name__)
