"""Train a GPT on the characters of a text (or on byte pairs), and let it write; or a recurrent network, as before GPTs.

On Tiny Shakespeare that takes a little over a minute on two cores.

python examples/char_gpt.py                              # train on Tiny Shakespeare
python examples/char_gpt.py --data my.txt                # train on your own text: runs/char_gpt-my
python examples/char_gpt.py --recipe nanogpt --out runs/nanogpt   # with nanoGPT's settings for a CPU
python examples/char_gpt.py --resume                     # go on after an interruption
python examples/char_gpt.py --architecture lstm --out runs/char_lstm   # about as many parameters as the GPT; or gru, or rnn
python examples/char_gpt.py --init-from FOLDER --data my.txt --block-size 256   # go on from pretrained weights, such as GPT-2's
python examples/char_gpt.py sample --prompt "ROMEO:"     # write with a trained model
python examples/char_gpt.py save FOLDER                  # for Hugging Face's transformers, and for generate.py
"""

from __future__ import annotations

from tinyformer.common.errors import plain_errors

with plain_errors():  # from here on, a missing package or GPU is told in a line, and Ctrl-C ends without a traceback
    import argparse
    import dataclasses
    import shlex
    import sys
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import Any

    import tinytensor as tt
    from tinyformer import (
        GPT,
        BPETokenizer,
        CharTokenizer,
        Commands,
        GPTConfig,
        RecurrentLM,
        RunFolder,
        RunSetup,
        Sampling,
        SettingError,
        TextBatches,
        Tokenizer,
        Trainer,
        TrainingConfig,
        UserError,
        add_run_settings,
        add_settings,
        add_text_flag,
        check_effects,
        check_fields,
        draw_losses,
        evaluate,
        find_folder,
        first_choice,
        from_pretrained,
        generate,
        load_tokenizer,
        load_weights,
        next_command,
        one_of,
        perplexity,
        pretrained_tokenizer,
        print_line,
        run_command,
        save_pretrained,
        save_pretrained_tokenizer,
        setting,
        settings_from,
        some_path,
        stream_text,
        train_to_end,
    )
    from tinyformer.common.errors import note_refused, renamed_settings
    from tinyformer.runs.makers import Maker
    from tinyformer.tasks.language import ARCHITECTURES, KIND, open_run
    from tinyformer.tokenizers.texts import opening_text
    from tinytensor.common.wording import counted
    from tinytensor.device.disk import write_text

DEFAULT_OUT = "runs/char_gpt"
SAMPLE = 200  # tokens that --tensorboard shows with each evaluation
MADE_BY = Maker(KIND, "char_gpt.py", ["sample"])
# The settings of a GPT with new weights; those that are not named are the defaults of the dataclasses. nanoGPT's for a CPU are
# these defaults. The modern ones make a small Qwen3: rotary positions, normed queries and keys, RMS norms, SwiGLU. Muon trains
# its blocks, at a rate that falls to 0.
RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "modern": {
        "model": {
            "block_size": 128, "num_layers": 3, "num_heads": 4, "d_model": 96, "positions": "rotary",
            "query_key_norm": True, "norm": "rms", "activation": "swiglu",
        },
        "training": {
            "steps": 1500, "learning_rate": 0.01, "muon_learning_rate": 0.02, "schedule": "linear", "min_learning_rate": 0.0,
            "warmup": 20, "weight_decay": 0.0, "beta2": 0.95,
        },
        "text": {"test_fraction": 0.05},
    },
    "nanogpt": {"model": {}, "training": {}, "text": {}},
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TextConfig:
    """How the text is cut into tokens, and what predicts them. Raises SettingError for a value that is not allowed."""

    architecture: str = setting("gpt", "gpt, or a recurrent network: lstm, gru or rnn")
    recipe: str = setting(
        "", "the defaults of a GPT's other settings: modern, or nanogpt, those of nanoGPT for a CPU (default: modern)"
    )
    tokenizer: str = setting("char", "char (one token a character) or bpe (byte pairs, learned from the text)")
    bpe_tokens: int = setting(1024, "tokens of the bpe tokenizer", unless={"tokenizer": ["char"]})
    init_from: str = setting(
        "", "a pretrained model, whose weights, settings and tokenizer are used: a folder, or a name on the Hugging Face hub"
    )
    test_fraction: float = setting(
        0.0, "the fraction of the text, its beginning, that is not trained on, and only scored at the end"
    )

    def __post_init__(self) -> None:
        check_fields(self)
        usual = {"architecture": "gpt", "recipe": "", "tokenizer": "char", "bpe_tokens": 1024}
        chosen = [name for name, value in usual.items() if getattr(self, name) != value]
        if self.init_from and chosen:
            message = f"init_from decides what the model and its tokens are: leave out {', '.join(chosen)}"
            raise SettingError(message, "init_from", *chosen)
        one_of(self, "architecture", ARCHITECTURES)
        one_of(self, "tokenizer", ("char", "bpe"))
        if self.recipe:
            one_of(self, "recipe", RECIPES)
        if self.recipe and self.architecture != "gpt":
            raise SettingError(f"recipe is for a GPT, not for the architecture {self.architecture}: leave it out", "recipe")

    def defaults(self) -> dict[str, dict[str, Any]]:
        """The defaults of the settings, by part: those of the recipe, if there is one."""
        is_new_gpt = self.architecture == "gpt" and not self.init_from
        return RECIPES[self.recipe or "modern" if is_new_gpt else "nanogpt"]

    def train_tokenizer(self, text: str) -> CharTokenizer | BPETokenizer:
        """A tokenizer for the text."""
        if self.tokenizer == "char":
            return CharTokenizer.train(text)
        with renamed_settings(vocab_size="bpe_tokens"):
            return BPETokenizer.train(text, self.bpe_tokens, progress=True)


