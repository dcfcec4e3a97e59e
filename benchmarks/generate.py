"""Greedy decoding with a key-value cache: tinyformer's GPT beside Hugging Face's GPT-2 of the same shape and weights.

python benchmarks/generate.py                        # configuration A, one prompt of 8 tokens, until the context is full
python benchmarks/generate.py --configuration C --batch 8 --compile --output benchmarks/results/generate_C.md

What is timed is a whole continuation, the prompt's own pass included. Both sides compute in float32 and must write the same
tokens before anything is timed. The weights are random, so the texts mean nothing, but no token costs more or less for that.

Hugging Face's side is what its users get: ``GPT2LMHeadModel.generate`` with GPT-2's own settings and its default cache,
which grows with the text. ``--compile`` adds a side, the same with a cache of fixed size and the model compiled, and
``--untraced`` tinyformer itself without ``tt.trace``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast

import measure
from configurations import GPTS, GPTConfiguration
from measure import Side, SideError, Times, TorchSide, Worker

from tinyformer.command_line import Parser
from tinyformer.errors import plain_errors

NOISE = 0.05  # added to every weight: biases that are all 0 and norms that are all 1 would hide a mistake in copying them


@dataclass(frozen=True)
class Task:
    """What every side does: continue ``batch`` prompts of ``prompt_length`` tokens by ``new_tokens`` tokens each."""

    configuration: GPTConfiguration
    batch: int
    prompt_length: int
    new_tokens: int

    def model(self) -> dict[str, Any]:
        """The arguments of tinyformer's model; GPT-2 has biases."""
        return {**self.configuration.model(), "bias": True}

    def prompts(self) -> Any:
        """Random ids (batch, prompt_length), the same on every call."""
        import numpy

        return numpy.random.default_rng(0).integers(0, self.configuration.vocab_size, (self.batch, self.prompt_length))


# ------------------------------------------------------------------------------------------------------------- sides


class Tinyformer(Side):
    """Greedy sampling by tinyformer's decoder."""

    def __init__(self, task: Task, traced: bool = True):
        super().__init__()
        import tinytensor as tt
        from tinyformer.decoding.decoders import GPTDecoder
        from tinyformer.decoding.sampling import Sampling, sample
        from tinyformer.models.gpt import GPT, GPTConfig

        self.imported()
        if not traced:
            tt.trace = lambda function: function
        self.sample, self.decoder, self.greedy = sample, GPTDecoder, Sampling(temperature=0)
        tt.seed(0)
        self.model = GPT(GPTConfig(**task.model()))
        for parameter in self.model.parameters():
            parameter.assign(parameter + tt.random.normal(parameter.shape, std=NOISE))
        self.prompts, self.new_tokens = task.prompts(), task.new_tokens

    def weights(self) -> dict[str, Any]:
        """The model's values as NumPy arrays."""
        return {name: value.numpy() for name, value in self.model.state_dict().items()}

    def load(self, weights: dict[str, Any]) -> None:
        """Start from these values."""
        self.model.load_state_dict(weights)

    def step(self) -> Any:
        """One continuation: the ids of each of its steps."""
        return list(self.sample(self.decoder(self.model), self.prompts, self.new_tokens, self.greedy))

    def continuation(self) -> list[list[int]]:
        """The new tokens of each row."""
        return [[int(i) for i in row] for row in zip(*self.step())]


class HuggingFace(TorchSide):
    """``generate`` of Hugging Face's GPT-2; compiled, with the cache of fixed size that compiling needs."""

    def __init__(self, task: Task, compiled: bool, device: str = "cpu"):
        super().__init__()
        import torch
        import transformers

        self.imported()
        self.torch, library = torch, cast(Any, transformers)  # whose own annotations leave much out
        self.model = library.GPT2LMHeadModel(gpt2_config(task.configuration)).eval().to(device)
        if compiled:
            self.model.forward = torch.compile(self.model.forward)
        self.settings = library.GenerationConfig(
            do_sample=False,
            use_cache=True,
            max_new_tokens=task.new_tokens,  # and no fewer: without an end token nothing stops it earlier
            eos_token_id=None,
            pad_token_id=None,
            cache_implementation="static" if compiled else None,
        )
        self.prompts = torch.tensor(task.prompts(), device=device)
        self.mask = torch.ones_like(self.prompts)

    def load(self, weights: dict[str, Any]) -> None:
        """Start from tinyformer's values."""
        load_weights(weights, self.model)

    def step(self) -> Any:
        """One continuation: the prompts and what follows."""
        with self.torch.inference_mode():
            return self.model.generate(self.prompts, attention_mask=self.mask, generation_config=self.settings)

    def continuation(self) -> list[list[int]]:
        """The new tokens of each row."""
        return self.step()[:, self.prompts.shape[1] :].tolist()


