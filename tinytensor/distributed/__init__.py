"""Training on several processes: on one machine, by MPI on many, or on several GPUs.

``run`` calls a function on every rank. ``team`` lets rank 0 lead the others, and ``lead`` does so for a whole script under
mpiexec.
"""

from tinytensor.distributed.agreement import check_same
from tinytensor.distributed.communicator import Alone, Communicator, RankError
from tinytensor.distributed.gpus import num_gpus
from tinytensor.distributed.processes import Processes, default_method
from tinytensor.distributed.teams import Team, lead, num_ranks, run, team

__all__ = [
    "Alone",
    "Communicator",
    "Processes",
    "RankError",
    "Team",
    "check_same",
    "default_method",
    "lead",
    "num_gpus",
    "num_ranks",
    "run",
    "team",
]
