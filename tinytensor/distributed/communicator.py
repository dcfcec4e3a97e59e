"""Communication between ranks.

Ranks are processes with the same parameters. Each rank processes its part of every batch, and gradients are summed over ranks.
Rank 0 is the process that the user started, or the first process of mpiexec.
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
    """The ranks cannot continue together: a rank was killed, is unreachable, calls a different method, or runs different code.
    The message names the rank."""


class Communicator(ABC):
    """A rank's connection to the other ranks. Every rank must call the same methods in the same order.

    ``broadcast`` and ``all_reduce`` take contiguous arrays of the backend with the same shapes and dtypes on all ranks, and
    raise ValueError if an array is not contiguous. ``scatter`` and ``gather`` take small Python values and pickle them. All
    methods raise RankError if another rank has ended, except under mpiexec, which then ends all ranks.
    """

    rank: int = 0
    size: int = 1
    # True if all ranks share the memory of models and optimizers. In that case each rank updates only part of the parameters.
    shares_memory = False

    @abstractmethod
    def broadcast(self, arrays: Arrays) -> None:
        """Copy the arrays of rank 0 to the arrays of every rank, in place."""

    @abstractmethod
    def all_reduce(self, arrays: Arrays) -> None:
        """Sum every array over all ranks, in place. The results are bit-for-bit identical on all ranks."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait until every rank has called this method."""

    @abstractmethod
    def scatter(self, values: Sequence[Any] | None = None) -> Any:
        """Scatter ``values`` from rank 0 and return this rank's value. The arguments of other ranks are ignored."""

    @abstractmethod
    def gather(self, value: Any) -> list[Any] | None:
        """Return the values of all ranks, in order, on rank 0. Return None on other ranks."""

    def abandon(self, error: BaseException) -> None:  # noqa: B027
        """End all ranks, because this rank has failed while others may be waiting for it.

        Processes on one machine need not do anything: waiting ranks notice when this rank ends.
        """

    # -------------------------------------------------------------------------------------------- built on the above

    def own(self, count: int) -> slice:
        """Return this rank's part of ``count`` rows. The parts differ by at most one row."""
        return part(count, self.rank, self.size)

    def tell(self, value: Any = None) -> Any:
        """Return the value of rank 0 on every rank. The arguments of other ranks are ignored."""
        return self.scatter([value] * self.size)

    def sum_gradients(self, parameters: Tensor | Iterable[Tensor], beside: Arrays = ()) -> None:
        """Replace the gradient of every parameter, and each array in ``beside``, with its sum over all ranks.

        A missing gradient counts as zeros. If no rank has a gradient for a parameter, it stays None. Frozen parameters are
        ignored.
        """
        if self.size == 1:
            return
        several = [parameters] if isinstance(parameters, Tensor) else parameters
        trained = list({id(p): p for p in several if p.requires_grad}.values())  # each once: tied parameters may be repeated
        # Communicate between CPUs, without waiting for a GPU.
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
        """Do nothing: the sum of a single array is the array itself."""

    def barrier(self) -> None:
        """Do nothing."""

    def scatter(self, values: Sequence[Any] | None = None) -> Any:
        assert values is not None
        return values[0]

    def gather(self, value: Any) -> list[Any] | None:
        return [value]


def _either(flags: list[list[bool]] | None) -> list[bool]:
    """Return, for each index, True if any list is True at that index."""
    return [any(column) for column in zip(*flags or [])]


def part(count: int, index: int, parts: int) -> slice:
    """Return part ``index`` of ``count`` rows, split into ``parts`` equal parts. A single row goes to the first part."""
    return slice(-(-count * index // parts), -(-count * (index + 1) // parts))


def _can_be_filled(array: Array) -> bool:
    return array.flags.c_contiguous and getattr(array.flags, "writeable", True)  # CuPy arrays are always writeable


def by_dtype(arrays: Arrays) -> Iterator[list[Array]]:
    """Iterate over the flat arrays of each dtype, in the same order on every rank. Raises ValueError for noncontiguous
    arrays."""
    if not all(array.flags.c_contiguous for array in arrays):
        raise ValueError("ranks exchange contiguous arrays: pass a copy of others, such as transposed arrays")
    for dtype in dict.fromkeys(array.dtype for array in arrays):
        yield [array.reshape(-1) for array in arrays if array.dtype == dtype]


def spread(together: Array, arrays: Arrays) -> None:
    """Copy one flat array to several arrays of the same total length."""
    start = 0
    for array in arrays:
        array[...] = together[start : start + array.size]
        start += array.size
