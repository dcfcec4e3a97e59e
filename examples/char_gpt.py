"""Train a character-level GPT on a text, and let it write.

python examples/char_gpt.py                              # train on Tiny Shakespeare (nanoGPT's settings for a CPU)
python examples/char_gpt.py --data my.txt --out runs/my  # train on your own text
python examples/char_gpt.py --resume                     # go on after an interruption
python examples/char_gpt.py sample --prompt "ROMEO:"     # write with a trained model
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import shlex
import sys
from typing import Any

from tinyformer.errors import UserError, plain_errors

with plain_errors():  # a missing package or GPU is told in a line, too
    import tinytensor as tt
    from tinyformer import plots
    from tinyformer.command_line import Parser, add_settings, changed_settings, settings_from
    from tinyformer.data import STANDARD_LIBRARY, TextBatches, default_text, read_text, standard_library_text
    from tinyformer.decoding import generate
    from tinyformer.gpt import GPT, GPTConfig
    from tinyformer.runs import RunFolder, load_weights
    from tinyformer.tokenizers import CharTokenizer
    from tinyformer.training import Trainer, TrainingConfig, perplexity


def train(arguments: argparse.Namespace) -> None:
    """Train, or go on training, and end with a sample."""
    folder = RunFolder(arguments.out)
    if arguments.resume:
        saved = folder.read_settings()
        model_config, training_config, data = _restored(saved, arguments)
        text = _text_of(data, arguments.data)
        if _fingerprint(text) != data["sha256"]:
            raise UserError(
                f"the text is not the one that {folder.path} was trained on ({data['name']}): --resume needs that one"
            )
        tokenizer = CharTokenizer.load(folder.tokenizer)
    else:
        text, name = (read_text(arguments.data), arguments.data) if arguments.data else default_text()
        data = {"path": arguments.data, "name": name, "sha256": _fingerprint(text)}
        tokenizer = CharTokenizer.train(text)
        model_config = settings_from(GPTConfig, vars(arguments), vocab_size=tokenizer.vocab_size)
        training_config = settings_from(TrainingConfig, vars(arguments))

    tt.seed(training_config.seed)
    batches = TextBatches(tokenizer.encode(text), model_config.block_size, training_config.batch_size, training_config.seed)
    model = GPT(model_config)
    trainer = Trainer(model, batches, training_config, folder)
    if arguments.resume:
        trainer.resume()
    else:
        settings = {"model": dataclasses.asdict(model_config), "training": dataclasses.asdict(training_config), "data": data}
        folder.create(settings, arguments.overwrite)
        tokenizer.save(folder.tokenizer)

    held_out = len(batches.validation)
    print(f"{data['name']}: {len(text):,} characters, {tokenizer.vocab_size} distinct; the last {held_out:,} validate")
    print(f"GPT with {model.num_parameters():,} parameters on {tt.backend_name}; run folder {folder.path}")
    if not trainer.train():
        print(f"Stopped after step {trainer.step} and saved. Go on with: {_command(arguments)} --resume")
        return
    _draw(trainer, folder)
    print(
        f"\nTrained in {trainer.seconds:.0f} s. Best validation loss {trainer.best_loss:.4f}, perplexity "
        f"{perplexity(trainer.best_loss):.2f}, at step {trainer.best_step}. A sample of 500 characters:\n"
    )
    load_weights(model, folder.best)
    ids = generate(model, tokenizer.encode(_opening(tokenizer)), 500, seed=training_config.seed)
    folder.sample.write_text(_stream(tokenizer, ids) + "\n", encoding="utf-8")
    print(f"\nWrite more with: {_command(arguments, 'sample')}")


def _restored(saved: dict[str, Any], arguments: argparse.Namespace) -> tuple[GPTConfig, TrainingConfig, dict[str, Any]]:
    """The settings of a run's folder. A resumed run is the same run, so flags that would change it are refused."""
    try:
        model_config = settings_from(GPTConfig, saved["model"])
        training_config = settings_from(TrainingConfig, saved["training"])
        data = {key: saved["data"][key] for key in ("path", "name", "sha256")}
    except (AttributeError, KeyError, TypeError) as error:
        raise UserError(f"{arguments.out}/config.json is damaged: {error}") from None
    changed = changed_settings(GPTConfig, vars(arguments), model_config)
    changed += changed_settings(TrainingConfig, vars(arguments), training_config)
    if changed:
        raise UserError(
            f"--resume goes on with the settings of {arguments.out}: leave out {', '.join(changed)}, or start a new run"
        )
    return model_config, training_config, data


