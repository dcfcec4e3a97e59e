"""The recurrent language model: its size, what each token can see, its state, truncated backpropagation, and that it learns."""

from __future__ import annotations

import copy
import math
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from causal import check_that_the_past_is_unchanged
from trainings import check_that_it_learns, check_that_it_learns_and_resumes

import tinytensor as tt
from tinyformer.common.errors import SettingError
from tinyformer.data.batches import Batch
from tinyformer.data.text import TextBatches
from tinyformer.models.recurrent import RecurrentConfig, RecurrentLM, State, count_parameters, make_layers
from tinyformer.training.config import TrainingConfig
from tinyformer.training.losses import next_token_loss
from tinyformer.training.run_folder import RunFolder
from tinyformer.training.trainer import Trainer
from tinytensor import parallel

SMALL = {"vocab_size": 11, "block_size": 6, "context": 3, "num_layers": 2, "d_model": 8}
CELLS = ["rnn", "gru", "lstm"]
each_cell = pytest.mark.parametrize("cell", CELLS)


def make(cell: str = "lstm", seed: int = 0, **changes: Any) -> RecurrentLM:
    tt.seed(seed)
    return RecurrentLM(RecurrentConfig(**{**SMALL, "cell": cell, **changes}))


def random_ids(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 11, shape)


def gradients(model: RecurrentLM) -> dict[str, np.ndarray]:
    return {name: p.grad.numpy().copy() for name, p in model.named_parameters()}


# ---------------------------------------------------------------------------------------------------------- size


@each_cell
@pytest.mark.parametrize("changes", [{}, {"num_layers": 1}, {"num_layers": 3, "d_model": 5}, {"vocab_size": 2}], ids=str)
def test_parameters_are_counted_without_making_the_model(cell: str, changes: dict[str, Any]) -> None:
    model = make(cell, **changes)
    assert model.config.num_parameters() == model.num_parameters()


@each_cell
@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("directions", [1, 2])
def test_the_parameters_of_layers_are_counted(cell: str, num_layers: int, directions: int) -> None:
    layers = make_layers(cell, 3, 5, num_layers, bidirectional=directions == 2)
    assert count_parameters(cell, 3, 5, num_layers, directions) == layers.num_parameters()
    # NumPy's integers, which would overflow, count as Python's do.
    large = [np.int64(10**12)] * 2
    assert count_parameters(cell, *large, np.int64(num_layers), directions) == count_parameters(
        cell, 10**12, 10**12, num_layers, directions
    )


def test_the_parameters_of_an_lstm_on_paper() -> None:
    # Two embeddings' worth of tables; in each of two layers, four gates with two matrices and two biases.
    assert RecurrentConfig(65, "lstm").num_parameters() == 2 * 65 * 224 + 2 * 4 * (2 * 224 * 224 + 2 * 224) == 835_520


def test_the_forget_gates_begin_open() -> None:
    for bidirectional in (False, True):
        layers = make_layers("lstm", 3, 5, 2, bidirectional=bidirectional)
        for name, bias in layers.named_parameters():
            if name.startswith("bias"):
                values = bias.numpy()
                assert (values[5:10] == (1.0 if name.startswith("bias_ih") else 0.0)).all(), name
                assert (np.abs(np.delete(values, np.s_[5:10])) <= 1 / math.sqrt(5)).all(), name
                assert len(set(np.delete(values, np.s_[5:10]))) == 15, name  # the others stay random


# ---------------------------------------------------------------------------------------------------------- forward


@each_cell
def test_logits_for_every_position_and_a_state(cell: str) -> None:
    logits, state = make(cell)(tt.tensor(random_ids(3, 5)))
    assert logits.shape == (3, 5, 11)
    assert logits.dtype == np.float32
    assert [kind.shape for kind in state.hidden] == [(2, 3, 8)] * (2 if cell == "lstm" else 1)
    assert state.batch_size == 3


@each_cell
def test_a_changed_token_leaves_every_earlier_logit_bit_identical(cell: str) -> None:
    model = make(cell)
    check_that_the_past_is_unchanged(lambda ids: model(ids)[0], random_ids(2, 6))


