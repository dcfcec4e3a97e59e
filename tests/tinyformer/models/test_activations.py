"""The table of activations: a row is all that a new one needs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tinytensor as tt
from tinyformer import (
    GPT,
    BertConfig,
    BertForMaskedLM,
    GPTConfig,
    Transformer,
    TransformerConfig,
    from_pretrained,
    save_pretrained,
)
from tinyformer.export.models import bert_graph, decoder_graph, gpt_graph
from tinyformer.models.activations import ACTIVATIONS, Activation

CONFIG = GPTConfig(vocab_size=11, block_size=8, num_layers=1, num_heads=2, d_model=8)


def squared(x: tt.Tensor) -> tt.Tensor:
    return tt.relu(x) ** 2


@pytest.fixture
def with_squared_relu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ACTIVATIONS, "squared", Activation(squared, ("relu2",)))


@pytest.mark.usefixtures("with_squared_relu")
def test_a_row_makes_models_train_export_and_load(tmp_path) -> None:
    model = GPT(replace(CONFIG, activation="squared"))
    ids = tt.tensor(np.arange(16).reshape(2, 8) % 11)
    model.loss(ids, ids).backward()
    assert all(p.grad is not None for p in model.parameters())
    assert [node.operator for node in gpt_graph(model).nodes].count("Relu") == 1
    save_pretrained(model, tmp_path)
    loaded = from_pretrained(tmp_path)
    with tt.no_grad():
        np.testing.assert_array_equal(loaded(ids).numpy(), model.eval()(ids).numpy())


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_row_is_exported_and_counted(name: str) -> None:
    model = GPT(replace(CONFIG, activation=name))
    gpt_graph(model)
    assert model.config.num_parameters() == sum(p.size for p in model.parameters())
    decoder_graph(
        Transformer(TransformerConfig(9, 11, d_model=8, num_heads=2, encoder_layers=1, decoder_layers=1, activation=name))
    )
    if not ACTIVATIONS[name].is_gated:
        config = BertConfig(vocab_size=11, max_length=8, num_layers=1, num_heads=2, d_model=8, d_ff=16, activation=name)
        bert_graph(BertForMaskedLM(config))
