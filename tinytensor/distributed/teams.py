"""How ranks are started, and how they work together: in a team that rank 0 leads, or all at the same function."""

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
    """One object on each rank: its member. Rank 0 calls a function with all members at once."""

    def __init__(self, ranks: Communicator, member: Member):
        self.ranks = ranks
        self.member = member
        self.is_whole = True  # whether all ranks wait for the next call

    def call(self, function: Callable[..., Result], each: Sequence[tuple[Any, ...]]) -> Result:
        """Call ``function(member, *arguments)`` on every rank, with the arguments that ``each`` has for it. Returns the result
        of rank 0.

        The function is one that a module defines, or a method of its class, such as ``Member.work``: other processes are sent
        its name. With a single rank this only calls it.
        """
        if self.ranks.size == 1:
            return function(self.member, *each[0])
        self.is_whole = False
        with parallel.one_blas_thread():
            self.ranks.scatter([(function, arguments) for arguments in each])
            result = function(self.member, *each[0])
        self.is_whole = True
        return result

    def call_alike(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call the function with the same arguments on every rank."""
        return self.call(function, [arguments] * self.ranks.size)


def _serve(ranks: Communicator, make: Callable[..., Any], *arguments: Any) -> None:
    """On another rank than 0: make this rank's member of a team, and call the functions that rank 0 sends."""
    member = make(ranks, *arguments)
    while call := ranks.tell():
        function, own = call
        function(member, *own)


@contextmanager
def team(make: Callable[..., Member], *arguments: Any, workers: int = 1) -> Iterator[Team[Member]]:
    """A context for rank 0 that leads a team. Its members are what ``make(ranks, *arguments)`` returns on each rank.

    In a script that ``lead`` runs under mpiexec, the ranks are those of MPI. Otherwise they are ``workers`` processes that are
    started here; a single one is this process. Models and optimizers among the arguments move to memory that all processes of
    one machine share.

    Raises RankError under mpiexec outside of ``lead``, and if another rank is killed. An error of another rank is raised here.
    """
    if _leader is None and mpi.world() is not None:
        raise RankError(
            "under mpiexec, give the script's main function to tinytensor.distributed.lead: rank 0 then leads the rest"
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
            if members.is_whole:
                ranks.tell(None)
            else:
                ranks.abandon(error)
            raise
        ranks.tell(None)


def run(function: Callable[..., Result], *arguments: Any, workers: int = 1) -> Result:
    """What ``function(ranks, *arguments)`` returns, which runs on every rank at the same time; ``ranks`` is its Communicator.

    Under mpiexec every rank runs the script and comes here. Otherwise ``workers - 1`` other processes are started, which have
    the same arguments. Models and optimizers among the arguments move to memory that all processes of one machine share. If the
    function fails on any rank, all ranks end, and its error is raised here; if a rank is killed, it is RankError.

    Whoever writes to a parameter by hand does so in place and on rank 0 alone, and then calls ``ranks.broadcast([p.data])``.
    A view that was made before (``p.detach()``, ``state_dict()``, a traced function) gets the new values when the ranks end.

    Returns what the function returns in this process. Under mpiexec all ranks end, and rank 0 says why, where the models among
    the arguments, or the versions of the code, are not the same on all.
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
    """Call ``main`` and return its result. Under mpiexec only rank 0 does that; the others work in the teams that it leads, and
    return None when it has ended.

    So a script needs no change for mpiexec: one process reads files, prints and writes. Where the versions of the code are not
    the same on all ranks, all end, and rank 0 says why.
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
    """How many ranks a team of so many workers has: under mpiexec all that it started, else as many as workers."""
    return _leader.size if _leader is not None else workers


_leader: Communicator | None = None  # on rank 0, while ``lead`` runs under mpiexec
_at_work = False  # whether the others are in a team that the leader leads


def _of_arrays(ranks: Communicator) -> Communicator:
    """The same ranks, which on GPUs reach each other directly."""
    return Nccl(ranks) if backend.name == "cupy" else ranks


def _blas_for(ranks: Communicator) -> AbstractContextManager[Any]:
    """One BLAS thread for each of several ranks."""
    return parallel.one_blas_thread() if ranks.size > 1 else nullcontext()


@contextmanager
def _ranks(follow: Callable[..., Any], arguments: Sequence[Any], workers: int) -> Iterator[Communicator]:
    """A context for rank 0 in which all other ranks run ``follow(ranks, *arguments)``."""
    global _at_work
    if _leader is not None:
        if _at_work:
            raise RuntimeError("the ranks of mpiexec are at work in a team already: end it before another begins")
        _leader.tell((follow, arguments))
        _at_work = True
        try:
            yield _leader
        finally:
            _at_work = False
    elif workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers}")
    elif workers > 1:
        with processes(workers, follow, arguments) as ranks:
            yield ranks
    else:
        yield Alone()
