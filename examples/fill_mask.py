"""Train a small BERT to fill in hidden words, then to tell questions from statements.

python examples/fill_mask.py                               # Tiny Shakespeare: hidden words, then sentences to classify
python examples/fill_mask.py --data my.txt                 # your own text: runs/fill_mask-my
python examples/fill_mask.py fill "To be or [MASK] to be"  # fill in with a trained model
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tinyformer.errors import SettingError, UserError, plain_errors

with plain_errors():  # a missing package or GPU is told in a line, too
    from tqdm import tqdm

    import tinytensor as tt
    from tinyformer import plots
    from tinyformer.command_line import (
        Parser,
        add_run_flags,
        add_settings,
        as_flags,
        folder_for,
        next_command,
        parse_command,
        some_path,
    )
    from tinyformer.data.labelled import Labelled, LabelledBatches
    from tinyformer.data.masking import MaskedBatches, Masking
    from tinyformer.data.reading import STANDARD_LIBRARY, TextSource, open_text
    from tinyformer.decoding.beam_search import log_softmax
    from tinyformer.models.bert import BertConfig, BertForClassification, BertForMaskedLM
    from tinyformer.models.evaluating import evaluating
    from tinyformer.schema import check_fields
    from tinyformer.settings import setting, settings_from
    from tinyformer.tokenizers import WordPieceTokenizer, load_tokenizer
    from tinyformer.tokenizers.wordpiece import SPECIAL
    from tinyformer.training.config import TrainingConfig
    from tinyformer.training.evaluation import accuracy
    from tinyformer.training.losses import class_loss, masked_token_loss
    from tinyformer.training.runs import RunFolder, load_weights
    from tinyformer.training.trainer import Trainer
    from tinytensor.backend import host

SENTENCES = ("To be or [MASK] to be", "My [MASK], I will obey the king.", "Where is thy [MASK]?", "I pray [MASK], sir, speak.")
# What ends a sentence in scripts around the world, or a part of one, or opens one, as Spanish does.
QUESTION_MARKS = "?？؟\u037e፧"
FULL_STOPS = ".。．｡।۔።။។։"
OTHER_MARKS = "!:;！：；؛…‥⋯‼⁇⁈⁉॥¿¡"
CODE = ("for i in [MASK](len(names)):", "return [MASK]", "[MASK] os", "if x is [MASK]:")


@dataclasses.dataclass(frozen=True)
class TextConfig:
    """How the text is cut, hidden, and asked about."""

    wordpieces: int = setting(1000, "tokens of the WordPiece vocabulary")
    window: int = setting(32, "tokens that the model sees at once")
    masked: float = setting(0.3, "the fraction of the tokens that are hidden")
    marks: str = setting(
        "",
        "two marks to tell apart by what stands before them (default: the text's ? and ., or the likeliest two)",
        changeable=True,
    )
    classify_steps: int = setting(300, "training steps of each classifier; 0 trains none", changeable=True)
    classify_learning_rate: float = setting(3e-4, "peak learning rate of the classifiers", changeable=True)

    def __post_init__(self) -> None:
        check_fields(self)
        for name, least in (("wordpieces", len(SPECIAL) + 1), ("window", 1), ("classify_steps", 0)):
            if getattr(self, name) < least:
                raise SettingError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if not 0 < self.masked <= 1:
            raise SettingError(f"masked must be above 0 and at most 1, not {self.masked}")
        if self.classify_learning_rate < 0:
            raise SettingError(f"classify_learning_rate must be at least 0, not {self.classify_learning_rate}")
        if self.marks and not (len(set(self.marks)) == len(self.marks) == 2 and all(map(_is_mark, self.marks))):
            raise SettingError(f"marks must be two different punctuation characters, such as ?., not {self.marks!r}")


# A model of a laptop's size, in place of BERT-base. BERT's own norms and positions learn from far more text than this: here
# they would long stay at guessing each word by how frequent it is.
MODEL = {
    "num_layers": 2, "num_heads": 4, "d_model": 128, "d_ff": 512, "dropout": 0.0, "norm_first": True,
    "positions": "sinusoidal",
}  # fmt: skip
TRAINING = {"steps": 2500, "batch_size": 64, "learning_rate": 3e-3, "weight_decay": 0.01, "beta2": 0.98}


# ---------------------------------------------------------------------------------------------------------- training


def train(arguments: argparse.Namespace) -> None:
    """Learn to fill in hidden tokens; then use what was learned to classify sentences."""
    with RunFolder(arguments.out).held() as folder:
        run = prepare(folder, arguments)
        if not run.trainer.train():
            print(run.trainer.stop_message(next_command(arguments.out, DEFAULT_OUT)))
            return
        report(run, folder)
        if run.text_config.classify_steps:
            stopped_by = classify(run.trainer.model, run.tokenizer, run.text, run.text_config, run.trainer.config, folder)
            if stopped_by:
                again = next_command(arguments.out, DEFAULT_OUT, "--resume")
                print(f"Stopped by {stopped_by}. What fills in words is whole; the classifiers are trained anew with: {again}")
                return
        print(f"\nFill in more with: {next_command(arguments.out, DEFAULT_OUT, 'fill')} 'a sentence with a [MASK]'")


@dataclasses.dataclass
class Run:
    """What is trained, and on what."""

    trainer: Trainer
    tokenizer: WordPieceTokenizer
    text: str
    text_config: TextConfig
    source: TextSource


def prepare(folder: RunFolder, arguments: argparse.Namespace) -> Run:
    """A new run, or the one that is in the folder."""
    given = vars(arguments)
    if arguments.resume:
        model_config = folder.resumed("model", BertConfig, given)
        training_config = folder.resumed("training", TrainingConfig, given)
        text_config = folder.resumed("text", TextConfig, given)
        source = folder.read_part("data", TextSource)
        text = source.read_again(folder.path, arguments.data)
        tokenizer = tokenizer_of(folder, model_config)
    else:
        text, source = open_text(arguments.data)
        text_config = settings_from(TextConfig, given)
        training_config = settings_from(TrainingConfig, {**TRAINING, **given})
        tokenizer = WordPieceTokenizer.train(text, text_config.wordpieces, progress=True)
        chosen = {"max_length": text_config.window + 2, **MODEL, **given}
        pad = tokenizer.special["[PAD]"]
        model_config = settings_from(BertConfig, chosen, vocab_size=tokenizer.vocab_size, pad=pad)
        if model_config.max_length < text_config.window + 2:
            raise SettingError(f"max_length must be at least {text_config.window + 2}, the window and two marks around it")

    tt.seed(training_config.seed)
    special = tokenizer.special
    masking = Masking(tokenizer.vocab_size, special["[MASK]"], special.values(), text_config.masked)
    ids, around = tokenizer.encode(text), (special["[CLS]"], special["[SEP]"])
    batches = MaskedBatches(ids, masking, *around, text_config.window, training_config.batch_size, training_config.seed)
    trainer = Trainer(BertForMaskedLM(model_config), batches, training_config, folder, masked_token_loss)
    if arguments.resume:
        trainer.resume()
    else:
        settings = {"model": model_config, "training": training_config, "text": text_config, "data": source}
        folder.create(settings, arguments.overwrite)
        tokenizer.save(folder.tokenizer)

    held_out = len(batches.validation)
    print(f"{source.name}: {len(ids):,} tokens of {tokenizer.vocab_size:,} kinds; the last {held_out:,} validate")
    print(f"BERT with {trainer.model.num_parameters():,} parameters on {tt.backend_name}; run folder {folder.path}")
    return Run(trainer, tokenizer, text, text_config, source)


def report(run: Run, folder: RunFolder) -> None:
    """Say how many hidden tokens are found, draw the losses, and fill in a few sentences."""
    trainer, tokenizer, batches = run.trainer, run.tokenizer, run.trainer.batches
    load_weights(trainer.model, folder.best)
    share = accuracy(trainer.model, batches.validation_batches())
    commonest = Counter(batches.training.tolist()).most_common(1)[0][0]
    guess = float((batches.validation == commonest).mean())
    print(
        f"\nTrained in {trainer.total_seconds:.0f} s. Held-out text: loss {trainer.best_loss:.4f} a hidden token, "
        f"{100 * share:.1f} % of them right (always {tokenizer.decode([commonest])!r}: {100 * guess:.1f} %)."
    )
    with plots.if_possible():
        note = plots.note_on_losses(trainer.model.bert.config.dropout)
        plots.loss_curve(trainer.rows, folder.curve, title="Masked tokens", note=note)
        print(f"Drew {folder.curve}")
    for sentence in _to_fill(run.source.name, batches.validation, tokenizer):
        if len(tokenizer.encode(sentence, allow_special=True)) <= run.text_config.window:
            print("\n".join(filled(trainer.model, tokenizer, sentence)))


def tokenizer_of(folder: RunFolder, config: BertConfig) -> WordPieceTokenizer:
    """A run's tokenizer. Raises UserError for one that does not fit its model."""
    tokenizer = load_tokenizer(folder.tokenizer, config.vocab_size)
    if not isinstance(tokenizer, WordPieceTokenizer):
        raise UserError(f"{folder.tokenizer} has no WordPieces: it is not the tokenizer of this run")
    return tokenizer


