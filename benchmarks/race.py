"""Training runs that race each other: sides that train and evaluate in turns, a clock for each, and a log of their losses.

The clock counts training steps, the drawing of batches included, and stands while a side evaluates. Each side evaluates the
whole validation split every so many steps. In a turn a side evaluates first and then trains: so the idle threads of the side
before, which still spin on the cores, have come to rest when the clock starts.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from measure import Worker
from train_step import TorchTraining, Training, in_shards

Arrays = Mapping[str, Any]  # NumPy arrays by name


@dataclass(frozen=True)
class Point:
    """What an evaluation found. The test split, if there is one, is evaluated only after the last step."""

    step: int
    seconds: float
    validation: float
    test: float | None = None


class Runner(Training):
    """A side that trains one model after another; ``start`` makes each of them."""

    steps = done = 0
    seconds = 0.0
    splits: Mapping[str, Any] = {}  # by name, "test" among them if there is one

    def start(self, training: Mapping[str, Any], rates: Sequence[float]) -> None:
        """Begin a run with a new model and its optimizer. ``training`` holds the fields of a ``TrainingConfig``, and ``rates``
        are the learning rates of the steps."""
        self.steps, self.done, self.seconds = training["steps"], 0, 0.0

    def loss(self, split: str) -> float:
        """The mean loss over every target of the whole "validation" or "test" split, in adjacent windows."""
        raise TypeError(f"{type(self).__name__} has no loss method: write one")

    def advance(self, steps: int) -> Point:
        """Evaluate, and then train for so many steps, but not beyond the last one. Returns what the evaluation found."""
        is_tested = self.done == self.steps and "test" in self.splits
        point = Point(self.done, self.seconds, self.loss("validation"), self.loss("test") if is_tested else None)
        count = min(steps, self.steps - self.done)
        self.seconds += sum(self.turn(settle=0, steps=count))
        self.done += count
        return point


class Tinyformer(Runner):
    """tinyformer's GPT and its trainer's steps, from the ids of a text, whose last tenth validates."""

    def __init__(self, ids: Any, test_fraction: float, model: Mapping[str, Any]):
        import tinytensor
        from tinyformer.data.text import TextBatches
        from tinyformer.models.gpt import GPT, GPTConfig
        from tinyformer.runs.run_folder import RunFolder
        from tinyformer.training.config import TrainingConfig
        from tinyformer.training.evaluation import evaluate
        from tinyformer.training.trainer import Trainer

        self.imported()

        def trainer(training: Mapping[str, Any]) -> Trainer:
            config = TrainingConfig(**training)
            tinytensor.seed(config.seed)
            split = {"vocab_size": model["vocab_size"], "test_fraction": test_fraction}
            batches = TextBatches(ids, model["block_size"], config.batch_size, config.seed, **split)
            return Trainer(GPT(GPTConfig(**model)), batches, config, RunFolder("never-written"))

        self.make_trainer, self.evaluate = trainer, evaluate

    def start(self, training: Mapping[str, Any], rates: Sequence[float]) -> None:
        super().start(training, rates)
        self.trainer = self.make_trainer(training)  # its schedule gives the rates
        batches: Any = self.trainer.batches
        self.splits = {"validation": batches, **({"test": batches.with_test_split()} if len(batches.test) else {})}

    def step(self) -> Any:
        return self.trainer.train_step()[0]

    def loss(self, split: str) -> float:
        return self.evaluate(self.trainer.model, self.splits[split], shards=self.trainer.shards)

    def libraries(self) -> list[str]:
        return in_shards(self.trainer.shards)


class PyTorch(Runner, TorchTraining):
    """The same for PyTorch: the twin of tinyformer's GPT with nanoGPT's first weights, and PyTorch's fastest AdamW (``fused``).

    ``splits`` are ids: "training", "validation" and, if there is one, "test".
    """

    def __init__(self, splits: Arrays, model: Mapping[str, Any]):
        super().__init__()
        torch = self.torch
        names = ("vocab_size", "block_size", "num_layers", "num_heads", "d_model", "dropout", "bias")
        self.sizes = {name: model[name] for name in names}
        self.splits = {name: torch.tensor(ids, dtype=torch.int64) for name, ids in splits.items()}
        self.window = torch.arange(model["block_size"] + 1)

    def start(self, training: Mapping[str, Any], rates: Sequence[float]) -> None:
        super().start(training, rates)
        self.torch.manual_seed(training["seed"])
        self.model = self.twins.GPT(**self.sizes)
        self.twins.nanogpt_weights(self.model)
        self.train_with(self.model, training)
        self.rates, self.batch_size = iter(rates), training["batch_size"]

    def step(self) -> Any:
        rate = next(self.rates)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        ids = self.splits["training"]
        windows = ids[self.torch.randint(len(ids) - len(self.window) + 1, (self.batch_size, 1)) + self.window]
        return self.update(lambda: self.model.loss(windows[:, :-1], windows[:, 1:]))

    def loss(self, split: str) -> float:
        self.model.eval()
        total = 0.0
        with self.torch.no_grad():
            for windows in self._adjacent(self.splits[split]):
                total += float(self.model.loss(windows[:, :-1], windows[:, 1:])) * windows[:, 1:].numel()
        self.model.train()
        return total / (len(self.splits[split]) - 1)

    def _adjacent(self, ids: Any, batch_size: int = 64) -> Iterator[Any]:
        """Windows that predict every id but the first exactly once. The last one may be shorter."""
        block = len(self.window) - 1
        full = (len(ids) - 1) // block
        for first in range(0, full, batch_size):
            starts = block * self.torch.arange(first, min(first + batch_size, full))
            yield ids[starts[:, None] + self.window]
        if full * block + 1 < len(ids):
            yield ids[None, full * block :]


# ------------------------------------------------------------------------------------------------------------- the race

Points = Sequence[Point]
Start = tuple[Mapping[str, Any], Sequence[float]]  # the arguments of a side's ``start``


def race(
    workers: Mapping[str, Worker], starts: Mapping[str, Start], every: int, tell: Callable[[str], None]
) -> dict[str, list[Point]]:
    """Let each side train once, in turns of ``every`` steps, and return what its evaluations found.

    The next turn is that of the side which has the smallest part of its own turns behind it. So the turns of a side with few
    steps are spread over the whole race, and a slow spell of the machine falls on all. ``tell`` is called after each turn.
    """
    points: dict[str, list[Point]] = {name: [] for name in starts}
    for name, start in starts.items():
        workers[name].call("start", *start)
    turns = {name: turns_of(training["steps"], every) for name, (training, _) in starts.items()}
    while waiting := [name for name in starts if len(points[name]) < turns[name]]:
        name = min(waiting, key=lambda name: len(points[name]) / turns[name])
        points[name].append(workers[name].call("advance", every))
        losses = [f"{name} {found[-1].validation:.3f} ({found[-1].step})" for name, found in points.items() if found]
        tell(", ".join(losses))
    return points


def turns_of(steps: int, every: int) -> int:
    """How many turns a side needs for so many steps: the last one only evaluates."""
    return math.ceil(steps / every) + 1


def reached(points: Points, mark: float) -> Point | None:
    """The first evaluation at or below a mark."""
    return next((point for point in points if point.validation <= mark), None)


# -------------------------------------------------------------------------------------------------------------- the log


class Run(NamedTuple):
    """What a run is known by in the log."""

    race: str
    side: str
    seed: int
    steps: int


class Log:
    """All evaluations of all runs, in a CSV file if there is a path."""

    def __init__(self, path: Path | None):
        self.path = path
        self.runs: dict[Run, list[Point]] = {}

    def read(self) -> None:
        """Take over the runs of the file, if it is there."""
        if self.path is None or not self.path.exists():
            return
        with open(self.path, newline="", encoding="utf-8") as file:
            for race, side, seed, steps, step, seconds, validation, test in list(csv.reader(file))[1:]:
                point = Point(int(step), float(seconds), float(validation), float(test) if test else None)
                self.runs.setdefault(Run(race, side, int(seed), int(steps)), []).append(point)

    def add(self, runs: Mapping[Run, list[Point]]) -> None:
        """Add complete runs, and write the file anew."""
        self.runs |= runs
        if self.path is None:
            return
        from tinytensor.device.disk import write_text

        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow([*Run._fields, *(field.name for field in fields(Point))])
        for run, points in self.runs.items():
            writer.writerows([*run, *astuple(point)] for point in points)
        write_text(self.path, table.getvalue())
