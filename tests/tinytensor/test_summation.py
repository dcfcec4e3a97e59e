"""Sums are accurate: long ones in float32, and all in half precision."""

import itertools

import numpy as np
import pytest

import tinytensor as tt
from tinytensor.device import summation
from tinytensor.device.backend import from_numpy, host, to_numpy, xp

LONG = 2**24 + 2**20  # a running float32 sum of ones stops at 2**24


@pytest.mark.parametrize(("shape", "axis"), [((LONG, 2), 0), ((2, LONG), 1), ((LONG,), None), ((2**12, 2, 4352), (0, 2))])
def test_a_long_float32_sum_of_ones(shape, axis):
    x = tt.ones(shape)
    np.testing.assert_array_equal(x.sum(axis).numpy(), LONG)
    np.testing.assert_array_equal(x.T.sum(axis=None).numpy(), np.prod(shape))
    if axis == 0:
        np.testing.assert_array_equal(x[::-1].sum(0).numpy(), LONG)
        assert x[:, 0].cumsum()[-1].item() == LONG


def test_the_gradient_of_a_bias_that_many_rows_share():
    bias = tt.zeros(2, requires_grad=True)
    (tt.broadcast_to(bias, (LONG, 2)) + 0.0).sum().backward()
    np.testing.assert_array_equal(bias.grad.numpy(), LONG)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "bool"])
@pytest.mark.parametrize("shape", [(), (9,), (9, 3), (3, 9), (4, 17, 3), (0, 3), (3, 0, 2), (2, 3, 4, 5)])
def test_blocks_of_any_layout(monkeypatch, shape, dtype):
    monkeypatch.setattr(summation, "_BLOCK", 4)
    values = (9 * np.random.default_rng(0).standard_normal(shape)).astype(dtype)
    for x in [values, values.T, np.repeat(values[..., None], 2, -1)[..., 0], np.flip(values)]:
        for count, keepdims in itertools.product(range(x.ndim + 1), (False, True)):
            for axes in itertools.combinations(range(x.ndim), count):
                out = to_numpy(summation.sum_over(from_numpy(x), axes, keepdims))
                want = x.astype("float64").sum(axis=axes, keepdims=keepdims)
                assert out.shape == want.shape
                np.testing.assert_allclose(out, want, rtol=1e-4, atol=1e-4)


def test_the_mean_of_equal_numbers_is_that_number():
    for count in range(1, 200):
        assert tt.ones(count, "float64").mean().item() == 1.0
        assert tt.ones(count).mean().item() == 1.0


HALF = {
    "mean": (lambda x: x.mean(), np.ones(70_000), 1.0),
    "norm": (lambda x: x.norm(), [300.0, 400.0], 500.0),
    "std": (lambda x: x.std(), [3000.0, -3000.0], 3000.0),
    "std of many": (lambda x: x.std(), np.tile([300.0, -300.0], 40_000), 300.0),
    "norm of order 3": (lambda x: x.norm(3), [100.0, 0.0], 100.0),
    "prod": (lambda x: x.prod(), [300.0, 400.0, 0.5, 0.5, 0.125], 3750.0),
    "cumprod": (lambda x: x.cumprod()[-1], [200.0, 300.0, 0.5, 0.5, 0.125], 1875.0),
    "cumsum": (lambda x: x.cumsum()[-1], np.ones(5000), 5000.0),
    "logsumexp": (lambda x: x.logsumexp(), np.zeros(70_000), np.log(70_000)),
    "rows of an id": (lambda x: tt.sum_rows(x, tt.tensor(np.zeros(5000, "int64")), 1)[0, 0], np.ones((5000, 1)), 5000.0),
}


@pytest.mark.parametrize(("f", "x", "value"), HALF.values(), ids=HALF)
def test_half_precision_is_added_up_in_float32(f, x, value):
    x = tt.tensor(np.array(x, "float16"), requires_grad=True)
    out = f(x)
    assert out.dtype == "float16"
    np.testing.assert_allclose(out.item(), value, rtol=1e-3)
    out.backward()
    assert np.isfinite(x.grad.numpy()).all()


