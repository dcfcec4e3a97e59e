"""What the tests catch: small random faults, put into the source one at a time. Does a test fail?

python tests/mutants.py --coverage runs/coverage --record
python tests/mutants.py --coverage runs/coverage --seed 0 --count 220 --output runs/mutants.csv

The first command runs all tests and notes which of them run which line (this takes ``pip install coverage``). It ends with the
test files that run code on which they do not depend by ``reach.py``: there must be none. The second draws
mutants evenly over the ROOMS, and within a room evenly over the places where its files can be changed. For each it runs only
the test functions that run the changed line, those first that are short and run little else, and stops at the first failure. A
test that fails without any mutant, too, does not count. A line that only processes run which tests start is tried with
the tests of the file's name and folder, and then with the examples. What happens when a module is imported is tried with
all tests that run a line of it. A run that was interrupted goes on when the same command is given
again. The same seed draws the same mutants as long as the source is the same; ``--like`` takes those of an earlier table, to
compare the tests before and after a change:

python tests/mutants.py --coverage runs/coverage_after --like runs/mutants.csv --output runs/mutants_after.csv

On a busy machine look twice at what timed out.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from faults import ROOMS, ROOT, Mutant, all_mutants, draw
from reach import Project, tracked

sys.path.append(str(ROOT / "benchmarks"))
import measure

from tinyformer.commands.command_line import Parser

CONFIGURATIONS = {
    "numpy": {"TINYTENSOR_KERNELS": "numpy"},
    "numba": {"TINYTENSOR_KERNELS": "numba"},
    "standin": {"TINYTENSOR_BACKEND": "cupy", "PYTHONPATH": "tests/standin"},
}
FOLDERS = ["tests/tinytensor", "tests/tinyformer", "tests/documents", "tests/commands"]
MEMORY = 8 << 30  # bytes of address space of a process: a mutant may ask for everything
SETTINGS = """[run]
branch = True
parallel = True
source = tinytensor, tinyformer
patch = subprocess, _exit, fork
sigterm = True
concurrency = thread, multiprocessing
disable_warnings = no-data-collected, module-not-measured, module-not-imported, couldnt-parse, no-sysmon
"""

# -------------------------------------------------------------------------------------------------- the tests that see them


def pytest_runtest_setup(item: Any) -> None:
    """As a plugin of pytest: what is run from here on belongs to this test function."""
    from coverage import Coverage

    if current := Coverage.current():
        current.switch_context(item.nodeid.split("[")[0])


def environment(root: Path, configuration: str, *more: Path) -> dict[str, str]:
    """The variables with which tests import the packages of this tree."""
    variables = CONFIGURATIONS[configuration]
    folders = [root, *(root / part for part in [variables.get("PYTHONPATH")] if part), *more]
    return {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(map(str, folders)), "OPENBLAS_NUM_THREADS": "1"}


def record(file: Path, tree: Path, configuration: str) -> None:
    """Run all tests and write which of them run which line, and beside it, as .xml, how long each takes."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder, "settings")
        settings.write_text(SETTINGS)
        variables = environment(tree, configuration, Path(__file__).parent) | {"COVERAGE_FILE": str(Path(folder, "part"))}
        command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest", "-p", "mutants"]
        command += [f"--junitxml={file.with_suffix('.xml').absolute()}", *FOLDERS]
        subprocess.run(command, cwd=tree, env=variables, check=False)
        combine = [sys.executable, "-m", "coverage", "combine", f"--data-file={file.absolute()}"]
        parts = sorted(map(str, Path(folder).glob("part*")))
        subprocess.run([*combine, *parts], cwd=tree, check=True, stdout=subprocess.DEVNULL)


