"""CUDA graphs: what a stream is given between ``begin_capture`` and ``end_capture`` is written down, and not done. ``launch``
does it, as often as it is called, in the same memory and with the same numbers.

Refused is what CUDA and CuPy refuse: to wait, and CuPy's own cuBLAS. So is what they let pass and what would then go wrong:
* an upload, whose buffer CuPy uses again before the graph reads it;
* memory that is not of a private pool, so that others get it while the graph still uses it;
* memory that was freed since;
* what is put into a graph's memory from outside. While capturing, freed memory is given to later arrays of the same graph, so
  a replay overwrites an array with rubbish at the place where the array was made;
* pinned memory that changes before the GPU has read it (with a graph or without);
* a number that is another one than in the same launch of the step before, as it would never change again.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import threading
import weakref
from collections import deque
from contextlib import contextmanager

import numpy

CAPTURE_UNSUPPORTED = 900  # cudaErrorStreamCaptureUnsupported
_WAITING = ("argsort", "sort")  # those of Thrust, a library that is free to wait
_REMEMBERED = 100_000  # launches
_ALLOCATION = "allocation"  # no launch, but what a graph does at that place


class Here(threading.local):
    """What this thread is doing."""

    def __init__(self):
        self.streams = []  # those that it entered
        self.capture = None  # the Capture that is going on
        self.pool = None  # where its memory comes from, unless that is the default pool
        self.before = deque(maxlen=_REMEMBERED)  # the launches so far: names and numbers


here = Here()

# ------------------------------------------------------------------------------------------------------------- memory


def owner(host):
    """The NumPy array that owns the memory of this one."""
    return host.base if isinstance(host.base, numpy.ndarray) else host


class Place:
    """Where an array lies. It does not keep the memory alive, as a graph does not."""

    def __init__(self, memory, address, dtype, shape, strides):
        self._memory = weakref.ref(memory)
        self.address, self._dtype, self._size = address, dtype, math.prod(shape)
        kind = f"|V{dtype.itemsize}"
        self.__array_interface__ = {"version": 3, "typestr": kind, "shape": shape, "strides": strides, "data": (address, False)}

    def array(self):
        """The array there, as long as there is one."""
        if self._size and self._memory() is None:
            raise RuntimeError("the graph uses memory that was freed since it was captured")
        return numpy.asarray(self).view(self._dtype)


def place_of(host):
    return Place(owner(host), host.__array_interface__["data"][0], host.dtype, host.shape, host.strides)


def places(value):
    """The value with a Place for each NumPy array in it."""
    if isinstance(value, numpy.ndarray):
        return place_of(value)
    return type(value)(map(places, value)) if isinstance(value, (tuple, list)) else value


def arrays(value):
    """Undo ``places``."""
    if isinstance(value, Place):
        return value.array()
    return type(value)(map(arrays, value)) if isinstance(value, (tuple, list)) else value


class MemoryPool:
    """Memory for those who allocate inside of ``using_allocator(pool.malloc)``. It lasts as long as the pool."""

    def __init__(self, allocator=None):
        if allocator is not None:
            raise NotImplementedError("the fake CuPy's pools take no allocator")
        self._memory = {}  # arrays that own memory, by their id

    def malloc(self, size):
        raise NotImplementedError("the fake CuPy's pools are for using_allocator alone")

    def free_bytes(self):
        return 0

    def total_bytes(self):
        return sum(memory.nbytes for memory in self._memory.values())

    def free_all_blocks(self):
        """Nothing: in CuPy, memory that arrays use stays."""


@contextmanager
def using_allocator(allocator=None):
    pool, before = getattr(allocator, "__self__", None), here.pool
    if not isinstance(pool, MemoryPool):
        raise NotImplementedError("the fake CuPy takes the malloc of a MemoryPool as the allocator")
    here.pool = pool
    try:
        yield
    finally:
        here.pool = before


def allocated(host):
    """Note that this array got new memory. In a graph, others may have had it before, so a replay finds rubbish there."""
    if here.pool is not None:
        is_new = id(host) not in here.pool._memory
        here.pool._memory[id(host)] = host
        if here.capture is not None and here.capture.pool is here.pool and is_new:
            here.capture.launches.append((_ALLOCATION, later(spoil, (host,)), ()))
    elif here.capture is not None and host.size:
        raise RuntimeError("memory of the default pool in a graph: others would get it while the graph still uses it")


class PinnedMemory(bytearray):
    """Memory of the host that a GPU can read by itself."""

    __hash__ = object.__hash__  # as one piece of memory, not by its values
    __eq__ = object.__eq__

    @property
    def ptr(self):
        return ctypes.addressof(ctypes.c_char.from_buffer(self))


_pinned = weakref.WeakSet()
_copies = []  # those from pinned memory that a GPU might not have done yet: the memory, and what was in its first bytes


def alloc_pinned_memory(size):
    memory = PinnedMemory(size)
    _pinned.add(memory)
    return memory


def copied(address, size):
    """Note that bytes are copied from pinned memory at this address. A GPU does so later: until then they must stay."""
    check_copies()
    memory = next((memory for memory in _pinned if memory.ptr == address), None)
    if memory is None or size > len(memory):
        raise ValueError(f"{size} bytes to be copied meanwhile from an address that is not that of as much pinned memory")
    _copies.append((weakref.ref(memory), bytes(memory[:size])))


def check_copies(are_done=False):
    """Raise RuntimeError if pinned memory was changed before anyone waited for the GPU to read it. ``are_done``: now it has."""
    wrong = [data for memory, data in _copies if memory() is not None and bytes(memory()[: len(data)]) != data]
    if are_done or wrong:
        _copies.clear()
    if wrong:
        raise RuntimeError("pinned memory was changed before it was known that the GPU has read it: wait for an event")


# ----------------------------------------------------------------------------------------------------------- capturing


class Capture:
    """The graph being captured."""

    def __init__(self):
        self.pool = here.pool  # of the graph
        self.launches = []  # (name, what does it, its numbers)

    def check_numbers(self):
        """Compare with the launches of the step before, if the same came then."""
        launches = [launch for launch in self.launches if launch[0] != _ALLOCATION]
        latest = (launch for launch in reversed(here.before) if launch[0] != "upload")
        before = [*itertools.islice(latest, len(launches))][::-1]
        if [name for name, _ in before] != [name for name, *_ in launches]:
            return
        for i, ((name, _, numbers), (_, old)) in enumerate(zip(launches, before)):
            if repr(numbers) != repr(old):
                raise RuntimeError(
                    f"launch {i} of the graph, {name}, has the numbers {numbers}, and in the step before it had {old}: they "
                    "would never change again"
                )


def refuse_to_wait(error):
    """Raise CUDA's error if this thread is capturing."""
    if here.capture is not None:
        raise error(CAPTURE_UNSUPPORTED)


