"""BERT: its size, that every token sees every other but no padding, its heads, and that it learns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from trainings import check_that_it_learns

import tinytensor as tt
from tinyformer.common.errors import SettingError
from tinyformer.models.activations import ACTIVATIONS
from tinyformer.models.bert import (
    Bert,
    BertConfig,
    BertForClassification,
    BertForMaskedLM,
    BertForNextSentence,
    BertForQuestionAnswering,
    BertForTokenClassification,
)
from tinytensor.nn import Module

SMALL = {"vocab_size": 13, "max_length": 8, "num_layers": 2, "num_heads": 2, "d_model": 16, "d_ff": 24, "dropout": 0.0}
PAD = 0


def make(kind: Any = Bert, *arguments: Any, spread: bool = False, **changes: object) -> Any:
    """A small model. With ``spread`` its weights differ clearly, as a trained one's do: at first, all is nearly even."""
    tt.seed(0)
    model = kind(BertConfig(**{**SMALL, **changes}), *arguments)
    if spread:
        for parameter in model.parameters():
            tt.nn.init.normal_(parameter, std=0.3)
    return model


def random_ids(*shape: int, seed: int = 0) -> np.ndarray:
    """Ids without padding, which is 0."""
    return np.random.default_rng(seed).integers(1, 13, shape)


# ---------------------------------------------------------------------------------------------------------- size


def expected_parameters(c: BertConfig) -> int:
    """Counted on paper: three embeddings and a norm; layers of four matrices, two more and two norms; the pooler."""
    d, inner = c.d_model, c.d_ff
    layer = 4 * (d * d + d) + d * inner + inner + inner * d + d + 2 * 2 * d
    return (c.vocab_size + c.max_length + c.num_segments) * d + 2 * d + c.num_layers * layer + d * d + d


@pytest.mark.parametrize("changes", [{}, {"num_segments": 3, "num_layers": 1}, {"d_model": 32, "d_ff": 7, "max_length": 5}])
def test_parameter_count(changes: dict[str, int]) -> None:
    assert make(**changes).num_parameters() == expected_parameters(BertConfig(**{**SMALL, **changes}))


def test_the_formula_gives_the_published_size_of_bert_base() -> None:
    # The formula is held to real models above, so half a gigabyte need not be filled to know what it says here.
    assert expected_parameters(BertConfig()) == 109_482_240


def test_what_the_choices_add_and_spare() -> None:
    plain = make().num_parameters()
    assert make(norm_first=True).num_parameters() == plain + 2 * 16  # a norm after the last block
    assert make(positions="sinusoidal").num_parameters() == plain - 8 * 16


def test_what_the_choices_of_its_relatives_add_and_spare() -> None:
    plain = make().num_parameters()
    for changes, more in (
        ({"num_segments": 0}, -2 * 16),
        ({"pooler": ""}, -(16 * 16 + 16)),
        ({"skip_padding": True, "pad": 3}, 4 * 16),
        ({"relative_ranges": 32}, 32 * 2),
    ):
        assert make(**changes).num_parameters() == plain + more == BertConfig(**{**SMALL, **changes}).num_parameters()
    assert make(BertForMaskedLM, tie_output=False).num_parameters() == make(BertForMaskedLM).num_parameters() + 13 * 16


def test_the_heads_add_few_parameters() -> None:
    plain = make().num_parameters()
    # The output layer is the token embedding again: only a layer, a norm and a bias for each token are new.
    assert make(BertForMaskedLM).num_parameters() == plain + 16 * 16 + 16 + 2 * 16 + 13
    assert make(BertForClassification, 3).num_parameters() == plain + 3 * 16 + 3


@pytest.mark.parametrize(("kind", "arguments"), [(Bert, ()), (BertForMaskedLM, ()), (BertForClassification, (5,))])
@pytest.mark.parametrize(("width", "std"), [(768, 0.02), (192, 0.04)])
def test_first_weights(kind: type[Module], arguments: tuple[int, ...], width: int, std: float) -> None:
    # BERT's standard deviation at BERT's width, and at a quarter of it twice that.
    model = make(kind, *arguments, d_model=width, num_layers=1, d_ff=128, vocab_size=200)
    for name, parameter in model.named_parameters():
        values = parameter.numpy()
        if values.ndim == 2:
            # Within five standard errors: the smallest matrix has 384 numbers.
            assert values.std() == pytest.approx(std, rel=5 / math.sqrt(2 * values.size)), name
        else:
            assert (values == (1.0 if name.endswith("norm.weight") else 0.0)).all(), name


