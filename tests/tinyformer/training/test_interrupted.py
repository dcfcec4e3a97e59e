"""Training that is interrupted, and resumed as if it was not; in shards, too."""

from __future__ import annotations

import functools
import itertools
import math
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trainings import batch, interrupted, outcome, random_batch, trainer_in

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.data.pairs import PairBatches, Specials
from tinyformer.models.gpt import GPT
from tinyformer.models.transformer import Transformer, TransformerConfig
from tinyformer.training.checkpoints import load_checkpoint
from tinyformer.training.config import TrainingConfig
from tinyformer.training.losses import next_token_loss, translation_loss
from tinyformer.training.run_folder import RunFolder, load_weights
from tinyformer.training.trainer import Trainer
from tinytensor import parallel
from tinytensor.io import load_with_metadata


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


# In the middle of a row of the log; just before, at and after a row, an evaluation and checkpoint; at the first and the
# last step; and several times.
MOMENTS = [[7], [4], [5], [6], [9], [10], [11], [1], [19], [3, 4, 12], [1, 1, 1]]


CASES: list[tuple[dict[str, Any], list[int]]] = [
    *(({}, moments) for moments in MOMENTS),
    *(({"gradient_accumulation_steps": 2}, moments) for moments in ([7], [10], [3, 4, 12])),
    *(({"optimizer": "muon", "num_layers": 2}, moments) for moments in ([7], [10], [3, 4, 12])),
    *(({"optimizer": optimizer}, [3, 4, 12]) for optimizer in ("sgd", "lion")),
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


def test_seconds_accumulate_over_resumes(make_trainer) -> None:
    trainer = make_trainer(interrupt=3)  # before the first row of the log
    trainer.train()
    assert trainer.seconds > 0
    resumed = make_trainer()
    resumed.resume()
    assert resumed.seconds == trainer.seconds
    resumed.train()
    assert resumed.seconds > trainer.seconds


def test_a_second_interrupt_stops_immediately(make_trainer) -> None:
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


def test_a_stopped_trainer_may_continue(make_trainer, uninterrupted: Uninterrupted) -> None:
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


# ------------------------------------------------------------------------------------------------------ when it goes wrong


def spoiled(at: int, spoil: Callable[[GPT, Any], Any], training: bool = True) -> Callable[[Any, Any], Any]:
    """The usual loss, except for one call in (or outside) training, counted from 1."""
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


# ------------------------------------------------------------------------------------------------------- frozen parameters


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


# --------------------------------------------------------------------------------------------------- checkpoints of before


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


# ------------------------------------------------------------------------------------------------ checkpoints that are not


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
