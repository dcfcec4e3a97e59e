"""Memory that several processes see: the parameters of a model and the state of its optimizer exist once for all ranks."""

from __future__ import annotations

import ctypes
import mmap
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from tinytensor.autograd.tensor import Tensor
from tinytensor.device.backend import DType, host
from tinytensor.nn import Module
from tinytensor.optim import Optimizer
from tinytensor.optim.state import state_dtype
from tinytensor.parallel.shared import note_shared

_ALIGNMENT = 64  # bytes: a line of the processor's cache

Block = Any  # an mmap, or memory of multiprocessing
Allocate = Callable[[int], Block]  # makes a block of so many bytes


def anonymous(size: int) -> Block:
    """A block for processes that are forked later. It has no name, so it is gone with the last of them."""
    return mmap.mmap(-1, size)


def inheritable(context: Any) -> Allocate:
    """What makes blocks that can be sent to processes of a multiprocessing context while they start."""
    return lambda size: context.RawArray(ctypes.c_byte, size)


def padded(size: int) -> int:
    """The bytes that a block needs for an array of ``size`` bytes."""
    return size + _ALIGNMENT


def view(block: Block, shape: tuple[int, ...], dtype: DType) -> Any:
    """A block as a NumPy array that begins at a line of the processor's cache."""
    every_byte = host.frombuffer(block, host.uint8)
    start = -every_byte.ctypes.data % _ALIGNMENT
    return host.ndarray(shape, dtype, block, start)  # the owner of all its views, which a reshaped array would not be


class _Place:
    """Where an array is kept: a tensor's data, or an entry of an optimizer's state that exists or will exist."""

    def __init__(self, array: Any, put: Callable[[Any], None]):
        self.array = array
        self.put = put


def _places(owners: Iterable[Any]) -> list[_Place]:
    """The places of all arrays of these models and optimizers, each once."""
    places: dict[int, _Place] = {}
    optimizers = []
    for owner in owners:
        if isinstance(owner, Module):
            tensors: Iterable[Tensor] = dict(owner._named_tensors()).values()
        elif isinstance(owner, Optimizer):
            tensors = owner.parameters()
            optimizers.append(owner)
        else:
            continue
        for tensor in tensors:
            places.setdefault(id(tensor), _Place(tensor.data, partial(setattr, tensor, "data")))
    return [*places.values(), *(place for optimizer in optimizers for place in _state_places(optimizer))]


def _state_places(optimizer: Optimizer) -> Iterator[_Place]:
    """The places of a state's arrays, also of those that it will need later. Marks each state that is to be shared."""
    for parameter, state, names in zip(optimizer.parameters(), optimizer.state, optimizer.array_names()):
        state.is_shared = optimizer.advances_all
        if not state.is_shared:
            continue
        for name in names:
            if name in state:
                yield _Place(state[name], partial(state.__setitem__, name))
            else:
                zeros = host.zeros(parameter.shape, state_dtype(parameter))
                yield _Place(zeros, partial(state.memory.__setitem__, name))


class Shared:
    """The tensors of models and optimizers, moved to shared blocks.

    In a process that is not a fork, the tensors that were sent have memory of their own, until ``attach`` puts them into the
    same blocks.

    Views that were made before, as by ``state_dict`` or ``trace``, still have the old memory. ``update_views`` gives them the
    new values.
    """

    def __init__(self, owners: Iterable[Any], allocate: Allocate):
        self.blocks: list[Block] = []
        self._moved: list[tuple[weakref.ref[Any], Any]] = []  # from where, which is kept by its views alone, and to where
        for place in _places(owners):
            block = allocate(padded(place.array.nbytes))
            array = view(block, place.array.shape, place.array.dtype)
            array[...] = place.array
            note_shared(array)
            place.put(array)
            self.blocks.append(block)
            self._moved.append((weakref.ref(place.array), array))

    def __getstate__(self) -> dict[str, Any]:
        return {"blocks": self.blocks}  # all that another process needs

    def update_views(self) -> None:
        """Copy the values to the memory that the tensors had before, where somebody still has a view of it."""
        for moved_from, array in self._moved:
            before = moved_from()
            if before is not None and before.flags.writeable:
                before[...] = array

    def attach(self, owners: Iterable[Any]) -> None:
        """Put the tensors of the same models and optimizers, in another process, into the blocks."""
        for place, block in zip(_places(owners), self.blocks, strict=True):
            array = view(block, place.array.shape, place.array.dtype)
            note_shared(array)
            place.put(array)
