"""Weights in int8 and bfloat16: exact products of integers, the same in all kernels, and layers that have them."""

from __future__ import annotations

import copy
import ctypes
import importlib
import mmap
import os
import pickle
import platform
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tinytensor as tt
from tinytensor import nn
from tinytensor.device.backend import xp
from tinytensor.kernels.numpy import quantized

ROOT = Path(__file__).parents[2]
inf, nan = float("inf"), float("nan")


def integers(*shape, seed=0):
    return np.random.default_rng(seed).integers(-127, 128, shape).astype("int8")


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def on_host(array):
    return tt.tensor(array).numpy()


# ---------------------------------------------------------------------------------------------------- what is computed


@pytest.mark.parametrize("width", [1, 3, 1024, 1025, 5000])
def test_a_product_is_that_of_the_integers(width):
    """Also where a sum has more digits than float32 holds: all integers of one row have the largest size."""
    x, weight, scale, bias = normal(3, width), integers(5, width, seed=1), normal(5, seed=2) ** 2, normal(5, seed=3)
    x[0], weight[:2] = 2.0, 127
    rows, scales = [on_host(each) for each in quantized.quantize_rows(xp.asarray(x))]
    sums = rows.astype("int64") @ weight.T.astype("int64")
    want = sums.astype("float32") * (scales[:, None] * scale) + bias
    got = quantized.linear_int8(*[xp.asarray(each) for each in (x, weight, scale, bias)])
    np.testing.assert_array_equal(on_host(got), want)


def test_rows_are_rounded_to_the_nearest_integer():
    x = np.array([[127.0, 0.5, 1.5, -2.5, 63.4, -126.6], [0, 0, 0, 0, 0, 0], [1e-31, 0, 0, 0, 0, 0]], "float32")
    rows, scale = [on_host(each) for each in quantized.quantize_rows(xp.asarray(x))]
    assert rows.tolist() == [[127, 0, 2, -2, 63, -127], [0] * 6, [0] * 6]
    assert scale[:2].tolist() == [1.0, 0.0]
    rows, scale = [on_host(each) for each in quantized.quantize_rows(xp.asarray(x[:1] * np.float32(1e-3)))]
    assert np.abs(rows * scale - x[:1] * 1e-3).max() <= 0.5001 * scale[0]
    x[0, 1], x[1, 1], x[2, 1] = nan, inf, -inf
    rows, scale = [on_host(each) for each in quantized.quantize_rows(xp.asarray(x))]
    assert not rows.any()
    np.testing.assert_array_equal(scale, [nan, inf, inf])


def test_bfloat16_is_rounded_to_even():
    one, step = 0x3F80, 2.0**-7
    x = np.array([1 + step * n / 4 for n in (0, 1, 2, 3, 4, 5, 6, 7)] + [-1 - step / 2, 0.0, -0.0, 3.4e38], "float32")
    bits = on_host(quantized.to_bfloat16(xp.asarray(x)))
    assert bits.dtype == "uint16"
    assert bits[:8].tolist() == [one, one, one, one + 1, one + 1, one + 1, one + 2, one + 2]
    assert bits[8:].tolist() == [one | 0x8000, 0, 0x8000, 0x7F80]
    np.testing.assert_array_equal(
        on_host(quantized.from_bfloat16(xp.asarray(bits))).view("uint32"), bits.astype("uint32") << 16
    )


# ------------------------------------------------------------------------------------------------------ compiled kernels

ROWS = {
    "usual": lambda x: x,
    "zeros": lambda x: x * 0,
    "NaN": lambda x: np.where(np.arange(x.size).reshape(x.shape) == 0, np.float32(nan), x),
    "infinite": lambda x: np.where(np.arange(x.size).reshape(x.shape) == x.size - 1, np.float32(-inf), x),
    "denormal": lambda x: x * np.float32(1e-39),
    "large": lambda x: x * np.float32(4e37),
    "halves": lambda x: np.round(x * 16) / 2,
    "float64": lambda x: x.astype("float64") / 3,
    "other layout": np.asfortranarray,
    "every second": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
}


