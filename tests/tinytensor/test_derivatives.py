"""Jacobians, Hessians and their products with vectors: shapes, edge cases, and errors. PyTorch's are in parity/."""

import numpy as np
import pytest

import tinytensor as tt

x = tt.tensor([1.0, 2.0])
y = tt.tensor([[3.0, 1.0, 0.5]])


def test_a_jacobian_has_the_shape_of_the_result_and_then_of_the_input():
    for_x, for_y = tt.jacobian(lambda x, y: tt.outer(x, y) * 2, (x, y))
    assert (for_x.shape, for_y.shape) == ((2, 3, 2), (2, 3, 1, 3))
    np.testing.assert_array_equal(for_x.numpy(), 2 * np.einsum("j,ik->ijk", y.numpy()[0], np.eye(2)))
    np.testing.assert_array_equal(for_y.numpy(), 2 * np.einsum("i,jk->ijk", x.numpy(), np.eye(3))[:, :, None])
    (only,) = tt.jacobian(lambda x: x, [x])
    assert only.tolist() == np.eye(2).tolist()


def test_what_f_does_not_depend_on_gives_zeros():
    for f in (lambda x, y: tt.ones(3), lambda x, y: y.sum(), lambda x, y: x > 0, lambda x, y: x.detach()):
        found = tt.jacobian(f, (x, y))[0]
        assert (found.shape, found.dtype) == ((*f(x, y).shape, 2), "float32")
        assert not found.numpy().any()
    assert tt.hessian(lambda x: x.sum(), x).tolist() == [[0, 0], [0, 0]]
    assert tt.hessian(lambda x: tt.tensor(1.0), x).tolist() == [[0, 0], [0, 0]]
    assert [part.tolist() for part in tt.hvp(lambda x: x.sum(), x, x)] == [3, [0, 0]]


def test_nothing():
    assert tt.jacobian(lambda x: x[:0], x).shape == (0, 2)
    assert tt.jacobian(lambda x: x, tt.zeros((0, 3))).shape == (0, 3, 0, 3)
    assert tt.hessian(lambda x: x.sum(), tt.zeros(0)).shape == (0, 0)
    assert tt.jacobian(lambda: x, ()) == ()


def test_x_stays_as_it_is_and_what_f_holds_besides_is_constant():
    leaf = tt.tensor([1.0, 2.0], requires_grad=True)
    assert tt.jacobian(lambda x: x * leaf, leaf).tolist() == [[1, 0], [0, 2]]
    assert tt.jacobian(lambda x: x * leaf, leaf, create_graph=True).tolist() == [[1, 0], [0, 2]]
    assert tt.hvp(lambda x: (x * x * leaf).sum(), leaf, tt.ones(2))[1].tolist() == [2, 4]
    assert leaf.grad is None


def test_with_a_graph_the_results_are_differentiable():
    leaf = tt.tensor([1.0, 2.0], requires_grad=True)
    cubes = lambda x: (x**3).sum()  # noqa: E731
    for found, want in [
        (tt.jacobian(lambda x: x**3, leaf, create_graph=True), [6, 12]),
        (tt.hessian(cubes, leaf, create_graph=True), [6, 6]),
        (tt.hvp(cubes, leaf, tt.ones(2), create_graph=True)[1], [6, 6]),
        (tt.hvp(cubes, leaf, tt.ones(2), create_graph=True)[0], [3, 12]),
    ]:
        assert tt.grad(found.sum(), leaf).tolist() == want
    for found in (tt.jacobian(lambda x: x**3, leaf), tt.hessian(cubes, leaf), *tt.hvp(cubes, leaf, tt.ones(2))):
        assert not found.requires_grad


def test_they_are_computed_under_no_grad_too():
    with tt.no_grad():
        assert tt.jacobian(lambda x: x * x, x).tolist() == [[2, 0], [0, 4]]
        assert tt.hessian(lambda x: (x * x).sum(), x).tolist() == [[2, 0], [0, 2]]


REFUSED = {
    "a hessian of several numbers": (lambda: tt.hessian(lambda x: x * x, x), ValueError, r"hessian: f .* got shape \(2,\)"),
    "a product for several numbers": (lambda: tt.hvp(lambda x: x * x, x, x), ValueError, r"hvp: f .* got shape \(2,\)"),
    "another shape": (lambda: tt.hvp(lambda x: x.sum(), x, y), ValueError, r"v must have the shapes of x, \[\(2,\)\]"),
    "too few": (lambda: tt.hvp(lambda x, y: x.sum(), (x, y), x), ValueError, "v must have the shapes of x"),
    "a number": (lambda: tt.jacobian(lambda x: x.sum().item(), x), TypeError, "jacobian: f must return one tensor, got 3.0"),
    "two tensors": (lambda: tt.jacobian(lambda x: (x, x), x), TypeError, "f must return one tensor, got the tuple"),
    "integers": (lambda: tt.jacobian(lambda x: x, tt.tensor([1, 2])), TypeError, r"int64 cannot require.*astype"),
    "no function": (lambda: tt.jacobian(x, x), TypeError, "jacobian: f must be a function"),
}


@pytest.mark.parametrize(("call", "kind", "words"), REFUSED.values(), ids=REFUSED)
def test_rejected_inputs(call, kind, words):
    with pytest.raises(kind, match=words):
        call()