def load_start(init_from: str) -> tuple[GPT, Tokenizer]:
    """The pretrained model with which training begins, and its tokenizer."""
    folder = find_folder(init_from)
    model = from_pretrained(folder)
    if not isinstance(model, GPT):
        raise UserError(f"{init_from} holds a {type(model).__name__}, which does not write texts: take GPT-2, Llama or Qwen")
    return model.train(), pretrained_tokenizer(folder)


def kind_of(model: GPT | RecurrentLM) -> str:
    """The model's kind, for people: GPT, LSTM, GRU or RNN."""
    return "GPT" if isinstance(model, GPT) else model.config.cell.upper()


# ---------------------------------------------------------------------------------------------------------- training


def prepare(folder: RunFolder, arguments: argparse.Namespace) -> tuple[Trainer, TextBatches, Tokenizer]:
    """Read the text, and make a tokenizer and a model for it; a resumed run has them already."""
    chosen = folder.read_part("text", TextConfig) if arguments.resume else settings_from(TextConfig, vars(arguments))
    make, kind = ARCHITECTURES[chosen.architecture]
    kinds = {"model": kind, "training": TrainingConfig, "text": TextConfig}
    setup = RunSetup(folder, arguments, kinds, made_by=MADE_BY)
    defaults = chosen.defaults()
    config = setup.settings(TrainingConfig, defaults["training"])
    text_config = setup.settings(TextConfig, defaults["text"])
    if chosen.init_from:
        note_refused({field.name for field in dataclasses.fields(kind)} - {"block_size", "dropout"})
    start = load_start(chosen.init_from) if chosen.init_from and not setup.is_resumed else None
    text, source = setup.text(arguments.data, arguments.field)
    if start is not None:
        tokenizer = setup.tokenizer(lambda: start[1])
        model_config = setup.settings(kind, vars(start[0].config))
    elif chosen.init_from:
        tokenizer, model_config = load_tokenizer(folder.tokenizer), setup.settings(kind)
    else:
        tokenizer = setup.tokenizer(lambda: text_config.train_tokenizer(text))
        shape = defaults["model"] if kind is GPTConfig else {"cell": chosen.architecture}
        model_config = setup.settings(kind, shape, vocab_size=tokenizer.vocab_size)

    tt.seed(config.seed)
    ids, vocab_size = tokenizer.encode(text), tokenizer.vocab_size
    context = getattr(model_config, "context", 0)
    batches = TextBatches(
        ids,
        model_config.block_size,
        config.batch_size,
        config.seed,
        vocab_size=vocab_size,
        context=context,
        test_fraction=text_config.test_fraction,
    )
    model = make(model_config) if start is None else start[0].adapted(model_config)
    trainer = Trainer(model, batches, config, folder)
    prompt, sampling = opening_text(tokenizer), Sampling(seed=config.seed)
    setup.begin(trainer, tokenizer, sample=lambda: tokenizer.decode(list(going_on(model, tokenizer, prompt, SAMPLE, sampling))))

    held_out = f"the last {counted(len(batches.validation), 'token')} validate"
    if len(batches.test):
        held_out += f", the first {len(batches.test):,} test"
    print_line(f"{source.name}: {counted(len(text), 'character')}, {counted(vocab_size, 'distinct token')}; {held_out}")
    print(f"{kind_of(model)} with {model.num_parameters():,} parameters on {tt.backend_name}; run folder {folder.path}")
    return trainer, batches, tokenizer


def train(arguments: argparse.Namespace) -> None:
    """Train, or go on training, and end with a sample."""
    with RunFolder(arguments.out).held() as folder:
        trainer, batches, tokenizer = prepare(folder, arguments)
        train_to_end(trainer, next_command(arguments.out, DEFAULT_OUT))
        print(
            f"\nTrained in {trainer.total_seconds:.0f} s, {trainer.seconds:.0f} of them for training steps. "
            f"Best validation loss {trainer.best_loss:.4f}, perplexity {perplexity(trainer.best_loss):.2f}, "
            f"at step {trainer.best_step}."
        )
        load_weights(trainer.model, folder.best)
        if len(batches.test):
            loss = evaluate(trainer.model, batches.with_test_split(), shards=trainer.shards)
            print(f"On the test split, by which nothing was chosen: loss {loss:.4f}, perplexity {perplexity(loss):.2f}.")
        draw_losses(trainer, kind_of(trainer.model), trainer.model.config.dropout)
        print("A sample of 500 tokens:\n")
        new_ids = going_on(trainer.model, tokenizer, opening_text(tokenizer), 500, Sampling(seed=trainer.config.seed))
        text = show(tokenizer, new_ids)
        write_text(folder.sample, text + "\n")
        print(f"\nWrite more with: {next_command(arguments.out, DEFAULT_OUT, 'sample')}")


