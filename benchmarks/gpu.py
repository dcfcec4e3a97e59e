"""All that wants a GPU, in one command: the tests, then tinyformer beside PyTorch and Hugging Face on the same GPU.

TINYTENSOR_BACKEND=cupy python benchmarks/gpu.py --output benchmarks/results/gpu.md
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
import dataclasses
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import generate
import measure
import train_step
from configurations import GPU_GPTS, GPTConfiguration
from gpu_sides import HuggingFace, Learner, Machine, PyTorch, Tinyformer, Writer
from measure import SideError, Worker

from tinyformer.command_line import Parser
from tinyformer.errors import plain_errors

ROOT = Path(__file__).resolve().parents[1]
TORCH_DEVICE = "cuda"
CHARACTERS = "shakespeare_char"  # the configuration that all parts measure
TARGETS = {  # the most that it should be, and what
    "step": (1.5, "the ratio of the medians, in TF32 over "),
    "loss": (0.01, "bfloat16's distance from float32, in the "),
    "start": (5.0, "seconds with compiled kernels cached"),
}

OURS, NARROW = "tinyformer, TF32", "tinyformer, bfloat16"
EAGER, MIXED, COMPILED = "PyTorch eager, TF32", "PyTorch eager, bfloat16", "PyTorch compiled, bfloat16"
TINYFORMER: dict[str, str] = {OURS: "float32", NARROW: "bfloat16"}  # the dtype
PYTORCH: dict[str, dict[str, bool]] = {
    EAGER: {"compiled": False, "bfloat16": False},
    MIXED: {"compiled": False, "bfloat16": True},
    COMPILED: {"compiled": True, "bfloat16": True},
}
# By how much the first loss may differ from that of tinyformer in TF32, relatively: all round, and each differently.
ROUNDING = {NARROW: 1e-2, EAGER: 1e-3, MIXED: 1e-2, COMPILED: 1e-2}


@dataclasses.dataclass(frozen=True)
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

# -------------------------------------------------------------------------------------------------------------- parts


class Report:
    """The sections so far, and what could not be measured."""

    def __init__(self) -> None:
        self.sections: list[str] = []
        self.results: dict[str, Any] = {}
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

    def text(self) -> str:
        """All of it."""
        failures = ["## Not measured\n\n" + "\n".join(f"- {failure}" for failure in self.failures)] if self.failures else []
        return "\n\n".join([*self.sections, *failures])


def run_tests(amount: Amount, report: Report) -> None:
    """The tests, and what they say at the end."""
    command = [sys.executable, "-m", "pytest", "-rfE", "--tb=short", *amount.tests]
    process = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(process.stdout)
    lines = [line for line in process.stdout.splitlines() if line]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    last = lines[-1].strip("= ") if lines else "pytest said nothing"
    report.results["tests"] = {"status": process.returncode, "summary": last, "failed": failed}
    report.add(f"Tests: {' '.join(amount.tests)}", last, *(["\n".join(f"- {line}" for line in failed)] if failed else []))
    if process.returncode:
        report.failures.append(f"not all tests passed: {last}")


def measure_steps(name: str, configuration: GPTConfiguration, amount: Amount, report: Report) -> None:
    """A training step of both libraries."""
    with ExitStack() as stack, report.attempt(f"{name}: a training step"):
        workers = _start_steps(stack, name, configuration, amount, report)
        memory = {side: worker.call("device_memory") for side, worker in workers.items()}
        times = measure.take_turns(workers, amount.turns, amount.blocks, settle=amount.warm_up)
        ratios = {
            ours: {theirs: measure.compare(times[ours], times[theirs]) for theirs in times if theirs in PYTORCH}
            for ours in times
            if ours in TINYFORMER
        }
        tokens = configuration.num_tokens()
        report.results[name] = {"times": times, "ratios": ratios, "memory": memory}
        head = ["", "median ms", "fastest quartile ms", "tokens/s", "tensors MB", "pool MB", "driver MB"]
        rows = [
            [
                side,
                f"{1000 * measure.median(seconds):.2f}",
                f"{1000 * measure.fastest_quartile(seconds):.2f}",
                f"{tokens / measure.median(seconds):,.0f}",
                *[measure.megabytes(memory[side].get(kind)) for kind in ("allocated", "reserved", "driver")],
            ]
            for side, seconds in times.items()
        ]
        report.add(
            f"A training step, {name}",
            train_step.described(configuration),
            measure.table(head, rows),
            MEMORY,
            *[measure.ratio_table(ours, of_ours) for ours, of_ours in ratios.items()],
            *(_against_target(ratios[OURS][EAGER]["medians"], "step", EAGER) if name == CHARACTERS and EAGER in times else []),
        )


MEMORY = (
    "Memory on the GPU: the most that tensors took at once (CuPy does not tell), the most that the library's pool held, and "
    "what the GPU had less after the first steps than after the imports; the pools are what can be compared. The sides share "
    "the GPU, and who waits for its turn keeps its memory. A step is forward, backward, clipping and AdamW (PyTorch's: fused); "
    "PyTorch's attention is scaled_dot_product_attention, in bfloat16 flash attention."
)


def _start_steps(
    stack: ExitStack, name: str, configuration: GPTConfiguration, amount: Amount, report: Report
) -> dict[str, Worker]:
    """The sides that can be started, with the same weights, equal first losses, and warm. One after the other: so each can
    tell how much memory the GPU lost to it."""
    sides: dict[str, tuple[Any, ...]] = {
        **{side: (Tinyformer, configuration, dtype, amount.steps) for side, dtype in TINYFORMER.items()},
        **{side: (PyTorch, configuration, amount.steps, TORCH_DEVICE, options) for side, options in PYTORCH.items()},
    }
    workers: dict[str, Worker] = {}
    first_loss, weights = math.nan, None
    for side, made in sides.items():
        with report.attempt(f"{name}: {side}"), ExitStack() as attempt:
            worker = attempt.enter_context(Worker(side, *made))
            if side in PYTORCH:
                worker.call("load", weights)
            loss = worker.call("first_loss")
            if side == OURS:
                first_loss, weights = loss, worker.call("weights")
            _check_loss(side, first_loss, loss)
            worker.call("losses", amount.warm_up)
            workers[side] = worker
            stack.push(attempt.pop_all())
    if OURS not in workers:
        raise SideError(f"without {OURS} there is nothing to compare with")
    return workers


def _check_loss(side: str, ours: float, theirs: float) -> None:
    """Raise SideError where the first losses differ by more than rounding."""
    if side != OURS and not math.isclose(ours, theirs, rel_tol=ROUNDING[side]):
        raise SideError(f"its first loss is {theirs}, that of {OURS} {ours}")


def _against_target(value: float, target: str, detail: str = "") -> list[str]:
    most, what = TARGETS[target]
    return [f"Target: {what}{detail} at most {most:g}. It is {value:.4g}: **{'met' if value <= most else 'NOT met'}**."]


def measure_losses(configuration: GPTConfiguration, amount: Amount, data: str | None, report: Report) -> None:
    """The same run in float32 and in bfloat16."""
    with report.attempt("bfloat16's losses"):
        found = {}
        for side, dtype in TINYFORMER.items():
            with Worker(side, Learner, configuration, dtype, amount.losses, data) as worker:
                found[side] = worker.call("learn")
        last = max(1, amount.losses // 6)
        ends = {side: statistics.fmean(run["losses"][-last:]) for side, run in found.items()}
        report.results["losses"] = found
        rows = [[side, f"{ends[side]:.4f}", f"{run['validation']:.4f}"] for side, run in found.items()]
        report.add(
            f"bfloat16 beside float32 after {amount.losses} steps of {CHARACTERS}",
            f"The text is {found[OURS]['text']}; batches and dropout masks are the same.",
            measure.table(["", f"training loss, mean of the last {last}", "validation loss"], rows),
            *_against_target(abs(ends[NARROW] - ends[OURS]), "loss", "training loss"),
            *_against_target(abs(found[NARROW]["validation"] - found[OURS]["validation"]), "loss", "validation loss"),
        )


def measure_generation(configuration: GPTConfiguration, batch: int, amount: Amount, report: Report) -> None:
    """Greedy decoding of both libraries, in float32."""
    task = generate.Task(configuration, batch, prompt_length=8, new_tokens=amount.new_tokens)
    with report.attempt(f"generation, batch {batch}"), ExitStack() as stack:
        full = {"TINYTENSOR_TF32": "0"}  # so that the tokens can be compared
        sides: dict[str, tuple[Any, ...]] = {generate.OURS: (Writer, task), generate.THEIRS: (HuggingFace, task, TORCH_DEVICE)}
        with measure.environment(full):
            workers = measure.start_all(stack, sides)
        weights = workers[generate.OURS].call("weights")
        workers[generate.THEIRS].call("load", weights)
        ours, theirs = [workers[side].call("continuation") for side in sides]
        same = sum(a == b for a, b in zip(ours, theirs, strict=True))
        if same < 0.9 * batch:  # where two logits are as good as equal, rounding decides
            raise SideError(f"only {same} of {batch} rows have the same tokens on both sides")
        times = measure.take_turns(workers, amount.continuations, 1)
        ratios = {generate.THEIRS: measure.compare(times[generate.OURS], times[generate.THEIRS])}
        report.results[f"generation {batch}"] = {"times": times, "ratios": ratios, "same": same}
        tokens = batch * task.new_tokens
        rows = [
            [side, f"{tokens / measure.median(t):,.0f}", f"{tokens / measure.fastest_quartile(t):,.0f}"]
            for side, t in times.items()
        ]
        report.add(
            f"Greedy decoding, {CHARACTERS}, batch {batch}",
            f"{task.new_tokens} tokens after {task.prompt_length}, float32 without TF32; {same} of {batch} rows are the same.",
            measure.table(["", "median tokens/s", "fastest quartile tokens/s"], rows),
            measure.ratio_table(generate.OURS, ratios),
        )


def measure_start(configuration: GPTConfiguration, report: Report) -> None:
    """How long a process takes until it has done a training step: the first ever, and then again."""
    with report.attempt("the start"), tempfile.TemporaryDirectory() as folder:
        rows, found = [], {}
        for what in ("no kernel compiled yet", "compiled kernels cached"):
            start = time.perf_counter()
            with measure.environment({"CUPY_CACHE_DIR": folder}), Worker(OURS, Tinyformer, configuration, "float32") as worker:
                made = time.perf_counter() - start
                worker.call("losses", 1)
                stepped = time.perf_counter() - start
            found[what] = stepped
            rows.append([what, f"{made:.2f}", f"{stepped:.2f}"])
        report.results["start"] = found
        report.add(
            f"From the start of a process to the end of its first training step, {CHARACTERS}",
            measure.table(["", "imports, model and batches, s", "and the first step, s"], rows),
            *_against_target(found["compiled kernels cached"], "start"),
        )


def measure_kernels(name: str, configuration: GPTConfiguration, dtype: str, amount: Amount, report: Report) -> None:
    """Where a step's time goes."""
    with report.attempt(f"{name}: kernels in {dtype}"), Worker(OURS, Tinyformer, configuration, dtype) as worker:
        worker.call("losses", amount.warm_up)
        kernels, whole = worker.call("kernel_times", amount.profiled)
        report.results[f"kernels {name} {dtype}"] = {"kernels": kernels, "milliseconds": whole, "steps": amount.profiled}
        elsewhere = whole - sum(milliseconds for _, milliseconds in kernels.values())
        ordered = sorted(kernels.items(), key=lambda item: -item[1][1])
        rows = [
            [kernel, f"{count / amount.profiled:g}", f"{milliseconds / amount.profiled:.3f}", f"{milliseconds / whole:.1%}"]
            for kernel, (count, milliseconds) in [*ordered, ("everything else", (0, elsewhere))]
        ]
        report.add(
            f"Where a step's time goes, {name}, {dtype}",
            f"Between events before and after each call of a kernel; a step with them takes {whole / amount.profiled:.2f} ms. "
            "Where the GPU waits for Python, that counts, too.",
            measure.table(["kernel", "calls a step", "ms a step", "share"], rows),
        )


