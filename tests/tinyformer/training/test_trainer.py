"""The training loop: a step, in one pass and in shards, logging and checkpoints."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from trainings import GivenBatches, batch, bits_of, random_batch, read_log

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.data.batches import Batch
from tinyformer.data.pairs import PairBatches, Specials
from tinyformer.models.transformer import Transformer, TransformerConfig
from tinyformer.training.checkpoints import load_checkpoint
from tinyformer.training.evaluation import evaluate
from tinyformer.training.logging import LOG_COLUMNS
from tinyformer.training.losses import next_token_loss, translation_loss
from tinyformer.training.trainer import Trainer
from tinytensor.distributed import Communicator


def test_training_makes_its_folder(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer()
    trainer.folder.path.rmdir()
    assert trainer.train()
    assert trainer.folder.best.exists()


# ---------------------------------------------------------------------------------------------------------- one step


@pytest.mark.parametrize("rows", [[2, 2], [2, 2, 2, 2], [3, 1], [1, 4, 2]])
def test_accumulated_batches_are_one_large_batch(make_trainer, rows: list[int]) -> None:
    ids = random_batch(sum(rows))
    parts = [batch(part) for part in np.split(ids, np.cumsum(rows)[:-1])]
    several = make_trainer(batches=GivenBatches(parts), dropout=0.0, gradient_accumulation_steps=len(parts), clip=0.0)
    at_once = make_trainer(batches=GivenBatches([batch(ids)]), dropout=0.0, clip=0.0)
    loss, norm, count = several.train_step()
    expected_loss, expected_norm, expected_count = at_once.train_step()
    assert count == expected_count == 8 * sum(rows)
    assert float(loss) == pytest.approx(float(expected_loss), abs=1e-6)
    assert float(norm) == pytest.approx(float(expected_norm), abs=1e-6)
    for (name, one), other in zip(several.model.named_parameters(), at_once.model.parameters()):
        np.testing.assert_allclose(one.grad.numpy(), other.grad.numpy(), rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("rows", [[0], [0, 0], [2, 0, 1]])
@pytest.mark.parametrize("shards", [1, 2])
def test_a_batch_without_targets_is_like_none(make_trainer, rows: list[int], shards: int) -> None:
    ids = random_batch(6)
    ignored = Batch(tt.tensor(ids[:2, :-1]), tt.full((2, 8), -100, dtype="int64"), 0)
    parts = [batch(ids[:count]) if count else ignored for count in rows]
    settings = {"dropout": 0.0, "weight_decay": 0.0, "shards": shards}
    some = make_trainer(batches=GivenBatches(parts), gradient_accumulation_steps=len(parts), **settings)
    before = bits_of(some.model.state_dict())
    loss, norm, count = some.train_step()
    if not any(rows):
        assert float(loss) == float(norm) == count == 0
        assert bits_of(some.model.state_dict()) == before
        assert evaluate(some.model, GivenBatches([], [ignored])) == 0.0
        return
    kept = [part for part in parts if part.num_targets]
    others = make_trainer(batches=GivenBatches(kept), gradient_accumulation_steps=len(kept), **settings)
    assert (float(loss), float(norm), count) == tuple(map(float, others.train_step()))
    valid = [batch(ids[:2])]
    assert evaluate(some.model, GivenBatches([], [ignored, *valid])) == evaluate(some.model, GivenBatches([], valid))


@pytest.mark.parametrize(("at", "what"), [(0, "validation loss"), (1, "loss")])
def test_losses_that_are_no_numbers_from_the_start_are_not_blamed_on_the_learning_rate(
    make_trainer, at: int, what: str
) -> None:
    def spoiled(model: Any, batch: Any) -> Any:
        return next_token_loss(model, batch) * (math.nan if model.training or not at else 1.0)

    with pytest.raises(UserError) as caught:
        make_trainer(loss_function=spoiled, log_every=1).train()
    assert str(caught.value).startswith(
        f"the {what} is nan with the weights that training began with: they or the data hold NaN"
    )
    assert "learning" not in str(caught.value)


@pytest.mark.parametrize(
    ("clip", "remedy"),
    [(0.0, "a lower learning_rate or clip 1"), (1.0, "a lower learning_rate"), (5.0, "a lower learning_rate or clip 1")],
)
def test_what_helps_against_losses_that_are_no_numbers(make_trainer, clip: float, remedy: str) -> None:
    calls = []

    def spoiled(model: Any, batch: Any) -> Any:
        calls.append(model.training)
        return next_token_loss(model, batch) * (math.nan if sum(calls) > 4 else 1.0)

    with pytest.raises(UserError, match=f"What usually helps: {remedy}$"):
        make_trainer(loss_function=spoiled, log_every=1, clip=clip, shards=1).train()


def test_each_step_starts_from_no_gradient(make_trainer) -> None:
    # At a learning rate of 0 the weights stay, so the same batch must give the same gradient again.
    ids = batch(random_batch(4))
    trainer = make_trainer(batches=GivenBatches([ids, ids]), dropout=0.0, learning_rate=0.0, weight_decay=0.0)
    first, second = float(trainer.train_step()[1]), float(trainer.train_step()[1])
    assert first == second > 0


@pytest.mark.parametrize("clip", [0.0, 1e-3, 1e3])
def test_gradients_are_clipped_but_the_norm_is_from_before(make_trainer, clip: float) -> None:
    trainer = make_trainer(batches=GivenBatches([batch(random_batch(4))]), dropout=0.0, clip=clip)
    norm = float(trainer.train_step()[1])
    gradients = [p.grad.numpy().astype(np.float64) for p in trainer.model.parameters()]
    assert norm == pytest.approx(math.sqrt(sum(float((g**2).sum()) for g in gradients)), rel=1e-3)
    assert norm > 1e-2
    # After one step AdamW's first moment is 1 - beta1 times the gradient that it read.
    rest = 1 - trainer.config.beta1
    read = [state["first"] / rest for state in trainer.optimizer.state]
    after = math.sqrt(sum(float((tt.tensor(m).numpy().astype(np.float64) ** 2).sum()) for m in read))
    assert after == pytest.approx(min(norm, clip) if clip else norm, rel=1e-3)


def test_the_schedule_is_applied(make_trainer) -> None:
    trainer = make_trainer(steps=12, warmup=4, learning_rate=1e-2, min_learning_rate=1e-3, log_every=1)
    scales = []
    plain_step = trainer.optimizer.step

    def step(scale: float, threads: int, ranks: Communicator, gradient_scale: Any) -> None:
        scales.append(scale)
        plain_step(scale, threads, ranks, gradient_scale)

    trainer.optimizer.step = step
    trainer.train()
    expected = [0.2, 0.4, 0.6, 0.8]
    expected += [0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (i - 4) / 8)) for i in range(4, 12)]
    assert scales == pytest.approx(expected)
    # The log shows the rate that each step was made with.
    assert [row["learning_rate"] for row in trainer.rows[1:]] == pytest.approx([1e-2 * scale for scale in expected])


def test_the_rate_reaches_the_weights(make_trainer) -> None:
    # Adam's first step moves each weight by the learning rate, whatever the gradient (unless that is all but 0).
    trainer = make_trainer(dropout=0.0, warmup=4, learning_rate=1e-2, weight_decay=0.0)
    before = trainer.model.token_embedding.weight.numpy().copy()
    trainer.train_step()
    moved = np.abs(trainer.model.token_embedding.weight.numpy() - before)
    assert np.median(moved) == pytest.approx(0.2 * 1e-2, rel=1e-3)


def test_a_learning_rate_of_zero_changes_nothing(make_trainer, bits) -> None:
    trainer = make_trainer(learning_rate=0.0)
    before = bits(trainer.model.state_dict())
    trainer.train_step()
    assert bits(trainer.model.state_dict()) == before


@pytest.mark.parametrize("shards", [1, 3])
def test_a_step_leaves_no_garbage(make_trainer, shards: int) -> None:
    # Reference cycles would keep a step's arrays until the collector runs, long after they are of no use.
    trainer = make_trainer(gradient_accumulation_steps=2, shards=shards)
    trainer.train_step()
    gc.disable()
    gc.freeze()  # only what comes after this is looked at, not all that was ever imported
    try:
        trainer.train_step()
        trainer.train_step()
        assert gc.collect() == 0
    finally:
        gc.unfreeze()
        gc.enable()


# ---------------------------------------------------------------------------------------------- the loop and its log


def test_training_learns(make_trainer) -> None:
    trainer = make_trainer(steps=60, eval_every=60, dropout=0.0, num_layers=2)
    assert trainer.train() is True
    first, last = trainer.rows[0]["validation_loss"], trainer.rows[-1]["validation_loss"]
    assert first == pytest.approx(math.log(11), abs=0.2)
    assert last < first - 0.1
    assert trainer.rows[-1]["train_loss"] < first - 0.5
    assert trainer.best_loss == last
    assert trainer.best_step == 60


def test_the_log(make_trainer) -> None:
    losses, norms = [], []
    trainer = make_trainer(steps=12, eval_every=8, log_every=5)
    plain_step = trainer.train_step

    def train_step() -> Any:
        loss, norm, count = plain_step()
        losses.append(float(loss))
        norms.append(float(norm))
        return loss, norm, count

    trainer.train_step = train_step
    trainer.train()
    rows = read_log(trainer.folder)
    assert tuple(rows[0]) == LOG_COLUMNS
    # A row every 5 steps, one at each evaluation, one at the start and one at the end.
    assert [row["step"] for row in rows] == ["0", "5", "8", "10", "12"]
    assert [row["validation_loss"] != "" for row in rows] == [True, False, True, False, True]
    assert rows[0]["train_loss"] == rows[0]["gradient_norm"] == ""
    # A row's training loss is the mean over the steps since the row before.
    means = [np.mean(losses[a:b]) for a, b in [(0, 5), (5, 8), (8, 10), (10, 12)]]
    assert [float(row["train_loss"]) for row in rows[1:]] == pytest.approx(means, abs=1e-9)
    assert [float(row["gradient_norm"]) for row in rows[1:]] == [norms[i - 1] for i in (5, 8, 10, 12)]
    seconds = [float(row["seconds"]) for row in rows]
    assert seconds == sorted(seconds)
    assert seconds[0] == 0.0


def test_the_best_checkpoint_is_not_replaced_by_a_worse_one(make_trainer, bits) -> None:
    scripted = iter([3.0, 2.0, 1.0, 1.5, 1.0])  # at steps 0, 4, 8, 12, 16; the last is as good, not better
    weights = []

    def loss_function(model: Any, batch: Any) -> Any:
        if model.training:
            return next_token_loss(model, batch)
        weights.append({name: value.copy() for name, value in model.state_dict().items()})
        return tt.tensor(next(scripted))

    one_batch = batch(random_batch(2))
    trainer = make_trainer(loss_function=loss_function, steps=16, eval_every=4)
    trainer.batches.validation_batches = lambda: iter([one_batch])
    trainer.train()
    assert (trainer.best_loss, trainer.best_step) == (1.0, 8)
    best, state = load_checkpoint(trainer.folder.best, "best")
    assert state == {"kind": "best", "step": 8, "validation_loss": 1.0}
    assert bits(best["model"]) == bits(weights[2])
    assert bits(best["model"]) != bits(weights[3])
    latest, state = load_checkpoint(trainer.folder.latest, "latest")
    assert state["step"] == 16
    assert bits(latest["model"]) == bits(weights[4])


def test_something_is_said_at_each_evaluation_of_the_weights_as_they_are(make_trainer, capsys) -> None:
    trainer = make_trainer(steps=20, eval_every=10, average=2)
    seen = []

    def say() -> str:
        seen.append(trainer.model.token_embedding.weight.numpy().copy())
        return f"said after step {trainer.step}"

    trainer.on_evaluation = say
    trainer.train()
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("said")] == [f"said after step {n}" for n in (10, 20)]
    assert (seen[1] == trainer.model.token_embedding.weight.numpy()).all()  # not those of the average
    assert (seen[0] != seen[1]).any()


# --------------------------------------------------------------------------------------------------------- averaging


def averaging(make_trainer, losses: list[float], **settings: Any) -> tuple[Trainer, list[dict[str, np.ndarray]]]:
    """A trainer whose evaluations find these losses, and the weights that each was of."""
    left = iter(losses)
    seen: list[dict[str, np.ndarray]] = []

    def loss_function(model: Any, batch: Any) -> Any:
        if model.training:
            return next_token_loss(model, batch)
        seen.append({name: value.numpy().copy() for name, value in model.state_dict().items()})
        return tt.tensor(next(left))

    one_batch = batch(random_batch(2))
    trainer = make_trainer(loss_function=loss_function, **{"steps": 16, "eval_every": 4, **settings})
    trainer.batches.validation_batches = lambda: iter([one_batch])
    return trainer, seen


@pytest.mark.parametrize(("average", "first"), [(2, 3), (3, 2), (4, 1), (9, 1)])  # never those before the first step
def test_the_last_weights_are_averaged(make_trainer, average: int, first: int) -> None:
    # At steps 0, 4, 8, 12 and 16, then of the mean, which is the best.
    trainer, seen = averaging(make_trainer, [5.0, 4.0, 1.0, 2.0, 3.0, 0.5], average=average)
    trainer.train()
    assert len(seen) == 6
    best, state = load_checkpoint(trainer.folder.best, "best")
    assert state == {"kind": "best", "step": 16, "validation_loss": 0.5}
    assert (trainer.best_loss, trainer.best_step) == (0.5, 16)
    latest = load_checkpoint(trainer.folder.latest, "latest")[0]["model"]
    for name, tensor in best["model"].items():
        mean = np.mean([weights[name].astype(np.float64) for weights in seen[first:5]], axis=0)
        np.testing.assert_allclose(tensor.numpy(), mean, rtol=0, atol=1e-6, err_msg=name)
        np.testing.assert_array_equal(seen[5][name], tensor.numpy(), err_msg=name)  # the mean is what was evaluated
        # The run's own weights are as they were.
        np.testing.assert_array_equal(latest[name].numpy(), seen[4][name], err_msg=name)
        np.testing.assert_array_equal(trainer.model.state_dict()[name].numpy(), seen[4][name], err_msg=name)


@pytest.mark.parametrize("of_the_mean", [1.0, 1.5])  # as good is not better
def test_a_mean_that_is_not_better_is_dropped(make_trainer, bits, of_the_mean: float) -> None:
    trainer, seen = averaging(make_trainer, [5.0, 4.0, 1.0, 2.0, 3.0, of_the_mean], average=3)
    trainer.train()
    best, state = load_checkpoint(trainer.folder.best, "best")
    assert state == {"kind": "best", "step": 8, "validation_loss": 1.0}
    assert bits(best["model"]) == {name: value.tobytes() for name, value in seen[2].items()}
    assert (trainer.best_loss, trainer.best_step) == (1.0, 8)


def test_only_as_many_weights_are_kept_as_are_averaged(make_trainer) -> None:
    trainer, _ = averaging(make_trainer, [5.0, 4.0, 3.0, 2.0, 1.0, 0.5], average=2)
    kept = []
    trainer.on_evaluation = lambda: kept.append([path.stem for path in trainer.folder.kept_weights()]) or ""
    trainer.train()
    names = {n: f"weights-{n:08d}" for n in (4, 8, 12, 16)}
    assert kept == [[names[4]], [names[4], names[8]], [names[8], names[12]], [names[12], names[16]]]
    # A new run in the same folder does not average those of the old one.
    with pytest.raises(UserError, match="holds a run already"):
        trainer.folder.create({})
    trainer.folder.create({}, overwrite=True)
    assert trainer.folder.kept_weights() == []
    trainer.folder.move_into_place()
    assert [path.name for path in trainer.folder.path.iterdir()] == ["config.json"]


def test_without_averaging_no_weights_are_kept(make_trainer) -> None:
    trainer, seen = averaging(make_trainer, [5.0, 4.0, 3.0, 2.0, 1.0])
    trainer.train()
    assert len(seen) == 5
    assert trainer.folder.kept_weights() == []


# ------------------------------------------------------------------------------------------------------------ shards


@pytest.mark.parametrize("shards", [2, 3, 4, 9])
@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_step_of_shards_is_a_step(make_trainer, shards: int, accumulated: int) -> None:
    drawn = [batch(random_batch(rows)) for rows in (4, 3)[:accumulated]]
    rows: list[int] = []

    def loss_function(model: Any, shard: Any) -> Any:
        rows.append(len(shard.inputs))
        return next_token_loss(model, shard)

    given = {"loss_function": loss_function, "dropout": 0.0, "clip": 0.0, "gradient_accumulation_steps": accumulated}
    trainers = [make_trainer(batches=GivenBatches(drawn), shards=n, **given) for n in (1, shards)]
    (loss, norm, count), (sharded_loss, sharded_norm, sharded_count) = [trainer.train_step() for trainer in trainers]
    model = make_trainer(dropout=0.0).model
    mean = sum(float(next_token_loss(model, b)) * b.num_targets for b in drawn) / count
    assert float(loss) == pytest.approx(mean, abs=1e-6)
    assert sharded_count == count
    assert len(rows) == accumulated + sum(min(shards, n) for n in (4, 3)[:accumulated])
    assert float(sharded_loss) == pytest.approx(float(loss), abs=1e-6)
    assert float(sharded_norm) == pytest.approx(float(norm), abs=1e-6)
    plain, sharded = [trainer.model for trainer in trainers]
    for (name, one), other in zip(plain.named_parameters(), sharded.parameters()):
        np.testing.assert_allclose(other.grad.numpy(), one.grad.numpy(), rtol=0, atol=1e-6, err_msg=name)


def test_training_in_shards_equals_training_in_one_pass(make_trainer) -> None:
    runs = []
    for shards in (1, 2):
        trainer = make_trainer(f"{shards}", dropout=0.0, shards=shards, log_every=1, learning_rate=1e-3)
        trainer.train()
        losses = [row[name] for row in trainer.rows for name in ("train_loss", "validation_loss")]
        runs.append([loss for loss in losses if loss is not None])
    assert len(runs[0]) == 20 + 3
    assert runs[1] == pytest.approx(runs[0], rel=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_shards_of_padded_pairs_count_by_all_targets_of_the_batch(training: bool) -> None:
    # The rows have 2, 1 and 5 targets: a mean of the shards' means would differ.
    pairs = [([3, 4], [5]), ([6], []), ([7, 8, 9], [3, 4, 5, 6])]
    model = Transformer(TransformerConfig(11, 11, 8, 2, 1, 1, 8, dropout=0.0)).train(training)
    whole = PairBatches(pairs, pairs, Specials(0, 1, 2), batch_size=3).sample()
    loss = translation_loss(0.1, 0)
    parts = whole.split(3)
    assert [part.num_targets for part in parts] == [8] * 3
    assert sum(float(loss(model, part)) for part in parts) == pytest.approx(float(loss(model, whole)), rel=1e-6)
