"""Every Python snippet of the README runs as printed, and prints what its comments say."""

import contextlib
import io
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_readme_has_snippets():
    assert len(SNIPPETS) >= 2


def needs(snippet):
    """Processes for GPUs cannot be started from a snippet: they import what they run."""
    return [pytest.mark.needs("numpy")] if "distributed.run(" in snippet else []


@pytest.mark.parametrize("snippet", [pytest.param(s, marks=needs(s), id=str(i)) for i, s in enumerate(SNIPPETS)])
def test_a_snippet_runs_and_prints_what_it_says(snippet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(snippet, "README.md", "exec"), {"__name__": "__main__"})
    expected = re.findall(r"#> (.*)", snippet)
    assert printed.getvalue().splitlines() == expected


def test_files_that_the_readme_names_exist():
    names = re.findall(r"`((?:tinytensor|tinyformer|examples|benchmarks|tests)/[\w./-]*)`", README)
    assert names
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_an_op_takes_two_files_as_the_readme_says(tmp_path):
    """On a copy of the tree, with the README's own lines."""
    op, row, method = re.findall(r"```py\n(.*?)```", README, flags=re.DOTALL)
    for folder in ("tinytensor", "tinyformer", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    insert(tmp_path / "tinytensor/ops/elementwise.py", r"__all__ = \[\n", '    "cubic",\n')
    insert(tmp_path / "tinytensor/ops/elementwise.py", "", "\n\n" + op)
    insert(tmp_path / "tests/cases.py", r"\nUNARY: [^=]* = \[\n", row)
    insert(tmp_path / "tinytensor/tensor.py", "-- the ops, as methods\n", method)
    check = "import tinytensor as tt; x = tt.tensor(2.0); assert tt.cubic(x).item() == x.cubic().item()"
    subprocess.run([sys.executable, "-c", check], cwd=tmp_path, check=True)
    tests = ["tests/tinytensor/test_ops.py", "tests/tinytensor/test_programs.py"]
    chosen = "cubic or test_every_op_has_a_case or test_every_op_is_drawn"
    run = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-rA", "-k", chosen, *tests]
    result = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
    assert len(re.findall("^PASSED .*cubic", result.stdout, flags=re.MULTILINE)) > 20, result.stdout
    assert re.search("^PASSED .*test_every_op_is_drawn", result.stdout, flags=re.MULTILINE)


def insert(file: Path, after: str, lines: str) -> None:
    """Put lines after the first match of a pattern, or, where that is empty, at the end."""
    text = file.read_text(encoding="utf-8")
    place = re.search(after, text).end() if after else len(text)
    file.write_text(text[:place] + lines + text[place:], encoding="utf-8")
