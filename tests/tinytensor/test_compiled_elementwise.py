"""Elementwise ops and gradient rules that are compiled from their own text, against the same text run by NumPy."""

import inspect
import warnings

import numpy as np
import pytest

import tinytensor as tt
from tinytensor import kernels
from tinytensor.autograd.op import all_ops

pytestmark = pytest.mark.skipif(kernels.name != "numba", reason="there are compiled kernels with Numba alone")
if kernels.name == "numba":
    from tinytensor.kernels.numba.elementwise import Elementwise, _loop, to_float16, to_float32

FUNCTIONS = {
    f"{op.name}{label}": function
    for op in all_ops.values()
    for label, function in [("", op.forward), *[(f", gradient of {name}", rule) for name, rule in op.rules.items()]]
    if hasattr(function, "formula")
}
NOT_COMPILED = {  # numbers have no function of this name, or not with the digits that NumPy's has
    *"arccos arccosh arcsin arcsinh arctanh ceil cos cosh floor log10 log2 sin sinh tan trunc".split(),
    *(f"{name}, gradient of x" for name in ("cos", "cosh", "sin", "sinh")),
}
CANCELLING = {"logaddexp", "logistic, gradient of logits"}
SPECIAL = [0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 1e38, -1e38, 3e38, 1e-30, 0.5, 88, -88, 104, 1e-8, 0.3, -0.3]
NUMBERS = {"negative_slope": 0.01, "beta": 2.5, "alpha": 1.5, "min": -0.5, "max": 0.75, "delta": 0.8, "scale": 2.0, "most": 0.5}


def arguments(function, dtype):
    """Values for each parameter: all pairs of special numbers, then random ones."""
    rng = np.random.default_rng(0)
    values = {}
    for place, name in enumerate(inspect.signature(function).parameters):
        pairs = np.repeat(SPECIAL, len(SPECIAL)) if place % 2 else np.tile(SPECIAL, len(SPECIAL))
        scattered = rng.standard_normal(5000) * 10.0 ** rng.uniform(-3, 2, 5000)
        values[name] = NUMBERS.get(name, np.concatenate([pairs, scattered]).astype("float32").astype(dtype))
        if name == "condition":
            values[name] = rng.random(len(pairs) + 5000) < 0.5
    return list(values.values())


def close(a, b, dtype, terms):
    """Compare within rounding error: of the result, or of its terms where they cancel."""
    error = 4 * np.finfo(dtype).eps * np.maximum(np.abs(b), terms) + np.finfo(dtype).tiny
    return (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= error)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - NOT_COMPILED))
def test_a_compiled_formula_is_numpys(name, dtype):
    function = FUNCTIONS[name].function
    with np.errstate(over="ignore"):
        inputs = arguments(function, dtype)
    compiled = Elementwise(function, f"test of {name}")
    compiled.in_float32 = True  # also what NumPy does as fast
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        got = compiled._compiled(tuple(inputs), inputs[0].shape)
        wide = [x.astype("float64") if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x for x in inputs]
        exact = np.asarray(function(*wide)).astype(dtype)
        in_float32 = [x.astype("float32") if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x for x in inputs]
        rounded = np.asarray(function(*in_float32)).astype(dtype)  # where a factor overflows, or vanishes
        assert got.dtype == dtype
        terms = np.max(np.abs(wide), axis=0) if name in CANCELLING else 0.0
        wrong = ~(close(got, exact, dtype, terms) | close(got, rounded, dtype, terms))
    assert not wrong.any(), [(x[wrong][0] if isinstance(x, np.ndarray) else x) for x in inputs]


def test_a_formula_that_is_not_compiled_is_known():
    assert {name for name, function in FUNCTIONS.items() if not function.formula.is_known} == NOT_COMPILED


def test_every_float16_is_read_and_written():
    with np.errstate(all="ignore"):
        halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
        numbers = halves.astype(np.float32)
        np.testing.assert_array_equal(to_float32(halves), numbers)
        finite = np.sort(numbers[np.isfinite(numbers)])
        between = (finite[1:] + finite[:-1]) / 2
        x = np.concatenate([numbers, between, np.nextafter(between, np.inf), [65519, 65520, 1e38]]).astype(np.float32)
        np.testing.assert_array_equal(to_float16(x), x.astype(np.float16))


def test_numbers_masks_and_a_gradient_that_is_the_same_everywhere_are_not_arrays():
    x = np.linspace(-3, 3, 4096, dtype=np.float32)
    compiled = Elementwise(lambda g, x, slope: g * (x * slope), "test of numbers")
    one = np.broadcast_to(np.float32(2), x.shape)
    np.testing.assert_allclose(compiled(one, x, 0.5), x)
    assert list(compiled.loops) == [("number", "float", "number")]


@pytest.mark.parametrize(
    "x",
    [np.ones(10, np.float32), np.ones(5000), np.ones((100, 100), np.float32).T[::2], np.ones(5000, np.int64)],
    ids=["few", "float64", "strided", "integers"],
)
def test_other_arrays_are_left_to_numpy(x):
    compiled = Elementwise(lambda x, y: x * y + y, "test of others")
    np.testing.assert_array_equal(compiled(x, 2), x * 2 + 2)
    assert not compiled.loops


def test_a_changed_formula_is_recompiled():
    names = {
        _loop(Elementwise(f, "same").formula, "same", ("float",), False).function.__qualname__
        for f in (lambda x: x * 2 + 1, lambda x: x * 3 + 1, lambda x: x + 1 * 2)
    }
    assert len(names) == 3


def test_gradients_of_many_elements_and_of_higher_order():
    x = tt.tensor(np.linspace(-2, 2, 5001, dtype=np.float32), requires_grad=True)
    (first,) = tt.grad(tt.sum(tt.softplus(x)), [x], create_graph=True)
    (second,) = tt.grad(tt.sum(first), [x])
    s = 1 / (1 + np.exp(-x.detach().numpy().astype(float)))
    np.testing.assert_allclose(first.detach().numpy(), s, rtol=1e-6)
    np.testing.assert_allclose(second.numpy(), s * (1 - s), rtol=1e-5)
