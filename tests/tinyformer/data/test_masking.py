"""Masked language modeling: masks and batches; and labeled texts for a classifier."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.common.errors import SettingError, UserError
from tinyformer.data.batches import Batch, LabelledBatches
from tinyformer.data.masking import IGNORED, MaskedBatches, Masking
from tinyformer.models.bert import BertConfig, BertForMaskedLM
from tinyformer.training.evaluation import accuracy
from tinyformer.training.losses import masked_token_loss
from tinytensor.nn import Embedding

MASK, START, END, PAD = 3, 1, 2, 0
SPECIAL = (PAD, START, END, MASK)
VOCAB = 50


def masking(fraction: float = 0.15) -> Masking:
    return Masking(VOCAB, MASK, SPECIAL, fraction)


def batches(n: int = 500, window: int = 10, batch_size: int = 4, **options: object) -> MaskedBatches:
    ids = np.random.default_rng(0).integers(4, VOCAB, n)
    return MaskedBatches(ids, masking(), START, END, window, batch_size, **options)


# ---------------------------------------------------------------------------------------------------------- masking


def test_proportions_are_the_papers() -> None:
    rng = np.random.default_rng(1)
    ids = rng.integers(4, VOCAB, (1000, 100))
    inputs, targets = masking()(ids, rng)
    hidden = targets != IGNORED
    assert (hidden.sum(axis=1) == 15).all()
    assert (inputs == MASK)[hidden].mean() == pytest.approx(0.8, abs=0.015)
    # Of the 10 % that become a random token, one in 46 happens to become itself.
    assert (inputs == ids)[hidden].mean() == pytest.approx(0.1 + 0.1 / 46, abs=0.015)
    replaced = inputs[hidden & (inputs != MASK) & (inputs != ids)]
    assert len(replaced) / hidden.sum() == pytest.approx(0.1, abs=0.015)
    assert set(replaced.tolist()) == set(range(4, VOCAB))  # any ordinary token, and no special one
    assert hidden.mean(axis=0) == pytest.approx(0.15, abs=0.06)  # no place is preferred


def test_targets_stand_at_hidden_places_only_and_the_rest_is_as_it_was() -> None:
    rng = np.random.default_rng(2)
    ids = rng.integers(4, VOCAB, (50, 30))
    before = ids.copy()
    inputs, targets = masking()(ids, rng)
    hidden = targets != IGNORED
    np.testing.assert_array_equal(ids, before)
    np.testing.assert_array_equal(inputs[~hidden], ids[~hidden])
    np.testing.assert_array_equal(targets[hidden], ids[hidden])


@pytest.mark.parametrize("fraction", [0.15, 0.5, 1.0])
def test_special_tokens_are_never_hidden(fraction: float) -> None:
    rng = np.random.default_rng(3)
    ids = rng.integers(0, VOCAB, (200, 20))  # special tokens are everywhere, the mask token too
    inputs, targets = masking(fraction)(ids, rng)
    special = np.isin(ids, SPECIAL)
    assert (targets[special] == IGNORED).all()
    np.testing.assert_array_equal(inputs[special], ids[special])
    if fraction == 1.0:
        assert (targets[~special] != IGNORED).all()


def test_short_rows_hide_one_token_and_rows_without_ordinary_tokens_none() -> None:
    ids = np.array([[START, 7, END, PAD], [START, END, PAD, PAD]])
    for seed in range(20):
        _, targets = masking()(ids, np.random.default_rng(seed))
        assert targets.tolist() == [[IGNORED, 7, IGNORED, IGNORED], [IGNORED] * 4]


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.1])
def test_a_fraction_that_cannot_be(fraction: float) -> None:
    with pytest.raises(UserError, match="fraction of masked tokens"):
        masking(fraction)


def test_a_vocabulary_of_special_tokens_only() -> None:
    with pytest.raises(UserError, match="nothing to mask"):
        Masking(4, MASK, SPECIAL)


# ---------------------------------------------------------------------------------------------------------- batches


def originals(batch: Batch) -> np.ndarray:
    """The ids before any was hidden."""
    targets = batch.targets.numpy()
    return np.where(targets == IGNORED, batch.inputs.numpy(), targets)


def test_a_batch_is_windows_of_the_training_text_between_start_and_end() -> None:
    some = batches()
    text = some.training.tolist()
    windows = {tuple(text[i : i + 10]) for i in range(len(text) - 9)}
    for _ in range(20):
        batch = some.sample()
        assert batch.inputs.shape == batch.targets.shape == (4, 12)
        assert batch.num_targets == 8 == int((batch.targets.numpy() != IGNORED).sum())  # 15 % of 10, rounded to even
        ids = originals(batch)
        assert (ids[:, 0] == START).all()
        assert (ids[:, -1] == END).all()
        assert {tuple(row) for row in ids[:, 1:-1].tolist()} <= windows


def test_every_window_can_be_drawn() -> None:
    some = MaskedBatches(np.arange(4, 30), masking(), START, END, 10, 4, validation_fraction=0.5)
    firsts = {int(i) for _ in range(100) for i in originals(some.sample())[:, 1]}
    assert firsts == {4, 5, 6, 7}  # 13 ids to train on have 4 windows of 10


def test_windows_in_which_nothing_can_be_hidden_are_left_out() -> None:
    ids = np.full(200, PAD)
    ids[[17, 105, 195]] = 9
    some = MaskedBatches(ids, masking(), START, END, 10, 4, validation_fraction=0.5)
    for batch in [some.sample() for _ in range(50)]:
        assert batch.num_targets == 4 and (batch.targets.numpy() == 9).sum() == 4
    (batch,) = some.validation_batches()
    assert batch.targets.shape == (2, 12) and batch.num_targets == 2


def test_a_text_in_which_nothing_can_be_hidden() -> None:
    for ids, told in (
        (np.full(5, PAD), "all 5 tokens of the text"),  # and not that these are too few for a window
        (np.full(200, PAD), "all 200 tokens of the text"),
        (np.r_[np.full(199, PAD), 9], "all 180 tokens to train on"),
        (np.r_[9, np.full(199, PAD)], "all 20 tokens to validate with, at its end,"),
    ):
        with pytest.raises(UserError, match=f"{told} are special and cannot be hidden, such as .*: use another text"):
            MaskedBatches(ids, masking(), START, END, 10, 4)


def test_validation_is_the_whole_split_and_always_hidden_alike() -> None:
    some = batches(1000, window=9)
    first = list(some.validation_batches(batch_size=4))
    text = np.concatenate([originals(batch)[:, 1:-1].reshape(-1) for batch in first])
    np.testing.assert_array_equal(text, some.validation[: 11 * 9])
    some.sample()
    again = list(some.validation_batches(batch_size=4))
    assert [batch.inputs.tolist() for batch in first] == [batch.inputs.tolist() for batch in again]
    assert [batch.targets.tolist() for batch in first] == [batch.targets.tolist() for batch in again]


def test_the_state_goes_through_json_and_resumes_exactly() -> None:
    some = batches(seed=1)
    some.sample()
    state = json.loads(json.dumps(some.get_state()))
    list(some.validation_batches())  # disturbs nothing
    expected = [(b.inputs.tolist(), b.targets.tolist()) for b in (some.sample() for _ in range(3))]
    other = batches(seed=99)
    other.set_state(state)
    assert [(b.inputs.tolist(), b.targets.tolist()) for b in (other.sample() for _ in range(3))] == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 90, "window": 10}, "90 tokens for windows of 10"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_size": 10**30}, r"a batch of this batch_size needs at least 10\^\d+ bytes"),
        ({"window": 10**30}, f"tokens? for windows of {10**30}: use a longer one, or a smaller window"),
        ({"validation_fraction": 1.0}, "validation_fraction must be above 0 and below 1"),
    ],
)
def test_settings_that_make_no_batches(options: dict[str, float], message: str) -> None:
    with pytest.raises(SettingError, match=message) as caught:
        batches(**options)
    assert caught.value.names[0] in options


def test_the_loss_is_the_mean_over_the_hidden_tokens() -> None:
    tt.seed(0)
    sizes = {"max_length": 12, "num_layers": 1, "num_heads": 2, "d_model": 16, "d_ff": 16, "dropout": 0.0}
    model = BertForMaskedLM(BertConfig(VOCAB, **sizes))
    batch = batches().sample()
    expected = tt.cross_entropy(model(batch.inputs), batch.targets, ignore_index=IGNORED)
    assert float(masked_token_loss(model, batch)) == pytest.approx(float(expected), rel=1e-5)
    # A part of a batch counts by the targets of the whole: the parts' losses add up to it.
    parts = batch.split(3)
    total = sum(float(masked_token_loss(model, part)) for part in parts)
    assert total == pytest.approx(float(expected), rel=1e-5)


# --------------------------------------------------------------------------------------------------- labelled texts

TEXTS = [([1, 5, 2], 0), ([1, 6, 7, 2], 1), ([1, 8, 2], 0)]


def test_labelled_batches_are_padded() -> None:
    some = LabelledBatches(TEXTS, TEXTS, PAD, batch_size=2)
    (first, last) = some.validation_batches(batch_size=2)
    assert first.inputs.tolist() == [[1, 5, 2, 0], [1, 6, 7, 2]]
    assert first.targets.tolist() == [0, 1]
    assert (last.inputs.tolist(), last.targets.tolist(), last.num_targets) == ([[1, 8, 2]], [0], 1)
    known = {(5, 0), (6, 1), (8, 0)}
    drawn = [some.sample() for _ in range(30)]
    assert all(batch.num_targets == 2 for batch in drawn)
    assert {(row[1], label) for b in drawn for row, label in zip(b.inputs.tolist(), b.targets.tolist())} == known


def test_labelled_batches_resume_exactly() -> None:
    some, other = LabelledBatches(TEXTS, TEXTS, PAD, 2, seed=1), LabelledBatches(TEXTS, TEXTS, PAD, 2, seed=2)
    some.sample()
    other.set_state(json.loads(json.dumps(some.get_state())))
    assert [some.sample().inputs.tolist() for _ in range(5)] == [other.sample().inputs.tolist() for _ in range(5)]


def test_labelled_batches_of_nothing() -> None:
    with pytest.raises(UserError, match="pass one or more"):
        LabelledBatches([], TEXTS, PAD, 2)
    with pytest.raises(UserError, match="batch_size must be at least 1"):
        LabelledBatches(TEXTS, TEXTS, PAD, 0)
    with pytest.raises(SettingError, match="a batch of this batch_size needs at least"):
        LabelledBatches(TEXTS, TEXTS, PAD, 10**30)


def test_accuracy_counts_the_targets() -> None:
    model = Embedding(3, 3)  # answers its own input
    model.weight.assign(np.eye(3))
    asked = Batch(tt.tensor([[0, 1, 2, 2]]), tt.tensor([[0, 2, 2, IGNORED]]), 3)
    assert accuracy(model, iter([asked])) == pytest.approx(2 / 3)
