"""Teach small Transformers to sort, to copy and to add, and test them on problems they have never seen.

All three together take about three minutes of computing on two cores.

tinyformer train algorithms                    # sort and add with a GPT, copy with an encoder-decoder
tinyformer train algorithms add                # one of them
tinyformer train algorithms sort --model encoder-decoder
tinyformer train algorithms --resume           # go on after an interruption
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tinytensor as tt
from tinyformer.common.settings import setting, settings_from
from tinyformer.data.batches import padded
from tinyformer.data.pairs import PairBatch, PairBatches, Specials
from tinyformer.decoding.decoders import Decoder, GPTDecoder, TransformerDecoder
from tinyformer.decoding.sampling import Sampling, sample
from tinyformer.models.gpt import GPT, GPTConfig
from tinyformer.models.transformer import Transformer, TransformerConfig
from tinyformer.runs import commands
from tinyformer.runs.makers import Maker
from tinyformer.runs.run_folder import RunFolder, load_weights
from tinyformer.scripting.command_line import Parser, add_run_flags, add_settings, as_flags
from tinyformer.scripting.scripts import RunSetup, draw_losses, train_to_end
from tinyformer.scripting.several import check_resumed, parse_names
from tinyformer.tasks.problems import KIND, Problem, adding, copying, reversed_number, row_of_digits, sorting, two_numbers
from tinyformer.training.config import TrainingConfig
from tinyformer.training.losses import translation_loss
from tinyformer.training.trainer import Trainer
from tinytensor.common.wording import counted
from tinytensor.device.backend import host

DEFAULT_OUT = "runs/algorithms"
# The digits are tokens 0 to 9. A GPT reads: question END START answer, and is to write: answer END.
PAD, START, END, VOCAB_SIZE = 10, 11, 12, 13


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The shape of either model; an encoder-decoder has so many blocks on each side."""

    num_layers: int = setting(2, "blocks")
    num_heads: int = setting(4, "attention heads in a block; must divide the width")
    d_model: int = setting(128, "the width: numbers for each position")
    dropout: float = setting(0.0, "probability of dropping, while training")


@dataclasses.dataclass(frozen=True)
class Task:
    """What to learn: all its problems, how many of them are held out, how many answers are checked, and how it is learned."""

    problems: Callable[[Any], list[Problem]]
    held_out: int
    checked: int
    model: str
    show_question: Callable[[Sequence[int]], str]
    show_answer: Callable[[Sequence[int]], str]
    settings: dict[str, Any]


MODELS = ("gpt", "encoder-decoder")
TASKS = {
    "sort": Task(
        sorting, 182, 5000, "gpt", row_of_digits, row_of_digits,
        {"num_layers": 3, "num_heads": 3, "d_model": 48, "dropout": 0.1, "steps": 1500, "batch_size": 64,
         "learning_rate": 2e-3},
    ),
    "copy": Task(
        copying, 5000, 5000, "encoder-decoder", row_of_digits, row_of_digits,
        {"num_layers": 2, "num_heads": 4, "d_model": 64, "steps": 800, "batch_size": 80, "learning_rate": 2e-3},
    ),
    "add": Task(
        adding, 1000, 1000, "gpt", two_numbers, reversed_number,
        {"num_layers": 2, "num_heads": 4, "d_model": 128, "steps": 1000, "batch_size": 256, "learning_rate": 2e-3},
    ),
}  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ models


def make_model(kind: str, config: ModelConfig, length: int) -> GPT | Transformer:
    """A GPT for ``length`` tokens in all, or an encoder-decoder."""
    if kind == "gpt":
        return GPT(settings_from(GPTConfig, dataclasses.asdict(config), vocab_size=VOCAB_SIZE, block_size=length))
    given = {**dataclasses.asdict(config), "d_ff": 4 * config.d_model, "norm_first": True, "source_pad": PAD}
    layers = {"encoder_layers": config.num_layers, "decoder_layers": config.num_layers}
    sizes = {"source_vocab_size": VOCAB_SIZE, "target_vocab_size": VOCAB_SIZE}
    return Transformer(settings_from(TransformerConfig, given, **layers, **sizes))


def answer_loss(model: GPT, batch: PairBatch) -> tt.Tensor:
    """The mean cross-entropy over a batch's answers: a question is read, but nobody has to guess it."""
    ids = tt.concatenate([batch.source, batch.target_inputs], axis=1)
    targets = tt.concatenate([tt.full_like(batch.source, PAD), batch.target_outputs], axis=1)
    return tt.cross_entropy(model(ids), targets, ignore_index=PAD, reduction="sum") / batch.num_targets


def answers(model: GPT | Transformer, problems: Sequence[Problem]) -> list[list[int]]:
    """What the model answers to each question, always writing the likeliest token."""
    source = padded([[*question, END] for question, _ in problems], PAD)
    start = host.full((len(problems), 1), START)
    longest = len(problems[0][1]) + 1
    if isinstance(model, GPT):
        decoder: Decoder = GPTDecoder(model)
        prompts = host.concatenate([source, start], axis=1)
    else:
        decoder, prompts = TransformerDecoder(model, source, longest), start
    rows = host.stack(list(sample(decoder, prompts, longest, Sampling(temperature=0), END)), axis=1).tolist()
    return [row[: row.index(END)] if END in row else row for row in rows]


