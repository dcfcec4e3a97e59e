"""What the benchmark of single ops measures is what it says; and what all say to a mistake or to Ctrl-C."""

import importlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import generate
import gpu
import measure
import ops
import pytest
import speedrun
import train_step
import translate
import word2vec
from cases import FUNCTIONS
from public_ops import ELSEWHERE, ROWS

import tinytensor as tt


@pytest.fixture(scope="module")
def sides():
    return ops.Tinytensor(), ops.PyTorch()


@pytest.mark.filterwarnings("ignore:.*reduction. 'mean' divides the total loss")  # PyTorch's kl_div
@pytest.mark.parametrize(
    "case", [*ops.chosen([*ops.INPUTS, *ops.OPTIMIZERS], ["A"]), *ops.chosen(ROWS, ["8", "10000"])], ids=str
)
def test_both_libraries_compute_the_same(sides, case):
    for backward in (False, True)[not case.is_public :]:
        for side in sides:
            side.prepare(case, case.arrays(), backward)
        ops.check(case, *[side.results() for side in sides])


def test_every_public_op_has_a_row():
    assert {row.partition(",")[0] for row in ROWS} | set(ELSEWHERE) == FUNCTIONS | {"setitem"}


def test_recurrent_layers_have_one_size_whatever_the_configuration():
    cases = ops.chosen(["gelu", "LSTM"], ["A", "C"])
    assert [(case.op, case.size) for case in cases] == [("gelu", "A"), ("gelu", "C"), ("LSTM", "-")]
    assert cases[2].arrays()["weight_hh_l0"].shape == (2048, 512)


def test_other_results_are_found(sides):
    case = ops.Case("residual", "A")
    found = []
    for side in sides:
        side.prepare(case, case.arrays())
        found.append({name: array.copy() for name, array in side.results().items()})
    found[0]["gradient of y"][0, 0, 0] += 1
    with pytest.raises(ops.SideError, match="residual, configuration A: gradient of y differs"):
        ops.check(case, *found)