OF_MANY = {
    "mean": (lambda x: x.mean(), 1 / 70_000),
    "var": (lambda x: x.var(), 2 / 70_000),
    "std": (lambda x: x.std(), 1 / 70_000),
    "max of equals": (lambda x: x.abs().max(), 1 / 70_000),
}


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize(("f", "slope"), OF_MANY.values(), ids=OF_MANY)
def test_a_count_may_be_too_large_for_half_precision(f, slope, create_graph):
    x = tt.tensor(np.tile([1.0, -1.0], 35_000).astype("float16"), requires_grad=True)
    g = tt.tensor(1024.0, dtype="float16")  # large, so that no gradient is too small for float16
    found = np.abs(tt.grad(f(x), x, g, create_graph=create_graph).numpy().astype("float32"))
    np.testing.assert_allclose(found, np.full(70_000, slope * 1024), rtol=2e-3)


def slope(f):
    """Return the gradient of an op's sum by two numbers, the first repeated 5000 times."""

    def by_two_numbers():
        x = tt.tensor(np.ones(2, "float16"), requires_grad=True)
        return tt.grad(f(x).astype("float32").sum(), x)

    return by_two_numbers


MANY_TIMES = np.zeros(5000, "int64")
ADDED_UP = {
    "index": slope(lambda x: x[MANY_TIMES]),
    "take": slope(lambda x: x.take(MANY_TIMES)),
    "repeat": slope(lambda x: x.repeat(5000)),
    "pad": slope(lambda x: x.pad((4999, 0), mode="edge")),
    "index_add": lambda: tt.zeros(2, "float16").index_add(MANY_TIMES, tt.ones(5000, "float16")),
    "embedding": slope(lambda x: tt.embedding(tt.tensor(MANY_TIMES), x.reshape(2, 1))),
    "sum_rows": lambda: tt.sum_rows(tt.ones((5000, 1), "float16"), tt.tensor(MANY_TIMES), 2),
    "einsum": lambda: tt.einsum("ij->j", tt.ones((5000, 1), "float16")),
}


@pytest.mark.parametrize("f", ADDED_UP.values(), ids=ADDED_UP)
def test_what_meets_in_one_place_is_added_up_in_float32(f):
    out = f()
    assert out.dtype == "float16"
    assert out.numpy().ravel()[0] == 5000


def test_rows_of_frequent_and_of_rare_ids_add_up():
    rng = np.random.default_rng(0)
    ids = rng.permutation(np.repeat([0, 1, 3], [40, 17, 3]))
    rows = rng.standard_normal((60, 2))
    expected = [rows[ids == i].sum(0) for i in range(4)]
    np.testing.assert_allclose(tt.sum_rows(tt.tensor(rows), tt.tensor(ids), 4).numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "bool"])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_small_integers_do_not_overflow(dtype, axis):
    values = np.array([[100, 120, 0], [1, 0, 100]]).astype(dtype)
    x = tt.tensor(values)
    for name in ("mean", "var", "std"):
        out = getattr(tt, name)(x, axis)
        assert out.dtype == "float32"
        np.testing.assert_allclose(out.numpy(), getattr(np, name)(values, axis), rtol=1e-6)
    exact = np.log(np.exp(values.astype(float)).sum(axis))
    np.testing.assert_allclose(tt.logsumexp(x, axis).numpy(), exact, rtol=1e-6)
    for order in (0, 0.5, 1, 2, 3, np.inf, -np.inf):
        flat = values.astype(float).ravel() if axis is None else values.astype(float)
        out = tt.norm(x, order, axis)
        assert out.dtype == "float32"
        np.testing.assert_allclose(out.numpy(), np.linalg.norm(flat, order, axis), rtol=1e-6)


