"""The fake CuPy's ``RawModule``: does it run CUDA as a GPU does, and find what is undefined there?"""

import numpy as np
import pytest

from tinytensor.device.backend import xp


@pytest.fixture(autouse=True, params=["forward", "reversed", "shuffled"])
def order(request, monkeypatch):
    monkeypatch.setattr(xp.kernel_launches, "order", request.param)
    monkeypatch.setattr(xp.kernel_launches, "guarded", True)
    return request.param


def launch(body, *arguments, parameters="float* x, long long n", grid=(1,), block=(32,), name="f", options=()):
    code = f'extern "C" __global__ void f({parameters}) {{\n{body}\n}}\n'
    xp.RawModule(code=code, options=options).get_function(name)(grid, block, arguments)


def floats(*shape):
    return xp.zeros(shape, "float32")


def test_indices_and_grids_of_three_dimensions():
    x = floats(2, 3, 2, 4, 3, 5)
    launch(
        """long long block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
        long long thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
        x[block * blockDim.x * blockDim.y * blockDim.z + thread] = block * 1000 + thread + n;""",
        x, 7, grid=(2, 3, 2), block=(5, 3, 4),
    )  # fmt: skip
    want = 1000 * np.arange(12)[:, None] + np.arange(60) + 7
    assert (x.get().reshape(12, 60) == want).all()


def test_shared_memory_and_barriers():
    x = floats(4, 96)
    launch(
        """__shared__ float turned[96];
        for (int round = 0; round < 3; round++) {
            turned[95 - threadIdx.x] = threadIdx.x + 100 * blockIdx.x + 1000 * round;
            __syncthreads();
            x[blockIdx.x * 96 + threadIdx.x] += turned[threadIdx.x];
            __syncthreads();
        }""",
        x, 0, grid=(4,), block=(96,),
    )  # fmt: skip
    assert (x.get() == 3 * (95 - np.arange(96) + 100 * np.arange(4)[:, None]) + 3000).all()


SHUFFLES = {
    "__shfl_xor_sync(0xffffffffu, v, 5)": lambda lane: lane ^ 5,
    "__shfl_xor_sync(0xffffffffu, v, 4, 8)": lambda lane: lane ^ 4,
    "__shfl_down_sync(0xffffffffu, v, 3)": lambda lane: lane + 3 if lane < 29 else lane,
    "__shfl_down_sync(0xffffffffu, v, 3, 8)": lambda lane: lane + 3 if lane % 8 < 5 else lane,
    "__shfl_up_sync(0xffffffffu, v, 3)": lambda lane: lane - 3 if lane >= 3 else lane,
    "__shfl_sync(0xffffffffu, v, 9)": lambda lane: 9,
    "__shfl_sync(0xffffffffu, v, 1, 8)": lambda lane: lane // 8 * 8 + 1,
    "(__syncwarp(), v)": lambda lane: lane,
}


@pytest.mark.parametrize("kind", ["float", "double", "int", "long long"])
def test_shuffles(kind):
    """All in one kernel, as compiling takes longest."""
    x = floats(len(SHUFFLES), 2, 64)
    lines = [f"got = {shuffle}; x[{128 * i} + blockIdx.x * 64 + threadIdx.x] = got;" for i, shuffle in enumerate(SHUFFLES)]
    launch(f"{kind} v = threadIdx.x + 100 * blockIdx.x, got; {' '.join(lines)}", x, 0, grid=(2,), block=(64,))
    for (shuffle, source), got in zip(SHUFFLES.items(), x.get(), strict=True):
        one = np.array([source(lane) for lane in range(32)])
        assert (got == np.concatenate([one, one + 32]) + 100 * np.arange(2)[:, None]).all(), shuffle


def test_half_a_warp_may_shuffle_by_itself():
    x = floats(32)
    launch("float v = threadIdx.x; if (v < 16) v = __shfl_xor_sync(0xffffu, v, 1); x[threadIdx.x] = v;", x, 0)
    lane = np.arange(32)
    assert (x.get() == np.where(lane < 16, lane ^ 1, lane)).all()


def test_votes_and_bits():
    x = xp.zeros(32, "uint32")
    launch("x[threadIdx.x] = __ballot_sync(0xffffffffu, threadIdx.x % 3 == 0);", x, 0, parameters="unsigned* x, long long n")
    assert (x.get() == sum(1 << i for i in range(0, 32, 3))).all()
    y = xp.zeros(3, "uint64")
    launch(
        "y[0] = __umul64hi(n, 0xfedcba9876543210ull); y[1] = __umulhi(0x89abcdefu, 0xfedcba98u); y[2] = __popc(255);",
        y, -2, parameters="unsigned long long* y, long long n", block=(1,),
    )  # fmt: skip
    assert y.get().tolist() == [(2**64 - 2) * 0xFEDCBA9876543210 >> 64, 0x89ABCDEF * 0xFEDCBA98 >> 32, 8]


