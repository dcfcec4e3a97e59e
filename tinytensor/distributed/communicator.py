"""How ranks communicate.

Ranks are processes with the same parameters. Each takes its part of every batch, and their gradients are summed. Rank 0 is the
process that the user started, or mpiexec's first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tinytensor.autograd.engine import note_change
from tinytensor.autograd.tensor import Tensor
from tinytensor.device.backend import Array, owner, xp

Arrays = Sequence[Array]


class RankError(RuntimeError):
    """The ranks cannot continue together: one was killed, cannot be reached, calls another method, or runs other code. The
    message names it."""


class Communicator(ABC):
    """One rank's connection to the others. Every rank must call the same methods in the same order.

    ``broadcast`` and ``all_reduce`` are for contiguous arrays of the backend, with the same shapes and dtypes on all ranks, and
    raise ValueError if one is not contiguous. ``scatter`` and ``gather`` are for small Python values, which are pickled. All
    methods raise RankError if another rank has ended, except under mpiexec, which then ends all.
    """

    rank: int = 0
    size: int = 1
    # True if all ranks share the memory of the models and optimizers. Then each rank updates only a part of the parameters.
    shares_memory = False

    @abstractmethod
    def broadcast(self, arrays: Arrays) -> None:
        """Copy the values of rank 0's arrays to every rank's arrays, in place."""

    @abstractmethod
    def all_reduce(self, arrays: Arrays) -> None:
        """Sum every array over all ranks, in place. Every rank gets the same bits."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait until every rank has called this."""

    @abstractmethod
    def scatter(self, values: Sequence[Any] | None = None) -> Any:
        """Return this rank's value of those on rank 0. Other ranks' arguments are ignored."""

    @abstractmethod
    def gather(self, value: Any) -> list[Any] | None:
        """Return the values of all ranks, in order, on rank 0, and None on the others."""

    def abandon(self, error: BaseException) -> None:  # noqa: B027
        """End all ranks, because this one has failed while others may wait for it.

        Processes of one machine need not act: waiting ranks notice when this one ends.
        """

    # -------------------------------------------------------------------------------------------- built on the above

    def own(self, count: int) -> slice:
        """Return this rank's part of ``count`` rows. All parts are equal, give or take one row."""
        return part(count, self.rank, self.size)

    def tell(self, value: Any = None) -> Any:
        """Return rank 0's value on every rank. Other ranks' arguments are ignored."""
        return self.scatter([value] * self.size)

    def sum_gradients(self, parameters: Tensor | Iterable[Tensor], beside: Arrays = ()) -> None:
        """Replace the gradient of every parameter, and each array ``beside`` them, by its sum over all ranks.

        A missing gradient counts as zeros. A parameter without a gradient on any rank keeps none. Frozen parameters are
        ignored.
        """
        if self.size == 1:
            return
        several = [parameters] if isinstance(parameters, Tensor) else parameters
        trained = list({id(p): p for p in several if p.requires_grad}.values())  # each once, as a tied one may be repeated
        # From CPU to CPU, without waiting for a GPU.
        having = self.tell(_either(self.gather([p.grad is not None for p in trained])))
        reached = [p for p, any_rank_has in zip(trained, having) if any_rank_has]
        gradients: list[Array] = []
        memories: set[int] = set()
        for p in reached:
            gradient = xp.zeros_like(p.data) if p.grad is None else p.grad.data
            if p.grad is None or id(owner(gradient)) in memories or not _can_be_filled(gradient):
                gradient = xp.array(gradient, order="C")
                p.grad = Tensor._wrap(gradient)
            memories.add(id(owner(gradient)))
            gradients.append(gradient)
        self.all_reduce([*gradients, *beside])
        for gradient in gradients:
            note_change(gradient)


class Alone(Communicator):
    """The only rank."""

    def broadcast(self, arrays: Arrays) -> None:
        """Do nothing."""

    def all_reduce(self, arrays: Arrays) -> None:
        """Do nothing: the sum of one array is the array."""

    def barrier(self) -> None:
        """Do nothing."""

    def scatter(self, values: Sequence[Any] | None = None) -> Any:
        assert values is not None
        return values[0]

    def gather(self, value: Any) -> list[Any] | None:
        return [value]


def _either(flags: list[list[bool]] | None) -> list[bool]:
    """Return, for each index, True if any list is True there."""
    return [any(column) for column in zip(*flags or [])]


def part(count: int, index: int, parts: int) -> slice:
    """Return one of ``parts`` equal parts of ``count`` rows. The first part takes a single row."""
    return slice(-(-count * index // parts), -(-count * (index + 1) // parts))


def _can_be_filled(array: Array) -> bool:
    return array.flags.c_contiguous and getattr(array.flags, "writeable", True)  # CuPy's arrays are always writeable


def by_dtype(arrays: Arrays) -> Iterator[list[Array]]:
    """Iterate over the flat arrays of each dtype, in the same order on every rank. Raises ValueError if one is not
    contiguous."""
    if not all(array.flags.c_contiguous for array in arrays):
        raise ValueError("ranks exchange contiguous arrays: pass a copy of others, such as transposed arrays")
    for dtype in dict.fromkeys(array.dtype for array in arrays):
        yield [array.reshape(-1) for array in arrays if array.dtype == dtype]


def spread(together: Array, arrays: Arrays) -> None:
    """Copy one flat array to several of the same total length."""
    start = 0
    for array in arrays:
        array[...] = together[start : start + array.size]
        start += array.size
