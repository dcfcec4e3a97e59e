"""The loss over a whole split, at once and in shards."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from trainings import GivenBatches

import tinytensor as tt
from tinyformer.data.batches import Batch
from tinyformer.training.evaluation import evaluate, perplexity
from tinyformer.training.losses import next_token_loss


@pytest.mark.parametrize("training", [True, False])
def test_the_whole_split_is_evaluated(make_trainer, text_ids: np.ndarray, training: bool) -> None:
    trainer = make_trainer(dropout=0.5)
    model = trainer.model.train(training)
    loss = evaluate(model, trainer.batches)
    assert all(m.training is training for m in model.modules())
    # By hand: each window of the held-out ids, each target's own loss in float64, one mean over all of them.
    held_out = trainer.batches.validation.numpy()
    assert held_out.tolist() == text_ids[-30:].tolist()
    assert len(held_out) % 8 != 1  # so that the tail is shorter and a mean of the batches' means would differ
    model.eval()
    losses = []
    for start in range(0, len(held_out) - 1, 8):
        window = held_out[start : start + 9]
        logits = model(tt.tensor(window[None, :-1])).numpy()[0].astype(np.float64)
        losses += list(np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(window) - 1), window[1:]])
    assert len(losses) == 29
    assert loss == pytest.approx(np.mean(losses), abs=1e-6)


def test_batches_count_by_their_targets() -> None:
    scripted = {3: 1.0, 1: 5.0}
    ids = tt.tensor([[0]])
    batches = GivenBatches([], [Batch(ids, ids, 3), Batch(ids, ids, 1)])
    loss = evaluate(tt.nn.Linear(1, 1), batches, lambda model, batch: tt.tensor(scripted[batch.num_targets]))
    assert loss == 2.0


def test_evaluation_records_nothing(make_trainer) -> None:
    recorded = []

    def loss_function(model: Any, batch: Any) -> Any:
        loss = next_token_loss(model, batch)
        recorded.append(loss.requires_grad)
        return loss

    trainer = make_trainer()
    evaluate(trainer.model, trainer.batches, loss_function)
    assert recorded == [False, False]


def test_perplexity() -> None:
    assert perplexity(0.0) == 1.0
    assert perplexity(math.log(65)) == pytest.approx(65)
    assert perplexity(1e6) == math.inf


@pytest.mark.parametrize("shards", [1, 2, 3, 50])
def test_evaluation_in_shards(make_trainer, shards: int) -> None:
    trainer = make_trainer(dropout=0.5)
    expected = evaluate(trainer.model, trainer.batches)
    assert evaluate(trainer.model, trainer.batches, shards=shards) == pytest.approx(expected, rel=1e-6)
