"""Every op, on all of its cases in tests/cases.py: the value, the gradients, and what the engine promises about them.

There is one test for each op: ``pytest tests/tinytensor/test_ops.py -k gelu`` checks one. It runs every check below that fits a
case on every case of the op, and names those that fail. A new op needs nothing here, only cases in the table.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import garbage
import numpy as np
import pytest
from cases import CASES, CASES_OF, FUNCTIONS, PROMISES, Case, run_checks

import tinytensor as tt
from tinytensor.autograd.fused import FusedOp
from tinytensor.autograd.op import all_ops


@pytest.mark.parametrize("op", CASES_OF)
def test_op(op):
    run_checks(op, checks_of)


def checks_of(case: Case) -> Iterator[Callable[[Case], None]]:
    """The checks that fit a case."""
    yield check_values
    if case.differentiable:
        yield from (check_gradient, check_second_order, check_half_precision, check_contract, check_no_garbage_cycles)
        if viewed(case):
            yield check_views
    if case.twin:
        yield check_that_fused_equals_its_reference
        if len(case.inputs) - len(case.constant) > 1:
            yield check_mixed_dtypes


def viewed(case: Case) -> list[int]:
    """The numbers of the inputs that can be views: those with axes and elements."""
    return [i for i, x in enumerate(case.inputs) if x.ndim and x.size and i not in case.constant]


def tensors(case: Case, dtype: str = "float64") -> list[tt.Tensor]:
    """The case's inputs. Those that take gradients require them."""
    return [
        tt.tensor(x.astype(dtype) if x.dtype.kind == "f" else x, requires_grad=case.differentiable and i not in case.constant)
        for i, x in enumerate(case.inputs)
    ]


def checked(case: Case, xs: list[tt.Tensor]) -> list[tt.Tensor]:
    return [x for i, x in enumerate(xs) if i not in case.constant]


def cotangent(like: tt.Tensor, seed: int = 1) -> tt.Tensor:
    return tt.tensor(np.random.default_rng(seed).standard_normal(like.shape).astype(like.dtype))


# -------------------------------------------------------------------------------------------------------------- values


def check_values(case: Case) -> None:
    for dtype, rtol, atol in [("float64", 1e-11, 1e-12), ("float32", 1e-4, 2e-5)]:
        xs = tensors(case, dtype)
        want = np.asarray(case.want(*[x.numpy().astype("float64") if x.dtype.kind == "f" else x.numpy() for x in xs]))
        out = case.f(*xs)
        assert out.shape == want.shape
        np.testing.assert_allclose(out.numpy(), want, rtol=rtol, atol=atol)
        floats_went_in = any(x.dtype.kind == "f" for x in xs)
        assert out.dtype == (dtype if want.dtype.kind == "f" and floats_went_in else want.dtype)
        assert out.requires_grad == case.differentiable


@pytest.mark.parametrize("promise", PROMISES, ids=str)
def test_promises_where_differences_cannot_tell(promise):
    x = tt.tensor(np.array(promise.x, "float64"), requires_grad=True)
    out = promise.f(x)
    np.testing.assert_allclose(out.numpy(), promise.value, rtol=1e-12, atol=1e-15)
    out.backward(tt.ones_like(out))
    np.testing.assert_allclose(x.grad.numpy(), promise.gradient, rtol=1e-12, atol=1e-15)


# ------------------------------------------------------------------------------------------------------------ gradients


def check_gradient(case: Case) -> None:
    assert tt.gradcheck(case.f, tensors(case))


def check_second_order(case: Case) -> None:
    """A graph of the gradient does not change it. Its gradient is that of differences, along a random direction of each input:
    a wrong element shows in any direction, and all of them would take longest of all checks."""
    xs = tensors(case)
    leaves = checked(case, xs)
    g = cotangent(case.f(*xs))
    plain, recorded = [tt.grad(case.f(*xs), leaves, g, create_graph=graph) for graph in (False, True)]
    for a, b in zip(plain, recorded):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(b.numpy(), a.numpy(), rtol=1e-9, atol=1e-11)

    factors = [cotangent(x, 2 + i) for i, x in enumerate(plain)]
    pairs = [(a, b) for a, b in zip(recorded, factors) if a.requires_grad]
    seconds = tt.grad(sum([(a * b).sum() for a, b in pairs]), leaves, allow_unused=True) if pairs else [None] * len(leaves)
    for i, (x, second) in enumerate(zip(leaves, seconds)):
        direction = np.random.default_rng(20 + i).standard_normal(x.shape)
        ends = []
        for step in (1e-6, -1e-6):
            moved = tt.tensor(x.numpy() + step * direction, requires_grad=True)
            there = [moved if y is x else y for y in xs]
            found = tt.grad(case.f(*there), checked(case, there), g)
            ends.append(sum([float((a.numpy() * b.numpy()).sum()) for a, b in zip(found, factors)]))
        terms = np.zeros(x.shape) if second is None else second.numpy() * direction
        allowed = 1e-6 + 1e-6 * np.abs(terms).max(initial=0.0)
        assert abs(terms.sum() - (ends[0] - ends[1]) / 2e-6) <= allowed, f"the second gradient of input {i}"


