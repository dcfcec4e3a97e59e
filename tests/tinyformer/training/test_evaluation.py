"""The loss over a split, in one pass and in shards."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trainings import GivenBatches

import tinytensor as tt
from tinyformer.data.batches import Batch, LabelledBatches
from tinyformer.models.bert import BertConfig, BertForClassification
from tinyformer.training.config import TrainingConfig
from tinyformer.training.evaluation import accuracy, evaluate, perplexity
from tinyformer.training.losses import class_loss, next_token_loss
from tinyformer.training.run_folder import RunFolder
from tinyformer.training.trainer import Trainer


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


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_evaluation_leaves_the_random_numbers_of_training_as_they_were(make_trainer, shards: int) -> None:
    trainer = make_trainer(dropout=0.5)
    before = str(tt.random.generator().bit_generator.state)
    evaluate(trainer.model, trainer.batches, shards=shards)
    assert str(tt.random.generator().bit_generator.state) == before


def test_a_classifiers_evaluations_report_its_accuracy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [([5, 6 + n % 3], n % 3) for n in range(30)]
    batches = LabelledBatches(texts, [*texts[:3], ([5, 6], 1)], 0, 10)  # the last label is wrong
    tt.seed(0)
    config = BertConfig(9, max_length=4, num_layers=1, num_heads=1, d_model=8, d_ff=8, dropout=0.0)
    model = BertForClassification(config, 3)
    training = TrainingConfig(steps=200, batch_size=10, warmup=5, eval_every=100, learning_rate=0.02)
    Trainer(model, batches, training, RunFolder(tmp_path), class_loss).train()
    last = [line for line in capsys.readouterr().out.splitlines() if "validation loss" in line][-1]
    assert last.startswith("step   200: validation loss ") and last.endswith(", 75.0 % right")
    assert accuracy(model, batches.validation_batches()) == 0.75
