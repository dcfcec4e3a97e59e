"""The harness of every benchmark here: sides that take turns, statistics of their times, tables, and the command line.

Each side of a comparison lives in a process of its own. So no library changes another's threads or memory allocator, and a
side's peak memory is its own. The sides take short turns, so that a slow spell of the machine falls on all of them.
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
    """The bytes that a process holds, by Linux's names: at the highest "VmHWM"; now "RssAnon" that no file backs, and
    "RssShmem" that processes share. Empty for a process that has ended, and on other systems."""
    with suppress(OSError):
        lines = [line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
        return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[-1] == "kB"}
    return {}


def peak_memory() -> int:
    """The most bytes of memory that this process has held."""
    if peak := status().get("VmHWM"):
        return peak
    import resource  # whose value starts, on Linux, from that of the parent process

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def cores() -> int:
    """How many threads a side should use that does not find it out itself: the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def own_processes() -> list[int]:
    """The ids of the processes that this one has started by multiprocessing, the first one first."""
    return sorted(process.pid for process in multiprocessing.active_children() if process.pid is not None)


class Side:
    """One of the things compared. A subclass imports what it needs in ``__init__``, then calls ``imported``."""

    block = 1  # steps that are timed together, for a device that works on while the next steps are queued
    baseline = 0  # bytes of memory that the imports alone took

    def imported(self) -> None:
        """Note the memory that the imports took."""
        self.baseline = peak_memory()

    def step(self) -> Any:
        """One unit of the work that is timed."""
        raise TypeError(f"{type(self).__name__} has no step method: write one")

    def finish(self) -> None:
        """Wait until a device has done all steps. On the CPU they are done when they return."""

    def turn(self, settle: int, steps: int) -> list[float]:
        """The seconds of a step, in each of ``steps`` blocks of them, after ``settle`` steps that are not timed: during those,
        another side's idle threads still spin on the cores, and its data lies in the caches."""
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
        """Bytes at the highest, and after the imports."""
        return peak_memory(), self.baseline

    def forget_peak(self) -> None:
        """Count the peak from now on, also of the processes it has started. Only Linux can; elsewhere nothing happens."""
        for pid in ("self", *own_processes()):
            with suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")

    def end(self) -> None:
        """End what it has started, before its own process ends."""

    def libraries(self) -> list[str]:
        """What multiplies matrices, and how many threads do."""
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
    """The thread pools of the libraries that this process has loaded: "openblas 0.3.31, 2 threads"."""
    from threadpoolctl import threadpool_info

    def described(pool: Mapping[str, Any]) -> str:
        return f"{pool['internal_api']} {pool['version'] or 'of unknown version'}, {counted(pool['num_threads'], 'thread')}"

    return sorted(set(map(described, threadpool_info())))


def counted(number: int, what: str) -> str:
    """A number of things in words: "1 thread", "2 threads"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


class SideError(Exception):
    """A side failed in its process; the message holds its traceback."""


class Worker:
    """A process that holds one side, made there by ``make(*arguments)``; a context that ends the process."""

    def __init__(self, name: str, make: Callable[..., Any], *arguments: Any):
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,))
        # Ctrl-C reaches every process of the group. The new one ignores it from its first moment: this one ends it.
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
        """Call the side's method and wait for what it returns; without a name, make the side. Raises SideError where the
        call fails."""
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

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is KeyboardInterrupt:  # do not wait for the end of a turn
            self._process.terminate()
        self._connection.close()
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()


def _serve(connection: Connection) -> None:
    """Answer calls, the first of which makes the side, until the other end closes."""
    side: Any = None
    try:
        while True:
            method, arguments = connection.recv()
            try:
                if method is None:
                    make, *rest = arguments
                    side, answer = make(*rest), None
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
    """A worker for each side; ``stack`` ends them."""
    return {name: stack.enter_context(Worker(name, *side)) for name, side in sides.items()}


def call_all(workers: Mapping[str, Worker], method: str, *arguments: Any) -> dict[str, Any]:
    """What the method of each side returns, one after the other."""
    return {name: worker.call(method, *arguments) for name, worker in workers.items()}


def environment(variables: Mapping[str, str]) -> AbstractContextManager[Any]:
    """A context with these variables set, for the processes that are started in it."""
    return mock.patch.dict(os.environ, variables)


def with_numpys_kernels(name: str, make: Callable[..., Any], *arguments: Any) -> Sides:
    """The same side with NumPy's kernels, by its name; none where the side itself has them."""
    import tinytensor

    side = (made_in, {"TINYTENSOR_KERNELS": "numpy"}, make, *arguments)
    return {f"{name}, NumPy's kernels": side} if tinytensor.kernels_name == "numba" else {}


