"""Every Python snippet of the README runs as printed, and prints what its comments say."""

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_readme_has_snippets():
    assert len(SNIPPETS) >= 2


@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_a_snippet_runs_and_prints_what_it_says(snippet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(snippet, "README.md", "exec"), {"__name__": "readme"})
    expected = re.findall(r"#> (.*)", snippet)
    assert printed.getvalue().splitlines() == expected


def test_files_that_the_readme_names_exist():
    names = re.findall(r"`((?:tinytensor|tinyformer|examples|benchmarks|tests)/[\w./]*)`", README)
    assert names
    assert [name for name in names if not (ROOT / name).exists()] == []