# ---------------------------------------------------------------------------------------------------------- forward


def test_the_encoding_from_embeddings_norm_and_blocks() -> None:
    model = make(spread=True)
    ids, segments = random_ids(2, 5), np.array([[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]])
    p = {name: value.numpy().astype(np.float64) for name, value in model.named_parameters()}
    x = p["token_embedding.weight"][ids] + p["position_embedding.weight"][:5] + p["segment_embedding.weight"][segments]
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-12) * p["norm.weight"] + p["norm.bias"]
    y = tt.tensor(x.astype(np.float32))
    for block in model.encoder.blocks:
        y = block.attention_norm(y + block.attention(y))
        y = block.feed_forward_norm(y + block.feed_forward(y))
    out = model(tt.tensor(ids), tt.tensor(segments))
    assert out.shape == (2, 5, 16)
    np.testing.assert_allclose(out.numpy(), y.numpy(), rtol=1e-4, atol=1e-5)
    pooled = np.tanh(out.numpy()[:, 0] @ p["pooler.weight"].T + p["pooler.bias"])
    np.testing.assert_allclose(model.pool(out).numpy(), pooled, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_choices_are_those_of_the_blocks(norm_first: bool) -> None:
    model = make(norm_first=norm_first, spread=True)
    ids = tt.tensor(random_ids(2, 5))
    y = model.norm(model.token_embedding(ids) + model.position_embedding(5) + model.segment_embedding(tt.zeros_like(ids)))
    for block in model.encoder.blocks:
        if norm_first:
            y = y + block.attention(block.attention_norm(y))
            y = y + block.feed_forward(block.feed_forward_norm(y))
        else:
            y = block.attention_norm(y + block.attention(y))
            y = block.feed_forward_norm(y + block.feed_forward(y))
    expected = model.encoder.norm(y) if norm_first else y
    np.testing.assert_allclose(model(ids).numpy(), expected.numpy(), rtol=1e-5, atol=1e-5)


def test_embeddings_are_scaled_to_the_size_of_sinusoidal_positions() -> None:
    model = make(positions="sinusoidal", num_segments=2)
    seen: list[tt.Tensor] = []
    model.norm.forward = lambda x: seen.append(x) or x
    ids, segments = random_ids(2, 20), np.arange(20) % 2 + np.zeros((2, 1), int)  # longer than 8: there is no longest text
    model(tt.tensor(ids), tt.tensor(segments))
    places = np.arange(20)[:, None] / 10000 ** (np.arange(8) / 8)
    table = np.stack([np.sin(places), np.cos(places)], -1).reshape(20, 16)
    tokens = model.token_embedding.weight.numpy()[ids] + model.segment_embedding.weight.numpy()[segments]
    np.testing.assert_allclose(seen[0].numpy(), 4.0 * tokens + table, rtol=1e-5, atol=1e-5)


def test_rotary_positions_are_distances_alone() -> None:
    model = make(positions="rotary", query_key_norm=True, spread=True)
    for block in model.encoder.blocks:
        block.attention.query_norm.weight.data[...] = 16.0  # so that attention is sharp, and places matter
    ids = random_ids(1, 5)
    out = model(tt.tensor(ids)).numpy()
    later = np.concatenate([np.full((1, 3), model.config.pad), ids], axis=1)  # the same tokens at other places, behind padding
    np.testing.assert_allclose(model(tt.tensor(later)).numpy()[:, 3:], out, rtol=1e-4, atol=1e-5)
    assert np.abs(model(tt.tensor(ids[:, ::-1].copy())).numpy()[:, ::-1] - out).max() > 1e-2


def test_without_segments_all_is_the_first_one() -> None:
    model = make(spread=True)
    ids = tt.tensor(random_ids(2, 5))
    out = model(ids).numpy()
    assert model(ids, tt.zeros((2, 5), "int64")).numpy().tobytes() == out.tobytes()
    assert np.abs(model(ids, tt.ones((2, 5), "int64")).numpy() - out).max() > 1e-2


def test_every_token_reaches_every_other() -> None:
    model = make(spread=True)
    ids = random_ids(1, 6)
    before = model(tt.tensor(ids)).numpy()
    for place in range(6):
        changed = ids.copy()
        changed[:, place] = changed[:, place] % 12 + 1
        after = model(tt.tensor(changed)).numpy()
        assert (np.abs(after - before).max(axis=(0, 2)) > 0).all(), place


def test_a_padded_batch_gives_each_text_what_it_gets_alone() -> None:
    ids = random_ids(3, 7)
    lengths = [7, 4, 1]
    for i, length in enumerate(lengths):
        ids[i, length:] = PAD
    encoder, masked, classifier = (
        make(*kind, spread=True) for kind in ((Bert,), (BertForMaskedLM,), (BertForClassification, 3))
    )
    for i, length in enumerate(lengths):
        alone = tt.tensor(ids[i : i + 1, :length])
        for model in (encoder, masked):
            expected = model(alone).numpy()[0]
            np.testing.assert_allclose(model(tt.tensor(ids)).numpy()[i, :length], expected, rtol=1e-5, atol=1e-5)
        expected = classifier(alone).numpy()[0]
        np.testing.assert_allclose(classifier(tt.tensor(ids)).numpy()[i], expected, rtol=1e-5, atol=1e-5)


def test_a_text_of_nothing_but_padding_is_finite() -> None:
    model = make(BertForMaskedLM)
    ids = random_ids(2, 4)
    ids[1] = PAD
    out = model(tt.tensor(ids))
    assert np.isfinite(out.numpy()).all()
    tt.cross_entropy(out, tt.tensor(random_ids(2, 4))).backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            assert np.isfinite(parameter.grad.numpy()).all(), name


def test_masked_lm_head() -> None:
    model = make(BertForMaskedLM, spread=True)
    ids = tt.tensor(random_ids(2, 5))
    p = {name: value.numpy().astype(np.float64) for name, value in model.named_parameters()}
    x = model.bert(ids).numpy() @ p["transform.weight"].T + p["transform.bias"]
    x = x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-12) * p["norm.weight"] + p["norm.bias"]
    expected = x @ p["bert.token_embedding.weight"].T + p["bias"]
    np.testing.assert_allclose(model(ids).numpy(), expected, rtol=1e-4, atol=1e-4)


