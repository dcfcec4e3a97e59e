"""Which networks remember: recall the first symbol of a row of up to 101.

An RNN, a GRU, an LSTM and self-attention of about equal size learn the same task from the same batches. Then the program tells
how often each is right at which distance, and how much its last output depends on each earlier input: as a table, as CSV and as
pictures. All four together take a minute or two of one core.

tinyformer train memory                    # all four
tinyformer train memory rnn lstm           # some of them
tinyformer train memory --noise 8          # an easier task: only the first token is a symbol
tinyformer train memory --resume           # go on after an interruption
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.common.files import write_csv
from tinyformer.common.memory import check_model_fits
from tinyformer.common.schema import check_fields
from tinyformer.common.settings import at_least, setting
from tinyformer.data.folders import mark_results
from tinyformer.models.blocks import Block, BlockConfig
from tinyformer.models.input_gradients import input_gradients
from tinyformer.models.positions import SinusoidalPositions
from tinyformer.plots import accuracy_by_distance, gradients_by_distance, if_possible
from tinyformer.runs import commands
from tinyformer.runs.makers import Maker
from tinyformer.runs.run_folder import RunFolder, load_weights
from tinyformer.scripting.command_line import Parser, add_run_flags, add_settings, as_flags
from tinyformer.scripting.scripts import RunSetup, draw_losses, train_to_end
from tinyformer.scripting.several import check_resumed, parse_names
from tinyformer.tasks.recall import KIND, RecallBatches, RecallTask, recall_batch
from tinyformer.training.config import TrainingConfig
from tinyformer.training.evaluation import accuracy
from tinyformer.training.losses import class_loss
from tinyformer.training.trainer import Trainer
from tinytensor import nn
from tinytensor.device.backend import host
from tinytensor.parallel import one_blas_thread

DEFAULT_OUT = "runs/memory"
TRAINING = {"steps": 1000, "batch_size": 64, "learning_rate": 3e-3, "shards": 1}
TABLE = (1, 2, 5, 10, 20, 50, 100)
MEASURED = (1, 2, 3, 5, 7, 10, 15, 20, 30, 40, 50, 60, 70, 80, 90, 100)  # and the longest distance
ROWS = 1000  # for each of these distances
GRADIENT_ROWS = 200


# ------------------------------------------------------------------------------------------------------------ models


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The size of all models. The matrices of each, without embedding and output, hold about 12 * d_model² numbers."""

    d_model: int = setting(
        32, "the width of the embedding and of attention; recurrent states are wider, for models of equal size"
    )
    num_heads: int = setting(4, "heads of attention; must divide the width")
    keep_bias: float = setting(
        1.0, "first bias of the gates that keep the state: an LSTM's forget gate (Gers et al. 2000) and a GRU's update gate"
    )

    def __post_init__(self) -> None:
        check_fields(self)
        at_least(self, d_model=1, num_heads=1)
        _ = self.block  # makes a BlockConfig, which checks the heads

    @property
    def block(self) -> BlockConfig:
        """The configuration of the Transformer's block."""
        return BlockConfig(self.d_model, self.num_heads, 4 * self.d_model)

    def state_size(self, gates: int) -> int:
        """The state of a recurrent network with so many gates: its matrices, gates * state * (d_model + state), are as large
        as those of the block, 12 * d_model²."""
        return max(round(self.d_model * (math.sqrt(1 + 48 / gates) - 1) / 2), 1)

    def saved_numbers(self) -> int:
        """A lower bound for how many numbers training keeps for each token of a batch."""
        return 2 * int(self.d_model)


class LastState(nn.Module):
    """A recurrent network, of which the last output counts: (batch, length, width) -> (batch, size)."""

    def __init__(self, kind: type[nn.RNN | nn.GRU | nn.LSTM], config: ModelConfig):
        self.size = config.state_size(kind.gates)
        self.network = kind(config.d_model, self.size, batch_first=True)
        if kind is not nn.RNN:
            for name, bias in (("bias_ih_l0", config.keep_bias), ("bias_hh_l0", 0.0)):
                before, _, *after = tt.split(getattr(self.network, name), kind.gates)  # the second gate is the one that keeps
                getattr(self.network, name).assign(tt.concatenate([before, tt.full(self.size, bias), *after]))

    def forward(self, x: tt.Tensor) -> tt.Tensor:
        outputs, _ = self.network(x)
        return outputs[:, -1]


