"""Infinite, undefined, huge and tiny numbers: kernels against the ops' definitions, and values computed manually."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from cases import CASES

import tinytensor as tt
from tinytensor import functional as F

inf, nan = math.inf, math.nan
EXTREMES = [inf, -inf, nan, 1e20, -1e20, 1e-30]
FUSED = [case for case in CASES if case.twin and all(x.size for x in case.inputs)]


def is_hiding(case):
    """Whether it is attention that hides keys from single queries. There a kernel may have NaN where a hidden key has it, as
    PyTorch's have: the weight 0 times NaN."""
    return "attention" in case.op and any(word in case.label for word in ("mask", "causal", "bias", "dropout"))


def with_extremes(case):
    """The case with one element of one input replaced by an extreme number, for each input and number."""
    for i, (place, value) in enumerate(itertools.product(range(len(case.inputs)), EXTREMES)):
        huge_score = "attention" in case.op and abs(value) == 1e20  # its gradient is a rounding error times 1e20
        all_rows = case.op == "linear_cross_entropy" and place == 1  # an infinite weight makes the loss NaN anyway
        if case.inputs[place].dtype.kind == "f" and not huge_score and not all_rows:
            inputs = [x.copy() for x in case.inputs]
            inputs[place].reshape(-1)[i % inputs[place].size] = value
            yield dataclasses.replace(case, inputs=tuple(inputs))


def results(case, f, dtype):
    """The output, and the gradients of its sum."""
    wanted = [i not in case.constant for i in range(len(case.inputs))]
    xs = [tt.tensor(x.astype(dtype) if x.dtype.kind == "f" else x, requires_grad=w) for x, w in zip(case.inputs, wanted)]
    out, leaves = f(*xs), [x for x, w in zip(xs, wanted) if w]
    return [x.numpy() for x in (out, *tt.grad(out, leaves, tt.ones_like(out)))]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", sorted({case.op for case in FUSED}))
def test_a_kernel_is_its_definition_beyond_all_bounds(op, dtype):
    """Both have the same output. A gradient is the same where the definition has one; where its chain of rules gives NaN, as
    from infinity minus infinity, a kernel that takes all at once may know better."""
    for case in itertools.chain(*[with_extremes(case) for case in FUSED if case.op == op and not is_hiding(case)]):
        try:
            check_beyond_all_bounds(case, dtype)
        except AssertionError as error:  # only now, as writing arrays takes longer than comparing them
            raise AssertionError(f"{case} {case.inputs}") from error


def check_beyond_all_bounds(case, dtype):
    wide = "float64" if "norm" in case.op else dtype  # as the definition's squares of 1e20 are infinite
    (out, *gradients), (want, *wanted) = results(case, case.f, dtype), results(case, case.twin, wide)
    np.testing.assert_array_equal(np.isnan(out), np.isnan(want))
    for fast, slow in [(out, want), *zip(gradients, wanted, strict=True)]:
        size = np.abs(slow, where=np.isfinite(slow), out=np.zeros_like(slow)).max()
        fast = np.where(np.isnan(slow), slow, fast)
        np.testing.assert_allclose(fast, slow, 2e-5, 2e-6 * size + 1e-6)


# ------------------------------------------------------------------------------------------------- large and alike numbers

ALIKE = {"float32": 1e6, "float64": 1e14}


@pytest.mark.parametrize("dtype", ALIKE)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_what_all_logits_have_in_common_changes_no_loss(dtype, smoothing):
    logits, targets = np.array([[0.0, 1.0, 2.0, 3.0], [5.0, 0.0, 1.0, -100.0]]), tt.tensor([1, 0])
    plain, moved = [tt.tensor(logits + shift, dtype=dtype, requires_grad=True) for shift in (0.0, ALIKE[dtype])]
    weight = tt.tensor(np.eye(4), dtype=dtype, requires_grad=True)
    for loss in (
        lambda x: F.cross_entropy(x, targets, label_smoothing=smoothing, reduction="none"),
        lambda x: F.cross_entropy(x, targets, label_smoothing=smoothing, weight=tt.ones(4)),
        lambda x: F.linear_cross_entropy(x, weight, targets, label_smoothing=smoothing),
        lambda x: F.cross_entropy(x, tt.one_hot(targets, 4), label_smoothing=smoothing),
        lambda x: x.logsumexp(1) - x[:, 0],
        lambda x: tt.logaddexp(x[:, 0], x[:, 1]) - x[:, 0],
    ):
        out, want = loss(moved), loss(plain)
        np.testing.assert_allclose(out.numpy(), want.numpy(), atol=ALIKE[dtype] * np.finfo(dtype).eps, rtol=1e-6)
        np.testing.assert_allclose(tt.grad(out.sum(), moved).numpy(), tt.grad(want.sum(), plain).numpy(), atol=1e-6)
    exact = F.cross_entropy(moved, targets, reduction="none").numpy()
    np.testing.assert_allclose(exact, F.cross_entropy(plain, targets, reduction="none").numpy(), rtol=1e-6)


