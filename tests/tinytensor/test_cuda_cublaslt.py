"""Products by cuBLASLt: arguments, caching, and errors. The fake CuPy's library checks all of it."""

import ctypes
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import pytest
from cupy import _cublaslt as library

from tinytensor import kernels
from tinytensor.autograd.modes import Switched
from tinytensor.device.backend import xp
from tinytensor.kernels.cupy import cublaslt, products

PATH = os.pathsep.join(filter(None, sys.path))  # which leads to the fake CuPy
DTYPES = ["float32", "float64", "bfloat16", "float16"]


@pytest.fixture(autouse=True)
def by_cublaslt(monkeypatch):
    monkeypatch.setattr(cublaslt, "is_on_everywhere", True)
    xp.launches.clear()
    products._plan_of_cublaslt.cache_clear()
    library.calls.clear()


def numbers(*shape, dtype="float32", seed=0):
    return xp.array(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


def kinds():
    return [described.kind for described in library._described.values()]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("is_full", [False, True])
def test_it_computes_what_cublas_does(monkeypatch, dtype, accumulate, is_full):
    a, b = numbers(2, 3, 7, 4, dtype=dtype), numbers(2, 1, 5, 4, dtype=dtype, seed=1).swapaxes(-1, -2)
    for out_dtype in {dtype, "float32" if a.itemsize == 2 else dtype}:
        out = numbers(2, 3, 7, 5, dtype=out_dtype, seed=2)
        other = out.copy()
        for is_on, result in ((True, out), (False, other)):
            monkeypatch.setattr(cublaslt, "is_on_everywhere", is_on)
            with Switched("full_precision", is_full):
                kernels.matmul(a, b, out=result, accumulate=accumulate)
        assert out.get().tobytes() == other.get().tobytes()
    assert library.calls and xp.launches.count("cublasLtMatmul") == len(library.calls)


KINDS = {
    "transposed": lambda a, b: kernels.matmul(a, xp.ascontiguousarray(b.T).T),
    "wider rows, less aligned": lambda a, b: kernels.matmul(numbers(8, 17)[:, 1:], b),
    "a batch": lambda a, b: kernels.matmul(numbers(3, 8, 16), b),
    "another dtype": lambda a, b: kernels.matmul(a.astype("float64"), b.astype("float64")),
    "rounded to TF32": lambda a, b: in_tf32(a, b),
}


def in_tf32(a, b):
    with Switched("full_precision", False):
        return kernels.matmul(a, b)


@pytest.mark.parametrize("kind", KINDS)
def test_descriptions_are_made_once_for_each_kind_of_product(kind):
    a, b = numbers(8, 16), numbers(16, 24)
    for _ in range(3):
        kernels.matmul(a, b)
    assert products._plan_of_cublaslt.cache_info()[:2] == (2, 1)  # hits and misses
    for _ in range(3):
        KINDS[kind](a, b)
    assert products._plan_of_cublaslt.cache_info()[:2] == (4, 2)


def test_what_was_added_up_in_place_needs_no_other_plan():
    a, out = numbers(8, 8), numbers(8, 8)
    kernels.matmul(a, a, out=out)
    kernels.matmul(a, a, out=out, accumulate=True)
    assert products._plan_of_cublaslt.cache_info().misses == 1


def test_a_plan_that_is_forgotten_frees_its_descriptions():
    products._plan_of_cublaslt.cache_clear()
    before = kinds()
    kernels.matmul(numbers(3, 4), numbers(4, 5))
    assert sorted(kinds()) == sorted([*before, "product", "layout", "layout", "layout"])
    products._plan_of_cublaslt.cache_clear()
    assert kinds() == before


def test_a_refusal_says_why():
    with pytest.raises(cublaslt.CublasLtError, match="cublasLtMatrixLayoutCreate: 4 rows, 5 columns, 3 apart"):
        cublaslt._layout(cublaslt.Matrices(0, (4, 5), 3, 0, 16), 1)
    with pytest.raises(cublaslt.CublasLtError, match="the type 99"):
        cublaslt._layout(cublaslt.Matrices(99, (4, 5), 4, 0, 16), 1)


def product(**changes):
    """3 x 4 times 4 x 5 in float32, with something changed."""
    whole = {
        "first": cublaslt.Matrices(0, (3, 4), 3, 0, 4),
        "second": cublaslt.Matrices(0, (4, 5), 4, 0, 4),
        "result": cublaslt.Matrices(0, (3, 5), 3, 0, 4),
        **{"operations": (0, 0), "matrices": 1, "compute": 68, "factors": 0},
    }
    return cublaslt.Product(**{**whole, **changes})


FAULTS = {
    "a product of 3 columns and 4 rows": {"operations": (1, 0)},
    "a result of 5 x 3": {"result": cublaslt.Matrices(0, (5, 3), 5, 0, 4)},
    "factors of two types": {"second": cublaslt.Matrices(1, (4, 5), 4, 0, 4)},
    "the compute type 70 for 0": {"compute": 70},
    "factors of the type 1": {"factors": 1},
    "a result of type 1 of 0": {"result": cublaslt.Matrices(1, (3, 5), 3, 0, 4)},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_does_not_fit_together_is_refused(fault):
    with pytest.raises(cublaslt.CublasLtError, match=fault):
        cublaslt.Plan(product(**FAULTS[fault]))


def test_what_was_said_of_addresses_is_checked():
    a, b, out = numbers(12), numbers(20), numbers(16)
    one = products._arithmetic(a.dtype)[3]
    addresses = [x.data.ptr for x in (a, b, out)]
    cublaslt.Plan(product()).multiply(addresses, one, one)
    with pytest.raises(cublaslt.CublasLtError, match="no multiple of 16"):
        result = cublaslt.Matrices(0, (3, 5), 3, 0, 16)
        cublaslt.Plan(product(result=result)).multiply((*addresses[:2], addresses[2] + 4), one, one)
    with pytest.raises(cublaslt.CublasLtError, match="C reaches beyond its array"):
        cublaslt.Plan(product()).multiply((*addresses[:2], addresses[2] + 8), one, one)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(2, 5, 6), (1, 6), (6,), (30, 1)], ids=str)
