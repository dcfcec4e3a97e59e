"""A question about the library's own source: which line of it computes something."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from pathlib import Path

from tinyformer.common.errors import UserError
from tinyformer.explore.views.passages import Answer
from tinyformer.explore.views.subjects import Subjects

PACKAGES = ("tinyformer", "tinytensor")
MOST_LINES = 100  # that one question asks for


@dataclass(frozen=True)
class Source:
    """Lines of the library, each as "module: a part of the line", such as "tinyformer.models.gpt: self.token_embedding("."""

    lines: list[str]

    def __post_init__(self) -> None:
        if len(self.lines) > MOST_LINES:
            raise UserError(f"at most {MOST_LINES} lines are looked up at once, not {len(self.lines)}")


def source(subjects: Subjects, asked: Source) -> Answer:
    """Where each of the lines stands: its ``file`` below the folder of its package, its number, and its ``text``; null for one
    that is not there. Only modules that are loaded are looked into, so nothing runs because of what is asked."""
    return {"lines": [_found(*line.partition(": ")[::2]) for line in asked.lines]}


def _found(name: str, part: str) -> Answer | None:
    module = sys.modules.get(name)
    if module is None or not part or name.partition(".")[0] not in PACKAGES:
        return None
    try:
        lines, file = inspect.getsource(module).splitlines(), Path(inspect.getfile(module))
    except (OSError, TypeError):  # a module without a file of source, as where only compiled ones are installed
        return None
    number = next((i for i, line in enumerate(lines) if part in line), None)
    if number is None:
        return None
    below = file.parts[-len(name.split(".")) :] if file.stem != "__init__" else file.parts[-len(name.split(".")) - 1 :]
    return {"file": "/".join(below), "line": number + 1, "text": lines[number].strip()}
