"""Train a GPT on the characters of a text (or on byte pairs), and let it write; or a recurrent network, as before GPTs.

On Tiny Shakespeare, with nanoGPT's settings for a CPU, that takes a little over a minute on two cores.

python examples/char_gpt.py                              # train on Tiny Shakespeare
python examples/char_gpt.py --data my.txt                # train on your own text: runs/char_gpt-my
python examples/char_gpt.py --resume                     # go on after an interruption
python examples/char_gpt.py --architecture lstm --out runs/char_lstm   # about as many parameters as the GPT; or gru, or rnn
python examples/char_gpt.py sample --prompt "ROMEO:"     # write with a trained model
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable

from tinyformer import plain_errors

with plain_errors():  # a missing package or GPU is told in a line, too
    import tinytensor as tt
    from tinyformer import (
        GPT,
        BPETokenizer,
        CharTokenizer,
        Commands,
        GPTConfig,
        RecurrentConfig,
        RecurrentLM,
        RunFolder,
        RunSetup,
        Sampling,
        TextBatches,
        Tokenizer,
        Trainer,
        TrainingConfig,
        add_run_settings,
        add_settings,
        add_text_flag,
        check_fields,
        draw_losses,
        first_choice,
        generate,
        load_tokenizer,
        load_weights,
        next_command,
        one_of,
        perplexity,
        run_command,
        setting,
        settings_from,
        stream_text,
        train_to_end,
    )
    from tinytensor.io import write_text

DEFAULT_OUT = "runs/char_gpt"
SAMPLE = 200  # tokens that --tensorboard shows with each evaluation
ARCHITECTURES = {"gpt": GPTConfig, "lstm": RecurrentConfig, "gru": RecurrentConfig, "rnn": RecurrentConfig}


@dataclasses.dataclass(frozen=True)
class TextConfig:
    """How the text is cut into tokens, and what predicts them. Raises SettingError for a value that is not allowed."""

    architecture: str = setting("gpt", "gpt, or a recurrent network: lstm, gru or rnn")
    tokenizer: str = setting("char", "char (one token a character) or bpe (byte pairs, learned from the text)")
    bpe_tokens: int = setting(1024, "tokens of the bpe tokenizer")

    def __post_init__(self) -> None:
        check_fields(self)
        one_of(self, "architecture", ARCHITECTURES)
        one_of(self, "tokenizer", ("char", "bpe"))

    def train_tokenizer(self, text: str) -> CharTokenizer | BPETokenizer:
        """A tokenizer for the text."""
        if self.tokenizer == "char":
            return CharTokenizer.train(text)
        return BPETokenizer.train(text, self.bpe_tokens, progress=True)


def make_model(config: GPTConfig | RecurrentConfig) -> GPT | RecurrentLM:
    """The language model with these settings."""
    return GPT(config) if isinstance(config, GPTConfig) else RecurrentLM(config)


def kind_of(model: GPT | RecurrentLM) -> str:
    """The model's kind, for people: GPT, LSTM, GRU or RNN."""
    return "GPT" if isinstance(model, GPT) else model.config.cell.upper()


# ---------------------------------------------------------------------------------------------------------- training


def prepare(folder: RunFolder, arguments: argparse.Namespace) -> tuple[Trainer, Tokenizer]:
    """Read the text, and make a tokenizer and a model for it; a resumed run has them already."""
    chosen = folder.read_part("text", TextConfig) if arguments.resume else settings_from(TextConfig, vars(arguments))
    kind = ARCHITECTURES[chosen.architecture]
    setup = RunSetup(folder, arguments, {"model": kind, "training": TrainingConfig, "text": TextConfig})
    config = setup.settings(TrainingConfig)
    text_config = setup.settings(TextConfig)
    text, source = setup.text(arguments.data)
    tokenizer = setup.tokenizer(lambda: text_config.train_tokenizer(text))
    model_config = setup.settings(kind, {"cell": chosen.architecture}, vocab_size=tokenizer.vocab_size)

    tt.seed(config.seed)
    ids, vocab_size = tokenizer.encode(text), tokenizer.vocab_size
    context = getattr(model_config, "context", 0)
    batches = TextBatches(ids, model_config.block_size, config.batch_size, config.seed, vocab_size=vocab_size, context=context)
    model = make_model(model_config)
    trainer = Trainer(model, batches, config, folder)
    prompt, sampling = tokenizer.encode(opening(tokenizer)), Sampling(seed=config.seed)
    setup.begin(trainer, tokenizer, sample=lambda: tokenizer.decode(list(generate(model, prompt, SAMPLE, sampling))))

    held_out = f"the last {len(batches.validation):,} tokens validate"
    print(f"{source.name}: {len(text):,} characters, {vocab_size:,} distinct tokens; {held_out}")
    print(f"{kind_of(model)} with {model.num_parameters():,} parameters on {tt.backend_name}; run folder {folder.path}")
    return trainer, tokenizer


