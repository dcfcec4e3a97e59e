"""Loss functions: for each type of model, the mean over all targets of a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tinytensor as tt
from tinytensor import Tensor
from tinytensor.device.backend import host
from tinytensor.nn import Module

if TYPE_CHECKING:
    from tinyformer.data.batches import Batch
    from tinyformer.data.masking import MaskedBatch
    from tinyformer.data.pairs import PairBatch
    from tinyformer.models.bert import BertForMaskedLM
    from tinyformer.models.gpt import GPT
    from tinyformer.models.transformer import Transformer

# Maps a model and a batch to the mean loss. For a shard, it returns the shard's contribution to that mean: the losses of all
# shards add up to the loss of the batch.
LossFunction = Callable[[Any, Any], Tensor]


def at_least_one(batch: Any) -> int:
    """Return the number of targets in a batch, the divisor of its summed loss, or 1 if there are none (for example, all are
    ignored). The loss is then 0 instead of NaN."""
    return max(int(batch.num_targets), 1)


def next_token_loss(model: GPT, batch: Any) -> Tensor:
    """Return a language model's mean cross-entropy over next tokens, in nats: a tensor of shape ().

    ``batch`` has ``inputs`` and ``targets``, ids (batch, length), and ``num_targets``; see ``Batch``.
    """
    return model.loss(batch.inputs, batch.targets, reduction="sum") / at_least_one(batch)


def class_loss(model: Module, batch: Batch) -> Tensor:
    """Return a classifier's mean cross-entropy in nats: a tensor of shape ().

    The batch's ``inputs`` are ids (batch, length), and its ``targets`` are one class per row, (batch,).
    """
    return tt.cross_entropy(model(batch.inputs), batch.targets, reduction="sum") / at_least_one(batch)


@dataclass(frozen=True)
class translation_loss:
    """Loss function: mean cross-entropy over all non-padding target tokens. Labels are smoothed only in training, so that the
    validation loss is the true cross-entropy.

    This is a class because local functions cannot be sent to other processes.
    """

    label_smoothing: float
    pad: int

    def __call__(self, model: Transformer, batch: PairBatch) -> Tensor:
        smoothing = self.label_smoothing if model.training else 0.0
        total = model.loss(batch.source, batch.target_inputs, batch.target_outputs, self.pad, smoothing, reduction="sum")
        return total / at_least_one(batch)


def masked_token_loss(model: BertForMaskedLM, batch: MaskedBatch) -> Tensor:
    """Return the mean cross-entropy over the batch's masked tokens, in nats, shape (). Other tokens are not predicted."""
    rows, columns = tt.tensor(host.stack(host.nonzero(batch.hidden)))
    total = tt.cross_entropy(model(batch.inputs, places=(rows, columns)), batch.targets[rows, columns], reduction="sum")
    return total / at_least_one(batch)
