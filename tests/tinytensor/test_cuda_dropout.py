"""Dropout's CUDA kernels, run on the CPU by the fake CuPy: the masks are NumPy's bit for bit."""

import math

import numpy as np
import pytest
from cuda_checks import assert_close, dtypes, in_each_order, numbers, wide

from tinytensor import kernels
from tinytensor.device.backend import xp
from tinytensor.kernels import numpy as reference

pytest.importorskip("ml_dtypes")

SHAPES = [(), (0,), (1,), (3,), (8,), (5, 7), (2, 3, 64), (1000,), (2051,), (41, 129)]
RANDOM_KEYS = [(0, 0), (1, 2), ((1 << 64) - 1, (1 << 64) - 1), (0x0123456789ABCDEF, 0xFEDCBA9876543210)]
KEEP_PROBABILITIES = [0.0, 1 / 512, 0.3, 0.5, 0.9, 1.0]  # some with ties, which further bits decide: 1 in 256 elements


@pytest.mark.parametrize("random_key", RANDOM_KEYS)
@pytest.mark.parametrize("keep_probability", KEEP_PROBABILITIES)
def test_keep_mask_is_that_of_numpy_bit_for_bit(monkeypatch, random_key, keep_probability):
    for shape in [(), (0,), (3, 0, 2), (1,), (31,), (32,), (33,), (1023,), (1025,), (3, 5, 7, 9), (64, 33), (10_007,)]:
        (got,) = in_each_order(monkeypatch, lambda shape=shape: [kernels.keep_mask(random_key, shape, keep_probability)])
        want = reference.keep_mask(random_key, shape, keep_probability)
        assert (got.shape, got.dtype) == (shape, bool)
        np.testing.assert_array_equal(got.get(), want.get())


def dropped(module, needed, x, residual, g, keep_probability):
    """The output and the gradients."""
    settings = (needed, x, residual, RANDOM_KEYS[3], keep_probability)
    out, kept = module.dropout_forward(*settings)
    return [out, *module.dropout_backward(g, kept, needed, RANDOM_KEYS[3], keep_probability)]


@dtypes
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("with_residual", [False, True])
def test_dropout(monkeypatch, shape, dtype, with_residual):
    x, g = numbers(shape, dtype), numbers(shape, dtype, 1)
    residual = numbers(shape, dtype, 2) if with_residual else None
    for keep_probability in KEEP_PROBABILITIES:
        arguments = ([True, with_residual], x, residual, g, keep_probability)
        got = in_each_order(monkeypatch, lambda arguments=arguments: dropped(kernels, *arguments))
        want = dropped(reference, *[wide(a) for a in arguments])
        assert_close(got, want, dtype)
        kept = reference.keep_mask(RANDOM_KEYS[3], shape, keep_probability).get().sum()
        assert np.count_nonzero(got[1].get().astype(float)) == kept


@dtypes
def test_dropout_of_arrays_that_are_not_aligned_or_not_contiguous(monkeypatch, dtype):
    whole = [numbers(2055, dtype, seed) for seed in range(3)]
    alone = [[x[1:] if i == shifted else x[1:].copy() for i, x in enumerate(whole)] for shifted in range(3)]
    strided = [numbers((40, 66), dtype, seed).T[::2] for seed in range(3)]
    for x, residual, g in (*alone, strided):
        arguments = ([True, True], x, residual, g, 0.7)
        got = in_each_order(monkeypatch, lambda arguments=arguments: dropped(kernels, *arguments))
        assert_close(got, dropped(reference, *[wide(a) for a in arguments]), dtype)


def test_dropout_of_infinity_gives_zero_where_it_is_dropped():
    out = kernels.dropout_forward([False, False], xp.full(1000, math.inf, "float32"), None, RANDOM_KEYS[1], 0.5)[0].get()
    keep = reference.keep_mask(RANDOM_KEYS[1], (1000,), 0.5).get()
    assert (out == np.where(keep, math.inf, 0.0)).all()
