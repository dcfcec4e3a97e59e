"""benchmarks/gpu.py from end to end: on the fake CuPy, with PyTorch on the CPU and configurations that are tiny."""

import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from types import SimpleNamespace

import checkout
import gpu
import kernel_times
import pages
import pytest

from tinyformer.data.reading import open_text
from tinytensor import kernels

ROOT = Path(__file__).resolve().parents[2]
STANDIN = ROOT / "tests" / "standin"
TINY = f"""
import dataclasses, sys
sys.path.insert(0, {str(ROOT / "benchmarks")!r})
import gpu
from configurations import GPTConfiguration

tiny = GPTConfiguration(num_layers=1, num_heads=2, d_model=16, block_size=12, batch_size=4)
gpu.GPU_GPTS = {{"shakespeare_char": tiny, "GPT-2 124M": tiny}}
gpu.TORCH_DEVICE = "cpu"
gpu.PYTORCH.pop(gpu.COMPILED)
gpu.QUICK = gpu.Amount(turns=2, blocks=2, steps=2, warm_up=2, losses=4, run=6, new_tokens=3, continuations=2, profiled=2)

def tests(argument):
    gpu.PARTS["tests-gpu"] = dataclasses.replace(gpu.PARTS["tests-gpu"], argument=argument)

tests("tests/gpu/test_kernels.py::test_ops_equal_those_of_numpy[float32-erf]")
"""


def command(*words, code="", python=sys.executable):
    """The script, with tiny configurations."""
    return [python, "-c", f"{TINY}\n{code}\ngpu.main()", "--quick", *map(str, words)]


def environment(*folders, **variables):
    """Return the environment of a process that finds the fake CuPy and these folders, but not the checkout."""
    path = os.pathsep.join(map(str, [STANDIN, *folders]))
    return {**os.environ, "TINYTENSOR_BACKEND": "cupy", "PYTHONPATH": path, **variables}


def run(*words, code="", **variables):
    """Run the script in a new process."""
    return subprocess.run(command(*words, code=code), env=environment(**variables), cwd=ROOT, capture_output=True, text=True)


def results(folder):
    """The parts' files by their names."""
    return {path.stem: path.read_text(encoding="utf-8") for path in (folder / "an-imagined-gpu").glob("*.md")}


def first_cells(text):
    return [line.strip("| ").split(" | ")[0].strip() for line in text.splitlines() if line.startswith("| ")]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A text that can be learned from."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("to be or not to be, that is the question. " * 50, encoding="utf-8")
    return path


def test_every_part_is_measured_and_written(tmp_path, text):
    process = run("--data", text, "--processes", "1", "--output", tmp_path)
    assert process.returncode == 0, process.stderr
    files = results(tmp_path)
    assert set(files) == {f"quick-{name}" for name in gpu.PARTS if name not in gpu.LONG}
    for name, written in files.items():
        assert written.startswith(f"# On a GPU: {name[6:]} (a smoke test, not a measurement)\n")
        assert "an imagined GPU" in written
        assert gpu.FAILED not in written and re.search(r"This part took \d+ s.", written)
        assert re.search(r"Measured on .* at revision .* cupy", written)
        assert written in process.stdout or written.split("\n", 1)[1].rsplit("Measured on", 1)[0].strip() in process.stdout
    assert "1 passed" in files["quick-tests-gpu"]
    for side in (*gpu.TINYFORMER, *gpu.CAPTURED, "PyTorch eager, TF32", "PyTorch eager, bfloat16"):
        assert side in first_cells(files["quick-steps-char"]) and side in first_cells(files["quick-steps-gpt2"]), side
    for name in ("quick-kernels-char", "quick-kernels-gpt2"):
        rows = first_cells(files[name])
        assert [rows.count(kernel) for kernel in ("multi_head_attention_forward", "adam_step", "everything else")] == [2, 2, 2]
    assert first_cells(files["quick-generation"]).count("Hugging Face") == 4  # in a table and as a ratio, for both batches
    assert first_cells(files["quick-start"]).count("compiled kernels cached") == 1
    for name in ("quick-losses", "quick-run"):
        assert f"The text is {text}." in files[name]
    # Those of a step, of two losses, of the start, and two of a run.
    assert len(re.findall(r"\*\*(NOT )?met\*\*", "".join(files.values()))) == 6


