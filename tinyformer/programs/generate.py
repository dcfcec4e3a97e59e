"""Write with a pretrained model: GPT-2, Llama, SmolLM2, Qwen2 or Qwen3, in a folder in Hugging Face's layout, or a GGUF file.

tinyformer generate FOLDER --prompt "Once upon a time"
tinyformer generate smollm2.gguf --prompt "Once upon"   # a GGUF file of llama.cpp (tinyformer[gguf])
tinyformer generate gpt2 --prompt "Once upon a time"   # a name: downloads it once (tinyformer[hub])
tinyformer generate                                    # with no model at hand: makes a small Llama first

The small Llama learns Tiny Shakespeare for about a minute on two cores. It is then in runs/small_llama, in the same layout, so
that AutoModelForCausalLM of transformers can load it, too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import tinytensor as tt
from tinyformer.common.errors import UserError, print_line, stop_script
from tinyformer.common.settings import check_effects, settings_from
from tinyformer.data.reading import open_text
from tinyformer.data.text import TextBatches
from tinyformer.decoding.sampling import Sampling, compile_first, generate
from tinyformer.decoding.streaming import stream_text
from tinyformer.models.gpt import GPT, GPTConfig
from tinyformer.models.quantizing import DTYPES
from tinyformer.pretrained.folders import find_folder
from tinyformer.pretrained.loading import from_pretrained
from tinyformer.pretrained.saving import save_pretrained
from tinyformer.pretrained.tokenizers import pretrained_tokenizer, save_pretrained_tokenizer
from tinyformer.pretrained.writing import read_writing
from tinyformer.runs.run_folder import RunFolder, load_weights
from tinyformer.scripting.command_line import Parser, add_settings, some_path
from tinyformer.tokenizers import BPETokenizer, Tokenizer
from tinyformer.training.config import TrainingConfig
from tinyformer.training.trainer import Trainer
from tinytensor.common.wording import a_or_an, counted

SMALL_LLAMA = Path("runs/small_llama")
PROMPT = "\n"  # for the small Llama, which has no token to begin with
LENGTH = 200  # tokens, where neither --length nor the model's own settings say it
CHOICE = {"temperature": 0.8, "top_k": 200, "seed": 1337}  # where neither a flag nor the model's own settings say it
TRAINING = TrainingConfig(steps=600, batch_size=8, learning_rate=3e-3, min_learning_rate=3e-4)  # of the small Llama


def write(arguments: argparse.Namespace) -> None:
    """Continue the prompt, and say how fast that was."""
    settings_from(Sampling, {**CHOICE, **vars(arguments)})  # refuses what cannot be before a model is loaded
    if arguments.length is not None and arguments.length < 0:
        raise UserError(f"--length must be at least 0, not {arguments.length}")
    if arguments.model is None and not (SMALL_LLAMA / "config.json").exists():
        make_small_llama(SMALL_LLAMA)
    folder = find_folder(arguments.model or SMALL_LLAMA, arguments.revision)
    model = from_pretrained(folder, dtype=arguments.dtype)
    if not isinstance(model, GPT):
        raise UserError(
            f"{folder} holds {a_or_an(type(model).__name__)}, which does not continue texts: take GPT-2, Llama or Qwen"
        )
    tokenizer, writing = pretrained_tokenizer(folder), read_writing(folder)
    prompt = arguments.prompt if arguments.prompt is not None else "" if arguments.model else PROMPT
    prompt_ids = tokenizer.encode(prompt, allow_special=True).tolist()
    ids = [*tokenizer.before, *prompt_ids]
    if not ids:  # a model needs a token to go on from: the one that begins every text, or any
        ids = [writing.start if writing.start is not None else 0]
    ends = () if arguments.ignore_end else writing.ends
    # Some models have more outputs than there are tokens.
    forbidden = [*writing.forbidden, *range(tokenizer.vocab_size, model.config.vocab_size)]
    sampling = settings_from(Sampling, {**CHOICE, **writing.sampling(), **vars(arguments)})
    check_effects(sampling, vars(arguments))
    length = writing.length(len(ids), LENGTH) if arguments.length is None else arguments.length
    new_ids = generate(model, ids, length, sampling, ends, True, forbidden, writing.forced_end in ends, writing.rules())
    compile_first(model, sampling)
    print(prompt, end="", flush=True)
    show(tokenizer, new_ids, ends, prompt_ids)


def show(tokenizer: Tokenizer, ids: Iterator[int], ends: Sequence[int], prompt: Sequence[int]) -> None:
    """Print the text of the ids that continue a prompt while they come, without the one that ends it; then how many came a
    second, after the first."""
    times: list[float] = []

    def timed() -> Iterator[int]:
        for i in ids:
            times.append(time.perf_counter())
            if i not in ends:
                yield i

    for piece in stream_text(tokenizer, timed(), prompt):
        print(piece, end="", flush=True)
    speed = f", {(len(times) - 1) / (times[-1] - times[0]):,.1f} a second" if len(times) > 1 else ""
    print(f"\n({counted(len(times), 'token')}{speed})")


# ------------------------------------------------------------------------------------------------------- the small Llama


def make_small_llama(folder: Path) -> None:
    """Train a small Llama on Tiny Shakespeare, and write it and its tokenizer to a folder in Hugging Face's layout."""
    text, source = open_text(None)
    tokenizer = BPETokenizer.train(text, 1024, special=["<|endoftext|>"], progress=True)
    tt.seed(TRAINING.seed)
    model = GPT(
        GPTConfig(
            tokenizer.vocab_size,
            block_size=128,
            num_layers=4,
            num_heads=4,
            num_key_value_heads=2,
            d_model=128,
            d_ff=344,
            positions="rotary",
            norm="rms",
            activation="swiglu",
        )
    )
    ids = tokenizer.encode(text)
    batches = TextBatches(ids, model.config.block_size, TRAINING.batch_size, TRAINING.seed, vocab_size=tokenizer.vocab_size)
    print_line(
        f"No model is named: a Llama with {model.num_parameters():,} parameters learns {source.name}, "
        f"{counted(len(ids), 'token')}."
    )
    with RunFolder(folder / "training", within=folder).held() as run:
        run.create({"model": model.config, "training": TRAINING}, overwrite=True)
        trainer = Trainer(model, batches, TRAINING, run)
        if not trainer.train():
            stop_script(str(trainer.stopped_by), "Stopped before its end: the next call begins again.")
        load_weights(model, run.best)
    save_pretrained_tokenizer(tokenizer, folder)
    save_pretrained(model, folder)  # config.json comes last: where it is, all is there
    print(f"Validation loss {trainer.best_loss:.4f}. Wrote {folder}. It writes:\n")


