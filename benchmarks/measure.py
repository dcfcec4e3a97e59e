"""What every benchmark here shares: sides that take turns, statistics of their times, and a description of the machine.

Each side of a comparison lives in a process of its own. So a library changes no other's threads or memory allocator, and
a side's peak memory is its own. The sides take short turns, one after the other, so that a slow spell of the machine
falls on all of them; whoever looks at one pair of turns sees two measurements from the same second.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import platform
import shlex
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from tqdm import tqdm

Times = list[list[float]]  # the seconds of each timed step, by turn

SECONDS_BETWEEN_LINES = 5.0  # of progress, where standard error is a file or a pipe

# ------------------------------------------------------------------------------------------------------------- sides


class Side:
    """One of the things compared. A subclass imports what it needs in ``__init__``, then calls ``imported``."""

    block = 1  # steps that are timed together, for sides whose device works on while the next steps are queued

    def __init__(self) -> None:
        self.baseline = 0

    def imported(self) -> None:
        """Note the memory that the imports alone took."""
        self.baseline = peak_memory()

    def step(self) -> Any:
        """One unit of the work that is timed. Every side writes its own."""
        raise TypeError(f"{type(self).__name__} has no step method: write one")

    def finish(self) -> None:
        """Wait until a device has done all steps. The CPU has when they return."""

    def turn(self, settle: int, steps: int) -> list[float]:
        """The seconds of a step, in each of ``steps`` blocks of them, after ``settle`` steps that are not timed: during those,
        another side's idle threads still spin on the cores and its data lies in the caches."""
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
        """Bytes after the imports, and at the highest."""
        return self.baseline, peak_memory()

    def forget_peak(self) -> None:
        """Let the highest count from now on: what comes before the work is done. Only Linux can; elsewhere, nothing happens."""
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

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


def peak_memory() -> int:
    """The most bytes of memory that this process has held."""
    try:  # Linux's ru_maxrss starts from that of the process which started this one, VmHWM does not
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


class SideError(Exception):
    """A side failed in its process; the message holds its traceback."""


class Worker:
    """A process that holds one side, made there by ``make(*arguments)``; a context that ends the process."""

    def __init__(self, name: str, make: Callable[..., Side], *arguments: Any):
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, arguments))
        with _ctrl_c_ignored():
            self._process.start()
        theirs.close()  # so that the end of the process is the end of the pipe
        try:
            self._receive()
        except BaseException as error:
            self._end(type(error))
            raise

    def call(self, method: str, *arguments: Any) -> Any:
        """Call the side's method and wait for what it returns. Raises SideError where it fails."""
        self._connection.send((method, arguments))
        return self._receive()

    def _receive(self) -> Any:
        try:
            succeeded, value = self._connection.recv()
        except EOFError:
            raise SideError(f"the process of {self.name} ended unexpectedly (out of memory?)") from None
        if not succeeded:
            raise SideError(f"{self.name} failed:\n{value}")
        return value

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end(kind)

    def _end(self, kind: type[BaseException] | None) -> None:
        if kind is KeyboardInterrupt:  # who interrupts does not wait for a turn's end
            self._process.terminate()
        self._connection.close()
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()


@contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    """A context whose new processes ignore Ctrl-C from their first moment: it reaches the whole group, and the first process
    ends the others."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _serve(connection: Connection, make: Callable[..., Side], arguments: Sequence[Any]) -> None:
    """Answer calls until the other end closes."""
    try:
        try:
            side = make(*arguments)
            connection.send((True, None))
        except Exception:
            connection.send((False, traceback.format_exc()))
            return
        while True:
            method, given = connection.recv()
            try:
                answer = (True, getattr(side, method)(*given))
            except Exception:
                answer = (False, traceback.format_exc())
            connection.send(answer)
    except (EOFError, OSError):
        return


def start_all(stack: ExitStack, sides: Mapping[str, tuple[Any, ...]]) -> dict[str, Worker]:
    """A worker for each name, from (class, argument, ...); ``stack`` ends them."""
    return {name: stack.enter_context(Worker(name, *side)) for name, side in sides.items()}


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """A context with these variables set, for the processes that are started in it."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def thread_variables(count: int | None) -> dict[str, str]:
    """The variables that tell the libraries, when they are loaded, to use so many threads; none for None."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
    return {} if count is None else dict.fromkeys(names, str(count))


def take_turns(workers: Mapping[str, Worker], turns: int, steps: int, settle: int = 1) -> dict[str, Times]:
    """Let the workers run one after the other, ``turns`` times. Who goes first rotates, so that nobody always follows the
    same other."""
    names = list(workers)
    times: dict[str, Times] = {name: [] for name in names}
    in_a_terminal = sys.stderr.isatty()
    said = time.monotonic()
    what = "taking turns"
    with tqdm(total=turns * len(names), unit="turn", dynamic_ncols=True, desc=what, disable=not in_a_terminal) as bar:
        for turn in range(turns):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                times[name].append(workers[name].call("turn", settle, steps))
                bar.update()
            medians = ", ".join(f"{name} {1000 * statistics.median(times[name][-1]):.1f} ms" for name in names)
            bar.set_postfix_str(medians)
            if not in_a_terminal and time.monotonic() - said >= SECONDS_BETWEEN_LINES:
                print(f"{what}: {turn + 1} of {turns}, {medians}", file=sys.stderr, flush=True)
                said = time.monotonic()
    return times


# --------------------------------------------------------------------------------------------------------- statistics


def all_steps(times: Times) -> list[float]:
    """The steps of all turns."""
    return [seconds for turn in times for seconds in turn]


def median(times: Times) -> float:
    """The median step."""
    return statistics.median(all_steps(times))


def fastest_quartile(times: Times) -> float:
    """The mean of the fastest quarter of the steps: the machine undisturbed, yet no single lucky step."""
    ordered = sorted(all_steps(times))
    return statistics.fmean(ordered[: max(1, len(ordered) // 4)])


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The values below which a quarter, and three quarters, of them lie."""
    if len(values) < 2:
        return values[0], values[0]
    lower, _, upper = statistics.quantiles(values, n=4, method="inclusive")
    return lower, upper


