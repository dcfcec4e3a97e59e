"""benchmarks/gpu.py from end to end: on the stand-in for CuPy, with PyTorch on the CPU and configurations that are tiny."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TINY = """
import gpu
from configurations import GPTConfiguration

tiny = GPTConfiguration(num_layers=1, num_heads=2, d_model=16, block_size=12, batch_size=4)
gpu.GPU_GPTS = {"shakespeare_char": tiny, "GPT-2 124M": tiny}
gpu.TORCH_DEVICE = "cpu"
gpu.PYTORCH.pop(gpu.COMPILED)
tests = ("tests/gpu/test_kernels.py::test_ops_equal_those_of_numpy[float32-erf]",)
gpu.QUICK = gpu.Amount(tests, turns=2, blocks=2, steps=2, warm_up=2, losses=4, new_tokens=3, continuations=2, profiled=2)
"""


def run(*words, code="", backend="cupy", standin=True):
    """The script, with tiny configurations, in a process of its own."""
    folders = [*([ROOT / "tests" / "standin"] if standin else []), ROOT, ROOT / "benchmarks"]
    environment = {**os.environ, "TINYTENSOR_BACKEND": backend, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    command = [sys.executable, "-c", f"{TINY}\n{code}\ngpu.main()", "--quick", *map(str, words)]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A text that can be learned from."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("to be or not to be, that is the question. " * 50, encoding="utf-8")
    return path


def test_every_part_is_measured_and_written(tmp_path, text):
    process = run("--data", text, "--output", tmp_path / "gpu.md")
    assert process.returncode == 0, process.stderr
    written = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    assert written.startswith("# On a GPU (a smoke run: no measurement)\n") and "an imagined GPU" in written
    assert "Not measured" not in written and "1 passed" in written
    rows = [line.strip("| ").split(" | ")[0].strip() for line in written.splitlines() if line.startswith("| ")]
    for side in ("tinyformer, TF32", "tinyformer, bfloat16", "PyTorch eager, TF32", "PyTorch eager, bfloat16"):
        assert rows.count(side) >= 2, side
    kernels = [rows.count(name) for name in ("multi_head_attention_forward", "adam_step", "everything else")]
    assert kernels == [4, 4, 4], written  # two configurations, two dtypes
    assert rows.count("Hugging Face") == 4  # in a table and as a ratio, for both batches
    assert rows.count("compiled kernels cached") == 1
    assert len(re.findall(r"\*\*(NOT )?met\*\*", written)) == 4  # of a step, of two losses, of the start
    assert re.search(r"Measured on .* at revision .* cupy", written)


def test_what_fails_is_named_and_the_rest_is_measured(tmp_path):
    broken = 'gpu.PYTORCH["broken"] = (False, False, "no such option"); gpu.ROUNDING[gpu.MIXED] = 1e-12'
    process = run("--parts", "steps", "--output", tmp_path / "gpu.md", code=broken)
    assert process.returncode == 1
    assert "GPT-2 124M: broken was not measured: broken failed" in process.stdout
    refused = "PyTorch eager, bfloat16 was not measured: a first loss of PyTorch eager, bfloat16 is 4."
    assert f"GPT-2 124M: {refused}" in process.stdout
    written = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    table = written.split("## A training step, GPT-2 124M")[1].split("\n\n")[2].splitlines()[2:]
    names = [line.strip("| ").split(" | ")[0].strip() for line in table]
    assert names == ["tinyformer, TF32", "tinyformer, bfloat16", "PyTorch eager, TF32"]
    assert "## Tests" not in written  # a part that was not asked for


def test_tests_that_fail_are_said():
    failing = 'import dataclasses; gpu.QUICK = dataclasses.replace(gpu.QUICK, tests=("tests/gpu/no_such_file.py",))'
    process = run("--parts", "tests", code=failing)
    assert process.returncode == 1 and "not all tests passed" in process.stdout and "no_such_file" in process.stdout


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"backend": "numpy"}, "run TINYTENSOR_BACKEND=cupy python benchmarks/gpu.py"), ({"standin": False}, "CuPy")],
    ids=["numpy", "no CuPy"],
)
def test_without_a_gpu_one_line_says_so(settings, says):
    process = run(**settings)
    assert process.returncode == 2 and process.stdout == ""
    assert process.stderr.startswith("error: ") and process.stderr.count("\n") == 1 and says in process.stderr