FAULTS = {
    "a barrier that some threads never reach": ("if (threadIdx.x < 16) __syncthreads();", "waits at __syncthreads() in line 2"),
    "two barriers for one": ("if (threadIdx.x < 16)\n__syncthreads(); else\n__syncthreads();", "waits at __syncthreads()"),
    "a shuffle that a lane never reaches": (
        "if (threadIdx.x != 7) x[0] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);",
        "for thread 7, 0, 0, which ended",
    ),
    "a shuffle against a barrier": (
        "if (threadIdx.x != 7) __shfl_xor_sync(0xffffffffu, 1.0f, 1); else __syncthreads();",
        "for thread 7, 0, 0, which waits at __syncthreads()",
    ),
    "a lane that is not in its mask": ("__shfl_xor_sync(0xffffu, 1.0f, 1);", "is not in its own mask 0000ffff"),
    "a source that is not in the mask": ("if (threadIdx.x < 16) __shfl_sync(0xffffu, 1.0f, 20);", "reads lane 20"),
    "a read past the end": ("if (x[n] > 0) x[0] = 1;", "byte 16384 of an array of 16384 bytes"),
    "a read far before the start": ("if (x[-5000] > 0) x[0] = 1;", "byte -20000 of an array"),
    "a write past the end": ("x[n + threadIdx.x] = 1;", "of an array of 16384 bytes"),
    "a write just before the start": ("x[-1] = 1;", "byte -4 of an array of 16384 bytes|wrote beside the array"),
    "a null pointer": ("x = nullptr; *x = 1;", "an address outside every array|undefined arithmetic"),
    "an index outside shared memory": ("__shared__ float s[8]; s[threadIdx.x] = 1; x[0] = s[n % 8];", "outside a fixed array"),
    "128 bits that are misaligned": ("reinterpret_cast<Four*>(x + 1)->x = 1;", "misaligned"),
    "division by zero": ("x[0] = 1 / (n - 4096);", "divided by zero|undefined arithmetic"),
}


@pytest.mark.parametrize(("body", "message"), FAULTS.values(), ids=FAULTS)
def test_what_is_undefined_is_found(body, message):
    x = floats(4096)
    with pytest.raises(RuntimeError, match=f"f: .*({message.replace('(', '[(]').replace(')', '[)]')})"):
        launch("struct alignas(16) Four { float x, y, z, w; };" + body, x, x.size)
    launch("x[threadIdx.x] = 1;", x, 0)  # and the next launch is as good as ever
    assert float(x.sum()) == 32


@pytest.mark.parametrize("length", [1, 3, 4, 5, 1023, 1024, 1025])
def test_a_write_by_one_too_many_is_found_at_every_length(length):
    for start in (0, 1, 3):
        x = floats(start + length)[start:]
        launch("for (int i = 0; i < n; i++) x[i] = i;", x, length, block=(1,))
        assert (x.get() == np.arange(length)).all()
        with pytest.raises(RuntimeError, match="f: "):
            launch("for (int i = 0; i <= n; i++) x[i] = i;", x, length, block=(1,))
        parameters = "const float* x, float* y, long long n"
        with pytest.raises(RuntimeError, match="f: "):
            launch("for (int i = 0; i <= n; i++) y[i] = x[i];", x, x * 2, length, parameters=parameters, block=(1,))


def test_a_read_by_one_too_many_gives_nan_or_is_a_fault():
    for length in range(1, 9):
        x, y = xp.ones(length, "float32"), floats(1)
        try:
            launch("y[0] = x[n];", x, y, length, parameters="const float* x, float* y, long long n")
        except RuntimeError:
            continue
        assert np.isnan(float(y[0]))


def test_shared_memory_starts_undefined():
    x = floats(32)
    launch("__shared__ float s[32]; x[threadIdx.x] = s[threadIdx.x];", x, 0)
    assert np.isnan(x.get()).all()


def test_a_missing_barrier_shows_when_the_order_changes(monkeypatch):
    found = []
    for order in ("forward", "reversed"):
        monkeypatch.setattr(xp.kernel_launches, "order", order)
        x = floats(64)
        launch("__shared__ float s[64]; s[threadIdx.x] = 1; x[threadIdx.x] = s[threadIdx.x ^ 33];", x, 0, block=(64,))
        found.append(np.nan_to_num(x.get()).tolist())
    assert found[0] != found[1]


def test_a_missing_barrier_before_shared_memory_is_used_again_shows(monkeypatch):
    def found(barrier):
        x = floats(64)
        launch(
            f"""__shared__ float s[2];
            for (int round = 0; round < 3; round++) {{
                {barrier}
                if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = round;
                __syncthreads();
                x[threadIdx.x] += __shfl_xor_sync(0xffffffffu, s[threadIdx.x % 2], 1);
            }}""",
            x, 0, block=(64,),
        )  # fmt: skip
        return x.get()

    monkeypatch.setattr(xp.kernel_launches, "order", "reversed")
    assert (found("__syncthreads();") == 3).all()
    assert (found("") != 3).any()