def compare(ours: Times, theirs: Times) -> dict[str, Any]:
    """Our time over theirs, below 1 where we are faster: of the medians, of the fastest quartiles, and the interquartile
    range of the ratios of each pair of turns."""
    pairs = [statistics.median(a) / statistics.median(b) for a, b in zip(ours, theirs)]
    return {
        "medians": median(ours) / median(theirs),
        "fastest_quartiles": fastest_quartile(ours) / fastest_quartile(theirs),
        "pairs_interquartile": quartiles(pairs),
        "pairs": len(pairs),
    }


# ------------------------------------------------------------------------------------------------------- descriptions


def machine() -> dict[str, Any]:
    """The processor, its cores that this process may use, and the system."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cpu": _cpu_model(), "cores": cores, "system": f"{platform.system()} {platform.machine()}"}


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def versions(*packages: str) -> dict[str, str]:
    """Python's version and those of installed packages."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def revision() -> str:
    """The commit of the code measured, and whether it was changed since; "unknown" outside a repository."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty= (changed since)"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def thread_pools() -> list[str]:
    """The thread pools of the libraries that this process has loaded: "openblas 0.3.31, 2 threads"."""
    from threadpoolctl import threadpool_info

    pools = threadpool_info()
    found = {
        f"{pool['internal_api']} {pool['version'] or 'of unknown version'}, {counted(pool['num_threads'], 'thread')}"
        for pool in pools
    }
    return sorted(found)


def counted(number: int, what: str) -> str:
    """A number of things in words: "1 thread", "2 threads"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


# Variables that change how fast things run: the libraries' threads, their own settings, and glibc's memory allocator.
SETTINGS = ("TINYTENSOR_", "OPENBLAS_", "OMP_", "MKL_", "MALLOC_")


def command() -> str:
    """The command line that runs this again, with the environment's variables that matter."""
    variables = [f"{name}={shlex.quote(value)}" for name, value in sorted(os.environ.items()) if name.startswith(SETTINGS)]
    return " ".join([*variables, "python", os.path.relpath(sys.argv[0]), *map(shlex.quote, sys.argv[1:])])


def described(results: Mapping[str, Any], *packages: str) -> dict[str, Any]:
    """The results, with where, when and with what they were measured."""
    return {
        "command": command(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "revision": revision(),
        "machine": machine(),
        "versions": versions(*packages),
        **results,
    }


# ------------------------------------------------------------------------------------------------------------- output


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns are aligned in plain text, too: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
        return "| " + " | ".join(cells) + " |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(head), line(rule), *map(line, rows)])


def ratio_table(ours: str, ratios: Mapping[str, Mapping[str, Any]]) -> str:
    """A row for each rival's ``compare``."""
    head = [f"time of {ours} over", "of medians", "of fastest quartiles", "pairs' interquartile", "pairs"]
    rows = [
        [
            name,
            f"{ratio['medians']:.2f}",
            f"{ratio['fastest_quartiles']:.2f}",
            "{:.2f} to {:.2f}".format(*ratio["pairs_interquartile"]),
            str(ratio["pairs"]),
        ]
        for name, ratio in ratios.items()
    ]
    return table(head, rows)


def library_list(libraries: Mapping[str, Sequence[str]]) -> str:
    """A line for each side's ``libraries``."""
    return "\n".join(f"- {name}: {'; '.join(pools)}" for name, pools in libraries.items())


def megabytes(count: int | None) -> str:
    """A number of bytes for a table; nothing for None."""
    return "" if count is None else f"{count / 1e6:.0f}"


def output_file(text: str) -> Path:
    """A --output argument: a file that ends in .md or .json, in a folder that exists."""
    path = Path(text)
    if path.suffix not in (".md", ".json"):
        raise argparse.ArgumentTypeError(f"{text!r} must end in .md or .json")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"the folder {path.parent} does not exist")
    if path.is_dir():  # found out now, not when all has been measured
        raise argparse.ArgumentTypeError(f"{text!r} is a folder")
    return path


def positive(text: str) -> int:
    """An argument that counts something."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def zero_or_more(text: str) -> int:
    """An argument that counts something, where 0 is a choice, too."""
    return 0 if text == "0" else positive(text)


def probability(text: str) -> float:
    """An argument that says how often something is dropped: at least 0 and less than 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 up to, but not including, 1")
    return value


def require(parser: argparse.ArgumentParser, *packages: str) -> None:
    """End with an error where a package of the bench extra, or pytest, is not installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            extra = "test" if package == "pytest" else "bench"
            parser.error(f'{package} is not installed: pip install -e ".[{extra}]"')


def write_results(path: Path, title: str, report: str, results: Mapping[str, Any]) -> None:
    """Write the report, and where it was measured, as Markdown; or the results as JSON."""
    if path.suffix == ".json":
        text = json.dumps(results, indent=2) + "\n"
    else:
        on = results["machine"]
        used = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
        text = (
            f"# {title}\n\n{report}\n\nMeasured on {results['date']} with `{results['command']}` at revision "
            f"{results['revision']}, on {on['cpu']} with {on['cores']} cores ({on['system']}), {used}.\n"
        )
    path.write_text(text, encoding="utf-8")
