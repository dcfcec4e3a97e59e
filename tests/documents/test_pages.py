"""Every Python snippet of the README and of the guides runs as printed, and prints what its comments say; every command that
they show is one that its program takes; and what they name exists."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pages
import pytest
from pages import GUIDES, LESSONS, PAGES, ROOT

import tinyformer
import tinytensor as tt
from tinyformer import UserError
from tinyformer.commands.main import ALL, command_of
from tinytensor import distributed, nn, optim  # noqa: F401 (the first is named in a table)

SNIPPETS = [(name, i, code) for name, page in PAGES.items() for i, code in enumerate(pages.blocks(page, "python"))]


def test_there_are_snippets():
    assert len(pages.blocks(PAGES["README.md"], "python")) >= 1
    assert len(SNIPPETS) >= 12


def needs(snippet):
    """Processes for GPUs cannot be started from a snippet: they import what they run. A GPU shares no memory with NumPy."""
    return [pytest.mark.needs("numpy")] if "distributed.run(" in snippet or "from_dlpack(" in snippet else []


@pytest.mark.parametrize(
    ("name", "snippet"), [pytest.param(name, code, marks=needs(code), id=f"{name}-{i}") for name, i, code in SNIPPETS]
)
def test_a_snippet_runs_and_prints_what_it_says(name, snippet, tmp_path, monkeypatch):
    """A comment ``#> ...`` stands for any lines."""
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(snippet, name, "exec"), {"__name__": "__main__"})
    expected = re.findall(r"#> (.*)", snippet)
    if "..." in expected:
        pattern = "".join(r"(?:.*\n)*" if line == "..." else re.escape(line) + r"\n" for line in expected)
        assert re.fullmatch(pattern, printed.getvalue()), printed.getvalue()
    else:
        assert printed.getvalue().splitlines() == expected


# --------------------------------------------------------------------------------------------------------- what is named


@pytest.mark.parametrize("name", PAGES)
def test_files_that_a_page_names_exist(name):
    names = re.findall(r"`((?:tinytensor|tinyformer|examples|benchmarks|tests|docs)/[\w./-]*)`", PAGES[name])
    assert names or name != "README.md"
    assert [name for name in names if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("name", PAGES)
def test_links_and_pictures_of_a_page_exist(name):
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", re.sub(r"^```.*?^```$", "", PAGES[name], flags=re.M | re.S))
    assert [link for link in links if not ((ROOT / name).parent / link).exists()] == []
    assert "![](" not in PAGES[name], "a picture without a text for those who do not see it"


EXTRAS = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), flags=re.MULTILINE)
COMMANDS = {f"{name}: {' '.join(words)}": words for name, page in PAGES.items() for words in pages.commands(page)}


