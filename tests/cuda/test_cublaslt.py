"""The descriptions that the binding of cuBLASLt makes, by the real library, which needs no GPU for them: ``pip install
nvidia-cublas``. Only algorithms need one."""

import ctypes
import importlib.util
from pathlib import Path
from unittest import mock

import pytest

pytest.importorskip("cupy")
pathfinder = pytest.importorskip("cuda.pathfinder")
FILE = Path(__file__).resolve().parents[2] / "tinytensor" / "kernels" / "cupy" / "cublaslt.py"


@pytest.fixture(scope="module")
def cublaslt():
    """The binding by itself: its package would ask for a GPU."""
    try:
        pathfinder.load_nvidia_dynamic_lib("cublasLt")
    except (AttributeError, RuntimeError):
        pytest.skip("nvidia-cublas is not installed")
    import numpy

    spec = importlib.util.spec_from_file_location("cublaslt", FILE)
    module = importlib.util.module_from_spec(spec)
    backend = mock.Mock(xp=numpy, BackendError=RuntimeError)
    forks = mock.Mock(free_in_forks=lambda lock: lock)
    modules = {"tinytensor": mock.Mock(backend=backend), "tinytensor.device.backend": backend, "tinytensor.device.forks": forks}
    with mock.patch.dict("sys.modules", modules):
        spec.loader.exec_module(module)
    return module


def test_every_function_is_there(cublaslt):
    for name in cublaslt._SIGNATURES:
        assert getattr(cublaslt._library(), name)


def value_of(cublaslt, function, described, attribute, kind):
    """An attribute as the library has it."""
    found, written = kind(), ctypes.c_size_t()
    get = getattr(cublaslt._library(), function)
    get.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)]
    assert get(described, attribute, ctypes.byref(found), ctypes.sizeof(found), ctypes.byref(written)) == 0
    assert written.value == ctypes.sizeof(kind)
    return found.value


def test_a_layout_says_what_was_meant(cublaslt):
    layout = cublaslt._layout(cublaslt.Matrices(14, (3, 4), 5, 60, 16), 7)
    # The type, the order (0: by columns), rows, columns, elements between columns, matrices, and elements between those.
    kinds = [ctypes.c_uint32, ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64, ctypes.c_int32, ctypes.c_int64]
    found = [value_of(cublaslt, "cublasLtMatrixLayoutGetAttribute", layout, i, kind) for i, kind in enumerate(kinds)]
    assert found == [14, 0, 3, 4, 5, 7, 60]
    cublaslt._call("cublasLtMatrixLayoutDestroy", layout)


@pytest.mark.parametrize("bias_alignment", [0, 16])
def test_a_product_says_what_was_meant(cublaslt, bias_alignment):
    sides = [cublaslt.Matrices(0, shape, shape[0], 0, 16) for shape in ((4, 3), (4, 5), (3, 5))]
    product = cublaslt.Product(*sides, (1, 0), 1, 77, 0, bias_alignment)
    with mock.patch.object(cublaslt.Plan, "_fastest"):  # which needs a GPU
        plan = cublaslt.Plan(product)
    attributes = {0: ctypes.c_int32, 1: ctypes.c_int32, 3: ctypes.c_int32, 4: ctypes.c_int32, 7: ctypes.c_uint32}
    found = [value_of(cublaslt, "cublasLtMatmulDescGetAttribute", plan._product, i, kind) for i, kind in attributes.items()]
    # The compute type, the type of the factors, both operations, and the epilogue.
    assert found == [77, 0, 1, 0, 4 if bias_alignment else 1]
    if bias_alignment:
        plan._set_bias(4096)
        assert value_of(cublaslt, "cublasLtMatmulDescGetAttribute", plan._product, 8, ctypes.c_void_p) == 4096


def test_preferences_are_taken(cublaslt):
    preference = cublaslt._made_by("cublasLtMatmulPreferenceCreate")
    name = "cublasLtMatmulPreferenceSetAttribute"
    cublaslt._set(name, preference, cublaslt._MOST_WORKSPACE, ctypes.c_uint64(cublaslt._WORKSPACE))
    for attribute in cublaslt._ALIGNMENTS:
        cublaslt._set(name, preference, attribute, ctypes.c_uint32(16))
    with pytest.raises(cublaslt.CublasLtError, match=f"{name}: .*"):
        cublaslt._set(name, preference, 1, ctypes.c_uint32(0))  # which has 8 bytes
    cublaslt._call("cublasLtMatmulPreferenceDestroy", preference)
