"""Random numbers. They come from generators on the CPU, on either backend, so that a seed gives the same weights everywhere.

Each thread has a generator of its own, and may use another one (see ``using``). So no thread disturbs the numbers of another.
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
    """The generator of the main thread, and the seeds of the others."""

    def __init__(self, value: int | None = None):
        self.generator = _new(value)
        self._seeds = host.random.SeedSequence(value)
        self._threads = itertools.count()  # of which two threads at once get different numbers

    def another(self) -> host.random.Generator:
        """A generator for another thread."""
        return _new(host.random.SeedSequence(self._seeds.entropy, spawn_key=(next(self._threads),)))


def _new(value: Any) -> host.random.Generator:
    made = host.random.default_rng(value)
    free_in_forks(made.bit_generator.lock)
    return made


class _Own(threading.local):
    """The generator of a thread that is not the main one."""

    generator: Any = None
    made_by: _Main | None = None
    forks_main: bool = False  # whether this thread, which forks now, is the main one


_main = _Main()
_own = _Own()
_LARGEST = float(host.finfo(host.float32).max)


@checked
def seed(value: int) -> None:
    """Restart the generator that this thread draws from: from here on the same random numbers follow each time.

    In the main thread, this also restarts the generators of the other threads: each gets numbers of its own, which depend on
    the seed and on how many threads have drawn before.

    >>> tt.seed(0)
    >>> first = tt.random.normal((3,))
    >>> tt.seed(0)
    >>> bool((tt.random.normal((3,)) == first).all())
    True
    """
    global _main
    if value < 0:
        raise ValueError(f"a seed cannot be negative, as {value} is")
    used = modes().generator
    if used is not None:
        used.bit_generator.state = type(used.bit_generator)(value).state
    elif _is_main():
        _main = _Main(value)
    else:
        _own.generator, _own.made_by = _new(value), _main


def generator() -> host.random.Generator:
    """The generator that this thread draws from. Raises RuntimeError inside a function that is being traced or captured."""
    refuse_in_trace("a traced function would draw the same random numbers in each call: pass them in as a tensor")
    current_step().refuse("the same random numbers", "draw them before, and pass them in")
    return modes().generator or _of_this_thread()


def _of_this_thread() -> host.random.Generator:
    return _main.generator if _is_main() else _of_another_thread()


def _of_another_thread() -> host.random.Generator:
    main = _main
    if _own.made_by is not main:
        _own.generator, _own.made_by = main.another(), main
    own: host.random.Generator = _own.generator
    return own


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def using(own: host.random.Generator | None) -> AbstractContextManager[None]:
    """A context (or decorator) that draws from ``own``, or for None from this thread's generator."""
    if not (own is None or isinstance(own, host.random.Generator)):
        raise TypeError(f"using: own must be a generator, such as np.random.default_rng(0), or None, not {shown(own)}")
    if own is not None:
        free_in_forks(own.bit_generator.lock)  # another thread may draw from it, too
    return Switched("generator", own)


@contextmanager
def copied() -> Iterator[Callable[[], host.random.Generator]]:
    """A context that draws the same numbers as without it, but from a copy of the generator: nobody else draws in between.

    It gives a function that makes further copies, which draw the same numbers again.
    """
    shared = generator()
    kind, state = type(shared.bit_generator), shared.bit_generator.state

    def another() -> host.random.Generator:
        bits = kind(0)  # which is faster than copy.deepcopy
        bits.state = state
        return host.random.Generator(bits)

    own = another()
    try:
        with using(own):
            yield another
    finally:
        shared.bit_generator.state = own.bit_generator.state


def get_state() -> dict[str, Any]:
    """The generator's state: plain values that JSON can hold."""
    return dict(generator().bit_generator.state)


def set_state(state: dict[str, Any]) -> None:
    """Continue from a state that ``get_state`` returned. Raises ValueError, and changes nothing, for anything else."""
    bits = generator().bit_generator
    try:
        bits.state = state
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"set_state needs what get_state returned for {a_or_an(type(bits).__name__)}: {error}") from None


def _sizes(caller: str, shape: Shape) -> Shape:
    """The shape. Raises ValueError for a negative length."""
    if any(size < 0 for size in (shape if isinstance(shape, Iterable) else [shape])):
        raise ValueError(f"{caller}: a length cannot be negative, as in the shape {shape}")
    return shape


def _finite(caller: str, **numbers: float) -> None:
    """Raise ValueError for a number that float32 cannot hold."""
    for name, value in numbers.items():
        if not abs(value) <= _LARGEST:
            raise ValueError(f"{caller}: {name} must be finite in float32, not {value}")


def _tensor(values: Any, requires_grad: bool = False) -> Tensor:
    out = Tensor._wrap(from_numpy(values))
    out.requires_grad = requires_grad
    return out


@checked
def normal(shape: Shape, mean: float = 0.0, std: float = 1.0, requires_grad: bool = False) -> Tensor:
    """float32 numbers from the normal distribution."""
    _finite("normal", mean=mean, std=std)
    if std < 0:
        raise ValueError(f"normal: std cannot be negative, as {std} is")
    values = generator().standard_normal(_sizes("normal", shape), dtype=host.float32)
    with host.errstate(all="ignore"):  # the sum may be infinite
        return _tensor(values * host.float32(std) + host.float32(mean), requires_grad)


