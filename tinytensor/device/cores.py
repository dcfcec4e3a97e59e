"""How many cores may this process use?"""

from __future__ import annotations

import os

are_shared_out = False  # whether each core has a thread of its own already: ``parallel`` sets it while shards run


def cores() -> int:
    """The cores that the system lets this process use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
