"""The array class: a NumPy array behind CuPy's manners.

The NumPy array is private, and the class is not a subclass of NumPy's, so nothing slips through by inheritance: what is
not written here or in ``_functions`` does not exist.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from types import SimpleNamespace

import numpy
from numpy.lib.array_utils import byte_bounds

from .cuda import check_memory, stream

synchronizations = 0  # how often something waited for the (imagined) GPU
uploads = []  # the bytes of each copy from the host
launches = []  # the name of each kernel, each call of cuBLAS, each copy: what takes its turn on the GPU


def synchronize():
    """Count one wait of the CPU for the GPU: every reading of values on the host is one."""
    global synchronizations
    synchronizations += 1
    stream.wait()


def launched(name, size=1):
    """Note that a function of that name gave the GPU something to do, unless it is nothing."""
    if size:
        launches.append(name)


def counted(name, result, operands=()):
    """NumPy's result. It was a launch, unless it is a view of an operand, which CuPy makes without the GPU."""
    results = result if isinstance(result, (tuple, list)) else [result]
    hosts = [a for a in operands if isinstance(a, numpy.ndarray)]
    if not any(numpy.may_share_memory(a, b) for a in results for b in hosts):
        launched(name, numpy.size(results[0]) if results else 0)
    return result


class _Here(threading.local):
    """From where to where the memory goes whose addresses this thread asked for last."""

    def __init__(self):
        self.handed_out = deque(maxlen=16)


here = _Here()


class Address(int):
    """Where an array starts in the GPU's memory. It remembers the array, so that the stand-in can follow it."""

    def __new__(cls, array):
        address = super().__new__(cls, array._host.__array_interface__["data"][0])
        address.array = array
        here.handed_out.append(byte_bounds(array._host.base if isinstance(array._host.base, numpy.ndarray) else array._host))
        return address


class ndarray:
    """An array that lives on an imagined GPU."""

    __slots__ = ("__weakref__", "_host")
    __array_priority__ = 100
    __hash__ = None

    def __init__(self, shape, dtype=float):
        self._host = numpy.empty(shape, dtype)

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
    data = property(lambda self: SimpleNamespace(ptr=Address(self)))

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
        return wrap(counted("take", self._host[self._index(index)], [self._host]))

    def __setitem__(self, index, value):
        index = self._index(index)
        scattered = any(isinstance(part, numpy.ndarray) and part.dtype != bool for part in index)
        if scattered and isinstance(value, ndarray):  # one number for all places is well defined, also with repeats
            places = numpy.arange(self.size).reshape(self.shape)[index]
            if numpy.unique(places).size < places.size:
                raise ValueError("a[index] = values with a repeated index is undefined in CuPy: which value stays is chance")
        launched("assign", self._host[index].size)
        self._host[index] = operand(value)

    def _index(self, index):
        """The index for NumPy, as a tuple. An integer array's entries wrap around, as they silently do in CuPy."""
        parts = index if isinstance(index, tuple) else (index,)
        lengths = [0 if p is None or p is Ellipsis else p.ndim if _is_mask(p) else 1 for p in parts]
        given, axis = [], 0
        for part, length in zip(parts, lengths):
            if isinstance(part, ndarray):
                if _is_mask(part):
                    synchronize()  # the size of the result depends on the values
                wraps = part.dtype.kind in "iu" and axis < self.ndim and self.shape[axis]
                part = part._host % self.shape[axis] if wraps else part._host
            elif part is not None and part is not Ellipsis and not isinstance(part, (slice, int, numpy.integer)):
                # CuPy takes lists and NumPy arrays, and copies them to the GPU each time: that is never meant.
                raise TypeError(f"Unsupported type {type(part)}")
            axis += length if part is not Ellipsis else self.ndim - sum(lengths)
            given.append(part)
        # With an ellipsis NumPy gives a view of no dimensions where it would give a scalar, which CuPy has not.
        return tuple(given) if any(part is Ellipsis for part in given) else (*given, Ellipsis)


def _is_mask(part):
    return isinstance(part, ndarray) and part.dtype == bool


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
        _owners[id(array._host)] = array
    return array


def operand(value, scalars=True):
    """What NumPy computes with: an array of this module or, unless refused, a Python or NumPy scalar. Nothing else."""
    if isinstance(value, ndarray):
        return value._host
    if scalars and isinstance(value, (bool, int, float, complex, numpy.generic)):
        return value
    raise TypeError(f"Unsupported type {type(value)}")
