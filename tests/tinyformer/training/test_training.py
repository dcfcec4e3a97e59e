"""The training loop: what a step is, how the whole split is evaluated, what is logged and kept, and exact resumption."""

from __future__ import annotations

import functools
import gc
import itertools
import math
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trainings import interrupted, outcome, read_log

import tinytensor as tt
from tinyformer.data.batches import Batch
from tinyformer.data.pairs import PairBatches, Specials
from tinyformer.data.text import TextBatches
from tinyformer.errors import SettingError, UserError
from tinyformer.models.gpt import GPT, GPTConfig
from tinyformer.models.recurrent import RecurrentConfig, RecurrentLM
from tinyformer.models.transformer import Transformer, TransformerConfig
from tinyformer.training.checkpoints import load_checkpoint
from tinyformer.training.config import SCHEDULES, TrainingConfig
from tinyformer.training.evaluation import evaluate, perplexity
from tinyformer.training.logging import LOG_COLUMNS
from tinyformer.training.losses import next_token_loss, translation_loss
from tinyformer.training.optimizing import optimizer_for
from tinyformer.training.runs import RunFolder, load_weights
from tinyformer.training.trainer import Trainer
from tinytensor import parallel
from tinytensor.distributed import Communicator
from tinytensor.io import load_with_metadata

SETTINGS = {"steps": 20, "batch_size": 4, "eval_every": 10, "log_every": 5, "warmup": 4, "learning_rate": 1e-2, "shards": 1}


def trainer_in(
    folder: Path,
    ids: np.ndarray,
    batches: Any = None,
    loss_function: Any = next_token_loss,
    dropout: float = 0.2,
    d_model: int = 16,
    num_layers: int = 1,
    **settings: Any,
) -> Trainer:
    """A trainer of a tiny GPT with dropout, the same each time."""
    config = TrainingConfig(**{**SETTINGS, **settings})
    tt.seed(config.seed)
    model = GPT(GPTConfig(11, 8, num_layers, 2, d_model, dropout, bias=True))
    folder.mkdir(exist_ok=True)
    batches = batches or TextBatches(ids, 8, config.batch_size, config.seed)
    return Trainer(model, batches, config, RunFolder(folder), loss_function)


@pytest.fixture
def make_trainer(tmp_path: Path, text_ids: np.ndarray) -> Callable[..., Trainer]:
    """Makes trainers in a folder of their own or the one named. A run of batches that are ``interrupt``-ed stops there."""

    def make(folder: str = "run", interrupt: int = 0, times: int = 1, **given: Any) -> Trainer:
        trainer = trainer_in(tmp_path / folder, text_ids, **given)
        if interrupt:
            interrupted(trainer.batches, interrupt, times)
        return trainer

    return make


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, text_ids: np.ndarray) -> Callable[..., dict[str, Any]]:
    """What a run of these settings leaves that nothing interrupts. Each is trained once."""

    @functools.cache
    def of(**settings: Any) -> dict[str, Any]:
        trainer = trainer_in(tmp_path_factory.mktemp("whole"), text_ids, **settings)
        assert trainer.train() is True
        return outcome(trainer)

    return of


Uninterrupted = Callable[..., dict[str, Any]]


