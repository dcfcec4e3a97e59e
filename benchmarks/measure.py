"""The benchmark harness: sides that take turns, statistics of their times, tables, and the command line.

Each side of a comparison runs in its own process, so no library changes another's threads, memory allocator or peak memory.
The sides take short turns, so a slow moment of the machine affects all of them.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import importlib.util
import multiprocessing
import os
import platform
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import checkout  # noqa: F401 (before tinyformer, which need not be installed)
from configurations import Sizes

from tinyformer.commands.command_line import Parser
from tinyformer.common.errors import plain_errors

SECONDS_BETWEEN_TEXTS = 5.0  # of progress


def status(pid: int | str = "self") -> dict[str, int]:
    """Return the memory of a process in bytes, by Linux's names: the peak "VmHWM", anonymous memory "RssAnon", and memory
    shared between processes "RssShmem". Empty for a process that has ended, and on other systems."""
    with suppress(OSError):
        lines = [line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
        return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[-1] == "kB"}
    return {}


def peak_memory() -> int:
    """Return the peak memory of this process in bytes."""
    if peak := status().get("VmHWM"):
        return peak
    import resource  # on Linux its value starts from that of the parent process

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def cores() -> int:
    """Return the number of cores that this process may use, for libraries that must be told how many threads to start."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def child_processes() -> list[int]:
    """Return the ids of the processes started by this one with multiprocessing, in order."""
    return sorted(process.pid for process in multiprocessing.active_children() if process.pid is not None)


class Side:
    """One side of a comparison. A subclass imports its libraries in ``__init__``, then calls ``imported``."""

    block = 1  # steps timed together, for a device that runs while later steps are queued
    baseline = 0  # bytes of memory after the imports

    def imported(self) -> None:
        """Record the memory used by the imports."""
        self.baseline = peak_memory()

    def step(self) -> Any:
        """Run one unit of the timed work."""
        raise TypeError(f"{type(self).__name__} has no step method: write one")

    def finish(self) -> None:
        """Wait until the device has finished all steps. On the CPU a step is finished when it returns."""

    def turn(self, settle: int, steps: int) -> list[float]:
        """Return the seconds per step of each of ``steps`` blocks, after ``settle`` untimed steps. During those, the idle
        threads of the side before still spin on the cores, and its data fills the caches."""
        for _ in range(settle):
            self.step()
        self.finish()
        seconds = []
        for _ in range(steps):
            start = time.perf_counter()
            for _ in range(self.block):
                self.step()
            self.finish()
            seconds.append((time.perf_counter() - start) / self.block)
        return seconds

    def memory(self) -> tuple[int, int]:
        """Return the peak memory and the memory after the imports, in bytes."""
        return peak_memory(), self.baseline

    def forget_peak(self) -> None:
        """Reset the peak memory of this process and its children. Only Linux can; elsewhere nothing happens."""
        for pid in ("self", *child_processes()):
            with suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")

    def end(self) -> None:
        """Stop everything that the side has started, before its process ends."""

    def libraries(self) -> list[str]:
        """Return the libraries that multiply matrices, with their numbers of threads."""
        return thread_pools()


class TorchSide(Side):
    """A side that computes with PyTorch."""

    def libraries(self) -> list[str]:
        import torch

        lines = [line.strip(" -") for line in torch.__config__.show().splitlines()]
        built_with = [line for line in lines if "Math Kernel Library" in line or "MKL-DNN" in line]
        built_with = [line.split(" for Intel")[0].split(" (Git")[0] for line in built_with]
        return [*built_with, counted(torch.get_num_threads(), "thread")]


def thread_pools() -> list[str]:
    """Return the thread pools of the loaded libraries, such as "openblas 0.3.31, 2 threads"."""
    from threadpoolctl import threadpool_info

    def described(pool: Mapping[str, Any]) -> str:
        return f"{pool['internal_api']} {pool['version'] or 'of unknown version'}, {counted(pool['num_threads'], 'thread')}"

    return sorted(set(map(described, threadpool_info())))


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 thread", "2 threads"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class SideError(Exception):
    """A side failed in its process. The message holds the traceback."""