# ------------------------------------------------------------------------------------------------------- the command

PARTS = ("tests", "steps", "losses", "generation", "start", "kernels")


def parts(arguments: argparse.Namespace, amount: Amount, report: Report) -> Iterator[tuple[str, Callable[[], None]]]:
    """Every part, and what measures it."""
    characters = GPU_GPTS[CHARACTERS]
    yield "tests", partial(run_tests, amount, report)
    for name, configuration in GPU_GPTS.items():
        yield "steps", partial(measure_steps, name, configuration, amount, report)
    yield "losses", partial(measure_losses, characters, amount, arguments.data, report)
    for batch in (1, 64):
        yield "generation", partial(measure_generation, characters, batch, amount, report)
    yield "start", partial(measure_start, characters, report)
    for name, configuration in GPU_GPTS.items():
        for dtype in TINYFORMER.values():
            yield "kernels", partial(measure_kernels, name, configuration, dtype, amount, report)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        description="Run the tests on this machine's GPU, and measure tinyformer there beside PyTorch and Hugging Face. Needs "
        'TINYTENSOR_BACKEND=cupy, and pip install -e ".[cuda13,test,bench]".'
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run: everything once, too short to be a measurement")
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=f"only these of {', '.join(PARTS)}"
    )
    parser.add_argument("--data", metavar="FILE", help='the text of "losses"; Tiny Shakespeare is downloaded without it')
    parser.add_argument("--output", type=measure.output_file, metavar="FILE", help="write the results to FILE.md or FILE.json")
    arguments = parser.parse_args(words)
    if os.environ.get("TINYTENSOR_BACKEND") != "cupy":
        parser.error("this measures a GPU: run TINYTENSOR_BACKEND=cupy python benchmarks/gpu.py")
    measure.require(parser, "torch", "transformers", "threadpoolctl", "pytest")
    return arguments


@plain_errors()
def main(words: Sequence[str] | None = None) -> None:
    """Measure, print and write, part by part."""
    arguments = parse(words)
    import tinytensor  # noqa: F401 -- no GPU, or no CuPy, is an error now and not in every side

    with Worker("tinyformer", Machine) as worker:
        machine = worker.call("machine")
    title = "On a GPU" + (" (a smoke run: no measurement)" if arguments.quick else "")
    report = Report()
    report.add("The GPU", "\n".join(f"- {name}: {value}" for name, value in machine.items()))
    report.results["gpu"] = machine
    for part, run in parts(arguments, QUICK if arguments.quick else Amount(), report):
        if part in arguments.parts:
            run()
            if arguments.output:
                packages = ("numpy", "cupy-cuda13x", "cupy-cuda12x", "torch", "transformers")
                measure.write_results(arguments.output, title, report.text(), measure.described(report.results, *packages))
    print(f"{title}\n\n{report.text()}")
    sys.exit(1 if report.failures else 0)


if __name__ == "__main__":
    main()
