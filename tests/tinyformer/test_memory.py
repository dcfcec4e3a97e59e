"""Errors for models and batches that cannot fit in memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinyformer.common import memory
from tinyformer.common.errors import SettingError, UserError
from tinyformer.common.memory import check_fits, check_step_fits, check_training_fits, in_bytes, training_memory
from tinyformer.data.batches import LabelledBatches
from tinyformer.data.masking import MaskedBatches, Masking
from tinyformer.data.pairs import PairBatches, Specials
from tinyformer.data.text import TextBatches
from tinyformer.models.bert import BertConfig, BertForClassification, BertForMaskedLM
from tinyformer.models.gpt import GPT, GPTConfig
from tinyformer.models.transformer import Transformer, TransformerConfig
from tinyformer.training.config import TrainingConfig
from tinyformer.training.losses import class_loss, masked_token_loss, next_token_loss, translation_loss
from tinyformer.training.run_folder import RunFolder
from tinyformer.training.trainer import Trainer
from tinytensor.nn import Linear, Module


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (9_700_000, "9.7 MB"),
        (21_400_000_000, "21 GB"),
        (76 * 10**12, "76 TB"),
        (10**17, "100,000 TB"),
        (10**18, "10^18 bytes"),
        (10**9000, "10^9000 bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bytes_in_words(count: int, text: str) -> None:
    assert in_bytes(count) == text


def test_a_model_that_does_not_fit_is_reported_with_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "device_memory", lambda: 21 * 10**9)
    monkeypatch.setattr(memory, "host_memory", lambda: 10**9)
    check_fits(21 * 10**9, "this", "no")
    with pytest.raises(UserError, match=r"^this needs at least 22 GB of memory, but there are 21 GB: make it smaller$"):
        check_fits(22 * 10**9, "this", "make it smaller")
    with pytest.raises(UserError, match=r"2\.0 GB of memory, but there are 1\.0 GB"):
        check_fits(2 * 10**9, "this", "make it smaller", on_host=True)
    with pytest.raises(SettingError) as caught:
        check_fits(10**400, "this", "choose a smaller batch_size", "batch_size")
    assert str(caught.value).endswith("choose a smaller batch_size") and caught.value.names == ("batch_size",)


def test_where_nothing_is_known_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "device_memory", lambda: None)
    check_fits(10**400, "this", "no")


# ---------------------------------------------------------------------------------------------------------- training

IDS = np.random.default_rng(0).integers(5, 60, 3000)


def a_gpt(**changes: object) -> tuple[Module, Any, Any]:
    config = GPTConfig(**{"vocab_size": 60, "block_size": 32, "num_layers": 2, "num_heads": 2, "d_model": 64, **changes})
    return GPT(config), TextBatches(IDS, 32, 32), next_token_loss


def a_wide_gpt() -> tuple[Module, Any, Any]:
    """A GPT with more weights than saved activations."""
    return GPT(GPTConfig(60, 8, 2, 2, 256)), TextBatches(IDS, 8, 2), next_token_loss


def a_transformer() -> tuple[Module, Any, Any]:
    model = Transformer(TransformerConfig(60, 60, 0, 64, 2, 2, 2, 256))
    pairs = [(IDS[i : i + 20].tolist(), IDS[i : i + 20].tolist()) for i in range(100)]
    return model, PairBatches(pairs, pairs[:10], Specials(0, 1, 2), 64), translation_loss(0.1, 0)


def a_bert() -> tuple[Module, Any, Any]:
    model = BertForMaskedLM(BertConfig(60, 0, 2, 34, 2, 2, 64, 256))
    return model, MaskedBatches(IDS, Masking(60, 3, [0, 1, 2]), 1, 2, 32, 32), masked_token_loss


def a_classifier() -> tuple[Module, Any, Any]:
    model = BertForClassification(BertConfig(60, 0, 2, 34, 2, 2, 64, 256), 2)
    texts = [(IDS[i : i + 30 + i % 4].tolist(), i % 2) for i in range(100)]
    return model, LabelledBatches(texts, texts, 0, 32), class_loss


SMALL: dict[str, Callable[[], tuple[Module, Any, Any]]] = {
    "gelu": a_gpt,
    "relu": partial(a_gpt, activation="relu"),
    "swiglu": partial(a_gpt, activation="swiglu", norm="rms"),
    "geglu": partial(a_gpt, activation="geglu"),
    "rotary": partial(a_gpt, positions="rotary", dropout=0.1),
    "wide": a_wide_gpt,
    "transformer": a_transformer,
    "bert": a_bert,
    "classifier": a_classifier,
}


@pytest.mark.parametrize(("kind", "shards"), [*((kind, 2) for kind in SMALL), ("gelu", 16), ("transformer", 16)])
def test_training_takes_what_is_said_and_not_more_than_twice_that(kind: str, shards: int, tmp_path: Path) -> None:
    def new_trainer(folder: str) -> Trainer:
        model, batches, loss = SMALL[kind]()
        return Trainer(model, batches, TrainingConfig(shards=shards), RunFolder(tmp_path / folder), loss)

    new_trainer("first").train_step()  # where kernels are compiled, that takes memory once
    tracemalloc.start()
    try:
        trainer = new_trainer("measured")
        bound = training_memory(trainer.model, trainer.batches, shards)
        tracemalloc.reset_peak()
        for _ in range(2):  # the optimizer's moments are there from the second step on
            trainer.train_step()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert bound < peak
    if shards < 4:  # of more not all are at work at once
        assert peak < 2.3 * bound  # 2.21 where both shards are at their peak at the same moment


def test_a_frozen_model_keeps_nothing_that_is_known() -> None:
    model, batches, _ = a_gpt()
    for parameter in model.parameters():
        parameter.requires_grad = False
    assert training_memory(model, batches) == 4 * model.num_parameters()


def test_other_models_and_batches_have_weights_at_least() -> None:
    assert training_memory(Linear(10, 10), object()) == 16 * 110
    assert training_memory(Linear(10, 10), object(), moments=1) == 12 * 110


def test_training_that_cannot_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batches, _ = a_gpt()
    check_training_fits(model, batches, 2)
    batches.batch_size = 10**30
    with pytest.raises(SettingError, match=r"training this model with this batch_size needs at least .* there are ") as caught:
        check_training_fits(model, batches, 2)
    assert "gradient_accumulation_steps" in caught.value.names


def test_batches_that_are_drawn_at_once_must_fit() -> None:
    _, batches, _ = a_gpt()
    check_step_fits(batches, 1000)
    check_step_fits(object(), 1)
    for batches_per_step in (10**12, 10**400):
        with pytest.raises(
            SettingError, match=r"^drawing the batches of so many gradient_accumulation_steps needs at least"
        ) as caught:
            check_step_fits(batches, batches_per_step)
        assert "gradient_accumulation_steps" in caught.value.names


def test_a_trainer_checks_its_batches_first(tmp_path: Path) -> None:
    model, batches, loss_function = a_gpt()
    with pytest.raises(SettingError, match="gradient_accumulation_steps"):
        Trainer(model, batches, TrainingConfig(gradient_accumulation_steps=10**12), RunFolder(tmp_path), loss_function)
