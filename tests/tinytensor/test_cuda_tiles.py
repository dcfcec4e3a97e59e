"""The functions of ``tiles.cuh``, run on the CPU by the fake CuPy, against plain loops over the matrices.

Which lane holds which element is written here once more, as the PTX ISA manual has it.
"""

import numpy as np
import pytest

from tinytensor.device.backend import xp
from tinytensor.kernels.cupy import loader

ml_dtypes = pytest.importorskip("ml_dtypes")

LANES = range(32)
WIDTHS = [16, 32, 64, 128]
POINTERS = "const unsigned int* a, const unsigned int* b, float* c"


@pytest.fixture(autouse=True, params=["forward", "reversed", "shuffled"])
def order(request, monkeypatch):
    monkeypatch.setattr(xp.kernel_launches, "order", request.param)
    monkeypatch.setattr(xp.kernel_launches, "guarded", True)
    return request.param


def launch(body, *arguments, parameters, threads=32):
    code = f'{loader.source("tiles.cuh")}\nextern "C" __global__ void f({parameters}) {{\n{body}\n}}\n'
    xp.RawModule(code=code, options=loader.options("", "bfloat16")).get_function("f")((1,), (threads,), arguments)


def numbers(*shape, seed=0):
    """Return bfloat16 values whose sums of products are exact in float32."""
    return np.random.default_rng(seed).integers(-8, 9, shape) / 8


def pairs(values):
    """Neighbours of the last axis as one register."""
    return np.ascontiguousarray(values).astype("bfloat16").view("uint32")


def left_element(lane, i):
    """The row and column of element i of multiplicand A, in "Matrix Fragments for mma.m16n8k16 with floating point type"."""
    row = lane // 4 + (0 if i < 2 or 4 <= i < 6 else 8)
    return row, lane % 4 * 2 + (i & 1) + (8 if i >= 4 else 0)


def right_element(lane, i):
    """Multiplicand B."""
    return lane % 4 * 2 + (i & 1) + (8 if i >= 2 else 0), lane // 4


def sums_element(lane, i):
    """Accumulator C or D."""
    return lane // 4 + (0 if i < 2 else 8), lane % 4 * 2 + (i & 1)


def spread(matrix, element, count):
    """What the lanes hold of a matrix: (lanes, count)."""
    return np.array([[matrix[element(lane, i)] for i in range(count)] for lane in LANES])


def test_a_product():
    a, b, c = numbers(16, 16), numbers(16, 8, seed=1), numbers(16, 8, seed=2)
    found = xp.array(spread(c, sums_element, 4).astype("float32"))
    launch(
        """int lane = threadIdx.x;
        Left left = {{a[4 * lane], a[4 * lane + 1], a[4 * lane + 2], a[4 * lane + 3]}};
        Right right = {{b[2 * lane], b[2 * lane + 1]}};
        Sums sums = {{c[4 * lane], c[4 * lane + 1], c[4 * lane + 2], c[4 * lane + 3]}};
        add_product(sums, left, right);
        for (int i = 0; i < 4; i++) c[4 * lane + i] = sums.values[i];""",
        xp.array(pairs(spread(a, left_element, 8))), xp.array(pairs(spread(b, right_element, 4))), found, parameters=POINTERS,
    )  # fmt: skip
    np.testing.assert_array_equal(found.get(), spread(a @ b + c, sums_element, 4))


def test_sums_as_a_left_operand():
    sums = numbers(16, 16)
    halves = np.concatenate([spread(sums[:, :8], sums_element, 4), spread(sums[:, 8:], sums_element, 4)], axis=1)
    found = xp.zeros((32, 4), "uint32")
    launch(
        """const float* mine = a + 8 * threadIdx.x;
        Left left = rounded_left({{mine[0], mine[1], mine[2], mine[3]}}, {{mine[4], mine[5], mine[6], mine[7]}});
        for (int i = 0; i < 4; i++) b[4 * threadIdx.x + i] = left.pairs[i];""",
        xp.array(halves.astype("float32")), found, parameters="const float* a, unsigned int* b",
    )  # fmt: skip
    np.testing.assert_array_equal(found.get(), pairs(spread(sums, left_element, 8)))


def test_places_of_elements():
    found = xp.zeros((32, 4, 2), "int64")
    launch(
        """for (int i = 0; i < 4; i++) {
            a[8 * threadIdx.x + 2 * i] = row_of(i);
            a[8 * threadIdx.x + 2 * i + 1] = column_of(i);
        }""",
        found, parameters="long long* a",
    )  # fmt: skip
    assert found.tolist() == [[list(sums_element(lane, i)) for i in range(4)] for lane in LANES]


