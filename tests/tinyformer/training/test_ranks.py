"""Training on several processes does what one process does with the same shards, and can be stopped and resumed like it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trainings import outcome

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.data.masking import MaskedBatches, Masking
from tinyformer.data.pairs import PairBatches, Specials
from tinyformer.data.text import TextBatches
from tinyformer.models.bert import BertConfig, BertForMaskedLM
from tinyformer.models.gpt import GPT, GPTConfig
from tinyformer.models.transformer import Transformer, TransformerConfig
from tinyformer.training.config import TrainingConfig
from tinyformer.training.losses import masked_token_loss, next_token_loss, translation_loss
from tinyformer.training.run_folder import RunFolder
from tinyformer.training.trainer import Trainer
from tinytensor import distributed
from tinytensor.distributed import processes

pytestmark = pytest.mark.needs("numpy")

SETTINGS = {"steps": 6, "batch_size": 6, "eval_every": 3, "log_every": 2, "warmup": 2, "learning_rate": 1e-2}
SMALL = {"num_heads": 2, "d_model": 16, "d_ff": 24}
IDS = np.random.default_rng(5).integers(4, 11, 400)
RNG = np.random.default_rng(6)
PAIRS = [(RNG.integers(3, 11, n % 5 + 1).tolist(), RNG.integers(3, 11, n % 4 + 1).tolist()) for n in range(60)]


def gpt(config: TrainingConfig, dropout: float) -> tuple[Any, Any, Any]:
    model = GPT(GPTConfig(11, 8, 1, 2, 16, dropout, bias=True))
    return model, TextBatches(IDS, 8, config.batch_size, config.seed), next_token_loss


def translator(config: TrainingConfig, dropout: float) -> tuple[Any, Any, Any]:
    """Its shards have different numbers of targets."""
    model = Transformer(TransformerConfig(11, 11, encoder_layers=1, decoder_layers=1, dropout=dropout, **SMALL))
    return model, PairBatches(PAIRS[:40], PAIRS[40:], Specials(0, 1, 2), config.batch_size), translation_loss(0.1, 0)


def masked(config: TrainingConfig, dropout: float) -> tuple[Any, Any, Any]:
    model = BertForMaskedLM(BertConfig(11, max_length=12, num_layers=1, dropout=dropout, **SMALL))
    return model, MaskedBatches(IDS, Masking(11, 3, (0, 1, 2)), 1, 2, 10, config.batch_size), masked_token_loss


KINDS = {"gpt": gpt, "translator": translator, "masked": masked}


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Trainer]:
    """A trainer of a tiny model with dropout, the same each time, in the folder named."""

    def make(folder: str, kind: str = "gpt", dropout: float = 0.2, **settings: Any) -> Trainer:
        config = TrainingConfig(**{**SETTINGS, **settings})
        tt.seed(config.seed)
        model, batches, loss_function = KINDS[kind](config, dropout)
        run = RunFolder(tmp_path / folder)
        run.path.mkdir(exist_ok=True)
        return Trainer(model, batches, config, run, loss_function)

    return make


def weights(trainer: Trainer) -> np.ndarray:
    """All parameters except the biases of keys, whose gradients are only rounding errors that Adam turns into full steps."""
    named = trainer.model.named_parameters()
    return np.concatenate([p.numpy().ravel() for name, p in named if not ("key" in name and name.endswith("bias"))])


def trained(trainer: Trainer) -> Trainer:
    assert trainer.train()
    return trainer


# ------------------------------------------------------------------------------------------ ranks equal shards

CASES: list[tuple[str, dict[str, Any]]] = [
    ("gpt", {}),
    ("gpt", {"batch_size": 7}),
    ("translator", {"batch_size": 1}),
    ("translator", {"batch_size": 7}),
    ("masked", {}),
    ("masked", {"batch_size": 1}),
    ("gpt", {"average": 2}),
    ("gpt", {"clip": 0.0}),
    *(("gpt", {"optimizer": optimizer}) for optimizer in ("muon", "sgd", "lion")),
    ("gpt", {"clip": 0.01}),
]


@pytest.mark.parametrize("kind, changes", CASES, ids=str)
def test_two_ranks_equal_two_shards(make: Callable[..., Trainer], kind: str, changes: dict[str, Any]) -> None:
    alone = outcome(trained(make("alone", kind, shards=2, **changes)))
    assert outcome(trained(make("ranks", kind, workers=2, **changes))) == alone


@pytest.mark.parametrize("workers, kind", [(2, "masked"), (3, "translator"), (4, "gpt")])
def test_more_ranks_differ_by_rounding(make: Callable[..., Trainer], kind: str, workers: int) -> None:
    changes = {"shards": 4, "gradient_accumulation_steps": 2}
    alone = trained(make("alone", kind, **changes))
    ranks = trained(make("ranks", kind, workers=workers, **changes))
    np.testing.assert_allclose(weights(ranks), weights(alone), rtol=0, atol=1e-6)
    for one, other in zip(alone.rows, ranks.rows, strict=True):
        assert other["train_loss"] == pytest.approx(one["train_loss"], abs=1e-6)
        assert other["validation_loss"] == pytest.approx(one["validation_loss"], abs=1e-6)


def test_a_batch_with_fewer_rows_than_ranks(make: Callable[..., Trainer]) -> None:
    alone = outcome(trained(make("alone", batch_size=2, shards=3)))
    assert outcome(trained(make("ranks", batch_size=2, workers=3))) == alone


def test_spawned_ranks_equal_shards(make: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch) -> None:
    alone = outcome(trained(make("alone", "translator", shards=2, average=2, steps=4)))
    monkeypatch.setattr(processes, "default_method", lambda: "spawn")
    assert outcome(trained(make("ranks", "translator", workers=2, average=2, steps=4))) == alone


def test_a_loss_function_that_cannot_be_sent(make: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "default_method", lambda: "spawn")
    trainer = make("ranks", workers=2)
    trainer.loss_function = lambda model, batch: next_token_loss(model, batch)
    with pytest.raises(TypeError, match=r"cannot send the arguments of a rank to a new process .*<lambda>"):
        trainer.train()


# -------------------------------------------------------------------------------------------- stopped and resumed


def at_step(trainer: Trainer, step: int, happens: Callable[[Trainer], object]) -> Trainer:
    """The trainer, with an event after this many steps."""
    take = trainer.train_step

    def train_step() -> Any:
        found = take()
        if trainer.step == step:
            happens(trainer)
        return found

    trainer.train_step = train_step  # type: ignore[method-assign]
    return trainer


@pytest.mark.parametrize("before, after", [(2, 2), (3, 3), (2, 1), (1, 2)])
def test_a_resumed_run_equals_one_that_never_stopped(make: Callable[..., Trainer], before: int, after: int) -> None:
    """With the same shards the number of ranks may change: two shards are added in one order only."""
    shards = max(2, before, after)
    whole = outcome(trained(make("whole", shards=shards, workers=before)))
    stopped = at_step(make("run", shards=shards, workers=before), 3, lambda _: signal.raise_signal(signal.SIGINT))
    assert not stopped.train()
    assert stopped.stopped_by == "Ctrl-C"
    assert stopped.step == 3
    again = make("run", shards=shards, workers=after)
    again.resume()
    assert outcome(trained(again)) == whole


def test_it_continues_alone_after_ranks(make: Callable[..., Trainer]) -> None:
    """The model and the optimizer of rank 0 are whole."""
    found = []
    for workers in (1, 2):
        trainer = trained(make(f"run{workers}", shards=2, workers=workers))
        for _ in range(3):
            trainer.train_step()
        found.append(outcome(trainer))
    assert found[1] == found[0]


@pytest.mark.parametrize("signals", [["SIGINT"], ["SIGTERM"], ["SIGHUP"], ["SIGTERM", "SIGINT"]])
def test_signals_save_once(make: Callable[..., Trainer], signals: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    saved = []
    trainer = make("run", workers=2)

    def stop(_: Trainer) -> None:
        saved.clear()
        for name in signals:
            signal.raise_signal(getattr(signal, name))

    save = trainer._save_latest
    monkeypatch.setattr(trainer, "_save_latest", lambda: (saved.append(trainer.step), save()))
    assert not at_step(trainer, 1, stop).train()
    assert saved == [1]


def test_a_second_ctrl_c_ends_immediately(make: Callable[..., Trainer]) -> None:
    def stop(_: Trainer) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    trainer = make("run", workers=2)
    with pytest.raises(KeyboardInterrupt):
        at_step(trainer, 1, stop).train()
    again = make("run", workers=2)  # from the checkpoint before the first step
    again.resume()
    assert again.step == 0
    assert outcome(trained(again)) == outcome(trained(make("whole", workers=2)))


# ---------------------------------------------------------------------------------------------------- failures


class Killing:
    """A loss function that kills its process at a given call of a rank."""

    def __init__(self, rank_0: int, call: int, how: Callable[[], object]):
        self.rank_0, self.call, self.how, self.calls = rank_0, call, how, 0

    def __call__(self, model: Any, batch: Any) -> Any:
        if os.getpid() != self.rank_0:
            self.calls += 1
            if self.calls == self.call:
                self.how()
        return next_token_loss(model, batch)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refuse() -> None:
    raise UserError("this rank does not like it")


@pytest.mark.skipif(distributed.default_method() != "fork", reason="needs a fork")
def test_a_killed_rank_ends_training_with_a_message(make: Callable[..., Trainer]) -> None:
    trainer = make("run", workers=2, eval_every=2)
    trainer.loss_function = Killing(os.getpid(), 8, kill)
    with pytest.raises(UserError) as caught:
        trainer.train()
    message = str(caught.value)
    assert message.startswith("rank 1 (process ")
    assert f"SIGKILL, as the system does when memory runs out: training stops after step {trainer.step}: " in message
    assert message.endswith("/run, which are complete")
    again = make("run", workers=2, eval_every=2)
    again.resume()
    assert 0 < again.step <= trainer.step
    assert outcome(trained(again)) == outcome(trained(make("whole", workers=2, eval_every=2)))


@pytest.mark.skipif(distributed.default_method() != "fork", reason="needs a fork")
def test_a_rank_that_is_killed_before_the_first_checkpoint(make: Callable[..., Trainer]) -> None:
    trainer = make("run", workers=2)
    trainer.loss_function = Killing(os.getpid(), 1, kill)
    with pytest.raises(UserError) as caught:
        trainer.train()
    assert "SIGKILL" in str(caught.value)
    assert "resume" not in str(caught.value)  # there is nothing yet


@pytest.mark.skipif(distributed.default_method() != "fork", reason="needs a fork")
def test_an_error_of_the_user_on_another_rank(make: Callable[..., Trainer]) -> None:
    trainer = make("run", workers=2)
    trainer.loss_function = Killing(os.getpid(), 4, refuse)
    with pytest.raises(UserError, match=r"^this rank does not like it$"):
        trainer.train()


def test_a_loss_that_is_not_finite(make: Callable[..., Trainer]) -> None:
    with pytest.raises(UserError, match=r"training stops. The checkpoints in .* are from before that"):
        make("run", workers=2, learning_rate=1e30, clip=0.0, warmup=0).train()
