"""Weights in blocks of 4 to 8 bits and in bfloat16: how they are rounded, products with them, and layers that have them."""

from __future__ import annotations

import copy
import ctypes
import itertools
import mmap
import pickle
import re
import sys

import numpy as np
import pytest
from blocks import MIXED, SCALES, assert_near, random_blocks, random_weight, unpacked

import tinytensor as tt
from tinytensor import kernels, nn
from tinytensor.device.backend import xp
from tinytensor.kernels.numpy.quantized import BLOCK_TYPES, LARGEST_WEIGHT, from_bfloat16, pack_rows, to_bfloat16
from tinytensor.ops.quantized import linear_blocks

PACKED = [name for name in SCALES if BLOCK_TYPES[name].pack]
inf, nan = float("inf"), float("nan")


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def on_host(array):
    return tt.tensor(array).numpy()


# --------------------------------------------------------------------------------------------------------------- rounding


@pytest.mark.parametrize("block_type", SCALES)
def test_unpacking_equals_that_of_llama_cpp(block_type):
    gguf = pytest.importorskip("gguf")
    halves = np.arange(1 << 16, dtype="uint16").view("float16")
    blocks = random_blocks(block_type, 300, 512, halves[np.isfinite(halves)])
    want = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[block_type])
    np.testing.assert_array_equal(unpacked(blocks, block_type, 512).view("uint32"), want.view("uint32"))


MOST = {"Q8_0": 0.006, "Q4_1": 0.08, "Q4_K": 0.075, "Q6_K": 0.02}  # root mean square error, as a share of that of the weights


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("block_type", PACKED)
def test_packing_is_accurate(block_type):
    def rms(x):
        return np.sqrt((x.astype("float64") ** 2).mean())

    def error(x):
        return rms(unpacked(pack_rows(xp.asarray(x), block_type), block_type, x.shape[1]) - x)

    x = normal(60, 2560)
    assert error(x) <= MOST[block_type]
    assert error(x[:, :300]) <= 1.05 * MOST[block_type]  # the last block ends in zeros
    assert error(x * np.float32(1e3)) <= 1e3 * MOST[block_type]
    assert max(error(x * np.float32(tiny)) for tiny in (1e-9, 1e-38)) <= 1e-8  # less than float16 scales can be
    assert error(x * 0) == 0
    for constant in (1.0, -3.0, 1e3, -6e4):
        assert error(np.full((2, 300), constant, "float32")) <= 5e-4 * abs(constant)
    if block_type in ("Q8_0", "Q4_1"):  # the package gguf cannot pack the others
        gguf = pytest.importorskip("gguf")
        ggml_type = gguf.GGMLQuantizationType[block_type]
        assert error(x) <= rms(gguf.quants.dequantize(gguf.quants.quantize(x, ggml_type), ggml_type) - x)


def test_8_bits_are_rounded_to_the_nearest_integer():
    x = np.zeros((2, 32), "float32")
    x[0, :6] = [127.0, 0.5, 1.5, -2.5, 63.4, -126.6]
    blocks = on_host(pack_rows(xp.asarray(x), "Q8_0"))
    assert blocks[:, 2:].view("int8")[0, :7].tolist() == [127, 0, 2, -2, 63, -127, 0]
    assert not blocks[1].any()
    assert blocks[:, :2].copy().view("float16").ravel().tolist() == [1.0, 0.0]


def test_bfloat16_is_rounded_to_even():
    one, step = 0x3F80, 2.0**-7
    x = np.array([1 + step * n / 4 for n in (0, 1, 2, 3, 4, 5, 6, 7)] + [-1 - step / 2, 0.0, -0.0, 3.4e38], "float32")
    bits = on_host(to_bfloat16(xp.asarray(x)))
    assert bits.dtype == "uint16"
    assert bits[:8].tolist() == [one, one, one, one + 1, one + 1, one + 1, one + 2, one + 2]
    assert bits[8:].tolist() == [one | 0x8000, 0, 0x8000, 0x7F80]
    np.testing.assert_array_equal(on_host(from_bfloat16(xp.asarray(bits))).view("uint32"), bits.astype("uint32") << 16)


# ------------------------------------------------------------------------------------------------------ compiled kernels

ROWS = {
    "usual": lambda x: x,
    "zeros": lambda x: x * 0,
    "NaN": lambda x: np.where(np.arange(x.size).reshape(x.shape) == 0, np.float32(nan), x),
    "infinite": lambda x: np.where(np.arange(x.size).reshape(x.shape) == x.size - 1, np.float32(-inf), x),
    "denormal": lambda x: x * np.float32(1e-39),
    "large": lambda x: x * np.float32(4e35),
    "float64": lambda x: x.astype("float64") / 3,
    "other layout": np.asfortranarray,
    "every second": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
}


