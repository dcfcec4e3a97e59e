"""Evaluation: mean loss over the full validation split, perplexity, and accuracy."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tinytensor as tt
from tinyformer.data.batches import Batch, Batches
from tinyformer.models.evaluating import evaluating
from tinyformer.training.losses import LossFunction, next_token_loss
from tinytensor import Tensor, parallel
from tinytensor.distributed import Alone, Communicator, Team
from tinytensor.distributed.communicator import part as part_of
from tinytensor.nn import Module


@dataclass
class Work:
    """One rank's shards of a batch."""

    shards: Sequence[Any]
    seeds: Sequence[int]  # one random seed per shard; empty for a single shard, which uses rank 0's generator
    num_targets: int  # of the full batch


def deal(batch: Any, shards: int, ranks: Communicator) -> list[Work]:
    """Split a batch into ``shards``, and return the work of each rank.

    Rank 0 samples every batch and seeds every shard. Which rank computes a shard affects only the rounding of sums.
    """
    cut = batch.split(shards)
    seeds = parallel.new_seeds(len(cut))
    parts = [part_of(len(cut), rank, ranks.size) for rank in range(ranks.size)]
    return [Work(cut[part], seeds[part], batch.num_targets) for part in parts]


class Evaluator:
    """One rank's share of an evaluation."""

    def __init__(self, ranks: Communicator, model: Module, loss_function: LossFunction):
        self.ranks = ranks
        self.model = model
        self.loss_function = loss_function
        self._losses: list[list[Tensor]] = []  # for each batch, the losses of this rank's shards

    def evaluate(self, work: Work) -> None:
        """Compute and store the losses of these shards."""
        with tt.no_grad(), evaluating(self.model):
            self._losses.append(parallel.run(partial(self.loss_function, self.model), work.shards, work.seeds))

    def losses(self) -> list[list[float]]:
        """On rank 0, return the losses of all shards of each batch, and clear them."""
        flat = [loss for losses in self._losses for loss in losses]
        values = iter(tt.stack(flat).tolist() if flat else [])  # synchronizes with a GPU only once, at the end
        losses_here = [[next(values) for _ in losses] for losses in self._losses]
        self._losses = []
        of_all_ranks = self.ranks.gather(losses_here) or []
        return [[loss for losses in of_each for loss in losses] for of_each in zip(*of_all_ranks)]


def evaluate(
    model: Module,
    batches: Batches,
    loss_function: LossFunction = next_token_loss,
    shards: int = 1,
    team: Team[Any] | None = None,
) -> float:
    """Return the mean loss over all targets of the validation split.

    Each batch is split into ``shards``, one per thread. The ranks of a ``team`` of evaluators share the shards.
    """
    team = team or Team(Alone(), Evaluator(Alone(), model, loss_function))
    counts: list[int] = []
    generator = copy.deepcopy(tt.random.generator())  # evaluation must not change training's random numbers
    with tt.random.using(generator):
        for batch in batches.validation_batches():
            team.call(Evaluator.evaluate, [(work,) for work in deal(batch, shards, team.ranks)])
            counts.append(batch.num_targets)
    losses = team.call_alike(Evaluator.losses)
    return sum(loss * count for of_batch, count in zip(losses, counts) for loss in of_batch) / max(sum(counts), 1)


def perplexity(loss: float) -> float:
    """Return exp(loss): the model is as uncertain as when choosing among this many equally likely tokens.

    >>> import math
    >>> from tinyformer import perplexity
    >>> round(perplexity(math.log(65)), 4)
    65.0
    """
    return math.exp(loss) if loss < 700 else math.inf


def accuracy(model: Module, batches: Iterator[Batch], ignored: int = -100) -> float:
    """Return the fraction of targets that equal the model's most likely class. Targets equal to ``ignored`` do not count."""
    right: Any = 0
    count = 0
    with tt.no_grad(), evaluating(model):
        for batch in batches:
            predicted = model(batch.inputs).argmax(axis=-1)
            right = right + ((predicted == batch.targets) & (batch.targets != ignored)).sum()
            count += batch.num_targets
    return int(right) / max(count, 1)  # synchronizes with a GPU only here
