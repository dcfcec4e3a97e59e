"""The process keeps freed memory, unless the environment says otherwise."""

import os
import platform

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's malloc alone is told to keep memory")

RESIDENT = """
import threading, numpy, tinytensor

def resident():  # MB
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmRSS"))
"""


@pytest.mark.parametrize(("keep", "least", "most"), [(None, 180, 220), ("1", 180, 220), ("0", -20, 20)])
def test_freed_memory_is_kept(python, monkeypatch, keep, least, most):
    for name in [name for name in os.environ if name == "TINYTENSOR_KEEP_MEMORY" or name.startswith("MALLOC_")]:
        monkeypatch.delenv(name)
    code = RESIDENT + "before = resident(); x = numpy.ones(25_000_000); del x; print(resident() - before)"
    setting = {} if keep is None else {"TINYTENSOR_KEEP_MEMORY": keep}
    run = python(code, TINYTENSOR_BACKEND="numpy", **setting)
    assert least < int(run.stdout) < most, run.stderr


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


def test_whether_memory_is_kept_is_told(python):
    code = "from tinytensor import allocator; print(allocator.keep_freed_memory())"
    for setting, said in {"1": "True\n", "0": "False\n"}.items():
        assert python(code, TINYTENSOR_BACKEND="numpy", TINYTENSOR_KEEP_MEMORY=setting).stdout == said