class Tests:
    """Which test functions of a tree run which line, by a file that ``record`` wrote; and how many seconds each takes."""

    def __init__(self, file: Path, tree: Path):
        from coverage import CoverageData

        self.tree = tree
        self.seconds: dict[str, float] = defaultdict(float)  # of functions, and of whole files
        for case in ElementTree.parse(file.with_suffix(".xml")).iter("testcase"):
            path = case.get("classname", "").replace(".", "/") + ".py"
            for name in (path, f"{path}::{case.get('name', '').split('[')[0]}"):
                self.seconds[name] += float(case.get("time", 0))
        data = CoverageData(basename=str(file))
        data.read()
        self._by_line: dict[str, dict[int, list[str]]] = {}
        self._reach: Counter[str] = Counter()  # how many lines a test function runs in all
        for measured in data.measured_files():
            with suppress(ValueError):
                name = Path(measured).relative_to(tree).as_posix()
                self._by_line[name] = data.contexts_by_lineno(measured)
                self._reach.update(chain.from_iterable(self._by_line[name].values()))

    def unreached(self) -> set[str]:
        """Which test files run which files of the packages on which they do not depend, as ``reach.py`` sees it."""
        project = Project(tracked())
        runs = {(test.split("::")[0], name) for name, by in self._by_line.items() for test in chain(*by.values()) if test}
        reached = {test: project.reach(test) for test, _ in runs}
        return {f"{test} runs {name}" for test, name in runs if name not in reached[test]}

    def of(self, mutant: Mutant) -> list[str]:
        """What to run for a mutant, the most telling first: test functions, or files of tests."""
        by_line = self._by_line.get(mutant.file, {})
        found = set().union(*(by_line.get(line, ()) for line in mutant.lines))
        source = Path(mutant.file)

        def cost(test: str) -> float:
            is_near = source.stem.strip("_") in Path(test.split("::")[0]).stem
            is_program = test.startswith("tests/commands/")  # and may first wait for a model to be trained
            return (
                (0.05 + self.seconds.get(test, 0.0))
                * self._reach[test]
                * (0.1 if is_near else 1.0)
                * (100 if is_program else 1)
            )

        if functions := [test for test in found if test in self.seconds]:
            return sorted(functions, key=lambda test: (cost(test), test))
        if not found:
            return []
        folder = Path("tests", *(source.parent.parts if source.parts[0] == "tinyformer" else source.parts[:1]))
        paths = [self.tree / folder, self.tree / "tests/commands"]
        files = [path.relative_to(self.tree).as_posix() for place in paths for path in sorted(place.glob("test_*.py"))]
        return sorted(filter(self.seconds.get, files), key=lambda test: ("commands" in test, source.stem not in test))

    def rounds(self, tests: Sequence[str], longest: float) -> Iterator[list[str]]:
        """The tests in few runs of pytest, each longer than the one before; those that fit into so many seconds in all."""
        batch: list[str] = []
        limit, spent, total = 6, 0.0, 0.0  # so many functions, and half as many seconds
        for test in tests:
            seconds = self.seconds[test]
            if total + seconds > longest:
                continue
            if batch and (len(batch) == limit or spent + seconds > limit / 2):
                yield batch
                batch, limit, spent = [], 6 * limit, 0.0
            batch.append(test)
            spent, total = spent + seconds, total + seconds
        if batch:
            yield batch


# ------------------------------------------------------------------------------------------------------------- the runs


class Copy:
    """A copy of the project, in which the tests meet one mutant at a time."""

    def __init__(self, folder: Path, tree: Path, configuration: str):
        self.root = folder / "project"
        self._folder, self._mutants = folder, 0
        left_out = shutil.ignore_patterns(".git", ".hypothesis", "__pycache__", ".*_cache", "_build")
        shutil.copytree(tree, self.root, ignore=left_out)
        for package in ("tinytensor", "tinyformer"):
            shutil.rmtree(self.root / package)
            shutil.copytree(ROOT / package, self.root / package, ignore=left_out)
        if (tree.parent / "shared").is_dir():
            (folder / "shared").symlink_to((tree.parent / "shared").resolve())
        self._environment = environment(self.root, configuration) | {"HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis")}

    @contextmanager
    def holding(self, mutant: Mutant) -> Iterator[None]:
        """A context in which the file is changed. Each version has a time of its own: no old bytecode passes for it."""
        file = self.root / mutant.file
        self._mutants += 1
        before, old = file.stat().st_mtime, file.read_bytes()
        for content, when in ((mutant.source(), before + self._mutants), (old, before)):
            file.write_bytes(content)
            os.utime(file, (when, when))
            if content != old:
                yield

    def run(self, tests: Sequence[str], seconds: float, but: Iterable[str] = ()) -> tuple[str, str]:
        """Run tests, but not some, until one fails: ("survived", ""), or ("caught", the failing test) and the like."""
        for name in ("temporary", "hypothesis"):
            shutil.rmtree(self._folder / name, ignore_errors=True)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "--tb=no", "--no-header", "--hypothesis-seed=0"]
        command += ["-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={self._folder / 'temporary'}"]
        command += [*(f"--deselect={test}" for test in sorted(but)), *tests]
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with subprocess.Popen(command, cwd=self.root, env=self._environment, start_new_session=True, **pipes) as process:
            try:
                output, _ = process.communicate(timeout=60 + 10 * seconds)
            except subprocess.TimeoutExpired:
                return "timed out", ""
            finally:
                self._end_all()
        if process.returncode in (0, 5):  # 5: none of them is for this configuration
            return "survived", ""
        failed = re.search(r"^(?:FAILED|ERROR) (\S+?\.py(?:::\w+)*)", output.decode(errors="replace"), flags=re.MULTILINE)
        return "caught", failed[1] if failed else ""

    def _end_all(self) -> None:
        """End what still runs of the tests: each process that was started there has this folder in its environment."""
        for entry in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if f"PYTHONPATH={self.root}".encode() in entry.read_bytes():
                    os.kill(int(entry.parent.name), signal.SIGKILL)


