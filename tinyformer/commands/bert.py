"""Train a small BERT to fill in masked words, then to classify questions and statements.

On Tiny Shakespeare, this takes about three minutes on two cores.

tinyformer train bert                          # Tiny Shakespeare
tinyformer train bert --data my.txt            # your own text: runs/fill_mask-my
tinyformer fill "To be or [MASK] to be"        # use the trained model
tinyformer fill --model FOLDER "..."           # with a pretrained BERT
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import tinytensor as tt
from tinyformer.commands.command_line import Commands, add_model_flag, add_run_settings, add_text_flag, as_flags
from tinyformer.commands.inputs import piped_lines, typed_lines
from tinyformer.commands.setup import RunSetup, draw_losses, tell_next, train_to_end
from tinyformer.common.errors import SettingError, UserError, print_line, renamed_settings, stop_script
from tinyformer.common.makers import MASKED_MODEL, Maker
from tinyformer.common.settings import at_least, check_fields, setting
from tinyformer.data.batches import LabelledBatches
from tinyformer.data.masking import MaskedBatches, Masking
from tinyformer.data.reading import STANDARD_LIBRARY
from tinyformer.data.sentences import check_marks, likely_marks, sentence_parts
from tinyformer.decoding.filling import fill_masks, hide_words, with_mask, with_wordpieces
from tinyformer.models.bert import BertConfig, BertForClassification, BertForMaskedLM
from tinyformer.models.evaluating import evaluating
from tinyformer.pretrained.folders import find_folder
from tinyformer.pretrained.loading import from_pretrained
from tinyformer.pretrained.tokenizers import pretrained_tokenizer
from tinyformer.tokenizers import WordPieceTokenizer
from tinyformer.tokenizers.texts import note_on_unknown
from tinyformer.tokenizers.wordpiece import SPECIAL
from tinyformer.training.config import TrainingConfig
from tinyformer.training.evaluation import accuracy
from tinyformer.training.losses import class_loss, masked_token_loss
from tinyformer.training.opening import KINDS
from tinyformer.training.run_folder import RunFolder, load_weights
from tinyformer.training.tensorboard import TensorBoardLogger
from tinyformer.training.trainer import Trainer
from tinytensor.common.wording import a_or_an, counted

if TYPE_CHECKING:
    from tinyformer.decoding.filling import FillingTokenizer

DEFAULT_OUT = "runs/fill_mask"
MADE_BY = Maker.of_kind(MASKED_MODEL)
# A laptop-sized model. BERT's standard norms and positions need far more text: here, the model would long guess words by
# frequency. With rotary positions, it soon learns which words are neighbors.
MODEL = {
    "num_layers": 2, "num_heads": 4, "d_model": 128, "d_ff": 512, "dropout": 0.0, "norm_first": True,
    "positions": "rotary", "query_key_norm": True,
}  # fmt: skip
TRAINING = {
    "steps": 2500, "batch_size": 32, "optimizer": "muon", "learning_rate": 3e-3, "schedule": "linear",
    "min_learning_rate": 0.0, "weight_decay": 0.01, "beta2": 0.95,
}  # fmt: skip
# Sentences to fill in after training on a standard corpus.
SENTENCES = {
    "Tiny Shakespeare": (
        "To be or [MASK] to be", "My [MASK], I will obey the king.", "Where is thy [MASK]?", "I pray [MASK], sir, speak.",
    ),
    STANDARD_LIBRARY: ("for i in [MASK](len(names)):", "return [MASK]", "[MASK] os", "if x is [MASK]:"),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TextConfig:
    """Settings of the tokenizer, the masking and the classifiers."""

    wordpieces: int = setting(1000, "size of the WordPiece vocabulary")
    window: int = setting(64, "context length, in tokens")
    masked: float = setting(0.3, "fraction of tokens to mask")
    marks: str = setting(
        "",
        "two punctuation marks to classify sentences by (default: ? and ., or the two most likely)",
        changeable=True,
        unless={"classify_steps": [0]},
    )
    classify_steps: int = setting(300, "training steps per classifier; 0: none", changeable=True)
    classify_learning_rate: float = setting(
        3e-4, "peak learning rate of the classifiers", changeable=True, unless={"classify_steps": [0]}
    )

    def __post_init__(self) -> None:
        check_fields(self)
        at_least(self, wordpieces=len(SPECIAL) + 1, window=1, classify_steps=0, classify_learning_rate=0)
        if not 0 < self.masked <= 1:
            raise SettingError(f"masked must be above 0 and at most 1, got {self.masked}")
        if self.marks:
            check_marks(self.marks)


@dataclasses.dataclass(frozen=True)
class Pretraining:
    """A masked language model in training, with its data. ``sentences`` are examples to fill in."""

    trainer: Trainer
    model: BertForMaskedLM
    batches: MaskedBatches
    tokenizer: WordPieceTokenizer
    text_config: TextConfig
    text: str
    sentences: list[str]


def prepare(folder: RunFolder, arguments: argparse.Namespace) -> Pretraining:
    """Read the corpus and create a tokenizer and model. A resumed run already has both."""
    kinds = {"model": BertConfig, "training": TrainingConfig, "text": TextConfig}
    setup = RunSetup(folder, arguments, kinds, made_by=MADE_BY)
    text_config = setup.settings(TextConfig)
    config = setup.settings(TrainingConfig, TRAINING)
    text, source = setup.text(arguments.data, arguments.field)
    with renamed_settings(vocab_size="wordpieces"):
        trained = setup.tokenizer(lambda: WordPieceTokenizer.train(text, text_config.wordpieces, progress=True))
    tokenizer = with_wordpieces(trained, folder.tokenizer)
    special = tokenizer.special
    longest = text_config.window + 2  # with [CLS] and [SEP] around it
    sizes = {"vocab_size": tokenizer.vocab_size, "pad": special["[PAD]"]}
    model_config = setup.settings(BertConfig, {"max_length": longest, **MODEL}, **sizes)
    if model_config.max_length < longest:
        raise SettingError(f"max_length must be at least {longest}, the window and two marks around it")

    tt.seed(config.seed)
    ids = tokenizer.encode(text)
    masking = Masking(tokenizer.vocab_size, special["[MASK]"], special.values(), text_config.masked)
    around = special["[CLS]"], special["[SEP]"]
    batches = MaskedBatches(ids, masking, *around, text_config.window, config.batch_size, config.seed)
    model = BertForMaskedLM(model_config)
    trainer = Trainer(model, batches, config, folder, masked_token_loss)
    sentences = [
        sentence
        for sentence in SENTENCES.get(source.name) or hide_words(tokenizer.decode(batches.validation))
        if len(tokenizer.encode(sentence, allow_special=True)) <= text_config.window
    ]
    setup.begin(trainer, tokenizer, sample=lambda: "\n".join(filled(model, tokenizer, s) for s in sentences))

    held_out = f"the last {len(batches.validation):,} validate"
    print_line(f"{source.name}: {counted(len(ids), 'token')}, {tokenizer.vocab_size:,} of them distinct; {held_out}")
    if unknown := int((ids == special["[UNK]"]).sum()):
        characters = counted(tokenizer.longest_word, "character")
        print(f"[UNK] occurs {counted(unknown, 'time')}, for words of over {characters} or with rare characters")
    print(f"BERT with {model.num_parameters():,} parameters on {tt.backend_name}; run folder {folder.path}")
    return Pretraining(trainer, model, batches, tokenizer, text_config, text, sentences)


def train(arguments: argparse.Namespace) -> None:
    """Train a masked language model, then classifiers."""
    with RunFolder(arguments.out).held() as folder:
        pretraining = prepare(folder, arguments)
        trainer, tokenizer = pretraining.trainer, pretraining.tokenizer
        model, batches = pretraining.model, pretraining.batches
        train_to_end(trainer, MADE_BY.train_command(folder.path))
        load_weights(model, folder.best)
        share = accuracy(model, batches.validation_batches())
        counts: Counter[int] = Counter(batches.training.tolist())
        commonest = counts.most_common(1)[0][0]
        guess = float((batches.validation == commonest).mean())
        print(
            f"\nTrained in {trainer.total_seconds:.0f} s. Held-out text: loss {trainer.best_loss:.4f} per masked token, "
            f"{100 * share:.1f} % correct (always {tokenizer.decode([commonest])!r}: {100 * guess:.1f} %)."
        )
        draw_losses(trainer, "Masked tokens", model.bert.config.dropout)
        for sentence in pretraining.sentences:
            print(filled(model, tokenizer, sentence))

        if pretraining.text_config.classify_steps and (stopped_by := classify(pretraining)):
            again = MADE_BY.resume_command(folder.path)
            said = f"Stopped by {stopped_by}. The language model is saved. Train the classifiers again with: {again}"
            stop_script(stopped_by, said)
        tell_next("Fill in more", MADE_BY, trainer)


def filled(model: BertForMaskedLM, tokenizer: FillingTokenizer, sentence: str, best: int = 5) -> str:
    """Return a sentence, and for each mask a line with the most likely tokens and their probabilities."""
    candidates = fill_masks(model, tokenizer, sentence, best)
    # RoBERTa's words include the space before them.
    lines = [", ".join(f"{token.strip() or repr(token)} {100 * p:.1f} %" for token, p in tokens) for tokens in candidates]
    return "\n    ".join([sentence, *lines])


def pretrained(path_or_name: str) -> tuple[BertForMaskedLM, FillingTokenizer]:
    """Load a pretrained masked language model and its tokenizer."""
    folder = find_folder(path_or_name)
    model = from_pretrained(folder)
    if not isinstance(model, BertForMaskedLM):
        raise UserError(f"{folder} holds {a_or_an(type(model).__name__)}, which fills no masks: take a BertForMaskedLM")
    return model, with_mask(pretrained_tokenizer(folder), folder)


def trained(folder: RunFolder) -> tuple[BertForMaskedLM, WordPieceTokenizer]:
    """Load a run's best model and its tokenizer."""
    opened = KINDS[MASKED_MODEL].load(folder, folder.best)
    return opened.model, with_wordpieces(opened.tokenizer, folder.tokenizer)