@pytest.mark.parametrize("name", "sum mean var std prod max min any all".split())
@pytest.mark.parametrize("keepdims", [False, True])
def test_over_no_axis_each_element_is_reduced_alone(name, keepdims):
    values = np.arange(-3.0, 1021.0).reshape(2, 512)
    out = getattr(tt, name)(tt.tensor(values), axis=(), keepdims=keepdims)
    np.testing.assert_array_equal(out.numpy(), getattr(np, name)(values, axis=(), keepdims=keepdims))


def test_norms_over_no_axis_are_absolute_values():
    x = tt.tensor([[1.0, -2.0], [0.0, 3.0]], requires_grad=True)
    for order in (1, 2, 3, np.inf, -np.inf):
        (gradient,) = tt.grad(tt.norm(x, order, ()).sum(), [x])
        np.testing.assert_array_equal(gradient.numpy(), np.sign(x.numpy()))
        np.testing.assert_array_equal(tt.norm(x, order, ()).numpy(), abs(x.numpy()))
    np.testing.assert_array_equal(tt.logsumexp(x, ()).numpy(), x.numpy())


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8", "uint16", "uint32", "bool"])
@pytest.mark.parametrize("name", ["sum", "prod", "cumsum", "cumprod"])
def test_integers_add_up_in_64_bits_as_in_numpy(name, dtype):
    values = np.full(5, 1 if dtype == "bool" else np.iinfo(dtype).max).astype(dtype)
    out, expected = getattr(tt, name)(tt.tensor(values)), getattr(np, name)(values)
    assert out.dtype == expected.dtype and expected.dtype.itemsize == 8
    np.testing.assert_array_equal(out.numpy(), expected)


@pytest.mark.parametrize("ddof", [2, 3])
def test_the_deviation_of_too_few_is_as_in_numpy(ddof):
    values = np.array([[1.0, 2.0], [3.0, 3.0]])
    for name in ("var", "std"):
        out = getattr(tt, name)(tt.tensor(values), 1, ddof=ddof).numpy()
        np.testing.assert_array_equal(out, [np.inf, np.nan])


on_cpu = pytest.mark.skipif(xp is not host, reason="a GPU adds up in many threads, which a CPU imitates slowly")
MANY = 1_000_000
TENTH = 0.1  # a running float32 sum of MANY of them is 100958


def slope_of(f, value=TENTH):
    """The gradient of sum(f(x)) / 10 by x, two numbers."""
    x = tt.tensor(np.full(2, value, "float32"), requires_grad=True)
    return tt.grad((f(x) * TENTH).sum(), x)


def normalized(norm):
    """The gradients of the weight of a norm of MANY rows [-1, 1], and of the bias if it has one."""
    rows = tt.tensor(np.tile(np.array([-1.0, 1.0], "float32"), (MANY, 1)))
    parameters = [tt.ones(2, requires_grad=True), tt.zeros(2, requires_grad=True)][: 1 if norm is tt.rms_norm else 2]
    return tt.concatenate(tt.grad((norm(rows, *parameters) * TENTH).sum(), parameters)).abs()


def norm_of_gradients():
    x = tt.zeros(MANY, requires_grad=True)
    x.grad = tenths(MANY)
    return tt.optim.clip_grad_norm([x], 1.0)


def zeros_of(n):
    return np.zeros(n, "int64")


def tenths(*shape):
    return tt.full(shape, TENTH)