def check_half_precision(case: Case) -> None:
    """The results are close to those in float64 for the same rounded inputs: sums, squares and masks lose no digits."""
    half = tensors(case, "float16")
    exact = [
        tt.tensor(x.numpy().astype("float64") if x.dtype.kind == "f" else x.numpy(), requires_grad=x.requires_grad)
        for x in half
    ]
    out, want = case.f(*half), case.f(*exact)
    g = cotangent(want).numpy().astype("float16")
    out.backward(tt.tensor(g.astype(out.dtype)))
    want.backward(tt.tensor(g.astype("float64")))
    for x in checked(case, half):
        assert x.grad.dtype == "float16"
    for a, b in [(out, want), *[(x.grad, y.grad) for x, y in zip(checked(case, half), checked(case, exact))]]:
        size = np.nanmax(np.abs(b.numpy()), where=np.isfinite(b.numpy()), initial=1.0)
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-2, atol=5e-3 * size)


# ---------------------------------------------------------------------------------------------------------- the contract


def check_contract(case: Case) -> None:
    """Gradients fit their tensors and share no memory, and nothing is mutated."""
    for dtype in ("float64", "float32"):
        xs = tensors(case, dtype)
        before = [x.numpy().copy() for x in xs]
        out = case.f(*xs)
        g = cotangent(out)
        value, g_before = out.numpy().copy(), g.numpy().copy()
        out.backward(g)

        leaves = checked(case, xs)
        for x in leaves:
            assert x.grad is not None
            assert (x.grad.shape, x.grad.dtype) == (x.shape, x.dtype)
            assert x.grad.numpy().flags.writeable
        for x, was in zip([*xs, out, g], [*before, value, g_before]):
            np.testing.assert_array_equal(x.numpy(), was)
        arrays = [x.grad.numpy() for x in leaves]
        others = [x.numpy() for x in xs] + [out.numpy(), g.numpy()]
        for i, a in enumerate(arrays):
            for b in arrays[i + 1 :] + others:
                assert not np.shares_memory(a, b)


def check_no_garbage_cycles(case: Case) -> None:
    with garbage.none_left():
        out = case.f(*tensors(case))
        out.backward(cotangent(out))
        del out


# --------------------------------------------------------------------------------------------------------- memory layouts


def transposed(a):
    return a.T, lambda t: t.T


def strided_backwards(a):
    return np.repeat(a, 2, axis=-1), lambda t: t[..., ::-2]


def stretched(a):
    return a[..., :1], lambda t: tt.broadcast_to(t, a.shape)


def check_views(case: Case) -> None:
    """Views give the same as contiguous inputs."""
    for layout in (transposed, strided_backwards, stretched):
        check_layout(case, layout)


def check_layout(case: Case, layout: Callable[[Any], Any]) -> None:
    arrays = list(case.inputs)
    views = {}
    for i in viewed(case):
        base, view = layout(arrays[i])
        base = tt.tensor(np.ascontiguousarray(base), requires_grad=True)
        views[i] = (base, view)
        arrays[i] = view(base).numpy().copy()
    plain = [tt.tensor(a, requires_grad=i not in case.constant) for i, a in enumerate(arrays)]
    seen = [views[i][1](views[i][0]) if i in views else x for i, x in enumerate(plain)]

    want, out = case.f(*plain), case.f(*seen)
    np.testing.assert_allclose(out.numpy(), want.numpy(), rtol=1e-12, atol=1e-14)
    g = cotangent(want)
    want.backward(g)
    # The gradient of the view's base is the plain gradient, at the elements of the view.
    gradients = tt.grad(out, [base for base, _ in views.values()], g)
    for (i, (base, view)), got in zip(views.items(), gradients):
        expected = tt.grad(view(base), base, plain[i].grad)
        np.testing.assert_allclose(got.numpy(), expected.numpy(), rtol=1e-10, atol=1e-12)


# ------------------------------------------------------------------------------------------------------------- fused ops


