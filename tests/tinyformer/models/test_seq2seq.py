"""The recurrent encoder-decoders: their size, what each token can see, padding, attention, teacher forcing, that they learn."""

from __future__ import annotations

import copy
import math
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from causal import check_that_all_is_seen, check_that_the_past_is_unchanged
from trainings import FirstWords, check_that_it_learns, check_that_it_learns_and_resumes

import tinytensor as tt
from tinyformer.common.errors import SettingError
from tinyformer.data.pairs import PairBatch
from tinyformer.models.attention import recording_attention
from tinyformer.models.seq2seq import (
    AdditiveAttention,
    AdditiveAttentionModel,
    AttentionState,
    ContextVectorModel,
    EncoderDecoder,
    Maxout,
    Seq2SeqConfig,
    reversed_words,
)
from tinyformer.training.config import TrainingConfig
from tinyformer.training.evaluation import evaluate
from tinyformer.training.losses import translation_loss
from tinyformer.training.run_folder import RunFolder, load_weights
from tinyformer.training.trainer import Trainer
from tinytensor import parallel

PAD, START, END = 0, 1, 2
SMALL = {
    "source_vocab_size": 13,
    "target_vocab_size": 11,
    "attention": False,
    "d_model": 8,
    "d_embedding": 6,
    "num_layers": 1,
    "dropout": 0.0,
}
CHOICES: list[dict[str, Any]] = [
    {"cell": "lstm"},
    {"cell": "gru", "num_layers": 2},
    {"cell": "rnn", "reverse_source": True},
    {"cell": "lstm", "num_layers": 2, "attention": True},
    {"cell": "gru", "attention": True},
    {"cell": "rnn", "attention": True, "num_layers": 2},
]
each_choice = pytest.mark.parametrize("choices", CHOICES, ids=str)
with_and_without_attention = pytest.mark.parametrize("attention", [False, True], ids=["context vector", "attention"])


def make(seed: int = 0, **changes: Any) -> EncoderDecoder:
    tt.seed(seed)
    config = Seq2SeqConfig(**{**SMALL, **changes})
    return AdditiveAttentionModel(config) if config.attention else ContextVectorModel(config)


def lively(model: EncoderDecoder, seed: int = 0) -> EncoderDecoder:
    """Larger weights, with which the outputs differ clearly, as a trained model's do."""
    rng = np.random.default_rng(seed)
    for p in model.parameters():
        p.assign((0.5 * rng.standard_normal(p.shape)).astype("float32"))
    return model


def random_ids(*shape: int, seed: int = 0) -> np.ndarray:
    """Ids of words: neither padding nor the start nor the end."""
    return np.random.default_rng(seed).integers(3, 11, shape)


def padded_source() -> tuple[np.ndarray, list[int]]:
    """Four sources that end with the end token, and their lengths."""
    source, lengths = random_ids(4, 6), [6, 3, 1, 2]
    for i, length in enumerate(lengths):
        source[i, length - 1], source[i, length:] = END, PAD
    return source, lengths


def gradients(model: EncoderDecoder) -> dict[str, np.ndarray]:
    return {name: p.grad.numpy().copy() for name, p in model.named_parameters()}


def loss_of(model: EncoderDecoder, source: np.ndarray, target: np.ndarray, **options: Any) -> tt.Tensor:
    """The loss over each next token of ``target`` that is not padding."""
    return model.loss(tt.tensor(source), tt.tensor(target[:, :-1]), tt.tensor(target[:, 1:]), PAD, **options)


# ---------------------------------------------------------------------------------------------------------- size


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attention": True},
        {"reverse_source": True},
        {"share_embeddings": True, "source_vocab_size": 11},
        {"share_embeddings": True, "source_vocab_size": 11, "attention": True},
        {"d_model": 5, "d_embedding": 9, "attention": True},
    ],
    ids=str,
)
def test_parameters_are_counted_without_making_the_model(cell: str, num_layers: int, changes: dict[str, Any]) -> None:
    model = make(cell=cell, num_layers=num_layers, **changes)
    assert model.config.num_parameters() == model.num_parameters()