def train(arguments: argparse.Namespace) -> None:
    """Train, or go on training, and end with a sample."""
    with RunFolder(arguments.out).held() as folder:
        trainer, tokenizer = prepare(folder, arguments)
        if not train_to_end(trainer, next_command(arguments.out, DEFAULT_OUT)):
            return
        print(
            f"\nTrained in {trainer.total_seconds:.0f} s, {trainer.seconds:.0f} of them for training steps. "
            f"Best validation loss {trainer.best_loss:.4f}, perplexity {perplexity(trainer.best_loss):.2f}, "
            f"at step {trainer.best_step}."
        )
        draw_losses(trainer, kind_of(trainer.model), trainer.model.config.dropout)
        print("A sample of 500 tokens:\n")
        load_weights(trainer.model, folder.best)
        prompt = tokenizer.encode(opening(tokenizer))
        text = show(tokenizer, generate(trainer.model, prompt, 500, Sampling(seed=trainer.config.seed)))
        write_text(folder.sample, text + "\n")
        print(f"\nWrite more with: {next_command(arguments.out, DEFAULT_OUT, 'sample')}")


# ----------------------------------------------------------------------------------------------------------- writing


def sample(arguments: argparse.Namespace) -> None:
    """Write with a trained model."""
    folder = RunFolder(arguments.out)
    config = folder.read_part("model", ARCHITECTURES[folder.read_part("text", TextConfig).architecture])
    sampling = settings_from(Sampling, vars(arguments))
    tokenizer = load_tokenizer(folder.tokenizer, config.vocab_size)
    prompt = opening(tokenizer) if arguments.prompt is None else arguments.prompt
    ids = tokenizer.encode(prompt)
    model = make_model(config)
    load_weights(model, folder.latest if arguments.latest else folder.best)
    new_ids = generate(model, ids, arguments.length, sampling)
    print(prompt, end="", flush=True)
    show(tokenizer, new_ids)


def opening(tokenizer: Tokenizer) -> str:
    """The text to go on from where there is no prompt: a new line, or the first character of a tokenizer without new lines."""
    known = getattr(tokenizer, "characters", "\n")
    return "\n" if "\n" in known else known[0]


def show(tokenizer: Tokenizer, ids: Iterable[int]) -> str:
    """Print the text of the ids while they come. Returns the whole text."""
    pieces = []
    for piece in stream_text(tokenizer, ids):
        pieces.append(piece)
        print(piece, end="", flush=True)
    print()
    return "".join(pieces)


# ------------------------------------------------------------------------------------------------------ command line


def parse(words: list[str]) -> argparse.Namespace:
    """The command line; without a command it is ``train``."""
    architecture = first_choice(words, "architecture", "text", TextConfig, DEFAULT_OUT)
    commands = Commands("char_gpt.py", "Train a GPT, or a recurrent network, on a text, and sample from it.", DEFAULT_OUT)
    training = commands.add(
        train,
        help="train on a text (what runs without a command)",
        description="Train a GPT, or a recurrent network, on a text. `char_gpt.py sample --help` tells how to write with it. "
        f"The flags of the model are those of --architecture {architecture}; with another before --help, its own are shown.",
        choice=f"--architecture {architecture}",
    )
    add_text_flag(training)
    add_run_settings(training, DEFAULT_OUT, model=ARCHITECTURES[architecture], text=TextConfig, training=TrainingConfig)
    sampling = commands.add_use(sample, help="write with a trained model", description="Write with a trained model.")
    sampling.add_argument("--prompt", help="the text to go on from (default: a new line)", metavar="TEXT")
    sampling.add_argument("--length", help="tokens to write", type=int, default=500, metavar="INT")
    sampling.add_argument("--latest", help="use the latest weights instead of the best", action="store_true")
    add_settings(sampling, Sampling, "choice of tokens")
    return commands.parse(words)


if __name__ == "__main__":
    run_command(parse)