def check_that_fused_equals_its_reference(case: Case) -> None:
    """At orders 0, 1 and 2."""
    results = []
    for f in (case.f, case.twin):
        xs = tensors(case)
        leaves = checked(case, xs)
        out = f(*xs)
        first = tt.grad(out, leaves, cotangent(out), create_graph=True)
        total = sum(((g * cotangent(g)).sum() for g in first if g.requires_grad), tt.tensor(0.0))
        second = tt.grad(total, leaves, allow_unused=True) if total.requires_grad else []
        results.append([out, *first, *[tt.zeros_like(x) if g is None else g for g, x in zip(second, leaves)]])
    assert len(results[0]) == len(results[1])
    for fast, slow in zip(*results):
        np.testing.assert_allclose(fast.numpy(), slow.numpy(), rtol=1e-9, atol=1e-11)


def check_mixed_dtypes(case: Case) -> None:
    """A fused op takes mixed dtypes like any other op: one input is float32, and each gradient has its input's dtype."""
    for place in (0, 1):
        xs = tensors(case)
        xs[place] = tt.tensor(case.inputs[place].astype("float32"), requires_grad=xs[place].requires_grad)
        out, want = case.f(*xs), case.twin(*xs)
        assert out.dtype == want.dtype == "float64"
        np.testing.assert_allclose(out.numpy(), want.numpy(), rtol=1e-5, atol=1e-6)  # the reference starts in float32
        for x, gradient in zip(checked(case, xs), tt.grad(out, checked(case, xs), cotangent(out))):
            assert gradient.dtype == x.dtype


# ------------------------------------------------------------------------------------------------------------ everything


def test_every_op_has_a_case():
    own = {name for name, op in all_ops.items() if op.forward.__module__.startswith("tinytensor.")}
    assert (own | FUNCTIONS) - set(CASES_OF) == set()


def test_every_fused_op_is_compared_with_its_reference():
    fused = {name for name, op in all_ops.items() if isinstance(op, FusedOp)}
    assert fused - {case.op for case in CASES if case.twin} == set()
    assert {"layer_norm", "rms_norm", "gelu_exact", "gelu_tanh", "dropout", "attention", "cross_entropy"} <= fused


def test_labels_are_unique():
    labels = [str(case) for case in CASES]
    assert len(set(labels)) == len(labels)


def test_every_op_is_a_method_where_that_reads_well():
    x = tt.tensor([[1.0, -2.0], [3.0, 4.0]])
    for name in ("exp", "sum", "relu", "softmax", "swapaxes", "take", "matmul", "norm"):
        args = {"swapaxes": (0, 1), "take": ([0, 1],), "matmul": (x,)}.get(name, ())
        np.testing.assert_array_equal(getattr(x, name)(*args).numpy(), getattr(tt, name)(x, *args).numpy())


def test_float32_erf_and_gelu_are_right_to_the_last_digits():
    x = np.concatenate([np.linspace(-9, 9, 20_001), np.geomspace(1e-30, 1, 500), [0.0, np.inf, -np.inf]]).astype("float32")
    exact = np.array([math.erf(v) for v in x.astype(float)])
    ours = tt.erf(tt.tensor(x)).numpy()
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, exact, rtol=3e-7, atol=0)
    np.testing.assert_array_equal(ours[-2:], [1.0, -1.0])
    x = x[np.abs(x) < 5.5]  # beyond, values are below 1e-7, with a small absolute but not relative error
    exact = np.array([v / 2 * math.erfc(-v / math.sqrt(2)) for v in x.astype(float)])
    np.testing.assert_allclose(tt.gelu(tt.tensor(x)).numpy(), exact, rtol=2e-4, atol=0)


@pytest.mark.parametrize("axis", [0, 1, None])
def test_a_generator_of_tensors_is_joined_like_a_list(axis):
    x, y = tt.ones((2, 3)), tt.zeros((2, 3))
    expected = tt.concatenate([x, y], axis).tolist()
    assert tt.concatenate((part for part in (x, y)), axis).tolist() == expected


def test_the_loss_of_half_precision_logits_is_float32():
    logits = tt.tensor(np.ones((2, 3), "float16"), requires_grad=True)
    assert tt.cross_entropy(logits, tt.tensor([0, 1])).dtype == "float32"


def test_an_ignored_row_has_no_effect_on_any_derivative_even_if_it_is_nan():
    logits = tt.tensor([[1.0, 2.0], [np.nan, np.nan]], requires_grad=True)
    first = tt.grad(tt.cross_entropy(logits, tt.tensor([0, -100])), logits, create_graph=True)
    second = tt.grad((first * first).sum(), logits)
    assert [first.tolist()[1], second.tolist()[1]] == [[0, 0], [0, 0]]
    assert np.isfinite(first.numpy()).all() and np.isfinite(second.numpy()).all()
