"""Everything that needs a GPU, in parts: the tests, then tinyformer beside PyTorch and Hugging Face on the same GPU.

TINYTENSOR_BACKEND=cupy python benchmarks/gpu.py                                  # all parts that are not done yet
TINYTENSOR_BACKEND=cupy python benchmarks/gpu.py --parts tests-gpu steps-char --output benchmarks/results

--help lists the parts. Each takes less than ten minutes and writes its own file, in a folder named after the GPU. Running the
command again measures only missing parts, and then retries failed ones; --again measures all of them. If something cannot be
measured, the file names it with the reason, and the other measurements continue. The exit status is 1 if a part has failed.
This checkout need not be installed; its packages may be in site-packages or in PYTHONPATH.

A step's time is the time of a block of steps, from the start of the first until the GPU has finished the last, divided by their
number, since training does not wait for each step. All sides are processes that take turns on the same GPU. A waiting side
keeps its memory.
"""

from __future__ import annotations

import argparse
import csv
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import checkout
import generate
import measure
import speedrun
import train_step
from configurations import GPU_GPTS, GPTConfiguration
from measure import SideError, Worker

from tinyformer.commands.command_line import Parser

TORCH_DEVICE = "cuda"
CHARACTERS, GPT2 = "shakespeare_char", "GPT-2 124M"  # configurations; most parts use the first
OURS, BFLOAT16 = "tinyformer, TF32", "tinyformer, bfloat16"
EAGER, MIXED, COMPILED = "PyTorch eager, TF32", "PyTorch eager, bfloat16", "PyTorch compiled, bfloat16"
TINYFORMER: dict[str, str] = {OURS: "float32", BFLOAT16: "bfloat16"}  # the dtype
CAPTURED = {f"{name}, captured": dtype for name, dtype in TINYFORMER.items()}  # as with TINYTENSOR_CAPTURE=1
PYTORCH = {EAGER: (False, False), MIXED: (False, True), COMPILED: (True, True)}  # whether compiled, and in bfloat16
# The largest relative difference of the first loss from tinyformer's in TF32. All round, each differently.
ROUNDING = {BFLOAT16: 1e-2, EAGER: 1e-3, MIXED: 1e-2, COMPILED: 1e-2} | dict.fromkeys(CAPTURED, 1e-2)
MEMORY = (
    "Memory on the GPU: the peak of all tensors (unknown for CuPy), the peak of the library's pool, and the GPU's memory used "
    "between the imports and the end of the first steps. Compare the pools, except for captured steps, which have a second "
    "pool that only the last column includes. Memory is read after a side's first steps, before the next side starts. A step "
    "is forward, backward, clipping and AdamW (PyTorch's: fused). PyTorch's attention is scaled_dot_product_attention, which "
    "is flash attention in bfloat16."
)
FAILED = "## Failed"  # the heading above failures and failing tests


@dataclass(frozen=True)
class Amount:
    """The length of each measurement."""

    turns: int = 10
    blocks: int = 2  # timed in a turn
    steps: int = 10  # in a block
    warm_up: int = 10
    losses: int = 300  # steps
    run: int = 5000  # steps
    new_tokens: int = 240
    continuations: int = 5  # turns, of one each
    profiled: int = 5  # steps


QUICK = Amount(turns=2, blocks=1, steps=3, warm_up=3, losses=20, run=20, new_tokens=20, continuations=2)


def on_cupy(block: int, make: Callable[..., Any], *arguments: Any) -> Any:
    """Make a side that computes with tinytensor on CuPy, with ``block`` steps timed together."""
    from tinytensor.device.backend import xp

    driver, pool = xp.cuda.runtime, xp.get_default_memory_pool()
    free = driver.memGetInfo()[0]
    side = make(*arguments)
    side.block = block
    side.finish = lambda: xp.cuda.Device().synchronize()
    # The memory of tensors is unknown. The pool never shrinks, so its size is its peak.
    side.device_memory = lambda: [None, pool.total_bytes(), free - driver.memGetInfo()[0]]
    side.kernel_times = lambda steps: _kernel_times(side.step, steps, xp)
    return side


def captured(make: Callable[..., Any], *arguments: Any) -> Any:
    """Make a side whose trainer captures its steps."""
    from tinytensor.replay import capture

    capture.is_wanted = True
    return make(*arguments)


