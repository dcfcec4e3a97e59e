"""What strict type checkers see of the installed packages: of the wheel, or of ``pip install -e .``, whichever is there."""

from __future__ import annotations

import importlib
import json
import re
import runpy
import shutil
import subprocess
import sys
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typing_extensions
from cases import PUBLIC_MODULES

import tinytensor as tt

HERE = Path(__file__).parent
TAKE_ANY_NAME = {"Parser"}  # it passes them on to argparse


def mypy(folder: Path, name: str) -> set[int]:
    done = run(folder, "mypy", "--strict", "--no-error-summary", "--no-incremental", name)
    return {int(line) for line in re.findall(rf"^{name}:(\d+): error", done, re.MULTILINE)}


def pyright(folder: Path, name: str) -> set[int]:
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    done = run(folder, "basedpyright", "--outputjson", "--pythonpath", sys.executable, name)
    return {
        found["range"]["start"]["line"] + 1 for found in json.loads(done)["generalDiagnostics"] if found["severity"] == "error"
    }


def run(folder: Path, module: str, *arguments: str) -> str:
    """Return the output of a checker that runs outside this project's folder, so it sees the installed packages."""
    done = subprocess.run([sys.executable, "-I", "-m", module, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def names_that_are_wrong() -> Iterator[str]:
    """For every public module a name that it lacks, and for every public function and class an argument that it lacks."""
    for home in PUBLIC_MODULES:
        module = importlib.import_module(home)
        yield f"import {home}"
        yield f"{home}.misspelt  # wrong"
        functions = [name for name in module.__all__ if callable(getattr(module, name)) and name not in TAKE_ANY_NAME]
        # Under a condition: what follows the call of a function that never returns would not be checked.
        yield from (f"if dir(): {home}.{name}(misspelt=1)  # wrong" for name in functions)
    methods = [name for name in dir(tt.Tensor) if callable(getattr(tt.Tensor, name)) and not name.startswith("_")]
    yield from (f"x.{name}(misspelt=1)  # wrong" for name in methods)


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_right_program_has_no_mistakes(tmp_path: Path, checker: Callable[[Path, str], set[int]]) -> None:
    shutil.copy(HERE / "right.py", tmp_path)
    assert checker(tmp_path, "right.py") == set()


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_each_mistake_is_found_and_nothing_else(tmp_path: Path, checker: Callable[[Path, str], set[int]]) -> None:
    lines = [*(HERE / "wrong.py").read_text(encoding="utf-8").splitlines(), *names_that_are_wrong()]
    assert len(lines) > 600
    (tmp_path / "wrong.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
    wrong = {place for place, line in enumerate(lines, 1) if line.endswith("# wrong")}
    found = checker(tmp_path, "wrong.py")
    assert {lines[place - 1] for place in wrong ^ found} == set()


def test_a_right_program_computes_what_the_checkers_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asserted: list[object] = []

    def check(value: object, kind: Any) -> None:
        origin = typing.get_origin(kind)
        assert isinstance(value, kind if origin in (None, types.UnionType) else origin), (value, kind)
        asserted.append(kind)

    monkeypatch.setattr(typing_extensions, "assert_type", check)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(HERE / "right.py"))
    assert len(asserted) > 60
