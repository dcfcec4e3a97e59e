"""Every CUDA source compiled by NVRTC, NVIDIA's own compiler, for the GPUs and dtypes that are meant: no GPU is needed.

It takes the real CuPy (``cupy-cuda13x``) and the ``nvidia-cuda-nvrtc`` wheel, so it has an environment of its own.
``pytest -rA`` prints the registers of each kernel.
"""

import importlib.util
import re
from pathlib import Path

import pytest

nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="NVRTC comes with the real CuPy")

FOLDER = Path(__file__).resolve().parents[2] / "tinytensor" / "kernels" / "cupy"
FILES = sorted(path.name for path in FOLDER.glob("*.cu"))
ARCHITECTURES = ["80", "90", "100"]  # Ampere, Hopper and Blackwell
REGISTERS = 65536  # of a multiprocessor, in all of these
SHARED_MEMORY = 48 * 1024  # bytes that a block may have without asking
DTYPES = ["float32", "float64", "bfloat16"]

# What each file is compiled for: a dtype and constants.
VARIANTS = {file: [(dtype, {}) for dtype in DTYPES] for file in FILES}
VARIANTS["flash_attention.cu"] = [
    *[("bfloat16", {"Width": width, "Masked": 0}) for width in (16, 32, 64, 128)],
    *[("bfloat16", {"Width": width, "Masked": 1}) for width in (16, 32, 64)],
]
variants = pytest.mark.parametrize(
    ("file", "dtype", "constants"),
    [
        pytest.param(file, *variant, id="-".join(map(str, [file, variant[0], *variant[1].values()])))
        for file in FILES
        for variant in VARIANTS[file]
    ],
)


@pytest.fixture(scope="module")
def loader():
    """The file that launches the kernels, by itself: its package would ask for a GPU."""
    from unittest import mock

    import numpy

    spec = importlib.util.spec_from_file_location("loader", FOLDER / "loader.py")
    module = importlib.util.module_from_spec(spec)
    backend = mock.Mock(xp=numpy)
    with mock.patch.dict("sys.modules", {"tinytensor": mock.Mock(backend=backend), "tinytensor.device.backend": backend}):
        spec.loader.exec_module(module)
    return module


def compiled(source, options, architecture):
    """The machine code, the assembly and what the assembler says of each kernel. CuPy adds the first two options."""
    program = nvrtc.createProgram(source, "kernel.cu", (), ())
    try:
        added = ("-ftz=true", "--device-as-default-execution-space", f"-arch=sm_{architecture}", "--ptxas-options=-v")
        nvrtc.compileProgram(program, (*options, *added))
        assembly = nvrtc.getPTX(program)
        assembly = assembly.decode() if isinstance(assembly, bytes) else assembly
        return nvrtc.getCUBIN(program), assembly, nvrtc.getProgramLog(program)
    except nvrtc.NVRTCError as error:
        raise AssertionError(nvrtc.getProgramLog(program)) from error
    finally:
        nvrtc.destroyProgram(program)


def test_there_are_sources():
    assert "gelu.cu" in FILES


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@variants
def test_it_compiles_and_keeps_all_in_registers(loader, file, dtype, constants, architecture):
    source = loader.source(file)
    code, assembly, log = compiled(source, loader.options(file, dtype, **constants), architecture)
    assert code.startswith(b"\x7fELF")
    bounds = dict(re.findall(r"\.entry (\w+)\([^{]*?\.maxntid (\d+)", assembly))
    blocks = dict(re.findall(r"\.entry (\w+)\([^{]*?\.minnctapersm (\d+)", assembly))
    names = re.findall(r"Compiling entry function '(\w+)'", log)
    assert sorted(names) == sorted(re.findall(r'^extern "C" __global__ void __launch_bounds__\([^)]*\) (\w+)', source, re.M))
    spilled = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", log)
    registers = re.findall(r"Used (\d+) registers", log)
    shared = [int(re.search(r"(\d+) bytes smem|$", rest)[1] or 0) for rest in re.findall(r"Used \d+ registers(.*)", log)]
    assert len(spilled) == len(registers) == len(shared) == len(names)
    for name, used, memory, numbers in zip(names, registers, shared, spilled):
        print(f"{file} {name} {dtype} {constants} sm_{architecture}: {used} registers, {memory} bytes of shared memory")
        threads = int(bounds[name]) * int(blocks[name])
        # Registers are given to a warp, 8 for each thread at a time.
        assert threads * (-(-int(used) // 8) * 8) <= REGISTERS, f"{blocks[name]} blocks of {name} need too many registers"
        assert memory <= SHARED_MEMORY, f"a block of {name} needs {memory} bytes of shared memory"
        assert set(numbers) == {"0"}, f"{name} keeps {numbers[0]} bytes in local memory, of which {numbers[1]} are spilled"


@pytest.mark.parametrize("file", [f for f in FILES if "load<" in (FOLDER / f).read_text() and f != "flash_attention.cu"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_packs_are_loaded_and_stored_128_bits_at_a_time(loader, file, dtype):
    _, assembly, _ = compiled(loader.source(file), loader.options(file, dtype), "90")
    for access in (r"ld\.global\S*", r"st\.global"):
        assert re.search(access + r"\.(v4\.[bfu]32|v2\.[bfu]64)", assembly)


@pytest.mark.parametrize("constants", [constants for _, constants in VARIANTS["flash_attention.cu"]], ids=str)
def test_flash_attention_is_made_of_what_tensor_cores_do(loader, constants):
    """Products of 16 x 16 by 16 x 8 by mma, operands by ldmatrix, and tiles that are copied beside the work."""
    source = loader.source("flash_attention.cu")
    _, assembly, _ = compiled(source, loader.options("flash_attention.cu", "bfloat16", **constants), "80")
    for instruction in (
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16",
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16",
        "cp.async.cg.shared.global",
        "cp.async.wait_all",
        "cvt.rn.bf16x2.f32",
        "ex2.approx.ftz.f32",
    ):
        assert instruction in assembly


def test_flash_attention_is_compiled_for_the_widths_that_are_used():
    text = (FOLDER / "flash_attention.py").read_text()
    for masked, name in enumerate(["_WIDTHS", "_MASKED_WIDTHS"]):
        widths = [c["Width"] for _, c in VARIANTS["flash_attention.cu"] if c["Masked"] == masked]
        assert re.search(rf"^{name} = \({', '.join(map(str, widths))}\)", text, re.MULTILINE)
