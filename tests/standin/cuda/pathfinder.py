"""Where NVIDIA's files lie: of this package, which CuPy requires, what the library asks."""


def find_nvidia_header_directory(libname):
    """The folder of the headers of a library. The stand-in needs none, so it says that they are there."""
    return f"/nowhere/{libname}/include"
