"""Train the Transformer of "Attention Is All You Need" to translate, and translate with it.

python examples/translate.py                                       # dates in words -> ISO dates, from generated data
python examples/translate.py --data pairs.tsv --out runs/it        # a sentence, a tab and its translation on each line
python examples/translate.py --source train.de --target train.en   # or two files, line by line (.gz, too)
python examples/translate.py translate --out runs/it "I love you." # translate; without a sentence it asks for them
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tinyformer.errors import SettingError, UserError, plain_errors

with plain_errors():  # a missing package or GPU is told in a line, too
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
    from tinyformer.data.batches import padded
    from tinyformer.data.dates import dates
    from tinyformer.data.pairs import (
        Pair,
        PairBatches,
        Specials,
        encode_pairs,
        read_tsv,
        read_two_files,
        split_pairs,
        without_empty,
    )
    from tinyformer.data.reading import fingerprint
    from tinyformer.decoding.beam_search import Hypothesis, beam_search
    from tinyformer.decoding.decoders import TransformerDecoder
    from tinyformer.models.attention import recording_attention
    from tinyformer.models.transformer import Transformer, TransformerConfig
    from tinyformer.progress import show_progress
    from tinyformer.schema import check_fields
    from tinyformer.settings import setting, settings_from
    from tinyformer.tokenizers import BPETokenizer, load_tokenizer
    from tinyformer.training.config import TrainingConfig
    from tinyformer.training.losses import translation_loss
    from tinyformer.training.runs import RunFolder, load_weights
    from tinyformer.training.trainer import Trainer
    from tinytensor.io import write_text

PAD, START, END = "[PAD]", "[BOS]", "[EOS]"


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """What to translate, and how it is cut and searched for."""

    vocab_size: int = setting(8000, "tokens of the byte-pair vocabulary, one for both languages")
    lowercase: bool = setting(False, "read and write lower case only")
    max_tokens: int = setting(100, "pairs with a longer side are left out; no translation is longer")
    length_penalty: float = setting(0.6, "how much beam search favours long translations; 0: not at all", changeable=True)
    label_smoothing: float = setting(0.1, "how far the targets are mixed with the uniform distribution", changeable=True)
    validation: int = setting(500, "pairs held out to validate with")
    test: int = setting(500, "pairs held out to score with at the end")

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("max_tokens", "validation", "test"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.length_penalty <= 50:  # a power, which has to stay a number
            raise SettingError(f"length_penalty must be from 0 to 50, not {self.length_penalty}")
        if not 0 <= self.label_smoothing <= 1:
            raise SettingError(f"label_smoothing must be from 0 to 1, not {self.label_smoothing}")


@dataclasses.dataclass(frozen=True)
class Files:
    """Where the sentences are; without any file, the task is dates."""

    data: str | None = None
    source: str | None = None
    target: str | None = None
    validation_source: str | None = None
    validation_target: str | None = None
    test_source: str | None = None
    test_target: str | None = None

    def __bool__(self) -> bool:
        return any(vars(self).values())


# The built-in task: a small Transformer, a few minutes.
DATES = {
    "model": {"d_model": 64, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 2, "d_ff": 256, "norm_first": True},
    "training": {"steps": 1500, "batch_size": 64, "learning_rate": 2e-3, "warmup": 100, "weight_decay": 0.0, "beta2": 0.98},
    "task": {"vocab_size": 400},
}
# Real languages: the size of the Multi30k Transformer in the literature.
LANGUAGES = {
    "model": {"d_model": 256, "num_heads": 8, "encoder_layers": 3, "decoder_layers": 3, "d_ff": 512, "norm_first": True},
    "training": {"steps": 3000, "batch_size": 128, "learning_rate": 1e-3, "warmup": 400, "weight_decay": 0.01, "beta2": 0.98},
    "task": {},
}


# ------------------------------------------------------------------------------------------------------- translating


class Translator:
    """A trained model with its tokenizer."""

    def __init__(self, model: Transformer, tokenizer: BPETokenizer, task: TaskConfig):
        self.model = model
        self.tokenizer = tokenizer
        self.task = task
        self.specials = specials_of(tokenizer)

    def encode(self, sentence: str) -> list[int]:
        """A sentence's ids, with the end token that the encoder was trained to see. Raises UserError for an empty one."""
        text = prepared(sentence, self.task)
        if not text:
            raise UserError("the sentence is empty: give at least one word to translate")
        ids = [int(i) for i in self.tokenizer.encode(text)]
        if len(ids) > self.task.max_tokens:
            raise UserError(f"the sentence has {len(ids)} tokens, more than the {self.task.max_tokens} of this run")
        return [*ids, self.specials.end]

    def search(self, sentences: Sequence[str], beam: int, n_best: int = 1) -> list[list[Hypothesis]]:
        """The best translations of each sentence, as ids."""
        source = padded([self.encode(sentence) for sentence in sentences], self.specials.pad)
        longest = self.task.max_tokens + 1  # the end token counts, too
        decoder = TransformerDecoder(self.model, source, longest)
        start, end, alpha = self.specials.start, self.specials.end, self.task.length_penalty
        return beam_search(decoder, start, end, len(sentences), beam, longest, alpha, n_best)

    def check_beam(self, beam: int) -> None:
        """Raises UserError for a beam that is wider than the vocabulary, or no beam."""
        if not 1 <= beam <= self.tokenizer.vocab_size:
            raise UserError(f"the beam must be 1 to {self.tokenizer.vocab_size} wide, as there are as many tokens, not {beam}")

    def text(self, hypothesis: Hypothesis) -> str:
        """A translation as a line of text."""
        return " ".join(self.tokenizer.decode(hypothesis.ids, skip_special=True).split())

    def translate(self, sentences: Sequence[str], beam: int = 1, progress: bool = False) -> list[str]:
        """The best translation of each sentence; those of similar length are translated together."""
        order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
        found: dict[int, str] = {}
        with show_progress(f"translating, beam {beam}", len(order), "sentence", quiet=not progress) as bar:
            for first in range(0, len(order), 64):
                part = order[first : first + 64]
                for i, hypotheses in zip(part, self.search([sentences[i] for i in part], beam)):
                    found[i] = self.text(hypotheses[0])
                bar.update(len(part))
        return [found[i] for i in range(len(sentences))]