def test_training_makes_its_folder(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer()
    trainer.folder.path.rmdir()
    assert trainer.train()
    assert trainer.folder.best.exists()


class GivenBatches:
    """Hands out the batches it was given, one after the other."""

    def __init__(self, batches: list[Batch], validation: list[Batch] | None = None):
        self.batches = iter(batches)
        self.validation = validation or []

    def sample(self) -> Batch:
        return next(self.batches)

    def validation_batches(self) -> Iterator[Batch]:
        return iter(self.validation)


def batch(ids: np.ndarray) -> Batch:
    return Batch(tt.tensor(ids[:, :-1]), tt.tensor(ids[:, 1:]), ids[:, 1:].size)


def random_batch(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 11, (rows, 9))


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


def test_matrices_decay_and_biases_and_norms_do_not(make_gpt) -> None:
    model = make_gpt(bias=True)
    optimizer = optimizer_for(model, TrainingConfig(learning_rate=0.1, weight_decay=0.5))
    decaying = {id(p) for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]}
    for name, parameter in model.named_parameters():
        assert (id(parameter) in decaying) == (name.endswith("weight") and "norm" not in name), name
        # Ones show a decay, and without a gradient there is nothing else to move them.
        parameter.assign(np.ones(parameter.shape, np.float32))
        parameter.grad = tt.tensor(np.zeros(parameter.shape, np.float32))
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))
    optimizer.step()
    for name, parameter in model.named_parameters():
        expected = 1 - 0.1 * 0.5 if name.endswith("weight") and "norm" not in name else 1.0
        np.testing.assert_allclose(parameter.numpy(), expected, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("shared", [False, True])
def test_muon_changes_the_matrices_of_the_blocks(shared: bool) -> None:
    """Each matrix by itself: queries, keys and values are made by one layer."""
    sizes = {"d_model": 8, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "d_ff": 16}
    model = Transformer(TransformerConfig(11, 11, share_embeddings=shared, **sizes))
    optimizer = optimizer_for(model, TrainingConfig(learning_rate=0.1, muon_learning_rate=0.2, weight_decay=0.5))
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        group = groups.pop(id(parameter))
        in_block = "blocks." in name and name.endswith("weight") and "norm" not in name
        several = {"query_key_value": 3, "key_value": 2}.get(name.split(".")[-2], 1)
        assert (group["orthogonal"], group["lr"]) == ((True, 0.2) if in_block else (False, 0.1)), name
        assert group["parts"] == (several if in_block else 1), name
        assert group["weight_decay"] == (0.5 if parameter.ndim > 1 and not in_block else 0.0), name
    assert not groups


def test_muon_needs_blocks() -> None:
    says = "muon_learning_rate is for the blocks of Transformers, and a RecurrentLM has none: leave it out"
    with pytest.raises(SettingError, match=says):
        optimizer_for(RecurrentLM(RecurrentConfig(11, cell="lstm", d_model=8)), TrainingConfig(muon_learning_rate=0.02))


def test_grouped_heads_are_one_matrix_to_muon() -> None:
    model = GPT(GPTConfig(11, 8, 1, 4, 8, num_key_value_heads=2))
    optimizer = optimizer_for(model, TrainingConfig(muon_learning_rate=0.02))
    assert {group["parts"] for group in optimizer.param_groups} == {1}


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


# --------------------------------------------------------------------------------------------------------- schedules


def factors(schedule: str, steps: int = 12, warmup: int = 4, learning_rate: float = 1e-2) -> list[float]:
    config = TrainingConfig(
        steps=steps, warmup=warmup, schedule=schedule, learning_rate=learning_rate, min_learning_rate=learning_rate / 10
    )
    chosen = config.make_schedule()
    return [chosen(i) for i in range(steps + 3)]


def test_schedules_by_name() -> None:
    rising = [0.2, 0.4, 0.6, 0.8]
    assert factors("constant") == pytest.approx([*rising, *[1.0] * 11])
    assert factors("linear") == pytest.approx([*rising, *[1 - 0.9 * i / 8 for i in range(9)], 0.1, 0.1])
    cosine = [0.1 + 0.45 * (1 + math.cos(math.pi * i / 8)) for i in range(9)]
    assert factors("cosine") == pytest.approx([*rising, *cosine, 0.1, 0.1])
    assert len({tuple(factors(name)) for name in SCHEDULES}) == len(SCHEDULES) == 4


@pytest.mark.parametrize("warmup", [1, 4, 100])
def test_noam_reaches_1_at_the_end_of_the_warm_up_and_falls_as_the_root(warmup: int) -> None:
    scales = factors("noam", steps=16 * warmup, warmup=warmup)
    assert scales.index(max(scales)) == warmup - 1
    assert scales[warmup - 1] == pytest.approx(1.0)
    assert scales[:warmup] == pytest.approx([s / warmup for s in range(1, warmup + 1)])
    assert [scales[4 * warmup - 1], scales[16 * warmup - 1]] == pytest.approx([1 / 2, 1 / 4])


def test_noam_without_warm_up_and_a_rate_of_0() -> None:
    assert factors("noam", warmup=0)[:4] == pytest.approx([1, 2**-0.5, 3**-0.5, 1 / 2])
    for name in SCHEDULES:
        assert all(0 <= factor <= 1 for factor in factors(name, learning_rate=0.0))


# -------------------------------------------------------------------------------------------------------- evaluation


@pytest.mark.parametrize("training", [True, False])
def test_the_whole_split_is_evaluated(make_trainer, text_ids: np.ndarray, training: bool) -> None:
    trainer = make_trainer(dropout=0.5)
    model = trainer.model.train(training)
    loss = evaluate(model, trainer.batches)
    assert all(m.training is training for m in model.modules())
    # By hand: each window of the held-out ids, each target's own loss in float64, one mean over all of them.
    held_out = trainer.batches.validation.numpy()
    assert held_out.tolist() == text_ids[-30:].tolist()
    assert len(held_out) % 8 != 1  # so that the tail is shorter and a mean of the batches' means would differ
    model.eval()
    losses = []
    for start in range(0, len(held_out) - 1, 8):
        window = held_out[start : start + 9]
        logits = model(tt.tensor(window[None, :-1])).numpy()[0].astype(np.float64)
        losses += list(np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(window) - 1), window[1:]])
    assert len(losses) == 29
    assert loss == pytest.approx(np.mean(losses), abs=1e-6)