def _text_of(data: dict[str, Any], moved: str | None) -> str:
    """The text of a run, or the file it has ``moved`` to."""
    if moved or data["path"]:
        return read_text(moved or data["path"])
    return standard_library_text() if data["name"] == STANDARD_LIBRARY else default_text()[0]


def _fingerprint(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _command(arguments: argparse.Namespace, *words: str) -> str:
    out = [] if arguments.out == DEFAULT_OUT else ["--out", arguments.out]
    return shlex.join(["python", sys.argv[0], *words, *out])


def _opening(tokenizer: CharTokenizer) -> str:
    """What to start with when no prompt is given: a new line, if the text has lines."""
    return "\n" if "\n" in tokenizer.characters else tokenizer.characters[0]


def _draw(trainer: Trainer, folder: RunFolder) -> None:
    try:
        plots.loss_curve(trainer.rows, folder.curve, title="Character GPT")
    except ImportError:
        print('(no loss curve drawn: pip install "tinytensor[plot]" brings matplotlib)')


def _stream(tokenizer: CharTokenizer, ids: Any) -> str:
    """Print tokens as they come; the whole text at the end."""
    pieces = []
    for i in ids:
        pieces.append(tokenizer.decode([i]))
        print(pieces[-1], end="", flush=True)
    print()
    return "".join(pieces)


def sample(arguments: argparse.Namespace) -> None:
    """Write with a trained model."""
    folder = RunFolder(arguments.out)
    try:
        model_config = settings_from(GPTConfig, folder.read_settings()["model"])
    except (AttributeError, KeyError, TypeError) as error:
        raise UserError(f"{folder.settings} is damaged: {error}") from None
    tokenizer = CharTokenizer.load(folder.tokenizer)
    if tokenizer.vocab_size != model_config.vocab_size:
        raise UserError(f"{folder.tokenizer} knows {tokenizer.vocab_size} characters, but the model {model_config.vocab_size}")
    opening = _opening(tokenizer) if arguments.prompt is None else arguments.prompt
    prompt = tokenizer.encode(opening)
    model = GPT(model_config)
    load_weights(model, folder.latest if arguments.latest else folder.best)
    ids = generate(model, prompt, arguments.length, arguments.temperature, arguments.top_k, arguments.seed)
    print(opening, end="", flush=True)
    _stream(tokenizer, ids)


DEFAULT_OUT = "runs/char_gpt"


def parse(words: list[str]) -> argparse.Namespace:
    """The command line; without a command it is ``train``."""
    parser = Parser(prog="char_gpt.py", description="Train a character-level GPT, and sample from it.")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    training = commands.add_parser(
        "train",
        help="train on a text (what runs without a command)",
        description="Train a character-level GPT on a text. `char_gpt.py sample --help` tells how to write with it.",
    )
    training.add_argument(
        "--data",
        help="a UTF-8 text file or a folder of them (default: Tiny Shakespeare, downloaded once)",
        metavar="PATH",
    )
    training.add_argument("--out", help="the run's folder", default=DEFAULT_OUT, metavar="FOLDER")
    choice = training.add_mutually_exclusive_group()
    choice.add_argument("--resume", help="go on with the run in --out, exactly as if it had not stopped", action="store_true")
    choice.add_argument("--overwrite", help="replace the run in --out", action="store_true")
    add_settings(training, GPTConfig, "model")
    add_settings(training, TrainingConfig, "training")
    training.set_defaults(run=train)
    sampling = commands.add_parser("sample", help="write with a trained model", description="Write with a trained model.")
    sampling.add_argument("--out", help="the run's folder", default=DEFAULT_OUT, metavar="FOLDER")
    sampling.add_argument("--prompt", help="the text to go on from (default: a new line)", metavar="TEXT")
    sampling.add_argument("--length", help="characters to write", type=int, default=500, metavar="INT")
    sampling.add_argument(
        "--temperature", help="below 1 is more careful, 0 is greedy", type=float, default=1.0, metavar="FLOAT"
    )
    sampling.add_argument("--top-k", help="choose among the k likeliest only; 0: among all", type=int, default=0, metavar="INT")
    sampling.add_argument("--seed", help="the same seed writes the same text", type=int, default=1337, metavar="INT")
    sampling.add_argument("--latest", help="use the latest weights instead of the best", action="store_true")
    sampling.set_defaults(run=sample)
    return parser.parse_args(words if words and words[0] in ("train", "sample") else ["train", *words])


if __name__ == "__main__":
    with plain_errors():
        sys.stdout.reconfigure(errors="replace")  # a console that lacks a character shows ? for it
        parsed = parse(sys.argv[1:])
        parsed.run(parsed)