def test_a_sure_prediction_in_float64_costs_what_its_probability_leaves():
    loss = F.cross_entropy(tt.tensor([[0.0, 30.0]], dtype="float64"), tt.tensor([1]))
    np.testing.assert_allclose(loss.item(), math.log1p(math.exp(-30)), rtol=2e-3)


@pytest.mark.parametrize("norm", [F.layer_norm, F.layer_norm.reference])
def test_layer_norm_of_equal_numbers_is_its_bias(norm):
    for value, width in itertools.product([1000.1, -0.3, 1e6 + 0.5], [1, 3, 5, 768]):
        x, bias = tt.full((2, width), value), tt.arange(width).astype("float32")
        np.testing.assert_array_equal(norm(x, tt.ones(width), bias, 1e-12).numpy(), np.tile(np.arange(width), (2, 1)))


@pytest.mark.parametrize("norm", [F.layer_norm, F.layer_norm.reference])
def test_layer_norm_of_large_and_alike_numbers(norm):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((8, 768)) + 1e6).astype("float32")
    weight, bias, g = rng.standard_normal((768,)), rng.standard_normal((768,)), rng.standard_normal(x.shape)
    found = {}
    for dtype in ("float32", "float64"):
        leaves = [tt.tensor(a, dtype=dtype, requires_grad=True) for a in (x, weight, bias)]
        out = norm(*leaves)
        found[dtype] = [out, *tt.grad(out, leaves, tt.tensor(g, dtype=dtype))]
    for got, want in zip(*found.values()):
        np.testing.assert_allclose(got.numpy(), want.numpy(), atol=3e-5)


@pytest.mark.needs("numpy")  # a GPU's kernel subtracts the first number, which takes a digit from the others
@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("norm", [F.layer_norm, F.layer_norm.reference])
def test_layer_norm_of_one_number_far_from_all_others(norm, place):
    x = np.random.default_rng(0).standard_normal((4, 1000)).astype("float32")
    x[:, place] = 1e6
    others = np.delete(np.arange(1000), place)
    out = norm(tt.tensor(x)).numpy()[:, others]
    centred = x.astype("float64") - x.mean(-1, keepdims=True, dtype="float64")
    np.testing.assert_allclose(out, (centred / centred.std(-1, keepdims=True))[:, others], rtol=1e-5)


@pytest.mark.parametrize("axis", [None, 0, 1, (0, 1)])
def test_var_and_std_of_large_and_alike_numbers(axis):
    x = (np.random.default_rng(0).standard_normal((30, 40)) + 1e6).astype("float32")
    for name in ("var", "std"):
        ours = getattr(tt.tensor(x), name)(axis).numpy()
        np.testing.assert_allclose(ours, getattr(x.astype("float64"), name)(axis), rtol=1e-6)


def test_the_spread_of_equal_numbers_is_0_and_so_is_its_gradient():
    for f, value in itertools.product([tt.std, tt.var], [0.1, 1e6 + 0.3]):
        x = tt.full(10, value, requires_grad=True)
        out = f(x)
        assert out.item() == 0.0
        assert not tt.grad(out, x).numpy().any()


@pytest.mark.parametrize(("dtype", "exponent"), [("float32", 30), ("float64", 200)])
def test_the_std_of_numbers_whose_squares_overflow_or_vanish(dtype, exponent):
    for scale in (10.0**exponent, 10.0**-exponent):
        x = tt.tensor(np.array([1.0, 2.0, 4.0]) * scale, dtype=dtype, requires_grad=True)
        np.testing.assert_allclose(x.std().item(), np.std([1.0, 2.0, 4.0]) * scale, rtol=1e-6)
        np.testing.assert_allclose(tt.grad(x.std(), x).numpy(), [-0.3563483, -0.0890871, 0.4454354], rtol=1e-6)


