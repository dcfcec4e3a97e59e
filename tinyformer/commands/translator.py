"""Train the Transformer of "Attention Is All You Need" (or a recurrent network) to translate, and translate with it.

By default, it learns to convert dates in words to ISO dates, in about half a minute on two cores. German captions (Multi30k, 10
epochs) take 40 minutes on one core.

tinyformer train translator                                       # dates, from generated data
tinyformer train translator --data pairs.tsv --out runs/it        # each line: a sentence, a tab and its translation
tinyformer train translator --source train.de --target train.en   # or two files, line by line (also .gz)
tinyformer train translator --architecture lstm --out runs/lstm   # or attention
tinyformer translate --out runs/it "I love you."                  # translate a sentence
tinyformer translate < lines.txt                                  # translate each line of a file
tinyformer translate --model FOLDER "Hello."                      # with a pretrained Marian model (opus-mt)
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import tinyformer.plots as plots
import tinytensor as tt
from tinyformer.commands.command_line import Commands, add_model_flag, add_pair_flags, add_run_settings, as_flags, first_choice
from tinyformer.commands.inputs import piped_lines, typed_lines
from tinyformer.commands.setup import RunSetup, tell_next, train_to_end
from tinyformer.common.errors import UserError, print_line
from tinyformer.common.makers import TRANSLATOR, Maker
from tinyformer.common.progress import show_progress
from tinyformer.common.settings import settings_from
from tinyformer.data.pair_files import PairFiles, split_by_settings
from tinyformer.data.pairs import PairBatches, encode_pairs
from tinyformer.data.synthetic import dates
from tinyformer.decoding.beam_search import Hypothesis
from tinyformer.tokenizers.texts import note_on_unknown
from tinyformer.training.comparison import scores, text_scores, write_translations
from tinyformer.training.config import TrainingConfig
from tinyformer.training.losses import translation_loss
from tinyformer.training.run_folder import RunFolder, load_weights
from tinyformer.training.safety import check_names
from tinyformer.training.trainer import Trainer
from tinyformer.training.translation import (
    ARCHITECTURES,
    TranslationConfig,
    Translator,
    pretrained_translator,
    specials_of,
    trained_translator,
)
from tinytensor.common.wording import counted
from tinytensor.device.disk import make_folder

Pairs = Sequence[tuple[str, str]]  # sentences and their translations

DEFAULT_OUT = "runs/translate"
MADE_BY = Maker.of_kind(TRANSLATOR)
LINES_AT_ONCE = 512  # piped lines that are translated and printed together
# Muon trains a Transformer, with rates that fall linearly to 0. AdamW trains recurrent networks.
ROTARY = {"norm_first": True, "positions": "rotary", "query_key_norm": True}
MUON = {
    "optimizer": "muon", "learning_rate": 3e-3, "schedule": "linear", "min_learning_rate": 0.0, "warmup": 50,
    "weight_decay": 0.0, "beta2": 0.95,
}  # fmt: skip
ADAMW_DATES = {"learning_rate": 2e-3, "warmup": 100, "weight_decay": 0.0, "beta2": 0.98}
ADAMW_LANGUAGES = {"learning_rate": 1e-3, "warmup": 400, "weight_decay": 0.01, "beta2": 0.98}
Defaults = Mapping[str, Mapping[str, Mapping[str, Any]]]  # by architecture and section: "model" and "training"
# Settings for dates: small networks.
DATES: Defaults = {
    "transformer": {
        "model": {"d_model": 64, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 2, "d_ff": 256, **ROTARY},
        "training": {"steps": 500, "eval_every": 100, "batch_size": 64, **MUON},
    },
    "lstm": {
        "model": {"d_model": 128, "d_embedding": 64, "num_layers": 1, "dropout": 0.1},
        "training": {"steps": 1500, "batch_size": 64, **ADAMW_DATES},
    },
    "attention": {
        "model": {"d_model": 64, "d_embedding": 64, "num_layers": 1, "dropout": 0.1, "cell": "gru"},
        "training": {"steps": 1500, "batch_size": 64, **ADAMW_DATES},
    },
}
DATES_TASK = {"vocab_size": 400, "label_smoothing": 0.0}  # only one date is correct
# Settings for real languages: typical Multi30k network sizes in the literature.
LANGUAGES: Defaults = {
    "transformer": {
        "model": {
            "d_model": 256, "num_heads": 8, "encoder_layers": 3, "decoder_layers": 3, "d_ff": 512, "dropout": 0.3, **ROTARY
        },
        "training": {"steps": 3000, "batch_size": 128, **MUON},
    },
    "lstm": {
        "model": {"d_model": 512, "d_embedding": 256, "num_layers": 2, "dropout": 0.4},
        "training": {"steps": 3000, "batch_size": 128, **ADAMW_LANGUAGES},
    },
    "attention": {
        "model": {"d_model": 512, "d_embedding": 256, "num_layers": 1, "dropout": 0.4, "cell": "gru"},
        "training": {"steps": 3000, "batch_size": 128, **ADAMW_LANGUAGES},
    },
}  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- training


def prepare(folder: RunFolder, arguments: argparse.Namespace) -> tuple[Trainer, Translator, Pairs, str]:
    """Read pairs, create a tokenizer (or load a resumed run's), and build a network and its trainer.

    Returns the trainer, its translator, the test pairs, and "dates" or "languages".
    """
    chosen = (
        folder.read_part("task", TranslationConfig) if arguments.resume else settings_from(TranslationConfig, vars(arguments))
    )
    make, config_class = ARCHITECTURES[chosen.architecture]
    kinds: dict[str, type] = {"task": TranslationConfig, "model": config_class, "training": TrainingConfig}
    setup = RunSetup(folder, arguments, kinds, made_by=MADE_BY)
    files = setup.files(PairFiles)
    task_type = "languages" if files.are_given() else "dates"
    defaults = (LANGUAGES if files.are_given() else DATES)[chosen.architecture]
    task = setup.settings(TranslationConfig, {} if files.are_given() else DATES_TASK)
    config = setup.settings(TrainingConfig, defaults["training"])

    if task_type == "dates":
        split = split_by_settings(dates(), {"validation": task.validation, "test": task.test})
    else:
        split = files.read(task.lowercase, task.validation, task.test)
    setup.check_data("the sentences", split)
    tokenizer = setup.tokenizer(lambda: task.train_tokenizer(split[0]))
    specials = specials_of(tokenizer)
    encoded = [encode_pairs(part, tokenizer.encode, tokenizer.encode, task.max_tokens) for part in split]
    (training, validation, test), (training_ids, validation_ids, _) = zip(*encoded)

    with_attention = {"attention": chosen.architecture == "attention"}  # a setting of recurrent networks
    model_defaults = {"share_embeddings": True, **with_attention, **defaults["model"]}
    sizes = {"source_vocab_size": tokenizer.vocab_size, "target_vocab_size": tokenizer.vocab_size}
    model_config = setup.settings(config_class, model_defaults, **sizes, source_pad=specials.pad)
    tt.seed(config.seed)
    translator = Translator(make(model_config), tokenizer, task)
    translator.check_length()  # before training, not after
    translator.check_beam(arguments.beam)
    if not (training and validation and test):
        raise UserError(
            f"too few pairs have at most {counted(task.max_tokens, 'token')} on both sides: choose a larger --max-tokens"
        )
    batches = PairBatches(training_ids, validation_ids, specials, config.batch_size, config.seed)
    loss = translation_loss(task.label_smoothing, specials.pad)
    trainer = Trainer(translator.model, batches, config, folder, loss, lambda: some_translations(translator, validation[:3]))
    setup.begin(trainer, tokenizer)

    print(f"{counted(len(training), 'pair')} for training, {len(validation):,} for validation, {len(test):,} for testing")
    long = sum(map(len, split)) - len(training) - len(validation) - len(test)
    if long:
        print(f"(skipped {counted(long, 'pair')} with a side of more than {counted(task.max_tokens, 'token')})")
    network = f"{type(translator.model).__name__} with {translator.model.num_parameters():,} parameters"
    print(f"{network} on {tt.backend_name}, {counted(len(batches), 'batch')} per epoch; run folder {folder.path}")
    return trainer, translator, test, task_type


def train(arguments: argparse.Namespace) -> None:
    """Train or resume a run, score the held-out pairs, and plot the attention."""
    with RunFolder(arguments.out).held() as folder:
        trainer, translator, test, task_type = prepare(folder, arguments)
        train_to_end(trainer, MADE_BY.train_command(folder.path))
        best = f"Best validation loss {trainer.best_loss:.4f} at step {trainer.best_step}."
        print(f"\nTrained in {trainer.total_seconds:.0f} s, {trainer.seconds:.0f} of them for training steps. {best}")
        load_weights(translator.model, folder.best)

        sources, references = zip(*test)
        measured = text_scores(references) if task_type == "languages" else None
        for beam in sorted({1, arguments.beam}):
            translations = translator.translate(sources, beam, progress=True)
            print(f"{'greedy' if beam == 1 else f'beam {beam}'}: {scores(translations, references, task_type, measured)}")
        if measured is not None:
            print(measured.signature())
        write_translations(folder.sample, sources, translations, references)
        print(side_by_side(test[:8], translations))
        with plots.if_possible():
            note = plots.note_on_losses(translator.model.config.dropout, translator.task.label_smoothing)
            plots.loss_curve(trainer.rows, folder.curve, title="Translation", note=note)
            maps = draw_attention(translator, sources[0], folder) if translator.has_attention() else []
            print(drawn([folder.curve, *maps]))
        tell_next("Translate", MADE_BY, trainer)


def some_translations(translator: Translator, pairs: Pairs) -> str:
    """Return a few sentences with their current translations."""
    return side_by_side(pairs, translator.translate([source for source, _ in pairs]))


def side_by_side(pairs: Pairs, translations: Sequence[str]) -> str:
    """Format sentences with their translations and references."""
    return "\n".join(f"    {s}  ->  {ours}   (reference: {t})" for (s, t), ours in zip(pairs, translations))


def draw_attention(translator: Translator, sentence: str, folder: RunFolder) -> list[Path]:
    """Plot each layer's attention for a sentence and its translation. Return the paths of two images: the mean over heads, and
    each head."""
    seen = translator.attended(sentence)
    tokens = seen.source, seen.read
    return [
        plots.attention_means(seen.weights, *tokens, folder.attention),
        plots.attention_maps(seen.weights, *tokens, folder.attention_heads),
    ]


def drawn(paths: Sequence[Path]) -> str:
    """Return a line that lists the images."""
    *first, last = map(str, paths)
    return f"Drew {', '.join(first)} and {last}" if first else f"Drew {last}"


# ------------------------------------------------------------------------------------------------------- translating


def translate(arguments: argparse.Namespace) -> None:
    """Translate sentences from the command line, a pipe or the keyboard."""
    folder = RunFolder(arguments.out)
    translator = pretrained_translator(arguments.model) if arguments.model else trained_translator(folder)
    arguments.beam = translator.beam if arguments.beam is None else arguments.beam
    translator.check_beam(arguments.beam, arguments.n_best)
    if arguments.heat_map and not translator.has_attention():
        raise UserError(f"the network of {folder.path} has no attention to draw: leave out --heat-map")
    lines = arguments.sentences or piped_lines()
    if lines is None:
        translate_typed(translator, arguments)
        return
    if arguments.sentences:
        for sentence in arguments.sentences:
            translator.encode(sentence)  # rejects an empty or overlong sentence
    else:
        check_lines(translator, lines)
    number = sum(map(bool, lines))
    if arguments.heat_map and number != 1:
        raise UserError(f"--heat-map draws the attention of one sentence, and there are {number}: leave it out")
    print_translations(translator, lines, arguments)


def translate_typed(translator: Translator, arguments: argparse.Namespace) -> None:
    """Translate each typed sentence. The user may retype one that fails."""
    for sentence in typed_lines("Type a sentence to translate; an empty line ends."):
        try:
            translator.encode(sentence)
        except UserError as error:
            print_line(error, file=sys.stderr)
        else:
            print_translations(translator, [sentence], arguments)


def check_lines(translator: Translator, lines: Sequence[str]) -> None:
    """Raise UserError, with line numbers, if any lines cannot be translated. Lines may be empty."""
    errors = {}
    for number, line in enumerate(lines, start=1):
        try:
            if line:
                translator.encode(line)
        except UserError as error:
            errors[number] = str(error)
    if errors:
        first, *more = errors
        numbers = ", ".join(map(str, more[:9])) + (", ..." if more[9:] else "")
        like_it = f" ({len(more)} more like it: {numbers})" if more else ""
        raise UserError(f"line {first}: {errors[first]}{like_it}")


def print_translations(translator: Translator, lines: Sequence[str], arguments: argparse.Namespace) -> None:
    """Print the translations of each line in order. Empty lines stay empty. With --heat-map, plot the attention.

    Many lines are translated and printed in blocks, so that the first translations appear early.
    """
    beam, n_best, number = arguments.beam, arguments.n_best, sum(map(bool, lines))
    if note := note_on_unknown(translator.tokenizer, " ".join(lines)):
        print_line(note, file=sys.stderr)
    with show_progress(f"translating, beam {beam}", number, "sentence", quiet=number < 20) as bar:
        for start in range(0, len(lines), LINES_AT_ONCE):
            block = lines[start : start + LINES_AT_ONCE]
            results = iter(translator.search_all([line for line in block if line], beam, n_best, bar.update))
            bar.write("\n".join(as_text(translator, next(results), n_best) if line else "" for line in block))
            sys.stdout.flush()
    if arguments.heat_map:
        folder = RunFolder(arguments.out)
        make_folder(folder.path)  # with a pretrained model, it is only for images
        check_names(folder.path, ("attention*.png",))
        for sentence in filter(None, lines):
            print(drawn(draw_attention(translator, sentence, folder)), file=sys.stderr)


def as_text(translator: Translator, hypotheses: Sequence[Hypothesis], n_best: int) -> str:
    """Format a sentence's translations, one per line, with scores if ``n_best`` is above 1."""
    texts = map(translator.text, hypotheses)
    return "\n".join(texts if n_best == 1 else (f"{one.score:.3f}\t{text}" for one, text in zip(hypotheses, texts)))


# ------------------------------------------------------------------------------------------------------ command line


def parse(words: list[str]) -> argparse.Namespace:
    """Parse the command line of ``train`` or ``translate``."""
    architecture = first_choice(words, "architecture", "task", TranslationConfig, DEFAULT_OUT)
    commands = Commands("tinyformer", "Train a network to translate, and translate with it.", DEFAULT_OUT, TRANSLATOR)
    for_dates = as_flags({**DATES[architecture]["model"], **DATES[architecture]["training"], **DATES_TASK})
    for_languages = as_flags({**LANGUAGES[architecture]["model"], **LANGUAGES[architecture]["training"]})
    training = commands.add(
        train,
        help="train",
        description="Train a network to translate. Without files, it learns dates, with smaller defaults than those below: "
        f"{for_dates}. With files: {for_languages}. The model flags below are for --architecture {architecture}. "
        "For another, add it before --help.",
        choice=f"--architecture {architecture}",
        shown="train translator",
    )
    add_pair_flags(training)
    training.add_argument("--beam", help="beam width for the final scores", type=int, default=5, metavar="INT")
    model = ARCHITECTURES[architecture][1]
    add_run_settings(training, DEFAULT_OUT, task=TranslationConfig, model=model, training=TrainingConfig)
    for part in ("validation", "test"):
        training.has_no_effect(part, attrgetter(f"{part}_source"), f"with --{part}-source: all its pairs are used")
    training.has_no_effect(
        "lowercase",
        lambda arguments: not (arguments.data or arguments.source or arguments.resume),
        "on dates: give --data, or --source",
    )
    using = commands.add_use(translate, help="translate with a trained model", description="Translate sentences.")
    using.add_argument("sentences", help="sentences to translate (default: read lines from standard input)", nargs="*")
    add_model_flag(using)
    width = "beam width; 1 is greedy (default: 5, or a pretrained model's setting)"
    using.add_argument("--beam", help=width, type=int, metavar="INT")
    using.add_argument("--n-best", help="number of translations to show, with scores", type=int, default=1, metavar="INT")
    using.add_argument("--heat-map", help="draw the attention weights", action="store_true")
    using.has_no_effect("out", lambda arguments: arguments.model and not arguments.heat_map, "with --model, without --heat-map")
    return commands.parse(words)