@checked
def uniform(shape: Shape, low: float = 0.0, high: float = 1.0, requires_grad: bool = False) -> Tensor:
    """float32 numbers from the uniform distribution over ``low`` (included) to ``high`` (excluded)."""
    _finite("uniform", low=low, high=high, **{"high - low": high - low})
    if low >= high:
        raise ValueError(f"uniform: low must be below high, and {low} is not below {high}")
    values = generator().random(_sizes("uniform", shape), dtype=host.float32) * host.float32(high - low) + host.float32(low)
    below = host.nextafter(host.float32(high), host.float32(low))  # rounding may give ``high`` itself
    return _tensor(host.minimum(values, below), requires_grad)


@checked
def integers(low: int, high: int, shape: Shape) -> Tensor:
    """int64 numbers from ``low`` (included) to ``high`` (excluded)."""
    if low >= high:
        raise ValueError(f"integers: low must be below high, and {low} is not below {high}")
    if low < -(2**63) or high > 2**63:
        raise ValueError(f"integers: the numbers must be of int64, and those from {low} to {high} are not")
    return _tensor(generator().integers(low, high, _sizes("integers", shape)))


@checked
def permutation(n: int) -> Tensor:
    """The numbers 0 to n - 1 in random order.

    >>> sorted(tt.random.permutation(4).tolist())
    [0, 1, 2, 3]
    """
    if n < 0:
        raise ValueError(f"permutation: n cannot be negative, as {n} is")
    return _tensor(generator().permutation(n))


@checked
def bernoulli(p: Tensor) -> Tensor:
    """1 with probability p, and else 0: for each element of p, in its shape and dtype.

    >>> tt.random.bernoulli(tt.tensor([0.0, 1.0, 1.0]))
    tensor([0., 1., 1.])
    """
    chances = to_numpy(p.data)
    if not is_floating(chances.dtype):
        raise TypeError(f"bernoulli takes probabilities as floating-point numbers, not {chances.dtype}: use .astype('float32')")
    if not ((chances >= 0) & (chances <= 1)).all():
        raise ValueError(f"bernoulli takes probabilities, which are from 0 to 1, and these {chances.shape} are not")
    return Tensor(generator().random(chances.shape) < chances).astype(p.dtype)


@checked
def multinomial(weights: Tensor, num_samples: int, replacement: bool = False) -> Tensor:
    """Places along the last axis, each drawn with a probability in proportion to its weight: int64 (..., num_samples).

    No place comes twice, unless with ``replacement``: after each draw the next one is from those that are left. Raises
    ValueError for a negative or infinite weight, for weights that are all 0, and if fewer places than ``num_samples`` have one.

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
        raise ValueError(f"multinomial: num_samples must be at least 1, not {num_samples}")
    if not weights.ndim:
        raise ValueError("multinomial takes weights (..., n), of which it draws along the last axis, not a single number")
    if not ((weights >= 0) & (weights < math.inf)).all():
        raise ValueError(f"multinomial: weights must be finite and not negative, and these {weights.shape} are not")
    needed = 1 if replacement else num_samples
    fewest = min((weights > 0).sum(-1).reshape(-1).tolist(), default=needed)
    if fewest < needed:
        remedy = "" if replacement else ": draw fewer, or with replacement=True"
        raise ValueError(f"multinomial needs {counted(needed, 'weight')} above 0 in each row, and a row has {fewest}{remedy}")


def _with_replacement(rows: Any, count: int) -> Any:
    """For each number drawn, the first place up to which the weights add up to more than it."""
    largest = host.maximum.reduce(rows, -1, keepdims=True, initial=0)
    sums = host.cumsum(rows / largest, axis=-1)  # a sum of the weights themselves may be infinite
    ends = sums[:, -1:]
    drawn = host.minimum(generator().random((len(rows), count)) * ends, host.nextafter(ends, 0))  # rounding may give the end
    return host.array([host.searchsorted(*pair, side="right") for pair in zip(sums, drawn)], host.int64).reshape(drawn.shape)


def _without_replacement(rows: Any, count: int) -> Any:
    """The places in the order of exponential waiting times, whose rates are the weights: so the next one is always drawn in
    proportion to what is left."""
    with host.errstate(divide="ignore"):  # a weight of 0 waits for ever
        waits = host.log(generator().standard_exponential(rows.shape)) - host.log(rows)
    return host.argsort(waits, axis=-1)[:, :count].astype(host.int64)


def random_key() -> RandomKey:
    """128 random bits as two words. They determine a whole dropout mask, which ``kernels.keep_mask`` computes from them."""
    own = Switched("generator", modes().generator)

    def draw() -> RandomKey:
        with own:
            high = host.iinfo(host.uint64).max
            first, second = generator().integers(0, high, 2, dtype=host.uint64, endpoint=True).tolist()
        return first, second

    key: RandomKey = current_step().numbers(draw, host.uint64)
    return key


def _before_fork() -> None:
    _own.forks_main = _is_main()


def _after_fork() -> None:
    """A child's only thread is its main one. It goes on with the numbers of the thread that forked."""
    if not _own.forks_main:  # the main thread of the parent may be drawing, and so hold its generator's lock
        _main.generator = _of_another_thread()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


if not TYPE_CHECKING:
    __getattr__, __dir__ = _names_of(__name__)