def fill(arguments: argparse.Namespace) -> None:
    """Fill in masks in sentences from the command line, a pipe or the keyboard."""
    tokenizer: FillingTokenizer
    model, tokenizer = pretrained(arguments.model) if arguments.model else trained(RunFolder(arguments.out))

    def show(sentences: Sequence[str]) -> None:
        lines = [filled(model, tokenizer, sentence, arguments.best) for sentence in sentences]
        if note := note_on_unknown(tokenizer, " ".join(sentences)):
            print_line(note, file=sys.stderr)
        print("\n".join(lines), flush=True)

    lines = arguments.sentences or piped_lines()
    if lines is not None:
        show(list(filter(None, lines)))
        return
    for sentence in typed_lines("Type a sentence with a [MASK]; an empty line ends."):
        try:
            show([sentence])
        except UserError as error:
            print_line(error, sys.stderr)


def classify(pretraining: Pretraining) -> str | None:
    """Train two classifiers of sentence-final marks: one from scratch, one from the pretrained weights. Return what stopped
    training, or None."""
    config, tokenizer, text_config = pretraining.trainer.config, pretraining.tokenizer, pretraining.text_config
    special, text = tokenizer.special, pretraining.text
    marks = text_config.marks or likely_marks(text)
    around = special["[CLS]"], special["[SEP]"]
    training, validation, test = sentence_parts(text, marks, tokenizer.encode, *around, text_config.window, config.seed)
    either = " or ".join(marks)
    if min(len(training), len(validation), len(test)) < 10:
        other = ": --resume-changed and --marks choose others" if text_config.marks else ""
        print(f"\n(Too few sentences end with {either} to train a classifier{other}.)")
        return None
    print(
        f"\nClassify sentences by their last mark, {either}: {counted(len(training), 'sentence')} for training, "
        f"{len(test):,} for testing"
    )
    results = []
    for start in ("from scratch", "pretrained"):
        tt.seed(config.seed)
        batches = LabelledBatches(training, validation, special["[PAD]"], config.batch_size, config.seed)
        model = BertForClassification(pretraining.model.bert.config, len(marks))
        if start == "pretrained":
            model.bert.load_state_dict(pretraining.model.bert.state_dict())
        stopped_by = train_classifier(model, batches, pretraining.trainer, start.replace(" ", "-"), text_config)
        if stopped_by:
            return stopped_by
        right = accuracy(model, LabelledBatches(training, test, special["[PAD]"], 1).validation_batches())
        results.append(f"{start}: {100 * right:.1f} % of the held-out sentences right")
    commonest = max(Counter(label for _, label in test).values()) / len(test)
    print("\n".join([*results, f"always the same mark: {100 * commonest:.1f} %"]))
    with tt.no_grad(), evaluating(model):
        for ids, label in test[:6]:
            guess = marks[int(model(tt.tensor([ids])).numpy().argmax())]
            verdict = "right" if guess == marks[label] else f"wrong: it was {marks[label]}"
            print(f"    {tokenizer.decode(ids, skip_special=True)}  ->  {guess}   {verdict}")
    return None