def test_batches_count_by_their_targets() -> None:
    scripted = {3: 1.0, 1: 5.0}
    ids = tt.tensor([[0]])
    batches = GivenBatches([], [Batch(ids, ids, 3), Batch(ids, ids, 1)])
    loss = evaluate(tt.nn.Linear(1, 1), batches, lambda model, batch: tt.tensor(scripted[batch.num_targets]))
    assert loss == 2.0


def test_evaluation_records_nothing(make_trainer) -> None:
    recorded = []

    def loss_function(model: Any, batch: Any) -> Any:
        loss = next_token_loss(model, batch)
        recorded.append(loss.requires_grad)
        return loss

    trainer = make_trainer()
    evaluate(trainer.model, trainer.batches, loss_function)
    assert recorded == [False, False]


def test_perplexity() -> None:
    assert perplexity(0.0) == 1.0
    assert perplexity(math.log(65)) == pytest.approx(65)
    assert perplexity(1e6) == math.inf


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


# ------------------------------------------------------------------------------------------- interrupted and resumed


# In the middle of a row of the log; just before, at and after a row, an evaluation and checkpoint; at the first and the
# last step; and several times.
MOMENTS = [[7], [4], [5], [6], [9], [10], [11], [1], [19], [3, 4, 12], [1, 1, 1]]
CASES: list[tuple[dict[str, Any], list[int]]] = [
    *(({}, moments) for moments in MOMENTS),
    *(({"gradient_accumulation_steps": 2}, moments) for moments in ([7], [10], [3, 4, 12])),
    *(({"muon_learning_rate": 0.02, "num_layers": 2}, moments) for moments in ([7], [10], [3, 4, 12])),
    *(({"shards": 2}, moments) for moments in ([7], [10], [11])),
]


@pytest.mark.parametrize(("settings", "interruptions"), CASES, ids=str)
def test_interrupted_and_resumed_is_bit_for_bit_uninterrupted(
    make_trainer, uninterrupted: Uninterrupted, settings: dict[str, Any], interruptions: list[int]
) -> None:
    reached = 0
    for n, steps in enumerate(interruptions):
        trainer = make_trainer("parts", steps * settings.get("gradient_accumulation_steps", 1), **settings)
        if n > 0:
            trainer.resume()
        assert trainer.train() is False
        reached += steps
        assert trainer.step == reached  # the step in which Ctrl-C came was finished, and none begun after it
        assert load_checkpoint(trainer.folder.latest, "latest")[1]["step"] == reached
    last = make_trainer("parts", **settings)
    last.resume()
    assert last.train() is True
    actual = outcome(last)
    for name, value in uninterrupted(**settings).items():
        assert actual[name] == value, name


def translator_in(folder: Path, interrupt: int = 0) -> Trainer:
    """A trainer of a tiny Transformer, whose languages share one embedding, that averages weights; the same each time."""
    rng = np.random.default_rng(0)
    pairs = [(rng.integers(3, 11, a).tolist(), rng.integers(3, 11, b).tolist()) for a, b in rng.integers(1, 7, (25, 2))]
    config = TrainingConfig(steps=16, batch_size=4, eval_every=4, log_every=3, warmup=4, average=3, schedule="noam")
    tt.seed(config.seed)
    sizes = {"d_model": 8, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "d_ff": 8}
    model = Transformer(TransformerConfig(11, 11, dropout=0.3, share_embeddings=True, **sizes))
    batches = interrupted(PairBatches(pairs[:20], pairs[20:], Specials(0, 1, 2), config.batch_size, config.seed), interrupt)
    folder.mkdir(exist_ok=True)
    return Trainer(model, batches, config, RunFolder(folder), translation_loss(0.1, 0))