def test_a_part_that_is_done_is_measured_again_only_when_asked(tmp_path):
    words = ("--parts", "kernels-char", "start", "--output", tmp_path)
    count = "gpu.measure.Worker.__enter__ = lambda self: (print('a side'), self)[1]\n"
    assert run("--parts", "start", "--output", tmp_path, code=count).stdout.count("a side\n") == 2
    (start,) = results(tmp_path).values()
    again = run(*words, code=count)
    assert again.returncode == 0 and again.stdout.count("a side\n") == 2  # kernels in two dtypes
    file = tmp_path / "an-imagined-gpu" / "quick-start.md"
    assert again.stdout.startswith(f"start is done: see {file} (--again repeats it)\n")
    assert results(tmp_path)["quick-start"] == start
    assert run(*words, "--again", code=count).stdout.count("a side\n") == 4
    assert results(tmp_path)["quick-start"] != start


def test_failed_parts_are_retried_after_missing_ones(tmp_path):
    order = "gpu.describe_gpu = lambda: ('an imagined GPU', 'a GPU')\ngpu.PARTS = dict(gpu.PARTS)\n"
    order += "def part(name, failures):\n"
    order += "    def method(measurement, argument): print('measures', name); measurement.failures += failures\n"
    order += "    gpu.PARTS[name] = dataclasses.replace(gpu.PARTS[name], method=method)\n"
    words = ("--output", tmp_path, "--parts", "kernels-char", "losses", "start")
    failing = f"{order}part('kernels-char', ['it is broken'])\npart('losses', [])\npart('start', None)\n"
    process = run(*words, code=failing)
    assert process.returncode == 1 and re.findall("^measures (.*)", process.stdout, re.MULTILINE) == [
        "losses",
        "kernels-char",
        "start",
    ]
    assert "## Failed\n\n- it is broken\n" in results(tmp_path)["quick-kernels-char"]
    assert gpu.FAILED not in results(tmp_path)["quick-losses"]
    assert "## Failed\n\n- start crashed: TypeError: 'NoneType'" in results(tmp_path)["quick-start"]
    assert "Traceback" in process.stderr
    (tmp_path / "an-imagined-gpu" / "quick-start.md").unlink()
    working = f"{order}for name in ('kernels-char', 'losses', 'start'): part(name, [])\n"
    process = run(*words, code=working)
    assert process.returncode == 0, process.stderr
    assert re.findall("^measures (.*)", process.stdout, re.MULTILINE) == ["start", "kernels-char"]
    assert gpu.FAILED not in "".join(results(tmp_path).values())


def test_losses_on_another_text_are_not_done(tmp_path, text):
    order = "gpu.PARTS['losses'] = dataclasses.replace(gpu.PARTS['losses'], method=lambda measurement, _: "
    order += "measurement.add('A text', gpu.which_text(measurement.data, measurement.data)))"
    other = tmp_path / "other.txt"
    other.write_text("another text")
    for data, is_done in [(text, False), (text, True), (other, False), (text, False)]:
        process = run("--parts", "losses", "--output", tmp_path, "--data", data, code=order)
        assert process.returncode == 0 and ("losses is done" in process.stdout) == is_done, process.stderr