def prepared(text: str, task: TaskConfig) -> str:
    """The text as the model sees it."""
    text = " ".join(text.split())
    return text.lower() if task.lowercase else text


def specials_of(tokenizer: BPETokenizer) -> Specials:
    """The ids of the special tokens. Raises UserError for a tokenizer that was not made for translating."""
    missing = [name for name in (PAD, START, END) if name not in tokenizer.special]
    if missing:
        raise UserError(f"the tokenizer lacks {', '.join(missing)}: it is not one of a translation run")
    return Specials(*(tokenizer.special[name] for name in (PAD, START, END)))


def scores(hypotheses: Sequence[str], references: Sequence[str], task: str) -> str:
    """How good translations are: exact matches for dates, BLEU and chrF (sacrebleu) for languages."""
    if task == "dates":
        right = sum(h == r for h, r in zip(hypotheses, references))
        return f"{right} of {len(references)} exactly right ({100 * right / len(references):.2f} %)"
    try:
        import sacrebleu
    except ImportError:
        return "(no scores: they need sacrebleu, pip install sacrebleu)"
    bleu = sacrebleu.corpus_bleu(hypotheses, [references])
    chrf = sacrebleu.corpus_chrf(hypotheses, [references])
    return f"BLEU {bleu.score:.2f}, chrF {chrf.score:.2f}"


# ---------------------------------------------------------------------------------------------------------- training


def read_pairs(files: Files, task: TaskConfig) -> list[list[Pair]]:
    """The pairs to train on, to validate with and to test with; without any file, dates."""
    if not files:
        return split_pairs(dates(), [task.validation, task.test])
    pairs, validation, test = (_read(files, part, task) for part in ("", "validation_", "test_"))
    if not pairs:
        raise UserError("there are no sentences to train on: give --data, or --source and --target")
    training, *held_out = split_pairs(pairs, [n for n, own in ((task.validation, validation), (task.test, test)) if not own])
    return [training, validation or held_out.pop(0), test or held_out.pop(0)]


