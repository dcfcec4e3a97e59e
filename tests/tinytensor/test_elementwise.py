"""Elementwise ops, in addition to the table of cases: dtypes, Python's operators and functions, and NumPy's functions."""

import copy
import itertools
import math

import numpy as np
import pytest

import tinytensor as tt
from tinytensor import kernels
from tinytensor.nn import Parameter

INTEGERS = ["bool", "uint8", "int8", "int16", "int32", "int64"]
FLOATING = (
    "arcsinh degrees radians "
    "sqrt rsqrt reciprocal exp expm1 log log1p log2 log10 exp2 sin cos tan arctan sinh cosh tanh sigmoid erf relu silu "
    "softplus logsigmoid elu leaky_relu softmax log_softmax"
)


@pytest.mark.parametrize("name", FLOATING.split())
def test_functions_of_integers_compute_in_float32(name):
    f = getattr(tt, name)
    for dtype in INTEGERS:
        x = np.array([1, 0, 3, 1]).astype(dtype)
        out = f(tt.tensor(x))
        assert name == "relu" or out.dtype == "float32", dtype
        np.testing.assert_allclose(out.numpy(), f(tt.tensor(x.astype("float32"))).numpy(), rtol=1e-6, err_msg=dtype)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_to_the_power_of_a_float_are_floats(dtype):
    x = tt.tensor(np.array([0, 1, 16]).astype(dtype))
    want = np.array([0.0, 1.0, 256.0 if dtype != "bool" else 1.0])
    for out in (x**2.0, tt.power(x, 2.0)):
        assert out.dtype == "float32"
        np.testing.assert_array_equal(out.numpy(), want)
    assert (x**2).dtype == ("int64" if dtype == "bool" else dtype)


def test_booleans_count_as_the_integers_0_and_1():
    x = tt.tensor([True, False])
    for out, want in [
        (-x, [-1, 0]),
        (x**2, [1, 0]),
        (tt.square(x), [1, 0]),
        (x // tt.tensor([True, True]), [1, 0]),
        (x % 2, [1, 0]),
        (x.sign(), [1, 0]),
    ]:
        assert out.dtype == "int64"
        np.testing.assert_array_equal(out.numpy(), want)


POWERS = [-math.inf, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, math.inf]


def test_mixed_second_derivatives_of_a_power():
    """d/dy of y * x**(y-1), and d/dx of x**y * log(x), are both x**(y-1) * (1 + y*log(x)), at y = 0 as well."""
    for base, exponent in itertools.product([0.5, 1.0, 2.0], [-1.0, 0.0, 0.5, 1.0, 2.0]):
        x, y = [tt.tensor(np.array(v), requires_grad=True) for v in (base, exponent)]
        by_x, by_y = tt.grad(x**y, [x, y], create_graph=True)
        want = base ** (exponent - 1) * (1 + exponent * math.log(base))
        np.testing.assert_allclose([tt.grad(by_x, y).item(), tt.grad(by_y, x).item()], want, rtol=1e-12)


@pytest.mark.parametrize("number", [False, True])
def test_a_power_has_the_slope_by_its_base_that_the_formula_has(number):
    for base, exponent in itertools.product(POWERS, POWERS):
        x = tt.tensor(np.array([base]), requires_grad=True)
        y = exponent if number else tt.tensor(np.array([exponent]))
        with np.errstate(all="ignore"):
            want = exponent * np.power(base, exponent - 1) if exponent else 0.0
        np.testing.assert_allclose(tt.grad(tt.power(x, y), x).numpy(), [want], err_msg=f"{base} ** {exponent}")


def test_slopes_of_quotients_far_from_1():
    for f, x, want in [
        (lambda y: tt.divide(tt.tensor([1e-24]), y), 1e-24, -1e24),
        (lambda y: tt.divide(tt.tensor([1e20]), y), 1e25, -1e-30),
        (tt.reciprocal, 1e18, -1e-36),
    ]:
        y = tt.tensor([x], requires_grad=True)
        np.testing.assert_allclose(tt.grad(f(y), y).numpy(), [want], rtol=1e-5)


@pytest.mark.parametrize("f", [tt.reciprocal, lambda x: 1 / x, tt.rsqrt])
def test_second_derivatives_at_0_and_infinity(f):
    x = tt.tensor(np.array([0.0, math.inf]), requires_grad=True)
    (first,) = tt.grad(f(x).sum(), [x], create_graph=True)
    np.testing.assert_array_equal(tt.grad(first.sum(), x).numpy(), [math.inf, 0.0])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "bool"])
@pytest.mark.parametrize("shape", [(3,), (100, 100), ()])
def test_where_with_0_is_numpys_where(dtype, shape):
    rng = np.random.default_rng(2)
    values = rng.standard_normal(shape) * 9
    values = np.where(rng.random(shape) < 0.1, rng.choice([math.inf, -math.inf, math.nan], shape), values)
    values = np.asarray(values if dtype.startswith("f") else values > 0).astype(dtype)
    condition = np.asarray(rng.random(shape) < 0.5)
    x, c = tt.tensor(values).data, tt.tensor(condition).data
    for args, want in [((x, 0), (values, 0)), ((0.0, x), (0.0, values)), ((x, x), (values, values))]:
        got, want = tt.Tensor._wrap(kernels.where(c, *args)).numpy(), np.where(condition, *want)
        np.testing.assert_array_equal(got, want)
        assert got.dtype == want.dtype


def test_where_of_pythons_numbers():
    condition = tt.tensor([True, False])
    for x, y, dtype in [
        (1.0, 2.0, "float32"),
        (1.0, 0, "float32"),
        (2, 0.5, "float32"),
        (1, 0, "int64"),
        (True, False, "bool"),
    ]:
        out = tt.where(condition, x, y)
        assert (out.dtype, out.tolist()) == (dtype, [x, y])