class Trial:
    """Tries mutants on several copies in parallel."""

    def __init__(self, tests: Tests, copies: Sequence[Copy], longest: float):
        self._tests, self._longest = tests, longest
        self._copies: SimpleQueue[Copy] = SimpleQueue()
        for copy in copies:
            self._copies.put(copy)
        self._passes: dict[tuple[str, ...], bool] = {}  # whether these tests pass without a mutant
        self._broken: set[str] = set()  # tests that do not

    def judge(self, mutant: Mutant) -> dict[str, Any]:
        """The row of a mutant in the table."""
        copy = self._copies.get()
        start = time.monotonic()
        try:
            return {**mutant.row(), **self._outcome(mutant, copy), "seconds": f"{time.monotonic() - start:.0f}"}
        finally:
            self._copies.put(copy)

    def _outcome(self, mutant: Mutant, copy: Copy) -> dict[str, Any]:
        tests = self._tests.of(mutant)
        outcome, by, tried = ("survived" if tests else "not run"), "", 0
        waiting = list(self._tests.rounds(tests, self._longest))
        while waiting:
            batch = waiting.pop(0)
            seconds = sum(self._tests.seconds[test] for test in batch)
            with copy.holding(mutant):
                found, by = copy.run(batch, seconds, self._broken)
            tried += len(batch)
            if found == "survived":
                continue
            alone = [by] if "::" in by else ["--collect-only", *batch] if by else batch
            if self._pass(copy, alone, seconds):
                outcome = found
                break
            print(f"without a mutant, too: {found} {' '.join(alone[:3])}", file=sys.stderr)
            if "::" in by:
                self._broken.add(by)
                waiting.insert(0, batch)
                tried -= len(batch)
        return {"outcome": outcome, "by": by * (outcome == "caught"), "tests": f"{tried} of {len(tests)}"}

    def _pass(self, copy: Copy, tests: Sequence[str], seconds: float) -> bool:
        """Whether these tests pass without a mutant."""
        if (key := tuple(tests)) not in self._passes:
            self._passes[key] = copy.run(tests, seconds)[0] == "survived"
        return self._passes[key]


ALIVE = ["survived", "not run"]
COLUMNS = ["room", "place", "kind", "before", "after", "outcome", "by", "tests", "seconds"]


def identity(row: dict[str, Any]) -> tuple[str, ...]:
    """Return a mutant's identity."""
    return row["place"], row["kind"], row["after"]


def read_rows(file: Path | None) -> dict[tuple[str, ...], dict[str, Any]]:
    """The table that an earlier run wrote; of a mutant that was tried again, the last row."""
    if file is None or not file.exists():
        return {}
    with file.open(newline="", encoding="utf-8") as lines:
        return {identity(row): row for row in csv.DictReader(lines)}


def those_of(rows: Iterable[dict[str, Any]]) -> list[Mutant]:
    """The mutants of an earlier table that are still there, wherever in their files their lines are by now."""
    found = defaultdict(list)
    for mutant in all_mutants():
        row = mutant.row()
        file, line = row["place"].split(":")
        found[file, row["kind"], row["before"], row["after"]].append((int(line), mutant))
    mutants = []
    for row in rows:
        file, line = row["place"].split(":")
        alike = found[file, row["kind"], row["before"], row["after"]]
        if by_distance := {abs(other - int(line)): mutant for other, mutant in alike}:
            mutants.append(by_distance[min(by_distance)])
    return mutants