@pytest.mark.needs("numba")
@pytest.mark.parametrize("change", ROWS.values(), ids=ROWS)
def test_compiled_products(change):
    for outputs, width in [(1, 1), (7, 15), (4, 32), (13, 63), (3, 64), (6, 65), (5, 256), (2, 1153), (0, 5), (3, 0)]:
        parts = tuple((block_type, outputs) for block_type in SCALES)
        weight, values = random_weight(parts, width)
        for rows, bias in itertools.product((0, 1, 2, 5, 16, 17), (None, normal(len(values), seed=3))):
            x = change(normal(rows, width, seed=rows))
            with np.errstate(all="ignore"):
                assert_near(kernels.linear_blocks(x, weight, bias, parts), x, values, bias)


@pytest.mark.needs("numba")
@pytest.mark.parametrize("width", [100, 1536])
def test_a_row_does_not_depend_on_those_beside_it(width):
    x, (weight, values), bias = normal(20, width), random_weight(MIXED, width), normal(115, seed=1)
    together = kernels.linear_blocks(x[:16], weight, bias, MIXED)
    for rows in range(1, 21):
        some = kernels.linear_blocks(x[:rows], weight, bias, MIXED)
        assert_near(some, x[:rows], values, bias)
        if rows <= 16:
            one = kernels.linear_blocks(x[rows - 1], weight, bias, MIXED)
            np.testing.assert_array_equal(some, together[:rows])
            np.testing.assert_array_equal(one, together[rows - 1])


@pytest.mark.needs("numba")
def test_a_second_thread_changes_no_bit(monkeypatch):
    from tinytensor.kernels.numba import quantized as compiled

    arguments = normal(5, 300), random_weight(MIXED, 300)[0], normal(115), MIXED
    want = kernels.linear_blocks(*arguments)
    monkeypatch.setattr(compiled, "_SHARED", 0)
    monkeypatch.setattr(compiled, "_PART", 1 << 8)
    monkeypatch.setattr(compiled, "has_second_core", lambda: True)
    for _ in range(50):
        np.testing.assert_array_equal(kernels.linear_blocks(*arguments), want)
    monkeypatch.setattr(compiled.helper().__class__, "call", lambda self, function: None)  # it never gets a core
    np.testing.assert_array_equal(kernels.linear_blocks(*arguments), want)


