"""The scripts of examples/ are read from top to bottom: short, with few names to know, and nothing between the reader and the
gradient step."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SCRIPTS = {path.stem: path for path in sorted((Path(__file__).parents[2] / "examples").glob("*.py"))}


def calls_in(tree: ast.AST) -> dict[str, list[ast.Call]]:
    """Return the calls in a script by the name called: steps.print, or flags."""
    found: dict[str, list[ast.Call]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            found.setdefault(ast.unparse(node.func), []).append(node)
    return found


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 12


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_a_page_of_few_names(name: str) -> None:
    text = SCRIPTS[name].read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert text.count("\n") <= 100
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    at_top = [alias for node in imports if node in tree.body for alias in node.names]
    assert len(at_top) <= 12, [alias.name for alias in at_top]
    others = [ast.unparse(node) for node in imports if node not in tree.body]
    assert set(others) <= {"from matplotlib.figure import Figure"}  # which only pictures need


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_read_from_top_to_bottom(name: str) -> None:
    tree = ast.parse(SCRIPTS[name].read_text(encoding="utf-8"))
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert not {"main", "parse", "train"} & functions
    calls = calls_in(tree)
    assert not {"Trainer", "RunSetup", "plain_errors", "run_command"} & set(calls)
    (flags,) = calls["script.flags"]
    assert ast.unparse(flags.args[0]) == "__doc__"
    assert 1 <= len(flags.keywords) <= 3
    assert len(calls["optimizer.step"]) == 1
    assert "tt.parallel.backward" in calls or "loss.backward" in calls


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_docstring_has_what_it_does_how_long_and_commands(name: str) -> None:
    about = ast.get_docstring(ast.parse(SCRIPTS[name].read_text(encoding="utf-8"))) or ""
    first, _, commands = about.partition("\n\n")
    assert re.search("second|minute", first)
    assert "\n" not in first
    lines = [line.partition("#")[0] for line in commands.split("\n")]
    assert lines[0].split() == ["python", f"examples/{name}.py"]
    assert len(lines) >= 2
    assert all(line.startswith(f"python examples/{name}.py --") for line in lines[1:])
