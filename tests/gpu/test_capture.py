"""Captured steps and cuBLASLt on the GPU itself: the bits of the same steps without a graph."""

import experiments
import numpy as np
import pytest
from closeness import assert_close, assert_same_bits
from test_device import waits

from tinytensor import kernels
from tinytensor.autograd.replaying import TrainingStep
from tinytensor.device.backend import xp
from tinytensor.replay import capture

dtypes = pytest.mark.parametrize("dtype", ["float32", "bfloat16"])


@pytest.fixture
def by_cublaslt(monkeypatch):
    monkeypatch.setattr(kernels.cupy.cublaslt, "is_on_everywhere", True)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("name", ["linear", "products of a batch", "attention, causal", "linear cross-entropy"])
def test_products_by_cublaslt_equal_those_of_numpy(by_cublaslt, on_numpy, name, dtype):
    slack = 2.0 if name == "linear cross-entropy" else 1.0
    assert_close(experiments.op(name, dtype), on_numpy("op", name), dtype, slack)
    assert_same_bits(experiments.op(name, dtype), experiments.op(name, dtype))


@dtypes
def test_a_run_of_captured_steps_is_the_run(by_cublaslt, monkeypatch, dtype):
    expected = experiments.training(dtype)
    monkeypatch.setattr(capture, "is_wanted", True)
    assert_same_bits(experiments.training(dtype), expected)


@dtypes
def test_a_captured_step_waits_for_nothing(monkeypatch, dtype):
    monkeypatch.setattr(capture, "is_wanted", True)
    trainer = experiments.trainer(experiments.model(dropout=0.1), dtype=dtype)
    experiments.losses_of(6, trainer)
    xp.cuda.Device().synchronize()
    assert not waits(trainer.train_step)


def test_a_captured_step_reads_no_values(monkeypatch):
    monkeypatch.setattr(capture, "is_wanted", True)
    trainer = experiments.trainer(experiments.model())
    loss = trainer.loss_function
    experiments.losses_of(3, trainer)
    trainer._team.member.loss_function = lambda *given: loss(*given) * float(loss(*given))
    with pytest.raises(capture.CaptureError, match="reading a value"):
        trainer.train_step()
    xp.cuda.Device().synchronize()
    assert float(xp.ones(3).sum()) == 3.0  # the GPU goes on


@pytest.mark.parametrize("count", [1, 700, experiments.by_size(16384, 1000)])
def test_ids_are_sorted_as_by_cupy(monkeypatch, count):
    from tinytensor.kernels.cupy.embedding import order_of

    ids = xp.array(np.random.default_rng(0).zipf(1.2, count).clip(max=50303))
    expected = order_of(ids, 50304).get()
    monkeypatch.setattr(TrainingStep, "is_captured", True)
    np.testing.assert_array_equal(order_of(ids, 50304).get(), expected)