def before_a_forbidden_page(array):
    """A copy of an array that ends where memory must not be read: reading on would end the process."""
    pages = -(-array.nbytes // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    whole = np.frombuffer(memory, "uint8")
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(whole.ctypes.data + pages * mmap.PAGESIZE), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    copied = whole[pages * mmap.PAGESIZE - array.nbytes : pages * mmap.PAGESIZE].view(array.dtype).reshape(array.shape)
    copied[...] = array
    return copied


@pytest.mark.needs("numba")
@pytest.mark.skipif(sys.platform != "linux", reason="forbids pages as Linux does")
@pytest.mark.parametrize("block_type", SCALES)
@pytest.mark.parametrize("rows, outputs, width", [(1, 1, 1), (1, 5, 63), (4, 4, 64), (5, 7, 65), (3, 9, 512)])
def test_nothing_is_read_behind_the_arrays(rows, outputs, width, block_type):
    parts = ((block_type, outputs),)
    x, (weight, values), bias = normal(rows, width), random_weight(parts, width), normal(outputs)
    assert_near(kernels.linear_blocks(*map(before_a_forbidden_page, (x, weight, bias)), parts), x, values, bias)
    rows = kernels.block_rows(np.arange(outputs), before_a_forbidden_page(weight), parts, width)
    np.testing.assert_array_equal(rows, values.astype("float32"))


# ---------------------------------------------------------------------------------------------------------------- layers


@pytest.fixture(params=["int8", "int4", "bfloat16"])
def dtype(request):
    return request.param


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_computes_with_the_values_it_shows(dtype, bias):
    tt.seed(0)
    layer = nn.Linear(70, 9, bias=bias)
    before = layer.weight.numpy().copy()
    assert nn.quantize_(layer, dtype) is layer
    assert not layer.training
    values = layer.weight.numpy()
    largest = np.abs(before).max(1, keepdims=True)
    assert np.abs(values - before).max() > 0
    assert (np.abs(values - before) <= largest * {"int8": 0.505 / 127, "int4": 0.15, "bfloat16": 2.0**-8}[dtype]).all()
    for x in map(normal, *zip((2, 3, 70), (0, 5, 70), (1, 1, 70))):
        assert_near(layer(tt.tensor(x)).numpy(), x, values, layer.bias.numpy() if bias else None)
    assert_near(layer(tt.tensor(x[0, 0])).numpy(), x[0, 0], values, layer.bias.numpy() if bias else None)


TYPES = [("int8", 256, "Q8_0", "Q8_0"), ("int4", 512, "Q4_K", "Q6_K"), ("int4", 255, "Q4_1", "Q8_0")]


@pytest.mark.parametrize("dtype, inputs, of_linear, of_table", TYPES)
def test_the_type_of_blocks_depends_on_the_width(dtype, inputs, of_linear, of_table):
    model = nn.Sequential(nn.Embedding(6, inputs), nn.Linear(inputs, 3), nn.Linear(inputs, 6))
    model[2].weight = model[0].weight  # an output layer
    nn.quantize_(model, dtype, [model[0].weight])
    assert [layer.weight.parts for layer in model] == [((of_table, 6),), ((of_linear, 3),), ((of_table, 6),)]


def test_a_weight_with_several_types_of_blocks():
    values, expected = random_weight(MIXED, 300)
    weight = nn.weights.BlockWeight(tt.tensor(values), MIXED, 300)
    x, ids = normal(3, 300), np.array([[114, 63, 64], [0, 97, 96]])
    assert (weight.shape, weight.kind) == ((115, 300), "int4")
    assert repr(weight) == "BlockWeight((115, 300), Q4_K and Q6_K and Q8_0 and Q4_1 and Q4_0)"
    np.testing.assert_array_equal(weight.numpy(), expected)
    np.testing.assert_array_equal(weight.rows(tt.tensor(ids)).numpy(), expected[ids])
    assert_near(weight.linear(tt.tensor(x), None).numpy(), x, expected)


IDS = {
    "too large": np.array([0, 6]), "negative": np.array([[-1, 0]]), "one": np.array(6), "no sign": np.array([2**63], "uint64"),
    "floats": np.array([0.5]), "booleans": np.array([True]), "a list": [1, 2], "a number": 1, "none": np.zeros((2, 0), int),
}  # fmt: skip


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
def test_ids_are_checked_as_those_of_an_embedding(dtype, ids):
    def outcome():
        try:
            return embedding(ids).shape
        except Exception as error:
            return type(error), re.sub("block_rows|embedding|.* of shapes .*?: ", "", str(error))

    embedding = nn.Embedding(6, 4)
    want = outcome()
    nn.quantize_(embedding, dtype, [embedding.weight])
    assert outcome() == want


def test_a_traced_function_takes_a_weight_as_an_input():
    def function(x, weight):
        x = linear_blocks(x, weight, None, MIXED)
        for _ in range(4):
            x = tt.relu(x * 1.5) * 0.5
        return x

    traced, x = tt.trace(function), tt.tensor(normal(2, 300))
    for scale in (0.001, 0.002):
        weight = tt.tensor(random_weight(MIXED, 300, np.array([scale], "float16"))[0])
        with tt.no_grad():
            np.testing.assert_allclose(traced(x, weight).numpy(), function(x, weight).numpy(), rtol=1e-5)


def test_a_table_gives_its_rows(dtype):
    model = nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 6))
    nn.quantize_(model, dtype, [model[0].weight])
    ids = np.array([[5, 0, 5], [1, 2, 3]])
    np.testing.assert_array_equal(model[0](tt.tensor(ids)).numpy(), model[0].weight.numpy()[ids])
    assert model(tt.tensor(ids)).shape == (2, 3, 6)


def test_only_the_table_that_is_asked_for_is_quantized(dtype):
    model = nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 6), nn.LayerNorm((3, 6)))
    nn.quantize_(model, dtype)
    assert isinstance(model[0].weight, nn.Parameter)
    assert model[2].weight.shape == (3, 6)
    assert sorted(model.state_dict()) == sorted(["0.weight", "1.bias", "1.weight.values", "2.weight", "2.bias"])


def test_a_tied_weight_stays_tied(dtype):
    model = nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 6, bias=False), nn.Linear(4, 6))
    model[1].weight = model[2].weight = model[0].weight
    nn.quantize_(model, dtype)
    assert model[0].weight is model[1].weight is model[2].weight
    assert [name for name in model.state_dict() if name.endswith("values")] == ["0.weight.values"]
    duplicate = copy.deepcopy(model)
    assert duplicate[0].weight is duplicate[1].weight is duplicate[2].weight is not model[0].weight


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"])
def test_a_duplicate_gives_the_same(dtype, duplicate):
    layer, x = nn.quantize_(nn.Linear(5, 3), dtype), tt.tensor(normal(2, 5))
    other = duplicate(layer)
    np.testing.assert_array_equal(other(x).numpy(), layer(x).numpy())
    other.weight.values.data[...] = 0
    assert np.abs(layer.weight.numpy()).max() > 0


