"""Counts in messages."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tinytensor.wording import counted, plural

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("number", "what", "said"),
    [
        (0, "pair", "0 pairs"),
        (1, "pair", "1 pair"),
        (1, "batch", "1 batch"),
        (2, "batch", "2 batches"),
        (1, "query", "1 query"),
        (12345, "query", "12,345 queries"),
        (2, "key", "2 keys"),
        (2, "axis", "2 axes"),
        (3, "class", "3 classes"),
        (1, "different source sentence", "1 different source sentence"),
        (2, "held-out problem", "2 held-out problems"),
    ],
)
def test_counts(number: int, what: str, said: str) -> None:
    assert counted(number, what) == said


def test_a_plural_of_its_own() -> None:
    assert (counted(1, "matrix", "matrices"), counted(2, "matrix", "matrices")) == ("1 matrix", "2 matrices")
    assert plural("box") == "boxes"


# Words after a number that are counted; others, such as "parameters of a model", are never one.
COUNTABLE = "pairs|batches|tokens|keys|queries|sentences|characters|lines|files|folders|columns|rows|epochs|samples"


def test_messages_count_with_it() -> None:
    """A number that the program has counted is not put before a plural by hand: "1 pairs"."""
    wrong = []
    for path in [*ROOT.glob("tinyformer/**/*.py"), *ROOT.glob("examples/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                for value, text in zip(node.values, node.values[1:]):
                    is_count = isinstance(value, ast.FormattedValue) and "len(" in ast.unparse(value.value)
                    if is_count and isinstance(text, ast.Constant) and re.match(rf" ({COUNTABLE})\b", str(text.value)):
                        wrong.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    assert not wrong
