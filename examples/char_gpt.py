"""Train a GPT on the characters of a text (or on byte pairs), and let it write.

python examples/char_gpt.py                              # train on Tiny Shakespeare (nanoGPT's settings for a CPU)
python examples/char_gpt.py --data my.txt                # train on your own text: runs/char_gpt-my
python examples/char_gpt.py --resume                     # go on after an interruption
python examples/char_gpt.py sample --prompt "ROMEO:"     # write with a trained model
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import Any

from tinyformer.errors import SettingError, plain_errors

with plain_errors():  # a missing package or GPU is told in a line, too
    import tinytensor as tt
    from tinyformer import plots
    from tinyformer.command_line import Parser, add_run_flags, add_settings, folder_for, next_command, parse_command, some_path
    from tinyformer.data.reading import TextSource, open_text
    from tinyformer.data.text import TextBatches
    from tinyformer.decoding.sampling import Sampling, generate
    from tinyformer.decoding.streaming import stream_text
    from tinyformer.models.gpt import GPT, GPTConfig
    from tinyformer.settings import setting, settings_from
    from tinyformer.tokenizers import BPETokenizer, CharTokenizer, load_tokenizer
    from tinyformer.training.config import TrainingConfig
    from tinyformer.training.evaluation import perplexity
    from tinyformer.training.runs import RunFolder, load_weights
    from tinyformer.training.trainer import Trainer
    from tinytensor.io import write_text


@dataclasses.dataclass(frozen=True)
class TextConfig:
    """How the text is cut into tokens."""

    tokenizer: str = setting("char", "char (one token a character) or bpe (byte pairs, learned from the text)")
    bpe_tokens: int = setting(1024, "tokens of the bpe tokenizer")

    def train_tokenizer(self, text: str) -> CharTokenizer | BPETokenizer:
        """A tokenizer for the text. Raises UserError for a kind that does not exist."""
        if self.tokenizer == "char":
            return CharTokenizer.train(text)
        if self.tokenizer == "bpe":
            return BPETokenizer.train(text, self.bpe_tokens, progress=True)
        raise SettingError(f"tokenizer must be char or bpe, not {self.tokenizer!r}")


def train(arguments: argparse.Namespace) -> None:
    """Train, or go on training, and end with a sample."""
    with RunFolder(arguments.out).held() as folder:
        trainer, tokenizer = prepare(folder, arguments)
        if not trainer.train():
            print(trainer.stop_message(next_command(arguments.out, DEFAULT_OUT)))
            return
        print(
            f"\nTrained in {trainer.total_seconds:.0f} s, {trainer.seconds:.0f} of them for training steps. "
            f"Best validation loss {trainer.best_loss:.4f}, perplexity {perplexity(trainer.best_loss):.2f}, "
            f"at step {trainer.best_step}."
        )
        with plots.if_possible():
            note = plots.note_on_losses(trainer.model.config.dropout)
            plots.loss_curve(trainer.rows, folder.curve, title="GPT", note=note)
            print(f"Drew {folder.curve}")
        print("A sample of 500 tokens:\n")
        load_weights(trainer.model, folder.best)
        ids = generate(trainer.model, tokenizer.encode(_opening(tokenizer)), 500, Sampling(seed=trainer.config.seed))
        write_text(folder.sample, _stream(tokenizer, ids) + "\n")
        print(f"\nWrite more with: {next_command(arguments.out, DEFAULT_OUT, 'sample')}")


def prepare(folder: RunFolder, arguments: argparse.Namespace) -> tuple[Trainer, CharTokenizer | BPETokenizer]:
    """A trainer for a new run, or for the one that is in the folder, and the run's tokenizer."""
    given = vars(arguments)
    if arguments.resume:
        model_config = folder.resumed("model", GPTConfig, given)
        training_config = folder.resumed("training", TrainingConfig, given)
        text_config = folder.resumed("text", TextConfig, given)
        source = folder.read_part("data", TextSource)
        text = source.read_again(folder.path, arguments.data)
        tokenizer = load_tokenizer(folder.tokenizer, model_config.vocab_size)
    else:
        text, source = open_text(arguments.data)
        text_config = settings_from(TextConfig, given)
        tokenizer = text_config.train_tokenizer(text)
        model_config = settings_from(GPTConfig, given, vocab_size=tokenizer.vocab_size)
        training_config = settings_from(TrainingConfig, given)

    tt.seed(training_config.seed)
    ids, batch_size = tokenizer.encode(text), training_config.batch_size
    batches = TextBatches(ids, model_config.block_size, batch_size, training_config.seed, vocab_size=tokenizer.vocab_size)
    trainer = Trainer(GPT(model_config), batches, training_config, folder)
    if arguments.resume:
        trainer.resume()
    else:
        settings = {"model": model_config, "training": training_config, "text": text_config, "data": source}
        folder.create(settings, arguments.overwrite)
        tokenizer.save(folder.tokenizer)

    held_out = len(batches.validation)
    kinds = f"{tokenizer.vocab_size:,} distinct tokens"
    print(f"{source.name}: {len(text):,} characters, {kinds}; the last {held_out:,} tokens validate")
    print(f"GPT with {trainer.model.num_parameters():,} parameters on {tt.backend_name}; run folder {folder.path}")
    return trainer, tokenizer