def gpt2_config(configuration: GPTConfiguration) -> Any:
    """Hugging Face's configuration of a GPT-2 of this size. It stays GPT-2's in all else."""
    from transformers import GPT2Config

    return GPT2Config(
        vocab_size=configuration.vocab_size,
        n_positions=configuration.block_size,
        n_embd=configuration.d_model,
        n_layer=configuration.num_layers,
        n_head=configuration.num_heads,
        bos_token_id=None,  # GPT-2's own lie outside this vocabulary
        eos_token_id=None,
    )


# tinyformer's names -> GPT-2's. Those of a block stand behind "blocks.N." and "h.N.".
_OUTSIDE_BLOCKS = {"token_embedding": "wte", "position_embedding": "wpe", "norm": "ln_f"}
_IN_A_BLOCK = {
    "attention_norm": "ln_1",
    "attention.query_key_value": "attn.c_attn",
    "attention.output": "attn.c_proj",
    "feed_forward_norm": "ln_2",
    "feed_forward.up": "mlp.c_fc",
    "feed_forward.down": "mlp.c_proj",
}


def load_weights(weights: Mapping[str, Any], model: Any) -> None:
    """Give Hugging Face's GPT-2 the values of tinyformer's GPT, as NumPy arrays. Raises RuntimeError that lists every name
    or shape that differs. The output layer needs no copy, as it is the token embedding on both sides."""
    import torch

    model.transformer.load_state_dict({_gpt2_name(name): torch.tensor(_gpt2_layout(name, a)) for name, a in weights.items()})


def _gpt2_name(name: str) -> str:
    module, _, kind = name.rpartition(".")
    if not module.startswith("blocks."):
        return f"{_OUTSIDE_BLOCKS[module]}.{kind}"
    _, number, layer = module.split(".", 2)
    return f"h.{number}.{_IN_A_BLOCK[layer]}.{kind}"


def _gpt2_layout(name: str, array: Any) -> Any:
    """The matrices of GPT-2's linear layers are (inputs, outputs); those of the embeddings are as here."""
    return array.T if name.startswith("blocks.") and array.ndim == 2 else array


# -------------------------------------------------------------------------------------------------------- measurement

OURS, THEIRS, COMPILED, UNTRACED = "tinyformer", "Hugging Face", "Hugging Face compiled", "tinyformer untraced"


def run(task: Task, turns: int, steps: int, warm_up: int, compiled: bool, untraced: bool) -> dict[str, Any]:
    """Measure all sides; everything that the report shows."""
    sides: dict[str, tuple[Any, ...]] = {OURS: (Tinyformer, task), THEIRS: (HuggingFace, task, False)}
    if compiled:
        sides[COMPILED] = (HuggingFace, task, True)
    if untraced:
        sides[UNTRACED] = (Tinyformer, task, False)
    with ExitStack() as stack:
        workers = measure.start_all(stack, sides)
        rivals = [name for name in sides if name != OURS]
        _check_same_tokens(workers, rivals)
        for worker in workers.values():
            worker.call("turn", warm_up, 1)
        times = measure.take_turns(workers, turns, steps)
        memory = {name: worker.call("memory") for name, worker in workers.items()}
        libraries = {name: worker.call("libraries") for name, worker in workers.items()}
    return {
        "sides": {name: _side(task, times[name], *memory[name]) for name in sides},
        "ratios": {name: measure.compare(times[OURS], times[name]) for name in rivals},
        "libraries": libraries,
    }


def _check_same_tokens(workers: Mapping[str, Worker], rivals: Sequence[str]) -> None:
    """Copy our weights to the others and let all write. Raises SideError where another's tokens differ from ours."""
    weights = workers[OURS].call("weights")
    for name in rivals:
        workers[name].call("load", weights)
    for worker in workers.values():
        worker.call("forget_peak")  # the weights on their way between processes are no part of decoding
    ours = workers[OURS].call("continuation")
    for name in rivals:
        theirs = workers[name].call("continuation")
        for row, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            if a != b:
                place = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
                raise SideError(f"{name} writes other tokens than {OURS}, from token {place + 1} of row {row + 1} on")


def _side(task: Task, times: Times, imported: int, peak: int) -> dict[str, Any]:
    tokens = task.batch * task.new_tokens
    return {
        "median_ms": 1000 * measure.median(times),
        "fastest_quartile_ms": 1000 * measure.fastest_quartile(times),
        "median_tokens_per_second": tokens / measure.median(times),
        "fastest_quartile_tokens_per_second": tokens / measure.fastest_quartile(times),
        "imported_bytes": imported,
        "peak_bytes": peak,
    }