def test_a_bias_is_added_before_the_result_is_rounded(dtype, shape):
    x, weight, bias = numbers(*shape, dtype=dtype), numbers(8, shape[-1], dtype=dtype), numbers(8, dtype=dtype, seed=3)
    xp.launches.clear()
    out = kernels.linear(x, weight, bias)
    assert xp.launches == ["cublasLtMatmul"] and out.shape == (*shape[:-1], 8)
    x32, weight32, bias32 = [array.get().astype("float32") for array in (x, weight, bias)]
    want = (x32 @ weight32.T + bias32).astype(dtype)
    if dtype != "float32" or shape != (6,):  # NumPy multiplies a vector in another order
        assert out.get().tobytes() == want.tobytes()
    if dtype == "float32":
        with mock.patch.object(cublaslt, "is_on_everywhere", False):
            assert kernels.linear(x, weight, bias).get().tobytes() == out.get().tobytes()


def test_biases_share_a_plan_and_threads_do_not_mix_them():
    x, weight = numbers(64, 16), numbers(8, 16)
    biases = [xp.full(8, float(i), "float32") for i in range(20)]
    expected = [kernels.linear(x, weight, bias).get() for bias in biases]
    assert products._plan_of_cublaslt.cache_info().misses == 1
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda bias: kernels.linear(x, weight, bias).get(), biases))
    assert all((a == b).all() for a, b in zip(found, expected))


ELSEWHERE = {
    "another dtype": lambda x, w, b: (x, w, b.astype("float64")),
    "float64": lambda x, w, b: [a.astype("float64") for a in (x, w, b)],
    "every second element": lambda x, w, b: (x, w, numbers(16)[::2]),
    "a weight that must be copied": lambda x, w, b: (x, numbers(16, 12)[::2, ::2], b),
    "nothing": lambda x, w, b: (x[:0], w, b),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_where_a_bias_is_added_by_itself(name):
    arguments = ELSEWHERE[name](numbers(5, 6), numbers(8, 6), numbers(8))
    out = kernels.linear(*arguments)
    with mock.patch.object(cublaslt, "is_on_everywhere", False):
        other = kernels.linear(*arguments)
    assert out.dtype == other.dtype and out.get().tobytes() == other.get().tobytes()


def test_structures_have_the_sizes_of_the_header():
    """64 bytes of an algorithm, then its workspace, status, waves and four reserved numbers."""
    assert ctypes.sizeof(cublaslt._Algorithm) == 96 and cublaslt._Algorithm.workspace.offset == 64


@pytest.mark.parametrize("address", [1, 2, 12, 16, 48, 1 << 20])
def test_alignment(address):
    found = cublaslt.alignment(address)
    assert address % found == 0 and (found == 16 or address % (2 * found))


@pytest.mark.parametrize(("value", "expected"), [("", "False"), ("0", "False"), ("1", "True")])
def test_the_environment_variable(python, value, expected):
    code = "from tinytensor.kernels.cupy import cublaslt; print(cublaslt.is_on_everywhere)"
    run = python(code, TINYTENSOR_CUBLASLT=value, PYTHONPATH=PATH)
    assert run.stdout.strip() == expected, run.stderr


def test_another_value_of_the_environment_variable(python):
    run = python("import tinytensor", TINYTENSOR_CUBLASLT="yes", PYTHONPATH=PATH)
    assert run.returncode and "BackendError: TINYTENSOR_CUBLASLT must be '0' (the default) or '1'" in run.stderr
