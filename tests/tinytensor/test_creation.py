"""What tensors are made of: exact numbers, and only numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tinytensor as tt

TINY = 2.0**-24


@pytest.mark.parametrize(
    ("start", "stop", "step"),
    [(-5, 5, 0.01), (0.0, 0.3, 0.1), (1e6, 1e6 + 1, 1 / 64), (5, -5, -0.3), (2.0**24, 2.0**24 + 4, 1.0)],
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_arange_is_rounded_once(start, stop, step, dtype):
    want = np.array([start + i * step for i in range(math.ceil((stop - start) / step))])
    with np.errstate(over="ignore"):
        assert (tt.arange(start, stop, step, dtype=dtype).numpy() == want.astype(dtype)).all()


VALUES = {
    "arange of NumPy's integer": (lambda: tt.arange(np.int64(3)), np.arange(3)),
    "arange of NumPy's float": (lambda: tt.arange(np.float32(3)), np.arange(3, dtype="float32")),
    "arange down": (lambda: tt.arange(5, 0, -2), np.array([5, 3, 1])),
    "arange of none": (lambda: tt.arange(1, 0), np.zeros(0, "int64")),
    "arange of the largest": (lambda: tt.arange(2**63 - 2, 2**63), np.array([2**63 - 2, 2**63 - 1])),
    "arange of the largest without sign": (
        lambda: tt.arange(2**64 - 1, 2**64 - 4, -1, dtype="uint64"),
        np.array([2**64 - 1, 2**64 - 2, 2**64 - 3], "uint64"),
    ),
    "arange of mixed numbers": (lambda: tt.arange(2**53 + 1, 2**53 + 4), np.array([2**53 + 1, 2**53 + 2, 2**53 + 3])),
    "arange as floats": (lambda: tt.arange(2**53 + 1, 2**53 + 3, dtype="float64"), np.array([2.0**53, 2.0**53 + 2])),
    "arange by more than there is": (lambda: tt.arange(0, 1, 10**30), np.array([0])),
    "arange beyond integers": (lambda: tt.arange(0, 2 * 10**30, 10**30, dtype="float64"), np.array([0.0, 1e30])),
    "linspace of the largest": (lambda: tt.linspace(0, 2**63 - 1, 3, dtype="int64"), np.array([0, 2**62 - 1, 2**63 - 1])),
    "linspace of integers": (lambda: tt.linspace(0, -1, 4, dtype="int64"), np.array([0, -1, -1, -1])),
    "linspace of fractions": (lambda: tt.linspace(0.5, 3, 3, dtype="int64"), np.array([0, 1, 3])),
    "logic of a large number": (lambda: tt.logical_and(tt.tensor([True, False]), 2**70), np.array([True, False])),
    "isclose to a large number": (lambda: tt.isclose(tt.tensor([1]), 2**70), np.array([False])),
    "full of a large integer": (lambda: tt.full(2, np.int64(2**53 + 1)), np.full(2, 2**53 + 1)),
    "full of a boolean": (lambda: tt.full(2, np.True_), np.full(2, True)),
    "full of NumPy's float": (lambda: tt.full(2, np.float64(0.5)), np.full(2, 0.5, "float32")),
    "a large integer": (lambda: tt.tensor([2**63]), np.array([2**63], "uint64")),
    "large floats": (lambda: tt.tensor([2.0**63, -1]), np.array([2.0**63, -1], "float32")),
    "large integers as floats": (lambda: tt.tensor([2**63, -1], "float32"), np.array([2.0**63, -1], "float32")),
    "floats as integers": (lambda: tt.tensor([1.5, -1.5], "int8"), np.array([1, -1], "int8")),
    "no dtype": (lambda: tt.zeros(2, dtype=None), np.zeros(2, "float32")),
    "eye": (lambda: tt.eye(2, 3, k=1), np.eye(2, 3, 1, "float32")),
    "where of numbers": (lambda: tt.where(tt.tensor([True, False]), 2**62, 2), np.array([2**62, 2])),
}


@pytest.mark.parametrize(("found", "want"), VALUES.values(), ids=VALUES)
def test_values(found, want):
    tensor = found()
    assert tensor.dtype == want.dtype
    assert tensor.shape == want.shape
    assert (tensor.numpy() == want).all()


MASKED = np.ma.array([1.0, 2.0], mask=[False, True])
small, condition = tt.tensor([1, 2], "int8"), tt.tensor([True, False])


def assigned(value):
    x = tt.tensor([1, 2], "int8")
    x[:] = value


REFUSED = {
    "integers of no dtype": (lambda: tt.tensor([2**63, -1]), OverflowError, "floats"),
    "an integer of no dtype": (lambda: tt.tensor(2**64), OverflowError, "18446744073709551616"),
    "too large": (lambda: tt.tensor([300], "int8"), OverflowError, "int8 cannot hold 300"),
    "negative": (lambda: tt.tensor([[-1]], "uint8"), OverflowError, "uint8 cannot hold -1"),
    "NaN": (lambda: tt.tensor([math.nan], "int8"), OverflowError, "int8 cannot hold nan"),
    "infinite": (lambda: tt.tensor(math.inf, "int64"), OverflowError, "int64 cannot hold inf"),
    "full": (lambda: tt.full(2, 300, "int8"), OverflowError, "int8 cannot hold 300"),
    "full_like": (lambda: tt.full_like(small, -129), OverflowError, "int8 cannot hold -129"),
    "arange": (lambda: tt.arange(300, dtype="int8"), OverflowError, "int8 cannot hold 299"),
    "arange of too many": (lambda: tt.arange(2**63), OverflowError, "9223372036854775808"),
    "arange by 0": (lambda: tt.arange(0, 1, 0), ValueError, "step"),
    "arange by too little": (lambda: tt.arange(0, 1, 1e-310), ValueError, "finite"),
    "too large a shape": (lambda: tt.zeros((2**40, 2**40)), ValueError, "(1099511627776, 1099511627776)"),
    "too many": (lambda: tt.arange(2**62), ValueError, "4611686018427387904"),
    "large integers of NumPy": (lambda: tt.tensor([np.uint64(2**63), -1]), OverflowError, "floats"),
    "a large integer beside floats": (lambda: tt.tensor([2**64, 1.5]), OverflowError, "floats"),
    "a masked number": (lambda: tt.full(2, np.ma.masked), TypeError, "fill_value"),
    "a masked operand": (lambda: tt.ones(2) + np.ma.masked, TypeError, "add: y"),
    "pad without a sign": (lambda: tt.pad(tt.tensor([1], "uint8"), 1, constant_values=-1), OverflowError, "-1"),
    "pad with NaN": (lambda: tt.pad(small, 1, constant_values=math.nan), OverflowError, "nan"),
    "assigned NaN": (lambda: assigned(math.nan), OverflowError, "int8 cannot hold nan"),
    "assigned number of NumPy": (lambda: assigned(np.int64(300)), OverflowError, "int8 cannot hold 300"),
    "arange to nowhere": (lambda: tt.arange(math.inf), ValueError, "finite"),
    "linspace": (lambda: tt.linspace(0, 300, 3, dtype="int8"), OverflowError, "int8 cannot hold 300"),
    "where": (lambda: tt.where(condition, small, 300), OverflowError, "300"),
    "where, the first": (lambda: tt.where(condition, -129, small), OverflowError, "-129"),
    "where of numbers": (lambda: tt.where(condition, 2**63, 2), OverflowError, "where"),
    "masked_fill": (lambda: small.masked_fill(condition, 300), OverflowError, "300"),
    "pad": (lambda: tt.pad(small, 1, constant_values=300), OverflowError, "300"),
    "add": (lambda: small + 300, OverflowError, "300"),
    "maximum": (lambda: tt.maximum(small, 300), OverflowError, "300"),
    "assigned": (lambda: assigned(300), OverflowError, "300"),
    "assigned list": (lambda: assigned([1, 300]), OverflowError, "300"),
    "assigned text": (lambda: assigned("text"), TypeError, "numbers or booleans"),
    "assigned complex": (lambda: assigned(1j), TypeError, "numbers or booleans"),
    "assigned masked": (lambda: assigned(MASKED), TypeError, "masked"),
    "masked": (lambda: tt.tensor(MASKED), TypeError, "masked"),
    "masked in a list": (lambda: tt.tensor([MASKED, MASKED]), TypeError, "masked"),
    "masked index": (lambda: small[np.ma.array([0], mask=[True])], TypeError, "masked"),
    "objects": (lambda: tt.tensor([None]), TypeError, "numbers or booleans"),
    "dates": (lambda: tt.tensor(np.array(["2020"], "datetime64[Y]")), TypeError, "numbers or booleans"),
    "complex": (lambda: tt.full(2, 1j), TypeError, "fill_value must be a number"),
    "complex dtype": (lambda: tt.zeros(2, dtype=complex), TypeError, "dtype of numbers or booleans"),
    "object dtype": (lambda: tt.tensor([1], dtype=object), TypeError, "dtype of numbers or booleans"),
    "a negative length": (lambda: tt.zeros((2, -1)), ValueError, "(2, -1)"),
    "eye of a negative length": (lambda: tt.eye(-1), ValueError, "-1"),
}


@pytest.mark.parametrize(("act", "kind", "says"), REFUSED.values(), ids=REFUSED)
def test_what_a_tensor_cannot_hold_is_refused(act, kind, says):
    with pytest.raises(kind) as caught:
        act()
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("axis", [None, (), (0, 1), "0", 1.0, np.float64(0), True, [1.5], np.int64(0), 1])
def test_an_axis_means_what_it_says_or_is_refused(axis):
    x = np.array([[3.0, 1.0], [2.0, 5.0]])
    several = {"sum", "mean", "var", "std", "prod", "max", "min", "any", "all", "logsumexp", "norm", "flip"}
    one_or_none = {"argmax", "argmin", "cumsum", "cumprod", "sort", "argsort", "cummax", "cummin"}
    functions = [*several, *one_or_none, "softmax", "log_softmax", "glu", "diagonal", "concatenate", "stack", "topk", "split"]
    for name in [*functions, "take_along_axis", "index_add"]:
        wanted = (axis is None and name in several | one_or_none) or type(axis) in (int, np.int64)
        wanted |= name == "concatenate" and axis is None
        wanted |= type(axis) is tuple and name in several
        arguments = {"topk": [1], "split": [1], "take_along_axis": [tt.tensor([[0], [0]])], "index_add": [[0, 1], tt.tensor(x)]}
        operand = [tt.tensor(x)] * 2 if name in ("concatenate", "stack") else tt.tensor(x)
        setting = {"axis1" if name == "diagonal" else "axis": axis}
        if name == "diagonal" and axis in (1, "1"):
            continue  # both axes would be the same
        try:
            found = getattr(tt, name)(operand, *arguments.get(name, []), **setting)
        except TypeError as refused:
            assert name in str(refused)
            assert not wanted, (name, axis)
        else:
            assert wanted, (name, axis, found)
            if hasattr(np, name) and name not in ("split", "take_along_axis", "concatenate", "stack", "diagonal"):
                np.testing.assert_allclose(found.numpy(), getattr(np, name)(x, axis=axis), rtol=1e-6)