@pytest.mark.needs("numba")
@pytest.mark.parametrize("change", ROWS.values(), ids=ROWS)
def test_compiled_kernels_give_the_same_bits(change):
    compiled = importlib.import_module("tinytensor.kernels.numba")
    for rows in (1, 2, 4, 5, 9):
        for outputs, width in [(1, 1), (7, 15), (4, 32), (13, 63), (3, 64), (6, 65), (5, 130), (2, 1153)]:
            x = change(normal(rows, width, seed=rows))
            weight, scale = integers(outputs, width, seed=width), normal(outputs, seed=2) ** 2
            for bias in (None, normal(outputs, seed=3)):
                with np.errstate(all="ignore"):
                    want = quantized.linear_int8(x, weight, scale, bias)
                got = compiled.linear_int8(x, weight, scale, bias)
                assert got.dtype == want.dtype == "float32"
                np.testing.assert_array_equal(got, want, err_msg=f"{rows} {outputs} {width}")
                np.testing.assert_array_equal(np.signbit(got[got == 0]), np.signbit(want[want == 0]))


@pytest.mark.needs("numba")
@pytest.mark.parametrize(
    "shape, outputs", [((0, 5), 3), ((2, 0), 3), ((2, 5), 0), ((2, 0, 5), 3), ((5,), 3), ((2, 3, 5), 3)], ids=str
)
def test_compiled_kernels_with_nothing_to_compute(shape, outputs):
    compiled = importlib.import_module("tinytensor.kernels.numba")
    arrays = normal(*shape), integers(outputs, shape[-1]), normal(outputs), normal(outputs)
    for bias in (arrays[3], None):
        np.testing.assert_array_equal(compiled.linear_int8(*arrays[:3], bias), quantized.linear_int8(*arrays[:3], bias))


@pytest.mark.needs("numba")
def test_a_second_thread_changes_no_bit(monkeypatch):
    compiled = importlib.import_module("tinytensor.kernels.numba.quantized")
    arrays = normal(5, 300), integers(700, 300), normal(700), normal(700)
    want = quantized.linear_int8(*arrays)
    monkeypatch.setattr(compiled, "_SHARED", 0)
    monkeypatch.setattr(compiled, "_PART", 1 << 8)
    monkeypatch.setattr(compiled, "has_second_core", lambda: True)
    for _ in range(50):
        np.testing.assert_array_equal(compiled.linear_int8(*arrays), want)
    monkeypatch.setattr(compiled.helper().__class__, "call", lambda self, function: None)  # it never gets a core
    np.testing.assert_array_equal(compiled.linear_int8(*arrays), want)


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
@pytest.mark.parametrize("rows, outputs, width", [(1, 1, 1), (1, 5, 63), (4, 4, 64), (5, 7, 65), (3, 9, 129)])
def test_nothing_is_read_behind_the_arrays(rows, outputs, width):
    compiled = importlib.import_module("tinytensor.kernels.numba")
    arrays = normal(rows, width), integers(outputs, width), normal(outputs), normal(outputs)
    got = compiled.linear_int8(*map(before_a_forbidden_page, arrays))
    np.testing.assert_array_equal(got, quantized.linear_int8(*arrays))


WAYS = {"AVX512": "avx512vnni", "AVX": "avx512vnni avxvnni", "NEON": "dotprod", "PLAIN": ""}  # and a feature that allows it


@pytest.mark.needs("numba")
@pytest.mark.parametrize("name", WAYS)
def test_every_instruction_gives_the_sums_of_integers(name):
    import numba

    from tinytensor.kernels.numba import dots, processor

    if WAYS[name] and not any(map(processor.has, WAYS[name].split())):
        pytest.skip(f"this processor has not {WAYS[name]}")
    way = getattr(dots, name)
    for rows, columns in [(1, 1), (4, 4)]:
        compiled = dots.compiled_dots(way, rows, columns)

        @numba.njit
        def call(x, starts, weight, width, out, stride, compiled=compiled):
            compiled(x, starts, weight, width, out, stride)

        for width in (0, 1, 31, 64, 64 * 5 + 33, 1 << 17):
            x, weight = integers(rows, width), integers(columns, width, seed=1)
            if width > 1000:
                x[0], weight[-1], weight[0] = 127, 127, -127  # sums of nearly 2**31
            whole = 0 if name == "PLAIN" else width // way.bytes * way.bytes
            starts = -way.added * x[:, :whole].astype("int64").sum(1)
            starts, out = starts.astype("int32"), np.full((rows, columns + 1), 7, "int32")
            call(x.ctypes.data, starts.ctypes.data, weight.ctypes.data, width, out.ctypes.data, columns + 1)
            np.testing.assert_array_equal(out[:, :-1], x.astype("int64") @ weight.T.astype("int64"))
            assert (out[:, -1] == 7).all()