@each_cell
@pytest.mark.parametrize("steps", [[1] * 6, [2, 1, 3], [5, 1]], ids=str)
def test_in_parts_the_logits_are_the_same(cell: str, steps: list[int]) -> None:
    model, ids = make(cell), random_ids(3, 6)
    with tt.no_grad():
        expected, last = model(tt.tensor(ids))
        state, stepped, parts, start = None, None, [], 0
        for count in steps:
            new = tt.tensor(ids[:, start : start + count])
            logits, state = model(new, state)
            newest, stepped = model.step(new, stepped)
            np.testing.assert_allclose(newest.numpy(), logits.numpy()[:, -1], rtol=1e-5, atol=1e-6)
            parts.append(logits.numpy())
            start += count
    np.testing.assert_allclose(np.concatenate(parts, axis=1), expected.numpy(), rtol=1e-5, atol=1e-6)
    assert isinstance(state, State) and isinstance(stepped, State)
    for one, two, three in zip(state.hidden, stepped.hidden, last.hidden, strict=True):
        np.testing.assert_allclose(one.numpy(), three.numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(two.numpy(), three.numpy(), rtol=1e-5, atol=1e-6)


@each_cell
def test_rows_of_a_state(cell: str) -> None:
    model = make(cell)
    _, state = model(tt.tensor(random_ids(3, 5)))
    for rows in (np.array([2, 0, 0]), [2, 0, 0], np.array([True, False, True])):
        selected = state.select(rows)
        for kind, all_of_it in zip(selected.hidden, state.hidden, strict=True):
            np.testing.assert_array_equal(kind.numpy(), all_of_it.numpy()[:, np.asarray(rows)])
    assert state.select(np.array([], np.int64)).batch_size == 0


def test_dropout_acts_in_training_only() -> None:
    ids = tt.tensor(random_ids(2, 5))
    for num_layers in (1, 2):  # between layers, and around them
        model = make(dropout=0.5, num_layers=num_layers)
        assert np.abs(model(ids)[0].numpy() - model(ids)[0].numpy()).max() > 0
        model.eval()
        assert model(ids)[0].numpy().tobytes() == make(num_layers=num_layers)(ids)[0].numpy().tobytes()


@pytest.mark.parametrize(
    "ids", [random_ids(5), random_ids(2, 3, 4), np.zeros((2, 0), np.int64)], ids=lambda ids: str(ids.shape)
)
def test_ids_that_are_no_batch(ids: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"ids must be \(batch, length\) with a length of at least 1, got \("):
        make()(tt.tensor(ids))


# ------------------------------------------------------------------------------------- truncated backpropagation


@each_cell
def test_the_loss_is_the_cross_entropy_of_the_logits(cell: str) -> None:
    model, ids, targets = make(cell), tt.tensor(random_ids(3, 6)), tt.tensor(random_ids(3, 6, seed=1))
    expected = tt.cross_entropy(model(ids)[0], targets)
    assert float(model.loss(ids, targets)) == pytest.approx(float(expected), rel=1e-6)
    assert float(model.loss(ids, targets, reduction="sum")) == pytest.approx(18 * float(expected), rel=1e-6)


@each_cell
@pytest.mark.parametrize("context", [1, 3, 5])
def test_the_context_sets_the_state_and_gets_no_gradient(cell: str, context: int) -> None:
    # The context has tokens of its own: 9 and 10 occur nowhere else.
    model = make(cell)
    ids, targets = random_ids(3, 6) % 9, random_ids(3, 6 - context, seed=1) % 9
    ids[:, :context] = 9 + random_ids(3, context, seed=2) % 2
    loss = model.loss(tt.tensor(ids), tt.tensor(targets))
    loss.backward()
    found = gradients(model)
    assert (found["token_embedding.weight"][9:] == 0).all()

    # The same, said otherwise: the state after the context is a constant.
    model.zero_grad()
    _, state = model(tt.tensor(ids[:, :context]))
    assert all(kind.requires_grad for kind in state.hidden)
    logits, _ = model(tt.tensor(ids[:, context:]), state.detached())
    expected = tt.cross_entropy(logits, tt.tensor(targets))
    expected.backward()
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)
    for name, gradient in gradients(model).items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-4, atol=1e-6, err_msg=name)

    # And without detaching, the gradient would have gone further.
    model.zero_grad()
    logits, _ = model(tt.tensor(ids))
    tt.cross_entropy(logits[:, context:], tt.tensor(targets)).backward()
    assert (np.abs(gradients(model)["token_embedding.weight"][9:]) > 0).any()
    changed = ids.copy()
    changed[:, 0] = 19 - changed[:, 0]
    assert float(model.loss(tt.tensor(changed), tt.tensor(targets))) != float(loss)


@pytest.mark.parametrize(("ids", "targets"), [((3, 6), (3, 7)), ((3, 6), (2, 6)), ((3, 6), (6,)), ((6,), (6,))])
def test_targets_that_do_not_fit_the_ids(ids: tuple[int, ...], targets: tuple[int, ...]) -> None:
    message = re.escape(f"targets must be (batch, length), at most as long as the ids {ids}, got {targets}")
    with pytest.raises(ValueError, match=message):
        make().loss(tt.tensor(random_ids(*ids)), tt.tensor(random_ids(*targets)))


# ---------------------------------------------------------------------------------------------------------- learning


