"""Tensors cut into pieces: the engine adds each piece's gradient in place to those of the other pieces and of the whole."""

import itertools

import numpy as np
import pytest

import tinytensor as tt

# Each use is a node of its own. In this order and in reverse, another gradient reaches x first: a piece's or the whole's.
CUTS = {
    "split": [lambda x, i=i: tt.split(x, 3)[i] for i in range(3)],
    "split in uneven pieces": [lambda x, i=i: tt.split(x, [1, 3], axis=1)[i] for i in range(3)],
    "one slice": [lambda x: x[1:4]],
    "ints": [lambda x: x[0], lambda x: x[-1], lambda x: x[2, 3], lambda x: x[np.int64(1), 1:]],
    "None and ellipsis": [lambda x: x[None], lambda x: x[..., 1], lambda x: x[:, None, ::2], lambda x: x[...], lambda x: x[()]],
    "negative steps": [lambda x: x[::-1], lambda x: x[4:1:-2, ::-1], lambda x: x[-1:-4:-1]],
    "overlapping": [lambda x: x[:3], lambda x: x[1:]],
    "the same piece twice": [lambda x: x[1:4], lambda x: x[1:4]],
    "pieces of a piece": [lambda x: x[1:][:, 2:], lambda x: x[1:][2], lambda x: x[1:]],
    "the whole and a piece": [lambda x: x * 3.0, lambda x: x[1:]],
    "the whole between pieces": [lambda x: x[:, 1:], lambda x: x, lambda x: x[2:]],
    "zero-size": [lambda x: x[:0], lambda x: x[1:], lambda x: x[:, 4:], lambda x: x[3:2:1, :0]],
    "nothing but zero-size": [lambda x: x[2:2]],
    "index arrays": [lambda x: x[tt.tensor([0, 0, 2])], lambda x: x[1:], lambda x: x[1:, [0, 0]]],
    "a boolean": [lambda x: x[True], lambda x: x[:2], lambda x: x[False]],
}


def numbers(shape, dtype, seed=0):
    return tt.tensor(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


def weighted(pieces, x):
    """A sum of the pieces of x, each with another factor."""
    cut = [piece(x) for piece in pieces]
    return sum([(tt.sin(p * (i + 1.0)) * numbers(p.shape, p.dtype, i)).sum() for i, p in enumerate(cut)], tt.tensor(0.0))


@pytest.mark.parametrize("pieces", CUTS.values(), ids=CUTS)
def test_gradients_are_those_of_scattering_each_piece(pieces):
    for dtype, order, inner in itertools.product(["float64", "float32"], [1, -1], [False, True]):
        x = numbers((6, 4), dtype)
        x.requires_grad = True

        def gradients(create_graph, x=x, order=order, inner=inner):
            h = tt.tanh(x) if inner else x
            return tt.grad(weighted(pieces[::order], h), [x, h], create_graph=create_graph)

        tolerance = 1e-13 if dtype == "float64" else 1e-5
        for got, want in zip(gradients(False), gradients(True)):
            assert (got.shape, got.dtype) == ((6, 4), dtype)
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=0, atol=tolerance, err_msg=f"{order}, {inner}")


def test_a_hand_worked_example():
    x = tt.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    (x[:3] * 10.0 + x[1:] * x[::-1][:3]).sum().backward()  # 10 x0 + 10 x1 + 10 x2 + x1 x3 + x2 x2 + x3 x1
    assert x.grad.tolist() == [10, 10 + 2 * 4, 10 + 2 * 3, 2 * 2]


@pytest.mark.parametrize("inner", [False, True], ids=["a leaf", "a result"])
def test_the_gradient_that_came_in_is_left_alone(inner):
    x, y, g = tt.tensor([1.0, 2.0], requires_grad=True), tt.tensor([3.0, 4.0], requires_grad=True), tt.tensor([10.0, 100.0])
    h = x * 2.0 if inner else x
    piece = h[:1]  # it is older than the sum, so its part comes after g, which x, y and the caller share
    ((h + y) + piece).backward(g)
    assert g.tolist() == [10, 100]
    assert y.grad.tolist() == [10, 100]
    assert x.grad.tolist() == [(10 + 110) * (1 + inner), 100 * (1 + inner)]
    arrays = [x.grad.numpy(), y.grad.numpy(), g.numpy()]
    assert not any(np.shares_memory(a, b) for a, b in itertools.combinations(arrays, 2))


def test_a_gradient_that_was_asked_for_on_the_way_is_left_alone():
    x = tt.tensor([1.0, 2.0, 3.0], requires_grad=True)
    piece = x[:1]
    h = x + 1.0  # passes its gradient on as it is
    gh, gx = tt.grad((h[:2] * 2.0).sum() + piece.sum(), [h, x])
    assert gh.tolist() == [2, 2, 0]
    assert gx.tolist() == [3, 2, 0]
    assert not np.shares_memory(gh.numpy(), gx.numpy())


def test_a_retained_graph_gives_the_same_again():
    x = numbers((6, 4), "float64")
    x.requires_grad = True
    h = tt.tanh(x)
    loss = weighted([*CUTS["overlapping"], *CUTS["the whole between pieces"]], h)
    first = [g.numpy().copy() for g in tt.grad(loss, [x, h], retain_graph=True)]
    second = tt.grad(loss, [x, h], retain_graph=True)
    for a, b in zip(first, second):
        np.testing.assert_array_equal(a, b.numpy())
    loss.backward(retain_graph=True)
    loss.backward()
    np.testing.assert_array_equal(x.grad.numpy(), 2 * first[0])


def test_a_piece_is_added_to_an_older_gradient():
    x = tt.tensor([1.0, 2.0], requires_grad=True)
    x[:1].sum().backward()
    first = x.grad
    x[1:].sum().backward()
    assert x.grad.tolist() == [1, 1]
    assert first.tolist() == [1, 0]


def test_second_order_through_pieces():
    x = numbers((6, 4), "float64")
    x.requires_grad = True
    assert tt.gradcheck(lambda x: weighted(CUTS["overlapping"], x), x, order=2)


def test_detect_anomaly_names_the_cut():
    x = tt.tensor([1.0, 2.0], requires_grad=True)
    with tt.detect_anomaly():
        piece = x[:1]
        with pytest.raises(FloatingPointError, match=r"a gradient of 'getitem', called at .*test_parts\.py:\d+, is NaN"):
            piece.backward(tt.tensor([float("nan")]))
        (x[:1] + x[1:]).backward()


@pytest.mark.needs("numpy")  # otherwise a sum is an array
def test_a_number_that_is_broadcast_and_given_an_axis():
    x = tt.tensor(np.array(2.0), requires_grad=True)
    column, row = x[None], x * tt.tensor(np.ones(3))
    (column.sum() + row.sum()).backward()
    assert x.grad.tolist() == 4
