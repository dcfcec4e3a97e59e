"""Whole models with quantized weights: what they compute, and how they write."""

from __future__ import annotations

import copy
import threading

import numpy as np
import pytest
from blocks import MIXED, random_weight

import tinytensor as tt
from tinyformer import GPT
from tinyformer.decoding.generation import GPTDecoder, TransformerDecoder
from tinyformer.models.bert import BertConfig, BertForMaskedLM
from tinyformer.models.gpt import GPTConfig
from tinyformer.models.transformer import Transformer, TransformerConfig
from tinytensor import nn
from tinytensor.device.backend import name as backend
from tinytensor.nn.quantization import quantized_weights

VOCABULARY = 23
ERRORS = {"int8": 3e-4, "int4": 3e-4, "bfloat16": 2e-5}  # next to the size of the logits: blocks have inputs of 16 bits


def gpt(**settings):
    config = {"block_size": 16, "num_layers": 2, "num_heads": 3, "d_model": 48, "bias": True, **settings}
    return GPT(GPTConfig(vocab_size=VOCABULARY, **config))


def transformer(**settings):
    config = {"d_model": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 2, "d_ff": 64, **settings}
    return Transformer(TransformerConfig(VOCABULARY, VOCABULARY, **config))


def bert():
    return BertForMaskedLM(BertConfig(VOCABULARY, max_length=16, num_layers=2, num_heads=2, d_model=32, d_ff=64))


MODELS = {
    "learned positions": (gpt, lambda model: model.token_embedding.weight),
    "rotary, swiglu": (
        lambda: gpt(d_model=256, num_heads=4, positions="rotary", activation="swiglu", norm="rms", query_key_norm=True),
        lambda model: model.token_embedding.weight,
    ),
    "Gemma": (
        lambda: gpt(positions="rotary", activation="geglu", norm="rms", d_head=32, scale_embeddings=True),
        lambda model: model.token_embedding.weight,
    ),
    "untied": (lambda: gpt(tie_output=False, num_layers=1), lambda model: None),
    "BERT": (bert, lambda model: model.bert.token_embedding.weight),
    "Transformer": (transformer, lambda model: model.target_embedding.tokens.weight),
    "Transformer, shared": (
        lambda: transformer(share_embeddings=True, norm_first=True),
        lambda model: model.target_embedding.tokens.weight,
    ),
}


@pytest.fixture(params=["int8", "int4", "bfloat16"])
def dtype(request):
    return request.param


def quantized(make, table, dtype):
    """A quantized model, and one in float32 with the same numbers for weights."""
    tt.seed(0)
    model = make().eval()
    for parameter in model.parameters():  # biases of 0 and norms of 1 would hide a mistake
        parameter.assign(parameter + tt.random.normal(parameter.shape, std=0.1))
    plain, tables = copy.deepcopy(model), table(model)
    nn.quantize_(model, dtype, [] if tables is None else [tables])
    parameters = dict(plain.named_parameters())
    for name, weight in quantized_weights(model):
        parameters[name].assign(weight.numpy())
    return model, plain


def ids(batch=2, length=9, seed=0):
    return np.random.default_rng(seed).integers(1, VOCABULARY, (batch, length))


def logits(model, *given):
    with tt.no_grad():
        return model(*[tt.tensor(x) for x in given]).numpy()


def assert_near(got, want, dtype):
    assert np.abs(got - want).max() <= ERRORS[dtype] * np.abs(want).max()


@pytest.mark.parametrize("make, table", MODELS.values(), ids=MODELS)
def test_it_gives_nearly_the_logits_of_the_same_numbers(make, table, dtype):
    model, plain = quantized(make, table, dtype)
    given = (ids(), ids(seed=1)) if isinstance(model, Transformer) else (ids(),)
    assert_near(logits(model, *given), logits(plain, *given), dtype)
    left = [p for p in model.parameters() if p.ndim > 1]
    assert len(left) + len(list(quantized_weights(model))) == len([p for p in plain.parameters() if p.ndim > 1])


