"""The library does not know the examples: no file of it names one, but the file that knows the runs of older scripts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
NAMED = re.compile(rf"(?<![\w/])(examples/)?({'|'.join(map(re.escape, EXAMPLES))})\b|\bexamples/\w")
THE_ONE = ROOT / "tinyformer/common/makers.py"


def named_in(text: str) -> list[str]:
    return [found[0] for found in NAMED.finditer(text)]


def test_names_are_found() -> None:
    assert named_in('"use it with char_gpt.py"') == ["char_gpt.py"]
    assert named_in("python examples/translate.py sample; examples/my_own.py") == ["examples/translate.py", "examples/m"]
    assert named_in("runs/char_gpt, tinyformer/common/memory.py, my_memory.py, of the examples.") == []


@pytest.mark.parametrize("package", ["tinytensor", "tinyformer"])
def test_no_file_of_the_library_names_an_example(package: str) -> None:
    files = [path for path in sorted((ROOT / package).rglob("*")) if path.suffix in {".py", ".pyi", ".js", ".html", ".css"}]
    assert len(files) > 50
    found = {str(path.relative_to(ROOT)): named_in(path.read_text(encoding="utf-8")) for path in files if path != THE_ONE}
    assert {name: names for name, names in found.items() if names} == {}
