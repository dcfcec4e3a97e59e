"""The backend switch, and who may import what."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

import tinytensor
from tinytensor.device import backend

PACKAGE = Path(tinytensor.__file__).parent


def failure(run):
    """The message of the BackendError that a run ended with."""
    assert run.returncode == 1, run.stderr
    message = run.stderr.strip().splitlines()[-1]
    kind, _, text = message.partition(": ")
    assert kind == "tinytensor.device.backend.BackendError"
    return text


def test_an_unknown_backend(python):
    text = failure(python("import tinytensor", TINYTENSOR_BACKEND="torch"))
    assert "'torch'" in text
    assert "'numpy' or 'cupy'" in text


def test_cupy_without_the_package(python):
    block = "import sys; sys.modules['cupy'] = None; import tinytensor"  # None makes the import fail
    text = failure(python(block, TINYTENSOR_BACKEND="cupy"))
    assert "pip install 'tinyformer[cuda13]'" in text
    assert "unset TINYTENSOR_BACKEND" in text


FAKE = """
import sys, types

class CUDARuntimeError(RuntimeError):
    status = 0

def refuse(status, text):
    error = CUDARuntimeError(text)
    error.status = status
    raise error

runtime = types.SimpleNamespace(
    CUDARuntimeError=CUDARuntimeError,
    getDevice=lambda: 0,
    getDeviceCount=lambda: 1,
    getDeviceProperties=lambda device: {"name": b"NVIDIA H200", "major": 9, "minor": 0},
    driverGetVersion=lambda: 0,
    runtimeGetVersion=lambda: 13020,
)
cupy, libs = types.ModuleType("cupy"), types.ModuleType("cupy_backends.cuda.libs")
cupy.cuda = types.SimpleNamespace(runtime=runtime, nvrtc=types.SimpleNamespace(getVersion=lambda: (13, 2)))
for name in ("cupy_backends", "cupy_backends.cuda"):
    sys.modules[name] = types.ModuleType(name)
sys.modules.update({"cupy": cupy, libs.__name__: libs})
libs.cublas = types.ModuleType("cublas")
pathfinder = types.ModuleType("cuda.pathfinder")
pathfinder.find_nvidia_header_directory = lambda name: {"cudart": "/usr/local/cuda/include"}[name]
sys.modules.update({"cuda": types.ModuleType("cuda"), "cuda.pathfinder": pathfinder})
"""  # a CuPy without faults; each case adds one

UNUSABLE = {
    "CuPy does not find its libraries": (
        "class Broken:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'cupy': raise ImportError('Failed to import CuPy.\\n\\nlibcudart.so.13: no such file')\n"
        "del sys.modules['cupy']; sys.meta_path.insert(0, Broken())",
        ["CuPy does not load (libcudart.so.13: no such file)", "pip install 'tinyformer[cuda13]'"],
    ),
    "CuPy lacks a package": (
        "class Broken:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'cupy': raise ModuleNotFoundError('none', name='fastrlock')\n"
        "del sys.modules['cupy']; sys.meta_path.insert(0, Broken())",
        ["the package 'fastrlock' is missing", "pip install 'tinyformer[cuda13]'"],
    ),
    "no driver": (
        "runtime.getDeviceCount = lambda: refuse(35, 'cudaErrorInsufficientDriver')",
        ["CuPy finds no NVIDIA driver: install one"],
    ),
    "a driver that is too old": (
        "runtime.getDeviceCount = lambda: refuse(35, 'cudaErrorInsufficientDriver'); runtime.driverGetVersion = lambda: 12040",
        ["the NVIDIA driver is for CUDA 12.4 and this CuPy for 13.2", "update the driver", "tinyformer[cuda12]"],
    ),
    "no device": (
        "runtime.getDeviceCount = lambda: refuse(100, 'cudaErrorNoDevice')",
        ["no usable NVIDIA GPU", "nvidia-smi", "CUDA_VISIBLE_DEVICES"],
    ),
    "none of the devices": ("runtime.getDeviceCount = lambda: 0", ["no usable NVIDIA GPU", "nvidia-smi"]),
    "a device in trouble": (
        "runtime.getDeviceCount = lambda: refuse(999, 'cudaErrorUnknown: unknown error')",
        ["CUDA does not start (cudaErrorUnknown: unknown error)", "nvidia-smi"],
    ),
    "a GPU too old for CUDA 13": (
        "runtime.getDeviceProperties = lambda device: {'name': b'Tesla V100', 'major': 7, 'minor': 0}",
        ["the GPU Tesla V100 has compute capability 7.0", "CUDA 13.2 compiles for 7.5 and later", "tinyformer[cuda12]"],
    ),
    "a GPU too old for any": (
        "runtime.getDeviceProperties = lambda device: {'name': b'Tesla K80', 'major': 3, 'minor': 7};"
        "runtime.runtimeGetVersion = lambda: 12080",
        ["the GPU Tesla K80 has compute capability 3.7", "CUDA 12.8 compiles for 5.0 and later: use a newer GPU"],
    ),
    "no cuBLAS": ("del libs.cublas", ["CUDA's library cuBLAS", "pip install 'tinyformer[cuda13]'"]),
    "no NVRTC": (
        "cupy.cuda.nvrtc.getVersion = lambda: refuse(0, 'CuPy failed to load libnvrtc.so.13')",
        ["CUDA's library NVRTC", "pip install 'tinyformer[cuda13]'"],
    ),
    "no headers": (
        "pathfinder.find_nvidia_header_directory = lambda name: None",
        ["CuPy does not find CUDA's headers", "pip install 'tinyformer[cuda13]'", "set CUDA_PATH"],
    ),
}


TRIALS = """
import json, sys
from tinytensor.device.backend import BackendError, _load_cupy