def _read(files: Files, part: str, task: TaskConfig) -> list[Pair]:
    """The pairs of a part's files as the model sees them; none without files."""
    data, source, target = None if part else files.data, getattr(files, f"{part}source"), getattr(files, f"{part}target")
    if (source is None) != (target is None):
        raise UserError("give a source and a target file together: the sentences of one are the translations of the other")
    if data is not None and source is not None:
        raise UserError("give either --data, or --source and --target: each holds the pairs to train on")
    name = data or source
    if name is None:
        return []
    found = read_tsv(data) if data is not None else read_two_files(str(source), str(target))
    # Before they are split: two sentences that the model sees as one must not go to two parts.
    pairs, empty = without_empty([(prepared(s, task), prepared(t, task)) for s, t in found])
    if not pairs:
        raise UserError(f"{name} has no pair of sentences: every line is empty on one side")
    if empty:
        print(f"{name}: {empty} pairs with an empty side are left out")
    return pairs


def train(arguments: argparse.Namespace) -> None:
    """Train, or go on training; then score the held-out pairs, and draw what the model looked at."""
    with RunFolder(arguments.out).held() as folder:
        trainer, translator, test, kind = prepare(folder, arguments)
        if not trainer.train():
            print(trainer.stop_message(next_command(arguments.out, DEFAULT_OUT)))
            return
        best = f"Best validation loss {trainer.best_loss:.4f} at step {trainer.best_step}."
        print(f"\nTrained in {trainer.total_seconds:.0f} s, {trainer.seconds:.0f} of them for training steps. {best}")
        load_weights(translator.model, folder.best)
        _report(translator, test, kind, folder, arguments.beam)
        with plots.if_possible():
            note = plots.note_on_losses(translator.model.config.dropout, translator.task.label_smoothing)
            plots.loss_curve(trainer.rows, folder.curve, title="Translation", note=note)
            print("Drew {}, {} and {}".format(folder.curve, *draw_attention(translator, test[0][0], folder)))
        print(f"Translate with: {next_command(arguments.out, DEFAULT_OUT, 'translate')}")


def prepare(folder: RunFolder, arguments: argparse.Namespace) -> tuple[Trainer, Translator, list[Pair], str]:
    """A trainer for a new run, or for the one that is in the folder; what it trains, the pairs to test that with, and whether
    they are dates or languages."""
    given = vars(arguments)
    files = settings_from(Files, given)
    if arguments.resume:
        task, model_config = folder.resumed("task", TaskConfig, given), folder.resumed("model", TransformerConfig, given)
        config = folder.resumed("training", TrainingConfig, given)
        translator = open_run(folder, task, model_config)
        files = files or folder.read_part("files", Files)  # the same sentences, wherever they are now
        split = read_pairs(files, task)
        if fingerprint(repr(split)) != folder.read_settings().get("sha256"):
            raise UserError(f"the sentences are not those that {folder.path} was trained on: start a new run")
    else:
        defaults = LANGUAGES if files else DATES
        task = settings_from(TaskConfig, {**defaults["task"], **given})
        config = settings_from(TrainingConfig, {**defaults["training"], **given})
        split = read_pairs(files, task)
        translator = new_translator({**defaults["model"], **given}, task, config, split[0])
    tokenizer, specials = translator.tokenizer, translator.specials
    translator.check_beam(arguments.beam)
    translator.model.new_cache(task.max_tokens + 1, 0)  # what cannot be translated with is not trained

    cut = [encode_pairs(part, tokenizer.encode, tokenizer.encode, task.max_tokens) for part in split]
    (training, validation, test), (training_ids, validation_ids, _) = zip(*cut)
    if not (training and validation and test):
        raise UserError(f"too few pairs have at most {task.max_tokens} tokens on both sides: choose a larger --max-tokens")
    batches = PairBatches(training_ids, validation_ids, specials, config.batch_size, config.seed)
    trainer = Trainer(
        translator.model, batches, config, folder, translation_loss(task.label_smoothing, specials.pad),
        on_evaluation=lambda: _samples(translator, validation[:3]),
    )  # fmt: skip
    if arguments.resume:
        trainer.resume()
    else:
        parts = {"task": task, "model": translator.model.config, "training": config, "files": files}
        folder.create({**parts, "sha256": fingerprint(repr(split))}, arguments.overwrite)
        tokenizer.save(folder.tokenizer)

    print(f"{len(training):,} pairs to train on, {len(validation):,} to validate with, {len(test):,} to score")
    long = sum(map(len, split)) - len(training) - len(validation) - len(test)
    if long:
        print(f"({long} pairs with a side of more than {task.max_tokens} tokens are left out)")
    parameters = f"{translator.model.num_parameters():,} parameters"
    print(f"Transformer with {parameters} on {tt.backend_name}, {len(batches)} batches an epoch; run folder {folder.path}")
    return trainer, translator, test, "languages" if files else "dates"


