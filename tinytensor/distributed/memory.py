"""Shared memory: all ranks use one copy of a model's parameters and its optimizer's state."""

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

_ALIGNMENT = 64  # bytes of a cache line

Block = Any  # an mmap, or memory of multiprocessing
Allocate = Callable[[int], Block]  # by the number of bytes


def anonymous(size: int) -> Block:
    """Return a block for processes that are forked later. It has no name, so it disappears with the last of them."""
    return mmap.mmap(-1, size)


def inheritable(context: Any) -> Allocate:
    """Return an allocator of blocks that can be sent to starting processes of a multiprocessing context."""
    return lambda size: context.RawArray(ctypes.c_byte, size)


def padded(size: int) -> int:
    """Return the size of a block for an array of ``size`` bytes."""
    return size + _ALIGNMENT


def view(block: Block, shape: tuple[int, ...], dtype: DType) -> Any:
    """Return a block as a NumPy array that starts at a cache line."""
    every_byte = host.frombuffer(block, host.uint8)
    start = -every_byte.ctypes.data % _ALIGNMENT
    return host.ndarray(shape, dtype, block, start)  # it owns all its views, unlike a reshaped array


class _Slot:
    """A holder of an array: a tensor's data, or an entry of an optimizer's state that exists or will exist."""

    def __init__(self, array: Any, put: Callable[[Any], None]):
        self.array = array
        self.put = put


def _slots(owners: Iterable[Any]) -> list[_Slot]:
    """Return the slots of all arrays of these models and optimizers, each once."""
    slots: dict[int, _Slot] = {}
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
            slots.setdefault(id(tensor), _Slot(tensor.data, partial(setattr, tensor, "data")))
    return [*slots.values(), *(slot for optimizer in optimizers for slot in _state_slots(optimizer))]


def _state_slots(optimizer: Optimizer) -> Iterator[_Slot]:
    """Iterate over the slots of a state's present and future arrays. Mark each state that is shared."""
    for parameter, state, names in zip(optimizer.parameters(), optimizer.state, optimizer.array_names()):
        state.is_shared = optimizer.advances_all
        if not state.is_shared:
            continue
        for name in names:
            if name in state:
                yield _Slot(state[name], partial(state.__setitem__, name))
            else:
                zeros = host.zeros(parameter.shape, state_dtype(parameter))
                yield _Slot(zeros, partial(state.memory.__setitem__, name))


class Shared:
    """The tensors of models and optimizers, moved to shared blocks.

    In a spawned process, ``attach`` moves the received tensors to the same blocks. Older views, such as those of ``state_dict``
    or ``trace``, still have the old memory; ``update_views`` copies the new values to it.
    """

    def __init__(self, owners: Iterable[Any], allocate: Allocate):
        self.blocks: list[Block] = []
        self._moved: list[tuple[weakref.ref[Any], Any]] = []  # the old array, which only views keep alive, and the new one
        for slot in _slots(owners):
            block = allocate(padded(slot.array.nbytes))
            array = view(block, slot.array.shape, slot.array.dtype)
            array[...] = slot.array
            note_shared(array)
            slot.put(array)
            self.blocks.append(block)
            self._moved.append((weakref.ref(slot.array), array))

    def __getstate__(self) -> dict[str, Any]:
        return {"blocks": self.blocks}

    def update_views(self) -> None:
        """Copy the values to the tensors' old memory, if there is still a view of it."""
        for moved_from, array in self._moved:
            before = moved_from()
            if before is not None and before.flags.writeable:
                before[...] = array

    def attach(self, owners: Iterable[Any]) -> None:
        """Move the tensors of the same models and optimizers, in another process, to the blocks."""
        for slot, block in zip(_slots(owners), self.blocks, strict=True):
            array = view(block, slot.array.shape, slot.array.dtype)
            note_shared(array)
            slot.put(array)
