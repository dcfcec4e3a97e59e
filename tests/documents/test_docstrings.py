"""Every example in a docstring of both packages runs by itself, in an empty folder, and prints what it says."""

import ast
import doctest
from pathlib import Path

import pytest

import tinytensor as tt
from tinytensor.autograd import op

ROOT = Path(__file__).parents[2]
FILES = [path.relative_to(ROOT) for package in ("tinytensor", "tinyformer") for path in sorted((ROOT / package).rglob("*.py"))]


def examples():
    """A test of doctest for each docstring with examples. They are read from the files: ops are no functions to doctest."""
    for file in FILES:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            text = ast.get_docstring(node) if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)) else None
            if text and ">>>" in text:
                name = f"{file}:{getattr(node, 'name', '')}"
                line = node.body[0].lineno - 1
                yield pytest.param(doctest.DocTestParser().get_doctest(text, {}, name, str(file), line), id=name)


EXAMPLES = list(examples())


def test_there_are_examples():
    assert len(EXAMPLES) >= 60


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_prints_what_it_says(example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(op, "all_ops", dict(op.all_ops))  # an example may declare an op
    tt.seed(0)
    example.globs = {"tt": tt, "__name__": "example"}
    said = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=said.append, clear_globs=False)
    assert not said, "".join(said)