def check(words: list[str]) -> None:
    """Raise AssertionError, or SystemExit, for a command that its program does not take."""
    while re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words = words[1:]
    if words[0] == "mpiexec":
        words = words[3:]
    words = words[2:] if words[:3] == ["python", "-m", "tinyformer"] else words
    if words[0] == "tinyformer":
        name, rest = command_of(words[1:]) if words[1:] not in ([], ["--version"]) else ("", [])
        if rest or name.startswith("train "):  # a sentence may name another without its words
            _, _, module, first = ALL[name]
            importlib.import_module(f"tinyformer.commands.{module}").parse([first, *rest] if first else rest)
    elif words[0] == "python" and words[1].startswith(("examples/", "benchmarks/", "tests/")):  # some need PyTorch
        kind, _, _ = words[1].partition("/")
        parsers = {"examples": words[1], "benchmarks": "benchmarks/*.py", "tests": "tests/attempts.py"}[kind]
        texts = [path.read_text(encoding="utf-8") for path in ROOT.glob(parsers)]
        assert (ROOT / words[1]).exists(), words
        flags = {flag for flag in words[2:] if flag.startswith("--")}
        named = {flag: rf'"({flag}|{flag[2:]})"' if kind != "examples" else rf"\b{flag[2:]}=" for flag in flags}
        assert [flag for flag in flags if not re.search(named[flag], "".join(texts))] == [], words
    elif words[:2] == ["pip", "install"]:
        assert set(re.findall(r"\w+", " ".join(re.findall(r"\.\[(.*?)\]", " ".join(words))))) <= set(EXTRAS), words


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_one_that_its_program_takes(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check([word for word in COMMANDS[command] if word != "--help"])


WRONG = [
    "examples/char_gpt.py --step 3",
    "examples/sort.py",
    "-m tinyformer explore runs/char_gpt --browser",
    "-m tinyformer translate --beams 3",
    "-m tinyformer train vector",
    "benchmarks/ops.py --no",
    "tests/kill_runs.py --no",
]


@pytest.mark.parametrize("command", [*(f"python {words}" for words in WRONG), "pip install -e .[none]"])
def test_a_command_that_no_program_takes_is_found(command):
    with pytest.raises((AssertionError, SystemExit, UserError)):
        check(command.split())


# ------------------------------------------------------------------------------------------------- the tables of names

OURS: dict[str, Any] = {"tt": tt, "nn": nn, "optim": optim, "x": tt.Tensor, "model": nn.Module, "optimizer": optim.Optimizer}
OURS |= {"tinyformer": tinyformer, "tinytensor": tt, "parameter": nn.Parameter, "p": nn.Parameter, "y": tt.Tensor}
OURS |= {"numpy": numpy, "math": math}


def found(name: str, roots: dict[str, Any]) -> bool:
    """Whether a dotted name exists, whose first word is one of the roots."""
    root, *parts = name.split(".")
    value = roots[root]
    for part in parts:
        if not hasattr(value, part):
            return False
        value = getattr(value, part)
    return True


@pytest.mark.parametrize("guide", ["from_pytorch", "from_numpy"])
def test_every_name_of_ours_in_a_table_of_names_exists(guide):
    names = [name for table in pages.tables(PAGES[f"docs/guides/{guide}.md"]) for name in pages.names(table, "tinytensor")]
    assert len(names) > 50
    assert [name for name in names if not found(name, OURS)] == []
    assert not found("tt.add_", OURS)


def test_every_name_of_numpys_in_the_table_of_names_exists():
    names = [name for table in pages.tables(PAGES["docs/guides/from_numpy.md"]) for name in pages.names(table, "NumPy")]
    assert len(names) > 50
    assert [name for name in names if not found(name, {"np": numpy, "x": numpy.ndarray})] == []


# ---------------------------------------------------------------------------------------------------- an op of your own


def test_an_op_takes_two_files_as_the_guide_says(tmp_path):
    """On a copy of the tree, with the first three blocks of the guide."""
    op, row, method = pages.blocks((GUIDES / "writing_an_op.md").read_text(encoding="utf-8"), "py")[:3]
    for folder in ("tinytensor", "tinyformer", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    insert(tmp_path / "tinytensor/ops/elementwise.py", r"__all__ = \[\n", '    "cubic",\n')
    insert(tmp_path / "tinytensor/ops/elementwise.py", "", "\n\n" + op)
    insert(tmp_path / "tests/cases.py", r"\nUNARY: [^=]* = \[\n", row)
    insert(tmp_path / "tinytensor/ops/methods.py", "-- the ops, as methods\n", method)
    it_is_there = "import tinytensor as tt; x = tt.tensor(2.0); assert tt.cubic(x).item() == x.cubic().item()"
    subprocess.run([sys.executable, "-c", it_is_there], cwd=tmp_path, check=True)
    tests = ["tests/tinytensor/test_ops.py", "tests/tinytensor/test_programs.py"]
    chosen = "cubic or test_every_op_has_a_case or test_every_op_is_drawn"
    run = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-rA", "-k", chosen, *tests]
    result = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
    assert re.search(r"^PASSED .*test_op\[cubic\]", result.stdout, flags=re.MULTILINE), result.stdout
    assert re.search("^PASSED .*test_every_op_is_drawn", result.stdout, flags=re.MULTILINE)


def insert(file: Path, after: str, lines: str) -> None:
    """Put lines after the first match of a pattern, or, where that is empty, at the end."""
    text = file.read_text(encoding="utf-8")
    place = re.search(after, text).end() if after else len(text)
    file.write_text(text[:place] + lines + text[place:], encoding="utf-8")


# What a page says is not here, and what would be: a sentence that comes to be wrong fails.
LACKING = {
    ("docs/guides/recipes.md", "There are no convolutions here, no pooling, no BatchNorm, and no `.to(device)`"): (
        "nn.Conv2d nn.MaxPool2d nn.BatchNorm2d tt.conv2d tt.Tensor.to nn.Module.to"
    ),
    ("docs/guides/recipes.md", "There is no class `Dataset` or `DataLoader`"): "tt.Dataset tt.DataLoader tinyformer.DataLoader",
    ("docs/guides/from_pytorch.md", "there are no hooks on tensors"): "tt.Tensor.register_hook",
    ("docs/guides/from_pytorch.md", "There are no functions that change a tensor in place"): "tt.Tensor.add_ tt.relu_",
}


@pytest.mark.parametrize(("place", "names"), LACKING.items())
def test_what_a_page_says_is_lacking_is_lacking(place, names):
    page, sentence = place
    assert sentence in " ".join(PAGES[page].split())
    for name in names.split():
        owner, _, last = name.rpartition(".")
        assert not hasattr(eval(owner), last), name


def test_no_lesson_says_that_the_library_has_no_function():
    """Lesson 2 said so of one that came later."""
    for name, lesson in LESSONS.items():
        assert not re.search(r"[Tt]he library has no|tinytensor has no|there is no `tt\.", lesson), name
