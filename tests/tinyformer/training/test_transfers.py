"""Transfers between the host and a GPU: a training step does not synchronize, and copies almost nothing.

The fake CuPy counts both; on other backends there is nothing to count.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.data.batches import LabelledBatches
from tinyformer.data.masking import MaskedBatches, Masking
from tinyformer.data.pairs import PairBatches, Specials
from tinyformer.data.text import TextBatches
from tinyformer.decoding.beam_search import beam_search
from tinyformer.decoding.generation import GPTDecoder, TransformerDecoder, sample
from tinyformer.decoding.sampling import Sampling
from tinyformer.models.bert import BertConfig, BertForClassification, BertForMaskedLM
from tinyformer.models.transformer import Transformer, TransformerConfig
from tinyformer.training.config import TrainingConfig
from tinyformer.training.evaluation import accuracy, evaluate
from tinyformer.training.losses import class_loss, masked_token_loss, next_token_loss, translation_loss
from tinyformer.training.run_folder import RunFolder
from tinyformer.training.trainer import Trainer
from tinytensor.device.backend import from_numpy, xp

pytestmark = pytest.mark.needs("standin")

BATCH = 4
RNG = np.random.default_rng(0)
IDS = RNG.integers(4, 11, 9000)
SMALL = {"d_model": 16, "num_heads": 2, "dropout": 0.0}


@pytest.fixture(autouse=True)
def uncounted_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not count the tables that tell the optimizer's kernels where the gradients lie: they are copied when these have moved,
    and where memory is given out is up to the CPU here, and to CuPy's memory pool there."""
    from tinytensor.autograd.replaying import TrainingStep

    def copy(step: TrainingStep, values: Any) -> Any:
        copied = from_numpy(values)
        xp.uploads.pop()
        return copied

    monkeypatch.setattr(TrainingStep, "table", copy)


def reads(action: Callable[[], Any]) -> int:
    """How often the action waits for the GPU."""
    before = xp.synchronizations
    action()
    return xp.synchronizations - before


def uploads(action: Callable[[], Any]) -> list[int]:
    """The bytes of each copy to the GPU that the action makes."""
    before = len(xp.uploads)
    action()
    return xp.uploads[before:]


def gpt_and_text(make_gpt: Any, **options: Any) -> tuple[Any, Any, Any]:
    return make_gpt(**options), TextBatches(IDS, 8, BATCH), next_token_loss


def bert_and_masked_text(make_gpt: Any) -> tuple[Any, Any, Any]:
    model = BertForMaskedLM(BertConfig(11, max_length=12, num_layers=1, d_ff=16, **SMALL))
    return model, MaskedBatches(IDS, Masking(11, 3, (0, 1, 2)), 1, 2, 10, BATCH), masked_token_loss


def bert_and_labels(make_gpt: Any) -> tuple[Any, Any, Any]:
    texts = [(RNG.integers(4, 11, n % 7 + 2).tolist(), n % 3) for n in range(200)]
    model = BertForClassification(BertConfig(11, max_length=12, num_layers=1, d_ff=16, **SMALL), 3)
    return model, LabelledBatches(texts[:50], texts[50:], 0, BATCH), class_loss


def transformer_and_pairs(make_gpt: Any) -> tuple[Any, Any, Any]:
    pairs = [(RNG.integers(3, 11, n % 5 + 1).tolist(), RNG.integers(3, 11, n % 4 + 1).tolist()) for n in range(60)]
    model = Transformer(TransformerConfig(11, 11, encoder_layers=1, decoder_layers=1, d_ff=16, **SMALL))
    return model, PairBatches(pairs[:30], pairs[30:], Specials(0, 1, 2), BATCH), translation_loss(0.1, 0)


MAKERS = {f.__name__: f for f in (gpt_and_text, bert_and_masked_text, bert_and_labels, transformer_and_pairs)}


@pytest.fixture(params=MAKERS)
def make_trainer(request: Any, make_gpt: Any, tmp_path: Path) -> Callable[..., Trainer]:
    def make(**settings: Any) -> Trainer:
        model, batches, loss = MAKERS[request.param](make_gpt)
        config = TrainingConfig(**{"steps": 20, "batch_size": BATCH, "warmup": 2, **settings})
        return Trainer(model, batches, config, RunFolder(tmp_path), loss)

    return make


