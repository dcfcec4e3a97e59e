"""Where NVIDIA's files lie: of this package, which CuPy requires, what the library asks."""

from types import SimpleNamespace


def load_nvidia_dynamic_lib(libname):
    """A library, loaded. The fake CuPy has one."""
    if libname != "cublasLt":
        raise RuntimeError(f"the fake CuPy has no library {libname}")
    from cupy import _cublaslt

    return SimpleNamespace(abs_path=_cublaslt.library_path())


def find_nvidia_header_directory(libname):
    """The folder of the headers of a library. The fake CuPy needs none, so it says that they are there."""
    return f"/nowhere/{libname}/include"
