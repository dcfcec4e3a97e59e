"""What strict type checkers see of the installed packages: of the wheel, or of ``pip install -e .``, whichever is there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent


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
    """What a checker prints that runs outside of this project's folder, so that it sees what is installed."""
    done = subprocess.run([sys.executable, "-I", "-m", module, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.mark.parametrize("checker", [mypy, pyright])
@pytest.mark.parametrize("name", ["right.py", "wrong.py"])
def test_mistakes_are_found_and_nothing_else(tmp_path: Path, checker: Callable[[Path, str], set[int]], name: str) -> None:
    shutil.copy(HERE / name, tmp_path)
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    assert checker(tmp_path, name) == {place for place, line in enumerate(lines, 1) if line.endswith("# wrong")}