def test_what_fails_is_named_and_the_rest_is_measured(tmp_path):
    broken = 'gpu.PYTORCH["broken"] = (False, False, "no such option"); gpu.ROUNDING[gpu.MIXED] = 1e-12'
    process = run("--parts", "steps-gpt2", "--output", tmp_path, code=broken)
    assert process.returncode == 1
    assert process.stdout.endswith(f"steps-gpt2 has failed: see {tmp_path / 'an-imagined-gpu' / 'quick-steps-gpt2.md'}\n")
    (written,) = results(tmp_path).values()
    assert "GPT-2 124M: broken was not measured: broken failed" in written
    assert "PyTorch eager, bfloat16 was not measured: the first losses differ: PyTorch eager, bfloat16 has 4." in written
    table = written.split("## A training step, GPT-2 124M")[1].split("\n\n")[2].splitlines()[2:]
    assert first_cells("\n".join(table)) == [*gpu.TINYFORMER, *gpu.CAPTURED, "PyTorch eager, TF32"]


def test_memory_is_read_before_the_next_side_is_started(tmp_path):
    noted = "call = gpu.Worker.call\n"
    noted += "def told(self, method, *words): print('call', self.name, method, sep=':'); return call(self, method, *words)\n"
    noted += "gpu.Worker.call = told"
    process = run("--parts", "steps-char", "--output", tmp_path, code=noted)
    calls = [line.split(":")[1:] for line in process.stdout.splitlines() if line.startswith("call:")]
    sides = [side for side, method in calls if method == "None"]
    assert sides == [*gpu.TINYFORMER, *gpu.CAPTURED, gpu.EAGER, gpu.MIXED]
    kept = [(side, method) for side, method in calls if method in ("None", "device_memory")]
    assert kept == [(side, method) for side in sides for method in ("None", "device_memory")]


# ------------------------------------------------------------------------------------------------------------- the tests


def test_tests_that_fail_are_said(tmp_path):
    failing = "tests('tests/gpu/no_such_file.py')"
    process = run("--parts", "tests-gpu", "--processes", "1", "--output", tmp_path, code=failing)
    assert process.returncode == 1 and "tests-gpu has failed" in process.stdout
    (written,) = results(tmp_path).values()
    assert "## Failed\n\n- not all tests passed" in written and "no_such_file" in written