class Worker:
    """A process with one side, made there by ``make(*arguments)``. Used as a context manager, it ends the process."""

    def __init__(self, name: str, make: Callable[..., Any], *arguments: Any):
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,))
        # Ctrl-C reaches every process of the group. The new one ignores it from the start, and this one ends it.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        theirs.close()  # so that the end of the process is the end of the pipe
        try:
            self.call(None, make, *arguments)
        except BaseException as error:
            self.__exit__(type(error))
            raise

    def call(self, method: str | None, *arguments: Any) -> Any:
        """Call a method of the side and return its result, or make the side if ``method`` is None. Raises SideError if the call
        fails."""
        self._connection.send((method, arguments))
        try:
            succeeded, value = self._connection.recv()
        except EOFError:
            raise SideError(f"the process of {self.name} ended unexpectedly (out of memory?)") from None
        if succeeded:
            return value
        raise SideError(f"{self.name} failed:\n{value}")

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: Any) -> None:
        if error_type is KeyboardInterrupt:  # do not wait for the end of a turn
            self._process.terminate()
        self._connection.close()
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()


def _serve(connection: Connection) -> None:
    """Answer calls until the other end closes. The first call makes the side."""
    side: Any = None
    try:
        while True:
            method, arguments = connection.recv()
            try:
                if method is None:
                    make, *sizes = arguments
                    side, answer = make(*sizes), None
                else:
                    answer = getattr(side, method)(*arguments)
                connection.send((True, answer))
            except Exception:
                connection.send((False, traceback.format_exc()))
    except (EOFError, OSError):
        if side is not None:
            side.end()


Sides = Mapping[str, tuple[Any, ...]]  # (class, argument, ...) by name


def start_all(stack: ExitStack, sides: Sides) -> dict[str, Worker]:
    """Start a worker for each side. ``stack`` ends them."""
    return {name: stack.enter_context(Worker(name, *side)) for name, side in sides.items()}


def call_all(workers: Mapping[str, Worker], method: str, *arguments: Any) -> dict[str, Any]:
    """Call a method of each side, one after the other, and return the results by name."""
    return {name: worker.call(method, *arguments) for name, worker in workers.items()}


def environment(variables: Mapping[str, str]) -> AbstractContextManager[Any]:
    """Return a context with these environment variables, for the processes started in it."""
    return mock.patch.dict(os.environ, variables)


def with_numpys_kernels(name: str, make: Callable[..., Any], *arguments: Any) -> Sides:
    """Return the same side with NumPy's kernels, by name. Empty if NumPy's kernels are already in use."""
    import tinytensor

    side = (made_in, {"TINYTENSOR_KERNELS": "numpy"}, make, *arguments)
    return {f"{name}, NumPy's kernels": side} if tinytensor.kernels_name == "numba" else {}


def made_in(variables: Mapping[str, str], make: Callable[..., Any], *arguments: Any) -> Any:
    """Make a side with these environment variables, in a process that has not imported tinytensor yet."""
    os.environ.update(variables)
    return make(*arguments)


@contextmanager
def busy(count: int) -> Iterator[list[int]]:
    """Run ``count`` other processes, with one busy thread each, during the context, and yield their ids."""
    code = f"import os\nwhile os.getppid() == {os.getpid()}: sum(range(100_000))"
    with ExitStack() as stack:
        # In sessions of their own: Ctrl-C ends this process, which ends them.
        command = [sys.executable, "-c", code]
        processes = [stack.enter_context(subprocess.Popen(command, start_new_session=True)) for _ in range(count)]
        for process in processes:
            stack.callback(process.kill)  # before the process's own context, which waits for its end
        yield [process.pid for process in processes]


