"""A pretrained model, from a cold start to its text: tinyformer beside Hugging Face's transformers.

python benchmarks/pretrained.py --output benchmarks/results                     # of GPT-2's size, 124 million parameters
python benchmarks/pretrained.py --model smollm2 --output benchmarks/results     # of SmolLM2's, 135 million

A folder with weights of this size is written first; the weights are random. In each turn a new process of each side imports its
library, loads the folder, writes one token after a prompt of 8, and then 128 tokens from the same prompt, greedily and with a
cache. All must write the same tokens.

"Own memory" is what no file backs, at the end. The rest are pages of files, of the weights or of libraries, which the system
may drop and read again.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import measure
from measure import Side, SideError, Worker
from memory import own_memory

OURS, THEIRS = "tinyformer", "Hugging Face"
PROMPT = [464, 257, 318, 262, 11, 290, 284, 286]
NEW_TOKENS = 128
PARTS = ("import s", "load s", "first token s")
COLD = "cold start to first token s"
MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 50257, "block_size": 1024, "num_layers": 12, "num_heads": 12, "d_model": 768, "bias": True},
    "smollm2": {
        "vocab_size": 49152,
        "block_size": 8192,
        "num_layers": 30,
        "num_heads": 9,
        "num_key_value_heads": 3,
        "d_model": 576,
        "d_ff": 1536,
        "positions": "rotary",
        "rotary_base": 100000.0,
        "norm": "rms",
        "activation": "swiglu",
    },
}
COLUMNS = (*PARTS, COLD, "tokens/s", "peak MB", "own MB")


Write = Callable[[int], list[int]]  # so many tokens that follow the prompt
Load = Callable[[str], Write]  # from a model's folder


def tinyformer() -> Load:
    """``from_pretrained`` and ``generate``, imported."""
    from tinyformer import Sampling, from_pretrained, generate

    def load(folder: str) -> Write:
        model: Any = from_pretrained(folder)
        return lambda count: list(generate(model, PROMPT, count, Sampling(temperature=0)))

    return load


def hugging_face() -> Load:
    """``AutoModelForCausalLM.from_pretrained`` and ``generate``, imported."""
    import torch
    from transformers import AutoModelForCausalLM

    def load(folder: str) -> Write:
        model: Any = AutoModelForCausalLM.from_pretrained(folder)  # for evaluation, as it comes
        settings = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
        prompt = torch.tensor([PROMPT])

        def write(count: int) -> list[int]:
            with torch.inference_mode():
                ids = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count, **settings)
            return list(ids[0, len(PROMPT) :].tolist())

        return write

    return load


class ColdStart(Side):
    """A side that is made once, writes twice, and notes how long each part took."""

    def __init__(self, library: Callable[[], Load], folder: str):
        moments = [time.perf_counter()]

        def timed(part: Callable[..., Any], *arguments: Any) -> Any:
            value = part(*arguments)
            moments.append(time.perf_counter())
            return value

        write = timed(timed(library), folder)
        timed(write, 1)
        self.written: list[int] = timed(write, NEW_TOKENS)
        *parts, last = [after - before for before, after in zip(moments, moments[1:])]
        memory = (self.memory()[0] / 1e6, (own_memory() or 0) / 1e6)
        self.values = dict(zip(COLUMNS, [*parts, sum(parts), NEW_TOKENS / last, *memory]))

    def found(self) -> tuple[list[int], dict[str, float]]:
        """What was written, and the values of ``COLUMNS``."""
        return self.written, self.values


def write_folder(folder: str, model_name: str) -> None:
    """Write a model of this size. Noise on every weight makes texts that vary."""
    import tinytensor as tt
    from tinyformer import GPT, GPTConfig, save_pretrained

    tt.seed(0)
    model = GPT(GPTConfig(**MODELS[model_name]))
    for parameter in model.parameters():
        parameter.assign(parameter + tt.random.normal(parameter.shape, std=0.05))
    save_pretrained(model, folder)


def run(sides: dict[str, tuple[Any, ...]], turns: int) -> str:
    """Measure all sides, each in a new process a turn: a table of medians, and one of ratios to each rival. Raises SideError
    where a side writes other tokens than the first."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    texts: dict[str, list[int]] = {}
    for turn in range(turns):
        names = list(sides)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            with Worker(name, *sides[name]) as worker:
                texts[name], values = worker.call("found")
            found[name].append(values)
    for name, tokens in texts.items():
        if tokens != texts[OURS]:
            raise SideError(f"{name} writes other tokens than {OURS}")
    medians = {name: {c: statistics.median(v[c] for v in values) for c in COLUMNS} for name, values in found.items()}
    rows = [[name, *(f"{values[c]:.{0 if 'MB' in c else 2}f}" for c in COLUMNS)] for name, values in medians.items()]
    rivals = [name for name in sides if name != OURS]
    ratios = [[name, *(f"{medians[OURS][c] / medians[name][c]:.2f}" for c in COLUMNS)] for name in rivals]
    counted = f"Medians of {turns} turns."
    return "\n\n".join([counted, measure.table(["", *COLUMNS], rows), measure.table([f"{OURS} over", *COLUMNS], ratios)])


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    about = "Time a pretrained model from a cold start, beside Hugging Face's transformers; each turn is a new process."
    parser = measure.make_parser(about, turns=7)
    parser.add_argument("--model", help="the size of the model", choices=MODELS, default="gpt2")
    return measure.parse(parser, words, "torch", "transformers")


@measure.script()
def main() -> None:
    """Measure, print, and write."""
    arguments = parse()
    with tempfile.TemporaryDirectory() as folder:
        write_folder(folder, arguments.model)
        sides: dict[str, tuple[Any, ...]] = {
            OURS: (ColdStart, tinyformer, folder),
            THEIRS: (ColdStart, hugging_face, folder),
        }
        sides |= measure.with_numpys_kernels(OURS, *sides[OURS])
        report = run(sides, arguments.turns)
    title = f"A pretrained {arguments.model} from a cold start; {NEW_TOKENS} tokens after a prompt of {len(PROMPT)}, greedy"
    measure.publish(arguments.output, f"pretrained_{arguments.model}", title, report, "numpy", "torch", "transformers")


if __name__ == "__main__":
    main()