def test_warnings_are_no_errors_though_the_settings_say_so(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\nfilterwarnings = ["error"]\n')
    (tmp_path / "test_warning.py").write_text("import warnings\ndef test_warns(): warnings.warn('new in CuPy')\n")
    code = f"tests({str(tmp_path / 'test_warning.py')!r})"
    process = run("--parts", "tests-gpu", "--processes", "1", "--output", tmp_path, code=code)
    assert process.returncode == 0, process.stdout
    assert "1 passed, 1 warning" in results(tmp_path)["quick-tests-gpu"] and "new in CuPy" in process.stdout


WAITING = """
import os, pathlib, time
here = pathlib.Path(__file__).parent
def test_first(): (here / "pid").write_text(str(os.getpid()))
def test_second():
    while not (here / "go").exists(): time.sleep(0.01)
"""


@pytest.fixture
def waiting(tmp_path):
    """The script in the midst of tests, which go on when there is a file "go". What it has printed so far names the first."""
    (tmp_path / "test_waiting.py").write_text(WAITING)
    code = f"tests({str(tmp_path / 'test_waiting.py')!r})"
    words = ("--parts", "tests-gpu", "--processes", "1", "--output", tmp_path)
    with subprocess.Popen(
        command(*words, code=code), env=environment(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        printed = b""
        try:
            while not re.search(rb"^\.", printed, re.MULTILINE):  # the first test has passed, and the second waits
                piece = process.stdout.read1()
                assert piece, printed
                printed += piece
            yield process
        finally:
            (tmp_path / "go").touch()


def test_what_tests_print_is_shown_and_kept_as_it_comes(waiting, tmp_path):
    log = tmp_path / "an-imagined-gpu" / "quick-tests-gpu.log"
    assert re.search(r"^\.", log.read_text(), re.MULTILINE) and not (tmp_path / "go").exists()
    (tmp_path / "go").touch()
    rest = waiting.communicate(timeout=60)[0].decode()
    assert waiting.returncode == 0 and "2 passed" in rest and "2 passed" in log.read_text()


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_end_of_a_time_limit_ends_the_tests_too(waiting, tmp_path):
    pid = int((tmp_path / "pid").read_text())
    assert is_running(pid)
    waiting.send_signal(signal.SIGTERM)
    assert waiting.wait(timeout=30) == 143
    deadline = time.monotonic() + 60
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert results(tmp_path) == {}  # the part is not done


# ------------------------------------------------------------------------------------ without an installation, and the text


def test_it_runs_from_a_checkout_that_is_not_installed(tmp_path):
    """With the packages in PYTHONPATH, which a Python with nothing installed uses; where the ``.pth`` file of an installation
    means nothing. The folder in which it runs is another."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    python = tmp_path / "bare" / "bin" / "python"
    variables = environment(sysconfig.get_paths()["purelib"])
    (tmp_path / "test_child.py").write_text(
        "import subprocess, sys\n"
        "def test_a_process_finds_the_checkout(tmp_path):\n"
        "    code = 'import tinytensor; print(tinytensor.__file__)'\n"
        "    found = subprocess.check_output([sys.executable, '-c', code], cwd=tmp_path, text=True)\n"
        f"    assert found.startswith({str(ROOT)!r})\n"
    )
    absent = subprocess.run([python, "-c", "import tinytensor"], env=variables, cwd=tmp_path, capture_output=True, text=True)
    assert "No module named 'tinytensor'" in absent.stderr
    words = ("--parts", "tests-gpu", "steps-char", "--processes", "1", "--output", tmp_path)
    code = f"tests({str(tmp_path / 'test_child.py')!r})"
    process = subprocess.run(
        command(*words, code=code, python=python), env=variables, cwd=tmp_path, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stdout + process.stderr
    assert "1 passed" in results(tmp_path)["quick-tests-gpu"] and "PyTorch eager, TF32" in results(tmp_path)["quick-steps-char"]


def test_cuda_is_found_in_a_folder_of_the_path(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "wheels")
    for name in ("CUDA_PATH", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert checkout.variables() == {"PYTHONPATH": os.pathsep.join([str(ROOT), os.path.abspath("wheels")])}
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "nvidia" / "cu13").mkdir(parents=True)
    assert checkout.variables()["CUDA_PATH"] == str((tmp_path / "nvidia" / "cu13").resolve())
    monkeypatch.setenv("CUDA_HOME", "/usr/local/cuda")
    assert "CUDA_PATH" not in checkout.variables()


def test_without_data_or_a_network_the_text_is_pythons_own_sources(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # where nobody answers
    monkeypatch.setenv("TINYFORMER_CACHE", str(tmp_path))
    name = open_text(None)[1].name
    says = "The text is the sources of Python's standard library, because Tiny Shakespeare could not be"
    assert gpu.which_text(name, None).startswith(says)
    assert gpu.which_text("Tiny Shakespeare", None) == "The text is Tiny Shakespeare; --data chooses another."
    assert gpu.which_text("a.txt", "a.txt") == "The text is a.txt."


# ------------------------------------------------------------------------------------------------------- the GPU's own time


class ImaginedGPU:
    """A host and a GPU, each with its clock in milliseconds; the GPU works off what the host has queued."""

    def __init__(self):
        self.host = self.gpu = 0.0

    def launch(self, milliseconds):
        """Queue this much work."""
        self.gpu = max(self.gpu, self.host) + milliseconds

    def cuda(self):
        """What a benchmark uses of CuPy's module."""
        outer = self

        class Event:
            def record(self):
                outer.launch(0.0)
                self.time = outer.gpu

            done = property(lambda self: self.time <= outer.host)

            def synchronize(self):
                outer.host = max(outer.host, self.time)

        return SimpleNamespace(Event=Event, get_elapsed_time=lambda start, end: end.time - start.time)


@pytest.fixture
def imagined(monkeypatch):
    """A GPU, whose kernels ``adam_step`` and ``norm_and_scale`` work for 0.25 and 0.5 ms; the second calls the first."""
    device = ImaginedGPU()
    device.python = 2.0  # milliseconds for which Python is busy with each launch

    def adam_step():
        device.host += device.python
        device.launch(0.125)
        device.host += device.python
        device.launch(0.125)

    def norm_and_scale():
        kernels.adam_step()
        device.launch(0.25)

    monkeypatch.setattr(kernels, "adam_step", adam_step)
    monkeypatch.setattr(kernels, "norm_and_scale", norm_and_scale)
    return device


def step(device):
    kernels.adam_step()
    device.launch(0.0625)
    kernels.norm_and_scale()
    device.host += device.python
    device.launch(0.0625)


@pytest.mark.parametrize("python", [0.0, 0.01, 2.0, 7.0])
def test_kernels_are_timed_without_waiting_for_python(imagined, python):
    imagined.python = python
    times, early = kernel_times.measured(lambda: step(imagined), 3, imagined.cuda(), imagined.launch)
    assert times == {
        "adam_step": (3, pytest.approx(0.75)),
        "norm_and_scale": (3, pytest.approx(1.5)),
        "everything else": (7, pytest.approx(0.375)),  # between the kernels, before and after them
    }
    assert early == 0


def test_where_the_gpu_waited_all_the_same_is_counted(imagined):
    def waits():
        imagined.host = max(imagined.host, imagined.gpu)  # for its result
        kernels.adam_step()

    def slow():
        waits()
        step(imagined)

    imagined.python = 500.0  # longer than the GPU is ever held
    _, early = kernel_times.measured(slow, 3, imagined.cuda(), imagined.launch)
    assert early > 0


# -------------------------------------------------------------------------------------------------------- the command line


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--parts losses --processes 2", "--processes has no effect without tests"),
        ("--parts start --data README.md", "--data has no effect without the parts losses or run"),
        ("--parts losses --data no/such/file", "no/such/file does not exist: pass --data a text file"),
        ("--parts steps", "invalid choice: 'steps'"),
        ("--output no/such/folder", "the folder 'no/such/folder' does not exist; create it first"),
    ],
)
def test_a_mistake_is_one_line(words, says):
    process = run(*words.split())
    assert process.returncode == 2 and process.stdout == ""
    assert process.stderr.startswith("error: ") and process.stderr.count("\n") == 1 and says in process.stderr


@pytest.mark.parametrize(
    ("variables", "says"),
    [({"TINYTENSOR_BACKEND": "numpy"}, "run TINYTENSOR_BACKEND=cupy python benchmarks/gpu.py"), ({"PYTHONPATH": ""}, "CuPy")],
    ids=["numpy", "no CuPy"],
)
def test_without_a_gpu_one_line_says_so(variables, says):
    process = run(**variables)
    assert process.returncode == 2 and process.stdout == ""
    assert process.stderr.startswith("error: ") and process.stderr.count("\n") == 1 and says in process.stderr


@pytest.mark.parametrize(("part", "package"), [("tests-gpu", "xdist"), ("steps-char", "torch"), ("generation", "transformers")])
def test_a_part_needs_its_packages_and_no_others(part, package, capsys, monkeypatch):
    monkeypatch.setenv("TINYTENSOR_BACKEND", "cupy")
    for name in ("xdist", "torch", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    gpu.parse(["--parts", "losses", "start", "kernels-char"])
    monkeypatch.undo()
    monkeypatch.setenv("TINYTENSOR_BACKEND", "cupy")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit):
        gpu.parse(["--parts", part])
    assert f"{package} is not installed: pip install" in capsys.readouterr().err


def test_the_guide_lists_the_parts():
    (table,) = [table for table in pages.tables(pages.PAGES["docs/guides/gpu.md"]) if table[0][0] == "part"]
    assert [(row[0].strip("`"), row[-1]) for row in table[1:]] == [(n, str(part.minutes)) for n, part in gpu.PARTS.items()]
