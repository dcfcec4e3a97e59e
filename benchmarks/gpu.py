"""All that wants a GPU, in one command: the tests, then tinyformer beside PyTorch and Hugging Face on the same GPU.

TINYTENSOR_BACKEND=cupy python benchmarks/gpu.py --output benchmarks/results
TINYTENSOR_BACKEND=cupy python benchmarks/gpu.py --quick --parts tests steps

The parts: "tests" (tests/gpu, and the library's own tests on this backend), "steps" (a training step of nanoGPT's
shakespeare_char and of GPT-2 124M beside PyTorch's), "losses" (training in bfloat16 beside float32), "generation" (greedy
decoding beside Hugging Face's generate), "start" (until the first step is done) and "kernels" (where a step's time goes).
Whatever cannot be measured is named in the results, with the reason, and the rest goes on; the exit status then is 1. The
results are written anew after each part, so that a run that is cut short leaves what it has.

A step's time is that of a block of steps, from the first's start until the GPU has done the last, over their number: as in
training, where nobody waits for a step. All sides are processes on the same GPU that take turns. Who waits keeps its memory.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import generate
import measure
import train_step
from configurations import GPU_GPTS, GPTConfiguration
from measure import Side, SideError, Worker

TORCH_DEVICE = "cuda"
CHARACTERS = "shakespeare_char"  # the configuration that all parts measure
OURS, NARROW = "tinyformer, TF32", "tinyformer, bfloat16"
EAGER, MIXED, COMPILED = "PyTorch eager, TF32", "PyTorch eager, bfloat16", "PyTorch compiled, bfloat16"
TINYFORMER: dict[str, str] = {OURS: "float32", NARROW: "bfloat16"}  # the dtype
PYTORCH = {EAGER: (False, False), MIXED: (False, True), COMPILED: (True, True)}  # whether compiled, and in bfloat16
# By how much the first loss may differ from that of tinyformer in TF32, relatively: all round, and each differently.
ROUNDING = {NARROW: 1e-2, EAGER: 1e-3, MIXED: 1e-2, COMPILED: 1e-2}
MEMORY = (
    "Memory on the GPU: the most that tensors took at once (CuPy does not tell), the most that the library's pool held, and "
    "what the GPU had less after the first steps than after the imports; the pools are what can be compared. The sides share "
    "the GPU, and who waits for its turn keeps its memory. A step is forward, backward, clipping and AdamW (PyTorch's: fused); "
    "PyTorch's attention is scaled_dot_product_attention, in bfloat16 flash attention."
)


@dataclass(frozen=True)
class Amount:
    """How much is measured."""

    tests: tuple[str, ...] = ("tests/gpu", "tests/tinytensor", "tests/tinyformer")
    turns: int = 12
    blocks: int = 2  # timed in a turn
    steps: int = 20  # in a block
    warm_up: int = 10
    losses: int = 300  # steps
    new_tokens: int = 240
    continuations: int = 5  # turns, of one each
    profiled: int = 5  # steps


QUICK = Amount(tests=("tests/gpu",), turns=2, blocks=1, steps=3, warm_up=3, losses=20, new_tokens=20, continuations=2)


def on_cupy(block: int, make: Callable[..., Any], *arguments: Any) -> Any:
    """A side that computes with tinytensor on CuPy; so many of its steps are timed together."""
    from tinytensor.backend import xp

    driver, pool = xp.cuda.runtime, xp.get_default_memory_pool()
    free = driver.memGetInfo()[0]
    side = make(*arguments)
    side.block = block
    side.finish = lambda: xp.cuda.Device().synchronize()
    # What tensors took is not known. The pool holds the most that it ever needed.
    side.device_memory = lambda: [None, pool.total_bytes(), free - driver.memGetInfo()[0]]
    side.kernel_times = lambda steps: importlib.import_module("kernel_times").measured(side.step, steps, xp.cuda)
    return side


def on_torch(block: int, device: str, precision: str, make: Callable[..., Any], *arguments: Any) -> Any:
    """A side that computes with PyTorch on the GPU (on the "cpu" in tests), with its float32 products in this precision."""
    import torch

    torch.set_float32_matmul_precision(precision)
    free = torch.cuda.mem_get_info()[0] if device == "cuda" else 0
    side = make(*arguments, device=device)
    side.block = block
    if device == "cuda":
        cuda = torch.cuda
        side.finish = cuda.synchronize
        side.device_memory = lambda: [cuda.max_memory_allocated(), cuda.max_memory_reserved(), free - cuda.mem_get_info()[0]]
    else:
        side.device_memory = lambda: [None, None, None]
    return side


class Learner(Side):
    """A model that learns a text's characters, with nanoGPT's settings for them."""

    def __init__(self, configuration: GPTConfiguration, dtype: str, steps: int, data: str | None):
        import tinytensor as tt
        from tinyformer.data.reading import open_text
        from tinyformer.data.text import TextBatches
        from tinyformer.models.gpt import GPT, GPTConfig
        from tinyformer.tokenizers import CharTokenizer
        from tinyformer.training.config import TrainingConfig
        from tinyformer.training.evaluation import evaluate
        from tinyformer.training.runs import RunFolder
        from tinyformer.training.trainer import Trainer

        self.evaluate = evaluate
        text, self.source = open_text(data)
        tokenizer = CharTokenizer.train(text)
        config = TrainingConfig(steps=steps, batch_size=configuration.batch_size, warmup=steps // 10, shards=1, dtype=dtype)
        tt.seed(config.seed)
        batches = TextBatches(tokenizer.encode(text), configuration.block_size, config.batch_size, config.seed)
        model = GPT(GPTConfig(**{**configuration.model(), "vocab_size": tokenizer.vocab_size}))
        self.trainer = Trainer(model, batches, config, RunFolder("never-written"))

    def learn(self) -> tuple[list[float], float, str]:
        """The losses of all steps, read at the end, the validation loss, and the text's name."""
        trainer = self.trainer
        losses = [trainer.train_step()[0] for _ in range(trainer.config.steps)]
        return list(map(float, losses)), self.evaluate(trainer.model, trainer.batches), self.source.name


