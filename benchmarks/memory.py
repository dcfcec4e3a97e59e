"""How much memory a process holds, and what a rank beside the first costs."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


def peak_memory() -> int:
    """The most bytes of memory that this process has held."""
    try:  # Linux's ru_maxrss starts from that of the parent process, VmHWM does not
        return _peak_memory_of("self")
    except (OSError, StopIteration):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _peak_memory_of(pid: int | str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def own_processes() -> list[int]:
    """The ids of the processes that this one has started by multiprocessing, the first one first."""
    return sorted(process.pid for process in multiprocessing.active_children() if process.pid is not None)


@dataclass
class RankMemory:
    """Bytes that a rank holds in memory: at its highest, shared ones included; now and by itself; now and in memory that it
    shares on purpose."""

    peak: int
    own: int
    shared: int


def memory_of_ranks() -> list[RankMemory]:
    """Those of the processes that this one has started. Only Linux tells; elsewhere there are none in the list.

    Pages that a fork has in common with its parent, because neither has written to them, are not its own.
    """
    found = []
    for pid in own_processes():
        with suppress(OSError, StopIteration):
            own, shared = _mapped(Path(f"/proc/{pid}/smaps").read_text().splitlines())
            found.append(RankMemory(_peak_memory_of(pid), own, shared))
    return found


def _mapped(lines: Sequence[str]) -> tuple[int, int]:
    """What the lines of smaps count: bytes of private mappings that only this process has written to, and bytes of shared
    mappings."""
    own = shared = 0
    is_shared = False
    for line in lines:
        name, *values = line.split()
        if not name.endswith(":"):  # the first line of a mapping: its addresses, and "rw-p" or "rw-s"
            is_shared = values[0].endswith("s")
        elif name == "Rss:" and is_shared:
            shared += int(values[0]) * 1024
        elif name == "Private_Dirty:" and not is_shared:
            own += int(values[0]) * 1024
    return own, shared


def own_memory() -> int | None:
    """Bytes that this process holds now and that no file backs; None where the system is not Linux and does not tell."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))
    return None
