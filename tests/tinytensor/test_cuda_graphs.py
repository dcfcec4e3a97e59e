"""The fake CuPy's CUDA graphs: only ``launch`` runs the captured work, and operations invalid on a GPU raise errors."""

import gc

import cupy
import numpy as np
import pytest

from tinytensor import kernels
from tinytensor.device.backend import xp
from tinytensor.kernels.cupy import cublaslt


class Captured:
    """A context that captures everything, in its own memory. ``launch()`` then runs it."""

    def __init__(self):
        self.pool, self.stream = xp.cuda.MemoryPool(), xp.cuda.Stream(non_blocking=True)

    def __enter__(self):
        self.memory = xp.cuda.using_allocator(self.pool.malloc)
        self.memory.__enter__()
        self.stream.__enter__()
        self.stream.begin_capture()
        return self

    def __exit__(self, *error):
        try:
            graph = self.stream.end_capture()
        finally:
            self.stream.__exit__(None, None, None)
            self.memory.__exit__(None, None, None)
        if error[0] is None:
            self.launch = graph.launch


def numbers(*shape, dtype="float32", seed=0):
    return xp.array(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


def added(x, index, value):
    cupy.add.at(x, index, value)
    return x


def assigned(x, index, value):
    x[index] = value
    return x


def doubled(x):
    x += x
    return x


PLACES = xp.array([2, 0, 0])
WORK = {
    "an operator": lambda x: x * 2.0 + x,
    "in place": lambda x: doubled(x.copy()),
    "a reduction": lambda x: x.sum(axis=0),
    "a cast": lambda x: x.astype("float64"),
    "copies": lambda x: xp.ascontiguousarray(x.T) + x.T.reshape(12).reshape(4, 3) - x.T.flatten().reshape(4, 3).T.copy().T,
    "views": lambda x: x.T[1:].swapaxes(0, 1)[::2] - 1,
    "places": lambda x: x[PLACES],
    "places of places": lambda x: x.take(xp.zeros_like(PLACES), axis=0) + x[xp.zeros_like(PLACES)],
    "an assignment": lambda x: assigned(x.copy(), (slice(None), 0), 7.0),
    "an assignment of rows": lambda x: assigned(xp.zeros_like(x), xp.arange(2), x[:2]),
    "scattering": lambda x: added(xp.zeros_like(x), PLACES, x),
    "constants": lambda x: xp.ones(3) + xp.arange(3) + xp.full(3, 2.0) + xp.eye(3),
    "several at once": lambda x: xp.concatenate([xp.stack([x, x]).reshape(6, 4), xp.where(x > 0, x, 0.0)]),
    "a kernel": lambda x: kernels.gelu_tanh_forward([True], x)[0],
    "a kernel on a cast": lambda x: kernels.gelu_tanh_forward([True], x.astype("bfloat16"))[0],
    "a product": lambda x: kernels.matmul(x, x.T),
    "a batch of products": lambda x: kernels.matmul(xp.stack([x, x]), x.T),
    "einsum": lambda x: xp.einsum("ij,ij->i", x, x),
}


@pytest.mark.parametrize("name", WORK)
def test_a_replay_computes_from_what_is_in_memory_then(monkeypatch, name):
    monkeypatch.setattr(cublaslt, "is_on_everywhere", True)
    work, x = WORK[name], numbers(3, 4)
    wanted = {scale: work(x * scale).get() for scale in (1.0, 3.0, -2.0)}
    kept = x.copy()
    with Captured() as captured:
        out = work(x)
    for scale, want in wanted.items():
        x[...] = kept * scale
        first, waits = len(xp.launches), xp.synchronizations
        captured.launch()
        assert xp.launches[first:] == ["graph"] and xp.synchronizations == waits
        assert out.get().tobytes() == want.tobytes()


def test_nothing_is_done_while_it_is_captured():
    x = numbers(5)
    before, first = x.get(), len(xp.launches)
    with Captured() as captured:
        x *= 2.0
        x[0] = 9.0
        y = x + 1.0
    assert xp.launches[first:] == [] and (x.get() == before).all() and np.isnan(y.get()).all()
    captured.launch()
    captured.launch()
    assert (x.get()[1:] == 4 * before[1:]).all() and x.get()[0] == 9 and (y.get() == x.get() + 1).all()


def test_it_can_be_asked():
    with Captured() as captured:
        assert captured.stream.is_capturing()
        assert xp.cuda.get_current_stream().ptr == captured.stream.ptr != 0
    assert not captured.stream.is_capturing() and xp.cuda.get_current_stream().ptr == 0


REFUSED = {
    "reading": (lambda x: float(x[0]), RuntimeError, "is capturing, so D2H transfers are disallowed"),
    "waiting": (lambda x: xp.cuda.Device().synchronize(), xp.cuda.runtime.CUDARuntimeError, "900"),
    "a size that depends on values": (lambda x: x[x > 0], xp.cuda.runtime.CUDARuntimeError, "900"),
    "an upload": (lambda x: x + xp.array([1.0]), RuntimeError, "upload cannot be captured"),
    "sorting": (lambda x: xp.argsort(x), RuntimeError, "argsort cannot be captured"),
    "CuPy's cuBLAS": (lambda x: kernels.matmul(x[None], x[:, None]), NotImplementedError, "cuBLAS"),
    "another graph": (lambda x: xp.cuda.get_current_stream().begin_capture(), RuntimeError, "one at a time"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rejected_inputs(name):
    work, error, text = REFUSED[name]
    x = numbers(4)
    with pytest.raises(error, match=text), Captured():
        work(x)
    assert float(x[0]) == x.get()[0]  # it has ended


def test_memory_of_the_default_pool_is_refused():
    x, stream = numbers(4), xp.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        with pytest.raises(RuntimeError, match="memory of the default pool"):
            x + 1.0
        x += 1.0  # needs none
        stream.end_capture()


def test_the_default_stream_cannot_be_captured():
    with pytest.raises(RuntimeError, match="default"):
        xp.cuda.Stream(null=True).begin_capture()


@pytest.mark.parametrize(
    "use", [lambda x: x + 1.0, lambda x: kernels.gelu_tanh_forward([True], x), lambda x: kernels.matmul(x, x.T)]
)
def test_memory_that_is_freed_is_found(monkeypatch, use):
    monkeypatch.setattr(cublaslt, "is_on_everywhere", True)
    x = numbers(3, 4)
    with Captured() as captured:
        use(x)
    captured.launch()
    del x
    gc.collect()
    with pytest.raises(RuntimeError, match="freed since"):
        captured.launch()


def test_memory_of_the_graph_lasts_as_long_as_its_pool():
    x = numbers(4)
    with Captured() as captured:
        x *= x + 1.0  # the sum is freed at once
    captured.launch()
    assert captured.pool.total_bytes() == 16
    captured.pool = captured.memory = None
    gc.collect()
    with pytest.raises(RuntimeError, match="freed since"):
        captured.launch()


@pytest.mark.parametrize(
    ("use", "name"),
    [
        (lambda x, n: x * n, "multiply"),
        (lambda x, n: assigned(x, 0, n), "assign"),
        (lambda x, n: x[int(n)] + 1.0, None),
        (lambda x, n: kernels.scale_all([x], xp.full((), n, x.dtype)), "full"),
        (lambda x, n: kernels.dropout_forward([True], x, None, (1, int(n)), 0.5), "dropout"),
    ],
)
def test_a_number_that_changes_from_step_to_step_is_found(use, name):
    x = numbers(4)
    for again in (2.0, 2.0):
        use(x, again)
        with Captured():
            use(x, again)
    if name is None:
        return
    with pytest.raises(RuntimeError, match=f"{name}, has the numbers"), Captured():
        use(x, 3.0)


def test_pinned_memory_stays_until_the_gpu_has_read_it():
    pinned = xp.cuda.alloc_pinned_memory(32)
    values, x, copied = np.frombuffer(pinned, np.float32, 8), xp.zeros(8, "float32"), xp.cuda.Event()
    for number in range(3):
        values[:4] = number
        x.data.copy_from_host_async(pinned.ptr, 16)
        values[4:] = number  # was not copied
        x.data.copy_from_host_async(pinned.ptr, 32)
        copied.record()
        assert copied.done and (x.get() == number).all()
    x.data.copy_from_host_async(pinned.ptr, 16)
    values[0] = 7.0
    with pytest.raises(RuntimeError, match="before it was known that the GPU has read it"):
        copied.synchronize()
    x.data.copy_from_host_async(pinned.ptr, 16)
    values[1] = 7.0
    with pytest.raises(RuntimeError, match="before it was known"):
        x.data.copy_from_host_async(pinned.ptr, 16)
    with pytest.raises(ValueError, match="pinned"):
        x.data.copy_from_host_async(np.zeros(4).ctypes.data, 16)
    with pytest.raises(ValueError, match="pinned"):
        xp.zeros(99).data.copy_from_host_async(pinned.ptr, 64)
