"""Evaluation: the mean loss over a whole validation split, perplexity, and accuracy."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import tinytensor as tt
from tinyformer.data.batches import Batch, Batches
from tinyformer.models.evaluating import evaluating
from tinyformer.training.losses import LossFunction, next_token_loss
from tinytensor import Tensor, parallel
from tinytensor.nn import Module


def evaluate(model: Module, batches: Batches, loss_function: LossFunction = next_token_loss, shards: int = 1) -> float:
    """The mean loss over every target of the validation split. Each batch is cut into ``shards``, with one thread for each."""
    losses: list[Tensor] = []
    counts: list[int] = []
    total = 0
    own = copy.deepcopy(tt.random.generator())  # so that evaluating does not change the random numbers of training
    with tt.no_grad(), evaluating(model), tt.random.using(own):
        for batch in batches.validation_batches():
            parts = parallel.run(partial(loss_function, model), batch.split(shards))
            losses += parts
            counts += [batch.num_targets] * len(parts)
            total += batch.num_targets
    values = tt.stack(losses).tolist() if losses else []  # a GPU is waited for only once, at the end
    return sum(value * count for value, count in zip(values, counts)) / max(total, 1)


def perplexity(loss: float) -> float:
    """exp(loss): the model is as unsure as if it chose among so many equally likely tokens."""
    return math.exp(loss) if loss < 700 else math.inf


def accuracy(model: Module, batches: Iterator[Batch], ignored: int = -100) -> float:
    """The fraction of targets that the model predicts as the likeliest class. Targets equal to ``ignored`` do not count."""
    right: Any = 0
    count = 0
    with tt.no_grad(), evaluating(model):
        for batch in batches:
            found = model(batch.inputs).argmax(axis=-1)
            right = right + ((found == batch.targets) & (batch.targets != ignored)).sum()
            count += batch.num_targets
    return int(right) / max(count, 1)  # a GPU is waited for only here
