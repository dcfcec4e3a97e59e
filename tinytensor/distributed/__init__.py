"""Training on several processes: on one machine, by MPI on many, or on several GPUs.

``run`` calls a function on every rank. ``team`` lets rank 0 lead the others. ``lead`` lets a script that makes teams run under
mpiexec as it is.

To read: first ``communicator`` (what ranks say to each other), then ``teams`` (how they work together). Then the three ways to
be a rank: ``processes``, with its ``messages`` (sockets) and ``memory`` (what is shared); ``mpi``; ``nccl``, with ``gpus``
(which rank takes which). Last ``agreement`` (whether all run the same). How an optimizer's step is divided among ranks is in
``tinytensor/optim/applying.py``, and what a rank does in training is ``take_step`` in ``tinyformer/training/trainer.py``.
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