def test_the_parameters_of_bahdanaus_model_on_paper() -> None:
    # RNNsearch-50 without its output table's biases: 30,000 words, 620 and 1000 wide, a maxout of 500 in the paper and of the
    # embedding's width here.
    config = Seq2SeqConfig(30_000, 30_000, attention=True, cell="gru", d_model=1000, d_embedding=620, num_layers=1)
    tables = 3 * 30_000 * 620
    encoder = 2 * 3 * (620 * 1000 + 1000 * 1000 + 2 * 1000)
    decoder = 3 * ((620 + 2000) * 1000 + 1000 * 1000 + 2 * 1000)
    attention = 1000 * 1000 + 2000 * 1000 + 1000
    first = 1000 * 1000 + 1000
    maxout = (1000 + 2000 + 620) * 1240 + 1240
    assert config.num_parameters() == tables + encoder + decoder + attention + first + maxout


# ---------------------------------------------------------------------------------------------------------- forward


@each_choice
def test_logits_for_every_target_position(choices: dict[str, Any]) -> None:
    logits = make(**choices)(tt.tensor(random_ids(3, 5)), tt.tensor(random_ids(3, 4)))
    assert logits.shape == (3, 4, 11)
    assert logits.dtype == np.float32


@each_choice
def test_the_loss_is_the_cross_entropy_of_the_logits(choices: dict[str, Any]) -> None:
    model, (source, _) = make(**choices), padded_source()
    target = random_ids(4, 5, seed=1)
    target[1, 3:] = PAD
    logits, outputs = model(tt.tensor(source), tt.tensor(target[:, :-1])), tt.tensor(target[:, 1:])
    for options in ({}, {"label_smoothing": 0.2}, {"reduction": "sum"}):
        expected = tt.cross_entropy(logits, outputs, ignore_index=PAD, **options)
        assert float(loss_of(model, source, target, **options)) == pytest.approx(float(expected), rel=1e-6)


@each_choice
def test_a_changed_target_token_leaves_every_earlier_logit_bit_identical(choices: dict[str, Any]) -> None:
    model, source = make(**choices), tt.tensor(random_ids(2, 5))
    check_that_the_past_is_unchanged(lambda target: model(source, target), random_ids(2, 6, seed=1))


@each_choice
def test_every_source_token_reaches_every_logit(choices: dict[str, Any]) -> None:
    model, target = lively(make(**choices)), tt.tensor(random_ids(1, 4, seed=1))
    check_that_all_is_seen(lambda source: model(source, target), random_ids(1, 5))


@each_choice
def test_more_padding_changes_nothing(choices: dict[str, Any]) -> None:
    # A product over all places at once has more rows then, which some BLAS kernels add up in another order: hence a tolerance.
    model, (source, _) = lively(make(**choices)), padded_source()
    target = random_ids(4, 5, seed=1)
    expected = model(tt.tensor(source), tt.tensor(target)).numpy()
    longer = np.pad(source, ((0, 0), (0, 4)), constant_values=PAD)
    found = model(tt.tensor(longer), tt.tensor(target)).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    after = np.pad(target, ((0, 0), (0, 3)), constant_values=PAD)
    padded = model(tt.tensor(source), tt.tensor(after)).numpy()[:, :5]
    np.testing.assert_allclose(padded, expected, rtol=1e-5, atol=1e-5)
    after[:, 5:] = random_ids(4, 3, seed=2)  # the same shapes, so the same bits
    assert model(tt.tensor(source), tt.tensor(after)).numpy()[:, :5].tobytes() == padded.tobytes()


@each_choice
def test_padding_gets_no_gradient(choices: dict[str, Any]) -> None:
    model, (source, _) = lively(make(**choices, source_pad=12)), padded_source()
    source[source == PAD] = 12
    target = random_ids(4, 5, seed=1)
    loss_of(model, source, target).backward()
    gradient = np.abs(gradients(model)["source_embedding.weight"]).max(1)
    assert set(np.flatnonzero(gradient)) == set(np.unique(source)) - {12}


@each_choice
def test_a_padded_batch_gives_each_sentence_what_it_gets_alone(choices: dict[str, Any]) -> None:
    model, (source, lengths) = lively(make(**choices)), padded_source()
    target = random_ids(4, 5, seed=1)
    target[1, 2:], target[3, 4:] = PAD, PAD
    together = model(tt.tensor(source), tt.tensor(target)).numpy()
    for i, (s, t) in enumerate(zip(lengths, (5, 2, 5, 4))):
        alone = model(tt.tensor(source[i : i + 1, :s]), tt.tensor(target[i : i + 1, :t])).numpy()
        np.testing.assert_allclose(together[i, :t], alone[0], rtol=1e-4, atol=1e-5)


