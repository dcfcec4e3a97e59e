"""The process keeps freed memory, unless the environment says otherwise."""

import os
import platform
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's malloc alone is told to keep memory")

LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def is_linux_with_large_pages() -> bool:
    """Return True if Linux can, and may, move memory to large pages immediately."""
    release = platform.release().split(".")
    is_new = platform.system() == "Linux" and [int(x) if x.isdigit() else 0 for x in release[:2]] >= [6, 1]
    return is_new and LARGE_PAGES.exists() and "[never]" not in LARGE_PAGES.read_text()


RESIDENT = """
import threading, numpy, tinytensor

def resident():  # MB
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmRSS"))
"""


@pytest.mark.parametrize(("keep", "is_kept"), [(None, True), ("1", True), ("0", False)])
def test_freed_memory_is_kept_and_the_setting_is_readable(python, monkeypatch, keep, is_kept):
    for name in [name for name in os.environ if name == "TINYTENSOR_KEEP_MEMORY" or name.startswith("MALLOC_")]:
        monkeypatch.delenv(name)
    code = RESIDENT + "before = resident(); x = numpy.ones(12_500_000); del x; print(resident() - before)"
    code += "\nprint(tinytensor.device.allocator.keep_freed_memory())"
    setting = {} if keep is None else {"TINYTENSOR_KEEP_MEMORY": keep}
    run = python(code, TINYTENSOR_BACKEND="numpy", **setting)
    kept, said = run.stdout.split()
    assert said == str(is_kept), run.stderr
    assert abs(int(kept) - (100 if is_kept else 0)) < 10, run.stderr


def test_what_one_thread_has_freed_another_uses(python):
    # The arrays are small enough for a heap that belongs to one thread.
    code = f"""{RESIDENT}
def use():
    arrays = [numpy.ones(125_000) for _ in range(100)]

before = resident()
for _ in range(3):
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    use()
print(resident() - before)
"""
    run = python(code, TINYTENSOR_BACKEND="numpy", TINYTENSOR_KEEP_MEMORY="1")
    assert 90 < int(run.stdout) < 130, run.stderr


@pytest.mark.skipif(not is_linux_with_large_pages(), reason="large pages are asked of Linux 6.1 or newer")
def test_arrays_are_moved_to_large_pages(python):
    code = """
import numpy, tinytensor
from tinytensor.device.allocator import use_large_pages

def large():  # MB
    with open("/proc/self/smaps_rollup") as smaps:
        return next(int(line.split()[1]) // 1024 for line in smaps if line.startswith("AnonHugePages"))

arrays = [numpy.full(1 << 17, float(i)) for i in range(64)]  # 1 MiB each
moved = use_large_pages(arrays)
print(large(), moved >> 20, all((x == i).all() for i, x in enumerate(arrays)), use_large_pages(arrays) >= moved)
print(use_large_pages([numpy.zeros(100)]))
"""
    run = python(code, TINYTENSOR_BACKEND="numpy")
    first, second = run.stdout.splitlines()
    have, moved, kept, again = first.split()
    assert int(moved) <= min(int(have), 68), run.stdout  # none, where Linux finds no large page that is free
    assert (kept, again, second) == ("True", "True", "0")
