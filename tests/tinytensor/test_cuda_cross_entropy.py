"""Cross-entropy's CUDA kernels, also with the output layer, run on the CPU by the fake CuPy, against NumPy's in float64."""

import itertools
import math

import numpy as np
import pytest
from cuda_checks import assert_close, dtypes, in_each_order, numbers, wide

from tinytensor import kernels
from tinytensor.device.backend import xp
from tinytensor.kernels import numpy as reference

pytest.importorskip("ml_dtypes")


@pytest.fixture(autouse=True)
def numpy_kernels_compute_with_numpy(monkeypatch):
    monkeypatch.setattr("tinytensor.kernels.numpy.cross_entropy.xp", np)
    monkeypatch.setattr("tinytensor.kernels.numpy.products.xp", np)


LOSS = {"float64": "float64", "float32": "float32", "bfloat16": "float32"}  # the dtype of the loss
CLASSES = [(0, 5), (1, 1), (3, 1), (5, 7), (6, 65), (4, 8), (9, 64), (2, 2048), (3, 2049), (2, 4099)]
classes = pytest.mark.parametrize("shape", CLASSES, ids=str)


def classified(shape, dtype, ignored=-100):
    """Logits, and targets every third of which is ignored."""
    rows, count = shape
    targets = np.random.default_rng(5).integers(0, count, rows)
    targets[2::3] = ignored
    return (numbers(shape, dtype) * 4.0).astype(dtype), xp.array(targets)


def losses_and_gradient(module, logits, targets, *settings):
    if module is reference:
        logits, targets = wide(logits).get(), targets.get()
    loss, kept = module.cross_entropy_forward([True], logits, targets, *settings)
    g = numbers(loss.shape, loss.dtype.name, 1)
    g = g.get() if module is reference else g
    return [loss, *module.cross_entropy_backward(g, kept, [True], logits, targets, *settings)]


def assert_losses_close(got, want, dtype, slack=1):
    assert_close(got[:1], want[:1], LOSS[dtype], slack)
    assert_close(got[1:], want[1:], dtype, slack)


@dtypes
@classes
def test_cross_entropy(monkeypatch, shape, dtype):
    logits, targets = classified(shape, dtype)
    for reduction, smoothing in [("mean", 0.0), ("mean", 0.1), ("sum", 0.1), ("none", 0.0)]:
        settings = (targets, -100, smoothing, reduction)
        got = in_each_order(monkeypatch, lambda settings=settings: losses_and_gradient(kernels, logits, *settings))
        assert_losses_close(got, losses_and_gradient(reference, logits, *settings), dtype)
        loss, kept = kernels.cross_entropy_forward([False], logits, *settings)
        assert kept[0] is None and loss.get().tobytes() == got[0].get().tobytes()


@dtypes
@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "int32", "uint64"])
def test_cross_entropy_of_any_layout_and_kind_of_targets(monkeypatch, kind, dtype):
    logits, targets = classified((12, 37), dtype, ignored=3)
    shifted = xp.empty(12 * 37 + 1, dtype)[1:].reshape(12, 37)
    shifted[...] = logits
    strided = numbers((37, 24), dtype).T[::2].reshape(3, 4, 37)
    targets = xp.repeat(targets.astype(kind), 2)[::2]
    for x, y in ((logits, targets), (shifted, targets), (strided, targets.reshape(3, 4)), (logits[0], targets[0])):
        for reduction in ("mean", "none"):
            got = in_each_order(monkeypatch, lambda x=x, y=y, r=reduction: losses_and_gradient(kernels, x, y, 3, 0.1, r))
            assert_losses_close(got, losses_and_gradient(reference, x, y, 3, 0.1, reduction), dtype)


def test_cross_entropy_sums_more_rows_than_it_has_threads(monkeypatch):
    logits, targets = classified((2500, 5), "float32")
    for reduction in ("mean", "sum"):
        got = in_each_order(monkeypatch, lambda r=reduction: losses_and_gradient(kernels, logits, targets, -100, 0.0, r))
        assert_losses_close(got, losses_and_gradient(reference, logits, targets, -100, 0.0, reduction), "float32")


