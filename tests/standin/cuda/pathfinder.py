"""Where NVIDIA's files lie: of this package, which CuPy requires, what the library asks."""

from types import SimpleNamespace


def load_nvidia_dynamic_lib(libname):
    """A library, loaded. The stand-in has one."""
    if libname != "cublasLt":
        raise RuntimeError(f"the stand-in has no library {libname}")
    from cupy import _cublaslt

    return SimpleNamespace(abs_path=_cublaslt.library_path())


def find_nvidia_header_directory(libname):
    """The folder of the headers of a library. The stand-in needs none, so it says that they are there."""
    return f"/nowhere/{libname}/include"
