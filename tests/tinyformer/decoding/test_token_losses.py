"""The loss of each token, against the losses of whole texts and one forward pass for each token."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import tinytensor as tt
from tinyformer import (
    AdditiveAttentionModel,
    BertConfig,
    BertForMaskedLM,
    RecurrentConfig,
    RecurrentLM,
    Seq2SeqConfig,
    Transformer,
    TransformerConfig,
    UserError,
    token_losses,
    token_losses_in_parts,
)

file = importlib.import_module("tinyformer.decoding.token_losses")  # not the function of that name
IDS = np.random.default_rng(2).integers(3, 11, 60)


def loss_of_last(logits: tt.Tensor, target: int) -> float:
    return float(tt.cross_entropy(logits[0, -1:], tt.tensor([target])))


def test_a_text_of_one_block_has_the_loss_of_the_model(make_gpt) -> None:
    model = make_gpt(dropout=0.5)
    for length in (2, 5, 9):
        losses = token_losses(model, IDS[:length])
        assert model.training and losses.dtype == np.float64 and np.isnan(losses[0])
        model.eval()
        expected = model.loss(tt.tensor(IDS[None, : length - 1]), tt.tensor(IDS[None, 1:length]))
        assert losses[1:].mean() == pytest.approx(float(expected), rel=1e-5)
        model.train()
    assert np.isnan(token_losses(model, [3])).tolist() == [True]


@pytest.mark.parametrize("block_size", [1, 2, 7, 8])
def test_windows_overlap_by_half(make_gpt, monkeypatch: pytest.MonkeyPatch, block_size: int) -> None:
    model = make_gpt(block_size=block_size).eval()
    for parameter in model.parameters():
        tt.nn.init.normal_(parameter, std=0.5)
    for length in (block_size + 1, block_size + 2, 2 * block_size + 2, 31):
        found = []
        for at_once in (1, 20, 4096):
            monkeypatch.setattr(file, "TOKENS_AT_ONCE", at_once)
            found.append(token_losses(model, IDS[:length]))
        for place in range(1, length):
            contexts = range(min(place, block_size // 2 + 1 if place > block_size else place), min(place, block_size) + 1)
            possible = [loss_of_last(model(tt.tensor(IDS[None, place - n : place])), IDS[place]) for n in contexts]
            for losses in found:
                assert np.abs(np.array(possible) - losses[place]).min() < 1e-5


def test_a_recurrent_model_carries_its_state() -> None:
    model = RecurrentLM(RecurrentConfig(11, cell="lstm", block_size=7, d_model=12, dropout=0.5))
    losses = token_losses(model, tt.tensor(IDS))
    logits, _ = model.eval()(tt.tensor(IDS[None, :-1]))
    expected = tt.cross_entropy(logits[0], tt.tensor(IDS[1:]), reduction="none").numpy()
    np.testing.assert_allclose(losses[1:], expected, rtol=1e-5)


@pytest.mark.parametrize("output_bias", [False, True])
def test_a_transformer_reads_its_source(output_bias: bool) -> None:
    config = TransformerConfig(
        11, 11, d_model=16, num_heads=2, d_ff=16, encoder_layers=1, decoder_layers=1, output_bias=output_bias
    )
    check_translation(Transformer(config))


def test_a_recurrent_encoder_decoder_reads_its_source() -> None:
    check_translation(AdditiveAttentionModel(Seq2SeqConfig(11, 11, True, d_model=12, d_embedding=8, teacher_forcing=0.5)))


def check_translation(model: Transformer | AdditiveAttentionModel) -> None:
    losses = token_losses(model, IDS[:9], source=IDS[20:26])
    logits = model.eval()(tt.tensor(IDS[None, 20:26]), tt.tensor(IDS[None, :8]))
    expected = tt.cross_entropy(logits[0], tt.tensor(IDS[1:9]), reduction="none").numpy()
    np.testing.assert_allclose(losses[1:], expected, rtol=1e-5)
    with pytest.raises(UserError, match="needs a source"):
        token_losses(model, IDS)


def test_parts_come_one_by_one_and_leave_the_model_alone(make_gpt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "TOKENS_AT_ONCE", 20)
    model = make_gpt(block_size=8, dropout=0.5)
    parts = []
    for part in token_losses_in_parts(model, IDS):
        assert model.training and tt.tensor(1.0, requires_grad=True).exp().requires_grad
        parts.append(part)
    assert len(parts) > 5
    np.testing.assert_array_equal(np.concatenate(parts), token_losses(model, IDS))
    with pytest.raises(UserError, match="takes no source"):
        token_losses_in_parts(model, IDS, source=[1])


def test_bert_sees_all_tokens_but_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "TOKENS_AT_ONCE", 20)
    model = BertForMaskedLM(BertConfig(11, num_layers=1, num_heads=2, d_model=16, d_ff=16))
    losses = token_losses(model, IDS[:7], mask=2)
    model.eval()
    for place in range(7):
        ids = IDS[:7].copy()
        ids[place] = 2
        expected = loss_of_last(model(tt.tensor(ids[None]))[:, : place + 1], IDS[place])
        assert losses[place] == pytest.approx(expected, rel=1e-5)


def test_what_does_not_fit(make_gpt) -> None:
    model = make_gpt()
    for arguments, message in (
        ({"ids": [1], "source": [1]}, "takes no source"),
        ({"ids": [1], "mask": 0}, "takes no mask"),
        ({"ids": []}, "the text is empty"),
        ({"ids": [1, 11]}, "11"),
    ):
        with pytest.raises(UserError, match=message):
            token_losses(model, **arguments)
    with pytest.raises(UserError, match="needs a mask"):
        token_losses(BertForMaskedLM(BertConfig(11, num_layers=1, num_heads=2, d_model=16, d_ff=16)), [1])