def test_where_of_a_condition_alone_says_what_to_use():
    with pytest.raises(TypeError, match=r"x\[condition\].*nonzero"):
        tt.where(tt.tensor([True, False]))


# ------------------------------------------------------------------------------------------------------ Python's own


def test_a_tensor_of_one_element_is_formatted_as_its_number():
    loss = tt.tensor(1.23456)
    assert f"{loss:.2f} {tt.tensor([[7]]):03d}" == "1.23 007"
    assert f"{loss}" == repr(loss) == str(loss)
    with pytest.raises(TypeError, match=r"one element.*\(2,\)"):
        f"{tt.tensor([1.0, 2.0]):.2f}"


def test_rounding_by_pythons_functions():
    x = tt.tensor([-1.5, 2.25])
    for out, want in [
        (round(x), [-2, 2]),
        (round(x, 1), [-1.5, 2.2]),
        (math.floor(x), [-2, 2]),
        (math.ceil(x), [-1, 3]),
        (math.trunc(x), [-1, 2]),
        (+x, [-1.5, 2.25]),
    ]:
        np.testing.assert_allclose(out.numpy(), want, rtol=1e-6)


def test_plus_returns_a_new_tensor():
    x = tt.tensor([1.0, 2.0])
    y = +x
    y[0] = 5.0
    assert x.tolist() == [1.0, 2.0]


def test_bits_of_floats_are_refused():
    x, mask = tt.tensor([1.0]), tt.tensor([True])
    for f in (lambda: x & mask, lambda: mask | x, lambda: x ^ 1, lambda: ~x, lambda: mask & 1.0):
        with pytest.raises(TypeError, match="compare floating-point numbers first"):
            f()


@pytest.mark.parametrize("f", [np.sum, np.mean, np.max, np.round, np.concatenate, np.stack, np.where, np.argmax, np.sort])
def test_numpys_functions_say_what_to_use(f):
    x = tt.tensor([1.0, 2.0])
    with pytest.raises(TypeError, match=rf"NumPy's {f.__name__} got a tensor.*tinytensor's functions.*\.numpy\(\)"):
        f([x] if f in (np.concatenate, np.stack) else x)
    assert (np.shape(x), np.ndim(x), np.size(x)) == ((2,), 1, 2)


def test_setting_elements_to_what_requires_a_gradient_is_refused():
    z, w = tt.zeros(3), tt.tensor([1.0, 2.0], requires_grad=True)
    for value in (w[1], w[:1] * 2, [w[0], w[1]], [[w]]):
        with pytest.raises(RuntimeError, match=r"lose the gradient.*tt\.where.*tt\.concatenate"):
            z[:2] = value
    z[0] = w[1].detach()
    with tt.no_grad():
        z[1] = w[0]
    assert z.tolist() == [2.0, 1.0, 0.0]


def test_copies():
    leaf, plain = tt.tensor([1.0], requires_grad=True), tt.tensor([1])
    parameter, computed = Parameter([1.0]), leaf * 2
    for x in (leaf, plain, parameter):
        for twin in (copy.copy(x), copy.deepcopy(x)):
            assert (type(twin), twin.dtype, twin.requires_grad, twin.tolist()) == (
                type(x),
                x.dtype,
                x.requires_grad,
                x.tolist(),
            )
            assert twin.node is None or twin.node is not x.node
            assert not np.shares_memory(twin.numpy(), x.numpy())
    assert tt.grad(copy.copy(computed).sum(), leaf).tolist() == [2.0]
    with pytest.raises(RuntimeError, match=r"'multiply'.*copy\(\).*detach\(\)"):
        copy.deepcopy(computed)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float64"])
def test_copy_keeps_the_dtype(dtype):
    x = tt.tensor(np.array([0, 1], dtype))
    assert x.copy().dtype == dtype
    assert not np.shares_memory(x.copy().numpy(), x.numpy())


# --------------------------------------------------------------------------------------------------- without an input


@pytest.mark.parametrize("args", [(0, 1, 5), (2.0, -1.0, 4), (0, 1, 1), (0, 1, 0), (3, 3, 2)])
@pytest.mark.parametrize("endpoint", [True, False])
def test_linspace(args, endpoint):
    out = tt.linspace(*args, endpoint=endpoint, requires_grad=True)
    assert out.dtype == "float32"
    assert out.requires_grad
    np.testing.assert_allclose(out.numpy(), np.linspace(*args, endpoint=endpoint), rtol=1e-7)


def test_where_keeps_the_sign_of_zero():
    x = tt.tensor(np.ones(5000, "float32"))
    assert np.signbit(tt.where(x > 2, x, -0.0).numpy()).all()
    assert not np.signbit(tt.where(x > 2, x, 0.0).numpy()).any()


@pytest.mark.needs("numpy")
@pytest.mark.parametrize("few", [False, True], ids=["many numbers", "few numbers"])
@pytest.mark.parametrize(
    "name", ["sigmoid", "rsqrt", "degrees", "radians", "leaky_relu", "logsigmoid", "softplus", "softmax", "log_softmax"]
)
def test_float16_is_rounded_once(name, few):
    """Of all numbers of float16, hardly one is another than the nearest to the result: such as lie between two in float32."""
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    x = x[np.isfinite(x)].reshape(-1, 64)
    x = x[::50] if few else x
    function = getattr(tt, name)
    found = function(tt.tensor(x))
    with np.errstate(over="ignore"):
        wanted = function(tt.tensor(x.astype("float64"))).numpy().astype(np.float16)
    assert found.dtype == "float16"
    assert (~((found.numpy() == wanted) | np.isnan(wanted))).mean() < 5e-4