def test_the_head_at_some_places_only() -> None:
    # The logits and every gradient are those of the head at all places.
    ids = tt.tensor(random_ids(3, 6))
    places = np.random.default_rng(1).random((3, 6)) < 0.4
    cotangent = tt.tensor(np.random.default_rng(2).standard_normal((places.sum(), 13)).astype(np.float32))
    some, whole = make(BertForMaskedLM, spread=True), make(BertForMaskedLM, spread=True)
    logits = some(ids, places=tt.tensor(places))
    expected = whole(ids)[tt.tensor(places)]
    assert logits.shape == (places.sum(), 13)
    np.testing.assert_allclose(logits.numpy(), expected.numpy(), rtol=1e-5, atol=1e-5)
    (logits * cotangent).sum().backward()
    (expected * cotangent).sum().backward()
    for (name, one), two in zip(some.named_parameters(), whole.parameters()):
        assert (one.grad is None) == (two.grad is None), name
        if one.grad is not None:
            np.testing.assert_allclose(one.grad.numpy(), two.grad.numpy(), rtol=1e-4, atol=1e-4, err_msg=name)


def test_dropout_acts_in_training_only() -> None:
    ids = tt.tensor(random_ids(2, 5))
    for kind in ((BertForMaskedLM,), (BertForClassification, 3)):
        model = make(*kind, dropout=0.5)
        assert np.abs(model(ids).numpy() - model(ids).numpy()).max() > 0
        assert model.eval()(ids).numpy().tobytes() == make(*kind)(ids).numpy().tobytes()


# ---------------------------------------------------------------------------------------------------------- learning


def check_that_it_learns_targets(model: Module, ids: np.ndarray, targets: np.ndarray) -> None:
    check_that_it_learns(model, lambda: tt.cross_entropy(model(tt.tensor(ids)), tt.tensor(targets), ignore_index=-100), lr=5e-3)


def test_fills_in_masked_tokens_of_one_batch() -> None:
    texts = random_ids(4, 7)
    texts[0, 5:] = PAD
    places = np.arange(4) + 1  # one masked token a text
    ids, targets = texts.copy(), np.full((4, 7), -100)
    targets[np.arange(4), places] = texts[np.arange(4), places]
    ids[np.arange(4), places] = 12
    check_that_it_learns_targets(make(BertForMaskedLM), ids, targets)


def test_classifies_one_batch() -> None:
    ids = random_ids(6, 7)
    ids[:, 0] = 1  # as [CLS]: what stands for the text must come from the rest of it
    check_that_it_learns_targets(make(BertForClassification, 3, spread=True), ids, np.arange(6) % 3)


