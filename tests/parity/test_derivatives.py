"""Jacobians, Hessians and products of Hessians and vectors against those of torch.autograd.functional."""

import numpy
import pytest
import torch
from parity.compare import assert_close

import tinytensor as tt


def normal(*shape, seed=0):
    return numpy.random.default_rng(seed).standard_normal(shape)


# A function of either library, and its inputs.
FUNCTIONS = {
    "one": (lambda tt, x: tt.tanh(x @ x.T), [normal(3, 2)]),
    "a vector": (lambda tt, x: tt.exp(x) * x.sum(), [normal(4)]),
    "a number": (lambda tt, x: tt.sin(x) * x * x, [normal()]),
    "two": (lambda tt, x, y: tt.sin(x @ y), [normal(2, 3), normal(3, seed=1)]),
    "unused": (lambda tt, x, y: x * x, [normal(3), normal(2, seed=1)]),
    "linear": (lambda tt, x, y: x + y[:1], [normal(3), normal(2, seed=1)]),
    "softmax": (lambda tt, x: tt.softmax(x, -1), [normal(2, 3)]),
}


def flat(found):
    return [x for part in found for x in flat(part)] if isinstance(found, (list, tuple)) else [found]


def assert_alike(ours, theirs, dtype):
    assert type(ours) is type(theirs) or isinstance(theirs, torch.Tensor)
    for mine, its in zip(flat(ours), flat(theirs), strict=True):
        assert_close(mine, its, *((1e-12, 1e-12) if dtype == "float64" else (2e-5, 1e-6)))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives(name, dtype):
    f, arrays = FUNCTIONS[name]
    arrays = [x.astype(dtype) for x in arrays]
    single = len(arrays) == 1
    x = tt.tensor(arrays[0]) if single else tuple(tt.tensor(a) for a in arrays)
    its = torch.tensor(arrays[0]) if single else tuple(torch.tensor(a) for a in arrays)
    functional = torch.autograd.functional
    ours, theirs = [lambda *xs, lib=lib: f(lib, *xs) for lib in (tt, torch)]
    assert_alike(tt.jacobian(ours, x), functional.jacobian(theirs, its), dtype)
    ours, theirs = [lambda *xs, lib=lib: (f(lib, *xs) ** 2).sum() for lib in (tt, torch)]
    assert_alike(tt.hessian(ours, x), functional.hessian(theirs, its), dtype)
    assert_alike(tt.hvp(ours, x, x), functional.hvp(theirs, its, its), dtype)