def new_translator(model: Mapping[str, Any], task: TaskConfig, config: TrainingConfig, pairs: Sequence[Pair]) -> Translator:
    """A tokenizer for the pairs, and an untrained model for it."""
    lines = (sentence for pair in pairs for sentence in pair)
    tokenizer = BPETokenizer.train(lines, task.vocab_size, special=(PAD, START, END), progress=True)
    sizes = dict.fromkeys(("source_vocab_size", "target_vocab_size"), tokenizer.vocab_size)
    tt.seed(config.seed)
    model_config = settings_from(
        TransformerConfig, {"share_embeddings": True, **model}, **sizes, source_pad=tokenizer.special[PAD]
    )
    if model_config.positions == "learned" and model_config.max_length <= task.max_tokens:
        raise SettingError(
            f"max_length must be more than {task.max_tokens}, the longest sentence, as its end needs a place, too"
        )
    return Translator(Transformer(model_config), tokenizer, task)


def _samples(translator: Translator, pairs: Sequence[Pair]) -> str:
    """A few sentences as the model translates them now."""
    return _side_by_side(pairs, translator.translate([source for source, _ in pairs]))


def _side_by_side(pairs: Sequence[Pair], found: Sequence[str]) -> str:
    return "\n".join(f"    {s}  ->  {ours}   (reference: {t})" for (s, t), ours in zip(pairs, found))


def _report(translator: Translator, test: Sequence[Pair], kind: str, folder: RunFolder, beam: int) -> None:
    """Score greedy and beam search on the held-out pairs, and keep the translations."""
    sources, references = zip(*test)
    for width in sorted({1, beam}):
        found = translator.translate(sources, width, progress=True)
        print(f"{'greedy' if width == 1 else f'beam {width}'}: {scores(found, references, kind)}")
    lines = [f"{s}\t{ours}\t{t}" for s, ours, t in zip(sources, found, references)]
    write_text(folder.sample, "\n".join(["source\tours\treference", *lines]) + "\n")
    print(_side_by_side(test[:8], found))


def draw_attention(translator: Translator, sentence: str, folder: RunFolder) -> tuple[Path, Path]:
    """Draw encoder, decoder and cross-attention for a sentence and its translation: the mean over the heads of every layer,
    and every head. Returns the paths of both pictures."""
    ids = translator.encode(sentence)
    written = translator.search([sentence], beam=1)[0][0].ids
    target = [translator.specials.start, *written]
    with recording_attention(translator.model.eval()) as recorded:
        translator.model(tt.tensor([ids]), tt.tensor([target]))
    shown = {name: maps[0][0] for name, maps in recorded.items()}
    # A token may be a part of a character: its bytes are shown, such as \xe6.
    cut = translator.tokenizer.decode_bytes
    source_tokens, target_tokens = [[cut(i).decode("utf-8", "backslashreplace") for i in row] for row in (ids, target)]
    means = plots.attention_means(shown, source_tokens, target_tokens, folder.attention)
    heads = plots.attention_maps(shown, source_tokens, target_tokens, folder.attention_heads)
    return means, heads


# --------------------------------------------------------------------------------------------------------- translating


