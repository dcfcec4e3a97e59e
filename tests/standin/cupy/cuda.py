"""The imagined GPU, and what CuPy tells of it."""

from types import SimpleNamespace

HANDLE = 0xB1A5  # of cuBLAS


class CUDARuntimeError(RuntimeError):
    """CUDA's answer where something went wrong."""

    def __init__(self, status):
        super().__init__(f"CUDA status {status}")
        self.status = status


def get_cublas_handle():
    return HANDLE


def Device():
    return SimpleNamespace(compute_capability="90")


runtime = SimpleNamespace(
    CUDARuntimeError=CUDARuntimeError,
    getDevice=lambda: 0,
    getDeviceCount=lambda: 1,
    getDeviceProperties=lambda device: {"name": b"an imagined GPU", "major": 9, "minor": 0},
    memGetInfo=lambda: (3 << 29, 2 << 30),  # bytes free, and in all
    runtimeGetVersion=lambda: 13000,
)

nvrtc = SimpleNamespace(getVersion=lambda: (13, 0))
