"""How much memory there is, as the system says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tinytensor.device import memory
from tinytensor.device.backend import name as backend_name, xp


def test_this_machine_has_memory() -> None:
    there = memory.host_memory()
    assert there is not None
    assert 10**7 < there < 10**15


def test_tensors_have_the_devices_memory() -> None:
    there = memory.device_memory()
    assert there is not None
    if backend_name == "numpy":
        assert abs(there - (memory.host_memory() or 0)) < 10**9  # other processes go on
    else:
        free, total = xp.cuda.runtime.memGetInfo()
        assert free <= there <= total


@pytest.fixture
def pretend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that replaces the root of the file system for reading /proc and /sys."""
    real = memory._text
    monkeypatch.setattr(memory, "_text", lambda path: real(tmp_path / path.relative_to("/")))
    monkeypatch.setattr(memory, "_used_memory", lambda: 7)
    monkeypatch.setattr(memory, "_of_address_space", lambda: None)
    return tmp_path


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


MACHINE = {"proc/meminfo": "MemTotal: 900 kB\nMemAvailable:     500 kB\nSwapFree: 100 kB\nHugePages_Total:   0\nOdd\n"}


def test_free_memory_and_swap_and_what_the_process_has(pretend: Path) -> None:
    write(pretend, MACHINE)
    assert memory.host_memory() == 600 * 1024 + 7


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({"proc/self/cgroup": "0::/\n"}, 600 * 1024),
        (
            {  # version 2: the group's own limit is "max", that of the one above it counts; cached files can be read again
                "proc/self/cgroup": "0::/job/step\n",
                "sys/fs/cgroup/job/step/memory.max": "max\n",
                "sys/fs/cgroup/job/step/memory.current": "10\n",
                "sys/fs/cgroup/job/memory.max": "100000\n",
                "sys/fs/cgroup/job/memory.current": "90000\n",
                "sys/fs/cgroup/job/memory.stat": "anon 5\ninactive_file 2000\nactive_file 3000\nshmem 9\n",
            },
            15_000,
        ),
        (
            {  # version 1, in a container that sees its own group as the root
                "proc/self/cgroup": "5:cpu:/docker/abc\n4:cpuset,memory:/docker/abc\n0::/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "50000\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "49000\n",
                "sys/fs/cgroup/memory/memory.stat": "inactive_file 9\ntotal_inactive_file 600\ntotal_active_file 400\n",
            },
            2000,
        ),
        (
            {  # more is used than allowed
                "proc/self/cgroup": "0::/job\n",
                "sys/fs/cgroup/job/memory.max": "1000\n",
                "sys/fs/cgroup/job/memory.current": "1500\n",
            },
            0,
        ),
        (
            {  # what it has in memory can be put into swap
                "proc/self/cgroup": "0::/job\n",
                "sys/fs/cgroup/job/memory.max": "1000\n",
                "sys/fs/cgroup/job/memory.current": "1500\n",
                "sys/fs/cgroup/job/memory.swap.max": "900\n",
                "sys/fs/cgroup/job/memory.swap.current": "100\n",
            },
            800,
        ),
        (
            {
                "proc/self/cgroup": "0::/job\n",
                "sys/fs/cgroup/job/memory.max": "1000\n",
                "sys/fs/cgroup/job/memory.current": "400\n",
                "sys/fs/cgroup/job/memory.swap.max": "max\n",
                "sys/fs/cgroup/job/memory.swap.current": "100\n",
            },
            600 + 100 * 1024,
        ),
    ],
    ids=["no limit", "version 2", "version 1", "beyond", "some swap", "any swap"],
)
def test_the_limits_of_containers_count(files: dict[str, str], left: int, pretend: Path) -> None:
    write(pretend, MACHINE | files)
    assert memory.host_memory() == left + 7


@pytest.mark.skipif(sys.platform != "linux", reason="ulimit -v is Linux's")
def test_ulimit_counts() -> None:
    code = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, resource.RLIM_INFINITY))
from tinytensor.device.memory import host_memory
print(host_memory())
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert 1 << 28 < int(run.stdout) < 4 << 30


def test_other_systems_have_what_is_built_in(pretend: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.os, "sysconf", {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert memory.host_memory() == 4_096_007
    monkeypatch.delattr(memory.os, "sysconf")
    assert memory.host_memory() is None
