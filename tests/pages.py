"""The pages that people read: the README, the guides and the lessons; and what stands in them."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "docs" / "_extensions"))

from results import cells as tables, in_a_line  # noqa: E402, F401 (what the site is built with)

README = ROOT / "README.md"
GUIDES = ROOT / "docs" / "guides"
PAGES = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in [README, *sorted(GUIDES.glob("*.md"))]}
TAUGHT = [ROOT / "docs/index.md", *sorted((ROOT / "docs" / "lessons").glob("*.md"))]
LESSONS = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in TAUGHT}  # and the front page


def prose(text: str) -> str:
    """The sentences of a page, in a line: without blocks of code, tables, comments and formulas."""
    text = re.sub(r"^```.*?^```$|^\|.*?\|$|<!--.*?-->", "", text, flags=re.MULTILINE | re.DOTALL)
    return in_a_line(re.sub(r"\$\$[^$]*\$\$|(?<!\w)\$[^$\n]+\$(?!\w)", "", text))


def blocks(text: str, *languages: str) -> list[str]:
    """The blocks of code in these languages."""
    return re.findall(rf"^```(?:{'|'.join(languages)})\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def names(table: list[list[str]], column: str) -> list[str]:
    """The dotted names in the code of a column, such as ``tt.exp`` or ``x.sum``."""
    place = table[0].index(column)
    code = [code for row in table[1:] for code in re.findall(r"`([^`]*)`", row[place])]
    return [name for part in code for name in re.findall(r"(?<![\w.\"'])[A-Za-z]\w*(?:\.[A-Za-z_]\w*)+", part)]


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command that a page shows: in blocks for the shell, after a ``$``, and among the sentences."""
    lines = [line for block in blocks(text, "sh") for line in block.replace("\\\n", " ").splitlines()]
    printed = [line for block in blocks(text, "console") for line in block.replace("\\\n", " ").splitlines()]
    lines += [line.removeprefix("$ ") for line in printed if line.startswith("$ ")]
    lines += re.findall(r"`((?:python|tinyformer) [^`]*)`", prose(text))
    for line in lines:
        for command in re.sub(r"(^|\s+)#.*", "", line).split(" && "):
            words = shlex.split(command)
            if words:
                yield words
