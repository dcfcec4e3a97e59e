"""What changes a leaf in place: the loops of tutorials, which must learn or be errors."""

from __future__ import annotations

import numpy as np
import pytest

import tinytensor as tt
from tinytensor import nn

STEP, GRADIENT = 0.5, [2.0, 4.0]


@pytest.fixture
def leaf():
    """A leaf whose gradient is 2 x."""
    x = tt.tensor([1.0, 2.0], requires_grad=True)
    (x * x).sum().backward()
    return x


def test_a_step_under_no_grad_changes_every_parameter():
    model = nn.Linear(2, 1)
    before = [p.numpy().copy() for p in model.parameters()]
    model(tt.ones((3, 2))).sum().backward()
    with tt.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
            p.grad = None
    for p, old, gradient in zip(model.parameters(), before, (3.0, 3.0)):
        np.testing.assert_allclose(p.numpy(), old - 0.1 * gradient, rtol=1e-6)
        assert p.grad is None


CHANGES = {
    "+=": (lambda x: exec("x += 1", {"x": x}), [2.0, 3.0]),
    "-=": (lambda x: exec("x -= 0.5 * x.grad", {"x": x}), [0.0, 0.0]),
    "*=": (lambda x: exec("x *= 3", {"x": x}), [3.0, 6.0]),
    "/=": (lambda x: exec("x /= 2", {"x": x}), [0.5, 1.0]),
    "**=": (lambda x: exec("x **= 2", {"x": x}), [1.0, 4.0]),
    "an element": (lambda x: x.__setitem__(0, 7.0), [7.0, 2.0]),
    "float64": (lambda x: exec("x += one", {"x": x, "one": tt.ones(2, "float64")}), [2.0, 3.0]),
}


@pytest.mark.parametrize(("change", "want"), CHANGES.values(), ids=CHANGES)
def test_under_no_grad_a_leaf_is_changed_in_place(leaf, change, want):
    view, graph = leaf.detach(), (leaf * leaf).sum()
    with tt.no_grad():
        change(leaf)
    assert leaf.tolist() == view.tolist() == want
    assert (leaf.requires_grad, leaf.dtype, leaf.grad.tolist()) == (True, tt.ones(1).dtype, GRADIENT)
    with pytest.raises(RuntimeError, match="changed in place"):
        graph.backward()


@pytest.mark.parametrize("change", [change for change, _ in CHANGES.values()], ids=CHANGES)
def test_while_calls_are_recorded_it_is_an_error(leaf, change):
    with pytest.raises(RuntimeError, match="no_grad"):
        change(leaf)
    assert leaf.tolist() == [1.0, 2.0]


def test_values_of_another_shape_do_not_fit(leaf):
    with tt.no_grad(), pytest.raises(ValueError, match=r"\(3, 2\) do not fit x of shape \(2,\)"):
        exec("x += y", {"x": leaf, "y": tt.ones((3, 2))})


def test_a_tensor_without_gradients_gets_a_new_one():
    x = y = tt.tensor([1.0, 2.0])
    x += 1
    assert (x.tolist(), y.tolist()) == ([2.0, 3.0], [1.0, 2.0])


@pytest.mark.needs("numpy")
def test_the_array_of_a_leaf_may_be_changed_by_a_tensor(leaf):
    leaf.data -= STEP * leaf.grad
    assert leaf.tolist() == [0.0, 0.0]
    leaf.data += leaf.grad
    assert leaf.tolist() == GRADIENT
    with pytest.raises(TypeError, match="detach"):
        leaf.data += leaf * 2


SET = {
    "an array": (lambda x: x.data * 2, [2.0, 4.0]),
    "a tensor": (lambda x: tt.tensor([5.0, 6.0]), [5.0, 6.0]),
    "another dtype": (lambda x: tt.tensor([5.0, 6.0], "float64"), [5.0, 6.0]),
}


@pytest.mark.parametrize(("new", "want"), SET.values(), ids=SET)
def test_data_may_be_set(leaf, new, want):
    leaf.data = new(leaf)
    (leaf * leaf).sum().backward()
    assert leaf.tolist() == want
    assert leaf.grad.dtype == leaf.dtype


@pytest.mark.parametrize(
    ("value", "kind", "says"),
    [
        ([1.0, 2.0], TypeError, "assign"),
        (tt.ones(3), ValueError, r"\(3,\)"),
        (None, TypeError, "None"),
        (tt.tensor([1, 2]), TypeError, "int64 cannot require gradients"),
    ],
)
def test_data_that_do_not_fit_are_refused(leaf, value, kind, says):
    with pytest.raises(kind, match=says):
        leaf.data = value
    assert leaf.tolist() == [1.0, 2.0]
    assert leaf.requires_grad


@pytest.mark.needs("numpy")  # CuPy's arrays have fewer dtypes
@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("array", [np.ones(2, "complex64"), np.array(["a", "b"]), np.ones(2, object), np.ma.array([1.0, 2.0])])
def test_data_that_no_tensor_holds_are_refused(array, requires_grad):
    x = tt.tensor([1.0, 2.0], requires_grad=requires_grad)
    with pytest.raises(TypeError, match=r"a tensor holds numbers or booleans|a masked array"):
        x.data = array
    assert x.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("value", ["yes", 1.5, None, [True]])
def test_requires_grad_is_true_or_false(leaf, value):
    with pytest.raises(TypeError, match="True or False"):
        leaf.requires_grad = value
    assert leaf.requires_grad


def test_a_list_of_tensors_that_require_gradients_is_refused(leaf):
    with pytest.raises(TypeError, match=r"tt\.stack"):
        tt.tensor([leaf[0], leaf[1]])
    with tt.no_grad():
        assert tt.tensor([leaf[0], leaf[1]]).tolist() == [1.0, 2.0]


def test_what_came_from_numpy_keeps_its_dtype_in_a_list():
    for data in (np.ones(2), [np.ones(2)], [[1.0], [np.float64(2)]]):
        assert tt.tensor(data).dtype == "float64"
    for data in ([1.0], [np.ones(2, "float32")], [tt.ones(2)]):
        assert tt.tensor(data).dtype == "float32"
