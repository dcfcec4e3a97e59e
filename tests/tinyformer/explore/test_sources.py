"""The question which line of the library computes something: it tells of no other files, and imports nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tinyformer.common.errors import UserError
from tinyformer.explore.views.questions import ask
from tinyformer.explore.views.subjects import Subjects

ROOT = Path(__file__).resolve().parents[3]


def found(*lines: str) -> list[Any]:
    answer: Any = ask(Subjects([]), "source", {"lines": list(lines)})
    return list(answer["lines"])


def test_a_line_has_its_file_and_number() -> None:
    (line,) = found("tinyformer.models.gpt: x = self.token_embedding(ids)")
    text = (ROOT / line["file"]).read_text(encoding="utf-8").splitlines()[line["line"] - 1]
    assert line["file"] == "tinyformer/models/gpt.py"
    assert text.strip() == line["text"] and "self.token_embedding(ids)" in text
    (package,) = found("tinyformer.models: The networks")
    assert package["file"] == "tinyformer/models/__init__.py" and package["line"] == 1


@pytest.mark.parametrize(
    "line",
    [
        "os: import",
        "tinyformer.models.gpt: no such line",
        "tinyformer.models.gpt: ",
        "tinyformer.models.gpt",
        "",
        "tinyformerx: a",
    ],
)
def test_what_is_not_there_is_null(line: str) -> None:
    assert found(line) == [None]


def test_nothing_is_imported() -> None:
    before = set(sys.modules)
    assert found("tinyformer.__main__: import", "tinyformer.programs.nothing: a")[1] is None
    assert set(sys.modules) == before


def test_there_may_be_only_so_many() -> None:
    with pytest.raises(UserError, match="at most 100 lines are looked up at once, not 101"):
        found(*["tinyformer.models.gpt: x"] * 101)