def train_classifier(
    model: BertForClassification, batches: LabelledBatches, pretraining: Trainer, name: str, text_config: TextConfig
) -> str | None:
    """Train a classifier in a separate folder and load its best weights. Return what stopped training, or None."""
    steps, rate = text_config.classify_steps, text_config.classify_learning_rate
    warmup, every = min(pretraining.config.warmup, steps // 10), max(steps // 6, 1)
    changed: dict[str, Any] = {"steps": steps, "learning_rate": rate, "warmup": warmup, "eval_every": every}
    config = dataclasses.replace(pretraining.config, optimizer="adamw", **changed)
    with RunFolder(pretraining.folder.path / name, within=pretraining.folder.path).held() as folder:
        folder.create({"training": config}, overwrite=True)
        loggers = [TensorBoardLogger() for logger in pretraining.loggers if isinstance(logger, TensorBoardLogger)]
        trainer = Trainer(model, batches, config, folder, class_loss, loggers=loggers)
        with renamed_settings(learning_rate="classify_learning_rate"):
            trainer.train()
        if trainer.stopped_by is None:
            load_weights(model, folder.best)
    return trainer.stopped_by


def parse(words: list[str]) -> argparse.Namespace:
    """Parse the command line of ``train`` or ``fill``."""
    commands = Commands("tinyformer", "Train a small BERT, and fill in masked words with it.", DEFAULT_OUT, MASKED_MODEL)
    defaults = as_flags({**MODEL, **TRAINING})
    about = f"Train a small BERT on a text. Defaults that differ from those below: {defaults}."
    training = commands.add(train, help="train", description=about, shown="train bert")
    add_text_flag(training)
    add_run_settings(training, DEFAULT_OUT, text=TextConfig, model=BertConfig, training=TrainingConfig)
    filling = commands.add_use(fill, help="fill in masked words with a trained model", description="Fill in masked words.")
    masked = "sentences with [MASK] (RoBERTa: <mask>) tokens (default: read lines from standard input)"
    filling.add_argument("sentences", help=masked, nargs="*", metavar="SENTENCE")
    add_model_flag(filling)
    filling.has_no_effect("out", lambda arguments: arguments.model, "with --model")
    filling.add_argument("--best", help="number of tokens to show per [MASK]", type=int, default=5, metavar="INT")
    return commands.parse(words)