def _kernel_times(step: Callable[[], Any], steps: int, cupy: Any) -> Any:
    import hold
    import kernel_times  # only now: it chooses tinytensor's kernels

    return kernel_times.measured(step, steps, cupy.cuda, hold.holder(cupy))


def on_torch(block: int, device: str, precision: str, make: Callable[..., Any], *arguments: Any) -> Any:
    """Make a side that computes with PyTorch on the GPU (on the "cpu" in tests), with float32 products in this precision."""
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


@dataclass
class Measurement:
    """The measurements, each a method, with the sections of the report so far and the failures."""

    amount: Amount
    data: str | None  # the text to train on
    processes: int  # of pytest
    log: Path  # the output of programs
    sections: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, title: str, *paragraphs: str) -> None:
        """Add a section to the report."""
        self.sections.append("\n\n".join([f"## {title}", *paragraphs]))

    @contextmanager
    def attempt(self, title: str) -> Iterator[None]:
        """Record the failure of a side instead of raising it."""
        print(f"{title} ...", file=sys.stderr, flush=True)
        try:
            yield
        except SideError as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            self.failures.append(f"{title} was not measured: {lines[0]} {lines[-1] if len(lines) > 1 else ''}".strip())
            print(error, file=sys.stderr)

    def report(self) -> str:
        """Return the complete report."""
        failures = [FAILED, "\n".join(f"- {failure}" for failure in self.failures)] if self.failures else []
        return "\n\n".join([*self.sections, *failures])

    def tests(self, folder: str) -> None:
        """Run the tests of a folder. Warnings are listed but are not errors, since a new CuPy may emit some."""
        options = ["-rfE", "--tb=short", "-W", "default", "-n", str(self.processes)]
        status, text = streamed([sys.executable, "-u", "-m", "pytest", *options, folder], self.log)
        lines = [line for line in text.splitlines() if line]
        failed = [f"- {line}" for line in lines if line.startswith(("FAILED", "ERROR"))]
        last = lines[-1].strip("= ") if lines else "pytest printed nothing"
        paragraphs = [last, f"The complete output is in `{self.log.name}` beside this file.", "\n".join(failed)]
        self.add(f"Tests: {folder}", *filter(None, paragraphs))
        if status:
            self.failures.append(f"not all tests passed: {last}")

    def steps(self, name: str) -> None:
        """Measure a training step of both libraries in a configuration."""
        amount, configuration = self.amount, GPU_GPTS[name]
        ours = (train_step.Tinyformer, configuration, 1)
        theirs = (on_torch, amount.steps, TORCH_DEVICE, "high", train_step.PyTorch, configuration)
        sides: dict[str, tuple[Any, ...]] = {side: (on_cupy, amount.steps, *ours, dtype) for side, dtype in TINYFORMER.items()}
        sides |= {side: (on_cupy, amount.steps, captured, *ours, dtype) for side, dtype in CAPTURED.items()}
        sides |= {side: (*theirs, *options) for side, options in PYTORCH.items()}
        memory: dict[str, list[int | None]] = {}

        def attempt(side: str) -> AbstractContextManager[None]:
            return self.attempt(f"{name}: {side}")

        def note_memory(side: str, worker: Worker) -> None:
            memory[side] = worker.call("device_memory")

        with ExitStack() as stack, self.attempt(f"{name}: a training step"):
            workers = train_step.start(stack, configuration, sides, amount.warm_up, ROUNDING, attempt, note_memory)
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
                *[measure.ratio_table(times, side, rivals) for side in times if side not in PYTORCH],
            )
            if name == CHARACTERS and EAGER in times:
                ratio = times[OURS].median / times[EAGER].median
                self.sections.append(_target(f"the ratio of the medians, in TF32 over {EAGER}", ratio, 1.5))

    def losses(self, name: str) -> None:
        """Compare the losses of the same run in float32 and in bfloat16."""
        from tinyformer.data.reading import open_text

        steps = self.amount.losses
        with self.attempt("bfloat16's losses"):
            text, source = open_text(self.data)
            ends = {side: self._ends(text, GPU_GPTS[name], dtype) for side, dtype in TINYFORMER.items()}
            distances = {loss: abs(a - b) for loss, a, b in zip(("training", "validation"), ends[OURS], ends[BFLOAT16])}
            rows = [[side, f"{training:.4f}", f"{validation:.4f}"] for side, (training, validation) in ends.items()]
            self.add(
                f"bfloat16 beside float32 after {steps} steps of {name}",
                f"{which_text(source.name, self.data)} Batches and dropout masks are the same.",
                measure.table(["", f"training loss, mean of the last {max(1, steps // 6)}", "validation loss"], rows),
                *[_target(f"bfloat16's distance from float32, in the {loss} loss", d, 0.01) for loss, d in distances.items()],
            )

    def _ends(self, text: str, configuration: GPTConfiguration, dtype: str) -> tuple[float, float]:
        """Train on a text's characters, and return the training loss of the last sixth of the steps and the validation loss."""
        from tinyformer.tokenizers import CharTokenizer
        from tinyformer.training.config import TrainingConfig

        steps, tokenizer = self.amount.losses, CharTokenizer.train(text)
        model = {**configuration.model(), "vocab_size": tokenizer.vocab_size}
        config = TrainingConfig(steps=steps, batch_size=configuration.batch_size, warmup=steps // 10, shards=1, dtype=dtype)
        with Worker(dtype, speedrun.Tinyformer, tokenizer.encode(text), 0.0, model) as worker:
            worker.call("start", asdict(config), [])
            losses = worker.call("losses", steps)
            return statistics.fmean(losses[-max(1, steps // 6) :]), worker.call("loss", "validation")

    def run(self, name: str) -> None:
        """Measure a complete run of the example, in bfloat16 with captured steps."""
        with self.attempt(f"{name}: a run"), tempfile.TemporaryDirectory() as folder:
            self._run(GPU_GPTS[name], Path(folder) / "run")

    def _run(self, configuration: GPTConfiguration, out: Path) -> None:
        steps, data = self.amount.run, self.data
        sizes = {name: getattr(configuration, name) for name in ("block_size", "num_layers", "num_heads", "d_model", "dropout")}
        flags = {**sizes, "batch_size": configuration.batch_size, "steps": steps, "eval_every": max(1, steps // 20)}
        words = ["-m", "tinyformer", "train", "gpt", "--recipe", "nanogpt", "--dtype", "bfloat16"]
        words += [str(word) for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", value)]
        words += [] if data is None else ["--data", data]
        start = time.perf_counter()
        with measure.environment({"TINYTENSOR_CAPTURE": "1"}):
            status, _ = streamed([sys.executable, "-u", *words, "--out", str(out)], self.log)
        seconds = time.perf_counter() - start
        if status:
            raise SideError(f"{' '.join(words)} ended with status {status}: see {self.log.name}")
        with (out / "log.csv").open(newline="", encoding="utf-8") as file:
            losses = {int(row["step"]): float(row["validation_loss"]) for row in csv.DictReader(file) if row["validation_loss"]}
        best = min(losses, key=lambda step: losses[step])
        self.add(
            f"A run of {steps} steps, in bfloat16, captured",
            which_text(data, data) if data else "The text is the example's default, Tiny Shakespeare.",
            f"From the start to the end of `TINYTENSOR_CAPTURE=1 python {' '.join(words)}`.",
            measure.table(
                ["seconds", "best validation loss", "at step", "last validation loss"],
                [[f"{seconds:.1f}", f"{losses[best]:.4f}", str(best), f"{losses[max(losses)]:.4f}"]],
            ),
            _target("seconds in all", seconds, 60.0),
            _target("the best validation loss", losses[best], 1.47),
        )

    def generation(self, name: str) -> None:
        """Measure greedy decoding of both libraries in float32."""
        for batch in (1, 64):
            with (
                self.attempt(f"generation, batch {batch}"),
                measure.environment({"TINYTENSOR_TF32": "0"}),
                generate.folder_with(generate.gpt({**GPU_GPTS[name].model(), "bias": True})) as folder,
            ):
                task = generate.Task(folder, batch, prompt_length=8, new_tokens=self.amount.new_tokens)
                sides: measure.Sides = {
                    generate.OURS: (on_cupy, 1, generate.Tinyformer, task),
                    generate.THEIRS: (on_torch, 1, TORCH_DEVICE, "highest", generate.HuggingFace, task),
                }
                report = generate.run(task, sides, self.amount.continuations, steps=1, warm_up=1)
                about = f"{task.new_tokens} tokens after {task.prompt_length}, float32 without TF32."
                self.add(f"Greedy decoding, {name}, batch {batch}", about, report)

    def start(self, name: str) -> None:
        """Measure the time from the start of a process to its first training step, without and with cached kernels."""
        rows = []
        with (
            self.attempt("the start"),
            tempfile.TemporaryDirectory() as folder,
            measure.environment({"CUPY_CACHE_DIR": folder}),
        ):
            for cache in ("no kernel compiled yet", "compiled kernels cached"):
                start = time.perf_counter()
                with Worker(OURS, train_step.Tinyformer, GPU_GPTS[name], 1) as worker:
                    made = time.perf_counter() - start
                    worker.call("losses", 1)
                    stepped = time.perf_counter() - start
                rows.append([cache, f"{made:.2f}", f"{stepped:.2f}"])
            self.add(
                f"From the start of a process to the end of its first training step, {name}",
                measure.table(["", "imports, model and batches, s", "and the first step, s"], rows),
                _target("seconds with compiled kernels cached", stepped, 5.0),
            )

    def kernels(self, name: str) -> None:
        """Measure the time of each kernel in a step of a configuration."""
        for dtype in TINYFORMER.values():
            side = (on_cupy, self.amount.steps, train_step.Tinyformer, GPU_GPTS[name], 1, dtype)
            with self.attempt(f"{name}: kernels in {dtype}"), Worker(OURS, *side) as worker:
                (step,) = worker.call("turn", self.amount.warm_up, 1)
                self._kernels(f"{name}, {dtype}", step, *worker.call("kernel_times", self.amount.profiled))

    def _kernels(self, title: str, step: float, kernels: Mapping[str, tuple[int, float]], early: int) -> None:
        steps = self.amount.profiled
        total = sum(milliseconds for _, milliseconds in kernels.values())
        intervals = sum(count for count, _ in kernels.values())
        rows = [
            [kernel, f"{count / steps:g}", f"{milliseconds / steps:.3f}", f"{milliseconds / total:.1%}"]
            for kernel, (count, milliseconds) in sorted(kernels.items(), key=lambda item: -item[1][1])
        ]
        waited = f"In {early} of {intervals} intervals the GPU waited for Python all the same, and that time is counted."
        self.add(
            f"Where the GPU's time goes, {title}",
            f"A step takes {1000 * step:.2f} ms, and the GPU works for {total / steps:.2f} ms of it. Waiting for Python is not "
            "counted. An interval is a call of a kernel, or the time between two, and begins when all its work is queued.",
            *([waited] if early else []),
            measure.table(["kernel", "intervals per step", "ms per step", "fraction"], rows),
        )


@dataclass(frozen=True)
class Part:
    """A part with its own file: a method of ``Measurement`` and its argument."""

    about: str
    minutes: int  # on an H200 with compiling; estimated for tests, generation and start
    method: Callable[[Measurement, str], None]
    argument: str = CHARACTERS  # a configuration, or a folder of tests
    compares: tuple[str, ...] = ()  # required packages of the extra "bench"


PARTS: dict[str, Part] = {
    "tests-gpu": Part("kernels, gradients, training and files against NumPy", 2, Measurement.tests, "tests/gpu"),
    "steps-char": Part(f"a training step of {CHARACTERS} beside PyTorch's", 2, Measurement.steps, compares=("torch",)),
    "run": Part(f"a run of {CHARACTERS}, from the start of the process to its end", 1, Measurement.run),
    "generation": Part("decoding beside Hugging Face", 3, Measurement.generation, compares=("torch", "transformers")),
    "steps-gpt2": Part(f"a training step of {GPT2} beside PyTorch's", 3, Measurement.steps, GPT2, compares=("torch",)),
    "losses": Part("training in bfloat16 beside float32", 1, Measurement.losses),
    "kernels-char": Part(f"where the GPU's time goes in a step of {CHARACTERS}", 1, Measurement.kernels),
    "kernels-gpt2": Part(f"the same of {GPT2}", 1, Measurement.kernels, GPT2),
    "start": Part("from the start of a process to its first step", 2, Measurement.start),
    "tests-tinytensor": Part("the library's own tests on this backend", 8, Measurement.tests, "tests/tinytensor"),
    "tests-tinyformer": Part("the models' own tests on this backend", 8, Measurement.tests, "tests/tinyformer"),
}
TEST_PACKAGES = ("pytest", "xdist", "pytest_timeout", "hypothesis")
LEARNING = ("losses", "run")  # parts that use --data
LONG = ("tests-tinytensor", "tests-tinyformer")  # skipped by --quick, which cannot shorten them
MAX_PROCESSES = 8  # of pytest, which share the GPU's memory


def streamed(command: Sequence[str], log: Path) -> tuple[int, str]:
    """Run a command in the checkout. Its output is streamed to the screen and a file. Returns its exit status and output."""
    pieces = []
    with (
        log.open("wb") as file,
        subprocess.Popen(command, cwd=checkout.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process,
    ):
        assert process.stdout  # it is a pipe
        sys.stdout.flush()
        try:
            while piece := os.read(process.stdout.fileno(), 1 << 16):
                for out in (file, sys.stdout.buffer):
                    out.write(piece)
                    out.flush()
                pieces.append(piece)
        except BaseException:  # Ctrl-C, or a time limit
            process.terminate()
            raise
    return process.returncode, b"".join(pieces).decode("utf-8", "replace")


def which_text(name: str, data: str | None) -> str:
    """Name the text of the training in a sentence."""
    from tinyformer.data.reading import STANDARD_LIBRARY

    if data is not None:
        return f"The text is {name}."
    if name == STANDARD_LIBRARY:
        return f"The text is the sources of {name}, because Tiny Shakespeare could not be downloaded; --data chooses another."
    return f"The text is {name}; --data chooses another."


def _target(quantity: str, value: float, limit: float) -> str:
    return f"Target: {quantity} at most {limit:g}. It is {value:.4g}: **{'met' if value <= limit else 'NOT met'}**."


def describe_gpu() -> tuple[str, str]:
    """Return the GPU's name, and a report's section about it and its software."""
    from tinytensor.device.backend import xp  # fails now if there is no GPU or no CuPy, not in every side

    runtime = xp.cuda.runtime
    name = runtime.getDeviceProperties(runtime.getDevice())["name"].decode()
    version = runtime.runtimeGetVersion()
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        driver = "unknown (nvidia-smi failed)"
    memory = measure.megabytes(runtime.memGetInfo()[1])
    cuda = f"{version // 1000}.{version % 1000 // 10}"
    return name, f"## The GPU\n\n- GPU: {name}, {memory} MB\n- driver: {driver}\n- CUDA runtime: {cuda}"


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parts = [f"{name}: {part.about}, {measure.counted(part.minutes, 'minute')}" for name, part in PARTS.items()]
    parser = Parser(
        description="Run the tests on this machine's GPU, and measure tinyformer there beside PyTorch and Hugging Face. Needs "
        'TINYTENSOR_BACKEND=cupy, and pip install -e ".[cuda13,test,bench]".',
        epilog=f"The parts, each with an estimate of its time on an H200: {'; '.join(parts)}.",
    )
    parser.add_argument("--quick", action="store_true", help="a smoke test: too few steps for a measurement")
    only = "only these parts, listed below (default: all; with --quick all but the long tests)"
    parser.add_argument("--parts", nargs="+", choices=PARTS, metavar="PART", help=only)
    parser.add_argument("--again", action="store_true", help="repeat parts that are done")
    text = 'the text of "losses" and "run" (default: Tiny Shakespeare, downloaded once; offline, Python\'s own sources)'
    parser.add_argument("--data", metavar="FILE", help=text)
    processes = f"pytest processes, which share the GPU (default: one per core, at most {MAX_PROCESSES})"
    parser.add_argument("--processes", type=measure.positive, metavar="INT", help=processes)
    output = "write a file for each part into this folder, below the GPU's name"
    parser.add_argument("--output", type=_folder, default=Path("runs"), metavar="FOLDER", help=output)
    arguments = parser.parse_args(words)
    arguments.parts = arguments.parts or [name for name in PARTS if not (arguments.quick and name in LONG)]
    _check(parser, arguments)
    return arguments


def _folder(text: str) -> Path:
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"the folder {text!r} does not exist; create it first")
    return path


def _check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Exit with an error for options that are impossible or have no effect."""
    parts = [PARTS[name] for name in arguments.parts]
    has_tests = any(part.method is Measurement.tests for part in parts)
    if arguments.data is not None and not {*LEARNING} & {*arguments.parts}:
        parser.error("--data has no effect without the parts losses or run: add one to --parts, or leave out --data")
    if arguments.processes and not has_tests:
        parser.error("--processes has no effect without tests: add tests-gpu to --parts, or leave out --processes")
    if has_tests:
        measure.require(parser, "test", *TEST_PACKAGES)
    measure.require(parser, "bench", *sorted({package for part in parts for package in part.compares}))
    if os.environ.get("TINYTENSOR_BACKEND") != "cupy":
        parser.error("this benchmark needs a GPU: run TINYTENSOR_BACKEND=cupy python benchmarks/gpu.py")


def state(file: Path, saying: str = "") -> str:
    """Return the state of a part, from its file: "missing", "failed" or "done". A file without ``saying`` counts as missing."""
    written = file.read_text(encoding="utf-8") if file.exists() else ""
    if not written or saying not in written:
        return "missing"
    return "failed" if f"\n{FAILED}\n" in written else "done"


def to_do(files: Mapping[str, Path], arguments: argparse.Namespace) -> list[str]:
    """Print the finished parts, and return the others, failed ones last."""
    # A part trained on another text is not done.
    text = "" if arguments.data is None else which_text(arguments.data, arguments.data)
    states = {name: state(file, text if name in LEARNING else "") for name, file in files.items()}
    if arguments.again:
        states = dict.fromkeys(files, "missing")
    for name in files:
        if states[name] == "done":
            print(f"{name} is done: see {files[name]} (--again repeats it)", flush=True)
    return [name for was in ("missing", "failed") for name in files if states[name] == was]


def measure_part(name: str, measurement: Measurement) -> str:
    """Return the report of a part, with the time it took."""
    part, start = PARTS[name], time.perf_counter()
    try:
        part.method(measurement, part.argument)
    except Exception as error:  # a bug here must not keep the other parts from running
        traceback.print_exc()
        measurement.failures.append(f"{name} crashed: {type(error).__name__}: {error}")
    return f"{measurement.report()}\n\nThis part took {time.perf_counter() - start:.0f} s."


def run(arguments: argparse.Namespace) -> bool:
    """Measure the requested parts, each into its file, and print. Returns whether all are done."""
    from tinyformer.data.reading import read_text

    gpu, described = describe_gpu()
    if arguments.data is not None:
        read_text(arguments.data)  # fails now if it cannot be read
    processes = arguments.processes or min(measure.cores(), MAX_PROCESSES)
    amount = QUICK if arguments.quick else Amount()
    folder = arguments.output / measure.folder_name(gpu)
    folder.mkdir(parents=True, exist_ok=True)
    prefix, note = ("quick-", " (a smoke test, not a measurement)") if arguments.quick else ("", "")
    files = {name: folder / f"{prefix}{name}.md" for name in PARTS if name in arguments.parts}
    for name in to_do(files, arguments):
        title = f"On a GPU: {name}{note}"
        print(f"{title} ...\n", flush=True)
        measurement = Measurement(amount, arguments.data, processes, files[name].with_suffix(".log"))
        report = f"{described}\n\n{measure_part(name, measurement)}"
        packages = ("numpy", "cupy-cuda13x", "cupy-cuda12x", "torch", "transformers")
        measure.publish(files[name], name, title, report, *packages)
    failed = [name for name, file in files.items() if state(file) == "failed"]
    for name in failed:
        print(f"{name} has failed: see {files[name]}", flush=True)
    return not failed


@measure.script()
def main() -> None:
    """Measure. SIGTERM ends all processes, as Ctrl-C does."""
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with measure.environment(checkout.variables()):
        sys.exit(0 if run(arguments) else 1)


if __name__ == "__main__":
    main()