# ----------------------------------------------------------------------------------------------------------- writing


def sample(arguments: argparse.Namespace) -> None:
    """Write with a trained model."""
    sampling = settings_from(Sampling, {"seed": TrainingConfig.seed, **vars(arguments)})
    check_effects(sampling, vars(arguments))
    model, tokenizer = trained(arguments)
    prompt = opening_text(tokenizer) if arguments.prompt is None else arguments.prompt
    new_ids = going_on(model, tokenizer, prompt, arguments.length, sampling)
    print(prompt, end="", flush=True)
    show(tokenizer, new_ids, tokenizer.encode(prompt).tolist())


def save(arguments: argparse.Namespace) -> None:
    """Write a trained model, and its tokenizer, in Hugging Face's layout."""
    model, tokenizer = trained(arguments)
    if not isinstance(model, GPT):
        raise UserError(f"{kind_of(model)} networks have no place in that layout: only a GPT can be written")
    folder = Path(arguments.folder)
    if folder.is_dir() and any(folder.iterdir()):  # it may hold a run, or the pretrained model that training began with
        raise UserError(f"{folder} is not empty: name a new folder")
    save_pretrained(model, folder)
    save_pretrained_tokenizer(tokenizer, folder)
    script = Path(sys.argv[0]).with_name("generate.py")
    print(f"Wrote {folder}. Write with it: {shlex.join(['python', str(script), '--model', str(folder)])}")


def trained(arguments: argparse.Namespace) -> tuple[GPT | RecurrentLM, Tokenizer]:
    """The model and the tokenizer of a run."""
    folder = RunFolder(arguments.out)
    folder.read_part("text", TextConfig)  # which tells of what this version does not know
    opened = open_run(folder, folder.latest if arguments.latest else folder.best)
    return opened.model, opened.tokenizer


def going_on(model: GPT | RecurrentLM, tokenizer: Tokenizer, prompt: str, length: int, sampling: Sampling) -> Iterator[int]:
    """The ids with which a model goes on from a prompt. A pretrained model may have more outputs than its tokenizer has tokens;
    these are never written."""
    no_tokens = range(tokenizer.vocab_size, model.config.vocab_size)
    return generate(model, tokenizer.encode(prompt), length, sampling, forbidden=no_tokens)


def show(tokenizer: Tokenizer, ids: Iterable[int], prompt: Sequence[int] = ()) -> str:
    """Print the text of the ids while they come, after that of a ``prompt`` if it was shown. Returns the text of the ids."""
    pieces = []
    for piece in stream_text(tokenizer, ids, prompt):
        pieces.append(piece)
        print(piece, end="", flush=True)
    print()
    return "".join(pieces)


# ------------------------------------------------------------------------------------------------------ command line


def parse(words: list[str]) -> argparse.Namespace:
    """The command line; without a command it is ``train``."""
    deciding = ("architecture", "recipe", "init_from")  # which flags there are, and what their defaults are
    choices = {name: first_choice(words, name, "text", TextConfig, DEFAULT_OUT) for name in deciding}
    chosen = settings_from(TextConfig, choices)
    architecture = chosen.architecture
    about = "Train a GPT, or a recurrent network, on a text, and sample from it."
    commands = Commands("char_gpt.py", about, DEFAULT_OUT, KIND)
    training = commands.add(
        train,
        help="train on a text (what runs without a command)",
        description="Train a GPT, or a recurrent network, on a text. The flags of the model are those of --architecture "
        f"{architecture}; with another before --help, its own are shown.",
        choice=f"--architecture {architecture}",
    )
    add_text_flag(training)
    kinds = {"model": ARCHITECTURES[architecture][1], "text": TextConfig, "training": TrainingConfig}
    add_run_settings(training, DEFAULT_OUT, chosen.defaults(), **kinds)
    sampling = commands.add_use(sample, help="write with a trained model", description="Write with a trained model.")
    sampling.add_argument("--prompt", help="the text to go on from (default: a new line)", metavar="TEXT")
    sampling.add_argument("--length", help="tokens to write", type=int, default=500, metavar="INT")
    add_settings(sampling, Sampling, "choice of tokens", seed=TrainingConfig.seed)
    saving = commands.add_use(
        save,
        help="write a trained model in Hugging Face's layout",
        description="Write a trained model in Hugging Face's layout.",
    )
    saving.add_argument("folder", help="a new folder, for config.json, model.safetensors and the tokenizer", type=some_path)
    for command in (sampling, saving):
        command.add_argument("--latest", help="use the latest weights instead of the best", action="store_true")
    return commands.parse(words)


if __name__ == "__main__":
    run_command(parse)
