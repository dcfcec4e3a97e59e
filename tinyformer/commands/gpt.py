"""Train a GPT or a recurrent network on a text, by characters or byte pairs, and sample from it.

On Tiny Shakespeare, this takes a little over a minute on two cores.

tinyformer train gpt                              # train on Tiny Shakespeare
tinyformer train gpt --data my.txt                # train on your text: runs/char_gpt-my
tinyformer train gpt --recipe nanogpt --out runs/nanogpt   # with nanoGPT's settings for a CPU
tinyformer train gpt --resume                     # resume after an interruption
tinyformer train gpt --architecture lstm --out runs/char_lstm   # or gru, rnn; same size as --recipe nanogpt
tinyformer train gpt --init-from FOLDER --data my.txt --block-size 256   # continue pre-training, for example from GPT-2
tinyformer train gpt --init-from FOLDER --lora-rank 8    # fine-tune with LoRA
tinyformer sample --prompt "ROMEO:"               # generate text
tinyformer save FOLDER                            # for Hugging Face transformers and tinyformer generate
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tinytensor as tt
from tinyformer.chat.answers import keep_template, rows_to_learn, template_of
from tinyformer.commands.command_line import Commands, add_run_settings, add_settings, add_text_flag, first_choice, some_path
from tinyformer.commands.setup import RunSetup, draw_losses, tell_next, train_to_end
from tinyformer.common.errors import SettingError, UserError, print_line, renamed_settings
from tinyformer.common.makers import LANGUAGE_MODEL, Maker, tinyformer_command
from tinyformer.common.settings import check_effects, check_fields, one_of, setting, settings_from
from tinyformer.data.conversations import ConversationBatches, conversations_in
from tinyformer.data.text import TextBatches
from tinyformer.decoding.generation import compile_first, generate, note_on_length
from tinyformer.decoding.sampling import Sampling
from tinyformer.decoding.streaming import stream_text
from tinyformer.models.gpt import GPT, GPTConfig
from tinyformer.models.quantizing import num_weights, quantize
from tinyformer.models.recurrent import RecurrentLM
from tinyformer.pretrained.adapters import save_adapter
from tinyformer.pretrained.folders import find_folder, model_folder
from tinyformer.pretrained.loading import load_differentiable, save_pretrained
from tinyformer.pretrained.tokenizers import pretrained_tokenizer, save_pretrained_tokenizer
from tinyformer.tokenizers import BPETokenizer, CharTokenizer, Tokenizer, load_tokenizer
from tinyformer.tokenizers.texts import opening_text
from tinyformer.training.config import TrainingConfig
from tinyformer.training.evaluation import evaluate, perplexity
from tinyformer.training.opening import ARCHITECTURES, KINDS, LoraConfig, fingerprint_of, with_additions
from tinyformer.training.run_folder import RunFolder, load_weights
from tinyformer.training.trainer import Trainer
from tinytensor.common.wording import a_or_an, counted
from tinytensor.device.disk import write_text

DEFAULT_OUT = "runs/char_gpt"
SAMPLE = 200  # tokens per sample of --tensorboard
MADE_BY = Maker.of_kind(LANGUAGE_MODEL)
# Settings of a new GPT that differ from the dataclass defaults (nanoGPT's for a CPU). The modern recipe is a small Qwen3:
# rotary positions, normed queries and keys, RMS norms, SwiGLU. Muon trains its blocks at a rate that falls to 0.
RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "modern": {
        "model": {
            "block_size": 128, "num_layers": 3, "num_heads": 4, "d_model": 96, "positions": "rotary",
            "query_key_norm": True, "norm": "rms", "activation": "swiglu",
        },
        "training": {
            "steps": 1500, "optimizer": "muon", "learning_rate": 0.01, "schedule": "linear", "min_learning_rate": 0.0,
            "warmup": 20, "weight_decay": 0.0, "beta2": 0.95, "snapshots": -1,
        },
        "text": {"test_fraction": 0.05},
    },
    "nanogpt": {"model": {}, "training": {"snapshots": -1}, "text": {}},
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TextConfig:
    """Settings of the tokenizer and the network. Raises SettingError for an invalid value."""

    architecture: str = setting("gpt", "gpt, lstm, gru or rnn")
    recipe: str = setting("", "default settings of a GPT: modern, or nanogpt (nanoGPT's for a CPU) (default: modern)")
    tokenizer: str = setting("char", "char (characters) or bpe (byte pairs learned from the text)")
    bpe_tokens: int = setting(1024, "vocabulary size of the bpe tokenizer", unless={"tokenizer": ["char"]})
    init_from: str = setting("", "pretrained model to start from: a folder or a name on the Hugging Face hub")
    test_fraction: float = setting(0.0, "fraction at the start of the text to hold out and score at the end")

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
        """Return the recipe's default settings by section."""
        is_new_gpt = self.architecture == "gpt" and not self.init_from
        return RECIPES[self.recipe or "modern" if is_new_gpt else "nanogpt"]

    def train_tokenizer(self, text: str) -> CharTokenizer | BPETokenizer:
        """Return a tokenizer for the text."""
        if self.tokenizer == "char":
            return CharTokenizer.train(text)
        with renamed_settings(vocab_size="bpe_tokens"):
            return BPETokenizer.train(text, self.bpe_tokens, progress=True)