# ------------------------------------------------------------------------------------------------------------- report


def report(results: dict[str, Any]) -> str:
    """Two tables, the speed-up in words, and what they were measured with."""
    head = ["", "median ms", "tokens/s", "fastest quartile ms", "tokens/s", "peak MB", "MB after imports"]
    rows = [
        [
            name,
            f"{side['median_ms']:.1f}",
            f"{side['median_tokens_per_second']:,.0f}",
            f"{side['fastest_quartile_ms']:.1f}",
            f"{side['fastest_quartile_tokens_per_second']:,.0f}",
            measure.megabytes(side["peak_bytes"]),
            measure.megabytes(side["imported_bytes"]),
        ]
        for name, side in results["sides"].items()
    ]
    ratios = results["ratios"]
    tables = [measure.table(head, rows), measure.ratio_table(OURS, ratios)]
    speed_ups = [_speed_up(name, ratio) for name, ratio in ratios.items()]
    return "\n\n".join([*tables, "\n".join(speed_ups), measure.library_list(results["libraries"])])


def _speed_up(name: str, ratio: Mapping[str, Any]) -> str:
    medians, fastest = 1 / ratio["medians"], 1 / ratio["fastest_quartiles"]
    return f"- {OURS} writes {medians:.2f} times as many tokens a second as {name} (fastest quartiles {fastest:.2f})"


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, with the task that it describes as ``task``."""
    parser = Parser(
        description="Time greedy decoding by tinyformer's GPT beside Hugging Face's GPT-2, in turns. Needs PyTorch, "
        'transformers and threadpoolctl: pip install -e ".[bench]".',
        epilog="The configurations: "
        + "; ".join(f"{name}: {c.shape()}" for name, c in GPTS.items())
        + ". OPENBLAS_NUM_THREADS and OMP_NUM_THREADS limit the threads.",
    )
    parser.add_argument("--configuration", choices=GPTS, default="A", help="the size of the model")
    parser.add_argument("--batch", type=measure.positive, default=1, metavar="INT", help="prompts continued together")
    parser.add_argument("--prompt-length", type=measure.positive, default=8, metavar="INT", help="tokens of each prompt")
    parser.add_argument(
        "--new-tokens", type=measure.positive, metavar="INT", help="tokens to write (default: until the context is full)"
    )
    parser.add_argument("--turns", type=measure.positive, default=20, metavar="INT", help="turns of each side")
    parser.add_argument("--steps", type=measure.positive, default=3, metavar="INT", help="timed continuations in a turn")
    parser.add_argument("--warm-up", type=measure.positive, default=3, metavar="INT", help="continuations before them")
    parser.add_argument("--compile", action="store_true", help="measure torch.compile, too (needs a C++ compiler)")
    parser.add_argument("--untraced", action="store_true", help="measure tinyformer without tt.trace, too")
    parser.add_argument("--output", type=measure.output_file, metavar="FILE", help="write the results to FILE.md or FILE.json")
    arguments = parser.parse_args(words)
    arguments.task = _task(parser, arguments)
    measure.require(parser, "torch", "transformers", "threadpoolctl")
    return arguments


def _task(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Task:
    """What the arguments ask for; ends with an error where it does not fit the model's context."""
    configuration = GPTS[arguments.configuration]
    prompt, block = arguments.prompt_length, configuration.block_size
    if prompt >= block:
        parser.error(f"a prompt of {prompt} tokens leaves no room in a context of {block}: shorten --prompt-length")
    new = arguments.new_tokens or block - prompt
    if prompt + new > block:
        parser.error(f"{prompt} tokens of prompt and {new} new ones do not fit a context of {block}: shorten --new-tokens")
    return Task(configuration, arguments.batch, prompt, new)


@plain_errors()
def main() -> None:
    """Measure, print, and write."""
    arguments = parse()
    task = arguments.task
    try:
        results = run(task, arguments.turns, arguments.steps, arguments.warm_up, arguments.compile, arguments.untraced)
    except SideError as error:
        sys.exit(f"error: {error}")
    title = (
        f"Greedy decoding, configuration {arguments.configuration}: {task.new_tokens} tokens "
        f"after a prompt of {task.prompt_length}, batch {task.batch}"
    )
    text = report(results)
    print(f"{title}\n\n{text}")
    if arguments.output:
        sizes = {"batch": task.batch, "prompt_length": task.prompt_length, "new_tokens": task.new_tokens}
        everything = measure.described({"model": task.model(), **sizes, **results}, "numpy", "torch", "transformers")
        measure.write_results(arguments.output, title, text, everything)


if __name__ == "__main__":
    main()
