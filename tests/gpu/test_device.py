"""The GPU: a step does not synchronize, out-of-memory errors are reported and free memory, and TF32 is set correctly."""

import experiments
import numpy as np
import pytest

import tinytensor as tt
from tinytensor.autograd.modes import Switched
from tinytensor.device import backend
from tinytensor.device.backend import xp
from tinytensor.functional import attention as attention_module

BUSY = """
extern "C" __global__ void wait(long long nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - start < nanoseconds);
}
"""


def waits(action):
    """Whether the action waits for the GPU: its work is queued behind a kernel that keeps the GPU busy for two seconds, and
    when it returns, that kernel should still run. The fake CuPy counts."""
    if experiments.IS_STAND_IN:
        before = xp.synchronizations
        action()
        return xp.synchronizations > before
    busy, done = xp.RawKernel(BUSY, "wait"), xp.cuda.Event()
    busy((1,), (1,), (1000,))  # compiled, and loaded
    xp.cuda.Device().synchronize()
    busy((1,), (1,), (2 * 10**9,))
    done.record()
    action()
    waited = done.done
    xp.cuda.Device().synchronize()
    return waited


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_training_step_waits_for_nothing(dtype):
    # One layer, as the driver queues about a thousand kernels and then waits for room.
    trainer = experiments.trainer(experiments.model(num_layers=1, dropout=0.1), dtype=dtype)
    experiments.losses_of(5, trainer)  # so that all memory is there, and all kernels are compiled
    assert not waits(trainer.train_step)


def test_what_reads_a_number_waits():
    x = tt.ones(3)
    assert waits(lambda: x.sum().item())


def test_running_out_of_memory_is_reported_and_survived(monkeypatch):
    total = xp.cuda.runtime.memGetInfo()[1]
    if experiments.IS_STAND_IN:
        monkeypatch.setattr(xp.cuda, "limit", total)
    before = experiments.training(steps=3)
    with pytest.raises(MemoryError) as error:
        tt.zeros((total // 4 + 1,)).exp()
    assert "of GPU memory were requested, and" in backend.out_of_memory(error.value)
    after = experiments.training(steps=3)
    np.testing.assert_array_equal(before["losses"], after["losses"])


def test_a_step_that_runs_out_of_memory_frees_it(monkeypatch):
    """Unreachable activations are freed, so a smaller step fits."""
    trainer = experiments.trainer(experiments.model())
    weights = {name: value.numpy().copy() for name, value in trainer.model.state_dict().items()}
    calls = []

    def no_room(*arguments, **settings):
        calls.append(1)
        if len(calls) == 2:  # in the second layer
            tt.zeros((2 * xp.cuda.runtime.memGetInfo()[1] // 4,))
        return attention(*arguments, **settings)

    attention = attention_module._multi_head_attention.kernel_forward
    if experiments.IS_STAND_IN:
        monkeypatch.setattr(xp.cuda, "limit", xp.cuda.runtime.memGetInfo()[1])
    monkeypatch.setattr(attention_module._multi_head_attention, "kernel_forward", no_room)
    with pytest.raises(MemoryError):
        trainer.train_step()
    monkeypatch.undo()
    for name, value in trainer.model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), weights[name])
    trainer = experiments.trainer(trainer.model)
    np.testing.assert_array_equal(
        experiments.losses_of(2, trainer), experiments.losses_of(2, experiments.trainer(experiments.model()))
    )


def test_products_in_tf32_are_nearly_those_in_float32():
    rng = np.random.default_rng(0)
    a, b = [tt.tensor(rng.standard_normal((256, 256)).astype("float32")) for _ in range(2)]
    exact = (a.astype("float64") @ b.astype("float64")).numpy()
    full = (a @ b).numpy()  # as in all tests
    with Switched("full_precision", False):
        fast = (a @ b).numpy()
    full_error, fast_error = [np.sqrt(np.mean((x - exact) ** 2)) / np.sqrt(np.mean(exact**2)) for x in (full, fast)]
    assert full_error < 1e-6
    assert fast_error < 2.0**-10  # 10 bits of mantissa
    assert fast_error > 10 * full_error, "these products are not in TF32: is the GPU older than Ampere?"