def load_start(init_from: str) -> tuple[GPT, Tokenizer]:
    """Load the pretrained model to start from, with any adapter merged, and its tokenizer."""
    folder = find_folder(init_from)
    model = load_differentiable(folder)
    if not isinstance(model, GPT):
        raise UserError(
            f"{init_from} holds {a_or_an(type(model).__name__)}, which does not write texts: take GPT-2, Llama or Qwen"
        )
    tt.nn.merge_lora(model)
    return model.train(), pretrained_tokenizer(folder)


def lora_settings(setup: RunSetup, chosen: TextConfig, arguments: argparse.Namespace) -> LoraConfig:
    """Return the LoRA adapter settings. Raises SettingError for a rank without a pretrained model, or if the pretrained model
    is an adapter."""
    rank = getattr(arguments, "lora_rank", 0)
    if rank and not chosen.init_from:
        raise SettingError(
            "lora_rank adds to the weights of a pretrained model: name one with init_from", "lora_rank", "init_from"
        )
    if rank and not setup.is_resumed and model_folder(folder := find_folder(chosen.init_from)) != folder:
        raise SettingError(
            f"lora_rank adds to a whole model, and {chosen.init_from} is an adapter: leave it out, or name a whole one with "
            "init_from",
            "lora_rank",
            "init_from",
        )
    return setup.settings(LoraConfig, base_sha256=fingerprint_of(chosen.init_from) if rank and not setup.is_resumed else "")


def type_name(model: GPT | RecurrentLM) -> str:
    """Return the model's type for messages: GPT, LSTM, GRU or RNN."""
    return "GPT" if isinstance(model, GPT) else model.config.cell.upper()


# ---------------------------------------------------------------------------------------------------------- training


def prepare(
    folder: RunFolder, arguments: argparse.Namespace
) -> tuple[Trainer, GPT | RecurrentLM, TextBatches | ConversationBatches, Tokenizer]:
    """Read the data and create a tokenizer and model. A resumed run already has both."""
    chosen = folder.read_part("text", TextConfig) if arguments.resume else settings_from(TextConfig, vars(arguments))
    make, config_class = ARCHITECTURES[chosen.architecture]
    kinds = {"model": config_class, "training": TrainingConfig, "text": TextConfig, "lora": LoraConfig}
    setup = RunSetup(folder, arguments, kinds, made_by=MADE_BY)
    defaults = chosen.defaults()
    config = setup.settings(TrainingConfig, defaults["training"])
    text_config = setup.settings(TextConfig, defaults["text"])
    lora = lora_settings(setup, chosen, arguments)
    start = load_start(chosen.init_from) if chosen.init_from and not setup.is_resumed else None
    text, source = setup.text(arguments.data, arguments.field, conversations=bool(chosen.init_from))
    conversations = conversations_in(text) if source.field else None
    if start is not None:
        tokenizer = setup.tokenizer(lambda: start[1])
        model_config = setup.settings(config_class, vars(start[0].config))
    elif chosen.init_from:
        tokenizer, model_config = load_tokenizer(folder.tokenizer), setup.settings(config_class)
    else:
        tokenizer = setup.tokenizer(lambda: text_config.train_tokenizer(text))
        shape = defaults["model"] if config_class is GPTConfig else {"cell": chosen.architecture}
        model_config = setup.settings(config_class, shape, vocab_size=tokenizer.vocab_size)

    tt.seed(config.seed)
    batches: TextBatches | ConversationBatches
    if conversations is None:
        batches = TextBatches(
            tokenizer.encode(text),
            model_config.block_size,
            config.batch_size,
            config.seed,
            vocab_size=tokenizer.vocab_size,
            context=getattr(model_config, "context", 0),
            test_fraction=text_config.test_fraction,
        )
    else:
        base = str(folder.as_found(chosen.init_from)) if setup.is_resumed else chosen.init_from
        rows = rows_to_learn(conversations, template_of(base), tokenizer)
        sizes = (model_config.block_size, config.batch_size, config.seed)
        batches = ConversationBatches(rows, *sizes, test_fraction=text_config.test_fraction)
    if start is not None:
        model = start[0].adapted(model_config)
        model = lora.added_to(model) if lora.lora_rank else model
    else:
        model = lora.base(str(folder.as_found(chosen.init_from)), model_config) if lora.lora_rank else make(model_config)
    trainer = Trainer(model, batches, config, folder)
    sampling = Sampling(seed=config.seed)
    setup.begin(trainer, tokenizer, sample=lambda: tokenizer.decode(list(sampled(model, tokenizer, batches, SAMPLE, sampling))))

    held_out = f"the last {counted(len(batches.validation), batches.unit)} validate"
    if len(batches.test):
        held_out += f", the first {len(batches.test):,} test"
    if isinstance(batches, ConversationBatches) and batches.left_out:
        held_out += f"; {batches.left_out:,} left out, with no answer in the first {counted(batches.block_size, 'token')}"
    distinct = counted(tokenizer.vocab_size, "distinct token")
    print_line(f"{source.name}: {counted(len(text), 'character')}, {distinct}; {held_out}")
    learned = f", of which {sum(p.size for p in model.parameters() if p.requires_grad):,} learn," if lora.lora_rank else ""
    print(f"{type_name(model)} with {num_weights(model):,} parameters{learned} on {tt.backend_name}; run folder {folder.path}")
    return trainer, model, batches, tokenizer


