"""Recording a model's module outputs and residual stream, and the logit lens."""

from __future__ import annotations

import numpy as np
import pytest

import tinytensor as tt
from tinyformer import (
    AdditiveAttentionModel,
    Bert,
    BertConfig,
    BertForClassification,
    BertForMaskedLM,
    Block,
    ContextVectorModel,
    RecurrentConfig,
    RecurrentLM,
    Seq2SeqConfig,
    Transformer,
    TransformerConfig,
    generate,
    recording_outputs,
    residual_streams,
)
from tinytensor.nn import Linear, Module

IDS = tt.tensor([[3, 4, 5, 6, 2], [6, 5, 4, 0, 0]])
TARGET = tt.tensor([[1, 4, 5], [1, 5, 6]])
SIZES = {"d_model": 16, "num_heads": 2, "d_ff": 24, "dropout": 0.4}


def same(a: tt.Tensor, b: tt.Tensor) -> None:
    np.testing.assert_array_equal(a.numpy(), b.numpy())


def without_dropout(model: Module, *inputs: object) -> tt.Tensor:
    """The model's output in evaluation mode, after which it trains again."""
    with tt.no_grad():
        output = model.eval()(*inputs)
    model.train()
    return output


def hooks(model: Module) -> list[str]:
    return [name for name, module in model.named_modules() if "_forward_hooks" in vars(module)]