@pytest.fixture
def make_translator(tmp_path: Path) -> Callable[..., Trainer]:
    return lambda folder, interrupt=0: translator_in(tmp_path / folder, interrupt)


@pytest.fixture(scope="module")
def whole_translator(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the run leaves that nothing interrupts."""
    trainer = translator_in(tmp_path_factory.mktemp("whole"))
    assert trainer.train() is True
    return outcome(trainer)


# 5 batches an epoch: within one, at its end and its start; before, at and after an evaluation; at once; and several times.
@pytest.mark.parametrize("interruptions", [[4], [5], [6], [8], [15], [1, 2, 4, 2]])
def test_translating_and_averaging_is_resumed_bit_for_bit(make_translator, whole_translator, interruptions: list[int]) -> None:
    for n, steps in enumerate(interruptions):
        trainer = make_translator("parts", steps)
        if n > 0:
            trainer.resume()
        assert trainer.train() is False
    last = make_translator("parts")
    last.resume()
    assert last.step == sum(interruptions)
    assert last.train() is True
    assert outcome(last) == whole_translator
    assert len(whole_translator["kept"]) == 3


def test_resuming_matters(make_trainer, uninterrupted: Uninterrupted) -> None:
    # The comparison above can fail: another seed for dropout alone, or other shards, and the weights are others.
    make_trainer("parts", 7).train()
    last = make_trainer("parts")
    last.resume()
    tt.seed(0)
    last.train()
    assert outcome(last)["weights"] != uninterrupted()["weights"]
    assert uninterrupted(shards=3)["weights"] != uninterrupted(shards=2)["weights"]


def test_a_crash_costs_the_steps_since_the_last_checkpoint_and_nothing_else(make_trainer, uninterrupted: Uninterrupted) -> None:
    for shards, crash_at, saved in ((1, 14, 10), (1, 1, 0), (2, 1, 0)):
        folder = f"{shards} {crash_at}"
        crashing = make_trainer(folder, shards=shards)
        sample, drawn = crashing.batches.sample, itertools.count(1)
        crashing.batches.sample = lambda sample=sample, drawn=drawn, at=crash_at: sample() if next(drawn) != at else 1 / 0
        with pytest.raises(ZeroDivisionError):
            crashing.train()
        last = make_trainer(folder, shards=shards)
        last.resume()
        assert last.step == saved
        last.train()
        assert outcome(last) == uninterrupted(shards=shards)


def test_the_best_so_far_is_remembered(make_trainer) -> None:
    # After resuming, an evaluation worse than one before the interruption must not replace the best checkpoint.
    def scripted(values: list[float]) -> Any:
        left = iter(values)

        def loss_function(model: Any, batch: Any) -> Any:
            return next_token_loss(model, batch) if model.training else tt.tensor(next(left))

        return loss_function

    one_batch = batch(random_batch(2))
    trainer = make_trainer(interrupt=12, loss_function=scripted([2.0, 1.0]))
    trainer.batches.validation_batches = lambda: iter([one_batch])
    assert trainer.train() is False
    resumed = make_trainer(loss_function=scripted([1.5]))
    resumed.batches.validation_batches = lambda: iter([one_batch])
    resumed.resume()
    assert resumed.train() is True
    assert (resumed.best_loss, resumed.best_step) == (1.0, 10)
    assert load_checkpoint(resumed.folder.best, "best")[1]["step"] == 10


def test_a_finished_run_has_nothing_left_to_do(make_trainer, uninterrupted: Uninterrupted) -> None:
    make_trainer().train()
    again = make_trainer()
    again.resume()
    assert again.train() is True
    assert outcome(again) == uninterrupted()


def test_seconds_go_on(make_trainer) -> None:
    trainer = make_trainer(interrupt=3)  # before the first row of the log
    trainer.train()
    assert trainer.seconds > 0
    resumed = make_trainer()
    resumed.resume()
    assert resumed.seconds == trainer.seconds
    resumed.train()
    assert resumed.seconds > trainer.seconds


def test_a_second_interrupt_stops_at_once(make_trainer) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background ignores Ctrl-C
    before = signal.getsignal(signal.SIGINT)
    trainer = make_trainer(interrupt=7, times=2)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert trainer.step == 6
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_in_the_last_step_is_not_forgotten(make_trainer, uninterrupted: Uninterrupted) -> None:
    trainer = make_trainer("parts")
    trainer.on_evaluation = lambda: signal.raise_signal(signal.SIGINT) if trainer.step == trainer.config.steps else ""
    assert trainer.train() is False  # what would come after it is not begun
    assert trainer.step == trainer.config.steps
    assert "Ctrl-C after step 20 and saved" in trainer.stop_message("python example.py")
    last = make_trainer("parts")
    last.resume()
    assert last.train() is True
    assert outcome(last) == uninterrupted()


def test_a_trainer_that_was_stopped_may_go_on(make_trainer, uninterrupted: Uninterrupted) -> None:
    trainer = make_trainer("parts", 7)
    assert trainer.train() is False
    assert trainer.train() is True
    assert outcome(trainer) == uninterrupted()


@pytest.mark.parametrize("interrupt_at", [7, 0])
def test_ctrl_c_means_what_it_did_before_and_after(make_trainer, interrupt_at: int) -> None:
    before = signal.getsignal(signal.SIGINT)
    trainer = make_trainer(interrupt=interrupt_at)
    assert trainer.train() is (interrupt_at == 0)
    assert signal.getsignal(signal.SIGINT) is before


# ------------------------------------------------------------------------------------------------------------ shards


@pytest.mark.parametrize("shards", [2, 3, 4, 9])
@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_step_of_shards_is_a_step(make_trainer, shards: int, accumulated: int) -> None:
    drawn = [batch(random_batch(rows)) for rows in (4, 3)[:accumulated]]
    rows: list[int] = []

    def loss_function(model: Any, shard: Any) -> Any:
        rows.append(len(shard.inputs))
        return next_token_loss(model, shard)

    given = {
        "loss_function": loss_function,
        "dropout": 0.0,
        "clip": 0.0,
        "gradient_accumulation_steps": accumulated,
    }
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


def test_training_in_shards_follows_training_at_once(make_trainer) -> None:
    runs = []
    for shards in (1, 2):
        trainer = make_trainer(f"{shards}", dropout=0.0, shards=shards, log_every=1, learning_rate=1e-3)
        trainer.train()
        losses = [row[name] for row in trainer.rows for name in ("train_loss", "validation_loss")]
        runs.append([loss for loss in losses if loss is not None])
    assert len(runs[0]) == 20 + 3
    assert runs[1] == pytest.approx(runs[0], rel=1e-5)


@pytest.mark.parametrize("shards", [1, 2, 3, 50])
def test_evaluation_in_shards(make_trainer, shards: int) -> None:
    trainer = make_trainer(dropout=0.5)
    expected = evaluate(trainer.model, trainer.batches)
    assert evaluate(trainer.model, trainer.batches, shards=shards) == pytest.approx(expected, rel=1e-6)


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


def test_a_run_keeps_its_number_of_shards_on_another_machine(
    make_trainer, uninterrupted: Uninterrupted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "default_shards", lambda: 3)
    first = make_trainer("parts", 7, shards=0)
    assert (first.shards, make_trainer(shards=2).shards) == (3, 2)
    first.train()
    monkeypatch.setattr(parallel, "default_shards", lambda: 2)
    last = make_trainer("parts", shards=0)
    assert last.shards == 2
    last.resume()
    assert last.shards == 3
    last.train()
    assert outcome(last) == uninterrupted(shards=3)


# ------------------------------------------------------------------------------------------------- when it goes wrong


def spoiled(at: int, spoil: Callable[[GPT, Any], Any], training: bool = True) -> Callable[[Any, Any], Any]:
    """The usual loss but for one call of those in (or out of) training, counted from 1."""
    calls = 0

    def loss_function(model: Any, batch: Any) -> Any:
        nonlocal calls
        loss = next_token_loss(model, batch)
        calls += model.training is training
        return spoil(model, loss) if calls == at and model.training is training else loss

    return loss_function


def nan_loss(model: GPT, loss: Any) -> Any:
    return loss * math.nan


def infinite_loss(model: GPT, loss: Any) -> Any:
    return loss + math.inf


def nan_gradient(model: GPT, loss: Any) -> Any:
    # A finite loss whose derivative is not: the square root of 0, times 0.
    return loss + tt.sqrt((model.norm.weight * 0.0).sum())


@pytest.mark.parametrize(
    ("spoil", "message", "log_every"),
    [
        (nan_loss, "the loss became nan at step 13", 1),
        (nan_loss, "the loss became nan at step 13", 100),
        (infinite_loss, "the loss became inf at step 13", 5),
        (nan_gradient, "the gradient's norm became nan at step 13", 1),
        (nan_gradient, "the gradient's norm became nan at step 13", 100),
    ],
)
def test_training_stops_at_a_loss_that_is_no_number(
    make_trainer, uninterrupted: Uninterrupted, spoil, message: str, log_every: int
) -> None:
    trainer = make_trainer("bad", loss_function=spoiled(13, spoil), log_every=log_every)
    with pytest.raises(UserError) as caught:
        trainer.train()
    assert message in str(caught.value)
    assert str(trainer.folder.path) in str(caught.value)
    # The checkpoint is that of step 10: a run from there, without the fault, ends where it would have ended.
    resumed = make_trainer("bad", log_every=log_every)
    resumed.resume()
    assert resumed.step == 10
    assert np.isfinite(resumed.model.token_embedding.weight.numpy()).all()
    resumed.train()
    assert outcome(resumed) == uninterrupted(log_every=log_every)


def test_weights_gone_bad_are_not_saved_over_good_ones(make_trainer) -> None:
    # The last step before the evaluation has a finite loss, and only the evaluation shows that the weights are spoiled.
    trainer = make_trainer(loss_function=spoiled(3, nan_loss, training=False))  # two validation batches an evaluation
    with pytest.raises(UserError, match="the validation loss became nan at step 10"):
        trainer.train()
    assert load_checkpoint(trainer.folder.latest, "latest")[1]["step"] == 0
    assert load_checkpoint(trainer.folder.best, "best")[1]["step"] == 0


def test_an_interrupt_does_not_save_bad_weights_either(make_trainer) -> None:
    trainer = make_trainer(interrupt=14, loss_function=spoiled(13, nan_loss), log_every=100)
    with pytest.raises(UserError, match="the loss became nan at step 13"):
        trainer.train()
    assert load_checkpoint(trainer.folder.latest, "latest")[1]["step"] == 10


# -------------------------------------------------------------------------------------------------- frozen parameters


def freeze(trainer: Trainer) -> Trainer:
    """All but the last block and the last norm: a matrix, vectors, the tied embeddings."""
    for name, p in trainer.model.named_parameters():
        p.requires_grad = name.startswith(("blocks.1", "norm"))
    return trainer


@pytest.mark.parametrize(("interrupt_at", "shards"), [(3, 1), (10, 2)])
def test_the_rest_of_a_frozen_model_is_trained_and_resumed_bit_for_bit(
    make_trainer, bits, interrupt_at: int, shards: int
) -> None:
    whole = freeze(make_trainer("whole", shards=shards, num_layers=2))
    before = bits(whole.model.state_dict())
    assert whole.train() is True
    for name, values in bits(whole.model.state_dict()).items():
        assert (values == before[name]) == (not name.startswith(("blocks.1", "norm"))), name

    assert freeze(make_trainer("parts", interrupt_at, shards=shards, num_layers=2)).train() is False
    resumed = freeze(make_trainer("parts", shards=shards, num_layers=2))
    resumed.resume()
    assert resumed.train() is True
    assert outcome(resumed) == outcome(whole)


def test_a_model_frozen_before_and_released_during_training(make_trainer) -> None:
    given = freeze(make_trainer(num_layers=2))
    trainer = Trainer(given.model, given.batches, given.config, given.folder)  # made with what is frozen already
    trainer.train_step()
    embedding = trainer.model.token_embedding.weight
    before = embedding.tolist()
    trainer.train_step()
    assert embedding.tolist() == before
    embedding.requires_grad = True
    trainer.train_step()
    assert embedding.tolist() != before


# ---------------------------------------------------------------------------------------------- checkpoints of before


TIED = ("model/source_embedding.tokens.weight", "model/target_embedding.tokens.weight")


def as_before(path: Path) -> None:
    """Rewrite a translator's checkpoint as they once were: a tied weight under each of its names, and no settings of the
    optimizer."""
    tensors, metadata = load_with_metadata(path)
    assert TIED[1] not in tensors
    tensors = {name: value for name, value in tensors.items() if not name.startswith("optimizer/groups.")}
    tt.save({**tensors, TIED[1]: tensors[TIED[0]]}, path, metadata)


def test_a_run_from_before_is_resumed_bit_for_bit(make_translator, whole_translator) -> None:
    parts = make_translator("parts", 10)
    parts.train()
    for path in (parts.folder.latest, parts.folder.best, *parts.folder.kept_weights()):
        as_before(path)
    load_weights(make_translator("parts").model, parts.folder.best)
    again = make_translator("parts")
    again.resume()
    again.train()
    kept = whole_translator["kept"]  # these files are still as before
    assert {**outcome(again), "kept": kept} == whole_translator


def test_a_checkpoint_whose_tied_copies_differ_is_refused(make_translator) -> None:
    trainer = make_translator("run", 3)
    trainer.train()
    tensors, metadata = load_with_metadata(trainer.folder.latest)
    tt.save({**tensors, TIED[1]: tensors[TIED[0]] + 1.0}, trainer.folder.latest, metadata)
    with pytest.raises(UserError, match=r"does not fit the model in .*target_embedding.* one tied tensor, but have different"):
        make_translator("run").resume()


def test_a_resumed_run_has_the_settings_of_its_checkpoint(make_trainer, uninterrupted: Uninterrupted) -> None:
    make_trainer("parts", 7).train()
    other = make_trainer("parts", beta1=0.5, weight_decay=0.7)
    other.resume()
    other.train()
    assert outcome(other) == uninterrupted()


# ------------------------------------------------------------------------------------------- checkpoints that are not


def test_resuming_without_a_checkpoint(make_trainer) -> None:
    with pytest.raises(UserError, match=r"latest\.safetensors does not exist"):
        make_trainer().resume()


def test_resuming_another_models_checkpoint(make_trainer, bits) -> None:
    make_trainer(steps=2).train()
    other = make_trainer(d_model=32, steps=2)
    before = bits(other.model.state_dict())
    with pytest.raises(UserError, match=r"latest\.safetensors does not fit the model in ") as caught:
        other.resume()
    assert "blocks.0.attention.output.weight: shape (16, 16) instead of (32, 32)" in str(caught.value)
    assert bits(other.model.state_dict()) == before


def test_resuming_from_best_is_refused(make_trainer) -> None:
    # It holds weights alone: going on from it would not be the same run.
    trainer = make_trainer(steps=2)
    trainer.train()
    trainer.folder.latest.write_bytes(trainer.folder.best.read_bytes())
    with pytest.raises(UserError, match="not a checkpoint of the kind 'latest'"):
        make_trainer(steps=2).resume()


# ---------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, not 0"),
        ({"batch_size": -1}, "batch_size must be at least 1, not -1"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps must be at least 1, not 0"),
        ({"eval_every": 0}, "eval_every must be at least 1, not 0"),
        ({"log_every": 0}, "log_every must be at least 1, not 0"),
        ({"learning_rate": -1e-3}, "learning_rate must be at least 0, not -0.001"),
        ({"learning_rate": math.nan}, "learning_rate must be a finite number, not nan"),
        ({"min_learning_rate": math.inf}, "min_learning_rate must be a finite number, not inf"),
        ({"warmup": -1}, "warmup must be at least 0, not -1"),
        ({"weight_decay": -0.1}, "weight_decay must be at least 0, not -0.1"),
        ({"clip": -1.0}, "clip must be at least 0, not -1.0"),
        ({"seed": -1}, "seed must be at least 0, not -1"),
        ({"shards": -1}, "shards must be at least 0, not -1"),
        ({"average": 0}, "average must be at least 1, not 0"),
        ({"schedule": "step"}, "schedule must be one of cosine, linear, constant, noam, not 'step'"),
        ({"beta1": 1.0}, "beta1 must be at least 0 and less than 1, not 1.0"),
        ({"beta2": math.nan}, "beta2 must be a finite number, not nan"),
        ({"steps": 2.0}, "steps must be an integer, not 2.0"),
        ({"steps": "20"}, "steps must be an integer, not '20'"),
        ({"batch_size": True}, "batch_size must be an integer, not True"),
        pytest.param({"learning_rate": 10**400}, "learning_rate must be a finite number, not 1000", id="huge"),
        ({"dtype": None}, "dtype must be text, not None"),
        ({"steps": 10**400}, "steps must be at most 1,000,000,000,000,000"),
        ({"shards": 1025}, "shards must be at most 1024, as each is a thread, not 1025"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, float], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        TrainingConfig(**settings)
    assert str(caught.value).startswith(message)
    (name,) = settings
    assert caught.value.as_flags().startswith("--" + name.replace("_", "-") + " must be ")