def sampled(
    model: GPT | RecurrentLM, tokenizer: Tokenizer, batches: TextBatches | ConversationBatches, length: int, sampling: Sampling
) -> Iterator[int]:
    """Generate text without a prompt or, if the model learns conversations, an answer to the last one."""
    if isinstance(batches, ConversationBatches):
        prompt, answer = batches.opening()
        ends = set(tokenizer.special.values()).intersection(answer)
        return continuation(model, tokenizer, prompt, length, sampling, ends)
    return continuation(model, tokenizer, tokenizer.encode(opening_text(tokenizer)), length, sampling)


def train(arguments: argparse.Namespace) -> None:
    """Train or resume a run, then print a sample."""
    with RunFolder(arguments.out).held() as folder:
        trainer, model, batches, tokenizer = prepare(folder, arguments)
        train_to_end(trainer, MADE_BY.train_command(folder.path))
        print(
            f"\nTrained in {trainer.total_seconds:.0f} s, {trainer.seconds:.0f} of them for training steps. "
            f"Best validation loss {trainer.best_loss:.4f}, perplexity {perplexity(trainer.best_loss):.2f}, "
            f"at step {trainer.best_step}."
        )
        load_weights(model, folder.best)
        if len(batches.test):
            loss = evaluate(model, batches.with_test_split(), shards=trainer.shards)
            print(f"Test split: loss {loss:.4f}, perplexity {perplexity(loss):.2f}.")
        draw_losses(trainer, type_name(model), model.config.dropout)
        is_of_texts = isinstance(batches, TextBatches)
        print("A sample of 500 tokens:\n" if is_of_texts else "An answer to the last conversation:\n")
        new_ids = sampled(model, tokenizer, batches, 500, Sampling(seed=trainer.config.seed))
        text = show(tokenizer, new_ids)
        write_text(folder.sample, text + "\n")
        tell_next("Write more", MADE_BY, trainer)


# ----------------------------------------------------------------------------------------------------------- writing


def sample(arguments: argparse.Namespace) -> None:
    """Generate text with a trained model."""
    sampling = settings_from(Sampling, {"seed": TrainingConfig.seed, **vars(arguments)})
    check_effects(sampling, vars(arguments))
    model, tokenizer = trained(arguments)
    prompt = opening_text(tokenizer) if arguments.prompt is None else arguments.prompt
    prompt_ids = tokenizer.encode(prompt).tolist()
    if note := note_on_length(model, len(prompt_ids)):
        print_line(f"({note})", sys.stderr)
    new_ids = continuation(model, tokenizer, prompt_ids, arguments.length, sampling)
    compile_first(model, sampling)
    print(prompt, end="", flush=True)
    show(tokenizer, new_ids, prompt_ids)


def save(arguments: argparse.Namespace) -> None:
    """Save a trained model and its tokenizer in Hugging Face format."""
    if arguments.adapter:
        save_additions(arguments)
        return
    model, tokenizer = trained(arguments)
    if not isinstance(model, GPT):
        raise UserError(f"{type_name(model)} networks have no place in that layout: only a GPT can be written")
    folder = new_folder(arguments)
    save_pretrained(quantize(model, arguments.dtype) if arguments.dtype in ("int8", "int4") else model, folder)
    save_pretrained_tokenizer(tokenizer, folder)
    run = RunFolder(arguments.out)
    base = run.as_found(run.read_part("text", TextConfig).init_from or None)
    use, command = ("Talk", "chat") if base and keep_template(base, folder) else ("Write", "generate")
    print(f"Wrote {folder}. {use} with it: {tinyformer_command(command, str(folder))}")