class LastAttention(nn.Module):
    """One block of a Transformer, of which the last output counts: (batch, length, width) -> (batch, size)."""

    def __init__(self, config: ModelConfig):
        self.size = config.d_model
        self.positions = SinusoidalPositions(config.d_model)
        self.block = Block(config.block)
        self.norm = config.block.make_norm()

    def forward(self, x: tt.Tensor) -> tt.Tensor:
        x = self.block(x + self.positions(x.shape[1]), is_causal=True)
        return self.norm(x[:, -1])


class Recaller(nn.Module):
    """Reads ids (batch, length), and answers with logits for each symbol (batch, symbols)."""

    def __init__(self, kind: str, task: RecallTask, config: ModelConfig):
        check_model_fits(
            task.vocab_size * int(config.d_model) + 10 * int(config.d_model) ** 2, 1, "d_model", "symbols", "noise"
        )
        self.config = config
        self.embedding = nn.Embedding(task.vocab_size, config.d_model)
        self.body = LastAttention(config) if kind == "attention" else LastState(RECURRENT[kind], config)
        self.output = nn.Linear(self.body.size, task.symbols)

    def forward(self, ids: tt.Tensor) -> tt.Tensor:
        return self.answer(self.embedding(ids))

    def answer(self, embedded: tt.Tensor) -> tt.Tensor:
        """The logits for inputs that are embedded already."""
        return self.output(self.body(embedded))


RECURRENT: dict[str, Any] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
USED_BY = {"num_heads": ["attention"], "keep_bias": ["gru", "lstm"]}
KINDS = {"rnn": "RNN", "gru": "GRU", "lstm": "LSTM", "attention": "attention"}


# --------------------------------------------------------------------------------------------------------- measuring


