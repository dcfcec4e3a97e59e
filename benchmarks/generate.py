"""Greedy decoding with a key-value cache: tinyformer's GPT beside Hugging Face's GPT-2 of the same shape and weights.

python benchmarks/generate.py                        # configuration A, one prompt of 8 tokens, until the context is full
python benchmarks/generate.py --configuration C --compile --untraced --output benchmarks/results

What is timed is a whole continuation, the prompt's own pass included. Both sides compute in float32 and must write the same
tokens before anything is timed. The weights are random, so the texts mean nothing, but no token costs more or less for that.

Hugging Face's side is what its users get: ``GPT2LMHeadModel.generate`` with GPT-2's own settings and its default cache,
which grows with the text. ``--compile`` adds the same with a cache of fixed size and the model compiled, and ``--untraced``
tinyformer itself without ``tt.trace``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast

import measure
from configurations import GPTS, GPTConfiguration
from measure import Side, SideError, TorchSide

NOISE = 0.05  # added to every weight: biases that are all 0 and norms that are all 1 would hide a mistake in copying them
PROMPT_LENGTH = 8
OURS, THEIRS = "tinyformer", "Hugging Face"


@dataclass(frozen=True)
class Task:
    """What every side does: continue ``batch`` prompts of ``prompt_length`` tokens by ``new_tokens`` tokens each."""

    configuration: GPTConfiguration
    batch: int
    prompt_length: int
    new_tokens: int

    def prompts(self) -> Any:
        """Random ids (batch, prompt_length), the same on every call."""
        import numpy

        return numpy.random.default_rng(0).integers(0, self.configuration.vocab_size, (self.batch, self.prompt_length))


class Tinyformer(Side):
    """Greedy sampling by tinyformer's decoder."""

    def __init__(self, task: Task, traced: bool = True):
        import tinytensor as tt
        from tinyformer.decoding.decoders import GPTDecoder
        from tinyformer.decoding.sampling import Sampling, sample
        from tinyformer.models.gpt import GPT, GPTConfig

        self.imported()
        if not traced:
            tt.trace = lambda function: function
        self.sample, self.decoder, self.greedy = sample, GPTDecoder, Sampling(temperature=0)
        tt.seed(0)
        self.model = GPT(GPTConfig(**{**task.configuration.model(), "bias": True}))  # GPT-2 has biases
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

    def __init__(self, task: Task, compiled: bool = False, device: str = "cpu"):
        import torch
        import torch_models
        import transformers

        self.imported()
        self.torch, self.twins = torch, torch_models
        library = cast(Any, transformers)  # whose own annotations leave much out
        configuration = task.configuration
        config = library.GPT2Config(
            vocab_size=configuration.vocab_size,
            n_positions=configuration.block_size,
            n_embd=configuration.d_model,
            n_layer=configuration.num_layers,
            n_head=configuration.num_heads,
            bos_token_id=None,  # GPT-2's own lie outside this vocabulary
            eos_token_id=None,
        )
        self.model = library.GPT2LMHeadModel(config).eval().to(device)
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
        """Start from tinyformer's values. Raises RuntimeError that lists every name or shape that differs."""
        renamed = {name: self.torch.tensor(array) for name, array in self.twins.gpt2_weights(weights)}
        self.model.transformer.load_state_dict(renamed)  # the output layer is the token embedding on both sides

    def step(self) -> Any:
        """One continuation: the prompts and what follows."""
        with self.torch.inference_mode():
            return self.model.generate(self.prompts, attention_mask=self.mask, generation_config=self.settings)

    def continuation(self) -> list[list[int]]:
        """The new tokens of each row."""
        return self.step()[:, self.prompts.shape[1] :].tolist()


def run(task: Task, sides: measure.Sides, turns: int, steps: int, warm_up: int, same: float = 1.0) -> str:
    """Measure all sides, of which the first is ours: a table of them, one of ratios, the speed-ups in words, and the libraries.
    Raises SideError where another side writes fewer than this fraction of the rows as we do."""
    with ExitStack() as stack:
        workers = measure.start_all(stack, sides)
        ours, *rivals = workers
        weights = workers[ours].call("weights")
        for rival in rivals:
            workers[rival].call("load", weights)
        written = measure.call_all(workers, "continuation")
        for rival in rivals:
            equal = sum(a == b for a, b in zip(written[ours], written[rival], strict=True))
            if equal < same * task.batch:
                raise SideError(f"{rival} writes other tokens than {ours}: only {equal} of {task.batch} rows are the same")
        measure.call_all(workers, "turn", warm_up, 1)
        measure.call_all(workers, "forget_peak")  # the weights on their way, and compiling, are no part of decoding
        times = measure.take_turns(workers, turns, steps)
        memory = measure.call_all(workers, "memory")
        libraries = measure.library_list(workers)
    head = ["", "median ms", "tokens/s", "fastest quartile ms", "tokens/s", "peak MB", "MB after imports"]
    rows = []
    for name, side in times.items():
        median, fastest = side.milliseconds()
        speeds = [f"{task.batch * task.new_tokens / seconds:,.0f}" for seconds in (side.median, side.fastest_quartile)]
        rows.append([name, median, speeds[0], fastest, speeds[1], *map(measure.megabytes, memory[name])])
    speed_ups = []
    for rival in rivals:
        medians, fastest = times[rival].over(times[ours])
        speed_ups.append(f"- {ours} writes {medians} times as many tokens a second as {rival} (fastest quartiles {fastest})")
    return "\n\n".join([measure.table(head, rows), measure.ratio_table(times, ours, rivals), "\n".join(speed_ups), libraries])


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    about = "Time greedy decoding by tinyformer's GPT beside Hugging Face's GPT-2, in turns; a step is a whole continuation."
    parser = measure.make_parser(about, GPTS, turns=20, steps=3, warm_up=3)
    parser.add_argument("--compile", action="store_true", help="measure torch.compile, too (needs a C++ compiler)")
    parser.add_argument("--untraced", action="store_true", help="measure tinyformer without tt.trace, too")
    return measure.parse(parser, words, "torch", "transformers", "threadpoolctl")


@measure.script()
def main() -> None:
    """Measure, print, and write."""
    arguments = parse()
    configuration = GPTS[arguments.configuration]
    task = Task(configuration, 1, PROMPT_LENGTH, new_tokens=configuration.block_size - PROMPT_LENGTH)
    sides: dict[str, tuple[Any, ...]] = {OURS: (Tinyformer, task), THEIRS: (HuggingFace, task)}
    if arguments.compile:
        sides[f"{THEIRS} compiled"] = (HuggingFace, task, True)
    if arguments.untraced:
        sides[f"{OURS} untraced"] = (Tinyformer, task, False)
    sides |= measure.with_numpys_kernels(OURS, Tinyformer, task)
    report = run(task, sides, arguments.turns, arguments.steps, arguments.warm_up)
    title = (
        f"Greedy decoding, configuration {arguments.configuration}: {task.new_tokens} tokens "
        f"after a prompt of {task.prompt_length}, batch {task.batch}"
    )
    name = f"generate_{arguments.configuration}"
    measure.publish(arguments.output, name, title, report, "numpy", "torch", "transformers")


if __name__ == "__main__":
    main()