def new_folder(arguments: argparse.Namespace) -> Path:
    """Return the output folder. Raises UserError if it is not empty."""
    folder = Path(arguments.folder)
    if folder.is_dir() and any(folder.iterdir()):  # may contain a run or a pretrained model
        raise UserError(f"{folder} is not empty: name a new folder")
    return folder


def save_additions(arguments: argparse.Namespace) -> None:
    """Save a run's LoRA adapter in PEFT format."""
    run = RunFolder(arguments.out)
    if not run.adds_to_another():
        raise UserError(f"{run.path} has no adapter, as it trained all weights: leave out --adapter")
    if arguments.dtype in ("int8", "int4"):
        raise UserError("an adapter has its numbers in float32: leave out --dtype")
    config = run.read_part("model", GPTConfig)
    model = with_additions(run, config, run.latest if arguments.latest else run.best)
    folder = new_folder(arguments)
    save_adapter(model, folder, base=str(run.as_found(run.read_part("text", TextConfig).init_from)))
    print(f"Wrote {folder}. PEFT can read it, and tinyformer accepts it in place of the full model.")


def trained(arguments: argparse.Namespace) -> tuple[GPT | RecurrentLM, Tokenizer]:
    """Load a run's model and tokenizer."""
    folder = RunFolder(arguments.out)
    folder.read_part("text", TextConfig)  # reports settings unknown to this version
    opened = KINDS[LANGUAGE_MODEL].load(folder, folder.latest if arguments.latest else folder.best)
    return opened.model, opened.tokenizer


def continuation(
    model: GPT | RecurrentLM,
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    length: int,
    sampling: Sampling,
    ends: Iterable[int] = (),
) -> Iterator[int]:
    """Generate ids that continue a prompt, skipping outputs that have no token."""
    no_tokens = range(tokenizer.vocab_size, model.config.vocab_size)
    return generate(model, prompt, length, sampling, end=ends, forbidden=no_tokens)


def show(tokenizer: Tokenizer, ids: Iterable[int], prompt: Sequence[int] = ()) -> str:
    """Stream the text of the ids, after a printed ``prompt`` if any. Return the text."""
    pieces = []
    for piece in stream_text(tokenizer, ids, prompt):
        pieces.append(piece)
        print(piece, end="", flush=True)
    print()
    return "".join(pieces)


# ------------------------------------------------------------------------------------------------------ command line


def parse(words: list[str]) -> argparse.Namespace:
    """Parse the command line of ``train``, ``sample`` or ``save``."""
    deciding = ("architecture", "recipe", "init_from")  # on the flags and their defaults
    choices = {name: first_choice(words, name, "text", TextConfig, DEFAULT_OUT) for name in deciding}
    chosen = settings_from(TextConfig, choices)
    architecture = chosen.architecture
    about = "Train a GPT or a recurrent network on a text, and sample from it."
    parser = Commands("tinyformer", about, DEFAULT_OUT, LANGUAGE_MODEL)
    training = parser.add(
        train,
        help="train on a text file",
        description="Train a GPT or a recurrent network on a text. The model flags below are for --architecture "
        f"{architecture}. For another, add it before --help.",
        choice=f"--architecture {architecture}",
        shown="train gpt",
    )
    add_text_flag(training)
    kinds = {"model": ARCHITECTURES[architecture][1], "text": TextConfig, "training": TrainingConfig, "lora": LoraConfig}
    add_run_settings(training, DEFAULT_OUT, chosen.defaults(), **kinds)
    sampling = parser.add_use(sample, help="generate text", description="Generate text with a trained model.", run=True)
    sampling.add_argument("--prompt", help="prompt (default: a newline)", metavar="TEXT")
    sampling.add_argument("--length", help="number of tokens to generate", type=int, default=500, metavar="INT")
    add_settings(sampling, Sampling, "sampling", seed=TrainingConfig.seed)
    saving = parser.add_use(
        save,
        help="save a trained model in Hugging Face format",
        description="Save a trained model in Hugging Face format.",
        run=True,
    )
    saving.add_argument("folder", metavar="FOLDER", help="new folder for the weights, config and tokenizer", type=some_path)
    of_weights = "dtype of the weights; only tinyformer reads int8 and int4 (default: float32)"
    saving.add_argument("--dtype", help=of_weights, choices=("float32", "int8", "int4"))
    saving.add_argument("--adapter", help="save only the LoRA adapter, in PEFT format", action="store_true")
    for command in (sampling, saving):
        command.add_argument("--latest", help="use the latest weights, not the best", action="store_true")
    return parser.parse(words)