# ------------------------------------------------------------------------------------------------- residual streams


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_the_stream_of_a_gpt_ends_in_its_logits(make_gpt, positions: str) -> None:
    model = make_gpt(dropout=0.4, num_layers=3, positions=positions)
    streams = residual_streams(model, IDS)
    assert list(streams) == ["blocks"] and [x.shape for x in streams["blocks"]] == [(2, 5, 16)] * 4
    assert all(module.training for module in model.modules()) and not hooks(model)
    same(model.logits_of(streams["blocks"][-1]), without_dropout(model, IDS))
    model.eval()
    for i, block in enumerate(model.blocks):
        same(block(streams["blocks"][i], is_causal=True), streams["blocks"][i + 1])
    if positions == "learned":
        same(streams["blocks"][0], model.token_embedding(IDS) + model.position_embedding(5))
    assert not streams["blocks"][0].requires_grad


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("output_bias", [False, True])
def test_the_streams_of_a_transformer(norm_first: bool, output_bias: bool) -> None:
    config = TransformerConfig(
        9, 9, encoder_layers=2, decoder_layers=3, norm_first=norm_first, output_bias=output_bias, **SIZES
    )
    model = Transformer(config)
    streams = residual_streams(model, IDS, TARGET)
    assert {name: len(stream) for name, stream in streams.items()} == {"encoder": 3, "decoder": 4}
    same(model.logits_of(streams["decoder"][-1]), without_dropout(model, IDS, TARGET))
    memory, _ = model.eval().encode(IDS)
    same(model.encoder.normed(streams["encoder"][-1]), memory)
    assert (streams["encoder"][-1].numpy() != memory.numpy()).any() == norm_first


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_streams_of_each_bert(norm_first: bool) -> None:
    config = BertConfig(9, num_layers=2, norm_first=norm_first, **SIZES)
    model = BertForMaskedLM(config)
    streams = residual_streams(model, IDS)
    assert {name: len(stream) for name, stream in streams.items()} == {"encoder": 3}
    same(model.logits_of(streams["encoder"][-1]), without_dropout(model, IDS))
    rows = tt.tensor([0, 1]), tt.tensor([2, 0])
    np.testing.assert_allclose(
        model.eval()(IDS, places=rows).numpy(), model.logits_of(streams["encoder"][-1][rows]).numpy(), rtol=1e-6
    )
    plain = Bert(config)
    stream = residual_streams(plain, IDS)["encoder"][-1]
    same(plain.encoder.normed(stream), without_dropout(plain, IDS))
    assert list(residual_streams(BertForClassification(config, 3), IDS)) == ["encoder"]


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_the_states_of_a_recurrent_language_model(cell: str) -> None:
    model = RecurrentLM(RecurrentConfig(9, cell=cell, num_layers=2, d_model=12, dropout=0.4))
    streams = residual_streams(model, IDS)
    assert list(streams) == (["hidden", "cell"] if cell == "lstm" else ["hidden"])
    assert model.training and not hooks(model)
    model.eval()
    logits, _ = model(IDS)
    same(model.logits_of(streams["hidden"][-1].swapaxes(0, 1)).swapaxes(0, 1), logits)
    state = None
    for i in range(5):
        _, state = model.step(IDS[:, i : i + 1], state)
        for stream, kind in zip(streams.values(), state.hidden):
            for layer in range(2):
                np.testing.assert_allclose(stream[layer].numpy()[:, i], kind.numpy()[layer], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", [ContextVectorModel, AdditiveAttentionModel])
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_the_states_of_a_recurrent_encoder_decoder(kind: type, cell: str) -> None:
    attention = kind is AdditiveAttentionModel
    model = kind(Seq2SeqConfig(9, 9, attention, cell=cell, d_model=12, d_embedding=10, num_layers=2))
    streams = residual_streams(model, IDS, TARGET)
    kinds = ["hidden", "cell"] if cell == "lstm" else ["hidden"]
    assert set(streams) == {f"{part}.{kind}" for part in ("encoder", "decoder") for kind in kinds}
    width = 24 if attention else 12
    assert [x.shape for x in streams["encoder.hidden"]] == [(2, 5, width)] * 2
    assert [x.shape for x in streams["decoder.hidden"]] == [(2, 3, 12)] * 2
    model.eval()
    state = model.encode(IDS)
    if attention:
        tokens = (IDS != 0).numpy()
        np.testing.assert_array_equal(streams["encoder.hidden"][-1].numpy()[tokens], state.memory.numpy()[tokens])
    for i in range(3):
        _, state = model.step(TARGET[:, i : i + 1], state)
        for name, found in zip(kinds, state.hidden):
            for layer in range(2):
                stream = streams[f"decoder.{name}"][layer].numpy()
                np.testing.assert_allclose(stream[:, i], found.numpy()[layer], rtol=1e-4, atol=1e-6)


def test_a_model_without_blocks_has_no_stream() -> None:
    with pytest.raises(TypeError, match="Linear has neither blocks nor recurrent layers"):
        residual_streams(Linear(2, 2), tt.zeros((1, 2)))


# ---------------------------------------------------------------------------------------------------------- outputs


def test_recordings_may_be_nested_and_are_over_after_an_error(make_gpt) -> None:
    model = make_gpt()
    with pytest.raises(RuntimeError, match="stop"), recording_outputs(model, Block) as outer:
        model(IDS)
        with recording_outputs(model, (Block, Linear)) as inner:
            model(IDS)
        streams = residual_streams(model, IDS)
        raise RuntimeError("stop")
    assert list(outer) == ["blocks.0", "blocks.1"] and {len(calls) for calls in outer.values()} == {3}
    assert len(inner) == 2 + 2 * 4 and {len(calls) for calls in inner.values()} == {1}
    assert inner["blocks.1"][0] is outer["blocks.1"][1] and streams["blocks"][2] is outer["blocks.1"][2]
    assert not hooks(model)
    model(IDS)
    assert len(outer["blocks.0"]) == 3
    assert model(IDS).requires_grad


def test_a_forward_of_a_module_of_its_own_is_called_and_stays(make_gpt) -> None:
    model = make_gpt()
    block = model.blocks[1]
    own = lambda x, **more: x * 0.0  # noqa: E731
    vars(block)["forward"] = own
    with recording_outputs(model, Block) as recorded:
        model(IDS)
    assert vars(block)["forward"] is own and not recorded["blocks.1"][0].numpy().any()


def test_decoding_is_recorded_from_its_first_step_to_its_last(make_gpt) -> None:
    model = make_gpt().eval()
    with recording_outputs(model, Block) as recorded:
        written = list(generate(model, [1, 2], 5))
    assert [output.shape[1] for output in recorded["blocks.0"]] == [2, 1, 1, 1, 1] and len(written) == 5


def test_training_is_as_before(make_gpt) -> None:
    # The loss does not go through logits_of.
    model = make_gpt().eval()
    logits = model(IDS)
    expected = tt.cross_entropy(logits, IDS)
    assert float(model.loss(IDS, IDS)) == pytest.approx(float(expected), rel=1e-5)