class Measurement:
    """The parts of what is measured, each a method; the sections of their report so far, and what could not be measured."""

    def __init__(self, amount: Amount, data: str | None):
        self.amount, self.data = amount, data
        self.sections: list[str] = []
        self.failures: list[str] = []

    def add(self, title: str, *paragraphs: str) -> None:
        """A section."""
        self.sections.append("\n\n".join([f"## {title}", *paragraphs]))

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """A context in which a failure of a side is noted, and no more."""
        try:
            yield
        except SideError as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            self.failures.append(f"{what} was not measured: {lines[0]} {lines[-1] if len(lines) > 1 else ''}".strip())
            print(error, file=sys.stderr)

    def report(self) -> str:
        """All of it."""
        failures = ["## Not measured", "\n".join(f"- {failure}" for failure in self.failures)] if self.failures else []
        return "\n\n".join([*self.sections, *failures])

    def tests(self) -> None:
        """The tests, and what they say at the end."""
        command = [sys.executable, "-m", "pytest", "-rfE", "--tb=short", *self.amount.tests]
        root = Path(__file__).resolve().parents[1]
        process = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        print(process.stdout)
        lines = [line for line in process.stdout.splitlines() if line]
        failed = [f"- {line}" for line in lines if line.startswith(("FAILED", "ERROR"))]
        last = lines[-1].strip("= ") if lines else "pytest said nothing"
        self.add(f"Tests: {' '.join(self.amount.tests)}", last, *(["\n".join(failed)] if failed else []))
        if process.returncode:
            self.failures.append(f"not all tests passed: {last}")

    def steps(self) -> None:
        """A training step of both libraries."""
        for name, configuration in GPU_GPTS.items():
            with ExitStack() as stack, self.attempt(f"{name}: a training step"):
                self._step(stack, name, configuration)

    def _step(self, stack: ExitStack, name: str, configuration: GPTConfiguration) -> None:
        amount = self.amount
        ours = (on_cupy, amount.steps, train_step.Tinyformer, configuration, 1)
        theirs = (on_torch, amount.steps, TORCH_DEVICE, "high", train_step.PyTorch, configuration)
        sides: dict[str, tuple[Any, ...]] = {side: (*ours, dtype) for side, dtype in TINYFORMER.items()}
        sides |= {side: (*theirs, *options) for side, options in PYTORCH.items()}

        def attempt(side: str) -> AbstractContextManager[None]:
            return self.attempt(f"{name}: {side}")

        workers = train_step.start(stack, configuration, sides, amount.warm_up, ROUNDING, attempt)
        memory = measure.call_all(workers, "device_memory")
        times = measure.take_turns(workers, amount.turns, amount.blocks, settle=amount.warm_up)
        rows = []
        for side, seconds in times.items():
            speed = f"{configuration.num_tokens() / seconds.median:,.0f}"
            rows.append([side, *seconds.milliseconds(digits=2), speed, *map(measure.megabytes, memory[side])])
        rivals = [side for side in times if side in PYTORCH]
        self.add(
            f"A training step, {name}",
            configuration.described(),
            measure.table(["", *measure.TIMES, "tokens/s", "tensors MB", "pool MB", "driver MB"], rows),
            MEMORY,
            *[measure.ratio_table(times, side, rivals) for side in times if side in TINYFORMER],
        )
        if name == CHARACTERS and EAGER in times:
            ratio = times[OURS].median / times[EAGER].median
            self.sections.append(_target(f"the ratio of the medians, in TF32 over {EAGER}", ratio, 1.5))

    def losses(self) -> None:
        """The same run in float32 and in bfloat16."""
        steps = self.amount.losses
        last = max(1, steps // 6)
        ends = {}
        with self.attempt("bfloat16's losses"):
            for side, dtype in TINYFORMER.items():
                with Worker(side, Learner, GPU_GPTS[CHARACTERS], dtype, steps, self.data) as worker:
                    losses, validation, text = worker.call("learn")
                ends[side] = (statistics.fmean(losses[-last:]), validation)
            distances = [abs(a - b) for a, b in zip(ends[OURS], ends[NARROW])]
            rows = [[side, f"{training:.4f}", f"{validation:.4f}"] for side, (training, validation) in ends.items()]
            self.add(
                f"bfloat16 beside float32 after {steps} steps of {CHARACTERS}",
                f"The text is {text}; batches and dropout masks are the same.",
                measure.table(["", f"training loss, mean of the last {last}", "validation loss"], rows),
                _target("bfloat16's distance from float32, in the training loss", distances[0], 0.01),
                _target("bfloat16's distance from float32, in the validation loss", distances[1], 0.01),
            )

    def generation(self) -> None:
        """Greedy decoding of both libraries, in float32."""
        for batch in (1, 64):
            task = generate.Task(GPU_GPTS[CHARACTERS], batch, prompt_length=8, new_tokens=self.amount.new_tokens)
            sides: measure.Sides = {
                generate.OURS: (on_cupy, 1, generate.Tinyformer, task),
                generate.THEIRS: (on_torch, 1, TORCH_DEVICE, "highest", generate.HuggingFace, task),
            }
            with self.attempt(f"generation, batch {batch}"), measure.environment({"TINYTENSOR_TF32": "0"}):
                # Where two logits are as good as equal, rounding decides; so not all rows have to be the same.
                found = generate.run(task, sides, self.amount.continuations, steps=1, warm_up=1, same=0.9)
                what = f"{task.new_tokens} tokens after {task.prompt_length}, float32 without TF32."
                self.add(f"Greedy decoding, {CHARACTERS}, batch {batch}", what, found)

    def start(self) -> None:
        """How long a process takes until it has done a training step: the first ever, and then again."""
        rows = []
        with (
            self.attempt("the start"),
            tempfile.TemporaryDirectory() as folder,
            measure.environment({"CUPY_CACHE_DIR": folder}),
        ):
            for what in ("no kernel compiled yet", "compiled kernels cached"):
                start = time.perf_counter()
                with Worker(OURS, train_step.Tinyformer, GPU_GPTS[CHARACTERS], 1) as worker:
                    made = time.perf_counter() - start
                    worker.call("losses", 1)
                    stepped = time.perf_counter() - start
                rows.append([what, f"{made:.2f}", f"{stepped:.2f}"])
            self.add(
                f"From the start of a process to the end of its first training step, {CHARACTERS}",
                measure.table(["", "imports, model and batches, s", "and the first step, s"], rows),
                _target("seconds with compiled kernels cached", stepped, 5.0),
            )

    def kernels(self) -> None:
        """Where a step's time goes."""
        for name, configuration in GPU_GPTS.items():
            for dtype in TINYFORMER.values():
                with self.attempt(f"{name}: kernels in {dtype}"):
                    self._kernels(f"{name}, {dtype}", (on_cupy, 1, train_step.Tinyformer, configuration, 1, dtype))

    def _kernels(self, what: str, side: tuple[Any, ...]) -> None:
        steps = self.amount.profiled
        with Worker(OURS, *side) as worker:
            worker.call("losses", self.amount.warm_up)
            kernels, whole = worker.call("kernel_times", steps)
        ordered = sorted(kernels.items(), key=lambda item: -item[1][1])
        elsewhere = whole - sum(milliseconds for _, milliseconds in kernels.values())
        rows = [
            [kernel, f"{count / steps:g}", f"{milliseconds / steps:.3f}", f"{milliseconds / whole:.1%}"]
            for kernel, (count, milliseconds) in [*ordered, ("everything else", (0, elsewhere))]
        ]
        self.add(
            f"Where a step's time goes, {what}",
            f"Between events before and after each call of a kernel; a step with them takes {whole / steps:.2f} ms. "
            "Where the GPU waits for Python, that counts, too.",
            measure.table(["kernel", "calls a step", "ms a step", "fraction"], rows),
        )


PARTS = ("tests", "steps", "losses", "generation", "start", "kernels")


def _target(what: str, value: float, most: float) -> str:
    return f"Target: {what} at most {most:g}. It is {value:.4g}: **{'met' if value <= most else 'NOT met'}**."


def describe_gpu() -> str:
    """The GPU and its software."""
    from tinytensor.backend import xp  # no GPU, or no CuPy, is an error now and not in every side

    runtime = xp.cuda.runtime
    name = runtime.getDeviceProperties(runtime.getDevice())["name"].decode()
    version = runtime.runtimeGetVersion()
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        driver = "unknown (nvidia-smi does not tell)"
    memory = measure.megabytes(runtime.memGetInfo()[1])
    return f"- GPU: {name}, {memory} MB\n- driver: {driver}\n- CUDA runtime: {version // 1000}.{version % 1000 // 10}"


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = measure.make_parser(
        "Run the tests on this machine's GPU, and measure tinyformer there beside PyTorch and Hugging Face. Needs "
        'TINYTENSOR_BACKEND=cupy, and pip install -e ".[cuda13,test,bench]".'
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run: everything once, too short to be a measurement")
    only = f"only these of {', '.join(PARTS)}"
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=only)
    parser.add_argument("--data", metavar="FILE", help='the text of "losses"; Tiny Shakespeare is downloaded without it')
    arguments = measure.parse(parser, words, "torch", "transformers", "threadpoolctl", "pytest")
    if os.environ.get("TINYTENSOR_BACKEND") != "cupy":
        parser.error("this measures a GPU: run TINYTENSOR_BACKEND=cupy python benchmarks/gpu.py")
    return arguments


@measure.script()
def main() -> None:
    """Measure, write after each part, and print."""
    arguments = parse()
    measurement = Measurement(QUICK if arguments.quick else Amount(), arguments.data)
    measurement.add("The GPU", describe_gpu())
    title = "On a GPU" + (" (a smoke run: no measurement)" if arguments.quick else "")
    for part in PARTS:
        if part in arguments.parts:
            getattr(measurement, part)()
            packages = ("numpy", "cupy-cuda13x", "cupy-cuda12x", "torch", "transformers")
            measure.write(arguments.output, "gpu", title, measurement.report(), *packages)
    print(f"{title}\n\n{measurement.report()}")
    sys.exit(1 if measurement.failures else 0)


if __name__ == "__main__":
    main()
