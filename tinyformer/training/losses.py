"""The losses: for each kind of model, the mean over the targets of a whole batch."""

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

# A function of a model and a batch that returns the mean loss. For a shard of a batch it returns the shard's part of that mean:
# the losses of all shards add up to the loss of the batch.
LossFunction = Callable[[Any, Any], Tensor]


def at_least_one(batch: Any) -> int:
    """Return the divisor of a batch's summed loss: its number of targets, or 1 if it has none, as when all are ignored. Then
    the loss is 0 and not NaN."""
    return max(int(batch.num_targets), 1)


def next_token_loss(model: GPT, batch: Any) -> Tensor:
    """The mean cross-entropy, in nats, of a language model's predictions of each next token: a tensor of shape ().

    ``batch`` has ``inputs`` and ``targets``, ids (batch, length), and ``num_targets``; see ``Batch``.
    """
    return model.loss(batch.inputs, batch.targets, reduction="sum") / at_least_one(batch)


def class_loss(model: Module, batch: Batch) -> Tensor:
    """The mean cross-entropy, in nats, of a classifier's predictions: a tensor of shape ().

    The batch's ``inputs`` are ids (batch, length), and its ``targets`` a class for each row, (batch,).
    """
    return tt.cross_entropy(model(batch.inputs), batch.targets, reduction="sum") / at_least_one(batch)


@dataclass(frozen=True)
class translation_loss:
    """A loss function: the mean cross-entropy over all target tokens but padding. Labels are smoothed only in training, so that
    the validation loss is the true cross-entropy.

    It is a class because local functions cannot be sent to other processes.
    """

    label_smoothing: float
    pad: int

    def __call__(self, model: Transformer, batch: PairBatch) -> Tensor:
        smoothing = self.label_smoothing if model.training else 0.0
        total = model.loss(batch.source, batch.target_inputs, batch.target_outputs, self.pad, smoothing, reduction="sum")
        return total / at_least_one(batch)


def masked_token_loss(model: BertForMaskedLM, batch: MaskedBatch) -> Tensor:
    """The mean cross-entropy, in nats, over the hidden tokens of the batch, shape (). The model predicts no others."""
    rows, columns = tt.tensor(host.stack(host.nonzero(batch.hidden)))
    total = tt.cross_entropy(model(batch.inputs, places=(rows, columns)), batch.targets[rows, columns], reduction="sum")
    return total / at_least_one(batch)