def test_a_sum_over_blocks_in_their_order_shows_it(order):
    x = floats(1)
    launch("x[0] = x[0] * 3 + blockIdx.x;", x, 0, grid=(5,), block=(1,))
    assert (float(x[0]) == (((0 * 3 + 1) * 3 + 2) * 3 + 3) * 3 + 4) == (order == "forward")


def test_overlapping_arrays_stay_overlapping():
    x = xp.arange(8, dtype="float32")
    launch("y[threadIdx.x] = x[threadIdx.x] + 1;", x[:5], x[3:], parameters="const float* x, float* y", block=(1,))
    assert x.tolist() == [0, 1, 2, 1, 4, 5, 6, 7]


def test_strides_go_by_address():
    x = xp.arange(12, dtype="float32").reshape(3, 4)
    y = floats(3)
    strided = "const float* x, float* y, long long n"
    launch("y[threadIdx.x] = x[threadIdx.x * n];", x.T[1].data.ptr, y, 4, parameters=strided, block=(3,))
    assert y.tolist() == [1, 5, 9]


REFUSED = {
    "a NumPy array": (lambda: (np.zeros(3, "float32"), 1), TypeError, "Unsupported type"),
    "a list": (lambda: ([1.0], 1), TypeError, "Unsupported type"),
    "a missing argument": (lambda: (floats(3),), TypeError, "takes 2 arguments and was given 1"),
    "another dtype": (lambda: (xp.zeros(3, "float64"), 1), TypeError, "argument 0 is an array of float64"),
    "a float for an integer": (lambda: (floats(3), 1.0), TypeError, "argument 1 is float64, but the kernel takes int64"),
    "an array for an integer": (lambda: (floats(3), floats(3)), TypeError, "argument 1 is an array"),
    "a short integer": (lambda: (floats(3), np.int32(1)), TypeError, "argument 1 is int32"),
    "a strided array": (lambda: (floats(6)[::2], 1), ValueError, "not C-contiguous"),
    "an address from nowhere": (lambda: (12345678, 1), TypeError, "argument 0 is int64"),
}


@pytest.mark.parametrize(("arguments", "kind", "message"), REFUSED.values(), ids=REFUSED)
def test_arguments_that_are_refused(arguments, kind, message):
    with pytest.raises(kind, match=message):
        launch("", *arguments())


def test_launches_that_are_refused():
    x = floats(3)
    with pytest.raises(RuntimeError, match=r"NOT_FOUND.*g"):
        launch("", x, 1, name="g")
    for block in [(1025,), (32, 33), (1, 1, 65)]:
        with pytest.raises(RuntimeError, match=r"INVALID_VALUE.*block"):
            launch("", x, 1, block=block)
    with pytest.raises(RuntimeError, match=r"INVALID_VALUE.*grid"):
        launch("", x, 1, grid=(1, 1 << 16))
    with pytest.raises(ValueError, match="makes 1 of a 0"):
        launch("", x, 1, grid=(0,))
    with pytest.raises(TypeError, match="tuple"):
        launch("", x, 1, grid=1)
    with pytest.raises(RuntimeError, match=r"(?s)g\+\+ refuses.*kernel.cu:2"):
        launch("no such thing;", x, 1)
    with pytest.raises(ValueError, match="no option --fast"):
        launch("", x, 1, options=("--fast",))


def test_a_launch_is_no_wait():
    x, before = floats(3), xp.synchronizations
    launch("x[0] = n;", x, 1)
    assert xp.synchronizations == before


def test_without_a_compiler_the_remedy_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match=r"needs g\+\+.*apt install g\+\+"):
        launch("x[0] = 123456;", floats(1), 1, options=(f"-DNOTHING={id(monkeypatch)}",))


def test_an_empty_cache_is_filled_once(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for _ in range(2):
        xp._raw._library.cache_clear()  # as in a new process
        launch("x[0] = 654321;", floats(1), 1)
    kinds = sorted(path.suffix for path in (tmp_path / "cupy-standin").iterdir())
    assert kinds == [".o", ".so"]  # what runs all kernels, and this kernel


def test_a_block_has_no_more_threads_than_its_launch_bounds_allow():
    code = 'extern "C" __global__ void __launch_bounds__(64, 1) f(float* x) { x[threadIdx.x] = 1; }\n'
    f, x = xp.RawModule(code=code).get_function("f"), floats(65)
    f((1,), (64,), (x,))
    assert float(x.sum()) == 64
    with pytest.raises(RuntimeError, match=r"f: a block of \(65, 1, 1\) threads; its __launch_bounds__ allow 64"):
        f((1,), (65,), (x,))
