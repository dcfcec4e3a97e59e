"""Properties that hold for every shape, index and expression. Hypothesis searches for counterexamples."""

import numpy as np
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

import tinytensor as tt

few = settings(max_examples=100, derandomize=True, database=None)
seeds = st.integers(0, 2**32 - 1)


def normal(seed, shape):
    return np.asarray(np.random.default_rng(seed).standard_normal(shape))


def leaf(seed, shape):
    return tt.tensor(normal(seed, shape), requires_grad=True)


# --------------------------------------------------------------------------------------------------------- broadcasting


@few
@given(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=3, min_side=0), seeds)
def test_any_two_shapes_that_broadcast(shapes, seed):
    x, y = [leaf(seed + i, shape) for i, shape in enumerate(shapes.input_shapes)]
    out = x * y + tt.sin(x) - y
    np.testing.assert_allclose(out.numpy(), x.numpy() * y.numpy() + np.sin(x.numpy()) - y.numpy())
    assert out.shape == shapes.result_shape
    assert tt.gradcheck(lambda x, y: x * y + tt.sin(x) - y, [x, y])


@few
@given(hnp.mutually_broadcastable_shapes(signature="(n,k),(k,m)->(n,m)", max_dims=2, max_side=3, min_side=0), seeds)
def test_any_batch_of_matrix_products(shapes, seed):
    x, y = [leaf(seed + i, shape) for i, shape in enumerate(shapes.input_shapes)]
    np.testing.assert_allclose((x @ y).numpy(), x.numpy() @ y.numpy(), atol=1e-12)
    assert tt.gradcheck(tt.matmul, [x, y])


# ------------------------------------------------------------------------------------------------------------- indexing


@few
@given(st.data(), hnp.array_shapes(max_dims=3, max_side=3), seeds)
def test_any_basic_index(data, shape, seed):
    index = data.draw(hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True))
    x = leaf(seed, shape)
    np.testing.assert_array_equal(x[index].numpy(), x.numpy()[index])
    assert tt.gradcheck(lambda x: x[index], x)


@few
@given(st.data(), hnp.array_shapes(max_dims=3, max_side=3), seeds)
def test_any_integer_index(data, shape, seed):
    index = data.draw(hnp.integer_array_indices(shape, result_shape=hnp.array_shapes(max_dims=2, max_side=3)))
    x = leaf(seed, shape)
    np.testing.assert_array_equal(x[index].numpy(), x.numpy()[index])
    assert tt.gradcheck(lambda x: x[index], x)


@few
@given(st.data(), hnp.array_shapes(max_dims=3, max_side=3), seeds)
def test_any_mask(data, shape, seed):
    mask = data.draw(hnp.arrays(bool, shape))
    x = leaf(seed, shape)
    np.testing.assert_array_equal(x[mask].numpy(), x.numpy()[mask])
    assert tt.gradcheck(lambda x: x[mask], x)


@few
@given(st.data(), hnp.array_shapes(min_dims=1, max_dims=2, max_side=4), seeds)
def test_gather_and_scatter_are_each_others_adjoint(data, shape, seed):
    # <scatter(v), x> = <v, x[index]> for every x and v, so each is the gradient of the other.
    index = data.draw(hnp.integer_array_indices(shape))
    x = tt.tensor(normal(seed, shape))
    v = tt.tensor(normal(seed + 1, x[index].shape))
    left, right = (tt.scatter(v, index, shape) * x).sum(), (v * x[index]).sum()
    np.testing.assert_allclose(left.item(), right.item(), atol=1e-12)


# ----------------------------------------------------------------------------------------------------------- reductions


@few
@given(
    st.data(), hnp.array_shapes(max_dims=3, max_side=3), st.booleans(), st.sampled_from(["sum", "mean", "var", "prod"]), seeds
)
def test_any_reduction(data, shape, keepdims, name, seed):
    axis = data.draw(st.none() | hnp.valid_tuple_axes(len(shape)))
    x = leaf(seed, shape)
    out = getattr(tt, name)(x, axis=axis, keepdims=keepdims)
    np.testing.assert_allclose(out.numpy(), getattr(np, name)(x.numpy(), axis=axis, keepdims=keepdims), atol=1e-12)
    assert tt.gradcheck(lambda x: getattr(tt, name)(x, axis=axis, keepdims=keepdims), x)


@few
@given(hnp.array_shapes(max_dims=3, max_side=4), seeds, st.floats(-300, 300))
def test_softmax_is_a_distribution_and_does_not_see_a_shift(shape, seed, shift):
    x = normal(seed, shape)
    out = tt.softmax(tt.tensor(x)).numpy()
    np.testing.assert_allclose(out.sum(-1), 1.0)
    np.testing.assert_allclose(tt.softmax(tt.tensor(x + shift)).numpy(), out, rtol=1e-9)


# ---------------------------------------------------------------------------------------------------------- expressions

# Smooth functions with small values and derivatives, so differences can check any composition of them.
UNARY = [tt.sin, tt.tanh, tt.sigmoid, tt.softplus, lambda x: tt.exp(-x * x), lambda x: x * 0.5, lambda x: x.T, tt.softmax]
BINARY = [tt.add, tt.subtract, lambda x, y: x * tt.sin(y), lambda x, y: x / (2.0 + tt.cos(y)), tt.matmul]


@st.composite
def expressions(draw):
    """A function of two or three leaves: a random graph over them, in which any result may be used again."""
    leaves = draw(st.integers(2, 3))
    steps = []
    for made in range(leaves, leaves + draw(st.integers(2, 6))):
        a, b = draw(st.integers(0, made - 1)), draw(st.integers(0, made - 1))
        steps.append((draw(st.sampled_from(UNARY + BINARY)), a, b))

    def f(*values):
        values = list(values)
        for function, a, b in steps:
            values.append(function(values[a], values[b]) if function in BINARY else function(values[a]))
        return tt.tanh(values[-1]) + values[-2]

    return leaves, f


@few
@given(expressions(), seeds)
def test_any_expression(expression, seed):
    leaves, f = expression
    xs = [leaf(seed + i, (2, 2)) for i in range(leaves)]
    assert tt.gradcheck(f, xs, rtol=1e-5)


@settings(few, max_examples=40)
@given(expressions(), seeds)
def test_any_expression_twice(expression, seed):
    leaves, f = expression
    xs = [leaf(seed + i, (2, 2)) for i in range(leaves)]
    assert tt.gradcheck(f, xs, order=2, rtol=1e-5)


@few
@given(expressions(), seeds)
def test_backward_and_grad_agree(expression, seed):
    leaves, f = expression
    xs = [leaf(seed + i, (2, 2)) for i in range(leaves)]
    found = tt.grad(f(*xs).sum(), xs, allow_unused=True)
    f(*xs).sum().backward()
    for x, g in zip(xs, found):
        assert (x.grad is None) == (g is None)
        if g is not None:
            np.testing.assert_array_equal(x.grad.numpy(), g.numpy())