ACCURATE = {
    "einsum of vectors": lambda: tt.einsum("i,i", tenths(MANY), tt.ones(MANY)),
    "einsum of three": lambda: tt.einsum("i,i,i->", tenths(MANY), tt.ones(MANY), tt.ones(MANY)),
    "einsum of rows": lambda: tt.einsum("ij->j", tenths(MANY, 2)),
    "gradient of einsum": lambda: slope_of(lambda x: tt.einsum("ij,j->ij", tt.ones((MANY, 2)), x)),
    "dot": lambda: tt.dot(tenths(MANY), tt.ones(MANY)),
    "matrix and vector": lambda: tt.matmul(tenths(2, MANY), tt.ones(MANY)),
    "vector and matrix": lambda: tt.matmul(tt.ones(MANY), tenths(MANY, 2)),
    "small matrices": lambda: tt.matmul(tenths(2, MANY), tt.ones((MANY, 2))),
    "small matrices of columns": lambda: tt.matmul(tenths(MANY, 2).T, tt.ones((MANY, 2))),
    "matrices": lambda: tt.matmul(tenths(20, MANY // 10), tt.ones((MANY // 10, 20))) * 10,
    "small matrices of fewer terms": lambda: tt.matmul(tenths(MANY // 20, 2).T, tt.ones((MANY // 20, 2))) * 20,
    "linear": lambda: tt.linear(tenths(1, MANY), tt.ones((2, MANY))),
    "gradient of linear": lambda: slope_of(lambda x: tt.linear(tt.ones((MANY, 2)), x.reshape(1, 2))),
    "norm": lambda: tt.norm(tenths(MANY)) * 1000,
    "norm of columns": lambda: tt.norm(tenths(MANY, 2), axis=0) * 1000,
    "norm of gradients": lambda: norm_of_gradients() * 1000,
    "gradient of layer_norm": lambda: normalized(tt.layer_norm),
    "gradient of rms_norm": lambda: normalized(tt.rms_norm),
    "index": lambda: slope_of(lambda x: x[zeros_of(MANY)])[:1],
    "repeat": lambda: slope_of(lambda x: x.repeat(MANY)),
    "pad": lambda: slope_of(lambda x: x.pad((MANY - 1, 0), mode="edge"))[:1],
    "index_add": lambda: tt.zeros(1).index_add(zeros_of(MANY), tenths(MANY)),
    "bincount": lambda: tt.bincount(tt.tensor(zeros_of(MANY)), tenths(MANY)),
    "embedding": lambda: slope_of(lambda x: tt.embedding(zeros_of(MANY), x.reshape(2, 1)))[:1],
}


@on_cpu
def test_attention_to_many_keys_with_equal_values():
    key = tt.concatenate([tt.ones((1, 1, 1, 2)), tt.full((1, 1, MANY - 1, 2), 0.5)], 2)
    out = tt.scaled_dot_product_attention(tt.ones((1, 1, 2, 2)), key, tt.ones((1, 1, MANY, 2)))
    np.testing.assert_allclose(out.numpy(), 1.0, rtol=1e-4)


@on_cpu
@pytest.mark.parametrize("f", ACCURATE.values(), ids=ACCURATE)
def test_a_million_tenths(f):
    np.testing.assert_allclose(f().numpy(), 100_000, rtol=1e-5)


@on_cpu
@pytest.mark.parametrize("shape", [(MANY, 2), (1, MANY)])
def test_the_softmax_of_many_sums_to_one(shape):
    x = np.full(shape, -1.0, "float32")
    axis = 0 if shape[0] > 1 else 1
    x[0, 0] = 0.0  # so the terms are no powers of 2
    for function in (tt.softmax, lambda x, axis: tt.log_softmax(x, axis).exp()):
        np.testing.assert_allclose(function(tt.tensor(x), axis).numpy().sum(axis, "float64")[0], 1.0, rtol=1e-5)


@on_cpu
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("rows", "classes"), [(2 * MANY, 2), (1, MANY)])
def test_the_cross_entropy_of_many(rows, classes, smoothing):
    logits = np.full((rows, classes), -1.0, "float32")
    logits[:, 0] = 0.0
    x, weight = np.ones((rows, 1)), logits[:1].T
    target = tt.tensor(np.ones(rows, "int64"))
    other = 1.0 + np.log1p((classes - 1) * np.exp(-1.0))
    want = other - smoothing / classes
    for found in (
        tt.cross_entropy(tt.tensor(logits), target, label_smoothing=smoothing),
        tt.linear_cross_entropy(tt.tensor(x, "float32"), tt.tensor(weight, "float32"), target, label_smoothing=smoothing),
    ):
        np.testing.assert_allclose(found.item(), want, rtol=1e-5)


@on_cpu
@pytest.mark.parametrize("norm", [tt.layer_norm, tt.rms_norm, lambda x, eps: tt.group_norm(x.reshape(1, 2, -1), 1, eps=eps)])
def test_the_norm_of_a_long_row(norm):
    row = np.tile(np.float32([0.1, -0.1, 0.3, -0.3]), MANY // 4)
    x = tt.tensor(row[None], requires_grad=True)
    out = norm(x, eps=0.0)
    np.testing.assert_allclose(out.numpy().ravel(), row / 0.05**0.5, rtol=1e-5)
    slope = tt.grad((out * tt.tensor(np.sign(row).reshape(out.shape))).sum(), x).numpy()[0, :4]
    np.testing.assert_allclose(slope, np.array([0.6, -0.6, -0.2, 0.2]) / 0.05**0.5, rtol=1e-4)


def test_sums_of_products_in_blocks_are_those_of_einsum(monkeypatch):
    monkeypatch.setattr(summation, "_BLOCK", 4)
    rng = np.random.default_rng(0)
    for _ in range(300):
        terms = ["".join(rng.permutation(list("abc"))[: rng.integers(0, 4)]) for _ in range(rng.integers(1, 4))]
        arrays = [
            rng.standard_normal([1 if rng.random() < 0.1 else {"a": 2, "b": 5, "c": 9}[k] for k in term]) for term in terms
        ]
        letters = sorted(set("".join(terms)))
        output = "".join(rng.permutation(letters)[: rng.integers(0, len(letters) + 1)]) if letters else ""
        total = to_numpy(summation.sum_of_products(terms, output, *map(from_numpy, arrays)))
        np.testing.assert_allclose(total, np.einsum(f"{','.join(terms)}->{output}", *arrays), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("x", "y"), [([True, True], [1]), (np.array([100, 100], "int8"), [1])])
def test_einsum_promotes_before_it_computes(x, y):
    x, y = np.array(x), np.array(y, "int64")
    np.testing.assert_array_equal(tt.einsum("i,j->j", tt.tensor(x), tt.tensor(y)).numpy(), x.astype("int64").sum() * y)


@pytest.mark.parametrize("shape", [(3,), (2, 3)])
@pytest.mark.parametrize(("factor", "eps"), [(1e20, 1e-5), (1e-25, 0.0), (1e37, 0.0)])
@pytest.mark.parametrize("norm", [tt.layer_norm, tt.rms_norm])
def test_the_squares_of_a_normalized_row_may_overflow(norm, factor, eps, shape):
    values = np.broadcast_to([1.0, -5.0, 4.0], shape)
    x, scaled = [tt.tensor(values * k, "float32", requires_grad=True) for k in (1.0, factor)]
    found, want = norm(scaled, eps=eps), norm(x, eps=0.0)
    np.testing.assert_allclose(found.numpy(), want.numpy(), rtol=1e-5)
    g = tt.tensor(np.broadcast_to([1.0, 2.0, 4.0], shape), "float32")
    slopes = [tt.grad(out, t, g).numpy().astype("float64") for out, t in ((found, scaled), (want, x))]
    np.testing.assert_allclose(slopes[0] * factor, slopes[1], rtol=1e-4)


@on_cpu
@pytest.mark.parametrize("shape", [(3,), (2, 3)])
@pytest.mark.parametrize("norm", [tt.layer_norm, tt.rms_norm])
def test_a_negative_eps_lowers_the_variance_as_in_pytorch(norm, shape):
    values = np.broadcast_to([1.0, -5.0, 4.0], shape)  # of mean 0 and variance 14
    np.testing.assert_allclose(norm(tt.tensor(values), eps=-0.5).numpy(), values / 13.5**0.5, rtol=1e-6)
    assert np.isnan(norm(tt.tensor(values), eps=-15.0).numpy()).all()
