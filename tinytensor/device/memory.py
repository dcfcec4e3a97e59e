"""Estimates of the memory available for arrays.

Work that cannot fit is refused before it starts; otherwise the system would kill the process midway. The estimate errs on the
high side, so that no work is refused that would have run.
"""

from __future__ import annotations

import os
from pathlib import Path

from tinytensor.device.backend import name as backend_name, xp


def host_memory() -> int | None:
    """Return the bytes of main memory that this process can use, including the memory already in use.

    The page cache counts as free memory. Returns None if the system does not report its memory.
    """
    limits = [_of_machine(), *_of_control_groups(), _of_address_space()]
    known = [limit for limit in limits if limit is not None]
    return min(known) + _used_memory() if known else None


def device_memory() -> int | None:
    """Return the bytes available for tensors: on a GPU its free memory and CuPy's pool, else main memory."""
    if backend_name != "cupy":
        return host_memory()
    free, _ = xp.cuda.runtime.memGetInfo()
    return int(free) + int(xp.get_default_memory_pool().total_bytes())


def _of_machine() -> int | None:
    """Return Linux's estimate of available memory plus free swap. On other systems, return the memory of the machine."""
    numbers = _numbers(Path("/proc/meminfo"))
    if "MemAvailable:" in numbers:
        return 1024 * (numbers["MemAvailable:"] + numbers.get("SwapFree:", 0))
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # Windows has no sysconf
        return None


def _of_control_groups() -> list[int]:
    """Return limit minus usage for each control group of this process (v1 and v2), as set by containers and batch systems."""
    left = []
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers:  # version 2
            root, limit, use, files = Path("/sys/fs/cgroup"), "memory.max", "memory.current", ("inactive_file", "active_file")
        elif "memory" in controllers.split(","):
            root, limit, use = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"
            files = ("total_inactive_file", "total_active_file")
        else:
            continue
        path = root / group.lstrip("/")
        for folder in (path, *path.parents):  # limits of parent groups also apply
            limited, used = _text(folder / limit).strip(), _text(folder / use).strip()
            if limited.isdecimal() and used.isdecimal():  # "max" means no limit
                numbers = _numbers(folder / "memory.stat")
                free = int(limited) - int(used) + sum(numbers.get(name, 0) for name in files)
                left.append(max(0, free) + _swap_of(folder))
            if folder == root:
                break
    return left


def _swap_of(folder: Path) -> int:
    """Return the free swap of a v2 control group. Its memory limit does not include swap."""
    limit, used = _text(folder / "memory.swap.max").strip(), _text(folder / "memory.swap.current").strip()
    free = 1024 * _numbers(Path("/proc/meminfo")).get("SwapFree:", 0)
    if limit.isdecimal() and used.isdecimal():
        return min(free, max(0, int(limit) - int(used)))
    return free if limit == "max" else 0


def _of_address_space() -> int | None:
    """Return the bytes left under the limit of ``ulimit -v``."""
    try:
        import resource
    except ImportError:
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    pages = _text(Path("/proc/self/statm")).split()
    return max(0, limit - int(pages[0]) * resource.getpagesize()) if pages else limit


def _used_memory() -> int:
    """Return the memory of this process. Part of it may be free for new arrays (see allocator.py)."""
    pages = _text(Path("/proc/self/statm")).split()
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") if pages else 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _numbers(path: Path) -> dict[str, int]:
    """Read a file of lines with a name and a number."""
    lines = [line.split() for line in _text(path).splitlines()]
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}
