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
from collections.abc import Sequence
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


class ColdStart(Side):
    """A side that is made once, writes twice, and notes how long each part took."""

    def __init__(self, folder: str):
        moments = [time.perf_counter()]
        for part in (self.load_library, lambda: self.load(folder), lambda: self.write(1), self.continuation):
            part()
            moments.append(time.perf_counter())
        *parts, last = [after - before for before, after in zip(moments, moments[1:])]
        memory = (self.memory()[0] / 1e6, (own_memory() or 0) / 1e6)
        self.values = dict(zip(COLUMNS, [*parts, sum(parts), NEW_TOKENS / last, *memory]))

    def load_library(self) -> None:
        """Import what is needed."""
        raise TypeError(f"{type(self).__name__} has no load_library method: write one")

    def load(self, folder: str) -> None:
        """Load the model."""
        raise TypeError(f"{type(self).__name__} has no load method: write one")

    def write(self, count: int) -> list[int]:
        """So many tokens that follow the prompt."""
        raise TypeError(f"{type(self).__name__} has no write method: write one")

    def continuation(self) -> None:
        """Write, and keep what was written."""
        self.written = self.write(NEW_TOKENS)

    def found(self) -> tuple[list[int], dict[str, float]]:
        """What was written, and the values of ``COLUMNS``."""
        return self.written, self.values


class Tinyformer(ColdStart):
    """``from_pretrained`` and ``generate``."""

    def load_library(self) -> None:
        from tinyformer import Sampling, from_pretrained, generate

        self.greedy, self.from_pretrained, self.generate = Sampling(temperature=0), from_pretrained, generate

    def load(self, folder: str) -> None:
        self.model: Any = self.from_pretrained(folder)

    def write(self, count: int) -> list[int]:
        return list(self.generate(self.model, PROMPT, count, self.greedy))


class HuggingFace(ColdStart):
    """``AutoModelForCausalLM.from_pretrained`` and ``generate``."""

    def load_library(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.torch: Any = torch
        self.kind: Any = AutoModelForCausalLM

    def load(self, folder: str) -> None:
        self.model: Any = self.kind.from_pretrained(folder)  # for evaluation, as it comes

    def write(self, count: int) -> list[int]:
        prompt = self.torch.tensor([PROMPT])
        settings = {"do_sample": False, "max_new_tokens": count, "pad_token_id": 0, "eos_token_id": None}
        with self.torch.inference_mode():
            ids = self.model.generate(prompt, attention_mask=self.torch.ones_like(prompt), **settings)
        return list(ids[0, len(PROMPT) :].tolist())


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
        sides: dict[str, tuple[Any, ...]] = {OURS: (Tinyformer, folder), THEIRS: (HuggingFace, folder)}
        sides |= measure.with_numpys_kernels(OURS, Tinyformer, folder)
        report = run(sides, arguments.turns)
    title = f"A pretrained {arguments.model} from a cold start; {NEW_TOKENS} tokens after a prompt of {len(PROMPT)}, greedy"
    measure.publish(arguments.output, f"pretrained_{arguments.model}", title, report, "numpy", "torch", "transformers")


if __name__ == "__main__":
    main()