@pytest.mark.parametrize("settings", [{}, {"gradient_accumulation_steps": 3, "clip": 0.0}])
def test_a_step_waits_for_nothing(make_trainer: Callable[..., Trainer], settings: dict[str, Any]) -> None:
    trainer = make_trainer(**settings)
    trainer.model.train()
    assert [reads(trainer.train_step) for _ in range(4)] == [0] * 4


def test_the_loop_reads_only_when_it_logs(make_trainer: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(log_every=5, eval_every=10)
    step, seen = trainer.train_step, []

    def watched() -> Any:
        seen.append(xp.synchronizations)
        return step()

    monkeypatch.setattr(trainer, "train_step", watched)
    trainer.train()
    waited = [after > before for before, after in zip(seen, seen[1:])]
    assert waited == [number % 5 == 0 for number in range(1, 20)]


def test_of_a_text_a_step_copies_only_where_its_windows_start(make_gpt: Any, tmp_path: Path) -> None:
    model, batches, loss = gpt_and_text(make_gpt)
    trainer = Trainer(model, batches, TrainingConfig(steps=9, batch_size=BATCH), RunFolder(tmp_path), loss)
    trainer.model.train()
    trainer.train_step()  # the first makes what is kept, such as masks
    assert uploads(trainer.train_step) == [BATCH * 8]


def test_other_batches_are_copied_and_nothing_else(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer()
    trainer.model.train()
    for _ in range(8):  # the first make what is kept: masks, and positions for the longest text
        trainer.train_step()
    sampled = uploads(trainer.batches.sample)
    places = 1 if isinstance(trainer.batches, MaskedBatches) else 0
    assert len(uploads(trainer.train_step)) == len(sampled) + places <= 3


def test_an_evaluation_reads_once(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer()
    assert sum(1 for _ in trainer.batches.validation_batches()) > 1
    assert reads(lambda: evaluate(trainer.model, trainer.batches, trainer.loss_function)) == 1


def test_accuracy_is_read_once(make_gpt: Any) -> None:
    model, batches, _ = bert_and_labels(make_gpt)
    assert sum(1 for _ in batches.validation_batches()) > 1
    assert reads(lambda: accuracy(model, batches.validation_batches())) == 1


@pytest.mark.parametrize("use_cache", [True, False])
def test_writing_reads_the_logits_of_a_step_and_copies_its_tokens(make_gpt: Any, use_cache: bool) -> None:
    decoder = GPTDecoder(make_gpt(), use_cache)
    decoder.next_logits(np.array([[1, 2], [3, 4]]))
    for _ in range(5):
        waits = xp.synchronizations
        assert uploads(lambda: decoder.next_logits(np.array([[5], [6]]))) == [16 if use_cache else decoder.ids.size * 8]
        assert xp.synchronizations - waits == 1
    written = sample(GPTDecoder(make_gpt()), [[1, 2]], 10, Sampling(top_k=3))
    assert reads(lambda: list(written)) == 10


def test_beam_search_reads_the_logits_of_a_step(make_gpt: Any) -> None:
    model, _, _ = transformer_and_pairs(make_gpt)
    decoder = TransformerDecoder(model, np.array([[3, 4, 5, 2], [6, 7, 2, 0]]), max_tokens=6)
    steps = []
    next_logits = decoder.next_logits
    decoder.next_logits = lambda new: steps.append(new) or next_logits(new)  # type: ignore[method-assign]
    assert reads(lambda: beam_search(decoder, [[1], [1]], 2, beam=2, max_tokens=6)) == len(steps) > 1


def test_the_counters_count(make_gpt: Any) -> None:
    x = tt.ones(3)
    assert reads(lambda: (x.sum().item(), x.numpy(), bool((x > 0).any()))) == 3
    assert uploads(lambda: (tt.tensor([1.0, 2.0]), tt.zeros(5), x + 1.0)) == [8]