@each_choice
def test_a_source_of_nothing_but_padding_is_finite(choices: dict[str, Any]) -> None:
    model = make(**choices)
    source, target = random_ids(2, 4), random_ids(2, 5, seed=1)
    source[1] = PAD
    loss_of(model, source, target).backward()
    assert np.isfinite(model(tt.tensor(source), tt.tensor(target)).numpy()).all()
    for name, gradient in gradients(model).items():
        assert np.isfinite(gradient).all(), name


@each_choice
@pytest.mark.parametrize("steps", [[6], [1] * 6, [2, 1, 3]], ids=str)
def test_in_parts_the_logits_are_the_same(choices: dict[str, Any], steps: list[int]) -> None:
    model, (source, _) = lively(make(**choices)), padded_source()
    target = random_ids(4, 6, seed=1)
    target[0, 2] = PAD  # a token that was written is one of the text, whichever it is
    with tt.no_grad():
        expected = model(tt.tensor(source), tt.tensor(target)).numpy()
        state, place = model.encode(tt.tensor(source)), 0
        for count in steps:
            logits, state = model.step(tt.tensor(target[:, place : place + count]), state)
            place += count
            np.testing.assert_allclose(logits.numpy(), expected[:, place - 1], rtol=1e-4, atol=1e-5)


def test_a_step_needs_the_state_of_a_source() -> None:
    for attention in (False, True):
        with pytest.raises(ValueError, match=r"the decoder needs a state to start from: pass model.encode\(source\)"):
            make(attention=attention).step(tt.tensor([[START]]), None)


@each_choice
def test_rows_of_a_state(choices: dict[str, Any]) -> None:
    model, (source, _) = lively(make(**choices)), padded_source()
    state = model.encode(tt.tensor(source))
    rows = np.array([2, 0, 0])
    selected = state.select(rows)
    assert (state.batch_size, selected.batch_size) == (4, 3)
    assert type(selected) is type(state)
    expected, _ = model.step(tt.tensor([[3], [4], [5], [6]]), state)
    found, after = model.step(tt.tensor([[5], [3], [7]]), selected)
    np.testing.assert_allclose(found.numpy()[:2], expected.numpy()[[2, 0]], rtol=1e-5, atol=1e-5)
    assert after.batch_size == 3
    assert np.abs(found.numpy()[2] - found.numpy()[1]).max() > 1e-3  # rows of one source go on apart


@each_choice
def test_no_gradient_flows_back_through_a_detached_state(choices: dict[str, Any]) -> None:
    model, (source, _) = make(**choices), padded_source()
    state = model.encode(tt.tensor(source))
    logits, _ = model.step(tt.tensor(random_ids(4, 3)), state.detached())
    logits.sum().backward()
    assert model.source_embedding.weight.grad is None
    assert {name for name, p in model.named_parameters() if p.grad is None and name.startswith("encoder")} == {
        name for name, _ in model.named_parameters() if name.startswith("encoder")
    }
    logits, _ = model.step(tt.tensor(random_ids(4, 3)), state)
    logits.sum().backward()
    assert np.abs(model.source_embedding.weight.grad.numpy()).max() > 0


def test_the_base_encodes_and_decodes_nothing() -> None:
    model = EncoderDecoder(Seq2SeqConfig(**SMALL), context=0)
    with pytest.raises(TypeError, match="EncoderDecoder has no encoder: use ContextVectorModel or AdditiveAttentionModel"):
        model.encode(tt.tensor([[3]]))
    with pytest.raises(TypeError, match="EncoderDecoder has no decoder"):
        model._read(tt.zeros((1, 1, 6)), make().encode(tt.tensor([[3]])))


@with_and_without_attention
def test_dropout_acts_in_training_only(attention: bool) -> None:
    source, target = tt.tensor(random_ids(2, 5)), tt.tensor(random_ids(2, 4, seed=1))
    model = make(dropout=0.5, attention=attention, num_layers=2)
    assert np.abs(model(source, target).numpy() - model(source, target).numpy()).max() > 0
    model.eval()
    plain = make(attention=attention, num_layers=2)
    assert model(source, target).numpy().tobytes() == plain(source, target).numpy().tobytes()