def open_run(folder: RunFolder, task: TaskConfig, config: TransformerConfig) -> Translator:
    """A run's translator, whose weights are yet to be loaded. Raises UserError where parts are missing or do not fit each
    other."""
    tokenizer = load_tokenizer(folder.tokenizer, config.target_vocab_size)
    return Translator(Transformer(config), tokenizer, task)


def translate(arguments: argparse.Namespace) -> None:
    """Translate the given sentences, or those that are typed."""
    folder = RunFolder(arguments.out)
    translator = open_run(folder, folder.read_part("task", TaskConfig), folder.read_part("model", TransformerConfig))
    load_weights(translator.model, folder.best)
    translator.check_beam(arguments.beam)
    for sentence in arguments.sentences or _typed():
        (hypotheses,) = translator.search([sentence], arguments.beam, arguments.n_best)
        for hypothesis in hypotheses:
            print(*[f"{hypothesis.score:.3f}"] * (arguments.n_best > 1), translator.text(hypothesis), sep="\t")
        if arguments.heat_map:
            print("Drew {} and {}".format(*draw_attention(translator, sentence, folder)))


def _typed() -> Iterator[str]:
    """Sentences from the terminal or a pipe, until its end or an empty line."""
    if sys.stdin.isatty():
        print("Type a sentence to translate; an empty line ends.")
    while True:
        try:
            line = sys.stdin.readline().strip()
        except UnicodeDecodeError as error:
            raise UserError(f"the input is not {error.encoding} text: convert it, as in iconv -t UTF-8") from None
        if not line:
            return
        yield line


# -------------------------------------------------------------------------------------------------------- command line

DEFAULT_OUT = "runs/translate"


def parse(words: list[str]) -> argparse.Namespace:
    """The command line; without a command it is ``train``."""
    parser = Parser(prog="translate.py", description="Train a Transformer to translate, and translate with it.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    training = commands.add_parser(
        "train",
        help="train (what runs without a command)",
        description="Train a Transformer to translate. Without files it learns dates, with smaller defaults than those shown "
        f"below: {_described(DATES)}. With files: {_described(LANGUAGES)}.",
    )
    files = training.add_argument_group("data")
    files.add_argument(
        "--data", help="a sentence, a tab and its translation on each line (.gz, too)", type=some_path, metavar="FILE"
    )
    for part in ("", "validation-", "test-"):
        for side in ("source", "target"):
            default = "" if part == "" else " (default: pairs held out from the others)"
            files.add_argument(
                f"--{part}{side}", help=f"{part.replace('-', ' ')}{side} sentences{default}", type=some_path, metavar="FILE"
            )
    training.add_argument("--beam", help="the width of the beam that scores the end", type=int, default=5, metavar="INT")
    add_run_flags(training, DEFAULT_OUT)
    add_settings(training, TaskConfig, "task")
    add_settings(training, TransformerConfig, "model")
    add_settings(training, TrainingConfig, "training")
    training.set_defaults(run=train)
    translating = commands.add_parser("translate", help="translate with a trained model", description="Translate sentences.")
    translating.add_argument("sentences", help="what to translate; without any, they are read one by one", nargs="*")
    translating.add_argument("--out", help="the run's folder", default=DEFAULT_OUT, type=some_path, metavar="FOLDER")
    translating.add_argument("--beam", help="the width of the beam; 1 is greedy", type=int, default=5, metavar="INT")
    translating.add_argument("--n-best", help="how many translations to show, with scores", type=int, default=1, metavar="INT")
    translating.add_argument("--heat-map", help="draw what the attention looked at", action="store_true")
    translating.set_defaults(run=translate)
    arguments = parse_command(parser, commands.choices, words)
    arguments.out = arguments.out or folder_for(DEFAULT_OUT, arguments.data or arguments.source)
    return arguments


def _described(defaults: dict[str, dict[str, Any]]) -> str:
    return " ".join(as_flags(part) for part in defaults.values())


if __name__ == "__main__":
    with plain_errors():
        parsed = parse(sys.argv[1:])
        parsed.run(parsed)