def count_right(model: GPT | Transformer, problems: Sequence[Problem]) -> int:
    """How many questions it answers exactly."""
    parts = [problems[i : i + 1000] for i in range(0, len(problems), 1000)]
    return sum(ours == answer for part in parts for ours, (_, answer) in zip(answers(model, part), part))


# ---------------------------------------------------------------------------------------------------------- training


def learn(name: str, arguments: argparse.Namespace) -> None:
    """Train a model for a task, test it and show what it does."""
    task, kind = TASKS[name], arguments.model or TASKS[name].model
    made_by = Maker.of_kind(KIND, f"{name}-{kind}")
    with folder_of(name, arguments).held() as folder:
        resume = arguments.resume and folder.settings.exists()  # of several tasks, the last ones were perhaps not begun
        setup = RunSetup(folder, arguments, {"model": ModelConfig, "training": TrainingConfig}, resume, made_by)
        model_config = setup.settings(ModelConfig, task.settings)
        config = setup.settings(TrainingConfig, task.settings)

        tt.seed(config.seed)
        rng = host.random.default_rng(config.seed)
        problems = task.problems(rng)
        problems = [problems[i] for i in rng.permutation(len(problems))]
        held_out, training = problems[: task.held_out], problems[task.held_out :]
        some = held_out[:200]  # which are enough to see how it is going
        question, answer = training[0]
        model = make_model(kind, model_config, len(question) + len(answer) + 2)
        batches = PairBatches(training, held_out, Specials(PAD, START, END), config.batch_size, config.seed)
        trainer = Trainer(
            model, batches, config, folder, answer_loss if kind == "gpt" else translation_loss(0.0, PAD),
            on_evaluation=lambda: f"    {count_right(model, some)} of {counted(len(some), 'held-out problem')} right",
        )  # fmt: skip
        setup.begin(trainer)
        print(f"{name}: {counted(len(training), 'problem')} to train on, {counted(len(held_out), 'other')} to test with")
        print(f"{kind} with {model.num_parameters():,} parameters on {tt.backend_name}; run folder {folder.path}")

        train_to_end(trainer, commands.command("train", "algorithms", *arguments.words))
        load_weights(model, folder.best)
        print(f"Trained in {trainer.total_seconds:.0f} s; the best weights are those of step {trainer.best_step}.")
        score(name, model, training, held_out, rng)
        show(task, model, held_out[:5])
        draw_losses(trainer, f"{name}, {kind}", model_config.dropout)


def folder_of(name: str, arguments: argparse.Namespace) -> RunFolder:
    """Where the run of a task is."""
    return RunFolder(f"{arguments.out}/{name}-{arguments.model or TASKS[name].model}", within=arguments.out)


def score(name: str, model: GPT | Transformer, training: list[Problem], held_out: list[Problem], rng: Any) -> None:
    """Say how many answers are exactly right. A task with few problems is asked some of them several times."""
    checked, what = held_out[: TASKS[name].checked], "held-out"
    if len(checked) < TASKS[name].checked:
        checked = [held_out[i] for i in rng.integers(0, len(held_out), TASKS[name].checked)]
        what = f"draws from {len(held_out)} held-out"
    right = count_right(model, checked)
    print(f"{name}: {right:,} of {len(checked):,} {what} problems right ({100 * right / len(checked):.2f} %)")
    known = training[:10_000]
    print(f"{name}: {count_right(model, known):,} of {counted(len(known), 'training problem')} right")


def show(task: Task, model: GPT | Transformer, problems: Sequence[Problem]) -> None:
    """Print some questions with the model's answers."""
    for (question, answer), ours in zip(problems, answers(model, problems)):
        verdict = "right" if ours == answer else f"wrong: it is {task.show_answer(answer)}"
        print(f"    {task.show_question(question)}  ->  {task.show_answer(ours)}   {verdict}")


# ------------------------------------------------------------------------------------------------------ command line


def parse(words: list[str]) -> argparse.Namespace:
    """The command line, whose only command is to learn tasks."""
    described = "; ".join(f"{name}: {as_flags(task.settings)}" for name, task in TASKS.items())
    parser = Parser(
        prog="tinyformer train algorithms",
        description=f"Teach small Transformers to {', '.join(TASKS)}. Each has defaults of its own: {described}.",
    )
    parser.add_argument("tasks", help=f"what to learn: {', '.join(TASKS)} (default: all)", nargs="*", metavar="TASK")
    parser.add_argument("--model", help="the kind of model (default: gpt, and encoder-decoder to copy)", choices=MODELS)
    add_run_flags(parser, DEFAULT_OUT, "the folder of the runs' folders")
    add_settings(parser, ModelConfig, "model")
    add_settings(parser, TrainingConfig, "training")
    parser.set_defaults(run=learn_all)
    return parse_names(parser, words, "task", list(TASKS), DEFAULT_OUT)


def learn_all(arguments: argparse.Namespace) -> None:
    """Learn one task after the other."""
    check_resumed(arguments, arguments.tasks, folder_of)
    for number, task in enumerate(arguments.tasks):
        if number:
            print()
        learn(task, arguments)
