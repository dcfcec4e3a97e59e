"""The kernel of the benchmarks that only passes time, compiled by NVRTC: no GPU is needed, but the real CuPy."""

import hold
import pytest

nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="NVRTC comes with the real CuPy")


@pytest.mark.parametrize("architecture", ["80", "90", "100"])
def test_it_compiles_and_waits_for_the_gpus_clock(architecture):
    program = nvrtc.createProgram(hold.SOURCE, "hold.cu", (), ())
    try:
        nvrtc.compileProgram(program, (*hold.OPTIONS, f"-arch=sm_{architecture}"))
        assembly = nvrtc.getPTX(program)
    finally:
        nvrtc.destroyProgram(program)
    assembly = assembly.decode() if isinstance(assembly, bytes) else assembly
    assert assembly.count("%globaltimer") == 2 and "bra" in assembly
