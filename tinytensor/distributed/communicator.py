"""What ranks say to each other.

Ranks are processes that hold the same parameters. Each takes its part of every batch, and the gradients of all are summed. Rank
0 is the process that the user started, or the first of those that mpiexec started.
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
    """The ranks cannot go on together: one was killed, cannot be reached, calls another method than the others, or runs other
    code. The message names it."""


class Communicator(ABC):
    """One rank's connection to all others. Every rank must call the same methods in the same order.

    ``broadcast`` and ``all_reduce`` are for arrays of the backend, and raise ValueError if one is not contiguous; ``scatter``
    and ``gather`` are for small Python values, which are pickled. All methods raise RankError if another rank has ended; but
    under mpiexec there is no need to, as the launcher then ends all.
    """

    rank: int = 0
    size: int = 1
    # Whether the models and optimizers that the ranks were started with lie in memory that all of them see. Then each rank
    # updates only a part of the parameters.
    shares_memory = False

    @abstractmethod
    def broadcast(self, arrays: Arrays) -> None:
        """Give every rank's arrays the values that they have on rank 0, in place.

        The arrays are contiguous, and those of all ranks have the same shapes and dtypes.
        """

    @abstractmethod
    def all_reduce(self, arrays: Arrays) -> None:
        """Replace every array by its sum over all ranks, in place. Every rank gets the same bits.

        The arrays are contiguous, and those of all ranks have the same shapes and dtypes.
        """

    @abstractmethod
    def barrier(self) -> None:
        """Wait until every rank has called this."""

    @abstractmethod
    def scatter(self, values: Sequence[Any] | None = None) -> Any:
        """Rank 0 gives a value for each rank, and each rank gets its own. What the others give does not count."""

    @abstractmethod
    def gather(self, value: Any) -> list[Any] | None:
        """Rank 0 gets the values of all ranks, in the order of the ranks; the others get None."""

    def abandon(self, error: BaseException) -> None:  # noqa: B027 (most need not do anything)
        """End all ranks, as this one has failed with this error while others may wait for it.

        Processes of one machine need nothing for that: those that wait notice when this one ends.
        """

    # -------------------------------------------------------------------------------------------- built on the above

    def own(self, count: int) -> slice:
        """Which of ``count`` rows are this rank's. The parts of all ranks are of equal size, give or take one row."""
        return part(count, self.rank, self.size)

    def tell(self, value: Any = None) -> Any:
        """Every rank gets the value that rank 0 gives. What the others give does not count."""
        return self.scatter([value] * self.size)

    def sum_gradients(self, parameters: Tensor | Iterable[Tensor], beside: Arrays = ()) -> None:
        """Replace the gradient of every parameter by its sum over all ranks, and so each array ``beside`` them.

        A rank without a gradient for a parameter counts as zeros. A parameter without a gradient on any rank keeps none. Frozen
        parameters are left alone.
        """
        if self.size == 1:
            return
        given = [parameters] if isinstance(parameters, Tensor) else parameters
        trained = list({id(p): p for p in given if p.requires_grad}.values())  # each once, as a tied one may be given twice
        # Asked from CPU to CPU, so that a GPU is not waited for.
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
    """The only rank: there is nobody to talk to."""

    def broadcast(self, arrays: Arrays) -> None:
        """Nothing."""

    def all_reduce(self, arrays: Arrays) -> None:
        """Nothing: the sum of one is itself."""

    def barrier(self) -> None:
        """Nothing."""

    def scatter(self, values: Sequence[Any] | None = None) -> Any:
        """The only value."""
        assert values is not None
        return values[0]

    def gather(self, value: Any) -> list[Any] | None:
        """The only value."""
        return [value]


def _either(flags: list[list[bool]] | None) -> list[bool]:
    """For each place, whether any of the lists has a True there."""
    return [any(column) for column in zip(*flags or [])]


def part(count: int, index: int, parts: int) -> slice:
    """One of so many ``parts`` of ``count`` things, as equal as they can be. A single thing is in the first part."""
    return slice(-(-count * index // parts), -(-count * (index + 1) // parts))


def _can_be_filled(array: Array) -> bool:
    return array.flags.c_contiguous and getattr(array.flags, "writeable", True)  # CuPy's arrays are always writeable


def by_dtype(arrays: Arrays) -> Iterator[list[Array]]:
    """For each dtype its arrays, flat. Every rank gets them in the same order. Raises ValueError if one is not contiguous."""
    if not all(array.flags.c_contiguous for array in arrays):
        raise ValueError("ranks exchange contiguous arrays: pass a copy of each other array, such as of a transposed one")
    for dtype in dict.fromkeys(array.dtype for array in arrays):
        yield [array.reshape(-1) for array in arrays if array.dtype == dtype]


def spread(together: Array, arrays: Arrays) -> None:
    """Copy one flat array to several, which are as long together."""
    start = 0
    for array in arrays:
        array[...] = together[start : start + array.size]
        start += array.size
