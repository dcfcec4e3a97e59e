"""Parallelism on several cores: threads for the shards of a batch (threads.py), and memory shared by processes (shared.py).

``tinytensor.distributed`` runs the processes.
"""

import typing

from tinytensor.common.missing import names_of as _names_of
from tinytensor.parallel.threads import backward, blas_threads, call_together, default_shards, new_seeds, one_blas_thread, run

__all__ = ["backward", "blas_threads", "call_together", "default_shards", "new_seeds", "one_blas_thread", "run"]

if not typing.TYPE_CHECKING:
    __getattr__, __dir__ = _names_of(__name__)