def is_wanted(row: dict[str, Any] | None, again: bool) -> bool:
    """Whether a mutant is still to be tried."""
    return row is None or (again and row["outcome"] in ALIVE)


def append(file: Path | None, row: dict[str, Any]) -> None:
    """Add a row to the table."""
    if file is not None:
        is_new = not file.exists()
        with file.open("a", newline="", encoding="utf-8") as lines:
            writer = csv.DictWriter(lines, COLUMNS)
            if is_new:
                writer.writeheader()
            writer.writerow(row)


def report(rows: Sequence[dict[str, Any]]) -> str:
    """Return how many mutants of each package were caught, and list the survivors."""
    outcomes = ["caught", "timed out", *ALIVE]
    counts = {room: Counter(row["outcome"] for row in rows if row["room"] == room) for room in ROOMS}
    counts["all"] = Counter(row["outcome"] for row in rows)
    table = [
        [room, str(count.total()), *(str(count[outcome]) for outcome in outcomes)] for room, count in counts.items() if count
    ]
    alive = [row for row in rows if row["outcome"] in ALIVE]
    return "\n".join([measure.table(["room", "drawn", *outcomes], table), "", *map(told, alive)])


def told(row: dict[str, Any]) -> str:
    """A row in words."""
    by = f" by {row['by']}" if row["by"] else ""
    return f"{row['place']}: {row['kind']} {row['outcome']}{by}, {row['tests']} tests\n    {row['before']}\n    {row['after']}"


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = Parser(description="Put random faults into the source, one at a time, and see which of them the tests catch.")
    parser.add_argument("--coverage", type=Path, required=True, metavar="FILE", help="which test runs which line")
    parser.add_argument("--record", action="store_true", help="run all tests to write that file, and no mutants")
    parser.add_argument("--seed", type=int, default=0, metavar="INT", help="of the draw")
    parser.add_argument("--count", type=measure.positive, default=220, metavar="INT", help="how many mutants to draw")
    parser.add_argument("--only", metavar="FILE:LINE", help="instead of random ones, all mutants of this line")
    parser.add_argument("--like", type=Path, metavar="FILE.csv", help="instead of random ones, those of this table")
    parser.add_argument("--tree", type=Path, default=ROOT, metavar="FOLDER", help="the checkout whose tests are run")
    parser.add_argument("--configuration", choices=CONFIGURATIONS, default="numpy", help="what the tests run on")
    parser.add_argument("--longest", type=float, default=300, metavar="SECONDS", help="of tests for one mutant at most")
    parser.add_argument("--again", action="store_true", help="try those once more that survived so far")
    parser.add_argument("--processes", type=measure.positive, default=2, metavar="INT", help="mutants tried at once")
    parser.add_argument("--output", type=Path, metavar="FILE.csv", help="write each result there; those there are kept")
    return measure.parse(parser, words)


@measure.script()
def main() -> None:
    """Record, or draw, try and report."""
    arguments = parse()
    tree, configuration = arguments.tree.resolve(), arguments.configuration
    if arguments.record:
        record(arguments.coverage, tree, configuration)
        print(*sorted(Tests(arguments.coverage, tree).unreached()), sep="\n")
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    if arguments.only:
        mutants = [mutant for mutant in all_mutants() if mutant.row()["place"] == arguments.only]
    elif arguments.like:
        mutants = those_of(read_rows(arguments.like).values())
    else:
        mutants = draw(arguments.seed, arguments.count)
    known = read_rows(arguments.output)
    new = [mutant for mutant in mutants if arguments.only or is_wanted(known.get(identity(mutant.row())), arguments.again)]
    tests = Tests(arguments.coverage, tree)
    with tempfile.TemporaryDirectory(prefix="mutants") as folder, ThreadPoolExecutor(arguments.processes) as pool:
        copies = [Copy(Path(folder, str(number)), tree, configuration) for number in range(arguments.processes)]
        trial = Trial(tests, copies, arguments.longest)
        try:
            for done, future in enumerate(as_completed([pool.submit(trial.judge, mutant) for mutant in new]), 1):
                row = future.result()
                known[identity(row)] = row
                append(arguments.output, row)
                print(f"{done} of {len(new)}, {row['seconds']} s: {told(row)}", flush=True)
        finally:
            pool.shutdown(cancel_futures=True)
    print(report([known[identity(mutant.row())] for mutant in mutants]))


if __name__ == "__main__":
    main()
