"""Loggers: what a trainer logs and when, and that logging changes nothing."""

from __future__ import annotations

import csv
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import contents, result_of

import tinytensor as tt
from tinyformer import Logger
from tinyformer.data.text import TextBatches
from tinyformer.models.gpt import GPT, GPTConfig
from tinyformer.training.config import TrainingConfig, training_dtype
from tinyformer.training.run_folder import RunFolder
from tinyformer.training.tensorboard import distribution, heat_map
from tinyformer.training.trainer import Trainer

SETTINGS = {"steps": 12, "batch_size": 4, "eval_every": 6, "log_every": 4, "warmup": 2, "learning_rate": 1e-2, "shards": 1}


@pytest.fixture
def make_trainer(tmp_path: Path, text_ids: np.ndarray) -> Callable[..., Trainer]:
    """A trainer of a tiny GPT with dropout, the same each time, in the folder that is named."""

    def make(name: str, *loggers: Logger, sample: Callable[[], str] | None = None, **settings: Any) -> Trainer:
        config = TrainingConfig(**{**SETTINGS, **settings})
        tt.seed(config.seed)
        model = GPT(GPTConfig(11, 8, 1, 2, 8, dropout=0.2))
        batches = TextBatches(text_ids, 8, config.batch_size, config.seed)
        folder = RunFolder(tmp_path / name)
        folder.path.mkdir(exist_ok=True)
        return Trainer(model, batches, config, folder, on_evaluation=sample, loggers=loggers)

    return make