@pytest.mark.parametrize(
    "row", [[1e30, 0.0, 1e30, 1e30], [0.0, 1e30, 1e30, 1e30], [1e30, 1e30, 0.0, 1.0], [1e-30, 1e-30, 1e30, 1e30]]
)
def test_products_are_taken_in_order(row):
    x = np.array(row, "float32")
    with np.errstate(all="ignore"):
        products = np.multiply.accumulate(x)
    np.testing.assert_array_equal(tt.cumprod(tt.tensor(x)).numpy(), products)
    np.testing.assert_array_equal(tt.prod(tt.tensor(x)).numpy(), products[-1])


# ------------------------------------------------------------------------------------------ ends of the domain of losses


@pytest.mark.parametrize(
    ("p", "target", "slope"),
    [
        (1.0, 0.0, 1e12),
        (1.0, 0.5, 5e11),
        (1.0, 1.0, 0.0),
        (0.0, 1.0, -1e12),
        (0.0, 0.5, -5e11),
        (0.0, 0.0, 0.0),
        (0.5, 0.0, 2.0),
    ],
)
def test_the_slope_of_binary_cross_entropy(p, target, slope):
    x = tt.tensor([p], requires_grad=True)
    np.testing.assert_allclose(tt.grad(F.binary_cross_entropy(x, tt.tensor([target])), x).numpy(), [slope], rtol=1e-6)


