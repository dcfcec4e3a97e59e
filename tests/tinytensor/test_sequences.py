"""Functions of sequences, in addition to the table of cases: dtypes and errors."""

import numpy as np
import pytest

import tinytensor as tt

x = tt.tensor([3, 1, 4, 1])


@pytest.mark.parametrize(
    ("dtype", "number", "want"),
    [("int8", 7, "int8"), ("int64", 0.5, "float32"), ("float16", 0.5, "float16"), ("bool", 7, "int64"), ("bool", True, "bool")],
)
def test_a_number_beside_a_sequence_keeps_its_dtype_where_this_can_hold_it(dtype, number, want):
    sequence = np.array([0, 1, 1]).astype(dtype)
    found = tt.diff(tt.tensor(sequence), prepend=number)
    assert found.dtype == want
    np.testing.assert_array_equal(found.numpy(), np.diff(sequence, prepend=number))


def test_weights_are_added_up_in_their_dtype():
    for dtype, want in [("float64", "float64"), ("float16", "float16"), ("int64", "float32"), ("bool", "float32")]:
        counts = tt.bincount(x, tt.ones(4, dtype))
        assert (counts.dtype, counts.tolist()) == (want, [0, 2, 0, 1, 1])
    assert tt.bincount(tt.zeros(300, "uint8")).tolist() == [300]


REFUSED = {
    "diff of a scalar": (lambda: tt.diff(tt.tensor(1.0)), IndexError, "diff: axis -1.*no axes"),
    "diff, n": (lambda: tt.diff(x, -1), ValueError, "diff: n must not be negative, got -1"),
    "meshgrid, indexing": (lambda: tt.meshgrid(x, x, indexing="yx"), ValueError, "meshgrid: indexing must be 'xy' or 'ij'"),
    "meshgrid, a number": (lambda: tt.meshgrid(x, x, 3), TypeError, "meshgrid: tensors must be a tensor, got 3"),
    "array_split, parts": (lambda: tt.array_split(x, 0), ValueError, "array_split needs at least one part, got 0"),
    "bincount of fractions": (lambda: tt.bincount(x * 0.5), TypeError, "integers, got float32"),
    "bincount of a matrix": (lambda: tt.bincount(x.reshape(2, 2)), TypeError, r"\(2, 2\)"),
    "bincount of booleans": (lambda: tt.bincount(x > 1), TypeError, "integers, got bool"),
    "bincount, negative": (lambda: tt.bincount(-x), ValueError, "negative"),
    "bincount, weights": (
        lambda: tt.bincount(x, tt.ones(3)),
        ValueError,
        r"weights must have the shape of x, got \(3,\) and \(4,\)",
    ),
    "dot": (lambda: tt.dot(tt.ones((2, 3)), tt.ones((5, 2, 3))), ValueError, r"dot of shapes .*axis -1 of x .* axis -2 of y"),
    "cosine similarity": (lambda: tt.cosine_similarity(x, x), IndexError, "axis 1 is out of range"),
}


@pytest.mark.parametrize(("call", "kind", "words"), REFUSED.values(), ids=REFUSED)
def test_rejected_inputs(call, kind, words):
    with pytest.raises(kind, match=words):
        call()


def test_a_grid_of_nothing_is_nothing():
    assert tt.meshgrid() == ()