def _opening(tokenizer: CharTokenizer | BPETokenizer) -> str:
    """What to start with when no prompt is given: a new line, if the tokenizer knows it."""
    known = getattr(tokenizer, "characters", "\n")
    return "\n" if "\n" in known else known[0]


def _stream(tokenizer: CharTokenizer | BPETokenizer, ids: Any) -> str:
    """Print the text as it comes; all of it at the end."""
    pieces = []
    for piece in stream_text(tokenizer, ids):
        pieces.append(piece)
        print(piece, end="", flush=True)
    print()
    return "".join(pieces)


def sample(arguments: argparse.Namespace) -> None:
    """Write with a trained model."""
    folder = RunFolder(arguments.out)
    model_config = folder.read_part("model", GPTConfig)
    sampling = settings_from(Sampling, vars(arguments))
    tokenizer = load_tokenizer(folder.tokenizer, model_config.vocab_size)
    opening = _opening(tokenizer) if arguments.prompt is None else arguments.prompt
    prompt = tokenizer.encode(opening)
    model = GPT(model_config)
    load_weights(model, folder.latest if arguments.latest else folder.best)
    ids = generate(model, prompt, arguments.length, sampling)
    print(opening, end="", flush=True)
    _stream(tokenizer, ids)


DEFAULT_OUT = "runs/char_gpt"


def parse(words: list[str]) -> argparse.Namespace:
    """The command line; without a command it is ``train``."""
    parser = Parser(prog="char_gpt.py", description="Train a GPT on a text, and sample from it.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    training = commands.add_parser(
        "train",
        help="train on a text (what runs without a command)",
        description="Train a GPT on a text. `char_gpt.py sample --help` tells how to write with it.",
    )
    training.add_argument(
        "--data",
        help="a UTF-8 text file or a folder of them (default: Tiny Shakespeare, downloaded once)",
        metavar="PATH",
        type=some_path,
    )
    add_run_flags(training, DEFAULT_OUT)
    add_settings(training, GPTConfig, "model")
    add_settings(training, TextConfig, "tokens")
    add_settings(training, TrainingConfig, "training")
    training.set_defaults(run=train)
    sampling = commands.add_parser("sample", help="write with a trained model", description="Write with a trained model.")
    sampling.add_argument("--out", help="the run's folder", default=DEFAULT_OUT, type=some_path, metavar="FOLDER")
    sampling.add_argument("--prompt", help="the text to go on from (default: a new line)", metavar="TEXT")
    sampling.add_argument("--length", help="tokens to write", type=int, default=500, metavar="INT")
    sampling.add_argument("--latest", help="use the latest weights instead of the best", action="store_true")
    add_settings(sampling, Sampling, "choice of tokens")
    sampling.set_defaults(run=sample)
    arguments = parse_command(parser, commands.choices, words)
    arguments.out = arguments.out or folder_for(DEFAULT_OUT, arguments.data)
    return arguments


if __name__ == "__main__":
    with plain_errors():
        parsed = parse(sys.argv[1:])
        parsed.run(parsed)
