"""CuPy's linear algebra: NaN for a singular matrix, and no error unless ``cupyx.errstate(linalg="raise")`` asks for one.

It takes no half precision and does not broadcast. It waits for the GPU where it looks for errors.
"""

import threading

import numpy

from ._array import operand, synchronize
from ._functions import _run


class _State(threading.local):
    faults = "ignore"


state = _State()


def _checked(arrays):
    hosts = [operand(a, scalars=False) for a in arrays]
    for host in hosts:
        if host.dtype not in ("float32", "float64"):
            raise TypeError(f"{host.dtype} is unsupported in linalg")
    if hosts[0].ndim < 2 or hosts[0].shape[-1] != hosts[0].shape[-2]:
        raise numpy.linalg.LinAlgError("Last 2 dimensions of the array must be square")
    return hosts


def _factorized(function, *arrays):
    hosts = _checked(arrays)
    if state.faults == "raise":
        synchronize()
        return _run(function.__name__, function, hosts)
    try:
        return _run(function.__name__, function, hosts)
    except numpy.linalg.LinAlgError:
        return _run(function.__name__, lambda *given: numpy.full_like(given[-1], numpy.nan), hosts)


def inv(a):
    return _factorized(numpy.linalg.inv, a)


def solve(a, b):
    if b.ndim < 2 or a.shape[:-1] != b.shape[:-1]:
        raise ValueError("a must have (..., M, M) shape and b must have (..., M, K) for multidimensional b")
    return _factorized(numpy.linalg.solve, a, b)


def cholesky(a):
    return _factorized(numpy.linalg.cholesky, a)


def det(a):
    return _run("det", numpy.linalg.det, _checked([a]))


def slogdet(a):
    hosts = _checked([a])
    return tuple(_run("slogdet", lambda x, i=i: numpy.linalg.slogdet(x)[i], hosts) for i in range(2))
