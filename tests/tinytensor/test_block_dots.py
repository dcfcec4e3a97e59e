"""Dot products with blocks of a few bits, in the instructions of every processor."""

from __future__ import annotations

import itertools
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from blocks import SCALES, assert_near, random_blocks, unpacked

from tinytensor.kernels.numpy.quantized import BLOCK_TYPES

pytestmark = pytest.mark.needs("numba")
TESTS = Path(__file__).parents[1]

FEATURES = {"vnni": ("avxvnni", "avx512vnni"), "avx2": ("avx2",), "neon": ("dotprod",), "plain": ()}  # any of which allows it


@pytest.mark.parametrize("instructions", FEATURES)
def test_every_instruction_set_computes_the_products(instructions):
    import numba

    from tinytensor.kernels.numba import block_dots, processor
    from tinytensor.kernels.numba.quantized import round_inputs, rounded_size

    if FEATURES[instructions] and not any(map(processor.has, FEATURES[instructions])):
        pytest.skip(f"this processor does not have {instructions}")

    def dots(columns):
        compiled = block_dots.block_dots(columns, instructions).compile(np.dtype("float32"))
        return numba.njit(
            lambda code, x, scales, sums, weight, row, width, out: compiled(code, x, scales, sums, weight, row, width, out)
        )

    one, four = dots(1), dots(4)
    for block_type, count in itertools.product(SCALES, (0, 1, 2, 9)):
        block = BLOCK_TYPES[block_type]
        width, row = count * block.size, count * block.bytes
        blocks = random_blocks(block_type, 4, width)
        blocks[0].reshape(-1, block.bytes)[:, 2:] = 0x80  # -128, the largest integer with 8 bits
        for x in (np.random.default_rng(0).standard_normal((1, width), "float32"), np.ones((1, width), "float32")):
            rounded, together, alone = (np.full(size, 7, "float32") for size in (rounded_size(1, width), 5, 5))
            start = rounded.ctypes.data
            round_inputs(x, width, start)
            inputs = block_dots.CODES[block_type], start, start + 2 * width, start + 2 * width + width // 8
            four(*inputs, blocks.ctypes.data, row, width, together.ctypes.data)
            for i in range(4):
                one(*inputs, blocks[i:].ctypes.data, row, width, alone[i:].ctypes.data)
            assert_near(alone[None, :4], x, unpacked(blocks, block_type, width))
            np.testing.assert_array_equal(together, alone)
            assert alone[4] == 7


@pytest.mark.parametrize("instructions", FEATURES)
def test_every_instruction_set_unpacks_weights(instructions):
    import numba

    from tinytensor.kernels.numba import block_dots, processor

    if FEATURES[instructions] and not any(map(processor.has, FEATURES[instructions])):
        pytest.skip(f"this processor does not have {instructions}")
    compiled = block_dots.unpack_block(instructions).compile(np.dtype("float32"))
    unpack = numba.njit(lambda code, block, out: compiled(code, block, out))
    halves = np.arange(1 << 16, dtype="uint16").view("float16")
    for block_type in SCALES:
        size, bytes_, *_ = BLOCK_TYPES[block_type]
        blocks = random_blocks(block_type, 300, size, halves[np.isfinite(halves)])
        want, got = unpacked(blocks, block_type, size), np.full(size + 1, 7, "float32")
        for i in range(len(blocks)):
            unpack(block_dots.CODES[block_type], blocks.ctypes.data + i * bytes_, got.ctypes.data)
            np.testing.assert_array_equal(got, [*want[i], 7])


TARGETS = {  # the instructions, the processor, what they look like, and how many multiply a vector
    "NEON": ("neon", "aarch64-linux-gnu", "+dotprod", r"sdot\s+v\d+\.4s", 4),
    "AVX2": ("avx2", "x86_64-linux-gnu", "+avx2,+f16c", r"vpmaddubsw.*%ymm", 2),
    "AVX-VNNI": ("vnni", "x86_64-linux-gnu", "+avx2,+avxvnni,+f16c", r"\{vex\}\s+vpdpbusd.*%ymm", 2),
    "AVX-512": ("vnni", "x86_64-linux-gnu", "+avx512vl,+avx512vnni,+f16c", r"\n\s+vpdpbusd.*%ymm", 2),
}


@pytest.mark.parametrize("block_type", SCALES)
@pytest.mark.parametrize("target", TARGETS)
def test_every_processor_gets_its_instruction(target, block_type):
    from llvmlite import binding, ir

    from tinytensor.kernels.numba.block_dots import _Writer

    instructions, triple, features, pattern, count = TARGETS[target]
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 7), "dots")
    builder = ir.IRBuilder(function.append_basic_block())
    _Writer(builder, instructions).rows(block_type, 4, *function.args)
    builder.ret_void()
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine = binding.Target.from_triple(triple).create_target_machine(features=features)
    parsed = binding.parse_assembly(str(module))
    parsed.verify()
    assert len(re.findall(pattern, machine.emit_assembly(parsed))) >= 4 * count * BLOCK_TYPES[block_type].size // 32


ARM = "aarch64-unknown-linux-gnu"
LINUX = "+aes,+crc,+fp-armv8,+lse,+neon,-rand,+sha2,-sve"  # what LLVM detects on Linux, with dot products and without
PROCESSORS = [
    (ARM, "cortex-a72", LINUX, "plain"),
    (ARM, "neoverse-n1", LINUX, "neon"),
    (ARM, "neoverse-n1", LINUX + ",-dotprod", "plain"),
    (ARM, "generic", "+dotprod", "neon"),
    ("arm64-apple-darwin", "apple-m1", "", "neon"),
    ("x86_64-linux-gnu", "nehalem", "+sse4.2,-avx2", "plain"),
    ("x86_64-linux-gnu", "haswell", "+avx2,+fma,-avx512vnni", "avx2"),
    ("x86_64-linux-gnu", "alderlake", "+avx2,+avxvnni", "vnni"),
    ("x86_64-linux-gnu", "icelake-server", "+avx2,+avx512vl,+avx512vnni", "vnni"),
]


@pytest.mark.parametrize(("triple", "name", "features", "instructions"), PROCESSORS)
def test_the_instructions_of_a_processor(monkeypatch, triple, name, features, instructions):
    from llvmlite import binding

    from tinytensor.kernels.numba import block_dots, processor

    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    monkeypatch.setattr(processor, "_compiled_for", lambda: (triple, name, features.split(",")))
    monkeypatch.setattr(block_dots, "has", processor.has.__wrapped__)  # without its cache
    assert block_dots.instructions() == instructions


ELSEWHERE = """
from test_quantized import *
from tinytensor.kernels.numba.block_dots import instructions
test_compiled_products(ROWS["usual"])
print(instructions())
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="compiles for an older processor of this kind")
@pytest.mark.parametrize("name, features, instructions", [("haswell", "+avx2,+fma", "avx2"), ("nehalem", "", "plain")])
def test_products_on_an_older_processor(name, features, instructions):
    path = os.pathsep.join(map(str, [TESTS.parent, TESTS, TESTS / "tinytensor"]))
    environment = {**os.environ, "NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features, "PYTHONPATH": path}
    command = [sys.executable, "-W", "ignore", "-c", ELSEWHERE]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.stdout == f"{instructions}\n", result.stderr