@pytest.mark.parametrize("width", [40, 3000])
def test_cross_entropy_of_extreme_logits(width):
    logits, targets = classified((6, width), "float32")
    logits = logits + 1e4
    logits[0, 5:] = -math.inf  # masked: impossible classes
    logits[1, :] = -3e38
    logits[1, 0] = 3e38
    logits[2, :] = math.nan  # ignored
    logits[3, :] = logits[3, :] - 2e4
    targets[:3] = xp.array([3, 0, -100])
    loss, gradient = losses_and_gradient(kernels, logits, targets, -100, 0.0, "none")
    logits[2, :] = 0.0
    want = losses_and_gradient(reference, logits, targets, -100, 0.0, "none")
    assert_losses_close([loss, gradient], want, "float32", slack=200)
    assert float(loss[1]) == float(loss[2]) == 0 and not gradient[2].get().any()
    for wrong in (math.nan, math.inf):
        logits[4, width // 2] = wrong
        assert np.isnan(kernels.cross_entropy_forward([False], logits, targets, -100, 0.0, "none")[0].get()).tolist() == [
            *[False] * 4, True, False
        ]  # fmt: skip


@pytest.mark.parametrize("width", [40, 3000])
def test_a_target_that_is_no_class_shows_and_harms_no_other_row(monkeypatch, width):
    logits, targets = classified((5, width), "float32", ignored=0)
    want = losses_and_gradient(reference, logits, targets, 0, 0.0, "none")
    right = targets.copy()
    targets[0], targets[1], targets[4] = -1, width, 1 << 60
    loss, gradient = in_each_order(monkeypatch, lambda: losses_and_gradient(kernels, logits, targets, 0, 0.0, "none"))
    assert np.isnan(loss.get()).tolist() == [True, True, False, False, True]
    assert_losses_close([loss[2:4], gradient[2:4]], [want[0][2:4], want[1][2:4]], "float32")
    assert np.isfinite(gradient.get()).all()
    x, weight = numbers((5, 4), "float32"), numbers((width, 4), "float32", 1)
    wrong, right = [in_each_order(monkeypatch, lambda t=t: linear_losses(kernels, x, weight, t)) for t in (targets, right)]
    assert np.isnan(wrong[0].get())
    assert (wrong[1][2:4] == right[1][2:4]).all()


def test_cross_entropy_without_classes():
    with pytest.raises(ValueError, match="at least one class"):
        kernels.cross_entropy_forward([False], xp.zeros((2, 0)), xp.array([0, 0]), -100, 0.0, "sum")


def linear_losses(module, x, weight, targets, ignored=-100, smoothing=0.1, reduction="sum", needed=(True, True)):
    if module is reference:
        x, weight, targets = wide(x).get(), wide(weight).get(), targets.get()
    settings = (x, weight, targets, ignored, smoothing, reduction)
    loss, kept = module.linear_cross_entropy_forward(needed, *settings)
    g = (np if module is reference else xp).array(0.75, loss.dtype)
    return [loss, *module.linear_cross_entropy_backward(g, kept, needed, *settings)]


@dtypes
@classes
def test_linear_cross_entropy(monkeypatch, shape, dtype):
    targets = classified(shape, dtype)[1]
    x, weight = numbers((shape[0], 24), dtype), (numbers((shape[1], 24), dtype, 1) * 0.5).astype(dtype)
    for rows_at_a_time, reduction in [(100, "mean"), (2, "sum"), (3, "mean"), (3, "sum")]:
        monkeypatch.setattr("tinytensor.kernels.cupy.cross_entropy._CHUNK", rows_at_a_time * shape[1])
        got = in_each_order(monkeypatch, lambda r=reduction: linear_losses(kernels, x, weight, targets, reduction=r))
        want = linear_losses(reference, x, weight, targets, reduction=reduction)
        assert got[0].dtype == LOSS[dtype]  # but as exact as the logits, which are rounded as a linear layer's are
        assert_close([got[0].astype(dtype), *got[1:]], want, dtype, slack=1 if dtype == "float64" else 4)


@pytest.mark.parametrize("needed", list(itertools.product([False, True], repeat=2)), ids=str)
def test_linear_cross_entropy_computes_what_is_needed(needed):
    targets = classified((6, 7), "float64")[1].reshape(2, 3)
    x, weight = numbers((4, 3, 2), "float64").T, numbers((4, 7), "float64", 1).T
    got = linear_losses(kernels, x, weight, targets, needed=needed)
    assert [gradient is not None for gradient in got[1:]] == list(needed)
    assert_close(got, linear_losses(reference, x, weight, targets, needed=needed), "float64")


def test_linear_cross_entropy_of_bfloat16_adds_many_chunks_up_in_float32(monkeypatch):
    monkeypatch.setattr("tinytensor.kernels.cupy.cross_entropy._CHUNK", 8)
    x, weight, targets = xp.ones((2048, 2), "bfloat16"), xp.zeros((4, 2), "bfloat16"), xp.zeros(2048, "int64")
    _, _, gradient = linear_losses(kernels, x, weight, targets, smoothing=0.0)
    assert gradient[:, 0].tolist() == [-1152.0, 384.0, 384.0, 384.0]  # one by one, bfloat16 would not come further than 128


def test_losses_never_wait():
    (logits, targets), rows = classified((40, 7), "float32"), numbers((40, 6), "float32")
    weight, before = numbers((7, 6), "float32", 1), xp.synchronizations
    for reduction in ("mean", "sum"):
        losses_and_gradient(kernels, logits, targets, -100, 0.1, reduction)
        linear_losses(kernels, rows, weight, targets, reduction=reduction)
    assert xp.synchronizations == before