# ---------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 5}, "num_heads=5 does not divide d_model=768"),
        ({"num_heads": 0}, "num_heads must be at least 1, got 0"),
        ({"vocab_size": 0}, "vocab_size must be at least 1, got 0"),
        ({"num_segments": -1}, "num_segments must be at least 0, got -1"),
        ({"max_length": 0}, "max_length must be at least 1, got 0"),
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"d_ff": 0}, "d_ff must be at least 1, got 0"),
        ({"num_heads": 2.0}, "num_heads must be an integer, got 2.0"),
        ({"d_model": True}, "d_model must be an integer, got True"),
        ({"dropout": math.inf}, "dropout must be a finite number, got inf"),
        ({"dropout": "0.1"}, "dropout must be a finite number, got '0.1'"),
        ({"dropout": math.nan}, "dropout must be a finite number, got nan"),
        ({"dropout": 1.0}, "dropout must be at least 0 and less than 1, got 1.0"),
        ({"positions": "relative"}, "positions must be one of learned, sinusoidal, sinusoidal_halves, rotary, got 'relative'"),
        ({"d_model": 12, "num_heads": 4, "positions": "rotary"}, "d_model / num_heads must be even for rotary positions"),
    ],
)
def test_settings_that_make_no_model(changes: dict[str, float], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        BertConfig(**changes)
    assert message in str(caught.value)
    assert next(iter(changes)) in caught.value.names


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary"])
def test_parameters_are_counted_without_making_the_model(positions: str, norm_first: bool) -> None:
    model = make(positions=positions, norm_first=norm_first, query_key_norm=norm_first)
    assert model.config.num_parameters() == model.num_parameters()


@pytest.mark.timeout(10)
@pytest.mark.parametrize("name", ["d_model", "d_ff", "num_layers", "max_length", "vocab_size"])
def test_a_model_that_cannot_fit_in_memory_is_refused_before_it_is_made(name: str) -> None:
    config = BertConfig(**{"num_heads": 1, name: 10**18})
    for make_model in (Bert, BertForMaskedLM, lambda config: BertForClassification(config, 2)):
        with pytest.raises(SettingError, match=r"a model of this size needs .* there are .*: choose a smaller d_model"):
            make_model(config)


def test_a_text_that_is_too_long() -> None:
    with pytest.raises(ValueError, match="a text of 9 tokens is too long for 8 learned positions"):
        make()(tt.tensor(random_ids(1, 9)))


def test_ids_that_are_no_batch() -> None:
    with pytest.raises(ValueError, match=r"ids must be \(batch, length\), got \(4,\): .* ids\[None\]"):
        make()(tt.tensor(random_ids(4)))


# ---------------------------------------------------------------------------------------------------------- other BERTs


def test_a_mask_replaces_that_of_the_padding() -> None:
    model = make(spread=True)
    ids = random_ids(2, 6)
    padded = ids.copy()
    padded[:, 4:] = PAD
    seen = tt.tensor(padded != PAD)
    np.testing.assert_array_equal(model(tt.tensor(padded), mask=seen).numpy(), model(tt.tensor(padded)).numpy())
    out = model(tt.tensor(ids), mask=seen).numpy()
    changed = ids.copy()
    changed[:, 4:] = ids[:, 4:] % 12 + 1
    np.testing.assert_array_equal(model(tt.tensor(changed), mask=seen).numpy()[:, :4], out[:, :4])
    assert np.abs(model(tt.tensor(ids)).numpy()[:, :4] - out[:, :4]).max() > 1e-3
    everything = tt.tensor(np.ones((2, 6), bool))  # padding is a token like others then
    assert np.abs(model(tt.tensor(padded), mask=everything).numpy() - model(tt.tensor(padded)).numpy())[:, :4].max() > 1e-3


def test_the_head_for_masks_takes_a_mask_too() -> None:
    model = make(BertForMaskedLM, spread=True)
    ids, seen = tt.tensor(random_ids(1, 6)), tt.tensor(np.arange(6)[None] < 4)
    expected = model(ids, mask=seen).numpy()
    places = (np.array([0, 0]), np.array([1, 3]))
    found = model(ids, places=tuple(tt.tensor(place).data for place in places), mask=seen).numpy()
    np.testing.assert_allclose(found, expected[places], rtol=1e-5, atol=1e-6)
    assert np.abs(model(ids).numpy() - expected).max() > 1e-3


@pytest.mark.parametrize("activation", ["relu", "gelu_tanh", "silu"])
def test_the_activation_is_that_of_blocks_and_head(activation: str) -> None:
    usual, other = make(BertForMaskedLM, spread=True), make(BertForMaskedLM, spread=True, activation=activation)
    ids = tt.tensor(random_ids(1, 6))
    assert other.bert.encoder.blocks[0].feed_forward.activation == activation
    assert np.abs(other.bert(ids).numpy() - usual.bert(ids).numpy()).max() > 1e-4
    x = tt.tensor(np.random.default_rng(0).standard_normal((1, 6, 16)).astype(np.float32))
    apply = {"relu": tt.relu, "gelu_tanh": lambda y: tt.gelu(y, approximate="tanh"), "silu": tt.silu}[activation]
    expected = tt.linear(other.norm(apply(other.transform(x))), other.bert.token_embedding.weight, other.bias)
    np.testing.assert_array_equal(other.logits_of(x).numpy(), expected.numpy())
    np.testing.assert_array_equal(other(ids).numpy(), other.logits_of(other.bert(ids)).numpy())


def test_the_epsilon_of_all_norms_in_the_body() -> None:
    model = make(norm_eps=0.5)
    assert {module.eps for module in model.modules() if hasattr(module, "eps")} == {0.5}


def test_an_activation_that_the_head_cannot_have() -> None:
    plain = ", ".join(name for name, activation in ACTIVATIONS.items() if not activation.is_gated)
    with pytest.raises(SettingError, match=f"activation must be one of {plain}, got 'swiglu'"):
        make(activation="swiglu")


def test_positions_that_padding_does_not_move() -> None:
    model = make(spread=True, skip_padding=True, pad=2).eval()
    ids = random_ids(1, 5)
    ids[ids == 2] = 3
    padded = np.insert(ids, [0, 0, 3], 2, axis=1)  # before the text, and in it
    found = model(tt.tensor(padded)).numpy()[:, padded[0] != 2]
    np.testing.assert_allclose(found, model(tt.tensor(ids)).numpy(), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="ids must have a length of at most 8, got 9: crop them"):
        model(tt.tensor(random_ids(1, 9)))


def test_relative_positions_are_numbers_of_the_distance() -> None:
    model = make(spread=True, relative_ranges=32)
    table = model.relative_positions.weight.numpy()
    added = model.relative_positions(40).numpy()
    assert added.shape == (1, 2, 40, 40)
    for query, key, row in ((5, 5, 0), (5, 4, 1), (9, 2, 7), (5, 6, 17), (2, 9, 23), (30, 22, 8), (39, 23, 10), (0, 39, 28)):
        np.testing.assert_array_equal(added[0, :, query, key], table[row])
    with pytest.raises(ValueError, match="num_embeddings must be from 4 to 256, got 3"):
        make(relative_ranges=3)


def test_heads_and_models_that_do_not_fit() -> None:
    for arguments in ((0,), (2, ["a"])):
        with pytest.raises(SettingError, match="num_classes must be positive and match labels"):
            make(BertForTokenClassification, *arguments)
    with pytest.raises(SettingError, match="pooler must be tanh or relu to classify texts, got ''"):
        make(BertForClassification, 2, pooler="")
    with pytest.raises(ValueError, match="this model has no pooler: use the token vectors"):
        make(pooler="").pool(tt.zeros((1, 3, 16)))
    with pytest.raises(ValueError, match="this model has no segments: omit segments"):
        make(num_segments=0)(tt.tensor([[1]]), tt.tensor([[0]]))
    for changes in ({"positions": "rotary"}, {"pad": -1}):
        with pytest.raises(SettingError, match="skip_padding needs learned positions and a pad of at least 0"):
            make(skip_padding=True, **changes)


@pytest.mark.parametrize("kind", [BertForTokenClassification, BertForQuestionAnswering, BertForNextSentence])
def test_the_other_heads(kind: Any) -> None:
    model = make(kind, *([3] if kind is BertForTokenClassification else []), spread=True).eval()
    ids, segments = tt.tensor(random_ids(2, 5)), tt.tensor([[0, 0, 1, 1, 1]] * 2)
    encoded = model.bert(ids, segments)
    read = model.bert.pool(encoded) if kind is BertForNextSentence else encoded
    expected = read.numpy() @ model.output.weight.numpy().T + model.output.bias.numpy()
    np.testing.assert_allclose(model(ids, segments).numpy(), expected, rtol=1e-4, atol=1e-5)
    assert len(model.labels) == expected.shape[-1]