def test_pairs_are_rounded_to_the_nearest_even_and_read_again():
    x = np.random.default_rng(0).integers(0, 1 << 32, (32, 2), dtype="uint32").view("float32")
    x[:4] = [[1.0, 1 + 2**-8], [1 + 3 * 2**-8, -0.0], [np.inf, -np.inf], [np.nan, 3e38]]
    found, again = xp.zeros((32, 1), "uint32"), xp.zeros((32, 2), "float32")
    launch(
        """b[threadIdx.x] = rounded_pair(a[2 * threadIdx.x], a[2 * threadIdx.x + 1]);
        c[2 * threadIdx.x] = first_of(b[threadIdx.x]);
        c[2 * threadIdx.x + 1] = second_of(b[threadIdx.x]);""",
        xp.array(x), found, again, parameters="const float* a, unsigned int* b, float* c",
    )  # fmt: skip
    want = x.astype("bfloat16")
    np.testing.assert_array_equal(found.get().view("bfloat16").astype("float32"), want.astype("float32"))
    np.testing.assert_array_equal(again.get(), want.astype("float32"))


@pytest.mark.parametrize("is_transposed", [False, True])
def test_matrices_are_loaded(is_transposed):
    stored = numbers(4, 8, 8)
    found = xp.zeros((32, 4), "uint32")
    launch(
        f"""__shared__ Tile<16, 16> tile;  // as plain memory: four matrices one after the other
        for (int i = 0; i < 4; i++) reinterpret_cast<Pair*>(tile.elements)[4 * threadIdx.x + i] = a[4 * threadIdx.x + i];
        __syncwarp();
        Pair mine[4];
        load_matrices<{str(is_transposed).lower()}>(mine, shared_address(tile.elements + 8 * threadIdx.x));
        for (int i = 0; i < 4; i++) b[4 * threadIdx.x + i] = mine[i];""",
        xp.array(pairs(stored).reshape(-1)), found, parameters="const unsigned int* a, unsigned int* b",
    )  # fmt: skip
    # PTX ISA, "Warp-Level Matrix Load Instruction: ldmatrix": the lane holds two neighbours of row lane / 4 of each matrix.
    read = stored.swapaxes(1, 2) if is_transposed else stored
    want = [[read[i, lane // 4, lane % 4 * 2 :][:2] for i in range(4)] for lane in LANES]
    np.testing.assert_array_equal(found.get(), pairs(np.array(want)).reshape(32, 4))


def chunk_places(width, rows=32):
    """Where the chunks (row, number) of a tile lie, counted in chunks from its start."""
    found = xp.zeros((rows, width // 8), "int64")
    launch(
        f"""__shared__ Tile<{rows}, {width}> tile;
        for (int i = 0; i < {width // 8}; i++)
            a[threadIdx.x * {width // 8} + i] = tile.chunk(threadIdx.x, i) - shared_address(tile.elements);
        if (threadIdx.x == 0) b[0] = shared_address(tile.elements) % 256;""",
        found, start := xp.ones(1, "int64"), parameters="long long* a, long long* b",
    )  # fmt: skip
    assert int(start[0]) == 0
    assert (found.get() % 16 == 0).all()
    return found.get() // 16


@pytest.mark.parametrize("width", WIDTHS)
def test_chunks_that_are_read_together_lie_in_different_banks(width):
    places = chunk_places(width)
    assert sorted(places.reshape(-1)) == list(range(places.size))
    for first in range(0, 32, 8):
        for banks in (places[first : first + 8] % 8).T:  # 128 bytes are all banks
            assert sorted(banks) == list(range(8))
    for bits in range(width // 8):
        np.testing.assert_array_equal(places[:, np.arange(width // 8) ^ bits], places ^ bits)


COPIES = """__shared__ Tile<16, 16> tile;
SharedAddress own = tile.chunk(threadIdx.x / 2, threadIdx.x % 2), other = tile.chunk(15 - threadIdx.x / 2, threadIdx.x % 2);
{before}
start_copy(own, a + 8 * threadIdx.x, threadIdx.x < n);
{between}
store(b, 8 * threadIdx.x, load<8>(reinterpret_cast<const bfloat16*>({read}), 0));"""


def copied(between, read="own", exists=32, before="", shift=0):
    x, found = xp.array(numbers(256 + shift).astype("bfloat16")), xp.zeros(256, "bfloat16")
    launch(
        COPIES.format(before=before, between=between, read=read),
        x[shift:], found, exists, parameters="const bfloat16* a, bfloat16* b, long long n",
    )  # fmt: skip
    return x.get().reshape(16, 2, 8), found.get().reshape(16, 2, 8)


def test_copies():
    x, found = copied("wait_for_own_copies();")
    np.testing.assert_array_equal(found, x)
    x, found = copied("wait_for_own_copies(); __syncthreads();", "other")
    np.testing.assert_array_equal(found, x[::-1])


def test_copies_of_what_does_not_exist_are_zeros():
    x, found = copied("wait_for_own_copies();", exists=5)
    np.testing.assert_array_equal(found.reshape(-1)[:40], x.reshape(-1)[:40])
    assert not found.reshape(-1)[40:].any()


@pytest.mark.parametrize(("between", "read"), [("", "own"), ("wait_for_own_copies();", "other"), ("__syncthreads();", "other")])
def test_what_is_read_too_early_shows(monkeypatch, between, read):
    monkeypatch.setattr(xp.kernel_launches, "order", "forward")
    x, found = copied(between, read)
    assert (found != (x if read == "own" else x[::-1])).any()


def test_what_is_overwritten_too_early_shows(monkeypatch):
    """A second copy overwrites values that other threads still read, immediately in reversed order."""
    monkeypatch.setattr(xp.kernel_launches, "order", "reversed")
    first = "start_copy(own, a + 8 * threadIdx.x); wait_for_own_copies(); __syncthreads();"
    again = "start_copy(own, a + 8 * (threadIdx.x ^ 1));"
    x, found = copied(again, "other", before=first)
    assert (found != x[::-1]).any()


def test_copies_from_addresses_that_are_no_multiples_of_16_are_refused():
    with pytest.raises(RuntimeError, match="copies 16 bytes from or to an address that is no multiple of 16"):
        copied("wait_for_own_copies();", shift=1)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("is_transposed", [False, True])
def test_parts_of_a_tile_are_right_operands(width, is_transposed):
    rows = numbers(32, width).astype("bfloat16")
    found = xp.zeros((2, width // 16, 32, 4), "uint32")
    launch(
        f"""__shared__ Tile<32, {width}> tile;
        for (int i = 0; i < {width // 8}; i++) start_copy(tile.chunk(threadIdx.x, i), a + threadIdx.x * {width} + 8 * i);
        wait_for_own_copies();
        __syncwarp();
        for (int half = 0; half < 2; half++) {{
            SharedAddress parts = {"transposed" if is_transposed else "stored"}_parts(tile, 16 * half);
            for (int part = 0; part < {width // 16}; part++) {{
                Right right[2];
                load_part<{str(is_transposed).lower()}>(right, parts, part);
                for (int i = 0; i < 4; i++)
                    b[((half * {width // 16} + part) * 32 + threadIdx.x) * 4 + i] = right[i / 2].pairs[i % 2];
            }}
        }}""",
        xp.array(rows), found, parameters="const bfloat16* a, unsigned int* b",
    )  # fmt: skip
    for half in range(2):
        for part in range(width // 16):
            square = rows[16 * half :, 16 * part :][:16, :16].astype("float32")
            square = square.T if is_transposed else square
            two = [pairs(spread(square[:, columns], right_element, 4)) for columns in (slice(0, 8), slice(8, 16))]
            np.testing.assert_array_equal(found.get()[half, part], np.concatenate(two, axis=1))


@pytest.mark.parametrize(
    "call",
    [
        "Sums sums = {}; add_product(sums, Left(), Right());",
        "Pair mine[4]; load_matrices<true>(mine, shared_address(tile.elements));",
    ],
)
def test_a_lane_that_is_missing_is_found(call):
    with pytest.raises(RuntimeError, match="for thread 7, 0, 0, which ended"):
        launch(
            f"__shared__ Tile<16, 16> tile; if (threadIdx.x != 7) {{ {call} }}", xp.zeros(1, "float32"), parameters="float* a"
        )


def test_a_row_that_does_not_begin_at_a_multiple_of_16_bytes_is_found():
    with pytest.raises(RuntimeError, match="misaligned"):
        launch(
            "__shared__ Tile<16, 16> tile; Pair mine[4]; load_matrices<true>(mine, shared_address(tile.elements + 1));",
            xp.zeros(1, "float32"), parameters="float* a",
        )  # fmt: skip
