"""Ops with kernels, at the sizes of training, against the NumPy backend in float64; and the same bits every time."""

import experiments
import numpy as np
import pytest
from closeness import assert_close, assert_same_bits
from kernel_times import NAMES, watched
from op_cases import OPS

dtypes = pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
every_op = pytest.mark.parametrize("name", OPS)


@every_op
@dtypes
def test_ops_equal_those_of_numpy(on_numpy, name, dtype):
    slack = 2.0 if name == "linear cross-entropy" else 1.0  # of bfloat16 its logits are bfloat16 too: rounded once more
    assert_close(experiments.op(name, dtype), on_numpy("op", name), dtype, slack)


@every_op
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_second_run_has_the_same_bits(name, dtype):
    assert_same_bits(experiments.op(name, dtype), experiments.op(name, dtype))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_optimizers_equal_those_of_numpy(on_numpy, dtype):
    assert_close(experiments.optimizers(dtype), on_numpy("optimizers", "float64"), dtype)
    assert_same_bits(experiments.optimizers(dtype), experiments.optimizers(dtype))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_steps_of_word2vec_equal_those_of_numpy(on_numpy, dtype):
    assert_close(experiments.negative_sampling(dtype), on_numpy("negative_sampling", "float64"), dtype)
    assert_same_bits(experiments.negative_sampling(dtype), experiments.negative_sampling(dtype))


def test_products_with_weights_of_fewer_bits_equal_those_of_numpy(on_numpy):
    assert_close(experiments.quantized(), on_numpy("quantized"))
    assert_same_bits(experiments.quantized(), experiments.quantized())


def test_dropout_masks_are_those_of_numpy_to_the_bit(on_numpy):
    found, expected = experiments.masks(), on_numpy("masks")
    assert_same_bits(found, expected)
    assert 0 < np.mean(next(iter(expected.values()))) < 1


def test_every_kernel_of_the_slot_is_reached():
    called = set()
    with watched(called.add):
        for name in OPS:
            experiments.op(name, "float32")
        experiments.optimizers()
        experiments.negative_sampling()
        experiments.quantized()
        experiments.masks()
    # A number, views, and what changes nothing on a GPU: no kernels.
    assert set(NAMES) - called <= {"survivors_scale", "join_heads", "queries_keys_values", "fuse", "elementwise"}
