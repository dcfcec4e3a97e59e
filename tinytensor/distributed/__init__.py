"""Training with several processes: on one machine, on many machines with MPI, or on several GPUs.

``run`` calls a function on every rank. In a ``team``, rank 0 leads the other ranks. ``lead`` lets a script that creates teams
run under mpiexec unchanged.

Start with ``communicator`` and ``teams``. There are three types of ranks: ``processes`` (with sockets in ``messages``),
``mpi``, and ``nccl`` (with the GPU of each rank in ``gpus``). ``agreement`` checks that all ranks run the same code.
``tinytensor/optim/applying.py`` divides an optimizer step among ranks. ``take_step`` in ``tinyformer/training/trainer.py`` is
one rank's training step.
"""

import typing

from tinytensor.common.missing import names_of as _names_of, public as _public
from tinytensor.distributed.agreement import check_same as check_same
from tinytensor.distributed.communicator import Alone as Alone, Communicator as Communicator, RankError as RankError
from tinytensor.distributed.gpus import num_gpus as num_gpus
from tinytensor.distributed.processes import default_method as default_method
from tinytensor.distributed.teams import Team as Team, lead as lead, num_ranks as num_ranks, run as run, team as team

if not typing.TYPE_CHECKING:
    __all__ = _public(globals(), "")
    __getattr__, __dir__ = _names_of(__name__)
