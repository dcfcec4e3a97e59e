"""Training that is interrupted and resumed: it must leave, to the last bit, what training leaves that nothing interrupted."""

from __future__ import annotations

import csv
import itertools
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import tinytensor as tt
from tinyformer.data.batches import Batch
from tinyformer.data.pairs import PairBatch
from tinyformer.data.text import TextBatches
from tinyformer.models.gpt import GPT, GPTConfig
from tinyformer.training.checkpoints import load_checkpoint
from tinyformer.training.config import TrainingConfig
from tinyformer.training.losses import next_token_loss
from tinyformer.training.run_folder import RunFolder
from tinyformer.training.trainer import Trainer
from tinytensor import Tensor
from tinytensor.nn import Module
from tinytensor.optim import Adam

PAD, START, END = 0, 1, 2
Drawn = TypeVar("Drawn", bound=Any)


def interrupted(batches: Drawn, at: int, times: int = 1) -> Drawn:
    """These batches, interrupted as by Ctrl-C when the given one, counted from 1, is drawn."""
    sample, drawn = batches.sample, itertools.count(1)

    def sampling() -> Any:
        if next(drawn) == at:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        return sample()

    batches.sample = sampling
    return batches


def batch(ids: np.ndarray) -> Batch:
    return Batch(tt.tensor(ids[:, :-1]), tt.tensor(ids[:, 1:]), ids[:, 1:].size)


def random_batch(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 11, (rows, 9))


class GivenBatches:
    """Hands out the batches it was given, one after the other."""

    def __init__(self, batches: list[Batch], validation: list[Batch] | None = None):
        self.batches = iter(batches)
        self.validation = validation or []

    def sample(self) -> Batch:
        return next(self.batches)

    def validation_batches(self) -> Iterator[Batch]:
        return iter(self.validation)


def bits_of(tensors: dict[str, Tensor]) -> dict[str, bytes]:
    """The exact bytes of named tensors: equal bytes are equal numbers without any tolerance."""
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


def read_log(folder: RunFolder) -> list[dict[str, Any]]:
    with open(folder.log, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def outcome(trainer: Trainer) -> dict[str, Any]:
    """Return the results of training in memory and in its folder, without the times."""
    groups, state = load_checkpoint(trainer.folder.latest, "latest")
    best, best_state = load_checkpoint(trainer.folder.best, "best")
    return {
        "weights": bits_of(trainer.model.state_dict()),
        "optimizer": bits_of(trainer.optimizer.state_dict()),
        "random": (tt.random.get_state(), trainer.batches.get_state()),
        "latest weights": bits_of(groups["model"]),
        "moments": bits_of(groups["optimizer"]),
        "saved random": (state["random"], state["batches"]),
        "best": bits_of(best["model"]),
        "best state": best_state,
        "best loss and step": (trainer.best_loss, trainer.best_step, state["best_loss"], state["best_step"]),
        "rows": [{**row, "seconds": None} for row in trainer.rows],
        "saved rows": [{**row, "seconds": None} for row in state["rows"]],
        "log": [{**row, "seconds": None} for row in read_log(trainer.folder)],
        "kept": {path.name: path.read_bytes() for path in trainer.folder.kept_weights()},
    }


def validation_losses(trainer: Trainer) -> list[float]:
    return [row["validation_loss"] for row in trainer.rows if row["validation_loss"] is not None]


def check_that_it_learns_and_resumes(make: Callable[..., Trainer], batch: int, step: int, better: float) -> Trainer:
    """Check that training makes the validation loss ``better`` times what it was, and that a run which is interrupted as it
    draws a ``batch``, and so stops after a ``step``, ends the same. ``make`` makes the trainer of a folder. Returns that of the
    whole run."""
    whole = make("whole")
    assert whole.train()
    losses = validation_losses(whole)
    assert losses[-1] < better * losses[0]
    parts = make("parts")
    interrupted(parts.batches, batch)
    assert not parts.train()
    resumed = make("parts")
    resumed.resume()
    assert resumed.step == step
    assert resumed.train()
    assert bits_of(resumed.model.state_dict()) == bits_of(whole.model.state_dict())
    return whole


def check_that_it_learns(model: Module, loss: Callable[[], Tensor], below: float = 0.05, **options: Any) -> None:
    """Check that a model learns a batch by heart: in at most 150 steps of Adam, the ``loss`` comes to be ``below`` a value."""
    optimizer = Adam(model.parameters(), **{"lr": 1e-2, **options})
    for _ in range(150):
        optimizer.zero_grad()
        found = loss()
        if float(found) < below:
            return
        found.backward()
        optimizer.step()
    raise AssertionError(f"the loss is {float(found)}")


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


class FirstWords:
    """Batches of pairs that any encoder-decoder learns soon: sentences of five tokens, and the first of them, twice."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def make(self, rng: np.random.Generator) -> PairBatch:
        source = rng.integers(3, 11, (8, 5))
        first = source[:, :1]
        target = np.concatenate([np.full((8, 1), START), first, first, np.full((8, 1), END)], axis=1)
        source[0, 4], target[0, 3] = PAD, PAD
        count = int((target[:, 1:] != PAD).sum())
        return PairBatch(tt.tensor(source), tt.tensor(target[:, :-1]), tt.tensor(target[:, 1:]), count)

    def sample(self) -> PairBatch:
        return self.make(self.rng)

    def validation_batches(self) -> Iterator[PairBatch]:
        rng = np.random.default_rng(99)
        return iter([self.make(rng) for _ in range(2)])

    def get_state(self) -> dict[str, Any]:
        return {"generator": self.rng.bit_generator.state}

    def set_state(self, state: dict[str, Any]) -> None:
        self.rng.bit_generator.state = state["generator"]