def launched(name, prepare, numbers):
    """Note a launch. Returns whether it is to be done now. While capturing, what ``prepare()`` returns will do it instead."""
    if here.capture is None:
        here.before.append((name, numbers))
        return True
    if prepare is None or name in _WAITING:
        raise RuntimeError(f"{name} cannot be captured: on a GPU it would wait, or replay wrongly")
    here.capture.launches.append((name, prepare(), numbers))
    return False


def spoil(host):
    """Overwrite an array with conspicuous values."""
    host[...] = True if host.dtype == bool else numpy.iinfo(host.dtype).max if host.dtype.kind in "iu" else numpy.nan


def later(function, given):
    """What calls a function with arrays and other values, as they are in memory then."""
    given = places(given)

    def call():
        with numpy.errstate(all="ignore"):
            function(*arrays(given))

    return call


class Graph:
    """Launches that were captured."""

    def __init__(self, *args, **kwargs):
        raise NotImplementedError("a graph comes from end_capture")

    def launch(self, stream=None):
        from ._array import launched

        if launched("graph"):
            for _, compute, _ in self._launches:
                compute()


class Stream:
    """An order of work. Here it is the program's, whatever the stream."""

    _pointers = itertools.count(0x57EA0000, 16)

    def __init__(self, null=False, non_blocking=False):
        self.ptr = 0 if null else next(self._pointers)

    def __enter__(self):
        here.streams.append(self)
        return self

    def __exit__(self, *error):
        here.streams.pop()

    def synchronize(self):
        from ._array import synchronize

        synchronize()

    def is_capturing(self):
        return here.capture is not None and current_stream() is self

    def begin_capture(self, mode=None):
        if self.ptr == 0:
            raise RuntimeError("cannot capture on the default (legacy) stream")
        if here.capture is not None or current_stream() is not self:
            raise RuntimeError("the fake CuPy captures the current stream alone, and one at a time")
        here.capture = Capture()

    def end_capture(self):
        capture, here.capture = here.capture, None
        capture.check_numbers()
        graph = object.__new__(Graph)
        graph._launches = capture.launches
        return graph


_null = Stream(null=True)


def current_stream():
    return here.streams[-1] if here.streams else _null
