"""Start ranks that work together: in a team that rank 0 leads, or all in the same function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Generic, TypeVar

from tinytensor import parallel
from tinytensor.device import backend
from tinytensor.distributed import mpi
from tinytensor.distributed.agreement import check_same, check_same_code
from tinytensor.distributed.communicator import Alone, Communicator, RankError
from tinytensor.distributed.nccl import Nccl
from tinytensor.distributed.processes import ignore_signals, processes
from tinytensor.nn import Module

Result = TypeVar("Result")
Member = TypeVar("Member")


class Team(Generic[Member]):
    """A team with one object, the member, on each rank. Rank 0 calls functions on all members simultaneously."""

    def __init__(self, ranks: Communicator, member: Member):
        self.ranks = ranks
        self.member = member
        self.is_waiting = True  # all other ranks are waiting for the next call

    def call(self, function: Callable[..., Result], each: Sequence[tuple[Any, ...]]) -> Result:
        """Call ``function(member, *arguments)`` on every rank, with arguments from ``each``. Returns the result of rank 0.

        The function must be defined in a module or class, as in ``Member.work``, because other processes receive only its name.
        If there is a single rank, this is a plain call.
        """
        if self.ranks.size == 1:
            return function(self.member, *each[0])
        self.is_waiting = False
        with parallel.one_blas_thread():
            self.ranks.scatter([(function, arguments) for arguments in each])
            result = function(self.member, *each[0])
        self.is_waiting = True
        return result

    def call_alike(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call the function with the same arguments on every rank."""
        return self.call(function, [arguments] * self.ranks.size)


def _serve(ranks: Communicator, make: Callable[..., Any], *arguments: Any) -> None:
    """On ranks other than 0: create this rank's member of a team and call the functions that rank 0 sends."""
    member = make(ranks, *arguments)
    while call := ranks.tell():
        function, received = call
        function(member, *received)


@contextmanager
def team(make: Callable[..., Member], *arguments: Any, workers: int = 1) -> Iterator[Team[Member]]:
    """Return a context that leads a team from rank 0. Each rank creates its member with ``make(ranks, *arguments)``.

    In a script that ``lead`` runs under mpiexec, the team consists of all MPI ranks. Otherwise it has ``workers`` processes,
    including this one. Models and optimizers among the arguments move to memory shared by all processes of one machine.

    Raises RankError under mpiexec outside ``lead``, or if another rank is killed. Errors of other ranks are reraised here.
    """
    if _leader is None and mpi.world() is not None:
        raise RankError(
            "under mpiexec, pass the script's main function to tinytensor.distributed.lead: rank 0 then leads the other ranks"
        )
    with _ranks(_serve, (make, *arguments), workers) as ranks:
        try:
            members = Team(ranks, make(ranks, *arguments))
        except BaseException as error:
            ranks.abandon(error)
            raise
        try:
            yield members
        except BaseException as error:
            if members.is_waiting:
                ranks.tell(None)
            else:
                ranks.abandon(error)
            raise
        ranks.tell(None)


def run(function: Callable[..., Result], *arguments: Any, workers: int = 1) -> Result:
    """Run ``function(ranks, *arguments)`` on every rank and return its result. ``ranks`` is the rank's Communicator.

    Under mpiexec, every rank runs the script and calls ``run``. Otherwise ``workers - 1`` other processes are started with the
    same arguments. Models and optimizers among the arguments move to memory shared by all processes of one machine. If the
    function fails on any rank, all ranks end and the error is reraised here. A killed rank raises RankError.

    To change a parameter yourself, write to it in place on rank 0 only, then call ``ranks.broadcast([p.data])``. Older views
    (``p.detach()``, ``state_dict()``, a traced function) receive the new values when the ranks end.

    Returns the result of this process. Under mpiexec, if code versions or models among the arguments differ between ranks, all
    ranks end and rank 0 reports why.
    """
    world = mpi.world()
    if world is None or _leader is not None:
        with _ranks(function, arguments, workers) as ranks:
            try:
                with _blas_for(ranks):
                    return function(ranks, *arguments)
            except BaseException as error:
                ranks.abandon(error)
                raise
    with world.ending_all(), parallel.one_blas_thread():
        check_same_code(world)
        for model in arguments:
            if isinstance(model, Module):
                check_same(world, "parameters", model.state_dict(), "Seed all ranks alike before the model is made.")
        return function(_of_arrays(world), *arguments)


def lead(main: Callable[[], Result]) -> Result | None:
    """Call ``main`` and return its result. Under mpiexec, only rank 0 calls it. Other ranks work in its teams and return None.

    This lets a script run under mpiexec unchanged: one process reads files, prints and writes. If code versions differ between
    ranks, all ranks end and rank 0 reports why.
    """
    global _leader
    world = mpi.world()
    if world is None:
        return main()
    with world.ending_all():
        check_same_code(world)
        ranks = _of_arrays(world)
    if world.rank:
        ignore_signals()
        with world.ending_all(), parallel.one_blas_thread():
            while job := ranks.tell():
                follow, arguments = job
                follow(ranks, *arguments)
        return None
    _leader = ranks
    try:
        return main()
    finally:
        _leader = None
        ranks.tell(None)


def num_ranks(workers: int) -> int:
    """Return the number of ranks of a team: under mpiexec all of its ranks, else ``workers``."""
    return _leader.size if _leader is not None else workers


_leader: Communicator | None = None  # on rank 0, while ``lead`` runs under mpiexec
_at_work = False  # True while the other ranks are in a team


def _of_arrays(ranks: Communicator) -> Communicator:
    """Return the communicator for arrays: on GPUs, ranks connected directly by NCCL."""
    return Nccl(ranks) if backend.name == "cupy" else ranks


def _blas_for(ranks: Communicator) -> AbstractContextManager[Any]:
    """If there are several ranks, return a context that limits each to one BLAS thread."""
    return parallel.one_blas_thread() if ranks.size > 1 else nullcontext()


@contextmanager
def _ranks(follow: Callable[..., Any], arguments: Sequence[Any], workers: int) -> Iterator[Communicator]:
    """Return a context for rank 0 that runs ``follow(ranks, *arguments)`` on all other ranks."""
    global _at_work
    if _leader is not None:
        if _at_work:
            raise RuntimeError("the ranks of mpiexec already work in a team: end it before another begins")
        _leader.tell((follow, arguments))
        _at_work = True
        try:
            yield _leader
        finally:
            _at_work = False
    elif workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    elif workers > 1:
        with processes(workers, follow, arguments) as ranks:
            yield ranks
    else:
        yield Alone()
