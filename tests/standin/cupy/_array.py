"""The array class: a NumPy array behind CuPy's manners.

The NumPy array is private, and the class is not a subclass of NumPy's, so nothing slips through by inheritance: what is
not written here or in ``_functions`` does not exist.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import deque
from types import SimpleNamespace

import numpy
from numpy.lib.array_utils import byte_bounds

from . import _graphs
from .cuda import CUDARuntimeError, check_memory, stream

synchronizations = 0  # how often something waited for the (imagined) GPU
uploads = []  # the bytes of each copy from the host
launches = []  # the name of each kernel, each call of cuBLAS, each copy: what takes its turn on the GPU


def synchronize():
    """Count one wait of the CPU for the GPU: every reading of values on the host is one."""
    global synchronizations
    _graphs.refuse_to_wait(CUDARuntimeError)
    synchronizations += 1
    stream.wait()
    _graphs.check_copies(are_done=True)


def launched(name, prepare=None, numbers=()):
    """Note that a function of that name gives the GPU something to do. Returns whether to do it now, and not only in replays of
    a graph, where what ``prepare()`` returns does it. ``numbers`` are what it is given besides arrays."""
    now = _graphs.launched(name, prepare, numbers)
    if now:
        launches.append(name)
    return now


def computed(name, function, operands, **settings):
    """What NumPy's function makes of the operands. It is a launch, unless it is a view of an operand, which CuPy makes without
    the GPU."""
    result = function(*operands, **settings)
    hosts = [a for a in operands if isinstance(a, numpy.ndarray)]
    if not isinstance(result, (numpy.ndarray, numpy.generic)):  # several arrays, of a function that waits
        launched(name)
        return result
    if not numpy.size(result) or any(numpy.may_share_memory(result, a) for a in hosts):
        return result
    result = numpy.asarray(result)

    def compute(result, *operands):
        result[...] = function(*operands, **settings)

    if _graphs.here.capture is not None:
        _graphs.allocated(_graphs.owner(result))
    if not launched(name, lambda: _graphs.later(compute, (result, *operands)), numbers_in((*operands, settings))):
        _graphs.spoil(result)  # a graph has not computed it yet
    return result


def numbers_in(values):
    """Return the values that are not arrays, in nested sequences."""
    if isinstance(values, (tuple, list)):
        return tuple([numbers_in(value) for value in values if not isinstance(value, numpy.ndarray)])
    return values


class _Here(threading.local):
    """The memory whose addresses this thread asked for last: where it begins and ends, and what owns it."""

    def __init__(self):
        self.handed_out = deque(maxlen=16)


here = _Here()


class Address(int):
    """Where an array starts in the GPU's memory. It remembers the array, so that the fake CuPy can follow it."""

    def __new__(cls, array):
        address = super().__new__(cls, array._host.__array_interface__["data"][0])
        address.array = array
        memory = _graphs.owner(array._host)
        here.handed_out.append((*byte_bounds(memory), weakref.ref(memory)))
        return address


class ndarray:
    """An array that lives on an imagined GPU."""

    __slots__ = ("__weakref__", "_host")
    __array_priority__ = 100
    __hash__ = None

    def __init__(self, shape, dtype=float):
        self._host = numpy.empty(shape, dtype)
        _graphs.allocated(self._host)

    # ------------------------------------------------------------------------------ what it is (known to the host)

    shape = property(lambda self: self._host.shape)
    dtype = property(lambda self: self._host.dtype)
    ndim = property(lambda self: self._host.ndim)
    size = property(lambda self: self._host.size)
    strides = property(lambda self: self._host.strides)
    itemsize = property(lambda self: self._host.itemsize)
    nbytes = property(lambda self: self._host.nbytes)
    base = property(lambda self: _base(self._host))
    T = property(lambda self: wrap(self._host.T))
    mT = property(lambda self: wrap(self._host.mT))
    data = property(lambda self: MemoryPointer(self))

    @property
    def flags(self):
        flags = self._host.flags
        return SimpleNamespace(c_contiguous=flags.c_contiguous, f_contiguous=flags.f_contiguous, owndata=flags.owndata)

    def __len__(self):
        return len(self._host)

    # --------------------------------------------------------------------- its values: only by asking, and counted

    def __array__(self, *args, **kwargs):
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy array explicitly."
        )

    def __array_function__(self, function, types, args, kwargs):
        return NotImplemented  # CuPy would answer numpy.sum(x) for some functions; portable code asks xp.sum

    def get(self):
        _graphs.refuse_to_wait(lambda _: RuntimeError("the current stream is capturing, so D2H transfers are disallowed"))
        synchronize()
        return self._host.copy()

    def item(self):
        return self.get().item()

    def tolist(self):
        return self.get().tolist()

    def __bool__(self):
        return bool(self.get())

    def __int__(self):
        return int(self.get())

    def __float__(self):
        return float(self.get())

    def __complex__(self):
        return complex(self.get())

    def __repr__(self):
        return repr(self.get())

    def __str__(self):
        return str(self.get())

    def __format__(self, spec):
        return format(self.get(), spec)

    def __reduce__(self):
        return wrap, (self.get(),)

    # --------------------------------------------------------------------------------------------------- indexing

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index):
        parts = index_parts(index)
        return wrap(computed("take", _part, [self._host, parts]))

    def __setitem__(self, index, value):
        parts, value = index_parts(index), operand(value)
        given = (self._host, parts, value)
        size = _part(self._host, parts).size
        if size and launched("assign", lambda: _graphs.later(_assign, given), numbers_in((parts, value))):
            _assign(*given)