def _to_fill(name: str, held_out: Any, tokenizer: WordPieceTokenizer) -> Sequence[str]:
    """Sentences with a hidden word: for the usual texts written for them, for others from the held-out text."""
    if name in ("Tiny Shakespeare", STANDARD_LIBRARY):
        return CODE if name == STANDARD_LIBRARY else SENTENCES
    words = tokenizer.decode(held_out).split()[:28]
    passages = [words[first : first + 7] for first in range(0, len(words) - 6, 7)]
    return [" ".join([*passage[:3], "[MASK]", *passage[4:]]) for passage in passages]


# ------------------------------------------------------------------------------------------------------- classifying


def classify(
    pretrained: BertForMaskedLM,
    tokenizer: WordPieceTokenizer,
    text: str,
    text_config: TextConfig,
    config: TrainingConfig,
    folder: RunFolder,
) -> str | None:
    """Tell which of two marks a sentence ended with: once from the weights that filled in words, once from scratch. What it
    was told to stop by, if it was."""
    # The end of the text, where no hidden words were learned from, tests; the last part of the rest chooses the best weights.
    cuts = [int(0.8 * len(text)), int(0.9 * len(text))]
    parts = [text[: cuts[0]], text[cuts[0] : cuts[1]], text[cuts[1] :]]
    marks = text_config.marks or _two_marks(text)
    training, validation, test = [_labelled(part, marks, tokenizer, text_config, config.seed) for part in parts]
    known = {tuple(ids) for ids, _ in training + validation}
    test = [(ids, label) for ids, label in test if tuple(ids) not in known]
    if min(len(training), len(validation), len(test)) < 10:
        print(f"\n(Too few sentences end with {' or '.join(marks)} to learn to tell which.)")
        return None
    share = max(Counter(label for _, label in test).values()) / len(test)
    print(
        f"\nWhich mark ended a sentence, {' or '.join(marks)}? {len(training):,} sentences to learn from, {len(test):,} to test"
    )
    config = dataclasses.replace(
        config,
        steps=text_config.classify_steps,
        learning_rate=text_config.classify_learning_rate,
        warmup=min(config.warmup, text_config.classify_steps // 10),
        eval_every=max(text_config.classify_steps // 6, 1),
    )
    results = []
    for start in ("from scratch", "pretrained"):
        tt.seed(config.seed)
        batches = LabelledBatches(training, validation, tokenizer.special["[PAD]"], config.batch_size, config.seed)
        model = BertForClassification(pretrained.bert.config, len(marks))
        if start == "pretrained":
            model.bert.load_state_dict(pretrained.bert.state_dict())
        with RunFolder(folder.path / start.replace(" ", "-")).held() as own:
            own.create({"training": config}, overwrite=True)
            trainer = Trainer(model, batches, config, own, class_loss)
            try:
                finished = trainer.train()
            except UserError as error:  # its learning rate has a flag of its own here
                raise UserError(str(error).replace("--learning-rate", "--classify-learning-rate")) from None
            if not finished:
                return trainer.stopped_by
            load_weights(model, own.best)
        right = accuracy(model, LabelledBatches(training, test, tokenizer.special["[PAD]"], 1).validation_batches())
        results.append(f"{start}: {100 * right:.1f} % of the held-out sentences right")
    print("\n".join([*results, f"always the same mark: {100 * share:.1f} %"]))
    _show(model, test[:6], tokenizer, marks)
    return None


def _two_marks(text: str) -> str:
    """The text's commonest question mark and full stop where it has sentences enough of both, otherwise the two marks that
    most of its lines end with."""
    question, stop = (max(marks, key=text.count) for marks in (QUESTION_MARKS, FULL_STOPS))
    if min(map(len, _sentences(text, question + stop).values())) >= 200:
        return question + stop
    ends = Counter(line[-1] for line in text.split("\n") if line and _is_mark(line[-1]))
    return "".join(mark for mark, _ in ends.most_common(2)) if len(ends) > 1 else "?."


def _is_mark(character: str) -> bool:
    """Whether it is punctuation or another sign: no letter, accent, digit, space or control character."""
    return unicodedata.category(character)[0] in "PS"


def _sentences(text: str, marks: str) -> dict[str, list[str]]:
    """For each of the ``marks``, what stands before it, from the mark or the empty line before that. An empty line ends a
    sentence as a full stop does. Takes time in proportion to the text's length, whatever is in it."""
    ends = re.escape(QUESTION_MARKS + FULL_STOPS + OTHER_MARKS + marks)
    pieces = re.split(rf"(\n\n|[{ends}])", text)
    found: dict[str, list[str]] = {mark: [] for mark in marks}
    for sentence, end in zip(pieces[::2], pieces[1::2]):
        mark = "." if end == "\n\n" else end
        if sentence and mark in found:
            found[mark].append(sentence)
    return found


def _labelled(text: str, marks: str, tokenizer: WordPieceTokenizer, text_config: TextConfig, seed: int) -> list[Labelled]:
    """As many sentences of each mark, without it, shuffled; those of fewer than three tokens or too many are left out."""
    start, end = tokenizer.special["[CLS]"], tokenizer.special["[SEP]"]
    classes = []
    for label, sentences in enumerate(_sentences(text, marks).values()):
        bar = tqdm(set(sentences), desc="reading sentences", unit="sentence", leave=False, delay=1, disable=None)
        encoded = {tuple(tokenizer.encode(sentence).tolist()) for sentence in bar}
        fitting = sorted(ids for ids in encoded if 3 <= len(ids) <= text_config.window)
        classes.append([([start, *ids, end], label) for ids in fitting])
    rng = host.random.default_rng(seed)
    size = min(map(len, classes))
    drawn = [examples[i] for examples in classes for i in rng.permutation(len(examples))[:size]]
    return [drawn[i] for i in rng.permutation(len(drawn))]


def _show(model: BertForClassification, examples: list[Labelled], tokenizer: WordPieceTokenizer, marks: str) -> None:
    with tt.no_grad(), evaluating(model):
        for ids, label in examples:
            guess = marks[int(model(tt.tensor([ids])).numpy().argmax())]
            verdict = "right" if guess == marks[label] else f"wrong: it was {marks[label]}"
            print(f"    {tokenizer.decode(ids, skip_special=True)}  ->  {guess}   {verdict}")


# ---------------------------------------------------------------------------------------------------------- filling


def filled(model: BertForMaskedLM, tokenizer: WordPieceTokenizer, sentence: str, best: int = 5) -> list[str]:
    """The sentence, and for each [MASK] in it the likeliest tokens with their probabilities."""
    special = tokenizer.special
    ids = [special["[CLS]"], *tokenizer.encode(sentence, allow_special=True).tolist(), special["[SEP]"]]
    if special["[MASK]"] not in ids:
        raise UserError(f"there is no [MASK] to fill in: {sentence!r}")
    longest = model.bert.config.max_length
    if len(ids) > longest:
        raise UserError(f"the sentence has {len(ids) - 2} tokens, more than the {longest - 2} of this run")
    with tt.no_grad(), evaluating(model):
        inputs = tt.tensor([ids])
        scores = log_softmax(model(inputs, places=inputs == special["[MASK]"]).numpy().astype(host.float64))
    lines = [sentence]
    for row in scores:
        likeliest = (-row).argsort(kind="stable")[:best]
        lines.append("    " + ", ".join(f"{tokenizer.tokens[i]} {100 * host.exp(row[i]):.1f} %" for i in likeliest))
    return lines


def fill(arguments: argparse.Namespace) -> None:
    """Fill in with a trained model."""
    folder = RunFolder(arguments.out)
    config = folder.read_part("model", BertConfig)
    tokenizer = tokenizer_of(folder, config)
    if not 1 <= arguments.best <= config.vocab_size:
        raise UserError(f"--best must be from 1 to {config.vocab_size}, not {arguments.best}")
    model = BertForMaskedLM(config)
    load_weights(model, folder.best)
    for sentence in arguments.sentences:
        print("\n".join(filled(model, tokenizer, sentence, arguments.best)))


# ------------------------------------------------------------------------------------------------------ command line

DEFAULT_OUT = "runs/fill_mask"


def parse(words: list[str]) -> argparse.Namespace:
    """The command line; without a command it is ``train``."""
    parser = Parser(prog="fill_mask.py", description="Train a small BERT on a text, and fill in hidden words with it.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    training = commands.add_parser(
        "train",
        help="train (what runs without a command)",
        description=f"Train a small BERT on a text. Its defaults, where they differ from those shown below: "
        f"{as_flags({**MODEL, **TRAINING})}.",
    )
    training.add_argument(
        "--data",
        help="a UTF-8 text file or a folder of them (default: Tiny Shakespeare, downloaded once)",
        metavar="PATH",
        type=some_path,
    )
    add_run_flags(training, DEFAULT_OUT)
    add_settings(training, TextConfig, "text")
    add_settings(training, BertConfig, "model")
    add_settings(training, TrainingConfig, "training")
    training.set_defaults(run=train)
    filling = commands.add_parser("fill", help="fill in with a trained model", description="Fill in hidden words.")
    filling.add_argument("sentences", help="texts with one [MASK] or several", nargs="+", metavar="SENTENCE")
    filling.add_argument("--out", help="the run's folder", default=DEFAULT_OUT, type=some_path, metavar="FOLDER")
    filling.add_argument("--best", help="how many tokens to show for each [MASK]", type=int, default=5, metavar="INT")
    filling.set_defaults(run=fill)
    arguments = parse_command(parser, commands.choices, words)
    arguments.out = arguments.out or folder_for(DEFAULT_OUT, arguments.data)
    return arguments


if __name__ == "__main__":
    with plain_errors():
        parsed = parse(sys.argv[1:])
        parsed.run(parsed)
