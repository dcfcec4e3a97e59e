"""Who updates which parameters: the threads of one process, and ranks that share the memory of the parameters."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Protocol

from tinytensor.nn.module import Parameter
from tinytensor.optim.state import State
from tinytensor.parallel.shared import is_in_use, is_shared

Update = tuple[Parameter, State, dict[str, Any], float]  # a parameter, its state, its group's settings, and its learning rate


class Ranks(Protocol):
    """The part of a ``distributed.Communicator`` that a step uses."""

    rank: int
    size: int
    shares_memory: bool

    def barrier(self) -> None: ...


def of_ranks(updates: list[Update], threads: int, ranks: Ranks | None) -> tuple[list[list[Update]], list[Update]]:
    """Return this rank's updates, a list for each thread, and those of other ranks."""
    if ranks is None and any(is_in_use(parameter.data) for parameter, *_ in updates):
        raise RuntimeError(
            "ranks share the memory of these parameters, and each would update all of them: call step(ranks=ranks)"
        )
    if ranks is None or not ranks.shares_memory:
        return _divided(updates, threads), []
    for_all: list[Update] = []
    for_rank_0: list[Update] = []
    to_divide: list[Update] = []
    for update in updates:
        parameter, state, *_ = update
        if state.is_shared and not is_shared(parameter.data):
            raise RuntimeError(
                f"a parameter of shape {parameter.shape} was replaced after ranks began to share its memory: change it in "
                "place (`p.data[...] = values`), on rank 0 alone, and then call ranks.broadcast([p.data])"
            )
        if not is_shared(parameter.data):
            for_all.append(update)
        elif state.is_shared:
            to_divide.append(update)
        else:
            for_rank_0.append(update)
    parts = _divided(to_divide, ranks.size)  # first among ranks, whose numbers of threads may differ
    of_rank = parts.pop(ranks.rank) + for_all + (for_rank_0 if ranks.rank == 0 else [])
    return _divided(of_rank, threads), [*itertools.chain(*parts), *(for_rank_0 if ranks.rank else [])]


def _divided(updates: Sequence[Update], parts: int) -> list[list[Update]]:
    """Divide the updates into parts of about equal total size."""
    divided: list[list[Update]] = [[] for _ in range(parts)]
    sizes = [0] * parts
    for update in sorted(updates, key=lambda update: update[0].size, reverse=True):
        least = sizes.index(min(sizes))
        divided[least].append(update)
        sizes[least] += update[0].size
    return divided