@with_and_without_attention
def test_shared_embeddings_learn_from_both_languages(attention: bool) -> None:
    model = make(source_vocab_size=11, share_embeddings=True, attention=attention)
    assert model.source_embedding is model.target_embedding
    loss_of(model, np.array([[3, 4]]), np.array([[5, 6, 7]])).backward()
    gradient = np.abs(model.source_embedding.weight.grad.numpy()).max(axis=1)
    assert list(np.flatnonzero(gradient)) == [3, 4, 5, 6]
    apart = make(source_vocab_size=11, attention=attention)
    assert apart.source_embedding is not apart.target_embedding


def test_maxout_takes_the_larger_of_each_pair() -> None:
    tt.seed(0)
    layer = Maxout(3, 4)
    x = np.random.default_rng(0).standard_normal((2, 5, 3)).astype("float32")
    weight, bias = layer.linear.weight.numpy(), layer.linear.bias.numpy()
    both = [x @ weight[i::2].T + bias[i::2] for i in (0, 1)]
    np.testing.assert_allclose(layer(tt.tensor(x)).numpy(), np.maximum(*both), rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------------------------------------------- reversal


def test_words_are_reversed_but_neither_the_end_nor_the_padding() -> None:
    rng = np.random.default_rng(0)
    for length in range(1, 7):
        rows = [[*rng.integers(3, 11, words).tolist(), END] for words in rng.integers(0, length, 5)]
        source = np.array([row + [PAD] * (length - len(row)) for row in rows])
        expected = [[*reversed(row[:-1]), END] + [PAD] * (length - len(row)) for row in rows]
        found = reversed_words(tt.tensor(source), tt.tensor([len(row) for row in rows]))
        assert found.tolist() == expected
    assert reversed_words(tt.tensor([[PAD, PAD]]), tt.tensor([0])).tolist() == [[PAD, PAD]]


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_a_reversed_source_is_the_source_reversed(cell: str) -> None:
    source, lengths = padded_source()
    by_hand = source.copy()
    for i, length in enumerate(lengths):
        by_hand[i, : length - 1] = source[i, : length - 1][::-1]
    assert (by_hand != source).any()
    target = tt.tensor(random_ids(4, 3))
    reading_back, reading_on = make(cell=cell, reverse_source=True), make(cell=cell)
    found, expected = reading_back(tt.tensor(source), target), reading_on(tt.tensor(by_hand), target)
    assert found.numpy().tobytes() == expected.numpy().tobytes()


# ---------------------------------------------------------------------------------------------------------- attention


def test_additive_attention_in_numpy() -> None:
    tt.seed(0)
    rng = np.random.default_rng(0)
    layer = AdditiveAttention(4, 6, 5)
    query, memory = (rng.standard_normal(shape).astype("float32") for shape in ((3, 4), (3, 7, 6)))
    mask = np.array([[True] * 7, [True] * 2 + [False] * 5, [False] * 7])
    w, u, v = (part.weight.numpy().astype("float64") for part in (layer.query, layer.key, layer.score))
    scores = np.where(mask, np.tanh((query @ w.T)[:, None] + memory @ u.T) @ v[0], -np.inf)
    with np.errstate(invalid="ignore"):
        weights = np.nan_to_num(np.exp(scores - scores.max(1, keepdims=True)))
        weights = np.nan_to_num(weights / weights.sum(1, keepdims=True))
    expected = (weights[:, :, None] * memory).sum(1)
    with recording_attention(layer) as recorded:
        found = layer(tt.tensor(query), layer.key(tt.tensor(memory)), tt.tensor(memory), tt.tensor(mask))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(recorded[""][0].numpy()[:, 0, 0], weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_the_weights_are_a_mean_over_the_tokens(cell: str) -> None:
    model, (source, lengths) = lively(make(cell=cell, attention=True, num_layers=2)), padded_source()
    target = tt.tensor(random_ids(4, 5, seed=1))
    with recording_attention(model) as recorded:
        model(tt.tensor(source), target)
    (weights,) = recorded.values()
    assert list(recorded) == ["cross_attention"]
    assert [w.shape for w in weights] == [(4, 1, 1, 6)] * 5  # one for each target word
    together = np.concatenate([w.numpy() for w in weights], -2)[:, 0]
    for row, length in zip(together, lengths):
        assert (row[:, length:] == 0).all()
        assert (row[:, :length] > 0).all()
        np.testing.assert_allclose(row.sum(-1), 1.0, rtol=1e-6)
    assert np.abs(together[0, 1:] - together[0, :-1]).max() > 1e-3  # each word looks elsewhere


# ---------------------------------------------------------------------------------------------------- teacher forcing


def bits_of_loss(model: EncoderDecoder, source: np.ndarray, target: np.ndarray, seed: int = 5) -> float:
    tt.seed(seed)
    return float(loss_of(model, source, target))


@each_choice
def test_without_teacher_forcing_the_model_reads_only_its_own_guesses(choices: dict[str, Any]) -> None:
    model, (source, _) = lively(make(**choices, teacher_forcing=0.0), seed=13), padded_source()
    inputs, outputs = random_ids(4, 6, seed=1), tt.tensor(random_ids(4, 6, seed=2))
    inputs[:, 0] = START
    losses = set()
    for seed in range(4):  # other inputs after the start change nothing
        inputs[:, 1:] = random_ids(4, 5, seed=seed)
        losses.add(float(model.loss(tt.tensor(source), tt.tensor(inputs), outputs, PAD)))
    assert len(losses) == 1

    # What it reads is what greedy decoding writes.
    with tt.no_grad():
        ids = np.full((4, 1), START)
        state = model.encode(tt.tensor(source))
        logits, state = model.step(tt.tensor(ids), state)
        for _ in range(5):
            ids = np.concatenate([ids, logits.numpy().argmax(-1)[:, None]], 1)
            logits, state = model.step(tt.tensor(ids[:, -1:]), state)
    assert len(np.unique(ids)) > 2
    model.eval()  # an evaluated model reads what it is given
    forced = float(model.loss(tt.tensor(source), tt.tensor(ids), outputs, PAD))
    assert losses.pop() == pytest.approx(forced, rel=1e-5)
    assert float(model.loss(tt.tensor(source), tt.tensor(inputs), outputs, PAD)) != pytest.approx(forced, rel=1e-3)


@each_choice
def test_with_teacher_forcing_the_targets_are_read(choices: dict[str, Any]) -> None:
    model, (source, _) = lively(make(**choices)), padded_source()
    target = random_ids(4, 6, seed=1)
    state = tt.random.get_state()
    expected = float(loss_of(model, source, target))
    assert tt.random.get_state() == state  # nothing is left to chance
    assert float(loss_of(model.eval(), source, target)) == expected
    model.train()
    other = target.copy()
    other[:, 2] = 13 - other[:, 2]
    assert float(loss_of(model, source, other)) != expected


@with_and_without_attention
def test_teacher_forcing_in_between_is_by_chance_and_repeats(attention: bool) -> None:
    model, (source, _) = lively(make(attention=attention, teacher_forcing=0.5)), padded_source()
    target = random_ids(4, 6, seed=1)
    drawn = [bits_of_loss(model, source, target, seed) for seed in range(6)]
    assert len(set(drawn)) > 3
    assert drawn == [bits_of_loss(model, source, target, seed) for seed in range(6)]
    # Each row of a batch is drawn for itself: with one draw for all, all rows would read the targets, or none of one step.
    losses = {}
    for forcing in (0.0, 0.5, 1.0):
        model.config = Seq2SeqConfig(**{**SMALL, "attention": attention, "teacher_forcing": forcing})
        losses[forcing] = [
            float(loss_of(model, np.repeat(source[:1], 64, 0), np.repeat(target[:1, :3], 64, 0))) for _ in range(3)
        ]
    low, high = sorted((losses[0.0][0], losses[1.0][0]))
    assert all(low < loss < high for loss in losses[0.5])
    share = np.mean([(loss - losses[0.0][0]) / (losses[1.0][0] - losses[0.0][0]) for loss in losses[0.5]])
    assert share == pytest.approx(0.5, abs=0.15)


@with_and_without_attention
def test_guesses_get_gradients_and_carry_none(attention: bool) -> None:
    model, (source, _) = lively(make(attention=attention, teacher_forcing=0.0)), padded_source()
    target = random_ids(4, 4, seed=1)
    target[:, 0] = START
    loss_of(model, source, target).backward()
    found = gradients(model)
    for name, gradient in found.items():
        assert np.abs(gradient).max() > 0, name
    # As if the guesses had been given.
    with tt.no_grad():
        ids, state = np.full((4, 1), START), model.encode(tt.tensor(source))
        for _ in range(2):
            logits, state = model.step(tt.tensor(ids[:, -1:]), state)
            ids = np.concatenate([ids, logits.numpy().argmax(-1)[:, None]], 1)
    model.zero_grad()
    model.eval()
    model.loss(tt.tensor(source), tt.tensor(ids), tt.tensor(target[:, 1:]), PAD).backward()
    for name, gradient in gradients(model).items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-3, atol=1e-5, err_msg=name)


@with_and_without_attention
def test_parallel_shards_repeat_their_guesses_and_dropout(attention: bool) -> None:
    source, target = np.concatenate([padded_source()[0]] * 2), random_ids(8, 6, seed=1)
    batch = PairBatch(tt.tensor(source), tt.tensor(target[:, :-1]), tt.tensor(target[:, 1:]), 40)
    found = []
    for _ in range(3):
        model = lively(make(attention=attention, teacher_forcing=0.5, dropout=0.3, num_layers=2))
        tt.seed(4)
        loss = parallel.backward(partial(translation_loss(0.1, PAD), model), batch.split(3))
        found.append((float(loss), {name: g.tobytes() for name, g in gradients(model).items()}))
    assert found[0] == found[1] == found[2]


@each_choice
@pytest.mark.parametrize("shards", [2, 3])
def test_shards_have_the_gradient_of_the_whole(choices: dict[str, Any], shards: int) -> None:
    whole, parts = lively(make(**choices)), lively(make(**choices))
    source, target = padded_source()[0], random_ids(4, 6, seed=1)
    target[0, 3:] = PAD
    batch = PairBatch(tt.tensor(source), tt.tensor(target[:, :-1]), tt.tensor(target[:, 1:]), 17)
    loss = translation_loss(0.1, PAD)(whole, batch)
    loss.backward()
    found = parallel.backward(partial(translation_loss(0.1, PAD), parts), batch.split(shards))
    assert float(found) == pytest.approx(float(loss), rel=1e-5)
    expected = gradients(whole)
    for name, gradient in gradients(parts).items():
        np.testing.assert_allclose(gradient, expected[name], rtol=1e-3, atol=1e-5, err_msg=name)


# ---------------------------------------------------------------------------------------------------------- learning


@each_choice
def test_every_parameter_gets_a_gradient(choices: dict[str, Any]) -> None:
    model = make(**choices)
    loss_of(model, random_ids(2, 5), random_ids(2, 6, seed=1)).backward()
    for name, gradient in gradients(model).items():
        assert np.abs(gradient).max() > 0, name


@each_choice
def test_overfits_one_batch(choices: dict[str, Any]) -> None:
    # The first targets are the same, so only the source tells which come next.
    model = make(**{**choices, "d_model": 24, "d_embedding": 12})
    source, target = random_ids(4, 5), random_ids(4, 6, seed=1)
    target[:, :2] = START
    source[0, 3:], target[0, 4:] = PAD, PAD
    check_that_it_learns(model, lambda: loss_of(model, source, target), lr=3e-2, betas=(0.9, 0.99))


@with_and_without_attention
def test_the_trainer_trains_it_and_resumes(attention: bool, tmp_path: Path) -> None:
    # With dropout, guesses and two shards: all that is random goes on as it would have.
    config = TrainingConfig(steps=16, warmup=3, learning_rate=3e-2, eval_every=8, shards=2)
    options = {"attention": attention, "cell": "gru", "dropout": 0.1, "teacher_forcing": 0.7, "num_layers": 2, "d_model": 16}

    def trainer(folder: str) -> Trainer:
        (tmp_path / folder).mkdir(exist_ok=True)
        return Trainer(make(**options), FirstWords(), config, RunFolder(tmp_path / folder), translation_loss(0.0, PAD))

    whole = check_that_it_learns_and_resumes(trainer, 9, 9, better=0.8)
    best = make(**{**options, "seed": 1})
    load_weights(best, whole.folder.best)
    assert evaluate(best, FirstWords(), translation_loss(0.0, PAD)) == pytest.approx(whole.best_loss, rel=1e-5)


@each_choice
def test_copies_for_worker_processes(choices: dict[str, Any]) -> None:
    model, (source, _) = make(**choices), padded_source()
    target = tt.tensor(random_ids(4, 5))
    expected = model(tt.tensor(source), target).numpy()
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert copied.config == model.config
        assert copied(tt.tensor(source), target).numpy().tobytes() == expected.tobytes()
        copied.output.weight.assign(np.zeros((11, 6), np.float32))
    assert model(tt.tensor(source), target).numpy().tobytes() == expected.tobytes()  # they share nothing with it
    shared = make(**choices, share_embeddings=True, source_vocab_size=11)
    for copied in (copy.deepcopy(shared), pickle.loads(pickle.dumps(shared))):
        assert copied.source_embedding is copied.target_embedding


# ---------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cell": "transformer"}, "cell must be one of rnn, gru, lstm, got 'transformer'"),
        ({"source_vocab_size": 0}, "source_vocab_size must be at least 1, got 0"),
        ({"target_vocab_size": 0}, "target_vocab_size must be at least 1, got 0"),
        ({"d_model": 0}, "d_model must be at least 1, got 0"),
        ({"d_embedding": -1}, "d_embedding must be at least 1, got -1"),
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"num_layers": 1.5}, "num_layers must be an integer, got 1.5"),
        ({"attention": 1}, "attention must be true or false, got 1"),
        ({"dropout": 1.0}, "dropout must be at least 0 and less than 1, got 1.0"),
        ({"dropout": math.nan}, "dropout must be a finite number, got nan"),
        ({"teacher_forcing": -0.1}, "teacher_forcing must be from 0 to 1, got -0.1"),
        ({"teacher_forcing": 1.1}, "teacher_forcing must be from 0 to 1, got 1.1"),
        ({"teacher_forcing": math.nan}, "teacher_forcing must be a finite number, got nan"),
        ({"reverse_source": True, "attention": True}, "reverse_source has no effect with attention"),
        ({"share_embeddings": True}, "share_embeddings needs one vocabulary for both languages, got sizes 13 and 11"),
    ],
)
def test_settings_that_make_no_model(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        Seq2SeqConfig(**{**SMALL, **changes})
    assert message in str(caught.value)
    assert next(iter(changes)) in caught.value.names


@pytest.mark.parametrize(("kind", "attention"), [(ContextVectorModel, True), (AdditiveAttentionModel, False)])
def test_a_configuration_of_the_other_model(kind: type[EncoderDecoder], attention: bool) -> None:
    with pytest.raises(SettingError, match=f"attention must be {not attention} for {kind.__name__}, got {attention}"):
        kind(Seq2SeqConfig(**{**SMALL, "attention": attention}))


@pytest.mark.timeout(10)
@with_and_without_attention
@pytest.mark.parametrize("name", ["d_model", "d_embedding", "num_layers", "source_vocab_size", "target_vocab_size"])
def test_a_model_that_cannot_fit_in_memory_is_refused_before_it_is_made(name: str, attention: bool) -> None:
    with pytest.raises(SettingError, match=r"a model of this size needs at least .* there are .*: choose a smaller d_model"):
        make(attention=attention, **{name: 10**18})


def test_ids_that_are_no_batch() -> None:
    for attention in (False, True):
        model, one, batch = make(attention=attention), tt.tensor(random_ids(5)), tt.tensor(random_ids(1, 5))
        with pytest.raises(ValueError, match=r"source ids must be \(batch, length\), got \(5,\): .* ids\[None\]"):
            model(one, batch)
        with pytest.raises(ValueError, match=r"target ids must be \(batch, length\), got \(5,\)"):
            model(batch, one)
        with pytest.raises(ValueError, match=r"target ids must be \(batch, length\), got \(5,\)"):
            model.loss(batch, one, one)


@with_and_without_attention
@pytest.mark.parametrize("teacher_forcing", [1.0, 0.5])
@pytest.mark.parametrize("shape", [(2, 0), (3, 4), (1, 4)])
def test_targets_that_do_not_fit_the_sources(attention: bool, teacher_forcing: float, shape: tuple[int, int]) -> None:
    model = make(attention=attention, teacher_forcing=teacher_forcing)
    source, target = tt.tensor(random_ids(2, 3)), tt.tensor(random_ids(*shape))
    calls = [
        lambda: model(source, target),
        lambda: model.loss(source, target, target),
        lambda: model.step(target, model.encode(source)),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"target ids must be \(2, length\) with a length of at least 1, got"):
            call()


def test_the_state_of_attention_holds_its_memory() -> None:
    source, _ = padded_source()
    state = make(attention=True, cell="lstm", num_layers=2).encode(tt.tensor(source))
    assert isinstance(state, AttentionState)
    assert [kind.shape for kind in state.hidden] == [(2, 4, 8)] * 2
    assert (state.memory.shape, state.keys.shape) == ((4, 6, 16), (4, 6, 8))
    np.testing.assert_array_equal(state.mask.numpy(), source != PAD)