class Told(Logger):
    """Records all calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.rows: dict[int, Mapping[str, float]] = {}

    def begin(self, trainer: Trainer) -> None:
        self.calls.append(("begin", trainer.step))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.calls.append(("log", step))
        self.rows[step] = values

    def evaluated(self, trainer: Trainer, text: str) -> None:
        self.calls.append(("evaluated", (trainer.step, text)))

    def saved(self, trainer: Trainer) -> None:
        assert trainer.folder.latest.exists()
        self.calls.append(("saved", trainer.step))

    def close(self) -> None:
        self.calls.append(("close", None))


def logged(folder: RunFolder) -> dict[int, dict[str, float]]:
    """The rows of log.csv by step, without the cells that are empty."""
    with open(folder.log, newline="", encoding="utf-8") as file:
        rows = [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]
    return {int(row.pop("step")): row for row in rows}


def test_a_logger_gets_the_values_of_the_log(make_trainer) -> None:
    told = Told()
    trainer = make_trainer("run", told, sample=lambda: "a sample")
    trainer.train()
    assert told.calls == [
        ("begin", 0),
        ("evaluated", (0, "")), ("log", 0), ("saved", 0),
        ("log", 4),
        ("evaluated", (6, "a sample")), ("log", 6), ("saved", 6),
        ("log", 8),
        ("evaluated", (12, "a sample")), ("log", 12), ("saved", 12),
        ("close", None),
    ]  # fmt: skip
    speeds = [dict(row).pop("tokens_per_second", None) for row in told.rows.values()]
    assert speeds[0] is None
    assert all(speed > 0 for speed in speeds[1:])
    rows = {
        step: {name: value for name, value in row.items() if name != "tokens_per_second"} for step, row in told.rows.items()
    }
    assert rows == logged(trainer.folder)
    assert set(rows[6]) == {"learning_rate", "train_loss", "validation_loss", "gradient_norm", "seconds"}


def test_a_logger_of_a_users_own_takes_three_lines(make_trainer) -> None:
    sent: list[tuple[int, Mapping[str, float]]] = []

    class Service(Logger):
        def log(self, step: int, values: Mapping[str, float]) -> None:
            sent.append((step, values))

    make_trainer("run", Service()).train()
    assert [step for step, _ in sent] == [0, 4, 6, 8, 12]


class Busy(Told):
    """Does with the model and with random numbers whatever might change a run."""

    def begin(self, trainer: Trainer) -> None:
        self.use(trainer)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        tt.random.normal((3,))

    def evaluated(self, trainer: Trainer, text: str) -> None:
        self.use(trainer)

    def saved(self, trainer: Trainer) -> None:
        self.use(trainer)

    def use(self, trainer: Trainer) -> None:
        assert not any(module.training for module in trainer.model.modules())  # without dropout
        tt.random.normal((3,))
        for batch in trainer.batches.validation_batches():
            with tt.no_grad():
                trainer.model(batch.inputs)


def test_loggers_change_nothing(make_trainer) -> None:
    without = make_trainer("without")
    without.train()
    busy = make_trainer("busy", Busy(), Busy())
    busy.train()
    assert result_of(busy.folder.path) == result_of(without.folder.path)
    assert all(module.training for module in busy.model.modules())


def test_a_resumed_run_logs_only_new_steps(make_trainer) -> None:
    first, second = Told(), Told()
    trainer = make_trainer("run", first, steps=20, schedule="constant")
    trainer.batches.sample = stopping(trainer, trainer.batches.sample, 5, lambda: signal.raise_signal(signal.SIGINT))
    assert not trainer.train()
    assert first.calls[-2:] == [("saved", 5), ("close", None)]
    resumed = make_trainer("run", second, steps=20, schedule="constant")
    resumed.resume()
    resumed.train()
    assert second.calls[:2] == [("begin", 5), ("evaluated", (6, ""))]
    assert sorted({**first.rows, **second.rows}) == sorted(logged(resumed.folder)) == [0, 4, 6, 8, 12, 16, 18, 20]


def stopping(trainer: Trainer, sample: Callable[[], Any], step: int, stop: Callable[[], object]) -> Callable[[], Any]:
    """``sample``, but as the batch of this step is drawn, something else happens, too."""

    def sampling() -> Any:
        if trainer.step + 1 == step:
            stop()
        return sample()

    return sampling


class Broken(Told):
    """Raises when a step is logged."""

    def __init__(self, method: str, at: int):
        super().__init__()
        self.method, self.at = method, at

    def __getattribute__(self, name: str) -> Any:
        if name in ("begin", "log", "evaluated", "saved") and name == self.method:
            return self.fail
        return super().__getattribute__(name)

    def fail(self, told: Any, *rest: Any) -> None:
        if (told.step if isinstance(told, Trainer) else told) == self.at:
            raise ConnectionError("the service does not answer")


@pytest.mark.parametrize("method", ["begin", "log", "evaluated", "saved"])
def test_a_logger_that_raises_ends_training_but_not_the_run(make_trainer, method: str) -> None:
    whole = make_trainer("whole")
    whole.train()
    before, broken, after = Told(), Broken(method, at=0 if method == "begin" else 6), Told()
    trainer = make_trainer("run", before, broken, after)
    with pytest.raises(ConnectionError, match="the service does not answer"):
        trainer.train()
    assert [logger.calls[-1:] for logger in (before, broken)] == [[("close", None)]] * 2
    assert after.calls[-1:] == ([] if method == "begin" else [("close", None)])  # of what did not begin, nothing is closed
    assert all(module.training for module in trainer.model.modules())
    again = make_trainer("run")
    if method != "begin":
        again.resume()
        assert again.step == (6 if method == "saved" else 0)
    again.train()
    assert result_of(again.folder.path) == result_of(whole.folder.path)


def test_all_loggers_are_closed_even_if_one_cannot_be(make_trainer) -> None:
    class Unclosable(Logger):
        def close(self) -> None:
            raise OSError("cannot be closed")

    told = Told(), Told()
    trainer = make_trainer("run", told[0], Unclosable(), told[1])
    with pytest.raises(OSError, match="cannot be closed"):
        trainer.train()
    assert [logger.calls[-1] for logger in told] == [("close", None)] * 2
    assert trainer.step == 12
    assert logged(trainer.folder)[12]


@pytest.mark.needs("numpy")
def test_of_several_processes_only_the_first_logs(make_trainer, tmp_path: Path) -> None:
    class Writing(Logger):
        def log(self, step: int, values: Mapping[str, float]) -> None:
            with open(tmp_path / str(os.getpid()), "a", encoding="utf-8") as file:
                file.write(f"{step} ")

    make_trainer("run", Writing(), workers=2).train()
    written = contents(tmp_path)
    assert written == {str(os.getpid()): b"0 4 6 8 12 "}


# ------------------------------------------------------------------------------------- what is drawn for TensorBoard


def test_a_heat_map_has_the_heads_side_by_side() -> None:
    weights = tt.tensor([[[1.0, 0.0], [0.25, 0.75]], [[0.5, 0.5], [0.0, 1.0]], [[0.0, 0.0], [1.0, 0.0]]])
    picture = heat_map(weights.numpy())
    assert isinstance(picture, np.ndarray)
    assert (picture.shape, picture.dtype) == ((240, 3 * 240 + 2 * 4, 3), np.uint8)
    cells = picture[60::120, [60, 180, 304, 424, 548, 668]]  # the middle of each weight
    assert cells[0].tolist() == [[8, 48, 107], [255] * 3, cells[0, 2].tolist(), cells[0, 2].tolist(), [255] * 3, [255] * 3]
    reds = ((255 - cells[..., 0].astype(float)) / (255 - 8)) ** 2
    np.testing.assert_allclose(reds, [[1, 0, 0.5, 0.5, 0, 0], [0.25, 0.75, 0, 1, 1, 0]], atol=0.01)
    assert (picture[:, 240:244] == 200).all() and (picture[:, 484:488] == 200).all()


def test_a_heat_map_of_many_tokens_shows_the_first() -> None:
    weights = np.eye(1000, dtype=np.float32)[None]
    assert (heat_map(weights) == heat_map(weights[:, :256, :256])).all()
    assert heat_map(weights).shape == (256, 256, 3)
    assert heat_map(weights[:, :3]).shape == (3, 256, 3)


def test_a_distribution() -> None:
    values = np.random.default_rng(0).normal(size=(30, 20)).astype(np.float32)
    found = distribution(tt.tensor(values))
    assert found is not None
    exact = values.astype(np.float64)
    assert (found["min"], found["max"], found["num"]) == (exact.min(), exact.max(), 600)
    assert (found["sum"], found["sum_squares"]) == pytest.approx((exact.sum(), (exact**2).sum()))
    assert len(found["bucket_limits"]) == len(found["bucket_counts"]) == 65
    assert found["bucket_counts"] == [0, *np.histogram(exact, found["bucket_limits"])[0]]


def test_a_distribution_of_equal_numbers_and_of_none() -> None:
    found = distribution(tt.full((5,), 3.0))
    assert found is not None
    assert sum(found["bucket_counts"]) == found["num"] == 5
    assert found["bucket_limits"][0] < 3.0 < found["bucket_limits"][-1]
    assert distribution(tt.zeros((0, 2))) is None
    assert distribution(tt.full((2,), float("nan"))) is None
    mixed = distribution(tt.tensor([1.0, float("inf"), 2.0]))
    assert mixed is not None
    assert (mixed["num"], mixed["max"]) == (2, 2.0)


@pytest.mark.needs("cupy")
def test_a_distribution_of_bfloat16() -> None:
    found = distribution(tt.tensor([1.0, -2.0]).astype(training_dtype("bfloat16")))
    assert found is not None
    assert (found["min"], found["sum_squares"]) == (-2.0, 5.0)
