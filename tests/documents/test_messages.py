"""What messages offer exists: each flag, extra, package, script and module that a text of the packages or examples names."""

from __future__ import annotations

import ast
import importlib.util
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(path for folder in ("tinytensor", "tinyformer", "examples") for path in (ROOT / folder).rglob("*.py"))
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
# Flags of other programs' commands that messages show, and a variable of CSS.
OF_OTHERS = {"--oversubscribe", "--include", "--logdir", "--fmad", "--std", "--line"}


def texts_in(path: Path) -> Iterator[str]:
    """The texts in a file, docstrings and comments left out. What an f-string puts in is a space."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if id(node) in lone | inside:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else " " for part in node.values)


TEXTS = [(path, text) for path in FILES for text in texts_in(path)]


def found(pattern: str) -> set[str]:
    return {name for _, text in TEXTS for name in re.findall(pattern, text)}


def help_of(parse, words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        parse([*words, "--help"])
    assert end.value.code == 0
    return capsys.readouterr().out


def test_every_flag_that_a_message_names_is_one_of_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    known = set(OF_OTHERS)
    for path in [*SCRIPTS, ROOT / "tinyformer/explore/__main__.py", ROOT / "tinyformer/export/__main__.py"]:
        names = runpy.run_path(str(path), run_name="imported")
        parse = names.get("parse") or names["main"]
        shown = help_of(parse, [], capsys)
        shown += "".join(help_of(parse, [command], capsys) for command in re.findall(r"`\S+ (\w+) --help`", shown))
        known |= set(re.findall(r"--[a-z][\w-]*", shown))
    named = found(r"(?<![\w-])--[a-z][a-z-]*[a-z]")
    assert len(named) > 40
    assert named <= known


def test_every_extra_and_package_that_a_message_names_can_be_installed() -> None:
    tomllib = pytest.importorskip("tomllib")  # of Python 3.11
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = found(r"\[(\w+)\](?=['\"]|\s*$|,)") & found(r"tinytensor\[(\w+)\]")
    assert found(r"tinytensor\[(\w+)\]") <= project["optional-dependencies"].keys() and extras
    lines = [*project["dependencies"], *(line for lines in project["optional-dependencies"].values() for line in lines)]
    packages = {re.match(r"[\w-]+", line)[0] for line in lines} | {"pip", "tensorboard", "jinja2", "gguf"}
    assert {name.lower() for name in found(r"pip install (?:--upgrade )?['\"]?([A-Za-z][\w-]*)")} <= packages | {"tinytensor"}


def test_every_script_and_module_that_a_message_names_exists() -> None:
    scripts = found(r"examples/(\w+\.py)")
    assert scripts <= {path.name for path in SCRIPTS}
    modules = found(r"python3? -m (tiny\w+(?:\.\w+)*)")
    assert modules and all(importlib.util.find_spec(name) for name in modules)