@each_cell
@pytest.mark.parametrize("num_layers", [1, 2])
def test_every_parameter_gets_a_gradient(cell: str, num_layers: int) -> None:
    model = make(cell, num_layers=num_layers)
    model.loss(tt.tensor(random_ids(4, 6)), tt.tensor(random_ids(4, 6, seed=1))).backward()
    for name, gradient in gradients(model).items():
        assert np.abs(gradient).max() > 0, name


@each_cell
def test_overfits_one_batch(cell: str) -> None:
    # All texts begin with the same two tokens but one before them: only the state tells how they go on.
    model, ids = make(cell, d_model=24), random_ids(4, 8)
    ids[:, 0], ids[:, 1:3] = range(4), 1
    inputs, targets = tt.tensor(ids[:, :-1]), tt.tensor(ids[:, 3:])
    check_that_it_learns(model, lambda: model.loss(inputs, targets), lr=3e-2, betas=(0.9, 0.99))


@each_cell
@pytest.mark.parametrize("shards", [2, 3])
def test_shards_have_the_gradient_of_the_whole(cell: str, shards: int) -> None:
    whole, parts = make(cell), make(cell)
    batch = Batch(tt.tensor(random_ids(5, 9)), tt.tensor(random_ids(5, 6, seed=1)), 30)
    loss = next_token_loss(whole, batch)
    loss.backward()
    found = parallel.backward(lambda shard: next_token_loss(parts, shard), batch.split(shards))
    assert float(found) == pytest.approx(float(loss), rel=1e-5)
    expected = gradients(whole)
    for name, gradient in gradients(parts).items():
        np.testing.assert_allclose(gradient, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)


@each_cell
def test_the_trainer_trains_it_and_resumes(cell: str, tmp_path: Path, text_ids: np.ndarray) -> None:
    config = TrainingConfig(steps=20, batch_size=8, warmup=3, learning_rate=0.1, eval_every=10, shards=2)

    def trainer(folder: str) -> Trainer:
        (tmp_path / folder).mkdir(exist_ok=True)
        batches = TextBatches(text_ids, 6, 8, config.seed, context=3)
        return Trainer(make(cell, dropout=0.2), batches, config, RunFolder(tmp_path / folder))

    check_that_it_learns_and_resumes(trainer, 13, 13, better=0.9)


@each_cell
def test_copies_for_worker_processes(cell: str) -> None:
    model, ids = make(cell), tt.tensor(random_ids(2, 5))
    expected, state = model(ids)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert copied.config == model.config
        assert copied(ids)[0].numpy().tobytes() == expected.numpy().tobytes()
        copied.output.weight.assign(np.zeros((11, 8), np.float32))
    assert model(ids)[0].numpy().tobytes() == expected.numpy().tobytes()  # they share nothing with it
    again = pickle.loads(pickle.dumps(state.detached()))
    assert [kind.numpy().tobytes() for kind in again.hidden] == [kind.numpy().tobytes() for kind in state.hidden]


# ---------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cell": "elman"}, "cell must be one of rnn, gru, lstm, got 'elman'"),
        ({"cell": None}, "cell must be text, got None"),
        ({"vocab_size": 0}, "vocab_size must be at least 1, got 0"),
        ({"block_size": 0}, "block_size must be at least 1, got 0"),
        ({"context": -1}, "context must be at least 0, got -1"),
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"d_model": 0}, "d_model must be at least 1, got 0"),
        ({"d_model": 2.0}, "d_model must be an integer, got 2.0"),
        ({"num_layers": True}, "num_layers must be an integer, got True"),
        ({"dropout": 1.0}, "dropout must be at least 0 and less than 1, got 1.0"),
        ({"dropout": -0.1}, "dropout must be at least 0 and less than 1, got -0.1"),
        ({"dropout": math.nan}, "dropout must be a finite number, got nan"),
    ],
)
def test_settings_that_make_no_model(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        RecurrentConfig(**{**SMALL, "cell": "lstm", **changes})
    assert message in str(caught.value)
    assert caught.value.names == tuple(changes)


@pytest.mark.timeout(10)
@each_cell
@pytest.mark.parametrize("name", ["d_model", "num_layers", "vocab_size"])
def test_a_model_that_cannot_fit_in_memory_is_refused_before_it_is_made(cell: str, name: str) -> None:
    config = RecurrentConfig(**{**SMALL, "cell": cell, name: 10**18})
    with pytest.raises(SettingError, match=r"a model of this size needs at least .* there are .*: choose a smaller d_model"):
        RecurrentLM(config)


@pytest.mark.timeout(10)
def test_training_that_cannot_fit_in_memory_is_refused(tmp_path: Path, text_ids: np.ndarray) -> None:
    config = TrainingConfig(batch_size=10**9)
    batches = TextBatches(text_ids, 6, 8, vocab_size=11)
    batches.batch_size = config.batch_size
    with pytest.raises(SettingError, match="training this model with this batch_size needs at least"):
        Trainer(make(), batches, config, RunFolder(tmp_path))
