"""Linear algebra, in addition to the table of cases: errors and edge cases."""

import math

import numpy as np
import pytest

import tinytensor as tt

singular, other = tt.tensor([[1.0, 2.0], [2.0, 4.0]]), tt.tensor([[2.0, 1.0], [1.0, 2.0]])
several = tt.stack([other, singular])
wide = tt.ones((2, 3))

REFUSED = {
    "inv, singular": (lambda: tt.linalg.inv(singular), r"inv of shapes \(2, 2\): a matrix is singular.*tt\.eye"),
    "inv, one of several": (lambda: tt.linalg.inv(several), r"inv of shapes \(2, 2, 2\): a matrix is singular"),
    "inv, a vector": (lambda: tt.linalg.inv(tt.ones(3)), r"\(3,\): the matrices must be square"),
    "det, not square": (lambda: tt.linalg.det(wide), r"\(2, 3\): the matrices must be square"),
    "slogdet, not square": (lambda: tt.linalg.slogdet(wide), r"\(2, 3\): the matrices must be square"),
    "solve, singular": (lambda: tt.linalg.solve(singular, tt.ones(2)), "solve of .*: a matrix is singular"),
    "solve, lengths": (lambda: tt.linalg.solve(other, tt.ones(3)), r"solve of shapes \(2, 2\), \(3,\): x must be"),
    "solve, a number": (lambda: tt.linalg.solve(other, tt.tensor(1.0)), r"\(2, 2\), \(\): x must be"),
    "solve, stacks": (lambda: tt.linalg.solve(several, tt.ones((3, 2, 1))), "solve of .*do not broadcast"),
    "cholesky": (lambda: tt.linalg.cholesky(-other), r"cholesky of .*: a matrix is not positive definite.*tt\.eye"),
    "cholesky, not square": (lambda: tt.linalg.cholesky(wide), "the matrices must be square"),
}


@pytest.mark.parametrize(("call", "words"), REFUSED.values(), ids=REFUSED)
def test_rejected_inputs(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_a_singular_matrix_has_a_determinant_and_no_finite_slope_of_its_logarithm():
    x = tt.tensor(singular, requires_grad=True)
    sign, logarithm = tt.linalg.slogdet(x)
    assert (sign.item(), logarithm.item(), sign.requires_grad) == (0.0, -math.inf, False)
    with pytest.raises(ValueError, match="a matrix is singular"):
        logarithm.backward()
    assert tt.grad(tt.linalg.det(x), x).tolist() == [[4.0, -2.0], [-2.0, 1.0]]


def test_a_determinant_that_underflows_has_no_slope():
    x = tt.tensor(1e-30 * np.eye(3, dtype="float32"), requires_grad=True)
    assert tt.grad(tt.linalg.det(x), x).tolist() == np.zeros((3, 3)).tolist()


def test_integers_and_half_precision_are_computed_in_float32():
    for dtype, want in [("int64", "float32"), ("bool", "float32"), ("float16", "float16")]:
        x = tt.eye(2, dtype=dtype)
        for f in (tt.linalg.inv, tt.linalg.det, tt.linalg.cholesky, lambda x: tt.linalg.solve(x, tt.ones(2, "int64"))):
            assert f(x).dtype == want
        assert [part.dtype for part in tt.linalg.slogdet(x)] == [want, want]


def test_cholesky_reads_the_lower_triangle_and_has_a_symmetric_gradient():
    x = tt.tensor([[4.0, 9.0], [2.0, 5.0]], requires_grad=True)
    out = tt.linalg.cholesky(x)
    np.testing.assert_allclose(out.tolist(), [[2, 0], [1, 2]], rtol=1e-6)
    gradient = tt.grad(out.sum(), x).numpy()
    np.testing.assert_array_equal(gradient, gradient.T)


def test_nan_gives_nan():
    x = tt.tensor([[math.nan, 1.0], [1.0, 2.0]])
    for out in (tt.linalg.inv(x), tt.linalg.det(x), tt.linalg.slogdet(x)[1]):
        assert np.isnan(out.numpy()).any()
