"""Each lesson as a notebook to take along, in the site's folder ``notebooks``; at a lesson's head, the command that opens it.

A notebook has no outputs, so that it is small, and whoever opens it runs it. What only the site understands in its text is
written as plain Markdown.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

FOLDER = "notebooks"
RESULTS = "../../benchmarks"
GO_THERE = """# This lesson reads results from the repository, by a path from docs/lessons.
import os
from pathlib import Path

import tinytensor

os.chdir(Path(tinytensor.__file__).parents[1] / "docs" / "lessons")"""
RAW = re.MULTILINE | re.DOTALL
ADMONITION = re.compile(r"^:::\{admonition\} (.*?)\n(?::\w.*\n)*(.*?)\n:::$", flags=re.MULTILINE | re.DOTALL)


def plain(text: str) -> str:
    """The text of a cell without what is only the site's: boxes become quotations, and links lead from notebook to notebook."""

    def quoted(box: re.Match[str]) -> str:
        return "\n".join(f"> {line}".rstrip() for line in [f"**{box[1]}**", "", *box[2].splitlines()])

    text = ADMONITION.sub(quoted, text)
    # What needs the site's scripts; the sentence before it no longer leads to anything.
    text = re.sub(
        r":?(\s*)^```\{raw\} html\n.*?^```$", lambda html: ("." if html[0][0] == ":" else "") + html[1], text, flags=RAW
    )
    text = re.sub(r"\]\((\d\d_\w+)\.md(?:#[^)]*)?\)", r"](\1.ipynb)", text)
    return re.sub(r"\[([^\]]*)\]\((?:\.\./|index\.md)[^)]*\)", r"\1", text)


def as_notebook(executed: dict[str, Any]) -> dict[str, Any]:
    """A notebook of the cells of one that was executed."""
    cells = []
    if any(RESULTS in "".join(cell["source"]) for cell in executed["cells"] if cell["cell_type"] == "code"):
        cells.append(cell_of("code", GO_THERE, 0))
    for cell in executed["cells"]:
        text = "".join(cell["source"])
        cells.append(cell_of(cell["cell_type"], text if cell["cell_type"] == "code" else plain(text), len(cells)))
    return {"cells": cells, "metadata": {"kernelspec": KERNEL}, "nbformat": 4, "nbformat_minor": 5}


KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def cell_of(kind: str, source: str, number: int) -> dict[str, Any]:
    """A cell that was not run."""
    cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": source}
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def write_notebooks(app: Sphinx, error: Exception | None) -> None:
    """Sphinx's event at the end: write them."""
    folder = Path(app.outdir, FOLDER)
    if error is None:
        folder.mkdir(exist_ok=True)
        for path in sorted(Path(app.outdir).parent.glob("jupyter_execute/lessons/*.ipynb")):
            notebook = as_notebook(json.loads(path.read_text(encoding="utf-8")))
            (folder / path.name).write_text(json.dumps(notebook, ensure_ascii=False) + "\n", encoding="utf-8")


def tell_how(app: Sphinx, page: str, template: str, context: dict[str, Any], document: Any) -> None:
    """Sphinx's event: below the title of a lesson stands how to run it."""
    folder, _, name = page.partition("/")
    if folder == "lessons" and name[:1].isdigit():
        line = (
            f'<div class="run-it"><p>Run it: <a href="../{FOLDER}/{name}.ipynb" download>this lesson as a notebook</a>. '
            '<a href="index.html#run-them-yourself">Once installed</a>, this opens it:</p>'
            f'<div class="highlight"><pre>jupyter lab {name}.ipynb</pre></div></div>'
        )
        context["body"] = context["body"].replace("</h1>", f"</h1>\n{line}", 1)


def setup(app: Sphinx) -> dict[str, Any]:
    """Write notebooks at the end, and lines where pages are made."""
    app.connect("html-page-context", tell_how)
    app.connect("build-finished", write_notebooks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
