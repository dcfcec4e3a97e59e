"""The number of cores that this process may use."""

from __future__ import annotations

import os

are_shared_out = False  # True while ``parallel`` runs a shard on each core


def cores() -> int:
    """Return the number of cores that the system lets this process use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