# ---------------------------------------------------------------------------------------------------------- command line


def parse(words: list[str]) -> argparse.Namespace:
    """The command line."""
    described = "Write with a pretrained model in Hugging Face's layout or in a GGUF file."
    parser = Parser(prog="tinyformer generate", description=described)
    parser.add_argument(
        "model",
        help="a folder, a GGUF file, or a name on the Hugging Face hub (default: a small Llama, made first if it is not there)",
        type=some_path,
        nargs="?",
        default=argparse.SUPPRESS,
        metavar="FOLDER_OR_NAME",
    )
    parser.add_argument("--model", help=argparse.SUPPRESS, type=some_path)  # its place where others have that flag
    parser.add_argument("--revision", help="a branch, tag or commit of that name", metavar="TEXT")
    of_weights = "what the weights become: with fewer bits they write faster (default: as in the folder)"
    parser.add_argument("--dtype", help=of_weights, choices=DTYPES)
    parser.add_argument("--prompt", help="the text to go on from; names of special tokens count as these", metavar="TEXT")
    said = f"tokens to write (default: as the model's own settings say, else {LENGTH})"
    parser.add_argument("--length", help=said, type=int, metavar="INT")
    parser.add_argument("--ignore-end", help="go on after a token that ends a text; it is shown then", action="store_true")
    add_settings(parser, Sampling, "choice of tokens", **CHOICE)
    parser.has_no_effect("revision", lambda given: given.model is None, "without a name on the hub")
    parser.set_defaults(run=write)
    return parser.parse_args(words)