def accuracies(model: Recaller, task: RecallTask, seed: int) -> dict[int, float]:
    """The fraction of right answers by distance, on rows that training never saw."""
    rng = host.random.default_rng([seed, 2])
    distances = [*(d for d in MEASURED if d < task.distance), task.distance]
    return {d: accuracy(model, (recall_batch(task, d, 100, rng) for _ in range(ROWS // 100))) for d in distances}


def gradients(model: Recaller, task: RecallTask, seed: int) -> list[float]:
    """The norm of the gradient of the last output with respect to the embedding of each input, by its distance from the end, as
    the mean over rows of the longest distance. The last of these norms is that of the symbol.

    The output is the logits, not the loss: where a model is sure and right, the gradient of the loss is near 0, whatever the
    model remembers. Computed in float64, because float32 ends at 1e-45.
    """
    rng = host.random.default_rng([seed, 3])
    rows = recall_batch(task, task.distance, GRADIENT_ROWS, rng)
    exact = copy.deepcopy(model).astype("float64")
    norms = input_gradients(exact.answer, exact.embedding(rows.inputs))
    return norms.mean(axis=0)[::-1].tolist()


@dataclasses.dataclass(frozen=True)
class Result:
    """What was measured of a model."""

    task: RecallTask
    parameters: int
    seconds: float
    accuracies: dict[int, float]
    before: list[float]  # gradients by distance before training, and after it
    after: list[float]


# ---------------------------------------------------------------------------------------------------------- training


def learn(kind: str, arguments: argparse.Namespace, others: dict[str, Result]) -> Result:
    """Train a model and measure it.

    Raises UserError where its run, which is resumed, is of another task than the ``others``.
    """
    with folder_of(kind, arguments).held() as folder:
        resume = arguments.resume and folder.settings.exists()  # of several models, the last ones were perhaps not begun
        kinds = {"task": RecallTask, "model": ModelConfig, "training": TrainingConfig}
        setup = RunSetup(folder, arguments, kinds, resume, Maker.of_kind(KIND, kind))
        task, model_config = setup.settings(RecallTask), setup.settings(ModelConfig)
        config = setup.settings(TrainingConfig, TRAINING)
        for other, result in others.items():
            if result.task != task:
                raise UserError(f"{folder.path} is of another task than {other}, and cannot be compared: choose one with MODEL")

        tt.seed(config.seed)  # also a run that is resumed makes its first weights again, to measure them
        model = Recaller(kind, task, model_config)
        trainer = Trainer(model, RecallBatches(task, config.batch_size, config.seed), config, folder, class_loss)
        before = gradients(model, task, config.seed)
        setup.begin(trainer)
        print(f"{KINDS[kind]} with {model.num_parameters():,} parameters on {tt.backend_name}; run folder {folder.path}")

        train_to_end(trainer, commands.command("train", "memory", *arguments.words))
        load_weights(model, folder.best)
        print(f"Trained in {trainer.total_seconds:.0f} s; the best weights are those of step {trainer.best_step}.")
        draw_losses(trainer, f"Delayed recall, {KINDS[kind]}", 0.0)
        found, after = accuracies(model, task, config.seed), gradients(model, task, config.seed)
        return Result(task, model.num_parameters(), trainer.total_seconds, found, before, after)


def folder_of(kind: str, arguments: argparse.Namespace) -> RunFolder:
    """Where the run of a model is."""
    return RunFolder(f"{arguments.out}/{kind}", within=arguments.out)


# --------------------------------------------------------------------------------------------------------- reporting


def report(results: dict[str, Result], out: Path) -> None:
    """Print the table, and write the figures as CSV and as pictures."""
    mark_results(out)
    chance = 1 / next(iter(results.values())).task.symbols
    print_table(results, chance)
    named = {KINDS[kind]: result for kind, result in results.items()}
    measured = next(iter(results.values())).accuracies
    write_csv(
        out / "accuracy.csv",
        [
            ["distance", *results],
            *([distance, *(result.accuracies[distance] for result in results.values())] for distance in measured),
        ],
    )
    write_csv(
        out / "gradients.csv",
        [
            ["distance", *(f"{kind}_{when}" for kind in results for when in ("before", "after"))],
            *([i, *row] for i, row in enumerate(zip(*(norms for r in results.values() for norms in (r.before, r.after))))),
        ],
    )
    with if_possible():
        accuracy_by_distance({name: r.accuracies for name, r in named.items()}, chance, out / "accuracy.png")
        panels = {
            "before training": {name: r.before for name, r in named.items()},
            "after training": {name: r.after for name, r in named.items()},
        }
        gradients_by_distance(panels, out / "gradients.png")
    print(f"Wrote accuracy and gradients, as .csv and .png, to {out}")


def print_table(results: dict[str, Result], chance: float) -> None:
    """Print a row for each model."""
    measured = next(iter(results.values())).accuracies
    shown = [distance for distance in measured if distance in TABLE or distance == max(measured)]
    print(f"Right answers in % at each distance, {ROWS:,} new rows for each; guessing gets {100 * chance:.1f}:")
    print(f"{'model':10s}{'parameters':>11s}{'seconds':>9s}" + "".join(f"{distance:>7d}" for distance in shown))
    for kind, result in results.items():
        cells = "".join(f"{100 * result.accuracies[distance]:7.1f}" for distance in shown)
        print(f"{KINDS[kind]:10s}{result.parameters:11,d}{result.seconds:9.0f}{cells}")


# ------------------------------------------------------------------------------------------------------ command line


def parse(words: list[str]) -> argparse.Namespace:
    """The command line, whose only command is to train models and compare them."""
    parser = Parser(
        prog="tinyformer train memory",
        description="Train small models to recall a symbol after a long row of noise, and show which of them remember: "
        f"{', '.join(KINDS)}. Their own defaults of training: {as_flags(TRAINING)}.",
    )
    parser.add_argument("models", help=f"which models: {', '.join(KINDS)} (default: all)", nargs="*", metavar="MODEL")
    add_run_flags(parser, DEFAULT_OUT, "the folder of the runs' folders, of the tables and of the pictures")
    add_settings(parser, RecallTask, "task")
    add_settings(parser, ModelConfig, "model")
    add_settings(parser, TrainingConfig, "training")
    for name, used_by in USED_BY.items():
        parser.has_no_effect(name, without_models(used_by), f"without the model {' or '.join(used_by)}")
    parser.set_defaults(run=compare)
    return parse_names(parser, words, "model", list(KINDS), DEFAULT_OUT)


def without_models(names: Sequence[str]) -> Callable[[argparse.Namespace], bool]:
    """Whether parsed flags name models, but none of these."""
    return lambda given: bool(given.models) and not {*given.models} & {*names}


def compare(arguments: argparse.Namespace) -> None:
    """Train one model after the other, and report."""
    check_resumed(arguments, arguments.models, folder_of)
    results: dict[str, Result] = {}
    with one_blas_thread():  # for products as small as these, more threads cost more than they save
        for kind in arguments.models:
            results[kind] = learn(kind, arguments, results)
            print()
    report(results, Path(arguments.out))