TARGETS = {
    "NEON": ("aarch64-linux-gnu", "+dotprod", r"sdot\s+v\d+\.4s"),
    "AVX": ("x86_64-linux-gnu", "+avx2,+avxvnni", r"\{vex\}\s+vpdpbusd.*%ymm"),
    "AVX512": ("x86_64-linux-gnu", "+avx512f,+avx512vnni", r"vpdpbusd.*%zmm"),
}


@pytest.mark.needs("numba")
@pytest.mark.parametrize("name", TARGETS)
def test_every_processor_gets_its_instruction(name):
    from llvmlite import binding, ir

    from tinytensor.kernels.numba import dots

    triple, features, instruction = TARGETS[name]
    module, six = ir.Module(), [ir.IntType(64)] * 6
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), six), "whole_vectors")
    builder = ir.IRBuilder(function.append_basic_block())
    dots.write_vectors(getattr(dots, name), 1, 4)(builder, *function.args)
    builder.ret_void()
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine = binding.Target.from_triple(triple).create_target_machine(features=features)
    parsed = binding.parse_assembly(str(module))
    parsed.verify()
    assert len(re.findall(instruction, machine.emit_assembly(parsed))) == 4


LINUX = "+aes,+crc,+fp-armv8,+lse,+neon,-rand,+sha2,-sve"  # what LLVM detects on Linux, with dot products and without
ARM_PROCESSORS = [
    ("aarch64-unknown-linux-gnu", "cortex-a72", LINUX, False),
    ("aarch64-unknown-linux-gnu", "neoverse-n1", LINUX, True),
    ("aarch64-unknown-linux-gnu", "neoverse-n1", LINUX + ",-dotprod", False),
    ("aarch64-unknown-linux-gnu", "generic", "+dotprod", True),
    ("arm64-apple-darwin", "apple-m1", "", True),
]


@pytest.mark.needs("numba")
@pytest.mark.parametrize(("triple", "name", "features", "has_sdot"), ARM_PROCESSORS)
def test_arm_processors_with_dot_products_are_known_by_name(monkeypatch, triple, name, features, has_sdot):
    from llvmlite import binding

    from tinytensor.kernels.numba import dots, processor

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    monkeypatch.setattr(processor, "_compiled_for", lambda: (triple, name, features.split(",")))
    monkeypatch.setattr(dots, "has", processor.has.__wrapped__)  # without its cache
    assert dots.way() is (dots.NEON if has_sdot else dots.PLAIN)


ELSEWHERE = """
import sys
import numpy as np
from tinytensor.kernels import linear_int8
from tinytensor.kernels.numba import dots
from tinytensor.kernels.numpy import quantized
rng = np.random.default_rng(0)
x, weight = rng.standard_normal((5, 131)).astype("float32"), rng.integers(-127, 128, (9, 131)).astype("int8")
scale = rng.random(9).astype("float32")
np.testing.assert_array_equal(linear_int8(x, weight, scale, None), quantized.linear_int8(x, weight, scale, None))
print(dots.way() is dots.PLAIN)
"""


@pytest.mark.needs("numba")
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="compiles for an older processor of this kind")
def test_a_processor_without_such_an_instruction_gives_the_same_bits():
    environment = {**os.environ, "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-c", ELSEWHERE]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.stdout == "True\n", result.stderr


# ---------------------------------------------------------------------------------------------------------------- layers


