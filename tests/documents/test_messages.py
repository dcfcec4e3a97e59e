"""What messages offer exists: each flag, extra, package, command and module that a text of the packages or examples names."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tinyformer.commands import script as short
from tinyformer.commands.main import ALL
from tinyformer.common import makers

ROOT = Path(__file__).parents[2]
FILES = sorted(path for folder in ("tinytensor", "tinyformer", "examples") for path in (ROOT / folder).rglob("*.py"))
# Flags of other programs' commands that messages show, of tinyformer itself, and a variable of CSS; and one that is not shown.
OF_OTHERS = {"--version", "--vectors", "--oversubscribe", "--include", "--logdir", "--fmad", "--std", "--line"}


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
    known = {*OF_OTHERS, *(f"--{name}" for name in short.HELP)}
    for _, _, module, first in ALL.values():
        shown = help_of(importlib.import_module(f"tinyformer.commands.{module}").parse, [first] if first else [], capsys)
        known |= set(re.findall(r"--[a-z][\w-]*", shown))
    named = found(r"(?<![\w-])--[a-z][a-z-]*[a-z]")
    assert len(named) > 40
    assert named <= known


def test_every_extra_and_package_that_a_message_names_can_be_installed() -> None:
    tomllib = pytest.importorskip("tomllib")  # of Python 3.11
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = found(r"tinyformer\[(\w+)\]")
    assert extras and extras <= project["optional-dependencies"].keys()
    assert not found(r"pip install.*(tinytensor)")  # a stranger's project has that name on the index
    lines = [*project["dependencies"], *(line for lines in project["optional-dependencies"].values() for line in lines)]
    packages = {re.match(r"[\w-]+", line)[0] for line in lines} | {"pip", "tensorboard", "jinja2", "gguf"}
    assert {name.lower() for name in found(r"pip install (?:--upgrade )?['\"]?([A-Za-z][\w-]*)")} <= packages | {"tinyformer"}


def test_every_command_and_module_that_a_message_names_exists() -> None:
    modules = found(r"python3? -m (tiny\w+(?:\.\w+)*)")
    assert all(importlib.util.find_spec(name) for name in modules)
    for train, use in makers.KINDS.values():
        assert " ".join(train) in ALL and (not use or use[0] in ALL)
    assert {"generate", *(words[0] for words in makers._PRETRAINED.values())} <= ALL.keys()