def test_a_state_moves_a_quantized_model_through_a_file(dtype, tmp_path):
    one, other = (nn.quantize_(nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2)), dtype) for _ in range(2))
    x = tt.tensor(normal(2, 5))
    assert np.abs(one(x).numpy() - other(x).numpy()).max() > 0.01
    tt.save(one.state_dict(), tmp_path / "state.safetensors")
    loaded = tt.load(tmp_path / "state.safetensors")
    assert {str(value.dtype) for value in loaded.values()} <= {"uint8", "uint16", "float32"}
    other.load_state_dict(loaded)
    np.testing.assert_array_equal(one(x).numpy(), other(x).numpy())
    with pytest.raises(ValueError, match=r"0\.weight\.values"):
        nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2)).load_state_dict(loaded)


def test_no_outputs_and_no_inputs(dtype):
    assert nn.quantize_(nn.Linear(3, 0), dtype)(tt.ones((2, 3))).shape == (2, 0)
    layer = nn.quantize_(nn.Linear(0, 3), dtype)
    layer.bias.assign([1.0, 2.0, 3.0])
    assert layer(tt.ones((2, 0))).tolist() == [[1.0, 2.0, 3.0]] * 2


def test_no_gradient_flows_through_it(dtype):
    layer = nn.quantize_(nn.Linear(5, 3), dtype)
    x = tt.tensor(normal(2, 5), requires_grad=True)
    for given in (x, x.detach()):  # the bias alone
        with pytest.raises(RuntimeError, match="no gradient flows through a quantized weight: load the model with dtype"):
            layer(given).sum().backward()
    assert not layer.requires_grad_(False)(x.detach()).requires_grad


def test_quantizing_again_changes_nothing(dtype):
    model = nn.Sequential(nn.Linear(5, 3), nn.Embedding(6, 5))
    weights = [layer.weight for layer in nn.quantize_(model, dtype, [model[1].weight])]
    with pytest.raises(ValueError, match=f"the model is {dtype} already"):
        nn.quantize_(model, "bfloat16" if dtype == "int4" else "int4")
    assert [layer.weight for layer in nn.quantize_(model, dtype)] == weights


def test_other_dtypes_of_floating_point_numbers(dtype):
    """``astype`` converts the biases, but computes in float32."""
    layer, x = nn.quantize_(nn.Linear(5, 3), dtype), tt.tensor(normal(2, 5))
    want = layer(x).numpy()
    layer.astype("float64")
    np.testing.assert_array_equal(layer(x.astype("float64")).numpy(), want)


class Image(nn.Module):
    def __init__(self):
        self.kernel = nn.Parameter(tt.ones((2, 3, 3)))


def with_weight(value, inputs=3):
    layer = nn.Linear(inputs, 2)
    layer.weight.assign(np.full((2, inputs), value, "float32"))
    return layer


WRONG = {
    "dtype": (lambda: nn.quantize_(nn.Linear(2, 2), "int3"), "dtype must be int8 or int4 or bfloat16, got 'int3'"),
    "LSTM": (lambda: nn.quantize_(nn.LSTM(3, 4)), "weight_ih_l0 is a weight of an LSTM, which cannot be quantized"),
    "image": (lambda: nn.quantize_(nn.Sequential(nn.Linear(2, 2), Image())), r"1\.kernel is a weight of an Image"),
    "no table of it": (lambda: nn.quantize_(nn.Embedding(3, 2), tables=[tt.ones((3, 2))]), "tables must be the weights"),
    "too large": (lambda: nn.quantize_(with_weight(1e8)), r"weight has values beyond 8\.32e\+06, which int8 cannot hold"),
    "shapes": (lambda: nn.quantize_(nn.Linear(3, 2))(tt.ones((2, 4))), r"x \(2, 4\) must end in the inputs of .* \(2, 3\)"),
}


@pytest.mark.parametrize("act, message", WRONG.values(), ids=WRONG)
def test_what_cannot_be(act, message):
    with pytest.raises(ValueError, match=message):
        act()


@pytest.mark.parametrize("value", [nan, inf])
def test_a_weight_that_is_not_finite_is_refused(dtype, value):
    layer = with_weight(value)
    with pytest.raises(ValueError, match="weight has NaN or infinite values"):
        nn.quantize_(layer, dtype)
    assert isinstance(layer.weight, nn.Parameter)


@pytest.mark.parametrize("inputs", [4, 256])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_weights(dtype, inputs, sign):
    largest = LARGEST_WEIGHT.get(dtype, 1e38)
    layer = nn.quantize_(with_weight(sign * largest, inputs), dtype)
    np.testing.assert_allclose(layer.weight.numpy(), sign * largest, rtol=1e-2)


def test_repr(dtype):
    layer = nn.quantize_(nn.Linear(3, 2, bias=False), dtype)
    assert repr(layer).splitlines()[0].startswith("Linear(3, 2, bias=False)")
    block_type = {"int8": "Q8_0", "int4": "Q4_1", "bfloat16": "BF16"}[dtype]
    assert repr(layer.weight) == f"BlockWeight((2, 3), {block_type})"
