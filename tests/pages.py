"""The pages that people read: the README, the guides and a lesson; and what stands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
GUIDES = ROOT / "docs" / "guides"
PAGES = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in [README, *sorted(GUIDES.glob("*.md"))]}
LESSON = (ROOT / "docs/lessons/12_fast.md").read_text(encoding="utf-8")  # the one that tells what was measured


def in_a_line(text: str) -> str:
    """The text with one space for each stretch of white space, as a sentence runs over lines."""
    return " ".join(text.split())


def prose(text: str) -> str:
    """The sentences of a page, in a line: without blocks of code, tables and comments."""
    return in_a_line(re.sub(r"^```.*?^```$|^\|.*?\|$|<!--.*?-->", "", text, flags=re.MULTILINE | re.DOTALL))


def blocks(text: str, *languages: str) -> list[str]:
    """The blocks of code in these languages."""
    return re.findall(rf"^```(?:{'|'.join(languages)})\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def tables(text: str) -> list[list[list[str]]]:
    """The cells of each Markdown table, as they are written: its header, then its rows."""
    found = []
    for block in re.findall(r"(?:^\|.*\|\n)+", f"{text}\n", flags=re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
        found.append([row for row in rows if not all(re.fullmatch(r":?-+:?", cell) for cell in row)])
    return found


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