@pytest.mark.needs("numba")
def test_a_side_with_numpys_kernels_is_beside_the_compiled_one(monkeypatch, tmp_path):
    code = "import measure\nclass Side(measure.Side):\n    def kernels(self):\n        import tinytensor\n"
    code += "        return tinytensor.kernels_name\n"
    (tmp_path / "telling.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    make = importlib.import_module("telling").Side
    (name, side), *others = measure.with_numpys_kernels("ours", make).items()
    assert (name, others) == ("ours, NumPy's kernels", [])
    with measure.Worker("ours", make) as ours, measure.Worker(name, *side) as theirs:
        assert (ours.call("kernels"), theirs.call("kernels")) == ("numba", "numpy")
    monkeypatch.setattr(tt, "kernels_name", "numpy")
    assert measure.with_numpys_kernels("ours", make) == {}


def test_benchmarks_with_such_sides_do_not_choose_kernels_when_they_are_imported():
    code = "import generate, ops, train_step, translate, sys; print('tinytensor' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])}
    process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert process.stdout == "False\n", process.stderr


# ---------------------------------------------------------------------------------------------------- the command lines

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = [generate, gpu, ops, speedrun, train_step, translate, word2vec]
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
    assert re.match(r"error: unrecognized arguments: --zzz ", said(benchmark, capsys, monkeypatch, "--zzz"))


@pytest.mark.parametrize("benchmark", [b for b in BENCHMARKS if b is not gpu], ids=lambda module: module.__name__)
def test_an_output_that_cannot_be_is_found_before_anything_is_measured(benchmark, capsys, monkeypatch, tmp_path):
    message = said(benchmark, capsys, monkeypatch, "--output", str(tmp_path / "results.txt"))
    assert "results.txt' must be a folder or end in .md" in message
    message = said(benchmark, capsys, monkeypatch, "--output", str(tmp_path / "none" / "results.md"))
    assert f"the folder {tmp_path / 'none'} does not exist" in message


# ------------------------------------------------------------------------------------------------------------ the results


@pytest.mark.parametrize(
    ("processor", "folder"),
    [
        ("AMD EPYC", "amd-epyc"),
        ("AMD EPYC 7763 64-Core Processor", "amd-epyc-7763"),
        ("Intel(R) Xeon(R) Platinum 8488C", "intel-xeon-platinum-8488c"),
        ("Intel(R) Core(TM) i7-8550U CPU @ 1.80GHz", "intel-core-i7-8550u"),
        ("arm", "arm"),
    ],
)
def test_results_in_a_folder_are_kept_by_processor(processor, folder, monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "_processor", lambda: processor)
    measure.publish(tmp_path, "ops", "Single ops", "all of it", "numpy")
    measure.publish(None, "ops", "Single ops", "all of it", "numpy")
    (file,) = tmp_path.rglob("*.md")
    assert file == tmp_path / folder / "ops.md"
    measure.publish(tmp_path / "own.md", "ops", "Single ops", "all of it", "numpy")
    written = file.read_text(encoding="utf-8")
    assert written.startswith("# Single ops\n\nall of it\n\nMeasured on ") and f" on {processor} with " in written
    assert (tmp_path / "own.md").read_text(encoding="utf-8").startswith("# Single ops\n\nall of it\n\nMeasured on ")


def test_results_that_cannot_be_written_leave_the_file_that_is_there(monkeypatch, tmp_path):
    file = tmp_path / "own.md"
    measure.write(file, "ops", "Single ops", "all of it", "numpy")
    before = file.read_text(encoding="utf-8")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        measure.write(file, "ops", "Single ops", "something else", "numpy")
    assert file.read_text(encoding="utf-8") == before and list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("kernels", ["numpy", "numba"])
def test_results_name_the_kernels(kernels, monkeypatch, tmp_path):
    monkeypatch.setattr(tt, "kernels_name", kernels)
    measure.write(tmp_path / "a.md", "a", "A", "all of it", "numpy")
    last = (tmp_path / "a.md").read_text(encoding="utf-8").splitlines()[-1]
    assert f", kernels: {kernels}, python " in last
    assert (", numba " in last) == (kernels == "numba")


@pytest.mark.parametrize(
    ("words", "name", "title"),
    [
        ("", "train_step_A.md", "A"),
        ("--configuration C --dropout 0.2", "train_step_C_dropout.md", "C"),
        ("--configuration B --busy 1", "train_step_B_busy_1.md", "B, beside 1 busy program of one thread each"),
        ("--busy 2", "train_step_A_busy_2.md", "A, beside 2 busy programs of one thread each"),
        ("--workers 2", "train_step_A_workers_2.md", "A, 2 processes"),
    ],
)
def test_steps_are_measured_beside_as_many_busy_programs_as_asked(words, name, title, monkeypatch, tmp_path):
    started = []

    class Noted(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self)

    def run(*_):
        assert [process.poll() for process in started] == [None] * busy
        return "all of it"

    busy = int(words.split()[-1]) if "--busy" in words else 0
    monkeypatch.setattr(sys, "argv", ["benchmarks/train_step.py", *words.split(), "--output", str(tmp_path)])
    monkeypatch.setattr(measure, "_processor", lambda: "arm")
    monkeypatch.setattr(train_step, "run", run)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", Noted)
        train_step.main()
    assert all(process.poll() is not None for process in started)
    written = (tmp_path / "arm" / name).read_text(encoding="utf-8")
    assert written.startswith(f"# A training step, configuration {title}\n\n")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_busy_programs_compute_and_end_with_the_benchmark(end):
    def state():
        """Of the busy program: whether it is there still, and the seconds for which it computed."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        except OSError:
            return False, 0.0
        return fields[0] != "Z", int(fields[11]) / os.sysconf("SC_CLK_TCK")

    def wait_until(what):
        deadline = time.monotonic() + 30
        while not what():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    code = "import measure, time\nwith measure.busy(1) as pids: print(*pids, flush=True); time.sleep(60)"
    folders = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])
    environment = {**os.environ, "PYTHONPATH": folders}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True, "start_new_session": True}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, **options) as process:
        pid = int(process.stdout.readline())
        wait_until(lambda: state()[1] > 0.3)
        os.killpg(process.pid, end)
    wait_until(lambda: not state()[0])


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
        (translate, "ctranslate2"),
        (ops, "torch"),
        (speedrun, "torch"),
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
    files = [path for name in ("train_step_*", "generate_*", "layers") for path in ROOT.glob(f"benchmarks/results/*/{name}.md")]
    assert files
    for path in files:
        named = re.findall(r", torch ([\d.]+\d)", path.read_text(encoding="utf-8"))
        assert named and set(named) == {pinned}, path.name


class Quick:
    """A worker whose steps take no time."""

    def call(self, method, settle, steps):
        return [0.001] * steps


def test_a_report_compares_the_first_side_and_what_is_ours_too():
    class Told(Quick):
        def call(self, method, *arguments):
            return {"memory": (3_000_000, 1_000_000), "libraries": ["blas", "1 thread"]}.get(method) or super().call(
                method, *arguments
            )

    workers = {name: Told() for name in ("a", "b", "c")}
    times = measure.take_turns(workers, turns=1, steps=1)
    found = measure.report(workers, times, ["twice"], lambda name: [2 * name], also=["b"])
    assert re.findall(r"^\| (\w) +\| +(\w+) \| +3 \| +1 \|$", found, re.M) == [("a", "aa"), ("b", "bb"), ("c", "cc")]
    ratios = [re.findall(r"^\| (\w) ", part, re.M) for part in re.split(r"time of \w over", found)[1:]]
    assert ratios == [["b", "c"], ["a", "c"]]
    assert found.endswith("- a: blas; 1 thread\n- b: blas; 1 thread\n- c: blas; 1 thread")


def test_progress_in_a_file_is_lines(capsys, monkeypatch):
    monkeypatch.setattr(measure, "SECONDS_BETWEEN_TEXTS", 0.0)
    measure.take_turns({"a": Quick(), "b": Quick()}, turns=2, steps=1)
    said = "taking turns: turn {} of 2, a 1.0 ms, b 1.0 ms, 00:00 left\n"
    assert capsys.readouterr().err == said.format(1) + said.format(2)
    monkeypatch.setattr(measure, "SECONDS_BETWEEN_TEXTS", 60.0)
    measure.take_turns({"a": Quick()}, turns=2, steps=1)
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(os.name != "posix", reason="needs a signal sent to other processes")
@pytest.mark.parametrize("moment", ["while sides start", "while they take turns"])
def test_ctrl_c_ends_all_processes_with_one_line(moment):
    waiting = "import measure; measure.SECONDS_BETWEEN_TEXTS = 0.0\n"
    starting = "measure.Worker.call = lambda *_: (print('started', file=sys.stderr, flush=True), time.sleep(60))\n"
    code = f"import sys, time; {waiting}{starting * (moment == 'while sides start')}import train_step; train_step.main()"
    folders = os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])
    process = subprocess.Popen(
        [sys.executable, "-c", code, "--turns", "100000", "--steps", "1", "--warm-up", "1"],
        env={**os.environ, "PYTHONPATH": folders, "OPENBLAS_NUM_THREADS": "1", "TINYTENSOR_KERNELS": "numpy"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    first = process.stderr.readline()
    assert first.startswith("started" if moment == "while sides start" else "taking turns: turn 1 of 100,000, "), (
        process.stderr.read()
    )
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the whole group
    out, errors = process.communicate(timeout=60)
    lines = [line for line in errors.splitlines() if line and not line.startswith("taking turns")]
    assert (process.returncode, out, lines) == (130, "", ["interrupted"])
    assert "\r" not in first + errors
