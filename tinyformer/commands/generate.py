"""Generate text with a pretrained GPT-2, Llama, Qwen or Gemma from a folder in Hugging Face format or a GGUF file.

tinyformer generate FOLDER --prompt "Once upon a time"
tinyformer generate smollm2.gguf --prompt "Once upon"   # a llama.cpp GGUF file (tinyformer[gguf])
tinyformer generate gpt2 --prompt "Once upon a time"   # a model name: downloaded once (tinyformer[hub])
tinyformer generate                                    # trains a small Llama first

Training the small Llama on Tiny Shakespeare takes about a minute on two cores. It is saved in Hugging Face format in
runs/small_llama, for use with AutoModelForCausalLM of transformers.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import tinytensor as tt
from tinyformer.commands.command_line import Parser, add_settings, some_path, some_text
from tinyformer.commands.inputs import text_at
from tinyformer.common.errors import UserError, print_line, renamed_settings, stop_script
from tinyformer.common.settings import check_counts, check_effects, settings_from
from tinyformer.data.reading import open_text
from tinyformer.data.text import TextBatches
from tinyformer.decoding.beam_search import HuggingFaceRule, beam_search
from tinyformer.decoding.generation import compile_first, generate, language_decoder, note_on_length
from tinyformer.decoding.sampling import Sampling
from tinyformer.decoding.streaming import stream_text, until
from tinyformer.models.gpt import GPT, GPTConfig
from tinyformer.models.quantizing import DTYPES
from tinyformer.pretrained.folders import find_folder
from tinyformer.pretrained.loading import from_pretrained, save_pretrained
from tinyformer.pretrained.tokenizers import pretrained_tokenizer, save_pretrained_tokenizer
from tinyformer.pretrained.writing import Writing, read_writing
from tinyformer.tokenizers import BPETokenizer, Tokenizer
from tinyformer.training.config import TrainingConfig
from tinyformer.training.run_folder import RunFolder, load_weights
from tinyformer.training.trainer import Trainer
from tinytensor.common.wording import a_or_an, counted

SMALL_LLAMA = Path("runs/small_llama")
PROMPT = "\n"  # for the small Llama, which has no start token
SEPARATOR = "-" * 15  # between samples
LENGTH = 200  # tokens, where neither --length nor the model sets it
CHOICE = {"temperature": 0.8, "top_k": 200, "seed": 1337}  # used where neither a flag nor the model sets a value
TRAINING = TrainingConfig(steps=600, batch_size=8, learning_rate=3e-3, min_learning_rate=3e-4)  # for the small Llama


def write(arguments: argparse.Namespace) -> None:
    """Continue the prompt and print the speed."""
    settings_from(Sampling, {**CHOICE, **vars(arguments)})  # rejects invalid settings before loading a model
    check_counts(num_samples=arguments.num_samples, num_beams=arguments.num_beams or 1)
    if arguments.length is not None and arguments.length < 0:
        raise UserError(f"--length must be at least 0, got {arguments.length}")
    prompt = arguments.prompt if arguments.file is None else text_at(arguments.file)
    if arguments.model is None and not (SMALL_LLAMA / "config.json").exists():
        with redirect_stdout(sys.stderr):  # standard output may go to a file
            make_small_llama(SMALL_LLAMA)
    folder = find_folder(arguments.model or SMALL_LLAMA, arguments.revision)
    model = from_pretrained(folder, dtype=arguments.dtype)
    if not isinstance(model, GPT):
        raise UserError(
            f"{folder} holds {a_or_an(type(model).__name__)}, which does not continue texts: take GPT-2, Llama or Qwen"
        )
    tokenizer, writing = pretrained_tokenizer(folder), read_writing(folder, with_beams=True)
    prompt = prompt if prompt is not None else "" if arguments.model else PROMPT
    prompt_ids = tokenizer.encode(prompt, allow_special=True).tolist()
    ids = [*tokenizer.before, *prompt_ids]
    if not ids:  # a model needs a token to continue: its start token, or any
        ids = [writing.start if writing.start is not None else 0]
    if note := note_on_length(model, len(ids)):
        print_line(f"({note})", sys.stderr)
    # Some models have more outputs than tokens.
    forbidden = (*writing.forbidden, *range(tokenizer.vocab_size, model.config.vocab_size))
    penalty = writing.repetition_penalty if arguments.repetition_penalty is None else arguments.repetition_penalty
    writing = replace(writing, forbidden=forbidden, repetition_penalty=penalty)
    sampling = settings_from(Sampling, {**CHOICE, **writing.sampling(), **vars(arguments)})
    check_effects(sampling, vars(arguments))
    is_sampled = writing.do_sample or any(field.name in vars(arguments) for field in fields(Sampling))
    beams = arguments.num_beams or (not is_sampled and writing.num_beams) or 1
    if arguments.num_samples > 1 and beams == 1 and 0 in (sampling.temperature, sampling.top_k - 1):
        raise UserError("--num-samples: each greedy text is the same: choose a --temperature above 0, or --num-beams")
    length = writing.length(len(ids), LENGTH) if arguments.length is None else arguments.length
    ends = () if arguments.ignore_end else writing.ends
    with renamed_settings(max_tokens="length", beam="num_beams", n_best="num_samples"):
        texts = written(model, ids, length, writing, sampling, ends, beams, arguments.num_samples)
    if beams == 1:  # beam search has already finished
        compile_first(model, sampling)
    shown = []
    for number, new_ids in enumerate(texts):
        print(f"{SEPARATOR}\n" * bool(number) + prompt, end="", flush=True)
        shown.append(show(tokenizer, new_ids, ends, prompt_ids, arguments.stop))
        print()
    count, timed, seconds = (sum(values) for values in zip(*shown))
    speed = f", {timed / seconds:,.1f} a second" if timed and beams == 1 else ""
    print_line(f"({counted(int(count), 'token')}{speed})", sys.stderr)


def written(
    model: GPT, ids: list[int], length: int, writing: Writing, sampling: Sampling, ends: Any, beams: int = 1, count: int = 1
) -> Iterable[Iterator[int]]:
    """Return the ids of ``count`` continuations of a prompt, up to ``length`` tokens: the best of a beam search or, with one
    beam, samples with consecutive seeds."""
    rules: Any = {"forbidden": writing.forbidden, "rules": writing.rules(), "force_end": writing.forced_end in ends}
    if beams == 1:
        first = sampling.seed or 0
        return (generate(model, ids, length, replace(sampling, seed=first + i), ends, **rules) for i in range(count))
    rule = HuggingFaceRule(writing.length_penalty, writing.early_stopping)
    decoder = language_decoder(model, max_tokens=len(ids) + length)
    (best,) = beam_search(decoder, [ids], ends, beams, length, count, rule, **rules)
    return (iter([*text.ids, *([] if text.end is None else [text.end])]) for text in best)


def show(
    tokenizer: Tokenizer, ids: Iterator[int], ends: Sequence[int], prompt: Sequence[int], stops: Sequence[str]
) -> tuple[int, int, float]:
    """Stream the text of ids that continue a prompt, up to an end token or the first of the ``stops``. Return the number of
    ids, the number after the first, and the seconds that the latter took."""
    times: list[float] = []

    def timed() -> Iterator[int]:
        for i in ids:
            times.append(time.perf_counter())
            if i not in ends:
                yield i

    for piece in until(stream_text(tokenizer, timed(), prompt), stops):
        print(piece, end="", flush=True)
    return len(times), len(times[1:]), sum(times[-1:]) - sum(times[:1])


# ------------------------------------------------------------------------------------------------------- the small Llama


def make_small_llama(folder: Path) -> None:
    """Train a small Llama on Tiny Shakespeare. Save it and its tokenizer in Hugging Face format."""
    text, source = open_text(None)
    tokenizer = BPETokenizer.train(text, 1024, special=["<|endoftext|>"], progress=True)
    tt.seed(TRAINING.seed)
    sizes: dict[str, Any] = {"block_size": 128, "num_layers": 4, "num_heads": 4, "num_key_value_heads": 2, "d_model": 128}
    config = GPTConfig(tokenizer.vocab_size, **sizes, d_ff=344, positions="rotary", norm="rms", activation="swiglu")
    model = GPT(config)
    ids = tokenizer.encode(text)
    batches = TextBatches(ids, model.config.block_size, TRAINING.batch_size, TRAINING.seed, vocab_size=tokenizer.vocab_size)
    print_line(
        f"No model named, so training a Llama with {model.num_parameters():,} parameters on {source.name}, "
        f"{counted(len(ids), 'token')}."
    )
    with RunFolder(folder / "training", within=folder).held() as run:
        run.create({"model": model.config, "training": TRAINING}, overwrite=True)
        trainer = Trainer(model, batches, TRAINING, run)
        if not trainer.train():
            stop_script(str(trainer.stopped_by), "Stopped before its end: the next call begins again.")
        load_weights(model, run.best)
    save_pretrained_tokenizer(tokenizer, folder)
    save_pretrained(model, folder)  # config.json is written last: if it exists, the folder is complete
    print(f"Validation loss {trainer.best_loss:.4f}. Wrote {folder}. It writes:\n")


# ---------------------------------------------------------------------------------------------------------- command line


def parse(words: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    described = "Generate text with a pretrained model in Hugging Face's format or in a GGUF file."
    parser = Parser(prog="tinyformer generate", description=described)
    parser.add_argument(
        "model",
        help="a folder, a GGUF file, or a name on the Hugging Face hub (default: a small Llama, trained on first use)",
        type=some_path,
        nargs="?",
        default=argparse.SUPPRESS,
        metavar="FOLDER_OR_NAME",
    )
    parser.add_argument("--model", help=argparse.SUPPRESS, type=some_path)  # the usual place of this flag in other commands
    parser.add_argument("--revision", help="branch, tag or commit on the hub", metavar="TEXT")
    of_weights = "dtype of the weights: fewer bits generate faster (default: as stored)"
    parser.add_argument("--dtype", help=of_weights, choices=DTYPES)
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", help="prompt; may contain special tokens", metavar="TEXT")
    prompt.add_argument("-f", "--file", help="file with the prompt (- for standard input)", metavar="FILE", type=some_path)
    said = f"number of tokens to generate (default: the model's setting, else {LENGTH})"
    parser.add_argument("--length", help=said, type=int, metavar="INT")
    parser.add_argument("--ignore-end", help="do not stop at end-of-text tokens", action="store_true")
    ending = "stop before this string; may be repeated"
    parser.add_argument("--stop", help=ending, action="append", default=[], type=some_text, metavar="TEXT")
    several = "number of samples, separated by a line of dashes"
    parser.add_argument("--num-samples", help=several, type=int, default=1, metavar="INT")
    penalty = "repetition penalty (default: the model's setting, else 1)"
    parser.add_argument("--repetition-penalty", help=penalty, type=float, metavar="FLOAT")
    width = "beam search with this many beams (default: the model's setting, else 1)"
    parser.add_argument("--num-beams", help=width, type=int, metavar="INT")
    add_settings(parser, Sampling, "sampling", **CHOICE)
    names = [field.name for field in fields(Sampling)]
    parser.has_no_effect([*names, "stop"], lambda arguments: (arguments.num_beams or 1) > 1, "with --num-beams")
    parser.has_no_effect("revision", lambda arguments: arguments.model is None, "without a name on the hub")
    parser.set_defaults(run=write)
    return parser.parse_args(words)
