"""The matrix products of the kernels, for every memory layout of an array. On CuPy: the calls of cuBLAS."""

from __future__ import annotations

import math
import threading
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tinytensor as tt
from tinytensor import kernels
from tinytensor.autograd import modes
from tinytensor.device import backend
from tinytensor.device.backend import from_numpy, to_numpy, xp

ml_dtypes = pytest.importorskip("ml_dtypes")

BITS = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}
TF32_BITS = 10
DTYPES = ["float32", "float64"] if backend.name == "numpy" else list(BITS)  # NumPy sums half precision in half precision

on_cublas = pytest.mark.needs("cupy")


def random_array(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    values = np.random.default_rng([seed, *shape]).standard_normal(shape)
    return from_numpy(values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype))


def expected(a: Any, b: Any) -> Any:
    return to_numpy(a).astype(np.float64) @ to_numpy(b).astype(np.float64)


def check(out: Any, a: Any, b: Any, dtype: str, bits: int | None = None) -> None:
    assert out.dtype.name == dtype
    size = np.abs(to_numpy(a).astype(np.float64)) @ np.abs(to_numpy(b).astype(np.float64))
    assert out.shape == size.shape
    error = np.abs(to_numpy(out).astype(np.float64) - expected(a, b))
    assert (error <= 4 * 2.0 ** -(bits or BITS[dtype]) * size + 1e-7 * (dtype == "float16")).all()


# ------------------------------------------------------------------------------------------------- any views at all


