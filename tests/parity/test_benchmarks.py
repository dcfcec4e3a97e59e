"""What the benchmarks of single ops and of tricks measure is what they say; and what all say to a mistake or to Ctrl-C."""

import dataclasses
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import generate
import gpu
import growth
import measure
import ops
import pytest
import train_step
import tricks
from configurations import CONFIGURATIONS


@pytest.fixture(scope="module")
def sides():
    return ops.Tinytensor(), ops.PyTorch()


@pytest.mark.parametrize("op", [*ops.INPUTS, *ops.OPTIMIZERS])
def test_both_libraries_compute_the_same(sides, op):
    case = ops.Case(op, "A")
    for side in sides:
        side.prepare(case, case.arrays())
    ops.check(case, *[side.results() for side in sides])


def test_other_results_are_found(sides):
    case = ops.Case("residual", "A")
    found = []
    for side in sides:
        side.prepare(case, case.arrays())
        found.append({name: array.copy() for name, array in side.results().items()})
    found[0]["gradient of y"][0, 0, 0] += 1
    with pytest.raises(ops.SideError, match="residual, configuration A: gradient of y differs"):
        ops.check(case, *found)


def test_every_trick_is_switched_off(monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")  # so that there are shards
    # Wide enough for several blocks in the optimizer, and 16 sequences a shard for two blocks of attention.
    small = dataclasses.replace(CONFIGURATIONS["A"], num_layers=1, d_model=192, batch_size=32)
    report = tricks.run(small, turns=1, steps=1, warm_up=2)
    assert "Without effect" not in report
    rows = [line.strip("| ").split(" | ")[0].strip() for line in report.splitlines() if line.startswith("| ")]
    assert set(rows) == {*tricks.VARIANTS, "median ms", *(row for row in rows if row.startswith("---"))}


def test_a_switch_that_fits_the_library_no_more_is_an_error():
    with pytest.raises(AttributeError, match="no attribute '_GONE'"):
        tricks.replace(f"{tricks.ATTENTION}._GONE", lambda _: 0)


# ---------------------------------------------------------------------------------------------------- the command lines

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = [generate, gpu, growth, ops, train_step, tricks]
benchmarks = pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda module: module.__name__)


def said(benchmark, capsys, monkeypatch, *words):
    """What a benchmark says when it refuses a command line."""
    monkeypatch.setattr(sys, "argv", [f"benchmarks/{benchmark.__name__}.py", *words])
    with pytest.raises(SystemExit) as exit:
        benchmark.main()
    output = capsys.readouterr()
    assert (exit.value.code, output.out, output.err.count("\n")) == (2, "", 1)
    return output.err


@benchmarks
def test_a_wrong_argument_is_one_line(benchmark, capsys, monkeypatch):
    assert re.match(r"error: unrecognized arguments: --speed ", said(benchmark, capsys, monkeypatch, "--speed"))


@benchmarks
def test_an_output_that_cannot_be_is_found_before_anything_is_measured(benchmark, capsys, monkeypatch, tmp_path):
    (tmp_path / "results.md").mkdir()
    message = said(benchmark, capsys, monkeypatch, "--output", str(tmp_path / "results.md"))
    assert "results.md' is a folder" in message


@benchmarks
def test_a_file_that_cannot_be_written_or_ctrl_c_is_one_line(benchmark, capsys, monkeypatch):
    for error, status, line in [
        (KeyboardInterrupt(), 130, "\ninterrupted\n"),
        (OSError(28, "No space", "a.md"), 2, "error: a.md: No space\n"),
    ]:

        def parse(*_, error=error):
            raise error

        monkeypatch.setattr(benchmark, "parse", parse)
        with pytest.raises(SystemExit) as exit:
            benchmark.main()
        assert (exit.value.code, capsys.readouterr().err) == (status, line)


@pytest.mark.parametrize(
    ("benchmark", "package"),
    [
        (generate, "transformers"),
        (growth, "torch"),
        (ops, "torch"),
        (train_step, "torch"),
        (gpu, "torch"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_package_that_is_missing_is_named_with_its_extra(benchmark, package, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setenv("TINYTENSOR_BACKEND", "cupy")
    assert f'{package} is not installed: pip install -e ".[bench]"' in said(benchmark, capsys, monkeypatch)


def test_results_name_the_pytorch_that_the_extra_installs():
    (pinned,) = re.findall(r'"torch==([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    files = [
        path for name in ("train_step", "generate", "growth", "ops") for path in ROOT.glob(f"benchmarks/results/{name}*.md")
    ]
    assert files
    for path in files:
        named = re.findall(r", torch ([\d.]+\d)", path.read_text(encoding="utf-8"))
        assert named and set(named) == {pinned}, path.name


class Quick:
    """A worker whose steps take no time."""

    def call(self, method, settle, steps):
        return [0.001] * steps


def test_progress_in_a_file_is_lines(capsys, monkeypatch):
    monkeypatch.setattr(measure, "SECONDS_BETWEEN_LINES", 0.0)
    measure.take_turns({"a": Quick(), "b": Quick()}, turns=2, steps=1)
    assert capsys.readouterr().err == "taking turns: 1 of 2, a 1.0 ms, b 1.0 ms\ntaking turns: 2 of 2, a 1.0 ms, b 1.0 ms\n"
    monkeypatch.setattr(measure, "SECONDS_BETWEEN_LINES", 60.0)
    measure.take_turns({"a": Quick()}, turns=2, steps=1)
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(os.name != "posix", reason="needs a signal sent to other processes")
@pytest.mark.parametrize("moment", ["while sides start", "while they take turns"])
def test_ctrl_c_ends_all_processes_with_one_line(moment):
    waiting = "import measure; measure.SECONDS_BETWEEN_LINES = 0.0\n"
    starting = "measure.Worker._receive = lambda self: (print('started', file=sys.stderr, flush=True), time.sleep(60))\n"
    code = f"import sys, time; {waiting}{starting * (moment == 'while sides start')}import tricks; tricks.main()"
    folders = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])
    process = subprocess.Popen(
        [sys.executable, "-c", code, "--turns", "100000", "--steps", "1", "--warm-up", "1"],
        env={**os.environ, "PYTHONPATH": folders, "OPENBLAS_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    first = process.stderr.readline()
    assert first.startswith("started" if moment == "while sides start" else "taking turns: 1 of 100000, "), (
        process.stderr.read()
    )
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the whole group
    out, errors = process.communicate(timeout=60)
    lines = [line for line in errors.splitlines() if line and not line.startswith("taking turns")]
    assert (process.returncode, out, lines) == (130, "", ["interrupted"])
    assert "\r" not in first + errors
