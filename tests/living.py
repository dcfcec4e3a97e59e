"""Processes that are alive, and their parents. Works on Linux; elsewhere none seem alive."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Return True if a process is running. A zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def children(pid: int | str = "self") -> list[int]:
    """The processes that this one has started, and that live. None if it has ended."""
    try:
        tasks = [task / "children" for task in Path(f"/proc/{pid}/task").iterdir()]
        return sorted(filter(is_alive, (int(child) for task in tasks for child in task.read_text().split())))
    except OSError:
        return []


def descendants(pid: int) -> list[int]:
    """Return all descendants of this process."""
    return [found for child in children(pid) for found in (child, *descendants(child))]


def wait_until(happened: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait at most this many seconds."""
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, f"nothing happened in {seconds} seconds"
        time.sleep(0.005)


def check_that_they_end(pids: list[int], seconds: float = 10.0) -> None:
    """Check that these processes end within this many seconds."""
    wait_until(lambda: not any(map(is_alive, pids)), seconds)