def made_in(variables: Mapping[str, str], make: Callable[..., Any], *arguments: Any) -> Any:
    """A side made with these environment variables, in its own process, which has not imported tinytensor yet."""
    os.environ.update(variables)
    return make(*arguments)


@contextmanager
def busy(count: int) -> Iterator[list[int]]:
    """A context beside which so many other processes, of these ids, compute in a thread each. They end with this one, too."""
    code = f"import os\nwhile os.getppid() == {os.getpid()}: sum(range(100_000))"
    with ExitStack() as stack:
        # In sessions of their own: Ctrl-C ends this process, which ends them.
        command = [sys.executable, "-c", code]
        processes = [stack.enter_context(subprocess.Popen(command, start_new_session=True)) for _ in range(count)]
        for process in processes:
            stack.callback(process.kill)  # before the process's own context, which waits for its end
        yield [process.pid for process in processes]


def thread_variables(count: int) -> dict[str, str]:
    """The variables that tell libraries, when they are loaded, how many threads to use."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
    return dict.fromkeys(names, str(count))


TIMES = ("median ms", "fastest quartile ms")


class Times:
    """The seconds of a side's timed steps, in each of its turns."""

    def __init__(self) -> None:
        self.turns: list[list[float]] = []

    @cached_property
    def _ordered(self) -> list[float]:
        return sorted(seconds for turn in self.turns for seconds in turn)

    @property
    def median(self) -> float:
        """The median step."""
        return statistics.median(self._ordered)

    @property
    def fastest_quartile(self) -> float:
        """The mean of the fastest quarter of the steps: the machine undisturbed, yet no single lucky step."""
        return statistics.fmean(self._ordered[: max(1, len(self._ordered) // 4)])

    def milliseconds(self, digits: int = 1) -> list[str]:
        """The cells of a table under ``TIMES``."""
        return [f"{1000 * seconds:.{digits}f}" for seconds in (self.median, self.fastest_quartile)]

    def over(self, others: Times) -> list[str]:
        """The ratios of the medians and of the fastest quartiles, for a table."""
        return [f"{self.median / others.median:.2f}", f"{self.fastest_quartile / others.fastest_quartile:.2f}"]


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """The names in the order of a turn: who goes first changes, so that nobody always follows the same other."""
    first = turn % len(names)
    return [*names[first:], *names[:first]]


def take_turns(workers: Mapping[str, Worker], turns: int, steps: int, settle: int = 1) -> dict[str, Times]:
    """Let the workers run one after the other, ``turns`` times, in ``rotated`` order."""
    names = list(workers)
    times = {name: Times() for name in names}
    with progress("taking turns", turns) as tell:
        for turn in range(turns):
            for name in rotated(names, turn):
                times[name].turns.append(workers[name].call("turn", settle, steps))
            tell(", ".join(f"{name} {1000 * statistics.median(times[name].turns[-1]):.1f} ms" for name in names))
    return times


@contextmanager
def progress(what: str, turns: int) -> Iterator[Callable[[str], None]]:
    """A context with a function to call after each of so many turns, with a text that says how it went. It is shown every few
    seconds: beside a bar in a terminal, and elsewhere as a line."""
    from tinyformer.common.progress import show_progress

    last_text = time.monotonic()
    with show_progress(what, turns, "turn") as shown:

        def tell(text: str) -> None:
            nonlocal last_text
            shown.update()
            if time.monotonic() - last_text >= SECONDS_BETWEEN_TEXTS:
                shown.set_postfix_str(text)
                last_text = time.monotonic()

        yield tell


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns are aligned in plain text, too: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
        return "| " + " | ".join(cells) + " |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(head), line(rule), *map(line, rows)])


def ratio_table(times: Mapping[str, Times], ours: str, rivals: Sequence[str]) -> str:
    """Our time over each rival's, below 1 where we are faster: of the medians, of the fastest quartiles, and the
    interquartile range of the ratios of each pair of turns."""
    rows = []
    for rival in rivals:
        a, b = times[ours], times[rival]
        pairs = [statistics.median(x) / statistics.median(y) for x, y in zip(a.turns, b.turns)]
        quarters = statistics.quantiles(pairs, n=4, method="inclusive") if len(pairs) > 1 else 3 * pairs
        rows.append([rival, *a.over(b), f"{quarters[0]:.2f} to {quarters[2]:.2f}", str(len(pairs))])
    return table([f"time of {ours} over", "of medians", "of fastest quartiles", "pairs' interquartile", "pairs"], rows)


Cells = Callable[[str], Sequence[str]]  # of the row of a side's name


def report(
    workers: Mapping[str, Worker], times: Mapping[str, Times], columns: Sequence[str], cells: Cells, also: Sequence[str] = ()
) -> str:
    """A table of all sides with these columns, and their memory; the ``ratio_table`` of the first side, and of those that are
    ``also`` ours, over all others; and the libraries."""
    memory = call_all(workers, "memory")
    rows = [[name, *cells(name), *map(megabytes, memory[name])] for name in times]
    ratios = [ratio_table(times, ours, [name for name in times if name != ours]) for ours in (next(iter(times)), *also)]
    return "\n\n".join([table(["", *columns, "peak MB", "MB after imports"], rows), *ratios, library_list(workers)])


def library_list(workers: Mapping[str, Worker]) -> str:
    """A line for each side's ``libraries``."""
    return "\n".join(f"- {name}: {'; '.join(pools)}" for name, pools in call_all(workers, "libraries").items())


def megabytes(count: int | None) -> str:
    """A number of bytes for a table; nothing for None."""
    return "" if count is None else f"{count / 1e6:.0f}"


def publish(output: Path | None, name: str, title: str, report: str, *packages: str) -> None:
    """Print the report, and ``write`` it."""
    print(f"{title}\n\n{report}")
    write(output, name, title, report, *packages)


def write(output: Path | None, name: str, title: str, report: str, *packages: str) -> None:
    """Write the report as Markdown, if to any file, with where, when and with which kernels and packages it was measured. In a
    folder it is the file of this name in this processor's folder. A file that is there already stays until the new one is
    complete."""
    if output is None:
        return
    from tinytensor.device.disk import write_text  # here, as who only parses a command line may still choose the kernels

    output = result_file(output, name)
    write_text(output, f"# {title}\n\n{report}\n\n{_circumstances(packages)}\n")


def result_file(output: Path, name: str) -> Path:
    """The file that ``write`` writes to. Its folder is made."""
    if output.is_dir():
        output = output / folder_name(_processor()) / f"{name}.md"
        output.parent.mkdir(exist_ok=True)
    return output


def folder_name(processor: str) -> str:
    """A processor's name in small letters and hyphens, without its speed and the words that say nothing: "intel-xeon"."""
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
    """The processor's name. One that has AVX2 but not AVX-512 says so, as its products are half as wide, and AMD's Zen 5, as it
    has the name of Zen 4."""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text()
        if name := re.search(r"(?m)^model name\s*: *(.*\S)", text):
            is_zen_5 = "AMD" in name[1] and re.search(r"(?m)^cpu family\s*: 26$", text)
            return name[1] + (" (Zen 5)" if is_zen_5 else " (AVX2)" if " avx2 " in text and " avx512f " not in text else "")
    return platform.processor() or "unknown"


@contextmanager
def script() -> Iterator[None]:
    """For the main function of a benchmark: ``plain_errors``, and the same for a side that fails, with status 1."""
    with plain_errors():
        try:
            yield
        except SideError as error:
            sys.exit(f"error: {error}")


def make_parser(description: str, configurations: Mapping[str, Sizes] | None = None, **counts: int) -> Parser:
    """A parser with --output, with --configuration for one of these, and with flags for the counts ``turns``, ``steps`` and
    ``warm_up`` of these defaults."""
    sizes = [f"{name}: {c.shape()}, batch {c.batch_size}, dropout {c.dropout:g}" for name, c in (configurations or {}).items()]
    parser = Parser(description=description, epilog=f"The configurations: {'; '.join(sizes)}." if sizes else None)
    if configurations:
        parser.add_argument("--configuration", choices=configurations, default="A", help="the size of the model")
    what = {"turns": "turns of each side", "steps": "timed steps in a turn", "warm_up": "steps before the first turn"}
    for name, default in counts.items():
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=positive, default=default, metavar="INT", help=what[name])
    where = "write the results to this file, too; of a folder, such as benchmarks/results, to a file of this processor's folder"
    parser.add_argument("--output", type=_output, metavar="FILE.md or FOLDER", help=where)
    return parser


def parse(parser: argparse.ArgumentParser, words: Sequence[str] | None, *packages: str) -> argparse.Namespace:
    """The command line. Ends with an error where a package that is needed, of the extra "bench", is not installed."""
    arguments = parser.parse_args(words)
    require(parser, "bench", *packages)
    return arguments


def require(parser: argparse.ArgumentParser, extra: str, *packages: str) -> None:
    """End with an error where one of these packages, which the extra brings, is not installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            parser.error(f'{package} is not installed: pip install -e ".[{extra}]"')


def _output(text: str) -> Path:
    path = Path(text)  # what is wrong with it is found out now, not when all has been measured
    if path.suffix != ".md" and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no folder, and does not end in .md")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"the folder {path.parent} does not exist")
    return path


def positive(text: str) -> int:
    """The type of a flag that counts something."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def fraction(text: str) -> float:
    """The type of a flag for a part of a whole: at least 0 and less than 1."""
    with suppress(ValueError):
        if 0.0 <= float(text) < 1.0:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 up to, but not including, 1")
