"""The embedding gradient's CUDA kernels, run on the CPU by the fake CuPy, against NumPy in float64."""

from collections import Counter

import numpy as np
import pytest
from cuda_checks import assert_close, dtypes, in_each_order, numbers, wide

import tinytensor as tt
from tinytensor import kernels
from tinytensor.device.backend import xp

pytest.importorskip("ml_dtypes")

# Ids and how many rows the result has: a piece of 32 rows or less, some, or hundreds; ids that end where a piece does, that go
# on through many pieces, and that never occur.
IDS = {
    "none": ([], 3),
    "one": ([2], 3),
    "a piece": ([*range(32)], 32),
    "a piece and a row": ([7] * 33, 9),
    "ids of a piece each": ([i // 32 for i in range(96)], 4),
    "ids across pieces": ([i // 48 for i in range(240)], 6),
    "one id in many pieces": ([1] * 2500, 3),
    "one id in many pieces, between others": ([0] * 10 + [1] * 1200 + [2] * 10, 3),
    "all different": ([*range(299, -1, -1)], 300),
    "characters": (np.random.default_rng(0).integers(0, 65, 700).tolist(), 65),
    "words": (np.random.default_rng(0).zipf(1.3, 700).clip(max=69_999).tolist(), 70_000),
}


@dtypes
@pytest.mark.parametrize("name", IDS)
def test_sum_rows(monkeypatch, name, dtype):
    ids, num_rows = IDS[name]
    ids = xp.array(np.array(ids, "int64"))
    for width in (1, 3, 8, 33, 264) if num_rows < 1000 else (3, 8):
        rows, before = numbers((ids.size, width), dtype), numbers((num_rows, width), dtype, 1)
        for out in (xp.zeros(before.shape, dtype), before):
            got = in_each_order(monkeypatch, lambda rows=rows, out=out: [kernels.sum_rows(rows, ids, out.copy())])
            assert_close(got, [reference_sum_rows(rows, ids, out)], dtype, slack=8)


def reference_sum_rows(rows, ids, out):
    out = wide(out).get()
    np.add.at(out, ids.get(), wide(rows).get())
    return out


def sums(rows, ids, num_rows):
    return kernels.sum_rows(rows, ids, xp.zeros((num_rows, rows.shape[-1]), rows.dtype))


@dtypes
@pytest.mark.parametrize("kind", ["int8", "uint8", "int32", "uint64"])
def test_sum_rows_of_any_layout_and_kind_of_ids(monkeypatch, kind, dtype):
    ids = xp.array(np.random.default_rng(1).integers(0, 5, (2, 50)).astype(kind))
    strided = numbers((16, 50, 4), dtype).T[::2]
    shifted = numbers(1 + 100 * 16, dtype)[1:].reshape(2, 50, 16)
    for rows in (strided, shifted):
        both = (ids, ids.T.copy().T)
        before = numbers((5, rows.shape[-1]), dtype, 2)
        turned = before.T.copy().T
        got = in_each_order(monkeypatch, lambda r=rows, i=both, o=before: [kernels.sum_rows(r, own, o.copy()) for own in i])
        assert kernels.sum_rows(rows, ids, turned) is turned
        assert_close([*got, turned], 3 * [reference_sum_rows(rows, ids, before)], dtype, slack=8)


@pytest.mark.parametrize("shape", [(0, 4), (5, 0), (0, 0)], ids=str)
def test_sum_rows_of_nothing(shape):
    before = numbers((3, shape[1]), "float32")
    out = kernels.sum_rows(xp.ones(shape, "float32"), xp.zeros(shape[:1], "int64"), before.copy())
    np.testing.assert_array_equal(out.get(), before.get())


def test_sum_rows_of_bfloat16_adds_up_in_float32():
    ids = xp.array(np.arange(8192) % 2)
    assert sums(xp.ones((8192, 3), "bfloat16"), ids, 2).tolist() == [[4096.0] * 3] * 2  # else it would end at 256


def test_ids_outside_the_table_harm_nothing_else(monkeypatch):
    ids = np.random.default_rng(0).integers(1, 5, 400)
    rows, right = numbers((400, 4), "float32"), xp.array(ids)
    want = sums(rows, right, 5)[1:].get()
    others = numbers((400, 4), "float32", 1)
    for wrong in (-1, 5, 300, 1 << 40, -(1 << 40)):
        mixed = xp.concatenate([right, xp.full(400, wrong, "int64")])
        both = xp.concatenate([rows, others])
        got = in_each_order(monkeypatch, lambda m=mixed, b=both: [sums(b, m, 5)[1:]])
        np.testing.assert_allclose(got[0].get(), want, rtol=1e-5, atol=1e-5)


def test_many_rows_of_one_id_are_added_up_in_double():
    rows = xp.ones((1 << 14, 1), "float32")
    rows[:1] = 2.0**30  # in float32 this plus the sum of a piece is 2**30
    np.testing.assert_allclose(sums(rows, xp.zeros(len(rows), "int64"), 1).get(), 2.0**30 + len(rows), rtol=2**-23)


def test_sum_rows_never_waits():
    rows, ids, before = xp.ones((100, 4)), xp.arange(100), xp.synchronizations
    sums(rows, ids, 100)
    assert xp.synchronizations == before


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_table_that_is_the_output_layer_too_gets_one_array_of_gradients(dtype):
    """Beside two tables of the same values, its gradient takes one array of zeros less, and no addition."""
    ids = tt.tensor(np.random.default_rng(0).integers(0, 40, (2, 50)))

    def gradients(*tables):
        x = tt.embedding(ids, tables[0]) * 0.5
        loss = tt.linear_cross_entropy(x, tables[-1], ids, reduction="sum")
        first = len(xp.launches)
        return tt.grad(loss, tables), Counter(xp.launches[first:])

    table = [tt.tensor(numbers((40, 24), dtype), dtype=dtype, requires_grad=True) for _ in range(2)]
    (tied,), found = gradients(table[0])
    apart, of_two = gradients(*table)
    assert of_two - found == {"zeros": 1} and found <= of_two
    if dtype == "float32":
        np.testing.assert_array_equal(tied.numpy(), (apart[0] + apart[1]).numpy())
    else:  # two tables' gradients are rounded once more before they are added up
        assert_close([tied.data], [wide(apart[0].data) + wide(apart[1].data)], dtype)