def thread_variables(count: int) -> dict[str, str]:
    """Return the variables that set the number of threads of libraries when they are loaded."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
    return dict.fromkeys(names, str(count))


TIMES = ("median ms", "fastest quartile ms")


class Times:
    """The seconds of a side's timed steps, by turn."""

    def __init__(self) -> None:
        self.turns: list[list[float]] = []

    @cached_property
    def _ordered(self) -> list[float]:
        return sorted(seconds for turn in self.turns for seconds in turn)

    @property
    def median(self) -> float:
        """The median time of a step."""
        return statistics.median(self._ordered)

    @property
    def fastest_quartile(self) -> float:
        """The mean of the fastest quarter of the steps: undisturbed by other programs, but not a single lucky step."""
        return statistics.fmean(self._ordered[: max(1, len(self._ordered) // 4)])

    def milliseconds(self, digits: int = 1) -> list[str]:
        """Return the cells of a table for the columns ``TIMES``."""
        return [f"{1000 * seconds:.{digits}f}" for seconds in (self.median, self.fastest_quartile)]

    def over(self, rival: Times) -> list[str]:
        """Return the ratios of the medians and of the fastest quartiles, for a table."""
        return [f"{self.median / rival.median:.2f}", f"{self.fastest_quartile / rival.fastest_quartile:.2f}"]


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """Return the names in the order of a turn. Each turn starts with the next name."""
    first = turn % len(names)
    return [*names[first:], *names[:first]]


def take_turns(workers: Mapping[str, Worker], turns: int, steps: int, settle: int = 1) -> dict[str, Times]:
    """Run the workers one after the other, ``turns`` times, in ``rotated`` order."""
    names = list(workers)
    times = {name: Times() for name in names}
    with progress("taking turns", turns) as tell:
        for turn in range(turns):
            for name in rotated(names, turn):
                times[name].turns.append(workers[name].call("turn", settle, steps))
            tell(", ".join(f"{name} {1000 * statistics.median(times[name].turns[-1]):.1f} ms" for name in names))
    return times


@contextmanager
def progress(task: str, turns: int) -> Iterator[Callable[[str], None]]:
    """Show the progress of a task. Yields a function to call after each turn with its result, which is shown every few seconds,
    beside a bar in a terminal and as a line elsewhere."""
    from tinyformer.common.progress import show_progress

    last_text = time.monotonic()
    with show_progress(task, turns, "turn") as shown:

        def tell(text: str) -> None:
            nonlocal last_text
            shown.update()
            if time.monotonic() - last_text >= SECONDS_BETWEEN_TEXTS:
                shown.set_postfix_str(text)
                last_text = time.monotonic()

        yield tell


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with columns aligned in plain text: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
        return "| " + " | ".join(cells) + " |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(head), line(rule), *map(line, rows)])


def ratio_table(times: Mapping[str, Times], ours: str, rivals: Sequence[str]) -> str:
    """Return a table of our time over each rival's (below 1 where we are faster): the ratios of the medians and of the fastest
    quartiles, and the interquartile range of the ratio over pairs of turns."""
    rows = []
    for rival in rivals:
        a, b = times[ours], times[rival]
        pairs = [statistics.median(x) / statistics.median(y) for x, y in zip(a.turns, b.turns)]
        quarters = statistics.quantiles(pairs, n=4, method="inclusive") if len(pairs) > 1 else 3 * pairs
        rows.append([rival, *a.over(b), f"{quarters[0]:.2f} to {quarters[2]:.2f}", str(len(pairs))])
    return table([f"time of {ours} over", "of medians", "of fastest quartiles", "pairs' interquartile", "pairs"], rows)


Cells = Callable[[str], Sequence[str]]  # by a side's name, the cells of its row


def report(
    workers: Mapping[str, Worker], times: Mapping[str, Times], columns: Sequence[str], cells: Cells, also: Sequence[str] = ()
) -> str:
    """Return a table of all sides with these columns and their memory, the ``ratio_table`` of the first side (and of each side
    in ``also``) over all others, and the libraries."""
    memory = call_all(workers, "memory")
    rows = [[name, *cells(name), *map(megabytes, memory[name])] for name in times]
    ratios = [ratio_table(times, ours, [name for name in times if name != ours]) for ours in (next(iter(times)), *also)]
    return "\n\n".join([table(["", *columns, "peak MB", "MB after imports"], rows), *ratios, library_list(workers)])


def library_list(workers: Mapping[str, Worker]) -> str:
    """Return one line for the ``libraries`` of each side."""
    return "\n".join(f"- {name}: {'; '.join(pools)}" for name, pools in call_all(workers, "libraries").items())


def megabytes(count: int | None) -> str:
    """Format a number of bytes for a table. Empty for None."""
    return "" if count is None else f"{count / 1e6:.0f}"


def publish(output: Path | None, name: str, title: str, report: str, *packages: str) -> None:
    """Print the report, and ``write`` it."""
    print(f"{title}\n\n{report}")
    write(output, name, title, report, *packages)


def write(output: Path | None, name: str, title: str, report: str, *packages: str) -> None:
    """Write the report as Markdown with the date, the command, the processor, the kernels and the versions of packages.

    If ``output`` is a folder, the file is ``name`` in this processor's folder. An existing file stays until the new one is
    complete. Without ``output`` nothing is written.
    """
    if output is None:
        return
    from tinytensor.device.disk import write_text  # imported late: until now the kernels can still be chosen

    output = result_file(output, name)
    write_text(output, f"# {title}\n\n{report}\n\n{_circumstances(packages)}\n")


def result_file(output: Path, name: str) -> Path:
    """Return the file that ``write`` writes to, and make its folder."""
    if output.is_dir():
        output = output / folder_name(_processor()) / f"{name}.md"
        output.parent.mkdir(exist_ok=True)
    return output


def folder_name(processor: str) -> str:
    """Return a processor's name in lower case with hyphens, without clock speed and filler words: "intel-xeon"."""
    telling = re.sub(r"\((r|tm)\)|@.*|\b(cpu|processor|\d+-core)\b", " ", processor.lower())
    return "-".join(re.findall(r"[a-z0-9]+", telling))


def _circumstances(packages: Sequence[str]) -> str:
    from tinytensor import kernels_name

    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    installed = {package.name: package.version for package in importlib.metadata.distributions()}
    packages = [*packages, *(["numba"] if kernels_name == "numba" else [])]
    versions = [f"{name} {installed.get(name, 'not installed')}" for name in packages]
    # Environment variables that change how fast things run: settings of the libraries and of glibc's memory allocator.
    prefixes = ("TINYTENSOR_", "OPENBLAS_", "OMP_", "MKL_", "MALLOC_")
    variables = [f"{name}={shlex.quote(value)}" for name, value in sorted(os.environ.items()) if name.startswith(prefixes)]
    command = " ".join([*variables, "python", os.path.relpath(sys.argv[0]), *map(shlex.quote, sys.argv[1:])])
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty= (changed since)"]
    revision = subprocess.run(git, capture_output=True, text=True).stdout.strip() if shutil.which("git") else ""
    return (
        f"Measured on {date} with `{command}` at revision {revision or 'unknown'}, on {_processor()} with {cores()} cores "
        f"({platform.system()} {platform.machine()}), kernels: {kernels_name}, "
        f"{', '.join([f'python {platform.python_version()}', *versions])}."
    )


def _processor() -> str:
    """Return the processor's name. It names AVX2 where AVX-512 is missing (its vectors are half as wide), and AMD's Zen 5 (its
    name is the same as Zen 4's)."""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text()
        if name := re.search(r"(?m)^model name\s*: *(.*\S)", text):
            is_zen_5 = "AMD" in name[1] and re.search(r"(?m)^cpu family\s*: 26$", text)
            return name[1] + (" (Zen 5)" if is_zen_5 else " (AVX2)" if " avx2 " in text and " avx512f " not in text else "")
    return platform.processor() or "unknown"


@contextmanager
def script() -> Iterator[None]:
    """Run a benchmark's main function with ``plain_errors``. A side that fails is a one-line error, too, with status 1."""
    with plain_errors():
        try:
            yield
        except SideError as error:
            sys.exit(f"error: {error}")


def make_parser(description: str, configurations: Mapping[str, Sizes] | None = None, **counts: int) -> Parser:
    """Return a parser with --output, with --configuration if there are any, and with flags for ``counts``: the defaults of
    ``turns``, ``steps`` and ``warm_up``."""
    sizes = [f"{name}: {c.shape()}, batch {c.batch_size}, dropout {c.dropout:g}" for name, c in (configurations or {}).items()]
    parser = Parser(description=description, epilog=f"The configurations: {'; '.join(sizes)}." if sizes else None)
    if configurations:
        parser.add_argument("--configuration", choices=configurations, default="A", help="the size of the model")
    help_texts = {"turns": "turns of each side", "steps": "timed steps in a turn", "warm_up": "steps before the first turn"}
    for name, default in counts.items():
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=positive, default=default, metavar="INT", help=help_texts[name])
    output = "write the results to this file, or into this processor's folder below a folder such as benchmarks/results"
    parser.add_argument("--output", type=_output, metavar="FILE.md or FOLDER", help=output)
    return parser


def parse(parser: argparse.ArgumentParser, words: Sequence[str] | None, *packages: str) -> argparse.Namespace:
    """Parse the command line. Exits with an error if one of the packages, which the extra "bench" installs, is missing."""
    arguments = parser.parse_args(words)
    require(parser, "bench", *packages)
    return arguments


def require(parser: argparse.ArgumentParser, extra: str, *packages: str) -> None:
    """Exit with an error if one of these packages, which the extra installs, is missing."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            parser.error(f'{package} is not installed: pip install -e ".[{extra}]"')


def _output(text: str) -> Path:
    path = Path(text)  # checked now, not after everything has been measured
    if path.suffix != ".md" and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} must be a folder or end in .md")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"the folder {path.parent} does not exist; create it first")
    return path


def positive(text: str) -> int:
    """Parse a positive integer for a flag."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, got {text!r}")
    return int(text)


def fraction(text: str) -> float:
    """Parse a number in [0, 1) for a flag."""
    with suppress(ValueError):
        if 0.0 <= float(text) < 1.0:
            return float(text)
    raise argparse.ArgumentTypeError(f"must be at least 0 and less than 1, got {text!r}")