@pytest.fixture(params=["int8", "bfloat16"])
def dtype(request):
    return request.param


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_computes_with_the_numbers_it_shows(dtype, bias):
    tt.seed(0)
    layer = nn.Linear(70, 9, bias=bias)
    before = layer.weight.numpy().copy()
    assert nn.quantize_(layer, dtype) is layer
    assert not layer.training
    numbers = layer.weight.numpy()
    largest = np.abs(before).max(1, keepdims=True)
    assert np.abs(numbers - before).max() > 0
    assert (np.abs(numbers - before) <= largest * (0.501 / 127 if dtype == "int8" else 2.0**-8)).all()
    x = normal(2, 3, 70)
    want = x @ numbers.T + (layer.bias.numpy() if bias else 0.0)
    np.testing.assert_allclose(layer(tt.tensor(x)).numpy(), want, atol=0.03 if dtype == "int8" else 1e-5)


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
    assert sorted(model.state_dict()) == sorted(
        ["0.weight", "1.bias", "1.weight.values", "2.weight", "2.bias"] + ["1.weight.scale"] * (dtype == "int8")
    )


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
    assert {str(value.dtype) for value in loaded.values()} <= {"int8", "uint16", "float32"}
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
        with pytest.raises(RuntimeError, match="no gradient flows through a quantized weight: train the model in float32"):
            layer(given).sum().backward()
    assert not layer.requires_grad_(False)(x.detach()).requires_grad


def test_quantizing_again_changes_nothing(dtype):
    layer = nn.quantize_(nn.Linear(5, 3), dtype)
    weight = layer.weight
    assert nn.quantize_(layer, dtype).weight is weight
    with pytest.raises(ValueError, match=f"weight is {dtype} already"):
        nn.quantize_(layer, "int8" if dtype == "bfloat16" else "bfloat16")


def test_other_dtypes_of_floating_point_numbers(dtype):
    """``astype`` converts the biases, not what is computed: float32."""
    layer, x = nn.quantize_(nn.Linear(5, 3), dtype), tt.tensor(normal(2, 5))
    want = layer(x).numpy()
    layer.astype("float64")
    np.testing.assert_array_equal(layer(x.astype("float64")).numpy(), want)


class Image(nn.Module):
    def __init__(self):
        self.kernel = nn.Parameter(tt.ones((2, 3, 3)))


WRONG = {
    "dtype": (lambda: nn.quantize_(nn.Linear(2, 2), "int4"), "can be quantized to int8 or bfloat16, not to 'int4'"),
    "LSTM": (lambda: nn.quantize_(nn.LSTM(3, 4)), "weight_ih_l0 is a weight of an LSTM, which cannot be quantized"),
    "image": (lambda: nn.quantize_(nn.Sequential(nn.Linear(2, 2), Image())), r"1\.kernel is a weight of an Image"),
    "no table of it": (lambda: nn.quantize_(nn.Embedding(3, 2), tables=[tt.ones((3, 2))]), "tables must be the weights"),
    "inputs": (lambda: nn.quantize_(nn.Linear(131_073, 1)), r"weight of shape \(1, 131073\) has more than 131,072 inputs"),
    "shapes": (lambda: nn.quantize_(nn.Linear(3, 2))(tt.ones((2, 4))), r"linear_int8 of shapes \(2, 4\), \(2, 3\)"),
}


@pytest.mark.parametrize("act, message", WRONG.values(), ids=WRONG)
def test_what_cannot_be(act, message):
    with pytest.raises(ValueError, match=message):
        act()


@pytest.mark.parametrize("value", [nan, inf])
def test_a_weight_that_is_not_finite_is_refused(dtype, value):
    layer = nn.Linear(3, 2)
    layer.weight.assign([[1.0, 2.0, 3.0], [0.0, value, 1.0]])
    with pytest.raises(ValueError, match="weight has NaN or infinite numbers"):
        nn.quantize_(layer, dtype)
    assert isinstance(layer.weight, nn.Parameter)


def test_repr(dtype):
    layer = nn.quantize_(nn.Linear(3, 2, bias=False), dtype)
    assert repr(layer).splitlines()[0].startswith("Linear(3, 2, bias=False)")
    assert repr(layer.weight) == f"{type(layer.weight).__name__}((2, 3), {dtype})"