class MemoryPointer:
    """Where an array starts."""

    def __init__(self, array):
        self._array = array
        self.ptr = Address(array)

    def copy_from_host_async(self, mem, size, stream=None):
        """Copy bytes from pinned memory of the host."""
        if not launched("upload"):
            return
        uploads.append(size)
        if not self._array._host.flags.c_contiguous or size > self._array.nbytes:
            raise ValueError(f"{size} bytes go beyond an array of {self._array.nbytes}")
        _graphs.copied(mem, size)
        ctypes.memmove(int(self.ptr), mem, size)


def _is_mask(part):
    return isinstance(part, numpy.ndarray) and part.dtype == bool


def index_parts(index):
    """The parts of an index, with NumPy's arrays for CuPy's. Waits for the GPU where CuPy does."""
    parts = []
    for part in index if isinstance(index, tuple) else (index,):
        if isinstance(part, ndarray):
            part = part._host
            if _is_mask(part):
                synchronize()  # the size of the result depends on the values
        elif part is not None and part is not Ellipsis and not isinstance(part, (slice, int, numpy.integer)):
            # CuPy takes lists and NumPy arrays, and copies them to the GPU each time: that is never meant.
            raise TypeError(f"Unsupported type {type(part)}")
        parts.append(part)
    return tuple(parts)


def numpys_index(host, parts):
    """The index for NumPy, as a tuple. An integer array's entries wrap around, as they silently do in CuPy."""
    lengths = [0 if p is None or p is Ellipsis else p.ndim if _is_mask(p) else 1 for p in parts]
    given, axis = [], 0
    for part, length in zip(parts, lengths):
        if isinstance(part, numpy.ndarray):
            wraps = part.dtype.kind in "iu" and axis < host.ndim and host.shape[axis]
            part = part % host.shape[axis] if wraps else part
        axis += length if part is not Ellipsis else host.ndim - sum(lengths)
        given.append(part)
    # With an ellipsis NumPy gives a view of no dimensions where it would give a scalar, which CuPy has not.
    return tuple(given) if any(part is Ellipsis for part in given) else (*given, Ellipsis)


def _part(host, parts):
    return host[numpys_index(host, parts)]


def _assign(host, parts, value):
    index = numpys_index(host, parts)
    scattered = any(isinstance(part, numpy.ndarray) and part.dtype != bool for part in index)
    if scattered and isinstance(value, numpy.ndarray):  # one number for all places is well defined, also with repeats
        places = numpy.arange(host.size).reshape(host.shape)[index]
        if numpy.unique(places).size < places.size:
            raise ValueError("a[index] = values with a repeated index is undefined in CuPy: which value stays is chance")
    host[index] = value


_owners = weakref.WeakValueDictionary()  # the arrays that own their memory, by NumPy's: a view's base is its owner itself


def _base(host):
    if host.base is None:
        return None
    owner = _owners.get(id(host.base))
    return wrap(host.base) if owner is None else owner


def wrap(value):
    """NumPy's result as CuPy's: every array and every scalar becomes an ``ndarray``, also inside a tuple or list."""
    if isinstance(value, (tuple, list)):
        return type(value)(wrap(part) for part in value)
    if not isinstance(value, (numpy.ndarray, numpy.generic)):
        return value
    array = object.__new__(ndarray)
    array._host = numpy.asarray(value)
    if array._host.base is None:
        check_memory(array._host.nbytes)
        _graphs.allocated(array._host)
        _owners[id(array._host)] = array
    return array


def operand(value, scalars=True):
    """What NumPy computes with: an array of this module or, unless refused, a Python or NumPy scalar. Nothing else."""
    if isinstance(value, ndarray):
        return value._host
    if scalars and isinstance(value, (bool, int, float, complex, numpy.generic)):
        return value
    raise TypeError(f"Unsupported type {type(value)}")