def outcome(code):
    modules, finders = dict(sys.modules), list(sys.meta_path)
    names = {}
    try:
        exec(code, names)
        return _load_cupy() is names["cupy"]
    except BackendError as error:
        return str(error)
    finally:
        sys.meta_path[:] = finders
        for name in set(sys.modules) - set(modules):
            del sys.modules[name]

print(json.dumps([outcome(code) for code in json.loads(sys.stdin.read())]))
"""


def test_a_cupy_that_cannot_be_used():
    """Each case adds a fault to a CuPy that can be used. All are tried in one process, in which nothing else is CuPy."""
    codes = [FAKE, *[f"{FAKE}\n{fault}" for fault, _ in UNUSABLE.values()]]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "TINYTENSOR_BACKEND": "numpy"}
    given = {"input": json.dumps(codes), "env": environment, "capture_output": True, "text": True}
    run = subprocess.run([sys.executable, "-c", TRIALS], check=True, **given)
    usable, *outcomes = json.loads(run.stdout)
    assert usable is True
    for (case, (_, said)), text in zip(UNUSABLE.items(), outcomes, strict=True):
        assert isinstance(text, str), case
        assert all(part in text for part in said), (case, text)
        assert len(text) < 225


def test_an_import_with_a_cupy_that_cannot_be_used(python):
    fault, said = UNUSABLE["no device"]
    text = failure(python(f"{FAKE}\n{fault}\nimport tinytensor", TINYTENSOR_BACKEND="cupy"))
    assert said[0] in text
    assert text.startswith("TINYTENSOR_BACKEND=cupy, but ")
    assert text.endswith(", or unset TINYTENSOR_BACKEND to run on the CPU")


def test_numpy_is_the_default_and_silent_and_nothing_optional_is_imported(python):
    optional = {"matplotlib", "graphviz", "safetensors", "tqdm", "torch", "cupy", "numba"}
    code = f"import sys, tinytensor; print(tinytensor.backend_name, sorted({optional} & set(sys.modules)))"
    run = python(code, TINYTENSOR_BACKEND="")
    assert (run.stdout, run.stderr) == ("numpy []\n", "")


def test_a_backend_error_can_be_caught_as_an_import_error():
    assert issubclass(tinytensor.BackendError, ImportError)


def imports(path):
    """The top-level packages that a file imports anywhere."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("package", ["tinytensor", "tinyformer"])
def test_only_the_backend_and_its_kernels_import_numpy_or_cupy(package):
    root = PACKAGE.parent / package
    files = sorted(root.rglob("*.py"))
    assert files
    allowed = {PACKAGE / "device/backend.py", *PACKAGE.glob("kernels/**/*.py")}
    guilty = [str(f.relative_to(root)) for f in files if f not in allowed and {"numpy", "cupy", "cupyx"} & set(imports(f))]
    assert guilty == []


def test_the_check_of_imports_sees_them(tmp_path):
    for text in ("import numpy", "import numpy.linalg as la", "from numpy import exp", "def f():\n    import numpy as np"):
        file = tmp_path / "file.py"
        file.write_text(text)
        assert set(imports(file)) == {"numpy"}


@pytest.mark.needs("cupy")
def test_bfloat16_is_floating_and_other_dtypes_that_numpy_lacks_are_not():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kinds = {name: backend.is_floating(numpy.dtype(getattr(ml_dtypes, name))) for name in ("bfloat16", "int4", "uint2")}
    assert kinds == {"bfloat16": True, "int4": False, "uint2": False}
    assert not backend.is_floating(numpy.dtype("V2")) and backend.is_floating(numpy.dtype("float16"))


@pytest.mark.needs("numpy")  # otherwise the host's arrays are not those of the backend
def test_scatter_add_adds_up_repeated_indices():
    target = backend.xp.zeros(3)
    backend.scatter_add(target, backend.xp.asarray([0, 2, 0]), backend.xp.asarray([1.0, 2.0, 3.0]))
    assert target.tolist() == [4, 0, 2]


@pytest.mark.needs("cupy")
def test_scatter_add_rounds_a_sum_of_bfloat16_once():
    target = backend.xp.ones(3, backend.bfloat16)
    values = backend.xp.ones(600, backend.bfloat16)  # added one by one, the sum would stop at 256
    backend.scatter_add(target, backend.xp.zeros(600, "int64"), values)
    assert target.tolist() == [600, 1, 1]  # 601, rounded to 8 bits
