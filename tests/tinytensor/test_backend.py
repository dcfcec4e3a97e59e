"""The backend switch, and who may import what."""

import ast
from pathlib import Path

import pytest

import tinytensor
from tinytensor import backend

PACKAGE = Path(tinytensor.__file__).parent


def failure(run):
    """The message of the BackendError that a run ended with."""
    assert run.returncode == 1, run.stderr
    message = run.stderr.strip().splitlines()[-1]
    kind, _, text = message.partition(": ")
    assert kind == "tinytensor.backend.BackendError"
    return text


def test_an_unknown_backend(python):
    text = failure(python("import tinytensor", TINYTENSOR_BACKEND="torch"))
    assert "'torch'" in text
    assert "'numpy' or 'cupy'" in text


def test_cupy_without_the_package(python):
    block = "import sys; sys.modules['cupy'] = None; import tinytensor"  # None makes the import fail
    text = failure(python(block, TINYTENSOR_BACKEND="cupy"))
    assert "pip install 'tinytensor[cuda13]'" in text
    assert "unset TINYTENSOR_BACKEND" in text


def test_cupy_without_a_gpu(python):
    fake = """
import sys, types
cupy = types.ModuleType("cupy")
cupy.cuda = types.SimpleNamespace(is_available=lambda: False)
sys.modules["cupy"] = cupy
import tinytensor
"""
    text = failure(python(fake, TINYTENSOR_BACKEND="cupy"))
    assert "no usable NVIDIA GPU" in text
    assert "nvidia-smi" in text


@pytest.mark.parametrize("value", ["", "numpy"])
def test_numpy_is_the_default_and_silent(python, value):
    run = python("import tinytensor; print(tinytensor.backend_name)", TINYTENSOR_BACKEND=value)
    assert (run.stdout, run.stderr) == ("numpy\n", "")


def test_a_backend_error_can_be_caught_as_an_import_error():
    assert issubclass(tinytensor.BackendError, ImportError)


def test_importing_tinytensor_imports_nothing_optional(python):
    code = """
import sys, tinytensor
print(sorted({"matplotlib", "graphviz", "safetensors", "tqdm", "torch", "cupy", "numba"} & set(sys.modules)))
"""
    run = python(code, TINYTENSOR_BACKEND="numpy")
    assert run.stdout == "[]\n", run.stderr


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
    allowed = {PACKAGE / "backend.py", *PACKAGE.glob("kernels/**/*.py")}
    guilty = [str(f.relative_to(root)) for f in files if f not in allowed and {"numpy", "cupy", "cupyx"} & set(imports(f))]
    assert guilty == []


def test_the_check_of_imports_sees_them(tmp_path):
    for text in ("import numpy", "import numpy.linalg as la", "from numpy import exp", "def f():\n    import numpy as np"):
        file = tmp_path / "file.py"
        file.write_text(text)
        assert set(imports(file)) == {"numpy"}


@pytest.mark.skipif(backend.name != "numpy", reason="the host's arrays are the backend's only on NumPy")
def test_scatter_add_adds_up_repeated_indices():
    target = backend.xp.zeros(3)
    backend.scatter_add(target, backend.xp.asarray([0, 2, 0]), backend.xp.asarray([1.0, 2.0, 3.0]))
    assert target.tolist() == [4, 0, 2]