@st.composite
def views(draw: Any, shape: tuple[int, ...], writable: bool = False) -> Any:
    """How to make an array of this shape: with axes in any order in memory, with gaps, reversed, or broadcast."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 1, 2, -1])) for _ in shape]
    margins = [draw(st.integers(0, 2)) for _ in shape]
    spread = [not writable and draw(st.integers(0, 5)) == 0 for _ in shape]
    return shape, order, steps, margins, spread


def make_view(description: Any, dtype: str, seed: int) -> tuple[Any, Any]:
    """The array, and the one whose memory it is in."""
    shape, order, steps, margins, spread = description
    lengths = [1 if s else abs(step) * n + margin for n, step, margin, s in zip(shape, steps, margins, spread)]
    owner = random_array(tuple(lengths[axis] for axis in order), dtype, seed)
    view = owner.transpose(*np.argsort(order).tolist())
    cuts = [
        slice(None) if s else slice(margin, margin + step * n, step) if step > 0 else slice(n - 1, None, -1)
        for n, step, margin, s in zip(shape, steps, margins, spread)
    ]
    cuts = [slice(0, 0) if n == 0 else cut for n, cut in zip(shape, cuts)]
    view = view[tuple(cuts)]
    return xp.broadcast_to(view, shape) if any(spread) else view, owner


@st.composite
def products(draw: Any) -> Any:
    n, k, m = (draw(st.sampled_from([1, 2, 3, 4, 1, 2, 3, 0])) for _ in range(3))
    lead = [draw(st.sampled_from([1, 2, 3, 2, 3, 0])) for _ in range(draw(st.integers(0, 3)))]

    def part() -> tuple[int, ...]:
        kept = lead[draw(st.integers(0, len(lead))) :]
        return tuple(draw(st.sampled_from([n, n, 1])) for n in kept)

    a, b = (*part(), n, k), (*part(), k, m)
    shape = (*np.broadcast_shapes(a[:-2], b[:-2]), n, m)
    dtype = draw(st.sampled_from(DTYPES))
    return draw(views(a)), draw(views(b)), draw(st.none() | views(shape, writable=True)), dtype


def check_product(case: Any) -> Any:
    """The product, checked, and that nothing beside it was written."""
    how_a, how_b, how_out, dtype = case
    a, b = make_view(how_a, dtype, 1)[0], make_view(how_b, dtype, 2)[0]
    if how_out is None:
        out = kernels.matmul(a, b)
        check(out, a, b, dtype)
        return out
    out, owner = make_view(how_out, dtype, 3)
    before = to_numpy(owner).copy()
    assert kernels.matmul(a, b, out=out) is out
    check(out, a, b, dtype)
    product = out.copy()
    out[...] = 0
    untouched = to_numpy(owner) != 0
    assert (to_numpy(owner)[untouched] == before[untouched]).all()
    assert untouched.sum() >= (before != 0).sum() - math.prod(out.shape), "something outside of out was written"
    return product


@settings(max_examples=250)
@given(products())
def test_any_views_of_any_shapes(case: Any) -> None:
    check_product(case)


@on_cublas
@settings(max_examples=200)
@given(products())
def test_any_views_by_cublaslt(case: Any) -> None:
    plain = check_product(case)
    with mock.patch.object(kernels.cupy.cublaslt, "is_on_everywhere", True):
        product = check_product(case)
    if hasattr(xp, "kernel_launches"):  # the fake CuPy; a GPU may add up in another order
        assert product.get().tobytes() == plain.get().tobytes()


def test_dtypes_are_promoted() -> None:
    a, b = random_array((2, 3, 4), "float32"), random_array((4, 5), "float64")
    check(kernels.matmul(a, b), a, b, "float64")
    whole = from_numpy(np.arange(12).reshape(1, 3, 4))
    assert kernels.matmul(whole, whole.transpose(0, 2, 1)).tolist() == expected(whole, whole.transpose(0, 2, 1)).tolist()


@pytest.mark.parametrize(
    ("a", "b", "out"),
    [
        ((3, 4), (3, 4), None),
        ((2, 3, 4), (3, 4, 5), None),
        ((3, 4), (4, 5), (5, 3)),
        pytest.param((3, 4), (4, 5), (1, 3, 5), marks=on_cublas),  # NumPy broadcasts to out
    ],
)
def test_shapes_that_do_not_fit(a: Any, b: Any, out: Any) -> None:
    given_out = None if out is None else xp.zeros(out, "float32")
    with pytest.raises(ValueError):
        kernels.matmul(random_array(a, "float32"), random_array(b, "float32"), out=given_out)


def test_nothing_is_added_to_what_out_held() -> None:
    out = xp.full((2, 2), math.nan, "float32")
    a = random_array((2, 3), "float32")
    check(kernels.matmul(a, a.T, out=out), a, a.T, "float32")
    assert to_numpy(kernels.matmul(a[:, :0], a.T[:0], out=out)).tolist() == [[0, 0], [0, 0]]


@on_cublas
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("step", [1, 2])  # one is written in place, the other is copied
def test_out_in_float32_is_not_rounded(dtype: str, step: int) -> None:
    a, b = random_array((2, 3, 5, 4), dtype), random_array((2, 3, 6, 4), dtype).swapaxes(-1, -2)
    out = xp.zeros((3, 2, 5, 6 * step), "float32").swapaxes(0, 1)[..., ::step]
    assert kernels.matmul(a, b, out=out) is out
    check(out, a, b, "float32")
    with pytest.raises(ValueError, match="got float64"):
        kernels.matmul(a, b, out=xp.zeros(out.shape, "float64"))
    with pytest.raises(ValueError, match="got bfloat16"):
        kernels.matmul(out, out.swapaxes(-1, -2), out=xp.zeros((2, 3, 5, 5), "bfloat16"))


# ---------------------------------------------------------------------------------------------- what cuBLAS is told


def packed() -> list[Any]:
    """Queries, keys and values (batch 2, heads 3, T 5, width 4), packed in the last axis as by a projection."""
    return list(random_array((2, 5, 3 * 3 * 4), "float32").reshape(2, 5, 3, 3, 4).transpose(2, 0, 3, 1, 4))


LAYOUTS: dict[str, tuple[Any, list[tuple[str, int]]]] = {
    "matrices": (lambda: (random_array((3, 4), "float32"), random_array((4, 5), "float32")), [("gemmEx", 1)]),
    "transposed matrices": (lambda: (random_array((4, 3), "float32").T, random_array((5, 4), "float32").T), [("gemmEx", 1)]),
    "columns of a wider matrix": (
        lambda: (random_array((3, 9), "float32")[:, 2:6], random_array((4, 9), "float32")[:, 1:6]),
        [("gemmEx", 1)],
    ),
    "a batch": (
        lambda: (random_array((6, 3, 4), "float32"), random_array((6, 4, 5), "float32")),
        [("gemmStridedBatchedEx", 6)],
    ),
    "two leading axes in one": (
        lambda: (random_array((2, 3, 5, 4), "float32"), random_array((2, 3, 5, 4), "float32").swapaxes(-1, -2)),
        [("gemmStridedBatchedEx", 6)],
    ),
    "one matrix for the batch": (
        lambda: (random_array((6, 3, 4), "float32"), random_array((4, 5), "float32")),
        [("gemmStridedBatchedEx", 6)],
    ),
    "packed heads: a call for the shorter axis": (
        lambda: (packed()[0], packed()[1].swapaxes(-1, -2)),
        [("gemmStridedBatchedEx", 3)] * 2,
    ),
    "a broadcast axis between two others": (
        lambda: (random_array((2, 1, 3, 5, 4), "float32"), random_array((2, 7, 3, 4, 5), "float32")),
        [("gemmStridedBatchedEx", 7)] * 6,
    ),
}


@pytest.mark.needs("standin")  # which keeps a list of the calls
@pytest.mark.parametrize("name", LAYOUTS)
def test_what_lies_well_is_read_as_it_lies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from cupy_backends.cuda.libs import cublas

    make, calls = LAYOUTS[name]
    a, b = make()
    monkeypatch.setattr(kernels.cupy.products, "_with_copies", None)
    cublas.calls.clear()
    out = kernels.matmul(a, b)
    assert cublas.calls == calls
    check(out, a, b, "float32")


@on_cublas
@pytest.mark.parametrize("which", ["a", "b"])
def test_what_does_not_is_copied_alone(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = {"a": random_array((3, 4), "float32"), "b": random_array((4, 5), "float32")}
    arrays[which] = random_array((8, 10), "float32")[:: 2 if which == "b" else 3, ::2][:, : 4 if which == "a" else 5]
    copied = []
    monkeypatch.setattr(type(arrays["a"]), "copy", lambda x: copied.append(x) or xp.ascontiguousarray(x))
    check(kernels.matmul(**arrays), arrays["a"], arrays["b"], "float32")
    assert len(copied) == 1 and copied[0] is arrays[which]


@on_cublas
def test_half_precision_is_added_up_in_single() -> None:
    ones = from_numpy(np.ones((1, 4096), ml_dtypes.bfloat16))
    assert to_numpy(kernels.matmul(ones, ones.T)).astype(float).tolist() == [[4096.0]]  # in bfloat16 it would stop at 256


ACCUMULATED = [(dtype, dtype) for dtype in BITS] + [("bfloat16", "float32"), ("float16", "float32")]


@on_cublas
@pytest.mark.parametrize(("dtype", "out_dtype"), ACCUMULATED)
@pytest.mark.parametrize("layout", ["rows", "columns", "strided", "batches", "nothing"])
def test_a_product_can_be_added_to_out(layout: str, dtype: str, out_dtype: str) -> None:
    k = 0 if layout == "nothing" else 4
    a, b = random_array((2, 7, 3, k), dtype), random_array((2, 1, k, 5), dtype, 1)
    if layout != "batches":
        a, b = a[1, 1], b[1, 0]
    held = random_array((*a.shape[:-1], 10 if layout == "strided" else 5), out_dtype, 2)
    out = held[..., ::2] if layout == "strided" else xp.ascontiguousarray(held.T).T if layout == "columns" else held
    before = to_numpy(out).astype(np.float64)
    for times in (1, 2):
        assert kernels.matmul(a, b, out=out, accumulate=True) is out
        want = before + times * expected(a, b)
        error = np.abs(to_numpy(out).astype(np.float64) - want)
        assert (error <= 4 * 2.0 ** -BITS[out_dtype] * (4 + np.abs(want))).all()
    assert out.dtype.name == out_dtype
    kernels.matmul(a, b, out=out)
    assert np.abs(to_numpy(out).astype(np.float64) - expected(a, b)).max() <= 2.0 ** (4 - BITS[out_dtype])


@on_cublas
@pytest.mark.parametrize(("dtype", "out_dtype"), [("float32", "bfloat16"), ("bfloat16", "float16"), ("float32", "float64")])
def test_no_other_dtype_of_out(dtype: str, out_dtype: str) -> None:
    a, out = random_array((3, 3), dtype), random_array((3, 3), out_dtype)
    with pytest.raises(ValueError, match=f"out must be .*, got {out_dtype}"):
        kernels.matmul(a, a, out=out)


# ------------------------------------------------------------------------------------------------- TF32, and without


def error_of_a_product() -> float:
    a, b = tt.tensor(random_array((2, 8, 16), "float32", 1)), tt.tensor(random_array((2, 16, 8), "float32", 2))
    return float(np.abs((a @ b).numpy() - expected(a.data, b.data)).max())


@on_cublas
@modes.Switched("full_precision", False)
def test_tf32_by_default_and_full_precision_where_asked() -> None:
    exact = 2.0 ** -(TF32_BITS + 6)
    assert exact < error_of_a_product() < 2.0 ** -(TF32_BITS - 4)
    with tt.full_precision():
        assert error_of_a_product() < exact
        errors: list[float] = []
        same = modes.modes()

        def in_a_thread() -> None:
            with modes.Switched("full_precision", False), modes.restored(same):
                errors.append(error_of_a_product())

        worker = threading.Thread(target=in_a_thread)
        worker.start()
        worker.join()
        assert errors[0] < exact, "a shard's thread has the precision of the one that started it"
    assert error_of_a_product() > exact, "the context ends"


@on_cublas
@modes.Switched("full_precision", False)
def test_tf32_leaves_other_dtypes_alone() -> None:
    for dtype in ("float64", "float16", "bfloat16"):
        a, b = random_array((2, 3, 4), dtype), random_array((4, 5), dtype)
        check(kernels.matmul(a, b), a, b, dtype)


@modes.Switched("full_precision", False)
def test_gradients_are_checked_in_full_precision() -> None:
    seen = []

    def f(x: tt.Tensor) -> tt.Tensor:
        seen.append(modes.modes().full_precision)
        return x * x

    tt.gradcheck(f, tt.tensor([1.0, 2.0], dtype="float64", requires_grad=True))
    assert seen and all(seen) and not modes.modes().full_precision


def test_the_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, expected in [("", False), ("1", False), ("0", True)]:
        monkeypatch.setenv("TINYTENSOR_TF32", value)
        assert modes._is_full_everywhere() is expected
    monkeypatch.delenv("TINYTENSOR_TF32")
    assert not modes._is_full_everywhere()


def test_another_value_of_the_environment_variable(python: Any) -> None:
    run = python("import tinytensor", TINYTENSOR_BACKEND="numpy", TINYTENSOR_TF32="maybe")
    assert run.returncode and "BackendError: TINYTENSOR_TF32='maybe' must be '1' (the default) or '0'" in run.stderr