@pytest.mark.parametrize("batch", [1, 9])
@pytest.mark.parametrize("which", ["learned positions", "rotary, swiglu", "untied"])
def test_a_text_is_written_with_the_logits_of_the_whole(which, dtype, batch):
    model, _ = quantized(*MODELS[which], dtype)
    decoder, text = GPTDecoder(model), ids(batch)
    for end in range(1, text.shape[1] + 1):
        assert_near(decoder.next_logits(text[:, end - 1 : end]), logits(model, text[:, :end])[:, -1], dtype)


def test_a_translation_is_written_with_the_logits_of_the_whole(dtype):
    model, _ = quantized(*MODELS["Transformer"], dtype)
    source, target = ids(), ids(seed=1)
    decoder = TransformerDecoder(model, source, 16)
    for end in range(1, target.shape[1] + 1):
        assert_near(decoder.next_logits(target[:, end - 1 : end]), logits(model, source, target[:, :end])[:, -1], dtype)


def test_the_loss_is_that_of_the_logits_and_trains_nothing(dtype):
    model, _ = quantized(*MODELS["learned positions"], dtype)
    inputs, targets = (tt.tensor(ids()[:, part]) for part in (slice(-1), slice(1, None)))
    loss = model.loss(inputs, targets)
    assert loss.item() == pytest.approx(tt.cross_entropy(model(inputs), targets).item(), rel=1e-6)
    with pytest.raises(RuntimeError, match="no gradient flows through a quantized weight"):
        loss.backward()


# --------------------------------------------------------------------------------------------------- compiled programs


def stack(widths=(20, 70, 115, 33, 129, 8)):
    """A stack of quantized layers with exact steps between them."""
    tt.seed(0)
    sizes = zip(widths, widths[1:], ("int8", "int4", "int4", "int8", "int4"))
    layers = [nn.quantize_(nn.Linear(*size, bias=size[0] > 40), dtype) for *size, dtype in sizes]
    layers[1].weight = nn.weights.BlockWeight(tt.tensor(random_weight(MIXED, 70)[0]), MIXED, 70)

    def function(x):
        for layer in layers:
            x = tt.relu(layer(x)) * 0.7
        return x

    return function


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 9])
def test_a_traced_function_gives_the_same_bits(programs, rows):
    function = stack()
    traced = tt.trace(function)
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((rows, 20)).astype("float32")
        x[0] *= seed
        with tt.no_grad():
            want = function(tt.tensor(x)).numpy()
        np.testing.assert_array_equal(traced(tt.tensor(x)).numpy(), want)
    is_compiled = tt.kernels_name == "numba" and backend == "numpy" and rows <= 8
    assert len(programs[0].steps) == (1 if is_compiled else 15)


@pytest.mark.needs("numba")
def test_two_threads_change_no_bit(monkeypatch, dtype):
    from tinytensor.kernels.numba import programs as compiled

    model, _ = quantized(*MODELS["rotary, swiglu"], dtype)
    text = ids(3, 12)

    def written():
        decoder = GPTDecoder(model)
        return np.stack([decoder.next_logits(column[:, None]) for column in text.T])

    monkeypatch.setattr(compiled, "has_second_core", lambda: False)
    alone = written()
    monkeypatch.setattr(compiled, "has_second_core", lambda: True)
    monkeypatch.setattr(compiled, "_SHARED", 0)
    monkeypatch.setattr(compiled, "_PART", 1 << 8)
    for _ in range(10):
        np.testing.assert_array_equal(written(), alone)


def test_several_threads_write_in_parallel(dtype):
    model, _ = quantized(*MODELS["learned positions"], dtype)
    text, found = ids(1, 12), []

    def write():
        decoder = GPTDecoder(model)
        found.append(np.stack([decoder.next_logits(column[:, None]) for column in text.T]))

    write()
    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 5
    for each in found:
        np.testing.assert_array_equal(each, found[0])