@pytest.mark.parametrize("target", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("p", [0.0, 0.25, 1.0])
def test_the_second_order_of_binary_cross_entropy(p, target):
    """At both ends as in PyTorch: the slope by the target is infinite, and 1e-12 keeps other divisors from 0."""
    x, t = [tt.tensor([value], requires_grad=True) for value in (p, target)]
    of_x, of_t = tt.grad(F.binary_cross_entropy(x, t), [x, t], create_graph=True)
    assert of_t.item() == (pytest.approx(math.log(3.0)) if p == 0.25 else inf if p == 0.0 else -inf)
    by_x, by_t = tt.grad(of_x.sum(), [x, t])
    variance = 0.1875 if p == 0.25 else 1e-12
    assert by_x.item() == pytest.approx((p * p - 2 * p * target + target) / variance**2)
    assert by_t.item() == pytest.approx(-1.0 / variance)


def test_a_weight_of_0_makes_the_slope_by_a_target_0():
    t = tt.tensor([0.0, 1.0], requires_grad=True)
    loss = F.binary_cross_entropy(tt.tensor([0.0, 1.0]), t, weight=tt.zeros(2))
    np.testing.assert_array_equal(tt.grad(loss, t).numpy(), 0.0)


@pytest.mark.parametrize(
    ("f", "slopes", "bends"),
    [
        (lambda x: F.huber_loss(x, tt.zeros(5), "sum", delta=2.0), [-2, -1, 0, 1, 2], [0, 1, 1, 1, 0]),
        (lambda x: F.smooth_l1_loss(x, tt.zeros(5), "sum", beta=2.0), [-1, -0.5, 0, 0.5, 1], [0, 0.5, 0.5, 0.5, 0]),
        (
            lambda x: F.elu(x, 0.5).sum(),
            [math.exp(-2) / 2, math.exp(-1) / 2, 0.5, 1, 1],
            [math.exp(-2) / 2, math.exp(-1) / 2, 0, 0, 0],
        ),
    ],
    ids=["huber", "smooth l1", "elu"],
)
def test_at_a_joint_the_second_derivative_is_0(f, slopes, bends):
    x = tt.tensor([-2.0, -1.0, 0.0, 1.0, 2.0], requires_grad=True)
    first = tt.grad(f(x), x, create_graph=True)
    np.testing.assert_allclose(first.numpy(), slopes, rtol=1e-6)
    np.testing.assert_allclose(tt.grad(first.sum(), x).numpy(), bends, rtol=1e-6)


def test_the_slope_of_elu_far_below_0_keeps_its_digits():
    x = tt.tensor([-10.0, -50.0], requires_grad=True)
    np.testing.assert_allclose(tt.grad(F.elu(x).sum(), x).numpy(), np.exp([-10.0, -50.0]), rtol=1e-6)


LOSSES_OF_INFINITY = {
    "binary, sure": (lambda x: F.binary_cross_entropy_with_logits(x, tt.tensor([1.0, 0.0])), [inf, -inf], 0.0, [0.0, 0.0]),
    "binary, weight 0": (
        lambda x: F.binary_cross_entropy_with_logits(x, tt.zeros(2), weight=tt.tensor([0.0, 1.0])), [inf, -inf], 0.0, [0.0, 0.0]
    ),
    "divergence, target 0": (lambda x: F.kl_div(x, tt.tensor([0.0, 1.0])), [-inf, 0.0], 0.0, [0.0, -0.5]),
    "divergence, log-target": (lambda x: F.kl_div(tt.tensor([-1.0, -inf, 0.0]), x, log_target=True), [-inf, -inf, 0.0], 0.0,
                               [0.0, 0.0, 1 / 3]),
    "probability 0": (lambda x: F.cross_entropy(x, tt.tensor([0.0, 1.0])), [-inf, 2.0], 0.0, [0.0, 0.0]),
    "class weight 0": (
        lambda x: F.cross_entropy(x, tt.tensor([0, 1]), weight=tt.tensor([0.0, 1.0])), [[-inf, 2.0], [-inf, 1.0]], 0.0,
        [[0.0, 0.0], [0.0, 0.0]],
    ),
    "negative log-likelihood, weight 0": (
        lambda x: F.nll_loss(x, tt.tensor([0, 1]), weight=tt.tensor([0.0, 1.0])), [[-inf, 0.0], [-inf, 0.0]], 0.0,
        [[0.0, 0.0], [0.0, -1.0]],
    ),
    "an ignored row": (lambda x: F.cross_entropy(x, tt.tensor([-100, 1])), [[nan, inf], [0.0, 1e5]], 0.0,
                       [[0.0, 0.0], [0.0, 0.0]]),
    "an ignored row of a linear layer": (
        lambda x: F.linear_cross_entropy(x, tt.eye(2), tt.tensor([-100, 1])), [[nan, inf], [0.0, 1e5]], 0.0,
        [[0.0, 0.0], [0.0, 0.0]],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("loss", "x", "value", "slope"), LOSSES_OF_INFINITY.values(), ids=LOSSES_OF_INFINITY)
def test_what_is_impossible_and_not_expected_costs_nothing(loss, x, value, slope):
    x = tt.tensor(x, requires_grad=True)
    out = loss(x)
    first = tt.grad(out, x, create_graph=True)
    np.testing.assert_array_equal(out.numpy(), value)
    np.testing.assert_allclose(first.numpy(), slope, rtol=1e-6)
    if first.requires_grad:
        assert np.isfinite(tt.grad(first.sum(), x).numpy()).all()


def test_no_gradient_of_a_weight_comes_from_an_ignored_row():
    x, weight = tt.tensor([[nan, inf], [1.0, 2.0]]), tt.tensor([[1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    gradient = tt.grad(F.linear_cross_entropy(x, weight, tt.tensor([-100, 1])), weight)
    np.testing.assert_allclose(gradient.numpy(), np.outer([1.0, -1.0], [1.0, 2.0]) / (1.0 + math.e), rtol=1e-6)


# -------------------------------------------------------------------------------------------------------------- attention


def attended(arrays, is_causal, dropout_p, order):
    """The output, the first gradients, and for order 2 those of the sum of their squares."""
    xs = [tt.tensor(x, dtype="float32", requires_grad=True) for x in arrays]
    tt.seed(0)
    out = tt.scaled_dot_product_attention(*xs, mask=tt.tensor(SEEN), is_causal=is_causal, dropout_p=dropout_p)
    first = tt.grad(out, xs, tt.ones_like(out), create_graph=order == 2)
    second = tt.grad(sum((x * x).sum() for x in first), xs) if order == 2 else []
    return [x.numpy() for x in (out, *first, *second)]


SEEN = np.array([True, False, True, True, False]).reshape(1, 1, 1, 5)
HIDDEN = ~SEEN.reshape(5)


@pytest.mark.needs("numpy")  # a GPU's kernels multiply the padding by 0
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
@pytest.mark.parametrize(("queries", "is_causal"), [(1, False), (3, False), (3, True), (5, True), (6, True)])
def test_padding_that_is_not_a_number_reaches_nothing(queries, is_causal, dropout_p, order):
    rng = np.random.default_rng(0)
    clean = [rng.standard_normal((2, 2, n, 4)) for n in (queries, 5, 5)]
    want = attended(clean, is_causal, dropout_p, order)
    for value in (nan, inf, -inf):
        arrays = [x.copy() for x in clean]
        for x in arrays[1:]:
            x[:, :, HIDDEN] = value
        for got, expected in zip(attended(arrays, is_causal, dropout_p, order), want):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.needs("numpy")
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_query_that_is_not_a_number_spoils_its_own_row_alone(is_causal):
    rng = np.random.default_rng(0)
    clean = [rng.standard_normal((2, 2, 5, 4)) for _ in range(3)]
    want = attended(clean, is_causal, 0.0, 1)
    clean[0][:, :, 3] = nan
    out, d_query, d_key, d_value = attended(clean, is_causal, 0.0, 1)
    assert np.isnan(out[:, :, 3]).all()
    for got, expected in ((out, want[0]), (d_query, want[1])):
        np.testing.assert_allclose(np.delete(got, 3, 2), np.delete(expected, 3, 2), rtol=1e-5, atol=1e-6)
    assert not d_key[:, :, HIDDEN].any()
    assert not d_value[:, :, HIDDEN].any()


def test_scores_that_are_all_minus_infinity_are_not_hidden_keys():
    query, key = tt.tensor([[-inf]]), tt.ones((3, 1))
    assert np.isnan(tt.scaled_dot_product_attention(query, key, key).numpy()).all()
    seen = tt.ones((1, 3), dtype=bool)
    assert not tt.scaled_dot_product_attention(query, key, key, mask=seen).numpy().any()  # as for a row of a mask without keys


# ---------------------------------------------------------------------------------------------------- activations far out

FAR_OUT = [-inf, -1e20, -1e4, 1e4, 1e20, inf]
ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu, tanh": lambda x: F.gelu(x, "tanh"),
    "silu": F.silu,
    "swiglu": lambda x: F.swiglu(x, tt.ones_like(x)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("f", ACTIVATIONS.values(), ids=ACTIVATIONS)
def test_activations_that_far_out_are_relu(f, dtype):
    x = tt.tensor(FAR_OUT, dtype=dtype, requires_grad=True)
    out = f(x)
    np.testing.assert_array_equal(out.numpy(), np.maximum(x.numpy(), 0))
    np.testing.assert_array_equal(tt.grad(f(x).sum(), x).numpy(), [0, 0, 0, 1, 1, 1])
    first = tt.grad(f(x).sum(), x, create_graph=True)
    np.testing.assert_array_equal(first.numpy(), [0, 0, 0, 1, 1, 1])
    np.testing.assert_array_equal(tt.grad(first.sum(), x).numpy(), np.zeros(6))


SATURATING = {
    "sigmoid": tt.sigmoid, "tanh": tt.tanh, "softplus": F.softplus, "logsigmoid": F.logsigmoid, "elu": F.elu,
    "glu": lambda x: F.glu(tt.concatenate([tt.ones_like(x), x], 0), 0),
    "logaddexp": lambda x: tt.logaddexp(x, 0.0),
}  # fmt: skip


@pytest.mark.parametrize("f", SATURATING.values(), ids=SATURATING)
def test_slopes_far_out_are_those_of_straight_lines(f):
    x = tt.tensor([-inf, -1e20, 1e20, inf], requires_grad=True)
    first = tt.grad(f(x).sum(), x, create_graph=True)
    assert set(np.abs(first.numpy())) <= {0.0, 1.0}
    np.testing.assert_array_equal(tt.grad(first.sum(), x).numpy(), np.zeros(4))


@pytest.mark.parametrize("with_residual", [False, True])
def test_dropout_drops_what_is_infinite_or_nan(with_residual):
    for value, shape in itertools.product([inf, nan], [(40,), (100, 100)]):
        x = tt.full(shape, value, requires_grad=True)
        tt.seed(3)
        out = tt.dropout(x, 0.5, residual=tt.ones(shape) if with_residual else None)
        dropped = out.numpy() == float(with_residual)
        assert 0.3 < dropped.mean() < 0.7
        g = tt.full(shape, value)
        assert (tt.grad(out, x, g).numpy()[dropped] == 0).all()


@pytest.mark.parametrize(("dtype", "scale"), [("float32", 1e30), ("float32", 1e-30), ("float64", 1e200), ("float64", 1e-200)])
def test_squares_of_a_norm_neither_overflow_nor_vanish(dtype, scale):
    x = tt.tensor(np.array([[3 * scale, 4 * scale], [3, 4], [0, 0]], dtype), requires_grad=True)
    out = tt.norm(x, axis=1)
    np.testing.assert_allclose(out.detach().numpy(), [5 * scale, 5, 0], rtol=1e-6)
    np.testing.assert_allclose(tt.grad(tt.sum(out), x).numpy(), [[0.6, 0.8], [0.6, 0.8], [0, 0]], rtol=1e-6)
    for odd in (inf, nan):
        np.testing.assert_equal(tt.norm(tt.tensor([odd, scale])).item(), odd)


@pytest.mark.parametrize(("dtype", "exponent"), [("float32", 30), ("float64", 200)])
def test_clipping_keeps_the_direction_of_huge_and_tiny_gradients(dtype, exponent):
    x = tt.nn.Parameter(np.zeros(2, dtype))
    for scale, clipped in ((10.0**exponent, 1.0), (10.0**-exponent, 5 * 10.0**-exponent)):
        x.grad = tt.tensor([3 * scale, 4 * scale], dtype)
        assert tt.optim.clip_grad_norm([x], 1.0).item() == pytest.approx(5 * scale)
        np.testing.assert_allclose(x.grad.numpy(), [0.6 * clipped, 0.8 * clipped], rtol=1e-5)


@pytest.mark.parametrize("make", [tt.optim.SGD, tt.optim.Adam, tt.optim.RMSprop])
def test_gradients_are_scaled_though_float32_holds_neither_their_norm_nor_the_scale(make):
    clipped, scaled, expected = parameters = [tt.nn.Parameter(np.zeros(4, "float32")) for _ in range(3)]
    for p, slope in zip(parameters, (3e38, 3e38, 0.5)):
        p.grad = tt.full(4, slope)
    norm = tt.optim.clip_grad_norm(clipped, 1.0)
    assert (norm.item(), norm.dtype) == (inf, "float32")
    np.testing.assert_allclose(clipped.grad.numpy(), 0.5, rtol=1e-6)
    _, scale = tt.optim.norm_and_scale(scaled, 1.0)
    for p, factor in zip(parameters, (None, scale, None)):
        make([p], lr=0.5).step(gradient_scale=factor)
    for p in (clipped, scaled):
        np.testing.assert_allclose(p.numpy(), expected.numpy(), rtol=1e-6)


@pytest.mark.parametrize("x, beta, dtype", [(1e4, 10, "float16"), (2e38, 3, "float32"), (-1e4, -10, "float16")])
def test_softplus_of_a_product_that_overflows(x, beta, dtype):
    x = tt.tensor(x, dtype=dtype, requires_grad=True)
    out = tt.softplus(x, beta)
    assert out.item() == x.item() and tt.grad(out, x).item() == 1.0


@pytest.mark.parametrize("numbers", [[0, 2**63 + 1], [0, 2**64 - 1], [2**63], [[1, 2], [3, 2**63 + 5]]])
def test_large_unsigned_integers_are_exact(numbers):
    np.testing.assert_array_equal(tt.tensor(numbers, dtype="uint64").numpy(), np.array(numbers, np.uint64))
    for wrong in (-1, 2**64):
        with pytest.raises(OverflowError, match="uint64 cannot hold"):
            tt.tensor([wrong, 2**63 + 1], dtype="uint64")


@pytest.mark.parametrize("make", [np.uint64, np.array, tt.tensor, lambda x: np.array([x]), lambda x: tt.tensor([x])])
@pytest.mark.parametrize(
    ("small", "dtype"), [(1, None), (1, "uint64"), (np.int64(1), None), (np.array(1), None), (True, "uint64")]
)
def test_large_unsigned_integers_of_numpy_or_tensors_are_exact_in_lists(make, small, dtype):
    large = make(2**63 + 1)
    small = small if large.shape == () else [small]
    out = tt.tensor([large, small], dtype)
    assert out.dtype == "uint64"
    assert out.numpy().ravel().tolist() == [2**63 + 1, 1]
    x = tt.zeros(out.shape, dtype="uint64")
    x[:] = [large, small]
    assert x.tolist() == out.tolist()
    with pytest.raises(OverflowError, match="no integer dtype holds"):
        tt.tensor([large, small, tt.tensor(-1) if large.shape == () else tt.tensor([-1])])


def test_integers_of_several_dtypes_are_int64_where_it_holds_them():
    for numbers in ([np.uint64(3), -4], [np.array([3], "uint64"), tt.tensor([-4])]):
        out = tt.tensor(numbers)
        assert out.dtype == "int64"
        assert out.numpy().ravel().tolist() == [3, -4]


@pytest.mark.skipif(np.dtype(np.longdouble).itemsize == 8, reason="long double is float64 here")
def test_numbers_of_more_than_64_bits_are_refused():
    for make in (lambda x: tt.tensor(x), lambda x: tt.tensor([x]), lambda x: tt.tensor(np.full(3, x))):
        with pytest.raises(TypeError, match="at most 64 bits"):
            make(np.longdouble(1))
    with pytest.raises(TypeError, match="dtype must be"):
        tt.zeros(3, dtype=np.longdouble)
    x = tt.tensor(np.full(3, np.longdouble(2)), dtype="float32")
    x[0], x[1:2] = np.longdouble(3), np.full(1, np.longdouble(4))
    np.testing.assert_array_equal((x + np.longdouble(1)).numpy(), np.float32([4, 5, 3]))
    np.testing.assert_array_equal(tt.where(x > 2, np.longdouble(5), x).numpy(), np.float32([5, 5, 2]))


@pytest.mark.needs("numpy")
@pytest.mark.parametrize("divide", [lambda x, y: x // y, lambda x, y: x % y])
def test_an_integer_divided_by_0_is_an_error_and_a_float_is_not(divide):
    for x, y in ((tt.tensor(7), 0), (7, tt.tensor([1, 0])), (tt.tensor([True]), tt.tensor([False]))):
        with pytest.raises(ZeroDivisionError, match="divided by 0"):
            divide(x, y)
    assert not math.isfinite(divide(tt.tensor(7), 0.0).item())
    assert not math.isfinite(divide(tt.tensor(7.0), 0).item())


@pytest.mark.parametrize("scale", [nan, inf, -1.0])
def test_a_step_by_a_wrong_scale_is_refused(scale):
    x = tt.nn.Parameter([1.0])
    x.grad = tt.tensor([1.0])
    with pytest.raises(ValueError, match="scale must be a finite number of at least 0"):
        tt.optim.SGD([x], lr=0.1).step(scale)
    assert x.item() == 1.0


def test_a_traced_function_sees_what_replaces_a_parameter():
    model, x = tt.nn.Sequential(tt.nn.Linear(2, 1), tt.nn.Linear(1, 1)), tt.ones((1, 2))
    fast = tt.trace(model)
    for change in (
        lambda: None,
        lambda: setattr(model[0], "weight", tt.nn.Parameter([[3.0, 4.0]])),
        lambda: model.__setitem__(1, tt.nn.Linear(1, 1)),
        lambda: (delattr(model[1], "bias"), setattr(model[1], "bias", tt.nn.Parameter([9.0]))),
    ):
        change()
        np.testing.assert_allclose(fast(x).numpy(), model(x).detach().numpy(), rtol=1e-6)
        np.testing.assert_allclose(fast(x).numpy(), model(x).detach().numpy(), rtol=1e-6)


def test_a_norm_of_negative_order_is_near_its_smallest_number():
    """Relative to the largest number, the powers of a small one would overflow."""
    x = tt.tensor([1e-30, 1e5, 3.0], requires_grad=True)
    out = tt.norm(x, -2)
    out.backward()
    np.testing.assert_allclose(out.numpy(), 1e-30, rtol=1e-6)
    np.testing.assert_allclose(x.grad.numpy(), [1, 0, 0], atol=1e-6)
