"""The encoder-decoder: its size, what each token can see, padding, its cache, and that it learns."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from causal import check_that_all_is_seen, check_that_the_past_is_unchanged
from trainings import FirstWords, check_that_it_learns, check_that_it_learns_and_resumes

import tinytensor as tt
from tinyformer.common.errors import SettingError
from tinyformer.decoding.generation import TransformerDecoder
from tinyformer.models.activations import ACTIVATIONS
from tinyformer.models.blocks import NORMS
from tinyformer.models.transformer import Transformer, TransformerConfig
from tinyformer.training.config import TrainingConfig
from tinyformer.training.evaluation import evaluate
from tinyformer.training.losses import translation_loss
from tinyformer.training.run_folder import RunFolder, load_weights
from tinyformer.training.trainer import Trainer

SMALL = {
    "source_vocab_size": 13,
    "target_vocab_size": 11,
    "d_model": 16,
    "num_heads": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "d_ff": 24,
    "dropout": 0.0,
}
PAD = 0
CHOICES = [
    {},
    {"norm_first": True, "positions": "learned", "max_length": 12},
    {"norm": "rms", "activation": "swiglu", "tie_output": False},
    {
        "positions": "sinusoidal_halves",
        "activation": "silu",
        "scale_embeddings": False,
        "learn_padding": False,
        "output_bias": True,
    },
    {"positions": "rotary", "query_key_norm": True, "norm_first": True},
]
each_choice = pytest.mark.parametrize("choices", CHOICES, ids=str)


def make(seed: int = 0, **changes: object) -> Transformer:
    tt.seed(seed)
    return Transformer(TransformerConfig(**{**SMALL, **changes}))


def random_ids(*shape: int, high: int = 11, seed: int = 0) -> np.ndarray:
    """Ids without padding, which is 0."""
    return np.random.default_rng(seed).integers(1, high, shape)


def loss_of(model: Transformer, source: np.ndarray, target: np.ndarray) -> tt.Tensor:
    """The mean loss over each next token of ``target`` that is not padding."""
    logits = model(tt.tensor(source), tt.tensor(target[:, :-1]))
    return tt.cross_entropy(logits, tt.tensor(target[:, 1:]), ignore_index=PAD)


# ---------------------------------------------------------------------------------------------------------- size


def expected_parameters(embeddings: int, d: int, inner: int, encoder: int, decoder: int, final_norms: bool = False) -> int:
    """Counted on paper, with the numbers of the embeddings and the output layer given. An attention is four matrices with
    biases, a feed-forward network two; an encoder's block has two norms, a decoder's another attention and norm."""
    attention = 4 * (d * d + d)
    feed_forward = d * inner + inner + inner * d + d
    norm = 2 * d
    layers = encoder * (attention + feed_forward + 2 * norm) + decoder * (2 * attention + feed_forward + 3 * norm)
    return embeddings + layers + (2 * norm if final_norms else 0)


@pytest.mark.parametrize(
    ("changes", "embeddings"),
    [
        ({}, 13 * 16 + 11 * 16),
        ({"tie_output": False}, 13 * 16 + 2 * 11 * 16),
        ({"source_vocab_size": 11, "share_embeddings": True}, 11 * 16),
        ({"source_vocab_size": 11, "share_embeddings": True, "tie_output": False}, 2 * 11 * 16),
        ({"positions": "learned", "max_length": 9}, 13 * 16 + 11 * 16 + 2 * 9 * 16),
        ({"norm_first": True}, 13 * 16 + 11 * 16),
        ({"d_model": 64, "d_ff": 7, "encoder_layers": 1, "decoder_layers": 3}, 13 * 64 + 11 * 64),
    ],
)
def test_parameter_count(changes: dict[str, Any], embeddings: int) -> None:
    c = TransformerConfig(**{**SMALL, **changes})
    expected = expected_parameters(embeddings, c.d_model, c.d_ff, c.encoder_layers, c.decoder_layers, c.norm_first)
    assert make(**changes).num_parameters() == expected


def test_the_formula_gives_the_size_of_the_papers_base_model() -> None:
    # Embeddings shared by source, target and output, as in the paper, over its 37,000 byte pairs. The formula is held to
    # real models above, so a quarter of a gigabyte need not be filled.
    c = TransformerConfig(37_000, 37_000, share_embeddings=True)
    assert expected_parameters(37_000 * c.d_model, c.d_model, c.d_ff, c.encoder_layers, c.decoder_layers) == 63_082_496
    assert (c.num_heads, c.dropout, c.positions, c.norm_first, c.activation, c.tie_output) == (
        8,
        0.1,
        "sinusoidal",
        False,
        "relu",
        True,
    )


def test_first_weights() -> None:
    # So that an embedding times sqrt(d_model) has about the size of a position, and a layer keeps the size of its input.
    model = make(d_model=64, d_ff=128, source_vocab_size=200)
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    assert (state["source_embedding.tokens.weight"] * math.sqrt(64)).std() == pytest.approx(1.0, rel=0.03)
    for name, values in state.items():
        if values.ndim == 2 and "tokens" not in name:
            limit = math.sqrt(6 / sum(values.shape))
            assert np.abs(values).max() == pytest.approx(limit, rel=0.01), name
            assert values.std() == pytest.approx(limit / math.sqrt(3), rel=0.05), name
        elif name.endswith("bias"):
            assert (values == 0).all(), name


# ---------------------------------------------------------------------------------------------------------- forward


@each_choice
def test_logits_for_every_target_position(choices: dict[str, Any]) -> None:
    logits = make(**choices)(tt.tensor(random_ids(3, 5)), tt.tensor(random_ids(3, 4)))
    assert logits.shape == (3, 4, 11)
    assert logits.dtype == np.float32


def test_embeddings_are_scaled_and_positions_added() -> None:
    model = make()
    ids = random_ids(2, 3)
    places = np.arange(5)[:, None] / 10000 ** (np.arange(8) / 8)
    table = np.stack([np.sin(places), np.cos(places)], -1).reshape(5, 16)
    expected = 4.0 * model.target_embedding.tokens.weight.numpy()[ids] + table[2:5]
    cache = model.new_cache(5, 3)
    model.decode(tt.tensor(ids[:, :2]), *model.encode(tt.tensor(ids)), cache)
    np.testing.assert_allclose(model.target_embedding(tt.tensor(ids), cache).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_rotary_positions_are_distances_alone() -> None:
    model = make(positions="rotary", query_key_norm=True)
    source, target = random_ids(1, 5), random_ids(1, 4)
    logits = model(tt.tensor(source), tt.tensor(target)).numpy()
    later = np.concatenate([np.full((1, 3), PAD), source], axis=1)  # the same words at other places, behind padding
    np.testing.assert_allclose(model(tt.tensor(later), tt.tensor(target)).numpy(), logits, rtol=1e-4, atol=1e-5)
    assert np.abs(model(tt.tensor(source[:, ::-1].copy()), tt.tensor(target)).numpy() - logits).max() > 1e-3


def test_embeddings_that_are_not_scaled_and_sines_before_cosines() -> None:
    model = make(scale_embeddings=False, positions="sinusoidal_halves")
    ids = random_ids(2, 3)
    places = np.arange(3)[:, None] / 10000 ** (np.arange(8) / 8)
    expected = model.source_embedding.tokens.weight.numpy()[ids] + np.concatenate([np.sin(places), np.cos(places)], axis=1)
    np.testing.assert_allclose(model.source_embedding(tt.tensor(ids)).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_a_fixed_bias_of_the_logits() -> None:
    plain, biased = make(), make(output_bias=True)
    bias = np.random.default_rng(0).standard_normal(11).astype(np.float32)
    assert "output_bias" not in plain.state_dict()
    assert biased.num_parameters() == plain.num_parameters()  # it is not learned
    assert not biased.output_bias.numpy().any()
    biased.load_state_dict({"output_bias": bias}, strict=False)
    source, target = tt.tensor(random_ids(2, 5)), tt.tensor(random_ids(2, 4))
    logits = plain(source, target).numpy() + bias
    np.testing.assert_allclose(biased(source, target).numpy(), logits, rtol=1e-5, atol=1e-6)
    expected = tt.cross_entropy(tt.tensor(logits), target, 3, 0.1)
    found = biased.loss(source, target, target, ignore_index=3, label_smoothing=0.1)
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    assert plain.loss(source, target, target).item() != pytest.approx(biased.loss(source, target, target).item(), rel=1e-3)


@pytest.mark.parametrize("share", [False, True])
def test_embeddings_of_padding_that_are_not_learned(share: bool) -> None:
    changes = {"source_vocab_size": 11, "share_embeddings": share, "tie_output": share}
    source, target = np.array([[1, 2, PAD]]), np.array([[PAD, 3, 4]])  # a target that starts with padding
    gradients = []
    for learn in (True, False):
        model = make(**changes, learn_padding=learn)
        loss_of(model, source, target).backward()
        rows = [side.tokens.weight.grad.numpy() for side in (model.source_embedding, model.target_embedding)]
        gradients.append(rows)
    (_, target_learned), (source_fixed, target_fixed) = gradients
    assert target_learned[PAD].any()
    if share:  # as output it still learns
        assert target_fixed[PAD].any()
        assert not np.allclose(target_fixed[PAD], target_learned[PAD])
    else:
        assert not source_fixed[PAD].any()
        assert not target_fixed[PAD].any()
    np.testing.assert_allclose(target_fixed[1:], target_learned[1:], rtol=1e-5, atol=1e-7)


def test_the_epsilon_of_all_norms() -> None:
    assert {module.eps for module in make(norm_eps=0.5).modules() if hasattr(module, "eps")} == {0.5}


@each_choice
def test_a_changed_target_token_leaves_every_earlier_logit_bit_identical(choices: dict[str, Any]) -> None:
    model, source = make(**choices), tt.tensor(random_ids(2, 5))
    check_that_the_past_is_unchanged(lambda target: model(source, target), random_ids(2, 6, seed=1))


@each_choice
def test_every_source_token_reaches_every_logit(choices: dict[str, Any]) -> None:
    model, target = make(**choices), tt.tensor(random_ids(1, 4, seed=1))
    check_that_all_is_seen(lambda source: model(source, target), random_ids(1, 5))


@each_choice
def test_a_padded_batch_gives_each_sentence_what_it_gets_alone(choices: dict[str, Any]) -> None:
    model = make(**choices)
    source, target = random_ids(3, 6), random_ids(3, 5, seed=1)
    lengths = [(6, 2), (3, 5), (1, 3)]
    for i, (s, t) in enumerate(lengths):
        source[i, s:], target[i, t:] = PAD, PAD
    together = model(tt.tensor(source), tt.tensor(target)).numpy()
    for i, (s, t) in enumerate(lengths):
        alone = model(tt.tensor(source[i : i + 1, :s]), tt.tensor(target[i : i + 1, :t])).numpy()
        np.testing.assert_allclose(together[i, :t], alone[0], rtol=1e-5, atol=1e-5)


def test_padding_is_the_id_of_the_configuration() -> None:
    model = make(source_pad=12)
    source = tt.tensor([[3, 0, 12], [3, 10, 4]])
    memory, mask = model.encode(source)
    np.testing.assert_array_equal(mask.numpy()[:, 0, 0], [[True, True, False], [True, True, True]])
    assert memory.shape == (2, 3, 16)


@each_choice
def test_a_source_of_nothing_but_padding_is_finite(choices: dict[str, Any]) -> None:
    model = make(**choices)
    source, target = random_ids(2, 4), random_ids(2, 5, seed=1)
    source[1] = PAD
    loss = loss_of(model, source, target)
    loss.backward()
    assert np.isfinite(model(tt.tensor(source), tt.tensor(target)).numpy()).all()
    for name, parameter in model.named_parameters():
        assert np.isfinite(parameter.grad.numpy()).all(), name


@each_choice
@pytest.mark.parametrize("steps", [[6], [1] * 6, [2, 1, 3]], ids=str)
def test_with_a_cache_the_logits_are_the_same(choices: dict[str, Any], steps: list[int]) -> None:
    model = make(**choices)
    source, target = random_ids(2, 5), random_ids(2, 6, seed=1)
    source[1, 3:] = PAD
    target[0, 2] = PAD  # a token that was written is one of the text, whichever it is
    with tt.no_grad():
        expected = model(tt.tensor(source), tt.tensor(target)).numpy()
        memory, mask = model.encode(tt.tensor(source))
        cache, parts, start = model.new_cache(6, 5), [], 0
        for count in steps:
            parts.append(model.decode(tt.tensor(target[:, start : start + count]), memory, mask, cache).numpy())
            start += count
            assert cache.length == start
    np.testing.assert_allclose(np.concatenate(parts, axis=1), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="a cache for 6 tokens cannot hold 7"):
        model.decode(tt.tensor(target[:, :1]), memory, mask, cache)


def test_shared_embeddings_learn_from_all_their_uses() -> None:
    model = make(source_vocab_size=11, share_embeddings=True)
    assert model.source_embedding.tokens is model.target_embedding.tokens
    loss_of(model, np.array([[1, 2]]), np.array([[3, 4, 5]])).backward()
    gradient = np.abs(model.source_embedding.tokens.weight.grad.numpy()).max(axis=1)
    assert (gradient > 0).all()  # even of ids that occur nowhere: they are the output layer's, too
    untied = make(source_vocab_size=11, share_embeddings=True, tie_output=False)
    loss_of(untied, np.array([[1, 2]]), np.array([[3, 4, 5]])).backward()
    gradient = np.abs(untied.source_embedding.tokens.weight.grad.numpy()).max(axis=1)
    assert list(np.flatnonzero(gradient)) == [1, 2, 3, 4]


def test_dropout_acts_in_training_only() -> None:
    source, target = tt.tensor(random_ids(2, 5)), tt.tensor(random_ids(2, 4, seed=1))
    model = make(dropout=0.5)
    assert np.abs(model(source, target).numpy() - model(source, target).numpy()).max() > 0
    model.eval()
    assert model(source, target).numpy().tobytes() == make()(source, target).numpy().tobytes()


# ---------------------------------------------------------------------------------------------------------- learning


@each_choice
def test_every_parameter_gets_a_gradient(choices: dict[str, Any]) -> None:
    model = make(**choices)
    loss_of(model, random_ids(2, 5), random_ids(2, 6, seed=1)).backward()
    for name, parameter in model.named_parameters():
        assert np.abs(parameter.grad.numpy()).max() > 0, name


@each_choice
def test_overfits_one_batch(choices: dict[str, Any]) -> None:
    # The first targets are the same, so only the source tells which come next.
    model = make(**choices)
    source, target = random_ids(4, 5), random_ids(4, 6, seed=1)
    target[:, :2] = 1, 2
    source[0, 3:], target[0, 4:] = PAD, PAD
    check_that_it_learns(model, lambda: loss_of(model, source, target))


def test_the_trainer_trains_it_and_resumes(tmp_path: Path) -> None:
    config = TrainingConfig(
        steps=28, warmup=3, learning_rate=2e-2, eval_every=14, schedule="constant", gradient_accumulation_steps=2
    )

    def trainer(folder: str) -> Trainer:
        (tmp_path / folder).mkdir(exist_ok=True)
        return Trainer(make(dropout=0.1), FirstWords(), config, RunFolder(tmp_path / folder), translation_loss(0.0, PAD))

    assert trainer("whole").train_step()[2] == 2 * (8 * 3 - 1)  # the targets that are not padding, of two batches
    whole = check_that_it_learns_and_resumes(trainer, 25, 13, better=0.6)  # in the middle of a step
    best = make(seed=1)
    load_weights(best, whole.folder.best)
    assert evaluate(best, FirstWords(), translation_loss(0.0, PAD)) == pytest.approx(whole.best_loss, rel=1e-5)


# ---------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 3}, "num_heads=3 does not divide d_model=16"),
        ({"num_heads": 0}, "num_heads must be at least 1, got 0"),
        ({"encoder_layers": 0}, "encoder_layers must be at least 1, got 0"),
        ({"decoder_layers": -1}, "decoder_layers must be at least 1, got -1"),
        ({"d_model": 0}, "d_model must be at least 1, got 0"),
        ({"d_ff": 0}, "d_ff must be at least 1, got 0"),
        ({"max_length": 0}, "max_length must be at least 1, got 0"),
        ({"source_vocab_size": 0}, "source_vocab_size must be at least 1, got 0"),
        ({"target_vocab_size": 0}, "target_vocab_size must be at least 1, got 0"),
        ({"dropout": 1.0}, "dropout must be at least 0 and less than 1, got 1.0"),
        ({"num_heads": 2.0}, "num_heads must be an integer, got 2.0"),
        ({"d_model": True}, "d_model must be an integer, got True"),
        ({"norm_eps": -1.0}, "norm_eps must be at least 0, got -1.0"),
        ({"output_bias": 1}, "output_bias must be true or false, got 1"),
        ({"dropout": math.inf}, "dropout must be a finite number, got inf"),
        ({"dropout": "0.1"}, "dropout must be a finite number, got '0.1'"),
        ({"dropout": math.nan}, "dropout must be a finite number, got nan"),
        ({"positions": "relative"}, "positions must be one of learned, sinusoidal, sinusoidal_halves, rotary, got 'relative'"),
        ({"d_model": 12, "num_heads": 4, "positions": "rotary"}, "d_model / num_heads must be even for rotary positions"),
        ({"norm": "batch"}, f"norm must be one of {', '.join(NORMS)}, got 'batch'"),
        ({"activation": "tanh"}, f"activation must be one of {', '.join(ACTIVATIONS)}, got 'tanh'"),
        ({"share_embeddings": True}, "share_embeddings needs one vocabulary for both languages, got sizes 13 and 11"),
    ],
)
def test_settings_that_make_no_model(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        TransformerConfig(**{**SMALL, **changes})
    assert message in str(caught.value)
    assert next(iter(changes)) in caught.value.names


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "rms"},
        {"norm_first": True, "positions": "learned"},
        {"tie_output": False, "activation": "swiglu"},
        {"share_embeddings": True, "source_vocab_size": 11},
        {"output_bias": True, "learn_padding": False, "positions": "sinusoidal_halves"},
        {"positions": "rotary", "query_key_norm": True},
    ],
    ids=str,
)
def test_parameters_are_counted_without_making_the_model(changes: dict[str, Any]) -> None:
    model = make(**changes)
    assert model.config.num_parameters() == model.num_parameters()


@pytest.mark.timeout(10)
@pytest.mark.parametrize("name", ["d_model", "d_ff", "encoder_layers", "decoder_layers", "target_vocab_size"])
def test_a_model_that_cannot_fit_in_memory_is_refused_before_it_is_made(name: str) -> None:
    config = TransformerConfig(**{**SMALL, name: 10**18})
    with pytest.raises(SettingError, match=r"a model of this size needs at least .* there are .*: choose a smaller d_model"):
        Transformer(config)


def test_a_cache_that_cannot_fit_in_memory_is_refused() -> None:
    with pytest.raises(SettingError, match=r"a cache for this max_tokens needs at least 10\^\d+ bytes"):
        TransformerDecoder(make(), [[3, 4]], max_tokens=10**30)


def test_sentences_longer_than_the_learned_positions() -> None:
    model = make(positions="learned", max_length=4)
    with pytest.raises(ValueError, match=r"a text of 5 tokens? is too long for 4 learned positions"):
        model.encode(tt.tensor(random_ids(1, 5)))


def test_ids_that_are_no_batch() -> None:
    model, one, batch = make(), tt.tensor(random_ids(1, 5))[0], tt.tensor(random_ids(1, 5))
    with pytest.raises(ValueError, match=r"source ids must be \(batch, length\), got \(5,\): .* ids\[None\]"):
        model(one, batch)
    with pytest.raises(ValueError, match=r"target ids must be \(batch, length\), got \(5,\)"):
        model(batch, one)
